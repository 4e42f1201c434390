"""What all properties share: settings, targets, and the judge's view of a conversation."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import HealthCheck, settings

from convmodel import Conversation
from convmodel.anthropic import Target, to_messages
from convmodel.testing import judge

Json = dict[str, Any]

PROPERTY = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
BRIEF = settings(PROPERTY, max_examples=40)

TARGET = Target(model="claude-opus-4-8", thinking={"type": "adaptive"})
TARGETS = (
    TARGET,
    Target(model="claude-opus-5"),
    Target(model="a-model-to-come"),
    Target(model="claude-sonnet-4-5", thinking={"type": "enabled", "budget_tokens": 1024}),
    Target(model="claude-haiku-4-5", thinking={"type": "disabled"}),
)


def body(convo: Conversation, target: Target = TARGET) -> Json:
    """A request body put together by hand, so that it can be judged where `to_request` refuses to make one."""
    made: Json = {"model": target.model, "max_tokens": 64, "messages": to_messages(convo, target)}
    if convo.preamble.system:
        made["system"] = [{"type": "text", "text": block.text} for block in convo.preamble.system]
    if convo.preamble.tools:
        made["tools"] = [tool.thaw() for tool in convo.preamble.tools]
    if target.thinking is not None:
        made["thinking"] = dict(target.thinking)
    if convo.container is not None:
        made["container"] = convo.container
    return made


def judged(convo: Conversation, target: Target = TARGET) -> set[str]:
    """The rules under which the Messages API would refuse the conversation as it ends."""
    return {fault.rule for fault in judge(body(convo, target), platform=target.platform)}


def wire_bytes(convo: Conversation, target: Target = TARGET) -> bytes:
    """The messages of a conversation in any state, as bytes."""
    return msgspec.json.encode(to_messages(convo, target))
