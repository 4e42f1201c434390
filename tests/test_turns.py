"""Turns, origins and replies: what each may hold, in which order, and what a person would write."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

import convmodel
from convmodel import (
    AssistantTurn,
    ContainerUpload,
    Document,
    Image,
    OpaqueBlock,
    Origin,
    PlainTextSource,
    RedactedThinking,
    Reply,
    SearchResult,
    ServerToolUse,
    SystemTurn,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    UnsignedThinking,
    UserTurn,
    ValidationError,
    Violation,
    WebSearchToolResult,
)
from convmodel.blocks import BLOCKS

Faults = list[tuple[str, str]]
# Calls that are wrong on purpose go through this name, which type checkers do not judge.
untyped: Any = convmodel
IMAGE = Image.from_url("https://example.org/a.png")
DOCUMENT = Document(PlainTextSource("The sky is blue."))
THOUGHT = Thinking("I look.", "c2ln")
CALL = ToolUse("toolu_1", "look", {})
RESULT = CALL.result("ok")
BLOCK_OF: dict[str, Any] = {
    "text": Text("hi"),
    "image": IMAGE,
    "document": DOCUMENT,
    "search_result": SearchResult("s", "t", ["a"]),
    "container_upload": ContainerUpload("file_1"),
    "thinking": THOUGHT,
    "redacted_thinking": RedactedThinking("eA=="),
    "unsigned_thinking": UnsignedThinking("hm"),
    "tool_use": CALL,
    "tool_result": RESULT,
    "server_tool_use": ServerToolUse("srvtoolu_1", "web_search", {}),
    "web_search_tool_result": WebSearchToolResult("srvtoolu_1", []),
    "connector_text": OpaqueBlock({"type": "connector_text"}),
}
TURN: dict[str, Callable[[Any], Any]] = {"user": UserTurn, "assistant": AssistantTurn, "system": SystemTurn}
# Block type: for each party, None where it may stand, else the rule under which it is refused.
PLACES: dict[str, tuple[str | None, str | None, str | None]] = {
    "text": (None, None, None),
    "image": (None, "role-blocks-image", "sysmsg-blocks"),
    "document": (None, None, "sysmsg-blocks"),
    "search_result": (None, "role-blocks-search-result", "sysmsg-blocks"),
    "container_upload": (None, None, "sysmsg-blocks"),
    "thinking": ("role-blocks-thinking", None, "sysmsg-blocks"),
    "redacted_thinking": ("role-blocks-thinking", None, "sysmsg-blocks"),
    "unsigned_thinking": ("role-blocks-thinking", None, "sysmsg-blocks"),
    "tool_use": ("role-blocks-tool-use", None, "sysmsg-blocks"),
    "tool_result": (None, "role-blocks-tool-result", "sysmsg-blocks"),
    "server_tool_use": ("role-blocks-server-tools", None, "sysmsg-blocks"),
    "web_search_tool_result": ("role-blocks-server-tools", None, "sysmsg-blocks"),
    "connector_text": ("block-type-known", None, "sysmsg-blocks"),
}


def refused(act: Callable[[], object]) -> Faults:
    with pytest.raises(ValidationError) as caught:
        act()
    return [(v.rule.id, v.path) for v in caught.value.violations]


@pytest.mark.parametrize("role", TURN)
@pytest.mark.parametrize("kind", PLACES)
def test_each_block_stands_where_the_api_lets_it_and_nowhere_else(kind: str, role: str) -> None:
    rule = PLACES[kind][list(TURN).index(role)]
    blocks = [BLOCK_OF[kind], Text("more")]
    if rule is None:
        assert TURN[role](blocks).blocks == tuple(blocks)
    else:
        assert refused(lambda: TURN[role](blocks)) == [(rule, "blocks[0]")]


def test_the_table_of_places_has_every_block_but_the_other_results_of_server_tools() -> None:
    rest = BLOCKS.keys() - PLACES.keys()
    assert all(tag.endswith("_tool_result") for tag in rest)
    assert {BLOCKS[tag].misplaced for tag in rest} == {"role-blocks-server-tools"}
    assert {BLOCKS[tag].roles for tag in rest} == {frozenset({"assistant"})}


# ---------------------------------------------------------------- what a person would write


@pytest.mark.parametrize("role", TURN)
def test_turns_take_a_string_strings_blocks_and_any_iterable(role: str) -> None:
    def words() -> Iterator[str | Text]:
        yield "a"
        yield Text("b")

    turn = TURN[role]
    assert turn("a").blocks == (Text("a"),)
    assert turn(["a", Text("b")]) == turn(("a", "b")) == turn(words())
    assert turn(words()).text == "ab"
    assert turn("a").role == role


@pytest.mark.parametrize("role", TURN)
@pytest.mark.parametrize("given", [None, 5, b"a", {"type": "text", "text": "a"}], ids=repr)
def test_turns_refuse_what_is_no_list_of_blocks(role: str, given: object) -> None:
    assert refused(lambda: TURN[role](given)) == [("content-type", "blocks")]


@pytest.mark.parametrize("role", TURN)
def test_turns_name_each_thing_among_their_blocks_that_is_no_block(role: str) -> None:
    given = [Text("a"), {"type": "text", "text": "a"}, None, [Text("b")]]
    assert refused(lambda: TURN[role](given)) == [("block-type-known", f"blocks[{at}]") for at in (1, 2, 3)]


# ---------------------------------------------------------------- rules of one turn

BAD: list[tuple[str, Callable[[], object], Faults]] = [
    ("a user turn without content", lambda: UserTurn([]), [("user-content-nonempty", "blocks")]),
    ("a user turn of empty text", lambda: UserTurn(""), [("text-block-nonempty", "blocks[0].text")]),
    ("a system turn without content", lambda: SystemTurn([]), [("sysmsg-nonempty", "blocks")]),
    ("only whitespace", lambda: UserTurn([" ", "\n"]), [("turn-not-all-whitespace", "blocks[0]")]),
    (
        "an assistant turn of whitespace",
        lambda: AssistantTurn(" "),
        [("turn-not-all-whitespace", "blocks[0]")],
    ),
    ("empty text", lambda: AssistantTurn(["a", "", CALL]), [("text-block-nonempty", "blocks[1].text")]),
    ("thinking last", lambda: AssistantTurn(["a", THOUGHT]), [("thinking-not-last", "blocks[1]")]),
    ("thinking alone", lambda: AssistantTurn([THOUGHT]), [("thinking-not-last", "blocks[0]")]),
    (
        "signed thinking before unsigned",
        lambda: AssistantTurn([THOUGHT, UnsignedThinking("x")]),
        [("thinking-not-last", "blocks[0]")],
    ),
    ("one id twice", lambda: AssistantTurn([CALL, CALL]), [("tool-use-id-unique", "blocks[1].id")]),
    ("one result twice", lambda: UserTurn([RESULT, RESULT]), [("tool-result-once", "blocks[1]")]),
    ("a result after text", lambda: UserTurn(["a", RESULT]), [("tool-result-first", "blocks[1]")]),
    (
        "results around text",
        lambda: UserTurn([RESULT, "a", ToolResult("toolu_2")]),
        [("tool-result-first", "blocks[2]")],
    ),
    (
        "several faults",
        lambda: untyped.UserTurn(["", THOUGHT, "a", RESULT, RESULT]),
        [
            ("text-block-nonempty", "blocks[0].text"),
            ("role-blocks-thinking", "blocks[1]"),
            ("tool-result-first", "blocks[3]"),
            ("tool-result-once", "blocks[4]"),
        ],
    ),
    (
        "an origin of another type",
        lambda: untyped.AssistantTurn("a", {"model": "m"}),
        [("field-type", "origin")],
    ),
    (
        "a reply block of another type",
        lambda: untyped.Reply([Text("a"), 5]),
        [("block-type-known", "blocks[1]")],
    ),
    ("a reply's origin of another type", lambda: untyped.Reply([], "m"), [("field-type", "origin")]),
    ("an origin's field of another type", lambda: untyped.Origin(model=5), [("field-type", "model")]),
    ("an origin without vendor", lambda: Origin(vendor=""), [("field-type", "vendor")]),
]


@pytest.mark.parametrize(("act", "faults"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_what_a_turn_cannot_hold_is_refused_with_its_place(act: Callable[[], object], faults: Faults) -> None:
    assert refused(act) == faults


def test_what_is_often_wrongly_refused_is_legal() -> None:
    legal = [
        AssistantTurn([]),
        AssistantTurn([CALL, "text after a call"]),
        AssistantTurn([Thinking("", "s"), "a"]),
        AssistantTurn(["a", THOUGHT, "b", THOUGHT, CALL]),
        AssistantTurn([" ", CALL]),
        AssistantTurn([UnsignedThinking("hm")]),
        UserTurn([RESULT, IMAGE, "a"]),
        UserTurn([" ", "a"]),
        UserTurn([ToolResult("toolu_1", "")]),
        UserTurn([IMAGE]),
    ]
    assert len(set(legal)) == 10


# ---------------------------------------------------------------- views


def test_a_turn_gives_its_text_calls_results_and_thinking_in_order() -> None:
    second = ToolUse("toolu_2", "look", {})
    said = AssistantTurn([THOUGHT, "a", CALL, RedactedThinking("eA=="), Thinking("Then.", "s"), "b", second])
    assert (said.text, said.calls, said.thinking) == ("ab", (CALL, second), "I look.Then.")
    asked = UserTurn([second.result(), RESULT, "c", IMAGE, "d"])
    assert (asked.text, asked.results) == ("cd", (second.result(), RESULT))
    assert AssistantTurn([]).text == ""


def test_a_reply_gives_its_text_and_calls_and_takes_what_no_turn_may_hold() -> None:
    reply = Reply(["a", CALL, THOUGHT], Origin(stop_reason="max_tokens"), complete=False)
    assert (reply.text, reply.calls, reply.complete, reply.dropped) == ("a", (CALL,), False, ())
    assert Reply([THOUGHT]).origin == Origin()
    fault = Violation(BLOCKS["text"].misplaced, "content[0]", "x", "y")
    assert Reply([], dropped=[fault]).dropped == (fault,)


def test_turns_are_equal_by_their_blocks_and_origin() -> None:
    assert AssistantTurn("a") != AssistantTurn("a", Origin())
    assert AssistantTurn("a", Origin(model="m")) == AssistantTurn("a", Origin(model="m"))
    turns: list[object] = [UserTurn("a"), SystemTurn("a")]
    assert turns[0] != turns[1]
    assert len({UserTurn("a"), UserTurn(["a"]), UserTurn("b")}) == 2


def test_what_is_kept_of_a_turn_is_no_part_of_its_value() -> None:
    turn = AssistantTurn(["a", CALL])
    fresh = AssistantTurn(["a", CALL])
    _ = turn.hashes, turn._kept, turn.traits
    turn._kept["anthropic"] = b"{}"
    assert turn == fresh
    assert hash(turn) == hash(fresh)
    assert repr(turn) == repr(fresh)
    assert attrs.asdict(turn, recurse=False).keys() == {"blocks", "origin"}
    again = pickle.loads(pickle.dumps(turn))
    assert again == turn
    assert again._kept == {}
    assert attrs.evolve(turn)._kept == {}


def test_a_long_turn_shows_its_first_blocks() -> None:
    assert repr(UserTurn(["a"] * 6)) == "UserTurn([Text('a'), Text('a'), Text('a'), Text('a'), … 2 more])"
    assert repr(UserTurn("x" * 500)) == f"UserTurn([Text('{'x' * 39}…')])"


def test_an_origin_shows_what_is_known() -> None:
    assert repr(Origin()) == "Origin(vendor='anthropic')"
    assert repr(Origin(vendor="kimi", id="msg_1")) == "Origin(vendor='kimi', id='msg_1')"
    with pytest.raises(TypeError):
        untyped.Origin("anthropic")
