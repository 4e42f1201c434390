"""Broken histories in wire form, mended as far as that can be done without inventing anything.

A repair is a list of small passes over plain copies, in a fixed order; each takes one kind of defect and notes what it
changed. What is left is judged by `check`: a history is repaired when nothing is found. Thinking, signatures, words of the
user and outcomes of tools are never made up; what was lost is said to be lost.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Literal, cast, final

import attrs
import msgspec

from .anthropic import Target, check, parse
from .anthropic.read import WIRE_BLOCKS
from .anthropic.targets import (
    SERVER_TOOL_PLATFORM,
    SYSTEM_MODELS,
    TAIL_OPEN,
    THINKING_OFF_FINAL,
    TRAILING_WHITESPACE,
    UNSIGNED_FOREIGN,
)
from .blocks import (
    ERROR_TEXT_ONLY,
    IMAGE_MATCHES,
    IMAGE_TYPES,
    THINKING_FIELDS,
    TOOL_USE_ID,
    TOOL_USE_INPUT,
    media_type_of,
)
from .conversation import CLOSING, CloseReason, Conversation, conversation
from .declared import SENT
from .edits import PREFIX_BOUND
from .errors import Rule, Violation, join
from .fields import (
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
from .jsonvalue import VALID_UTF8, decode
from .machine import (
    ANSWERED_NEXT,
    RESULT_HAS_USE,
    SERVER_RESULT_HAS_USE,
    SERVER_USE_HAS_RESULT,
    SYSTEM_AFTER,
    SYSTEM_NOT_FIRST,
)
from .markers import CACHE_MAX
from .preamble import SystemPrompt, ToolDefinition
from .shapes import Shaped, trimmed
from .turns import (
    ID_UNIQUE,
    NOT_ALL_WHITESPACE,
    RESULT_FIRST,
    RESULT_ONCE,
    TEXT_NONEMPTY,
    THINKING_NOT_LAST,
    USER_NONEMPTY,
    Origin,
    UserTurn,
)

THOUGHTS = ("thinking", "redacted_thinking")
CUT_REASONS = ("max_tokens", "model_context_window_exceeded")


@final
@attrs.frozen
class Change:
    """One thing that a repair did.

    Args:
        path: Where it stood in the history that was given.
        rule: The rule that was broken.
        kind: What was done: `dropped`, `moved`, `added`, `renamed` or `rewritten`.
        lost: What is gone, in words; empty if nothing is.
    """

    path: str
    rule: Rule
    kind: Literal["dropped", "moved", "added", "renamed", "rewritten"]
    lost: str = ""

    @property
    def severity(self) -> Literal["lossless", "lossy"]:
        """Whether something was lost."""
        return "lossy" if self.lost else "lossless"

    def __str__(self) -> str:
        return f"{self.path}: {self.kind}{f' ({self.lost} lost)' if self.lost else ''} [{self.rule}]"


@final
@attrs.frozen
class Repaired:
    """What a repair gave.

    Args:
        conversation: The mended history as a value; None if it could not be mended.
        messages: The same in wire form, as fresh plain dicts; None if it could not be mended.
        system: The system prompt, with what stood in front of the messages; in wire form.
        changes: What was done, in the order in which it was done; empty for a valid history.
        unrepaired: What is still wrong.
    """

    conversation: Conversation | None
    messages: list[Any] | None
    system: Any
    changes: tuple[Change, ...]
    unrepaired: tuple[Violation, ...]


class _Piece:
    """A block on its way, and where it stood."""

    __slots__ = ("data", "path", "synthetic")

    def __init__(self, data: dict[str, Any], path: str, synthetic: CloseReason | None = None) -> None:
        self.data, self.path, self.synthetic = data, path, synthetic

    @property
    def type(self) -> Any:
        return self.data.get("type")

    @property
    def cls(self) -> Any:
        """The class of the block; None for a type that the wire does not know."""
        return WIRE_BLOCKS.get(self.type) if isinstance(self.type, str) else None


class _Message:
    """A message on its way, and where it stood."""

    __slots__ = ("origin", "path", "pieces", "role")

    def __init__(self, role: str, pieces: list[_Piece], path: str, origin: Origin | None = None) -> None:
        self.role, self.pieces, self.path, self.origin = role, pieces, path, origin

    @property
    def results(self) -> list[_Piece]:
        return [piece for piece in self.pieces if piece.type == "tool_result"]

    @property
    def calls(self) -> list[_Piece]:
        return [piece for piece in self.pieces if piece.type == "tool_use"]

    @property
    def signed(self) -> bool:
        return any(piece.type in THOUGHTS for piece in self.pieces)


class _Work:
    """A history on its way through the passes."""

    def __init__(self, target: Target | None, stage: str, system: Any) -> None:
        self.messages: list[_Message] = []
        self.changes: list[Change] = []
        self.target, self.stage, self.system = target, stage, system
        self.names: set[str] = set()

    def note(self, path: str, rule: Rule, kind: Any, lost: str = "") -> None:
        self.changes.append(Change(path, rule, kind, lost))

    def drop(self, message: _Message, doomed: Callable[[_Piece], bool], rule: Rule, lost: str = "") -> None:
        """Drop the blocks of a message that a condition names."""
        kept = []
        for piece in message.pieces:
            if doomed(piece):
                self.note(piece.path, rule, "dropped", lost or f"a {piece.type} block")
            else:
                kept.append(piece)
        message.pieces = kept

    def remove(self, message: _Message, piece: _Piece, rule: Rule, lost: str = "") -> None:
        """Drop one block."""
        message.pieces = [each for each in message.pieces if each is not piece]
        self.note(piece.path, rule, "dropped", lost or f"a {piece.type} block")

    def fresh(self, wish: str) -> str:
        """An id that nothing in the history has."""
        id, n = wish, 1
        while id in self.names:
            n += 1
            id = f"{wish}_{n}"
        self.names.add(id)
        return id

    def runs(self) -> Iterator[tuple[str, list[_Message]]]:
        """The messages as the API joins them."""
        for role, run in groupby(self.messages, key=lambda message: message.role):
            yield role, list(run)


def repair(
    messages: object,
    *,
    system: SystemPrompt = None,
    tools: Iterable[ToolDefinition] | None = None,
    target: Target | None = None,
    origins: Mapping[int, Origin] | None = None,
    stage: Literal["hold", "send"] = "hold",
) -> Repaired:
    """Mend a broken history.

    Args:
        messages: A list of messages as agents store them: dicts, SDK objects, OpenAI-shaped rows; or JSON text. It is
            not changed.
        system: The system prompt of the request.
        tools: The tools of the request; None if they are not known.
        target: Where the history is to go; None mends only what is wrong everywhere.
        origins: What is known of where assistant messages came from, by the index of the message.
        stage: `hold` for a history at rest, which may end with open calls; `send` for one to be sent as it is.

    Returns:
        The plan that was carried out, the mended history, and what could not be mended. A valid history comes back as it
        is, without changes; repairing a mended history changes nothing.

    >>> broken = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": [{"type": "text", "text": ""}]}]
    >>> [str(change) for change in repair(broken).changes]
    ['messages[1].content[0].text: dropped [text-block-nonempty]', 'messages[1]: dropped [user-content-nonempty]']
    """
    if isinstance(messages, (str, bytes)):
        messages, faults = decode(messages)
        if messages is None:
            return Repaired(None, None, system, (), tuple(faults))
    common: dict[str, Any] = {"tools": tools, "target": target, "stage": stage}
    if not check(messages, system=system, origins=origins, **common):
        valid = parse(cast("Any", messages), system=system, tools=tools, origins=origins)
        return Repaired(valid, thawed(messages), system, (), ())
    work = _Work(target, stage, system)
    _read(work, messages, origins or {})
    for each in PASSES:
        each(work)
    wire, known = _written(work)
    found = check(wire, system=work.system, origins=known, **common)
    stale = next((fault.path for fault in found if fault.rule == PREFIX_BOUND), None)
    if stale is not None:
        _unbind(work, int(stale.split("[")[1].split("]")[0]))
        wire, known = _written(work)
        found = check(wire, system=work.system, origins=known, **common)
    if found:
        return Repaired(None, None, work.system, tuple(work.changes), found)
    wire = msgspec.json.decode(
        msgspec.json.encode(wire, enc_hook=dict)
    )  # it shares nothing with what was given
    made = parse(wire, system=work.system, tools=tools, origins=known)
    return Repaired(_marked(made, work), wire, work.system, tuple(work.changes), ())


def _written(work: _Work) -> tuple[list[Any], dict[int, Origin]]:
    wire = [{"role": each.role, "content": [piece.data for piece in each.pieces]} for each in work.messages]
    known = {index: each.origin for index, each in enumerate(work.messages) if each.origin is not None}
    return wire, known


def _marked(made: Conversation, work: _Work) -> Conversation:
    """The conversation with the results that a pass has made marked as such."""
    turns = list(made.turns)
    for index, message in enumerate(work.messages):
        if any(piece.synthetic for piece in message.pieces):
            blocks = [
                attrs.evolve(cast("Any", block), synthetic=piece.synthetic) if piece.synthetic else block
                for block, piece in zip(turns[index].blocks, message.pieces, strict=True)
            ]
            turns[index] = UserTurn(cast("Any", blocks))
    return conversation(turns, system=made.preamble.system, tools=made.preamble.tools)


# ---------------------------------------------------------------- reading


def _read(work: _Work, messages: object, origins: Mapping[int, Origin]) -> None:
    """Everything that is certainly meant, as messages of blocks that hold input fields only."""
    rows = cast("list[object]", messages) if isinstance(messages, (list, tuple)) else []
    for index, row in enumerate(rows):
        path = f"messages[{index}]"
        data = mapping(row)
        if data is None or not isinstance(data.get("role"), str):
            work.note(path, UNKNOWN_FIELD, "dropped", "what is no message")
            continue
        role, pieces = data["role"], []
        for key in data.keys() - {"role", "content", "thinking_blocks", "tool_calls", "tool_call_id"}:
            lost = f"`{key}`" if data[key] is not None and key not in ENVELOPE else ""
            work.note(join(path, str(key)[:60]), UNKNOWN_FIELD, "dropped", lost)
        if isinstance(
            data.get("thinking_blocks"), list
        ):  # a gateway's side field, in front of the text it belongs to
            work.note(f"{path}.thinking_blocks", UNKNOWN_FIELD, "moved")
            pieces += _pieces(data["thinking_blocks"], f"{path}.thinking_blocks")
        content = data.get("content")
        if role == "tool":
            work.note(path, UNKNOWN_FIELD, "rewritten")
            role = "user"
            said = content if isinstance(content, (str, list)) else ""
            result = {"type": "tool_result", "tool_use_id": data.get("tool_call_id"), "content": said}
            pieces.append(_Piece(result, f"{path}.content"))
        elif isinstance(content, str):
            pieces.append(_Piece({"type": "text", "text": content}, f"{path}.content"))
        elif isinstance(content, (list, tuple)):
            pieces += _pieces(content, f"{path}.content")
        elif content is not None:
            work.note(f"{path}.content", CONTENT_TYPE, "dropped", "what is no content")
        elif not isinstance(data.get("tool_calls"), list):
            work.note(f"{path}.content", REQUIRED_FIELD, "added")
        if isinstance(data.get("tool_calls"), list):
            work.note(f"{path}.tool_calls", UNKNOWN_FIELD, "rewritten")
            pieces += _openai_calls(data["tool_calls"], f"{path}.tool_calls")
        message = _Message(role, pieces, path, origins.get(index))
        for piece in message.pieces:
            if piece.cls is not None:
                piece.data = _trimmed_value(piece.cls, piece.data, piece.path, work)
                _text_ids(piece, work)
        work.drop(message, lambda piece: piece.cls is None, BLOCK_TYPE)
        work.messages.append(message)
    work.names = {
        id
        for message in work.messages
        for piece in message.pieces
        for id in (piece.data.get("id"), piece.data.get("tool_use_id"))
        if isinstance(id, str)
    }


ENVELOPE = (
    "id",
    "type",
    "model",
    "stop_reason",
    "stop_sequence",
    "stop_details",
    "usage",
    "container",
    "diagnostics",
)
"""What a whole response has beside its role and content; none of it is part of a history."""


def _pieces(blocks: Any, path: str) -> list[_Piece]:
    made: list[_Piece] = []
    for at, raw in enumerate(blocks):
        data = {"type": "text", "text": raw} if isinstance(raw, str) else mapping(raw)
        made.append(_Piece(thawed(dict(data)) if data is not None else {}, f"{path}[{at}]"))
    return made


def _text_ids(piece: _Piece, work: _Work) -> None:
    """Ids as text: a number means its digits, anything else is as good as no id."""
    for field in fields_of(piece.cls):
        id = piece.data.get(field.name, "")
        if field.name not in ("id", "tool_use_id") or (isinstance(id, str) and field.name in piece.data):
            continue
        piece.data[field.name] = str(id) if type(id) is int and abs(id) < 10**60 else ""
        work.note(join(piece.path, field.name), FIELD_TYPE, "rewritten")


def _openai_calls(calls: list[Any], path: str) -> Iterator[_Piece]:
    for at, call in enumerate(calls):
        data = mapping(call) or {}
        function = mapping(data.get("function")) or {}
        arguments = function.get("arguments")
        given = {
            "type": "tool_use",
            "id": data.get("id"),
            "name": function.get("name"),
            "input": arguments or {},
        }
        yield _Piece(given, f"{path}[{at}]")


def _trimmed_value(cls: Any, data: dict[str, Any], path: str, work: _Work) -> dict[str, Any]:
    """A declared value's data with the fields that requests have; what is left out is noted."""
    fields = {field.name: field for field in fields_of(cls) if field.flow in SENT}
    made: dict[str, Any] = {}
    for name, value in data.items():
        field = fields.get(name)
        if name == "type":
            made[name] = value
        elif name == "cache_control":  # markers are placed when a request is written
            work.note(join(path, name), CACHE_MAX if cls.admits_marker else CACHE_PLACE, "dropped")
        elif field is None:
            lost = "" if value is None or name in ("index", "parsed_output") else f"`{name}`"
            work.note(join(path, str(name)[:60]), UNKNOWN_FIELD, "dropped", lost)
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


def _trimmed(kind: Kind, value: Any, path: str, work: _Work) -> Any:
    if isinstance(kind, Either):
        return _trimmed(kind.many if isinstance(value, list) else kind.one, value, path, work)
    if isinstance(kind, Many) and isinstance(value, list):
        return [_trimmed(kind.item, item, f"{path}[{at}]", work) for at, item in enumerate(value)]
    if isinstance(kind, Shaped):
        reading = Reading(SENT, lenient=True)
        made = trimmed(value, kind.holds, reading, path)
        for fault in reading.dropped:
            work.note(fault.path, fault.rule, "dropped", "a field")
        return made
    if isinstance(kind, Nested) and isinstance(value, dict):
        cls = kind.by_type.get(str(value.get("type"))) if kind.by_type else kind.classes[0]
        return value if cls is None else _trimmed_value(cls, value, path, work)
    return value


# ---------------------------------------------------------------- passes over blocks


def _surrogates(work: _Work) -> None:
    """Lone surrogates become U+FFFD; pairs that were split into two escapes become what they mean."""
    for message in work.messages:
        for piece in message.pieces:
            made = _clean(piece.data)
            if made != piece.data:
                piece.data = made
                work.note(piece.path, VALID_UTF8, "rewritten", "half a character")


def _clean(value: Any, depth: int = 250) -> Any:
    if isinstance(value, str):
        return (
            value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        )
    if isinstance(value, dict) and depth:
        return {_clean(key): _clean(item, depth - 1) for key, item in value.items()}
    return [_clean(item, depth - 1) for item in value] if isinstance(value, list) and depth else value


def _media(work: _Work) -> None:
    for message in work.messages:
        for piece in message.pieces:
            inner = piece.data.get("content")
            for data in (piece.data, *(inner if isinstance(inner, list) else ())):
                source = (
                    data.get("source") if isinstance(data, dict) and data.get("type") == "image" else None
                )
                if isinstance(source, dict) and source.get("type") == "base64":
                    actual = media_type_of(_first_bytes(source.get("data")))
                    if actual in IMAGE_TYPES and actual != source.get("media_type"):
                        source["media_type"] = actual
                        work.note(f"{piece.path}", IMAGE_MATCHES, "rewritten")


def _first_bytes(data: object) -> bytes:
    try:
        return base64.b64decode(data[:24]) if isinstance(data, str) else b""
    except ValueError:
        return b""


def _inputs(work: _Work) -> None:
    for message in work.messages:
        for piece in message.calls:
            given = piece.data.get("input")
            if isinstance(given, dict):
                continue
            value = decode(given)[0] if isinstance(given, str) and given.strip() else None
            if isinstance(value, dict):
                piece.data["input"] = value
            elif given is None or given == "":
                piece.data["input"] = {}
            else:
                piece.data["input"] = {
                    "INVALID_JSON": given if isinstance(given, str) else json.dumps(given, default=str)
                }
            work.note(join(piece.path, "input"), TOOL_USE_INPUT, "rewritten")


def _places(work: _Work) -> None:
    """Blocks where they may not stand are dropped: a call in a user message can never be paired."""
    for message in work.messages:
        kept: list[_Piece] = []
        for piece in message.pieces:
            cls = piece.cls
            if message.role in cls.roles:
                kept.append(piece)
            else:
                rule = cls.misplaced if message.role != "system" else WIRE_BLOCKS["text"].misplaced
                work.note(piece.path, rule, "dropped", f"a {piece.type} block")
        message.pieces = kept


def _unsigned(work: _Work) -> None:
    vendor = work.target.vendor if work.target is not None else "anthropic"
    for message in work.messages:
        issuer = message.origin.vendor if message.origin is not None else "anthropic"
        if issuer != vendor and work.target is not None:
            work.drop(message, lambda piece: piece.type in THOUGHTS, UNSIGNED_FOREIGN)
        if issuer == "anthropic":
            work.drop(
                message,
                lambda piece: piece.type == "thinking" and not piece.data.get("signature"),
                THINKING_FIELDS,
            )


def _cut_calls(work: _Work) -> None:
    """A call whose input is known to be cut is dropped; in a signed turn it is left, to be answered with an error."""
    answered = {piece.data.get("tool_use_id") for message in work.messages for piece in message.results}
    for message in work.messages:
        reason = message.origin.stop_reason if message.origin is not None else None
        last = message.pieces[-1] if message.pieces else None
        cut = reason in CUT_REASONS and last is not None and last.type == "tool_use" and not message.signed
        if cut and last is not None and last.data.get("id") not in answered:
            work.remove(message, last, ANSWERED_NEXT, "a call that was cut")


# ---------------------------------------------------------------- passes over pairs


def _ids(work: _Work) -> None:
    """Illegal ids are rewritten on both sides; a call with an id that was used before gets another one, with its result."""
    seen: set[str] = set()
    renamed: dict[str, str] = {}
    runs = list(work.runs())
    for at, (role, run) in enumerate(runs):
        if role != "assistant":
            continue
        answers = next((other for kind, other in runs[at + 1 : at + 3] if kind == "user"), [])
        results = [piece for message in answers for piece in message.results]
        by_id: dict[Any, list[tuple[_Message, _Piece]]] = {}
        for message in run:
            for piece in message.calls:
                by_id.setdefault(piece.data.get("id"), []).append((message, piece))
        for id, calls in by_id.items():
            _rename(
                work,
                id,
                calls,
                [piece for piece in results if piece.data.get("tool_use_id") == id],
                seen,
                renamed,
            )
    for message in work.messages:
        for piece in message.results:
            id = piece.data.get("tool_use_id")
            if isinstance(id, str) and id in renamed and not _legal(id):
                piece.data["tool_use_id"] = renamed[id]


def _legal(id: object) -> bool:
    return isinstance(id, str) and re.fullmatch(r"[a-zA-Z0-9_-]+", id) is not None


def _rename(
    work: _Work,
    id: Any,
    calls: list[tuple[_Message, _Piece]],
    results: list[_Piece],
    seen: set[str],
    renamed: dict[str, str],
) -> None:
    first = calls[0][1]
    copies = [(message, piece) for message, piece in calls[1:] if piece.data == first.data]
    if len(copies) == len(calls) - 1 and len(results) < len(calls):
        for message, copy in copies:
            work.remove(message, copy, ID_UNIQUE, "a copy")
        calls = calls[:1]
    for n, (_, piece) in enumerate(calls):
        if _legal(id) and id not in seen:
            seen.add(id)
            continue
        wish = re.sub(r"[^a-zA-Z0-9_-]", "_", id) if isinstance(id, str) and id else "call"
        new = work.fresh(wish)
        piece.data["id"] = new
        seen.add(new)
        work.note(join(piece.path, "id"), ID_UNIQUE if _legal(id) else TOOL_USE_ID, "renamed")
        if isinstance(id, str):
            renamed.setdefault(id, new)
        if n < len(results) or len(results) == 1 == len(calls):
            results[min(n, len(results) - 1)].data["tool_use_id"] = new


def _pairs(work: _Work) -> None:
    """Each call has its first real result, in front of the turn that answers it; missing ones are said to be missing."""
    given: dict[str, list[_Piece]] = {}
    for message in work.messages:
        if message.role == "user":
            for piece in message.results:
                given.setdefault(cast("str", piece.data.get("tool_use_id")), []).append(piece)
    chosen: dict[str, _Piece] = {}
    for name, pieces in given.items():
        chosen[name] = next((piece for piece in pieces if not _placeholder(piece)), pieces[0])
    used: set[int] = set()
    homes = {id(piece): message for message in work.messages for piece in message.pieces}
    runs = list(work.runs())
    last = max((at for at, (role, _) in enumerate(runs) if role != "user"), default=-1)
    out: list[_Message] = []
    for at, (role, run) in enumerate(runs):
        out.extend(run)
        calls = [piece for message in run for piece in message.calls] if role == "assistant" else []
        if not calls:
            continue
        answer = runs[at + 1][1] if at + 1 < len(runs) and runs[at + 1][0] == "user" else []
        out.extend(_answered(work, calls, answer, chosen, used, homes, tail=at >= last))
    work.messages = out
    for message in work.messages:
        for piece in message.results:
            if id(piece) not in used:
                known = (
                    piece.data.get("tool_use_id") in chosen and id(chosen[piece.data["tool_use_id"]]) in used
                )
                rule = RESULT_ONCE if known else RESULT_HAS_USE
                lost = "" if _placeholder(piece) else "a result"
                work.note(piece.path, rule, "dropped", lost)
        message.pieces = [
            piece for piece in message.pieces if piece.type != "tool_result" or id(piece) in used
        ]


def _placeholder(piece: _Piece) -> bool:
    """Whether a result only says that there is none. Such a text loses against any other result of the call."""
    content = piece.data.get("content")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        content = content[0].get("text")
    return (
        piece.data.get("is_error") is True
        and isinstance(content, str)
        and bool(_NO_RESULT.search(content[:200]))
    )


_NO_RESULT = re.compile(
    r"missing|interrupted|cancel+ed|aborted|not (been )?(run|executed)|no result|was lost", re.IGNORECASE
)
"""How libraries word the error results that they make up. The texts of `AwaitingTools.close` are among them."""


def _answered(
    work: _Work,
    calls: list[_Piece],
    answer: list[_Message],
    chosen: dict[str, _Piece],
    used: set[int],
    homes: dict[int, _Message],
    *,
    tail: bool,
) -> list[_Message]:
    """Put the results of some calls where they belong; gives the message to insert where no user turn follows."""
    results = [chosen[call.data["id"]] for call in calls if call.data["id"] in chosen]
    used.update(map(id, results))
    missing = [call for call in calls if call.data["id"] not in chosen]
    rest = [piece for message in answer for piece in message.pieces if piece.type != "tool_result"]
    here = [piece for message in answer for piece in message.results]
    open_tail = tail and not rest and work.stage == "hold"
    lead = [piece for message in answer for piece in message.pieces][: len(here)]
    wanted = set(map(id, results))
    if wanted == set(map(id, here)) and (lead == here or open_tail) and (not missing or open_tail):
        return []
    ordered = [piece for piece in here if id(piece) in wanted]
    for piece in results:
        if all(piece is not each for each in here):
            work.note(piece.path, ANSWERED_NEXT, "moved")
            ordered.append(piece)
    if lead != here and ordered:
        work.note(ordered[-1].path, RESULT_FIRST, "moved")
    if not open_tail:
        for call in missing:
            work.note(call.path, TAIL_OPEN if tail and not rest else ANSWERED_NEXT, "added")
            lost: CloseReason = "interrupted" if tail else "lost"
            data = {
                "type": "tool_result",
                "tool_use_id": call.data["id"],
                "content": CLOSING[lost],
                "is_error": True,
            }
            if call.data.get("toolset_name") is not None:
                data["toolset_name"] = call.data["toolset_name"]
            made = _Piece(data, call.path, lost)
            used.add(id(made))
            ordered.append(made)
    if not ordered:
        return []
    moved = set(map(id, ordered))
    for message in {id(homes[each]): homes[each] for each in moved if each in homes}.values():
        message.pieces = [piece for piece in message.pieces if id(piece) not in moved]
    if not answer:
        return [_Message("user", ordered, ordered[0].path)]
    answer[0].pieces = [*ordered, *answer[0].pieces]
    return []


def _error_results(work: _Work) -> None:
    """What is not text in an error result moves behind the results of its turn."""
    for message in work.messages:
        moved: list[_Piece] = []
        for piece in message.results:
            content = piece.data.get("content")
            if piece.data.get("is_error") is True and isinstance(content, list):
                other = [
                    item for item in content if not (isinstance(item, dict) and item.get("type") == "text")
                ]
                if other:
                    piece.data["content"] = [item for item in content if item not in other]
                    movable = [
                        item
                        for item in other
                        if isinstance(item, dict) and item.get("type") in ("image", "document")
                    ]
                    moved += [_Piece(item, piece.path) for item in movable]
                    work.note(
                        piece.path, ERROR_TEXT_ONLY, "moved", "" if len(movable) == len(other) else "a block"
                    )
        if moved:
            at = len(message.results)
            message.pieces[at:at] = moved


def _server_tools(work: _Work) -> None:
    """Server calls and results go as pairs over the open turn; what the platform does not have goes too."""
    allowed = work.target.facts.server_tools if work.target is not None else None
    unfinished: dict[Any, _Piece] = {}
    foreign: set[Any] = set()
    doomed: dict[int, Rule] = {}
    for message in work.messages:
        if message.role == "user" and any(piece.type != "tool_result" for piece in message.pieces):
            doomed.update((id(call), SERVER_USE_HAS_RESULT) for call in unfinished.values())
            unfinished.clear()
        for piece in message.pieces if message.role == "assistant" else ():
            name = piece.data.get("tool_use_id")
            if piece.type == "server_tool_use":
                if allowed is not None and str(piece.data.get("name")) not in allowed:
                    foreign.add(piece.data.get("id"))
                    doomed[id(piece)] = SERVER_TOOL_PLATFORM
                else:
                    unfinished[piece.data.get("id")] = piece
            elif piece.type.endswith("_tool_result"):
                call = unfinished.pop(name, None)
                if name in foreign:
                    doomed[id(piece)] = SERVER_TOOL_PLATFORM
                elif call is None:
                    doomed[id(piece)] = SERVER_RESULT_HAS_USE
                elif _source_lost(piece):
                    doomed[id(piece)] = doomed[id(call)] = SERVER_RESULT_HAS_USE
    for message in work.messages if doomed else ():
        kept: list[_Piece] = []
        for piece in message.pieces:
            if id(piece) in doomed:
                work.note(piece.path, doomed[id(piece)], "dropped", f"a {piece.type} block")
            else:
                kept.append(piece)
        message.pieces = kept


def _source_lost(piece: _Piece) -> bool:
    """A search result without its encrypted content is refused and cannot be made again."""
    content = piece.data.get("content")
    return (
        piece.type == "web_search_tool_result"
        and isinstance(content, list)
        and any(
            not isinstance(item, dict) or not isinstance(item.get("encrypted_content"), str)
            for item in content
        )
    )


# ---------------------------------------------------------------- passes over turns


def _system_turns(work: _Work) -> None:
    """Leading instructions join the system prompt; misplaced ones move behind the next user turn."""
    leading = 0
    while leading < len(work.messages) and work.messages[leading].role == "system":
        message = work.messages[leading]
        work.note(message.path, SYSTEM_NOT_FIRST, "moved")
        before = work.system if isinstance(work.system, list) else [work.system] if work.system else []
        texts = [{"type": "text", "text": each} if isinstance(each, str) else each for each in before]
        work.system = [*texts, *(piece.data for piece in message.pieces if piece.data.get("text"))]
        leading += 1
    del work.messages[:leading]
    waiting: list[_Message] = []
    out: list[_Message] = []
    runs = list(work.runs())
    supported = work.target is None or work.target.model_facts.system_turns
    for at, (role, run) in enumerate(runs):
        if role == "system" and not supported and out and out[-1].role == "user":
            for message in run:
                work.note(message.path, SYSTEM_MODELS, "moved", "its standing as an instruction")
                out[-1].pieces += message.pieces
            continue
        after_user = bool(out) and (out[-1].role == "user" or _ends_served(out[-1]))
        before_user = at + 1 < len(runs) and runs[at + 1][0] == "user"
        if role == "system" and (not after_user or before_user):
            for message in run:
                work.note(message.path, SYSTEM_AFTER, "moved")
            waiting += run
            continue
        if role == "assistant" and waiting and out and out[-1].role == "user":
            out += waiting
            waiting = []
        out += run
    if waiting and out and out[-1].role != "user":
        for message in waiting:
            work.note(message.path, SYSTEM_AFTER, "dropped", "an instruction")
        waiting = []
    work.messages = out + waiting


def _ends_served(message: _Message) -> bool:
    last = message.pieces[-1].type if message.pieces else None
    return isinstance(last, str) and last.endswith("_tool_result")


def _texts(work: _Work) -> None:
    """Empty text goes; a turn that says nothing goes whole."""
    kept: list[_Message] = []
    for message in work.messages:
        before = len(message.pieces)
        kept_pieces: list[_Piece] = []
        for piece in message.pieces:
            if piece.type == "text" and piece.data.get("text") == "":
                work.note(join(piece.path, "text"), TEXT_NONEMPTY, "dropped")
            else:
                kept_pieces.append(piece)
        message.pieces = kept_pieces
        if message.pieces and all(
            piece.type == "text" and isinstance(piece.data.get("text"), str) and piece.data["text"].isspace()
            for piece in message.pieces
        ):
            work.note(message.pieces[0].path, NOT_ALL_WHITESPACE, "dropped")
            message.pieces = []
        while message.role == "assistant" and message.pieces and message.pieces[-1].type in THOUGHTS:
            work.note(message.pieces.pop().path, THINKING_NOT_LAST, "dropped", "a thought that was cut off")
        if message.pieces or (message.role == "assistant" and before == 0 and _may_be_empty(work)):
            kept.append(message)
        else:
            work.note(message.path, USER_NONEMPTY, "dropped")
    work.messages = kept


def _may_be_empty(work: _Work) -> bool:
    return work.target is None or work.target.facts.blank_text


def _tail(work: _Work) -> None:
    """A history to be sent ends as a request may: no thinking with thinking off, no trailing whitespace."""
    last = work.messages[-1] if work.messages else None
    if work.stage != "send" or last is None or last.role != "assistant" or work.target is None:
        return
    if work.target.thinking_type in (None, "disabled"):
        work.drop(last, lambda piece: piece.type in THOUGHTS, THINKING_OFF_FINAL)
    final = last.pieces[-1] if last.pieces else None
    if work.target.model_facts.prefill and final is not None and final.type == "text":
        text = final.data.get("text")
        if isinstance(text, str) and text != text.rstrip():
            final.data["text"] = text.rstrip()
            work.note(final.path, TRAILING_WHITESPACE, "rewritten")


def _unbind(work: _Work, index: int) -> None:
    """Drop the thinking of a message whose prefix has changed, and all thinking behind it."""
    for message in work.messages[index:]:
        work.drop(message, lambda piece: piece.type in THOUGHTS, PREFIX_BOUND)


PASSES: tuple[Callable[[_Work], None], ...] = (
    _surrogates,
    _media,
    _inputs,
    _places,
    _unsigned,
    _cut_calls,
    _ids,
    _pairs,
    _error_results,
    _server_tools,
    _system_turns,
    _texts,
    _tail,
)
"""The passes, in their order: blocks first, then pairs, then turns."""

__all__ = ["Change", "Repaired", "repair"]
