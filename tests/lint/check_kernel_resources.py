"""Compares what the CUDA kernels take of the GPU with what they are known to take.

    check_kernel_resources.py [--write] KNOWN BUILT...

BUILT are the build's files (backends/cuda/*.resources), KNOWN is backends/cuda/kernels/resources.txt.
Registers, stack, spills and shared memory decide how many threads a multiprocessor holds, so a change
of one is to be seen in a diff. They depend on nvcc's release: with another one than KNOWN's there is
nothing to compare, and the status is 77. --write makes KNOWN of BUILT. Exit status 1 for a difference.
"""

from __future__ import annotations

import sys
from pathlib import Path


def read(path: Path) -> tuple[str, dict[str, str]]:
    """The line that names the release, and the other lines by kernel and target."""
    first, *lines = path.read_text("utf-8").splitlines()
    return first, dict(line.split(": ", 1) for line in lines)


def differences(known: dict[str, str], built: dict[str, str]) -> list[str]:
    found = []
    for name in sorted(known.keys() | built.keys()):
        if name not in built:
            found.append(f"{name}: is known, and not built")
        elif name not in known:
            found.append(f"{name}: is not known: {built[name]}")
        elif known[name] != built[name]:
            found.append(f"{name}: {built[name]}; known: {known[name]}")
    return found


def main(arguments: list[str]) -> int:
    write = arguments[:1] == ["--write"]
    known_path, *built_paths = map(Path, arguments[1:] if write else arguments)
    built: dict[str, str] = {}
    release = ""
    for path in built_paths:
        release, lines = read(path)
        built |= lines
    if write:
        lines_out = [release, *(f"{name}: {built[name]}" for name in sorted(built))]
        known_path.write_text("".join(line + "\n" for line in lines_out), "utf-8")
        return 0
    known_release, known = read(known_path)
    if release != known_release:
        print(f"skipped: built by {release[2:]}, known of {known_release[2:]}")
        return 77
    found = differences(known, built)
    print("\n".join(found) or f"{len(built)} kernels and targets as known")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
