"""What who runs the daemon asks and orders: true for an admin, one's own for everybody else, refused
where a right is missing, page by page where there is much, and freed where EVICT says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import headrace
import headrace.aio
import numpy as np
import pytest
from headrace import errors, operate
import raw
from raw import (
    DRAIN, EVICT, EXPLAIN, HEALTH, INVALID, NOT_FOUND, PERMISSION, PLANS, QUOTAS, RELOAD, SESSIONS,
    STATUS, Conn, eventually, pb,
)  # fmt: skip
from run_daemon import Daemon, device
from test_experts import EXPERT_BYTES, mixture
from test_experts import weights as expert_weights

DEVICES = (
    device("iso", backend="cpu", threads=1, memory="isolated"),
    device("host", backend="cpu", threads=1),
)
RIGHTS = {"runner": "run, load", "other": "run", "admin": "admin"}


def sections() -> dict[str, dict[str, object]]:
    return {
        f"principal {name}": {
            "token_sha256": hashlib.sha256(name.encode()).hexdigest(), "permissions": rights
        }
        for name, rights in RIGHTS.items()
    }  # fmt: skip


def connect(daemon: Daemon, principal: str, **keys: Any) -> headrace.Client:
    return headrace.connect(
        daemon.address, credentials=principal.encode(), name=f"test {principal}", **keys
    )


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    daemon_keys = {"daemon": {"session_grace": "60s", "drain_timeout": "9s"}}
    with Daemon(devices=DEVICES, sections={**sections(), **daemon_keys}) as daemon:
        with connect(daemon, "admin") as client:
            eventually(lambda: client.health().ready, 20, "never ready")
        yield daemon


@pytest.fixture
def admin(served: Daemon) -> Iterator[headrace.Client]:
    with connect(served, "admin") as client:
        client.evict("sessions")  # of earlier tests
        yield client


def chain(nodes: int, size: int = 64) -> headrace.Graph:
    graph = headrace.Graph()
    y = graph.input("x", (size,))
    for _ in range(nodes):
        y = y + y
    graph.output(y, "y")
    return graph


# ---- what is shown ---------------------------------------------------------------------------------


def test_status(served: Daemon, admin: headrace.Client) -> None:
    with connect(served, "runner") as runner, connect(served, "other") as other:
        state = runner.state({"s": ("f32", (1024,))})
        runner.submit(chain(3))
        whole, own, none = admin.status(), runner.status(), other.status()
        assert (whole.whole, own.whole) == (True, False)
        assert whole.pid == own.pid == served.process.pid
        assert whole.state == "serving" and whole.ready and not whole.degraded
        assert whole.version == headrace.__version__ and len(whole.boot_id) == 16
        assert (whole.principal, own.principal) == ("admin", "runner")
        assert (whole.sessions, own.sessions, none.sessions) == (3, 1, 1)
        assert whole.connections == 3
        assert (own.graphs, none.graphs, whole.graphs) == (1, 0, 1)
        assert own.state_bytes == whole.state_bytes >= 4096 and none.state_bytes == 0
        assert own.device_bytes > 0 and none.device_bytes == 0
        assert own.requests == 0 and whole.requests == 1  # the question itself
        assert (whole.devices, whole.devices_lost) == (2, 0)
        state.free()


def test_health(served: Daemon) -> None:
    with connect(served, "other") as client:
        eventually(lambda: client.health().ready, 20, "never ready")
        health = client.health()
        assert health.live and not health.degraded and health.words == "ready"
        assert [one.device for one in health.devices] == ["iso", "host"]
        for one in health.devices:
            assert one.health == "ok" and one.required and one.beats > 0 and one.failures == 0
            assert one.age_ms > 0


def test_sessions_and_plans(served: Daemon, admin: headrace.Client) -> None:
    with connect(served, "runner", session="mine") as runner, connect(served, "other") as other:
        small, large = runner.submit(chain(3, 65)), runner.submit(chain(9), pins={"*": "iso"})
        again = other.submit(chain(3, 65))
        found = {one.principal: one for one in admin.sessions()}
        mine = found["runner"]
        assert (mine.name, mine.client, mine.connections) == ("mine", "test runner", 1)
        assert (mine.graphs, mine.closing_ms) == (2, 0) and mine.device_bytes > 0
        assert [one.principal for one in runner.sessions()] == ["runner"]
        plans = admin.plans()
        assert [(p.principal, p.nodes) for p in plans] == [("runner", 3), ("runner", 9), ("other", 3)]
        assert plans[0].digest == small.graph.digest.hex()[:16] and plans[1].digest != plans[0].digest
        assert plans[0].origin in ("new", "shapes") and plans[2].origin == "hit"
        assert "iso" in plans[1].devices.split(",") and plans[1].splits == large.plan.split_count
        assert not any(plan.in_use for plan in plans)
        assert [p.nodes for p in runner.plans()] == [3, 9] and [p.nodes for p in other.plans()] == [3]
        # A plan that is listed can be explained, by who sees it.
        theirs = admin.explain(plans[1].session, plans[1].graph)
        assert len(theirs.nodes) == 9 and theirs.text() == large.explanation().text()
        assert len(runner.explain(plans[1].session, plans[1].graph).nodes) == 9
        for session, graph in ((plans[1].session, plans[1].graph), (plans[1].session, 77), (99999, 1)):
            with pytest.raises(errors.NotFound) as caught:
                other.explain(session, graph)
            assert caught.value.reason == "GRAPH"
        again.release()
        assert other.plans() == []
    eventually(lambda: any(one.closing_ms for one in admin.sessions()), 10, "no session waits")


def test_quotas(served: Daemon, admin: headrace.Client) -> None:
    with connect(served, "runner") as runner:
        runner.submit(chain(2))
        rows = {row.principal: row for row in admin.quotas()}
        assert set(rows) == set(RIGHTS)
        assert rows["runner"].permissions == ("run", "load") and rows["runner"].weight > 0
        assert rows["runner"].items["graphs"].held == 1 and rows["other"].items["graphs"].held == 0
        told = runner.quota()
        for what, item in rows["runner"].items.items():
            assert item.limit == told.value("principal_limit", f'what="{what}"'), what
        assert [row.principal for row in runner.quotas()] == ["runner"]


def test_lists_come_in_pages(served: Daemon, admin: headrace.Client) -> None:
    """More graphs and sessions than a page has: each once, in order, while others come and go."""
    with connect(served, "runner") as one, connect(served, "runner") as two:
        handles = [(one, two)[size % 2].submit(chain(1, size)) for size in range(1, 301)]
        for handle in handles[::7]:
            handle.release()
        left = {handle.graph.digest.hex()[:16] for i, handle in enumerate(handles) if i % 7}
        seen = [plan.digest for plan in admin.plans()]
        assert len(seen) == len(left) and set(seen) == left
    conns = [Conn(served.address, hello=False) for _ in range(150)]
    for conn in conns:
        conn.call(1, pb.Hello(protocol_min=1, protocol_max=1, credentials=b"other"))
    numbers = [one.number for one in admin.sessions()]
    assert numbers == sorted(set(numbers)) and len(numbers) >= 151
    reply, body = conns[0].call(SESSIONS, pb.Sessions())
    page = pb.SessionList.FromString(body).sessions
    assert len(page) == 128 and reply.next == page[-1].number
    for conn in conns:
        conn.close()


# ---- what is ordered -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "bytes_of"),
    [("graphs", "compute_bytes"), ("experts", "experts")],
)
def test_evict_graphs(served: Daemon, admin: headrace.Client, what: str, bytes_of: str) -> None:
    """Idle graphs go, with their memory; their clients submit again and do not notice."""
    w = expert_weights(1)
    with connect(served, "runner") as runner:
        held = runner.put("w", {"w": w}, {"*": "host"})
        mix = runner.submit(mixture(), weights=[held], pins={"*": "iso"}, n_copies=1)
        plain = runner.submit(chain(4, 4096), pins={"*": "iso"})
        assert [plan.expert_bytes >= EXPERT_BYTES for plan in admin.plans()] == [True, False]
        before = runner.status().device_bytes
        done = admin.evict(what)
        after = runner.status().device_bytes
        assert done.entries == (2 if what == "graphs" else 1) and done.kept_entries == 0
        assert done.bytes >= 16 * EXPERT_BYTES and before - after == done.bytes
        if what == "graphs":
            assert after == 0
        assert len(admin.plans()) == 2 - done.entries
        x = np.ones(4096, np.float32)
        assert np.array_equal(plain.run({"x": x})["y"], 16 * x)
        assert np.asarray(mix.run({"x": np.ones((1, 1, 64), np.float32),
                                   "ids": np.array([[1, 2]], np.int32)})["y"]).any()  # fmt: skip
        assert len(admin.plans()) == 2
    evictions = [s for s in headrace_stats(served) if s.name == "graph_evictions_total"]
    assert any('reason="operator"' in s.labels and s.value > 0 for s in evictions)


def headrace_stats(daemon: Daemon) -> Any:
    with connect(daemon, "admin") as client:
        return client.stats()


def test_evict_spares_what_is_in_use(launch: Callable[..., Daemon]) -> None:
    daemon = launch(devices=[device("slow", backend="cpu", threads=1, delay="400ms")])
    with headrace.connect(daemon.address) as client, headrace.connect(daemon.address) as admin:
        busy, idle = client.submit(chain(2)), client.submit(chain(5))
        reserved = client.reserve([chain(7)])
        held = client.submit(chain(7))
        running = busy.run_async({"x": np.ones(64, np.float32)})
        eventually(lambda: admin.status().runs == 1, 10, "no run")
        done = admin.evict("graphs")
        assert (done.entries, done.kept_entries) == (1, 2)
        assert np.array_equal(running.result()["y"], np.full(64, 4, np.float32))
        assert idle.run({"x": np.ones(64, np.float32)})["y"][0] == 32
        held.release()
        reserved.release()


def test_evict_plans(served: Daemon, admin: headrace.Client) -> None:
    with connect(served, "runner") as runner:
        gone, kept = runner.submit(chain(21)), runner.submit(chain(22))
        gone.release()
        assert runner.submit(chain(21)).plan.origin == "hit"
        for plan in admin.plans():
            assert plan.nodes in (21, 22)
        admin.evict("graphs")
        kept = runner.submit(chain(22))
        done = admin.evict("plans")
        assert done.entries >= 1 and done.bytes > 0 and done.kept_entries >= 1
        assert runner.submit(chain(21)).plan.origin == "evicted"
        assert runner.submit(chain(22)).plan.origin == "hit"
        kept.release()


def test_evict_sessions(served: Daemon, admin: headrace.Client) -> None:
    with connect(served, "runner") as runner:
        runner.submit(chain(2))
    eventually(lambda: any(s.closing_ms for s in admin.sessions()), 10, "no session waits")
    waiting = [s for s in admin.sessions() if s.closing_ms]
    done = admin.evict("sessions")
    assert done.entries == len(waiting) and done.kept_entries == 1 and done.bytes > 0
    assert [s.principal for s in admin.sessions()] == ["admin"]


def test_evict_uploads(served: Daemon, admin: headrace.Client) -> None:
    """What has come of an upload that nobody goes on with."""
    body = bytes(8 << 20)
    leaves = b"".join(
        hashlib.sha256(body[at : at + (4 << 20)]).digest() for at in range(0, len(body), 4 << 20)
    )
    with Conn(served.address, hello=False) as conn:
        conn.call(1, pb.Hello(protocol_min=1, protocol_max=1, credentials=b"runner"))
        manifest = raw.manifest([("t", raw.F32, [len(body) // 4], b"")]).SerializeToString()
        put = pb.WeightsPut(
            name="half", total_bytes=len(body), digest=hashlib.sha256(leaves).digest(), resume=True
        )
        conn.send(raw.PUT, put, manifest, flags=raw.MORE)
        eventually(lambda: admin.status().upload_bytes == len(body), 10, "not charged")
        used = admin.evict("uploads")
        assert (used.entries, used.kept_entries, used.kept_bytes) == (0, 1, len(body))
    eventually(lambda: admin.evict("uploads").entries == 1, 10, "still in use")
    assert admin.status().upload_bytes == 0
    assert admin.evict("uploads") == operate.Evicted(0, 0, 0, 0)


def test_reload(launch: Callable[..., Daemon]) -> None:
    daemon = launch(devices=DEVICES, sections={"limits": {"connections": 64}})
    path = daemon.folder / "headraced.ini"
    text = path.read_text()
    with headrace.connect(daemon.address) as client:
        assert client.reload() == operate.Reloaded((), ())
        path.write_text(
            text.replace("connections = 64", "connections = 65\nbacklog = 99")
        )
        assert client.reload() == operate.Reloaded(("limits.connections",), ("limits.backlog",))
        path.write_text(text.replace("connections = 64", "connections = many"))
        with pytest.raises(errors.InvalidArgument) as caught:
            client.reload()
        assert caught.value.reason == "CONFIG"
        assert "headraced.ini:" in str(caught.value) and "limits.connections" in str(caught.value)
        assert str(daemon.folder) not in str(caught.value)
        path.write_text(text)
        assert client.reload().applied == ("limits.connections",)


@pytest.mark.parametrize("revocation", ["finish", "abort"])
def test_reload_that_revokes_who_asks(launch: Callable[..., Daemon], revocation: str) -> None:
    """The change is made, and who has asked for it hears of its own end."""
    daemon = launch(devices=DEVICES, sections={**sections(), "daemon": {"revocation": revocation}})
    path = daemon.folder / "headraced.ini"
    with connect(daemon, "admin") as client, connect(daemon, "runner") as runner:
        known = hashlib.sha256(b"admin").hexdigest()
        path.write_text(path.read_text().replace(known, hashlib.sha256(b"new").hexdigest()))
        try:  # the reply comes behind the word that the connection ends
            assert client.reload().applied == ("principal.admin.token_sha256",)
        except errors.PermissionDenied as error:
            assert error.reason == "REVOKED"
        with pytest.raises((errors.PeerError, errors.PermissionDenied)):
            client.status()
        runner.ping()
        with pytest.raises(errors.Unauthenticated):
            connect(daemon, "admin")
        with connect(daemon, "new") as other:
            assert other.status().principal == "admin"


def test_drain(launch: Callable[..., Daemon]) -> None:
    """Runs in flight end well, new requests are refused, questions are answered, exit 0."""
    daemon = launch(devices=[device("slow", backend="cpu", threads=1, delay="500ms")],
                    sections={"daemon": {"drain_timeout": "9s"}})  # fmt: skip
    with headrace.connect(daemon.address) as client, headrace.connect(daemon.address) as admin:
        handle = client.submit(chain(2))
        running = handle.run_async({"x": np.ones(64, np.float32)})
        eventually(lambda: admin.status().runs == 1, 10, "no run")
        assert admin.drain() == operate.Draining(1, 2, 9000)
        status = admin.status()
        assert (status.state, status.ready, status.words) == ("draining", False, "draining")
        assert admin.drain(30).limit_ms == 30000  # again: only the limit changes
        with pytest.raises(errors.Unavailable):
            client.submit(chain(3))
        assert running.result()["y"][0] == 4
        assert daemon.process.wait(20) == 0


def test_drain_limit(launch: Callable[..., Daemon]) -> None:
    """What is in flight after the limit that was asked for is refused: the next daemon may be asked."""
    daemon = launch(devices=[device("slow", backend="cpu", threads=1, delay="1500ms"),
                             device("other", backend="cpu", threads=1, memory="isolated"),
                             device("host", backend="cpu", threads=1)],
                    sections={"daemon": {"drain_timeout": "60s"}})  # fmt: skip
    with headrace.connect(daemon.address) as client:
        handle = client.submit(chain(4), pins={"*": "slow"})
        runs = [handle.run_async({"x": np.ones(64, np.float32)}) for _ in range(9)]
        assert client.drain(0.05).limit_ms == 50
        ended: list[str] = []
        for one in runs:
            try:
                one.result()
                ended.append("ok")
            except errors.Unavailable as error:
                assert error.reason == "DRAINING" and error.retry_after > 0
                ended.append("refused")
        assert "refused" in ended, ended
        assert daemon.process.wait(20) == 0


def test_sighup_still_reloads(launch: Callable[..., Daemon]) -> None:
    daemon = launch(devices=DEVICES)
    os.kill(daemon.process.pid, signal.SIGHUP)
    eventually(lambda: "configuration read again" in daemon.log(), 10, "not read")


# ---- who may ---------------------------------------------------------------------------------------


def test_what_needs_admin(served: Daemon) -> None:
    """Refused before it is read; a row of another principal cannot be told from none."""
    with Conn(served.address, hello=False) as conn:
        conn.call(1, pb.Hello(protocol_min=1, protocol_max=1, credentials=b"runner"))
        for kind, message in ((RELOAD, pb.Reload()), (DRAIN, pb.Drain()), (EVICT, pb.Evict(what="plans"))):
            for sent in (message, b"\xff"):
                error = conn.fails(kind, sent)
                assert (error.code, error.reason) == (PERMISSION, "PERMISSION")
        for kind, message in (
            (STATUS, pb.Status()), (HEALTH, pb.Health()), (SESSIONS, pb.Sessions(after=2**64 - 1)),
            (PLANS, pb.Plans(after_session=2**64 - 1, after_graph=2**32 - 1)),
            (QUOTAS, pb.Quotas(after=2**64 - 1)),
        ):  # fmt: skip
            conn.call(kind, message)
            assert conn.fails(kind, b"\xff").code == INVALID
        error = conn.fails(EXPLAIN, pb.Explain(session=2**64 - 1, graph=2**32 - 1))
        assert (error.code, error.reason) == (NOT_FOUND, "GRAPH")
        conn.ping()
    with Conn(served.address, hello=False) as conn:
        conn.call(1, pb.Hello(protocol_min=1, protocol_max=1, credentials=b"admin"))
        for what in ("", "everything", "plans ", "x" * 15):
            error = conn.fails(EVICT, pb.Evict(what=what))
            assert (error.code, error.reason, error.error.field) == (INVALID, "EVICT", "what")
        assert conn.fails(EVICT, pb.Evict(what="x" * 16)).reason == "DECODE"


def test_asyncio(served: Daemon) -> None:
    async def talk() -> None:
        async with await headrace.aio.connect(served.address, credentials=b"admin") as client:
            assert (await client.status()).whole and (await client.health()).live
            assert await client.sessions() and await client.quotas()
            assert isinstance(await client.plans(), list)
            assert (await client.evict("plans")).kept_entries >= 0
            assert await client.reload() == operate.Reloaded((), ())

    asyncio.run(talk())
