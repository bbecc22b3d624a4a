"""With `deterministic` the recorded operators have the same bits with 1, 2 and 3 threads.

    same_bits.py GOLDEN_OPS [ARGUMENT...]

Every op and every type of the recorded cases runs with the whole team awake for the smallest step; the
runner's digest over all results must not depend on how many threads there are.
"""

from __future__ import annotations

import subprocess
import sys


def digest(command: list[str], threads: int) -> str:
    options = ["--digest", "--deterministic", "--wake-all", "--threads", str(threads)]
    answer = subprocess.run(
        [command[0], *options, *command[1:]], stdout=subprocess.PIPE, text=True, check=True
    )
    return next(line for line in answer.stdout.splitlines() if line.startswith("digest "))


def main() -> int:
    found = {threads: digest(sys.argv[1:], threads) for threads in (1, 2, 3)}
    for threads, line in found.items():
        print(f"{threads} threads: {line}")
    return len(set(found.values())) != 1


if __name__ == "__main__":
    sys.exit(main())
