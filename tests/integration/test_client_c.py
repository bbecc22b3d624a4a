"""The C client library against a real daemon: tests/client/live.c, a test at a time, over Unix and
TCP; and what is installed of it: header, symbols, pkg-config file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_daemon import Daemon, build_folder, device

ROOT = Path(__file__).resolve().parents[2]
DEVICES = (
    device("cpu0", backend="cpu", threads=1, memory="isolated"),
    device("host", backend="cpu", threads=1),
)


def program() -> Path:
    found = build_folder() / "tests" / "client" / "client_c_live"
    if not found.exists():  # a build of the daemon alone
        pytest.skip(f"no {found}")
    return found


@pytest.fixture(scope="module")
def few_graphs() -> Iterator[Daemon]:
    """A daemon that keeps four graphs of a session."""
    with Daemon(devices=DEVICES, tcp=True, sections={"limits": {"session_graphs": 4}}) as daemon:
        yield daemon


def live_tests() -> list[str]:
    source = (ROOT / "tests" / "client" / "live.c").read_text()
    return [
        line.split("(")[1].split(")")[0].split(",")[0]
        for line in source.splitlines()
        if line.startswith(("HR_TEST(", "HR_TEST_LIMIT("))
    ]


@pytest.mark.parametrize("name", live_tests())
@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_live(few_graphs: Daemon, kind: str, name: str) -> None:
    address = few_graphs.address if kind == "unix" else few_graphs.tcp_address
    assert address is not None
    done = subprocess.run(
        [program(), name],
        env={**os.environ, "HEADRACE_TEST_ADDRESS": address},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 0 failed, 0 skipped" in done.stdout


def test_only_the_public_names_leave_the_library() -> None:
    library = build_folder() / "client" / "c" / "libheadrace-client.so.0"
    assert library.exists()
    shown = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    names = {line.split()[-1].split("@")[0] for line in shown if " T " in line}
    header = (ROOT / "client" / "c" / "headrace.h").read_text()
    assert names and all(name.startswith("headrace_") for name in names)
    assert all(f"{name}(" in header for name in names)


def test_installed_header_and_pkg_config_build_a_program(tmp_path: Path) -> None:
    """From an installation alone: a C and a C++ program."""
    stage = tmp_path / "stage"
    subprocess.run(
        ["meson", "install", "-C", build_folder(), "--no-rebuild", "--destdir", stage, "--quiet"],
        check=True,
        capture_output=True,
        env={**os.environ, "PATH": "/usr/bin:/bin:" + os.environ.get("PATH", "")},
    )
    found = list(stage.rglob("libheadrace-client.pc"))
    assert len(found) == 1
    prefix = next(
        line.partition("=")[2] for line in found[0].read_text().splitlines()
        if line.startswith("prefix=")
    )  # fmt: skip
    pkg_config = ["pkg-config", f"--define-variable=prefix={stage}{prefix}"]
    flags = subprocess.run(
        [*pkg_config, "--cflags", "--libs", "libheadrace-client"],
        env={**os.environ, "PKG_CONFIG_PATH": str(found[0].parent)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    text = '#include <headrace.h>\nint main(void) { return headrace_version()[0] == 0; }\n'
    for compiler, suffix in (("cc", "c"), ("c++", "cc")):
        if shutil.which(compiler) is None:
            continue
        source = tmp_path / f"program.{suffix}"
        source.write_text(text)
        done = tmp_path / f"program-{suffix}"
        subprocess.run([compiler, source, "-o", done, *flags], check=True)
        library = next(stage.rglob("libheadrace-client.so.0")).parent
        subprocess.run([done], check=True, env={**os.environ, "LD_LIBRARY_PATH": str(library)})
