"""The strategies reach every block, phase, stop reason and outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from hypothesis import Phase as Step
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

SEARCH = settings(PROPERTY, max_examples=5000, phases=[Step.generate])


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


class All(Exception):
    """Everything that was looked for has been seen."""


def met(
    strategy: st.SearchStrategy[Any], facts: Callable[[Any], Iterable[Any]], wanted: Iterable[Any]
) -> set[Any]:
    """What examples show of some facts; the search ends once all that is wanted has turned up."""
    seen: set[Any] = set()
    missing = set(wanted)

    @SEARCH
    @given(strategy)
    def look(example: Any) -> None:
        seen.update(facts(example))
        if missing <= seen:
            raise All

    with suppress(All):
        look()
    assert missing <= seen
    return seen


def test_the_results_of_every_server_tool_are_made() -> None:
    wanted = {kind for kind in BLOCKS if kind.endswith("_tool_result")}
    assert met(server_tool_results(), lambda result: [result.type], wanted) == wanted


def test_every_phase_is_reached() -> None:
    def phases(convo: Conversation) -> list[Phase]:
        return [convo.rewind(length)._state.phase for length in range(len(convo.turns) + 1)]

    met(conversations(), phases, Phase)


def test_what_can_be_sent_does_not_always_end_with_the_user() -> None:
    wanted = {Phase.ASKED, Phase.INSTRUCTED, Phase.OWED}
    seen = met(sendable_conversations(opaque=False), lambda convo: [convo._state.phase], wanted)
    assert seen <= {*wanted, Phase.PAUSED}


@BRIEF
@given(sendable_conversations(opaque=False))
def test_no_unknown_block_stands_where_none_is_wanted(convo: AwaitingModel) -> None:
    assert not any(isinstance(block, OpaqueBlock) for turn in convo.turns for block in turn.blocks)


def test_every_stop_reason_and_outcome_is_met() -> None:
    def outcome(reply: Any) -> list[Any]:
        return [reply.origin.stop_reason, type(start("Hello.").receive(reply))]

    met(replies(), outcome, {*REASONS, AwaitingUser, AwaitingTools, AwaitingModel, Interrupted})


def test_every_public_strategy_is_documented() -> None:
    for name, value in vars(strategies).items():
        if (
            callable(value)
            and getattr(value, "__module__", "") == strategies.__name__
            and not name.startswith("_")
        ):
            assert value.__doc__, name
