"""A readable view of a history: a line for each block, short, and without what may hold secrets.

Tool inputs show their keys, results and thinking their sizes, images and documents their kind; text is masked. A view is
text for people; it cannot be loaded as a history.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from .blocks import short
from .conversation import Conversation
from .redact import Redactor, default
from .storage import dumps


def view(conversation: Conversation, redactor: Redactor | None = None) -> str:
    """A conversation as a few lines of text.

    Args:
        conversation: A conversation in any state.
        redactor: What counts as a secret; None takes the default detectors.

    >>> from convmodel import start
    >>> print(view(start("Hello.", system="Be brief.")))
    system        'Be brief.'
    0 user        'Hello.'
    = AwaitingModel
    """
    data = json.loads(dumps(conversation))
    lines = [f"{'system':<14}{block_line(text, redactor)}" for text in data.get("system", ())]
    lines += [f"{'tool':<14}{_name(tool.get('name'), redactor)}" for tool in data.get("tools", ())]
    for index, turn in enumerate(data["turns"]):
        lines += _turn(index, turn["role"], turn["blocks"], redactor)
    return "\n".join([*lines, f"= {type(conversation).__name__}"])


def view_messages(messages: object, redactor: Redactor | None = None) -> str:
    """A history in wire form as a few lines of text, however broken it is.

    Args:
        messages: What stands where a list of messages is due.
        redactor: What counts as a secret; None takes the default detectors.

    >>> print(view_messages([{"role": "user", "content": "Hello."}, 3]))
    0 user        'Hello.'
    1 ?           int
    """
    if not isinstance(messages, list):
        return f"? {type(messages).__name__}"
    lines: list[str] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            lines += _turn(index, "?", [message], redactor)
            continue
        data = cast("dict[str, Any]", message)
        content = data.get("content")
        blocks = content if isinstance(content, list) else [content]
        lines += _turn(index, _name(data.get("role"), redactor), blocks, redactor)
    return "\n".join(lines)


def _turn(index: int, role: str, blocks: list[Any], redactor: Redactor | None) -> Iterator[str]:
    head = f"{index} {role}"
    for block in blocks or [None]:
        yield f"{head:<14}{block_line(block, redactor)}"
        head = ""


def _name(value: object, redactor: Redactor | None = None) -> str:
    """A name as it is, masked where somebody has put a secret into it."""
    if not isinstance(value, str) or not value.isprintable():
        return "?"
    return (redactor or default()).text(value[:1000])[:60]


def block_line(block: object, redactor: Redactor | None = None) -> str:
    if isinstance(block, str):
        return short(block, redactor)
    if block is None:
        return "(nothing)"
    if not isinstance(block, dict):
        return type(block).__name__
    data = cast("dict[str, Any]", block)
    kind = _name(data.get("type"), redactor)
    if kind == "text" and isinstance(data.get("text"), str):
        return short(data["text"], redactor)
    details = [
        _name(data[key], redactor) for key in ("id", "tool_use_id", "name") if isinstance(data.get(key), str)
    ]
    if isinstance(data.get("input"), Mapping):
        details.append(f"({', '.join(_name(key, redactor) for key in list(data['input'])[:5])})")
    if data.get("is_error") is True:
        details.append("error")
    if isinstance(data.get("synthetic"), str):
        details.append(_name(data["synthetic"]))
    details += [
        _size(data[key]) for key in ("thinking", "content", "data") if isinstance(data.get(key), (str, list))
    ]
    return " ".join([kind, *details])


def _size(value: str | list[Any]) -> str:
    return f"<{len(value)} {'characters' if isinstance(value, str) else 'blocks'}>"
