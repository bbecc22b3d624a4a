"""Compiles one file of kernels into a fat binary, and the fat binary into an assembler file.

    compile_kernels.py NVCC ROOT SOURCE IMAGE OUTPUT.s DEPFILE RESOURCES

OUTPUT.s defines cuda_image_IMAGE. RESOURCES names nvcc's release and lists what each kernel takes of
each target: registers, bytes of stack and of spills, bytes of shared memory.
"""

from __future__ import annotations

import re
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


def main() -> int:
    nvcc, root, source, image, output, depfile, report = sys.argv[1:]
    fatbin = Path(output).with_suffix(".fatbin")
    command = [nvcc, "-fatbin", "-O3", "-std=c++17", "-I", root, "-Xptxas", "-v", "-o", str(fatbin)]
    for virtual, real in TARGETS:
        command += ["-gencode", f"arch={virtual},code={real}"]
    command += ["-MD", "-MF", depfile, "-MT", output, source]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        sys.stderr.write(answer.stdout + answer.stderr)
        return 1
    warnings = [line for line in answer.stderr.splitlines() if "warning" in line]
    sys.stderr.write("".join(line + "\n" for line in warnings))
    lines = [f"# nvcc {release(nvcc)}", *resources(answer.stderr)]
    Path(report).write_text("".join(line + "\n" for line in lines))
    Path(output).write_text(
        f".section .rodata\n.balign 64\n.globl cuda_image_{image}\n"
        f'cuda_image_{image}:\n.incbin "{fatbin.resolve()}"\n'
        '.section .note.GNU-stack,"",%progbits\n'
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
