"""What would be installed is what the Debian packages list, and the wheel has what a client needs."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from run_daemon import Daemon, build_folder, device

ROOT = Path(__file__).resolve().parents[2]
DEBIAN = ROOT / "systemd" / "debian"
# Where the rules of the package put what Meson installs elsewhere.
MOVED = {"usr/lib/systemd/": "lib/systemd/"}
LIBRARIES = "lib/x86_64-linux-gnu"
RUN = """
import sys, numpy as np, headrace
graph = headrace.Graph()
x = graph.input("x", (4,))
graph.output(graph.sqr(x), "y")
with headrace.connect(sys.argv[1]) as client:
    print(headrace.__file__, *client.submit(graph).run({"x": np.arange(4, dtype=np.float32)})["y"])
"""


def installed() -> set[str]:
    """Destinations of `meson install`, as a package has them."""
    folder = build_folder()
    text = subprocess.run(
        ["meson", "introspect", folder, "--installed", "--buildoptions"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    told = json.loads(text)
    options = {option["name"]: option["value"] for option in told["buildoptions"]}
    if any(options[name] == "disabled" for name in ("systemd", "http")):
        pytest.skip("this build lacks what the packages have")
    prefix, paths = options["prefix"], set()
    for path in told["installed"].values():
        if path.startswith(prefix):
            path = "/usr" + path.removeprefix(prefix)
        path = path.replace("/usr/etc/", "/etc/").lstrip("/")
        for here, there in MOVED.items():
            path = there + path.removeprefix(here) if path.startswith(here) else path
        # Meson's own folder of libraries differs between systems; the packages name theirs.
        paths.add(path.replace(f"usr/{options['libdir']}/", f"usr/{LIBRARIES}/"))
    library = f"usr/{LIBRARIES}/libheadrace-client.so"
    assert any(path.startswith(library) for path in paths)
    # Links come with the library; Meson does not list them.
    return paths | {library, library + ".0"}


def patterns() -> dict[str, str]:
    """Of each line of the packages' lists: whose it is."""
    return {
        line: file.name.removesuffix(".install")
        for file in DEBIAN.glob("*.install")
        for line in file.read_text().split()
    }


def test_every_installed_file_is_in_one_package() -> None:
    lists, files = patterns(), installed()
    for path in sorted(files):
        owners = {
            package
            for pattern, package in lists.items()
            if fnmatch.fnmatch(path, pattern) or fnmatch.fnmatch(path, pattern + "/*")
        }
        assert len(owners) == 1, f"{path}: {owners or 'in no package'}"
    for pattern in lists:
        assert any(
            fnmatch.fnmatch(path, pattern) or fnmatch.fnmatch(path, pattern + "/*")
            for path in files
        ), f"{pattern}: nothing installs it"


def test_versions_are_one() -> None:
    version = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text())
    changelog = re.match(r"headrace \(([^)]+)\)", (DEBIAN / "changelog").read_text())
    project = re.search(r'^version = "([^"]+)"', (ROOT / "client/python/pyproject.toml").read_text(),
                        re.MULTILINE)  # fmt: skip
    assert version and changelog and project
    assert version[1] == changelog[1] == project[1]


def test_a_wheel_in_a_fresh_environment_runs_a_graph(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"headrace/headrace_pb2.py", "headrace/py.typed", "headrace/models/llama.py"} <= names
    assert not [n for n in names if n.startswith(("tests/", "headrace/__pycache__"))]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps"]
    subprocess.run([*pip, "--no-index", wheel], check=True)
    # numpy and protobuf are those of the environment that the tests have.
    import numpy

    with Daemon(devices=(device("host", backend="cpu", threads=1),)) as daemon:
        done = subprocess.run(
            [python, "-c", RUN, daemon.address],
            env={**os.environ, "PYTHONPATH": str(Path(numpy.__file__).parents[1])},
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    where, *values = done.stdout.split()
    assert where.startswith(str(tmp_path / "env")) and values == ["0.0", "1.0", "4.0", "9.0"]
    assert (tmp_path / "env" / "bin" / "headrace").exists()
