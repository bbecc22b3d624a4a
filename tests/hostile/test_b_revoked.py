"""Access that is taken away while its owner is at work (HOSTILE B11): a reload that drops a principal, changes
its token, its certificate's authority or what it may do."""

from __future__ import annotations

import configparser
import hashlib
import io
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import raw
from expect import TWO, cut, refused, served
from papers import certificate
from raw import CREDIT, F32, MORE, PERMISSION, UNAUTHENTICATED, Conn, add_graph, eventually, pb
from run_daemon import device
from test_f_death import LONG, submit_slow

OLD, NEW = b"the token of the first day", b"another one"
DEVICES = [
    device("slow", threads=1, memory="isolated", delay="50ms"),
    device("cpu1", threads=1, memory="isolated"),
    device("host", threads=1),
]


def by_token(token: bytes, permissions: str) -> dict[str, object]:
    return {"token_sha256": hashlib.sha256(token).hexdigest(), "permissions": permissions}


def sections(policy: str, grace: str = "0s") -> dict[str, dict[str, object]]:
    return {
        "daemon": {"revocation": policy, "session_grace": grace},
        "limits": {"refusal_delay": "20ms"},
        "principal leaver": by_token(OLD, "run, load"),
        "principal tests": {"uid": os.getuid(), "permissions": "run, load, admin"},
    }


@pytest.fixture(scope="module")
def daemon(door: str, start_behind: Any) -> Iterator[Any]:
    running = start_behind(door, devices=DEVICES, sections=sections("abort"))
    yield running
    running.stop()


@pytest.fixture
def rig(launch_behind: Any) -> Any:
    """rig(policy, grace): the address at this test's door, and the daemon, which is the test's own."""

    def start(policy: str = "abort", grace: str = "0s") -> tuple[str, Any]:
        address = launch_behind(devices=DEVICES, sections=sections(policy, grace))
        return address, launch_behind.daemon

    return start


pytestmark = pytest.mark.usefixtures("guarded")


class Rewritten:
    """The daemon's file, changed and read again; put back at the end."""

    def __init__(self, daemon: Any) -> None:
        self.daemon, self.path = daemon, daemon.folder / "headraced.ini"
        self.before = self.path.read_text()

    def __enter__(self) -> Rewritten:
        return self

    def __exit__(self, *_: object) -> None:
        self.write(self.before)

    def write(self, text: str, words: str = "configuration read again") -> None:
        seen = self.daemon.log().count(words)
        self.path.write_text(text)
        os.kill(self.daemon.process.pid, signal.SIGHUP)
        eventually(lambda: self.daemon.log().count(words) > seen, 20, f"not in the log: {words}")

    def change(self, **principals: dict[str, object] | None) -> None:
        """leaver={"permissions": "run"} changes keys of the section, leaver=None takes it out."""
        parser = configparser.ConfigParser(interpolation=None, delimiters=("=",))
        parser.read_string(self.before)
        for name, keys in principals.items():
            section = f"principal {name}"
            if keys is None:
                parser.remove_section(section)
                continue
            if not parser.has_section(section):
                parser.add_section(section)
            for key, value in keys.items():
                parser.set(section, key, str(value))
        text = io.StringIO()
        parser.write(text)
        self.write(text.getvalue())


def enter(conn: Conn, token: bytes, **keys: Any) -> Any:
    hello = pb.Hello(protocol_min=1, protocol_max=1, credentials=token, **keys)
    return conn.call(raw.HELLO, hello)[0]


def is_a_stranger(address: str, token: bytes) -> None:
    with Conn(address, hello=False) as conn:
        conn.send(raw.HELLO, pb.Hello(protocol_min=1, protocol_max=1, credentials=token))
        cut(conn, UNAUTHENTICATED, "UNAUTHENTICATED")


class Work:
    """Runs, an upload and a state of the leaver, all unfinished. The runs take 50 ms a split."""

    def __init__(self, conn: Conn, splits: int) -> None:
        self.conn = conn
        conn.call(raw.STATE_ALLOC, pb.StateAlloc(),
                  raw.manifest([("s", F32, [8], b"")]).SerializeToString())  # fmt: skip
        conn.put("kept", [("w", F32, [8], TWO[:32])])
        handle = submit_slow(conn, splits, n_copies=1)
        self.runs = [conn.send(raw.RUN, pb.Run(handle=handle), bytes(32)) for _ in range(3)]
        tensors = [("w", F32, [1 << 18], bytes(1 << 20))]
        self.upload = conn.send(
            raw.PUT, pb.WeightsPut(name="half", total_bytes=1 << 20),
            raw.manifest(tensors).SerializeToString(), flags=MORE)  # fmt: skip
        while not conn.credit.get(self.upload):
            assert conn.next_of(self.upload).type == CREDIT
        conn.send(raw.DATA, pb.Data(offset=0), bytes(4096), call_id=self.upload, flags=MORE)
        conn.ping()

    def end(self, runs_end_well: bool) -> None:
        """Each request has one end, then comes one error for the connection, then nothing."""
        frames = [frame for frame in self.conn.held + self.conn.closed() if frame.type != CREDIT]
        ends = {frame.call_id: frame for frame in frames}
        assert len(ends) == len(frames) == len(self.runs) + 2, frames
        refused(ends.pop(self.upload), PERMISSION, "REVOKED")
        for run in self.runs:
            if runs_end_well:
                assert ends.pop(run).body == bytes(32)
            else:
                refused(ends.pop(run), PERMISSION, "REVOKED")
        (last,) = ends.values()
        assert last.type == raw.GOAWAY | raw.REPLY
        refused(last, PERMISSION, "REVOKED")


def holds_nothing(address: str, principal: str = "leaver") -> None:
    def clear() -> bool:
        with Conn(address) as conn:
            return not [one for one in conn.stats() if f'"{principal}"' in one or '"revoked ' in one]

    eventually(clear, 5, "something is still held")


def test_B11_a_principal_that_goes_in_mid_work(address: str, daemon: Any) -> None:
    with Rewritten(daemon) as file, Conn(address, hello=False) as conn:
        enter(conn, OLD)
        work = Work(conn, LONG)
        file.change(leaver=None)
        work.end(runs_end_well=False)
        is_a_stranger(address, OLD)
        holds_nothing(daemon.address)
        with Conn(daemon.address) as other:
            served(other)
    with Conn(address, hello=False) as back:
        enter(back, OLD)
        served(back)


def test_B11_runs_may_end_first(rig: Any) -> None:
    address, daemon = rig("finish")
    with Rewritten(daemon) as file, Conn(address, hello=False) as conn:
        enter(conn, OLD)
        work = Work(conn, 5)
        file.change(leaver=None)
        late = conn.send(raw.PING, pb.Ping(cookie=1))
        work.end(runs_end_well=True)
        assert late not in {frame.call_id for frame in conn.held}
        is_a_stranger(address, OLD)
        holds_nothing(daemon.address)
    with Conn(daemon.address) as other:
        served(other)


def test_B11_another_token_keeps_the_session(rig: Any) -> None:
    """The peer that came in by the old token goes; what it owns waits for whoever shows the new one."""
    address, daemon = rig("abort", "60s")
    with Rewritten(daemon) as file:
        with Conn(address, hello=False) as conn:
            session = enter(conn, OLD).session_token
            handle = conn.submit(add_graph()).handle
            file.change(leaver={"token_sha256": hashlib.sha256(NEW).hexdigest()})
            cut(conn, PERMISSION, "REVOKED")
        is_a_stranger(address, OLD)
        with Conn(address, hello=False) as conn:
            enter(conn, NEW, resume_token=session)
            conn.run(handle, TWO)
            served(conn)
        file.change(leaver=None)  # nobody is connected: the session goes at once, in spite of its grace
        holds_nothing(daemon.address)
        file.change(leaver={"token_sha256": hashlib.sha256(NEW).hexdigest()})
        with Conn(address, hello=False) as conn:
            hello = pb.Hello(
                protocol_min=1, protocol_max=1, credentials=NEW, resume_token=session
            )
            refused(conn.fails(raw.HELLO, hello), raw.NOT_FOUND, "SESSION")
            enter(conn, NEW)
            served(conn)


def test_B11_permissions_that_shrink_and_grow(address: str, daemon: Any) -> None:
    with Rewritten(daemon) as file, Conn(address, hello=False) as conn:
        enter(conn, OLD)
        handle = submit_slow(conn, LONG)
        run = conn.send(raw.RUN, pb.Run(handle=handle), bytes(32))
        conn.ping()
        file.change(leaver={"permissions": "load"})
        with pytest.raises(raw.RawError) as caught:
            conn.reply(run)
        refused(caught.value, PERMISSION, "PERMISSION")
        refused(conn.fails(raw.RUN, pb.Run(handle=handle), bytes(32)), PERMISSION, "PERMISSION")
        conn.put("still", [("w", F32, [8], TWO[:32])])
        file.change(leaver={"permissions": "run, load, admin"})
        assert conn.stats()["ready"] == 1
        served(conn)


def test_B11_users_and_newcomers(address: str, daemon: Any) -> None:
    """A section that comes lets its owner in; a user that a section loses is cut off."""
    uid = os.getuid()
    with Rewritten(daemon) as file:
        is_a_stranger(address, NEW)
        file.change(newcomer=by_token(NEW, "run"))
        with Conn(address, hello=False) as conn:
            enter(conn, NEW)
            served(conn)
            with Conn(daemon.address) as mine:
                file.change(newcomer=by_token(NEW, "run"), other={"uid": uid + 1})
                mine.ping()
                served(conn)


def test_B11_a_user_that_is_not_let_in_any_more(rig: Any) -> None:
    address, daemon = rig()
    with Rewritten(daemon) as file, Conn(daemon.address) as mine, Conn(address, hello=False) as conn:
        enter(conn, OLD)
        early = Conn(daemon.address, hello=False)  # has said nothing yet: known by its user alone
        file.change(tests={"uid": os.getuid() + 1, "certificate": ""} if "tls" in address
                    else {"uid": os.getuid() + 1})  # fmt: skip
        cut(mine, PERMISSION, "REVOKED")
        early.send(raw.HELLO, pb.Hello(protocol_min=1, protocol_max=1))
        cut(early, UNAUTHENTICATED, "UNAUTHENTICATED")
        served(conn)


def test_B11_a_wrong_file_revokes_nobody(address: str, daemon: Any) -> None:
    with Rewritten(daemon) as file, Conn(address, hello=False) as conn:
        enter(conn, OLD)
        broken = file.before.replace("[principal leaver]", "[principal someone]") + "\nx = 1\n"
        file.write(broken, "the configuration stays as it is")
        served(conn)


def test_B11_certificates_that_are_not_trusted_any_more(
    rig: Any, door: str, papers: Any, tmp_path: Path
) -> None:
    """The daemon's own certificate is another one from then on, and so is who signs the clients'."""
    if door != "tls":
        pytest.skip("certificates are TLS's")
    address, daemon = rig()
    with Rewritten(daemon) as file, Conn(address) as mine, Conn(address, hello=False) as conn:
        enter(conn, OLD)
        served(mine)
        bundle = tmp_path / "both.pem"
        bundle.write_bytes(papers.file("ours.pem").read_bytes() + papers.file("theirs.pem").read_bytes())
        ours = str(papers.file("ours.pem"))
        file.write(file.before.replace(f"client_ca = {ours}", f"client_ca = {bundle}"))
        served(mine)  # still signed by somebody who is trusted
        file.write(file.before.replace(f"client_ca = {ours}", f"client_ca = {papers.file('theirs.pem')}"))
        cut(mine, PERMISSION, "REVOKED")
        served(conn)  # has shown a token


def test_B11_a_new_certificate_of_the_daemon(
    rig: Any, door: str, papers: Any, tmp_path: Path
) -> None:
    """Renewed in place: whoever comes sees the new one, whoever is there goes on. A wrong one changes nothing."""
    if door != "tls":
        pytest.skip("certificates are TLS's")
    folder = tmp_path / "papers"
    shutil.copytree(papers.folder, folder)
    address, daemon = rig()
    with Rewritten(daemon) as file, Conn(address) as mine:
        text = file.before.replace(f"{papers.folder}/daemon", f"{folder}/daemon")
        file.write(text)
        with Conn(address) as other:
            first = other.socket.tls.getpeercert(binary_form=True)
        certificate(folder, "daemon", "localhost", "ours")
        file.write(text)
        with Conn(address) as other:
            second = other.socket.tls.getpeercert(binary_form=True)
            served(other)
        assert first and second and first != second
        (folder / "daemon.pem").write_text("no certificate")
        file.write(text, "the configuration stays as it is")
        with Conn(address) as other:
            assert other.socket.tls.getpeercert(binary_form=True) == second
            served(other)
        served(mine)
