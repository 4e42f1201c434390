"""Repairing never invents, never loses silently, and is done when it is done."""

from __future__ import annotations

import copy
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convmodel import AwaitingModel
from convmodel.anthropic import Target, check, to_messages, to_request
from convmodel.conversation import CLOSING
from convmodel.repair import Policy, Repaired, repair
from convmodel.testing import judge
from convmodel.testing.strategies import NearMiss, conversations, near_misses

from .common import BRIEF, PROPERTY, TARGET, TARGETS, Json
from .edits import TOOLS, edited, mangled

BOUND = Target("claude-opus-5-5", {"type": "adaptive"})


def said_by_users(messages: Any) -> Iterator[tuple[str, str]]:
    """What users said and tools answered, each with its place."""
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") != "user":
            continue
        content = message.get("content")
        if isinstance(content, str):
            yield content, f"messages[{at}].content"
        for number, block in enumerate(content if isinstance(content, list) else ()):
            if not isinstance(block, dict):
                continue
            path = f"messages[{at}].content[{number}]"
            if block.get("type") == "text" and isinstance(block.get("text"), str):
                yield block["text"], path
            if block.get("type") == "tool_result" and isinstance(block.get("content"), str):
                yield block["content"], path


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
@given(mangled())
def test_what_users_said_and_tools_answered_is_kept_or_said_to_be_lost(messages: list[Json]) -> None:
    result = repair(messages, tools=TOOLS, target=TARGET)
    if result.messages is None:
        assert result.unrepaired
        return
    left = Counter(text for text, _ in said_by_users(result.messages))
    places: dict[str, list[str]] = {}
    for text, path in said_by_users(messages):
        places.setdefault(text, []).append(path)
    for text, paths in places.items():  # of equal texts nobody can tell which one is left
        assert len(paths) - left[text] <= sum(is_told(result, text, path) for path in paths), (text, paths)


def is_told(result: Repaired, text: str, path: str) -> bool:
    """Whether the changes say that a text is gone."""
    told = [
        change
        for change in result.changes
        if change.kind in ("dropped", "moved", "rewritten")
        and (path.startswith(change.path) or change.path.startswith(path))
    ]
    empty = not text.strip() or text in CLOSING.values()
    placeholder = any(change.rule == "tool-result-once" for change in told)
    return any(change.lost or empty or placeholder for change in told)


@PROPERTY
@given(mangled(), st.sampled_from([*TARGETS, BOUND]))
def test_a_mangled_history_is_mended_for_its_target_or_refused(messages: list[Json], target: Target) -> None:
    before = copy.deepcopy(messages)
    result = repair(messages, tools=TOOLS, target=target, stage="send")
    assert messages == before
    if result.messages is None:
        assert result.unrepaired
        assert result.conversation is None
        return
    assert result.conversation is not None
    assert all(change.defect in Policy.actions() for change in result.changes)
    assert (
        repair(result.messages, system=result.system, tools=TOOLS, target=target, stage="send").changes == ()
    )
    if isinstance(result.conversation, AwaitingModel):
        request = to_request(result.conversation, target)
        assert judge({"max_tokens": 2048, **request}, platform=target.platform) == []


@BRIEF
@given(mangled())
def test_a_policy_that_refuses_is_a_check(messages: list[Json]) -> None:
    found = check(messages, tools=TOOLS, target=TARGET)
    result = repair(messages, tools=TOOLS, target=TARGET, policy=Policy.refuse_all())
    assert result.changes == ()
    assert (result.messages is None) == bool(found)
    assert result.unrepaired == found or not result.refused


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


def history(count: int) -> list[Json]:
    """So many rounds, each broken in several ways."""
    rounds: list[Json] = [{"role": "user", "content": "x"}]
    for n in range(count):
        call = {"type": "tool_use", "id": f"c.{n % 5}", "name": "f", "input": "{}"}
        rounds.append({"role": "assistant", "content": [{"type": "text", "text": "", "index": 0}, call]})
        answer = {"type": "tool_result", "tool_use_id": f"c.{n % 5}", "content": "ok"}
        rounds.append({"role": "user", "content": [{"type": "text", "text": "y"}, *([answer] * (n % 3))]})
    return rounds


def one_turn(block: Callable[[int], Json]) -> Callable[[int], list[Json]]:
    def made(count: int) -> list[Json]:
        content = [block(n) for n in range(count)]
        return [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": content},
            {"role": "user", "content": "y"},
        ]

    return made


SHAPES: dict[str, Callable[[int], list[Json]]] = {
    "rounds": history,
    "calls without results": one_turn(
        lambda n: {"type": "tool_use", "id": f"c{n}", "name": "f", "input": {}}
    ),
    "calls of one id": one_turn(lambda n: {"type": "tool_use", "id": "c", "name": "f", "input": {"n": n}}),
    "one call again and again": one_turn(lambda _: {"type": "tool_use", "id": "c", "name": "f", "input": {}}),
    "thoughts": one_turn(lambda n: {"type": "thinking", "thinking": "t", "signature": f"s{n}"}),
    "empty texts": one_turn(lambda _: {"type": "text", "text": ""}),
    "server calls": one_turn(
        lambda n: {"type": "server_tool_use", "id": f"srvtoolu_{n}", "name": "web_search", "input": {}}
    ),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_cost_of_a_repair_follows_the_length_of_the_history(shape: Callable[[int], list[Json]]) -> None:
    """Counted, not timed."""
    short, long = (steps(shape(count)) for count in (150, 600))
    assert long < 4.5 * short


def steps(messages: list[Json]) -> int:
    """How many calls a repair makes, those of built-in functions included."""
    count = 0

    def called(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        made = repair(messages)
    finally:
        sys.setprofile(None)
    assert made.changes
    return count
