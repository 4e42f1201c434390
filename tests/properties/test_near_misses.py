"""One edit that breaks one rule is found under that rule, and the judge mostly agrees."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from convmodel import RULES, ValidationError
from convmodel.anthropic import check, parse
from convmodel.testing import judge
from convmodel.testing.strategies import NEAR_MISS_RULES, NearMiss, near_misses

from .common import BRIEF, TARGET, Json
from .edits import LOCAL_RULES, TOOLS

RULE_BRIEF = type(BRIEF)(BRIEF, max_examples=6)
JUDGE_SAYS = {"json-value": "json-valid-utf8", "cache-control-shape": "field-value"}
"""What the judge calls a fault that it knows under another name."""


def request(messages: list[Json]) -> Json:
    return {
        "model": TARGET.model,
        "max_tokens": 64,
        "messages": messages,
        "tools": TOOLS,
        "thinking": {"type": "adaptive"},
    }


@pytest.mark.parametrize("rule", NEAR_MISS_RULES)
def test_a_near_miss_breaks_exactly_its_rule(rule: str) -> None:
    assert rule in RULES

    @RULE_BRIEF
    @given(near_misses(rule))
    def property_of(miss: NearMiss) -> None:
        assert check(miss.valid) == ()
        found = check(miss.broken)
        assert {violation.rule for violation in found} == {miss.rule}
        assert all(violation.path for violation in found)
        with pytest.raises(ValidationError) as caught:
            parse(miss.broken)
        assert caught.value.violations == found

    property_of()


@pytest.mark.parametrize("rule", [rule for rule in NEAR_MISS_RULES if rule not in LOCAL_RULES])
def test_the_judge_refuses_it_too(rule: str) -> None:
    @RULE_BRIEF
    @given(near_misses(rule))
    def property_of(miss: NearMiss) -> None:
        before = {fault.rule for fault in judge(request(miss.valid))}
        # A history at rest may end with the assistant, and hold what this target does not take.
        assert before <= {"prefill-unsupported", "role-blocks-document"}
        after: Any = {fault.rule for fault in judge(request(miss.broken))}
        assert JUDGE_SAYS.get(rule, rule) in after

    property_of()
