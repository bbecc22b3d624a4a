"""Writes the parts of a bundle; bundle.sh calls it.

base: programs of the build, stripped, with every library that they need but those of the C library and
the compiler, the client with the packages it needs but numpy, the tests' Python and small recorded cases.
golden: all recorded operators. model: the demo's model with its reference. llama: sources of llama.cpp.

A part is NAME.tar.xz (a small one NAME.tar.gz) and holds NAME.part, by which run.py knows that it is there. One
that is larger than the limit is cut into NAME.tar.xz.1of2, ...
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests" / "tools"), str(ROOT / "tests" / "acceptance")]

MB = 10**6
LIMIT_MOST = 60

PROGRAMS = (
    "daemon/headraced",
    "tests/bench/bench_socket",
    "tests/conformance/conformance_cuda_device",
    "tests/conformance/conformance_cuda_queue",
    "tests/golden/golden_ops",
    "tests/gpu/gpu_probe",
)
# Every machine has these, and its own are newer or belong to its compiler.
OF_THE_SYSTEM = re.compile(
    r"^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|gcc_s|stdc\+\+|anl|nss_.*)\.so\..*)$"
)
TREE = (
    "client/python/headrace", "tests/acceptance", "tests/bench", "tests/golden/data/llama", "tests/gpu",
    "tests/tools",
)  # fmt: skip
KEPT = {".py", ".pyi", ".typed", ".sh", ".cpp", ".json", ".txt", ".ini", ".bin", ".gguf"}
# Packages without machine code, or with code for the stable interface of any Python.
PACKAGES = ("google",)
SMALL_CASES = ("binary", "reduce")
# Of llama.cpp: what build_llama.py compiles, and its licence.
LLAMA = re.compile(
    r"^(LICENSE|(include|src|ggml/include)/.+|ggml/src/[^/]+|ggml/src/ggml-(cpu|cuda)/.+)$"
)


@dataclass(frozen=True)
class Part:
    name: str
    fill: Callable[[Path], None]  # fills a folder
    preset: int = 6  # of xz


class Missing(Exception):
    """What a part needs and there is not."""


def copy(source: Path, target: Path) -> None:
    if not source.exists():
        raise Missing(f"there is no {source}")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)


# ---- base ----------------------------------------------------------------------------------------


def libraries_of(program: Path) -> dict[str, Path]:
    """Name -> file, of all that the loader loads with it but what every system has."""
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    lost = re.findall(r"(\S+) => not found", told)
    if lost:
        raise Missing(f"{program} needs {', '.join(lost)}")
    found = dict(re.findall(r"^\s*(\S+) => (/\S+)", told, re.MULTILINE))
    return {name: Path(at) for name, at in found.items() if not OF_THE_SYSTEM.match(name)}


def put_programs(build: Path, folder: Path) -> None:
    for name in PROGRAMS:
        target = folder / "build" / name
        copy(build / name, target)
        subprocess.run(["strip", target], check=True)
        for library, at in libraries_of(build / name).items():
            if not (folder / "lib" / library).exists():
                copy(at, folder / "lib" / library)


def put_tree(folder: Path) -> None:
    for name in TREE:
        source = ROOT / name
        files = source.rglob("*") if source.is_dir() else [source]
        for file in files:
            if file.suffix in KEPT and "__pycache__" not in file.parts and file.is_file():
                copy(file, folder / file.relative_to(ROOT))


def put_packages(folder: Path) -> None:
    site = Path(sysconfig.get_path("purelib"))
    for name in PACKAGES:
        source = site / name
        if not source.exists():
            raise Missing(f"the package {name} is not in {site}")
        for file in source.rglob("*") if source.is_dir() else [source]:
            if "__pycache__" in file.parts or not file.is_file():
                continue
            if file.suffix == ".so" and ".abi3." not in file.name:
                continue  # of one Python alone; the package goes on without
            copy(file, folder / "site" / file.relative_to(site))


    # A regular package: nobody else's google.protobuf is found first.
    (folder / "site" / "google" / "__init__.py").touch()


def put_cases(source: Path, target: Path, names: Sequence[str] = ()) -> None:
    files = [file for file in sorted(source.glob("*")) if file.suffix in (".txt", ".gguf")]
    chosen = [file for file in files if not names or file.stem in names]
    if not chosen:
        raise Missing(f"there are no recorded cases in {source}")
    for file in chosen:
        copy(file, target / file.name)


# ---- models --------------------------------------------------------------------------------------


def random_reference(file: Path, build: Path) -> dict[str, Any]:
    """The CPU's own choices, in the form of the recorded ones."""
    from headrace import connect
    from llama_runner import Runner
    from run_daemon import Daemon, device

    prompts = []
    with Daemon(build=build, models=[file.parent], devices=[device("cpu0", backend="cpu")]) as daemon:
        with connect(daemon.address) as client:
            runner = Runner(client, file.name, n_ctx=32, split={"cpu0": 1})
            for name, tokens in (("one", [7]), ("four", [3, 60, 12, 44])):
                runner.restart()
                logits = [runner.feed(tokens)]
                while len(logits) < 5:
                    logits.append(runner.feed([int(logits[-1].argmax())]))
                best = [sorted(map(float, values))[:-3:-1] for values in logits]
                prompts.append(
                    {
                        "name": name,
                        "prompt_tokens": tokens,
                        "continuation": [int(values.argmax()) for values in logits],
                        "logits": best,
                    }
                )
    return {"prompts": prompts}


def put_random_model(folder: Path, build: Path) -> None:
    from make_model import SHAPES, write

    folder.mkdir(parents=True)
    write(folder / "model.gguf", SHAPES["least"], "f16", seed=1)
    reference = random_reference(folder / "model.gguf", build)
    (folder / "reference.json").write_text(json.dumps(reference))


def put_model(model: Path, folder: Path) -> None:
    copy(model, folder / "model.gguf")
    copy(ROOT / "tests/golden/data/llama/smollm2-135m-q4_1.json", folder / "reference.json")


def put_llama(package: Path, folder: Path) -> None:
    found = 0
    with tarfile.open(package) as tar:
        for member in tar:
            _, inside, name = member.name.partition("/vendor/llama.cpp/")
            target = folder / name
            if not inside or not LLAMA.match(name) or ".." in target.parts:
                continue
            content = tar.extractfile(member) if member.isfile() else None
            if content is None:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.read())
            found += 1
    if not found:
        raise Missing(f"{package} holds no llama.cpp")


# ---- parts ---------------------------------------------------------------------------------------


def pack(part: Part, out: Path, preset: int) -> Path:
    """preset: of xz; 0 stands for what is quickly done."""
    archive = out / f"{part.name}.tar.{'xz' if preset else 'gz'}"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        part.fill(folder)
        (folder / f"{part.name}.part").touch()
        options: dict[str, Any] = {"preset": preset} if preset else {"compresslevel": 1}
        with tarfile.open(archive, f"w:{archive.suffix[1:]}", **options) as tar:
            for entry in sorted(folder.iterdir()):
                tar.add(entry, entry.name, filter=nobody)
    return archive


def nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Whoever unpacks it owns it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def cut(archive: Path, limit: int) -> list[Path]:
    """The file, or its pieces of about the same size, none beyond the limit."""
    size = archive.stat().st_size
    if size <= limit:
        return [archive]
    count = -(-size // limit)
    share = -(-size // count)
    pieces = []
    with archive.open("rb") as whole:
        for number in range(1, count + 1):
            piece = archive.with_name(f"{archive.name}.{number}of{count}")
            piece.write_bytes(whole.read(share))
            pieces.append(piece)
    archive.unlink()
    return pieces


def clear(out: Path) -> None:
    """Of an earlier bundle: pieces of another count would not fit together."""
    out.mkdir(parents=True, exist_ok=True)
    for file in out.glob("*.tar.[xg]z*"):
        file.unlink()


def parts_of(args: argparse.Namespace) -> Iterable[Part]:
    build = args.build.resolve()
    cases = SMALL_CASES if args.small else ()
    recorded = ROOT / "tests" / "golden" / "data" / "ops"

    def base(folder: Path) -> None:
        put_programs(build, folder)
        put_tree(folder)
        put_packages(folder)
        put_cases(recorded, folder / "tests/golden/data/ops", cases)

    def golden(folder: Path) -> None:
        put_cases(recorded if args.small else args.golden, folder / "golden/ops", cases)

    def model(folder: Path) -> None:
        if args.small:
            put_random_model(folder / "model", build)
        else:
            put_model(args.model, folder / "model")

    def llama(folder: Path) -> None:
        put_llama(args.llama, folder / "llama/source")

    yield Part("base", base)
    if args.small or args.golden:
        yield Part("golden", golden)
    if args.small or args.model:
        yield Part("model", model, preset=1)  # weights hardly get smaller
    if args.llama:
        yield Part("llama", llama)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests/gpu/bundle.sh", description=__doc__)
    parser.add_argument("out", metavar="FOLDER", type=Path)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=48, metavar="MB")
    parser.add_argument("--llama", type=Path, metavar="FILE")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--golden", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if not 0 < args.limit <= LIMIT_MOST:
        parser.error(f"--limit is more than 0 and at most {LIMIT_MOST}")
    clear(args.out)
    try:
        for part in parts_of(args):
            archive = pack(part, args.out, 0 if args.small else part.preset)
            for file in cut(archive, int(args.limit * MB)):
                print(f"{file.stat().st_size / MB:6.1f} MB  {file}", flush=True)
    except Missing as error:
        print(f"bundle.sh: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
