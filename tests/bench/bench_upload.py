"""Uploads of weights: over TCP beside bare sockets, through memory that is passed, and by digest.

The bare side sends as many bytes, over as many connections, with the same calls, to a process that
receives them into memory it uses again and does nothing with them; it is what the link can do here. The
daemon also verifies: it hashes all that comes. Sides take turns. Digests are computed before the clock
starts, but for the row that says so. The rows about processor time say what bounds the first one. A byte
takes what it takes the bare pair, and the time of its hash, whatever else the daemon does: what this
machine's processors have time for then is the bound, and the second row says how much of it is reached.
The last of them is what the daemon's loop, one thread that receives and writes, has time for where other
processors do the rest.
"""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
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

RECEIVER = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
def take(one):
    memory = memoryview(bytearray(4 << 20))
    left = int.from_bytes(one.recv(8, socket.MSG_WAITALL), "little")
    while left:
        left -= one.recv_into(memory[:min(left, len(memory))])
    one.send(b"x")
while True:
    one, _ = server.accept()
    threading.Thread(target=take, args=(one,), daemon=True).start()
"""


def timed(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def send_bare(port: int, data: memoryview, lanes: int) -> None:
    share = len(data) // lanes

    def lane(index: int) -> None:
        part = data[index * share : len(data) if index == lanes - 1 else (index + 1) * share]
        with socket.create_connection(("127.0.0.1", port)) as one:
            one.sendall(len(part).to_bytes(8, "little"))
            for at in range(0, len(part), PIECE):
                one.sendall(part[at : at + PIECE])
            one.recv(1)

    threads = [threading.Thread(target=lane, args=(index,)) for index in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def processor_s(process: str) -> float:
    """What a process, or a thread, has used so far, in its own code and in the kernel's."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def hash_rate(data: memoryview) -> float:
    """Bytes that one processor hashes in a second of its time."""
    before = time.process_time()
    hashlib.sha256(data[: 64 * MIB]).digest()
    return min(len(data), 64 * MIB) / (time.process_time() - before)


class Used:
    """Processor time of processes, or threads, by name, while something goes on."""

    def __init__(self, **processes: str) -> None:
        self.processes = processes
        self.seconds = dict.fromkeys(processes, 0.0)

    def during(self, work: Any) -> float:
        before = {name: processor_s(process) for name, process in self.processes.items()}
        seconds = timed(work)
        for name, process in self.processes.items():
            self.seconds[name] += processor_s(process) - before[name]
        return seconds

    def ns(self, name: str, size: int) -> float:
        return self.seconds[name] * 1e9 / size


def arithmetic(data: memoryview, ours: float, bare: Used, used: Used, uploads: int) -> list[Row]:
    sent, processors = len(data) * uploads, len(os.sched_getaffinity(0))
    daemon_ns, client_ns = used.ns("daemon", sent), used.ns("client", sent)
    pair_ns = bare.ns("client", sent) + bare.ns("receiver", sent)
    hashing = hash_rate(data) / 1e6
    bound = processors * 1e3 / (pair_ns + 1e3 / hashing)
    return [
        Row("the same", ours, "MB/s", f"bare bytes and one hash on {processors}", bound, ">= 0.8"),
        Row("one processor hashes", hashing, "MB/s"),
        Row("processor time of the bare pair", pair_ns, "ns/byte"),
        Row("processor time of the daemon", daemon_ns, "ns/byte"),
        Row("    of it for the hash", 1e3 / hashing, "ns/byte"),
        Row("processor time of the client", client_ns, "ns/byte"),
        Row(
            f"{processors} processors have time for",
            processors * 1e3 / (daemon_ns + client_ns),
            "MB/s",
        ),
        Row("the daemon's loop has time for", 1e3 / max(used.ns("loop", sent), 1e-3), "MB/s"),
    ]


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
    raw = Used(client="self", receiver=str(receiver.pid))
    used = Used(client="self", daemon=str(pid), loop=f"{pid}/task/{pid}")
    ours: list[float] = []
    hashed: list[float] = []
    bare: list[float] = []
    try:
        assert receiver.stdout is not None
        port = int(receiver.stdout.readline())
        with headrace.connect(daemon.tcp_address or "") as client:
            for _ in range(repetitions):
                tensors, digest = contents.next()
                data = memoryview(contents.array).cast("B")
                bare.append(raw.during(lambda data=data: send_bare(port, data, lanes)))
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
    peer, rate = f"bare sockets, {lanes} connections", size / median(bare)
    return [
        Row(f"TCP, {len(data) // MIB} MiB", size / median(ours), "MB/s", peer, rate, ">= 0.8"),
        Row("the same, the client computes the digest", size / median(hashed), "MB/s", peer, rate),
        *arithmetic(data, size / median(ours), raw, used, repetitions),
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
