"""golden_plans on files that it has never seen: the recorded ones written otherwise give the same
answers, a plan that is not the reference's is found, and a file that is none gets words, no crash.

    strange_plans.py GOLDEN_PLANS DATA      HR_SEED=N replays; HEADRACE_FULL=1 has more of each
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FULL = bool(os.environ.get("HEADRACE_FULL"))
SEED = int(os.environ.get("HR_SEED") or 1)

# Two backends, leaves 0 to 2, nodes 3 and 4; and what is replaced there, by what, and words that
# the answer then has.
WHOLE = """case whole
sched copies=1 cur=0 offload=0 maxgraph=64 experts=0
buft 0 GPU0 host=0 align=128
buft 1 HOST host=1 align=32
backend 0 GPU0 type=GPU buft=0 sup=1 offmin=32 events=1 async=1 minmm=0 deny=-
backend 1 CPU type=CPU buft=1 sup=2 offmin=-1 events=0 async=0 minmm=0 deny=-
buffer 0 buft=0 usage=weights
graph leafs=3 nodes=2 extra=0
l 0 w NONE f32 32 4 1 1 b=0 sup=3
l 1 x NONE f32 32 1 1 1 f=1 sup=3
l 2 y NONE f32 4 1 1 1 f=1 sup=3
n 3 product MUL_MAT f32 4 1 1 1 f=10 s=0,1 sup=3
n 4 sum ADD f32 4 1 1 1 f=12 s=3,2 sup=3
plan
L 0 0 1.dst
L 1 1 1.inp
L 2 1 1.inp
N 3 0 1.wgt0
N 4 0 2.gd
splits 1
S 0 0 0 2 first 2 1 2
R 3 1 1 0 0
R 4 1 2 0 0
alloc ok
end
"""
BROKEN = [
    ("sched copies=1", "sched copies=none", "copies"),
    ("sched copies=1", "sched copies=0", "copies"),
    ("sched copies=1", "sched copies=4000000000", "copies"),
    ("cur=0", "cur=1", "cur"),
    ("sched ", "shed ", "sched"),
    ("align=128", "align=0", "align"),
    ("align=128", "align=100", "align"),
    ("buft 1 HOST", "buft 3 HOST", "not the next number"),
    ("backend 1 CPU", "backend 0 CPU", "not the next number"),
    ("type=CPU buft=1", "type=CPU buft=2", "buft"),
    ("type=GPU", "type=TOASTER", "type"),
    ("type=CPU", "type=GPU", "the last device"),
    ("buft=1 sup=2", "buft=1 sup=1", "its own memory"),
    ("sup=2 off", "sup=8 off", "sup"),
    ("sup=2 off", "sup=zz off", "sup"),
    ("buffer 0 buft=0", "buffer 0 buft=9", "buft"),
    ("usage=weights", "usage=none", "usage"),
    ("usage=weights", "", "usage"),
    ("leafs=3", "leafs=2", "its lines make"),
    ("leafs=3", "leafs=4000000000", "its lines make"),
    ("nodes=2", "nodes=-2", "its lines make"),
    ("l 2 y", "l 1 y", "again"),
    ("l 2 y", "l 7 y", "not a number of its kind"),
    ("l 2 y", "n 2 y", "its lines make"),
    ("l 2 y NONE f32 4 1 1 1 f=1 sup=3", "l 2 y NONE", "too short"),
    ("l 0 w NONE f32", "l 0 w NONE f33", "unknown type"),
    ("l 0 w NONE f32 32", "l 0 w NONE f32 -32", "extent"),
    ("l 0 w NONE f32 32", "l 0 w NONE f32 9223372036854775808", "extent"),
    ("f32 32 4", "f32 9223372036854775807 9223372036854775807", "not fit 64 bits"),
    ("l 0 w NONE f32 32", "l 0 w NONE q8_0 33", "block"),
    ("s=0,1", "s=0,9", '"0,9"'),
    ("s=0,1", "s=0,4", '"0,4"'),
    ("s=0,1", "s=0,,x", '"0,,x"'),
    ("s=3,2", "s=3,2 v=4:0", "v"),
    ("s=3,2", "s=3,2 v=9:0", "v"),
    ("s=3,2", "s=3,2 v=3", "v"),
    ("s=3,2", "s=3,2 v=3:-8", "v"),
    ("s=3,2", "s=3,2 nb=4,16", "nb"),
    ("s=3,2", "s=3,2 nb=4,16,16,16,16", "nb"),
    ("s=3,2", "s=3,2 nb=4,16,16,x", "nb"),
    ("s=3,2", "s=3,2 b=1", "b"),
    ("s=3,2", "s=3,2 u=2", "u"),
    ("s=3,2", "s=3,2 " + "k=1 " * 40, "too long"),
    ("s=3,2 sup=3", "s=3,2 sup=7", "sup"),
    ("f=12", "f=xyz", "f "),
    ("plan\n", "", "neither"),
    ("alloc ok\nend\n", "alloc ok\n", "no end"),
    (WHOLE, "", "no case"),
    (WHOLE, "words\n\0\xff\n", "no case"),
]  # fmt: skip
WRONG = [
    ("L 1 1 1.inp", "L 1 0 1.inp"), ("N 3 0 1.wgt0", "N 3 0 1.off"), ("splits 1", "splits 2"),
    ("S 0 0 0 2 first 2 1 2", "S 0 0 0 2 first 2 2 1"), ("S 0 0 0 2", "S 0 0 0 1"),
    ("first 2 1 2", "backend 2 1 2"), ("R 4 1 2 0 0\n", ""), ("R 4 1 2 0 0", "R 4 1 2 0 1"),
    ("alloc ok", "F 3 11\nalloc ok"), ("alloc ok", "G 1\nalloc ok"),
]  # fmt: skip


class Runner:
    def __init__(self, program: str, folder: Path) -> None:
        self.program, self.folder, self.count = program, folder, 0

    def run(self, *paths: Path) -> tuple[int, str]:
        done = subprocess.run([self.program, *map(str, paths)], capture_output=True, text=True,
                              errors="replace", timeout=200)  # fmt: skip
        if done.returncode not in (0, 1):
            told = done.stdout + done.stderr
            sys.exit(f"HR_SEED={SEED}: {paths}: status {done.returncode}\n{told}")
        return done.returncode, done.stdout

    def text(self, text: str) -> tuple[int, str]:
        self.count += 1
        path = self.folder / f"one-{self.count:02}.txt"
        path.write_text(text, encoding="latin-1")
        return self.run(path)


def expect(fine: bool, *words: object) -> None:
    if not fine:
        sys.exit(f"HR_SEED={SEED}: " + "\n".join(map(str, words)))


def cases(data: Path) -> list[str]:
    whole = "".join(path.read_text() for path in sorted(data.glob("*.txt")))
    return re.findall(r"^case .*?^end\n", whole, re.M | re.S)


def otherwise(case: str, dice: random.Random) -> str:
    """The same case with its keys in another order, more of them, and remarks."""
    lines = ["note nothing of this matters"]
    for line in case.splitlines():
        words = line.split(" ")
        if words[0] in ("l", "n", "x", "sched", "buft", "backend", "buffer"):
            at = next((i for i, one in enumerate(words) if "=" in one), len(words))
            keys = [*words[at:], f"later={dice.randrange(99)}"]
            if words[0] != "sched":  # its first key has its place
                dice.shuffle(keys)
            words = words[:at] + keys
        lines.append(" ".join(words))
        if words[0] == "case":
            lines.append("note " + "long " * 300)
    return "\n".join(lines) + "\n"


def same_answers(runner: Runner, data: Path, all_cases: list[str], dice: random.Random) -> None:
    _, plain = runner.run(data)
    other = runner.folder / "other folder"
    other.mkdir()
    shuffled = list(all_cases)
    dice.shuffle(shuffled)
    for i in range(0, len(shuffled), 40):
        text = "".join(otherwise(case, dice) for case in shuffled[i : i + 40])
        with (other / f"{i:04}.txt").open("w", newline="\r\n" if i % 80 else "\n") as file:
            file.write(text)
    (other / "remarks.md").write_text("no case\n")
    status, answer = runner.run(other)
    expect(status == 0 and answer == plain, "written otherwise:", answer, "as recorded:", plain)
    expect(answer.endswith(f"{len(all_cases)} passed, 0 failed\n"), answer)


def wrong_plans(runner: Runner) -> None:
    status, answer = runner.text(WHOLE)
    expect(status == 0 and answer.endswith("\n1 passed, 0 failed\n"), answer)
    for old, new in WRONG:
        expect(old in WHOLE, old)
        text = WHOLE.replace("case whole", "case wrong").replace(old, new, 1)
        status, answer = runner.text(WHOLE + text + WHOLE)
        expect(status == 1 and answer.count('wrong: ours "') >= 1, old, new, answer)
        expect("2 passed," in answer.splitlines()[-1], old, new, answer)


def broken_files(runner: Runner) -> None:
    for old, new, words in BROKEN:
        expect(old in WHOLE, old)
        status, answer = runner.text(WHOLE.replace(old, new, 1))
        expect(status == 1 and words in answer, old, new, answer)
    status, answer = runner.run(runner.folder / "nowhere")
    expect(status == 1 and "cannot be opened" in answer, answer)
    (runner.folder / "empty").mkdir()
    status, answer = runner.run(runner.folder / "empty")
    expect(status == 1 and "no case" in answer, answer)


NUMBERS = (-1, 0, 1, 2, 3, 4, 5, 7, 31, 33, 255, 2**31, 2**32 - 1, 2**63 - 1, 2**64)


def damaged(case: str, dice: random.Random) -> str:
    """A few random changes: of a byte, of a number, of a line."""
    for _ in range(dice.choice((1, 1, 1, 2, 5))):
        lines = case.split("\n")
        at = dice.randrange(len(lines))
        how = dice.randrange(5)
        if how == 0:
            count = dice.randrange(1, 4)
            lines[at] = re.sub(
                r"\d+", lambda one: str(dice.choice(NUMBERS)), lines[at], count=count
            )
        elif how == 1 and lines[at]:
            cut = dice.randrange(len(lines[at]))
            lines[at] = lines[at][:cut] + chr(dice.randrange(1, 256)) + lines[at][cut + 1 :]
        elif how == 2:
            del lines[at]
        elif how == 3:
            lines.insert(at, dice.choice(lines))
        else:
            other = dice.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case = "\n".join(lines)
    return case if case.endswith("\n") else case + "\n"


def random_damage(runner: Runner, all_cases: list[str], dice: random.Random) -> None:
    small = [case for case in all_cases if len(case) < (1 << 20 if FULL else 9000)]
    for _ in range(20 if FULL else 2):
        chosen = [damaged(dice.choice(small), dice) for _ in range(1000 if FULL else 500)]
        _, answer = runner.text("".join(chosen))
        last = re.fullmatch(r"(\d+) passed, (\d+) failed", answer.splitlines()[-1])
        expect(last, answer)
        assert last
        passed, failed = int(last[1]), int(last[2])
        expect(passed > 20 and failed > len(chosen) / 4, answer)


def main(program: str, data: Path) -> None:
    print(f"HR_SEED={SEED}")
    dice = random.Random(SEED)
    all_cases = cases(data)
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(program, Path(folder))
        wrong_plans(runner)
        broken_files(runner)
        same_answers(runner, data, all_cases, dice)
        random_damage(runner, all_cases, dice)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
