"""Preserved thinking in the local double: signatures that name what they stand behind, and the check of them.

A model with preserved thinking takes a thinking block only behind the system prompt, the tools and the messages that it
answered ("Preserved thinking" page). Signatures here say in plain words what real ones hold in secret. This module shares
no code with the package that it judges.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast, final

from .judge import Fault, checks_prefix

__all__ = ["BINDING_BETA", "Checked", "Signer"]

Json = dict[str, Any]

BINDING_BETA = "thinking-binding-controls-2026-08-01"

# The field that holds the signature, by type of block.
_SIGNED = {"thinking": "signature", "redacted_thinking": "data"}
_INVALID = "{}: Invalid `{}` in `{}` block"
_BOUND = (
    ". The block is bound to a different conversation. Remove the block, or set "
    '`thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)
# Makers and readers of thinking that the service drops, as patterns of model names ("Preserved thinking" page).
_UNREADABLE = (
    (r"(fable|mythos)-5-[2-9]", r"(?!.*(fable|mythos)-5-[2-9])"),
    (r"(fable|mythos)-5-1", r".*opus-5"),
    (r"(?!haiku-5-5)", r".*haiku-5-5"),
)


class Checked(NamedTuple):
    """What became of the thinking in a request."""

    fault: Fault | None = None
    dropped: tuple[Json, ...] = ()
    """The blocks that the model does not get, as entries of `input_transformations`."""


class _Seen(NamedTuple):
    """A thinking block, and what stands before it."""

    message: int
    position: int
    block: Json
    before: str
    """A digest of the system prompt, the tools and all other blocks."""
    last: str
    """The signature of the thinking before it; empty if there is none."""

    @property
    def at(self) -> str:
        return f"messages.{self.message}.content.{self.position}"


@final
class Signer:
    """Signs thinking over the request that it answers, and holds later requests to it.

    >>> signer = Signer("anthropic")
    >>> ask = {"role": "user", "content": "Hi"}
    >>> body = {"model": "claude-opus-5-5", "max_tokens": 9, "messages": [ask]}
    >>> reply = [{"type": "thinking", "thinking": "", "signature": ""}, {"type": "text", "text": "Hello."}]
    >>> answer = {"role": "assistant", "content": signer.signed(body, reply)}
    >>> signer.check({**body, "messages": [ask, answer, ask]}).fault is None
    True
    >>> signer.check({**body, "messages": [{**ask, "content": "Ho"}, answer, ask]}).fault.rule
    'thinking-prefix-bound'
    """

    def __init__(self, platform: str) -> None:
        self._platform = platform

    def signed(self, body: Json, content: Sequence[Mapping[str, Any]]) -> list[Json]:
        """The content of a reply to `body`, with a signature of its own on each thinking block."""
        out: list[Json] = []
        for block in content:
            out.append(dict(block))
            if block.get("type") in _SIGNED:
                *_, seen = _thinking(
                    {**body, "messages": [*body["messages"], {"role": "assistant", "content": out}]}
                )
                bound = json.dumps([_name(body["model"]), seen.before, _short(seen.last)])
                out[-1][_SIGNED[seen.block["type"]]] = base64.b64encode(bound.encode()).decode()
        return out

    def check(self, body: Json) -> Checked:
        """What the service says to the thinking in a request of the right shape."""
        model = _name(body["model"])
        binding = body.get("thinking", {}).get("block_binding") or {}
        drops = binding.get("prefix_mismatch_behavior") == "drop_block"
        dropped: list[Json] = []
        run: tuple[int, int] | None = None  # where the block stood that was dropped last
        for seen in _thinking(body):
            kind = seen.block["type"]
            invalid = _INVALID.format(seen.at, _SIGNED[kind], kind)
            bound = _read(seen.block[_SIGNED[kind]])
            if bound is None:
                return Checked(Fault("thinking-signature-valid", invalid))
            maker, before, last = bound
            unread = any(re.match(made, maker) and re.match(by, model) for made, by in _UNREADABLE)
            if unread and maker != model:
                dropped.append(_entry(seen, "model_binding_mismatch"))
                continue
            if not checks_prefix(body["model"], self._platform):
                continue
            # Thinking may go from the front on, oldest first; what is left then has none before it.
            fits = before == seen.before and (not seen.last or last == _short(seen.last))
            if fits and run != (seen.message, seen.position - 1):
                continue
            if not drops:
                return Checked(Fault("thinking-prefix-bound", invalid + _BOUND))
            run = seen.message, seen.position
            dropped.append(_entry(seen, "prefix_binding_mismatch"))
        return Checked(None, tuple(dropped))


def _name(model: str) -> str:
    """A model's name without what platforms and dates add."""
    found = re.search(r"claude-(.+?)(?:[-@]20\d{6})?(?:-v\d+(?::\d+)?)?(?:@.*)?$", model)
    return found.group(1) if found else model


def _entry(seen: _Seen, reason: str) -> Json:
    return {"type": "thinking_dropped", "path": seen.at, "reason": reason}


def _short(signature: str) -> str:
    return hashlib.sha256(signature.encode()).hexdigest()[:16] if signature else ""


def _read(signature: str) -> tuple[str, str, str] | None:
    """What a signature of this module says; None for any other."""
    try:
        maker, before, last = json.loads(base64.b64decode(signature, validate=True))
    except ValueError:
        return None
    return maker, before, last


def _thinking(body: Json) -> Iterator[_Seen]:
    """The thinking blocks of a request, each with what stands before it. Messages of one role count as one."""
    system = body.get("system") or []
    texts = [{"type": "text", "text": system}] if isinstance(system, str) else list(map(_unmarked, system))
    tools = list(map(_unmarked, body.get("tools") or []))
    # A deferred tool counts from where something refers to it ("Preserved thinking" page).
    deferred = {tool["name"]: tool for tool in tools if tool.get("defer_loading")}
    digest = hashlib.sha256(_text([texts, [tool for tool in tools if not tool.get("defer_loading")]]))
    role, last = "", ""
    for index, message in enumerate(body["messages"]):
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}] if content else []
        for position, block in enumerate(content):
            if block["type"] in _SIGNED:
                yield _Seen(index, position, block, digest.hexdigest(), last)
                last = block[_SIGNED[block["type"]]]
                continue
            if role != message["role"]:
                role = message["role"]
                digest.update(_text(role))
            digest.update(_text(_unmarked(block)))
            for name in _references(block):
                if tool := deferred.pop(name, None):
                    digest.update(_text(tool))


def _references(block: Json) -> Iterator[str]:
    """The tools that a block calls or names."""
    if block["type"] == "tool_use":
        yield block["name"]
    content = block.get("content")
    parts = content.get("tool_references") or () if isinstance(content, dict) else content
    for part in parts if isinstance(parts, (list, tuple)) else ():
        if isinstance(part, dict) and part.get("type") == "tool_reference":
            yield part["tool_name"]


def _unmarked(value: Any) -> Any:
    """A block or a tool without cache markers, which are free to move."""
    if not isinstance(value, dict):
        return value
    block = {key: part for key, part in cast("Json", value).items() if key != "cache_control"}
    for key in ("content", "source"):
        if isinstance(inner := block.get(key), list):
            block[key] = list(map(_unmarked, inner))
        elif isinstance(inner, dict):
            block[key] = _unmarked(inner)
    return block


def _text(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode() + b"\n"
