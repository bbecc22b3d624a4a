"""The blocking and the asyncio client against a scripted daemon on a socket pair."""

from __future__ import annotations

import asyncio
import hashlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import headrace
import numpy as np
import pytest
from headrace import aio, client, errors, flows, transport
from headrace import headrace_pb2 as pb
from headrace.client import Client
from headrace.operation import Operation
from headrace.uploads import prepare
from peer import MORE, Frame, Peer, error_frame, frame


class Daemon:
    """Runs a script in a thread on the daemon's end; join() passes its failure on."""

    def __init__(self, script: Callable[[Peer], None], body_max: int = 1 << 20) -> None:
        self.peer = Peer()
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(script, body_max), daemon=True)
        self.thread.start()

    def _run(self, script: Callable[[Peer], None], body_max: int) -> None:
        try:
            self.peer.answer_hello(body_max)
            script(self.peer)
        except BaseException as failure:
            self.failure = failure

    def connect(self, timeout: float | None = 5.0) -> Client:
        """A client on the other end."""
        self.peer.client_end.setblocking(False)
        link = transport.Transport(self.peer.client_end)
        hello = Operation(link, flows.session.hello("test", "", b"", b""), timeout).result()
        link.wire.body_max = hello.limits.body_bytes_max
        return Client(link, hello, timeout)

    def join(self) -> None:
        """The script has ended well."""
        self.thread.join(10)
        assert not self.thread.is_alive()
        if self.failure is not None:
            raise self.failure


def graph_reply(request: Frame, handle: int = 7, origin: str = "new") -> bytes:
    """A submit's answer for a graph of one input and one output."""
    message = pb.SubmitReply(
        handle=handle, origin=origin, split_count=1, n_copies=1, input_count=1, output_count=1
    )
    return frame(request.type | 0x80, request.call_id, message.SerializeToString())


def doubled(request: Frame) -> bytes:
    """A run's answer: the input times two."""
    values = np.frombuffer(request.body, np.float32) * 2
    message = pb.RunReply(output_bytes=[values.nbytes], queue_ns=1000, run_ns=2000, slot=1)
    return frame(0xE0, request.call_id, message.SerializeToString(), values.tobytes())


def small_graph(size: int = 4) -> headrace.Graph:
    """y = 2 x."""
    g = headrace.Graph()
    g.output(g.scale(g.input("x", (size,)), 2.0), "y")
    return g


def test_hello_and_devices() -> None:
    def script(peer: Peer) -> None:
        request = peer.receive()
        assert request.type == 16 and request.word == 5000
        device = pb.DeviceInfo(name="cpu0", type="CPU", memory_total=5, threads=2)
        peer.send(
            frame(0x90, request.call_id, pb.DevicesReply(devices=[device]).SerializeToString())
        )

    daemon = Daemon(script)
    with daemon.connect() as link:
        assert link.hello.daemon_version == "test"
        (device,) = link.devices()
        assert (device.name, device.memory_total, device.threads) == ("cpu0", 5, 2)
    daemon.join()


def test_run_and_resubmission_after_eviction() -> None:
    def script(peer: Peer) -> None:
        submit = peer.receive()
        assert submit.type == 80
        peer.send(graph_reply(submit))
        run = peer.receive()
        assert pb.Run.FromString(run.message).handle == 7
        peer.send(doubled(run))
        peer.send(error_frame(96, peer.receive().call_id, 5, "EVICTED"))
        again = peer.receive()
        assert again.type == 80 and again.body == submit.body
        peer.send(graph_reply(again, handle=8, origin="evicted"))
        run = peer.receive()
        assert pb.Run.FromString(run.message).handle == 8
        peer.send(doubled(run))
        peer.send(error_frame(96, peer.receive().call_id, 5, "EVICTED"))
        peer.send(error_frame(80, peer.receive().call_id, 5, "WEIGHTS"))

    daemon = Daemon(script)
    with daemon.connect() as link:
        handle = link.submit(small_graph())
        result = handle.run({"x": [1, 2, 3, 4]})
        assert result["y"].tolist() == [2, 4, 6, 8] == result[0].tolist()
        assert (result.queue_s, result.run_s, result.slot) == (1e-6, 2e-6, 1)
        assert handle.run([np.ones(4, np.float32)])[0].tolist() == [2, 2, 2, 2]
        assert handle.plan.origin == "evicted"
        with pytest.raises(errors.NotFound) as caught:
            handle.run([np.ones(4)])
        assert caught.value.reason == "WEIGHTS"
    daemon.join()


def test_wrong_inputs_are_found_before_anything_is_sent() -> None:
    daemon = Daemon(lambda peer: peer.send(graph_reply(peer.receive())))
    with daemon.connect() as link:
        handle = link.submit(small_graph())
        for bad in (
            {"z": [1, 2, 3, 4]},
            {},
            [],
            {"x": [1, 2]},
            {"x": ["a"] * 4},
            {"x": [1j, 2, 3, 4]},
        ):
            with pytest.raises(ValueError):
                handle.run(bad)
    daemon.join()


def test_many_in_flight_answered_in_another_order() -> None:
    def script(peer: Peer) -> None:
        peer.send(graph_reply(peer.receive()))
        requests = [peer.receive() for _ in range(40)]
        random.Random(3).shuffle(requests)
        for request in requests:
            peer.send(doubled(request))

    daemon = Daemon(script)
    with daemon.connect() as link:
        handle = link.submit(small_graph())
        runs = [handle.run_async([np.full(4, i, np.float32)]) for i in range(40)]
        for i, run in enumerate(runs):
            assert run.result(5)[0].tolist() == [2 * i] * 4
            assert run.done()
    daemon.join()


def test_thirty_two_threads_share_a_client() -> None:
    threads, rounds = 32, 25

    def script(peer: Peer) -> None:
        peer.send(graph_reply(peer.receive()))
        held: list[Frame] = []
        choice = random.Random(5)
        for n in range(threads * rounds):
            held.append(peer.receive())
            # Keeps a few back so that replies overtake each other, fewer than there are threads.
            while (
                len(held) > 8
                or (held and n >= threads * (rounds - 1))
                or (held and choice.random() < 0.5)
            ):
                peer.send(doubled(held.pop(choice.randrange(len(held)))))

    daemon = Daemon(script)
    wrong: list[object] = []
    with daemon.connect(timeout=20) as link:
        handle = link.submit(small_graph())

        def work(number: int) -> None:
            try:
                for i in range(rounds):
                    value = number * 1000 + i
                    got = handle.run([np.full(4, value, np.float32)])[0]
                    if got.tolist() != [2 * value] * 4:
                        wrong.append((value, got))
            except BaseException as error:
                wrong.append(error)

        workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(30)
    assert wrong == []
    daemon.join()


def test_upload_under_credit_with_other_calls_between() -> None:
    data = np.arange(100_000, dtype=np.float32)

    def script(peer: Peer) -> None:
        put = peer.receive()
        message = pb.WeightsPut.FromString(put.message)
        manifest = pb.Manifest.FromString(put.body)
        assert put.flags & MORE and message.total_bytes == 400_064
        assert list(manifest.ne) == [100_000, 1, 1, 1, 3, 1, 1, 1]
        got, pings = b"", 0
        while len(got) < message.total_bytes:
            want = min(50_000, message.total_bytes - len(got))
            credit = pb.Credit(bytes=want, offset=len(got))
            peer.send(frame(4, put.call_id, credit.SerializeToString()))
            while want:
                piece = peer.receive()
                if piece.type == 2:
                    peer.send(frame(0x82, piece.call_id, piece.message))
                    pings += 1
                    continue
                assert pb.Data.FromString(piece.message).offset == len(got)
                assert len(piece.body) <= 16_384
                got += piece.body
                want -= len(piece.body)
        assert got[:400_000] == data.tobytes() and got[400_000:400_003] == b"\1\2\3"
        leaf = hashlib.sha256(got).digest()
        assert manifest.leaf_digests == leaf
        assert message.resume and message.digest == hashlib.sha256(leaf).digest()
        info = pb.SetInfo(handle=3, name="w", tensors=2, bytes=400_003)
        peer.send(frame(0xA1, put.call_id, pb.WeightsPutReply(set=info).SerializeToString()))
        for _ in range(20 - pings):
            ping = peer.receive()
            peer.send(frame(0x82, ping.call_id, ping.message))

    daemon = Daemon(script, body_max=16_384)
    with daemon.connect() as link:

        def pings() -> None:
            for _ in range(20):
                link.ping()

        tensors = {"a": data, "b": ("i8", (3,), b"\1\2\3")}
        other = threading.Thread(target=pings)
        put = link.begin(
            flows.weights.put(prepare("w", tensors, True), None, link.body_max), 10
        )
        other.start()
        weights = put.result()
        other.join(10)
        assert weights.handle == 3 and weights["a"].shape == (100_000,)
    daemon.join()


def test_sending_reads_when_both_directions_are_full() -> None:
    """A daemon that does not read until its replies are read must not block the client."""
    big = 1 << 20

    def script(peer: Peer) -> None:
        peer.send(graph_reply(peer.receive()))
        request = peer.receive()
        # A flood that nobody waits for fills the client's side while it sends.
        for _ in range(64):
            peer.send(frame(6, 1 << 63 | 1, pb.GoAway(reason="x" * 60_000).SerializeToString()))
        peer.send(doubled(request))
        peer.send(doubled(peer.receive()))

    daemon = Daemon(script, body_max=4 << 20)
    with daemon.connect() as link:
        handle = link.submit(small_graph(big))
        runs = [handle.run_async([np.ones(big, np.float32)]) for _ in range(2)]
        for run in runs:
            assert run.result(10)[0].sum() == 2 * big
        assert link.draining
    daemon.join()


def test_deadline_on_this_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "GRACE_S", 0.05)
    seen: list[Frame] = []

    def script(peer: Peer) -> None:
        sync = peer.receive()
        cancel = peer.receive()
        seen.extend((sync, cancel))
        peer.send(frame(0x83, cancel.call_id), error_frame(98, sync.call_id, 1, "CANCELLED"))
        request = peer.receive()
        peer.send(frame(0x82, request.call_id, request.message))

    daemon = Daemon(script)
    with daemon.connect() as link:
        began = time.monotonic()
        with pytest.raises(errors.DeadlineExceeded):
            link.sync(timeout=0.1)
        assert time.monotonic() - began < 2
        link.ping()
    daemon.join()
    assert seen[0].word == 100
    assert seen[1].type == 3 and pb.Cancel.FromString(seen[1].message).request_id == seen[0].call_id


def test_result_timeout_then_result() -> None:
    go = threading.Event()

    def script(peer: Peer) -> None:
        request = peer.receive()
        go.wait(5)
        peer.send(frame(0xE2, request.call_id))

    daemon = Daemon(script)
    with daemon.connect() as link:
        operation = link.begin(flows.session.sync(), None)
        with pytest.raises(TimeoutError):
            operation.result(0.05)
        assert not operation.done()
        go.set()
        operation.result(5)
    daemon.join()


@pytest.mark.parametrize("how", ["hang up", "half a frame", "garbage", "error"])
def test_connection_lost_reaches_every_call(how: str) -> None:
    def script(peer: Peer) -> None:
        first, _ = peer.receive(), peer.receive()
        if how == "half a frame":
            peer.send(frame(0xE2, first.call_id, b"abc")[:33])
        elif how == "garbage":
            peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3)
        elif how == "error":
            peer.send(error_frame(0, 1 << 63, 3, "BAD_MAGIC", "what was that"))
        peer.close()

    daemon = Daemon(script)
    with daemon.connect() as link:
        calls = [link.begin(flows.session.sync(), None) for _ in range(2)]
        for call in calls:
            with pytest.raises(errors.PeerError) as caught:
                call.result(5)
            lost = how in ("hang up", "half a frame")
            assert isinstance(caught.value, errors.ConnectionLost) == lost
        with pytest.raises(errors.PeerError):
            link.sync()
    daemon.join()


def test_close_wakes_a_waiting_thread() -> None:
    daemon = Daemon(lambda peer: (peer.receive(), time.sleep(0.3)) and None)
    link = daemon.connect()
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            link.sync()
        except errors.HeadraceError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    link.close()
    thread.join(5)
    assert len(caught) == 1 and isinstance(caught[0], errors.ConnectionLost)


def test_output_sizes_are_checked() -> None:
    def script(peer: Peer) -> None:
        peer.send(graph_reply(peer.receive()))
        request = peer.receive()
        message = pb.RunReply(output_bytes=[8]).SerializeToString()
        peer.send(frame(0xE0, request.call_id, message, b"12345678"))

    daemon = Daemon(script)
    with daemon.connect() as link:
        with pytest.raises(errors.ProtocolError):
            link.submit(small_graph()).run([np.ones(4)])
    daemon.join()


def test_a_step_sends_little_besides_its_inputs() -> None:
    sizes: list[int] = []

    def script(peer: Peer) -> None:
        peer.send(graph_reply(peer.receive()))
        request = peer.receive()
        sizes.append(32 + len(request.message))
        peer.send(doubled(request))

    daemon = Daemon(script)
    with daemon.connect() as link:
        link.submit(small_graph()).run([np.ones(4)])
    daemon.join()
    assert sizes[0] <= 64


def test_addresses() -> None:
    for bad in ("", "unix:", "/run/x", "tcp:localhost", "http://x"):
        with pytest.raises(ValueError):
            client.connect(bad)
    with pytest.raises(errors.ConnectionLost):
        client.connect("unix:/nonexistent/socket")


# ---- asyncio -------------------------------------------------------------------------------------


async def async_client(daemon: Daemon) -> aio.AsyncClient:
    """An asyncio client on a scripted daemon."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(aio.Connection, sock=daemon.peer.client_end)
    link = aio.AsyncClient(connection, 5.0)
    link.hello = await link.drive(flows.session.hello("test", "", b"", b""), None)
    connection.wire.body_max = link.hello.limits.body_bytes_max
    return link


def test_async_gather_and_eviction() -> None:
    def script(peer: Peer) -> None:
        submit = peer.receive()
        peer.send(graph_reply(submit))
        requests = [peer.receive() for _ in range(10)]
        for request in reversed(requests[1:]):
            peer.send(doubled(request))
        peer.send(error_frame(96, requests[0].call_id, 5, "EVICTED"))
        peer.send(graph_reply(peer.receive(), handle=9))
        peer.send(doubled(peer.receive()))

    async def main() -> None:
        async with await async_client(daemon) as link:
            handle = await link.submit(small_graph())
            results = await asyncio.gather(
                *(handle.run([np.full(4, i, np.float32)]) for i in range(10))
            )
            assert [r[0][0] for r in results] == [2 * i for i in range(10)]

    daemon = Daemon(script)
    asyncio.run(main())
    daemon.join()


def test_async_upload_cancel_and_loss() -> None:
    def script(peer: Peer) -> None:
        write = peer.receive()
        got = b""
        while len(got) < 40_000:
            peer.send(frame(4, write.call_id, pb.Credit(bytes=15_000).SerializeToString()))
            for _ in range(2 if len(got) < 30_000 else 1):
                got += peer.receive().body
        assert got == bytes(40_000)
        peer.send(frame(0xB2, write.call_id))
        sync, cancel = peer.receive(), peer.receive()
        assert cancel.type == 3
        assert struct.unpack("<Q", cancel.message[1:9])[0] == sync.call_id
        peer.send(frame(0x83, cancel.call_id), error_frame(98, sync.call_id, 1, "CANCELLED"))
        request = peer.receive()
        peer.send(frame(0x82, request.call_id, request.message))
        peer.receive()
        peer.close()

    async def main() -> None:
        link = await async_client(daemon)
        spec = flows.states.tensors({"s": ("i8", (40_000,))})
        await aio.AsyncState(link, 5, 40_000, spec).write("s", np.zeros(40_000, np.int8))
        task = asyncio.create_task(link.sync())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await link.ping()
        with pytest.raises(errors.ConnectionLost):
            await link.sync()
        link.close()

    daemon = Daemon(script, body_max=10_000)
    asyncio.run(main())
    daemon.join()


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    """No test leaves a thread of the client behind: it has none."""
    before = {t for t in threading.enumerate() if not t.daemon}
    yield
    assert {t for t in threading.enumerate() if not t.daemon} <= before


def test_socket_pair_is_what_a_peer_is() -> None:
    peer = Peer()
    assert peer.client_end.family == socket.AF_UNIX
    peer.close()
    peer.client_end.close()
