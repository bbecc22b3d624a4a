"""unpack_ggml.py PACKAGE.tar.gz FOLDER: the ggml that the source package of llama-cpp-python contains."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

INSIDE = "/vendor/llama.cpp/ggml/"


def main() -> int:
    package, folder = sys.argv[1:]
    found = 0
    with tarfile.open(package) as tar:
        for member in tar:
            _, inside, name = member.name.partition(INSIDE)
            if not inside or not name or not member.isfile():
                continue
            content = tar.extractfile(member)
            target = Path(folder) / name
            if content is None or ".." in target.parts:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.read())
            found += 1
    if found == 0:
        print(f"{package} contains no ggml", file=sys.stderr)
        return 1
    # The package leaves this template out, and ggml's build does not go on without it.
    (Path(folder) / "ggml.pc.in").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
