"""The state machine: which turn may come next, under which rule it is refused otherwise, and what it leads to.

Nothing outside this module decides whose turn it is. `TABLE` is the machine; `step` folds one turn into the state.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
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
    """All that the next turn's rules need to know of the turns before it."""

    phase: Phase = Phase.EMPTY
    open: tuple[Located, ...] = ()
    answered: frozenset[str] = frozenset()
    unfinished: tuple[Located, ...] = ()
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
    """A call could not be read, so that a result without a call says nothing."""


def step(
    state: State, index: int, turn: Any, ids: Mapping[str, int], place: Place
) -> tuple[State, list[Violation]]:
    """The state after one more turn, and what is wrong with its coming now.

    Args:
        state: The state before.
        index: Where the turn stands.
        turn: A turn, or anything with its `role`, `blocks`, `origin` and `traits`.
        ids: The ids of earlier client calls and the turns they stand in.
        place: How paths are written.
    """
    if turn.role == "assistant":
        return _assistant(state, index, turn, ids, place)
    if turn.role == "system":
        return _system(state, index, turn, place)
    return _user(state, index, turn, place)


def _refused(state: State, index: int, kind: Kind, place: Place) -> list[Violation]:
    """What the table's cell has against a turn that is not made of results."""
    rule = TABLE[state.phase][kind]
    if rule is ANSWERED_NEXT:
        return [unanswered(each, place) for each in state.open]
    if rule is SERVER_USE_HAS_RESULT:
        return [_unfinished(each, place) for each in state.unfinished]
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


def _system(state: State, index: int, turn: Any, place: Place) -> tuple[State, list[Violation]]:
    faults = _refused(state, index, "system", place)
    if faults and state.open:  # the results behind it still answer the calls before it
        return state._replace(traits=_with(state.traits, turn.traits)), faults
    after = state._replace(
        phase=Phase.ASKED if faults else Phase.INSTRUCTED,  # one fault brings no other with it
        open=(),
        served=False,
        joined=False,
        traits=_with(state.traits, turn.traits),
    )
    return after, faults


def _user(state: State, index: int, turn: Any, place: Place) -> tuple[State, list[Violation]]:
    results = [(i, block) for i, block in enumerate(turn.blocks) if block.type == "tool_result"]
    faults: list[Violation] = []
    open_calls = {call.block.id: call for call in state.open}
    answered = set(state.answered)
    here: set[str] = set()
    programmatic = state.by_code
    if results and state.phase is Phase.INSTRUCTED:
        faults += _refused(state, index, "results", place)
    for i, result in results:
        id = result.tool_use_id
        if id in here:
            continue  # the turn itself has reported the second result
        if id is None:
            open_calls.clear()  # which call a broken result answers is not known
            continue
        here.add(id)
        call = open_calls.pop(id, None)
        if call is None:
            if id in answered:
                found, fix = f"a second result for {quoted(id)}", "Keep one of the two."
                faults.append(Violation(RESULT_ONCE, place.at(index, i, "tool_use_id"), found, fix))
            elif not state.unsure:
                found = f"no call {quoted(id)} in the assistant turn before"
                fix = "Drop the result, or put it behind its call."
                faults.append(Violation(RESULT_HAS_USE, place.at(index, i, "tool_use_id"), found, fix))
            continue
        answered.add(id)
        if type(result) is ToolResult and type(call.block) is ToolUse:
            programmatic |= call.block.is_programmatic
            faults += _mismatch(call.block, result, place.at(index, i))
    rest = [i for i, block in enumerate(turn.blocks) if block.type != "tool_result"]
    if not results:
        faults += _refused(state, index, "user", place)
        if programmatic and not faults:
            found, fix = "a user turn behind results for code", "Receive the reply first."
            faults.append(Violation(PTC_ONLY_RESULTS, place.turn(index), found, fix))
    elif rest and open_calls:
        faults += [unanswered(call, place) for call in open_calls.values()]
    elif rest and here & answered and state.unfinished:
        fix = "Send the results alone; say the rest when the server call is finished."
        faults.append(Violation(MIXED_REPLY, place.at(index, rest[0]), "content beside results", fix))
    elif rest and programmatic:
        fix = "Send the results alone."
        faults.append(Violation(PTC_ONLY_RESULTS, place.at(index, rest[0]), "content beside results", fix))
    still_open = () if rest or not results else tuple(open_calls.values())
    unfinished = () if rest or not results else state.unfinished
    phase = Phase.PARTLY if still_open else Phase.OWED if unfinished else Phase.ASKED
    after = State(
        phase=phase,
        open=still_open,
        answered=frozenset(answered),
        unfinished=unfinished,
        joined=bool(results) and state.phase is Phase.PARTLY,
        loop=None if rest or not results else state.loop,
        by_code=programmatic and not rest and bool(results),
        traits=_with(state.traits, turn.traits),
        container=state.container,
        unsure=state.unsure,
    )
    return after, faults


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
    state: State, index: int, turn: Any, ids: Mapping[str, int], place: Place
) -> tuple[State, list[Violation]]:
    faults = _refused(state, index, "assistant", place)
    calls = list(state.open) if state.phase is Phase.CALLED else []
    unfinished = {call.block.id: call for call in state.unfinished}
    unsure = served = False
    for i, block in enumerate(turn.blocks):
        kind = block.type
        served = False
        if kind == "tool_use":
            if block.id is None:
                unsure = True
                continue
            if ids.get(block.id, index) < index:
                found = f"the id {quoted(block.id)}, which {place.turn(ids[block.id])} has used"
                fix = "Give the later call and its result another id."
                faults.append(Violation(ID_UNIQUE, place.at(index, i, "id"), found, fix))
            calls.append(Located(block, index, i))
        elif kind == "server_tool_use":
            unfinished[block.id] = Located(block, index, i)
        elif kind != "tool_result" and kind.endswith("_tool_result"):
            served = True
            id = block.data.get("tool_use_id") if type(block) is OpaqueBlock else block.tool_use_id
            call = unfinished.pop(id, None) if isinstance(id, str) else None
            if call is None:
                if type(block) is not OpaqueBlock and id is not None:
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
    paused = bool(unfinished) or (said_so and (served or any(_is_server(block) for block in turn.blocks)))
    after = State(
        phase=Phase.CALLED if calls else Phase.PAUSED if paused else Phase.DONE,
        open=tuple(calls),
        unfinished=tuple(unfinished.values()),
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
