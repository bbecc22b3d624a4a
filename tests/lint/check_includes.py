"""The include lint: who may include whom, and a few rules that keep the tree as it was drawn.

    python tests/lint/check_includes.py [--root DIR] [--build DIR] [--no-compile]

One line per finding, `file:line: rule: words`; exit status 1 when there is any. The rules:

  edge       a room includes only the rooms below it (the table ROOMS)
  external   a library's header is used by its one room, or file, only (the table EXTERNAL); headers that are
             neither of the language, the system, the compiler nor in that table are not known
  leak       a room does not reach another room's library through a header of ours (table LEAKS)
  root       our headers are named from the root, and exist
  own-first  foo.c includes its own foo.h, or foo_priv.h, before anything else
  alone      every header compiles by itself (needs a C compiler; generated ones need --build)
  place      no file names a path of one machine
  readme     every room has a README.md of at most 150 lines
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path


@dataclass(frozen=True)
class Room:
    name: str
    files: tuple[str, ...]  # globs over paths from the root; `*` crosses slashes
    may_include: tuple[str, ...]  # globs over the paths of our headers
    readme: str | None = None


# The first room whose globs match owns the file.
ROOMS = (
    Room("core", ("core/*",), ("core/*",), "core"),
    Room(
        "backends/registry",
        ("backends/registry.*",),
        ("backends/registry.h", "core/*", "backends/*/backend.h"),
        "backends",
    ),
    # Any folder of backends/ is a room of its own: {0} is its name.
    Room("backends/<one>", ("backends/*/*",), ("core/*", "backends/{0}/*")),
    Room("scheduler", ("scheduler/*",), ("scheduler/*", "core/*"), "scheduler"),
    Room("proto", ("proto/*",), ("proto/*", "core/*", "headrace.pb.h"), "proto"),
    Room(
        "daemon",
        ("daemon/*",),
        ("daemon/*", "proto/*", "scheduler/scheduler.h", "core/*", "backends/registry.h"),
        "daemon",
    ),
    Room(
        "client/c",
        ("client/c/*",),
        ("client/c/*", "proto/*", "core/base.h", "core/status.h"),
        "client/c",
    ),
    Room("tests", ("tests/*",), ("*",), "tests"),
)

# Headers of libraries (and of POSIX threads), and the rooms or single files that may name them. Tests
# may name any.
EXTERNAL = {
    "pthread.h": ("core", "client/c"),  # its users' threads share a connection
    "semaphore.h": ("core",),
    "xxhash.h": ("core",),
    "xxh3.h": ("core",),
    "pb.h": ("proto",),
    "pb_*.h": ("proto",),
    "headrace.pb.h": ("proto",),
    "*.pb.h": ("proto",),
    "uv.h": ("daemon/loop.c",),
    "uv/*": ("daemon/loop.c",),
    "ini.h": ("daemon",),
    "yajl/*": ("daemon",),
    "microhttpd.h": ("daemon",),
    "systemd/*": ("daemon",),
    "openssl/*": ("daemon", "client/c/transport/tls.c", "client/c/digest.c"),
    "cblas*.h": ("backends/blas",),
    "openblas*.h": ("backends/blas",),
    "cuda*": ("backends/cuda",),
    "cublas*": ("backends/cuda",),
    "mma.h": ("backends/cuda",),
    "ggml*.h": (),  # the peer of ./bench plan, given by who measures; no room of ours
}

# Headers that must not even be reached through one of ours.
LEAKS = ("pb.h", "pb_*.h", "*.pb.h", "uv.h", "cblas*.h", "cuda*", "cublas*")

LANGUAGE = frozenset(
    """assert complex ctype errno fenv float inttypes limits locale math setjmp signal stdalign
    stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string strings tgmath threads
    time uchar wchar wctype""".split()
)
SYSTEM = frozenset(
    """alloca dirent dlfcn elf endian execinfo fcntl fnmatch ftw getopt glob grp libgen link malloc
    mntent netdb poll pwd regex sched spawn sysexits syslog termios ucontext unistd arpa/inet
    linux/* net/if netinet/in netinet/tcp sys/*""".split()
)
COMPILER = frozenset(
    """immintrin x86intrin nmmintrin smmintrin tmmintrin emmintrin xmmintrin wmmintrin cpuid arm_neon
    arm_acle arm_sve sanitizer/*""".split()
)

# Split, so that this file does not match itself.
PLACES = tuple(
    "/" + first + second for first, second in (("wo", "rk/"), ("tmp/", "w/"), ("ro", "ot/"))
)
SOURCE_SUFFIXES = (".c", ".h", ".cu", ".cuh", ".def", ".inc")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
README_LINES_MAX = 150
SKIPPED_FOLDERS = re.compile(
    r"(^|/)(\.git|\.venv|\.cache|__pycache__|build[^/]*|\.[a-z]+_cache)(/|$)"
)


@dataclass(frozen=True, order=True)
class Finding:
    path: str
    line: int
    rule: str
    words: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.words}"


@dataclass(frozen=True)
class Include:
    line: int
    quoted: bool
    name: str


@dataclass
class Tree:
    root: Path
    files: list[str] = field(default_factory=list)
    includes: dict[str, list[Include]] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path) -> Tree:
        tree = cls(root, sorted(list_files(root)))
        for path in tree.files:
            if path.endswith(SOURCE_SUFFIXES):
                tree.includes[path] = list(read_includes(root / path))
        return tree

    def exists(self, path: str) -> bool:
        return (self.root / path).is_file()


def list_files(root: Path) -> Iterator[str]:
    """What git would commit, or everything outside build folders where there is no git."""
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"]
        answer = subprocess.run(command, capture_output=True, check=False)
        if answer.returncode == 0:
            for name in answer.stdout.decode().split("\0"):
                if name and (root / name).is_file():
                    yield name
            return
    for folder, names, files in os.walk(root):
        relative = os.path.relpath(folder, root)
        prefix = "" if relative == "." else relative + "/"
        names[:] = [name for name in names if not SKIPPED_FOLDERS.search(prefix + name + "/")]
        for name in files:
            yield prefix + name


def read_includes(path: Path) -> Iterator[Include]:
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield Include(number, match.group(1) == '"', match.group(2))


def room_of(path: str) -> Room | None:
    for room in ROOMS:
        if any(fnmatch(path, glob) for glob in room.files):
            if room.name == "backends/<one>":
                name = path.split("/")[1]
                allowed = tuple(glob.format(name) for glob in room.may_include)
                return Room(f"backends/{name}", room.files, allowed, f"backends/{name}")
            return room
    return None


def is_known_external(name: str) -> bool:
    stem = name.removesuffix(".h")
    return stem in LANGUAGE or any(fnmatch(stem, pattern) for pattern in (*SYSTEM, *COMPILER))


def external_owner(name: str) -> tuple[str, ...] | None:
    for pattern, rooms in EXTERNAL.items():
        if fnmatch(name, pattern):
            return rooms
    return None


def check_edges(tree: Tree) -> Iterator[Finding]:
    for path, includes in tree.includes.items():
        room = room_of(path)
        for include in includes:
            if room is None:
                yield Finding(path, include.line, "edge", "this folder is in no room")
                break
            yield from check_include(tree, room, path, include)


def check_include(tree: Tree, room: Room, path: str, include: Include) -> Iterator[Finding]:
    name = include.name
    owners = external_owner(name.rsplit("/", 1)[-1] if name.endswith(".pb.h") else name)
    if owners is not None and (not include.quoted or not tree.exists(name)):
        if not {room.name, path} & {*owners, "tests"}:
            words = f"{room.name} may not use <{name}>; only {', '.join(owners)} does"
            yield Finding(path, include.line, "external", words)
        return
    if not include.quoted:
        if tree.exists(name):
            yield Finding(path, include.line, "root", f"<{name}> is ours: write it in quotes")
        elif not is_known_external(name):
            yield Finding(path, include.line, "external", f"<{name}> is in no table of the lint")
        return
    if ".." in name.split("/") or not tree.exists(name):
        yield Finding(path, include.line, "root", f'"{name}" is not a path from the root')
        return
    if not any(fnmatch(name, glob) for glob in room.may_include):
        yield Finding(path, include.line, "edge", f'{room.name} may not include "{name}"')


def check_leaks(tree: Tree) -> Iterator[Finding]:
    reached: dict[str, frozenset[str]] = {}

    def reach(path: str) -> frozenset[str]:
        if path not in reached:
            reached[path] = frozenset()  # ends a circle of headers
            found: set[str] = set()
            for include in tree.includes.get(path, ()):
                base = include.name.rsplit("/", 1)[-1]
                if any(fnmatch(include.name, leak) or fnmatch(base, leak) for leak in LEAKS):
                    found.add(include.name)
                elif include.quoted:
                    found |= reach(include.name)
            reached[path] = frozenset(found)
        return reached[path]

    for path, includes in tree.includes.items():
        room = room_of(path)
        if room is None or room.name == "tests":
            continue
        for include in includes:
            if not include.quoted or not tree.exists(include.name):
                continue
            for name in sorted(reach(include.name)):
                owners = external_owner(name.rsplit("/", 1)[-1]) or external_owner(name)
                if owners and room.name not in owners:
                    words = f'"{include.name}" brings <{name}> into {room.name}'
                    yield Finding(path, include.line, "leak", words)


def check_own_first(tree: Tree) -> Iterator[Finding]:
    for path, includes in tree.includes.items():
        own = path.removesuffix(".c") + ".h"
        if path.endswith(".c") and own in tree.includes and includes:
            if includes[0].name not in (own, path.removesuffix(".c") + "_priv.h"):
                yield Finding(path, includes[0].line, "own-first", f'"{own}" comes first')


def cuda_folder(root: Path) -> str | None:
    """The folder of cuda.h, or None without a toolkit."""
    script = root / "backends" / "cuda" / "find_toolkit.py"
    if not script.is_file():
        return None
    answer = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    return answer.stdout.splitlines()[1] if answer.returncode == 0 else None


def needs_cuda(tree: Tree, path: str, seen: set[str]) -> bool:
    if path in seen:
        return False
    seen.add(path)
    return any(
        fnmatch(include.name, "cuda*.h") or needs_cuda(tree, include.name, seen)
        for include in tree.includes.get(path, ())
    )


def check_alone(tree: Tree, compiler: str, build: Path | None) -> Iterator[Finding]:
    cuda = cuda_folder(tree.root)
    headers = [
        path
        for path in tree.includes
        if path.endswith(".h") and (cuda or not needs_cuda(tree, path, set()))
    ]
    command = [compiler, "-std=c17", "-D_GNU_SOURCE", '-DHR_VERSION="0"', "-fsyntax-only"]
    command += ["-Wall", "-Werror", "-I", str(tree.root)]
    for folder in (build, build and build / "proto"):
        if folder:
            command += ["-I", str(folder)]
    if cuda:
        command += ["-isystem", cuda]

    def compile_one(path: str) -> Finding | None:
        source = f'#include "{path}"\n'
        answer = subprocess.run(
            [*command, "-x", "c", "-"], input=source, capture_output=True, text=True, check=False
        )
        if answer.returncode == 0:
            return None
        lines = [line for line in answer.stderr.splitlines() if "error" in line]
        return Finding(path, 1, "alone", lines[0] if lines else "does not compile")

    with ThreadPoolExecutor(max_workers=2) as pool:
        yield from filter(None, pool.map(compile_one, headers))


def check_places(tree: Tree) -> Iterator[Finding]:
    for path in tree.files:
        try:
            text = (tree.root / path).read_text("utf-8")
        except UnicodeDecodeError:
            continue
        for place in PLACES:
            for number, line in enumerate(text.splitlines(), 1) if place in text else ():
                if place in line:
                    yield Finding(path, number, "place", f"names the path {place}")


def check_readmes(tree: Tree) -> Iterator[Finding]:
    rooms = {room.readme for path in tree.includes if (room := room_of(path)) and room.readme}
    for folder in sorted(rooms):
        path = f"{folder}/README.md"
        if not tree.exists(path):
            yield Finding(path, 1, "readme", "is missing")
            continue
        lines = len((tree.root / path).read_text("utf-8").splitlines())
        if lines > README_LINES_MAX:
            yield Finding(path, lines, "readme", f"{lines} lines, at most {README_LINES_MAX}")


def check_tree(root: Path, compiler: str | None, build: Path | None) -> list[Finding]:
    tree = Tree.read(root)
    findings = [
        *check_edges(tree),
        *check_leaks(tree),
        *check_own_first(tree),
        *check_places(tree),
        *check_readmes(tree),
    ]
    if compiler:
        findings += check_alone(tree, compiler, build)
    return sorted(findings)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--build", type=Path, help="build folder with the generated headers")
    parser.add_argument("--no-compile", action="store_true", help="leave out the rule `alone`")
    args = parser.parse_args()
    compiler = None if args.no_compile else os.environ.get("CC", "cc")
    findings = check_tree(args.root, compiler, args.build)
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
