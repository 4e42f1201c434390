"""What each pass of a repair does, and what it says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast, get_args

import pytest

from convmodel import (
    AssistantTurn,
    Origin,
    RedactedThinking,
    Thinking,
    ToolResult,
    UnsignedThinking,
    UserTurn,
    ValidationError,
)
from convmodel.anthropic import Target, check, parse, to_messages
from convmodel.cli import main
from convmodel.repair import Defect, Policy, Repaired, repair
from convmodel.storage import dumps, loads

Json = dict[str, Any]


def user(*blocks: Json | str) -> Json:
    return {"role": "user", "content": [text(each) if isinstance(each, str) else each for each in blocks]}


def model(*blocks: Json | str) -> Json:
    return {
        "role": "assistant",
        "content": [text(each) if isinstance(each, str) else each for each in blocks],
    }


def text(said: str) -> Json:
    return {"type": "text", "text": said}


def call(id: str = "a", given: Any = None) -> Json:
    return {"type": "tool_use", "id": id, "name": "look", "input": {} if given is None else given}


def result(id: str = "a", said: Any = "ok", **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": id, "content": said, **more}


def thought(signature: str = "sig") -> Json:
    return {"type": "thinking", "thinking": "t", "signature": signature}


SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
HIT = {"type": "web_search_result", "url": "https://example.org", "title": "t"}
CITED = {
    "type": "web_search_result_location",
    "url": "https://example.org",
    "title": "t",
    "cited_text": "c",
    "encrypted_index": "e",
}
PNG = "iVBORw0KGgo="


def image(data: str) -> Json:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def without_text_lists(messages: list[Json]) -> list[Json]:
    """The messages with a string where one text is all that they hold."""
    return [
        {**each, "content": each["content"][0]["text"]}
        if isinstance(each["content"], list)
        and [block.keys() for block in each["content"]] == [{"type", "text"}]
        else each
        for each in messages
    ]


PICTURE = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
MEMBER = {**call(), "toolset_name": "browser"}
NO_TEXT = "The tool reported an error without a text."
INTERRUPTED = "The tool was interrupted before it gave a result. It may have had effects."
LOST = "The result was lost. The tool may have had effects."


def changes(made: Repaired) -> list[tuple[str, str, str]]:
    return [(change.path, change.rule.id, change.kind) for change in made.changes]


@pytest.mark.parametrize(
    ("messages", "mended", "done"),
    [
        pytest.param(
            [user("x"), model(call()), user("Stop.")],
            [user("x"), model(call()), user(result("a", INTERRUPTED, is_error=True), "Stop.")],
            [("messages[1].content[0]", "tool-use-answered-next", "added")],
            id="a call without a result",
        ),
        pytest.param(
            [user("x"), model(call()), model("y"), user("z")],
            [user("x"), model(call()), model("y"), user(result("a", INTERRUPTED, is_error=True), "z")],
            [("messages[1].content[0]", "tool-use-answered-next", "added")],
            id="a call that a later message of the model follows",
        ),
        pytest.param(
            [user("x"), model(call()), user("hm"), model("y"), user(result(), "z")],
            [user("x"), model(call()), user(result(), "hm"), model("y"), user("z")],
            [("messages[4].content[0]", "tool-use-answered-next", "moved")],
            id="a result that came late",
        ),
        pytest.param(
            [user(result(), "x")],
            [user("x")],
            [("messages[0].content[0]", "tool-result-has-use", "dropped")],
            id="a result without a call",
        ),
        pytest.param(
            [user("x"), model(call()), user(result(said="first"), result(said="second"))],
            [user("x"), model(call()), user(result(said="first"))],
            [("messages[2].content[1]", "tool-result-once", "dropped")],
            id="two results",
        ),
        pytest.param(
            [
                user("x"),
                model(call()),
                user(result(said="Tool run cancelled", is_error=True), result(said="real")),
            ],
            [user("x"), model(call()), user(result(said="real"))],
            [("messages[2].content[0]", "tool-result-once", "dropped")],
            id="a placeholder loses against a result",
        ),
        pytest.param(
            [user("x"), model(call()), user("y", result())],
            [user("x"), model(call()), user(result(), "y")],
            [("messages[2].content[1]", "tool-result-first", "moved")],
            id="text before a result",
        ),
        pytest.param(
            [user("x"), model(call("f:0"), call("f.0")), user(result("f:0"), result("f.0"))],
            [user("x"), model(call("f_0"), call("f_0_2")), user(result("f_0"), result("f_0_2"))],
            [
                ("messages[1].content[0].id", "tool-use-id-pattern", "renamed"),
                ("messages[1].content[1].id", "tool-use-id-pattern", "renamed"),
            ],
            id="illegal ids that would collide",
        ),
        pytest.param(
            [user("x"), model(call()), user(result()), model(call()), user(result(said="2"))],
            [user("x"), model(call()), user(result()), model(call("a_2")), user(result("a_2", "2"))],
            [("messages[3].content[0].id", "tool-use-id-unique", "renamed")],
            id="an id used again",
        ),
        pytest.param(
            [user("x"), model(call(given='{"p": 1}'), call("b", "[1")), user(result(), result("b"))],
            [
                user("x"),
                model(call(given={"p": 1}), call("b", {"INVALID_JSON": "[1"})),
                user(result(), result("b")),
            ],
            [
                ("messages[1].content[0].input", "tool-use-input-object", "rewritten"),
                ("messages[1].content[1].input", "tool-use-input-object", "rewritten"),
            ],
            id="inputs that are text",
        ),
        pytest.param(
            [user("x"), model(call()), user(result(said=[text("no"), PICTURE], is_error=True), "y")],
            [user("x"), model(call()), user(result(said=[text("no")], is_error=True), PICTURE, "y")],
            [("messages[2].content[0]", "tool-result-error-text-only", "moved")],
            id="a picture in an error result",
        ),
        pytest.param(
            [user("x"), model(call()), user(result(said=[text(" "), PICTURE], is_error=True))],
            [user("x"), model(call()), user(result(said=NO_TEXT, is_error=True), PICTURE)],
            [("messages[2].content[0]", "tool-result-error-text-only", "moved")],
            id="an error result of nothing but a picture",
        ),
        pytest.param(
            [user("x"), model(MEMBER), user(result(said="", is_error=True, toolset_name="browser"))],
            [user("x"), model(MEMBER), user(result(said=NO_TEXT, is_error=True, toolset_name="browser"))],
            [("messages[2].content[0]", "tool-result-error-toolset-nonempty", "rewritten")],
            id="an error result of a toolset without text",
        ),
        pytest.param(
            [user("x"), model(SEARCH, "y"), user("z")],
            [user("x"), model("y"), user("z")],
            [("messages[1].content[0]", "server-use-has-result", "dropped")],
            id="a server call without its result",
        ),
        pytest.param(
            [user("x"), model(FOUND, "y"), user("z")],
            [user("x"), model("y"), user("z")],
            [("messages[1].content[0]", "server-result-has-use", "dropped")],
            id="a server result without its call",
        ),
        pytest.param(
            [user("x"), model(thought(""), "y", thought()), user("z")],
            [user("x"), model("y"), user("z")],
            [
                ("messages[1].content[0]", "thinking-fields", "dropped"),
                ("messages[1].content[2]", "thinking-not-last", "dropped"),
            ],
            id="thinking without a signature, and at the end",
        ),
        pytest.param(
            [user("x"), model(" "), user("z", "")],
            [user("x"), user("z")],
            [
                ("messages[2].content[1].text", "text-block-nonempty", "dropped"),
                ("messages[1].content[0]", "turn-not-all-whitespace", "dropped"),
                ("messages[1]", "user-content-nonempty", "dropped"),
            ],
            id="text that says nothing",
        ),
        pytest.param(
            [user("x"), model("y"), {"role": "system", "content": "s"}, user("z")],
            [user("x"), model("y"), user("z"), {"role": "system", "content": "s"}],
            [("messages[2]", "sysmsg-after", "moved")],
            id="a system message in the wrong place",
        ),
        pytest.param(
            [user("a\ud83d")],
            [user("a\ufffd")],
            [("messages[0].content[0]", "json-valid-utf8", "rewritten")],
            id="half an emoji",
        ),
        pytest.param(
            [
                user("x"),
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "a", "function": {"name": "look", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "a", "content": "ok"},
            ],
            [user("x"), model(call()), user(result())],
            [
                ("messages[1].tool_calls", "unknown-field-rejected", "rewritten"),
                ("messages[2]", "unknown-field-rejected", "rewritten"),
                ("messages[1].tool_calls[0].input", "tool-use-input-object", "rewritten"),
            ],
            id="rows of another provider",
        ),
        pytest.param(
            [
                user("x"),
                {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
                {"role": "function", "name": "look", "content": "ok"},
            ],
            [user("x"), model(call("call")), user(result("call"))],
            [
                ("messages[1]", "unknown-field-rejected", "rewritten"),
                ("messages[1].tool_calls", "unknown-field-rejected", "rewritten"),
                ("messages[1].tool_calls[0].id", "field-type", "rewritten"),
                ("messages[2]", "unknown-field-rejected", "rewritten"),
                ("messages[2].content.tool_use_id", "field-type", "rewritten"),
                ("messages[1].tool_calls[0].input", "tool-use-input-object", "rewritten"),
                ("messages[1].tool_calls[0].id", "tool-use-id-pattern", "renamed"),
            ],
            id="calls of before there were ids",
        ),
        pytest.param(
            [
                {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
                {"type": "function_call", "id": "fc", "call_id": "a", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "a", "output": "ok"},
                {
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "y", "annotations": [{"url": "u"}]}],
                },
            ],
            [user("x"), model(call()), user(result()), model("y")],
            [
                ("messages[0].content[0]", "block-type-known", "rewritten"),
                ("messages[1]", "unknown-field-rejected", "rewritten"),
                ("messages[1].tool_calls", "unknown-field-rejected", "rewritten"),
                ("messages[2]", "unknown-field-rejected", "rewritten"),
                ("messages[3].content[0]", "block-type-known", "rewritten"),
                ("messages[1].tool_calls[0].input", "tool-use-input-object", "rewritten"),
            ],
            id="items of another provider",
        ),
        pytest.param(
            [{"role": "user", "content": text("x")}],
            [user("x")],
            [("messages[0].content", "content-type", "rewritten")],
            id="content that is one block",
        ),
        pytest.param(
            [user("x"), {"role": "assistant"}, user("y")],
            [user("x"), model(), user("y")],
            [("messages[1].content", "required-field", "added")],
            id="a message without content",
        ),
        pytest.param(
            [user("x"), model(call(cast("Any", 7))), user(result(cast("Any", 7)))],
            [user("x"), model(call("7")), user(result("7"))],
            [
                ("messages[1].content[0].id", "field-type", "rewritten"),
                ("messages[2].content[0].tool_use_id", "field-type", "rewritten"),
            ],
            id="ids that are numbers",
        ),
        pytest.param(
            [user("x", {"type": []}), model(call(cast("Any", [])), "y"), user("z", {"type": "tool_result"})],
            [user("x"), model(call("call"), "y"), user({"type": "tool_result", "tool_use_id": "call"}, "z")],
            [
                ("messages[0].content[1]", "block-type-known", "dropped"),
                ("messages[1].content[0].id", "field-type", "rewritten"),
                ("messages[2].content[1].tool_use_id", "field-type", "rewritten"),
                ("messages[1].content[0].id", "tool-use-id-pattern", "renamed"),
                ("messages[2].content[1]", "tool-result-first", "moved"),
            ],
            id="types and ids that are no text: one call and one result are a pair",
        ),
        *(
            pytest.param(
                [
                    user("x"),
                    model(call(id)),
                    user("y"),
                    model(call(id)),
                    user(result(id)),
                    model("z"),
                    user(result(id, "2"), "w"),
                ],
                [
                    user("x"),
                    model(call(one)),
                    user(result(one, "2"), "y"),
                    model(call(two)),
                    user(result(two)),
                    model("z"),
                    user("w"),
                ],
                [
                    *((f"messages[{at}].content[0].id", rule, "renamed") for at in renamed),
                    ("messages[6].content[0]", "tool-use-answered-next", "moved"),
                ],
                id=f"{what} used again: a result beside its call, and one that came late",
            )
            for id, one, two, rule, renamed, what in [
                ("a", "a", "a_2", "tool-use-id-unique", (3,), "an id"),
                ("f:0", "f_0", "f_0_2", "tool-use-id-pattern", (1, 3), "an illegal id"),
            ]
        ),
        *(
            pytest.param(
                [
                    user("x"),
                    model(call(id)),
                    user("y"),
                    model(call(id)),
                    user("z"),
                    model("w"),
                    user(result(id, "1")),
                    model("v"),
                    user(result(id, "2"), "u"),
                ],
                [
                    user("x"),
                    model(call(one)),
                    user(result(one, "1"), "y"),
                    model(call(two)),
                    user(result(two, "2"), "z"),
                    model("w"),
                    model("v"),
                    user("u"),
                ],
                [
                    *((f"messages[{at}].content[0].id", rule, "renamed") for at in renamed),
                    ("messages[6].content[0]", "tool-use-answered-next", "moved"),
                    ("messages[8].content[0]", "tool-use-answered-next", "moved"),
                    ("messages[6]", "user-content-nonempty", "dropped"),
                ],
                id=f"{what} used again: results that came late, each for the first call that waits",
            )
            for id, one, two, rule, renamed, what in [
                ("a", "a", "a_2", "tool-use-id-unique", (3,), "an id"),
                ("f:0", "f_0", "f_0_2", "tool-use-id-pattern", (1, 3), "an illegal id"),
            ]
        ),
        pytest.param(
            [user("x"), model(call(""), call("", {"n": 2})), user(result(""), "y")],
            [
                user("x"),
                model(call("call"), call("call_2", {"n": 2})),
                user(
                    result("call", INTERRUPTED, is_error=True),
                    result("call_2", INTERRUPTED, is_error=True),
                    "y",
                ),
            ],
            [
                ("messages[1].content[0].id", "tool-use-id-pattern", "renamed"),
                ("messages[1].content[1].id", "tool-use-id-pattern", "renamed"),
                ("messages[1].content[0]", "tool-use-answered-next", "added"),
                ("messages[1].content[1]", "tool-use-answered-next", "added"),
                ("messages[2].content[0]", "tool-result-has-use", "dropped"),
            ],
            id="two calls without an id and one result: which of them it answers, nothing says",
        ),
        pytest.param(
            [user("x"), model(call(""), call("", {"n": 2})), user(result(""), result("", "2"))],
            [
                user("x"),
                model(call("call"), call("call_2", {"n": 2})),
                user(result("call"), result("call_2", "2")),
            ],
            [
                ("messages[1].content[0].id", "tool-use-id-pattern", "renamed"),
                ("messages[1].content[1].id", "tool-use-id-pattern", "renamed"),
            ],
            id="as many results as calls without an id",
        ),
    ],
)
def test_a_broken_history_is_mended(messages: list[Json], mended: list[Json], done: Any) -> None:
    made = repair(messages)
    assert made.unrepaired == ()
    assert made.messages == mended
    assert changes(made) == done
    again = repair(made.messages)
    assert (again.changes, again.messages) == ((), made.messages)


ASKED = [user("x"), model(call())]


def answered(said: Any, **more: Any) -> list[Json]:
    return [*ASKED, user(result(said=said, **more))]


@pytest.mark.parametrize(
    ("messages", "mended", "done"),
    [
        pytest.param(
            [user({"type": "text", "text": None}, {"type": "text", "text": 5}), model("y")],
            [user("5"), model("y")],
            [
                ("messages[0].content[0].text", "field-type", "rewritten"),
                ("messages[0].content[1].text", "field-type", "rewritten"),
                ("messages[0].content[0].text", "text-block-nonempty", "dropped"),
            ],
            id="texts that are no text",
        ),
        pytest.param(
            answered({"rows": [1, 2.5]}),
            answered('{"rows": [1, 2.5]}'),
            [("messages[2].content[0].content", "tool-result-content-types", "rewritten")],
            id="a result that is an object",
        ),
        pytest.param(
            answered(text("ok")),
            answered([text("ok")]),
            [("messages[2].content[0].content", "tool-result-content-types", "rewritten")],
            id="a result that is one block",
        ),
        pytest.param(
            answered([True, "a", {"b": 1}]),
            answered([text("true"), text("a"), text('{"b": 1}')]),
            [
                ("messages[2].content[0].content[1]", "block-type-known", "rewritten"),
                ("messages[2].content[0].content[0]", "tool-result-content-types", "rewritten"),
                ("messages[2].content[0].content[2]", "tool-result-content-types", "rewritten"),
            ],
            id="a result of values that are no blocks",
        ),
        pytest.param(
            answered([call("b"), text("ok")]),
            answered([text("ok")]),
            [("messages[2].content[0].content[0]", "tool-result-content-types", "dropped")],
            id="a block that no result may hold",
        ),
        pytest.param(
            answered("no", is_error="true"),
            answered("no", is_error=True),
            [("messages[2].content[0].is_error", "field-type", "rewritten")],
            id="a flag that is text",
        ),
        pytest.param(
            answered("no", is_error="perhaps"),
            answered("no"),
            [("messages[2].content[0].is_error", "field-type", "dropped")],
            id="a flag that is none",
        ),
        pytest.param(
            answered([{"type": "image", "data": PNG, "mimeType": "image/png"}]),
            answered([image(PNG)]),
            [("messages[2].content[0].content[0]", "block-type-known", "rewritten")],
            id="an image of MCP",
        ),
        pytest.param(
            [user(image(f"data:image/png;base64,{PNG[:4]}\n{PNG[4:-1]}"))],
            [user(image(PNG))],
            [("messages[0].content[0]", "base64-valid", "rewritten")],
            id="base64 with a prefix and breaks and without padding",
        ),
        pytest.param(
            [user(image("?"), {"type": "document"}, "x")],
            [user("x")],
            [
                ("messages[0].content[0]", "base64-valid", "rewritten"),
                ("messages[0].content[0]", "base64-valid", "dropped"),
                ("messages[0].content[1]", "required-field", "dropped"),
            ],
            id="media that cannot be read",
        ),
        pytest.param(
            answered([image("?"), text("ok")]),
            answered([text("ok")]),
            [
                ("messages[2].content[0]", "base64-valid", "rewritten"),
                ("messages[2].content[0].content[0]", "base64-valid", "dropped"),
            ],
            id="media in a result that cannot be read",
        ),
        pytest.param(
            [user("x"), model({"type": "redacted_thinking"}, {"type": "thinking", "signature": "s"}, "y")],
            [user("x"), model("y")],
            [
                ("messages[1].content[0]", "required-field", "dropped"),
                ("messages[1].content[1]", "thinking-fields", "dropped"),
            ],
            id="thinking that storage has stripped",
        ),
        pytest.param(
            [user("x"), model(SEARCH, {**FOUND, "content": [HIT]}, {**text("y"), "citations": [CITED]})],
            [user("x"), model("y")],
            [
                ("messages[1].content[0]", "server-use-has-result", "dropped"),
                ("messages[1].content[1]", "required-field", "dropped"),
                ("messages[1].content[2].citations[0]", "server-result-has-use", "dropped"),
            ],
            id="a search result that storage has stripped, and what cites it",
        ),
        pytest.param(
            [user("x"), model({**text("y"), "citations": [{**CITED, "encrypted_index": None}]})],
            [user("x"), model("y")],
            [("messages[1].content[0].citations[0]", "field-type", "dropped")],
            id="a citation that storage has stripped",
        ),
        pytest.param(
            [user("x"), model({**SEARCH, "id": "call_1"}, {**FOUND, "tool_use_id": "call_1"}, "y")],
            [user("x"), model("y")],
            [
                ("messages[1].content[0]", "server-id-pattern", "dropped"),
                ("messages[1].content[1]", "server-id-pattern", "dropped"),
            ],
            id="a server call of another vendor",
        ),
        pytest.param(
            [user("x"), model({**SEARCH, "input": '{"query": "q"}'}, FOUND, "y")],
            [user("x"), model({**SEARCH, "input": {"query": "q"}}, FOUND, "y")],
            [("messages[1].content[0].input", "tool-use-input-object", "rewritten")],
            id="a server call whose input is text",
        ),
        pytest.param(
            [{"role": "human", "content": "x"}, {"role": "model", "parts": [{"text": "y"}]}],
            [user("x"), model("y")],
            [
                ("messages[0].role", "role-enum", "rewritten"),
                ("messages[1].role", "role-enum", "rewritten"),
                ("messages[1].parts", "unknown-field-rejected", "moved"),
                ("messages[1].content[0]", "block-type-known", "rewritten"),
            ],
            id="other names of the parties and of the content",
        ),
        pytest.param(
            [user({**text("x"), "cache_control": {"type": "ephemeral", "ttl": "2h"}})],
            [user("x")],
            [("messages[0].content[0].cache_control", "cache-control-shape", "dropped")],
            id="a marker of another shape",
        ),
    ],
)
def test_what_other_code_has_stored_is_read(messages: list[Json], mended: list[Json], done: Any) -> None:
    made = repair(messages)
    assert made.unrepaired == ()
    assert made.messages is not None
    assert without_text_lists(made.messages) == without_text_lists(mended)
    assert changes(made) == done
    assert check(made.messages) == ()
    assert repair(made.messages).changes == ()
    assert "rows" not in repr(made.changes)  # nothing that a tool returned is shown


def test_converse_takes_neither_blank_text_nor_long_ids_nor_errors_without_text() -> None:
    target, long = Target("claude-sonnet-4-5", platform="bedrock_converse"), "x" * 70
    history = [
        user("x", " "),
        model("\n", call(long), call(f"{long}y")),
        user(result(long, [text(""), text("ok")]), result(f"{long}y", "", is_error=True)),
    ]
    made = repair(history, target=target)
    assert made.messages is not None
    assert check(made.messages, target=target) == ()
    (_, asked, answer) = made.messages
    ids = [block["id"] for block in asked["content"]]
    assert len(set(ids)) == 2
    assert all(id.startswith("x" * 50) and len(id) <= 64 for id in ids)
    assert [block["tool_use_id"] for block in answer["content"]] == ids
    assert [block["content"] for block in answer["content"]] == [[text("ok")], NO_TEXT]
    assert {change.rule.id for change in made.changes} == {
        "bedrock-blank-text",
        "bedrock-error-result-nonempty",
        "bedrock-tool-id-len",
    }
    assert repair(history).changes == ()


def test_a_result_that_was_made_is_marked_in_the_value_and_not_on_the_wire() -> None:
    made = repair([user("x"), model(call()), user("y"), model("z"), user("w")])
    assert made.conversation is not None
    assert made.messages is not None
    answer = made.conversation.turns[2]
    assert isinstance(answer, UserTurn)
    assert answer.results == (ToolResult("a", LOST, is_error=True, synthetic="lost"),)
    assert loads(dumps(made.conversation)) == made.conversation
    assert made.messages[2]["content"][0].keys() == {"type", "tool_use_id", "content", "is_error"}


@pytest.mark.parametrize(
    ("stop_reason", "tail", "said"),
    [
        ("max_tokens", [user("y")], "not_run"),
        ("end_turn", [user("y"), model("z"), user("w")], "not_run"),
        ("tool_use", [user("y")], "interrupted"),
        ("tool_use", [user("y"), model("z"), user("w")], "lost"),
    ],
)
def test_a_result_that_was_made_says_what_is_known(stop_reason: str, tail: list[Json], said: str) -> None:
    made = repair([user("x"), model(thought(), call()), *tail], origins={1: Origin(stop_reason=stop_reason)})
    assert made.conversation is not None
    assert cast("ToolResult", made.conversation.turns[2].blocks[0]).synthetic == said


def test_a_whole_response_among_the_messages_says_where_it_came_from() -> None:
    answer = {
        **model("y", call()),
        "id": "msg_1",
        "type": "message",
        "model": "claude-opus-4-8",
        "stop_reason": "max_tokens",
        "usage": {},
    }
    made = repair([user("x"), answer, user("z")])
    assert made.messages == [user("x"), model("y"), user("z")]
    assert made.conversation is not None
    turn = made.conversation.turns[1]
    assert isinstance(turn, AssistantTurn)
    assert turn.origin == Origin(model="claude-opus-4-8", id="msg_1", stop_reason="max_tokens")


def reasoning(**fields: Any) -> list[Json]:
    return [user("x"), {"role": "assistant", "content": "y", **fields}, user("z")]


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"reasoning_content": "hm"}, [UnsignedThinking("hm")]),
        ({"reasoning": "hm"}, [UnsignedThinking("hm")]),
        ({"thinking_blocks": [thought()], "reasoning_content": "t"}, [Thinking("t", "sig")]),
        (
            {
                "reasoning": "again",
                "reasoning_details": [
                    {"type": "reasoning.text", "text": "a", "index": 0, "format": "anthropic-claude-v1"},
                    {"type": "reasoning.text", "text": "b", "index": 0, "format": "anthropic-claude-v1"},
                    {
                        "type": "reasoning.text",
                        "signature": "sig",
                        "index": 0,
                        "format": "anthropic-claude-v1",
                    },
                ],
            },
            [UnsignedThinking("a"), UnsignedThinking("b")],
        ),
        (
            {
                "reasoning_details": [
                    {
                        "type": "reasoning.encrypted",
                        "data": "d",
                        "index": 0,
                        "format": "anthropic-claude-v1",
                    },
                    {"type": "reasoning.summary", "summary": "s", "index": 1, "format": "openai-v1"},
                ]
            },
            [RedactedThinking("d")],
        ),
    ],
)
def test_thinking_beside_the_content_is_read_and_only_what_is_signed_is_sent(
    fields: Json, kept: list[Any]
) -> None:
    if "reasoning_details" in fields and len(kept) == 2:
        kept = [Thinking("ab", "sig")]  # the pieces of one index are one block
    made = repair(reasoning(**fields))
    assert made.conversation is not None
    assert list(made.conversation.turns[1].blocks[:-1]) == kept
    assert made.messages == to_messages(made.conversation)


def test_thinking_of_another_vendor_stays_in_the_conversation() -> None:
    origins = {1: Origin(vendor="deepseek")}
    made = repair(
        [user("x"), model(thought("theirs"), thought(""), "y"), user("z")],
        origins=origins,
        target=Target("claude-opus-4-8"),
    )
    assert made.messages == [user("x"), model("y"), user("z")]
    assert [change[:2] for change in changes(made)] == [
        ("messages[1].content[0]", "third-party-unsigned-thinking"),
        ("messages[1].content[1]", "third-party-unsigned-thinking"),
    ]
    assert made.conversation is not None
    assert made.conversation.turns[1].blocks[:2] == (Thinking("t", "theirs"), UnsignedThinking("t"))
    back = to_messages(made.conversation, Target("deepseek-chat", platform="deepseek"))
    assert [block["type"] for block in cast("Any", back[1]["content"])] == ["thinking", "thinking", "text"]


def test_an_untouched_message_comes_back_as_it_was_given() -> None:
    plain = {"role": "user", "content": "x"}
    marked = {"role": "assistant", "content": [{**text("y"), "cache_control": {"type": "ephemeral"}}]}
    made = repair([plain, marked, user(""), user("z")])
    assert made.messages == [plain, marked, user("z")]
    assert made.sources == (0, 1, 3)


def test_markers_that_are_too_many_are_taken_out() -> None:
    marked = {**text("y"), "cache_control": {"type": "ephemeral"}}
    made = repair([user("x"), model(marked, marked, marked, marked, marked), user("z")])
    assert made.messages == [user("x"), model("y", "y", "y", "y", "y"), user("z")]
    assert {change.rule.id for change in made.changes} == {"cache-max-4"}


def test_a_body_is_read_whole() -> None:
    made = repair({"system": "s", "messages": [user("x"), user("")]})
    assert (made.messages, made.system) == ([user("x")], "s")
    assert repair("3").unrepaired[0].rule == "content-type"
    assert repair({"messages": 3}).messages is None


# ---------------------------------------------------------------- policies

DEFECTS: dict[str, list[Json]] = {
    "fields": [{**user("x"), "y": 1}],
    "blocks": [user("x", {"type": "nonsense"})],
    "values": [user("x"), model(call(given="{}")), user(result())],
    "ids": [user("x"), model(call("a:b")), user(result("a:b"))],
    "missing_results": [user("x"), model("m", call()), user("y")],
    "extra_results": [user(result(), "y")],
    "order": [user("x"), model(call()), user("y", result())],
    "cut_calls": [
        user("x"),
        {**model("m", call()), "type": "message", "stop_reason": "max_tokens"},
        user("y"),
    ],
    "thinking": [user("x"), model(thought(""), "m"), user("y")],
    "server_tools": [user("x"), model(SEARCH, "y"), user("z")],
    "texts": [user("x", "")],
}


@pytest.mark.parametrize(("defect", "action"), [(d, a) for d, each in Policy.actions().items() for a in each])
def test_each_kind_of_defect_has_a_policy(defect: str, action: str) -> None:
    messages = DEFECTS[defect]
    made = repair(messages, policy=Policy(**cast("Any", {defect: action})))
    if action == "refuse":
        assert made.messages is None
        assert made.changes == ()
        assert made.unrepaired == check(messages)
        assert {change.defect for change in made.refused} == {defect}
        return
    assert made.unrepaired == ()
    assert made.messages is not None
    assert check(made.messages) == ()
    found = {change.defect for change in made.changes}
    assert found == ({"missing_results", "fields"} if (defect, action) == ("cut_calls", "answer") else found)
    assert defect in found or action == "answer"


def test_a_policy_that_refuses_all_is_a_check() -> None:
    for messages in DEFECTS.values():
        made = repair(messages, policy=Policy.refuse_all())
        assert (made.messages, made.changes, made.unrepaired) == (None, (), check(messages))
        assert made.refused
    assert repair([user("x")], policy=Policy.refuse_all()).messages == [user("x")]


def test_a_call_without_a_result_is_dropped_if_the_policy_says_so_and_no_signature_stands_beside_it() -> None:
    drop = Policy(missing_results="drop")
    made = repair([user("x"), model("m", call()), user("y")], policy=drop)
    assert made.messages == [user("x"), model("m"), user("y")]
    signed = repair([user("x"), model(thought(), call()), user("y")], policy=drop)
    assert signed.messages is not None
    assert signed.messages[2]["content"][0]["is_error"] is True
    assert repair([user("x"), model("m", call())], policy=drop).changes == ()


def test_a_change_names_its_kind_of_defect_as_the_policy_does() -> None:
    assert get_args(Defect) == tuple(Policy.actions()) == tuple(DEFECTS)


def test_a_policy_says_which_actions_there_are() -> None:
    with pytest.raises(ValidationError) as caught:
        Policy(ids=cast("Any", "drop"), order=cast("Any", None))
    assert [(fault.rule.id, fault.path) for fault in caught.value.violations] == [
        ("field-value", "ids"),
        ("field-value", "order"),
    ]


def test_a_change_shows_what_stood_there_without_values() -> None:
    made = repair(
        [user("x"), model(call(given='{"password": "hunter2"}')), user(result(said="s3cret"), "", "y")]
    )
    shown = [(change.before, change.after) for change in made.changes]
    assert shown == [("a str", "tool_use a look (password)"), ("''", "")]
    assert "hunter2" not in repr(made.changes)


# ---------------------------------------------------------------- bound thinking


@pytest.mark.parametrize(
    ("messages", "kept"),
    [
        # an empty text of the user's was never sent: what stands before the second thought has changed
        ([user("x"), model(thought("1"), "a"), user("y", ""), model(thought("2"), "b"), user("z")], ["1"]),
        # the last user turn stands behind all thinking
        (
            [user("x"), model(thought("1"), "a"), user("y"), model(thought("2"), "b"), user("z", "")],
            ["1", "2"],
        ),
        # a thought in the middle is lost, so what stands behind it has another prefix
        (
            [
                user("x"),
                model(thought("1"), "a"),
                user("y"),
                model("b", thought("2")),
                user("z"),
                model(thought("3"), "c"),
            ],
            ["1"],
        ),
        # the oldest may go
        ([user("x"), model("a", thought("1")), user("y"), model(thought("2"), "b")], ["2"]),
        # a field that only responses have was not there for the service
        (
            [user("x"), model({**text("a"), "parsed_output": None}), user("y"), model(thought("2"), "b")],
            ["2"],
        ),
    ],
)
def test_a_repair_drops_the_thinking_that_it_voids(messages: list[Json], kept: list[str]) -> None:
    def signatures(history: Any) -> list[str]:
        return [b["signature"] for m in history for b in m["content"] if b["type"] == "thinking"]

    made = repair(messages, target=Target("claude-opus-5-5"))
    assert made.unrepaired == ()
    assert signatures(made.messages) == kept
    free = repair(messages, target=Target("claude-opus-4-8"))
    lost = {"thinking-prefix-bound"}
    named = [change for change in made.changes if change.rule in lost]
    assert len(named) == len(signatures(free.messages)) - len(kept)


def test_an_open_tail_is_left_at_rest_and_closed_to_be_sent() -> None:
    messages = [user("x"), model(call())]
    assert repair(messages).changes == ()
    closed = repair(messages, stage="send")
    assert changes(closed) == [("messages[1].content[0]", "tool-use-tail-open", "added")]
    assert closed.messages == [*messages, user(result("a", INTERRUPTED, is_error=True))]


@pytest.mark.parametrize(
    ("tail", "left", "named"),
    [
        ([model("a ")], [model("a")], [("messages[1].content[0]", "rewritten")]),
        ([model("a "), model()], [model("a"), model()], [("messages[1].content[0]", "rewritten")]),
        (
            [model("a ", " ")],
            [model("a")],
            [("messages[1].content[1]", "dropped"), ("messages[1].content[0]", "rewritten")],
        ),
        ([model(thought(), "a"), model()], [model("a"), model()], [("messages[1].content[0]", "dropped")]),
    ],
)
def test_the_assistant_turns_at_the_end_are_one_prefill(
    tail: list[Json], left: list[Json], named: list[tuple[str, str]]
) -> None:
    target, messages = Target("claude-sonnet-4-5"), [user("x"), *tail]
    made = repair(messages, target=target, stage="send")
    rules = {"final-assistant-trailing-whitespace", "thinking-off-final-turn"}
    assert {found.rule.id for found in check(messages, target=target, stage="send")} <= rules
    assert made.messages == [user("x"), *left]
    assert [(path, action) for path, rule, action in changes(made) if rule in rules] == named
    assert check(made.messages, target=target, stage="send") == ()


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded", "refusal"])
def test_a_call_that_was_cut_is_dropped_and_in_a_signed_turn_answered(reason: str) -> None:
    origins = {1: Origin(stop_reason=reason)}
    plain = repair([user("x"), model("y", call()), user("z")], origins=origins)
    assert plain.messages == [user("x"), model("y"), user("z")]
    signed = repair([user("x"), model(thought(), call()), user("z")], origins=origins)
    assert signed.messages is not None
    assert signed.messages[1] == model(thought(), call())
    assert isinstance(signed.conversation and signed.conversation.turns[1], AssistantTurn)


def test_thinking_that_a_changed_prefix_has_voided_is_dropped_and_all_behind_it() -> None:
    target = Target("claude-opus-5-5", thinking={"type": "adaptive"})
    old = parse([user("Old words.")]).binding
    messages = [user("x"), model(thought(), "a"), user("y"), model(thought(), "b"), user("z")]
    made = repair(messages, target=target, origins={1: Origin(prefix=old)})
    assert made.messages == [user("x"), model("a"), user("y"), model("b"), user("z")]
    assert [change[1] for change in changes(made)] == ["thinking-prefix-bound"] * 2


def test_what_would_have_to_be_invented_is_refused() -> None:
    manual = Target("claude-sonnet-4-5", thinking={"type": "enabled", "budget_tokens": 1024})
    made = repair([user("x"), model(call()), user(result())], target=manual)
    assert made.messages is None
    assert made.conversation is None
    assert [violation.rule.id for violation in made.unrepaired] == ["thinking-first-when-manual"]


def test_system_messages_at_the_front_join_the_system_prompt() -> None:
    made = repair([{"role": "system", "content": "b"}, user("x")], system="a")
    assert made.system == [text("a"), text("b")]
    assert made.messages == [user("x")]


def test_the_command_mends_a_file_in_its_own_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, out = tmp_path / "broken.jsonl", tmp_path / "out.jsonl"
    broken.write_text("".join(json.dumps(row) + "\n" for row in [user("x"), model(call()), user("y")]))
    before = broken.read_bytes()
    assert main(["repair", str(broken), "-o", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [row["rule"] for row in printed["changes"]] == ["tool-use-answered-next"]
    assert [json.loads(line) for line in out.read_text().splitlines()] == printed["messages"]
    assert broken.read_bytes() == before
    assert main(["check", str(out)]) == 0
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"model": "claude-opus-4-8", "tools": [], "messages": [user("x"), user("")]}))
    assert main(["repair", str(body), "-o", str(out)]) == 0
    assert json.loads(out.read_text()) == {"model": "claude-opus-4-8", "tools": [], "messages": [user("x")]}
    assert main(["repair", str(tmp_path / "none.json")]) == 2


def test_what_json_cannot_hold_is_not_lost_silently() -> None:
    made = repair([user("x"), model(call(given={"n": float("nan")})), user(result())])
    assert made.messages is None
    assert [(fault.rule.id, fault.path) for fault in made.unrepaired] == [
        ("json-value", "messages[1].content[0].input.n")
    ]


def test_a_null_inside_a_servers_result_is_left_out_and_said() -> None:
    found = {
        **FOUND,
        "content": {"type": "web_search_tool_result_error", "error_code": "unavailable", "id": None},
    }
    made = repair([user("x"), model(SEARCH, found, "y"), user("z")])
    assert made.messages is not None
    assert check(made.messages) == ()
    assert changes(made) == [("messages[1].content[1].content", "unknown-field-rejected", "dropped")]


def test_an_input_that_json_cannot_hold_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for given in (endless, 10**5000, {"n": 10**5000}):
        made = repair([user("x"), model(call(given=given)), user(result())])
        assert made.messages is None
        assert {fault.path.partition("input")[1] for fault in made.unrepaired} == {"input"}


def test_a_result_in_a_message_of_the_model_is_moved_to_the_users_side() -> None:
    made = repair([user("x"), model(call(), result(said="real"), "y"), user("z")])
    assert made.messages == [user("x"), model(call(), "y"), user(result(said="real")), user("z")]
    assert changes(made) == [("messages[1].content[1]", "role-blocks-tool-result", "moved")]


def test_a_result_echoes_the_toolset_of_its_call() -> None:
    browse = {**call(), "toolset_name": "browser"}
    made = repair([user("x"), model(browse), user(result())])
    assert made.messages == [user("x"), model(browse), user(result(toolset_name="browser"))]
    assert changes(made) == [("messages[2].content[0].toolset_name", "toolset-name-echo", "rewritten")]


def test_an_empty_text_beside_results_does_not_end_the_turn() -> None:
    made = repair([user("x"), model(SEARCH, call()), user(result(), ""), model(FOUND, "y")])
    assert made.messages == [user("x"), model(SEARCH, call()), user(result()), model(FOUND, "y")]


def test_citations_on_the_users_side_are_left_out_where_they_may_not_stand() -> None:
    cited = {
        **text("y"),
        "citations": [
            {
                "type": "char_location",
                "cited_text": "y",
                "document_index": 0,
                "document_title": None,
                "start_char_index": 0,
                "end_char_index": 1,
            }
        ],
    }
    made = repair([user("x", cited), model("z")], target=Target("claude-opus-4-8"))
    assert made.messages == [user("x", "y"), model("z")]
    assert repair([user("x", cited)]).changes == ()


def test_a_system_message_that_becomes_the_first_joins_the_system_prompt() -> None:
    made = repair([user(""), {"role": "system", "content": "s"}, model("y")])
    assert (made.messages, made.system) == ([model("y")], [text("s")])


@pytest.mark.parametrize(
    ("field", "value", "lost"),
    [
        ("tool_calls", None, ""),
        ("tool_calls", {"x": 1}, "`tool_calls`"),
        ("tool_call_id", "a", "`tool_call_id`"),
        ("reasoning_content", None, ""),
        ("thinking_blocks", [], ""),
        ("reasoning", 3, "`reasoning`"),
    ],
)
def test_a_field_of_other_rows_that_says_nothing_is_left_out(field: str, value: Any, lost: str) -> None:
    made = repair([user("x"), {**model("y"), field: value}, user("z")])
    assert made.messages == [user("x"), model("y"), user("z")]
    assert [(change.path, change.lost) for change in made.changes] == [(f"messages[1].{field}", lost)]


def test_an_error_of_a_tool_is_no_placeholder() -> None:
    real = result(said="psql: role is missing; dropped 3 tables", is_error=True)
    made = repair([user("x"), model(call()), user(real), model("k"), user(result(said="late"))])
    assert made.messages == [user("x"), model(call()), user(real), model("k")]
    assert [change.lost for change in made.changes if change.kind == "dropped"] == ["a result", ""]
    other = result(said="Tool call was cancelled by the user.", is_error=True)
    made = repair([user("x"), model(call()), user(other, result(said="real"))])
    assert made.messages == [user("x"), model(call()), user(result(said="real"))]
    assert made.changes[0].lost == "a result"


def test_what_an_unknown_party_has_said_is_not_thrown_away() -> None:
    made = repair([{"role": "narrator", "content": "Words."}, user("")])
    assert made.messages is None
    assert [(fault.rule.id, fault.path) for fault in made.unrepaired] == [("role-enum", "messages[0].role")]


def test_what_a_tool_row_holds_is_kept_as_text() -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "look"}}]}
    for content, said in (({"r": 1}, '{"r": 1}'), (42, "42"), (None, "")):
        made = repair([user("x"), called, {"role": "tool", "tool_call_id": "a", "content": content}])
        assert made.messages is not None
        assert made.messages[2] == user(result(said=said))


def test_the_parts_of_a_tool_row_are_read_like_those_of_a_message() -> None:
    calls = ({"id": "a", "function": {"name": "look"}},)
    image = {"type": "image", "source": {"type": "url", "url": "https://a.test/b.png"}}
    parts = [
        {"type": "input_text", "text": "x"},
        {"type": "input_image", "image_url": "https://a.test/b.png"},
    ]
    rows = [
        user("x"),
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": parts},
    ]
    made = repair(rows)
    assert made.messages == [user("x"), model(call()), user(result(said=[text("x"), image]))]


def test_a_repeated_key_is_not_chosen_from() -> None:
    made = repair('[{"role":"user","content":"A","content":"B"}]')
    assert (made.messages, [fault.rule.id for fault in made.unrepaired]) == (None, ["json-value"])
    given = '{"a":1,"a":2}'
    held = repair([user("x"), model(call(given=given)), user(result())])
    assert held.messages is not None
    assert held.messages[1]["content"][0]["input"] == {"INVALID_JSON": given}
