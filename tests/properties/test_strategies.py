"""The strategies reach every block, phase, stop reason and outcome."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from convmodel import (
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    Conversation,
    Interrupted,
    OpaqueBlock,
    start,
)
from convmodel.blocks import BLOCKS
from convmodel.conversation import Phase
from convmodel.testing import strategies
from convmodel.testing.strategies import (
    REASONS,
    assistant_blocks,
    conversations,
    replies,
    sendable_conversations,
    server_tool_results,
    tool_results,
    user_blocks,
)

from .common import PROPERTY

MANY = settings(PROPERTY, max_examples=500)


def test_every_block_is_made():
    seen: set[str] = set()

    @MANY
    @given(st.tuples(user_blocks(), assistant_blocks(), server_tool_results(), tool_results()))
    def look(blocks: Any) -> None:
        seen.update(block.type for block in blocks)

    look()
    assert seen > BLOCKS.keys()  # and opaque ones besides


def test_every_phase_is_reached():
    seen: set[Phase] = set()

    @MANY
    @given(conversations())
    def look(convo: Conversation) -> None:
        seen.update(convo.rewind(length)._state.phase for length in range(len(convo.turns) + 1))

    look()
    assert seen == set(Phase)


def test_every_phase_that_can_be_sent_is_sent():
    seen: set[Phase] = set()

    @MANY
    @given(sendable_conversations(opaque=False))
    def look(convo: AwaitingModel) -> None:
        seen.add(convo._state.phase)
        assert not any(isinstance(block, OpaqueBlock) for turn in convo.turns for block in turn.blocks)

    look()
    assert seen == {Phase.ASKED, Phase.INSTRUCTED, Phase.PAUSED, Phase.OWED}


def test_every_stop_reason_and_outcome_is_met():
    reasons: set[str | None] = set()
    outcomes: set[type] = set()

    @MANY
    @given(replies())
    def look(reply: Any) -> None:
        reasons.add(reply.origin.stop_reason)
        outcomes.add(type(start("Hello.").receive(reply)))

    look()
    assert reasons == set(REASONS)
    assert outcomes == {AwaitingUser, AwaitingTools, AwaitingModel, Interrupted}


def test_every_public_strategy_is_documented():
    for name, value in vars(strategies).items():
        if (
            callable(value)
            and getattr(value, "__module__", "") == strategies.__name__
            and not name.startswith("_")
        ):
            assert value.__doc__, name
