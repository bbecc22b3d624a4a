"""ggml as a peer: where it lies, and programs compiled against it.

HEADRACE_GGML names a folder with a ggml that has been built: its headers, ggml-backend-impl.h among
them, and its libraries lie somewhere below it. ./bench makes one, or takes what `--ggml` names.
Without it the rows that have it as their peer stay without.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from run_daemon import build_folder

NAME = "ggml"
HERE = Path(__file__).parent


def folder_of(name: str) -> Path:
    prefix = os.environ["HEADRACE_GGML"]
    found = sorted(Path(prefix).rglob(name))
    if not found:
        raise OSError(f"no {name} below {prefix}")
    return found[0].parent


def build(program: str, libraries: tuple[str, ...]) -> str | None:
    """Compiles PROGRAM.c of this folder; its path, or None without ggml, which is said."""
    if not os.environ.get("HEADRACE_GGML"):
        print(f"no ggml: rows without {NAME} as their peer", file=sys.stderr)
        return None
    target = build_folder() / "bench" / program
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["cc", "-O2", "-std=gnu17", "-o", str(target), str(HERE / f"{program}.c")]
    for header in ("ggml.h", "ggml-backend-impl.h"):
        command.append(f"-I{folder_of(header)}")
    for library in libraries:
        folder = folder_of(f"lib{library}.so")
        command += [f"-L{folder}", f"-l{library}", f"-Wl,-rpath,{folder}"]
        command.append(f"-Wl,-rpath-link,{folder}")
    subprocess.run(command, check=True)
    return str(target)
