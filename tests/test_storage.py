"""The stored form: nothing is lost, old files load for ever, and what is wrong with a file is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from cattrs import Converter
from cattrs.preconf.json import make_converter

import convmodel
from convmodel import (
    AssistantTurn,
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    CitationCharLocation,
    Conversation,
    Document,
    Image,
    OpaqueBlock,
    Origin,
    PlainTextSource,
    RedactedThinking,
    ServerToolUse,
    SystemTurn,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    UnsignedThinking,
    UserTurn,
    ValidationError,
    WebSearchToolResult,
    conversation,
    empty,
    start,
)
from convmodel.anthropic import Target, to_messages
from convmodel.cattrs import register
from convmodel.storage import FORMAT, dumps, loads

STORED = Path(__file__).parent / "vectors" / "stored"
GOLDEN = sorted(STORED.glob("*/*.json"))

CALL = ToolUse("toolu_1", "look", {"z": 1, "a": [1.0, 2**70, "ü", None, True]}, toolset_name="browser")
CALL2 = ToolUse("toolu_2", "look", {})


def everything() -> Conversation:
    """A conversation with every fact that only the stored form keeps."""
    cited = Text("blue", citations=[CitationCharLocation("sky", 0, None, 0, 3, file_id="file_1")])
    return conversation(
        [
            UserTurn(
                [
                    "Is it warm?",
                    Document(PlainTextSource("The sky is blue.")),
                    Image.from_url("https://example.org/a.png"),
                ]
            ),
            AssistantTurn(
                [
                    Thinking("I look.", "c2ln"),
                    ServerToolUse("srvtoolu_1", "web_search", {"query": "warm"}),
                    WebSearchToolResult(
                        "srvtoolu_1",
                        [{"type": "web_search_result", "title": "T", "url": "u", "encrypted_content": "e"}],
                    ),
                    Thinking("", "c2lm"),
                    RedactedThinking("eA=="),
                    OpaqueBlock({"type": "connector_text", "z": 1, "a": 1.5}),
                    cited,
                    CALL,
                    CALL2,
                ],
                Origin(
                    platform="vertex",
                    model="m",
                    id="msg_1",
                    stop_reason="tool_use",
                    container="c",
                    account="a",
                    prefix="b1:x",
                ),
            ),
            UserTurn([CALL2.result([])]),
            UserTurn(
                [ToolResult("toolu_1", "gone", is_error=True, toolset_name="browser", synthetic="lost")]
            ),
            SystemTurn("Be brief."),
            AssistantTurn([UnsignedThinking("hm", ""), Text("So.")], Origin(vendor="deepseek")),
            AssistantTurn([]),
        ],
        system=["Be kind.", "Be brief."],
        tools=[{"name": "look", "input_schema": {"type": "object", "b": 1, "a": 2}}],
    )


@pytest.mark.parametrize(
    "convo", [everything(), everything().rewind(2), everything().rewind(3), start("hi"), empty()], ids=repr
)
def test_a_conversation_is_the_same_after_a_round_trip(convo: Conversation) -> None:
    again = loads(dumps(convo))
    assert again == convo
    assert type(again) is type(convo)
    assert (again.digest, again.binding) == (convo.digest, convo.binding)
    assert [turn.blocks for turn in again.turns] == [turn.blocks for turn in convo.turns]
    for target in (None, Target(model="m", platform="deepseek"), Target(model="m", platform="bedrock")):
        assert json.dumps(to_messages(again, target)) == json.dumps(to_messages(convo, target))
    assert dumps(again) == dumps(convo)


def test_text_is_one_line_and_bytes_load_too() -> None:
    text = dumps(everything())
    assert "\n" not in text
    assert loads(text.encode()) == everything()


def test_another_process_writes_the_same_bytes_to_the_wire() -> None:
    convo = everything()
    code = (
        "import sys, json; from convmodel.storage import loads; from convmodel.anthropic import to_messages\n"
        "c = loads(sys.stdin.buffer.read()); print(json.dumps([c.digest, c.binding, to_messages(c)]))"
    )
    path = str(Path(convmodel.__file__).parent.parent)
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        input=dumps(convo).encode(),
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7"},
    ).stdout
    assert out.decode().strip() == json.dumps([convo.digest, convo.binding, to_messages(convo)])


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_released_file_loads_for_ever_and_dumps_to_the_same_bytes(path: Path) -> None:
    text = path.read_text("utf-8").rstrip("\n")
    convo = loads(text)
    if int(path.parent.name) == FORMAT:
        assert dumps(convo) == text
    assert loads(dumps(convo)) == convo


def test_the_golden_file_holds_every_fact() -> None:
    assert loads((STORED / "1" / "everything.json").read_bytes().strip()) == everything()


def test_an_opaque_block_gets_its_class_once_it_has_one() -> None:
    text = dumps(start("hi").assistant(OpaqueBlock({"type": "new_text", "text": "a"})))
    loaded = loads(text.replace('"new_text"', '"text"'))
    assert loaded.turns[1].blocks == (Text("a"),)


# ---------------------------------------------------------------- faults


def stored(**changes: Any) -> str:
    data = {**json.loads(dumps(start("hi").assistant(CALL))), **changes}
    return json.dumps({key: value for key, value in data.items() if value is not ...})


def row(*blocks: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"role": role, "blocks": list(blocks), **more}


HI = row({"type": "text", "text": "hi"})
FAULTS: list[tuple[str, Callable[[], str], list[tuple[str, str]]]] = [
    ("no JSON", lambda: "{", [("json-value", "")]),
    ("not an object", lambda: "[]", [("stored-format", "")]),
    ("an empty text", lambda: "", [("json-value", "")]),
    ("a repeated key", lambda: '{"convmodel":1,"convmodel":1,"turns":[]}', [("json-value", "")]),
    ("a newer format", lambda: stored(convmodel=2), [("stored-format", "convmodel")]),
    ("no format", lambda: stored(convmodel=...), [("stored-format", "convmodel")]),
    ("a format that is true", lambda: stored(convmodel=True), [("stored-format", "convmodel")]),
    ("a format as text", lambda: stored(convmodel="1"), [("stored-format", "convmodel")]),
    ("no turns", lambda: stored(turns=...), [("content-type", "turns")]),
    ("a stray key", lambda: stored(extra=1), [("unknown-field-rejected", "extra")]),
    ("system of another type", lambda: stored(system=5), [("content-type", "system")]),
    (
        "a broken tool",
        lambda: stored(tools=[{"name": "look"}]),
        [("required-field", "tools[0].input_schema")],
    ),
    ("a row that is no object", lambda: stored(turns=["hi"]), [("required-field", "turns[0].role")]),
    ("an unknown role", lambda: stored(turns=[row(role="tool")]), [("required-field", "turns[0].role")]),
    (
        "a stray key in a row",
        lambda: stored(turns=[{**HI, "id": 1}]),
        [("unknown-field-rejected", "turns[0].id")],
    ),
    (
        "an origin of the user",
        lambda: stored(turns=[{**HI, "origin": {"vendor": "x"}}]),
        [("unknown-field-rejected", "turns[0].origin")],
    ),
    ("no blocks", lambda: stored(turns=[{"role": "user"}]), [("content-type", "turns[0].blocks")]),
    (
        "a block without type",
        lambda: stored(turns=[row({"text": "hi"})]),
        [("block-type-known", "turns[0].blocks[0]")],
    ),
    (
        "a stray key in a block",
        lambda: stored(turns=[row({"type": "text", "text": "a", "x": 1})]),
        [("unknown-field-rejected", "turns[0].blocks[0].x")],
    ),
    (
        "a missing field",
        lambda: stored(turns=[row({"type": "text"})]),
        [("required-field", "turns[0].blocks[0].text")],
    ),
    (
        "an origin field of another type",
        lambda: stored(turns=[row(role="assistant", origin={"vendor": "anthropic", "model": 5})]),
        [("field-type", "turns[0].origin.model")],
    ),
    (
        "a stray key in an origin",
        lambda: stored(turns=[row(role="assistant", origin={"vendor": "anthropic", "x": 5})]),
        [("unknown-field-rejected", "turns[0].origin.x")],
    ),
    (
        "an unknown synthetic mark",
        lambda: stored(turns=[row({"type": "tool_result", "tool_use_id": "a", "synthetic": "x"})]),
        [("field-value", "turns[0].blocks[0].synthetic")],
    ),
    (
        "a turn that breaks a rule",
        lambda: stored(turns=[row({"type": "text", "text": ""})]),
        [("text-block-nonempty", "turns[0].blocks[0].text")],
    ),
    (
        "turns that break a rule",
        lambda: stored(turns=[HI, row({"type": "tool_result", "tool_use_id": "a"})]),
        [("tool-result-has-use", "turns[1].blocks[0].tool_use_id")],
    ),
    (
        "several faults",
        lambda: stored(system=[""], turns=[row(role="x"), row({"type": "text"})]),
        [
            ("system-empty", "system[0].text"),
            ("required-field", "turns[0].role"),
            ("required-field", "turns[1].blocks[0].text"),
        ],
    ),
]


@pytest.mark.parametrize(
    ("text", "faults"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS]
)
def test_every_fault_of_a_stored_text_is_named(
    text: Callable[[], str], faults: list[tuple[str, str]]
) -> None:
    with pytest.raises(ValidationError) as caught:
        loads(text())
    assert [(v.rule.id, v.path) for v in caught.value.violations] == faults


def test_a_newer_format_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValidationError) as caught:
        loads(stored(convmodel=FORMAT + 1))
    assert str(caught.value) == (
        "convmodel: format 2 where 1 is the newest known. Load it with a newer convmodel. [stored-format]"
    )


# ---------------------------------------------------------------- in classes of the user's own


@attrs.frozen
class Session:
    name: str
    convo: Conversation
    asked: AwaitingModel | None = None
    others: list[AwaitingUser | AwaitingTools] = attrs.field(factory=list)


@pytest.mark.parametrize("converter", [Converter(), Converter(detailed_validation=False), make_converter()])
def test_a_conversation_stands_in_a_class_of_the_users_own(converter: Converter) -> None:
    register(converter)
    answered = start("x").assistant("y")
    assert isinstance(answered, AwaitingUser)
    for session in (Session("a", everything()), Session("b", empty(), start("Hello."), [answered])):
        data = json.loads(json.dumps(converter.unstructure(session)))
        made = converter.structure(data, Session)
        assert made == session
        assert made.convo.digest == session.convo.digest
    assert converter.unstructure(Session("c", empty()))["asked"] is None


def test_what_is_no_stored_form_of_the_right_state_is_refused_with_its_rule() -> None:
    converter = Converter(detailed_validation=False)
    register(converter)
    data = converter.unstructure(Session("a", start("x")))
    for wrong, rule in (
        ({**data, "asked": converter.unstructure(empty())}, "conversation-state"),
        ({**data, "convo": {**data["convo"], "convmodel": FORMAT + 1}}, "stored-format"),
        ({**data, "convo": None}, "stored-format"),
    ):
        with pytest.raises(ValidationError) as caught:
            converter.structure(wrong, Session)
        assert [fault.rule.id for fault in caught.value.violations] == [rule]
