"""The list of scenarios finds what is missing, and nothing of ours is."""

from __future__ import annotations

import re
from pathlib import Path

import check_scenarios
import pytest

ROOT = Path(__file__).resolve().parents[2]


def tree(folder: Path) -> Path:
    """A tree with one file that has a test of every scenario."""
    place = folder / "tests" / "scenarios"
    place.mkdir(parents=True)
    lines = []
    for number in check_scenarios.SCENARIOS:
        plain = ("copies", number) in check_scenarios.WITHOUT or number > check_scenarios.SLOTS_UP_TO
        copies = "" if plain else ", copies"
        canary = "" if ("canary", number) in check_scenarios.WITHOUT else ", canary"
        lines.append(f"def test_b{number:03}(daemon{canary}{copies}): ...")
    (place / "test_all.py").write_text("\n".join(lines))
    for other in ("integration", "hostile", "systemd"):
        (folder / "tests" / other).mkdir()
    return folder


def test_ours_is_whole() -> None:
    assert check_scenarios.findings(ROOT) == []


def test_the_list_is_that_of_the_scenarios() -> None:
    """Where the scenarios lie beside the checkout."""
    place = ROOT.parent / "shared" / "SCENARIOS.md"
    if not place.exists():
        pytest.skip("no SCENARIOS.md beside the checkout")
    numbers = [int(n) for n in re.findall(r"^### B(\d+) ", place.read_text(), re.MULTILINE)]
    assert numbers == list(check_scenarios.SCENARIOS)


@pytest.mark.parametrize("number", [1, 33, 41])
def test_a_missing_one_is_found(tmp_path: Path, number: int) -> None:
    root = tree(tmp_path)
    assert check_scenarios.findings(root) == []
    path = root / "tests" / "scenarios" / "test_all.py"
    whole = path.read_text()
    path.write_text(whole.replace(f"test_b{number:03}", "test_else"))
    assert check_scenarios.findings(root) == [f"B{number:03}: no test is named after it"]
    path.write_text(whole.replace(f"b{number:03}(daemon, canary, copies)", f"b{number:03}(daemon)"))
    assert len(check_scenarios.findings(root)) == 2
    path.write_text(whole.replace("test_b026(daemon, canary, copies)", "test_b0264(copies, canary)"))
    assert check_scenarios.findings(root) == ["B026: no test is named after it"]


def test_a_reason_for_what_is_there_is_found(tmp_path: Path) -> None:
    root = tree(tmp_path)
    path = root / "tests" / "scenarios" / "test_all.py"
    path.write_text(path.read_text().replace("test_b043(daemon, canary)", "test_b043(copies, canary)"))
    assert len(check_scenarios.findings(root)) == 1


def test_a_mark_of_the_module_counts(tmp_path: Path) -> None:
    root = tree(tmp_path)
    path = root / "tests" / "scenarios" / "test_all.py"
    text = path.read_text().replace(", canary", "")
    path.write_text(text)
    watched = [n for n in check_scenarios.SCENARIOS if ("canary", n) not in check_scenarios.WITHOUT]
    assert len(check_scenarios.findings(root)) == len(watched)
    path.write_text('pytestmark = pytest.mark.usefixtures("guarded")\n' + text)
    found = check_scenarios.findings(root)
    assert all("WITHOUT says that it does not" in words for words in found)
    assert len(found) == len(check_scenarios.SCENARIOS) - len(watched)
