"""Nothing that was passed in or handed out can change a conversation."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
from hypothesis import given

from convmodel import AwaitingModel, AwaitingTools, Conversation, JsonObject, ToolUse, ValidationError, empty
from convmodel.anthropic import Target, from_message, parse, to_body, to_messages, to_request
from convmodel.testing.strategies import conversations, json_objects, sendable_conversations

from .common import BRIEF, PROPERTY, TARGET, wire_bytes


def spoil(value: Any) -> None:
    """Change everything that can be changed in a value."""
    if isinstance(value, dict):
        for item in list(value.values()):
            spoil(item)
        value["spoilt"] = True
    elif isinstance(value, list):
        for item in value:
            spoil(item)
        value.append("spoilt")


@PROPERTY
@given(conversations())
def test_messages_that_were_handed_out_are_the_callers(convo: Conversation) -> None:
    before, digest = wire_bytes(convo), convo.digest
    spoil(to_messages(convo))
    spoil([tool.thaw() for tool in convo.preamble.tools])
    for turn in convo.turns:
        for block in turn.blocks:
            if isinstance(block, ToolUse):
                spoil(block.input.thaw())
                for key in block.input:
                    spoil(block.input[key])
                spoil(dict(block.input.items()))
    assert (wire_bytes(convo), convo.digest) == (before, digest)


@BRIEF
@given(sendable_conversations())
def test_a_request_is_the_callers(convo: AwaitingModel) -> None:
    try:
        before = to_body(convo, TARGET)
    except ValidationError:
        return
    request: Any = to_request(convo, TARGET)
    spoil(request)
    assert to_body(convo, TARGET) == before


@BRIEF
@given(conversations(opaque=False))
def test_wire_data_that_was_parsed_stays_the_callers(convo: Conversation) -> None:
    messages: Any = to_messages(convo)
    tools = [tool.thaw() for tool in convo.preamble.tools]
    untouched = copy.deepcopy((messages, tools))
    made = parse(messages, tools=tools)
    assert (messages, tools) == untouched
    before, preamble = wire_bytes(made), copy.deepcopy(made.preamble)
    spoil(messages)
    spoil(tools)
    assert wire_bytes(made) == before
    assert made.preamble == preamble


@PROPERTY
@given(json_objects())
def test_free_json_gives_fresh_values_and_keeps_its_own(value: JsonObject) -> None:
    plain = value.thaw()
    again = JsonObject(plain)
    text = again.text
    spoil(plain)
    for key in again:
        spoil(again[key])
    assert again.text == text == value.text
    assert again == value
    assert hash(again) == hash(value)


def test_what_builds_a_conversation_stays_the_callers() -> None:
    tool: Any = {"name": "f", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}
    thinking: Any = {"type": "adaptive"}
    reply: Any = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {"x": [1]}}],
        "stop_reason": "tool_use",
    }
    content = ["Hello."]
    given_values = (tool, thinking, reply, content)
    untouched = copy.deepcopy(given_values)
    target = Target(model="claude-opus-4-8", thinking=thinking)
    asked = empty(tools=[tool]).user(*content)
    outcome = asked.receive(from_message(reply))
    assert given_values == untouched
    assert isinstance(outcome, AwaitingTools)
    closed = outcome.close("lost")
    before = to_body(closed, target)
    for value in given_values:
        spoil(value)
    assert to_body(closed, target) == before


@BRIEF
@given(conversations())
def test_nothing_can_be_assigned(convo: Conversation) -> None:
    values: list[Any] = [convo, convo.preamble, *convo.turns]
    values += [block for turn in convo.turns for block in turn.blocks]
    for value in values:
        for name in ("turns", "blocks", "text", "_log", "new"):
            with pytest.raises((AttributeError, TypeError)):
                setattr(value, name, ())
    with pytest.raises(TypeError):
        cast("Any", convo.turns)[0] = None
