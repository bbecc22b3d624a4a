"""The Python client against a real daemon: every operation, sizes past one frame, many at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import client_tools
import numpy as np
import pytest
from client_tools import TWO, Array, client_of, nmse, random
from numpy_reference import evaluate

import headrace
from headrace import aio, errors, uploads
from headrace.graph import Graph
from headrace.types import Type


@pytest.fixture(scope="module")
def client() -> Iterator[headrace.Client]:
    """A client of a daemon with one device."""
    with client_of() as made:
        yield made


def layer(rows: int = 3) -> tuple[Graph, Array]:
    """silu(x @ w.T) with w a constant."""
    w = random(16, 64, seed=2)
    g = Graph()
    g.output(g.silu(g.mul_mat(g.constant(w), g.input("x", (rows, 64)))), "y")
    return g, w


def test_hello(client: headrace.Client) -> None:
    hello = client.hello
    assert hello.protocol == 1 and len(hello.boot_id) == 16
    assert hello.limits.body_bytes_max == client.body_max > 0
    assert [d.name for d in hello.devices] == ["cpu0"] == [d.name for d in client.devices()]
    assert hello.devices[0].memory_total > 0 and hello.devices[0].threads == 1
    client.ping()


def test_run_against_the_oracle(client: headrace.Client) -> None:
    g, _ = layer()
    handle = client.submit(g)
    assert handle.plan.split_count >= 1 and handle.plan.n_copies >= 1
    for seed in range(3):
        x = random(3, 64, seed=seed)
        (want,) = evaluate(g.encode(), {"x": x})
        result = handle.run({"x": x})
        assert result["y"].shape == (3, 16) and result["y"].dtype == np.float32
        assert nmse(want, result["y"]) < 1e-10
        assert result.run_s > 0
    assert "MUL_MAT" in handle.explain()
    handle.release()


def test_same_topology_is_a_hit(client: headrace.Client) -> None:
    g = Graph()
    g.output(g.sqr(g.input("a", (5, 7))), "b")
    assert client.submit(g).plan.origin != "hit"
    other = Graph()
    other.output(other.sqr(other.input("another name", (5, 7))), "name")
    hits = client.submit(other)
    assert hits.plan.origin == "hit"
    assert hits.run([np.full((5, 7), 3)])["name"].tolist() == [[9] * 7] * 5
    assert client.submit(other, fresh=True).plan.origin != "hit"


def test_many_in_flight(client: headrace.Client) -> None:
    g, w = layer()
    handle = client.submit(g)
    xs = [random(3, 64, seed=i) for i in range(30)]
    expected = [handle.run([x])[0].copy() for x in xs]
    operations = [handle.run_async([x]) for x in xs]
    client.sync()
    for operation, want in zip(operations, expected, strict=True):
        assert operation.done()
        assert (operation.result()[0] == want).all()
    assert w.shape == (16, 64)


def test_threads_share_a_client(client: headrace.Client) -> None:
    g, _ = layer()
    handle = client.submit(g)
    xs = [random(3, 64, seed=i) for i in range(16)]
    expected = [handle.run([x])[0].copy() for x in xs]
    wrong: list[Any] = []

    def work(number: int) -> None:
        try:
            for _ in range(20):
                if not (handle.run([xs[number]])[0] == expected[number]).all():
                    wrong.append(number)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_outputs_chosen_and_in_other_types(client: headrace.Client) -> None:
    g = Graph()
    x = g.input("x", (4, 8))
    g.output(g.argmax(x), "best")
    g.output(g.cast(x, "f16"), "half")
    g.output(g.sum_rows(x), "sums")
    handle = client.submit(g)
    value = random(4, 8)
    everything = handle.run([value])
    assert everything["best"].dtype == np.int32
    assert everything["best"].tolist() == value.argmax(1).tolist()
    assert (everything["half"] == value.astype(np.float16)).all()
    some = handle.run([value], outputs=["sums", "best"])
    assert len(some) == 2 and (some["sums"] == everything["sums"]).all()
    assert len(handle.run([value], outputs=[])) == 0


def test_bodies_longer_than_a_frame(client: headrace.Client) -> None:
    rows = client.body_max // 1024 * 3
    value = random(rows, 512)
    g = Graph()
    x = g.input("x", (rows, 512))
    g.output(g.add(x, g.constant(np.full((rows, 512), 2, np.float32))), "y")
    assert len(g.encode()) > 2 * client.body_max
    handle = client.submit(g)
    assert (handle.run([value])["y"] == value + 2).all()
    again = client.submit(g)
    assert again.plan.origin == "hit"
    assert (again.run([value])["y"] == value + 2).all()


def test_put_weights_of_several_types(client: headrace.Client) -> None:
    gguf = pytest.importorskip("gguf")
    w = random(256, 512)
    kind = gguf.GGMLQuantizationType.Q8_0
    raw = gguf.quants.quantize(w, kind)
    weights = client.put(
        "several",
        {
            "full": w,
            "half": w.astype(np.float16),
            "q": ("q8_0", w.shape, raw.tobytes()),
            "one": np.float32([7]),
        },
    )
    assert weights["q"].type is Type.Q8_0 and weights.info.source == "upload"
    assert "several" in [info.name for info in client.weights()]
    g = Graph()
    x = g.input("x", (2, 512))
    for name in ("full", "half", "q"):
        g.output(g.mul_mat(g.weight(name, w.shape, weights[name].type), x), name)
    handle = client.submit(g, weights=[weights])
    value = random(2, 512, seed=9)
    result = handle.run([value])
    exact = value.astype(np.float64) @ w.T.astype(np.float64)
    assert nmse(exact, result["full"]) < 1e-10
    assert nmse(exact, result["half"]) < 1e-5
    assert nmse(exact, result["q"]) < 1e-3
    client.drop(weights)


def test_put_longer_than_the_window(client: headrace.Client) -> None:
    big = np.random.default_rng(3).integers(-100, 100, (6_000, 1_000), dtype=np.int32)
    weights = client.put("big", {"big": big})
    g = Graph()
    ids = g.input("ids", (3,), "i32")
    g.output(g.get_rows(g.weight("big", big.shape, "i32"), ids), "rows")
    handle = client.submit(g, weights=[weights])
    assert (handle.run([[5_999, 0, 3_000]])["rows"] == big[[5_999, 0, 3_000]]).all()


def test_put_with_a_long_manifest(client: headrace.Client) -> None:
    names = [f"{'tensor ' * 15}{i}" for i in range(8_000)]
    weights = client.put("many", {name: np.float32([i]) for i, name in enumerate(names)})
    assert len(weights) == 8_000
    g = Graph()
    g.output(g.scale(g.weight(names[7_999], (1,)), 2.0), "y")
    assert client.submit(g, weights=[weights]).run()["y"].tolist() == [15_998]


def test_put_with_a_wrong_digest(client: headrace.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "leaf_digests", lambda pieces: [bytes(32)])
    with pytest.raises(errors.DataLoss):
        client.put("wrong", {"w": np.zeros(100_000, np.float32)})
    assert "wrong" not in [info.name for info in client.weights()]


def test_state(client: headrace.Client) -> None:
    state = client.state({"memory": ("f16", (400, 2_000)), "count": ("i64", (3,))})
    assert not state.read("memory").any() and state.read("count").tolist() == [0, 0, 0]
    big = random(400, 2_000).astype(np.float16)
    state.write("memory", big)
    state.write("count", [1, 2, 3])
    assert (state.read("memory") == big).all() and state.read("count").tolist() == [1, 2, 3]
    g = Graph()
    memory = g.state("memory", (400, 2_000), "f16")
    rows, ids = g.input("rows", (2, 2_000)), g.input("ids", (2,), "i64")
    written = g.set_rows(memory, rows, ids)
    g.output(g.cast(g.slice(written, 0, 0, 3), "f32"), "head")
    handle = client.submit(g, states=[state])
    value = random(2, 2_000, seed=4)
    head = handle.run({"rows": value, "ids": [399, 1]})["head"]
    big[399], big[1] = value[0], value[1]
    assert (head == big[:3].astype(np.float32)).all()
    client.sync()
    assert (state.read("memory") == big).all()
    state.free()
    with pytest.raises(errors.NotFound):
        state.read("count")


def test_dry_run_and_ops(client: headrace.Client) -> None:
    g, _ = layer()
    planned = client.submit(g, dry_run=True)
    assert planned.handle == 0 and planned.plan.split_count >= 1
    table = client.ops(g)
    assert table.shape == (2, 1) and table.all()


def test_stats(client: headrace.Client) -> None:
    before = client.stats()
    assert len(before) > 3 and all(stat.name for stat in before)
    g, _ = layer()
    handle = client.submit(g)
    handle.run([random(3, 64)])
    assert sum(stat.value for stat in client.stats()) != sum(stat.value for stat in before)


# ---- what goes wrong -----------------------------------------------------------------------------


def test_a_lying_graph_names_its_node(client: headrace.Client) -> None:
    g = Graph()
    x = g.sqr(g.input("x", (4, 8)))
    g.output(g.node(headrace.Op.SQR, Type.F32, (9, 4, 1, 1), [x]), "y")
    with pytest.raises(errors.InvalidArgument) as caught:
        client.submit(g)
    assert caught.value.node == 1 and caught.value.reason == "SHAPE"
    client.ping()


def test_an_operator_that_nothing_here_has(client: headrace.Client) -> None:
    g = Graph()
    x = g.sqr(g.input("x", (4, 256)))
    g.output(g.mul_mat(g.input("a", (8, 256), "q8_K"), x), "y")
    assert client.ops(g).tolist() == [[True], [False]]
    with pytest.raises(errors.Unsupported) as caught:
        client.submit(g)
    assert caught.value.node == 1 and "MUL_MAT" in caught.value.words


def test_an_operator_that_there_is_not(client: headrace.Client) -> None:
    g = Graph()
    number: Any = 9999
    g.output(g.node(number, Type.F32, (4, 1, 1, 1), [g.input("x", (4,))]), "y")
    with pytest.raises(errors.InvalidArgument) as caught:
        client.submit(g)
    assert (caught.value.node, caught.value.reason) == (0, "OP")
    assert caught.value.words == "9999 is no op of a node"


def test_copies_out_of_range(client: headrace.Client) -> None:
    g, _ = layer()
    most = client.hello.limits.copies_max
    for wrong in (-1, 1 << 32):
        with pytest.raises(ValueError, match=f"n_copies {wrong}: 0 .* copies_max"):
            client.submit(g, n_copies=wrong)
        with pytest.raises(ValueError, match=f"n_copies {wrong}: "):
            client.reserve([g], n_copies=wrong)
    with pytest.raises(errors.Exhausted) as caught:
        client.submit(g, n_copies=most + 1)
    assert caught.value.words == f"n_copies: {most + 1}, at most {most}"
    assert (caught.value.field, caught.value.limit) == ("n_copies", most)
    assert caught.value.actual == most + 1


def test_pins_that_mean_nothing_are_refused(client: headrace.Client) -> None:
    g, _ = layer()
    other = Graph()
    other.output(other.sqr(other.input("a", (4,))), "b")
    for graphs in ([g], [other]):
        with pytest.raises(ValueError, match="no tensor is named like 'typo'"):
            client.reserve(graphs, pins={"*": "cpu0", "typo": "cpu0"})
    with pytest.raises(ValueError, match="no tensor is named like 'typo'"):
        client.submit(g, pins={"typo": "cpu0"})
    with pytest.raises(errors.InvalidArgument) as caught:  # what only the daemon can tell
        client.submit(g, pins={"x": "cpu0", r"typ\o": "cpu0"})
    assert caught.value.reason == "PIN" and "pin 1: no tensor is named like" in caught.value.words
    # One pin may mean what another has taken, and a tensor of one graph of a set.
    client.submit(g, pins={"y": "cpu0", "[xy]": "cpu0", r"\x": "cpu0"}).release()
    client.reserve([g, other], pins={"y": "cpu0", "b": "cpu0"}).release()


def test_giving_back_twice_is_harmless(client: headrace.Client) -> None:
    g, _ = layer()
    state, handle = client.state({"s": ("f32", (4,))}), client.submit(g)
    reservation = client.reserve([g])
    weights = client.put("given back", {"w": random(4)})
    for _ in range(2):
        state.free()
        handle.release()
        reservation.release()
        client.drop(weights)
    with pytest.raises(errors.NotFound):
        state.read("s")


@pytest.mark.parametrize("wrong", [0, -1, -0.5, float("nan")])
def test_a_timeout_that_nothing_can_meet(client: headrace.Client, wrong: float) -> None:
    g, _ = layer()
    handle = client.submit(g)
    for call in (
        lambda: client.ping(timeout=wrong),
        lambda: client.submit(g, timeout=wrong),
        lambda: client.put("w", {"w": random(4)}, timeout=wrong),
        lambda: handle.run([random(3, 64)], timeout=wrong),
        lambda: handle.run_async([random(3, 64)], timeout=wrong),
        lambda: headrace.connect("unix:/nowhere", timeout=wrong),
        lambda: asyncio.run(aio.connect("unix:/nowhere", timeout=wrong)),
    ):
        with pytest.raises(ValueError, match="timeout .*: seconds above 0"):
            call()
    assert handle.run([random(3, 64)], timeout=30)["y"].shape == (3, 16)


@pytest.mark.parametrize("wrong", [-1, float("nan")])
def test_times_below_0_are_sent_to_nobody(client: headrace.Client, wrong: float) -> None:
    with pytest.raises(ValueError, match="limit_s .*: seconds, not below 0"):
        client.drain(wrong)
    with pytest.raises(ValueError, match="latest .*: seconds, not below 0"):
        client.trace(latest=wrong)
    client.ping()
    assert not client.draining


def test_missing_leaves(client: headrace.Client) -> None:
    g = Graph()
    g.output(g.sqr(g.weight("nowhere", (4,))), "y")
    with pytest.raises(errors.HeadraceError) as caught:
        client.submit(g)
    assert isinstance(caught.value, errors.RequestError) and "nowhere" in caught.value.words
    with pytest.raises(errors.NotFound):
        client.load("no such file.gguf")


def test_an_index_outside_its_tensor(client: headrace.Client) -> None:
    g = Graph()
    g.output(g.get_rows(g.input("x", (4, 8)), g.input("ids", (2,), "i32")), "y")
    handle = client.submit(g)
    value = random(4, 8)
    for bad in ([0, 4], [-1, 0]):
        with pytest.raises(errors.OutOfRange):
            handle.run([value, bad])
    assert (handle.run([value, [3, 0]])["y"] == value[[3, 0]]).all()


def test_a_graph_that_is_gone_is_submitted_again(client: headrace.Client) -> None:
    g, _ = layer()
    handle = client.submit(g)
    want = handle.run([random(3, 64)])[0].copy()
    # Released behind the handle's back, as an eviction would.
    number, generation = handle.handle, handle.generation
    other = headrace.GraphHandle(client, g, handle.submit_message)
    other.planned(number, handle.plan)
    other.release()
    assert (handle.run([random(3, 64)])[0] == want).all()
    assert handle.generation == generation + 1 and handle.handle != number
    handle.release()
    with pytest.raises(errors.NotFound):
        handle.run([random(3, 64)])


def test_a_foreign_handle_is_not_found() -> None:
    with client_tools.Daemon(devices=client_tools.ONE) as daemon:
        with headrace.connect(daemon.address) as one, headrace.connect(daemon.address) as two:
            g, _ = layer()
            theirs = one.submit(g)
            mine = headrace.GraphHandle(two, g, theirs.submit_message)
            mine.planned(theirs.handle, theirs.plan)
            mine.released = True
            with pytest.raises(errors.NotFound):
                mine.run([random(3, 64)])
            assert theirs.run([random(3, 64)])["y"].shape == (3, 16)


# ---- other ways to be connected ------------------------------------------------------------------


def test_tcp_and_two_devices() -> None:
    with client_of(TWO, tcp=True) as client:
        g, _ = layer()
        g2 = Graph()
        x = g2.input("x", (3, 64))
        y = g2.mul_mat(g2.weight("a", (64, 64)), x)
        g2.output(g2.mul_mat(g2.weight("b", (16, 64)), y), "z")
        a, b = random(64, 64, seed=6), random(16, 64, seed=7)
        weights = client.put("ab", {"a": a, "b": b}, {"a": "cpu0", "b": "cpu1"})
        handle = client.submit(g2, weights=[weights], n_copies=2)
        assert handle.plan.split_count == 2
        assert {share.device for share in handle.plan.devices if share.splits} == {"cpu0", "cpu1"}
        runs = [handle.run_async([random(3, 64, seed=i)]) for i in range(12)]
        for i, run in enumerate(runs):
            want = random(3, 64, seed=i).astype(np.float64) @ a.T.astype(np.float64) @ b.T
            assert nmse(want, run.result()["z"]) < 1e-10


def test_asyncio() -> None:
    async def main(address: str) -> None:
        async with await aio.connect(address) as client:
            g, _ = layer()
            handle = await client.submit(g)
            xs = [random(3, 64, seed=i) for i in range(40)]
            results = await asyncio.gather(*(handle.run([x]) for x in xs))
            for x, result in zip(xs, results, strict=True):
                (want,) = evaluate(g.encode(), {"x": x})
                assert nmse(want, result["y"]) < 1e-10
            weights = await client.put("w", {"w": random(2_000, 1_000)})
            assert [info.name for info in await client.weights()] == ["w"]
            state = await client.state({"s": ("f32", (1_000, 700))})
            value = random(1_000, 700)
            await state.write("s", value)
            assert (await state.read("s") == value).all()
            with pytest.raises(ValueError, match="timeout 0: seconds above 0"):
                await client.ping(timeout=0)
            for _ in range(2):
                await client.drop(weights)
                await state.free()
            assert (await handle.explain()).strip()
            with pytest.raises(errors.NotFound):
                await client.load("no such file.gguf")

    with client_tools.Daemon(devices=client_tools.ONE) as daemon:
        asyncio.run(main(daemon.address))


def test_daemon_ends_while_a_client_is_there() -> None:
    with client_tools.Daemon(devices=client_tools.ONE) as daemon:
        client = headrace.connect(daemon.address)
        handle = client.submit(layer()[0])
        handle.run([random(3, 64)])
    with pytest.raises(errors.PeerError):
        for _ in range(3):
            handle.run([random(3, 64)])
    client.close()
