"""The passes of a repair over single blocks: what they hold, and where they stand."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

from ..anthropic.read import EMPTY_SEPARATOR, TURNS, WIRE_BLOCKS
from ..anthropic.targets import (
    BEDROCK_BLANK,
    UNSIGNED_FOREIGN,
    USER_CITATIONS,
)
from ..blocks import (
    BASE64,
    IMAGE_MATCHES,
    IMAGE_TYPES,
    RESULT_CONTENT,
    THINKING_FIELDS,
    TOOL_USE_INPUT,
    media_type_of,
)
from ..conversation import cuts
from ..declared import SENT
from ..errors import Rule, join, quoted
from ..fields import BROKEN, FIELD_TYPE, Nested, Reading, described
from ..jsonvalue import VALID_UTF8, decode, rejoined
from ..machine import (
    ANSWERED_NEXT,
)
from ..turns import (
    TEXT_NONEMPTY,
)
from .plan import THOUGHTS, Defect, Message, Piece, Work, as_text, is_served, parts_of, type_of, unread

PARTS = parts_of(WIRE_BLOCKS["tool_result"], "content").by_type
"""What a result may hold."""


def surrogates(work: Work) -> None:
    """Lone surrogates become U+FFFD; pairs that were split into two escapes become what they mean."""
    for message in work.messages:
        for piece in message.pieces:
            made = _clean(piece.data)
            if made != piece.data:
                was, piece.data = piece.line, made
                work.rewrite(piece, piece.path, VALID_UTF8, was, lost="half a character")


def _clean(value: Any, depth: int = 250) -> Any:
    if isinstance(value, str):
        return rejoined(value, replace=True)
    if isinstance(value, dict) and depth:
        return {_clean(key): _clean(item, depth - 1) for key, item in value.items()}
    return [_clean(item, depth - 1) for item in value] if isinstance(value, list) and depth else value


def values(work: Work) -> None:
    """What is due as text, as blocks or as a flag, and was stored as another value that says the same."""
    for message in work.messages:
        for piece in message.pieces:
            if piece.type == "text":
                _text(work, piece, piece.data, piece.path)
            elif piece.type == "tool_result":
                _content(work, piece)
                _flag(work, piece)


def _text(work: Work, piece: Piece, data: dict[str, Any], path: str) -> None:
    given = data.get("text")
    if isinstance(given, str):
        return
    inner = given.get("value") if isinstance(given, dict) else None  # as OpenAI's Assistants have it
    made = "" if given is None else inner if isinstance(inner, str) else as_text(given)
    if made is not None:
        data["text"] = made
        work.rewrite(piece, join(path, "text"), FIELD_TYPE, described(given))


def _content(work: Work, piece: Piece) -> None:
    """A result holds text or blocks; any other value goes as the JSON that it is."""
    given, where = piece.data.get("content"), join(piece.path, "content")
    if given is None or isinstance(given, str):
        return
    if isinstance(given, dict) and type_of(given) in PARTS:
        piece.data["content"] = given = [given]
        work.rewrite(piece, where, RESULT_CONTENT, "a block")
    if not isinstance(given, list):
        text = as_text(given)
        if text is not None:
            piece.data["content"] = text
            work.rewrite(piece, where, RESULT_CONTENT, described(given))
        return
    made: list[Any] = []
    for at, part in enumerate(given):
        inside = f"{where}[{at}]"
        text = None if type_of(part) else as_text(part)
        if type_of(part) in PARTS:
            if part["type"] == "text":
                _text(work, piece, part, inside)
            made.append(part)
        elif text is not None:
            made.append({"type": "text", "text": text})
            work.rewrite(piece, inside, RESULT_CONTENT, described(part), now="text")
        else:
            was = str(type_of(part))
            work.rewrite(
                piece, inside, RESULT_CONTENT, was, now="", kind="dropped", lost="a block", defect="blocks"
            )
    piece.data["content"] = made


def _flag(work: Work, piece: Piece) -> None:
    given, where = piece.data.get("is_error", False), join(piece.path, "is_error")
    if type(given) is bool:
        return
    made = {"true": True, "1": True, "false": False, "0": False}.get(str(given).lower())
    if made is None:
        del piece.data["is_error"]
        work.rewrite(piece, where, FIELD_TYPE, described(given), now="", kind="dropped", lost="`is_error`")
    else:
        piece.data["is_error"] = made
        work.rewrite(piece, where, FIELD_TYPE, described(given), now=str(made).lower())


def media(work: Work) -> None:
    """Bytes are plain base64, and an image is what its bytes say it is."""
    for message in work.messages:
        for piece in message.pieces:
            inner = piece.data.get("content")
            for data in (piece.data, *(inner if isinstance(inner, list) else ())):
                source = data.get("source") if type_of(data) in ("image", "document") else None
                if not isinstance(source, dict) or source.get("type") != "base64":
                    continue
                _plain_base64(work, piece, source)
                actual = media_type_of(_first_bytes(source.get("data")))
                if data["type"] == "image" and actual in IMAGE_TYPES and actual != source.get("media_type"):
                    was, source["media_type"] = quoted(source.get("media_type")), actual
                    work.rewrite(piece, piece.path, IMAGE_MATCHES, was, now=quoted(actual))


def _plain_base64(work: Work, piece: Piece, source: dict[str, Any]) -> None:
    """Take out the prefix of a data URL and breaks, and put in the padding."""
    given = source.get("data")
    if isinstance(given, str):
        plain = "".join(re.sub(r"^data:[^,]{0,100};base64,", "", given).split())
        plain += "=" * (-len(plain) % 4)
        if plain != given:
            source["data"] = plain
            work.rewrite(piece, piece.path, BASE64, "other base64", now=f"<{len(plain)} characters>")


def _first_bytes(data: object) -> bytes:
    try:
        return base64.b64decode(data[:24]) if isinstance(data, str) else b""
    except ValueError:
        return b""


def inputs(work: Work) -> None:
    """The input of a call is an object; text that is none is kept under a key that says so."""
    for message in work.messages:
        for piece in message.pieces:
            given = piece.data.get("input")
            if piece.type not in ("tool_use", "server_tool_use") or isinstance(given, dict):
                continue
            value, faults = decode(given) if isinstance(given, str) and given.strip() else (None, [])
            if isinstance(value, dict) and not faults:
                piece.data["input"] = value
            elif given is None or given == "":
                piece.data["input"] = {}
            else:
                text = as_text(given)
                if text is None or piece.type == "server_tool_use":
                    continue
                piece.data["input"] = {"INVALID_JSON": text}
            was = "nothing" if given is None else f"a {type(given).__name__}"
            work.rewrite(piece, join(piece.path, "input"), TOOL_USE_INPUT, was)


def places(work: Work) -> None:
    """Blocks where they may not stand are dropped: a call in a user message can never be paired.

    A result is moved to the user's side, behind the message that held it, and `pairs` takes it from there.
    """
    out: list[Message] = []
    for message in work.messages:
        kept: list[Piece] = []
        moved: list[Piece] = []
        for piece in message.pieces:
            cls = piece.cls
            if message.role in cls.roles or message.role not in TURNS:
                kept.append(piece)  # what a party that nobody knows has said, is for nobody to move
                continue
            rule = cls.misplaced if message.role != "system" else WIRE_BLOCKS["text"].misplaced
            if piece.type == "tool_result":
                work.note(piece.path, rule, "moved", before=piece.line, after=piece.line)
                moved.append(piece)
            else:
                work.note(piece.path, rule, "dropped", piece.named, before=piece.line)
        message.pieces = kept
        out.append(message)
        out += [Message("user", moved, moved[0].path)] if moved else []
    work.messages = out


def empty_texts(work: Work) -> None:
    """Empty text blocks, and blank ones where the target takes none; between two thoughts the model has put them."""
    blank_too = work.target is not None and not work.target.facts.blank_text
    for message in work.messages:
        kept: list[Piece] = []
        for at, piece in enumerate(message.pieces):
            said = piece.data.get("text") if piece.type == "text" else None
            if said == "" or (blank_too and isinstance(said, str) and said.isspace()):
                follows = message.pieces[at + 1].type if at + 1 < len(message.pieces) else None
                between = bool(kept) and kept[-1].type in THOUGHTS and follows in THOUGHTS
                rule = BEDROCK_BLANK if said else EMPTY_SEPARATOR if between else TEXT_NONEMPTY
                work.note(join(piece.path, "text"), rule, "dropped", before=piece.line)
            else:
                kept.append(piece)
            if blank_too and piece.type == "tool_result":
                work.drop_parts(piece, "content", _blank, "")
        message.pieces = kept


def _blank(part: Any, _path: str) -> Rule | None:
    said = part.get("text") if type_of(part) == "text" else None
    return BEDROCK_BLANK if isinstance(said, str) and not said.strip() else None


def user_citations(work: Work) -> None:
    """Text on the user's side cites nothing, where the API's version forbids it."""
    if work.target is None or not work.target.facts.version_2026_10_21:
        return
    for message in work.messages:
        for piece in message.pieces if message.role == "user" else ():
            if piece.type == "text" and piece.data.get("citations"):
                del piece.data["citations"]
                where = join(piece.path, "citations")
                work.rewrite(piece, where, USER_CITATIONS, "citations", now="", lost="citations")


def unsigned(work: Work) -> None:
    """Thinking that the target cannot read is not sent; the conversation keeps it, for who can."""
    for message in work.messages:
        issuer = message.origin.vendor if message.origin is not None else "anthropic"
        for piece in message.pieces:
            if piece.type not in THOUGHTS:
                continue
            if issuer == "anthropic" and piece.unsigned:
                rule = THINKING_FIELDS
            elif work.target is not None and issuer != work.target.vendor:
                rule = UNSIGNED_FOREIGN
            else:
                continue
            piece.unsent = True
            work.note(piece.path, rule, "dropped", piece.named, before=piece.line)


def _fault_in(kind: Nested) -> Callable[[Any, str], Rule | None]:
    """What is wrong with a value that stands in a block."""

    def fault(raw: Any, path: str) -> Rule | None:
        reading = Reading(SENT, marked=True)
        return reading.violations[0].rule if kind.read(raw, reading, path) is BROKEN else None

    return fault


def unreadable(work: Work) -> None:
    """What cannot be read, and cannot be made again: thinking, media, citations, parts of results.

    What was said, called and answered stays, for `check` to say what is wrong with it. Blocks of server tools go as
    pairs, with `server_tools`.
    """
    citation_fault = _fault_in(parts_of(WIRE_BLOCKS["text"], "citations"))
    part_fault = _fault_in(parts_of(WIRE_BLOCKS["tool_result"], "content"))
    for message in work.messages:
        kept: list[Piece] = []
        for piece in message.pieces:
            if piece.type == "text":
                work.drop_parts(piece, "citations", citation_fault, "a citation")
            elif piece.type == "tool_result":
                work.drop_parts(piece, "content", part_fault, "a block")
            elif piece.type in THOUGHTS or not (piece.type == "tool_use" or is_served(piece)):
                rule = None if piece.unsent or piece.unsigned else unread(piece)
                if rule is not None:
                    defect: Defect = "thinking" if piece.type in THOUGHTS else "blocks"
                    work.note(piece.path, rule, "dropped", piece.named, before=piece.line, defect=defect)
                    continue
            kept.append(piece)
        message.pieces = kept


def cut_calls(work: Work) -> None:
    """A call whose input is known to be cut is dropped; in a signed turn it is left, to be answered with an error."""
    if work.policy.cut_calls == "answer":
        return
    answered = {piece.data.get("tool_use_id") for message in work.messages for piece in message.results}
    for message in work.messages:
        last = message.pieces[-1] if message.pieces else None
        reason = message.origin.stop_reason if message.origin is not None else None
        if not cuts(reason) or last is None or last.type != "tool_use" or message.signed:
            continue
        if last.data.get("id") not in answered:
            message.pieces.pop()
            work.note(last.path, ANSWERED_NEXT, "dropped", "a call that was cut", before=last.line)
