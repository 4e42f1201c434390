"""One conversation as one JSON object: format, preamble, and a row for each turn with its blocks and origin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from ..blocks import OpaqueBlock, class_of
from ..conversation import AwaitingModel, AwaitingTools, AwaitingUser, Conversation, conversation
from ..declared import STORED, storing
from ..errors import Rule, ValidationError, Violation, join, key_name
from ..fields import (
    BLOCK_TYPE,
    BROKEN,
    CONTENT_TYPE,
    REQUIRED_FIELD,
    UNKNOWN_FIELD,
    Reading,
    described,
    mapping,
    read_value,
    require,
)
from ..jsonvalue import decode
from ..preamble import read_preamble
from ..turns import AssistantTurn, Origin, SystemTurn, Turn, UserTurn

FORMAT = 1
"""The version of the stored form that this release writes."""
STORED_FORMAT = Rule(
    "stored-format",
    "A stored conversation has a format that this release reads.",
    "convmodel",
)
TURNS: dict[str, type[Turn]] = {"user": UserTurn, "assistant": AssistantTurn, "system": SystemTurn}


def dumps(conversation: Conversation) -> str:
    """A conversation as JSON text, with all that is known of it.

    Args:
        conversation: A conversation in any state.

    Returns:
        Text of one line. `loads` gives an equal conversation, which writes the same bytes to the wire.

    >>> from convmodel import start
    >>> loads(dumps(start("Hello."))) == start("Hello.")
    True
    """
    require(conversation, (AwaitingUser, AwaitingModel, AwaitingTools), "conversation", "a conversation")
    convert = storing().unstructure
    rows: list[dict[str, Any]] = []
    for turn in conversation.turns:
        row: dict[str, Any] = {"role": turn.role, "blocks": [convert(block) for block in turn.blocks]}
        if type(turn) is AssistantTurn and turn.origin is not None:
            row["origin"] = convert(turn.origin)
        rows.append(row)
    preamble = convert(conversation.preamble)
    return msgspec.json.encode({"convmodel": FORMAT, **preamble, "turns": rows}).decode()


def loads(text: str | bytes) -> Conversation:
    """A conversation from its stored form. Opaque blocks whose type is known by now get their class.

    Args:
        text: What `dumps` gave.

    Raises:
        ValidationError: `stored-format` for a newer format or another kind of text; every rule that the content
            breaks, each with its path.
    """
    require(text, (str, bytes, bytearray, memoryview), "text", "text")
    value, faults = decode(text)
    if faults:
        raise ValidationError(faults)
    return structured(value)


def structured(value: object) -> Conversation:
    """A conversation from the plain data that its stored form holds.

    Raises:
        ValidationError: As `loads`.
    """
    data = mapping(value)
    if data is None:
        found = f"{described(value)} where an object is due"
        raise ValidationError([Violation(STORED_FORMAT, "", found, "Pass what `dumps` gave.")])
    version = data.get("convmodel")
    if type(version) is not int or version != FORMAT:
        newer = type(version) is int and version > FORMAT
        fix = "Load it with a newer convmodel." if newer else "Pass what `dumps` gave."
        found = (
            f"format {str(version)[:10]} where {FORMAT} is the newest known" if newer else "no known format"
        )
        raise ValidationError([Violation(STORED_FORMAT, "convmodel", found, fix)])
    reading = Reading(STORED)
    _only(data, {"convmodel", "system", "tools", "turns"}, "", reading)
    preamble = read_preamble(data.get("system"), data.get("tools"), reading)
    rows = data.get("turns")
    if not isinstance(rows, list):
        reading.fault(
            CONTENT_TYPE, "turns", f"{described(rows)} where a list is due", "Pass what `dumps` gave."
        )
        rows = []
    turns = [_turn(row, f"turns[{at}]", reading) for at, row in enumerate(cast("list[object]", rows))]
    if reading.violations or preamble is None:
        raise ValidationError(reading.violations)
    return conversation(cast("list[Turn]", turns), system=preamble.system, tools=preamble.tools)


def _only(data: Mapping[str, Any], known: set[str], path: str, reading: Reading) -> None:
    for key in [key for key in data if key not in known]:
        where = join(path, key_name(key))
        reading.fault(
            UNKNOWN_FIELD, where, "a field that the stored form does not have", "Pass what `dumps` gave."
        )


def _turn(row: object, path: str, reading: Reading) -> Turn | None:
    data = mapping(row)
    role = data.get("role") if data is not None else None
    if data is None or not isinstance(role, str) or role not in TURNS:
        reading.fault(REQUIRED_FIELD, join(path, "role"), "no known role", "Pass what `dumps` gave.")
        return None
    _only(data, {"role", "blocks", "origin"} if role == "assistant" else {"role", "blocks"}, path, reading)
    blocks = data.get("blocks")
    if not isinstance(blocks, list):
        reading.fault(CONTENT_TYPE, join(path, "blocks"), "no list of blocks", "Pass what `dumps` gave.")
        return None
    made = [
        _block(raw, f"{path}.blocks[{at}]", reading) for at, raw in enumerate(cast("list[object]", blocks))
    ]
    origin = data.get("origin")
    source = None if origin is None else read_value(Origin, origin, reading, join(path, "origin"))
    if BROKEN in made or source is BROKEN:
        return None
    try:
        return AssistantTurn(made, source) if role == "assistant" else TURNS[role](cast("Any", made))
    except ValidationError as error:
        reading.violations.extend(fault.under(path) for fault in error.violations)
        return None


def _block(raw: object, path: str, reading: Reading) -> Any:
    data = mapping(raw)
    tag = data.get("type") if data is not None else None
    if data is None or not isinstance(tag, str):
        reading.fault(BLOCK_TYPE, path, "a block without `type`", "Pass what `dumps` gave.")
        return BROKEN
    if (cls := class_of(data)) is not None:
        return read_value(cls, data, reading, path)
    try:
        return OpaqueBlock(data)
    except ValidationError as error:
        reading.violations.extend(fault.under(path) for fault in error.violations)
        return BROKEN
