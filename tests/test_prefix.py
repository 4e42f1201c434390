"""The prefix: digests, edits and what they void, whose thinking a target gets, and long sessions through the client."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import anthropic
import pytest

from convmodel import (
    AssistantTurn,
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    Conversation,
    Document,
    Edit,
    Interrupted,
    Origin,
    PlainTextSource,
    RedactedThinking,
    Reply,
    SearchResult,
    ServerToolUse,
    SystemTurn,
    Text,
    Thinking,
    Tool,
    ToolReference,
    ToolResult,
    ToolSearchToolResult,
    ToolUse,
    Turn,
    UnsignedThinking,
    UserTurn,
    ValidationError,
    WebSearchToolResult,
    conversation,
    empty,
    start,
)
from convmodel.anthropic import (
    StaleThinking,
    Target,
    from_message,
    stale_thinking,
    to_beta_request,
    to_body,
    to_messages,
    to_request,
)
from convmodel.anthropic import targets as targets_module
from convmodel.redact import Redactor
from convmodel.storage import dumps, loads
from convmodel.testing import MessagesServer
from convmodel.testing.prefix import Signer

Json = dict[str, Any]
LOOK, MORE = Tool("look", {"type": "object"}), Tool("more", {"type": "object"})
ONE, TWO = ToolUse("toolu_1", "look", {"q": 1}), ToolUse("toolu_2", "look", {"q": 2})
BOUND = Target(model="claude-opus-5-5", thinking={"type": "adaptive"})
FREE = Target(model="claude-opus-5", thinking={"type": "adaptive"})
DROPPING = Target(model="claude-opus-5-5", thinking={"type": "adaptive"}, on_stale="drop_block")
PREFIX = "thinking-prefix-bound"


def thought(n: int) -> Thinking:
    return Thinking(f"thought {n}", f"c2ln{n}")


def refused(act: Callable[[], object]) -> list[tuple[str, str]]:
    with pytest.raises(ValidationError) as caught:
        act()
    return [(v.rule.id, v.path) for v in caught.value.violations]


def roles(convo: Conversation) -> str:
    return "".join(turn.role[0] for turn in convo.turns)


def two_rounds(*, system: str | None = None) -> AwaitingUser:
    """u a(t, call) u(result) a(t, call, t, text) u(result) a(text)"""
    convo = start("hi", system=system, tools=[LOOK])
    asked = convo.receive(AssistantTurn([thought(1), ONE], Origin(stop_reason="tool_use")))
    assert isinstance(asked, AwaitingTools)
    again = asked.close("lost").receive(
        AssistantTurn([thought(2), TWO, thought(3), Text("so")], Origin(stop_reason="tool_use"))
    )
    assert isinstance(again, AwaitingTools)
    done = again.answer(TWO.result("second")).receive(AssistantTurn("done", Origin(stop_reason="end_turn")))
    assert isinstance(done, AwaitingUser)
    return done


THOUGHTS = ("turns[1].blocks[0]", "turns[3].blocks[0]", "turns[3].blocks[2]")

# ---------------------------------------------------------------- each edit


@pytest.mark.parametrize(
    ("edit", "voided", "left"),
    [
        (lambda c, how: c.replace(0, UserTurn("hello"), on_thinking=how), THOUGHTS, "uauaua"),
        (lambda c, how: c.replace(2, UserTurn([ONE.result("x")]), on_thinking=how), THOUGHTS[1:], "uauaua"),
        (lambda c, how: c.replace(5, AssistantTurn("other"), on_thinking=how), (), "uauaua"),
        (lambda c, how: c.drop_rounds(2, on_thinking=how), (), "uauaua"),
        (lambda c, how: c.drop_rounds(3, on_thinking=how), THOUGHTS[1:], "uaua"),
        (lambda c, how: c.drop_rounds(6, on_thinking=how), (), "ua"),
        (lambda c, how: c.clear_tool_results(2, on_thinking=how), (), "uauaua"),
        (lambda c, how: c.clear_tool_results(3, on_thinking=how), THOUGHTS[1:], "uauaua"),
        (lambda c, how: c.compact("sum", on_thinking=how), (), "u"),
        (lambda c, how: c.compact("sum", before=4, on_thinking=how), THOUGHTS[1:], "uaua"),
        (lambda c, how: c.compact("sum", before=2, on_thinking=how), THOUGHTS, "uauaua"),
        (lambda c, how: c.with_system("s", on_thinking=how), THOUGHTS, "uauaua"),
        (lambda c, how: c.with_system(None, on_thinking=how), (), "uauaua"),
        (lambda c, how: c.with_tools([LOOK, MORE], on_thinking=how), THOUGHTS, "uauaua"),
        (lambda c, how: c.map_text(str.upper, on_thinking=how), THOUGHTS, "uauaua"),
        (lambda c, how: c.map_text(str, on_thinking=how), (), "uauaua"),
        (
            lambda c, how: c.map_tool_inputs(lambda call: {"q": min(call.input["q"], 1)}, on_thinking=how),
            THOUGHTS[2:],
            "uauaua",
        ),
    ],
)
def test_an_edit_says_what_it_voids_and_leaves_the_conversation_alone(
    edit: Callable[[Conversation, str], Edit], voided: tuple[str, ...], left: str
) -> None:
    convo = two_rounds()
    shown = dumps(convo)
    kept, stripped = edit(convo, "keep"), edit(convo, "strip_after")
    assert kept.voided == stripped.voided == voided
    assert roles(kept.conversation) == roles(stripped.conversation) == left
    if voided:
        assert refused(lambda: edit(convo, "refuse")) == [(PREFIX, path) for path in voided]
    else:
        assert edit(convo, "refuse") == kept
    assert dumps(convo) == shown
    for each in (kept, stripped):
        assert loads(dumps(each.conversation)) == each.conversation
    assert stale_thinking(stripped.conversation, BOUND) == ()
    assert bool(stale_thinking(kept.conversation, BOUND)) == bool(voided)


def test_on_thinking_has_three_values() -> None:
    for value, rule in (("drop", "field-value"), (None, "field-type"), (["keep"], "field-type")):
        assert refused(lambda value=value: two_rounds().compact("s", on_thinking=cast("Any", value))) == [  # type: ignore[misc]
            (rule, "on_thinking")
        ]


@pytest.mark.parametrize("place", [-1, 7, True, 1.0, "1", None, 10**30])
def test_a_place_that_is_not_there_is_named(place: Any) -> None:
    convo = two_rounds()
    edits: list[Callable[[], object]] = [
        lambda: convo.replace(place, UserTurn("x")),
        lambda: convo.drop_rounds(place),
        lambda: convo.clear_tool_results(place),
        lambda: convo.strip_thinking(place),
        lambda: convo.strip_thinking(0, place),
    ]
    if place is not None:
        edits.append(lambda: convo.compact("s", before=place))
    for edit in edits:
        with pytest.raises(ValidationError, match=r"Pass a number from 0 to \d\. \[field-value\]"):
            edit()


def test_an_edit_that_breaks_a_rule_names_the_place_in_the_edited_turns() -> None:
    convo = two_rounds()
    assert refused(lambda: convo.replace(4, UserTurn("no result"), on_thinking="keep")) == [
        ("tool-use-answered-next", "turns[3].blocks[1]")
    ]
    assert refused(lambda: convo.replace(1, AssistantTurn("no call"), on_thinking="keep")) == [
        ("tool-result-has-use", "turns[2].blocks[0].tool_use_id")
    ]
    assert refused(lambda: convo.replace(2, cast("Any", "text"))) == [("field-type", "turns[2]")]
    assert refused(lambda: convo.map_text(lambda _: "")) == [
        ("text-block-nonempty", "turns[0].blocks[0].text")
    ]
    assert refused(lambda: convo.map_text(lambda _: cast("Any", 5))) == [
        ("field-type", "turns[0].blocks[0].text")
    ]
    assert refused(lambda: convo.map_text(lambda _: "\ud800")) == [
        ("json-valid-utf8", "turns[0].blocks[0].text")
    ]
    inputs = cast("Any", convo.map_tool_inputs)
    for value, rule in (
        (5, "tool-use-input-object"),
        ({"q": float("nan")}, "json-value"),
        (None, "tool-use-input-object"),
    ):
        ((found, path),) = refused(lambda value=value: inputs(lambda _: value))  # type: ignore[misc]
        assert (found, path.startswith("turns[1].blocks[1].input")) == (rule, True)
    assert refused(lambda: convo.compact("")) == [("text-block-nonempty", "blocks[0].text")]
    assert refused(lambda: convo.with_system(cast("Any", 5))) == [("content-type", "system")]
    assert refused(lambda: convo.with_tools(cast("Any", ["x"]))) == [("field-type", "tools[0]")]
    nested: Any = {}
    for _ in range(300):
        nested = {"a": nested}
    assert [rule for rule, _ in refused(lambda: inputs(lambda _: nested))] == ["json-value"]


def test_what_a_function_raises_is_raised_and_nothing_has_changed() -> None:
    convo = two_rounds()
    with pytest.raises(ZeroDivisionError):
        convo.map_text(lambda _: cast("Any", 1 // 0))
    assert convo == two_rounds()


def test_a_round_is_dropped_whole_or_not_at_all() -> None:
    by_code = AssistantTurn(
        [ServerToolUse("srvtoolu_1", "web_search", {}), ToolUse("toolu_9", "look", {})],
        Origin(stop_reason="tool_use"),
    )
    turns: list[Turn] = [
        UserTurn("hi"),
        AssistantTurn([ONE, TWO]),
        UserTurn([ONE.result("1")]),
        UserTurn([TWO.result("2"), Text("and?")]),
        by_code,
        UserTurn([ToolResult("toolu_9", "9")]),
        AssistantTurn([WebSearchToolResult("srvtoolu_1", ()), Text("found")]),
        UserTurn("bye"),
        AssistantTurn([ToolUse("toolu_8", "look", {})]),
    ]
    convo = conversation(turns, tools=[LOOK])
    lengths = [len(convo.drop_rounds(before).conversation.turns) for before in range(len(turns) + 1)]
    assert lengths == [9, 9, 9, 9, 7, 7, 7, 4, 4, 4]
    dropped = convo.drop_rounds(len(turns)).conversation
    assert list(dropped.turns) == [UserTurn("hi"), UserTurn("and?"), UserTurn("bye"), turns[-1]]
    assert isinstance(dropped, AwaitingTools)


def test_a_round_stays_where_a_system_turn_needs_it() -> None:
    said: list[Turn] = [
        UserTurn("hi"),
        SystemTurn("s"),
        AssistantTurn([ONE]),
        UserTurn([ONE.result("1"), Text("and?")]),
    ]
    assert len(conversation(said).drop_rounds(4).conversation.turns) == 4
    asked: list[Turn] = [
        UserTurn("hi"),
        AssistantTurn("x"),
        AssistantTurn([ONE]),
        UserTurn([ONE.result("1")]),
        SystemTurn("s"),
    ]
    assert len(conversation(asked).drop_rounds(4).conversation.turns) == 5
    fine: list[Turn] = [
        UserTurn("hi"),
        SystemTurn("s"),
        AssistantTurn([ONE]),
        UserTurn([ONE.result("1")]),
        AssistantTurn("x"),
    ]
    assert roles(conversation(fine).drop_rounds(4).conversation) == "usa"


def test_compacting_keeps_the_open_round() -> None:
    convo = two_rounds().user("once more")
    asked = convo.receive(
        AssistantTurn([thought(4), ToolUse("toolu_3", "look", {})], Origin(stop_reason="tool_use"))
    )
    assert isinstance(asked, AwaitingTools)
    edit = asked.compact(["They looked", Text("twice.")], on_thinking="strip_after")
    assert isinstance(edit.conversation, AwaitingTools)
    assert edit.voided == ("turns[7].blocks[0]",)
    assert edit.conversation.turns[0] == UserTurn(["They looked", "twice."])
    assert [call.id for call in edit.conversation.open_calls] == ["toolu_3"]
    assert empty(system="s").compact("Hello.").conversation == start("Hello.", system="s")


def test_compacting_keeps_what_the_model_has_not_answered() -> None:
    asked = two_rounds().user("once more").user("please")
    edit = asked.compact("They looked twice.")
    assert (edit.voided, roles(edit.conversation)) == ((), "uuu")
    assert edit.conversation.turns[1:] == asked.turns[6:]
    called = asked.receive(AssistantTurn([ToolUse("toolu_3", "look", {})], Origin(stop_reason="tool_use")))
    assert isinstance(called, AwaitingTools)
    answered = called.close("lost").user("and?")
    kept = answered.compact("They looked twice.").conversation
    assert kept.turns[1:] == answered.turns[8:]
    assert answered.compact("All of it.", before=len(answered.turns)).conversation == start(
        "All of it.", tools=[LOOK]
    )


def test_synthetic_marks_origins_and_everything_else_survive() -> None:
    convo = two_rounds()
    for edit in (
        convo.clear_tool_results(6, on_thinking="keep"),
        convo.map_text(str.upper, on_thinking="strip_after"),
        convo.with_system("s", on_thinking="strip_after"),
        convo.strip_thinking(0),
    ):
        result = edit.conversation.turns[2].blocks[0]
        assert isinstance(result, ToolResult)
        assert (result.synthetic, result.is_error) == ("lost", True)
        for before, after in zip(convo.turns, edit.conversation.turns, strict=True):
            if isinstance(before, AssistantTurn) and isinstance(after, AssistantTurn):
                assert after.origin == before.origin
    cleared = convo.clear_tool_results(6, on_thinking="keep").conversation
    assert [
        turn.results[0].content for turn in cleared.turns if isinstance(turn, UserTurn) and turn.results
    ] == ["[The result was cleared.]"] * 2
    assert cleared.clear_tool_results(6, on_thinking="keep").conversation == cleared


def test_text_is_mapped_wherever_the_user_or_the_model_wrote_some() -> None:
    document = Document(PlainTextSource("a key"))
    found = SearchResult("key", "key", [Text("a key")])
    convo = conversation(
        [
            UserTurn(["a key", document]),
            AssistantTurn([Thinking("a key", "c2ln"), Text("the key"), ONE, TWO]),
            UserTurn([ONE.result([found]), TWO.result("key")]),
        ],
        system="a key",
    )
    mapped = convo.map_text(lambda text: text.replace("key", "…"), on_thinking="keep").conversation
    assert [turn.blocks for turn in mapped.turns] == [
        (Text("a …"), Document(PlainTextSource("a …"))),
        (Thinking("a key", "c2ln"), Text("the …"), ONE, TWO),
        (ONE.result([SearchResult("key", "key", [Text("a …")])]), TWO.result("…")),
    ]
    assert mapped.preamble == convo.preamble


def test_an_equal_input_leaves_the_bytes_of_a_call_as_they_are() -> None:
    convo = conversation(
        [UserTurn("hi"), AssistantTurn([ToolUse("a", "look", {"x": 1, "y": 2}), thought(1), "x"])]
    )
    same = convo.map_tool_inputs(lambda call: dict(reversed(list(call.input.items()))))
    assert to_messages(same.conversation) == to_messages(convo)
    assert convo.map_tool_inputs(lambda _: {"x": 1.0, "y": 2}, on_thinking="keep").voided == (
        "turns[1].blocks[1]",
    )


def test_a_turn_that_says_nothing_without_its_thinking_is_left_empty() -> None:
    convo = conversation([UserTurn("hi"), AssistantTurn([thought(1), " "]), UserTurn("more")])
    stripped = convo.strip_thinking(1)
    assert stripped.conversation.turns[1] == AssistantTurn([])
    assert stripped.voided == ("turns[1].blocks[0]",)


def test_a_reply_in_the_place_of_another_keeps_its_own_thinking() -> None:
    convo = two_rounds()
    before = convo.rewind(5)
    assert isinstance(before, AwaitingModel)
    better = AssistantTurn([thought(9), Text("better")], Origin(prefix=before.binding))
    edit = convo.replace(5, better, on_thinking="strip_after")
    assert edit.voided == ()
    assert edit.conversation.turns[5] == better
    moved = convo.replace(
        5,
        AssistantTurn([thought(9), Text("x")], Origin(prefix=start("other").binding)),
        on_thinking="strip_after",
    )
    assert moved.conversation.turns[5].blocks == (Text("x"),)
    earlier = convo.replace(
        1,
        AssistantTurn([thought(9), ONE], Origin(prefix=start("hi", tools=[LOOK]).binding)),
        on_thinking="keep",
    )
    assert earlier.voided == THOUGHTS[1:]


def test_the_oldest_thinking_may_be_taken_out_alone_and_no_other() -> None:
    convo = two_rounds()
    first, second = convo.turns[1], convo.turns[3]
    assert isinstance(first, AssistantTurn)
    assert isinstance(second, AssistantTurn)
    assert convo.replace(1, AssistantTurn(first.blocks[1:], first.origin)).voided == ()
    middle = AssistantTurn(second.blocks[1:], second.origin)
    assert convo.replace(3, middle, on_thinking="keep").voided == THOUGHTS[2:]


def test_thinking_in_the_middle_of_one_turn_counts_too() -> None:
    said: list[Any] = [thought(1), Text("a"), thought(2), Text("b"), thought(3), Text("c")]
    convo = conversation([UserTurn("hi"), AssistantTurn(said), UserTurn("more")])
    removed = convo.replace(1, AssistantTurn(said[:2] + said[3:]), on_thinking="strip_after")
    assert removed.voided == ("turns[1].blocks[4]",)
    assert removed.conversation.turns[1].blocks == (thought(1), Text("a"), Text("b"), Text("c"))
    added = convo.replace(1, AssistantTurn([thought(9), *said]), on_thinking="keep")
    assert added.voided == ("turns[1].blocks[0]", "turns[1].blocks[2]", "turns[1].blocks[4]")
    altered = convo.map_text(lambda text: text.replace("b", "…"), on_thinking="strip_after")
    assert altered.voided == ("turns[1].blocks[4]",)
    assert altered.conversation.turns[1].blocks[:3] == (thought(1), Text("a"), thought(2))


def test_thinking_behind_kept_void_thinking_is_void_with_it() -> None:
    convo = start("hi").receive(AssistantTurn([thought(1), Text("a")], Origin(stop_reason="end_turn")))
    assert isinstance(convo, AwaitingUser)
    again = convo.user("more").receive(AssistantTurn([thought(2), Text("b")], Origin(stop_reason="end_turn")))
    assert isinstance(again, AwaitingUser)
    kept = again.map_text(lambda text: text.replace("more", "less"), on_thinking="keep").conversation
    assert isinstance(kept, AwaitingUser)
    fresh = kept.user("and?").receive(AssistantTurn([thought(3), Text("c")], Origin(stop_reason="end_turn")))
    assert isinstance(fresh, AwaitingUser)
    assert [stale.turn for stale in stale_thinking(fresh, BOUND)] == [3]
    mended = fresh.map_text(str, on_thinking="strip_after")
    assert mended.voided == ("turns[3].blocks[0]", "turns[5].blocks[0]")
    assert stale_thinking(mended.conversation, BOUND) == ()


# ---------------------------------------------------------------- digests


def test_digests_are_the_same_in_another_process() -> None:
    convo = two_rounds(system="s").user("é", "日本")
    code = "import sys; from convmodel.storage import loads; c = loads(sys.stdin.read()); print(c.digest, c.binding)"
    for seed in ("0", "1"):
        run = [sys.executable, "-c", code]
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"}
        said = subprocess.run(run, input=dumps(convo), env=env, capture_output=True, text=True, check=True)
        assert said.stdout.split() == [convo.digest, convo.binding]


def test_a_common_prefix_is_found_whatever_way_the_answers_were_split() -> None:
    asked: list[Turn] = [UserTurn("hi"), AssistantTurn([ONE, TWO])]
    one, two = UserTurn([ONE.result("1")]), UserTurn([TWO.result("2")])
    both = UserTurn([ONE.result("1"), TWO.result("2")])
    end: list[Turn] = [AssistantTurn("done"), UserTurn("more")]
    split, joined = conversation([*asked, one, two, *end]), conversation([*asked, both, *end])
    assert split.common_prefix(joined) == split
    assert joined.common_prefix(split) == joined
    other = conversation([*asked, one, UserTurn([TWO.result("other")]), *end])
    assert split.common_prefix(other) == conversation([*asked, one])
    assert joined.common_prefix(other) == conversation(asked)
    assert split.common_prefix(start("ho")) == empty()
    many_split: list[Turn] = []
    many_joined: list[Turn] = []
    for n in range(20):
        calls = [ToolUse(f"a{n}", "look", {}), ToolUse(f"b{n}", "look", {})]
        opening: list[Turn] = [UserTurn("hi"), AssistantTurn(calls)]
        many_split += [*opening, *(UserTurn([call.result("x")]) for call in calls), AssistantTurn("so")]
        many_joined += [*opening, UserTurn([call.result("x") for call in calls]), AssistantTurn("so")]
    long_split, long_joined = conversation(many_split), conversation(many_joined)
    for length in range(len(long_joined.turns) + 1):
        short = long_joined.rewind(length)
        assert long_split.common_prefix(short) is not None
        assert short.common_prefix(long_split) == short
    assert long_split.common_prefix(long_joined) == long_split
    assert split.common_prefix(start("hi", system="s")) is None


def test_many_stale_turns_are_compared_without_recursion() -> None:
    turns: list[Turn] = []
    for n in range(3000):
        turns += [UserTurn("x"), AssistantTurn([thought(n), Text("y")], Origin(prefix="b1:other"))]
    one = conversation(turns)
    other = conversation([*turns[:-1], AssistantTurn("z")])
    assert one.first_difference(other) == "turns[5999].blocks[0]"
    assert one.common_prefix(other) == one.rewind(5999)
    assert len(stale_thinking(one, BOUND)) == 3000


# ---------------------------------------------------------------- whose thinking a target gets


def by(origin: Origin, *blocks: Any) -> Conversation:
    return conversation(
        [UserTurn("hi"), AssistantTurn([*(blocks or (thought(1),)), Text("a")], origin), UserTurn("b")]
    )


def reasons(convo: Conversation, target: Target) -> list[str]:
    return [each.reason for each in stale_thinking(convo, target)]


@pytest.mark.parametrize(
    ("maker", "reader", "read"),
    [
        ("claude-opus-5", "claude-fable-5-1", True),
        ("claude-opus-5-5", "claude-fable-5-1", True),
        ("claude-fable-5-1", "claude-opus-5", False),
        ("claude-fable-5-1", "claude-opus-5-5", False),
        ("claude-fable-5-2", "claude-mythos-5-2", True),
        ("claude-fable-5-2", "claude-fable-5-1", False),
        ("claude-mythos-5-2", "claude-opus-4-8", False),
        ("claude-opus-5", "claude-haiku-5-5", False),
        ("claude-haiku-5-5", "claude-haiku-5-5-20261001", True),
        ("claude-haiku-5-5", "claude-opus-5-5", True),
        ("claude-sonnet-4-5", "claude-opus-5", True),
        ("a-model-to-come", "claude-haiku-5-5", True),
        ("claude-opus-5", "a-model-to-come", True),
    ],
)
def test_whose_thinking_a_model_reads(maker: str, reader: str, read: bool) -> None:
    found = reasons(by(Origin(model=maker)), Target(reader))
    assert found == ([] if read else ["model_binding_mismatch"])
    # The double says the same from a table of its own.
    signer, ask = Signer("anthropic"), {"role": "user", "content": "hi"}
    body: Json = {"model": maker, "messages": [ask]}
    signed = signer.signed(
        body, [{"type": "thinking", "thinking": "", "signature": ""}, {"type": "text", "text": "a"}]
    )
    turned = {"model": reader, "messages": [ask, {"role": "assistant", "content": signed}, ask]}
    if "come" not in maker + reader:
        assert [each["reason"] for each in signer.check(turned).dropped] == found


def test_fable_reads_opus_on_its_own_platform_alone() -> None:
    convo = by(Origin(model="claude-opus-5-5"))
    assert reasons(convo, Target("claude-fable-5-1")) == []
    assert reasons(convo, Target("anthropic.claude-fable-5-1-v1:0", platform="bedrock")) == [
        "model_binding_mismatch"
    ]


def test_thinking_of_another_account_is_reported_where_the_model_binds_it() -> None:
    def of(model: str, account: str | None) -> Conversation:
        return by(Origin(model=model, account=account))

    here = Target("claude-sonnet-5-5", account="org_1")
    assert reasons(of("claude-sonnet-5-5", "org_1"), here) == []
    assert reasons(of("claude-sonnet-5-5", None), here) == []
    assert reasons(of("claude-sonnet-5-5", "org_2"), here) == ["organization_binding_mismatch"]
    assert reasons(of("claude-sonnet-5-5", "org_2"), Target("claude-sonnet-5-5")) == []
    assert reasons(of("claude-opus-5", "org_2"), here) == []
    assert refused(lambda: Target("m", account=cast("Any", 5))) == [("field-type", "account")]
    reply = from_message({"content": [], "stop_reason": "end_turn"}, here)
    assert reply.origin.account == "org_1"


def test_thinking_of_another_vendor_is_reported_in_both_directions() -> None:
    deepseek = Target("deepseek-chat", platform="deepseek")
    foreign = by(Origin(vendor="deepseek"), UnsignedThinking("hm"), thought(2))
    assert stale_thinking(foreign, BOUND) == (
        StaleThinking(1, 0, "foreign_vendor"),
        StaleThinking(1, 1, "foreign_vendor"),
    )
    assert stale_thinking(foreign, BOUND)[1].path == "turns[1].blocks[1]"
    assert reasons(foreign, deepseek) == []
    assert reasons(by(Origin(model="claude-opus-5")), deepseek) == ["foreign_vendor"]
    mixed = by(Origin(), UnsignedThinking("hm"), RedactedThinking("c2ln"))
    assert stale_thinking(mixed, BOUND) == (StaleThinking(1, 0, "foreign_vendor"),)


def test_what_the_model_does_not_get_is_not_refused_for_its_prefix() -> None:
    stale = Origin(model="claude-fable-5-1", prefix=start("other").binding)
    unread = by(stale)
    assert reasons(unread, BOUND) == ["model_binding_mismatch"]
    assert isinstance(unread, AwaitingModel)
    to_request(unread, BOUND)
    bound = by(Origin(model="claude-opus-5-5", prefix=start("other").binding))
    assert reasons(bound, BOUND) == reasons(bound, DROPPING) == ["prefix_binding_mismatch"]
    assert reasons(bound, Target("claude-opus-5.5", platform="openrouter")) == []
    foreign = by(Origin(vendor="kimi", prefix=start("other").binding), UnsignedThinking("hm"))
    assert isinstance(foreign, AwaitingModel)
    to_request(foreign, BOUND)


def test_only_a_conversation_and_a_target_are_compared() -> None:
    values: list[Any] = [None, "x", [], {}]
    for wrong in values:
        assert refused(lambda wrong=wrong: stale_thinking(wrong, BOUND)) == [("field-type", "conversation")]  # type: ignore[misc]
        assert refused(lambda wrong=wrong: stale_thinking(empty(), wrong)) == [("field-type", "target")]  # type: ignore[misc]


def test_an_unknown_or_older_prefix_is_never_stale() -> None:
    for prefix in (None, "b0:other", "other"):
        assert reasons(by(Origin(prefix=prefix)), BOUND) == []


def test_a_branch_knows_its_own_thinkers_alone() -> None:
    convo = two_rounds().user("more")
    foreign = convo.receive(AssistantTurn([UnsignedThinking("hm"), Text("x")], Origin(vendor="kimi")))
    other = convo.receive(AssistantTurn([thought(5), Text("x")], Origin(model="claude-fable-5-2")))
    for branch, reason in ((foreign, "foreign_vendor"), (other, "model_binding_mismatch")):
        assert isinstance(branch, AwaitingUser)
        assert stale_thinking(branch, BOUND) == (StaleThinking(7, 0, cast("Any", reason)),)
    own = convo.receive(AssistantTurn([thought(6), Text("x")]))
    assert isinstance(own, AwaitingUser)
    assert stale_thinking(own, BOUND) == stale_thinking(convo, BOUND) == ()


@pytest.mark.parametrize("count", [10, 1000])
def test_the_check_costs_what_it_finds(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    convo: Conversation = empty()
    for n in range(count):
        assert isinstance(convo, AwaitingUser)
        made = convo.user("x").receive(
            AssistantTurn([thought(n), Text("y")], Origin(model="claude-opus-5-5"))
        )
        assert not isinstance(made, Interrupted)
        convo = made
    assert convo.binding
    read: list[int] = []
    turns = convo._log.turns

    class Watched(list[Turn]):
        def __getitem__(self, at: Any) -> Any:
            read.append(at)
            return turns[at]

    convo._log.turns = Watched(turns)
    asked: list[object] = []
    unread = targets_module._unread

    def noted(*given: Any) -> Any:
        asked.append(given)
        return unread(*given)

    monkeypatch.setattr(targets_module, "_unread", noted)
    assert stale_thinking(convo, BOUND) == ()
    assert (read, len(asked)) == ([], 1)


# ---------------------------------------------------------------- through the client


def text(said: str) -> Json:
    return {"type": "text", "text": said}


THINKS: Json = {"type": "thinking", "thinking": "hm", "signature": "any"}
HIDES: Json = {"type": "redacted_thinking", "data": "any"}


def test_the_double_signs_over_the_request_and_holds_later_ones_to_it() -> None:
    script = [[THINKS, text("a")], [HIDES, text("b")], [text("c")], [text("d")]]
    with (
        MessagesServer(script, preserved_thinking=True) as server,
        anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0) as client,
    ):

        def ask(convo: AwaitingModel, target: Target) -> AwaitingUser:
            message = client.beta.messages.create(max_tokens=64, **to_beta_request(convo, target))
            answered = convo.receive(from_message(message.to_dict(), target))
            assert isinstance(answered, AwaitingUser)
            return answered

        convo = ask(ask(start("hi", tools=[LOOK]), BOUND).user("more"), BOUND).user("and?")
        signed = convo.turns[1].blocks[0]
        assert isinstance(signed, Thinking)
        assert signed.signature != "any"
        # Removed by name, at the first place that does not fit.
        moved = convo.map_text(lambda said: said.replace("more", "less"), on_thinking="keep")
        assert moved.voided == ("turns[3].blocks[0]",)
        refusal = r"messages\.3\.content\.0: Invalid `data` in `redacted_thinking` block\. The block is bound to a diff"
        assert isinstance(moved.conversation, AwaitingModel)
        body = {**to_request(moved.conversation, FREE), "max_tokens": 64, "model": BOUND.model}
        with pytest.raises(anthropic.BadRequestError, match=refusal):
            client.messages.create(**cast("Any", body))
        # Dropped by the service, and told.
        request = to_beta_request(moved.conversation, DROPPING)
        dropped = client.beta.messages.create(max_tokens=64, **request).to_dict()
        assert dropped["input_transformations"] == [
            {"type": "thinking_dropped", "path": "messages.3.content.0", "reason": "prefix_binding_mismatch"}
        ]
        # Cache markers are free to move.
        marked: Any = to_request(convo, BOUND)
        marked["messages"][-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        marked["tools"][-1]["cache_control"] = {"type": "ephemeral"}
        client.messages.create(max_tokens=64, **marked)
        # A signature that it did not make is none.
        forged = conversation([UserTurn("hi"), AssistantTurn([thought(1), Text("a")]), UserTurn("b")])
        assert isinstance(forged, AwaitingModel)
        with pytest.raises(anthropic.BadRequestError, match="Invalid `signature` in `thinking` block'"):
            client.messages.create(max_tokens=64, **to_request(forged, BOUND))


SECRET = "swordfish-7"
SECRETS = (165, 190)
"""The rounds in which the model puts a password into the input of a call."""


def long_script(rounds: int) -> list[Any]:
    """Replies with interleaved thinking: a call in each, and a word to end every fifth."""
    shapes = itertools.cycle(
        [
            (THINKS, "c"),
            (HIDES, "c", THINKS, "c"),
            ("c",),
            (THINKS, text("So:"), THINKS, "c"),
            (THINKS, text("Done.")),
        ]
    )
    return [
        [
            {
                "type": "tool_use",
                "id": f"toolu_{n}_{at}",
                "name": "look",
                "input": {"n": n, "password": SECRET} if n in SECRETS else {"n": n},
            }
            if each == "c"
            else each
            for at, each in enumerate(shape)
        ]
        for n, shape in zip(range(rounds), shapes, strict=False)
    ]


ROUNDS = 200


def test_a_session_of_200_rounds_with_every_edit_meets_no_400() -> None:  # noqa: PLR0915 - one long session
    haiku = Target(model="claude-haiku-5-5", thinking={"type": "adaptive"})
    fork: Conversation | None = None
    edited: set[int] = set()
    redactor: Redactor | None = None
    with (
        MessagesServer(long_script(2 * ROUNDS), preserved_thinking=True) as server,
        anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0) as client,
    ):

        def step(convo: Conversation, target: Target) -> Conversation:
            if isinstance(convo, AwaitingUser):
                convo = convo.user("Go on.")
            elif isinstance(convo, AwaitingTools):
                convo = convo.answer_one(convo.open_calls[0].result("first"))
                if isinstance(convo, AwaitingTools):
                    convo = convo.answer([call.result("rest") for call in convo.open_calls], "And?")
            message = client.messages.create(max_tokens=64, **to_request(convo, target))
            outcome = convo.receive(from_message(message, target), redactor=redactor)
            assert not isinstance(outcome, Interrupted)
            return outcome

        def edit(change: Callable[[Conversation], Edit]) -> Conversation:
            made = change(convo)
            assert made.voided
            edited.add(len(server.bodies))
            return made.conversation

        convo: Conversation = start("Look at everything.", system="Be thorough.", tools=[LOOK])
        for n in range(ROUNDS):
            # Each edit stands for its kind; `strip_after` is what a session that goes on has to say.
            if n == 40:
                fork = convo
            elif n == 60:
                convo = edit(lambda c: c.clear_tool_results(len(c.turns) - 6, on_thinking="strip_after"))
            elif n == 100:
                convo = edit(
                    lambda c: c.compact("They looked.", before=len(c.turns) - 8, on_thinking="strip_after")
                )
            elif n == 120:
                convo = edit(lambda c: c.map_tool_inputs(lambda _: {"n": 0}, on_thinking="strip_after"))
            elif n == 140:
                convo = edit(lambda c: c.drop_rounds(len(c.turns) - 6, on_thinking="strip_after"))
            elif n == 170:
                assert SECRET in dumps(convo)
                convo = edit(lambda c: c.redact(Redactor(), on_thinking="strip_after"))
                redactor = Redactor()  # from here on nothing that is secret enters
            elif n == 180:
                convo = edit(lambda c: c.with_system("Be brief.", on_thinking="strip_after"))
            other = 150 <= n < 160
            if n == 155:
                assert {each.reason for each in stale_thinking(convo, haiku)} == {"model_binding_mismatch"}
            convo = step(convo, haiku if other else BOUND)
            if n % 50 == 49:
                convo = loads(dumps(convo))
        assert stale_thinking(convo, BOUND) == ()
        assert SECRET not in dumps(convo)
        assert [at for at, body in enumerate(server.bodies) if SECRET.encode() in body] == list(
            range(166, 170)
        )
        bodies = list(server.bodies)
        assert fork is not None
        for _ in range(20):
            fork = step(fork, BOUND)
        assert not fork.extends(convo)
        assert len(server.bodies) == ROUNDS + 20
    # Where nothing was edited, each request begins with the bytes of the one before.
    sent = [json.dumps(json.loads(body)["messages"]) for body in bodies]
    for at, (shorter, longer) in enumerate(pairwise(sent), 1):
        assert longer.startswith(shorter[:-1]) == (at not in edited)


def test_switching_the_model_and_back_sends_the_same_bytes_again() -> None:
    convo = two_rounds().user("more")
    sent = to_body(convo, BOUND)
    answered = convo.receive(AssistantTurn([UnsignedThinking("hm"), Text("x")], Origin(vendor="kimi")))
    assert isinstance(answered, AwaitingUser)
    kimi = Target("kimi-k2", platform="kimi")
    assert reasons(answered, kimi) == ["foreign_vendor"] * 3
    assert b"thought 1" not in to_body(answered.user("y"), kimi)
    assert to_body(answered.user("y"), BOUND).startswith(sent[:-3])
    assert loads(dumps(answered)) == answered


# ---------------------------------------------------------------- a result that comes late


def test_a_real_result_takes_the_place_of_a_made_one() -> None:
    call, other = ToolUse("a", "f", {}), ToolUse("b", "f", {})
    asked = start("x").assistant(call, other)
    assert isinstance(asked, AwaitingTools)
    closed = asked.close("lost").assistant("y")
    assert (
        loads(dumps(closed)).supply(call.result("A")).conversation
        == closed.supply(call.result("A")).conversation
    )
    made = closed.supply(call.result("A")).conversation
    results = [block for block in made.turns[2].blocks if isinstance(block, ToolResult)]
    assert [(result.content, result.synthetic) for result in results[:1]] == [("A", None)]
    assert results[1].synthetic == "lost"
    assert refused(lambda: made.supply(call.result("again"))) == [("tool-result-once", "result")]
    assert refused(lambda: asked.supply(call.result("A"))) == [("tool-result-has-use", "result.tool_use_id")]
    assert refused(lambda: start("x").supply(call.result("A"))) == [
        ("tool-result-has-use", "result.tool_use_id")
    ]
    assert refused(lambda: closed.supply(cast("Any", None))) == [("field-type", "result")]


def test_a_late_result_voids_what_was_thought_after_the_made_one() -> None:
    call = ToolUse("a", "f", {})
    asked = start("x").receive(AssistantTurn([call], Origin()))
    assert isinstance(asked, AwaitingTools)
    convo = asked.close("lost").receive(Reply([Thinking("t", "s"), "y"], Origin(stop_reason="end_turn")))
    assert isinstance(convo, AwaitingUser)
    assert refused(lambda: convo.supply(call.result("A"))) == [
        ("thinking-prefix-bound", "turns[3].blocks[0]")
    ]
    edit = convo.supply(call.result("A"), on_thinking="strip_after")
    assert edit.voided == ("turns[3].blocks[0]",)


def test_what_a_history_without_origins_stood_behind_is_remembered_when_it_is_kept() -> None:
    convo = start("hi", tools=[LOOK]).assistant(thought(1), "Hi.")
    kept = convo.with_system("s", on_thinking="keep")
    assert [each.path for each in stale_thinking(kept.conversation, BOUND)] == ["turns[1].blocks[0]"]
    asked = kept.conversation.rewind(2)
    assert isinstance(asked, AwaitingUser)
    assert refused(lambda: to_request(asked.user("Well?"), BOUND)) == [(PREFIX, "turns[1].blocks[0]")]
    again = kept.conversation.map_text(str, on_thinking="strip_after")
    assert again.voided == kept.voided == ("turns[1].blocks[0]",)
    # An edit that is undone restores it.
    assert stale_thinking(kept.conversation.with_system(None).conversation, BOUND) == ()


@pytest.mark.parametrize(
    ("blocks", "voided", "stale"),
    [
        ([TWO, thought(3), Text("so")], ["turns[3].blocks[2]"], ["turns[3].blocks[1]"]),
        (
            [thought(3), TWO, thought(2), Text("so")],
            ["turns[3].blocks[2]", "turns[3].blocks[0]"],
            ["turns[3].blocks[0]", "turns[3].blocks[2]"],
        ),
        (
            [thought(2), thought(2), TWO, thought(3), Text("so")],
            ["turns[3].blocks[0]", "turns[3].blocks[2]"],
            ["turns[3].blocks[1]", "turns[3].blocks[3]"],
        ),
    ],
    ids=["taken out in the middle", "moved", "repeated"],
)
def test_thinking_that_is_rearranged_is_void(blocks: list[Any], voided: list[str], stale: list[str]) -> None:
    convo = two_rounds()
    turn = AssistantTurn(blocks, Origin(stop_reason="tool_use"))
    assert refused(lambda: convo.replace(3, turn)) == [(PREFIX, path) for path in voided]
    kept = convo.replace(3, turn, on_thinking="keep")
    assert list(kept.voided) == voided
    assert [each.path for each in stale_thinking(kept.conversation, BOUND)] == stale
    stripped = convo.replace(3, turn, on_thinking="strip_after").conversation
    assert stale_thinking(stripped, BOUND) == ()
    assert list(stripped.turns[3].blocks) == [
        block
        for at, block in enumerate(blocks)
        if not isinstance(block, Thinking) or f"turns[3].blocks[{at}]" not in stale
    ]


def test_a_fork_of_a_long_log_is_like_a_conversation_built_anew() -> None:
    convo = two_rounds()
    to_body(convo.user("more"), FREE, max_tokens=9)  # what is written is shared too
    tip = convo.user("more").assistant("Hi.", ToolUse("toolu_9", "look", {}))
    for length in range(len(tip.turns) + 1):
        branch = tip.rewind(length)
        again = conversation(branch.turns, tools=[LOOK])
        if isinstance(branch, AwaitingTools):
            one, two = branch.close("lost"), cast("AwaitingTools", again).close("lost")
        elif isinstance(branch, AwaitingUser):
            one, two = branch.user("fork"), cast("AwaitingUser", again).user("fork")
        else:
            one, two = branch.user("fork"), cast("AwaitingModel", again).user("fork")
        assert one == two
        assert one.digest == two.digest
        assert to_body(one, FREE, max_tokens=9) == to_body(two, FREE, max_tokens=9)
        free = "toolu_9" if length < 8 else "toolu_10"  # the branch knows nothing of what stands behind it
        assert isinstance(one.assistant(ToolUse(free, "look", {})), AwaitingTools)
    assert tip == conversation(tip.turns, tools=[LOOK])


@pytest.mark.parametrize("made", [None, 3, ["x"]])
def test_a_text_that_an_edit_makes_is_a_text(made: Any) -> None:
    convo = start("x", tools=[LOOK]).assistant(ONE)
    assert isinstance(convo, AwaitingTools)
    answered = convo.answer(ONE.result("found"))

    def change(text: str) -> str:
        return cast("str", made) if text == "found" else text

    assert refused(lambda: answered.map_text(change)) == [("field-type", "turns[2].blocks[0].content")]


@pytest.mark.parametrize("platform", ["deepseek", "kimi", "openrouter"])
def test_drop_block_goes_where_models_bind_thinking(platform: str) -> None:
    adaptive: Any = {"type": "adaptive"}
    assert refused(lambda: Target("m", adaptive, platform=platform, on_stale="drop_block")) == [
        ("field-value", "on_stale")
    ]


def test_a_write_that_was_broken_off_is_done_again() -> None:
    convo = two_rounds().user("more")
    whole = to_body(convo, FREE, max_tokens=9)
    (pieces, lasts) = convo._log.written[FREE.facts]
    del lasts[3:]  # as if an interrupt had come between the two
    assert to_body(convo, FREE, max_tokens=9) == whole
    assert len(pieces) == 2 * (len(lasts) - 1)


def test_a_container_that_no_turn_names_can_be_passed_along() -> None:
    origin = Origin(stop_reason="end_turn", container="container_1")
    convo = start("x").receive(AssistantTurn("y", origin))
    assert isinstance(convo, AwaitingUser)
    named = convo.user("z")
    assert json.loads(to_body(named, FREE, max_tokens=9))["container"] == "container_1"
    assert refused(lambda: to_body(named, FREE, max_tokens=9, container="container_2")) == [
        ("field-type", "container")
    ]
    compacted = named.compact("They talked.").conversation
    assert isinstance(compacted, AwaitingModel)
    assert compacted.container is None
    assert json.loads(to_body(compacted, FREE, container="container_1"))["container"] == "container_1"


def test_a_deferred_tool_counts_from_where_something_refers_to_it() -> None:
    later: Any = {"name": "later", "input_schema": {"type": "object"}, "defer_loading": True}
    changed: Any = {**later, "description": "Another one."}
    search = ServerToolUse("srvtoolu_1", "tool_search_tool_regex", {"pattern": "later"})
    names = {
        "type": "tool_search_tool_search_result",
        "tool_references": [{"type": "tool_reference", "tool_name": "later"}],
    }
    convo = conversation(
        [
            UserTurn("x"),
            AssistantTurn(
                [thought(1), search, ToolSearchToolResult("srvtoolu_1", names), thought(2), Text("y")]
            ),
        ],
        tools=[LOOK, later],
    )
    unused: Any = {**later, "name": "unused"}
    added = convo.with_tools([LOOK, later, unused])
    assert added.voided == ()
    assert added.conversation.binding == convo.binding
    assert added.conversation.digest != convo.digest
    assert (
        added.conversation.with_tools([later, unused, LOOK]).voided == ()
    )  # where a deferred tool stands says nothing
    assert convo.with_tools([LOOK, changed], on_thinking="keep").voided == ("turns[1].blocks[3]",)
    assert convo.with_tools([MORE, later], on_thinking="keep").voided == (
        "turns[1].blocks[0]",
        "turns[1].blocks[3]",
    )
    called = start("x", tools=[LOOK, later]).assistant(thought(1), ToolUse("a", "later", {}))
    assert isinstance(called, AwaitingTools)
    found = called.answer(ToolUse("a", "later", {}).result([ToolReference("later")]))
    assert found.with_tools([LOOK, later, unused]).voided == ()
