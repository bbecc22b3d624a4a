"""Who may come in and what they may do (what is hostile about it: tests/hostile): principals, tokens, permissions."""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import headrace
import numpy as np
import pytest
from headrace import errors
from run_daemon import Daemon, build_folder

TOKENS = {name: secrets.token_urlsafe(24) for name in ("runner", "loader", "admin")}


def sections(**principals: dict[str, object]) -> dict[str, dict[str, object]]:
    return {f"principal {name}": keys for name, keys in principals.items()}


def by_token(name: str, permissions: str) -> dict[str, object]:
    digest = hashlib.sha256(TOKENS[name].encode()).hexdigest()
    return {"token_sha256": digest, "permissions": permissions}


@pytest.fixture(scope="module")
def guarded_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose principals are known by tokens only."""
    models = tmp_path_factory.mktemp("models")
    with Daemon(
        tcp=True,
        models=[models],
        sections={
            "limits": {"refusal_delay": "20ms"},
            **sections(
                runner=by_token("runner", "run"),
                loader=by_token("loader", "run, load"),
                admin=by_token("admin", "admin"),
            ),
        },
    ) as daemon:
        yield daemon


@pytest.fixture(params=["unix", "tcp"])
def door(request: pytest.FixtureRequest, guarded_daemon: Daemon) -> str:
    found = guarded_daemon.address if request.param == "unix" else guarded_daemon.tcp_address
    assert found is not None
    return found


def doubled(client: headrace.Client, **keys: Any) -> list[float]:
    graph = headrace.Graph()
    x = graph.input("x", (4,))
    graph.output(graph.add(x, x))
    result = client.submit(graph, **keys).run({"x": np.arange(4, dtype=np.float32)})[0]
    return [float(value) for value in result]


def test_permissions(door: str) -> None:
    weights = {"w": np.ones(4, np.float32)}
    with headrace.connect(door, credentials=TOKENS["runner"].encode()) as runner:
        assert doubled(runner) == [0, 2, 4, 6]
        with pytest.raises(errors.PermissionDenied, match="load"):
            runner.put("mine", weights)
        with pytest.raises(errors.PermissionDenied, match="load"):
            runner.load("model.gguf")
        with pytest.raises(errors.PermissionDenied, match="admin"):
            runner.stats()
        with headrace.connect(door, credentials=TOKENS["loader"].encode()) as loader:
            loader.put("ours", weights)
            assert doubled(loader) == [0, 2, 4, 6]
            found = runner.load("", "ours")  # what is there may be used
            assert list(found) == ["w"]
        assert doubled(runner) == [0, 2, 4, 6]
    with headrace.connect(door, credentials=TOKENS["admin"].encode()) as admin:
        assert "unauthenticated_total" in str(admin.stats())
        with pytest.raises(errors.PermissionDenied, match="run"):
            doubled(admin)


def test_a_session_belongs_to_its_principal(launch: Callable[..., Daemon]) -> None:
    daemon = launch(
        sections={
            "daemon": {"session_grace": "60s"},
            **sections(runner=by_token("runner", "run"), loader=by_token("loader", "run")),
        }
    )
    with headrace.connect(daemon.address, credentials=TOKENS["runner"].encode()) as client:
        token = client.hello.session_token
    with pytest.raises(errors.NotFound):
        headrace.connect(daemon.address, credentials=TOKENS["loader"].encode(), token=token)
    with headrace.connect(
        daemon.address, credentials=TOKENS["runner"].encode(), token=token
    ) as client:
        assert doubled(client) == [0, 2, 4, 6]


def test_users_and_groups_of_the_system(launch: Callable[..., Daemon]) -> None:
    mine, other = os.getuid(), os.getuid() + 1
    for keys, welcome in (
        ({"uid": f"{other},{mine}"}, True),
        ({"uid": other}, False),
        ({"gid": os.getgid()}, True),
        ({"gid": os.getgid() + 1}, False),
    ):
        daemon = launch(sections=sections(people=keys))
        if welcome:
            with headrace.connect(daemon.address) as client:
                assert doubled(client) == [0, 2, 4, 6]
        else:
            with pytest.raises(errors.Unauthenticated):
                headrace.connect(daemon.address)
        daemon.stop()


def test_a_further_group_counts(launch: Callable[..., Daemon]) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can take on another group")
    group = 54321
    daemon = launch(sections=sections(people={"gid": group}))
    before = os.getgroups()
    with pytest.raises(errors.Unauthenticated):
        headrace.connect(daemon.address)
    os.setgroups([*before, group])
    try:
        with headrace.connect(daemon.address) as client:
            assert doubled(client) == [0, 2, 4, 6]
    finally:
        os.setgroups(before)


def test_refused_start() -> None:
    """Plain TCP off the loopback, TLS without a key: words, not a daemon."""
    program = build_folder() / "daemon" / "headraced"
    for assignment, word in (
        ("listen.tcp=0.0.0.0:7070", "insecure"),
        ("listen.tls=127.0.0.1:7071", "tls.key"),
    ):
        answer = subprocess.run(
            [program, "--set", assignment, "--check-config"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode != 0
        assert word in answer.stderr


def held(client: headrace.Client, what: str, of: str = "principal_held") -> float:
    return client.quota().value(of, f'what="{what}"')


def test_sessions_of_a_principal_share_its_limits(launch: Callable[..., Daemon]) -> None:
    """What one session takes, the others of that principal cannot; another principal can."""
    daemon = launch(
        sections={
            "limits": {
                "principal_states": 3,
                "principal_state_bytes": "64K",
                "principal_sessions": 2,
                "refusal_delay": "20ms",
            },
            **sections(
                runner=by_token("runner", "run, admin"), loader=by_token("loader", "run, admin")
            ),
        }
    )
    mine, yours = TOKENS["runner"].encode(), TOKENS["loader"].encode()
    spec = {"kv": ("f32", (1024,))}
    with (
        headrace.connect(daemon.address, credentials=mine) as first,
        headrace.connect(daemon.address, credentials=mine) as second,
        headrace.connect(daemon.address, credentials=yours) as other,
    ):
        with pytest.raises(errors.Exhausted, match="principal_sessions"):
            headrace.connect(daemon.address, credentials=mine)
        states = [first.state(spec), second.state(spec), first.state(spec)]
        assert held(second, "states") == 3
        assert held(second, "state_bytes") == 3 * 4096
        assert held(second, "states", "session_held") == 1
        assert held(second, "states", "principal_limit") == 3
        with pytest.raises(errors.Exhausted, match="principal_states"):
            second.state(spec)
        other.state(spec).free()
        assert other.stats().value("principal_held", 'principal="runner",what="states"') == 3
        states[0].free()
        with pytest.raises(errors.Exhausted, match="principal_state_bytes"):
            second.state({"kv": ("f32", (32768,))})
        states.append(second.state(spec))
        for state in states[1:]:
            state.free()
        assert held(first, "states") == held(first, "state_bytes") == 0
        assert held(first, "sessions") == held(first, "connections") == 2
    with headrace.connect(daemon.address, credentials=mine) as again:
        assert held(again, "sessions") == held(again, "connections") == 1


def test_what_was_refused_or_freed_is_charged_no_more(launch: Callable[..., Daemon]) -> None:
    """A reply comes after the charge is gone: the next connection may use it at once."""
    daemon = launch(
        sections={
            "limits": {"principal_states": 1, "principal_state_bytes": "64K"},
            **sections(runner=by_token("runner", "run, load")),
        }
    )
    token = TOKENS["runner"].encode()
    spec = {"kv": ("f32", (16,))}
    graph = headrace.Graph()
    x = graph.input("x", (16,))
    graph.output(graph.add(x, graph.state("kv", (16,))), "y")
    with (
        headrace.connect(daemon.address, credentials=token) as first,
        headrace.connect(daemon.address, credentials=token) as second,
    ):
        for _ in range(300):
            with pytest.raises(errors.Exhausted, match="principal_state_bytes"):
                first.state({"kv": ("f32", (32768,))})
            state = second.state(spec)
            handle = second.submit(graph, states=[state])
            state.free()
            handle.release()
            first.state(spec).free()
