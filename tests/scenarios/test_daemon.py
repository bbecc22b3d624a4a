"""Scenarios of connections, uploads, versions, validation and leaks."""

from __future__ import annotations

import gc
import math
import os
import random
import signal
import struct
import subprocess
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
import raw
from devices import has_address_sanitizer
from graphs import floats, scale, state, submit_ping_pong, unfloats
from raw import EXHAUSTED, F32, INPUT, INVALID, NOT_FOUND, RANGE, UNSUPPORTED, Conn, Graph, pb
from run_daemon import Daemon, DaemonError, build_folder, device

pytestmark = pytest.mark.usefixtures("guarded")
FULL = bool(os.environ.get("HEADRACE_FULL"))
DATA = Path(__file__).resolve().parent / "data"
TWO = struct.pack("<16f", *range(16))
SUM = struct.pack("<8f", *(float(i + i + 8) for i in range(8)))


def test_b045_idle_and_slow_clients_delay_nobody(daemon: Any) -> None:
    def greetings() -> float:
        """Seconds of the median of 26 clients, each of which is served."""
        times = []
        for _ in range(26):
            begun = time.monotonic()
            with Conn(daemon.address) as conn:
                times.append(time.monotonic() - begun)
                handle = conn.submit(raw.add_graph()).handle
                assert conn.run(handle, TWO) == SUM
        return sorted(times)[len(times) // 2]

    alone = greetings()
    idle = [Conn(daemon.address) for _ in range(20)]
    half = Conn(daemon.address)
    half.raw(raw.header(raw.SUBMIT, 9, 0, 100000) + bytes(5))
    silent = [Conn(daemon.address, hello=False) for _ in range(20)]
    assert greetings() < 10 * alone + 0.05
    for conn in [*idle, half, *silent]:
        conn.close()


def test_b048_out_of_memory_then_killed_and_started_again(tmp_path: Path) -> None:
    """The socket can be bound again at once, on the same path and port."""
    from run_daemon import held_port

    program = build_folder() / "daemon" / "headraced"
    path, port = tmp_path / "one.sock", held_port()
    command = [program, "--set", f"listen.unix={path}", "--set", f"listen.tcp=127.0.0.1:{port}",
               "--set", "device.cpu0.memory_cap=1M", "--set", "device.cpu0.threads=1"]  # fmt: skip
    for _ in range(20 if FULL else 4):
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log, stdout=log)
        try:
            for address in (f"unix:{path}", f"tcp:127.0.0.1:{port}"):
                conn = connect_soon(address, process)
                with pytest.raises(raw.RawError) as caught:
                    state(conn, [("s", F32, [1 << 20])], "cpu0")
                assert caught.value.code == EXHAUSTED
                conn.ping()
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def connect_soon(address: str, process: subprocess.Popen[bytes]) -> Conn:
    end = time.monotonic() + 10
    while True:
        assert process.poll() is None and time.monotonic() < end
        try:
            return Conn(address)
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.01)


def test_b050_nothing_in_the_environment(tmp_path: Path) -> None:
    program = build_folder() / "daemon" / "headraced"
    path = tmp_path / "bare.sock"
    process = subprocess.Popen(
        [program, "--set", f"listen.unix={path}", "--set", "device.cpu0.threads=1"],
        env={}, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        with connect_soon(f"unix:{path}", process) as conn:
            handle = conn.submit(raw.add_graph()).handle
            assert conn.run(handle, TWO) == SUM
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def processor_s(daemon: Any) -> float:
    """What all its threads have used: no matter what else the machine does."""
    fields = Path(f"/proc/{daemon.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_kib(daemon: Any) -> int:
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def test_b051_large_uploads_in_chunks(address: str, daemon: Any) -> None:
    """The daemon holds the set and little else; every byte is right."""
    size = (1 << 30) if FULL else (48 << 20)
    block = random.Random(1).randbytes(1 << 20)
    data = block * (size >> 20)
    with Conn(address) as conn:
        before = resident_kib(daemon)
        info = conn.put("large", [("t", raw.I8, [size], data)], raw.tree_digest(data))
        grown = resident_kib(daemon) - before
        assert info.bytes == size and grown < size // 1024 + 20000
        graph = Graph()
        ids = graph.leaf(INPUT, raw.I32, [3], "ids")
        rows = graph.leaf(raw.WEIGHT, raw.I8, [size], "t")
        window = graph.node(
            "VIEW", raw.I8, [64], (rows,), (size - 64, 0), view=(rows, size - 64)
        )
        graph.node("CONT", raw.I8, [64], (window,), output=True)
        graph.node("CONT", raw.I32, [3], (ids,), output=True)
        try:
            handle = conn.submit(graph, weights=[info.handle]).handle
        except raw.RawError as error:
            assert error.code == UNSUPPORTED  # copies of bytes are no op of this device
        else:
            out = conn.run(handle, struct.pack("<3i", 1, 2, 3))
            assert out[:64] == data[-64:]


# ---- versions ------------------------------------------------------------------------------------


def test_b058_recorded_streams_mean_the_same(daemon: Any) -> None:
    """Bytes recorded from earlier versions: the same requests, the same answers."""
    files = sorted(DATA.glob("*.hex"))
    assert files
    for path in files:
        sections = dict(
            line.split(":", 1) for line in path.read_text().splitlines() if ":" in line
        )
        with Conn(daemon.address, hello=False) as conn:
            conn.raw(bytes.fromhex(sections["sent"]))
            conn.socket.settimeout(5)
            replies = {}
            while not replies or max(replies) < int(sections["last"]):
                frame = conn.frame()
                replies[frame.call_id] = frame
            assert not any(frame.flags & raw.ERROR for frame in replies.values()), path.name
            handle = pb.SubmitReply.FromString(replies[2].message).handle
            inputs = bytes.fromhex(sections["inputs"])
            out, _ = conn.call(raw.RUN, pb.Run(handle=handle), inputs, call_id=99)[::-1]
            assert out.hex() == sections["outputs"].strip(), path.name


def test_b058_op_numbers_do_not_move() -> None:
    """The numbers of the ops that clients may have stored."""
    table = (raw.ROOT / "core" / "op.def").read_text()
    for name, number in raw.OP.items():
        assert f"X({name}, {number}," in table, name


@pytest.mark.parametrize("op", [*range(200, 210), 1000, 2**31, 2**32 - 1])
def test_b058_b068_unknown_ops(daemon: Any, op: int) -> None:
    graph = Graph()
    x = graph.leaf(INPUT, F32, [8], "x")
    graph.node(op, F32, [8], (x,), params=(0x41414141, 0x41414141), output=True)
    with Conn(daemon.address) as conn:
        error = conn.submit_fails(graph)
        assert (error.code, error.reason) == (INVALID, "OP") and error.error.node == 0


def test_b060_many_questions_at_once(daemon: Any) -> None:
    """10 000 op signatures in one message, answered in bulk."""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [16, 16], "x")
    for number in range(10000):
        if number % 3 == 0:
            graph.node("ADD", F32, [16, 16], (x, x))
        elif number % 3 == 1:
            graph.node("RMS_NORM", F32, [16, 16], (x,), params=(0x3727C5AC,))
        else:
            graph.node("MUL_MAT", F32, [16, 16], (x, x))
    body = graph.encode().SerializeToString()
    with Conn(daemon.address) as conn:
        message = pb.Ops()
        assert len(body) < conn.body_max
        used = processor_s(daemon)
        reply, table = conn.call(raw.OPS, message, body)
        assert processor_s(daemon) - used < 2.0
        assert (reply.device_count, reply.node_count) == (3, 10000)
        assert len(table) == 30000 and set(table) == {1}


def test_b061_blas_is_only_a_helper(launch: Callable[..., Any]) -> None:
    """A block with norms, products and a softmax on a daemon with BLAS in front."""
    try:
        helped = launch(
            devices=[
                device("blas", backend="blas", threads=1),
                device("cpu0", backend="cpu", threads=1),
            ]
        )
    except DaemonError as error:
        assert "backend" in str(error)
        pytest.skip("this build has no BLAS")
    graph = Graph()
    x = graph.leaf(INPUT, F32, [64, 64], "x")
    w = graph.leaf(INPUT, F32, [64, 64], "w")
    normed = graph.node("RMS_NORM", F32, [64, 64], (x,), params=(0x3727C5AC,))
    product = graph.node("MUL_MAT", F32, [64, 64], (w, normed))
    graph.node("SOFT_MAX", F32, [64, 64], (product,), (0x3F800000, 0), output=True)
    with Conn(helped.address) as conn:
        handle = conn.submit(graph).handle
        ones = floats([1.0] * 4096)
        out = unfloats(conn.run(handle, ones + ones))
        assert all(abs(value - 1 / 64) < 1e-6 for value in out)


def test_b065_probes_are_told_apart(launch: Callable[..., Any]) -> None:
    """Garbage is logged with its reason and its peer; a probe that says nothing, or too little, is
    no error."""
    quiet = launch(devices=[device("cpu0", threads=1)], tcp=True)
    http = b"GET / HTTP/1.0\r\n\r\n" + bytes(20)
    tls_hello = bytes.fromhex("160301020001fc0303") + bytes(500)
    for address in (quiet.address, quiet.tcp_address):
        for words in (http, tls_hello):
            with Conn(address, hello=False) as conn:
                conn.raw(words)
                assert [frame.error.reason for frame in conn.closed()] == ["BAD_MAGIC"]
        for words in (b"", b"H", raw.header(raw.HELLO, 1)[:31]):
            with Conn(address, hello=False) as conn:
                conn.raw(words)
    with Conn(quiet.address) as conn:
        assert conn.stats()["protocol_errors_total"] == 4
    lines = [line for line in quiet.log().splitlines() if "connection cut" in line]
    assert len(lines) == 4 and all("BAD_MAGIC" in line for line in lines)
    for peer in (f'unix principal="uid {os.getuid()}"', "tcp principal=local"):
        assert sum(peer in line for line in lines) == 2, lines


# ---- validation ----------------------------------------------------------------------------------


def test_b066_every_type_number(daemon: Any) -> None:
    blocks = {2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 29, 34, 35,
              39, 40, 41, 42}  # fmt: skip
    plain = {0, 1, 24, 25, 26, 27, 28, 30}
    with Conn(daemon.address) as conn:
        for type in [*range(64), 255, 2**31, 2**32 - 1]:
            for ne, good in (([256], blocks | plain), ([3], plain), ([0], blocks | plain)):
                body = raw.manifest([("t", type, ne, b"")]).SerializeToString()
                try:
                    reply, _ = conn.call(raw.STATE_ALLOC, pb.StateAlloc(), body)
                except raw.RawError as error:
                    assert error.code == INVALID and type not in good, (type, ne)
                else:
                    assert type in good, (type, ne)
                    conn.call(raw.STATE_FREE, pb.StateFree(handle=reply.handle))


def test_b075_windows_against_big_integers(daemon: Any) -> None:
    """Random windows with extreme extents, strides and offsets: accepted exactly when every byte
    they touch lies in the base and their elements can be counted; nothing may wrap."""
    rng = random.Random(23)
    base_elements = 4096
    accepted = refused = 0
    extremes = [0, 1, 2, 3, 7, 64, 4095, 4096, 2**31, 2**32, 2**62, 2**63 - 1]
    with Conn(daemon.address) as conn:
        for _ in range(3000 if FULL else 600):
            ne = [max(1, rng.choice([1, 1, 2, 3, 8, *extremes[2:]])) for _ in range(4)]
            strides = [4]
            for _ in range(3):
                strides.append(4 * rng.choice([1, 2, 8, 64, 100, 1024, *extremes[8:]]) % 2**64)
            offset = 4 * rng.choice([0, 0, 1, 5, 4000, 4096, *extremes[8:]]) % 2**64
            if rng.random() < 0.7:  # mostly near the edge of what is good
                ne = [rng.randrange(1, 9) for _ in range(4)]
                offset = 4 * rng.randrange(0, 4200)
            touched = offset + sum((n - 1) * s for n, s in zip(ne, strides, strict=True)) + 4
            good = touched <= 4 * base_elements and 4 * math.prod(ne) < 2**63
            graph = Graph()
            x = graph.leaf(INPUT, F32, [base_elements], "x")
            words = (offset & 0xFFFFFFFF, offset >> 32)
            graph.node(
                "VIEW", F32, ne, (x,), words, view=(x, offset),
                strides=(strides[0], strides[1], strides[2], strides[3]), output=False,
            )  # fmt: skip
            try:
                conn.submit(graph, dry_run=True)
            except raw.RawError as error:
                assert error.code in (INVALID, EXHAUSTED) and not good, (ne, strides, offset)
                refused += 1
            else:
                assert good, (ne, strides, offset)
                accepted += 1
        assert accepted > 50 and refused > 50


def test_b078_b095_payloads_of_every_size(daemon: Any) -> None:
    """Powers of two and their neighbours, as inputs of a run."""
    top = 26 if FULL else 22
    with Conn(daemon.address) as conn:
        handles = {}
        for power in range(2, top + 1):
            for size in (2**power - 4, 2**power, 2**power + 4):
                if size == 0 or size // 4 in handles:
                    continue
                graph = Graph()
                x = graph.leaf(INPUT, F32, [size // 4], "x")
                scale(graph, x, [size // 4], -1.0, output=True)
                handle = conn.submit(graph).handle
                data = struct.pack("<f", 2.5) * (size // 4)
                assert conn.run(handle, data) == struct.pack("<f", -2.5) * (size // 4)
                for wrong in (size - 1, size + 1):
                    if wrong <= conn.body_max:
                        error = conn.fails(raw.RUN, pb.Run(handle=handle), bytes(wrong))
                        assert error.code == INVALID
                conn.call(raw.RELEASE, pb.Release(handle=handle))
                handles[size // 4] = handle


# ---- leaks ---------------------------------------------------------------------------------------


def one_cycle(address: str) -> None:
    data = bytes(1 << 20)
    with Conn(address) as conn:
        info = conn.put("cycle", [("t", F32, [1 << 18], data)], placement=[("*", "cpu0")])
        held = state(conn, [("s", F32, [1000])], "cpu1")
        handle = submit_ping_pong(conn, 1000, n_copies=2).handle
        assert conn.run(handle, bytes(4000)) == bytes(4000)
        conn.call(raw.RELEASE, pb.Release(handle=handle))
        conn.call(raw.STATE_FREE, pb.StateFree(handle=held))
        conn.call(raw.DROP, pb.WeightsDrop(handle=info.handle))


def skip_with_sanitizer(daemon: Any) -> None:
    if has_address_sanitizer(daemon.process.pid):
        pytest.skip("a sanitizer keeps freed memory for a while")


def test_b085_nothing_grows(daemon: Any) -> None:
    """Session, upload, plan, run, release, over and over: resident memory stays."""
    skip_with_sanitizer(daemon)
    for _ in range(20):
        one_cycle(daemon.address)
    settled = resident_kib(daemon)
    for _ in range(2000 if FULL else 60):
        one_cycle(daemon.address)
    grown = resident_kib(daemon) - settled
    assert grown < max(settled // 100, 3000), f"{grown} KiB more"


def test_b086_clients_leave_nothing(daemon: Any) -> None:
    """Neither clients that come and go nor runs on one of them make the client's process grow."""

    def connects(count: int) -> None:
        for _ in range(count):
            with headrace.connect(daemon.address) as client:
                client.ping()

    graph = headrace.Graph()
    x = graph.input("x", (8,))
    graph.output(x + x, "y")
    with headrace.connect(daemon.address) as client:
        plan = client.submit(graph)
        ones = np.ones(8, np.float32)

        def runs(count: int) -> None:
            for _ in range(count):
                assert plan.run({"x": ones})["y"][0] == 2

        for work, few, many in ((connects, 10, 100_000 if FULL else 40),
                                (runs, 50, 1_000_000 if FULL else 1000)):  # fmt: skip
            tracemalloc.start()
            work(few)
            gc.collect()
            settled = tracemalloc.get_traced_memory()[0]
            work(many)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - settled
            tracemalloc.stop()
            assert grown < 64 << 10, f"{grown} bytes more after {many} {work.__name__}"


def test_b086_connections_leave_nothing(daemon: Any) -> None:
    skip_with_sanitizer(daemon)
    for _ in range(50):
        Conn(daemon.address).close()
    settled = resident_kib(daemon)
    for _ in range(10000 if FULL else 500):
        Conn(daemon.address).close()
    assert resident_kib(daemon) - settled < 3000


def test_sigterm_lets_runs_end(tmp_path: Path) -> None:
    """Drain: what is in flight is answered, new requests are refused, the exit status is 0."""
    one = Daemon(devices=[device("cpu0", threads=1, delay="200ms")])
    conn = Conn(one.address)
    graph = Graph()
    x = graph.leaf(INPUT, F32, [8], "x")
    scale(graph, x, [8], 2.0, output=True)
    handle = conn.submit(graph).handle
    run = conn.send(raw.RUN, pb.Run(handle=handle), floats([1.0] * 8))
    conn.ping()  # the run has been taken
    one.process.send_signal(signal.SIGTERM)
    assert unfloats(conn.reply(run)[1]) == (2.0,) * 8
    assert [frame.type for frame in conn.pushes] in ([raw.GOAWAY], [])
    conn.close()
    one.stop()


def test_sigterm_again_and_again() -> None:
    """However often it is told, and however late: the exit status is 0."""
    for _ in range(20 if FULL else 5):
        one = Daemon(devices=[device("cpu0", threads=1)])
        with Conn(one.address) as conn:
            conn.submit(raw.add_graph())
        while one.process.poll() is None:
            one.process.send_signal(signal.SIGTERM)
        assert one.process.returncode == 0, one.log()
        one.stop()


def test_sigterm_with_clients_that_do_nothing(launch: Callable[..., Any]) -> None:
    one = launch(devices=[device("cpu0", threads=1)])
    conns = [Conn(one.address) for _ in range(5)] + [Conn(one.address, hello=False)]
    begun = time.monotonic()
    one.stop()
    assert time.monotonic() - begun < 10
    for conn in conns:
        conn.close()


def test_foreign_handle_after_restart(launch: Callable[..., Any]) -> None:
    """C25: a handle of the daemon before."""
    handles = []
    for _ in range(2):
        one = launch(devices=[device("cpu0", threads=1)])
        with Conn(one.address) as conn:
            for old in handles:
                assert conn.fails(raw.RUN, pb.Run(handle=old), TWO).code in (NOT_FOUND, RANGE)
            handles.append(conn.submit(raw.add_graph()).handle)
        one.stop()
