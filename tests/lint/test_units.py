"""The units: systemd finds no fault with them, and they leave the daemon little to do harm with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "systemd"

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd-analyze here"
)


def analyze(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *map(str, words)], capture_output=True, text=True, check=False
    )


def service(folder: Path, drop_in: Path | None = None) -> Path:
    """The unit as it is installed, with a program that exists."""
    text = (UNITS / "headrace.service.in").read_text()
    text = text.replace("@bindir@/headraced", "/bin/true").replace("@sysconfdir@", "/etc")
    assert "@" not in re.sub(r"(?m)^#.*$|@[a-z-]+", "", text)
    path = folder / "headrace.service"
    path.write_text(text + (drop_in.read_text() if drop_in else ""))
    shutil.copy(UNITS / "headrace.socket", folder)
    return path


def test_verify(tmp_path: Path) -> None:
    path = service(tmp_path)
    answer = analyze("verify", "--man=no", path, tmp_path / "headrace.socket")
    complaints = [line for line in answer.stderr.splitlines() if "headrace" in line]
    assert answer.returncode == 0 and complaints == []


@pytest.mark.parametrize(("drop_in", "most"), [(None, 1.2), ("credentials.conf", 1.2), ("nvidia.conf", 2.0)])
def test_exposure(tmp_path: Path, drop_in: str | None, most: float) -> None:
    path = service(tmp_path, UNITS / drop_in if drop_in else None)
    answer = analyze("security", "--offline=true", "--no-pager", path)
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", answer.stdout)
    assert found is not None, answer.stderr
    assert float(found.group(1)) <= most


def test_the_socket_outlives_a_restart() -> None:
    """A socket inside the daemon's runtime directory would vanish with it."""
    unit = (UNITS / "headrace.socket").read_text()
    path = re.search(r"(?m)^ListenStream=(.+)$", unit)
    directory = re.search(
        r"(?m)^RuntimeDirectory=(.+)$", (UNITS / "headrace.service.in").read_text()
    )
    assert path is not None and directory is not None
    assert os.path.dirname(path.group(1)) != f"/run/{directory.group(1)}"


def test_the_manager_waits_longer_than_the_drain() -> None:
    limits = (ROOT / "daemon" / "limits.h").read_text()
    drain = re.search(r"HR_DEFAULT_DRAIN_TIMEOUT_MS UINT64_C\((\d+)\)", limits)
    stop = re.search(r"(?m)^TimeoutStopSec=(\d+)s$", (UNITS / "headrace.service.in").read_text())
    assert drain is not None and stop is not None
    assert int(stop.group(1)) * 1000 > int(drain.group(1))
