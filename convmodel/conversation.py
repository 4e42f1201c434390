"""The state machine: whose move it is, what may come next, and what each move makes of a conversation.

Nothing outside this module decides whose turn it is. `TABLE` says which turn may follow in which phase and under which
rule it is refused otherwise; the three public classes are its projection for type checkers. A conversation is a length
into a shared append-only log, with the folded state after each turn kept beside it, so that a move costs what is new.
"""

import hashlib
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, NamedTuple, TypeAlias, cast, final, overload

import attrs

from .blocks import AssistantBlock, OpaqueBlock, ServerToolUse, Text, ToolResult, ToolUse, UserBlock
from .declared import stored_bytes
from .errors import BUILT, ConvmodelError, InvalidReply, Place, Rule, ValidationError, Violation, quoted
from .fields import FIELD_TYPE, described
from .preamble import Preamble, SystemPrompt, ToolDefinition, make_preamble
from .turns import (
    ID_UNIQUE,
    RESULT_ONCE,
    THOUGHTS,
    AnyBlock,
    AssistantTurn,
    Origin,
    Reply,
    SystemTurn,
    Turn,
    UserTurn,
    unfinished_calls,
)

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
UNEXECUTABLE = Rule(
    "unexecutable-stop-reasons",
    "Calls are run only if the model stopped in order to have them run.",
    "Tool runner of the SDK",
)
TRUNCATED = Rule(
    "truncated-tool-use",
    "A call whose input may be cut is neither run nor kept.",
    "Handling stop reasons, API documentation",
)
WRONG_STATE = Rule(
    "conversation-state",
    "The class of a conversation follows from its turns.",
    "convmodel",
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

The API joins turns of one party, so an assistant turn after open calls is legal as long as none is answered. Two cells
depend on more than the phase: a system turn may follow a turn that ends with a server tool's result, and a user turn
may follow a pause that left no server call unfinished.
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
        return [_unanswered(each, place) for each in state.open]
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


def _unanswered(call: Located, place: Place) -> Violation:
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
    programmatic = False
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
    elif rest and open_calls:
        faults += [_unanswered(call, place) for call in open_calls.values()]
    elif rest and here & answered and state.unfinished:
        fix = "Send the results alone; say the rest when the server call is finished."
        faults.append(Violation(MIXED_REPLY, place.at(index, rest[0]), "content beside results", fix))
    elif rest and programmatic:
        fix = "Send the results alone."
        faults.append(Violation(PTC_ONLY_RESULTS, place.at(index, rest[0]), "content beside results", fix))
    still_open = () if rest or not results else tuple(open_calls.values())
    unfinished = () if rest or not results else state.unfinished
    phase = Phase.PARTLY if still_open else Phase.OWED if unfinished else Phase.ASKED
    after = state._replace(
        phase=phase,
        open=still_open,
        answered=frozenset(answered),
        unfinished=unfinished,
        served=False,
        joined=bool(results) and state.phase is Phase.PARTLY,
        loop=None if rest or not results else state.loop,
        traits=_with(state.traits, turn.traits),
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
    paused = bool(unfinished) or (turn.origin is not None and turn.origin.stop_reason == "pause_turn")
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


def _with(traits: frozenset[str], more: frozenset[str]) -> frozenset[str]:
    return traits if more <= traits else traits | more


# ---------------------------------------------------------------- log and digests


class Chain(NamedTuple):
    """What identifies the turns up to a point."""

    digest: bytes
    binding: bytes
    role: str = ""
    """The party of the last block that the binding covers."""
    blocks: int = 0
    stale: int | None = None
    """The first turn with thinking that answered another prefix than the one that stands before it."""


DIGEST_VERSION = "d1"
BINDING_VERSION = "b1"
LOCK = threading.Lock()


class _Log:
    """An append-only list of turns with what was folded from them. A conversation is a length into one."""

    __slots__ = ("chains", "ids", "preamble", "states", "turns", "written")

    def __init__(self, preamble: Preamble) -> None:
        self.preamble = preamble
        self.turns: list[Turn] = []
        self.states = [State()]
        self.chains: list[Chain] = []
        self.ids: dict[str, int] = {}
        self.written: dict[Any, list[bytes]] = {}
        """What writers made of the turns, by what it was made for; see `convmodel.anthropic.write`."""

    def append(self, turn: Turn, state: State) -> None:
        if turn.role == "assistant":
            for call in turn.calls:
                self.ids.setdefault(call.id, len(self.turns))
        self.turns.append(turn)
        self.states.append(state)

    def prefix(self, length: int) -> "_Log":
        """A log of its own for a branch that leaves this one."""
        log = _Log(self.preamble)
        log.turns = self.turns[:length]
        log.states = self.states[: length + 1]
        log.chains = self.chains[: length + 1]
        log.ids = {id: turn for id, turn in self.ids.items() if turn < length}
        return log

    def chain(self, length: int) -> Chain:
        """The chain after so many turns, folded on from where it was last asked for."""
        with LOCK:
            if not self.chains:
                start = hashlib.sha256(stored_bytes(self.preamble)).digest()
                self.chains.append(Chain(start, start))
            while len(self.chains) <= length:
                at = len(self.chains) - 1
                self.chains.append(_linked(self.chains[at], at, self.turns[at], self.states[at + 1].joined))
            return self.chains[length]


def _linked(chain: Chain, index: int, turn: Turn, joined: bool) -> Chain:
    digest, binding, role, stale = chain.digest, chain.binding, chain.role, chain.stale
    if type(turn) is AssistantTurn and turn.origin is not None:
        origin = turn.origin
        if stale is None and any(type(block) in THOUGHTS for block in turn.blocks):
            version, _, prefix = (origin.prefix or "").partition(":")
            if version == BINDING_VERSION and prefix != binding.hex():
                stale = index
        digest = hashlib.sha256(digest + stored_bytes(origin)).digest()
    if not joined:
        digest = hashlib.sha256(digest + turn.role.encode()).digest()
    for hashed, bound in turn.hashes:
        digest = hashlib.sha256(digest + hashed).digest()
        if bound:
            mark = b"" if role == turn.role else turn.role.encode()
            binding = hashlib.sha256(binding + mark + hashed).digest()
            role = turn.role
    return Chain(digest, binding, role, chain.blocks + len(turn.blocks), stale)


@final
class Turns(Sequence[Turn]):
    """The turns of a conversation, as a sequence that copies nothing."""

    __slots__ = ("_length", "_turns")

    def __init__(self, turns: list[Turn], length: int) -> None:
        self._turns, self._length = turns, length

    @overload
    def __getitem__(self, index: int) -> Turn: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Turn, ...]: ...
    def __getitem__(self, index: int | slice) -> Turn | tuple[Turn, ...]:
        if isinstance(index, slice):
            return tuple(self._turns[at] for at in range(*index.indices(self._length)))
        if not -self._length <= index < self._length:
            raise IndexError("turn index out of range")
        return self._turns[index if index >= 0 else index + self._length]

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Turn]:
        turns = self._turns
        return (turns[at] for at in range(self._length))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Turns) and other._turns is self._turns:
            return other._length == self._length
        if isinstance(other, (Turns, tuple)):
            items = cast("Sequence[Turn]", other)
            return len(items) == len(self) and all(a is b or a == b for a, b in zip(self, items, strict=True))
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self._length, self[-1] if self._length else None))

    def __repr__(self) -> str:
        return f"<{self._length} turns>"


# ---------------------------------------------------------------- the states


class _Conversation:
    """What every state has. A value: equality and hash go by preamble and turns."""

    __slots__ = ("_length", "_log")
    _log: _Log
    _length: int

    def __init__(
        self, turns: Iterable[Turn] = (), *, system: SystemPrompt = None, tools: Iterable[ToolDefinition] = ()
    ) -> None:
        log = _folded(make_preamble(system, tools), turns)
        expected = STATE_OF[log.states[-1].phase]
        if type(self) is not expected:
            found = f"turns that make an {expected.__name__}"
            fix = "Use `conversation(...)`, which builds whichever state results."
            raise ValidationError([Violation(WRONG_STATE, "turns", found, fix)])
        object.__setattr__(self, "_log", log)
        object.__setattr__(self, "_length", len(log.turns))

    def __setattr__(self, name: str, value: object) -> None:
        raise attrs.exceptions.FrozenInstanceError

    def __delattr__(self, name: str) -> None:
        raise attrs.exceptions.FrozenInstanceError

    @property
    def _state(self) -> State:
        return self._log.states[self._length]

    @property
    def preamble(self) -> Preamble:
        """The system prompt and the tool definitions."""
        return self._log.preamble

    @property
    def turns(self) -> Turns:
        """All turns, in their order, as an immutable sequence."""
        return Turns(self._log.turns, self._length)

    @property
    def open_calls(self) -> tuple[ToolUse, ...]:
        """The client calls that wait for a result, in their order."""
        return tuple(call.block for call in self._state.open)

    @property
    def last_text(self) -> str:
        """The text of the last assistant turn; empty if there is none."""
        for at in reversed(range(self._length)):
            if (turn := self._log.turns[at]).role == "assistant":
                return turn.text
        return ""

    @property
    def container(self) -> str | None:
        """The id of the container that the service used last; requests name it."""
        return self._state.container

    @property
    def digest(self) -> str:
        """Identifies the conversation: equal digests mean equal wire data and equal origins.

        How the results of one round were split into turns does not count.
        """
        return f"{DIGEST_VERSION}:{self._log.chain(self._length).digest.hex()}"

    @property
    def binding(self) -> str:
        """Identifies what the API compares before it accepts a thinking block that comes next.

        It covers the preamble and all blocks but thinking; where turns of one party begin and end does not count.
        """
        return f"{BINDING_VERSION}:{self._log.chain(self._length).binding.hex()}"

    def extends(self, other: "Conversation") -> bool:
        """Whether `other` is this conversation at an earlier point, or now.

        >>> hello = start("Hello.")
        >>> hello.assistant("Hi.").extends(hello)
        True
        """
        want = other._log.chain(other._length)
        self._log.chain(self._length)
        at = bisect_left(self._log.chains, want.blocks, hi=self._length + 1, key=lambda chain: chain.blocks)
        while at <= self._length and self._log.chains[at].blocks == want.blocks:
            if self._log.chains[at].digest == want.digest:
                return True
            at += 1
        return False

    def first_difference(self, other: "Conversation") -> str | None:
        """The path of the first place where two conversations differ; None if they are equal.

        Returns:
            `preamble.system`, `preamble.tools`, `turns[3]`, `turns[3].origin` or `turns[3].blocks[1]`.
        """
        mine, theirs = self.preamble, other.preamble
        if mine != theirs:
            return "preamble.system" if mine.system != theirs.system else "preamble.tools"
        shared = min(self._length, other._length)
        self._log.chain(shared), other._log.chain(shared)
        at = bisect_left(
            range(1, shared + 1), True, key=lambda n: self._log.chains[n] != other._log.chains[n]
        )
        for turn in range(at, shared):
            a, b = self._log.turns[turn], other._log.turns[turn]
            if a == b:
                continue
            if a.role != b.role:
                return BUILT.turn(turn)
            for block in range(max(len(a.blocks), len(b.blocks))):
                if a.blocks[block : block + 1] != b.blocks[block : block + 1]:
                    return BUILT.at(turn, block)
            return f"{BUILT.turn(turn)}.origin"
        return None if self._length == other._length else BUILT.turn(shared)

    def rewind(self, length: int) -> "Conversation":
        """The conversation after its first turns. Nothing before is touched, so no thinking is voided.

        Args:
            length: How many turns to keep, from 0 to all.

        Raises:
            ValueError: There are not so many turns.

        >>> start("Hello.").assistant("Hi.").rewind(1) == start("Hello.")
        True
        """
        if not 0 <= length <= self._length:
            raise ValueError(
                f"cannot keep {length} of {self._length} turns; pass a number from 0 to {self._length}"
            )
        return _at(self._log, length)

    def _then(self, turn: Turn) -> Any:
        """The conversation with one more turn.

        The log is extended in place where this conversation is its tip, which no other one can see; else it is copied.
        """
        log, length = self._log, self._length
        state, faults = step(log.states[length], length, turn, log.ids, BUILT)
        if faults:
            raise ValidationError(faults)
        with LOCK:
            if len(log.turns) != length:
                log = log.prefix(length)
            log.append(turn, state)
        return _at(log, length + 1)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.turns == other.turns and self.preamble == other.preamble

    def __hash__(self) -> int:
        return hash(self.turns)

    def __repr__(self) -> str:
        last = f", last={self.turns[-1]!r}" if self._length else ""
        return f"{type(self).__name__}(<{self._length} turns>{last})"

    def __reduce__(self) -> Any:
        return _rebuilt, (self.preamble, tuple(self.turns))

    def __copy__(self) -> "_Conversation":
        return self

    def __deepcopy__(self, memo: object) -> "_Conversation":
        return self


@final
class AwaitingUser(_Conversation):
    """The user's move: the conversation is empty, or the assistant turn is complete.

    Args:
        turns: The turns; `conversation` builds whichever state they make.
        system: The system prompt.
        tools: The tool definitions.

    Raises:
        ValidationError: The turns break a rule, or make another state (`conversation-state`).
    """

    __slots__ = ()

    def user(self, *content: str | UserBlock) -> "AwaitingModel":
        """The user speaks.

        Args:
            content: Text and blocks.

        Raises:
            ValidationError: The rules of `UserTurn`, or `tool-result-has-use`.

        >>> empty().user("Hello.")
        AwaitingModel(<1 turns>, last=UserTurn([Text('Hello.')]))
        """
        return cast("AwaitingModel", self._then(UserTurn(content)))

    def assistant(self, *content: str | AssistantBlock, origin: Origin | None = None) -> "Conversation":
        """One more assistant turn, written by hand; the API joins it with the one before.

        Raises:
            ValidationError: The rules of `AssistantTurn`, or of pairing.
        """
        return cast("Conversation", self._then(AssistantTurn(content, origin)))


@final
class AwaitingModel(_Conversation):
    """The model's move: send the conversation and `receive` the reply.

    Args:
        turns: The turns; `conversation` builds whichever state they make.
        system: The system prompt.
        tools: The tool definitions.

    Raises:
        ValidationError: The turns break a rule, or make another state (`conversation-state`).
    """

    __slots__ = ()

    def receive(
        self, reply: Reply | AssistantTurn
    ) -> "AwaitingUser | AwaitingTools | AwaitingModel | Interrupted":
        """Take what the model answered.

        Args:
            reply: From `convmodel.anthropic.from_message`, or a turn made by hand.

        Returns:
            `AwaitingTools` if calls are to be run, `AwaitingUser` if the reply is complete, `AwaitingModel` if the
            model paused, and `Interrupted` where the reply may not simply be kept: it was cut or refused, holds calls
            that must not be run, or ends in thinking.

        Raises:
            InvalidReply: The reply breaks a rule; `.reply` holds it.

        >>> start("Hello.").receive(Reply(["Hi."], Origin(stop_reason="end_turn"))).last_text
        'Hi.'
        """
        return _received(self, reply)

    def user(self, *content: str | UserBlock) -> "AwaitingModel":
        """The user speaks once more; the API joins the two turns.

        Raises:
            ValidationError: `sysmsg-before` after a system turn, `server-use-has-result` or `mixed-turn-reply` while
                a server call is unfinished, and the rules of `UserTurn`.
        """
        return cast("AwaitingModel", self._then(UserTurn(content)))

    def system(self, *content: str | Text) -> "AwaitingModel":
        """An instruction from here on, which leaves the prefix as it is.

        Raises:
            ValidationError: `sysmsg-after` or `mixed-turn-reply`, and the rules of `SystemTurn`.

        >>> start("Hello.").system("Answer in French.").turns[-1]
        SystemTurn([Text('Answer in French.')])
        """
        return cast("AwaitingModel", self._then(SystemTurn(content)))

    def assistant(self, *content: str | AssistantBlock, origin: Origin | None = None) -> "Conversation":
        """An assistant turn written by hand.

        Raises:
            ValidationError: The rules of `AssistantTurn`, or of pairing.

        >>> start("Hello.").assistant("Hi.")
        AwaitingUser(<2 turns>, last=AssistantTurn([Text('Hi.')]))
        """
        return cast("Conversation", self._then(AssistantTurn(content, origin)))

    def abandon(self) -> "AwaitingUser | AwaitingModel":
        """Give up an unfinished server call, so that the user can go on.

        The call is dropped, and with it all thinking that stands behind it in the open turn, since that is bound to
        what stood before; a turn that holds nothing else is dropped whole. Answers to client calls stay. Where nothing
        is unfinished the conversation stays as it is, only its pause is forgotten.
        """
        return cast("AwaitingUser | AwaitingModel", _abandoned(self))


CloseReason: TypeAlias = Literal["interrupted", "not_run", "lost"]
CLOSING: dict[CloseReason, str] = {
    "interrupted": "The tool was interrupted before it gave a result. It may have had effects.",
    "not_run": "The tool was not run.",
    "lost": "The tool ran, but its result was lost.",
}
"""What a result made by `close` says, by reason."""


@final
class AwaitingTools(_Conversation):
    """The caller's move: the last assistant turn has calls that wait for results.

    Args:
        turns: The turns; `conversation` builds whichever state they make.
        system: The system prompt.
        tools: The tool definitions.

    Raises:
        ValidationError: The turns break a rule, or make another state (`conversation-state`).
    """

    __slots__ = ()

    def answer(
        self, results: ToolResult | Iterable[ToolResult], then: str | Iterable[str | UserBlock] = ()
    ) -> AwaitingModel:
        """Answer all open calls.

        Args:
            results: A result for each open call, in any order.
            then: What the user says besides, behind the results.

        Raises:
            ValidationError: `tool-use-answered-next` if a call stays open, `tool-result-has-use` for a result of no
                open call, `tool-result-once`, `mixed-turn-reply`, `ptc-reply-only-results`.
        """
        given = (results,) if isinstance(results, ToolResult) else tuple(results)
        wrong = [
            Violation(
                FIELD_TYPE,
                f"results[{i}]",
                f"{described(each)} where a ToolResult is due",
                "Use `call.result`.",
            )
            for i, each in enumerate(cast("tuple[object, ...]", given))
            if type(each) is not ToolResult
        ]
        answered = {each.tool_use_id for each in given if type(each) is ToolResult}
        missing = [_unanswered(call, BUILT) for call in self._state.open if call.block.id not in answered]
        if wrong or missing:
            raise ValidationError(wrong or missing)
        more = (then,) if isinstance(then, str) else tuple(then)
        return cast("AwaitingModel", self._then(UserTurn((*given, *more))))

    def answer_one(self, result: ToolResult) -> "AwaitingTools | AwaitingModel":
        """Answer one open call, in a turn of its own, so that a crash loses no result.

        Raises:
            ValidationError: `tool-result-has-use` for a result of no open call.
        """
        return cast("AwaitingTools | AwaitingModel", self._then(UserTurn((result,))))

    def close(self, reason: CloseReason) -> AwaitingModel:
        """Answer all open calls with error results that say what happened. They are marked as synthetic.

        Args:
            reason: `interrupted` (it may have had effects), `not_run`, or `lost` (it ran).

        Raises:
            ValidationError: `field-value` for another reason.
        """
        if reason not in CLOSING:
            found, fix = f"the reason {quoted(reason)}", f"Use one of {', '.join(CLOSING)}."
            raise ValidationError([Violation(FIELD_TYPE, "reason", found, fix)])
        return self.answer(
            attrs.evolve(call.result(CLOSING[reason], is_error=True), synthetic=reason)
            for call in self.open_calls
        )


Conversation: TypeAlias = AwaitingUser | AwaitingModel | AwaitingTools
"""A conversation in any state; `match` on its classes is exhaustive."""

STATE_OF: dict[Phase, type[Conversation]] = {
    Phase.EMPTY: AwaitingUser,
    Phase.DONE: AwaitingUser,
    Phase.ASKED: AwaitingModel,
    Phase.INSTRUCTED: AwaitingModel,
    Phase.PAUSED: AwaitingModel,
    Phase.OWED: AwaitingModel,
    Phase.CALLED: AwaitingTools,
    Phase.PARTLY: AwaitingTools,
}
"""The class that a conversation in each phase has."""


def _at(log: _Log, length: int) -> Conversation:
    cls = STATE_OF[log.states[length].phase]
    made = cls.__new__(cls)
    object.__setattr__(made, "_log", log)
    object.__setattr__(made, "_length", length)
    return made


def _folded(preamble: Preamble, turns: Iterable[Turn]) -> _Log:
    """A log of turns that are given at once; every fault among them is reported."""
    log = _Log(preamble)
    faults: list[Violation] = []
    for i, turn in enumerate(turns):
        if type(turn) not in (UserTurn, AssistantTurn, SystemTurn):
            found = f"{described(turn)} where a turn is due"
            raise ValidationError(
                [Violation(FIELD_TYPE, BUILT.turn(i), found, "Pass UserTurn, AssistantTurn or SystemTurn.")]
            )
        state, wrong = step(log.states[-1], i, turn, log.ids, BUILT)
        faults += wrong
        log.append(turn, state)
    if faults:
        raise ValidationError(faults)
    return log


def _rebuilt(preamble: Preamble, turns: Iterable[Turn]) -> Conversation:
    log = _folded(preamble, turns)
    return _at(log, len(log.turns))


# ---------------------------------------------------------------- ways in


def conversation(
    turns: Iterable[Turn], *, system: SystemPrompt = None, tools: Iterable[ToolDefinition] = ()
) -> Conversation:
    """A conversation from its turns, in whichever state results.

    Args:
        turns: The turns.
        system: The system prompt, as text or text blocks.
        tools: Tool definitions: `Tool` values, or the SDK's parameters, which are copied less their cache markers.

    Raises:
        ValidationError: Every rule that the turns or the preamble break.

    >>> conversation([UserTurn("Hello."), AssistantTurn("Hi.")])
    AwaitingUser(<2 turns>, last=AssistantTurn([Text('Hi.')]))
    """
    return _rebuilt(make_preamble(system, tools), turns)


def start(
    *content: str | UserBlock, system: SystemPrompt = None, tools: Iterable[ToolDefinition] = ()
) -> AwaitingModel:
    """A conversation that begins with what the user says.

    Args:
        content: Text and blocks.
        system: The system prompt, as text or text blocks.
        tools: Tool definitions: `Tool` values, or the SDK's parameters, which are copied less their cache markers.

    Raises:
        ValidationError: Every rule that the content or the preamble breaks.

    >>> start("What is the weather in Paris?", system="Be brief.").preamble.system
    (Text('Be brief.'),)
    """
    return empty(system, tools).user(*content)


def empty(system: SystemPrompt = None, tools: Iterable[ToolDefinition] = ()) -> AwaitingUser:
    """A conversation without turns.

    Args:
        system: The system prompt, as text or text blocks.
        tools: Tool definitions: `Tool` values, or the SDK's parameters, which are copied less their cache markers.

    Raises:
        ValidationError: Every rule that the preamble breaks.
    """
    return cast("AwaitingUser", _rebuilt(make_preamble(system, tools), ()))


# ---------------------------------------------------------------- receiving


RECEIVED: dict[str | None, tuple[bool, bool]] = {
    "end_turn": (True, False),
    "stop_sequence": (True, False),
    "tool_use": (True, True),
    "pause_turn": (True, True),
    "max_tokens": (False, False),
    "model_context_window_exceeded": (False, False),
    "refusal": (False, False),
    None: (True, True),
}
"""By stop reason: whether a reply without client calls, and one with them, becomes a turn as it stands. None is a turn
made by hand. The reasons that forbid running calls are those of the SDK's tool runner."""
UNKNOWN_REASON = (True, False)


@final
@attrs.frozen
class Interrupted:
    """A reply that may not simply be kept. Nothing of it is in the conversation until you choose.

    Args:
        reason: The stop reason; `incomplete` if the reply ended before it was whole; `thinking_last` if it ends in
            thinking, which no turn may.
        conversation: The conversation before the reply.
        kept: The longest beginning of the reply that is a legal turn, never with a client call; None if there is none.
        lost: The blocks behind it.
    """

    reason: str
    conversation: AwaitingModel
    kept: AssistantTurn | None
    lost: tuple[AssistantBlock, ...]

    def discard(self) -> AwaitingModel:
        """The conversation before the reply, to be sent again."""
        return self.conversation

    def keep(self) -> AwaitingUser:
        """The conversation with what can be kept.

        Raises:
            ConvmodelError: Nothing can be kept.
        """
        if self.kept is None:
            raise ConvmodelError("nothing of this reply can be kept; use discard() or resume()")
        return cast("AwaitingUser", self.conversation._then(self.kept))

    def resume(self, *content: str | UserBlock) -> AwaitingModel:
        """Keep what can be kept and let the user go on.

        Args:
            content: What the user says, such as "Go on from where you stopped."

        Raises:
            ValidationError: The user cannot speak here: `sysmsg-before` if nothing is kept after a system turn,
                `server-use-has-result` if the reply was to finish a server call (discard, then abandon it).
        """
        if self.kept is None:
            return self.conversation.user(*content)
        return self.keep().user(*content)


Outcome: TypeAlias = AwaitingUser | AwaitingTools | AwaitingModel | Interrupted
"""What `receive` gives."""


def _received(before: AwaitingModel, reply: Reply | AssistantTurn) -> Outcome:
    given: object = reply
    if not isinstance(given, (Reply, AssistantTurn)):
        found = f"{described(given)} where a Reply is due"
        raise InvalidReply(
            [Violation(FIELD_TYPE, "reply", found, "Read it with `convmodel.anthropic.from_message`.")]
        )
    complete = given.complete if isinstance(given, Reply) else True
    origin = given.origin
    if origin is not None and origin.prefix is None:
        origin = attrs.evolve(origin, prefix=before.binding)
    blocks = given.blocks
    if origin is not None and origin.vendor != "anthropic":
        blocks = _renamed(blocks, before)
    reason = origin.stop_reason if origin is not None else None
    has_calls = any(type(block) is ToolUse for block in blocks)
    becomes_turn = complete and RECEIVED.get(reason, UNKNOWN_REASON)[has_calls]
    signed = [block for block in blocks if block.type != "unsigned_thinking"]
    ends_in_thinking = bool(signed) and type(signed[-1]) in THOUGHTS
    if becomes_turn and not ends_in_thinking:
        try:
            return cast("Outcome", before._then(AssistantTurn(blocks, origin)))
        except ValidationError as error:
            raise InvalidReply(error.violations, given if isinstance(given, Reply) else None) from None
    why = "incomplete" if not complete else "thinking_last" if becomes_turn else reason or "incomplete"
    kept = None if reason == "refusal" else _kept(before, blocks, origin)
    return Interrupted(why, before, kept, blocks[len(kept.blocks) if kept else 0 :])


def _kept(
    before: AwaitingModel, blocks: tuple[AssistantBlock, ...], origin: Origin | None
) -> AssistantTurn | None:
    """The longest beginning of a reply after which the user can go on."""
    if before._state.unfinished:
        return None  # only a whole reply brings the result that the open server call waits for
    end = next(
        (i for i, block in enumerate(blocks) if type(block) is ToolUse or block == Text("")), len(blocks)
    )
    open_calls = unfinished_calls(blocks[:end])
    if open_calls:
        end = blocks.index(open_calls[0])
    while end and type(blocks[end - 1]) in THOUGHTS:
        end -= 1
    if not end:
        return None
    if origin is not None and origin.stop_reason == "pause_turn":
        origin = attrs.evolve(origin, stop_reason=None)  # what is kept of it is no longer paused
    try:
        kept = AssistantTurn(blocks[:end], origin)
        before._then(kept)
    except ValidationError:
        return None
    return kept


def _renamed(blocks: tuple[AssistantBlock, ...], before: AwaitingModel) -> tuple[AssistantBlock, ...]:
    """Blocks of another vendor with ids that the conversation has not used.

    Compatible endpoints count their calls anew in each response (vLLM issue 50295), so equal ids mean nothing there.
    """
    used = {id for id, turn in before._log.ids.items() if turn < before._length}
    out: list[AssistantBlock] = []
    for block in blocks:
        if type(block) is ToolUse:
            id, n = block.id, 2
            while id in used:
                id, n = f"{block.id}_{n}", n + 1
            used.add(id)
            block = block if id == block.id else attrs.evolve(block, id=id)
        out.append(block)
    return tuple(out)


def _abandoned(before: AwaitingModel) -> Conversation:
    state = before._state
    if state.phase not in (Phase.PAUSED, Phase.OWED) and not state.unfinished:
        return before
    dropped = {(call.turn, call.at) for call in state.unfinished}
    first = min((turn for turn, _ in dropped), default=before._length - 1)
    after = before.rewind(first)
    cut = False
    for index in range(first, before._length):
        turn = before._log.turns[index]
        if type(turn) is AssistantTurn:
            blocks: list[AssistantBlock] = []
            for at, block in enumerate(turn.blocks):
                cut |= (index, at) in dropped
                if (index, at) not in dropped and not (cut and type(block) in THOUGHTS):
                    blocks.append(block)
            while blocks and type(blocks[-1]) in THOUGHTS:
                blocks.pop()
            origin = turn.origin
            if origin is not None and origin.stop_reason == "pause_turn":
                origin = attrs.evolve(origin, stop_reason=None)
            try:
                turn = AssistantTurn(blocks, origin)
            except ValidationError:
                continue  # only whitespace is left of it
            if not blocks:
                continue
        after = after._then(turn)
    return after


__all__ = [
    "TABLE",
    "AwaitingModel",
    "AwaitingTools",
    "AwaitingUser",
    "Conversation",
    "Interrupted",
    "Outcome",
    "Phase",
    "conversation",
    "empty",
    "start",
]
