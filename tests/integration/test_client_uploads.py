"""The Python client's uploads against a daemon: in lanes, resumed, and not sent when they are there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from run_daemon import device

import headrace
from headrace import aio, errors
from headrace.uploads import prepare

LEAF = 4 << 20


def tensors(seed: int, size: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"w": rng.integers(0, 255, size // 4, np.int32), "small": np.arange(3, dtype=np.int32)}


def content_of(client: headrace.Client, weights: headrace.WeightSet, name: str) -> Any:
    graph = headrace.Graph()
    leaf = graph.weight(name, weights[name].shape, weights[name].type)
    graph.output(graph.cont(leaf), "out")
    return client.submit(graph, weights=[weights]).run()["out"]


@pytest.fixture
def served(launch: Callable[..., Any]) -> Iterator[Any]:
    yield launch(
        devices=[device("cpu0", threads=1, memory="isolated"), device("host", threads=1)],
        tcp=True,
    )


class Relay:
    """A TCP port in front of another one that cuts every connection after so many bytes."""

    def __init__(self, target: str, most: int) -> None:
        self.host, port = target.split(":")[1:]
        self.port = int(port)
        self.most = most
        self.passed = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp:127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self.listener.accept()
            except OSError:
                return
            outer = socket.create_connection((self.host, self.port))
            for pair in ((inner, outer, True), (outer, inner, False)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, is_counted: bool) -> None:
        total = 0
        try:
            while data := source.recv(65536):
                sink.sendall(data)
                total += len(data)
                self.passed += len(data) if is_counted else 0
                if is_counted and total >= self.most:
                    break
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):  # the other thread reads from it, and notices this
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self.listener.close()


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("door", ["unix", "tcp"])
def test_an_upload_in_lanes(served: Any, door: str, lanes: int) -> None:
    data = tensors(lanes, 7 * LEAF)
    with headrace.connect(served.address if door == "unix" else served.tcp_address) as client:
        before = client.stats().value("bytes_in_total")
        made = client.put("w", data, lanes=lanes)
        sent = client.stats().value("bytes_in_total") - before
        assert not made.already and sent < 7 * LEAF + 100_000
        assert np.array_equal(content_of(client, made, "w"), data["w"])
        assert client.quota().value("session_held", 'what="weights"') == 1
        again = client.put("w", data, lanes=lanes)
        assert again.already
        assert client.stats().value("bytes_in_total") - before - sent < 100_000
        assert client.contents([made.info.digest, bytes(32)])[0].are_there
        assert not client.contents([bytes(32)])[0].are_there


def test_a_known_digest_needs_no_reading(served: Any) -> None:
    data = tensors(5, LEAF)
    with headrace.connect(served.address) as client:
        made = client.put("w", data)
        other = {"w": np.zeros_like(data["w"]), "small": data["small"]}
        again = client.put("w", other, digest=made.info.digest)
        assert again.already
        assert np.array_equal(content_of(client, again, "w"), data["w"])
        with pytest.raises(errors.DataLoss) as caught:
            client.put("w", other, digest=bytes(32))
        assert caught.value.reason == "DIGEST"


def test_without_a_digest_everything_is_sent(served: Any) -> None:
    data = tensors(6, LEAF + 64)
    with headrace.connect(served.tcp_address) as client:
        for _ in range(2):
            before = client.stats().value("bytes_in_total")
            made = client.put("w", data, digest=False)
            assert client.stats().value("bytes_in_total") - before > LEAF
        assert np.array_equal(content_of(client, made, "w"), data["w"])


def test_resumed_after_the_connection_broke(served: Any) -> None:
    data = tensors(7, 6 * LEAF)
    upload = prepare("w", data, True)
    relay = Relay(served.tcp_address, 3 * LEAF + LEAF // 2)
    with headrace.connect(relay.address, resend=False) as client:
        with pytest.raises(errors.ConnectionLost):
            client.put("w", data)
    relay.most = 1 << 40
    with headrace.connect(relay.address) as client:
        there = client.contents([upload.digest])[0]
        while there.received_bytes % LEAF:  # the broken connection has not been noticed yet
            there = client.contents([upload.digest])[0]
        assert there.state == 3 and 2 * LEAF <= there.received_bytes <= 3 * LEAF
        before = relay.passed
        made = client.put("w", data)
        assert relay.passed - before < 6 * LEAF + 100_000 - there.received_bytes
        assert np.array_equal(content_of(client, made, "w"), data["w"])
    relay.close()


async def put_by_asyncio(address: str, data: dict[str, Any]) -> tuple[bytes, bool]:
    async with await aio.connect(address) as client:
        made = await client.put("w", data)
        assert (await client.contents([made.info.digest]))[0].are_there
        return made.info.digest, made.already


@pytest.mark.parametrize("library", ["blocking", "asyncio"])
def test_an_upload_goes_on_by_itself(served: Any, library: str) -> None:
    """Each connection breaks after a leaf and a half: one leaf is new each time, and no more than the half is sent
    again."""
    data = tensors(9, 5 * LEAF)
    upload = prepare("w", data, True)
    relay = Relay(served.tcp_address, LEAF + LEAF // 2)
    if library == "blocking":
        with headrace.connect(relay.address) as client:
            made = client.put("w", data)
            assert not made.already and made.info.digest == upload.digest
            assert np.array_equal(content_of(client, made, "w"), data["w"])
    else:
        assert asyncio.run(put_by_asyncio(relay.address, data)) == (upload.digest, False)
    assert relay.passed < 8 * LEAF
    relay.close()


def test_an_upload_that_gets_nowhere_ends(served: Any) -> None:
    """Connections that break before a leaf has arrived: a few more are made, and then it is told."""
    data = tensors(10, 3 * LEAF)
    relay = Relay(served.tcp_address, LEAF // 2)
    with headrace.connect(relay.address) as client, pytest.raises(errors.ConnectionLost):
        client.put("w", data)
    assert relay.passed < 6 * LEAF
    relay.close()


def test_asyncio(served: Any) -> None:
    data = tensors(8, 2 * LEAF + 4)

    async def work() -> None:
        async with await aio.connect(served.tcp_address) as client:
            made = await client.put("w", data)
            assert not made.already
            assert (await client.put("w", data)).already
            assert (await client.contents([made.info.digest]))[0].are_there
            assert (await client.put("w2", data, digest=False)).info.digest == made.info.digest

    asyncio.run(work())
