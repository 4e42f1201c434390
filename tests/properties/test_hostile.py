"""Whatever comes in, the outcome is clear: violations with rule and path, never another error."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convmodel import (
    RULES,
    Conversation,
    InvalidReply,
    JsonObject,
    OpaqueBlock,
    Reply,
    ToolUse,
    ValidationError,
    Violation,
    start,
)
from convmodel.anthropic import check, from_message, parse, to_body
from convmodel.storage import dumps, loads
from convmodel.testing.strategies import conversations

from .common import BRIEF, PROPERTY, TARGET, Json
from .edits import edited

WORDS = [
    "role",
    "content",
    "type",
    "text",
    "id",
    "name",
    "input",
    "tool_use_id",
    "cache_control",
    "citations",
    "source",
]
TAGS = [
    "user",
    "assistant",
    "system",
    "text",
    "tool_use",
    "tool_result",
    "thinking",
    "image",
    "document",
    "citations",
]


def anything() -> st.SearchStrategy[Any]:
    """Python values, most of them no JSON, that look like messages here and there."""
    scalars = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.binary(max_size=5),
        st.sampled_from([1, -1]).map(lambda sign: sign * 10**5000),
        st.sampled_from([*TAGS, "\ud800", object(), {1, 2}, JsonObject({"type": "text"})]),
    )
    keys = st.sampled_from(WORDS) | st.sampled_from(
        [1, None, True, ("a",), b"type", "_text", "__class__", "\ud800"]
    )
    return st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=2).map(tuple)
            | st.dictionaries(keys, inner, max_size=4)
        ),
        max_leaves=12,
    )


def assert_named(violations: tuple[Violation, ...]) -> None:
    assert violations
    for violation in violations:
        assert violation.rule in RULES
        assert isinstance(violation.path, str)
        assert str(violation).encode()


def assert_judged(messages: Any, **known: Any) -> None:
    """Check returns and says the same twice; parse raises exactly where it finds something."""
    found = check(messages, **known)
    assert isinstance(found, tuple)
    assert check(messages, **known) == found
    assert isinstance(check(messages, target=TARGET, stage="send", **known), tuple)
    if not found:
        assert parse(messages, **known).digest
        return
    assert_named(found)
    with pytest.raises(ValidationError) as caught:
        parse(messages, **known)
    assert caught.value.violations == found


@PROPERTY
@given(anything())
def test_any_value_is_judged(value: Any) -> None:
    assert_judged(value)
    assert_judged([value])
    assert_judged([{"role": "user", "content": value}])
    assert_judged([{"role": "assistant", "content": [value]}])
    assert_judged([], system=value, tools=[value])
    assert_judged([], tools=value)


@BRIEF
@given(edited(), st.data())
def test_a_history_with_anything_in_it_is_judged(messages: list[Json], data: st.DataObject) -> None:
    places: list[tuple[Any, Any]] = []
    containers(messages, places)
    if places:
        container, key = data.draw(st.sampled_from(places))
        container[key] = data.draw(anything())
    assert_judged(messages)


def containers(value: Any, places: list[tuple[Any, Any]]) -> None:
    """Every place in a value that can be replaced."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        places.append((value, key))
        if isinstance(item, (dict, list)):
            containers(item, places)


@PROPERTY
@given(
    st.text(max_size=40)
    | st.binary(max_size=40)
    | st.recursive(st.sampled_from(["1", '"a"']), lambda x: x.map("[{}]".format))
)
def test_any_text_and_bytes_are_judged(text: str | bytes) -> None:
    assert_judged(text)
    assert_read(lambda: from_message(text))
    assert_loaded(text)


def assert_read(read: Callable[[], Reply]) -> None:
    try:
        reply = read()
    except InvalidReply as error:
        assert_named(error.violations)
    else:
        assert isinstance(reply, Reply)
        assert all(violation.rule in RULES for violation in reply.dropped)


def assert_loaded(text: str | bytes) -> None:
    try:
        made = loads(text)
    except ValidationError as error:
        assert_named(error.violations)
    else:
        assert loads(dumps(made)) == made


@PROPERTY
@given(anything())
def test_any_value_is_read_as_a_response_or_refused(value: Any) -> None:
    assert_read(lambda: from_message(value))
    assert_read(lambda: from_message({"role": "assistant", "content": [value], "stop_reason": "end_turn"}))
    assert_read(lambda: from_message({"content": [], "stop_reason": value, "id": value, "container": value}))
    assert_read(
        lambda: from_message({"content": [{"type": "tool_use", "id": "a", "name": "b", "input": value}]})
    )
    assert_read(lambda: from_message({"content": [{"type": "unheard_of", "x": value}]}))
    assert_read(
        lambda: from_message({"content": [{"type": "thinking", "thinking": value, "signature": value}]})
    )


@BRIEF
@given(conversations(), st.data())
def test_a_stored_form_with_anything_in_it_is_loaded_or_refused(
    convo: Conversation, data: st.DataObject
) -> None:
    stored = json.loads(dumps(convo))
    places: list[tuple[Any, Any]] = []
    containers(stored, places)
    container, key = data.draw(st.sampled_from(places))
    if data.draw(st.booleans()):
        container[key] = data.draw(st.sampled_from([None, 1, True, "x", [], {}, -1, 1.5, ["text"]]))
    elif isinstance(container, dict):
        container[data.draw(st.sampled_from([*WORDS, "_text", "x"]))] = container.pop(key)
    assert_loaded(json.dumps(stored))


# ---------------------------------------------------------------- by hand


def nested(depth: int, *, lists: bool = False) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if lists else {"a": value}
    return value


def cyclic() -> Json:
    value: Json = {}
    value["a"] = [value]
    return value


def woven(*, lists: bool = False) -> Any:
    """What holds itself in many places: there is no end to the ways through it."""
    knots: list[Any] = [[] if lists else {} for _ in range(8)]
    for knot in knots:
        if lists:
            knot.extend(knots)
        else:
            knot.update(zip(["type", "content", "source", *"abcde"], knots, strict=True))
            knot["type"] = "text"
    return knots[0]


def call(input: Any, **more: Any) -> Json:
    return {"type": "tool_use", "id": "toolu_1", "name": "f", "input": input, **more}


STRANGE: dict[str, Callable[[], Any]] = {
    "nested 250 levels": lambda: nested(250),
    "nested 100,000 levels": lambda: nested(100_000),
    "lists nested 100,000 levels": lambda: nested(100_000, lists=True),
    "a cycle": cyclic,
    "cycles without number": woven,
    "lists with cycles without number": lambda: woven(lists=True),
    "not a number": lambda: {"a": float("nan")},
    "infinity": lambda: {"a": [float("-inf")]},
    "a lone surrogate": lambda: {"a": "\udc00"},
    "a lone surrogate in a key": lambda: {"\udc00": 1},
    "a key that is a number": lambda: {1: "a"},
    "a key that is None": lambda: {None: "a"},
    "bytes": lambda: {"a": b"x"},
    "a set": lambda: {"a": {1}},
    "a generator": lambda: {"a": (n for n in range(3))},
    "5,000 digits": lambda: {"a": 10**4999},
    "an object": lambda: {"a": object()},
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_tool_input_that_is_no_json_is_refused_everywhere(name: str) -> None:
    value = STRANGE[name]()
    with pytest.raises(ValidationError) as caught:
        ToolUse("toolu_1", "f", value)
    assert_named(caught.value.violations)
    found = check([{"role": "user", "content": "Hi."}, {"role": "assistant", "content": [call(value)]}])
    assert {str(violation.rule) for violation in found} <= {
        "json-value",
        "json-valid-utf8",
        "tool-use-input-object",
    }
    assert found[0].path.startswith("messages[1].content[0].input")
    with pytest.raises(InvalidReply) as refused:
        from_message({"role": "assistant", "content": [call(value)], "stop_reason": "tool_use"})
    assert refused.value.reply is not None


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_value_in_any_place_of_a_message_is_refused(name: str) -> None:
    make = STRANGE[name]
    for messages in (
        make(),
        [make()],
        [{"role": make(), "content": "x"}],
        [{"role": "user", "content": make()}],
        [{"role": "user", "content": [make()]}],
        [{"role": "user", "content": [{"type": make()}]}],
        [{"role": "user", "content": [{"type": "text", "text": make()}]}],
        [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": make()}]}],
        [{"role": "user", "content": [{"type": "image", "source": make()}]}],
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [make()]}]}],
        [
            {
                "role": "assistant",
                "content": [{"type": "web_search_tool_result", "tool_use_id": "a", "content": make()}],
            }
        ],
        [{"role": "assistant", "content": [{"type": "unheard_of", "x": make()}]}],
    ):
        found = check(messages)
        assert_named(found)
        with pytest.raises(ValidationError):
            parse(messages)
    assert_named(check([], tools=[make()]))
    assert_named(check([], tools=[{"name": "f", "input_schema": make()}]))
    assert_named(check([], system=[make()]))


ENDLESS: dict[str, Callable[[], Any]] = {
    "a cycle": cyclic,
    "cycles without number": woven,
    "lists with cycles without number": lambda: woven(lists=True),
}
SERVED: dict[str, Callable[[Any], Json]] = {
    "web_search_tool_result": lambda value: {"type": "web_search_result", "title": value},
    "web_fetch_tool_result": lambda value: {"type": "web_fetch_result", "url": "x", "content": value},
    "code_execution_tool_result": lambda value: {"type": "code_execution_result", "content": value},
    "bash_code_execution_tool_result": lambda value: {"type": "a_new_kind_of_result", "x": [value, value]},
    "tool_search_tool_result": lambda value: {"type": "tool_search_tool_search_result", "y": value},
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_holds_itself_is_refused_with_its_place(name: str) -> None:
    value = ENDLESS[name]()
    for make in (
        JsonObject,
        lambda value: JsonObject({"a": value}),
        lambda value: JsonObject({"a": [value]}),
    ):
        with pytest.raises(ValidationError) as caught:
            make(value)
        assert [fault.rule for fault in caught.value.violations] == ["json-value"]
    assert JsonObject({"a": 1}) != {"a": value}
    with pytest.raises(ValidationError):
        OpaqueBlock({"type": "new", "x": value})
    with pytest.raises(ValidationError) as caught:
        start("Hi.", tools=[{"name": "f", "input_schema": {"type": "object", "x": value}}])
    assert [(v.rule, v.path) for v in caught.value.violations] == [("json-value", "tools[0]")]
    with pytest.raises(ValidationError) as caught:
        to_body(start("Hi."), TARGET, metadata={"x": value})
    assert [v.rule for v in caught.value.violations] == ["json-value"]
    for type, wrap in SERVED.items():
        content = [wrap(value)] if type == "web_search_tool_result" else wrap(value)
        block: Json = {"type": type, "tool_use_id": "srvtoolu_1", "content": content}
        with pytest.raises(InvalidReply) as refused:
            from_message({"content": [block], "stop_reason": "end_turn"})
        found = check([{"role": "assistant", "content": [block]}])
        for place, faults in (("content[0]", refused.value.violations), ("messages[0].content[0]", found)):
            broken = [fault.path for fault in faults if fault.rule == "json-value"]
            assert len(broken) == 1
            assert broken[0].startswith(f"{place}.content")
    with pytest.raises(InvalidReply) as refused:
        from_message({"content": [{"type": "new", "x": [value, value]}], "stop_reason": "end_turn"})
    assert refused.value.violations[0].path.startswith("content[0]")


def test_100_levels_of_nesting_are_kept() -> None:
    messages: Any = [{"role": "assistant", "content": [call(nested(100))]}]
    made = parse(messages)
    assert loads(dumps(made)) == made
    assert parse(json.dumps(messages)) == made


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        '[{"role":' * 3000,
    ],
)
def test_text_that_is_nested_too_deeply_is_refused(text: str) -> None:
    assert_named(check(text))
    assert_named(check(text.encode()))
    assert_read(lambda: from_message(text))
    assert_loaded(text)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('[{"role":"user","role":"user","content":"x"}]', "json-value"),
        ('[{"role":"user","content":"x"}', "json-value"),
        ("[NaN]", "json-value"),
        ("[-Infinity]", "json-value"),
        ("[1" + "0" * 5000 + "]", "json-value"),
        ("\ufeff[]", "json-value"),
        ("", "json-value"),
        (b"\xff", "json-value"),
        ('[{"role":"user","content":"\\ud800"}]', "json-valid-utf8"),
    ],
)
def test_text_shows_what_values_cannot(text: str | bytes, rule: str) -> None:
    assert {str(violation.rule) for violation in check(text)} == {rule}
    assert_loaded(text)
    assert_read(lambda: from_message(text))


def test_a_generator_of_messages_is_no_list() -> None:
    assert_named(check({"role": "user", "content": "x"} for _ in range(2)))
    assert_named(check([{"role": "user", "content": (block for block in [{"type": "text", "text": "x"}])}]))


def test_tuples_stand_for_lists() -> None:
    block = {"type": "text", "text": "x"}
    assert parse(({"role": "user", "content": (block,)},)) == parse([{"role": "user", "content": [block]}])


def test_names_like_our_own_are_plain_data() -> None:
    value = {
        "_text": 1,
        "__class__": "x",
        "_parts": {},
        "__reduce__": [],
        "synthetic": "lost",
        "convmodel": 9,
    }
    made = parse([{"role": "assistant", "content": [call(value)]}])
    assert made.open_calls[0].input == value
    assert loads(dumps(made)).open_calls[0].input.thaw() == value
    for key in value:
        found = check([{"role": "user", "content": [{"type": "text", "text": "x", key: 1}]}])
        assert [str(violation.rule) for violation in found] == ["unknown-field-rejected"]


def test_100_000_blocks_in_a_message_are_read_and_all_faults_found() -> None:
    good: Any = [{"type": "text", "text": "x"}] * 100_000
    assert len(parse([{"role": "user", "content": good}]).turns[0].blocks) == 100_000
    bad: Any = [{"type": "text", "text": ""}] * 100_000
    assert len(check([{"role": "user", "content": bad}])) == 100_000


def test_50_megabytes_of_text_pass() -> None:
    text = "x" * 50_000_000
    made = parse([{"role": "user", "content": text}])
    assert len(made.turns[0].text) == len(text)
    assert len(repr(made)) < 200
    assert check(json.dumps([{"role": "user", "content": text + "\ud800"}]))[0].rule == "json-valid-utf8"
