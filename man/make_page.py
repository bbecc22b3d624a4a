"""Writes a page of the manual from its source: python3 make_page.py SOURCE OUT [NAME=COMMAND-OR-FILE]...

A line of the source that is @PART@ is replaced. Parts come from where the names are decided, so that
a page cannot fall behind: `headracectl manual PART`, the options of `headraced --help`, the reference
configuration, the tables of statuses and reasons. Nothing but Python's own library is needed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def roff(text: str) -> str:
    """Plain text as roff: what it would take for its own, and a line that begins with a dot."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    text = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", text)
    return re.sub(r"^\.", r"\\\&.", text, flags=re.MULTILINE)


def command(program: str, *arguments: str) -> str:
    return subprocess.run(
        [program, *arguments], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL
    ).stdout


def item(name: str, words: str) -> str:
    return f".TP\n.B {name}\n{words}\n"


def usage_options(text: str) -> str:
    """Lines `  --name ARGUMENT   words` of a --help."""
    found = re.findall(r"^  (--\S+)((?: \S+)*?)  +(\S.*)$", text, re.MULTILINE)
    return "".join(
        item(roff(name) + (f" \\fI{roff(argument.strip())}\\fR" if argument else ""),
             roff(words) + ".")
        for name, argument, words in found
    )  # fmt: skip


def configuration(text: str) -> str:
    """Sections, and keys below the comments that are about them."""
    out: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        section = re.fullmatch(r"#?\[(.+)\]", line)
        key = re.fullmatch(r"#(\w+) =(.*)", line)
        if section:
            out.append(f".SS [{roff(section[1])}]\n")
            if comment:
                out.append(roff(" ".join(comment)) + "\n")
            comment = []
        elif key:
            value = key[2].strip()
            shown = f" = {roff(value)}" if value else " ="
            out.append(item(f"{roff(key[1])}\\fR{shown}", roff(" ".join(comment)) or "Likewise."))
            comment = []
        elif line.startswith("#"):
            comment.append(line[1:].strip())
        else:
            comment = []
    return "".join(out)


def table(text: str, heading: str) -> list[list[str]]:
    """The rows of the first table behind a line."""
    rows: list[list[str]] = []
    for line in text[text.index(heading) :].splitlines():
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            break
    return rows[2:]


def statuses(text: str) -> str:
    out = []
    for name, number, scope, also, reasons in table(text, "| hr_status |"):
        words = f"Number {number}" + (f", scope {scope}" if scope else "") + "."
        if also:
            words += f" Also called {also}."
        if reasons == "below":
            words += " Its reasons are below."
        elif reasons:
            words += f" Reasons: {reasons}."
        out.append(item(roff(name), roff(words)))
    return "".join(out)


def reasons(text: str) -> str:
    return "".join(
        item(roff(names), roff(words) + ".") for names, words in table(text, "| reason |")
    )


def main() -> None:
    source, target, *given = sys.argv[1:]
    where = dict(one.split("=", 1) for one in given)
    parts = {
        "commands": lambda: command(where["ctl"], "manual", "commands"),
        "options": lambda: command(where["ctl"], "manual", "options"),
        "exit": lambda: command(where["ctl"], "manual", "exit"),
        "daemon-options": lambda: usage_options(command(where["daemon"], "--help")),
        "configuration": lambda: configuration(Path(where["configuration"]).read_text()),
        "statuses": lambda: statuses(Path(where["errors"]).read_text()),
        "reasons": lambda: reasons(Path(where["errors"]).read_text()),
        "version": lambda: where["version"],
    }
    text = Path(source).read_text()
    text = re.sub(r"^@([a-z-]+)@\n", lambda m: parts[m[1]](), text, flags=re.MULTILINE)
    text = text.replace("@VERSION@", where["version"])
    Path(target).write_text(text)


if __name__ == "__main__":
    main()
