"""The library's check and the independent judge reach the same verdict on histories that went wrong at random."""

from __future__ import annotations

from typing import Any

from hypothesis import given

from convmodel.anthropic import check
from convmodel.testing import judge

from .common import PROPERTY, TARGET, Json
from .edits import LOCAL_RULES, TOOLS, edited

STRICTER = type(PROPERTY)(PROPERTY, max_examples=200)


@STRICTER
@given(edited())
def test_check_and_judge_agree(messages: list[Json]) -> None:
    violations = check(messages, tools=TOOLS, target=TARGET, stage="send")
    body: Any = {
        "model": TARGET.model,
        "max_tokens": 64,
        "messages": messages,
        "tools": TOOLS,
        "thinking": {"type": "adaptive"},
    }
    faults = judge(body)
    found = {str(violation.rule) for violation in violations}
    if faults:
        assert found, faults
    else:
        assert found <= LOCAL_RULES.keys()
