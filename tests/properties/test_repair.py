"""Repairing never invents, never loses silently, and is done when it is done."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from convmodel.anthropic import check, to_messages
from convmodel.repair import repair
from convmodel.testing import judge
from convmodel.testing.strategies import NearMiss, conversations, near_misses

from .common import BRIEF, PROPERTY, TARGET, Json
from .edits import TOOLS, edited


def words(messages: Any) -> set[str]:
    """What users said and tools answered, all white space aside."""
    said: set[str] = set()
    for message in messages if isinstance(messages, list) else []:
        if (
            isinstance(message, dict)
            and message.get("role") == "user"
            and isinstance(message.get("content"), list)
        ):
            for block in message["content"]:
                if (
                    isinstance(block, dict)
                    and block.get("type") == "text"
                    and isinstance(block.get("text"), str)
                ):
                    said.add(block["text"])
    return {text for text in said if text.strip()}


@PROPERTY
@given(edited())
def test_a_mended_history_is_valid_and_mending_it_again_changes_nothing(messages: list[Json]) -> None:
    before = copy.deepcopy(messages)
    result = repair(messages, tools=TOOLS, target=TARGET)
    assert messages == before
    if result.unrepaired:
        assert result.messages is None
        assert result.conversation is None
        return
    common: Any = {"system": result.system, "tools": TOOLS, "target": TARGET}
    assert check(result.messages, **common) == ()
    again = repair(result.messages, **common)
    assert again.changes == ()
    assert again.messages == result.messages
    assert result.conversation is not None
    if not result.changes:
        assert result.messages == messages


@PROPERTY
@given(edited())
def test_what_the_user_said_is_kept_or_said_to_be_lost(messages: list[Json]) -> None:
    result = repair(messages, tools=TOOLS, target=TARGET)
    if result.messages is not None and words(messages) - words(result.messages):
        assert any(change.lost or change.kind in ("moved", "dropped") for change in result.changes)


@PROPERTY
@given(edited())
def test_thinking_is_never_made_up_or_edited(messages: list[Json]) -> None:
    def thoughts(history: Any) -> list[str]:
        blocks = [
            block
            for message in history
            for block in message["content"]
            if isinstance(message["content"], list)
        ]
        return [json.dumps(block, sort_keys=True) for block in blocks if block.get("type") == "thinking"]

    result = repair(messages, tools=TOOLS, target=TARGET)
    if result.messages is None or any(not isinstance(message.get("content"), list) for message in messages):
        return
    given = iter(thoughts([m for m in messages if all(isinstance(block, dict) for block in m["content"])]))
    plain = [{k: json.loads(each).get(k) for k in ("thinking", "signature")} for each in given]
    kept = [{k: json.loads(each)[k] for k in ("thinking", "signature")} for each in thoughts(result.messages)]
    rest = iter(plain)
    assert all(any(each == other for other in rest) for each in kept)


@BRIEF
@given(near_misses())
def test_a_near_miss_is_mended_or_refused_with_a_reason(miss: NearMiss) -> None:
    result = repair(miss.broken, tools=TOOLS, target=TARGET)
    if result.messages is None:
        assert result.unrepaired
        return
    assert result.changes
    request: Json = {"model": TARGET.model, "max_tokens": 64, "messages": result.messages, "tools": TOOLS}
    if result.system:
        request["system"] = result.system
    request["thinking"] = {"type": "adaptive"}
    # A history at rest may end with the assistant, and nothing need be left of it.
    tail = {"prefill-unsupported", "tool-use-tail-open", "messages-nonempty"}
    assert {fault.rule for fault in judge(request)} <= tail


@BRIEF
@given(conversations(opaque=False))
def test_a_valid_history_comes_back_as_it_is(convo: Any) -> None:
    messages = to_messages(convo)
    result = repair(messages, system=convo.preamble.system or None, tools=convo.preamble.tools)
    assert result.changes == ()
    assert result.messages == messages


@BRIEF
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_any_json_value_gives_an_answer(value: Any) -> None:
    result = repair(value)
    assert result.messages is not None or result.unrepaired
