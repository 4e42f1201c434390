"""Blocks: what a person would write, what is refused and where, and that nothing of them leaks or changes."""

from __future__ import annotations

import base64
import copy
import json
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import attrs
import pytest

import convmodel
from convmodel import (
    AssistantTurn,
    Base64ImageSource,
    Base64PDFSource,
    BashCodeExecutionToolResult,
    BrowserState,
    CitationCharLocation,
    CitationContentBlockLocation,
    CitationPageLocation,
    CitationsConfig,
    CitationSearchResultLocation,
    CitationWebSearchResultLocation,
    CodeExecutionToolResult,
    ContainerUpload,
    ContentBlockSource,
    DirectCaller,
    Document,
    FileDocumentSource,
    FileImageSource,
    Image,
    ImageTransformations,
    JsonObject,
    OpaqueBlock,
    Origin,
    PlainTextSource,
    Preamble,
    RedactedThinking,
    Reply,
    SearchResult,
    ServerToolCaller,
    ServerToolCaller20260120,
    ServerToolUse,
    SystemTurn,
    Text,
    TextEditorCodeExecutionToolResult,
    Thinking,
    Tool,
    ToolReference,
    ToolResult,
    ToolSearchToolResult,
    ToolUse,
    UnsignedThinking,
    URLImageSource,
    URLPDFSource,
    UserTurn,
    ValidationError,
    WebFetchToolResult,
    WebSearchToolResult,
    start,
)
from convmodel.anthropic import Target, to_messages
from convmodel.blocks import BLOCKS
from convmodel.cli import main
from convmodel.fields import fields_of
from convmodel.storage import dumps, loads

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mP8/x8AAwMCAO+aH1sAAAAASUVORK5CYII="
)
# Calls that are wrong on purpose go through this name, which type checkers do not judge.
untyped: Any = convmodel
SECRET = "hunter2"
# Base64 of the secret, as it would stand in data and signatures.
SECRET64 = base64.b64encode(b"\x89PNG\r\n\x1a\n" + SECRET.encode() * 4).decode()


def refused(act: Callable[[], object]) -> list[tuple[str, str]]:
    with pytest.raises(ValidationError) as caught:
        act()
    return [(v.rule.id, v.path) for v in caught.value.violations]


def found(**more: Any) -> dict[str, Any]:
    return {"type": "web_search_result", "title": SECRET, "url": SECRET, "encrypted_content": SECRET, **more}


RUN = {"stdout": SECRET, "stderr": SECRET, "return_code": 0, "content": []}
# One value of every public class, with a secret wherever a value of the world outside stands.
VALUES: list[Any] = [
    Text("Hello."),
    Thinking(SECRET, SECRET),
    RedactedThinking(SECRET),
    UnsignedThinking(SECRET),
    ToolUse("toolu_1", "look", {SECRET: SECRET}, caller=DirectCaller()),
    ToolResult("toolu_1", SECRET),
    ToolResult("toolu_1", [Text(SECRET), "more"], is_error=True, synthetic="lost"),
    ServerToolUse("srvtoolu_1", "web_search", {"query": SECRET}),
    WebSearchToolResult("srvtoolu_1", [found()]),
    WebSearchToolResult("srvtoolu_1", {"type": "web_search_tool_result_error", "error_code": SECRET}),
    WebFetchToolResult("srvtoolu_1", {"type": "web_fetch_tool_result_error", "error_code": SECRET}),
    CodeExecutionToolResult("srvtoolu_1", {"type": "code_execution_result", **RUN}),
    BashCodeExecutionToolResult("srvtoolu_1", {"type": "bash_code_execution_result", **RUN}),
    TextEditorCodeExecutionToolResult(
        "srvtoolu_1", {"type": "text_editor_code_execution_create_result", "is_file_update": True}
    ),
    ToolSearchToolResult("srvtoolu_1", {"type": "tool_search_tool_search_result", "tool_references": []}),
    Image(Base64ImageSource(SECRET64, "image/png")),
    Image(FileImageSource("file_1"), transformations=ImageTransformations("error")),
    Document(Base64PDFSource(SECRET64), title="Facts", context=SECRET, citations=CitationsConfig(True)),
    Document(PlainTextSource(SECRET)),
    Document(ContentBlockSource(SECRET)),
    Document(ContentBlockSource([SECRET, Image.from_url("https://example.org/a.png")])),
    Document(URLPDFSource("https://example.org/a.pdf")),
    Document(FileDocumentSource("file_1")),
    SearchResult("https://example.org", "T", [SECRET]),
    ContainerUpload("file_1"),
    OpaqueBlock({"type": "connector_text", "connector_text": SECRET}),
    ToolReference("look"),
    BrowserState([{"tab_id": "1", "title": SECRET, "url": SECRET}], [{"type": "tab_opened", "tab_id": "1"}]),
    CitationCharLocation(SECRET, 0, "Facts", 0, 3, file_id="file_1"),
    CitationPageLocation(SECRET, 0, None, 1, 2),
    CitationContentBlockLocation(SECRET, 0, None, 0, 1),
    CitationWebSearchResultLocation(SECRET, SECRET, None, "https://example.org"),
    CitationSearchResultLocation(SECRET, 0, "https://example.org", None, 0, 1),
    DirectCaller(),
    ServerToolCaller("srvtoolu_1"),
    ServerToolCaller20260120("srvtoolu_1"),
    URLImageSource("https://example.org/a.png"),
    Tool("look", {"description": SECRET}, description=SECRET),
    Origin(model="m"),
    Preamble((Text("Be brief."),), ()),
    JsonObject({SECRET: SECRET}),
    UserTurn([ToolResult("toolu_1", SECRET)]),
    AssistantTurn([Thinking(SECRET, SECRET), ToolUse("toolu_1", "look", {"a": SECRET})], Origin()),
    SystemTurn("Be brief."),
    Reply([ToolUse("toolu_1", "look", {"a": SECRET})]),
]


def name_of(value: Any) -> str:
    return type(value).__name__


each_value = pytest.mark.parametrize("value", VALUES, ids=name_of)


def test_every_public_value_class_is_among_the_values_of_these_tests() -> None:
    public = [getattr(convmodel, name) for name in convmodel.__all__]
    classes = {cls for cls in public if isinstance(cls, type) and attrs.has(cls)}
    other = {convmodel.Violation, convmodel.Interrupted, convmodel.Edit}
    assert classes - other <= {type(part) for value in VALUES for part in parts(value)}


# ---------------------------------------------------------------- masked


@each_value
def test_no_repr_shows_what_stands_inside(value: Any) -> None:
    for shown in (repr(value), str(value), f"{value}"):
        assert SECRET not in shown
        assert SECRET64[12:30] not in shown
        assert len(shown) < 250


def test_no_repr_of_a_conversation_shows_what_stands_inside() -> None:
    convo = start("Log in.").assistant(ToolUse("toolu_1", "login", {"password": SECRET}))
    for text in (repr(convo), repr(convo.turns), repr(convo.turns[-1]), str(convo)):
        assert SECRET not in text


LEAKS: list[tuple[str, Callable[[], object]]] = [
    ("a tool input", lambda: ToolUse("toolu_1", "look", {"a": [SECRET, float("nan")]})),
    ("a tool input as text", lambda: untyped.ToolUse("toolu_1", "look", SECRET)),
    ("a result", lambda: untyped.ToolResult("toolu_1", [SECRET, 5])),
    ("an error result", lambda: ToolResult("toolu_1", [SECRET, Image.from_bytes(PNG)], is_error=True)),
    ("base64", lambda: Base64ImageSource("data:" + SECRET, "image/png")),
    ("base64 of another type", lambda: Base64ImageSource(SECRET64, "image/jpeg")),
    ("bytes", lambda: Image.from_bytes(SECRET.encode())),
    ("a surrogate", lambda: Text(SECRET + "\ud83d")),
    ("a signature", lambda: untyped.Thinking("x", (SECRET,))),
    ("a server result", lambda: WebSearchToolResult("srvtoolu_1", [found(extra=SECRET)])),
    (
        "a value of a server result",
        lambda: CodeExecutionToolResult(
            "srvtoolu_1", {"type": "code_execution_result", **RUN, "return_code": SECRET}
        ),
    ),
    ("an opaque block", lambda: OpaqueBlock({"type": 5, "a": SECRET})),
    ("a browser state", lambda: BrowserState([{"tab_id": SECRET, "title": SECRET}])),
]


@pytest.mark.parametrize("act", [leak[1] for leak in LEAKS], ids=[leak[0] for leak in LEAKS])
def test_no_error_and_no_traceback_shows_what_stands_inside(act: Callable[[], object]) -> None:
    with pytest.raises(ValidationError) as caught:
        act()
    error = caught.value
    told = "".join(traceback.format_exception(None, error, None, chain=True))
    for text in (str(error), repr(error), repr(error.violations), told):
        assert SECRET not in text


@pytest.mark.parametrize("command", ["check", "show"])
def test_the_command_line_shows_nothing_that_stands_inside(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "login", "input": {"password": SECRET}}
    thought = {"type": "thinking", "thinking": SECRET, "signature": SECRET}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": SECRET64}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": SECRET}
    history = [
        {"role": "user", "content": "Log in."},
        {"role": "assistant", "content": [thought, call]},
        {"role": "user", "content": [result, image]},
    ]
    for messages in (history[:2], history):
        path = tmp_path / "history.json"
        path.write_text(json.dumps(messages), "utf-8")
        main([command, str(path)])
    out, err = capsys.readouterr()
    assert "login" in out or command == "check"
    assert SECRET not in out + err
    assert SECRET64[12:30] not in out + err


# ---------------------------------------------------------------- immutable


@each_value
def test_a_value_cannot_be_changed(value: Any) -> None:
    for field in attrs.fields(type(value)):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(value, field.name, None)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            delattr(value, field.name)
    with pytest.raises((attrs.exceptions.FrozenInstanceError, AttributeError)):
        value.anything = 1
    assert not hasattr(value, "__dict__")
    assert getattr(type(value), "__final__", False)


def parts(value: Any) -> Iterator[Any]:
    yield value
    if attrs.has(type(value)) and not isinstance(value, JsonObject):
        for field in attrs.fields(type(value)):
            yield from parts(getattr(value, field.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from parts(item)


@each_value
def test_a_value_holds_immutable_values_only(value: Any) -> None:
    for part in parts(value):
        assert isinstance(part, (str, int, bool, type(None), tuple, JsonObject)) or attrs.has(type(part))


@each_value
def test_equal_values_are_equal_have_one_hash_and_survive_pickle_and_copy(value: Any) -> None:
    for again in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
        assert again == value
        assert hash(again) == hash(value)
        assert type(again) is type(value)
    assert value != object()
    assert value != 5


@each_value
def test_evolve_gives_an_equal_value_and_checks_again(value: Any) -> None:
    if not isinstance(value, JsonObject):
        assert attrs.evolve(value) == value


def test_evolve_refuses_what_the_constructor_refuses() -> None:
    assert refused(lambda: attrs.evolve(ToolUse("toolu_1", "look", {}), id="a b")) == [
        ("tool-use-id-pattern", "id")
    ]
    assert refused(lambda: attrs.evolve(Thinking("x", "s"), signature="")) == [
        ("thinking-signature-valid", "signature")
    ]
    assert refused(lambda: attrs.evolve(UserTurn("hi"), blocks=())) == [("user-content-nonempty", "blocks")]
    assert refused(lambda: attrs.evolve(cast("Any", Text("hi")), text=5)) == [("field-type", "text")]


def test_what_was_passed_in_can_be_changed_afterwards() -> None:
    given: dict[str, Any] = {"a": [1]}
    blocks: list[Any] = [Text("hi")]
    result = [found()]
    call, turn, search = (
        ToolUse("toolu_1", "look", given),
        UserTurn(blocks),
        WebSearchToolResult("srvtoolu_1", result),
    )
    given["a"].append(2)
    blocks.append(Text("more"))
    result[0]["title"] = "other"
    result.clear()
    call.input["a"].append(3)
    assert call == ToolUse("toolu_1", "look", {"a": [1]})
    assert turn == UserTurn("hi")
    assert search == WebSearchToolResult("srvtoolu_1", [found()])


def test_payloads_share_nothing() -> None:
    convo = start("hi").assistant(ToolUse("toolu_1", "look", {"a": [1]}))
    one: Any = to_messages(convo)
    one[1]["content"][0]["input"]["a"].append(2)
    one[0]["content"].append("x")
    one.append(1)
    assert to_messages(convo)[1] == {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"a": [1]}}],
    }
    assert len(to_messages(convo)) == 2


def test_checks_hold_where_the_validators_of_attrs_are_switched_off() -> None:
    code = (
        "import attrs; attrs.validators.set_disabled(True)\n"
        "from convmodel import *\n"
        "def rule(act):\n"
        "    try: act()\n"
        "    except ValidationError as e: return e.violations[0].rule.id\n"
        "print([rule(lambda: Text(5)), rule(lambda: ToolUse('a b', 'x', {})), rule(lambda: UserTurn([])),\n"
        "       rule(lambda: ToolResult('a', synthetic='x')), rule(lambda: conversation([SystemTurn('x')]))])"
    )
    path = str(Path(convmodel.__file__).parent.parent)
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": path}
    )
    assert out.stdout.strip() == str(
        ["field-type", "tool-use-id-pattern", "user-content-nonempty", "field-value", "sysmsg-not-first"]
    )


# ---------------------------------------------------------------- what a person would write


def test_results_take_text_blocks_strings_iterables_and_nothing() -> None:
    call = ToolUse("toolu_1", "look", {}, toolset_name="browser")
    assert call.result() == ToolResult("toolu_1", toolset_name="browser")
    assert call.result("ok") == ToolResult("toolu_1", "ok", toolset_name="browser")
    assert call.result(["ok"]) == ToolResult("toolu_1", (Text("ok"),), toolset_name="browser")
    assert call.result(Text(t) for t in "ab") == ToolResult(
        "toolu_1", [Text("a"), Text("b")], toolset_name="browser"
    )
    assert call.result("no", is_error=True).is_error is True
    assert call.result([]).content == ()
    assert call.result("").content == ""


def test_blocks_take_iterables_where_they_hold_several() -> None:
    citation = CitationPageLocation("x", 0, None, 1, 2)
    assert Text("a", citations=(each for each in [citation])).citations == (citation,)
    assert SearchResult("s", "t", (word for word in ["a"])).content == (Text("a"),)
    assert ContentBlockSource(["a"]).content == (Text("a"),)
    assert BrowserState(iter([])).tabs == ()


def test_an_image_comes_from_bytes_a_path_or_an_address(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(PNG)
    source = Base64ImageSource(base64.b64encode(PNG).decode(), "image/png")
    assert Image.from_bytes(PNG) == Image.from_path(path) == Image.from_path(str(path)) == Image(source)
    path.unlink()
    assert Image.from_url("https://example.org/a.png") == Image(URLImageSource("https://example.org/a.png"))
    with pytest.raises(FileNotFoundError):
        Image.from_path(path)


@pytest.mark.parametrize(
    ("head", "media_type"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"GIF87a", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
    ],
)
def test_the_media_type_of_an_image_is_read_from_its_bytes(head: bytes, media_type: str) -> None:
    source = Image.from_bytes(head + bytes(20)).source
    assert isinstance(source, Base64ImageSource)
    assert source.media_type == media_type
    others = {"image/png", "image/jpeg", "image/gif", "image/webp"} - {media_type}
    faults = [refused(partial(untyped.Base64ImageSource, source.data, other)) for other in others]
    assert faults == [[("image-media-type-matches", "media_type")]] * 3


def test_what_is_no_image_is_refused() -> None:
    for data in (b"", b"<!DOCTYPE html>", b"%PDF-1.7", b"RIFF\x00\x00\x00\x00WAVE"):
        assert refused(partial(Image.from_bytes, data)) == [("image-decodable", "data")]


def test_a_programmatic_call_is_told_from_a_direct_one() -> None:
    assert not ToolUse("a", "f", {}).is_programmatic
    assert not ToolUse("a", "f", {}, caller=DirectCaller()).is_programmatic
    assert ToolUse("a", "f", {}, caller=ServerToolCaller("srvtoolu_1")).is_programmatic


# ---------------------------------------------------------------- refused, legal


BAD: list[tuple[str, Callable[[], object], list[tuple[str, str]]]] = [
    ("text of another type", lambda: untyped.Text(5), [("field-type", "text")]),
    ("text as bytes", lambda: untyped.Text(b"x"), [("field-type", "text")]),
    ("a surrogate", lambda: Text("\ud83d"), [("json-valid-utf8", "text")]),
    ("citations of another type", lambda: Text("x", citations=["x"]), [("field-type", "citations[0]")]),
    ("citations that are no list", lambda: untyped.Text("x", citations=5), [("field-type", "citations")]),
    (
        "a boolean as position",
        lambda: CitationCharLocation("x", True, None, 0, 1),
        [("field-type", "document_index")],
    ),
    (
        "a float as position",
        lambda: untyped.CitationCharLocation("x", 0.0, None, 0, 1),
        [("field-type", "document_index")],
    ),
    (
        "a position below 0",
        lambda: CitationCharLocation("x", -1, None, 0, 1),
        [("citation-fields", "document_index")],
    ),
    (
        "a call without name and with a bad id",
        lambda: ToolUse("a b", "", {}),
        [("tool-use-id-pattern", "id"), ("tool-use-name", "name")],
    ),
    ("an id that is no text", lambda: untyped.ToolUse(5, "f", {}), [("field-type", "id")]),
    (
        "an input of another type",
        lambda: untyped.ToolUse("a", "f", [1]),
        [("tool-use-input-object", "input")],
    ),
    (
        "a caller of another type",
        lambda: untyped.ToolUse("a", "f", {}, caller={"type": "direct"}),
        [("caller-shape", "caller")],
    ),
    (
        "a server id on a client call",
        lambda: ServerToolUse("toolu_1", "web_search", {}),
        [("server-id-pattern", "id")],
    ),
    (
        "an unknown server tool",
        lambda: untyped.ServerToolUse("srvtoolu_1", "browse", {}),
        [("server-name-enum", "name")],
    ),
    ("is_error as a number", lambda: untyped.ToolResult("a", is_error=1), [("field-type", "is_error")]),
    (
        "a result block of another type",
        lambda: untyped.ToolResult("a", [Thinking("x", "s")]),
        [("tool-result-content-types", "content[0]")],
    ),
    (
        "content of another type",
        lambda: untyped.ToolResult("a", 5),
        [("tool-result-content-types", "content")],
    ),
    ("an unknown mark", lambda: untyped.ToolResult("a", synthetic="x"), [("field-value", "synthetic")]),
    (
        "an image of another type",
        lambda: untyped.Base64ImageSource("iVBORw0KGgo=", "image/bmp"),
        [("image-media-type", "media_type")],
    ),
    ("a source of another type", lambda: untyped.Image("https://x"), [("field-type", "source")]),
    (
        "a key that the result does not have",
        lambda: WebSearchToolResult("srvtoolu_1", [found(), found(x=1)]),
        [("unknown-field-rejected", "content[1].x")],
    ),
    (
        "a result without a key",
        lambda: WebSearchToolResult("srvtoolu_1", [{"type": "web_search_result", "url": "u", "title": "t"}]),
        [("required-field", "content[0].encrypted_content")],
    ),
    (
        "a result without type",
        lambda: CodeExecutionToolResult("srvtoolu_1", {}),
        [("required-field", "content.type")],
    ),
    ("an opaque block without type", lambda: OpaqueBlock({}), [("required-field", "data.type")]),
    (
        "an opaque block of a known type",
        lambda: OpaqueBlock({"type": "text"}),
        [("field-value", "data.type")],
    ),
    ("an opaque block of another type", lambda: untyped.OpaqueBlock("text"), [("field-type", "data")]),
    ("an empty search result", lambda: SearchResult("s", "t", []), [("search-result-content", "content")]),
    ("a tool without schema", lambda: untyped.Tool("look", None), [("field-type", "input_schema")]),
    ("a tool's name", lambda: Tool("look it up", {}), [("tool-name", "name")]),
]


@pytest.mark.parametrize(("act", "faults"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_what_a_block_cannot_hold_is_refused_with_its_place(
    act: Callable[[], object], faults: list[tuple[str, str]]
) -> None:
    assert refused(act) == faults


def test_what_is_often_wrongly_refused_is_legal() -> None:
    legal = [
        Thinking("", "signature"),
        Text(""),
        Text(" "),
        ToolResult("a", ""),
        ToolResult("a", []),
        ToolResult("a", [Text("")]),
        ToolResult("a"),
        ToolUse("a", "n" * 200, {}),
        ToolUse("_-9", "name with spaces", {}),
        WebSearchToolResult("srvtoolu_1", []),
        WebSearchToolResult("srvtoolu_1", [{"type": "a_new_kind", "anything": 1}]),
        CodeExecutionToolResult("srvtoolu_1", {"type": "a_new_kind", "anything": 1}),
        WebFetchToolResult("srvtoolu_1", {"type": "web_fetch_tool_result_error", "error_code": "a_new_code"}),
        CitationCharLocation("", 0, None, 0, 0),
    ]
    assert len(legal) == 14


# ---------------------------------------------------------------- one declaration


@pytest.mark.parametrize("tag", BLOCKS)
def test_a_block_declares_where_it_stands_and_who_writes_each_field(tag: str) -> None:
    cls = BLOCKS[tag]
    assert cls.type == tag
    assert cls.roles <= {"user", "assistant", "system"}
    assert cls.misplaced in convmodel.RULES
    assert fields_of(cast("Any", cls))
    assert attrs.has(cls)


def test_a_file_object_is_read_once_and_never_kept() -> None:
    with Path(__file__).open("rb") as file:
        assert refused(lambda: untyped.Base64ImageSource(file, "image/png")) == [("field-type", "data")]
    convo = start(Image.from_bytes(PNG))
    assert to_messages(convo) == to_messages(convo) == to_messages(loads(dumps(convo)))
    assert to_messages(convo, Target(model="m")) == to_messages(convo)
