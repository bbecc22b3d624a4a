"""systemd in a container (systemd-nspawn --boot) over an overlay of this machine's own root: what is written there
goes with it, nothing here changes. Mounts are made in a mount namespace of its own and vanish with the process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

BOOT_S = 60.0
TARGET = "headrace-test.target"
# $1: a folder for the tmpfs, $2: what goes over the root, $3: the name of the machine; then control groups for it:
# systemd-nspawn makes others below those that it is in, and leaves them.
SCRIPT = """
set -e
for group in "$@"; do
        case "$group" in /sys/fs/cgroup/*) mkdir "$group" && echo $$ >"$group/cgroup.procs" ;; esac
done
mount -t tmpfs -o mode=755 headrace-test "$1"
mkdir "$1/upper" "$1/work" "$1/whole"
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" headrace-test "$1/whole"
rm -f "$1/whole/etc/machine-id"
cp -a "$2/." "$1/whole/"
chmod 755 "$1/whole"  # as a root is, whatever the folder was
exec systemd-nspawn --quiet --register=no --keep-unit --private-network --console=pipe --machine="$3" \\
        --directory="$1/whole" --boot systemd.unit=headrace-test.target systemd.firstboot=off
"""


def why_not() -> str:
    """Why it cannot be had here; empty where it can be tried."""
    if os.geteuid() != 0:
        return "only root can boot a container"
    for program in ("systemd-nspawn", "unshare", "nsenter"):
        if shutil.which(program) is None:
            return f"there is no {program} (packages systemd-container, util-linux)"
    if not Path("/lib/systemd/systemd").exists():
        return "there is no systemd to boot"
    return ""


def own_cgroups() -> list[Path]:
    """The groups of this process in the hierarchies that systemd uses."""
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, name, path = line.split(":", 2)
        folders = ["unified", ""] if number == "0" else ["systemd"] if name == "name=systemd" else []
        groups = [Path("/sys/fs/cgroup") / folder / path.lstrip("/") for folder in folders]
        found += [group for group in groups if (group / "cgroup.procs").exists()][:1]
    return found


class NoContainer(Exception):
    """It does not boot; the words hold what it said."""


class Container:
    def __init__(self, stage: Path) -> None:
        """stage: files that go over the root of the container."""
        etc = stage / "etc"
        (etc / "systemd" / "system").mkdir(parents=True, exist_ok=True)
        (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
        (etc / "systemd" / "system" / TARGET).write_text(
            "[Unit]\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n"
        )
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-container-"))
        self._log = self._folder / "log"
        (self._folder / "top").mkdir()
        machine = f"headrace-{os.getpid()}"
        self._groups = [group / machine for group in own_cgroups()]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh",
                 self._folder / "top", stage, machine, *self._groups],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._init = 0
        try:
            self._wait_booted()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Container:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def root(self) -> Path:
        """Its root, as this machine sees it: sockets below it can be connected to."""
        return Path(f"/proc/{self._init}/root")

    def _wait_booted(self) -> None:
        end = time.monotonic() + BOOT_S
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise NoContainer(self._log.read_text("utf-8", "replace")[-2000:])
            with contextlib.suppress(OSError):
                for child in children.read_text().split():
                    if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                        self._init = int(child)
            if self._init and self.systemctl("is-active", TARGET, check=False).strip() == "active":
                return
            time.sleep(0.05)
        raise NoContainer(f"not booted after {BOOT_S:.0f} s: {self._log.read_text()[-2000:]}")

    def run(self, *words: object, check: bool = True) -> str:
        """A command in it; its output. AssertionError where it fails, unless check says otherwise."""
        answer = subprocess.run(
            ["nsenter", "--target", str(self._init), "--mount", "--uts", "--ipc", "--net", "--pid",
             "--", *map(str, words)],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        said = answer.stdout + answer.stderr
        assert not check or answer.returncode == 0, f"{words}: {said}\n{self.journal()[-4000:]}"
        return said

    def systemctl(self, *words: object, check: bool = True) -> str:
        return self.run("systemctl", *words, check=check)

    def show(self, unit: str, name: str) -> str:
        return self.systemctl("show", "--property", name, "--value", unit).strip()

    def journal(self, unit: str = "headrace.service") -> str:
        return subprocess.run(
            ["nsenter", "--target", str(self._init), "--mount", "--pid", "--", "journalctl",
             "--no-pager", "--output=cat", "--unit", unit],
            capture_output=True, text=True, check=False,
        ).stdout  # fmt: skip

    def write(self, path: str, text: str) -> None:
        whole = self.root / path.lstrip("/")
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_text(text)

    def wait(self, what: str, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"{what}\n{self.journal()[-4000:]}"
            time.sleep(0.02)

    def signal(self, number: int, unit: str = "headrace.service") -> None:
        """To the main process of a service."""
        self.systemctl("kill", f"--signal={signal.Signals(number).name}", "--kill-who=main", unit)

    def close(self) -> None:
        """Its init is killed, and with it all that is in it."""
        for pid in (self._init, 0 if self._init else self._process.pid):
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for group in self._groups:
            for folder, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        shutil.rmtree(self._folder, ignore_errors=True)
