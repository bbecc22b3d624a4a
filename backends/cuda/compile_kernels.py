"""Compiles one file of kernels into a fat binary, and the fat binary into an assembler file.

    compile_kernels.py NVCC ROOT MADE SOURCE IMAGE OUTPUT.s DEPFILE RESOURCES [OTHER]

MADE is the folder of what the build makes for kernels. OUTPUT.s defines cuda_image_IMAGE. RESOURCES
names nvcc's release and lists what each kernel takes of each target: registers, bytes of stack and of
spills, bytes of shared memory.

OTHER is the folder in which another build has put its OUTPUT.s: what was made there by the same
command from the same sources is taken over: neither the compiler of C nor a sanitizer has a part
in it. Beside OUTPUT.s, IMAGE.made holds the command and the digests of the sources, and IMAGE.read
the dependencies.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

# Machine code for A100 and H100/H200, and PTX for whatever comes after.
TARGETS = (
    ("compute_80", "sm_80"),
    ("compute_90a", "sm_90a"),
    ("compute_80", "compute_80"),
)
FUNCTION = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def resources(text: str) -> list[str]:
    lines, name, stack = [], "", ("0", "0", "0")
    for line in text.splitlines():
        if match := FUNCTION.search(line):
            name = f"{match[1]} {match[2]}"
        elif match := STACK.search(line):
            stack = (match[1], match[2], match[3])
        elif match := USED.search(line):
            shared = SHARED.search(line)
            lines.append(
                f"{name}: registers {match[1]}, stack {stack[0]}, spills {stack[1]} {stack[2]}, "
                f"shared {shared[1] if shared else 0}"
            )
    return sorted(lines)


def release(nvcc: str) -> str:
    answer = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True)
    match = re.search(r"V([\d.]+)", answer.stdout)
    return match[1] if match else "of an unknown release"


def digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def sources(depfile: Path, root: str, made: Path) -> dict[str, str]:
    """The digest of every file of the project that the compiler has read.

    What the build makes is named by its name in `made`, the rest by its path.
    """
    text = depfile.read_text().replace("\\\n", " ").partition(":")[2]
    inside = {str(Path(name).resolve()) for name in text.split()}
    return {
        str(Path(name).relative_to(made)) if Path(name).is_relative_to(made) else name: digest(name)
        for name in sorted(inside)
        if Path(name).is_relative_to(root) or Path(name).is_relative_to(made)
    }


def taken_over(
    other: Path, names: list[str], command: list[str], here: Path, made: Path
) -> bool:
    """Copies the files `names` from another build, if they are what `command` makes now."""
    first = other / names[0]
    if other.resolve() == here.resolve() or not all((other / name).exists() for name in names):
        return False
    try:
        record = json.loads(first.read_text())
    except ValueError:  # a build that was cut off
        return False
    if record["command"] != command:
        return False
    for name, known in record["sources"].items():
        if not (made / name).exists() or digest(str(made / name)) != known:
            return False
    for name in names:
        shutil.copyfile(other / name, here / name)
    return True


def main() -> int:
    nvcc, root, folder, source, image, output, depfile, report, *other = sys.argv[1:]
    root, source = str(Path(root).resolve()), str(Path(source).resolve())
    here, folder_made = Path(output).parent, Path(folder).resolve()
    fatbin = here / f"{image}.fatbin"
    options = ["-fatbin", "-O3", "-std=c++17", "-I", root, "-Xptxas", "-v"]
    for virtual, real in TARGETS:
        options += ["-gencode", f"arch={virtual},code={real}"]
    made = [release(nvcc), source, *options]
    names = [f"{image}.made", fatbin.name, Path(report).name, f"{image}.read"]
    if not (other and other[0] and taken_over(Path(other[0]), names, made, here, folder_made)):
        (here / names[0]).unlink(missing_ok=True)  # it must not speak of what is made now
        command = [nvcc, *options, "-I", str(folder_made), "-o", str(fatbin)]
        command += ["-MD", "-MF", depfile, "-MT", output, source]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            sys.stderr.write(answer.stdout + answer.stderr)
            return 1
        warnings = [line for line in answer.stderr.splitlines() if "warning" in line]
        sys.stderr.write("".join(line + "\n" for line in warnings))
        lines = [f"# nvcc {release(nvcc)}", *resources(answer.stderr)]
        Path(report).write_text("".join(line + "\n" for line in lines))
        record = {"command": made, "sources": sources(Path(depfile), root, folder_made)}
        # The file of dependencies does not outlive its reading by the build.
        shutil.copyfile(depfile, here / names[-1])
        (here / names[0]).write_text(json.dumps(record, indent=1))
    shutil.copyfile(here / names[-1], depfile)
    Path(output).write_text(
        f".section .rodata\n.balign 64\n.globl cuda_image_{image}\n"
        f'cuda_image_{image}:\n.incbin "{fatbin.resolve()}"\n'
        '.section .note.GNU-stack,"",%progbits\n'
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
