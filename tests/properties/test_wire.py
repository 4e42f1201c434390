"""What is written to the wire: accepted by the judge, exact, stable, and only ever longer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convmodel import (
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    Conversation,
    Interrupted,
    OpaqueBlock,
    Turn,
    UserTurn,
    ValidationError,
    conversation,
)
from convmodel.anthropic import Target, check, message_map, parse, to_body, to_messages, to_request
from convmodel.testing import judge
from convmodel.testing.strategies import conversations, replies, sendable_conversations

from .common import PROPERTY, TARGET, TARGETS, judged, wire_bytes


@PROPERTY
@given(sendable_conversations(opaque=False), st.sampled_from(TARGETS))
def test_a_request_is_made_exactly_where_the_api_would_take_it(convo: AwaitingModel, target: Target) -> None:
    if judged(convo, target):
        with pytest.raises(ValidationError):
            to_request(convo, target)
    else:
        assert judge({**to_request(convo, target), "max_tokens": 64}) == []


@PROPERTY
@given(sendable_conversations())
def test_a_body_is_the_request_and_its_parameters_as_json(convo: AwaitingModel) -> None:
    try:
        request = to_request(convo, TARGET)
    except ValidationError:
        return
    extra: dict[str, Any] = {"max_tokens": 64, "metadata": {"user_id": "é"}}
    sent = json.loads(to_body(convo, TARGET, **extra))
    assert canonical(sent) == canonical({**request, **extra})


def canonical(value: object) -> str:
    """JSON text, in which unlike `==` a number differs from a truth value."""
    return json.dumps(value, sort_keys=True)


@PROPERTY
@given(conversations(opaque=False))
def test_what_is_written_parses_to_what_is_written_again(convo: Conversation) -> None:
    messages: Any = to_messages(convo)
    again = parse(messages, system=list(convo.preamble.system) or None, tools=convo.preamble.tools)
    assert to_messages(again) == messages
    assert wire_bytes(again) == wire_bytes(convo)
    assert check(json.dumps({"messages": messages}).encode()) == ()


@PROPERTY
@given(conversations())
def test_how_results_were_split_shows_neither_in_digests_nor_on_the_wire(convo: Conversation) -> None:
    single: list[Turn] = []
    for turn in convo.turns:
        if isinstance(turn, UserTurn) and len(turn.results) == len(turn.blocks):
            single += [UserTurn([result]) for result in turn.results]
        else:
            single.append(turn)
    split = conversation(single, system=convo.preamble.system, tools=convo.preamble.tools)
    assert (split.digest, split.binding) == (convo.digest, convo.binding)
    assert wire_bytes(split) == wire_bytes(convo)
    assert type(split) is type(convo)


@PROPERTY
@given(st.lists(conversations(max_moves=3), min_size=2, max_size=4))
def test_equal_digests_mean_equal_wire_data(convos: list[Conversation]) -> None:
    seen: dict[str, bytes] = {}
    for convo in convos:
        for length in range(len(convo.turns) + 1):
            point = convo.rewind(length)
            written = wire_bytes(point) + to_preamble(point)
            assert seen.setdefault(point.digest, written) == written
            assert convo.extends(point)


def to_preamble(convo: Conversation) -> bytes:
    return repr([(block.text, block.citations) for block in convo.preamble.system]).encode() + b"".join(
        tool.text.encode() for tool in convo.preamble.tools
    )


@PROPERTY
@given(sendable_conversations(), replies(), st.sampled_from(TARGETS))
def test_a_longer_conversation_begins_with_the_bytes_of_a_shorter(
    convo: AwaitingModel, reply: Any, target: Target
) -> None:
    shorter = wire_bytes(convo, target)
    for longer in grown(convo, reply):
        assert wire_bytes(longer, target).startswith(shorter[:-1])
        assert longer.extends(convo)
        assert wire_bytes(convo, target) == shorter


def grown(convo: AwaitingModel, reply: Any) -> list[Conversation]:
    """What one reply, and the moves after it, make of a conversation."""
    try:
        outcome = convo.receive(reply)
    except ValidationError:
        return []
    if isinstance(outcome, Interrupted):
        if outcome.kept is None:
            return [outcome.discard()]
        return [outcome.discard(), outcome.keep(), outcome.resume("Go on.")]
    if isinstance(outcome, AwaitingTools):
        return [outcome, outcome.answer_one(outcome.open_calls[0].result("ok")), outcome.close("lost")]
    if isinstance(outcome, AwaitingUser):
        return [outcome, outcome.user("Thanks.")]
    return [outcome]


@PROPERTY
@given(sendable_conversations(), st.sampled_from(TARGETS))
def test_a_body_grows_only_behind_its_messages(convo: AwaitingModel, target: Target) -> None:
    longer = convo.assistant("Well.")
    if not isinstance(longer, AwaitingUser):
        return
    try:
        before, after = (messages_of(each, target) for each in (convo, longer.user("Go on.")))
    except ValidationError:
        return
    assert after.startswith(before)


def messages_of(convo: AwaitingModel, target: Target) -> bytes:
    """The messages in a body, less the brackets that close list and body."""
    sent = to_body(convo, target)
    return sent[sent.index(b',"messages":') :].removesuffix(b"]}")


@PROPERTY
@given(conversations(), st.sampled_from([None, *TARGETS]))
def test_the_map_names_the_block_that_each_written_block_comes_from(
    convo: Conversation, target: Target | None
) -> None:
    messages: list[Any] = list(to_messages(convo, target))
    places = message_map(convo, target)
    assert [len(message["content"]) for message in messages] == [len(row) for row in places]
    for message, row in zip(messages, places, strict=True):
        for written, (turn, at) in zip(message["content"], row, strict=True):
            block = convo.turns[turn].blocks[at]
            assert isinstance(block, OpaqueBlock) or written["type"] == block.type
