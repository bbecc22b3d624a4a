"""The C client library against a real daemon: tests/client/live.c, a test at a time, over Unix, TCP and
TLS; tests/client/secure.c; and what is installed of it: header, symbols, pkg-config file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from papers import Papers, make_papers, openssl
from run_daemon import Daemon, build_folder, device, held_port
from test_client_uploads import LEAF, Relay

ROOT = Path(__file__).resolve().parents[2]
DEVICES = (
    device("cpu0", backend="cpu", threads=1, memory="isolated"),
    device("host", backend="cpu", threads=1),
)


TOKEN = "a token of the tests"
# In the long form, which takes half an hour, the clients may be paused.
HELLO_TIMEOUT = "600s" if "HEADRACE_FULL" in os.environ else "5s"


def program(name: str) -> Path:
    found = build_folder() / "tests" / "client" / f"client_c_{name}"
    if not found.exists():  # a build of the daemon alone
        pytest.skip(f"no {found}")
    return found


@pytest.fixture(scope="module")
def few_graphs() -> Iterator[Daemon]:
    """A daemon that keeps four graphs of a session."""
    limits = {"session_graphs": 4, "hello_timeout": HELLO_TIMEOUT}
    with Daemon(devices=DEVICES, tcp=True, sections={"limits": limits}) as daemon:
        yield daemon


@dataclass(frozen=True)
class Secure:
    daemon: Daemon
    address: str
    papers: Papers


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """The same over TLS, for whoever has the token or the certificate `known`."""
    papers = make_papers(tmp_path_factory.mktemp("papers"))
    file = papers.file
    file("both.pem").write_text(file("known.pem").read_text() + file("known.key").read_text())
    openssl("ec", "-in", file("known.key"), "-aes128", "-passout", "pass:phrase",
            "-out", file("locked.key"))  # fmt: skip
    port = held_port()
    sections: dict[str, dict[str, object]] = {
        "listen": {"tls": f"127.0.0.1:{port}"},
        "limits": {
            "session_graphs": 4,
            "refusal_delay": "5ms",
            "hello_timeout": HELLO_TIMEOUT,
        },
        "tls": {
            "certificate": file("daemon.pem"),
            "key": file("daemon.key"),
            "client_ca": file("ours.pem"),
        },
        "principal by-token": {"token_sha256": hashlib.sha256(TOKEN.encode()).hexdigest()},
        "principal by-certificate": {
            "certificate": "known client",
            "permissions": "run, load, admin",
        },
    }
    with Daemon(devices=DEVICES, tcp=True, sections=sections) as daemon:
        yield Secure(daemon, f"tls:localhost:{port}", papers)


def names_in(name: str) -> list[str]:
    source = (ROOT / "tests" / "client" / f"{name}.c").read_text()
    return [
        line.split("(")[1].split(")")[0].split(",")[0]
        for line in source.splitlines()
        if line.startswith(("HR_TEST(", "HR_TEST_LIMIT("))
    ]


# What is freed is not counted as in use.
NO_CACHES = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0"}


def run_test(name: str, test: str, variables: dict[str, str]) -> None:
    done = subprocess.run(
        [program(name), test],
        env={**os.environ, **NO_CACHES, **variables},
        capture_output=True,
        text=True,
        timeout=7200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 0 failed, 0 skipped" in done.stdout


@pytest.mark.parametrize("name", names_in("live"))
@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_live(few_graphs: Daemon, kind: str, name: str) -> None:
    address = few_graphs.address if kind == "unix" else few_graphs.tcp_address
    assert address is not None
    run_test("live", name, {"HEADRACE_TEST_ADDRESS": address})


@pytest.mark.parametrize("name", names_in("live"))
def test_live_over_tls(secure: Secure, name: str) -> None:
    file = secure.papers.file
    variables = {
        "HEADRACE_TEST_ADDRESS": secure.address,
        "HEADRACE_TEST_CA": str(file("ours.pem")),
        "HEADRACE_TEST_CERTIFICATE": str(file("known.pem")),
        "HEADRACE_TEST_KEY": str(file("known.key")),
    }
    run_test("live", name, variables)


@pytest.mark.parametrize("name", names_in("secure"))
def test_secure(secure: Secure, name: str) -> None:
    assert secure.daemon.tcp_address is not None
    variables = {
        "HEADRACE_TEST_ADDRESS": secure.address,
        "HEADRACE_TEST_PLAIN": secure.daemon.tcp_address,
        "HEADRACE_TEST_PAPERS": str(secure.papers.folder),
        "HEADRACE_TEST_TOKEN": TOKEN,
    }
    run_test("secure", name, variables)


def test_an_upload_goes_on_by_itself(few_graphs: Daemon) -> None:
    """Each connection breaks after a leaf and a half of the contents' five."""
    assert few_graphs.tcp_address is not None
    relay = Relay(few_graphs.tcp_address, LEAF + LEAF // 2)
    # What else the test does over a connection is more than that.
    done = subprocess.run(
        [program("live"), "an_upload_over_connections_that_break"],
        env={**os.environ, "HEADRACE_TEST_RELAY": relay.address,
             "HEADRACE_TEST_ADDRESS": few_graphs.address},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    relay.close()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 0 failed, 0 skipped" in done.stdout
    assert 5 * LEAF <= relay.passed < 8 * LEAF


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


@pytest.mark.skipif(
    bool(os.environ.get("HEADRACE_SANITIZED")),
    reason="a program without a sanitizer cannot load a library that has one",
)
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
    needed = subprocess.run(
        [*pkg_config, "--print-requires-private", "libheadrace-client"],
        env={**os.environ, "PKG_CONFIG_PATH": str(found[0].parent)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert needed == ["libssl", "libcrypto"]
    flags = subprocess.run(
        [*pkg_config, "--cflags", "--libs", "libheadrace-client"],
        env={**os.environ, "PKG_CONFIG_PATH": str(found[0].parent)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert "-lheadrace-client" in flags and "-lssl" not in flags
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
