"""The catalogue: every rule that convmodel knows, gathered from the modules that hold the checks."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from .errors import Rule

# By name: the package has a function `conversation`, which hides the module of that name from `from . import`.
_HOMES = (
    "jsonvalue",
    "fields",
    "blocks",
    "turns",
    "preamble",
    "markers",
    "machine",
    "edits",
    "conversation",
    "anthropic.cache",
    "anthropic.targets",
    "anthropic.read",
    "anthropic.faults",
    "anthropic.stream",
    "storage.stored",
)


def _gathered() -> dict[str, Rule]:
    rules: dict[str, Rule] = {}
    for home in _HOMES:
        for value in vars(import_module(f"{__package__}.{home}")).values():
            if isinstance(value, Rule):
                rules.setdefault(value.id, value)
    return rules


RULES: Mapping[str, Rule] = MappingProxyType(_gathered())
"""All rules by id: those that are checked, and those that only errors of the API name. Iterating gives the ids."""
