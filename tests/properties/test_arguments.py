"""Arguments of every wrong type: each public callable takes them, or refuses them with an error of ours."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import convmodel
from convmodel import (
    AssistantTurn,
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    Image,
    Interrupted,
    JsonObject,
    OpaqueBlock,
    Origin,
    Preamble,
    Reply,
    SystemTurn,
    Text,
    Tool,
    ToolUse,
    UserTurn,
    ValidationError,
    anthropic,
    conversation,
    empty,
    recovery,
    start,
    storage,
)
from convmodel import redact as redaction
from convmodel import repair as mending
from convmodel.anthropic import (
    Accumulator,
    CachePolicy,
    Target,
    check,
    from_message,
    message_map,
    parse,
    read_stream,
    stale_thinking,
    to_beta_request,
    to_body,
    to_messages,
    to_request,
)
from convmodel.fields import Value
from convmodel.recovery import diagnose
from convmodel.redact import Redactor, masked
from convmodel.repair import Policy, repair
from convmodel.storage import dumps, loads
from convmodel.testing.strategies import assistant_blocks, user_blocks

from .common import PROPERTY
from .test_hostile import assert_named

TARGET = Target(model="claude-opus-4-8")
CALL = ToolUse("toolu_1", "f", {})
ASKED = start("Hi.")
REDACTOR = Redactor()
OPEN = ASKED.assistant(CALL)
DONE = ASKED.assistant("Hi.")
assert isinstance(OPEN, AwaitingTools)
CUT = ASKED.receive(Reply(["Hi."], Origin(stop_reason="max_tokens")))
assert isinstance(CUT, Interrupted)
MESSAGES = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hi."}]

HOSTILE: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "a number": lambda: 3,
    "a negative number": lambda: -1,
    "a huge number": lambda: 10**5000,
    "a float": lambda: 1.5,
    "not a number": lambda: float("nan"),
    "True": lambda: True,
    "text": lambda: "x",
    "no text": lambda: "",
    "a lone surrogate": lambda: "\ud800",
    "a zero character": lambda: "\0",
    "bytes": lambda: b"x",
    "bytes that are no UTF-8": lambda: b"\xff",
    "an empty list": list,
    "a list of numbers": lambda: [1],
    "a list of lists": lambda: [[1]],
    "a list of objects": lambda: [object()],
    "a tuple of None": lambda: (None,),
    "a set": lambda: {1},
    "a dict": lambda: {"a": 1},
    "a dict of numbers": lambda: {1: 2},
    "an empty dict": dict,
    "a generator": lambda: (n for n in range(3)),
    "an object": object,
    "a class": lambda: int,
    "a function": lambda: len,
    "an exception": lambda: ValueError("x"),
    "an enum": lambda: enum.Enum("E", "A"),
    "a block": lambda: Text("x"),
    "a conversation": lambda: ASKED,
    "a frozen object": lambda: JsonObject({"a": 1}),
}
"""Values that are wrong in most places, each made anew."""

Row = tuple[Callable[..., Any], dict[str, Any]]

CALLABLES: dict[str, Row] = {
    "start": (
        start,
        {"*": "Hi.", "system": None, "tools": (), "redactor": REDACTOR},
    ),
    "empty": (empty, {"system": None, "tools": ()}),
    "conversation": (conversation, {"turns": [UserTurn("Hi.")], "system": None, "tools": ()}),
    "check": (
        check,
        {
            "messages": MESSAGES,
            "system": None,
            "tools": None,
            "origins": {1: Origin()},
            "target": TARGET,
            "stage": "hold",
        },
    ),
    "parse": (parse, {"messages": MESSAGES, "system": None, "tools": None, "origins": {1: Origin()}}),
    "from_message": (from_message, {"message": {"content": []}, "target": TARGET}),
    "to_messages": (to_messages, {"convo": ASKED, "target": TARGET}),
    "message_map": (message_map, {"convo": ASKED, "target": TARGET}),
    "to_request": (to_request, {"convo": ASKED, "target": TARGET}),
    "to_body": (to_body, {"convo": ASKED, "target": TARGET, "max_tokens": 1}),
    "to_beta_request": (to_beta_request, {"convo": ASKED, "target": TARGET}),
    "CachePolicy": (
        CachePolicy,
        {"tools": False, "system": True, "points": 2, "automatic": False, "ttl": "5m"},
    ),
    "Accumulator": (Accumulator, {"target": TARGET}),
    "Accumulator.feed": (Accumulator(TARGET).feed, {"event": {"type": "ping"}}),
    "Accumulator.reply": (Accumulator(TARGET).reply, {"error": None}),
    "read_stream": (read_stream, {"events": [], "target": TARGET}),
    "stale_thinking": (stale_thinking, {"conversation": ASKED, "target": TARGET}),
    "repair": (
        repair,
        {
            "messages": MESSAGES,
            "system": None,
            "tools": None,
            "target": TARGET,
            "origins": None,
            "stage": "send",
            "policy": Policy(),
        },
    ),
    "Policy": (Policy, dict.fromkeys(Policy.actions(), "refuse")),
    "diagnose": (
        diagnose,
        {"error": "x", "conversation": ASKED, "target": TARGET, "attempts": frozenset()},
    ),
    "dumps": (dumps, {"conversation": ASKED}),
    "loads": (loads, {"text": dumps(ASKED)}),
    "AwaitingUser.user": (empty().user, {"*": "Hi.", "redactor": REDACTOR}),
    "AwaitingUser.assistant": (empty().assistant, {"*": "Hi.", "origin": None}),
    "AwaitingModel.user": (ASKED.user, {"*": "Hi.", "redactor": REDACTOR}),
    "AwaitingModel.system": (ASKED.system, {"*": "Hi."}),
    "AwaitingModel.assistant": (ASKED.assistant, {"*": "Hi.", "origin": None}),
    "AwaitingModel.receive": (ASKED.receive, {"reply": Reply(["Hi."]), "redactor": REDACTOR}),
    "AwaitingTools.answer": (OPEN.answer, {"results": CALL.result("ok"), "then": (), "redactor": REDACTOR}),
    "AwaitingTools.answer_one": (OPEN.answer_one, {"result": CALL.result("ok"), "redactor": REDACTOR}),
    "AwaitingTools.close": (OPEN.close, {"reason": "lost"}),
    "Interrupted.resume": (CUT.resume, {"*": "Go on.", "redactor": REDACTOR}),
    "ToolUse.result": (CALL.result, {"content": "ok", "is_error": None}),
    "Image.from_bytes": (Image.from_bytes, {"data": b"GIF89a"}),
    "Image.from_path": (Image.from_path, {"path": Path("nowhere")}),
    "Target": (Target, {"model": "claude-opus-4-8", "thinking": None, "platform": "anthropic"}),
    "JsonObject": (JsonObject, {"value": {"a": 1}}),
    "AwaitingUser": (AwaitingUser, {"turns": DONE.turns, "system": None, "tools": ()}),
    "AwaitingModel": (AwaitingModel, {"turns": ASKED.turns, "system": None, "tools": ()}),
    "AwaitingTools": (AwaitingTools, {"turns": OPEN.turns, "system": None, "tools": ()}),
    "Tool": (Tool, {"name": "f", "input_schema": {}, "description": None}),
    "Preamble": (Preamble, {"system": (), "tools": ()}),
    "Origin": (Origin, dict.fromkeys(attrs.fields_dict(Origin)) | {"vendor": "anthropic"}),
    "UserTurn": (UserTurn, {"blocks": "Hi."}),
    "AssistantTurn": (AssistantTurn, {"blocks": "Hi.", "origin": None}),
    "SystemTurn": (SystemTurn, {"blocks": "Hi."}),
    "Reply": (Reply, {"blocks": "Hi.", "origin": Origin(), "complete": True, "dropped": (), "bound": True}),
    "Redactor": (Redactor, {"detectors": {}, "keys": (), "inputs": {}, "report": None}),
    "Redactor.text": (REDACTOR.text, {"text": "Hi."}),
    "Redactor.blocks": (REDACTOR.blocks, {"blocks": ()}),
    "masked": (masked, {"input": CALL.input}),
    "OpaqueBlock": (OpaqueBlock, {"data": {"type": "new"}}),
    "Image.from_url": (Image.from_url, {"url": "https://example.org/a.png"}),
}
"""By name, with arguments that are right; `*` is a positional one."""
REWRITE = {"on_thinking": "keep"}
EVERYWHERE: dict[str, dict[str, Any]] = {
    "extends": {"other": ASKED},
    "first_difference": {"other": ASKED},
    "common_prefix": {"other": ASKED},
    "rewind": {"length": 0},
    "replace": {"index": 0, "turn": UserTurn("Hi."), **REWRITE},
    "drop_rounds": {"before": 0, **REWRITE},
    "clear_tool_results": {"before": 0, **REWRITE},
    "compact": {"summary": "Hi.", "before": None, **REWRITE},
    "with_system": {"system": None, **REWRITE},
    "with_tools": {"tools": (), **REWRITE},
    "map_tool_inputs": {"change": lambda call: call.input, **REWRITE},
    "map_text": {"change": str, **REWRITE},
    "strip_thinking": {"turn": 0, "block": 0},
    "redact": {"redactor": REDACTOR, **REWRITE},
    "supply": {"result": CALL.result("ok"), **REWRITE},
}
for _at in (DONE, ASKED, OPEN):
    for _name, _right in EVERYWHERE.items():
        CALLABLES[f"{type(_at).__name__}.{_name}"] = (getattr(_at, _name), _right)
# What errors are made of, which convmodel makes, and what `receive` makes.
WITHOUT = {
    "BetaRequest",
    "Change",
    "ConvmodelError",
    "Diagnosis",
    "Edit",
    "Interrupted",
    "InvalidReply",
    "Mended",
    "Partial",
    "Recovered",
    "Redacted",
    "Redaction",
    "Redaction.under",
    "Redactor.tell",
    "Repaired",
    "Request",
    "Rule",
    "StaleThinking",
    "ValidationError",
    "Violation",
    "Violation.under",
    "Policy.actions",
    "Policy.refuse_all",
    "aread_stream",
    "arecover",
    "recover",
}


def public() -> Iterator[tuple[str, Any]]:
    """Every public callable that takes an argument: functions, classes and their methods."""
    modules: tuple[ModuleType, ...] = (convmodel, anthropic, storage, mending, recovery, redaction)
    for module in modules:
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value) or inspect.isclass(value):
                yield name, value
            for cls in value.__mro__ if inspect.isclass(value) else ():
                for attribute, method in vars(cls).items() if cls.__module__.startswith("convmodel") else ():
                    takes = isinstance(method, classmethod) or (
                        inspect.isfunction(method) and len(inspect.signature(method).parameters) > 1
                    )
                    if takes and not attribute.startswith("_"):
                        yield f"{name}.{attribute}", method


def test_every_public_callable_has_its_row() -> None:
    names = dict(public())
    values = {name for name, value in names.items() if inspect.isclass(value) and issubclass(value, Value)}
    assert names.keys() - values - WITHOUT <= CALLABLES.keys()
    assert CALLABLES.keys() <= names.keys()


@pytest.mark.parametrize("name", CALLABLES)
def test_an_argument_of_any_type_is_taken_or_refused(name: str) -> None:
    act, right = CALLABLES[name]
    for argument in right:
        for make in HOSTILE.values():
            given = {**right, argument: make()}
            if argument == "change" and callable(given[argument]):
                continue  # what a function raises is the caller's own
            first = [given.pop("*")] if "*" in given else []
            try:
                act(*first, **given)
            except ValidationError as error:
                assert_named(error.violations)
            except OSError:
                assert name == "Image.from_path"


ANY: Any = object()
EXACT: dict[str, tuple[Callable[[], object], str, str]] = {
    "extends": (lambda: ASKED.extends(ANY), "field-type", "other"),
    "first_difference": (lambda: ASKED.first_difference(ANY), "field-type", "other"),
    "rewind": (lambda: ASKED.rewind(ANY), "field-value", "length"),
    "to_messages": (lambda: to_messages(ANY), "field-type", "conversation"),
    "to_messages(target)": (lambda: to_messages(ASKED, target=ANY), "field-type", "target"),
    "message_map": (lambda: message_map(ANY), "field-type", "conversation"),
    "to_request": (lambda: to_request(ANY, TARGET), "field-type", "conversation"),
    "to_request(target)": (lambda: to_request(ASKED, ANY), "field-type", "target"),
    "from_message(target)": (lambda: from_message({"content": []}, target=ANY), "field-type", "target"),
    "check(target)": (lambda: check([], target=ANY), "field-type", "target"),
    "check(stage)": (lambda: check([], stage=ANY), "field-value", "stage"),
    "check(origins)": (lambda: check([], origins=ANY), "field-type", "origins"),
    "parse(origins)": (lambda: parse([], origins={0: ANY}), "field-type", "origins[0]"),
    "dumps": (lambda: dumps(ANY), "field-type", "conversation"),
    "loads": (lambda: loads(ANY), "field-type", "text"),
    "from_bytes": (lambda: Image.from_bytes(ANY), "field-type", "data"),
    "from_path": (lambda: Image.from_path(ANY), "field-type", "path"),
    "from_path(text)": (lambda: Image.from_path("\0"), "field-value", "path"),
    "Reply(dropped)": (lambda: Reply([], dropped=ANY), "field-type", "dropped"),
    "result": (lambda: CALL.result(ANY), "tool-result-content-types", "content"),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_wrong_argument_is_named(name: str) -> None:
    act, rule, path = EXACT[name]
    with pytest.raises(ValidationError) as caught:
        act()
    assert [(fault.rule, fault.path) for fault in caught.value.violations] == [(rule, path)]
    assert caught.value.violations[0].fix


@PROPERTY
@given(assistant_blocks() | user_blocks(), st.data())
def test_a_field_of_any_type_is_taken_or_refused(block: Any, data: st.DataObject) -> None:
    value = data.draw(st.sampled_from([block, *inside(block)]))
    names = [field.name for field in attrs.fields(type(value)) if field.init]
    if names:
        name, make = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(list(HOSTILE.values())))
        try:
            attrs.evolve(value, **{name: make()})
        except ValidationError as error:
            assert_named(error.violations)


def inside(value: Any) -> Iterator[Any]:
    """The declared values that a value holds, at every depth."""
    for field in attrs.fields(type(value)):
        held = getattr(value, field.name)
        for each in held if isinstance(held, tuple) else (held,):
            if isinstance(each, Value):
                yield each
                yield from inside(each)
