"""Model files that change under the daemon (HOSTILE E5): one that becomes shorter fails its set, never
the daemon; a disk that does not answer delays nobody but those who load from it."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import raw
from raw import DATA_LOSS, F32, NOT_FOUND, Conn, pb
from run_daemon import device
from weights_tools import gguf

FLOATS = 3 << 20
WHOLE = [("big", F32, [FLOATS], struct.pack("<f", 2.0) * FLOATS)]
DEVICES = (device("cpu0", threads=1, memory="isolated"), device("host", threads=2))


def sum_graph() -> raw.Graph:
    """Reads all of the weight."""
    graph = raw.Graph()
    x = graph.leaf(raw.INPUT, F32, [1], "x")
    w = graph.leaf(raw.WEIGHT, F32, [FLOATS], "big")
    graph.node("ADD", F32, [FLOATS], (w, x), output=True)
    return graph


@pytest.mark.parametrize("left", [0, 4096, 1 << 20, 12582880])
@pytest.mark.parametrize("steps", [1, 2])
def test_e05_a_file_that_shrinks_while_it_is_mapped(
    launch: Callable[..., Any], tmp_path: Path, left: int, steps: int
) -> None:
    path = tmp_path / "torn.gguf"
    path.write_bytes(gguf(WHOLE))
    (tmp_path / "other.gguf").write_bytes(gguf(WHOLE))
    running = launch(devices=DEVICES, models=[tmp_path])
    with Conn(running.address) as conn, Conn(running.address) as other:
        sets = [
            one.call(raw.LOAD, pb.WeightsLoad(path=name))[0].set.handle
            for one, name in ((conn, "torn.gguf"), (other, "other.gguf"))
        ]
        torn = conn.submit(sum_graph(), weights=[sets[0]]).handle
        good = other.submit(sum_graph(), weights=[sets[1]]).handle
        expected = struct.pack("<f", 3.0) * FLOATS
        one = struct.pack("<f", 1.0)
        assert conn.run(torn, one) == other.run(good, one) == expected
        os.truncate(path, left)
        for _ in range(2):
            if steps == 1:
                error = conn.fails(raw.RUN, pb.Run(handle=torn), one)
            else:
                chained = pb.Sequence(steps=[{"handle": torn}, {"handle": torn}])
                error = conn.fails(raw.SEQUENCE, chained, one + one)
            assert (error.code, error.reason) == (DATA_LOSS, "FILE")
            assert other.run(good, one) == expected
        error = conn.submit_fails(sum_graph(), weights=[sets[0]])
        assert (error.code, error.reason) == (DATA_LOSS, "FILE")
        assert conn.fails(raw.LOAD, pb.WeightsLoad(name="torn.gguf")).code == NOT_FOUND
        path.unlink()
        path.write_bytes(gguf(WHOLE))
        again = conn.call(raw.LOAD, pb.WeightsLoad(path="torn.gguf"))[0]
        assert not again.already
        fresh = conn.submit(sum_graph(), weights=[again.set.handle]).handle
        assert conn.run(fresh, one) == expected


def tail_graph(name: str, floats: int) -> raw.Graph:
    graph = raw.Graph()
    x = graph.leaf(raw.INPUT, F32, [1], "x")
    w = graph.leaf(raw.WEIGHT, F32, [floats], name)
    graph.node("ADD", F32, [floats], (w, x), output=True)
    return graph


@pytest.mark.parametrize("cut", ["one byte", "within the last page", "within a page before"])
def test_e05_cuts_that_touch_no_whole_page(
    launch: Callable[..., Any], tmp_path: Path, cut: str
) -> None:
    """What is left of the page that the new end lies in can still be read, and is zeros behind it. The run
    that would have used them ends with an error, and not with them."""
    first, last = 3000, 700
    contents = gguf([("first", F32, [first], struct.pack("<f", 2.0) * first),
                     ("last", F32, [last], struct.pack("<f", 2.0) * last)])  # fmt: skip
    assert len(contents) % 4096 > 2048
    path = tmp_path / "torn.gguf"
    path.write_bytes(contents)
    left = {
        "one byte": len(contents) - 1,
        "within the last page": len(contents) - 2000,
        "within a page before": len(contents) - 6000,
    }[cut]
    running = launch(devices=DEVICES, models=[tmp_path])
    one = struct.pack("<f", 1.0)
    with Conn(running.address) as conn:
        loaded = conn.call(raw.LOAD, pb.WeightsLoad(path="torn.gguf"))[0].set.handle
        name, floats = ("first", first) if cut == "within a page before" else ("last", last)
        handle = conn.submit(tail_graph(name, floats), weights=[loaded]).handle
        assert conn.run(handle, one) == struct.pack("<f", 3.0) * floats
        os.truncate(path, left)
        error = conn.fails(raw.RUN, pb.Run(handle=handle), one)
        assert (error.code, error.reason) == (DATA_LOSS, "FILE")
        conn.ping()


SLOW_OPEN = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The folder of a disk that answers when a file appears. */
static int slow_open(const char *name, const char *path, int flags, int mode) {
        int (*next)(const char *, int, ...) = (int (*)(const char *, int, ...)) dlsym(RTLD_NEXT, name);
        const char *slow = getenv("SLOW_OPEN"), *go = getenv("SLOW_OPEN_UNTIL");

        if (slow && go && strcmp(path, slow) == 0)
                for (int i = 0; i < 2000 && access(go, F_OK) != 0; i++)
                        usleep(10000);
        return next(path, flags, mode);
}
int open(const char *path, int flags, ...) { return slow_open("open", path, flags, 0600); }
int open64(const char *path, int flags, ...) { return slow_open("open64", path, flags, 0600); }
"""


@pytest.fixture(scope="module")
def slow_open(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow.c").write_text(SLOW_OPEN)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", folder / "slow.so", folder / "slow.c", "-ldl"], check=True
    )
    return folder / "slow.so"


def test_e05_a_stalled_disk_delays_no_planning(
    launch: Callable[..., Any], tmp_path: Path, slow_open: Path
) -> None:
    if os.environ.get("HEADRACE_SANITIZED"):
        pytest.skip("preloading goes before a sanitizer's own library")
    slow, fast, go = tmp_path / "slow", tmp_path / "fast", tmp_path / "go"
    slow.mkdir()
    fast.mkdir()
    (slow / "a.gguf").write_bytes(gguf(WHOLE))
    running = launch(
        devices=DEVICES,
        models=[slow, fast],
        variables={
            "LD_PRELOAD": str(slow_open), "SLOW_OPEN": str(slow), "SLOW_OPEN_UNTIL": str(go),
        },
    )  # fmt: skip
    with Conn(running.address) as conn, Conn(running.address) as gone:
        call = conn.send(raw.LOAD, pb.WeightsLoad(path="a.gguf"))
        cancelled = conn.send(raw.LOAD, pb.WeightsLoad(path="a.gguf", name="x"))
        gone.send(raw.LOAD, pb.WeightsLoad(path="a.gguf", name="y"))
        gone.close()
        handle = conn.submit(raw.add_graph()).handle
        assert conn.run(handle, bytes(64)) == bytes(32)
        assert conn.call(raw.CANCEL, pb.Cancel(request_id=cancelled))[0].found
        with pytest.raises(raw.RawError) as caught:
            conn.reply(cancelled)
        assert caught.value.code == raw.CANCELLED
        assert not [frame for frame in conn.held if frame.call_id == call]
        go.touch()
        assert conn.reply(call)[0].set.name == "a.gguf"
        raw.eventually(lambda: conn.stats()["objects"] == 2)
