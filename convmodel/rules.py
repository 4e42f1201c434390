"""The catalogue: every rule that convmodel enforces, gathered from the modules that hold the checks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import blocks, conversation, fields, jsonvalue, markers, preamble, turns
from .anthropic import read, targets
from .errors import Rule
from .storage import stored

_HOMES = (jsonvalue, fields, blocks, turns, preamble, markers, conversation, targets, read, stored)


def _gathered() -> dict[str, Rule]:
    rules: dict[str, Rule] = {}
    for module in _HOMES:
        for value in vars(module).values():
            if isinstance(value, Rule):
                rules.setdefault(value.id, value)
    return rules


RULES: Mapping[str, Rule] = MappingProxyType(_gathered())
"""All rules by id. Iterating gives the ids."""
