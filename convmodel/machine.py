"""The state machine: which turn may come next, under which rule it is refused otherwise, and what it leads to.

Nothing outside this module decides whose turn it is. `TABLE` is the machine; `step` folds one turn into the state.
"""

from bisect import bisect_left
from collections.abc import Iterator
from enum import Enum
from itertools import islice, takewhile
from typing import Any, Literal, NamedTuple, TypeAlias

from .blocks import OpaqueBlock, ServerToolUse, Text, ToolResult, ToolUse
from .errors import Place, Rule, Violation, quoted
from .turns import ID_UNIQUE, RESULT_ONCE, AnyBlock

HANDLE_CALLS = "Handle tool calls, API documentation"
SYSTEM_MESSAGES = "Mid-conversation system messages, API documentation"
ANSWERED_NEXT = Rule(
    "tool-use-answered-next",
    "Every client call is answered in the user turn that follows at once.",
    HANDLE_CALLS,
    "messages.N: `tool_use` ids were found without `tool_result` blocks immediately after: ID. Each `tool_use` block "
    "must have a corresponding `tool_result` block in the next message.",
)
RESULT_HAS_USE = Rule(
    "tool-result-has-use",
    "Every result answers a client call of the assistant turn before it.",
    HANDLE_CALLS,
    "messages.N.content.M: unexpected `tool_use_id` found in `tool_result` blocks: ID. Each `tool_result` block must "
    "have a corresponding `tool_use` block in the previous message.",
)
TOOLSET_ECHO = Rule(
    "toolset-name-echo",
    "A result carries the toolset name of its call, and none where the call has none.",
    "Browser use and computer use, API documentation",
)
PTC_ONLY_RESULTS = Rule(
    "ptc-reply-only-results",
    "While a call made by code is pending, the reply holds only results.",
    "Programmatic tool calling, API documentation",
)
PTC_TEXT_ONLY = Rule(
    "ptc-result-text-only",
    "The result of a call made by code is text.",
    "Programmatic tool calling, API documentation",
)
SERVER_RESULT_HAS_USE = Rule(
    "server-result-has-use",
    "Every result of a server tool follows its call.",
    "Error reports, 2026",
    "messages.N.content.M: unexpected `tool_use_id` found in `<x>_tool_result` blocks: ID. Each `<x>_tool_result` "
    "block must have a corresponding `server_tool_use` block before it.",
)
SERVER_USE_HAS_RESULT = Rule(
    "server-use-has-result",
    "Before the user goes on, every server call has its result.",
    "Handling stop reasons; server tools, API documentation",
    "`web_search` tool use with id `srvtoolu_…` was found without a corresponding `web_search_tool_result` block",
)
SERVER_RESULT_TYPE = Rule(
    "server-result-type",
    "The type of a server tool's result follows from the tool.",
    "Create a message, API reference",
)
MIXED_REPLY = Rule(
    "mixed-turn-reply",
    "While a server call is unfinished, the reply to client calls holds only results.",
    "Handle tool calls; server tools, API documentation",
    "`web_search` tool use with id `srvtoolu_…` was found without a corresponding `web_search_tool_result` block",
)
SYSTEM_NOT_FIRST = Rule(
    "sysmsg-not-first",
    "A system turn is not the first turn.",
    SYSTEM_MESSAGES,
    "messages.0: use the top-level 'system' parameter for the initial system prompt",
)
SYSTEM_AFTER = Rule(
    "sysmsg-after",
    "A system turn follows a user turn, or an assistant turn that ends with the result of a server tool.",
    SYSTEM_MESSAGES,
    "messages.N: role 'system' must follow a 'user' message or an 'assistant' message ending in a server tool result",
)
SYSTEM_BEFORE = Rule(
    "sysmsg-before",
    "A system turn is followed by an assistant turn, or by nothing.",
    SYSTEM_MESSAGES,
    "messages.N: role 'system' must precede an 'assistant' message or end the array",
)
SYSTEM_BETWEEN = Rule(
    "sysmsg-not-between-use-and-result",
    "No system turn stands between a call and its result.",
    SYSTEM_MESSAGES,
)

# ---------------------------------------------------------------- the table


class Phase(Enum):
    """Where a conversation stands after its last turn."""

    EMPTY = "no turn yet"
    DONE = "the model has said all"
    ASKED = "the user has spoken"
    INSTRUCTED = "a system turn ends it"
    PAUSED = "the model paused, or a server call is unfinished"
    OWED = "client calls are answered, a server call is unfinished"
    CALLED = "calls are open, none answered"
    PARTLY = "calls are open, some answered"


Kind: TypeAlias = Literal["user", "results", "assistant", "system"]
"""What may come: a user turn without results, a user turn with results, an assistant turn, a system turn."""

TABLE: dict[Phase, dict[Kind, Rule | None]] = {
    Phase.EMPTY: {"user": None, "results": RESULT_HAS_USE, "assistant": None, "system": SYSTEM_NOT_FIRST},
    Phase.DONE: {"user": None, "results": RESULT_HAS_USE, "assistant": None, "system": SYSTEM_AFTER},
    Phase.ASKED: {"user": None, "results": RESULT_HAS_USE, "assistant": None, "system": None},
    Phase.INSTRUCTED: {"user": SYSTEM_BEFORE, "results": SYSTEM_BEFORE, "assistant": None, "system": None},
    Phase.PAUSED: {
        "user": SERVER_USE_HAS_RESULT,
        "results": RESULT_HAS_USE,
        "assistant": None,
        "system": SYSTEM_AFTER,
    },
    Phase.OWED: {"user": MIXED_REPLY, "results": RESULT_HAS_USE, "assistant": None, "system": MIXED_REPLY},
    Phase.CALLED: {"user": ANSWERED_NEXT, "results": None, "assistant": None, "system": SYSTEM_BETWEEN},
    Phase.PARTLY: {
        "user": ANSWERED_NEXT,
        "results": None,
        "assistant": ANSWERED_NEXT,
        "system": SYSTEM_BETWEEN,
    },
}
"""For each phase and kind of turn: None where the turn may follow, else the rule under which it is refused.

The API joins turns of one party, so an assistant turn after open calls is legal as long as none is answered. Three cells
depend on more than the phase: a system turn may follow a turn that ends with a server tool's result, a user turn may
follow a pause that left no server call unfinished, and none may follow the results of calls made by code.
"""


class Located(NamedTuple):
    """A block and where it stands."""

    block: AnyBlock
    turn: int
    at: int


class State(NamedTuple):
    """All that the next turn's rules need to know of the turns before it, and what the last one did with calls."""

    phase: Phase = Phase.EMPTY
    made: tuple[Located, ...] = ()
    """The calls that the last turn has made and left to others to answer."""
    answered: tuple[Located, ...] = ()
    """The earlier calls that the last turn has answered."""
    open: int = 0
    """How many client calls wait for results."""
    round: int = 0
    """The turn from which on client calls may be answered now."""
    unfinished: int = 0
    """How many server calls wait for results."""
    serving: int = 0
    """The turn from which on server calls may be answered now."""
    served: bool = False
    """The last block is the result of a server tool."""
    joined: bool = False
    """The last turn answers the same calls as the turn before it, so that both are written as one message."""
    loop: int | None = None
    """The first assistant turn since the user last said something other than results."""
    traits: frozenset[str] = frozenset()
    container: str | None = None
    by_code: bool = False
    """Calls made by code are answered, and the model has not gone on: until then the user may say nothing else."""
    unsure: bool = False
    """A call or a result could not be read, so that a result without a call says nothing."""


CLIENT, SERVER = "tool_use", "server_tool_use"


class Calls:
    """The calls that turns have made, and the turns that have answered them.

    A state only counts what waits; which calls these are is looked up here. It only grows, and whoever reads it says
    before which turn and sees nothing behind, so that all states of a log share it and a step costs what is new.
    """

    __slots__ = ("_answers", "_by_id", "_made")

    def __init__(self) -> None:
        self._made: list[Located] = []
        self._by_id: dict[tuple[str, str], tuple[Located, ...]] = {}
        self._answers: dict[tuple[int, int], int] = {}

    def add(self, index: int, state: State) -> None:
        """Take in what the turn did that led to a state."""
        for call in state.made:
            self._made.append(call)
            key = call.block.type, call.block.id
            self._by_id[key] = (*self._by_id.get(key, ()), call)
        for call in state.answered:
            self._answers[call.turn, call.at] = index

    def prefix(self, states: list[State], behind: list[State]) -> "Calls":
        """The calls up to a point, for a log of its own: all of them less those behind it, or anew if they are fewer.

        Args:
            states: The states up to there.
            behind: The states that come behind.
        """
        made = Calls()
        if len(states) < len(behind):
            for index, state in enumerate(states[1:]):
                made.add(index, state)
            return made
        length = len(states) - 1
        made._made = self._made[: bisect_left(self._made, length, key=lambda call: call.turn)]
        made._by_id, made._answers = self._by_id.copy(), self._answers.copy()
        for state in behind:
            for call in state.made:
                key = call.block.type, call.block.id
                made._by_id[key] = tuple(each for each in made._by_id[key] if each.turn < length)
            for call in state.answered:
                made._answers.pop((call.turn, call.at), None)
        return made

    def last(self, kind: str, id: str, before: int) -> Located | None:
        """The last call with an id; server calls may use one again."""
        same = self._by_id.get((kind, id)) or ()
        return next((call for call in reversed(same) if call.turn < before), None)

    def answer(self, call: Located, before: int) -> int | None:
        """The turn that has answered a call; None if none has."""
        index = self._answers.get((call.turn, call.at), before)
        return index if index < before else None

    def waits(self, call: Located, before: int) -> bool:
        """Whether no turn has answered a call."""
        return self.answer(call, before) is None

    def open(self, state: State, before: int) -> list[Located]:
        """The client calls that wait for results, in their order."""
        return self._waiting(CLIENT, state.round, before) if state.open else []

    def unfinished(self, state: State, before: int) -> list[Located]:
        """The server calls that wait for results, in their order."""
        return self._waiting(SERVER, state.serving, before) if state.unfinished else []

    def _waiting(self, kind: str, since: int, before: int) -> list[Located]:
        first = bisect_left(self._made, since, key=lambda call: call.turn)
        made = takewhile(lambda call: call.turn < before, islice(self._made, first, None))
        return [call for call in made if call.block.type == kind and self.waits(call, before)]


class _Waiting:
    """The calls of one kind that wait, while the blocks of one turn are gone through."""

    __slots__ = ("answered", "calls", "count", "index", "kind", "made", "since")

    def __init__(self, calls: Calls, kind: str, index: int, since: int, count: int) -> None:
        self.calls, self.kind, self.index, self.since, self.count = calls, kind, index, since, count
        self.made: dict[str, Located] = {}
        self.answered: dict[str, Located] = {}

    def make(self, call: Located) -> None:
        self.answer(call.block.id)  # where two calls that wait share an id, the later stands for both
        self.made[call.block.id] = call
        self.count += 1

    def answer(self, id: str) -> Located | None:
        """The call with an id, which waits no longer; None if none waits."""
        call = self.made.pop(id, None)
        if call is None and self.count and id not in self.answered:
            last = self.calls.last(self.kind, id, self.index)
            if last is not None and last.turn >= self.since and self.calls.waits(last, self.index):
                call = self.answered[id] = last
        if call is not None:
            self.count -= 1
        return call


def step(state: State, index: int, turn: Any, calls: Calls, place: Place) -> tuple[State, list[Violation]]:
    """The state after one more turn, and what is wrong with its coming now.

    Args:
        state: The state before.
        index: Where the turn stands.
        turn: A turn, or anything with its `role`, `blocks`, `origin` and `traits`.
        calls: The calls of the turns before, which `Calls.add` takes on to the state after.
        place: How paths are written.
    """
    if turn.role == "assistant":
        return _assistant(state, index, turn, calls, place)
    if turn.role == "system":
        return _system(state, index, turn, calls, place)
    return _user(state, index, turn, calls, place)


def _refused(state: State, index: int, kind: Kind, calls: Calls, place: Place) -> list[Violation]:
    """What the table's cell has against a turn that is not made of results."""
    rule = TABLE[state.phase][kind]
    if rule is ANSWERED_NEXT:
        return [unanswered(each, place) for each in calls.open(state, index)]
    if rule is SERVER_USE_HAS_RESULT:
        return [_unfinished(each, place) for each in calls.unfinished(state, index)]
    if rule is None or (rule is SYSTEM_AFTER and state.served):
        return []
    at = place.turn(index - 1 if rule is SYSTEM_BEFORE else index)
    found, fix = {
        SYSTEM_NOT_FIRST: ("a system turn at the start", "Give the instruction as the system prompt."),
        SYSTEM_AFTER: ("a system turn after an assistant turn", "Move it behind the next user turn."),
        SYSTEM_BEFORE: ("a system turn before a user turn", "Move it behind the user turn."),
        SYSTEM_BETWEEN: ("a system turn while calls are open", "Move it behind the results."),
        MIXED_REPLY: (
            "a turn while a server call is unfinished",
            "Send the results alone, or abandon the server call.",
        ),
    }[rule]
    return [Violation(rule, at, found, fix)]


def unanswered(call: Located, place: Place) -> Violation:
    found = f"no result for {quoted(call.block.id)} in the next user turn"
    return Violation(
        ANSWERED_NEXT, place.at(call.turn, call.at), found, "Answer it, with an error result if need be."
    )


def _unfinished(call: Located, place: Place) -> Violation:
    found = f"no result for the server call {quoted(call.block.id)}"
    fix = "Send the paused turn again as it is, or abandon the server call."
    return Violation(SERVER_USE_HAS_RESULT, place.at(call.turn, call.at), found, fix)


def _system(state: State, index: int, turn: Any, calls: Calls, place: Place) -> tuple[State, list[Violation]]:
    faults = _refused(state, index, "system", calls, place)
    state = state._replace(made=(), answered=(), traits=_with(state.traits, turn.traits))
    if faults and state.open:  # the results behind it still answer the calls before it
        return state, faults
    after = state._replace(
        phase=Phase.ASKED if faults else Phase.INSTRUCTED,  # one fault brings no other with it
        open=0,
        served=False,
        joined=False,
    )
    return after, faults


def _user(state: State, index: int, turn: Any, calls: Calls, place: Place) -> tuple[State, list[Violation]]:
    results = [(i, block) for i, block in enumerate(turn.blocks) if block.type == "tool_result"]
    faults: list[Violation] = []
    waiting = _Waiting(calls, CLIENT, index, state.round, state.open)
    here: set[str] = set()
    unread = False
    programmatic = state.by_code
    if results and state.phase is Phase.INSTRUCTED:
        faults += _refused(state, index, "results", calls, place)
    for i, result in results:
        id = result.tool_use_id
        if id in here:
            continue  # the turn itself has reported the second result
        if id is None:
            unread = True  # which call a broken result answers is not known
            continue
        here.add(id)
        call = waiting.answer(id)
        if call is None:
            if fault := _unasked(state, id, index, calls, state.unsure or unread):
                faults.append(fault.under(place.at(index, i, "tool_use_id")))
            continue
        if type(result) is ToolResult and type(call.block) is ToolUse:
            programmatic |= call.block.is_programmatic
            faults += _mismatch(call.block, result, place.at(index, i))
    rest = [i for i, block in enumerate(turn.blocks) if block.type != "tool_result"]
    if not results:
        faults += _refused(state, index, "user", calls, place)
        if programmatic and not faults:
            found, fix = "a user turn behind results for code", "Receive the reply first."
            faults.append(Violation(PTC_ONLY_RESULTS, place.turn(index), found, fix))
    elif rest and waiting.count and not unread:
        left = [call for call in calls.open(state, index) if call.block.id not in waiting.answered]
        faults += [unanswered(call, place) for call in left]
    elif rest and state.unfinished and (waiting.answered or state.phase is Phase.OWED):
        fix = "Send the results alone; say the rest when the server call is finished."
        faults.append(Violation(MIXED_REPLY, place.at(index, rest[0]), "content beside results", fix))
    elif rest and programmatic:
        fix = "Send the results alone."
        faults.append(Violation(PTC_ONLY_RESULTS, place.at(index, rest[0]), "content beside results", fix))
    over = bool(rest) or not results
    still_open = 0 if over or unread else waiting.count
    unfinished = 0 if over else state.unfinished
    phase = Phase.PARTLY if still_open else Phase.OWED if unfinished else Phase.ASKED
    after = State(
        phase=phase,
        answered=tuple(waiting.answered.values()),
        open=still_open,
        round=state.round,
        unfinished=unfinished,
        serving=state.serving,
        joined=bool(results) and state.phase is Phase.PARTLY,
        loop=None if over else state.loop,
        by_code=programmatic and not over,
        traits=_with(state.traits, turn.traits),
        container=state.container,
        unsure=state.unsure or unread,
    )
    return after, faults


def _unasked(state: State, id: str, index: int, calls: Calls, unsure: bool) -> Violation | None:
    """What is wrong with a result for which no call waits."""
    last = calls.last(CLIENT, id, index)
    if last is not None and last.turn >= state.round and not calls.waits(last, index):
        return Violation(RESULT_ONCE, "", f"a second result for {quoted(id)}", "Keep one of the two.")
    found = f"no call {quoted(id)} in the assistant turn before"
    fix = "Drop the result, or put it behind its call."
    return None if unsure else Violation(RESULT_HAS_USE, "", found, fix)


def _mismatch(call: ToolUse, result: ToolResult, path: str) -> Iterator[Violation]:
    """What a result lacks to fit its call."""
    if call.toolset_name != result.toolset_name:
        found = f"toolset {quoted(result.toolset_name)} where the call has {quoted(call.toolset_name)}"
        yield Violation(TOOLSET_ECHO, f"{path}.toolset_name", found, "Echo the name from the call.")
    if call.is_programmatic and isinstance(result.content, tuple):
        for i, block in enumerate(result.content):
            if type(block) is not Text:
                found = f"`{block.type}` in the result of a call made by code"
                yield Violation(PTC_TEXT_ONLY, f"{path}.content[{i}]", found, "Give text.")


def _assistant(
    state: State, index: int, turn: Any, calls: Calls, place: Place
) -> tuple[State, list[Violation]]:
    faults = _refused(state, index, "assistant", calls, place)
    since, count = (state.round, state.open) if state.phase is Phase.CALLED else (index, 0)
    client = _Waiting(calls, CLIENT, index, since, count)
    server = _Waiting(calls, SERVER, index, state.serving if state.unfinished else index, state.unfinished)
    unsure = served = False
    for i, block in enumerate(turn.blocks):
        kind = block.type
        served = False
        if kind in (CLIENT, SERVER) and block.id is None:
            unsure = True
        elif kind == CLIENT:
            if (last := calls.last(CLIENT, block.id, index)) is not None:
                found = f"the id {quoted(block.id)}, which {place.turn(last.turn)} has used"
                fix = "Give the later call and its result another id."
                faults.append(Violation(ID_UNIQUE, place.at(index, i, "id"), found, fix))
            client.make(Located(block, index, i))
        elif kind == SERVER:
            server.make(Located(block, index, i))
        elif kind != "tool_result" and kind.endswith("_tool_result"):
            served = True
            id = block.tool_use_id
            call = server.answer(id) if id is not None else None
            if call is None:
                if type(block) is not OpaqueBlock and id is not None and not (unsure or state.unsure):
                    found = f"a {kind} for {quoted(id)}, which no call before it has"
                    fix = "Drop the result, or keep its call."
                    faults.append(
                        Violation(SERVER_RESULT_HAS_USE, place.at(index, i, "tool_use_id"), found, fix)
                    )
            elif type(call.block) is ServerToolUse and call.block.name not in getattr(
                block, "answers", call.block.name
            ):
                found = f"a {kind} for a call of {call.block.name}"
                faults.append(
                    Violation(SERVER_RESULT_TYPE, place.at(index, i), found, "Send it back as it came.")
                )
    # A pause is resumed by sending the turn as it is. The API takes that only of a turn in which it used its own tools.
    said_so = turn.origin is not None and turn.origin.stop_reason == "pause_turn"
    paused = server.count > 0 or (said_so and (served or any(_is_server(block) for block in turn.blocks)))
    after = State(
        phase=Phase.CALLED if client.count else Phase.PAUSED if paused else Phase.DONE,
        made=(*client.made.values(), *server.made.values()),
        answered=(*client.answered.values(), *server.answered.values()),
        open=client.count,
        round=client.since,
        unfinished=server.count,
        serving=server.since,
        served=served,
        loop=index if state.loop is None else state.loop,
        traits=_with(state.traits, turn.traits),
        container=(turn.origin and turn.origin.container) or state.container,
        unsure=unsure,
    )
    return after, faults


def _is_server(block: AnyBlock) -> bool:
    kind: str = block.type
    return kind == "server_tool_use" or (kind.endswith("_tool_result") and kind != "tool_result")


def _with(traits: frozenset[str], more: frozenset[str]) -> frozenset[str]:
    return traits if more <= traits else traits | more
