"""Immutable JSON: equality by JSON type, order and numbers kept, nothing shared, the rest refused."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import enum
import itertools
import json
import pickle
from collections import OrderedDict, UserDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convmodel import JsonObject, ToolUse, ValidationError
from convmodel.jsonvalue import decode, freeze

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
values = st.recursive(
    scalars.filter(lambda v: not isinstance(v, str) or v.isprintable()),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('abü"\\', max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
objects = st.dictionaries(st.text("abz", max_size=3), values, max_size=5)


def refused(act: Callable[[], object]) -> list[tuple[str, str]]:
    with pytest.raises(ValidationError) as caught:
        act()
    return [(v.rule.id, v.path) for v in caught.value.violations]


def exact(value: Any) -> Any:
    """A value with its types, so that equality is that of JSON."""
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [exact(item) for item in value]
    return (type(value).__name__, repr(value))


# ---------------------------------------------------------------- what is kept


@given(objects)
def test_everything_comes_back_as_it_was_in_its_order_and_type(value: dict[str, Any]) -> None:
    held = JsonObject(value)
    assert exact(held.thaw()) == exact(value)
    assert list(held) == list(value)
    assert (
        held.text == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        or json.loads(held.text) == value
    )
    assert {key: exact(held[key]) for key in held} == exact(value)


@given(objects)
def test_json_text_and_values_make_the_same_object(value: dict[str, Any]) -> None:
    assert JsonObject(json.loads(json.dumps(value))).text == JsonObject(value).text


@given(objects)
def test_equal_objects_have_equal_hashes_whatever_their_order(value: dict[str, Any]) -> None:
    turned = dict(reversed(value.items()))
    assert JsonObject(value) == JsonObject(turned) == value
    assert hash(JsonObject(value)) == hash(JsonObject(turned))


def test_numbers_are_exact() -> None:
    value = {
        "big": 2**70,
        "least": -(2**63),
        "digits": 10**4299,
        "float": 1.0,
        "small": 5e-324,
        "minus": -0.0,
    }
    held = JsonObject(value)
    assert exact(held.thaw()) == exact(value)
    assert JsonObject({"a": 1e22, "b": 0.1, "c": 1.0}).text == '{"a":1e22,"b":0.1,"c":1.0}'


def test_key_order_is_kept_in_the_text_at_every_depth() -> None:
    assert JsonObject({"z": {"b": 1, "a": 2}, "a": []}).text == '{"z":{"b":1,"a":2},"a":[]}'


def test_text_may_hold_anything_but_lone_surrogates() -> None:
    text = '\x00\x7f\u2028\U0001f600 " \\ /'
    assert JsonObject({"a": text})["a"] == text


# ---------------------------------------------------------------- equality by JSON type

DISTINCT: list[Any] = [1, 1.0, True, "1", [1], {"a": 1}, None, 0, 0.0, False, "", [], {}, -1]


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(DISTINCT, 2)), ids=repr)
def test_values_of_different_json_types_differ(one: Any, other: Any) -> None:
    assert JsonObject({"k": one}) != JsonObject({"k": other})
    assert JsonObject({"k": [one]}) != {"k": [other]}
    assert {"k": one} != JsonObject({"k": other})


def test_it_equals_mappings_of_every_kind_and_nothing_else() -> None:
    held = JsonObject({"a": 1, "b": [2]})
    for other in (
        {"b": [2], "a": 1},
        OrderedDict(b=[2], a=1),
        MappingProxyType({"a": 1, "b": [2]}),
        UserDict(a=1, b=[2]),
    ):
        assert held == other
        assert other == held
    others: list[object] = [
        {"a": 1},
        {"a": 1, "b": [2.0]},
        {"a": 1, 2: 3},
        {"a": float("nan")},
        [("a", 1)],
        "{}",
        None,
        5,
    ]
    for different in others:
        assert held != different


def test_it_is_usable_as_a_key() -> None:
    assert {JsonObject({"a": 1, "b": 2}): "x"}[JsonObject({"b": 2, "a": 1})] == "x"
    assert len({JsonObject({"a": 1}), JsonObject({"a": 1.0}), JsonObject({"a": True})}) == 3


# ---------------------------------------------------------------- a mapping


def test_it_is_a_mapping_that_unpacks() -> None:
    def call(**given: Any) -> dict[str, Any]:
        return given

    held = JsonObject({"city": "Paris", "days": [1, 2]})
    number: Any = 5
    assert isinstance(held, Mapping)
    assert call(**held) == {**held} == dict(held) == {"city": "Paris", "days": [1, 2]}
    assert (len(held), "city" in held, "x" in held, number in held) == (2, True, False, False)
    assert (held.get("x"), held.get("x", 1), held.get("city")) == (None, 1, "Paris")
    assert list(held.items()) == [("city", "Paris"), ("days", [1, 2])]
    match held:
        case {"city": str(city), **rest}:
            assert (city, rest) == ("Paris", {"days": [1, 2]})
        case _:
            pytest.fail("no match")
    for missing in ("x", ""):
        with pytest.raises(KeyError, match=repr(missing)):
            held[missing]


def test_it_pickles_and_copies() -> None:
    held = JsonObject({"z": 2**70, "a": [1.0]})
    again = pickle.loads(pickle.dumps(held))
    assert (again, again.text, hash(again)) == (held, held.text, hash(held))
    assert copy.copy(held) is held
    assert copy.deepcopy(held) is held


# ---------------------------------------------------------------- nothing is shared


def test_no_change_of_what_was_passed_in_or_given_out_reaches_it() -> None:
    inner = [1]
    source: dict[str, Any] = {"a": inner, "b": {"c": 2}}
    held = JsonObject(source)
    text = held.text
    inner.append(2)
    source["b"]["c"] = 3
    source["d"] = 4
    held["a"].append(5)
    held["b"]["c"] = 6
    thawed = held.thaw()
    thawed["a"].append(7)
    dict(held)["b"]["x"] = 8
    for item in held.values():
        if isinstance(item, list):
            item.clear()
    assert held.text == text == '{"a":[1],"b":{"c":2}}'
    assert held.thaw() is not held.thaw()
    assert held["a"] is not held["a"]


def test_it_cannot_be_changed() -> None:
    held: Any = JsonObject({"a": 1})
    for act in (
        lambda: setattr(held, "_text", b"{}"),
        lambda: setattr(held, "x", 1),
        lambda: delattr(held, "_text"),
        lambda: held.__setitem__("a", 2),
        lambda: held.pop("a"),
        lambda: held.update(a=2),
    ):
        with pytest.raises((AttributeError, TypeError)):
            act()
    assert held == {"a": 1}
    assert not hasattr(held, "__dict__")
    assert attrs.has(JsonObject)


# ---------------------------------------------------------------- refusals


class Colour(enum.Enum):
    RED = "red"


class Word(str):
    __slots__ = ()


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def loop() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["a"] = value
    return value


REFUSED: list[tuple[str, Any, tuple[str, str]]] = [
    ("nan", {"a": [1, float("nan")]}, ("json-value", "a[1]")),
    ("infinity", {"a": {"b": float("-inf")}}, ("json-value", "a.b")),
    ("bytes", {"a": b"x"}, ("json-value", "a")),
    ("a set", {"a": {1}}, ("json-value", "a")),
    ("a generator", {"a": iter([1])}, ("json-value", "a")),
    ("a date", {"a": dt.date(2026, 1, 1)}, ("json-value", "a")),
    ("a decimal", {"a": decimal.Decimal("1.5")}, ("json-value", "a")),
    ("an enum", {"a": Colour.RED}, ("json-value", "a")),
    ("an object", {"a": object()}, ("json-value", "a")),
    ("an integer as key", {"a": {1: 2}}, ("json-value", "a")),
    ("None as key", {None: 2}, ("json-value", "")),
    ("a lone surrogate", {"a": ["\ud83d"]}, ("json-valid-utf8", "a[0]")),
    ("a lone surrogate in a key", {"a": {"\udc00": 1}}, ("json-valid-utf8", "a")),
    ("4,301 digits", {"a": 10**4300}, ("json-value", "a")),
    ("minus 4,301 digits", {"a": -(10**4300)}, ("json-value", "a")),
    ("201 levels", deep(201), ("json-value", "")),
    ("100,000 levels", deep(100_000), ("json-value", "")),
    ("a loop", loop(), ("json-value", "")),
    ("a list", [1], ("json-value", "")),
    ("text", "{}", ("json-value", "")),
    ("None", None, ("json-value", "")),
    ("a list of pairs", [("a", 1)], ("json-value", "")),
]


@pytest.mark.parametrize(
    ("value", "fault"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED]
)
def test_what_json_cannot_hold_is_refused_with_its_place(value: Any, fault: tuple[str, str]) -> None:
    assert refused(lambda: JsonObject(value)) == [fault]


@pytest.mark.parametrize(
    ("value", "fault"),
    [each[1:] for each in REFUSED if isinstance(each[1], dict)],
    ids=[each[0] for each in REFUSED if isinstance(each[1], dict)],
)
def test_a_tool_input_refuses_the_same_under_its_own_path(value: Any, fault: tuple[str, str]) -> None:
    rule, path = fault
    assert refused(lambda: ToolUse("toolu_1", "look", value)) == [
        (rule, f"input.{path}" if path else "input")
    ]


def test_what_differs_from_json_in_its_class_only_is_taken_as_plain() -> None:
    class Level(enum.IntEnum):
        LOW = 1

    held = JsonObject(
        MappingProxyType({Word("k"): Word("v"), "t": (1, (2,)), "o": OrderedDict(a=1), "i": Level.LOW})
    )
    assert exact(held.thaw()) == exact({"k": "v", "t": [1, [2]], "o": {"a": 1}, "i": 1})
    assert exact(JsonObject({"j": JsonObject({"a": 1})}).thaw()) == exact({"j": {"a": 1}})


def test_two_hundred_levels_are_taken() -> None:
    assert JsonObject(deep(200)).thaw() == deep(200)


def test_an_error_never_shows_a_value() -> None:
    with pytest.raises(ValidationError) as caught:
        JsonObject({"password": ["hunter2", float("nan"), b"hunter3"]})
    assert str(caught.value) == ("password[1]: a number that is not finite. Pass null or text. [json-value]")


def test_its_repr_shows_how_many_keys_it_has() -> None:
    assert repr(JsonObject({"password": "hunter2"})) == "JsonObject(<1 key>)"
    assert repr(JsonObject({})) == "JsonObject(<0 keys>)"


def test_freeze_leaves_what_it_cannot_freeze_for_the_constructor_to_name() -> None:
    held = JsonObject({"a": 1})
    bad = {"a": float("nan")}
    assert freeze(held) is held
    assert freeze(bad) is bad


# ---------------------------------------------------------------- JSON text


@pytest.mark.parametrize(
    ("text", "value", "faults"),
    [
        pytest.param('{"a": 1}', {"a": 1}, [], id="plain"),
        pytest.param(b'{"a": 1.0}', {"a": 1.0}, [], id="bytes"),
        pytest.param(f"[{2**70}]", [2**70], [], id="a large integer"),
        pytest.param('{"a":1,"a":2}', {"a": 2}, ["the key 'a' twice in one object"], id="a repeated key"),
        pytest.param("[NaN]", None, ["text that is not JSON (NaN is not JSON)"], id="NaN"),
        pytest.param("[1e999]", [float("inf")], [], id="a float beyond range"),
        pytest.param("", None, ["text that is not JSON at character 0 (Expecting value)"], id="nothing"),
        pytest.param("[" * 100_000, None, ["JSON text that is nested too deeply"], id="depth"),
    ],
)
def test_json_text_is_read_with_what_only_text_shows(
    text: str | bytes, value: Any, faults: list[str]
) -> None:
    read, found = decode(text)
    assert exact(read) == exact(value)
    assert [(v.rule.id, v.found) for v in found] == [("json-value", fault) for fault in faults]


def test_json_text_of_too_many_digits_or_bad_bytes_is_a_fault_not_a_crash() -> None:
    for text in ("1" * 5000, b"\xff\xfe", b'"\xed\xa0\x80"'):
        value, (fault,) = decode(text)
        assert (value, fault.rule.id, fault.path) == (None, "json-value", "")
