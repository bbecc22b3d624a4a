"""The include lint finds every forbidden edge in a small tree, and nothing in ours."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import check_includes  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which(os.environ.get("CC", "cc"))

# A tree with one file of each kind, in which every edge is allowed.
CLEAN = {
    "core/base.h": "#pragma once\n#include <stdint.h>\n",
    "core/status.h": '#pragma once\n#include "core/base.h"\n',
    "core/thread.h": "#pragma once\n#include <pthread.h>\n",
    "core/thread.c": '#include "core/thread.h"\n\n#include <sys/mman.h>\n#include <xxhash.h>\n',
    "backends/registry.h": '#pragma once\n#include "core/base.h"\n',
    "backends/registry.c": '#include "backends/registry.h"\n#include "backends/cpu/backend.h"\n',
    "backends/cpu/backend.h": '#pragma once\n#include "core/base.h"\n',
    "backends/cpu/kernel.h": "#pragma once\n",
    "backends/cpu/avx2.c": '#include "backends/cpu/kernel.h"\n#include <immintrin.h>\n',
    "backends/blas/backend.h": "#pragma once\n",
    "backends/blas/gemm.c": "#include <cblas.h>\n",
    "backends/cuda/syms.c": "#include <cuda.h>\n",
    "scheduler/scheduler.h": '#pragma once\n#include "core/status.h"\n',
    "scheduler/plan.h": "#pragma once\n",
    "scheduler/plan.c": '#include "scheduler/plan.h"\n#include "core/thread.h"\n',
    "proto/frame.h": "#pragma once\n",
    "proto/codec.c": '#include <pb_decode.h>\n#include "headrace.pb.h"\n#include "proto/frame.h"\n',
    "daemon/loop.c": "#include <uv.h>\n",
    "daemon/main.c": '#include "scheduler/scheduler.h"\n#include "proto/frame.h"\n',
    "client/c/client.c": '#include "proto/frame.h"\n#include "core/status.h"\n',
    "tests/unit/core/test_x.c": '#include <uv.h>\n#include "scheduler/plan.h"\n',
    **{
        f"{room}/README.md": "One line.\n"
        for room in (
            "core", "backends", "backends/cpu", "backends/blas", "backends/cuda", "scheduler",
            "proto", "daemon", "client/c", "tests",
        )
    },
}  # fmt: skip

FORBIDDEN_EDGES = [
    ("core/thread.c", "scheduler/plan.h"),
    ("core/thread.c", "proto/frame.h"),
    ("core/thread.c", "backends/registry.h"),
    ("backends/cpu/avx2.c", "backends/blas/backend.h"),
    ("backends/cpu/avx2.c", "backends/registry.h"),
    ("backends/cpu/avx2.c", "scheduler/scheduler.h"),
    ("backends/blas/gemm.c", "backends/cpu/kernel.h"),
    ("backends/registry.c", "backends/cpu/kernel.h"),
    ("backends/registry.c", "scheduler/scheduler.h"),
    ("scheduler/plan.c", "backends/cpu/backend.h"),
    ("scheduler/plan.c", "backends/registry.h"),
    ("scheduler/plan.c", "proto/frame.h"),
    ("proto/codec.c", "scheduler/scheduler.h"),
    ("proto/codec.c", "backends/registry.h"),
    ("daemon/main.c", "scheduler/plan.h"),
    ("daemon/main.c", "backends/cpu/backend.h"),
    ("client/c/client.c", "core/thread.h"),
    ("client/c/client.c", "scheduler/scheduler.h"),
]

FORBIDDEN_EXTERNALS = [
    ("scheduler/plan.c", "pthread.h"),
    ("backends/cpu/avx2.c", "pthread.h"),
    ("daemon/main.c", "pthread.h"),
    ("scheduler/plan.c", "xxhash.h"),
    ("daemon/main.c", "pb_decode.h"),
    ("core/thread.c", "pb.h"),
    ("core/thread.c", "uv.h"),
    ("proto/codec.c", "uv.h"),
    ("daemon/main.c", "uv.h"),
    ("backends/cpu/avx2.c", "cblas.h"),
    ("scheduler/plan.c", "cuda.h"),
    ("backends/cpu/avx2.c", "cuda_runtime.h"),
    ("proto/codec.c", "ini.h"),
    ("core/thread.c", "openssl/sha.h"),
    ("daemon/main.c", "zlib.h"),
]


def write_tree(root: Path, changes: dict[str, str | None] | None = None) -> Path:
    for path, text in {**CLEAN, **(changes or {})}.items():
        if text is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
    return root


def findings(root: Path) -> list[tuple[str, str]]:
    return [(f.path, f.rule) for f in check_includes.check_tree(root, None, None)]


def with_line(path: str, line: str) -> dict[str, str | None]:
    return {path: CLEAN[path] + line + "\n"}


def test_clean_tree_has_no_finding(tmp_path: Path) -> None:
    assert findings(write_tree(tmp_path)) == []


@pytest.mark.parametrize(("path", "header"), FORBIDDEN_EDGES)
def test_forbidden_edge_is_found(tmp_path: Path, path: str, header: str) -> None:
    write_tree(tmp_path, with_line(path, f'#include "{header}"'))
    assert findings(tmp_path) == [(path, "edge")]


@pytest.mark.parametrize(("path", "header"), FORBIDDEN_EXTERNALS)
def test_foreign_library_is_found(tmp_path: Path, path: str, header: str) -> None:
    write_tree(tmp_path, with_line(path, f"#include <{header}>"))
    assert findings(tmp_path) == [(path, "external")]


def test_generated_header_belongs_to_proto(tmp_path: Path) -> None:
    write_tree(tmp_path, with_line("daemon/main.c", '#include "proto/headrace.pb.h"'))
    assert findings(tmp_path) == [("daemon/main.c", "external")]


def test_library_reached_through_our_header_is_a_leak(tmp_path: Path) -> None:
    changes = {"proto/message.h": "#pragma once\n#include <pb.h>\n"}
    write_tree(tmp_path, changes | with_line("daemon/main.c", '#include "proto/message.h"'))
    assert findings(tmp_path) == [("daemon/main.c", "leak")]


@pytest.mark.parametrize("line", ['#include "thread.h"', '#include "core/absent.h"'])
def test_quoted_header_is_a_path_from_the_root(tmp_path: Path, line: str) -> None:
    write_tree(tmp_path, with_line("core/thread.c", line))
    assert findings(tmp_path) == [("core/thread.c", "root")]


def test_parent_folder_in_a_path_is_found(tmp_path: Path) -> None:
    write_tree(tmp_path, with_line("scheduler/plan.c", '#include "scheduler/../core/base.h"'))
    assert findings(tmp_path) == [("scheduler/plan.c", "root")]


def test_our_header_in_angle_brackets_is_found(tmp_path: Path) -> None:
    write_tree(tmp_path, with_line("scheduler/plan.c", "#include <core/base.h>"))
    assert findings(tmp_path) == [("scheduler/plan.c", "root")]


def test_own_header_comes_first(tmp_path: Path) -> None:
    write_tree(
        tmp_path, {"scheduler/plan.c": '#include "core/base.h"\n#include "scheduler/plan.h"\n'}
    )
    assert findings(tmp_path) == [("scheduler/plan.c", "own-first")]


def test_code_outside_every_room_is_found(tmp_path: Path) -> None:
    write_tree(tmp_path, {"extra/x.c": "#include <stdio.h>\n"})
    assert findings(tmp_path) == [("extra/x.c", "edge")]


def test_readme_missing_or_too_long_is_found(tmp_path: Path) -> None:
    write_tree(tmp_path, {"core/README.md": None, "proto/README.md": "line\n" * 151})
    assert findings(tmp_path) == [("core/README.md", "readme"), ("proto/README.md", "readme")]


def test_path_of_one_machine_is_found(tmp_path: Path) -> None:
    place = check_includes.PLACES[0]
    write_tree(tmp_path, {"daemon/notes.txt": f"see {place}x\n"})
    assert findings(tmp_path) == [("daemon/notes.txt", "place")]


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_header_that_needs_another_first_is_found(tmp_path: Path) -> None:
    tree = {"core/base.h": "#pragma once\n", "core/late.h": "#pragma once\nuint8_t x(void);\n"}
    for path, text in tree.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "core/README.md").write_text("One line.\n")
    found = check_includes.check_tree(tmp_path, COMPILER, None)
    assert [(f.path, f.rule) for f in found] == [("core/late.h", "alone")]


def test_our_tree() -> None:
    build = os.environ.get("HEADRACE_LINT_BUILD")
    found = check_includes.check_tree(ROOT, COMPILER, Path(build) if build else None)
    assert not found, "\n".join(map(str, found))
