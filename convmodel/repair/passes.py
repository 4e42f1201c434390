"""The passes of a repair: each takes one kind of defect, and notes what it changed."""

from __future__ import annotations

import base64
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from ..anthropic.read import EMPTY_SEPARATOR, TURNS, WIRE_BLOCKS
from ..anthropic.targets import (
    SERVER_TOOL_PLATFORM,
    SYSTEM_MODELS,
    TAIL_OPEN,
    THINKING_OFF_FINAL,
    TRAILING_WHITESPACE,
    UNSIGNED_FOREIGN,
    USER_CITATIONS,
    binds_prefix,
)
from ..blocks import (
    ERROR_HAS_TEXT,
    ERROR_TEXT_ONLY,
    IMAGE_MATCHES,
    IMAGE_TYPES,
    THINKING_FIELDS,
    TOOL_USE_ID,
    TOOL_USE_INPUT,
    media_type_of,
)
from ..conversation import CLOSING, RECEIVED, CloseReason
from ..edits import PREFIX_BOUND
from ..errors import Rule, join, quoted
from ..jsonvalue import VALID_UTF8, decode
from ..machine import (
    ANSWERED_NEXT,
    RESULT_HAS_USE,
    SERVER_RESULT_HAS_USE,
    SERVER_USE_HAS_RESULT,
    SYSTEM_AFTER,
    SYSTEM_NOT_FIRST,
    TOOLSET_ECHO,
)
from ..turns import (
    ID_UNIQUE,
    NOT_ALL_WHITESPACE,
    RESULT_FIRST,
    RESULT_ONCE,
    TEXT_NONEMPTY,
    THINKING_NOT_LAST,
    USER_NONEMPTY,
)
from .plan import THOUGHTS, Defect, Message, Piece, Work, as_text

CUT_REASONS = ("max_tokens", "model_context_window_exceeded")
ERROR_WITHOUT_TEXT = "The tool reported an error without a text."
"""Stands where an error result has no text of its own: it says no more than the result did."""

# ---------------------------------------------------------------- blocks


def _surrogates(work: Work) -> None:
    """Lone surrogates become U+FFFD; pairs that were split into two escapes become what they mean."""
    for message in work.messages:
        for piece in message.pieces:
            made = _clean(piece.data)
            if made != piece.data:
                was, piece.data = piece.line, made
                work.rewrite(piece, piece.path, VALID_UTF8, was, lost="half a character")


def _clean(value: Any, depth: int = 250) -> Any:
    if isinstance(value, str):
        return (
            value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        )
    if isinstance(value, dict) and depth:
        return {_clean(key): _clean(item, depth - 1) for key, item in value.items()}
    return [_clean(item, depth - 1) for item in value] if isinstance(value, list) and depth else value


def _media(work: Work) -> None:
    """An image is what its bytes say it is."""
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
                        was, source["media_type"] = quoted(source.get("media_type")), actual
                        work.rewrite(piece, piece.path, IMAGE_MATCHES, was, now=quoted(actual))


def _first_bytes(data: object) -> bytes:
    try:
        return base64.b64decode(data[:24]) if isinstance(data, str) else b""
    except ValueError:
        return b""


def _inputs(work: Work) -> None:
    """The input of a call is an object; text that is none is kept under a key that says so."""
    for message in work.messages:
        for piece in message.calls:
            given = piece.data.get("input")
            if isinstance(given, dict):
                continue
            value, faults = decode(given) if isinstance(given, str) and given.strip() else (None, [])
            if isinstance(value, dict) and not faults:
                piece.data["input"] = value
            elif given is None or given == "":
                piece.data["input"] = {}
            else:
                text = as_text(given)
                if text is None:
                    continue
                piece.data["input"] = {"INVALID_JSON": text}
            was = "nothing" if given is None else f"a {type(given).__name__}"
            work.rewrite(piece, join(piece.path, "input"), TOOL_USE_INPUT, was)


def _places(work: Work) -> None:
    """Blocks where they may not stand are dropped: a call in a user message can never be paired.

    A result is moved to the user's side, behind the message that held it, and `_pairs` takes it from there.
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
                work.note(piece.path, rule, "dropped", f"a {piece.type} block", before=piece.line)
        message.pieces = kept
        out.append(message)
        out += [Message("user", moved, moved[0].path)] if moved else []
    work.messages = out


def _empty_texts(work: Work) -> None:
    """Empty text blocks; between two thoughts the model itself has put them."""
    for message in work.messages:
        kept: list[Piece] = []
        for at, piece in enumerate(message.pieces):
            if piece.type == "text" and piece.data.get("text") == "":
                follows = message.pieces[at + 1].type if at + 1 < len(message.pieces) else None
                between = bool(kept) and kept[-1].type in THOUGHTS and follows in THOUGHTS
                rule = EMPTY_SEPARATOR if between else TEXT_NONEMPTY
                work.note(join(piece.path, "text"), rule, "dropped", before=piece.line)
            else:
                kept.append(piece)
        message.pieces = kept


def _user_citations(work: Work) -> None:
    """Text on the user's side cites nothing, where the API's version forbids it."""
    if work.target is None or not work.target.facts.version_2026_10_21:
        return
    for message in work.messages:
        for piece in message.pieces if message.role == "user" else ():
            if piece.type == "text" and piece.data.get("citations"):
                del piece.data["citations"]
                where = join(piece.path, "citations")
                work.rewrite(piece, where, USER_CITATIONS, "citations", now="", lost="citations")


def _unsigned(work: Work) -> None:
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
            work.note(piece.path, rule, "dropped", f"a {piece.type} block", before=piece.line)


def _cut_calls(work: Work) -> None:
    """A call whose input is known to be cut is dropped; in a signed turn it is left, to be answered with an error."""
    if work.policy.cut_calls == "answer":
        return
    answered = {piece.data.get("tool_use_id") for message in work.messages for piece in message.results}
    for message in work.messages:
        last = message.pieces[-1] if message.pieces else None
        reason = message.origin.stop_reason if message.origin is not None else None
        if reason not in CUT_REASONS or last is None or last.type != "tool_use" or message.signed:
            continue
        if last.data.get("id") not in answered:
            message.pieces.pop()
            work.note(last.path, ANSWERED_NEXT, "dropped", "a call that was cut", before=last.line)


# ---------------------------------------------------------------- calls and results


def _ids(work: Work) -> None:
    """Illegal ids are rewritten on both sides; a call with an id that was used before gets another one, with its result.

    A result belongs to the call beside it. One that comes later belongs to the first call of its id that waits for one.
    """
    seen: set[str] = set()
    paired: set[int] = set()
    first: dict[str, str] = {}
    waiting: dict[str, deque[str]] = {}
    runs = list(work.runs())
    for at, (role, run) in enumerate(runs):
        if role == "user":
            for piece in _results_of(run):
                waits = waiting.get(piece.data["tool_use_id"])
                if id(piece) not in paired and waits:
                    paired.add(id(piece))
                    _readdress(piece, waits.popleft())
        if role != "assistant":
            continue
        answers = next((other for kind, other in runs[at + 1 : at + 3] if kind == "user"), [])
        beside: dict[str, list[Piece]] = {}
        for piece in _results_of(answers):
            beside.setdefault(piece.data["tool_use_id"], []).append(piece)
        calls: dict[str, list[tuple[Message, Piece]]] = {}
        for message in run:
            for piece in message.calls:
                calls.setdefault(piece.data["id"], []).append((message, piece))
        for name, same in calls.items():
            results = beside.get(name, [])
            new = _renamed(work, _without_copies(work, same, results), seen)
            if not name and len(new) != len(results):
                continue  # which of them the results answer, nothing says
            if name:
                first.setdefault(name, new[0])
            waiting.setdefault(name, deque()).extend(new[len(results) :])
            for n, piece in enumerate(results):
                paired.add(id(piece))
                _readdress(piece, new[n] if n < len(new) else new[0])
    for piece in _results_of(work.messages):
        name = piece.data["tool_use_id"]
        if id(piece) not in paired and name in first and not _legal(name):
            _readdress(piece, first[name])


def _results_of(messages: Iterable[Message]) -> Iterator[Piece]:
    return (piece for message in messages for piece in message.results)


def _readdress(result: Piece, id: str) -> None:
    if result.data["tool_use_id"] != id:
        result.data["tool_use_id"], result.rewritten = id, True


def _legal(id: str) -> bool:
    return re.fullmatch(r"[a-zA-Z0-9_-]+", id) is not None


def _without_copies(work: Work, calls: list[tuple[Message, Piece]], results: list[Piece]) -> list[Piece]:
    """The calls of one id in one response. Of calls that say the same, with fewer results, one is left."""
    (_, one), *others = calls
    if len(results) >= len(calls) or any(piece.data != one.data for _, piece in others):
        return [piece for _, piece in calls]
    for _, copy in others:
        work.note(copy.path, ID_UNIQUE, "dropped", "a copy", before=copy.line)
    _take_out(others)
    return [one]


def _renamed(work: Work, calls: list[Piece], seen: set[str]) -> list[str]:
    """The ids that the calls of one id have from here on."""
    ids: list[str] = []
    for piece in calls:
        id = piece.data["id"]
        if _legal(id) and id not in seen:
            new = id
        else:
            new = work.fresh(re.sub(r"[^a-zA-Z0-9_-]", "_", id) or "call")
            piece.data["id"] = new
            rule = ID_UNIQUE if _legal(id) else TOOL_USE_ID
            work.rewrite(piece, join(piece.path, "id"), rule, quoted(id), now=quoted(new), kind="renamed")
        seen.add(new)
        ids.append(new)
    return ids


def _take_out(doomed: list[tuple[Message, Piece]]) -> None:
    """Take pieces out of their messages."""
    gone = {id(piece) for _, piece in doomed}
    for message in {id(message): message for message, _ in doomed}.values():
        message.pieces = [piece for piece in message.pieces if id(piece) not in gone]


def _pairs(work: Work) -> None:
    """Each call has its first real result, in front of the turn that answers it; missing ones are said to be missing."""
    given: dict[str, list[Piece]] = {}
    for message in work.messages:
        if message.role == "user":
            for piece in message.results:
                given.setdefault(cast("str", piece.data.get("tool_use_id")), []).append(piece)
    chosen: dict[str, Piece] = {}
    for name, pieces in given.items():
        chosen[name] = next((piece for piece in pieces if not _placeholder(piece)), pieces[0])
    if work.policy.missing_results == "drop":
        _drop_unanswered(work, chosen)
    used: set[int] = set()
    homes = {id(piece): message for message in work.messages for piece in message.pieces}
    runs = list(work.runs())
    last = max((at for at, (role, _) in enumerate(runs) if role != "user"), default=-1)
    out: list[Message] = []
    for at, (role, run) in enumerate(runs):
        out.extend(run)
        calls = (
            [(message, piece) for message in run for piece in message.calls] if role == "assistant" else []
        )
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
                lost = "" if _said(piece) in CLOSING.values() else "a result"
                work.note(piece.path, rule, "dropped", lost, before=piece.line, defect="extra_results")
        message.pieces = [
            piece for piece in message.pieces if piece.type != "tool_result" or id(piece) in used
        ]


def _drop_unanswered(work: Work, chosen: dict[str, Piece]) -> None:
    """Take calls without a result out, save from signed turns, and the open ones of a history at rest."""
    runs = list(work.runs())
    at_rest = work.stage == "hold" and runs and runs[-1][0] == "assistant"
    for role, run in runs[:-1] if at_rest else runs:
        for message in run if role == "assistant" else ():
            if not message.signed:
                work.drop(
                    message,
                    lambda piece: piece.type == "tool_use" and piece.data["id"] not in chosen,
                    ANSWERED_NEXT,
                    "a call without a result",
                )


def _placeholder(piece: Piece) -> bool:
    """Whether a result only says that there is none. Such a text loses against any other result of the call."""
    return piece.data.get("is_error") is True and bool(_NO_RESULT.search(_said(piece)[:200]))


def _said(piece: Piece) -> str:
    """The text of a result that is text alone."""
    content = piece.data.get("content")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        content = content[0].get("text")
    return content if isinstance(content, str) else ""


_NO_RESULT = re.compile(
    r"^\W*(request |user )?(interrupted|cancel+ed|aborted)|\bno (tool )?result|\bnot (been )?(run|executed)\b"
    r"|\b(tool|call|execution|operation)\b[^.:]{0,40}\b(interrupted|cancel+ed|aborted)"
    r"|\bresult\b[^.:]{0,40}\b(missing|lost|unavailable)|\bmissing (tool )?result",
    re.IGNORECASE,
)
"""How libraries word the error results that they make up. The texts of `AwaitingTools.close` are among them."""


def _answered(
    work: Work,
    calls: list[tuple[Message, Piece]],
    answer: list[Message],
    chosen: dict[str, Piece],
    used: set[int],
    homes: dict[int, Message],
    *,
    tail: bool,
) -> list[Message]:
    """Put the results of some calls where they belong; gives the message to insert where no user turn follows."""
    results = [chosen[call.data["id"]] for _, call in calls if call.data["id"] in chosen]
    for _, call in calls:
        if call.data["id"] in chosen:
            _echo(work, call, chosen[call.data["id"]])
    used.update(map(id, results))
    missing = [(message, call) for message, call in calls if call.data["id"] not in chosen]
    rest = [piece for message in answer for piece in message.pieces if piece.type != "tool_result"]
    here = [piece for message in answer for piece in message.results]
    open_tail = tail and not rest and work.stage == "hold"
    lead = [piece for message in answer for piece in message.pieces][: len(here)]
    wanted, present = set(map(id, results)), set(map(id, here))
    if wanted == present and (lead == here or open_tail) and (not missing or open_tail):
        return []
    ordered = [piece for piece in here if id(piece) in wanted]
    for piece in results:
        if id(piece) not in present:
            work.note(piece.path, ANSWERED_NEXT, "moved", before=piece.line, after=piece.line, defect="order")
            ordered.append(piece)
    if lead != here and ordered:
        last = ordered[-1]
        work.note(last.path, RESULT_FIRST, "moved", before=last.line, after=last.line, defect="order")
    if not open_tail:
        for message, call in missing:
            made = _made(message, call, tail=tail)
            rule = TAIL_OPEN if tail and not rest else ANSWERED_NEXT
            work.note(call.path, rule, "added", after=made.line)
            used.add(id(made))
            ordered.append(made)
    if not ordered:
        return []
    moved = set(map(id, ordered))
    for message in {id(homes[each]): homes[each] for each in moved if each in homes}.values():
        message.pieces = [piece for piece in message.pieces if id(piece) not in moved]
    if not answer:
        return [Message("user", ordered, ordered[0].path)]
    answer[0].pieces = [*ordered, *answer[0].pieces]
    return []


def _echo(work: Work, call: Piece, result: Piece) -> None:
    """A result carries the toolset name of its call."""
    name, has = call.data.get("toolset_name"), result.data.get("toolset_name")
    if name == has:
        return
    if name is None:
        del result.data["toolset_name"]
    else:
        result.data["toolset_name"] = name
    where = join(result.path, "toolset_name")
    result.rewritten = True
    work.note(where, TOOLSET_ECHO, "rewritten", before=quoted(has), after=quoted(name), defect="values")


def _made(message: Message, call: Piece, *, tail: bool) -> Piece:
    """An error result that says what is known of a call: it was not run, was interrupted, or its result was lost."""
    stop = message.origin.stop_reason if message.origin is not None else None
    may_run = RECEIVED.get(stop, (True, True))[1]
    known: CloseReason = "not_run" if not may_run else "interrupted" if tail else "lost"
    data = {
        "type": "tool_result",
        "tool_use_id": call.data["id"],
        "content": CLOSING[known],
        "is_error": True,
    }
    if call.data.get("toolset_name") is not None:
        data["toolset_name"] = call.data["toolset_name"]
    return Piece(data, call.path, known)


def _error_results(work: Work) -> None:
    """What is not text in an error result moves behind the results of its turn; an error says at least that it is one."""
    for message in work.messages:
        moved: list[Piece] = []
        for piece in message.results:
            if piece.data.get("is_error") is not True:
                continue
            content = piece.data.get("content")
            blocks = content if isinstance(content, list) else []
            text = [item for item in blocks if isinstance(item, dict) and item.get("type") == "text"]
            if len(text) < len(blocks):
                other = [
                    item for item in blocks if not (isinstance(item, dict) and item.get("type") == "text")
                ]
                movable = [
                    Piece(item, piece.path)
                    for item in other
                    if isinstance(item, dict) and item.get("type") in ("image", "document")
                ]
                was, piece.data["content"] = piece.line, text if _any_text(text) else ERROR_WITHOUT_TEXT
                moved += movable
                lost = "" if len(movable) == len(other) else "a block"
                work.rewrite(piece, piece.path, ERROR_TEXT_ONLY, was, kind="moved", lost=lost)
            elif piece.data.get("toolset_name") is not None and not _any_text(content):
                was, piece.data["content"] = piece.line, ERROR_WITHOUT_TEXT
                work.rewrite(piece, piece.path, ERROR_HAS_TEXT, was)
        if moved:
            at = len(message.results)
            message.pieces[at:at] = moved


def _any_text(content: object) -> bool:
    """Whether the content of a result has any text that says something."""
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return any(isinstance(text, str) and text.strip() for text in texts)


def _server_tools(work: Work) -> None:
    """Server calls and results go as pairs over the open turn; what the platform does not have goes too."""
    allowed = work.target.facts.server_tools if work.target is not None else None
    unfinished: dict[Any, Piece] = {}
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
        kept: list[Piece] = []
        for piece in message.pieces:
            if id(piece) in doomed:
                lost = f"a {piece.type} block"
                work.note(piece.path, doomed[id(piece)], "dropped", lost, before=piece.line)
            else:
                kept.append(piece)
        message.pieces = kept


def _source_lost(piece: Piece) -> bool:
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


# ---------------------------------------------------------------- turns


def _system_turns(work: Work) -> None:
    """Leading instructions join the system prompt; misplaced ones move behind the next user turn."""
    leading = 0
    while leading < len(work.messages) and work.messages[leading].role == "system":
        message = work.messages[leading]
        work.note(message.path, SYSTEM_NOT_FIRST, "moved", after="the system prompt")
        given = work.system
        before = list(given) if isinstance(given, (list, tuple)) else [given] if given else []
        texts = [{"type": "text", "text": each} if isinstance(each, str) else each for each in before]
        work.system = [*texts, *(piece.data for piece in message.pieces if piece.data.get("text"))]
        leading += 1
    del work.messages[:leading]
    waiting: list[Message] = []
    out: list[Message] = []
    runs = list(work.runs())
    supported = work.target is None or work.target.model_facts.system_turns
    for at, (role, run) in enumerate(runs):
        if role == "system" and not supported and out and out[-1].role == "user":
            for message in run:
                lost = "its standing as an instruction"
                work.note(message.path, SYSTEM_MODELS, "moved", lost, after="user text")
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


def _ends_served(message: Message) -> bool:
    last = message.pieces[-1].type if message.pieces else None
    return isinstance(last, str) and last.endswith("_tool_result")


def _texts(work: Work) -> None:
    """A turn that says nothing goes whole."""
    kept: list[Message] = []
    for message in work.messages:
        if message.pieces and all(
            piece.type == "text" and isinstance(piece.data.get("text"), str) and piece.data["text"].isspace()
            for piece in message.pieces
        ):
            work.note(message.pieces[0].path, NOT_ALL_WHITESPACE, "dropped", before=message.pieces[0].line)
            message.pieces = []
        _drop_last_thoughts(work, message)
        if _says(message) or (message.role == "assistant" and message.was_empty and _may_be_empty(work)):
            kept.append(message)
        else:
            work.note(message.path, USER_NONEMPTY, "dropped")
    work.messages = kept


def _says(message: Message) -> bool:
    """Whether anything of a message is sent."""
    return any(not piece.unsent for piece in message.pieces)


def _drop_last_thoughts(work: Work, message: Message) -> None:
    """Thinking at the end of a turn, which no turn may end with; unsigned thinking does not count as one."""
    kept = [piece for piece in message.pieces if not piece.unsigned] if message.role == "assistant" else []
    doomed: set[int] = set()
    while kept and kept[-1].type in THOUGHTS:
        last = kept.pop()
        doomed.add(id(last))
        lost = "a thought that was cut off"
        work.note(last.path, THINKING_NOT_LAST, "dropped", lost, before=last.line, defect="thinking")
    if doomed:
        message.pieces = [piece for piece in message.pieces if id(piece) not in doomed]


def _may_be_empty(work: Work) -> bool:
    return work.target is None or work.target.facts.blank_text


def _tail(work: Work) -> None:
    """A history to be sent ends as a request may: no thinking with thinking off, no trailing whitespace."""
    role, run = next(reversed(list(work.runs())), ("", []))
    if work.stage != "send" or role != "assistant" or work.target is None:
        return
    if work.target.thinking_type in (None, "disabled"):
        work.defect = "thinking"
        for message in run:
            work.drop(message, lambda piece: piece.type in THOUGHTS, THINKING_OFF_FINAL)
        work.defect = "texts"
    if work.target.model_facts.prefill:
        _strip_end(work, run)
    for message in run:
        if not (_says(message) or message.was_empty):
            work.note(message.path, USER_NONEMPTY, "dropped")
    work.messages = [message for message in work.messages if _says(message) or message.was_empty]


def _strip_end(work: Work, run: list[Message]) -> None:
    """Take the whitespace from the end of what the API joins."""
    for message in reversed(run):
        for piece in reversed([piece for piece in message.pieces if not piece.unsent]):
            text = piece.data.get("text")
            if piece.type != "text" or not isinstance(text, str):
                return
            if text.strip():
                if text != text.rstrip():
                    was, piece.data["text"] = piece.line, text.rstrip()
                    work.rewrite(piece, piece.path, TRAILING_WHITESPACE, was)
                return
            message.pieces.remove(piece)
            work.note(piece.path, TRAILING_WHITESPACE, "dropped", before=piece.line)


# ---------------------------------------------------------------- the prefix


def _void(work: Work) -> None:
    """On models that bind thinking to its prefix, drop what the repair itself has voided.

    The service compares all that stands before a thinking block with what stood there when it made the block
    (Preserved thinking, API documentation). Where an origin says what that was, `check` compares; else the history as it
    was given is what is known.
    """
    if work.target is None or not binds_prefix(work.target.model, work.target.platform):
        return
    expected: dict[int, int] = {}  # how many other blocks stood before each block
    count = 0
    for piece in work.given:
        expected[id(piece)] = count
        count += piece.type not in THOUGHTS
    cut = _cut_thoughts(work)
    count, same = 0, True
    for message in work.messages:
        known = message.origin is not None and message.origin.prefix is not None
        kept: list[Piece] = []
        for piece in message.pieces:
            stood = expected.get(id(piece)) == count and not piece.rewritten
            if piece.type not in THOUGHTS:
                same = same and stood
                count += 1
            elif not piece.unsent and (id(piece) in cut or not (known or (same and stood))):
                lost = f"a {piece.type} block"
                work.note(piece.path, PREFIX_BOUND, "dropped", lost, before=piece.line)
                continue
            kept.append(piece)
        message.pieces = kept


def _cut_thoughts(work: Work) -> set[int]:
    """Thoughts behind one that was dropped. The service takes the loss of the oldest ones, and no gap."""
    present = {id(piece) for message in work.messages for piece in message.pieces}
    thoughts = [piece for piece in work.given if piece.type in THOUGHTS and not piece.unsent]
    first = next((at for at, piece in enumerate(thoughts) if id(piece) in present), len(thoughts))
    gap = next((at for at in range(first, len(thoughts)) if id(thoughts[at]) not in present), len(thoughts))
    return {id(piece) for piece in thoughts[gap:]}


def unbind(work: Work, index: int) -> None:
    """Drop the thinking of a message whose prefix is known to have changed, and all thinking behind it."""
    for message in work.messages[index:]:
        work.drop(message, lambda piece: piece.type in THOUGHTS and not piece.unsent, PREFIX_BOUND)


PASSES: tuple[tuple[Defect, Callable[[Work], None]], ...] = (
    ("values", _surrogates),
    ("values", _media),
    ("values", _inputs),
    ("blocks", _places),
    ("texts", _empty_texts),
    ("fields", _user_citations),
    ("thinking", _unsigned),
    ("cut_calls", _cut_calls),
    ("ids", _ids),
    ("missing_results", _pairs),
    ("order", _error_results),
    ("server_tools", _server_tools),
    ("texts", _texts),
    ("order", _system_turns),
    ("texts", _tail),
    ("thinking", _void),
)
"""The passes in their order, blocks first, then pairs, then turns; each with the kind of defect that it is about."""
