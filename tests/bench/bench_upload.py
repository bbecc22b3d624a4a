"""Uploads of weights: over TCP beside bare sockets, through memory that is passed, and by digest.

The bare side sends as many bytes, over as many connections, with the same calls, to a process that does
either of two things with them. It keeps them as an upload does: large pieces are received into memory
that stays in the processor's cache and written from there to a fresh memfd of the upload's size, which is
sealed at the end; that is the least that a program can do which has the bytes afterwards, and what the
goal is measured beside. Or it throws them away: it receives into memory that it uses again, which is what
the link can do, and less than any upload could. Weights come from a disk, so one more row sets an upload
beside the slower of the two. The daemon also verifies: it hashes all that comes. Sides take turns. Digests
are computed before the clock starts, but for the row that says so. Freeing what was kept is in nobody's
time.

The rows about processor time say what bounds the first ones. A byte takes what it takes the bare pair that
keeps it, and the time of its hash, whatever else the daemon does: what this machine's processors have time
for then is the bound, and a row says how much of it is reached. Where all processors are busy the hash
alone may put the goal out of reach; the bound beside the bare pair shows it. The last of the rows is what
the daemon's loop, one thread that receives and writes, has time for where other processors do the rest.
"""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client" / "python"))

import numpy as np  # noqa: E402
from rows import Row, is_quick  # noqa: E402
from run_daemon import Daemon, device  # noqa: E402

import headrace  # noqa: E402
from headrace import client as blocking  # noqa: E402
from headrace.uploads import prepare  # noqa: E402

REPETITIONS = 5
MIB = 1 << 20
BYTES = 256 * MIB
LARGE = 1024 * MIB
PIECE = MIB
DEVICES = (device("cpu0", backend="cpu", threads=1),)

# A connection says, in three words, how many bytes are kept in all (0: they are thrown away), how many it
# sends, and where they begin. One that sends none is answered when what was kept has been freed.
RECEIVER = """
import fcntl, os, socket, threading
PIECE = 1 << 20
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
lock = threading.Lock()
kept = {"fd": -1, "left": 0}
def begin(total):
    with lock:
        if total and kept["fd"] < 0:
            kept["fd"] = os.memfd_create("kept", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(kept["fd"], total)
            kept["left"] = total
        return kept["fd"]
def end(total, size):
    with lock:
        if total:
            kept["left"] -= size
            if kept["left"] == 0:
                fcntl.fcntl(kept["fd"], fcntl.F_ADD_SEALS, SEALS)
        elif not size and kept["fd"] >= 0:
            os.close(kept["fd"])
            kept["fd"] = -1
def take(one):
    with one:
        words = one.recv(24, socket.MSG_WAITALL)
        total, size, at = (int.from_bytes(words[i : i + 8], "little") for i in (0, 8, 16))
        memory = memoryview(bytearray(PIECE))
        fd, left = begin(total), size
        while left:
            got = one.recv_into(memory[:min(left, PIECE)])
            done = 0
            while total and done < got:
                done += os.pwrite(fd, memory[done:got], at + done)
            at += got
            left -= got
        end(total, size)
        one.send(b"x")
while True:
    one, _ = server.accept()
    threading.Thread(target=take, args=(one,), daemon=True).start()
"""


def timed(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def send_bare(port: int, data: memoryview, lanes: int, is_kept: bool) -> None:
    share = len(data) // lanes

    def lane(index: int) -> None:
        start = index * share
        part = data[start : len(data) if index == lanes - 1 else start + share]
        with socket.create_connection(("127.0.0.1", port)) as one:
            for word in (len(data) if is_kept else 0, len(part), start):
                one.sendall(word.to_bytes(8, "little"))
            for at in range(0, len(part), PIECE):
                one.sendall(part[at : at + PIECE])
            assert one.recv(1) == b"x"

    threads = [threading.Thread(target=lane, args=(index,)) for index in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def free_kept(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as one:
        one.sendall(bytes(24))
        assert one.recv(1) == b"x"


def processor_s(process: str) -> float:
    """What a process, or a thread, has used so far, in its own code and in the kernel's."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def hashers(pid: int) -> list[str]:
    """The daemon's threads that hash."""
    tasks = Path(f"/proc/{pid}/task")
    names = {task.name: (task / "comm").read_text() for task in tasks.iterdir()}
    return [f"{pid}/task/{task}" for task, name in names.items() if name.startswith("hr-hash")]


class Used:
    """Processor time of processes, or threads, by name, while something goes on."""

    def __init__(self, **processes: list[str]) -> None:
        self.processes = processes
        self.seconds = dict.fromkeys(processes, 0.0)

    def now(self) -> dict[str, float]:
        return {name: sum(map(processor_s, each)) for name, each in self.processes.items()}

    def during(self, work: Any) -> float:
        before = self.now()
        seconds = timed(work)
        for name, after in self.now().items():
            self.seconds[name] += after - before[name]
        return seconds

    def ns(self, name: str, size: int) -> float:
        return self.seconds[name] * 1e9 / size


def arithmetic(ours: float, kept: Row, pair: Used, used: Used, sent: int) -> list[Row]:
    processors = len(os.sched_getaffinity(0))
    daemon_ns, client_ns = used.ns("daemon", sent), used.ns("client", sent)
    pair_ns = pair.ns("client", sent) + pair.ns("receiver", sent)
    bound = processors * 1e3 / (pair_ns + used.ns("hashers", sent))
    what = f"bare bytes kept and hashed, {processors} processors"
    return [
        Row(what, bound, "MB/s", kept.peer, kept.peer_value),
        Row(kept.what, ours, "MB/s", what, bound),
        Row("processor time of the bare pair", pair_ns, "ns/byte"),
        Row("processor time of the daemon", daemon_ns, "ns/byte"),
        Row("    of it for the hash", used.ns("hashers", sent), "ns/byte"),
        Row("processor time of the client", client_ns, "ns/byte"),
        Row(
            f"{processors} processors have time for",
            processors * 1e3 / (daemon_ns + client_ns),
            "MB/s",
        ),
        Row("the daemon's loop has time for", 1e3 / max(used.ns("loop", sent), 1e-3), "MB/s"),
    ]


def disk_rate(size: int) -> float | None:
    """Bytes a second at which a file comes from the disk that temporary files lie on, past the page
    cache; None where that cannot be asked for.
    """
    with tempfile.NamedTemporaryFile() as file, mmap.mmap(-1, 4 * MIB) as piece:
        file.write(bytes(size))
        file.flush()
        os.fsync(file.fileno())
        try:
            fd = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            return None
        try:
            return size / timed(
                lambda: [os.preadv(fd, [piece], at) for at in range(0, size, 4 * MIB)]
            )
        finally:
            os.close(fd)


class Contents:
    """The same size, other bytes each time."""

    def __init__(self, size: int) -> None:
        self.array = np.random.default_rng(1).integers(0, 1 << 31, size // 4, np.int32)
        self.round = 0

    def next(self) -> tuple[dict[str, Any], bytes]:
        self.round += 1
        self.array[:: PIECE // 4] = self.round
        tensors = {"w": self.array}
        return tensors, prepare("w", tensors, True).digest


def over_tcp(daemon: Daemon, contents: Contents, repetitions: int) -> list[Row]:
    lanes = blocking.LANES
    receiver = subprocess.Popen([sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE, text=True)
    pid = daemon.process.pid
    pair = Used(client=["self"], receiver=[str(receiver.pid)])
    used = Used(client=["self"], daemon=[str(pid)], loop=[f"{pid}/task/{pid}"], hashers=[])
    ours: list[float] = []
    hashed: list[float] = []
    kept: list[float] = []
    thrown: list[float] = []
    try:
        assert receiver.stdout is not None
        port = int(receiver.stdout.readline())
        with headrace.connect(daemon.tcp_address or "") as client:
            used.processes["hashers"] = hashers(pid)
            for _ in range(repetitions):
                tensors, digest = contents.next()
                data = memoryview(contents.array).cast("B")
                thrown.append(timed(lambda data=data: send_bare(port, data, lanes, False)))
                kept.append(pair.during(lambda data=data: send_bare(port, data, lanes, True)))
                free_kept(port)
                for times, known in ((ours, digest), (hashed, True)):
                    sets: list[Any] = []
                    watch = used.during if times is ours else timed
                    times.append(
                        watch(
                            lambda known=known, tensors=tensors, sets=sets: sets.append(
                                client.put("w", tensors, digest=known)
                            )
                        )
                    )
                    client.drop(sets[0])
    finally:
        receiver.kill()
        receiver.wait()
    size = len(data) / 1e6
    rate, peer = size / median(ours), f"bare sockets, {lanes} connections"
    keeps, throws = f"{peer}, kept", f"{peer}, thrown away"
    first = Row(f"TCP, {len(data) // MIB} MiB", rate, "MB/s", keeps, size / median(kept), ">= 0.8")
    disk = disk_rate(len(data))
    slower = min(size / median(thrown), disk / 1e6) if disk else 0
    return [
        first,
        Row(first.what, rate, "MB/s", throws, size / median(thrown)),
        *(
            [Row(first.what, rate, "MB/s", "the slower of disk and link", slower, ">= 0.8")]
            if disk
            else []
        ),
        Row(
            "the same, the client computes the digest",
            size / median(hashed),
            "MB/s",
            keeps,
            size / median(kept),
        ),
        *arithmetic(rate, first, pair, used, len(data) * repetitions),
    ]


def passed(daemon: Daemon, contents: Contents, repetitions: int) -> list[Row]:
    times: list[float] = []
    moved = 0.0
    with headrace.connect(daemon.address) as client:
        for _ in range(repetitions):
            tensors, digest = contents.next()
            before = client.stats().value("bytes_in_total")
            sets: list[Any] = []
            times.append(timed(lambda: sets.append(client.put("w", tensors, digest=digest))))
            moved = max(moved, client.stats().value("bytes_in_total") - before)
            client.drop(sets[0])
    size = contents.array.nbytes / 1e6
    return [
        Row("memfd, filled and hashed", size / median(times), "MB/s"),
        Row("bytes of it on the socket", moved, "bytes", goal="<= 65536"),
    ]


def warm(daemon: Daemon, contents: Contents) -> list[Row]:
    rows = []
    for door, address in (("Unix", daemon.address), ("TCP", daemon.tcp_address or "")):
        tensors, digest = contents.next()
        with headrace.connect(address) as client:
            client.put("w", tensors, digest=digest)
            seconds = timed(lambda: client.put("w", tensors, digest=digest))
        size = contents.array.nbytes // MIB
        rows.append(Row(f"{size} MiB that are there, {door}", seconds, "s", goal="<= 1"))
    return rows


def states(daemon: Daemon, repetitions: int) -> list[Row]:
    rows = []
    value = np.ones(16 * MIB, np.float32)
    for door, address in (("Unix", daemon.address), ("TCP", daemon.tcp_address or "")):
        with headrace.connect(address) as client:
            state = client.state({"s": ("f32", value.shape)})
            writes = [timed(lambda: state.write("s", value)) for _ in range(repetitions)]
            reads = [timed(lambda: state.read("s")) for _ in range(repetitions)]
        for what, times in (("write", writes), ("read", reads)):
            rate = value.nbytes / 1e6 / median(times)
            rows.append(Row(f"64 MiB of a state, {what}, {door}", rate, "MB/s"))
    return rows


def run() -> list[Row]:
    """The rows of `upload`."""
    quick = is_quick()
    repetitions = 3 if quick else REPETITIONS
    contents = Contents(64 * MIB if quick else BYTES)
    with Daemon(devices=DEVICES, tcp=True) as daemon:
        rows = over_tcp(daemon, contents, repetitions) + passed(daemon, contents, repetitions)
        rows += states(daemon, repetitions)
        rows += warm(daemon, contents)
        if not quick:
            rows += warm(daemon, Contents(LARGE))
    return rows
