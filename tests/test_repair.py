"""What each pass of a repair does, and what it says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from convmodel import AssistantTurn, Origin, ToolResult, UserTurn
from convmodel.anthropic import Target, parse
from convmodel.cli import main
from convmodel.repair import Repaired, repair
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
INTERRUPTED = "The tool was interrupted before it gave a result. It may have had effects."
LOST = "The tool ran, but its result was lost."


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
                ("messages[1].content[0]", "turn-not-all-whitespace", "dropped"),
                ("messages[1]", "user-content-nonempty", "dropped"),
                ("messages[2].content[1].text", "text-block-nonempty", "dropped"),
            ],
            id="text that says nothing",
        ),
        pytest.param(
            [user("x"), model("y"), {"role": "system", "content": "s"}, user("z")],
            [user("x"), model("y"), user("z"), {"role": "system", "content": [text("s")]}],
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
    ],
)
def test_a_broken_history_is_mended(messages: list[Json], mended: list[Json], done: Any) -> None:
    made = repair(messages)
    assert made.unrepaired == ()
    assert made.messages == mended
    assert changes(made) == done
    again = repair(made.messages)
    assert (again.changes, again.messages) == ((), made.messages)


def test_a_result_that_was_made_is_marked_in_the_value_and_not_on_the_wire() -> None:
    made = repair([user("x"), model(call()), user("y"), model("z"), user("w")])
    assert made.conversation is not None
    assert made.messages is not None
    answer = made.conversation.turns[2]
    assert isinstance(answer, UserTurn)
    assert answer.results == (ToolResult("a", LOST, is_error=True, synthetic="lost"),)
    assert loads(dumps(made.conversation)) == made.conversation
    assert made.messages[2]["content"][0].keys() == {"type", "tool_use_id", "content", "is_error"}


def test_an_open_tail_is_left_at_rest_and_closed_to_be_sent() -> None:
    messages = [user("x"), model(call())]
    assert repair(messages).changes == ()
    closed = repair(messages, stage="send")
    assert changes(closed) == [("messages[1].content[0]", "tool-use-tail-open", "added")]
    assert closed.messages == [*messages, user(result("a", INTERRUPTED, is_error=True))]


def test_a_call_that_was_cut_is_dropped_and_in_a_signed_turn_answered() -> None:
    origins = {1: Origin(stop_reason="max_tokens")}
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
