"""The Debian packages and the wheel in a clean system: built, installed, started, used, removed.

The long form of ./check: it compiles everything and fetches a system of Debian's, once, which is kept
in the cache beside the model.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from test_lists import RUN

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
SYSTEM = "bookworm"
MIRROR = "http://deb.debian.org/debian"
INSIDE = ("python3-numpy", "python3-protobuf", "python3-pip", "gcc", "libc6-dev", "pkg-config")
C_PROGRAM = """
#include <headrace.h>
#include <stdio.h>
int main(void) { return printf("%s\\n", headrace_version()) < 0; }
"""

pytestmark = pytest.mark.skipif(
    not os.environ.get("HEADRACE_FULL"), reason="the long form: ./check --full"
)


def need(*programs: str) -> None:
    missing = [name for name in programs if not shutil.which(name)]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(programs)}; missing: {', '.join(missing)}")


def call(command: Sequence[str | Path], **keys: object) -> str:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **keys
    )  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}:\n{done.stdout[-8000:]}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def debs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("dpkg-buildpackage", "dh", "debootstrap", "lintian")
    out = tmp_path_factory.mktemp("deb")
    environment = {k: v for k, v in os.environ.items() if k not in ("CC", "CFLAGS")}
    call([ROOT / "systemd" / "build-deb", out], env=environment)
    return out


class Root:
    """A folder that is a system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def inside(self, *command: str) -> list[str]:
        return ["chroot", str(self.folder), "/usr/bin/env", "-i",
                "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/srv", "LC_ALL=C.UTF-8",
                "DEBIAN_FRONTEND=noninteractive", *command]  # fmt: skip

    def call(self, *command: str) -> str:
        return call(self.inside(*command))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    kept = CACHE / f"system-{SYSTEM}.tar"
    folder = tmp_path_factory.mktemp("root") / "system"
    if kept.exists():
        folder.mkdir()
        call(["tar", "-xpf", kept, "-C", folder])
    else:
        need("debootstrap")
        call(["debootstrap", "--variant=minbase", SYSTEM, folder, MIRROR])
        made = Root(folder)
        made.call("apt-get", "-q", "-y", "--no-install-recommends", "install", *INSIDE)
        made.call("apt-get", "clean")
        CACHE.mkdir(parents=True, exist_ok=True)
        call(["tar", "-cpf", f"{kept}.new", "-C", folder, "."])
        Path(f"{kept}.new").rename(kept)
    # Nothing is started by being installed.
    policy = folder / "usr" / "sbin" / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    yield Root(folder)
    shutil.rmtree(folder, ignore_errors=True)


def test_lintian(debs: Path) -> None:
    """Neither errors nor warnings."""
    found = subprocess.run(
        ["lintian", "--tag-display-limit", "0", "--allow-root",
         *(f for f in debs.glob("*.deb") if "dbgsym" not in f.name)],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    bad = [line for line in found.splitlines() if line.startswith(("E:", "W:"))]
    assert bad == []


def test_installed_started_used_and_removed(debs: Path, wheel: Path, root: Root) -> None:
    ours = root.folder / "srv"
    files = [f for f in debs.glob("*.deb") if "dbgsym" not in f.name]
    for file in (*files, wheel):
        shutil.copy(file, ours)
    root.call("apt-get", "-q", "update")
    root.call("apt-get", "-q", "-y", "--no-install-recommends", "install",
              *(f"/srv/{f.name}" for f in files))  # fmt: skip
    assert root.call("headraced", "--check-config", "--config", "/etc/headrace/headrace.conf")
    account = root.call("getent", "passwd", "headrace").split(":")
    assert account[5] == "/var/lib/headrace"
    root.call("dpkg", "--verify", "headrace", "libheadrace-client0", "libheadrace-client-dev")

    root.call("pip", "install", "-q", "--no-index", "--no-deps", "--break-system-packages",
              f"/srv/{wheel.name}")  # fmt: skip
    root.call("pip", "check")
    use_the_daemon(root)
    use_the_library(root)

    root.call("apt-get", "-q", "-y", "purge", "headrace", "libheadrace-client0")
    assert not (root.folder / "usr/bin/headraced").exists()
    assert not (root.folder / "etc/headrace/headrace.conf").exists()


def use_the_daemon(root: Root) -> None:
    """As its own user, by the installed configuration; a graph from the wheel's client."""
    address = "/run/headrace-test/headrace.sock"
    root.call("install", "-d", "-o", "headrace", "-g", "headrace", "/run/headrace-test")
    start = root.inside("setpriv", "--reuid=headrace", "--regid=headrace", "--clear-groups",
                        "/usr/bin/headraced", "--config", "/etc/headrace/headrace.conf",
                        "--set", f"listen.unix={address}")  # fmt: skip
    log = root.folder / "srv" / "log"
    with log.open("wb") as output:
        daemon = subprocess.Popen(start, stdout=output, stderr=output)
    try:
        end = time.monotonic() + 20
        while not (root.folder / address.lstrip("/")).exists():
            assert daemon.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        said = root.call("python3", "-c", RUN, f"unix:{address}")
        where, *values = said.split()
        assert where.startswith("/usr/local/lib/python3") and values == ["0.0", "1.0", "4.0", "9.0"]
        listed = root.call("headrace", "--connect", f"unix:{address}", "devices")
        assert "threads" in listed
        status = root.call("headracectl", "--connect", f"unix:{address}", "status")
        assert "serving" in status, status
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(30) == 0, log.read_text()
    finally:
        if daemon.poll() is None:
            daemon.kill()
            daemon.wait()


def use_the_library(root: Root) -> None:
    """A program that is compiled against the installed header and library."""
    (root.folder / "srv" / "use.c").write_text(C_PROGRAM)
    flags = root.call("pkg-config", "--cflags", "--libs", "libheadrace-client").split()
    root.call("gcc", "-o", "/srv/use", "/srv/use.c", *flags)
    assert root.call("/srv/use").strip() == "0.1.0"
