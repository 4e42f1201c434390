"""Edits of a history: which turns it then has, and which thinking no longer stands behind what it answered.

Signed thinking is bound to all that stood before it when it was made. An edit is a `Rewrite`; `edited` makes a log of it and
names what it voids. The methods of conversations are in `convmodel.conversation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import attrs

from .blocks import (
    ContentBlockSource,
    PlainTextSource,
    ServerToolUse,
    Text,
    ToolResult,
    ToolUse,
    referred_tools,
)
from .errors import BUILT, Rule, ValidationError, Violation, quoted
from .fields import FIELD_TYPE, Choice, require
from .log import Log, altered, answered, is_recorded, void_from
from .machine import CLIENT, RESULT_HAS_USE, TABLE, Phase, State
from .preamble import Preamble
from .turns import RESULT_ONCE, SIGNED, AssistantTurn, Origin, Turn, UserTurn

PREFIX_BOUND = Rule(
    "thinking-prefix-bound",
    "What stands before a thinking block is what stood there when the model made it.",
    "Preserved thinking, API documentation",
    "messages.N.content.M: Invalid `signature` in `thinking` block. The block is bound to a different conversation.",
)

OnThinking: TypeAlias = Literal["refuse", "strip_after", "keep"]
"""What an edit does about thinking that it voids: raise, drop the first such block and all thinking behind it, or leave it
for models that do not check."""
_ON_THINKING = Choice(("refuse", "strip_after", "keep"))

CLEARED = "[The result was cleared.]"
"""What stands in place of a result that was cleared."""


class Moved(NamedTuple):
    """A turn of an edited history."""

    turn: Turn
    was: int
    """Where it, or what it replaces, stood before; -1 if it is new."""


class Rewrite(NamedTuple):
    """An edited history: the turns before `first` stay, and these come behind them."""

    first: int
    turns: list[Moved]


# ---------------------------------------------------------------- the edits


def unchanged(log: Log, start: int, end: int) -> list[Moved]:
    """Some turns as they are."""
    return [Moved(log.turns[at], at) for at in range(start, end)]


def replaced(log: Log, length: int, index: int, turn: Turn) -> Rewrite:
    """One turn in the place of another."""
    return Rewrite(index, [Moved(turn, index), *unchanged(log, index + 1, length)])


def mapped(log: Log, length: int, change: Callable[[Any], Any]) -> Rewrite:
    """Every block as `change` gives it; turns in which it changes nothing stay the same objects."""
    turns: list[Moved] = []
    first = length
    for index in range(length):
        turn = log.turns[index]
        blocks = [_changed(block, change, BUILT.at(index, at)) for at, block in enumerate(turn.blocks)]
        if any(new is not old for new, old in zip(blocks, turn.blocks, strict=True)):
            first = min(first, index)
            turn = _with_blocks(turn, blocks, index)
        turns.append(Moved(turn, index))
    return Rewrite(first, turns[first:])


def _changed(block: Any, change: Callable[[Any], Any], path: str) -> Any:
    try:
        return change(block)
    except ValidationError as error:
        raise ValidationError(fault.under(path) for fault in error.violations) from None


def _with_blocks(turn: Turn, blocks: list[Any], index: int) -> Turn:
    try:
        return attrs.evolve(turn, blocks=cast("Any", blocks))
    except ValidationError as error:
        raise ValidationError(fault.under(BUILT.turn(index)) for fault in error.violations) from None


def with_text(change: Callable[[str], str]) -> Callable[[Any], Any]:
    """Blocks with other text: text blocks, text in results, in search results and in documents."""

    def text(block: Any, name: str) -> Any:
        old = getattr(block, name)
        new = change(old)
        require(new, str, name, "text")
        return block if new == old else attrs.evolve(block, **{name: new})

    def of(block: Any) -> Any:
        if type(block) is Text:
            return text(block, "text")
        if type(block) is PlainTextSource:
            return text(block, "data")
        if type(block) in (ToolResult, ContentBlockSource) and isinstance(block.content, str):
            return text(block, "content")
        source = getattr(block, "source", None)
        if type(source) in (PlainTextSource, ContentBlockSource):
            new = of(source)
            return block if new is source else attrs.evolve(block, source=new)
        if isinstance(getattr(block, "content", None), tuple):
            inner = tuple(map(of, block.content))
            same = all(new is old for new, old in zip(inner, block.content, strict=True))
            return block if same else attrs.evolve(block, content=inner)
        return block

    return of


def with_input(change: Callable[[ToolUse | ServerToolUse], Mapping[str, Any]]) -> Callable[[Any], Any]:
    """Blocks with other inputs of calls."""

    def of(block: Any) -> Any:
        if type(block) not in (ToolUse, ServerToolUse):
            return block
        new = change(block)
        return block if new == block.input else attrs.evolve(block, input=new)

    return of


def cleared(log: Log, length: int, before: int) -> Rewrite:
    """The results before a turn without what they held."""

    def clear(block: Any) -> Any:
        held = type(block) is ToolResult and block.content not in (None, "", (), CLEARED)
        return attrs.evolve(block, content=CLEARED) if held else block

    made = mapped(log, before, clear)
    return Rewrite(made.first, [*made.turns, *unchanged(log, max(made.first, before), length)])


def supplied(log: Log, length: int, result: ToolResult) -> Rewrite:
    """A real result in the place of one that was made for want of it.

    Raises:
        ValidationError: `tool-result-has-use` if no call has its id; `tool-result-once` if the call has a real result.
    """
    call = log.calls.last(CLIENT, result.tool_use_id, length)
    index = None if call is None else log.calls.answer(call, length)
    if index is None:
        found, fix = f"no answered call {quoted(result.tool_use_id)}", "Answer an open call with `answer`."
        raise ValidationError([Violation(RESULT_HAS_USE, "result.tool_use_id", found, fix)])
    turn = log.turns[index]
    blocks = [
        result if type(it) is ToolResult and it.tool_use_id == result.tool_use_id and it.synthetic else it
        for it in turn.blocks
    ]
    if result not in blocks:
        found, fix = f"a second real result for {quoted(result.tool_use_id)}", "Keep the first."
        raise ValidationError([Violation(RESULT_ONCE, "result", found, fix)])
    return replaced(log, length, index, _with_blocks(turn, blocks, index))


def _settled(state: State) -> bool:
    """Whether nothing that stands before waits for what comes."""
    return not (state.open or state.unfinished or state.by_code)


def without_rounds(log: Log, length: int, before: int) -> Rewrite:
    """The turns less the rounds that end before a turn; what the user said beside the results stays.

    A round stays where a system turn would otherwise stand where none may.
    """
    kept: list[Moved] = []
    first, at = length, 0
    while at < before:
        end = at + 1
        while end < before and not _settled(log.states[end]):
            end += 1
        said = _said(log, at, end)
        behind = said[0].turn if said else log.turns[end] if end < length else None
        phase = log.states[kept[-1].was + 1].phase if kept else Phase.EMPTY
        joins = behind is None or TABLE[phase][behind.role] is None
        if said is not None and joins and _settled(log.states[end]):
            first = min(first, at)
            kept += said
        else:
            kept += unchanged(log, at, end)
        at = end
    kept = [each for each in kept if each.was >= first]
    return Rewrite(first, [*kept, *unchanged(log, max(first, before), length)])


def _said(log: Log, start: int, end: int) -> list[Moved] | None:
    """What the user said in a round beside the results; None if it is no round."""
    turns = log.turns[start:end]
    if not any(type(block) is ToolUse for turn in turns for block in turn.blocks):
        return None
    said: list[Moved] = []
    for index, turn in enumerate(turns, start):
        blocks: list[Any] = [block for block in turn.blocks if type(block) is not ToolResult]
        if type(turn) is UserTurn and blocks:
            said.append(Moved(UserTurn(blocks), index))
    return said


def compacted(log: Log, length: int, before: int, summary: UserTurn) -> Rewrite:
    """A summary in the place of all turns before one, as far back as nothing is open."""
    while not _settled(log.states[before]):
        before -= 1
    return Rewrite(0, [Moved(summary, -1), *unchanged(log, before, length)])


def stripped(log: Log, length: int, turn: int, block: int) -> tuple[Log, tuple[str, ...]]:
    """A log of its own without signed thinking from a block on, and where that stood."""
    dropped = [
        BUILT.at(index, at)
        for index in range(turn, length)
        for at in _signed(log.turns[index])
        if (index, at) >= (turn, block)
    ]
    return _rewritten(log, _without_thinking(log, length, turn, block)), tuple(dropped)


def _signed(turn: Turn) -> list[int]:
    """The places of signed thinking."""
    return [at for at, block in enumerate(turn.blocks) if type(block) in SIGNED]


def _without_thinking(log: Log, length: int, turn: int, block: int) -> Rewrite:
    """The turns without signed thinking from a block on. One that then says nothing is left empty."""
    turns: list[Moved] = []
    for index, each in enumerate(log.turns[turn:length], turn):
        start = block if index == turn else 0
        if any(at >= start for at in _signed(each)):
            kept = [it for at, it in enumerate(each.blocks) if at < start or type(it) not in SIGNED]
            if all(type(it) is Text and it.text.isspace() for it in kept):
                kept = []  # the API takes no text that is only whitespace alone
            turns.append(Moved(_with_blocks(each, kept, index), index))
        else:
            turns.append(Moved(each, index))
    return Rewrite(turn, turns)


# ---------------------------------------------------------------- what they void


def edited(
    before: Log, length: int, rewrite: Rewrite, on_thinking: OnThinking, preamble: Preamble | None = None
) -> tuple[Log, tuple[str, ...]]:
    """A log of its own for an edited history, and the paths, as they were before it, of the thinking that it voids.

    Raises:
        ValidationError: The rules that the edited turns break; `thinking-prefix-bound` for each block that the edit voids
            where `on_thinking` is `refuse`.
    """
    if not _ON_THINKING.admits(on_thinking):
        faults = _ON_THINKING.faults(on_thinking, FIELD_TYPE)
        raise ValidationError(fault.under("on_thinking") for fault in faults)
    after = before.prefix(rewrite.first)
    if preamble is not None and preamble != before.preamble:
        after.preamble, after.chains = preamble, []
        rewrite = Rewrite(0, [*unchanged(before, 0, rewrite.first), *rewrite.turns])
        after.extend(move.turn for move in rewrite.turns[len(after.turns) :])
    else:
        after.extend(move.turn for move in rewrite.turns)
        # What an earlier edit has voided and kept is void still, unless this one restores what stood before it.
        stale = before.chain(rewrite.first).stale_turns()
        start = stale[0][0] if stale else rewrite.first
        rewrite = Rewrite(start, [*unchanged(before, start, rewrite.first), *rewrite.turns])
    voided = list(_voided(before, length, after, rewrite))
    if voided and on_thinking == "refuse":
        found = "thinking that is bound to what stood before it"
        fix = "Pass on_thinking='strip_after' to drop it, or 'keep' for models that do not check."
        places = (each.was or (each.turn, each.block) for each in voided)
        raise ValidationError(Violation(PREFIX_BOUND, BUILT.at(*place), found, fix) for place in places)
    paths = tuple(BUILT.at(*each.was) for each in voided if each.was is not None)
    if voided and on_thinking == "strip_after":
        first = voided[0]
        return _rewritten(after, _without_thinking(after, len(after.turns), first.turn, first.block)), paths
    return _remembering(after, voided), paths


def _remembering(log: Log, voided: list[_Voided]) -> Log:
    """A log whose turns say which of their thinking is void, where what they answered does not say it."""
    known = dict(log.chain(len(log.turns)).stale_turns())
    first: dict[int, _Voided] = {}
    for each in voided:
        if each.block < known.get(each.turn, each.block + 1):
            first.setdefault(each.turn, each)
    if not first:
        return log
    start = min(first)
    turns = unchanged(log, start, len(log.turns))
    for index, each in first.items():
        turn = cast("AssistantTurn", log.turns[index])
        origin = attrs.evolve(turn.origin or Origin(), prefix=each.answered)
        turns[index - start] = Moved(attrs.evolve(turn, origin=origin), index)
    return _rewritten(log, Rewrite(start, turns))


def _rewritten(log: Log, rewrite: Rewrite) -> Log:
    made = log.prefix(rewrite.first)
    made.extend(move.turn for move in rewrite.turns)
    return made


class _Voided(NamedTuple):
    """A thinking block of the edited history that does not stand behind what it answered."""

    turn: int
    block: int
    was: tuple[int, int] | None
    """Where it stood before; None if the edit put it there."""
    answered: str
    """What its turn is to remember of that: the prefix that it stood behind, or that more than the prefix has changed."""


def _voided(before: Log, length: int, after: Log, rewrite: Rewrite) -> Iterator[_Voided]:
    """The first thinking block that an edit voids, and all behind it: each is bound to the thinking before it too.

    Only thinking that is dropped from the front on, oldest first, leaves the rest as it is (Preserved thinking, API
    documentation).
    """
    was, now = before.chained(length), after.chained(len(after.turns))
    follows: bool | None = None  # whether thinking stays before; None until somebody asks
    broken = void = False
    for index, (turn, old) in enumerate(rewrite.turns, rewrite.first):
        if old < 0:
            continue
        source = before.turns[old]
        prefix = turn.origin.prefix if type(turn) is AssistantTurn and turn.origin is not None else None
        recorded, since = is_recorded(prefix), void_from(prefix, now[index].binding)
        for place, origin in _pairs(turn, source):
            if place is None:  # thinking behind other thinking was taken out
                if follows is None:
                    follows = any(map(_signed, after.turns[: rewrite.first]))
                broken |= follows
                continue
            if origin is None:  # thinking was put in
                stood = next((at for at in _signed(source) if source.blocks[at] == turn.blocks[place]), None)
                within, broken = stood is None, True
            else:
                stood = origin
                within = not broken and _seen(after, turn, place) == _seen(before, source, origin)
            same = recorded or was[old].binding == now[index].binding
            since_then = since is not None and (origin is None or origin >= since)
            void |= not (within and same) or since_then
            if void:
                only_moved = within and not (same or since_then)
                memory = answered(was[old].binding) if only_moved else altered(place)
                yield _Voided(index, place, None if stood is None else (old, stood), memory)
            follows = True


def _pairs(turn: Turn, source: Turn) -> Iterator[tuple[int | None, int | None]]:
    """The places of signed thinking in a turn and in what it was before, None where one of them has no such block."""
    rest = _signed(source)
    for place in _signed(turn):
        equal = (at for at, origin in enumerate(rest) if source.blocks[origin] == turn.blocks[place])
        found = next(equal, None)
        if found is None:
            yield place, None
            continue
        yield from ((None, origin) for origin in rest[:found])
        yield place, rest[found]
        rest = rest[found + 1 :]
    yield from ((None, origin) for origin in rest)


def _seen(log: Log, turn: Turn, end: int) -> list[object]:
    """What the binding covers of the blocks of a turn before one, and of the deferred tools that they refer to."""
    tools = log.deferred
    return [
        (hashed, [tools[name] for name in referred_tools(block) if name in tools])
        for block, (hashed, bound) in zip(turn.blocks[:end], turn.hashes, strict=False)
        if bound
    ]
