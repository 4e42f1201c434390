"""Rows as agents store them, read as messages: whatever is certainly meant, and a note of everything else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, cast

from ..anthropic.read import ROLE
from ..declared import SENT
from ..errors import Rule, ValidationError, join, key_name
from ..fields import (
    BLOCK_TYPE,
    CACHE_PLACE,
    CONTENT_TYPE,
    FIELD_TYPE,
    REQUIRED_FIELD,
    UNKNOWN_FIELD,
    Either,
    Kind,
    Many,
    Nested,
    Reading,
    fields_of,
    mapping,
    thawed,
)
from ..shapes import Shaped, trimmed
from ..turns import Origin
from .plan import THOUGHTS, Message, Piece, Work, as_text

ENVELOPE = frozenset(
    {
        "id",
        "type",
        "model",
        "stop_reason",
        "stop_sequence",
        "stop_details",
        "usage",
        "container",
        "diagnostics",
    }
)
"""What a whole response has beside its role and content; none of it is part of a history."""
SIDE_THOUGHTS = ("thinking_blocks", "reasoning_details", "reasoning_content", "reasoning")
"""Fields of thinking: `thinking_blocks` of gateways, `reasoning_details` and `reasoning` of OpenRouter,
`reasoning_content` of DeepSeek and Kimi."""
ROLES = {"developer": "system", "human": "user", "ai": "assistant", "model": "assistant"}
"""Names of the parties in OpenAI's newer API, LangChain and Gemini."""
OPENAI_TEXTS = ("input_text", "output_text")
OPENAI_IMAGES = ("image_url", "input_image")
"""Parts of OpenAI's messages, of its Chat Completions and its Responses."""


def read_rows(work: Work, rows: list[object], origins: Mapping[int, Origin]) -> None:
    """Everything that is certainly meant, as messages of blocks that hold input fields only."""
    for index, row in enumerate(rows):
        path, noted = f"messages[{index}]", len(work.changes)
        data = _as_chat_row(work, mapping(row), path)
        if data is None or not isinstance(data.get("role"), str):
            work.note(path, UNKNOWN_FIELD, "dropped", "what is no message", defect="blocks")
            continue
        role, pieces = _row(work, data, path)
        message = Message(role, pieces, path, index, origins.get(index) or _origin(data))
        for piece in message.pieces:
            if piece.cls is not None:
                piece.data = _trimmed_value(piece.cls, piece.data, piece.path, work)
                _text_ids(piece, work)
        message.was_empty = not message.pieces
        work.given += message.pieces
        work.defect = "blocks"
        work.drop(message, lambda piece: piece.cls is None, BLOCK_TYPE)
        work.defect = "fields"
        message.as_read = tuple(message.pieces) if len(work.changes) == noted else None
        work.messages.append(message)
    work.names = {
        id: 1
        for piece in work.given
        for id in (piece.data.get("id"), piece.data.get("tool_use_id"))
        if isinstance(id, str)
    }


def _row(work: Work, data: Mapping[str, Any], path: str) -> tuple[str, list[Piece]]:
    """The role of a row, and its blocks: thinking from beside the content, the content, calls from beside it."""
    role, calls = data["role"], data.get("tool_calls")
    read = {"role", "content"} | {key for key in SIDE_THOUGHTS if data.get(key)}
    read |= {"tool_calls"} if isinstance(calls, (list, tuple)) else set()
    read |= {"tool_call_id"} if role == "tool" else set()
    read |= {"parts"} if isinstance(data.get("parts"), list) and data.get("content") is None else set()
    for key, value in data.items():
        if key in read:
            continue
        means = value not in (None, "", [], {}) and key not in ENVELOPE
        lost = f"`{key_name(key)}`" if means else ""
        work.note(join(path, key_name(key)), UNKNOWN_FIELD, "dropped", lost)
    if role in ROLES:
        work.note(join(path, "role"), ROLE, "rewritten", before=role, after=ROLES[role])
        role = ROLES[role]
    content = data.get("content")
    if content is None and isinstance(data.get("parts"), list):  # as Gemini has it
        work.note(join(path, "parts"), UNKNOWN_FIELD, "moved")
        content = data["parts"]
    if isinstance((mapping(content) or {}).get("type"), str):
        work.note(f"{path}.content", CONTENT_TYPE, "rewritten", before="a block", after="a list of it")
        content = [content]
    pieces = _side_thoughts(work, data, path)
    if role == "tool":
        role = "user"
        pieces.append(_result(work, data.get("tool_call_id"), content, f"{path}.content"))
    elif isinstance(content, str):
        if content or not calls:
            pieces.append(Piece({"type": "text", "text": content}, f"{path}.content"))
    elif isinstance(content, (list, tuple)):
        pieces += _blocks(work, content, f"{path}.content")
    elif content is not None:
        work.note(f"{path}.content", CONTENT_TYPE, "dropped", "what is no content", defect="blocks")
    elif not isinstance(calls, (list, tuple)):
        work.note(f"{path}.content", REQUIRED_FIELD, "added")
    if isinstance(calls, (list, tuple)):
        work.note(f"{path}.tool_calls", UNKNOWN_FIELD, "rewritten")
        pieces += _openai_calls(calls, f"{path}.tool_calls")
    return role, pieces


def _result(work: Work, id: object, content: Any, path: str) -> Piece:
    """What the row of a tool means."""
    said: Any = "" if content is None else content
    if isinstance(content, (list, tuple)):
        said = [piece.data for piece in _blocks(work, content, path)]
    elif not isinstance(said, str):
        said = as_text(content)
    return Piece({"type": "tool_result", "tool_use_id": id, "content": said}, path)


def _as_chat_row(work: Work, data: Mapping[str, Any] | None, path: str) -> Mapping[str, Any] | None:
    """An item of OpenAI's Responses, or a row of its older `function_call`, as a row of its Chat Completions."""
    if data is None:
        return None
    kind, call = data.get("type"), mapping(data.get("function_call"))
    if kind == "function_call" and "role" not in data:
        calls = [{"id": data.get("call_id"), "function": data}]
        made: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": calls}
    elif kind == "function_call_output" and "role" not in data:
        made = {"role": "tool", "tool_call_id": data.get("call_id"), "content": data.get("output")}
    elif data.get("role") == "tool":
        kind, made = "tool", dict(data)
    elif data.get("role") == "function":
        kind, made = "function", {**data, "role": "tool"}
        made.pop("name", None)  # the call has it too
    elif data.get("role") == "assistant" and call is not None and not data.get("tool_calls"):
        kind, made = "function_call", {**data, "tool_calls": [{"function": call}]}
        del made["function_call"]
    else:
        return data
    work.note(path, UNKNOWN_FIELD, "rewritten", before=f"a `{kind}` row", after="a call or its result")
    return made


def _origin(data: Mapping[str, Any]) -> Origin | None:
    """What a whole response says of itself."""
    if data.get("type") != "message" or data.get("role") != "assistant":
        return None
    container = mapping(data.get("container"))
    said = {name: data.get(name) for name in ("model", "id", "stop_reason")}
    try:
        return Origin(**cast("Any", said), container=container.get("id") if container else None)
    except ValidationError:
        return None


# ---------------------------------------------------------------- thinking beside the content


def _side_thoughts(work: Work, data: Mapping[str, Any], path: str) -> list[Piece]:
    """Thinking that stands in a field of its own. It came before the text; of several fields one says it all."""
    present = [name for name in SIDE_THOUGHTS if data.get(name)]
    content = data.get("content")
    inside = isinstance(content, (list, tuple)) and any(
        (mapping(block) or {}).get("type") in THOUGHTS for block in content
    )
    made: list[Piece] = []
    for name in present:
        where, value = f"{path}.{name}", data[name]
        if made or inside:
            work.note(where, UNKNOWN_FIELD, "dropped")  # it says again what stands there already
            continue
        if isinstance(value, str):
            made = [Piece({"type": "thinking", "thinking": value, "signature": ""}, where)]
        elif isinstance(value, list) and name == "thinking_blocks":
            made = _blocks(work, value, where)
        elif isinstance(value, list):
            made = list(_details(work, value, where))
        work.note(where, UNKNOWN_FIELD, "moved" if made else "dropped", "" if made else f"`{name}`")
    return made


def _details(work: Work, details: list[Any], path: str) -> Iterator[Piece]:
    """OpenRouter's `reasoning_details`. Pieces of one index are one block: its texts joined, its last signature."""
    rows = [(at, mapping(each) or {}) for at, each in enumerate(details)]
    for (kind, index), group in groupby(rows, key=lambda row: (row[1].get("type"), row[1].get("index"))):
        same = list(group)
        parts = [[row] for row in same] if index is None else [same]
        for part in parts:
            where, first = f"{path}[{part[0][0]}]", part[0][1]
            ours = str(first.get("format") or "").startswith("anthropic")
            signatures = [row["signature"] for _, row in part if isinstance(row.get("signature"), str)]
            if kind == "reasoning.text":
                text = "".join(row["text"] for _, row in part if isinstance(row.get("text"), str))
                signature = signatures[-1] if ours and signatures else ""
                yield Piece({"type": "thinking", "thinking": text, "signature": signature}, where)
            elif kind == "reasoning.encrypted" and ours and isinstance(first.get("data"), str):
                yield Piece({"type": "redacted_thinking", "data": first["data"]}, where)
            else:
                work.note(where, UNKNOWN_FIELD, "dropped", "reasoning that only its issuer can read")


# ---------------------------------------------------------------- blocks


def _blocks(work: Work, blocks: Any, path: str) -> list[Piece]:
    return [Piece(_block(work, raw, f"{path}[{at}]"), f"{path}[{at}]") for at, raw in enumerate(blocks)]


def _block(work: Work, raw: Any, path: str) -> dict[str, Any]:
    """A block as the Messages API has it, from the forms that others give it."""
    data = {"text": raw} if isinstance(raw, str) else mapping(raw)
    block = thawed(dict(data)) if data is not None else {}
    if block.keys() == {"text"}:  # as Converse and Gemini have it
        work.note(path, BLOCK_TYPE, "rewritten", after="text")
        return {"type": "text", **block}
    if block.get("type") in OPENAI_TEXTS:
        return _openai_text(work, block, path)
    if block.get("type") in OPENAI_IMAGES:
        return _openai_image(work, block, path)
    if block.get("type") == "image" and isinstance(block.get("data"), str) and "source" not in block:
        return _mcp_image(work, block, path)
    content = block.get("content")
    if block.get("type") == "tool_result" and isinstance(content, list):
        inside = join(path, "content")
        block["content"] = [
            _block(work, part, f"{inside}[{at}]") if isinstance(part, (str, dict)) else part
            for at, part in enumerate(content)
        ]
    return block


def _mcp_image(work: Work, block: dict[str, Any], path: str) -> dict[str, Any]:
    """An image as the tools of the Model Context Protocol return it."""
    work.note(path, BLOCK_TYPE, "rewritten", before="an image of MCP", after="image")
    source = {"type": "base64", "media_type": block.get("mimeType"), "data": block["data"]}
    return {"type": "image", "source": source}


def _openai_text(work: Work, block: dict[str, Any], path: str) -> dict[str, Any]:
    more = ", ".join(
        f"`{key_name(key)}`" for key, value in block.items() if value and key not in ("type", "text")
    )
    work.note(path, BLOCK_TYPE, "rewritten", more, before=block["type"], after="text")
    return {"type": "text", "text": block.get("text")}


def _openai_image(work: Work, block: dict[str, Any], path: str) -> dict[str, Any]:
    given = block.get("image_url")
    url = given if isinstance(given, str) else (mapping(given) or {}).get("url")
    if not isinstance(url, str):
        return block
    data = re.fullmatch(r"data:([\w/+.-]+);base64,(.*)", url, re.DOTALL)
    source = (
        {"type": "base64", "media_type": data[1], "data": data[2]} if data else {"type": "url", "url": url}
    )
    work.note(path, BLOCK_TYPE, "rewritten", before=block["type"], after="image")
    return {"type": "image", "source": source}


def _openai_calls(calls: Sequence[Any], path: str) -> Iterator[Piece]:
    for at, call in enumerate(calls):
        data = mapping(call) or {}
        function = mapping(data.get("function")) or {}
        given = {
            "type": "tool_use",
            "id": data.get("id"),
            "name": function.get("name"),
            "input": function.get("arguments") or {},
        }
        yield Piece(given, f"{path}[{at}]")


def _text_ids(piece: Piece, work: Work) -> None:
    """Ids as text: a number means its digits, anything else is as good as no id."""
    for field in fields_of(piece.cls):
        id = piece.data.get(field.name, "")
        if field.name not in ("id", "tool_use_id") or (isinstance(id, str) and field.name in piece.data):
            continue
        piece.data[field.name] = str(id) if type(id) is int and abs(id) < 10**60 else ""
        work.note(join(piece.path, field.name), FIELD_TYPE, "rewritten", defect="values")


def _trimmed_value(cls: Any, data: dict[str, Any], path: str, work: Work) -> dict[str, Any]:
    """A declared value's data with the fields that requests have; what is left out is noted."""
    fields = {field.name: field for field in fields_of(cls) if field.flow in SENT}
    made: dict[str, Any] = {}
    for name, value in data.items():
        field = fields.get(name)
        if name == "type":
            made[name] = value
        elif name == "cache_control":
            rule = _marker_fault(cls, value, path)
            if rule is None:
                made[name] = value
            else:
                work.note(join(path, name), rule, "dropped")
        elif field is None:
            lost = "" if value is None or name in ("index", "parsed_output") else f"`{key_name(name)}`"
            work.note(join(path, key_name(name)), UNKNOWN_FIELD, "dropped", lost)
        elif value is not None or (field.nullable and not field.optional):
            made[name] = _trimmed(field.kind, value, join(path, name), work)
        elif name not in cls.nullable_on_wire and field.optional:
            work.note(join(path, name), field.wrong, "dropped")
        elif not field.optional:
            made[name] = None
    for name, field in fields.items():
        if name not in made and field.nullable and not field.optional:
            made[name] = None
            work.note(join(path, name), field.missing, "added")
    return made


def _marker_fault(cls: Any, marker: Any, path: str) -> Rule | None:
    if not cls.admits_marker or marker is None:
        return CACHE_PLACE
    reading = Reading(SENT)
    reading.marker(marker, path)
    return reading.violations[0].rule if reading.violations else None


def _trimmed(kind: Kind, value: Any, path: str, work: Work) -> Any:
    if isinstance(kind, Either):
        return _trimmed(kind.many if isinstance(value, list) else kind.one, value, path, work)
    if isinstance(kind, Many) and isinstance(value, list):
        return [_trimmed(kind.item, item, f"{path}[{at}]", work) for at, item in enumerate(value)]
    if isinstance(kind, Shaped):
        reading = Reading(SENT, lenient=True)
        made = trimmed(value, kind.holds, reading, path)
        for fault in reading.dropped:
            work.note(fault.path, fault.rule, "dropped", "a field")
        if made != value and not reading.dropped:
            work.note(path, UNKNOWN_FIELD, "dropped")  # nulls, which a reading leaves out without a word
        return made
    if isinstance(kind, Nested) and isinstance(value, dict):
        cls = kind.by_type.get(str(value.get("type"))) if kind.by_type else kind.classes[0]
        return value if cls is None else _trimmed_value(cls, value, path, work)
    return value
