"""Prints where the CUDA toolkit is: the compiler, then the folder of the headers. Nothing without.

The environment decides: CUDA_PATH (or CUDA_HOME) where it is set, else the nvcc on PATH. A toolkit
without a header that the backend is compiled against is none.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


HEADERS = ("cuda.h", "cublasLt.h")


def candidates() -> list[Path]:
    roots = [Path(os.environ[name]) for name in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(name)]
    nvcc = shutil.which("nvcc")
    if nvcc:
        roots += [Path(nvcc).parent.parent, Path(nvcc).resolve().parent.parent]
    return roots


def main() -> int:
    for root in candidates():
        nvcc, include = root / "bin" / "nvcc", root / "include"
        if nvcc.is_file() and all((include / name).is_file() for name in HEADERS):
            print(nvcc)
            print(include)
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
