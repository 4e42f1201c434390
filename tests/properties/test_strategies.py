"""The strategies reach every block, state and outcome."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase as HypothesisPhase
from hypothesis import find

from convmodel import (
    AssistantTurn,
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    Conversation,
    Interrupted,

    Reply,
    SystemTurn,
    start,
)
from convmodel.blocks import BLOCKS
from convmodel.conversation import Phase
from convmodel.testing import strategies
from convmodel.testing.strategies import (
    REASONS,
    assistant_blocks,
    conversations,
    opaque_blocks,
    replies,
    sendable_conversations,
    server_tool_results,
    tool_results,
    user_blocks,
)

from .common import PROPERTY

REACHED = type(PROPERTY)(PROPERTY, max_examples=3000, phases=[HypothesisPhase.generate])


@pytest.mark.parametrize("kind", BLOCKS)
def test_every_block_is_made(kind: str):
    found: Any = user_blocks() | assistant_blocks() | server_tool_results() | tool_results()
    assert find(found, lambda block: block.type == kind, settings=REACHED)


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_is_reached(phase: Phase):
    assert find(conversations(), lambda convo: convo._state.phase is phase, settings=REACHED) is not None


@pytest.mark.parametrize("reason", REASONS)
def test_every_stop_reason_is_given(reason: str | None):
    assert find(replies(), lambda reply: reply.origin.stop_reason == reason, settings=REACHED)


@pytest.mark.parametrize("outcome", [AwaitingUser, AwaitingTools, AwaitingModel, Interrupted])
def test_every_outcome_is_met(outcome: type):
    def meets(reply: Reply) -> bool:
        try:
            return isinstance(start("Hello.").receive(reply), outcome)
        except ValueError:
            return False

    assert find(replies(), meets, settings=REACHED)


def test_opaque_blocks_can_be_left_out():
    def holds_opaque(convo: Conversation) -> bool:
        return any(type(block).__name__ == "OpaqueBlock" for turn in convo.turns for block in turn.blocks)

    assert find(conversations(), holds_opaque, settings=REACHED)
    assert find(opaque_blocks(), lambda block: block.type not in BLOCKS, settings=REACHED)


def test_conversations_that_end_otherwise_than_with_the_user_are_sendable_too():
    assert find(
        sendable_conversations(), lambda convo: isinstance(convo.turns[-1], AssistantTurn), settings=REACHED
    )
    assert find(sendable_conversations(), lambda convo: isinstance(convo.turns[-1], SystemTurn), settings=REACHED)


def test_every_public_strategy_is_documented():
    for name, value in vars(strategies).items():
        if callable(value) and getattr(value, "__module__", "") == strategies.__name__ and not name.startswith("_"):
            assert value.__doc__, name
