"""Where a machine that nobody prepared keeps the libraries and tools of CUDA."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

# What the backend opens at run time.
OPENED = ("libcuda.so.1", "libcublasLt.so.13")


def toolkit_folders() -> list[Path]:
    """Of CUDA_PATH, CUDA_HOME, nvcc on PATH, and where it is usually put."""
    found = [Path(os.environ[name]) for name in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(name)]
    nvcc = shutil.which("nvcc")
    if nvcc:
        found.append(Path(nvcc).resolve().parents[1])
    for parent in (Path("/usr/local"), Path("/opt")):
        found += sorted(parent.glob("cuda*"), reverse=True)
    return found


def given_folders() -> list[Path]:
    return [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]


def library_folders() -> list[Path]:
    """Folders that may hold them, the more likely ones first."""
    found = []
    for toolkit in toolkit_folders():
        found += [toolkit / "lib64", toolkit / "lib", toolkit / "targets" / "x86_64-linux" / "lib"]
    # The wheels that PyTorch brings along.
    sites = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path}
    for site in sorted(Path(site) for site in sites if site):
        found += sorted(site.glob("nvidia/*/lib"))
    found += [Path("/usr/local/nvidia/lib64"), Path("/usr/local/nvidia/lib")]
    return found


def known_to_the_loader() -> str:
    """What ldconfig lists, where there is one."""
    program = shutil.which("ldconfig") or shutil.which("ldconfig", path="/usr/sbin:/sbin")
    if not program:
        return ""
    return subprocess.run([program, "-p"], capture_output=True, text=True, check=False).stdout


def find_libraries() -> dict[str, str]:
    """Library -> its folder, "the loader's" where it is found anyway, or "nowhere"."""
    loader, given = known_to_the_loader(), given_folders()
    found = {}
    for name in OPENED:
        holding = [folder for folder in (*given, *library_folders()) if (folder / name).exists()]
        if f"{name} " in loader and not (holding and holding[0] in given):
            found[name] = "the loader's"
        else:
            found[name] = str(holding[0]) if holding else "nowhere"
    return found


def find_sanitizer() -> str | None:
    program = shutil.which("compute-sanitizer")
    if program:
        return program
    for toolkit in toolkit_folders():
        for place in ("bin", "compute-sanitizer"):
            candidate = toolkit / place / "compute-sanitizer"
            if candidate.is_file() and os.access(candidate, os.X_OK):
                return str(candidate)
    return None


def environment(root: Path) -> dict[str, str]:
    """Of every stage. The bundle's libraries are for its programs alone: the interpreter has its own."""
    outside = [folder for folder in find_libraries().values() if folder.startswith("/")]
    libraries = dict.fromkeys([str(root / "lib"), *outside, *map(str, given_folders())])
    paths = [root / "site", root / "client" / "python", root / "tests" / "gpu"]
    env = {
        **os.environ,
        "PYTHONPATH": ":".join(
            [*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HEADRACE_BUILD": str(root / "build"),
        "HEADRACE_TEST_LIBRARIES": ":".join(libraries),
        "HEADRACE_TEST_BACKEND": "cuda",
        "HEADRACE_TEST_GPUS": "1",
    }
    model = root / "model" / "model.gguf"
    if model.exists():
        env["HEADRACE_MODEL"] = str(model)
    peer = root / "llama" / "llama_gpu_peer"
    if peer.exists():
        env["HEADRACE_LLAMA_BENCH"] = str(peer)
    return env
