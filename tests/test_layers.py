"""The order of the modules: each imports only what stands above it, and `import convmodel` stays light."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import convmodel

PACKAGE = Path(convmodel.__file__).parent
# From the ground up. Modules of one row stand side by side and do not import each other.
ORDER = (
    ("errors",),
    ("jsonvalue",),
    ("fields",),
    ("redact",),
    ("shapes",),
    ("blocks",),
    ("declared",),
    ("turns",),
    ("markers",),
    ("preamble",),
    ("machine",),
    ("log",),
    ("edits",),
    ("conversation",),
    ("anthropic.cache",),
    ("anthropic.targets",),
    ("anthropic.write", "anthropic.read", "anthropic.faults"),
    ("anthropic.stream",),
    ("anthropic",),
    ("storage.stored",),
    ("storage",),
    ("cattrs",),
    ("rules",),
    ("view",),
    ("repair.plan",),
    ("repair.rows", "repair.blocks", "repair.pairs", "repair.turns"),
    ("repair.mend",),
    ("repair",),
    ("recovery",),
    ("jsontext",),
    ("claude_code",),
    ("files",),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, row in enumerate(ORDER) for name in row}
# Imports against the order, each with its reason.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("errors", "turns"): "for type checkers only: an error carries a reply",
}


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(name: str) -> Iterator[tuple[str, str]]:
    """The modules of the package that a module imports, wherever in it, as module and imported name."""
    path = MODULES[name]
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    package = [part for part in package if part]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "convmodel":
                    yield alias.name.partition(".")[2], ""
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
                module = ".".join(part for part in base if part)
            elif (node.module or "").partition(".")[0] == "convmodel":
                module = (node.module or "").partition(".")[2]
            else:
                continue
            for alias in node.names:
                below = f"{module}.{alias.name}".strip(".")
                yield (below if below in MODULES else module), alias.name


CHECKED = [name for name in MODULES if name and not name.startswith("testing")]


def test_the_order_names_every_module_and_no_other() -> None:
    assert set(LEVEL) == set(CHECKED)


@pytest.mark.parametrize("name", CHECKED)
def test_a_module_imports_only_what_stands_above_it(name: str) -> None:
    wrong = {module for module, _ in imports(name) if LEVEL.get(module, 99) >= LEVEL[name] and module != ""}
    if name in ("cli", "__main__", "view"):
        wrong -= {""}
    assert {module for module in wrong if (name, module) not in EXCEPTIONS} == set()


def test_every_exception_is_still_needed() -> None:
    assert [
        (name, module) for name, module in EXCEPTIONS if module not in {m for m, _ in imports(name)}
    ] == []


def test_only_the_top_imports_from_the_package_itself() -> None:
    from_top = {name for name in CHECKED for module, _ in imports(name) if module == ""}
    assert from_top <= {"cli", "__main__", "view"}


@pytest.mark.parametrize(
    "name", [name for name in MODULES if name.startswith("testing") and "strategies" not in name]
)
def test_the_double_imports_nothing_of_the_checks(name: str) -> None:
    assert {module for module, _ in imports(name) if not module.startswith("testing")} == set()


def test_wires_do_not_import_each_other_and_nothing_below_imports_a_wire() -> None:
    low = [name for name in CHECKED if LEVEL[name] < LEVEL["anthropic.targets"]]
    assert {name for name in low for module, _ in imports(name) if module.startswith("anthropic")} == set()


def run(code: str) -> str:
    path = str(PACKAGE.parent)
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    return out.stdout.strip()


WATCHED = {"anthropic", "pydantic", "cattrs", "hypothesis", "jsonschema", "httpx"}
HEAVY = f"print(sorted({WATCHED} & set(sys.modules)))"


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        pytest.param("import convmodel", [], id="the package"),
        pytest.param(
            "import convmodel.anthropic, convmodel.storage, convmodel.cli", [], id="all but testing"
        ),
        pytest.param("from convmodel import *", [], id="every name, the catalogue too"),
        pytest.param(
            "from convmodel import start; from convmodel.anthropic import parse, from_message\n"
            "start('hi').receive(from_message({'content': [], 'stop_reason': 'refusal'})); parse([])",
            ["cattrs"],
            id="a binding, which is made of what is written",
        ),
        pytest.param(
            "from convmodel import start; from convmodel.anthropic import to_request, Target\n"
            "to_request(start('hi'), Target(model='m'))",
            ["cattrs"],
            id="a request",
        ),
    ],
)
def test_a_new_process_loads_only_what_it_needs(code: str, loaded: list[str]) -> None:
    assert run(f"import sys\n{code}\n{HEAVY}") == str(loaded)


def test_the_catalogue_is_loaded_when_it_is_asked_for() -> None:
    assert (
        run("import sys, convmodel\nprint('convmodel.rules' in sys.modules, len(convmodel.RULES) > 50)")
        == "False True"
    )


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'convmodel' has no attribute 'Turns'"):
        convmodel.__getattr__("Turns")
