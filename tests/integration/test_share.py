"""share = principal: a set that only its principal finds, by name, in lists, by digest or by its contents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import headrace
import numpy as np
import pytest
from headrace import errors
from run_daemon import Daemon
from weights_tools import gguf

WEIGHTS = {"w": np.arange(6000, dtype=np.float32)}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Two principals, each with a token, on TCP; a folder of models, and a cache on disk."""
    folder = tmp_path_factory.mktemp("models")
    file = gguf([("w", 0, [6000], WEIGHTS["w"].tobytes())])
    (folder / "m.gguf").write_bytes(file)
    sections: dict[str, dict[str, object]] = {
        f"principal {name}": {
            "token_sha256": hashlib.sha256(name.encode()).hexdigest(),
            "permissions": "run, load, admin",
        }
        for name in ("ours", "theirs")
    }
    cache = tmp_path_factory.mktemp("cache")
    sections["models"] = {"cache_directory": cache, "cache_bytes": "64M"}
    with Daemon(tcp=True, models=[folder], sections=sections) as daemon:
        yield daemon


def connect(daemon: Daemon, name: str) -> headrace.Client:
    assert daemon.tcp_address is not None
    return headrace.connect(daemon.tcp_address, credentials=name.encode())


def names(client: headrace.Client) -> list[str]:
    return sorted(info.name for info in client.weights())


def test_nobody_else_finds_it(daemon: Daemon) -> None:
    with connect(daemon, "ours") as ours, connect(daemon, "theirs") as theirs:
        held = ours.put("secret", WEIGHTS, share="principal")
        digest = held.info.digest
        assert names(ours) == ["secret"] and names(theirs) == []
        assert ours.contents([digest])[0].state != 0
        assert theirs.contents([digest])[0].state == 0
        with pytest.raises(errors.NotFound) as refused:
            theirs.load("", "secret")
        with pytest.raises(errors.NotFound) as absent:
            theirs.load("", "there is none")
        assert (refused.value.reason, str(refused.value)) == (
            absent.value.reason,
            str(absent.value),
        )
        # What they upload themselves is sent, and is another set: nothing tells that ours is there.
        before = theirs.stats().value("bytes_in_total")
        theirs_held = theirs.put("secret", WEIGHTS)
        assert not theirs_held.already
        assert theirs.stats().value("bytes_in_total") - before > WEIGHTS["w"].nbytes
        assert names(theirs) == ["secret"] and names(ours) == ["secret", "secret"]
        # Ours is found first by us, in another session, too; theirs by them.
        with connect(daemon, "ours") as again:
            assert again.load("", "secret").already
            assert again.put("secret", WEIGHTS, share="principal").already
            assert again.put("secret", WEIGHTS).already  # theirs, which is everybody's
        ours.drop(held)
        assert names(ours) == ["secret"]


def test_it_goes_with_its_last_holder_and_is_in_no_cache(daemon: Daemon) -> None:
    other = {"w": WEIGHTS["w"] + 1}
    with connect(daemon, "ours") as ours:
        digest = ours.put("gone", other, share="principal").info.digest
    with connect(daemon, "ours") as ours:
        assert names(ours) == []
        assert ours.contents([digest])[0].state == 0
        assert not ours.put("gone", other, share="principal").already


def test_files(daemon: Daemon) -> None:
    with connect(daemon, "ours") as ours, connect(daemon, "theirs") as theirs:
        assert not ours.load("m.gguf", share="principal").already
        assert names(theirs) == []
        assert not theirs.load("m.gguf", share="principal").already
        assert not theirs.load("m.gguf").already  # nobody's own is everybody's
        assert ours.load("m.gguf").already
        graph = headrace.Graph()
        w = graph.weight("w", (6000,))
        graph.output(graph.add(w, w))
        held = ours.load("m.gguf", share="principal")
        assert held.already
        result = ours.submit(graph, weights=[held]).run({})[0]
        np.testing.assert_array_equal(result, 2 * WEIGHTS["w"])


def test_a_share_that_is_none(daemon: Daemon) -> None:
    with connect(daemon, "ours") as ours, pytest.raises(ValueError, match="all or principal"):
        ours.put("x", WEIGHTS, share="some")  # type: ignore[arg-type]
