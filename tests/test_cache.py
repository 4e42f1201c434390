"""Cache markers: where a policy puts them, that they move nothing else, and what a prompt cache makes of them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, cast

import anthropic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from convmodel import (
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    Conversation,
    SystemTurn,
    Tool,
    UserTurn,
    ValidationError,
    conversation,
    start,
)
from convmodel.anthropic import (
    CachePolicy,
    Target,
    from_message,
    to_beta_request,
    to_body,
    to_messages,
    to_request,
)
from convmodel.recovery import diagnose
from convmodel.testing import MessagesServer, PrefixCache, judge
from convmodel.testing.strategies import sendable_conversations

Json = dict[str, Any]
TOOLS = [Tool("look", {"type": "object"}), Tool("find", {"type": "object"})]


def target(**policy: Any) -> Target:
    return Target("claude-opus-4-8", {"type": "adaptive"}, cache=CachePolicy(**policy))


PLAIN = Target("claude-opus-4-8", {"type": "adaptive"})


def marks(request: Any) -> dict[str, Json]:
    """All markers of a request, by their places."""
    found: dict[str, Json] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                if key == "cache_control":
                    found[path] = item
                elif key not in ("input", "input_schema"):
                    walk(item, f"{path}.{key}" if path else key)
        elif isinstance(value, list):
            for at, item in enumerate(value):
                walk(item, f"{path}.{at}")

    walk(request, "")
    return found


def unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        free = ("input", "input_schema")  # whose keys are nobody's business
        return {
            key: item if key in free else unmarked(item)
            for key, item in value.items()
            if key != "cache_control"
        }
    return [unmarked(item) for item in value] if isinstance(value, list) else value


def rounds(count: int) -> Conversation:
    convo: Conversation = start("x", system="s", tools=TOOLS)
    for n in range(count):
        call = {"type": "tool_use", "id": f"t{n}", "name": "look", "input": {}}
        thought = {"type": "thinking", "thinking": "", "signature": "s"}
        assert isinstance(convo, AwaitingModel)
        asked = convo.receive(from_message({"content": [thought, call], "stop_reason": "tool_use"}))
        assert isinstance(asked, AwaitingTools)
        convo = asked.answer(asked.open_calls[0].result("ok"))
    return convo


# ---------------------------------------------------------------- where markers stand


def test_the_end_is_marked_and_what_its_look_back_does_not_reach() -> None:
    convo = cast("AwaitingModel", rounds(3))
    assert list(marks(to_request(convo, target()))) == ["system.0", "messages.6.content.0"]
    convo = cast("AwaitingModel", rounds(20))  # of three blocks each, so that seven are beyond a look-back
    assert list(marks(to_request(convo, target(points=3, system=False)))) == [
        "messages.8.content.0",
        "messages.24.content.0",
        "messages.40.content.0",
    ]
    assert list(marks(to_request(convo, target(tools=True, points=0)))) == ["system.0", "tools.1"]
    assert marks(to_request(convo, target(points=0, system=False, automatic=True))) == {
        "": {"type": "ephemeral"}
    }
    assert marks(to_request(convo, PLAIN)) == {}
    assert marks(to_messages(convo, target())) == {}


def test_lifetimes_are_written_where_they_are_no_five_minutes() -> None:
    convo = cast("AwaitingModel", rounds(1))
    made = marks(to_request(convo, target(preamble_ttl="1h")))
    assert made["system.0"] == {"type": "ephemeral", "ttl": "1h"}
    assert made["messages.2.content.0"] == {"type": "ephemeral"}
    every = marks(to_request(convo, target(preamble_ttl="1h", ttl="1h", automatic=True)))
    assert {marker.get("ttl") for marker in every.values()} == {"1h"}


def test_a_deferred_tool_takes_no_marker() -> None:
    tools: Any = [{"name": "a", "input_schema": {}}, {"name": "b", "input_schema": {}, "defer_loading": True}]
    convo = start("x", tools=tools)
    assert list(marks(to_request(convo, target(tools=True, points=0)))) == ["tools.0"]


@pytest.mark.parametrize(("more", "second"), [(18, 0), (19, 2)])
def test_a_second_user_turn_has_the_request_before_it_in_reach(more: int, second: int) -> None:
    convo = start("a").assistant("b")
    assert isinstance(convo, AwaitingUser)
    asked = convo.user("c").user(*["d"] * more).system("e")
    found = list(marks(to_request(asked, target(system=False))))
    assert found == [f"messages.{second}.content.0", "messages.4.content.0"]


def test_the_bytes_of_a_marked_turn_are_kept_too() -> None:
    convo = cast("AwaitingModel", rounds(1))
    plain, made = (to_body(convo, to, max_tokens=9) for to in (PLAIN, target(system=False)))
    assert made.replace(b',"cache_control":{"type":"ephemeral"}', b"") == plain


@pytest.mark.parametrize(
    ("policy", "rule", "path"),
    [
        ({"points": 4}, "cache-max-4", "points"),
        ({"tools": True, "points": 3}, "cache-max-4", "points"),
        ({"points": 3, "automatic": True}, "cache-auto-slot", "points"),
        ({"ttl": "1h", "preamble_ttl": "5m"}, "cache-ttl-order", "preamble_ttl"),
        ({"points": -1}, "field-type", "points"),
        ({"points": True}, "field-type", "points"),
        ({"tools": 1}, "field-type", "tools"),
        ({"ttl": "2h"}, "field-value", "ttl"),
    ],
)
def test_a_policy_is_legal_by_construction(policy: Any, rule: str, path: str) -> None:
    with pytest.raises(ValidationError) as caught:
        CachePolicy(**policy)
    assert [(fault.rule.id, fault.path) for fault in caught.value.violations] == [(rule, path)]


def test_the_requests_own_marker_is_the_callers_unless_the_policy_decides() -> None:
    body = json.loads(to_body(start("x"), PLAIN, max_tokens=9, cache_control={"type": "ephemeral"}))
    assert body["cache_control"] == {"type": "ephemeral"}
    with pytest.raises(ValidationError) as caught:
        to_body(start("x"), target(automatic=True), max_tokens=9, cache_control={"type": "ephemeral"})
    assert [(v.rule.id, v.path) for v in caught.value.violations] == [("field-type", "cache_control")]


def test_an_automatic_marker_goes_to_platforms_that_have_it() -> None:
    automatic = CachePolicy(automatic=True)
    with pytest.raises(ValidationError) as caught:
        Target("m", platform="bedrock", cache=automatic)
    assert [(v.rule.id, v.path) for v in caught.value.violations] == [("cache-auto-slot", "cache.automatic")]
    with pytest.raises(ValidationError):
        Target("m", cache=cast("Any", {}))


POLICIES = st.sampled_from(
    [
        CachePolicy(),
        CachePolicy(points=3),
        CachePolicy(points=4, system=False),
        CachePolicy(tools=True, points=1, automatic=True),
        CachePolicy(ttl="1h", preamble_ttl="1h", points=1),
        CachePolicy(points=0, system=False),
    ]
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(sendable_conversations(opaque=False), POLICIES)
def test_markers_are_legal_and_move_nothing_else(convo: AwaitingModel, policy: CachePolicy) -> None:
    to = Target("claude-opus-4-8", {"type": "adaptive"}, cache=policy)
    digest = convo.digest
    try:
        plain: Any = to_request(convo, PLAIN)
    except ValidationError:
        return
    made: Any = to_request(convo, to)
    assert convo.digest == digest
    assert unmarked(made["messages"]) == plain["messages"]
    assert unmarked(made.get("tools")) == plain.get("tools")
    said = plain.get("system")
    assert unmarked(made.get("system")) in (said, [{"type": "text", "text": said}])
    assert len(marks(made)) <= 4
    assert not [fault for fault in judge({"max_tokens": 9, **made}) if "cache" in fault.rule]
    assert json.loads(to_body(convo, to, max_tokens=9)) == {"max_tokens": 9, **made}
    assert to_beta_request(convo, to) == made
    assert to_request(convo, PLAIN) == plain


def test_no_turn_is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    from convmodel.anthropic import write

    written: list[object] = []
    kept = write.wire

    class Counting:
        def unstructure(self, value: Any) -> Any:
            written.append(value)
            return kept().unstructure(value)

    for count in (10, 200):
        convo = cast("AwaitingModel", rounds(count))
        to_body(convo, target(), max_tokens=9)
        monkeypatch.setattr(write, "wire", Counting)
        written.clear()
        to_body(convo, target(), max_tokens=9)
        monkeypatch.setattr(write, "wire", kept)
        assert len(written) == 1  # the system prompt


# ---------------------------------------------------------------- what the cache makes of them


def session(to: Target, blocks: int, turns: int = 100) -> list[tuple[int, int]]:
    """What each request of a session reads, and what it could: all of the request before."""
    cache = PrefixCache()

    def reply(body: Json) -> list[Json]:
        n = len(body["messages"])
        if n % 3 == 0:
            return [{"type": "text", "text": f"So {n}."}]
        calls = [
            {"type": "tool_use", "id": f"t{n}_{at}", "name": "look", "input": {"n": at}}
            for at in range(blocks)
        ]
        return [{"type": "thinking", "thinking": "", "signature": "s"}, *calls]

    read: list[tuple[int, int]] = []
    before = 0
    convo: Conversation = start("x" * 40, system="Be brief.", tools=TOOLS)
    with (
        MessagesServer([reply] * turns, cache=cache) as server,
        anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0) as client,
    ):
        for n in range(turns):
            assert isinstance(convo, AwaitingModel)
            if n % 7 == 6 and convo.turns[-1].role == "user":
                convo = convo.system("Go on.")
            request: Any = to_request(convo, to)
            message = client.messages.create(max_tokens=2048, **request)
            usage = message.usage
            read.append((usage.cache_read_input_tokens or 0, before))
            before = (
                (usage.cache_read_input_tokens or 0)
                + (usage.cache_creation_input_tokens or 0)
                + usage.input_tokens
            )
            outcome = convo.receive(from_message(message, to))
            if isinstance(outcome, AwaitingTools):
                convo = outcome.answer(call.result(f"{n}") for call in outcome.open_calls)
            else:
                assert isinstance(outcome, AwaitingUser)
                convo = outcome.user(f"More {n}.")
    return read


def test_markers_behind_the_end_stay_where_they_are_for_many_requests() -> None:
    behind = [
        tuple(marks(to_request(cast("AwaitingModel", rounds(n)), target(points=3, system=False))))[:-1]
        for n in range(20, 40)
    ]
    moved = [one != other for one, other in pairwise(behind)]
    assert sum(moved) == 5  # in twenty requests, each with two turns more
    assert all(len(points) == 2 for points in behind)


@pytest.mark.parametrize("blocks", [1, 30])
def test_each_request_reads_all_that_the_one_before_has_written(blocks: int) -> None:
    read = session(target(), blocks, turns=150 if blocks == 1 else 24)
    assert [got for got, _ in read[1:]] == [ideal for _, ideal in read[1:]]
    assert read[0] == (0, 0)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(sendable_conversations(opaque=False), st.sampled_from([2, 3]), st.integers(1, 45))
def test_the_next_request_reads_all_that_any_one_before_it_wrote(
    convo: AwaitingModel, points: int, width: int
) -> None:
    to = target(points=points)
    answered = convo.assistant("Well.") if isinstance(convo.turns[-1], UserTurn) else convo
    for longer in (convo, answered):
        if isinstance(longer, AwaitingTools) or isinstance(longer.turns[-1], SystemTurn):
            continue
        try:
            bodies: Any = [
                {"max_tokens": 9, **to_request(each, to)} for each in (convo, longer.user(*["x"] * width))
            ]
        except ValidationError:
            continue
        cache = PrefixCache()
        first, second = (cache.usage(body) for body in bodies)
        assert second["cache_read_input_tokens"] == first["cache_creation_input_tokens"]


def test_what_is_read_lives_on() -> None:
    now = [0.0]
    cache = PrefixCache(lambda: now[0])
    asked = start("x")
    answered = asked.assistant("y")
    assert isinstance(answered, AwaitingUser)
    reads = []
    for time, convo in ((0.0, asked), (200.0, answered.user("z")), (400.0, asked)):
        now[0] = time
        body: Any = {"max_tokens": 9, **to_request(convo, target(points=1))}
        reads.append(cache.usage(body)["cache_read_input_tokens"] > 0)
    assert reads == [False, True, True]


def test_with_one_point_long_turns_are_beyond_the_look_back() -> None:
    short = session(target(points=1), 1, turns=20)
    assert all(got == ideal for got, ideal in short[1:])
    long = session(target(points=1), 30, turns=12)
    assert any(got < ideal for got, ideal in long[1:])


def test_entries_grow_old() -> None:
    now = [0.0]
    cache = PrefixCache(lambda: now[0])
    body = {"max_tokens": 9, **to_request(start("x"), target())}
    reads = []
    for time in (0.0, 299.0, 598.0, 900.0):
        now[0] = time
        reads.append(cache.usage(cast("Any", body))["cache_read_input_tokens"] > 0)
    assert reads == [False, True, True, False]


def test_a_refused_marker_is_taken_out_of_the_target() -> None:
    error = "A maximum of 4 blocks with cache_control may be provided. Found 5."
    made = diagnose(error, start("x"), target()).apply()
    assert made.target == PLAIN
    assert not diagnose(error, start("x"), PLAIN).recoverable


def test_a_conversation_without_turns_that_take_a_marker_has_none() -> None:
    convo = conversation([UserTurn("x")])
    assert isinstance(convo, AwaitingModel)
    assert list(marks(to_request(convo, target(points=3)))) == ["messages.0.content.0"]
