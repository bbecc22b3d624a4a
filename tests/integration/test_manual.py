"""The names of commands, options, keys, statuses and reasons are the same in the code, in --help, in the
pages of the manual and in the completions of the shells; the pages are well formed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from headrace.cli.arguments import parser
from run_daemon import build_folder

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("headrace.1", "headracectl.1", "headrace.conf.5", "headrace-errors.7", "headraced.8")


def page(name: str) -> Path:
    found = build_folder() / "man" / name
    if not found.exists():  # a build of the daemon alone
        pytest.skip(f"no {found}")
    return found


def plain(text: str) -> str:
    return text.replace("\\-", "-").replace("\\fR", "").replace("\\fB", "").replace("\\fI", "")


def output(*command: object) -> str:
    return subprocess.run(
        [str(part) for part in command], check=True, capture_output=True, text=True, timeout=30
    ).stdout


def ctl(*arguments: str) -> str:
    program = build_folder() / "client" / "c" / "headracectl"
    if not program.exists():
        pytest.skip(f"no {program}")
    return output(program, *arguments)


def commands() -> list[str]:
    """As the table in the code has them."""
    source = (ROOT / "client" / "c" / "ctl" / "ctl.c").read_text()
    table = source[source.index("commands[] = {") : source.index("option_kind")]
    return [name for name in re.findall(r'^        \{"([a-z]+)",', table, re.MULTILINE)]


def options() -> list[str]:
    source = (ROOT / "client" / "c" / "ctl" / "ctl.c").read_text()
    return re.findall(r'^        \{"(--[a-z-]+)",', source, re.MULTILINE)


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_well_formed(name: str) -> None:
    text = page(name).read_text()
    assert text.startswith(".TH ") and ".SH NAME" in text and "@" not in re.sub(r"\w@\w", "", text)
    warned = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page(name)],
        capture_output=True, text=True, check=True, timeout=30, env={**os.environ, "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    assert warned.stderr == ""
    linted = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", page(name)],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert linted.stdout + linted.stderr == ""


def test_ctl_names_are_everywhere() -> None:
    help_text, manual = ctl("--help"), plain(page("headracectl.1").read_text())
    assert len(commands()) == 15 and len(options()) >= 14
    for name in commands():
        assert re.search(rf"^  {name} ", help_text, re.MULTILINE), name
        if name != "manual":  # the build's own
            assert re.search(rf"^\.B {name}\b", manual, re.MULTILINE), name
    for name in options():
        assert re.search(rf"^  {name} ", help_text, re.MULTILINE), name
        assert re.search(rf"^\.B {name}\b", manual, re.MULTILINE), name
    for code, words in re.findall(r"^  (\d)  (.+)$", help_text, re.MULTILINE):
        assert f".B {code}\n{words}." in manual
    wanted = {"status", "sessions", "devices", "weights", "plans", "explain", "top", "drain", "reload",
              "evict", "quota", "trace", "health"}  # fmt: skip
    assert wanted <= set(commands())


def test_exit_codes_are_those_of_the_code() -> None:
    header = (ROOT / "client" / "c" / "ctl" / "ctl.h").read_text()
    codes = {int(value) for value in re.findall(r"CTL_[A-Z_]+ = (\d),", header)}
    assert codes == {int(code) for code in re.findall(r"^  (\d)  ", ctl("--help"), re.MULTILINE)}


def test_what_can_be_evicted_is_what_the_daemon_knows() -> None:
    daemon = (ROOT / "daemon" / "rpc_operate.c").read_text()
    known = re.search(r"not one of: ([a-z ]+)", daemon)
    assert known
    names = known[1].split()
    table = re.search(r"evictable\[\] = \{([^}]+)\}", (ROOT / "client/c/ctl/ctl.c").read_text())
    assert table and re.findall(r"\w+", table[1]) == names
    manual = plain(page("headracectl.1").read_text())
    for name in names:
        assert re.search(rf"\( ?{name}\b", manual), name
    from headrace.operate import EVICTABLE

    assert list(EVICTABLE) == names


def test_bash_completes(tmp_path: Path) -> None:
    """In a real bash: commands, the options of a command, words, files."""
    script = tmp_path / "completion"
    script.write_text(ctl("completion", "bash"))

    def complete(*words: str) -> set[str]:
        line = " ".join(f"'{word}'" for word in words)
        return set(
            output(
                "bash", "--norc", "-c",
                f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
                '_headracectl; printf "%s\\n" "${COMPREPLY[@]}"',
            ).split()
        )  # fmt: skip

    shown = set(commands()) - {"manual"}
    assert complete("headracectl", "") == shown
    assert complete("headracectl", "se") == {"sessions"}
    assert complete("headracectl", "--json", "dra") == {"drain"}
    assert complete("headracectl", "drain", "--w") == {"--wait"}
    assert "--wait" not in complete("headracectl", "status", "--")
    assert set(options()) >= complete("headracectl", "top", "--") >= {"--interval", "--json"}
    assert complete("headracectl", "evict", "") == {"plans", "graphs", "experts", "uploads", "sessions", "weights"}
    assert complete("headracectl", "--token-file", str(script)) == {str(script)}
    assert complete("headracectl", "--connect", "") == set()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_theirs(shell: str, tmp_path: Path) -> None:
    text = ctl("completion", shell)
    for name in set(commands()) - {"manual"}:
        assert name in text
    for name in options():
        assert (name if shell == "zsh" else f"-l {name[2:]}") in text
    if not shutil.which(shell):
        pytest.skip(f"no {shell}")
    script = tmp_path / "completion"
    script.write_text(text)
    output(shell, "-n", script)
    if shell == "fish":
        found = output("fish", "--no-config", "-c", f"source {script}; complete -C 'headracectl dr'")
        assert found.split()[0] == "drain"


def test_installed_completions_are_the_programs_own() -> None:
    for shell, file in (("bash", "headracectl"), ("zsh", "_headracectl"), ("fish", "headracectl.fish")):
        made = build_folder() / "man" / file
        if not made.exists():
            pytest.skip(f"no {made}")
        assert made.read_text() == ctl("completion", shell)


def test_keys_of_the_configuration() -> None:
    """The page has every key that the daemon has, under its section, and no other."""
    text = plain(page("headrace.conf.5").read_text())
    source = (ROOT / "daemon" / "config_value.c").read_text()
    keys = set(re.findall(r'\{SECTION_([A-Z]+), "(\w+)", KIND', source))
    keys |= {("LIMITS", name) for name in re.findall(r"^        LIMIT(?:_TIME)?\((\w+),", source, re.MULTILINE)}
    assert len(keys) > 90
    shown: set[tuple[str, str]] = set()
    section = ""
    for line in text.splitlines():
        if head := re.fullmatch(r"\.SS \[(\w+).*\]", line):
            section = head[1].upper()
        elif key := re.match(r"\.B (\w+) =", line):
            shown.add((section, key[1]))
    assert shown == keys


def test_options_of_the_daemon() -> None:
    source = (ROOT / "daemon" / "main.c").read_text()
    known = set(re.findall(r'"(--[a-z-]+)"', source))
    known |= {f"{name}" for name in re.findall(r'option_value\(argv, argc, &i, "(--[a-z]+)"', source)}
    helped = set(re.findall(r'^\s+"  (--[a-z-]+)', source, re.MULTILINE))
    assert known == helped
    shown = set(re.findall(r"^\.B (--[a-z-]+)", plain(page("headraced.8").read_text()), re.MULTILINE))
    assert shown >= known


def test_statuses_and_reasons() -> None:
    text = plain(page("headrace-errors.7").read_text())
    header = (ROOT / "core" / "status.h").read_text()
    for name in re.findall(r"^\s+HR_E_([A-Z_]+)", header, re.MULTILINE):
        assert re.search(rf"^\.B {name}$", text, re.MULTILINE), name
    given = re.compile(r'HR_E_[A-Z_]+,\s*"([A-Z][A-Z_0-9]+)"')
    for path in (ROOT / "daemon").glob("*.c"):
        for reason in given.findall(path.read_text()):
            assert re.search(rf"\b{reason}\b", text), f"{reason} of {path.name}"


def test_commands_of_the_python_client() -> None:
    """headrace(1) is written by hand: it has what the parser has, and nothing else."""
    text = plain(page("headrace.1").read_text())
    sections = dict(re.findall(r"^\.SS (\w+)\n(.*?)(?=^\.S[SH] )", text, re.MULTILINE | re.DOTALL))
    top = parser()
    sub = next(a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    assert set(sections) == set(sub.choices)
    common = {name for a in top._actions for name in a.option_strings}
    head = text[text.index(".SH OPTIONS") : text.index(".SH COMMANDS")]
    assert set(re.findall(r"(--?[a-z][a-z-]*)", "\n".join(re.findall(r"^\.B (.*)$", head, re.MULTILINE)))) == (
        common - {"-h", "--help"})  # fmt: skip
    for name, command in sub.choices.items():
        theirs = {one for a in command._actions for one in a.option_strings} - common
        lines = "\n".join(re.findall(r"^\.B (-.*)$", sections[name], re.MULTILINE))
        assert set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", lines)) == theirs, name


# ---- booleans --------------------------------------------------------------------------------------


def booleans() -> list[str]:
    source = (ROOT / "daemon" / "config_value.c").read_text()
    named = {"DEVICE": "device.cpu0", "PRINCIPAL": "principal.x"}
    return [
        f"{named.get(section, section.lower())}.{key}"
        for section, key in re.findall(r'\{SECTION_([A-Z]+), "(\w+)", KIND_BOOL', source)
    ]


@pytest.mark.parametrize("key", booleans())
def test_booleans_take_the_usual_words(key: str) -> None:
    daemon = build_folder() / "daemon" / "headraced"
    section, _, name = key.rpartition(".")
    base = ["--set", "listen.unix=/x", "--set", "device.cpu0.threads=1", "--check-config", "--dump-config"]
    for value, words in (("yes", "yes TRUE on 1 Yes"), ("no", "no false OFF 0")):
        for word in words.split():
            dump = output(daemon, "--set", f"{key}={word}", *base)
            part = dump[dump.index(f"[{section.replace('.', ' ')}]") :]
            assert re.search(rf"^{name} = (\w+)$", part, re.MULTILINE)[1] == value, word  # type: ignore[index]
    for garbage in ("", "y", "2", "yes no", "enabled", "-1", "tru", "1.0", "yes;"):
        done = subprocess.run(
            [daemon, "--set", f"{key}={garbage}", *base], capture_output=True, text=True, check=False
        )
        assert done.returncode == 78 and done.stdout == "", garbage
        assert f"{name}: '{garbage}' is neither yes nor no" in done.stderr
