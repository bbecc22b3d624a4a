"""The cache of weights on disk: what was uploaded once is there after a restart, whole and verified, within
its limit, and nothing else is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_daemon import device

import headrace
from headrace import errors

LEAF = 4 << 20
DEVICES = [device("cpu0", threads=1, memory="isolated"), device("host", threads=1)]


def tensors(seed: int, size: int = LEAF + 4096) -> dict[str, Any]:
    return {"w": np.random.default_rng(seed).integers(0, 1 << 30, size // 4, np.int32)}


def start(launch: Callable[..., Any], folder: Path, size: str = "1G", **sections: Any) -> Any:
    models = {"cache_directory": folder, "cache_bytes": size}
    return launch(devices=DEVICES, tcp=True, sections={"models": models} | sections)


def figure(client: headrace.Client, event: str) -> float:
    return client.stats().value("weight_cache_total", f'event="{event}"')


def eventually(condition: Callable[[], bool]) -> None:
    import raw

    raw.eventually(condition)


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def content_of(client: headrace.Client, weights: headrace.WeightSet) -> Any:
    graph = headrace.Graph()
    leaf = graph.weight("w", weights["w"].shape, weights["w"].type)
    graph.output(graph.cont(leaf), "out")
    return client.submit(graph, weights=[weights]).run()["out"]


@pytest.mark.parametrize("door", ["unix", "tcp"])
@pytest.mark.parametrize("where", ["host", "cpu0"])
def test_contents_outlive_the_daemon(
    launch: Callable[..., Any], tmp_path: Path, door: str, where: str
) -> None:
    folder = tmp_path / "cache"
    data = tensors(1)
    first = start(launch, folder)
    with headrace.connect(first.address if door == "unix" else first.tcp_address) as client:
        made = client.put("w", data, {"*": where})
        digest = made.info.digest
        eventually(lambda: files(folder) == [digest.hex() + ".w"])
        assert (folder / files(folder)[0]).read_bytes()[: data["w"].nbytes] == data["w"].tobytes()
        assert (folder / files(folder)[0]).stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o700
    first.stop()
    (folder / ("0" * 64 + ".t")).write_bytes(b"a write that was interrupted")
    second = start(launch, folder)
    assert files(folder) == [digest.hex() + ".w"]
    with headrace.connect(second.tcp_address) as client:
        assert client.contents([digest])[0].are_there
        before = client.stats().value("bytes_in_total")
        again = client.put("other", data, {"*": where})
        assert again.already and again.info.digest == digest
        assert client.stats().value("bytes_in_total") - before < 4096
        assert np.array_equal(content_of(client, again), data["w"])
        assert figure(client, "hit") == 1


@pytest.mark.parametrize("damage", ["bit", "short", "long", "gone", "link", "folder"])
def test_e13_damaged_files_are_noticed_and_go(
    launch: Callable[..., Any], tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "cache"
    data = tensors(2)
    running = start(launch, folder)
    with headrace.connect(running.tcp_address) as client:
        made = client.put("w", data)
        eventually(lambda: len(files(folder)) == 1)
        client.drop(made)
        eventually(lambda: client.stats().value("weight_sets") == 0)
        eventually(lambda: client.contents([made.info.digest])[0].are_there)
        path = folder / files(folder)[0]
        whole = path.read_bytes()
        if damage == "bit":
            path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        elif damage == "short":
            path.write_bytes(whole[: LEAF // 2])
        elif damage == "long":
            path.write_bytes(whole + b"x")
        else:
            path.unlink()
            if damage == "link":
                (tmp_path / "elsewhere").write_bytes(whole)
                path.symlink_to(tmp_path / "elsewhere")
            elif damage == "folder":
                path.mkdir()
        again = client.put("w", data)  # the client sends it when the daemon asks
        assert not again.already
        assert np.array_equal(content_of(client, again), data["w"])
        assert figure(client, "damaged") == 1
        if damage != "folder":
            eventually(lambda: path.is_file() and path.read_bytes() == whole)


def test_the_least_used_go_first(launch: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    running = start(launch, folder, str(3 * (LEAF + 4096)))
    with headrace.connect(running.tcp_address) as client:
        made = []
        for seed in range(3):
            made.append(client.put(f"s{seed}", tensors(seed)))
            eventually(lambda seed=seed: len(files(folder)) == seed + 1)  # type: ignore[misc]
        client.drop(made[0])
        eventually(lambda: client.stats().value("weight_sets") == 2)
        assert client.put("again", tensors(0)).already  # a use
        made.append(client.put("s3", tensors(3)))
        kept = sorted(made[i].info.digest.hex() + ".w" for i in (0, 2, 3))
        eventually(lambda: files(folder) == kept)
        assert figure(client, "evicted") == 1
        assert client.stats().value("weight_cache_bytes") == 3 * (LEAF + 4096)
        client.put("large", tensors(9, 4 * LEAF))  # larger than the whole cache
        assert client.stats().value("weight_cache_entries") == 3


def test_purge(launch: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    running = start(launch, folder)
    (folder / "a file of somebody else").write_text("stays")
    with headrace.connect(running.address) as client:
        made = client.put("w", tensors(4))
        eventually(lambda: len(files(folder)) == 2)
        assert client.purge() == (1, LEAF + 4096)
        assert client.purge() == (0, 0)
        eventually(lambda: files(folder) == ["a file of somebody else"])
        assert np.array_equal(content_of(client, made), tensors(4)["w"])


def test_purge_needs_the_right(launch: Callable[..., Any], tmp_path: Path) -> None:
    principal = {"uid": os.getuid(), "permissions": "run, load"}
    running = start(launch, tmp_path / "cache", **{"principal p": principal})
    with headrace.connect(running.address) as client, pytest.raises(errors.PermissionDenied):
        client.purge()


def test_without_a_directory_there_is_none(launch: Callable[..., Any]) -> None:
    running = launch(devices=DEVICES)
    with headrace.connect(running.address) as client:
        client.put("w", tensors(5))
        assert client.purge() == (0, 0)
        assert client.stats().value("weight_cache_entries") == 0


@pytest.mark.parametrize("fault", ["a file", "no such folder", "a device"])
def test_b050_a_cache_that_cannot_be_used_is_off(
    launch: Callable[..., Any], tmp_path: Path, fault: str
) -> None:
    """The daemon serves all the same, and says so once."""
    folder = tmp_path / "cache"
    if fault == "a file":
        folder.write_text("in the way")
    elif fault == "no such folder":
        folder = tmp_path / "gone" / "cache"
    else:
        folder = Path("/dev/full")
    running = start(launch, folder)
    with headrace.connect(running.tcp_address) as client:
        made = [client.put(f"s{seed}", tensors(seed)) for seed in range(2)]
        assert np.array_equal(content_of(client, made[1]), tensors(1)["w"])
        assert client.stats().value("weight_cache_entries") == 0
    assert running.log().count("the cache on disk is off") == 1
