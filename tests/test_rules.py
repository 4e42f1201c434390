"""Every rule of the catalogue with a history that keeps it and one, an edit away, that breaks it.

Wire data stands in `vectors/rules/*.json`: a history that is accepted, one edit, the places where the edited
history breaks the rule. Rules that wire data cannot show have a pair in this file.
"""

from __future__ import annotations

import copy
import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import convmodel
from convmodel import (
    RULES,
    AwaitingModel,
    AwaitingUser,
    Image,
    Origin,
    Rule,
    UserTurn,
    ValidationError,
    conversation,
    start,
)
from convmodel.anthropic import (
    CachePolicy,
    Target,
    check,
    from_message,
    parse,
    read_stream,
    to_messages,
    to_request,
)
from convmodel.anthropic.faults import FAULTS, ONLY_IN_ERRORS
from convmodel.storage import dumps, loads
from convmodel.testing import judge, to_events

Json = dict[str, Any]
Found = list[tuple[str, str]]
HERE = Path(__file__).parent
VECTORS: list[Json] = [
    {**vector, "theme": path.stem, "number": number}
    for path in sorted((HERE / "vectors" / "rules").glob("*.json"))
    for number, vector in enumerate(json.loads(path.read_text("utf-8")))
]


def named(vector: Json) -> str:
    return f"{vector['rule']}-{vector['theme']}{vector['number']}"


each_vector = pytest.mark.parametrize("vector", VECTORS, ids=named)


def edited(request: Json, edit: Json) -> Json:
    """A copy of a request with one edit: a value set, inserted or removed at a place."""
    out = copy.deepcopy(request)
    *way, last = edit["at"]
    place: Any = out
    for step in way:
        place = place[step]
    if "insert" in edit:
        place.insert(last, edit["insert"])
    elif "remove" in edit:
        del place[last]
    else:
        place[last] = edit["set"]
    return out


def origins_of(request: Json) -> dict[int, Origin] | None:
    given = request.get("origins")
    return None if given is None else {int(index): Origin(**origin) for index, origin in given.items()}


def target_of(request: Json) -> Target | None:
    return Target(**request["target"]) if "target" in request else None


def verdict(request: Json) -> Found:
    found = check(
        request["messages"],
        system=request.get("system"),
        tools=request.get("tools"),
        origins=origins_of(request),
        target=target_of(request),
        stage=request.get("stage", "hold"),
    )
    return [(violation.rule.id, violation.path) for violation in found]


@each_vector
def test_the_accepted_history_breaks_no_rule(vector: Json) -> None:
    assert verdict(vector["accept"]) == []


@each_vector
def test_the_edited_history_breaks_its_own_rule_and_no_other(vector: Json) -> None:
    expected = [(vector["rule"], path) for path in vector["paths"]]
    assert verdict(edited(vector["accept"], vector["edit"])) == expected


HELD = [vector for vector in VECTORS if "target" not in vector["accept"] and "stage" not in vector["accept"]]


@pytest.mark.parametrize("vector", HELD, ids=named)
def test_parse_refuses_what_check_reports_and_takes_the_rest(vector: Json) -> None:
    good, bad = vector["accept"], edited(vector["accept"], vector["edit"])
    parse(good["messages"], system=good.get("system"), tools=good.get("tools"))
    with pytest.raises(ValidationError) as caught:
        parse(bad["messages"], system=bad.get("system"), tools=bad.get("tools"))
    assert [(v.rule.id, v.path) for v in caught.value.violations] == verdict(bad)


@each_vector
def test_a_history_as_json_text_is_judged_like_its_values(vector: Json) -> None:
    for request in (vector["accept"], edited(vector["accept"], vector["edit"])):
        text = {**request, "messages": json.dumps(request["messages"])}
        if isinstance(request["messages"], list):
            assert verdict(text) == verdict(request)


# Rules of targets that hold for wire data alone, or for histories that `to_request` does not take.
ONLY_CHECKED = {
    "messages-nonempty": "an empty conversation is no AwaitingModel",
    "third-party-unsigned-thinking": "a conversation leaves such thinking out when it is written",
    "prefill-unsupported": "convmodel builds no prefill",
    "prefill-with-thinking": "convmodel builds no prefill",
    "final-assistant-trailing-whitespace": "convmodel builds no prefill",
    "thinking-off-final-turn": "convmodel builds no prefill",
    "tool-use-tail-open": "open calls are no AwaitingModel",
}
AIMED = [vector for vector in VECTORS if vector["theme"] == "targets" and vector["rule"] not in ONLY_CHECKED]


@pytest.mark.parametrize("vector", AIMED, ids=named)
def test_a_rule_of_a_target_is_enforced_by_to_request_too(vector: Json) -> None:
    def sent(request: Json) -> Found:
        convo = parse(request["messages"], tools=request.get("tools"), origins=origins_of(request))
        target = target_of(request)
        assert isinstance(convo, AwaitingModel)
        assert target is not None
        try:
            to_request(convo, target)
        except ValidationError as error:
            return [(v.rule.id, v.path) for v in error.violations]
        return []

    assert sent(vector["accept"]) == []
    built = [
        path.replace("messages[", "turns[").replace(".content[", ".blocks[", 1) for path in vector["paths"]
    ]
    assert sent(edited(vector["accept"], vector["edit"])) == [(vector["rule"], path) for path in built]


def test_each_exception_of_to_request_has_a_vector() -> None:
    assert ONLY_CHECKED.keys() <= {vector["rule"] for vector in VECTORS if vector["theme"] == "targets"}


# ---------------------------------------------------------------- rules that wire data cannot show


class Pair(NamedTuple):
    rule: str
    accepts: Callable[[], Found]
    rejects: Callable[[], Found]
    path: str


def refused(act: Callable[[], object]) -> Found:
    try:
        act()
    except ValidationError as error:
        return [(v.rule.id, v.path) for v in error.violations]
    return []


def dropped(*content: Json) -> Found:
    reply = from_message({"role": "assistant", "content": list(content), "stop_reason": "end_turn"})
    return [(v.rule.id, v.path) for v in reply.dropped]


def call_with(value: object) -> list[Json]:
    block = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"q": value}}
    return [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [block]}]


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def hundred_thousand(extra: int) -> Found:
    turn = UserTurn("hi")
    return refused(lambda: to_messages(conversation([turn] * (100_000 + extra))))


THOUGHT = {"type": "thinking", "thinking": "I look.", "signature": "c2ln"}


def streamed(*left_out: int) -> Found:
    """What a stream says of itself less some of its events."""
    events = to_events({"content": [{"type": "text", "text": "Hi."}], "stop_reason": "end_turn"})
    reply = read_stream(event for at, event in enumerate(events) if at not in left_out)
    return [(fault.rule.id, fault.path) for fault in reply.dropped]


PAIRS = [
    Pair(
        "cache-auto-slot",
        lambda: refused(lambda: CachePolicy(tools=True, automatic=True, points=1)),
        lambda: refused(lambda: CachePolicy(tools=True, automatic=True)),
        "points",
    ),
    Pair("stream-order", lambda: streamed(2), lambda: streamed(1), "content[0]"),
    Pair("stream-whole", lambda: streamed(2), lambda: streamed(4), "content[0]"),
    Pair(
        "json-value",
        lambda: verdict({"messages": call_with(1.5)}),
        lambda: verdict({"messages": call_with(float("nan"))}),
        "messages[1].content[0].input.q",
    ),
    Pair(
        "json-value",
        lambda: verdict({"messages": call_with(10**4299)}),
        lambda: verdict({"messages": call_with(10**4300)}),
        "messages[1].content[0].input.q",
    ),
    Pair(
        "json-value",
        lambda: verdict({"messages": call_with("x")}),
        lambda: verdict({"messages": call_with(b"x")}),
        "messages[1].content[0].input.q",
    ),
    Pair(
        "json-value",
        lambda: verdict({"messages": call_with({"a": 1})}),
        lambda: verdict({"messages": call_with({1: 1})}),
        "messages[1].content[0].input.q",
    ),
    Pair(
        "json-value",
        lambda: verdict({"messages": call_with(deep(199))}),
        lambda: verdict({"messages": call_with(deep(200))}),
        "messages[1].content[0].input",
    ),
    Pair(
        "json-value",
        lambda: verdict({"messages": '[{"role":"user","content":"hi"}]'}),
        lambda: verdict({"messages": '[{"role":"user","role":"user","content":"hi"}]'}),
        "",
    ),
    Pair(
        "image-decodable",
        lambda: refused(lambda: Image.from_bytes(b"\x89PNG\r\n\x1a\n")),
        lambda: refused(lambda: Image.from_bytes(b"PNG\r\n\x1a\n")),
        "data",
    ),
    Pair(
        "conversation-state",
        lambda: refused(lambda: AwaitingUser([])),
        lambda: refused(lambda: AwaitingModel([])),
        "turns",
    ),
    Pair(
        "stored-format",
        lambda: refused(lambda: loads(dumps(start("hi")))),
        lambda: refused(lambda: loads(dumps(start("hi")).replace('"convmodel":1', '"convmodel":2'))),
        "convmodel",
    ),
    Pair(
        "adaptive-empty-separator",
        lambda: dropped(THOUGHT, {"type": "text", "text": "."}, THOUGHT),
        lambda: dropped(THOUGHT, {"type": "text", "text": ""}, THOUGHT),
        "content[1]",
    ),
    Pair("messages-max-100k", lambda: hundred_thousand(0), lambda: hundred_thousand(1), "messages"),
]


@pytest.mark.parametrize("pair", PAIRS, ids=[pair.rule for pair in PAIRS])
def test_a_rule_that_wire_data_cannot_show_is_kept_and_broken(pair: Pair) -> None:
    assert pair.accepts() == []
    assert pair.rejects() == [(pair.rule, pair.path)]


# ---------------------------------------------------------------- the catalogue itself


def test_every_rule_has_a_pair_and_every_pair_a_rule() -> None:
    shown = {vector["rule"] for vector in VECTORS} | {pair.rule for pair in PAIRS}
    assert shown & ONLY_IN_ERRORS == set()
    assert shown | ONLY_IN_ERRORS == set(RULES)
    assert {fault.rule for fault in FAULTS} >= ONLY_IN_ERRORS  # test_recovery.py has a text for each


def test_ids_are_kebab_case_and_name_one_rule_each() -> None:
    homes: dict[str, list[str]] = {}
    seen: dict[str, Rule] = {}
    for path in sorted(Path(convmodel.__file__).parent.rglob("*.py")):
        if "testing" in path.parts or path.stem == "__main__":
            continue
        name = ".".join(path.relative_to(Path(convmodel.__file__).parent.parent).with_suffix("").parts)
        for value in vars(importlib.import_module(name.removesuffix(".__init__"))).values():
            if isinstance(value, Rule) and seen.setdefault(value.id, value) is not value:
                homes.setdefault(value.id, []).append(name)
    assert homes == {}, "two rules of one id"
    assert seen == dict(RULES), "a rule that the catalogue does not list"
    assert [id for id in RULES if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", id)] == []
    assert [id for id, rule in RULES.items() if id != rule.id or type(rule) is not Rule] == []


def test_every_rule_says_what_must_hold_and_where_that_is_from() -> None:
    assert [rule.id for rule in RULES.values() if not re.fullmatch(r"(?s)[A-Z`].*\.", rule.says)] == []
    assert [rule.id for rule in RULES.values() if not rule.source.strip()] == []
    assert [rule.id for rule in RULES.values() if rule.error == ""] == []


def test_a_rule_is_its_id_and_survives_pickle() -> None:
    import pickle

    rule = RULES["tool-result-once"]
    again = pickle.loads(pickle.dumps(rule))
    assert (rule, rule.id, f"{rule}") == ("tool-result-once",) * 3
    assert (again, again.says, again.source, again.error) == (rule, rule.says, rule.source, rule.error)


def test_a_violation_reads_as_place_problem_remedy_rule() -> None:
    (violation,) = check([{"role": "user", "content": [{"type": "text", "text": ""}]}])
    assert str(violation) == "messages[0].content[0].text: empty text. Drop the block. [text-block-nonempty]"


def test_all_faults_are_reported_at_once_in_the_order_of_their_places() -> None:
    messages: list[Json] = [
        {"role": "system", "content": "x"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a b", "name": "", "input": 1}]},
        {"role": "user", "content": [{"type": "text", "text": ""}]},
    ]
    assert verdict({"messages": messages}) == [
        ("sysmsg-not-first", "messages[0]"),
        ("tool-use-id-pattern", "messages[1].content[0].id"),
        ("tool-use-name", "messages[1].content[0].name"),
        ("tool-use-input-object", "messages[1].content[0].input"),
        ("tool-use-answered-next", "messages[1].content[0]"),
        ("text-block-nonempty", "messages[2].content[0].text"),
    ]


# ---------------------------------------------------------------- the double agrees

# Rules on which the local double of the API says something else, or nothing, with the reason.
DOUBLE_DIFFERS = {
    "base64-valid": "the double looks at no bytes",
    "bedrock-document-needs-text": "not in the double",
    "bedrock-error-result-nonempty": "not in the double",
    "bedrock-tool-id-len": "not in the double",
    "document-title-len": "not in the double",
    "image-media-type-matches": "the double looks at no bytes",
    "mixed-turn-reply: a system turn": "the double looks at user turns only",
    "server-tool-platform": "not in the double",
    "third-party-unsigned-thinking": "the double cannot tell whose signature it is",
    "thinking-prefix-bound": "the double keeps no earlier request",
    "tool-reference-name": "not in the double",
}


def body_of(request: Json) -> Json:
    target = request.get("target", {})
    body = {"model": target.get("model", "claude-opus-5"), "max_tokens": 64, "messages": request["messages"]}
    if "thinking" in target:
        body["thinking"] = {**target["thinking"]}
    if "system" in request:
        body["system"] = request["system"]
    uses_tools = "tool_use" in json.dumps(request["messages"])
    body["tools"] = request.get("tools", [{"name": "look", "input_schema": {"type": "object"}}] * uses_tools)
    return {key: value for key, value in body.items() if key != "tools" or value or "tools" in request}


SENDABLE = [
    vector
    for vector in VECTORS
    if vector["theme"] != "targets" or vector["accept"].get("stage", "send") == "send"
]


@pytest.mark.parametrize("vector", SENDABLE, ids=named)
def test_the_double_refuses_what_the_rule_refuses(vector: Json) -> None:
    bad = edited(vector["accept"], vector["edit"])
    platform = bad.get("target", {}).get("platform", "anthropic")
    reason = DOUBLE_DIFFERS.get(vector["rule"]) or DOUBLE_DIFFERS.get(
        f"{vector['rule']}: {vector.get('note')}"
    )
    assert bool(judge(body_of(bad), platform=platform)) == (reason is None), reason
