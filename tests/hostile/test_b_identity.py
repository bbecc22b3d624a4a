"""Who comes in and what they may (HOSTILE B1, B2, B4, B10, B11): tokens, users, permissions."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import raw
from expect import refused, served
from raw import F32, PERMISSION, UNAUTHENTICATED, Conn, pb
from run_daemon import device

TOKENS = {name: secrets.token_urlsafe(24).encode() for name in ("runner", "loader", "admin")}
DELAY_S = 0.02


def by_token(name: str, permissions: str) -> dict[str, object]:
    return {
        "token_sha256": hashlib.sha256(TOKENS[name]).hexdigest(), "permissions": permissions
    }  # fmt: skip


@pytest.fixture(scope="module")
def daemon(door: str, start_behind: Any) -> Iterator[Any]:
    """Tokens for three; the tests' own user is a fourth, who may do everything."""
    running = start_behind(
        door,
        devices=[device("cpu1", threads=1, memory="isolated"), device("host", threads=1)],
        sections={
            "limits": {"refusal_delay": f"{DELAY_S}s" if DELAY_S >= 1 else "20ms"},
            "principal runner": by_token("runner", "run"),
            "principal loader": by_token("loader", "run, load"),
            "principal admin": by_token("admin", "admin"),
            "principal tests": {"uid": os.getuid(), "permissions": "run, load, admin"},
        },
    )
    yield running
    running.stop()


pytestmark = pytest.mark.usefixtures("guarded")


def enter(conn: Conn, token: bytes) -> Any:
    return conn.call(raw.HELLO, pb.Hello(protocol_min=1, protocol_max=1, credentials=token))[0]


def cut_as_a_stranger(conn: Conn, token: bytes) -> tuple[int, str, str]:
    """The one answer of all who are nobody."""
    call = conn.send(raw.HELLO, pb.Hello(protocol_min=1, protocol_max=1, credentials=token))
    (frame,) = conn.closed()
    assert frame.call_id == call
    error = refused(frame, UNAUTHENTICATED, "UNAUTHENTICATED")
    return error.code, error.reason, error.words


WRONG = {
    "one character": b" ",
    "a right prefix": TOKENS["runner"][:-1],
    "one byte too many": TOKENS["runner"] + b"x",
    "a zero byte inside": TOKENS["runner"] + b"\0",
    "a zero byte first": b"\0" + TOKENS["runner"],
    "the digest": hashlib.sha256(TOKENS["runner"]).digest(),
    "the digest in hex": hashlib.sha256(TOKENS["runner"]).hexdigest().encode(),
    "as long as may be": b"x" * 256,
}


def test_B01_wrong_tokens_get_one_answer(address: str, daemon: Any) -> None:
    answers = set()
    for token in WRONG.values():
        with Conn(address, hello=False) as conn:
            answers.add(cut_as_a_stranger(conn, token))
    assert len(answers) == 1
    log = daemon.log()
    assert "unauthenticated" in log
    assert not any(token.decode() in log for token in TOKENS.values())
    with Conn(address, hello=False) as conn:
        enter(conn, TOKENS["runner"])
        served(conn)


@pytest.mark.parametrize("size", [257, 900])
def test_B01_tokens_that_are_too_long(address: str, size: int) -> None:
    with Conn(address, hello=False) as conn:
        hello = pb.Hello(protocol_min=1, protocol_max=1, credentials=b"x" * size)
        refused(conn.fails(raw.HELLO, hello), raw.INVALID, "DECODE")
        enter(conn, TOKENS["runner"])
        served(conn)


def test_B01_a_megabyte_of_token(address: str) -> None:
    hello = pb.Hello(protocol_min=1, protocol_max=1, credentials=b"x" * (1 << 20))
    with Conn(address, hello=False) as conn:
        conn.send(raw.HELLO, hello)
        (frame,) = conn.closed()
        refused(frame, raw.INVALID, "MESSAGE_TOO_LONG")
    with Conn(address) as conn:
        served(conn)


def test_B02_every_refusal_takes_the_delay(address: str) -> None:
    """Whatever a guess shares with the token, its answer comes after the delay, never before; each soon
    after another takes longer. (The comparison itself: tests/unit/daemon/test_principal.c.)"""
    for shared in (0, 1, 16, 31):
        token = TOKENS["runner"]
        guess = token[:shared] + bytes(33) + token[shared + 33 :]
        with Conn(address, hello=False) as conn:
            begun = time.monotonic()
            cut_as_a_stranger(conn, guess)
            assert time.monotonic() - begun >= DELAY_S
    with Conn(address, hello=False) as conn:
        enter(conn, TOKENS["loader"])
        served(conn)


def test_B10_permissions(address: str) -> None:
    tensors = [("w", F32, [4], bytes(16))]
    with Conn(address, hello=False) as runner, Conn(address, hello=False) as admin:
        enter(runner, TOKENS["runner"])
        enter(admin, TOKENS["admin"])
        served(runner)
        put = pb.WeightsPut(name="mine", total_bytes=64)
        call = runner.send(
            raw.PUT, put, raw.manifest(tensors).SerializeToString(), flags=raw.MORE
        )
        with pytest.raises(raw.RawError) as caught:
            runner.reply(call)
        refused(caught.value, PERMISSION, "PERMISSION")
        error = runner.fails(raw.LOAD, pb.WeightsLoad(path="model.gguf"))
        refused(error, PERMISSION, "PERMISSION")
        refused(runner.fails(raw.STATS, pb.StatsRequest()), PERMISSION, "PERMISSION")
        refused(runner.fails(raw.STATS, b"\xff"), PERMISSION, "PERMISSION")  # before it is read
        for kind, message in ((raw.RELOAD, pb.Reload()), (raw.DRAIN, pb.Drain(limit_ms=1)),
                              (raw.EVICT, pb.Evict(what="sessions"))):  # fmt: skip
            refused(runner.fails(kind, message), PERMISSION, "PERMISSION")
            refused(runner.fails(kind, b"\xff"), PERMISSION, "PERMISSION")
        assert not runner.call(raw.STATUS, pb.Status())[0].whole  # its own, and nobody else's
        _, body = runner.call(raw.SESSIONS, pb.Sessions())
        assert {row.principal for row in pb.SessionList.FromString(body).sessions} == {"runner"}
        _, body = runner.call(raw.QUOTAS, pb.Quotas())
        assert {row.principal for row in pb.QuotaList.FromString(body).principals} == {"runner"}
        served(runner)
        assert admin.call(raw.STATUS, pb.Status())[0].whole
        assert "unauthenticated_total" in admin.stats()
        body = raw.add_graph().encode().SerializeToString()
        refused(admin.fails(raw.SUBMIT, pb.Submit(), body), PERMISSION, "PERMISSION")


# ---- the system's users: on the Unix socket ------------------------------------------------------


def as_user(uid: int, function: Any) -> int:
    """function() in a process of that user; its exit status."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            function()
            status = 0
        except AssertionError:
            status = 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_B04_users_that_are_nobody(daemon: Any) -> None:
    os.chmod(daemon.folder, 0o755)
    os.chmod(daemon.socket_path, 0o666)

    def stranger() -> None:
        with Conn(daemon.address, hello=False) as conn:
            cut_as_a_stranger(conn, b"")

    def with_a_token() -> None:
        with Conn(daemon.address, hello=False) as conn:
            enter(conn, TOKENS["runner"])
            served(conn)

    assert as_user(65534, stranger) == 0
    assert as_user(65534, with_a_token) == 0
    with Conn(daemon.address) as conn:
        served(conn)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_B04_the_identity_is_that_of_the_connect(daemon: Any) -> None:
    """A connected socket keeps its identity in the hands of another user, also before its hello."""
    conn = Conn(daemon.address, hello=False)

    def other_hands() -> None:
        conn.call(raw.HELLO, pb.Hello(protocol_min=1, protocol_max=1))
        served(conn)
        assert conn.stats()

    assert as_user(65534, other_hands) == 0
    conn.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_B04_an_identity_outlives_its_process(daemon: Any) -> None:
    """The process that connected has ended, and its number may be anybody's: the peer stays who it
    was, here nobody."""
    os.chmod(daemon.folder, 0o755)
    os.chmod(daemon.socket_path, 0o666)
    ours, theirs = socket.socketpair()

    def connect_and_hand_over() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(str(daemon.socket_path))
            socket.send_fds(theirs, [b"x"], [sock.fileno()])

    assert as_user(65534, connect_and_hand_over) == 0
    _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
    ours.close()
    theirs.close()
    conn = Conn(daemon.address, hello=False)
    conn.socket.close()
    conn.socket = socket.socket(fileno=fd)
    conn.socket.settimeout(raw.TIMEOUT_S)
    with conn:
        cut_as_a_stranger(conn, b"")
    with Conn(daemon.address) as good:
        served(good)
