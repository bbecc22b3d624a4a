"""Runs the stages of a bundle one after the other; run.sh calls it.

Parts are unpacked into one folder (--root), where what an earlier call has brought, and what it has
seen, still is. A stage runs in the call that brings the last part it needs; one that has passed is not
run again (--again: it is). One line a stage says what was seen; after a failure the others still run.

A stage may wait for parts, or for the next call where --seconds are spent; neither is a pass. Results go
to $OUT, if that is set: results.json, and all that the stages said in logs.txt.

Exit status: 0 all that ran passed, 1 something failed, 77 there is no driver or no GPU: nothing is proven.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from machine import environment, find_libraries, find_sanitizer  # noqa: E402
from stages import STAGES, Stage  # noqa: E402

NO_GPU = 77
UNFINISHED = 1  # what $OUT says until the end
MARK = "HEADRACE_GPU_STAGE"  # in the environment of all that a stage starts
CLOSING_WORDS = 160  # of a stage's line
# A part, or a piece of one: base.tar.xz, base.tar.xz.2of3.
PART = re.compile(r"^(\w+\.tar\.(?:xz|gz))(?:\.(\d+)of(\d+))?$")
LOG_BYTES = 12 << 20  # of logs.txt: what comes back may have a limit


@dataclass
class Outcome:
    status: str  # pass, fail, skip; what waits has none
    words: str
    seconds: float = 0.0

    def as_json(self) -> dict[str, object]:
        return {"status": self.status, "words": self.words, "seconds": round(self.seconds, 1)}


@dataclass
class Session:
    """What this call has, and what earlier ones have left."""

    root: Path
    quick: bool
    ends: float
    patience: float = 1.0
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def record(self) -> Path:
        return self.root / "results.json"

    def remember(self) -> None:
        told = {name: outcome.as_json() for name, outcome in self.outcomes.items()}
        self.record.write_text(json.dumps({"stages": told}, indent=1) + "\n")

    def recall(self) -> None:
        if self.record.exists():
            for name, told in json.loads(self.record.read_text())["stages"].items():
                self.outcomes[name] = Outcome(told["status"], told["words"], told["seconds"])


def say(*words: object) -> None:
    print(*words, flush=True)


# ---- parts ---------------------------------------------------------------------------------------


def unpack(archive: Path, root: Path) -> None:
    with tarfile.open(archive) as tar:
        # Not all releases of 3.11 have filters.
        tar.extractall(root, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))


def take(parts: Sequence[Path], root: Path) -> None:
    """Unpacks parts; a piece of one is kept until all are there."""
    pieces = root / "pieces"
    pieces.mkdir(parents=True, exist_ok=True)
    for part in parts:
        match = PART.match(part.name)
        index, count = (int(number) for number in match.groups("1")[1:]) if match else (0, 0)
        if match is None or not 1 <= index <= count:
            raise ValueError(f"{part.name} is no part of a bundle")
        if count == 1:
            unpack(part, root)
            continue
        (pieces / part.name).write_bytes(part.read_bytes())
        wanted = [pieces / f"{match[1]}.{i}of{count}" for i in range(1, count + 1)]
        if all(piece.exists() for piece in wanted):
            whole = pieces / match[1]
            with whole.open("wb") as out:
                for piece in wanted:
                    out.write(piece.read_bytes())
            unpack(whole, root)
            for piece in (whole, *wanted):
                piece.unlink()


# ---- stages --------------------------------------------------------------------------------------


def end_stragglers(mark: str) -> int:
    """Ends what a stage has started and left behind, in whatever session: a daemon would keep its GPU."""
    ended = 0
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"{MARK}={mark}".encode() in (
                folder / "environ"
            ).read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                ended += 1
        except OSError:
            continue  # somebody else's, or gone
    return ended


def execute(stage: Stage, session: Session, env: dict[str, str]) -> Outcome:
    """The stage, and nothing of it is left afterwards."""
    mark = f"{os.getpid()}-{stage.name}"
    try:
        return run_commands(stage, session, {**env, MARK: mark})
    finally:
        # What is being started while this looks is found by the next look.
        for _ in range(5):
            if not end_stragglers(mark):
                break
            time.sleep(0.05)


def run_commands(stage: Stage, session: Session, env: dict[str, str]) -> Outcome:
    """One command after the other, each in a process group that goes with it."""
    log = session.logs / f"{stage.name}.log"
    began = time.monotonic()
    limit = min(stage.seconds * session.patience, session.ends - began)
    words = ""
    with log.open("w+") as out:
        for command in stage.commands(session.root, session.quick):
            out.write("$ " + " ".join(map(str, command)) + "\n")
            out.flush()
            start = out.tell()
            try:
                process = subprocess.Popen(
                    [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out,
                    stderr=subprocess.STDOUT, cwd=session.root, env=env, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                return Outcome("fail", f"{command[0]}: {error.strerror}", time.monotonic() - began)
            try:
                code = process.wait(max(0.1, began + limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return Outcome("fail", f"not over after {limit:.0f} s", time.monotonic() - began)
            out.seek(start)
            text = out.read()
            words = stage.judge(code, text) or ""
            if words:
                return Outcome("fail", words[:CLOSING_WORDS], time.monotonic() - began)
            words = stage.tell(text)[:CLOSING_WORDS]
    return Outcome("pass", words, time.monotonic() - began)


def waits(stage: Stage, session: Session) -> str:
    """Why it does not run now; empty where it does."""
    missing = [part for part in stage.parts if not (session.root / f"{part}.part").exists()]
    if missing:
        return f"for the part {', '.join(missing)}"
    if time.monotonic() + stage.expected > session.ends:
        return "for a call with time left"
    return ""


def run_stages(chosen: Sequence[Stage], session: Session, again: bool) -> list[str]:
    """Names of the stages that wait."""
    env = environment(session.root)
    waiting = []
    for stage in chosen:
        known = session.outcomes.get(stage.name)
        if known and known.status == "pass" and not again:
            say(f"pass  {stage.name:<14} earlier: {known.words}")
            continue
        reason = waits(stage, session)
        if reason:
            say(f"wait  {stage.name:<14} {reason}")
            waiting.append(stage.name)
            continue
        if stage.needs_sanitizer and not find_sanitizer():
            outcome = Outcome("skip", "there is no compute-sanitizer")
        else:
            outcome = execute(stage, session, env)
        session.outcomes[stage.name] = outcome
        session.remember()
        hand_over(session, waiting, UNFINISHED)  # this call may be ended from outside
        say(f"{outcome.status:<5} {stage.name:<14} {outcome.words} ({outcome.seconds:.1f} s)")
        if outcome.status == "fail" and stage.name == STAGES[0].name:
            break  # no other can say anything
    return waiting


# ---- results -------------------------------------------------------------------------------------


def hand_over(session: Session, waiting: Sequence[str], status: int) -> None:
    out = os.environ.get("OUT")
    if not out:
        return
    Path(out).mkdir(parents=True, exist_ok=True)
    told: dict[str, object] = {
        "exit_status": status,
        "waiting": list(waiting),
        "stages": {name: outcome.as_json() for name, outcome in session.outcomes.items()},
        "libraries": find_libraries(),
    }
    for file in sorted((session.root / "results").glob("*/gpu.json")):
        told[f"bench {file.parent.name}"] = json.loads(file.read_text())
    (Path(out) / "results.json").write_text(json.dumps(told, indent=1) + "\n")
    with (Path(out) / "logs.txt").open("wb") as logs:
        for stage in STAGES:
            file = session.logs / f"{stage.name}.log"
            if file.exists():
                share = file.read_bytes()[-LOG_BYTES // len(STAGES) :]
                logs.write(f"==== {stage.name}\n".encode() + share + b"\n")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/gpu/run.sh", description=__doc__)
    parser.add_argument("parts", metavar="PART", nargs="*", type=Path)
    parser.add_argument("--root", type=Path, default=Path("/tmp/headrace-gpu"))
    parser.add_argument("--seconds", type=float, default=560, help="for all stages of this call")
    parser.add_argument("--patience", type=float, default=1, help="times what a stage may take")
    parser.add_argument("--only", metavar="STAGE", action="append", help="no others")
    parser.add_argument("--skip", metavar="STAGE", action="append", default=[])
    parser.add_argument("--again", action="store_true", help="what has passed as well")
    parser.add_argument("--quick", action="store_true", help="sizes for a GPU that is none")
    parser.add_argument("--list", action="store_true", help="name the stages and end")
    args = parser.parse_args(arguments)
    unknown = {*(args.only or ()), *args.skip} - {stage.name for stage in STAGES}
    if unknown:
        parser.error(f"no stage {', '.join(sorted(unknown))}")
    return args


def main(arguments: Sequence[str]) -> int:
    args = parse(arguments)
    if args.list:
        for stage in STAGES:
            say(f"{stage.name:<14} {', '.join(stage.parts):<12} {stage.expected:>4.0f} s  {stage.about}")
        return 0
    session = Session(
        args.root.resolve(), args.quick, time.monotonic() + args.seconds, args.patience
    )
    session.logs.mkdir(parents=True, exist_ok=True)
    # Whoever ends this call ends its stage as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        take(args.parts, session.root)
    except (OSError, ValueError, tarfile.TarError, EOFError) as error:
        say(f"fail  unpacking      {error}")
        return 1
    session.recall()
    chosen = [s for s in STAGES if (not args.only or s.name in args.only) and s.name not in args.skip]
    waiting = run_stages(chosen, session, args.again)
    seen = [session.outcomes[s.name] for s in chosen if s.name in session.outcomes]
    counts = {kind: sum(o.status == kind for o in seen) for kind in ("pass", "fail", "skip")}
    status = 1 if counts["fail"] or not counts["pass"] else 0
    first = session.outcomes.get(STAGES[0].name)
    if first and first.status == "fail" and first.words.startswith("no "):
        status = NO_GPU
        say(f"{first.words}: nothing is proven here")
    say(
        f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped, "
        f"{len(waiting)} waiting"
    )
    hand_over(session, waiting, status)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
