"""JSON text edited in place: where its parts stand, and new parts put between old ones that stay byte for byte."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

Span: TypeAlias = tuple[int, int]
Piece: TypeAlias = tuple[int | None, str | None]
"""A part of a new text: the index of an old part, what stands there instead, or both."""

_space = re.compile(r"[ \t\r\n]*")
_value = json.JSONDecoder().raw_decode


class Member(NamedTuple):
    """Where a member of an object stands: its key, its value, and the end of both."""

    key: int
    start: int
    end: int


def elements(text: str, at: int) -> list[Span]:
    """Where the elements of the array at a place stand. The text is known to be JSON."""
    spans: list[Span] = []
    at = _after_space(text, at + 1)
    while text[at] != "]":
        end = _value(text, at)[1]
        spans.append((at, end))
        at = _after_space(text, end)
        if text[at] == ",":
            at = _after_space(text, at + 1)
    return spans


def members(text: str, at: int) -> dict[str, Member]:
    """Where the members of the object at a place stand. The text is known to be JSON."""
    found: dict[str, Member] = {}
    at = _after_space(text, at + 1)
    while text[at] != "}":
        key = at
        name, at = _value(text, key)
        start = _after_space(text, _after_space(text, at) + 1)
        end = _value(text, start)[1]
        found[name] = Member(key, start, end)
        at = _after_space(text, end)
        if text[at] == ",":
            at = _after_space(text, at + 1)
    return found


def _after_space(text: str, at: int) -> int:
    found = _space.match(text, at)
    return at if found is None else found.end()


def lines(text: str) -> list[Span]:
    """Where the lines that hold something stand, without the space around it.

    Only what JSON takes for the end of a line is one: text inside strings may hold other separators.
    """
    return [found.span() for found in re.finditer(r"[^ \t\r\n](?:[^\r\n]*[^ \t\r\n])?", text)]


def spliced(text: str, spans: Sequence[Span], pieces: Iterable[Piece], between: str) -> str:
    """A text with other parts at the place of the old ones.

    Args:
        text: The old text.
        spans: Where its parts stand.
        pieces: The new parts, in their order.
        between: What parts two of them that were not neighbours.
    """
    first, last = spans[0][0], spans[-1][1]
    made = [text[:first]]
    before: int | None = None
    for number, (index, instead) in enumerate(pieces):
        if number:
            follows = before is not None and index == before + 1
            made.append(text[spans[index - 1][1] : spans[index][0]] if follows and index else between)
        if instead is not None:
            made.append(instead)
        elif index is not None:
            made.append(text[slice(*spans[index])])
        before = index
    return "".join([*made, text[last:]])


def replaced(text: str, edits: Iterable[tuple[Span, str]]) -> str:
    """A text with something else at some places."""
    for (start, end), instead in sorted(edits, reverse=True):
        text = text[:start] + instead + text[end:]
    return text


def spelled(value: Any, like: str, *, ascii_only: bool) -> str:
    """A value as text, spaced and indented like an object of the same document.

    Args:
        value: Any JSON value.
        like: The text of the object.
        ascii_only: Whether the document escapes all other characters.
    """
    found = re.match(r'\{(\s*)"(?:[^"\\]|\\.)*"\s*:( ?)', like)
    space, colon = (found[1], ":" + found[2]) if found else ("", ": ")
    style: dict[str, Any] = {"separators": (", " if colon == ": " else ",", colon)}
    end, outer = "", ""
    if "\n" in space:
        inner = space.rpartition("\n")[2]
        outer = like[:-1].rpartition("\n")[2]
        outer = "" if outer.strip() else outer
        end = "\r\n" if "\r\n" in space else "\n"
        style = {"separators": (",", colon), "indent": inner.removeprefix(outer)}
    made = json.dumps(value, ensure_ascii=ascii_only, **style)
    try:
        made.encode()
    except UnicodeEncodeError:
        made = json.dumps(value, **style)
    return made.replace("\n", end + outer) if end else made
