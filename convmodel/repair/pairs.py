"""The passes of a repair over calls and results, of the client's tools and of the server's."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, cast

from ..anthropic.targets import (
    BEDROCK_ERROR,
    BEDROCK_ID,
    SERVER_TOOL_PLATFORM,
    TAIL_OPEN,
)
from ..blocks import (
    ERROR_HAS_TEXT,
    ERROR_TEXT_ONLY,
    TOOL_USE_ID,
)
from ..conversation import CLOSING, RECEIVED, CloseReason
from ..errors import Rule, join, quoted
from ..machine import (
    ANSWERED_NEXT,
    RESULT_HAS_USE,
    SERVER_RESULT_HAS_USE,
    SERVER_USE_HAS_RESULT,
    TOOLSET_ECHO,
)
from ..turns import (
    ID_UNIQUE,
    RESULT_FIRST,
    RESULT_ONCE,
    SHORT_ID,
)
from .plan import Message, Piece, Work, is_served, unread

ERROR_WITHOUT_TEXT = "The tool reported an error without a text."
"""Stands where an error result has no text of its own: it says no more than the result did."""


def ids(work: Work) -> None:
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
        if id(piece) not in paired and name in first and _illegal(work, name):
            _readdress(piece, first[name])


def _results_of(messages: Iterable[Message]) -> Iterator[Piece]:
    return (piece for message in messages for piece in message.results)


def _readdress(result: Piece, id: str) -> None:
    if result.data["tool_use_id"] != id:
        result.data["tool_use_id"], result.rewritten = id, True


def _illegal(work: Work, id: str) -> Rule | None:
    """The rule that an id breaks."""
    if re.fullmatch(r"[a-zA-Z0-9_-]+", id) is None:
        return TOOL_USE_ID
    return BEDROCK_ID if _short_ids(work) and len(id) > SHORT_ID else None


def _short_ids(work: Work) -> bool:
    return work.target is not None and work.target.facts.short_ids


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
        rule = _illegal(work, id) or (ID_UNIQUE if id in seen else None)
        if rule is None:
            new = id
        else:
            wish = re.sub(r"[^a-zA-Z0-9_-]", "_", id) or "call"
            new = work.fresh(wish[: SHORT_ID - 10] if _short_ids(work) else wish)  # it may get a number
            piece.data["id"] = new
            work.rewrite(piece, join(piece.path, "id"), rule, quoted(id), now=quoted(new), kind="renamed")
        seen.add(new)
        ids.append(new)
    return ids


def _take_out(doomed: list[tuple[Message, Piece]]) -> None:
    """Take pieces out of their messages."""
    gone = {id(piece) for _, piece in doomed}
    for message in {id(message): message for message, _ in doomed}.values():
        message.pieces = [piece for piece in message.pieces if id(piece) not in gone]


def pairs(work: Work) -> None:
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


def error_results(work: Work) -> None:
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
            elif (rule := _needs_text(work, piece)) is not None and not _any_text(content):
                was, piece.data["content"] = piece.line, ERROR_WITHOUT_TEXT
                work.rewrite(piece, piece.path, rule, was)
        if moved:
            at = len(message.results)
            message.pieces[at:at] = moved


def _needs_text(work: Work, piece: Piece) -> Rule | None:
    """The rule that asks for a text in an error result."""
    if piece.data.get("toolset_name") is not None:
        return ERROR_HAS_TEXT
    return BEDROCK_ERROR if work.target is not None and not work.target.facts.mute_errors else None


def _any_text(content: object) -> bool:
    """Whether the content of a result has any text that says something."""
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return any(isinstance(text, str) and text.strip() for text in texts)


def server_tools(work: Work) -> None:
    """Server calls and results go as pairs over the open turn; what cannot be read or sent takes its pair along."""
    allowed = work.target.facts.server_tools if work.target is not None else None
    unfinished: dict[Any, Piece] = {}
    refused: dict[Any, Rule] = {}
    doomed: dict[int, Rule] = {}
    for message in work.messages:
        if message.role == "user" and any(piece.type != "tool_result" for piece in message.pieces):
            doomed.update((id(call), SERVER_USE_HAS_RESULT) for call in unfinished.values())
            unfinished.clear()
        for piece in message.pieces if message.role == "assistant" else ():
            if not is_served(piece):
                continue
            wrong = unread(piece)
            if piece.type == "server_tool_use":
                name = piece.data.get("id")
                if wrong is None and allowed is not None and piece.data["name"] not in allowed:
                    wrong = SERVER_TOOL_PLATFORM
                if wrong is None:
                    unfinished[name] = piece
                else:
                    refused[name] = doomed[id(piece)] = wrong
                continue
            name = piece.data.get("tool_use_id")
            call = unfinished.pop(name, None)
            if name in refused:
                doomed[id(piece)] = refused[name]
            elif call is None:
                doomed[id(piece)] = SERVER_RESULT_HAS_USE
            elif wrong is not None:
                doomed[id(piece)], doomed[id(call)] = wrong, SERVER_USE_HAS_RESULT
    for message in work.messages if doomed else ():
        gone = [piece for piece in message.pieces if id(piece) in doomed]
        for piece in gone:
            work.note(piece.path, doomed[id(piece)], "dropped", piece.named, before=piece.line)
        message.pieces = [piece for piece in message.pieces if id(piece) not in doomed]
        _drop_citations(work, message, gone)


def _drop_citations(work: Work, message: Message, gone: list[Piece]) -> None:
    """Citations of search results that are gone go with them."""
    urls = {
        item.get("url")
        for piece in gone
        if isinstance(piece.data.get("content"), list)
        for item in piece.data["content"]
        if isinstance(item, dict) and isinstance(item.get("url"), str)
    }
    for piece in message.pieces if urls else ():
        work.drop_parts(
            piece,
            "citations",
            lambda part, _: (
                SERVER_RESULT_HAS_USE if isinstance(part, dict) and part.get("url") in urls else None
            ),
            "a citation",
        )
