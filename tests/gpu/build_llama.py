"""build_llama.py FOLDER: the program that measures llama.cpp, for the GPU of this machine.

FOLDER/source holds the sources, FOLDER/llama_gpu_peer is made. Needs ninja, a C++ compiler and the CUDA toolkit;
llama.cpp's own build wants CMake, which a machine may not have, so its sources and the settings that matter
(kernels of one architecture, attention over F16, CUDA graphs) are listed here. What has been compiled stays: a
call that was stopped is gone on with.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from machine import toolkit_folders  # noqa: E402

HERE = Path(__file__).resolve().parent
CUDA = "ggml/src/ggml-cuda"
# Types of keys and values that attention is compiled for, of those that it can be: what is measured has one.
ATTENTION = ("f16-f16",)
ATTENTION_TYPES = ("f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
# The slowest to compile come first.
KERNELS = (
    f"{CUDA}/template-instances/mmq*.cu", f"{CUDA}/template-instances/fattn-mma*.cu",
    f"{CUDA}/template-instances/fattn-tile*.cu", f"{CUDA}/template-instances/mmf*.cu",
    *(f"{CUDA}/template-instances/fattn-vec-instance-{pair}.cu" for pair in ATTENTION),
    f"{CUDA}/*.cu",
)  # fmt: skip
HOST = (
    "ggml/src/*.c", "ggml/src/*.cpp", "ggml/src/ggml-cpu/*.c", "ggml/src/ggml-cpu/*.cpp",
    "ggml/src/ggml-cpu/amx/*.cpp", "ggml/src/ggml-cpu/tiled/*.cpp", "ggml/src/ggml-cpu/arch/x86/quants.c",
    "ggml/src/ggml-cpu/arch/x86/repack.cpp", "src/*.cpp", "src/models/*.cpp",
)  # fmt: skip
DEFINES = (
    "NDEBUG", "_GNU_SOURCE", "_XOPEN_SOURCE=600", "GGML_USE_CPU", "GGML_USE_CUDA", "GGML_USE_CPU_REPACK",
    "GGML_CUDA_USE_GRAPHS", "GGML_SCHED_MAX_COPIES=4",
    *(f"GGML_CUDA_FA_{k}_{v}=".upper() + str(int(f"{k}-{v}" in ATTENTION))
      for k in ATTENTION_TYPES for v in ATTENTION_TYPES),
)  # fmt: skip
INCLUDES = ("include", "ggml/include", "ggml/src", "ggml/src/ggml-cpu", CUDA, "src")
RULES = """\
rule c
  command = cc -O3 -march=native -std=c11 -w {flags} -c $in -o $out
rule cpp
  command = c++ -O3 -march=native -std=c++17 -w {flags} -c $in -o $out
rule cu
  command = {nvcc} -O3 -std=c++17 -w -use_fast_math -extended-lambda {code} {flags} -c $in -o $out
rule link
  command = c++ @$out.rsp -o $out {libraries}
  rspfile = $out.rsp
  rspfile_content = $in_newline
"""


class Missing(Exception):
    """What this machine lacks."""


def find_nvcc() -> Path:
    for toolkit in toolkit_folders():
        if (toolkit / "bin" / "nvcc").exists():
            return toolkit / "bin" / "nvcc"
    raise Missing("there is no nvcc")


def architecture(folder: Path) -> str:
    """Of the first GPU: "90" for 9.0; as the driver's tool says, or what the first stage has seen."""
    tool = shutil.which("nvidia-smi")
    if tool:
        command = [tool, "--query-gpu=compute_cap", "--format=csv,noheader"]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        found = re.findall(r"^(\d+)\.(\d)\s*$", told, re.MULTILINE)
        if found:
            return "".join(found[0])
    log = folder.parent / "logs" / "driver.log"
    found = re.findall(r"compute capability (\d+)\.(\d)", log.read_text()) if log.exists() else []
    if not found:
        raise Missing("nobody says what GPU this is")
    return "".join(found[0])


def sources(source: Path) -> Iterator[Path]:
    seen = set()
    for pattern in (*KERNELS, *HOST):
        found = sorted(source.glob(pattern))
        if not found:
            raise Missing(f"there is no {pattern} in {source}")
        for file in found:
            if file not in seen:
                seen.add(file)
                yield file


def versions(folder: Path) -> None:
    """What CMake would fill in."""
    for name in ("ggml", "llama"):
        upper = name.upper()
        (folder / f"{name}-version.h").write_text(
            f'#pragma once\n#define {upper}_VERSION "bundled"\n#define {upper}_COMMIT "bundled"\n'
        )


def plan(folder: Path, nvcc: Path, code: str) -> str:
    """The build as ninja reads it."""
    source, build, toolkit = folder / "source", folder / "build", nvcc.parents[1]
    places = [build, *(source / name for name in INCLUDES), toolkit / "include"]
    flags = " ".join([*(f"-D{name}" for name in DEFINES), *(f"-I{place}" for place in places)])
    libraries = [lib for lib in (toolkit / "lib64", toolkit / "lib") if lib.exists()]
    linked = [f"-L{lib} -Wl,-rpath,{lib} -L{lib}/stubs" for lib in libraries]
    lines = [
        RULES.format(
            flags=flags,
            nvcc=nvcc,
            code=f"--generate-code=arch=compute_{code},code=sm_{code}",
            libraries=" ".join([*linked, "-lcudart -lcublas -lcuda -ldl -lrt -lpthread"]),
        )
    ]
    objects = []
    for file in [*sources(source), HERE / "llama_gpu_peer.cpp"]:
        inside = file.relative_to(source) if file.is_relative_to(source) else Path(file.name)
        objects.append(build / "objects" / f"{inside}.o")
        lines.append(f"build {objects[-1]}: {file.suffix[1:]} {file}")
    program = folder / "llama_gpu_peer"
    lines.append(f"build {program}: link {' '.join(map(str, objects))}")
    lines.append(f"default {program}")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--architecture", metavar="90", help="of the kernels; this machine's GPU")
    parser.add_argument("--plan", action="store_true", help="write build.ninja and end")
    args = parser.parse_args()
    folder = args.folder.resolve()
    build = folder / "build"
    try:
        code = args.architecture or architecture(folder)
        text = plan(folder, find_nvcc(), code)
        ninja = shutil.which("ninja") or shutil.which("ninja-build")
        if not ninja:
            raise Missing("there is no ninja")
    except Missing as missing:
        print(missing)
        return 1
    build.mkdir(exist_ok=True)
    versions(build)
    (build / "build.ninja").write_text(text)
    if args.plan:
        return 0
    built = subprocess.run([ninja, "-C", build], check=False).returncode
    if built == 0:
        print(f"llama.cpp for compute capability {code}")
    return built


if __name__ == "__main__":
    sys.exit(main())
