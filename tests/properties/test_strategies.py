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
    container_uploads,
    conversations,
    documents,
    images,
    redacted_thinking_blocks,
    replies,
    search_results,
    sendable_conversations,
    server_tool_results,
    server_tool_uses,
    text_blocks,
    thinking_blocks,
    tool_results,
    tool_uses,
    unsigned_thinking_blocks,
)

from .common import BRIEF, PROPERTY

MANY = settings(PROPERTY, max_examples=250)


@BRIEF
@given(
    st.tuples(
        text_blocks(),
        images(),
        documents(),
        search_results(),
        container_uploads(),
        tool_results(),
        thinking_blocks(),
        redacted_thinking_blocks(),
        unsigned_thinking_blocks(),
        tool_uses(),
        server_tool_uses(),
    )
)
def test_every_block_has_a_strategy(blocks: Any) -> None:
    seen = {block.type for block in blocks}
    assert {kind for kind in BLOCKS if not kind.endswith("_tool_result")} == seen


def test_the_results_of_every_server_tool_are_made() -> None:
    seen: set[str] = set()

    @MANY
    @given(st.tuples(server_tool_results(), server_tool_results()))
    def look(results: Any) -> None:
        seen.update(result.type for result in results)

    look()
    assert seen == {kind for kind in BLOCKS if kind.endswith("_tool_result")}


def test_every_phase_is_reached() -> None:
    seen: set[Phase] = set()

    @MANY
    @given(conversations())
    def look(convo: Conversation) -> None:
        seen.update(convo.rewind(length)._state.phase for length in range(len(convo.turns) + 1))

    look()
    assert seen == set(Phase)


def test_what_can_be_sent_does_not_always_end_with_the_user() -> None:
    seen: set[Phase] = set()

    @MANY
    @given(sendable_conversations(opaque=False))
    def look(convo: AwaitingModel) -> None:
        seen.add(convo._state.phase)
        assert not any(isinstance(block, OpaqueBlock) for turn in convo.turns for block in turn.blocks)

    look()
    assert seen <= {Phase.ASKED, Phase.INSTRUCTED, Phase.PAUSED, Phase.OWED}
    assert seen > {Phase.ASKED}


def test_every_stop_reason_and_outcome_is_met() -> None:
    reasons: set[str | None] = set()
    outcomes: set[type] = set()

    @MANY
    @given(st.tuples(replies(), replies(), replies(), replies()))
    def look(given_replies: Any) -> None:
        for reply in given_replies:
            reasons.add(reply.origin.stop_reason)
            outcomes.add(type(start("Hello.").receive(reply)))

    look()
    assert reasons == set(REASONS)
    assert outcomes == {AwaitingUser, AwaitingTools, AwaitingModel, Interrupted}


def test_every_public_strategy_is_documented() -> None:
    for name, value in vars(strategies).items():
        if (
            callable(value)
            and getattr(value, "__module__", "") == strategies.__name__
            and not name.startswith("_")
        ):
            assert value.__doc__, name
