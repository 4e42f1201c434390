"""The passes of a repair over turns, and over what their thinking is bound to."""

from __future__ import annotations

from ..anthropic.targets import (
    SYSTEM_MODELS,
    THINKING_OFF_FINAL,
    TRAILING_WHITESPACE,
    binds_prefix,
)
from ..edits import PREFIX_BOUND
from ..machine import (
    SYSTEM_AFTER,
    SYSTEM_NOT_FIRST,
)
from ..turns import (
    NOT_ALL_WHITESPACE,
    THINKING_NOT_LAST,
    USER_NONEMPTY,
)
from .plan import THOUGHTS, Message, Piece, Work


def system_turns(work: Work) -> None:
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


def texts(work: Work) -> None:
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


def tail(work: Work) -> None:
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


def void(work: Work) -> None:
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
                work.note(piece.path, PREFIX_BOUND, "dropped", piece.named, before=piece.line)
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
