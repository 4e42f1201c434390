"""No sequence of public calls reaches a state that the Messages API refuses; a refused call changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from convmodel import (
    AssistantTurn,
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    Conversation,
    ConvmodelError,
    Interrupted,
    SystemTurn,
    ToolUse,
    ValidationError,
    conversation,
    empty,
)
from convmodel.anthropic import to_request
from convmodel.storage import dumps, loads
from convmodel.testing import judge
from convmodel.testing.strategies import (
    assistant_turns,
    replies,
    text_blocks,
    tool_results,
    tools,
    user_blocks,
    user_turns,
)

from .common import PROPERTY, TARGET, judged, wire_bytes

RUN_UNDER = ("tool_use", "pause_turn", None)
"""The stop reasons under which calls may be run."""


class Moves(RuleBasedStateMachine):
    """Every public move at any time, legal or not."""

    def __init__(self) -> None:
        super().__init__()
        self.convo: Conversation = empty()

    def attempt(self, move: Callable[[], Any]) -> Any:
        """Make a move; None if it is refused, with everything as it was."""
        before = self.convo
        shown = (tuple(before.turns), before.digest, before.binding, wire_bytes(before))
        try:
            made = move()
        except ConvmodelError:
            made = None
        assert (tuple(before.turns), before.digest, before.binding, wire_bytes(before)) == shown
        return made

    def go(self, move: Callable[[], Any]) -> None:
        made = self.attempt(move)
        if made is not None:
            self.convo = made

    @precondition(lambda self: not self.convo.turns)
    @rule(declared=tools())
    def declare(self, declared: Any) -> None:
        self.convo = empty("Be brief.", declared)

    @precondition(lambda self: isinstance(self.convo, (AwaitingUser, AwaitingModel)))
    @rule(content=st.lists(user_blocks(), max_size=2))
    def user(self, content: Any) -> None:
        convo = self.convo
        assert not isinstance(convo, AwaitingTools)
        self.go(lambda: convo.user(*content))

    @precondition(lambda self: isinstance(self.convo, (AwaitingUser, AwaitingModel)))
    @rule(turn=user_turns())
    def user_with_any_results(self, turn: Any) -> None:
        convo = self.convo
        assert not isinstance(convo, AwaitingTools)
        self.go(lambda: convo.user(*turn.blocks))

    @precondition(lambda self: isinstance(self.convo, (AwaitingUser, AwaitingModel)))
    @rule(turn=assistant_turns(opaque=False))
    def assistant(self, turn: AssistantTurn) -> None:
        convo = self.convo
        assert not isinstance(convo, AwaitingTools)
        self.go(lambda: convo.assistant(*turn.blocks, origin=turn.origin))

    @precondition(lambda self: isinstance(self.convo, AwaitingModel))
    @rule(content=st.lists(text_blocks(), max_size=2))
    def system(self, content: Any) -> None:
        convo = self.convo
        assert isinstance(convo, AwaitingModel)
        self.go(lambda: convo.system(*content))

    @precondition(lambda self: isinstance(self.convo, AwaitingModel))
    @rule(data=st.data(), way=st.sampled_from(["discard", "keep", "resume"]))
    def receive(self, data: st.DataObject, way: str) -> None:
        convo = self.convo
        assert isinstance(convo, AwaitingModel)
        unfinished = convo._log.calls.unfinished(convo._state, len(convo.turns))
        owed = tuple(call.block for call in unfinished)
        reply = data.draw(replies(opaque=False, owed=owed))
        outcome = self.attempt(lambda: convo.receive(reply))
        if isinstance(outcome, Interrupted):
            self.go(lambda: self.resolved(outcome, way))
        elif outcome is not None:
            if reply.calls:
                assert reply.complete
                assert reply.origin.stop_reason in RUN_UNDER
            self.convo = outcome

    def resolved(self, outcome: Interrupted, way: str) -> Conversation:
        """Where one way out of an interruption leads: never to a call."""
        assert outcome.conversation is self.convo
        kept = outcome.kept.blocks if outcome.kept is not None else ()
        assert not any(isinstance(block, ToolUse) for block in kept)
        made = outcome.resume("Go on.") if way == "resume" else getattr(outcome, way)()
        assert isinstance(made, AwaitingUser if way == "keep" else AwaitingModel)
        assert not made.open_calls
        return made

    @precondition(lambda self: isinstance(self.convo, AwaitingModel))
    @rule()
    def abandon(self) -> None:
        convo = self.convo
        assert isinstance(convo, AwaitingModel)
        made = self.attempt(convo.abandon)
        assert made is not None
        assert not made._state.unfinished
        instructed = bool(made.turns) and isinstance(made.turns[-1], SystemTurn)
        if made is not convo and not instructed and not made._state.by_code:
            assert made.user("Something else.")
        self.convo = made

    @precondition(lambda self: isinstance(self.convo, AwaitingTools))
    @rule(
        data=st.data(), strays=st.lists(tool_results(), max_size=1), then=st.lists(user_blocks(), max_size=1)
    )
    def answer(self, data: st.DataObject, strays: Any, then: Any) -> None:
        convo = self.convo
        assert isinstance(convo, AwaitingTools)
        calls = data.draw(st.permutations(convo.open_calls))
        results = [
            data.draw(tool_results(call)) for call in calls[data.draw(st.sampled_from([0, 0, 0, 1])) :]
        ]
        self.go(lambda: convo.answer([*results, *strays], then))

    @precondition(lambda self: isinstance(self.convo, AwaitingTools))
    @rule(data=st.data())
    def answer_one(self, data: st.DataObject) -> None:
        convo = self.convo
        assert isinstance(convo, AwaitingTools)
        self.go(
            lambda: convo.answer_one(data.draw(tool_results(data.draw(st.sampled_from(convo.open_calls)))))
        )

    @precondition(lambda self: isinstance(self.convo, AwaitingTools))
    @rule(stray=tool_results())
    def answer_one_with_any_result(self, stray: Any) -> None:
        convo = self.convo
        assert isinstance(convo, AwaitingTools)
        self.go(lambda: convo.answer_one(stray))

    @precondition(lambda self: isinstance(self.convo, AwaitingTools))
    @rule(reason=st.sampled_from(["interrupted", "not_run", "lost", "a whim"]))
    def close(self, reason: Any) -> None:
        convo = self.convo
        assert isinstance(convo, AwaitingTools)
        made = self.attempt(lambda: convo.close(reason))
        assert (made is None) == (reason == "a whim")
        if made is not None:
            self.convo = made

    @rule(back=st.integers(-1, 3))
    def rewind(self, back: int) -> None:
        length = len(self.convo.turns) - back
        try:
            self.convo = self.convo.rewind(length)
        except ValueError:
            assert not 0 <= length <= len(self.convo.turns)

    @rule()
    def store(self) -> None:
        self.convo = loads(dumps(self.convo))

    @invariant()
    def the_state_follows_from_the_turns(self) -> None:
        preamble = self.convo.preamble
        again = conversation(self.convo.turns, system=preamble.system, tools=preamble.tools)
        assert type(again) is type(self.convo)
        assert again == self.convo
        assert again.digest == self.convo.digest
        assert again.open_calls == self.convo.open_calls

    @invariant()
    def what_can_be_sent_is_what_the_api_takes(self) -> None:
        convo = self.convo
        if not isinstance(convo, AwaitingModel):
            return
        refused = judged(convo)
        try:
            request = to_request(convo, TARGET)
        except ValidationError:
            assert refused
            return
        if not pauses_without_server_call(convo):
            assert judge({**request, "max_tokens": 64}) == []


def pauses_without_server_call(convo: Conversation) -> bool:
    """A pause that no server call explains: the judge, which sees no stop reasons, takes it for a prefill."""
    last = convo.turns[-1]
    return isinstance(last, AssistantTurn) and not any("tool" in block.type for block in last.blocks)


TestMoves = Moves.TestCase
TestMoves.settings = type(PROPERTY)(PROPERTY, max_examples=60, stateful_step_count=15)
