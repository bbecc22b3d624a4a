"""Unit tests of the client, without a daemon. Makes the package importable as it lies."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
for folder in (HERE, ROOT / "client" / "python"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
