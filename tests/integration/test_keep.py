"""Weight sets that outlive the daemon: left with the service manager, and back, by digest and by name, when the
next one is ready. What comes back and is of no use is closed and logged, and nothing of it is fatal."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import struct
from collections.abc import Callable

import headrace
import numpy as np
import pytest
from manager import Manager, managed
from run_daemon import built_with_systemd, device

pytestmark = pytest.mark.skipif(not built_with_systemd(), reason="built without libsystemd")

DEVICES = [
    device("cpu0", threads=1, memory="isolated"),
    device("near", threads=1),
    device("host", threads=1),
]
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
CONTENTS, RECORD = "headrace-weights-", "headrace-set-"
HEADER = struct.Struct("<8s4I3Q32s")


def tensors(seed: int, count: int = 5000) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        "w": random.integers(0, 1 << 30, count, np.int32),
        "v": random.standard_normal((3, 32)).astype(np.float32),
    }


def contents_of(client: headrace.Client, weights: headrace.WeightSet, name: str = "w") -> np.ndarray:
    graph = headrace.Graph()
    leaf = graph.weight(name, weights[name].shape, weights[name].type)
    graph.output(graph.cont(leaf), "out")
    return client.submit(graph, weights=[weights]).run()["out"]


def names(manager: Manager, prefix: str) -> list[str]:
    return sorted(name for name in manager.store if name.startswith(prefix))


def has(manager: Manager, sets: int, contents: int | None = None) -> None:
    """The manager has as many: what has been sent to it may not have been read yet."""
    manager.wait_for(f"{sets} sets", lambda: len(names(manager, RECORD)) == sets)
    assert len(names(manager, CONTENTS)) == (sets if contents is None else contents)


def kill(manager: Manager) -> None:
    manager.kill()
    manager.start()


def restart(manager: Manager) -> None:
    manager.restart()


@pytest.mark.parametrize("end", [kill, restart])
@pytest.mark.parametrize("where", ["host", "near"])
def test_a_set_outlives_the_daemon(end: Callable[[Manager], None], where: str) -> None:
    data = tensors(1)
    with managed(devices=DEVICES, tcp=True) as manager:
        with headrace.connect(manager.address) as client:
            made = client.put("mine", data, {"w": where, "*": "host"})
            digest = made.info.digest
            # Who has the answer has the promise: the manager has it already.
            has(manager, 1)
            assert names(manager, CONTENTS) == [CONTENTS + digest.hex()]
            assert client.stats().value("weight_sets_kept") == 1
            for _ in range(2):
                end(manager)
                with headrace.connect(manager.tcp_address) as other:
                    assert other.contents([digest])[0].state == 2
                    figures = other.stats()
                    assert figures.value("weight_sets_taken_back_total") == 1
                    assert figures.value("weight_sets_waiting") == 1
                    found = other.load("", "mine")
                    assert found.info.digest == digest
                    assert [d.device for d in found.devices] == [d.device for d in made.devices]
                    again = other.put("mine", data, {"w": where, "*": "host"})
                    assert again.already and again.info.digest == digest
                    elsewhere = other.put("other", data, {"*": "cpu0"})
                    assert elsewhere.already
                    for weights in (found, again, elsewhere):
                        assert np.array_equal(contents_of(other, weights), data["w"])
                        assert np.array_equal(contents_of(other, weights, "v"), data["v"])
                    assert other.stats().value("weight_bytes_hashed_total") == 0
        assert "refused descriptors: 0" in manager.log()


def test_what_is_dropped_is_taken_away() -> None:
    """Records go first; contents when no set has them any more."""
    data = tensors(2)
    with managed(devices=DEVICES) as manager:
        with headrace.connect(manager.address) as client:
            first, second = client.put("a", data), client.put("b", data)
            has(manager, 2, 1)
            client.drop(first)
            has(manager, 1)
            kill(manager)
            assert second
        with headrace.connect(manager.address) as client:
            assert [(one.name, one.users) for one in client.weights()] == [("b", 0)]
            client.put("c", tensors(3))
        # The connection has gone and its set with it; what was taken back waits.
        manager.wait_for("what was put", lambda: manager.told.count("FDSTORE=1") == 5)
        manager.wait_for("contents", lambda: len(names(manager, CONTENTS)) == 1)
        has(manager, 1)


def test_what_nobody_takes_goes() -> None:
    sections: dict[str, dict[str, object]] = {"models": {"keep_grace": "300ms"}}
    with managed(devices=DEVICES, sections=sections) as manager:
        with headrace.connect(manager.address) as client:
            client.put("gone", tensors(4))
            taken = client.put("taken", tensors(5))
            kill(manager)
            with headrace.connect(manager.address) as other:
                held = other.load("", "taken")
                manager.wait_for("one set", lambda: len(names(manager, RECORD)) == 1)
                assert [one.name for one in other.weights()] == ["taken"]
                assert other.stats().value("weight_sets_waiting") == 0
                assert held.info.digest == taken.info.digest
                other.drop(held)
                manager.wait_for("none", lambda: not manager.store)


def test_memory_that_is_wanted_is_there() -> None:
    """Sets that nobody has taken since the start make way; one that somebody has does not."""
    sections: dict[str, dict[str, object]] = {"limits": {"weights_bytes": 100_000}}
    with managed(devices=DEVICES, sections=sections) as manager:
        with headrace.connect(manager.address) as client:
            client.put("one", tensors(6, 10_000))
            client.put("two", tensors(7, 10_000))
            kill(manager)
            with headrace.connect(manager.address) as other:
                other.load("", "two")
                other.put("three", tensors(8, 10_000))
                assert sorted(one.name for one in other.weights()) == ["three", "two"]
                with pytest.raises(headrace.errors.Exhausted):
                    other.put("four", tensors(9, 10_000))


def test_memory_of_a_device_is_there_too() -> None:
    small = [device("host", threads=1, memory_cap=100_000)]
    with managed(devices=small) as manager:
        with headrace.connect(manager.address) as client:
            client.put("one", tensors(6, 15_000))
            kill(manager)
            with headrace.connect(manager.address) as other:
                assert [one.name for one in other.weights()] == ["one"]
                other.put("two", tensors(7, 15_000))
                assert [one.name for one in other.weights()] == ["two"]


@pytest.mark.parametrize("keep", ["none", "host", "all"])
def test_memory_of_devices(keep: str) -> None:
    """Contents that a device has copied stay in host memory only where that was asked for; a set that cannot
    stand where it stood is found by its contents, not by its name."""
    data = tensors(10)
    sections: dict[str, dict[str, object]] = {"models": {"keep": keep}}
    with managed(devices=DEVICES, sections=sections) as manager:
        with headrace.connect(manager.address) as client:
            far = client.put("far", data, {"*": "cpu0"})
            client.put("near", tensors(11))
            has(manager, {"none": 0, "host": 1, "all": 2}[keep])
            kill(manager)
            with headrace.connect(manager.address) as other:
                there = other.contents([far.info.digest])[0].state
                assert there == (2 if keep == "all" else 0)
                with pytest.raises(headrace.errors.NotFound):
                    other.load("", "far")
                again = other.put("far", data, {"*": "cpu0"})
                assert again.already == (keep == "all")
                assert [d.device for d in again.devices] == ["cpu0"]
                assert np.array_equal(contents_of(other, again), data["w"])
                assert other.load("", "far").info.digest == far.info.digest


def test_devices_that_are_others() -> None:
    """An upgrade with another configuration: a set whose device is not there lies with the last one."""
    data = tensors(12)
    with managed(devices=DEVICES) as manager:
        with headrace.connect(manager.address) as client:
            client.put("set", data, {"*": "near"})
            manager.config.write_text(
                manager.config.read_text().replace("[device near]", "[device new]")
            )
            kill(manager)
            with headrace.connect(manager.address) as other:
                with pytest.raises(headrace.errors.NotFound):
                    other.load("", "set")
                again = other.put("set", data, {"*": "new"})
                assert again.already
                assert np.array_equal(contents_of(other, again), data["w"])


def test_models_keep_none_lets_go_of_what_there_was() -> None:
    with managed(devices=DEVICES) as manager:
        with headrace.connect(manager.address) as client:
            client.put("set", tensors(13))
            manager.config.write_text(manager.config.read_text() + "[models]\nkeep = none\n")
            kill(manager)
        manager.wait_for("nothing", lambda: not manager.store)


def test_as_many_as_the_limit_says() -> None:
    sections: dict[str, dict[str, object]] = {"limits": {"kept_sets": 2}}
    with managed(devices=DEVICES, sections=sections) as manager:
        with headrace.connect(manager.address) as client:
            sets = [client.put(str(seed), tensors(seed, 64)) for seed in range(4)]
            has(manager, 2)
            assert manager.log().count("limits.kept_sets") == 2
            client.drop(sets[0])
            has(manager, 1)
            client.put("after", tensors(20, 64))
            has(manager, 2)


def test_a_memfd_of_a_client() -> None:
    """Its seals are what is asked for; the daemon gives it on as it is."""
    data = {"w": np.arange(1 << 20, dtype=np.int32)}  # large enough for PUT_FD
    with managed(devices=DEVICES) as manager:
        with headrace.connect(manager.address) as client:
            made = client.put("large", data)
            kill(manager)
            with headrace.connect(manager.address) as other:
                found = other.load("", "large")
                assert found.info.digest == made.info.digest
                assert np.array_equal(contents_of(other, found), data["w"])


# ---- what comes back and is of no use ----------------------------------------------------------


def memfd(data: bytes, seals: int = SEALS) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def read_all(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def signed(record: bytes) -> tuple[str, bytes]:
    """A record whose own digest is right, and the name that goes with it."""
    digest = hashlib.sha256(record).digest()
    return RECORD + digest.hex(), record + digest


def header(record: bytes, **changes: object) -> bytes:
    keys = ("magic", "version", "tensors", "devices", "name", "names", "contents", "image", "digest")
    values = dict(zip(keys, HEADER.unpack_from(record), strict=True))
    return HEADER.pack(*(values | changes).values()) + record[HEADER.size :]


class Kept:
    """What the manager has of one set."""

    def __init__(self, manager: Manager) -> None:
        (self.contents,), (self.record,) = names(manager, CONTENTS), names(manager, RECORD)
        self.data = read_all(manager.store[self.contents][0])
        self.body = read_all(manager.store[self.record][0])[:-32]


def replace(manager: Manager, name: str, fd: int, new_name: str = "") -> None:
    for old in manager.store.pop(name):
        os.close(old)
    manager.store[new_name or name] = [fd]


def unsealed_contents(manager: Manager, kept: Kept) -> None:
    replace(manager, kept.contents, memfd(kept.data, 0))


def some_seals(manager: Manager, kept: Kept) -> None:
    replace(manager, kept.contents, memfd(kept.data, SEALS & ~fcntl.F_SEAL_WRITE))


def short_contents(manager: Manager, kept: Kept) -> None:
    replace(manager, kept.contents, memfd(kept.data[:4096]))


def no_memfd(manager: Manager, kept: Kept) -> None:
    read_end, write_end = os.pipe()
    os.close(write_end)
    replace(manager, kept.contents, read_end)


def contents_without_record(manager: Manager, kept: Kept) -> None:
    for fd in manager.store.pop(kept.record):
        os.close(fd)


def record_without_contents(manager: Manager, kept: Kept) -> None:
    for fd in manager.store.pop(kept.contents):
        os.close(fd)


def unsealed_record(manager: Manager, kept: Kept) -> None:
    name, whole = signed(kept.body)
    replace(manager, kept.record, memfd(whole, 0), name)


def changed_record(manager: Manager, kept: Kept) -> None:
    whole = bytearray(signed(kept.body)[1])
    whole[HEADER.size] ^= 1
    replace(manager, kept.record, memfd(bytes(whole)))


def empty_record(manager: Manager, kept: Kept) -> None:
    replace(manager, kept.record, memfd(b""))


def another_name(manager: Manager, kept: Kept) -> None:
    replace(manager, kept.record, memfd(signed(kept.body)[1]), RECORD + "0" * 64)


def malformed_name(manager: Manager, kept: Kept) -> None:
    replace(manager, kept.record, memfd(signed(kept.body)[1]), RECORD + "xyz")


def changed_header(manager: Manager, kept: Kept, **changes: object) -> None:
    name, whole = signed(header(kept.body, **changes))
    replace(manager, kept.record, memfd(whole), name)


def changed_tensor(manager: Manager, kept: Kept, at: int, form: str, value: int) -> None:
    tables = HEADER.size + len("set") + 32 * len(DEVICES)
    body = bytearray(kept.body)
    struct.pack_into(form, body, tables + at, value)
    name, whole = signed(bytes(body))
    replace(manager, kept.record, memfd(whole), name)


BAD: dict[str, Callable[[Manager, Kept], None]] = {
    "unsealed contents": unsealed_contents,
    "contents that could be written": some_seals,
    "contents that are short": short_contents,
    "a pipe": no_memfd,
    "contents alone": contents_without_record,
    "a record alone": record_without_contents,
    "an unsealed record": unsealed_record,
    "a changed record": changed_record,
    "an empty record": empty_record,
    "a record of another name": another_name,
    "a malformed name": malformed_name,
    "another format": lambda m, k: changed_header(m, k, magic=b"HR-KEPT\n"),
    "another version": lambda m, k: changed_header(m, k, version=2),
    "too many tensors": lambda m, k: changed_header(m, k, tensors=0xFFFFFFFF),
    "no tensors": lambda m, k: changed_header(m, k, tensors=0),
    "too many devices": lambda m, k: changed_header(m, k, devices=0xFFFFFFFF),
    "no devices": lambda m, k: changed_header(m, k, devices=0),
    "no name": lambda m, k: changed_header(m, k, name=0),
    "a long name": lambda m, k: changed_header(m, k, name=0xFFFFFFFF),
    "long names": lambda m, k: changed_header(m, k, names=(1 << 64) - 8),
    "more contents than tensors": lambda m, k: changed_header(m, k, contents=1 << 40),
    "less memory than contents": lambda m, k: changed_header(m, k, image=4096),
    "more memory than there is": lambda m, k: changed_header(m, k, image=1 << 40),
    "another digest": lambda m, k: changed_header(m, k, digest=bytes(32)),
    "a long tensor name": lambda m, k: changed_tensor(m, k, 0, "<I", 5000),
    "an unknown type": lambda m, k: changed_tensor(m, k, 4, "<I", 9999),
    "no such device": lambda m, k: changed_tensor(m, k, 8, "<I", len(DEVICES)),
    "a negative extent": lambda m, k: changed_tensor(m, k, 12, "<q", -1),
    "an extent too large": lambda m, k: changed_tensor(m, k, 12, "<q", 1 << 62),
}


def test_what_is_of_no_use_is_closed_and_logged() -> None:
    """Each kind in turn, beside a set that is good. One daemon per kind."""
    with managed(devices=DEVICES) as manager:
        with headrace.connect(manager.address) as client:
            client.put("set", tensors(14))
            has(manager, 1)
            kept = Kept(manager)
            good = [(name, os.dup(fds[0])) for name, fds in manager.store.items()]
            manager.kill()
        for number, (what, spoil) in enumerate(BAD.items()):
            for fds in manager.store.values():
                for fd in fds:
                    os.close(fd)
            manager.store = {name: [os.dup(fd)] for name, fd in good}
            spoil(manager, kept)
            manager.start()
            with headrace.connect(manager.address) as other:
                assert [one.name for one in other.weights()] == [], what
                assert other.stats().value("weight_take_back_failures_total") > 0, what
                assert np.array_equal(
                    contents_of(other, other.put("new", tensors(15))), tensors(15)["w"]
                )
                manager.wait_for(what, lambda: len(manager.store) == 2)
                assert not set(manager.store) & {name for name, _ in good}, what
            assert manager.log().count("is not taken back") > number, what
            manager.kill()
        for _, fd in good:
            os.close(fd)
        manager.start()


def test_twice_the_same_and_foreign_ones() -> None:
    """Duplicates are closed quietly; what is not ours is closed, and left with the manager, whose it is."""
    with managed(devices=DEVICES) as manager:
        with headrace.connect(manager.address) as client:
            made = client.put("set", tensors(16))
            has(manager, 1)
            manager.extra = [(name, os.dup(fds[0])) for name, fds in manager.store.items()] * 1
            manager.extra += [("stored", memfd(b"of somebody else")), ("headrace", os.open("/dev/null", os.O_RDONLY))]
            kill(manager)
            with headrace.connect(manager.address) as other:
                assert [one.name for one in other.weights()] == ["set"]
                assert other.load("", "set").info.digest == made.info.digest
                assert other.stats().value("weight_take_back_failures_total") == 0
            assert manager.log().count("is of no use") == 2
            assert "FDNAME=stored" not in manager.told


def test_more_than_the_limit_come_back() -> None:
    with managed(devices=DEVICES) as manager:
        with headrace.connect(manager.address) as client:
            sets = [client.put(str(seed), tensors(seed, 64)) for seed in range(20)]
            manager.config.write_text(manager.config.read_text() + "[limits]\nkept_sets = 3\n")
            kill(manager)
            assert sets
            with headrace.connect(manager.address) as other:
                assert len(other.weights()) == 3
                assert other.stats().value("weight_take_back_failures_total") == 34
            manager.wait_for("three sets", lambda: len(manager.store) == 6)


def test_a_manager_that_does_not_listen() -> None:
    """It lives and takes nothing: uploads go on, and the daemon waits once, shortly."""
    with managed(devices=DEVICES) as manager, headrace.connect(manager.address) as client:
        manager.pause()
        for seed in range(300):  # more than any queue of a socket holds
            client.drop(client.put("x", tensors(seed, 64)))
        assert "the service manager does not answer" in manager.log()
        manager.go_on()
        client.put("y", tensors(400, 64))
        manager.wait_for("the set", lambda: len(names(manager, RECORD)) > 0)


def test_the_process_ends_before_the_record_is_given() -> None:
    """A set is kept whole or not at all: contents go first."""
    with managed(devices=DEVICES) as manager:
        with headrace.connect(manager.address) as client:
            client.put("set", tensors(17))
            has(manager, 1)
            order = [line for line in manager.told if line.startswith("FDNAME=")]
            assert order[0].startswith(f"FDNAME={CONTENTS}")
            assert order[1].startswith(f"FDNAME={RECORD}")
            manager.process.send_signal(signal.SIGKILL)  # type: ignore[union-attr]
            manager.kill()
        contents_without_record(manager, Kept(manager))
        manager.start()
        manager.wait_for("nothing", lambda: not manager.store)


def test_an_operator_frees_what_nobody_has_taken() -> None:
    """EVICT of weights: sets that came back and that no session holds go, from the manager as well."""
    with managed(devices=DEVICES) as manager:
        with headrace.connect(manager.address) as client:
            client.put("a", tensors(31))
            client.put("b", tensors(32))
            client.put("c", tensors(33))
            has(manager, 3)
            kill(manager)
        with headrace.connect(manager.address) as client:
            held = client.load("", "b")
            sizes = {one.name: one.nbytes for one in client.weights()}
            none = client.evict("weights", "nothing of this name")
            assert (none.entries, none.kept_entries) == (0, 0)
            one = client.evict("weights", "a")
            assert (one.entries, one.bytes, one.kept_entries) == (1, sizes["a"], 0)
            rest = client.evict("weights")
            assert (rest.entries, rest.bytes) == (1, sizes["c"])
            assert (rest.kept_entries, rest.kept_bytes) == (1, sizes["b"])
            assert [found.name for found in client.weights()] == ["b"]
            has(manager, 1)
            assert np.array_equal(contents_of(client, held), tensors(32)["w"])
