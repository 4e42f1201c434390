"""What is public: a name that appears here, or leaves, is a decision."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SNAPSHOT = Path(__file__).parent / "vectors" / "public_names.json"
NAMES: dict[str, list[str]] = json.loads(SNAPSHOT.read_text("utf-8"))
# Classes that are open for a reason.
NOT_FINAL = {
    "ConvmodelError": "the base of all errors",
    "ValidationError": "InvalidReply is one",
    "InvalidReply": "an error, which users may refine",
    "BetaRequest": "a TypedDict, which cannot be subclassed at run time",
    "Request": "a TypedDict, which cannot be subclassed at run time",
    "ApiError": "the double has a kind of its own",
    "MessagesServer": "users may add what their tests need",
}


def module_of(name: str) -> ModuleType:
    return importlib.import_module(name)


def public(kind: Any) -> list[tuple[str, str, Any]]:
    """The public objects of a kind that are ours, each once, with the module and the name that show it."""
    seen: dict[int, tuple[str, str, Any]] = {}
    for module, names in NAMES.items():
        for name in names:
            value = getattr(module_of(module), name)
            if kind(value) and value.__module__.startswith("convmodel"):
                seen.setdefault(id(value), (module, name, value))
    return list(seen.values())


CLASSES = public(inspect.isclass)
FUNCTIONS = public(inspect.isfunction)


@pytest.mark.parametrize("module", NAMES)
def test_the_public_names_are_those_of_the_snapshot(module: str) -> None:
    assert sorted(module_of(module).__all__) == NAMES[module]


@pytest.mark.parametrize("module", NAMES)
def test_every_public_name_is_there_and_a_star_import_gives_it(module: str) -> None:
    space: dict[str, Any] = {}
    exec(f"from {module} import *", space)
    assert set(NAMES[module]) <= space.keys()


@pytest.mark.parametrize(("name", "cls"), [each[1:] for each in CLASSES], ids=[each[1] for each in CLASSES])
def test_every_public_class_is_final_and_says_what_it_is(name: str, cls: Any) -> None:
    assert (cls.__doc__ or "").strip(), "no docstring"
    assert not (cls.__doc__ or "").startswith("Method generated"), "no docstring of its own"
    assert getattr(cls, "__final__", False) != (name in NOT_FINAL)


def test_every_open_class_is_still_public() -> None:
    assert NOT_FINAL.keys() <= {name for _, name, _ in CLASSES}


@pytest.mark.parametrize(
    ("name", "function"), [each[1:] for each in FUNCTIONS], ids=[each[1] for each in FUNCTIONS]
)
def test_every_public_function_says_what_it_does(name: str, function: Any) -> None:
    doc = inspect.getdoc(function) or ""
    assert doc, name
    for parameter in inspect.signature(function).parameters.values():
        said = (f"{parameter.name}:", f"`{parameter.name}`")
        assert any(each in doc for each in said), f"{name}({parameter.name}) is not described"


METHODS = [
    (f"{name}.{attribute}", value)
    for _, name, cls in CLASSES
    for attribute, value in vars(cls).items()
    if not attribute.startswith("_")
    and isinstance(value, (property, classmethod)) | inspect.isfunction(value)
]


@pytest.mark.parametrize(("name", "method"), METHODS, ids=[method[0] for method in METHODS])
def test_every_public_method_says_what_it_does(name: str, method: Any) -> None:
    assert (inspect.getdoc(method) or "").strip(), name


@pytest.mark.parametrize(("name", "cls"), [each[1:] for each in CLASSES], ids=[each[1] for each in CLASSES])
def test_every_field_of_a_public_value_is_described(name: str, cls: Any) -> None:
    fields = [field.name for field in getattr(cls, "__attrs_attrs__", ()) if not field.name.startswith("_")]
    assert [field for field in fields if f"{field}:" not in (cls.__doc__ or "")] == [], name


@pytest.mark.parametrize("module", NAMES)
def test_a_public_module_says_what_it_is(module: str) -> None:
    assert (module_of(module).__doc__ or "").strip()


def test_the_rules_that_docstrings_name_exist() -> None:
    import re

    from convmodel import RULES

    named: set[str] = set()
    for _, _, value in [*CLASSES, *FUNCTIONS]:
        for doc in (value.__doc__, *(getattr(m, "__doc__", None) for m in vars(value).values())):
            named |= set(re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", doc or ""))
    assert {name for name in named if name not in RULES and not name.startswith("claude-")} == set()
