"""Conversations: the three states that a type checker tells apart, their moves, and what receiving a reply gives."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, cast, final

import attrs

from .blocks import AssistantBlock, ServerToolUse, Text, ToolResult, ToolUse, UserBlock
from .declared import stored_bytes
from .edits import (
    OnThinking,
    Rewrite,
    cleared,
    compacted,
    edited,
    mapped,
    replaced,
    stripped,
    supplied,
    with_input,
    with_text,
    without_rounds,
)
from .errors import BUILT, ConvmodelError, InvalidReply, Rule, ValidationError, Violation, quoted
from .fields import FIELD_TYPE, FIELD_VALUE, described, require, require_function
from .log import DIGEST_VERSION, Chain, Log, Turns, altered, answered
from .machine import CLIENT, TABLE, Phase, State, step, unanswered
from .preamble import Preamble, SystemPrompt, ToolDefinition, make_preamble
from .redact import Redacted, Redaction, Redactor
from .turns import (
    SIGNED,
    THOUGHTS,
    AssistantTurn,
    Origin,
    Reply,
    SystemTurn,
    Turn,
    UserTurn,
    user_blocks,
)

WRONG_STATE = Rule(
    "conversation-state",
    "The class of a conversation follows from its turns.",
    "convmodel",
)

# ---------------------------------------------------------------- the states


class _Conversation:
    """What every state has. A value: equality and hash go by preamble and turns."""

    __slots__ = ("_length", "_log")
    _log: Log
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
        return tuple(call.block for call in self._log.calls.open(self._state, self._length))

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
        return answered(self._log.chain(self._length).binding)

    def extends(self, other: "Conversation") -> bool:
        """Whether `other` is this conversation at an earlier point, or now.

        >>> hello = start("Hello.")
        >>> hello.assistant("Hi.").extends(hello)
        True
        """
        require(other, _Conversation, "other", "a conversation")
        return self._length_of(other._log.chain(other._length)) is not None

    def _length_of(self, want: Chain) -> int | None:
        """How many turns of this conversation are identified by a chain; None if no number of them is."""
        chains = self._log.chained(self._length)
        at = bisect_left(chains, want.blocks, hi=self._length + 1, key=lambda chain: chain.blocks)
        while at <= self._length and chains[at].blocks == want.blocks:
            if chains[at].digest == want.digest:
                return at
            at += 1
        return None

    def common_prefix(self, other: "Conversation") -> "Conversation | None":
        """The conversation that this one and another both begin with; None if their preambles differ.

        >>> hello = start("Hello.")
        >>> hello.assistant("Hi.").common_prefix(hello.assistant("Good morning.")) == hello
        True
        """
        require(other, _Conversation, "other", "a conversation")
        chains, states = self._log.chained(self._length), self._log.states

        def shared(length: int) -> bool:
            # A turn that answers the same calls as the one before it begins nowhere: others may split the answers so or so.
            while 0 < length < self._length and states[length + 1].joined:
                length -= 1
            return other._length_of(chains[length]) is not None

        if not shared(0):
            return None
        length = bisect_left(range(1, self._length + 1), True, key=lambda n: not shared(n))
        while length and other._length_of(chains[length]) is None:
            length -= 1
        return at_length(self._log, length)

    def first_difference(self, other: "Conversation") -> str | None:
        """The path of the first place where two conversations differ; None if they are equal, to the order of JSON keys.

        Returns:
            `preamble.system`, `preamble.tools`, `turns[3]`, `turns[3].origin` or `turns[3].blocks[1]`.
        """
        require(other, _Conversation, "other", "a conversation")
        mine, theirs = self.preamble, other.preamble
        if stored_bytes(mine) != stored_bytes(theirs):
            same = list(map(stored_bytes, mine.system)) == list(map(stored_bytes, theirs.system))
            return "preamble.tools" if same else "preamble.system"
        shared = min(self._length, other._length)
        ours, others = self._log.chained(shared), other._log.chained(shared)
        at = bisect_left(range(1, shared + 1), True, key=lambda n: ours[n].digest != others[n].digest)
        for turn in range(at, shared):
            a, b = self._log.turns[turn], other._log.turns[turn]
            if a.role != b.role:
                return BUILT.turn(turn)
            for block in range(max(len(a.blocks), len(b.blocks))):
                if a.hashes[block : block + 1] != b.hashes[block : block + 1]:
                    return BUILT.at(turn, block)
            if a != b:
                return f"{BUILT.turn(turn)}.origin"
        return None if self._length == other._length else BUILT.turn(shared)

    def rewind(self, length: int) -> "Conversation":
        """The conversation after its first turns. Nothing before is touched, so no thinking is voided.

        Args:
            length: How many turns to keep, from 0 to all.

        Raises:
            ValidationError: `field-value` if there are not so many turns.

        >>> start("Hello.").assistant("Hi.").rewind(1) == start("Hello.")
        True
        """
        return at_length(self._log, self._place(length, "length"))

    def _place(self, index: int, what: str, most: int | None = None) -> int:
        """A number of turns, or the index of one, that is there."""
        most = self._length if most is None else most
        if type(index) is not int or not 0 <= index <= most:
            fix = (
                f"Pass a number from 0 to {most}." if most >= 0 else "There is none in an empty conversation."
            )
            raise ValidationError([Violation(FIELD_VALUE, what, quoted(index), fix)])
        return index

    def _edited(self, rewrite: Rewrite, on_thinking: OnThinking, preamble: Preamble | None = None) -> "Edit":
        log, voided = edited(self._log, self._length, rewrite, on_thinking, preamble)
        return Edit(at_length(log, len(log.turns)), voided)

    def replace(self, index: int, turn: Turn, *, on_thinking: OnThinking = "refuse") -> "Edit":
        """Another turn in the place of one.

        Args:
            index: Which turn.
            turn: What takes its place.
            on_thinking: What becomes of thinking that this voids.

        Raises:
            ValidationError: `field-value` if there is no such turn; `thinking-prefix-bound`, and the rules that the turns then break.

        >>> start("Hello.").assistant("Hi.").replace(0, UserTurn("Hello!")).conversation.turns[0]
        UserTurn([Text('Hello!')])
        """
        self._place(index, "index", self._length - 1)
        (turn,) = _only_turns([turn], index)
        return self._edited(replaced(self._log, self._length, index, turn), on_thinking)

    def drop_rounds(self, before: int, *, on_thinking: OnThinking = "refuse") -> "Edit":
        """Without the rounds that end before a turn: assistant turns with calls, and the results that answer them.

        A round is dropped whole or not at all, so that no call loses its result; one that parts a system turn from what may
        not stand beside it stays. What else was said stays too.

        Args:
            before: The index of the first turn that is to stay in any case.
            on_thinking: What becomes of thinking that this voids.

        Raises:
            ValidationError: `field-value` if there are not so many turns; `thinking-prefix-bound`.
        """
        self._place(before, "before")
        return self._edited(without_rounds(self._log, self._length, before), on_thinking)

    def supply(self, result: ToolResult, *, on_thinking: OnThinking = "refuse") -> "Edit":
        """A real result in the place of one that `close` or a repair has made for want of it.

        Args:
            result: The result, which has come after all.
            on_thinking: What becomes of thinking that this voids.

        Raises:
            ValidationError: `tool-result-has-use` if no answered call has its id, `tool-result-once` if the call has a real
                result; `thinking-prefix-bound`, and the rules that the result breaks.

        >>> call = ToolUse("toolu_1", "look", {})
        >>> closed = start("Look.").receive(AssistantTurn([call])).close("lost")
        >>> closed.supply(call.result("A cat.")).conversation.turns[2].blocks[0].synthetic is None
        True
        """
        require(result, ToolResult, "result", "a ToolResult")
        return self._edited(supplied(self._log, self._length, result), on_thinking)

    def clear_tool_results(self, before: int, *, on_thinking: OnThinking = "refuse") -> "Edit":
        """With a short note in place of what the results before a turn held.

        Args:
            before: The index of the first turn whose results stay.
            on_thinking: What becomes of thinking that this voids.

        Raises:
            ValidationError: `field-value` if there are not so many turns; `thinking-prefix-bound`.
        """
        self._place(before, "before")
        return self._edited(cleared(self._log, self._length, before), on_thinking)

    def compact(
        self,
        summary: str | Iterable[str | UserBlock],
        *,
        before: int | None = None,
        on_thinking: OnThinking = "refuse",
    ) -> "Edit":
        """With a user turn that sums up what stood before.

        Args:
            summary: Text, or the blocks of the user turn.
            before: The index of the first turn that stays; one in the middle of a round stays with all of its round. None
                keeps what the model has not answered: what the user said last, or the round that is still open.
            on_thinking: What becomes of thinking that this voids.

        Raises:
            ValidationError: `field-value` if there are not so many turns; `thinking-prefix-bound`, and the rules of `UserTurn`.

        >>> start("Hello.").assistant("Hi.").compact("We have greeted each other.").conversation
        AwaitingModel(<1 turn>, last=UserTurn([Text('We have greeted each other.')]))
        """
        before = self._unanswered() if before is None else self._place(before, "before")
        turn = UserTurn(user_blocks(summary))
        return self._edited(compacted(self._log, self._length, before, turn), on_thinking)

    def _unanswered(self) -> int:
        """The index of the first turn that the model has not answered."""
        at = self._length
        while at and self._log.turns[at - 1].role != "assistant":
            at -= 1
        return at

    def with_system(self, system: SystemPrompt, *, on_thinking: OnThinking = "refuse") -> "Edit":
        """With another system prompt. `AwaitingModel.system` gives an instruction that voids nothing.

        Args:
            system: The system prompt, as text or text blocks; None for none.
            on_thinking: What becomes of thinking that this voids.

        Raises:
            ValidationError: `thinking-prefix-bound`, and every rule that the system prompt breaks.
        """
        preamble = attrs.evolve(self.preamble, system=make_preamble(system, ()).system)
        return self._edited(Rewrite(self._length, []), on_thinking, preamble)

    def with_tools(self, tools: Iterable[ToolDefinition], *, on_thinking: OnThinking = "refuse") -> "Edit":
        """With other tools.

        Args:
            tools: Tool definitions, as for `start`.
            on_thinking: What becomes of thinking that this voids.

        Raises:
            ValidationError: `thinking-prefix-bound`, and every rule that the tools break.
        """
        preamble = attrs.evolve(self.preamble, tools=make_preamble(None, tools).tools)
        return self._edited(Rewrite(self._length, []), on_thinking, preamble)

    def map_tool_inputs(
        self,
        change: Callable[[ToolUse | ServerToolUse], Mapping[str, Any]],
        *,
        on_thinking: OnThinking = "refuse",
    ) -> "Edit":
        """With other inputs of calls; everything else of the calls stays.

        Args:
            change: Gives the input for a call. An equal one leaves the call as it is, bytes included.
            on_thinking: What becomes of thinking that this voids.

        Raises:
            ValidationError: `thinking-prefix-bound`, and the rules that an input breaks.
        """
        require_function(change, "change")
        return self._edited(mapped(self._log, self._length, with_input(change)), on_thinking)

    def map_text(self, change: Callable[[str], str], *, on_thinking: OnThinking = "refuse") -> "Edit":
        """With other text in text blocks, and in results, search results and documents; thinking stays.

        Args:
            change: Gives the text for a text.
            on_thinking: What becomes of thinking that this voids.

        Raises:
            ValidationError: `thinking-prefix-bound`, and the rules that a text breaks.

        >>> start("My key is 1234.").map_text(lambda text: text.replace("1234", "…")).conversation.turns[0]
        UserTurn([Text('My key is ….')])
        """
        require_function(change, "change")
        return self._edited(mapped(self._log, self._length, with_text(change)), on_thinking)

    def redact(self, redactor: Redactor, *, on_thinking: OnThinking = "refuse") -> "Edit":
        """With a placeholder in the place of each secret, in the system prompt and in all turns.

        Thinking stays as it is, even where it says a secret; tool definitions do too.

        Args:
            redactor: What counts as a secret.
            on_thinking: What becomes of thinking that this voids.

        Returns:
            The edit; its `found` says what was replaced.

        Raises:
            ValidationError: `thinking-prefix-bound`.

        >>> edit = start("Log in as postgres://me:hunter2@db.").redact(Redactor())
        >>> edit.conversation.turns[0].text, edit.found
        ('Log in as postgres://me:[redacted:url-password]@db.', (Redaction(path='turns[0].blocks[0]', kind='url-password', count=1),))
        """
        require(redactor, Redactor, "redactor", "a Redactor")
        system = redactor.blocks(self.preamble.system)
        found = [each.under("preamble.system") for each in system.found]
        places = (
            BUILT.at(index, at) for index, turn in enumerate(self.turns) for at in range(len(turn.blocks))
        )

        def change(block: Any) -> Any:
            path, made = next(places), redactor.blocks((block,))
            found.extend(attrs.evolve(each, path=path) for each in made.found)
            return made.blocks[0]

        rewrite = mapped(self._log, self._length, change)
        edit = self._edited(rewrite, on_thinking, attrs.evolve(self.preamble, system=system.blocks))
        return attrs.evolve(edit, found=tuple(found))

    def strip_thinking(self, turn: int, block: int = 0) -> "Edit":
        """Without the signed thinking from a block on, to the end: each is bound to the thinking before it.

        Args:
            turn: The index of the turn.
            block: The place of the block in it.

        Raises:
            ValidationError: `field-value` if there is no such turn or block.

        >>> from convmodel import Thinking
        >>> start("Hello.").assistant(Thinking("Hm.", "c2ln"), "Hi.").strip_thinking(1).voided
        ('turns[1].blocks[0]',)
        """
        self._place(turn, "turn", self._length - 1)
        self._place(block, "block", max(len(self.turns[turn].blocks) - 1, 0))
        log, voided = stripped(self._log, self._length, turn, block)
        return Edit(at_length(log, len(log.turns)), voided)

    def _then(self, turn: Turn) -> Any:
        """The conversation with one more turn.

        The log is extended in place where this conversation is its tip, which no other one can see; else it is copied.
        """
        log, length = self._log, self._length
        state, faults = step(log.states[length], length, turn, log.calls, BUILT)
        if faults:
            raise ValidationError(faults)
        claimed = log.lock.acquire(blocking=False)
        try:
            own = log if claimed and len(log.turns) == length else log.prefix(length)
            own.append(turn, state)
        finally:
            if claimed:
                log.lock.release()
        return at_length(own, length + 1)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.turns == other.turns and self.preamble == other.preamble

    def __hash__(self) -> int:
        return hash((self._length, self.turns[-1] if self._length else None))

    def __repr__(self) -> str:
        last = f", last={self.turns[-1]!r}" if self._length else ""
        return f"{type(self).__name__}({self.turns!r}{last})"

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

    def user(self, *content: str | UserBlock, redactor: Redactor | None = None) -> "AwaitingModel":
        """The user speaks.

        Args:
            content: Text and blocks.
            redactor: Takes secrets out first.

        Raises:
            ValidationError: The rules of `UserTurn`, or `tool-result-has-use`.

        >>> empty().user("Hello.")
        AwaitingModel(<1 turn>, last=UserTurn([Text('Hello.')]))
        """
        return cast("AwaitingModel", self._then(_masked(UserTurn(content), redactor)))

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
        self, reply: Reply | AssistantTurn, *, redactor: Redactor | None = None
    ) -> "AwaitingUser | AwaitingTools | AwaitingModel | Interrupted":
        """Take what the model answered.

        Args:
            reply: From `convmodel.anthropic.from_message`, or a turn made by hand.
            redactor: Takes secrets out first; signed thinking that stands behind one goes too if the model binds it. Run
                the calls with the inputs that the reply has.

        Returns:
            `AwaitingTools` if calls are to be run, `AwaitingUser` if the reply is complete, `AwaitingModel` if the
            model paused, and `Interrupted` where the reply may not simply be kept: it was cut or refused, holds calls
            that must not be run, or ends in thinking.

        Raises:
            InvalidReply: The reply breaks a rule; `.reply` holds it.

        >>> start("Hello.").receive(Reply(["Hi."], Origin(stop_reason="end_turn"))).last_text
        'Hi.'
        """
        return _received(self, reply, redactor)

    def user(self, *content: str | UserBlock, redactor: Redactor | None = None) -> "AwaitingModel":
        """The user speaks once more; the API joins the two turns.

        Args:
            content: Text and blocks.
            redactor: Takes secrets out first.

        Raises:
            ValidationError: `sysmsg-before` after a system turn, `server-use-has-result` or `mixed-turn-reply` while
                a server call is unfinished, and the rules of `UserTurn`.
        """
        return cast("AwaitingModel", self._then(_masked(UserTurn(content), redactor)))

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

        The call is dropped, with the calls that its code made and their results, and with all thinking that stands
        behind it in the open turn, since that is bound to what stood before; a turn that holds nothing else is dropped
        whole. Other calls and their answers stay. Where nothing
        is unfinished the conversation stays as it is, only its pause is forgotten.
        """
        return cast("AwaitingUser | AwaitingModel", _abandoned(self))


CloseReason: TypeAlias = Literal["interrupted", "not_run", "lost"]
CLOSING: dict[CloseReason, str] = {
    "interrupted": "The tool was interrupted before it gave a result. It may have had effects.",
    "not_run": "The tool was not run.",
    "lost": "The result was lost. The tool may have had effects.",
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
        self,
        results: ToolResult | Iterable[ToolResult],
        then: str | Iterable[str | UserBlock] = (),
        *,
        redactor: Redactor | None = None,
    ) -> AwaitingModel:
        """Answer all open calls.

        Args:
            results: A result for each open call, in any order.
            then: What the user says besides, behind the results.
            redactor: Takes secrets out first.

        Raises:
            ValidationError: `tool-use-answered-next` if a call stays open, `tool-result-has-use` for a result of no
                open call, `tool-result-once`, `mixed-turn-reply`, `ptc-reply-only-results`.
        """
        given = (results,) if isinstance(results, ToolResult) else _results(results)
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
        if wrong:
            raise ValidationError(wrong)
        answered = {each.tool_use_id for each in given}
        state, length, calls = self._state, self._length, self._log.calls
        open_calls = calls.open(state, length)
        missing = [unanswered(call, BUILT) for call in open_calls if call.block.id not in answered]
        if not given:
            raise ValidationError(missing)
        try:
            turn = UserTurn((*given, *user_blocks(then)))
        except ValidationError as error:
            raise ValidationError([*missing, *error.violations]) from None
        if missing:  # what else is wrong with the results is said along with it
            _, faults = step(state, length, turn, calls, BUILT)
            raise ValidationError(dict.fromkeys([*missing, *faults]))
        return cast("AwaitingModel", self._then(_masked(turn, redactor)))

    def answer_one(
        self, result: ToolResult, *, redactor: Redactor | None = None
    ) -> "AwaitingTools | AwaitingModel":
        """Answer one open call, in a turn of its own, so that a crash loses no result.

        Args:
            result: Its result.
            redactor: Takes secrets out first.

        Raises:
            ValidationError: `tool-result-has-use` for a result of no open call.
        """
        return cast("AwaitingTools | AwaitingModel", self._then(_masked(UserTurn((result,)), redactor)))

    def close(self, reason: CloseReason) -> AwaitingModel:
        """Answer all open calls with error results that say what happened. They are marked as synthetic.

        Args:
            reason: `interrupted` (it may have had effects), `not_run`, or `lost` (its result is gone).

        Raises:
            ValidationError: `field-value` for another reason.
        """
        if not isinstance(cast("object", reason), str) or reason not in CLOSING:
            found, fix = f"the reason {quoted(reason)}", f"Use one of {', '.join(CLOSING)}."
            raise ValidationError([Violation(FIELD_VALUE, "reason", found, fix)])
        return self.answer(
            attrs.evolve(call.result(CLOSING[reason], is_error=True), synthetic=reason)
            for call in self.open_calls
        )


def _results(results: object) -> tuple[ToolResult, ...]:
    if not isinstance(results, Iterable):
        found = f"{described(results)} where results are due"
        raise ValidationError([Violation(FIELD_TYPE, "results", found, "Use `call.result`.")])
    return tuple(cast("Iterable[ToolResult]", results))


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


def at_length(log: Log, length: int) -> Conversation:
    cls = STATE_OF[log.states[length].phase]
    made = cls.__new__(cls)
    object.__setattr__(made, "_log", log)
    object.__setattr__(made, "_length", length)
    return made


def _folded(preamble: Preamble, turns: Iterable[Turn]) -> Log:
    """A log of turns that are given at once; every fault among them is reported."""
    if not isinstance(cast("object", turns), Iterable):
        found = f"{described(turns)} where turns are due"
        raise ValidationError([Violation(FIELD_TYPE, "turns", found, "Pass a list of turns.")])
    log = Log(preamble)
    log.extend(_only_turns(turns))
    return log


def _only_turns(turns: Iterable[Turn], first: int = 0) -> Iterator[Turn]:
    for i, turn in enumerate(turns, first):
        if type(turn) not in (UserTurn, AssistantTurn, SystemTurn):
            found = f"{described(turn)} where a turn is due"
            raise ValidationError(
                [Violation(FIELD_TYPE, BUILT.turn(i), found, "Pass UserTurn, AssistantTurn or SystemTurn.")]
            )
        yield turn


def _rebuilt(preamble: Preamble, turns: Iterable[Turn]) -> Conversation:
    log = _folded(preamble, turns)
    return at_length(log, len(log.turns))


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
    *content: str | UserBlock,
    system: SystemPrompt = None,
    tools: Iterable[ToolDefinition] = (),
    redactor: Redactor | None = None,
) -> AwaitingModel:
    """A conversation that begins with what the user says.

    Args:
        content: Text and blocks.
        system: The system prompt, as text or text blocks.
        tools: Tool definitions: `Tool` values, or the SDK's parameters, which are copied less their cache markers.
        redactor: Takes secrets out of the content first.

    Raises:
        ValidationError: Every rule that the content or the preamble breaks.

    >>> start("What is the weather in Paris?", system="Be brief.").preamble.system
    (Text('Be brief.'),)
    """
    return empty(system, tools).user(*content, redactor=redactor)


def empty(system: SystemPrompt = None, tools: Iterable[ToolDefinition] = ()) -> AwaitingUser:
    """A conversation without turns.

    Args:
        system: The system prompt, as text or text blocks.
        tools: Tool definitions: `Tool` values, or the SDK's parameters, which are copied less their cache markers.

    Raises:
        ValidationError: Every rule that the preamble breaks.
    """
    return cast("AwaitingUser", _rebuilt(make_preamble(system, tools), ()))


# ---------------------------------------------------------------- edits


@final
@attrs.frozen
class Edit:
    """What an edit made of a conversation, which itself is as it was.

    Args:
        conversation: The edited conversation.
        voided: The signed thinking blocks that no longer stand behind what they answered, by their paths before the edit.
            `strip_after` has dropped them.
        found: What `redact` replaced.
    """

    conversation: Conversation
    voided: tuple[str, ...]
    found: tuple[Redaction, ...] = ()


# ---------------------------------------------------------------- redaction


def _masked(turn: UserTurn, redactor: Redactor | None) -> UserTurn:
    """A turn without secrets."""
    if redactor is None:
        return turn
    require(redactor, Redactor, "redactor", "a Redactor")
    made = redactor.blocks(turn.blocks)
    if not made.found:
        return turn
    redactor.tell(made)
    return attrs.evolve(turn, blocks=made.blocks)


def _masked_reply(
    given: Reply | AssistantTurn, origin: Origin | None, unbroken: int | None, redactor: Redactor
) -> tuple[tuple[AssistantBlock, ...], Origin | None, int | None]:
    """A reply without secrets: its blocks, its origin, and how many blocks stand before the first that is missing.

    Thinking behind a secret would be refused by a model that binds it, so there it goes too.
    """
    require(redactor, Redactor, "redactor", "a Redactor")
    made = redactor.blocks(given.blocks)
    if not made.found:
        return given.blocks, origin, unbroken
    first = next(
        at for at, (new, old) in enumerate(zip(made.blocks, given.blocks, strict=True)) if new is not old
    )
    behind = {at for at, block in enumerate(made.blocks) if at > first and type(block) in SIGNED}
    if isinstance(given, Reply) and not given.bound:  # kept, and known to be void wherever it is checked
        redactor.tell(made)
        if behind and origin is not None:
            origin = attrs.evolve(origin, prefix=altered(min(behind)))
        return made.blocks, origin, unbroken
    kept = tuple(block for at, block in enumerate(made.blocks) if at not in behind)
    redactor.tell(Redacted(kept, made.found, tuple(map(BUILT.block, sorted(behind)))))
    if unbroken is not None:
        unbroken -= sum(at < unbroken for at in behind)
    return kept, origin, unbroken


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


def cuts(reason: str | None) -> bool:
    """Whether a stop reason says that the reply was cut or refused."""
    return not any(RECEIVED.get(reason, UNKNOWN_REASON))


@final
@attrs.frozen
class Interrupted:
    """A reply that may not simply be kept. Nothing of it is in the conversation until you choose.

    Args:
        reason: The stop reason, if it says that the reply was cut or refused; else `incomplete` if the reply ended before
            it was whole, or `thinking_last` if it ends in thinking, which no turn may.
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

    def resume(self, *content: str | UserBlock, redactor: Redactor | None = None) -> AwaitingModel:
        """Keep what can be kept and let the user go on.

        If nothing can be kept, a server call that the reply was to finish is abandoned, as `AwaitingModel.abandon` does.

        Args:
            content: What the user says, such as "Go on from where you stopped."
            redactor: Takes secrets out of it first.

        Raises:
            ValidationError: The user cannot speak here: `sysmsg-before` if nothing is kept after a system turn.
        """
        if self.kept is None:
            return self.conversation.abandon().user(*content, redactor=redactor)
        return self.keep().user(*content, redactor=redactor)


Outcome: TypeAlias = AwaitingUser | AwaitingTools | AwaitingModel | Interrupted
"""What `receive` gives."""


def _received(before: AwaitingModel, reply: Reply | AssistantTurn, redactor: Redactor | None) -> Outcome:
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
    blocks, unbroken = given.blocks, given.unbroken if isinstance(given, Reply) else None
    if redactor is not None:
        blocks, origin, unbroken = _masked_reply(given, origin, unbroken, redactor)
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
    why = reason or "incomplete"
    if not cuts(reason) and not complete:
        why = "incomplete"
    elif becomes_turn:
        why = "thinking_last"
    kept = None if reason == "refusal" else _kept(before, blocks[:unbroken], origin)
    return Interrupted(why, before, kept, blocks[len(kept.blocks) if kept else 0 :])


def _kept(
    before: AwaitingModel, blocks: tuple[AssistantBlock, ...], origin: Origin | None
) -> AssistantTurn | None:
    """The longest beginning of a reply after which the user can go on."""
    state, length = before._state, before._length
    waiting = {call.block.id for call in before._log.calls.unfinished(state, length)}
    end = 0
    for at, block in enumerate(blocks):
        if type(block) is ToolUse or block == Text(""):
            break
        if block.type == ServerToolUse.type:
            waiting.add(cast("ServerToolUse", block).id)
        else:
            waiting.discard(getattr(block, "tool_use_id", None))
        if not waiting and type(block) not in THOUGHTS:
            end = at + 1
    if not end:
        return None
    if origin is not None and origin.stop_reason == "pause_turn":
        origin = attrs.evolve(origin, stop_reason=None)  # what is kept of it is no longer paused
    try:
        kept = AssistantTurn(blocks[:end], origin)
    except ValidationError:
        return None
    _, faults = step(state, length, kept, before._log.calls, BUILT)
    return None if faults else kept


def _renamed(blocks: tuple[AssistantBlock, ...], before: AwaitingModel) -> tuple[AssistantBlock, ...]:
    """Blocks of another vendor with ids that the conversation has not used.

    Compatible endpoints count their calls anew in each response (vLLM issue 50295), so equal ids mean nothing there.
    """
    used: set[str] = set()
    counts: dict[str, int] = {}
    earlier, length = before._log.calls, before._length
    out: list[AssistantBlock] = []
    for block in blocks:
        if type(block) is ToolUse:
            id = block.id
            while id in used or earlier.last(CLIENT, id, length) is not None:
                n = counts.get(block.id, 1)
                counts[block.id] = n = 2 if n == 1 else max(n, length) + 1  # few are taken from there on
                id = f"{block.id}_{n}"
            used.add(id)
            out.append(block if id == block.id else attrs.evolve(block, id=id))
        else:
            out.append(block)
    return tuple(out)


def _abandoned(before: AwaitingModel) -> Conversation:
    state, turns = before._state, before.turns
    if state.phase not in (Phase.PAUSED, Phase.OWED) and not state.unfinished:
        return before
    unfinished = before._log.calls.unfinished(state, before._length)
    first = min((call.turn for call in unfinished), default=len(turns) - 1)
    while first and turns[first - 1].role == "assistant":
        first -= 1
    gone = {call.block.id for call in unfinished}
    cut = False
    after = before.rewind(first)
    for turn in turns[first:]:
        kept: list[Any] = []
        for block in turn.blocks:
            if getattr(getattr(block, "caller", None), "tool_id", None) in gone:
                gone.add(cast("Any", block).id)  # what the code of the call has called goes with it
            if getattr(block, "id", None) in gone or getattr(block, "tool_use_id", None) in gone:
                cut = True
            elif not (cut and type(block) in THOUGHTS):
                kept.append(block)
        while kept and type(kept[-1]) in THOUGHTS:
            kept.pop()
        if not kept and turn.blocks:
            continue
        origin = turn.origin if isinstance(turn, AssistantTurn) else None
        if origin is not None and origin.stop_reason == "pause_turn":
            origin = attrs.evolve(origin, stop_reason=None)
        try:
            made = (
                AssistantTurn(kept, origin) if turn.role == "assistant" else attrs.evolve(turn, blocks=kept)
            )
        except ValidationError:
            continue  # only whitespace is left of it
        after = after._then(made)
    return after


__all__ = [
    "STATE_OF",
    "TABLE",
    "AwaitingModel",
    "AwaitingTools",
    "AwaitingUser",
    "Conversation",
    "Edit",
    "Interrupted",
    "Outcome",
    "Phase",
    "conversation",
    "empty",
    "start",
]
