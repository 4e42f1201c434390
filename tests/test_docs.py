"""The documentation holds: generated pages are fresh, shown sessions are real, links lead somewhere, examples run.

The Python blocks of the pages and the doctests in docstrings run by themselves; see `conftest.py` at the top.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import convmodel
from convmodel import RULES
from convmodel.anthropic.faults import ONLY_IN_ERRORS

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOOL = f"{sys.executable} -m convmodel"


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


each_page = pytest.mark.parametrize("page", PAGES, ids=name)


def ran(command: str) -> subprocess.CompletedProcess[str]:
    """What a shell command does in the project's folder, without a key of the real service."""
    environment = {key: value for key, value in os.environ.items() if key != "ANTHROPIC_API_KEY"}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def blocks(page: Path, language: str) -> Iterator[str]:
    for found in FENCED.finditer(page.read_text("utf-8")):
        if found[1] == language:
            yield found[2]


def sessions() -> Iterator[tuple[str, str]]:
    """Each command that a page shows after a `$`, with the output that it shows."""
    for page in PAGES:
        for block in blocks(page, "console"):
            for command, _, shown in (
                part.partition("\n") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
            ):
                yield command, shown


@pytest.mark.parametrize(("command", "shown"), list(sessions()))
def test_a_shown_session_is_what_the_command_prints(command: str, shown: str) -> None:
    result = ran(re.sub(r"\bconvmodel (?=\w)", f"{TOOL} ", command))

    assert (result.stdout, result.stderr) == (shown, "")


def test_generated_pages_are_fresh() -> None:
    result = ran(f"{sys.executable} docs/generate.py --check")

    assert (result.stdout, result.returncode) == ("", 0)


def test_the_code_of_pages_is_typed(tmp_path: Path) -> None:
    """What readers copy passes their own type checker. Names that a page leaves to them are no fault."""
    for page in PAGES:
        code = [block for block in blocks(page, "python") if not block.startswith(">>>")]
        if code:
            (tmp_path / f"{page.stem.replace('-', '_')}_page.py").write_text("\n".join(code), "utf-8")
    options = "--strict --disable-error-code name-defined --disable-error-code used-before-def"
    result = ran(f"{sys.executable} -m mypy {options} --cache-dir {tmp_path}/cache {tmp_path}/*.py")
    assert (result.stdout.splitlines()[-1].startswith("Success"), result.stderr) == (True, ""), result.stdout


# ---------------------------------------------------------------- links


def anchors(page: Path) -> set[str]:
    """The anchors that the headings of a page make."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    text = FENCED.sub("", page.read_text("utf-8"))
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    broken = []
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)

    assert broken == []


def test_every_page_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {
        (index.parent / link).resolve() for link in re.findall(r"\]\(([^)#\s]+)\)", index.read_text("utf-8"))
    }

    assert {page for page in PAGES if page.is_relative_to(index.parent)} - linked == {index}


# ---------------------------------------------------------------- rules


@each_page
def test_rules_that_the_pages_name_exist(page: Path) -> None:
    named = re.findall(r"\[([a-z0-9]+(?:-[a-z0-9]+)+)\]$", page.read_text("utf-8"), re.MULTILINE)

    assert [id for id in named if id not in RULES] == []


def test_what_is_called_not_covered_is_not_checked() -> None:
    page = (ROOT / "docs" / "not-covered.md").read_text("utf-8")
    heads = [
        re.split(r":|\.? holds", item)[0]
        for item in re.findall(r"^- (`[^\n]*(?:\n  [^\n]*)*)", page, re.MULTILINE)
    ]
    named = [id for head in heads for id in re.findall(r"`([a-z0-9-]+)`", head)]

    assert len(named) > 60
    assert [id for id in named if id in RULES and id not in ONLY_IN_ERRORS] == []


def test_docstrings_name_rules_that_exist() -> None:
    unknown = []
    for path in (ROOT / "convmodel").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                _, _, raises = (ast.get_docstring(node) or "").partition("Raises:\n")
                section = raises.partition("\n\n")[0]
                named = re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", section)
                unknown += [(node.name, id) for id in named if id not in RULES]

    assert unknown == []


# ---------------------------------------------------------------- the README's promises


def commands() -> list[str]:
    return [block.strip() for block in blocks(ROOT / "README.md", "sh")]


def test_the_readme_has_two_commands_of_one_line_each() -> None:
    first, second = commands()

    assert all(
        "\n" not in command and command.startswith("python3.11 -m venv .venv && ") for command in commands()
    )
    assert "examples/agent.py" in first
    assert second.endswith("pytest -q")


def test_what_the_first_command_runs_succeeds() -> None:
    first = commands()[0]
    _, main = first.split("pip install -q '.[testing]' && ")
    result = ran(main.replace(".venv/bin/python", sys.executable).replace(".venv/bin/convmodel", TOOL))

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(
        "I'll read both files.\nround 1: thinking, text, tool_use, thinking, tool_use\n  ran: toolu_01A\n"
    )
    for line in (
        "  failed: toolu_01B",
        "round 4: thinking, text",
        "              tool_use toolu_01B read_file (name)",
        "= AwaitingUser",
        "Order 17 is worth 36: three lamps at 12 each.",
        "messages[2].content[2]",
        "11 violations; `convmodel explain RULE` says more",
    ):
        assert line in result.stdout.splitlines()


def test_the_changelog_names_the_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")

    assert re.search(rf"^## \[?{re.escape(convmodel.__version__)}\b", changes, re.MULTILINE)
