"""Recovering ends, and what it gives can be sent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convmodel import AwaitingModel, AwaitingTools, AwaitingUser, Conversation
from convmodel.anthropic import Target, to_request
from convmodel.blocks import Thinking
from convmodel.recovery import diagnose, recover
from convmodel.testing import judge
from convmodel.testing.strategies import conversations, sendable_conversations

from .common import PROPERTY, TARGETS

ALL = (*TARGETS, Target("claude-opus-5-5", {"type": "adaptive"}))
VECTORS = Path(__file__).parents[1] / "vectors" / "errors.json"
TEXTS = sorted({row["text"] for row in json.loads(VECTORS.read_text("utf-8"))})


@st.composite
def errors(draw: st.DrawFn) -> str:
    """A known text that names any place."""
    text = draw(st.sampled_from(TEXTS))
    text = re.sub(r"messages\.\d+", f"messages.{draw(st.integers(0, 12))}", text)
    return re.sub(r"content\.\d+", f"content.{draw(st.integers(0, 5))}", text, count=1)


@PROPERTY
@given(conversations(), errors(), st.none() | st.sampled_from(ALL))
def test_diagnosing_ends_and_each_plan_changes_something(
    convo: Conversation, error: str, target: Target | None
) -> None:
    attempts: frozenset[tuple[str, str]] = frozenset()
    for _ in range(30):
        found = diagnose(error, convo, target, attempts=attempts)
        if not found.recoverable:
            return
        made = found.apply()
        assert found.plan == "retry" or (made.conversation, made.target) != (convo, target)
        assert signatures(made.conversation) <= signatures(convo)
        assert isinstance(made.conversation, (AwaitingUser, AwaitingModel, AwaitingTools))
        convo, target, attempts = made.conversation, made.target, found.attempts
    pytest.fail("it goes on for ever")


@PROPERTY
@given(sendable_conversations(opaque=False), errors(), st.sampled_from(ALL))
def test_what_is_sent_again_is_a_request_that_the_service_takes(
    convo: AwaitingModel, error: str, target: Target
) -> None:
    class RefusedError(Exception):
        status_code = 400

    sent: list[Any] = []
    notes: list[str] = []

    def call(convo: AwaitingModel, target: Target) -> int:
        sent.append((convo, target))
        if len(sent) == 1:
            raise RefusedError(error)
        return len(sent)

    try:
        came = recover(call, convo, target)
    except RefusedError as raised:
        notes = raised.__notes__
        came = None
    if came is None:
        assert len(notes) == len(sent) == 1
        return
    assert came.result == 2
    request: Any = to_request(came.conversation, came.target)
    own = {key: value for key, value in request.items() if not key.startswith("extra_")}
    assert judge({"max_tokens": 2048, **own}, platform=came.target.platform) == []


def signatures(convo: Conversation) -> set[str]:
    return {block.signature for turn in convo.turns for block in turn.blocks if isinstance(block, Thinking)}
