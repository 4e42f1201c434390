"""Small edits of wire data: what goes wrong in real sessions, made at random."""

from __future__ import annotations

import copy
import json
from typing import Any, cast

from hypothesis import strategies as st

from convmodel.anthropic import to_messages
from convmodel.testing.strategies import TOOL_NAMES, sendable_conversations

from .common import Json

TOOLS: list[Json] = [{"name": name, "input_schema": {"type": "object"}} for name in TOOL_NAMES]

LOCAL_RULES = {
    "image-media-type-matches": "the judge does not decode images",
    "base64-valid": "the judge does not decode base64",
    "document-title-len": "the request schema of the SDK has no lengths",
    "tool-reference-name": "the request schema of the SDK has no pattern for it",
    "thinking-not-last": "the judge joins assistant messages first, so only the last of them may not end in thinking",
}
"""Rules that only the library knows, each with the reason."""

VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    "",
    " ",
    "x",
    [],
    {},
    "toolu_1",
    {"type": "text", "text": "x"},
    "user",
]


@st.composite
def edited(draw: st.DrawFn) -> list[Json]:
    """A valid history with one or two edits, some of which leave it valid."""
    messages = cast("list[Json]", to_messages(draw(sendable_conversations(opaque=False))))
    for _ in range(draw(st.sampled_from([1, 1, 2]))):
        draw(st.sampled_from([_of_messages, _of_blocks, _of_blocks, _of_keys, _of_keys]))(draw, messages)
    return messages


@st.composite
def mangled(draw: st.DrawFn) -> list[Json]:
    """A valid history after what happens to histories: trimmed, converted, merged, stored by other code."""
    messages = cast("list[Json]", to_messages(draw(sendable_conversations(opaque=False))))
    for _ in range(draw(st.integers(1, 4))):
        draw(st.sampled_from([_of_messages, _of_blocks, _of_all, _of_all]))(draw, messages)
    return messages


def _of_all(draw: st.DrawFn, messages: list[Json]) -> None:
    """Do to the whole history what other code does to it."""
    blocks = [
        block
        for message in messages
        if isinstance(message.get("content"), list)
        for block in message["content"]
        if isinstance(block, dict)
    ]
    match draw(
        st.sampled_from(
            ["head", "tail", "unsign", "strip", "rename", "foreign", "inputs", "results", "split", "envelope"]
        )
    ):
        case "head":
            del messages[: draw(st.integers(0, len(messages)))]
        case "tail":
            del messages[draw(st.integers(0, len(messages))) :]
        case "unsign":
            for block in blocks:
                if "signature" in block:
                    block["signature"] = ""
        case "strip":
            key = draw(
                st.sampled_from(["data", "signature", "encrypted_content", "encrypted_index", "source"])
            )
            _strip(blocks, key)
        case "results":
            for block in blocks:
                if block.get("type") == "tool_result" and isinstance(block.get("content"), str):
                    wraps: list[Any] = [
                        {"text": block["content"]},
                        [block["content"]],
                        [{"n": block["content"]}],
                    ]
                    block["content"] = draw(st.sampled_from(wraps))
                    block["is_error"] = draw(st.sampled_from(["true", "false", 1, "?"]))
        case "rename":  # on one side, or on both
            keys = draw(st.sampled_from([("id",), ("tool_use_id",), ("id", "tool_use_id")]))
            for block in blocks:
                for key in keys:
                    if isinstance(block.get(key), str) and block.get("type") in ("tool_use", "tool_result"):
                        block[key] = f"functions.{block[key]}:0"
        case "foreign":
            for block in blocks:
                block[draw(st.sampled_from(["parsed_output", "index", "citations", "caller"]))] = None
        case "inputs":
            for block in blocks:
                if isinstance(block.get("input"), dict) and block.get("type") == "tool_use":
                    block["input"] = json.dumps(block["input"])[: draw(st.integers(0, 40))]
        case "split":
            messages[:] = [
                {"role": message["role"], "content": [block]}
                for message in messages
                for block in (message["content"] if isinstance(message.get("content"), list) else [])
            ]
        case _:
            for message in messages:
                if message.get("role") == "assistant":
                    message.update({"type": "message", "id": "msg_1", "stop_reason": "end_turn", "usage": {}})


def _strip(value: Any, key: str) -> None:
    """Take a key out, wherever it is."""
    if isinstance(value, dict):
        value.pop(key, None)
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _strip(item, key)


def _of_messages(draw: st.DrawFn, messages: list[Json]) -> None:
    """Drop, repeat or swap messages, or give one to another party."""
    if not messages:
        return
    at = draw(st.integers(0, len(messages) - 1))
    match draw(st.sampled_from(["drop", "repeat", "swap", "role", "flatten"])):
        case "drop":
            del messages[at]
        case "repeat":
            messages.insert(at, copy.deepcopy(messages[at]))
        case "swap":
            messages[at - 1], messages[at] = messages[at], messages[at - 1]
        case "role":
            messages[at]["role"] = draw(st.sampled_from(["user", "assistant", "system"]))
        case _:
            messages[at]["content"] = draw(st.sampled_from(["", " ", "Hello."]))


def _of_blocks(draw: st.DrawFn, messages: list[Json]) -> None:
    """Drop, repeat, move or swap blocks."""
    lists = [message["content"] for message in messages if isinstance(message.get("content"), list)]
    full = [content for content in lists if content]
    if not full:
        return
    content = draw(st.sampled_from(full))
    at = draw(st.integers(0, len(content) - 1))
    match draw(st.sampled_from(["drop", "repeat", "swap", "move"])):
        case "drop":
            del content[at]
        case "repeat":
            content.insert(at, copy.deepcopy(content[at]))
        case "swap":
            content[at - 1], content[at] = content[at], content[at - 1]
        case _:
            block = content.pop(at)
            other = draw(st.sampled_from(lists))
            other.insert(draw(st.integers(0, len(other))), block)


def _of_keys(draw: st.DrawFn, messages: list[Json]) -> None:
    """Drop, add or change one key somewhere."""
    found: list[Json] = []
    _objects(messages, found)
    if not found:
        return
    place = draw(st.sampled_from(found))
    keys = sorted(place)
    match draw(st.sampled_from(["drop", "add", "change", "change"])):
        case "drop" if keys:
            del place[draw(st.sampled_from(keys))]
        case "change" if keys:
            place[draw(st.sampled_from(keys))] = copy.deepcopy(draw(st.sampled_from(VALUES)))
        case _:
            place[draw(st.sampled_from(["id", "caller", "citations", "name", "is_error", "x"]))] = None


def _objects(value: object, found: list[Json]) -> None:
    """All objects in wire data, free JSON aside."""
    if isinstance(value, list):
        for item in value:
            _objects(item, found)
    elif isinstance(value, dict):
        found.append(value)
        for key, item in value.items():
            if key != "input":
                _objects(item, found)
