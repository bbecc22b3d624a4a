"""TLS 1.3 (HOSTILE A1, A22, A26): the same conversation inside it, and what is wrong about a handshake."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator

import headrace
import numpy as np
import pytest
from headrace import aio, errors
from headrace.tls import client_context
from papers import Papers, make_papers
from run_daemon import Daemon, DaemonError, held_port

TOKEN = b"a token of the tests"


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return make_papers(tmp_path_factory.mktemp("papers"))


class Secure:
    """A daemon that listens on TLS, and how to come in."""

    def __init__(self, daemon: Daemon, port: int, papers: Papers) -> None:
        self.daemon, self.port, self.papers = daemon, port, papers
        self.address = f"tls:localhost:{port}"

    def context(self, name: str | None = None) -> ssl.SSLContext:
        file = self.papers.file
        if name is None:
            return client_context(file("ours.pem"))
        return client_context(file("ours.pem"), file(f"{name}.pem"), file(f"{name}.key"))

    def connect(self, name: str | None = None, credentials: bytes = b"") -> headrace.Client:
        return headrace.connect(self.address, tls=self.context(name), credentials=credentials)


@pytest.fixture(scope="module")
def secure(papers: Papers) -> Iterator[Secure]:
    port = held_port()
    with Daemon(
        sections={
            "listen": {"tls": f"127.0.0.1:{port}"},
            "limits": {"refusal_delay": "20ms", "hello_timeout": "1s"},
            "tls": {
                "certificate": papers.file("daemon.pem"),
                "key": papers.file("daemon.key"),
                "client_ca": papers.file("ours.pem"),
            },
            "principal by-token": {"token_sha256": hashlib.sha256(TOKEN).hexdigest(),
                                   "permissions": "run, load, admin"},
            "principal by-certificate": {"certificate": "known client"},
        },
    ) as daemon:  # fmt: skip
        yield Secure(daemon, port, papers)


def sum_of(client: headrace.Client, count: int = 4) -> np.ndarray:
    graph = headrace.Graph()
    x = graph.input("x", (count,))
    graph.output(graph.add(x, x))
    values = np.arange(count, dtype=np.float32)
    result = client.submit(graph).run({"x": values})[0]
    np.testing.assert_array_equal(result, 2 * values)
    return result


@pytest.mark.parametrize("count", [1, 4096, 1_000_000, 8_000_000])
def test_results_are_those_of_any_other_socket(secure: Secure, count: int) -> None:
    """Records, bodies and DATA of every size, in both directions."""
    with secure.connect(credentials=TOKEN) as client:
        sum_of(client, count)
        sum_of(client, count)


def test_by_certificate_or_by_token(secure: Secure) -> None:
    with secure.connect("known") as client:
        sum_of(client)
        with pytest.raises(errors.PermissionDenied):
            client.stats()  # what the principal of the certificate may not
    with secure.connect("unknown", TOKEN) as client:
        assert client.stats()
    for name in (None, "unknown"):
        with pytest.raises(errors.Unauthenticated):
            secure.connect(name)
        with pytest.raises(errors.Unauthenticated):
            secure.connect(name, b"another token")


def test_the_client_checks_the_daemon(secure: Secure) -> None:
    wrong = client_context(secure.papers.file("theirs.pem"))
    with pytest.raises(errors.ConnectionLost):
        headrace.connect(secure.address, tls=wrong, credentials=TOKEN)
    with pytest.raises(errors.ConnectionLost):  # by the system's authorities
        headrace.connect(secure.address, credentials=TOKEN)


def test_asyncio(secure: Secure) -> None:
    async def main() -> None:
        context = secure.context()
        client = await aio.connect(secure.address, tls=context, credentials=TOKEN)
        async with client:
            graph = headrace.Graph()
            x = graph.input("x", (300_000,))
            graph.output(graph.add(x, x))
            handle = await client.submit(graph)
            batches = [np.full(300_000, i, np.float32) for i in range(8)]
            results = await asyncio.gather(*(handle.run({"x": batch}) for batch in batches))
            for batch, result in zip(batches, results, strict=True):
                np.testing.assert_array_equal(result[0], 2 * batch)
        with pytest.raises(errors.Unauthenticated):
            await aio.connect(secure.address, tls=context)

    asyncio.run(main())


def test_threads_share_a_client(secure: Secure) -> None:
    wrong: list[BaseException] = []
    with secure.connect(credentials=TOKEN) as client:
        graph = headrace.Graph()
        x = graph.input("x", (50_000,))
        graph.output(graph.add(x, x))
        handle = client.submit(graph)

        def work(number: int) -> None:
            try:
                for i in range(20):
                    values = np.full(50_000, number * 100 + i, np.float32)
                    np.testing.assert_array_equal(handle.run({"x": values})[0], 2 * values)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_uploads(secure: Secure) -> None:
    weights = {"w": np.random.default_rng(1).standard_normal((1024, 3000)).astype(np.float32)}
    with secure.connect(credentials=TOKEN) as client:
        held = client.put("over tls", weights)
        graph = headrace.Graph()
        w = graph.weight("w", (1024, 3000))
        graph.output(graph.cont(w))
        result = client.submit(graph, weights=[held]).run({})[0]
        np.testing.assert_array_equal(result, weights["w"])


def test_a_handshake_that_stops_has_a_deadline(secure: Secure) -> None:
    begin = time.monotonic()
    with socket.create_connection(("127.0.0.1", secure.port)) as sock:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert sock.recv(1) == b""
    assert time.monotonic() - begin >= 0.9  # not before the limit
    with secure.connect(credentials=TOKEN) as client:
        sum_of(client)


def test_a_wrong_key_is_no_start(papers: Papers) -> None:
    with pytest.raises(DaemonError, match="key"):
        Daemon(
            sections={
                "listen": {"tls": f"127.0.0.1:{held_port()}"},
                "tls": {
                    "certificate": papers.file("daemon.pem"),
                    "key": papers.file("known.key"),
                },
                "principal p": {"token_sha256": "0" * 64},
            }
        )
