"""The state machine: every phase with every kind of turn, every stop reason, and what branches keep."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import attrs
import pytest

from convmodel import (
    AssistantBlock,
    AssistantTurn,
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    Conversation,
    ConvmodelError,
    Interrupted,
    InvalidReply,
    Origin,
    RedactedThinking,
    Reply,
    ServerToolUse,
    SystemTurn,
    Text,
    Thinking,
    ToolResult,
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
from convmodel.anthropic import to_messages
from convmodel.conversation import CLOSING, RECEIVED, STATE_OF, TABLE, Phase

Found = list[tuple[str, str]]
GOLDEN = Path(__file__).parent / "vectors" / "digests.json"

ASK = UserTurn("Is it warm?")
SAY = AssistantTurn("It is.")
TOLD = SystemTurn("Be brief.")
THOUGHT = Thinking("I look.", "c2ln")
CALL, CALL2 = ToolUse("toolu_1", "look", {"q": 1}), ToolUse("toolu_2", "look", {"q": 2})
SEARCH = ServerToolUse("srvtoolu_1", "web_search", {"query": "warm"})
FOUND = WebSearchToolResult("srvtoolu_1", [])
CALLS = AssistantTurn([THOUGHT, CALL, CALL2])
BOTH = UserTurn([CALL.result("1"), CALL2.result("2")])


def refused(act: Callable[[], object]) -> Found:
    with pytest.raises(ValidationError) as caught:
        act()
    return [(v.rule.id, v.path) for v in caught.value.violations]


# ---------------------------------------------------------------- phases and turns

TURNS: dict[Phase, tuple[Turn, ...]] = {
    Phase.EMPTY: (),
    Phase.DONE: (ASK, SAY),
    Phase.ASKED: (ASK,),
    Phase.INSTRUCTED: (ASK, TOLD),
    Phase.PAUSED: (ASK, AssistantTurn([SEARCH])),
    Phase.OWED: (ASK, AssistantTurn([SEARCH, CALL]), UserTurn([CALL.result("1")])),
    Phase.CALLED: (ASK, CALLS),
    Phase.PARTLY: (ASK, CALLS, UserTurn([CALL.result("1")])),
}
NEXT: dict[str, Turn] = {
    "user": UserTurn("And now?"),
    "results": UserTurn([CALL2.result("2")]),
    "assistant": AssistantTurn("So it is."),
    "system": SystemTurn("Be briefer."),
}
# What follows where the table lets a turn come.
AFTER = {
    (Phase.EMPTY, "user"): Phase.ASKED,
    (Phase.EMPTY, "assistant"): Phase.DONE,
    (Phase.DONE, "user"): Phase.ASKED,
    (Phase.DONE, "assistant"): Phase.DONE,
    (Phase.ASKED, "user"): Phase.ASKED,
    (Phase.ASKED, "assistant"): Phase.DONE,
    (Phase.ASKED, "system"): Phase.INSTRUCTED,
    (Phase.INSTRUCTED, "assistant"): Phase.DONE,
    (Phase.INSTRUCTED, "system"): Phase.INSTRUCTED,
    (Phase.PAUSED, "assistant"): Phase.PAUSED,
    (Phase.OWED, "assistant"): Phase.PAUSED,
    (Phase.CALLED, "results"): Phase.PARTLY,
    (Phase.CALLED, "assistant"): Phase.CALLED,
    (Phase.PARTLY, "results"): Phase.ASKED,
}
# Where the fault of a refused turn is found, if not at the turn itself.
FAULT_AT = {
    (Phase.INSTRUCTED, "user"): ["turns[1]"],
    (Phase.INSTRUCTED, "results"): ["turns[1]", "turns[2].blocks[0].tool_use_id"],
    (Phase.PAUSED, "user"): ["turns[1].blocks[0]"],
    (Phase.CALLED, "user"): ["turns[1].blocks[1]", "turns[1].blocks[2]"],
    (Phase.PARTLY, "user"): ["turns[1].blocks[2]"],
    (Phase.PARTLY, "assistant"): ["turns[1].blocks[2]"],
}


def test_the_table_has_every_phase_and_every_kind_of_turn() -> None:
    assert {(phase, kind) for phase, row in TABLE.items() for kind in row} == set(
        itertools.product(Phase, NEXT)
    )
    assert TURNS.keys() == set(Phase) == STATE_OF.keys()
    assert AFTER.keys() == {
        (phase, kind) for phase, row in TABLE.items() for kind, rule in row.items() if not rule
    }


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.name)
def test_each_phase_is_reached_and_has_its_class(phase: Phase) -> None:
    convo = conversation(TURNS[phase])
    assert convo._state.phase is phase
    assert type(convo) is STATE_OF[phase]


@pytest.mark.parametrize(
    ("phase", "kind"), list(itertools.product(Phase, NEXT)), ids=lambda each: getattr(each, "name", each)
)
def test_a_turn_follows_where_the_table_lets_it_and_is_refused_under_its_rule_elsewhere(
    phase: Phase, kind: str
) -> None:
    turns = (*TURNS[phase], NEXT[kind])
    rule = cast("Any", TABLE[phase])[kind]
    if rule is None:
        after = conversation(turns)
        assert (after._state.phase, type(after)) == (AFTER[phase, kind], STATE_OF[AFTER[phase, kind]])
        return
    at = f"turns[{len(turns) - 1}]" + (".blocks[0].tool_use_id" if kind == "results" else "")
    paths = FAULT_AT.get((phase, kind), [at])
    found = refused(lambda: conversation(turns))
    assert found[0] == (rule.id, paths[0])
    assert [path for _, path in found] == paths
    if (phase, kind) != (Phase.INSTRUCTED, "results"):
        assert {id for id, _ in found} == {rule.id}


def test_a_system_turn_may_follow_the_result_of_a_server_tool() -> None:
    served = AssistantTurn([SEARCH, FOUND])
    assert conversation([ASK, served, TOLD])._state.phase is Phase.INSTRUCTED


def test_a_pause_in_which_the_service_used_no_tool_cannot_be_resumed() -> None:
    paused = AssistantTurn("Let me see.", Origin(stop_reason="pause_turn"))
    assert type(conversation([ASK, paused])) is AwaitingUser


def test_the_user_may_go_on_after_a_pause_that_left_no_call_unfinished() -> None:
    paused = AssistantTurn([SEARCH, FOUND, Text("Let me see.")], Origin(stop_reason="pause_turn"))
    assert type(conversation([ASK, paused])) is AwaitingModel
    assert type(conversation([ASK, paused, UserTurn("Well?")])) is AwaitingModel


CLASSES: list[type[Conversation]] = [AwaitingUser, AwaitingModel, AwaitingTools]


@pytest.mark.parametrize(
    ("phase", "cls"), list(itertools.product(Phase, CLASSES)), ids=lambda each: getattr(each, "name", each)
)
def test_only_the_class_that_the_turns_make_can_be_constructed(phase: Phase, cls: type[Conversation]) -> None:
    if cls is STATE_OF[phase]:
        assert cls(TURNS[phase]) == conversation(TURNS[phase])
    else:
        assert refused(lambda: cls(TURNS[phase])) == [("conversation-state", "turns")]


# ---------------------------------------------------------------- moves

MOVES = {
    AwaitingUser: {"user", "assistant"},
    AwaitingModel: {"receive", "user", "system", "assistant", "abandon"},
    AwaitingTools: {"answer", "answer_one", "close"},
}
EVERYWHERE = {
    "binding",
    "container",
    "digest",
    "extends",
    "first_difference",
    "last_text",
    "open_calls",
    "preamble",
    "rewind",
    "turns",
    # the edits
    "clear_tool_results",
    "common_prefix",
    "compact",
    "drop_rounds",
    "map_text",
    "map_tool_inputs",
    "redact",
    "replace",
    "strip_thinking",
    "supply",
    "with_system",
    "with_tools",
}


@pytest.mark.parametrize("cls", CLASSES)
def test_a_state_has_its_own_moves_and_no_other(cls: type[Conversation]) -> None:
    assert {name for name in dir(cls) if not name.startswith("_")} == MOVES[cls] | EVERYWHERE


def test_the_moves_build_what_the_turns_build() -> None:
    convo: Conversation = start(*ASK.blocks)
    assert isinstance(convo, AwaitingModel)
    convo = convo.system("Be brief.").assistant(*CALLS.blocks)
    assert isinstance(convo, AwaitingTools)
    assert convo.open_calls == (CALL, CALL2)
    answered = convo.answer([CALL2.result("2"), CALL.result("1")], then="So?")
    turns: list[Turn] = [ASK, TOLD, CALLS, UserTurn([CALL2.result("2"), CALL.result("1"), "So?"])]
    assert answered == conversation(turns)
    assert answered.open_calls == ()
    assert answered.assistant("Yes.").last_text == "Yes."
    assert answered.last_text == ""


def test_partial_answers_are_turns_of_their_own_and_one_message() -> None:
    convo = start("hi").assistant(*CALLS.blocks)
    assert isinstance(convo, AwaitingTools)
    partly = convo.answer_one(CALL2.result("2"))
    assert isinstance(partly, AwaitingTools)
    assert partly.open_calls == (CALL,)
    whole = partly.answer_one(CALL.result("1"))
    assert isinstance(whole, AwaitingModel)
    assert len(whole.turns) == 4
    written: list[Any] = to_messages(whole)
    assert [len(message["content"]) for message in written] == [1, 3, 2]


def test_answer_takes_one_result_an_iterable_or_a_generator() -> None:
    one = conversation([ASK, AssistantTurn([CALL])])
    assert isinstance(one, AwaitingTools)
    expected = conversation([ASK, AssistantTurn([CALL]), UserTurn([CALL.result("1")])])
    assert one.answer(CALL.result("1")) == one.answer([CALL.result("1")]) == expected
    assert one.answer(call.result("1") for call in one.open_calls) == expected


def test_answer_names_each_open_call_that_it_leaves_open() -> None:
    convo = conversation(TURNS[Phase.CALLED])
    assert isinstance(convo, AwaitingTools)
    assert refused(lambda: convo.answer([])) == [
        ("tool-use-answered-next", "turns[1].blocks[1]"),
        ("tool-use-answered-next", "turns[1].blocks[2]"),
    ]
    assert refused(lambda: convo.answer(CALL2.result("2"))) == [
        ("tool-use-answered-next", "turns[1].blocks[1]")
    ]
    wrong: Any = ["1", "2"]
    assert refused(lambda: convo.answer(wrong)) == [
        ("field-type", "results[0]"),
        ("field-type", "results[1]"),
    ]
    extra = [CALL.result("1"), CALL2.result("2"), ToolResult("toolu_9")]
    assert refused(lambda: convo.answer(extra)) == [("tool-result-has-use", "turns[2].blocks[2].tool_use_id")]


@pytest.mark.parametrize("reason", ["interrupted", "not_run", "lost"])
def test_close_answers_what_is_open_with_marked_errors(reason: Any) -> None:
    convo = conversation(TURNS[Phase.PARTLY])
    assert isinstance(convo, AwaitingTools)
    closed = convo.close(reason)
    made = ToolResult("toolu_2", CLOSING[reason], is_error=True, synthetic=reason)
    assert closed.turns[-1] == UserTurn([made])
    assert cast("Any", to_messages(closed))[-1]["content"][-1] == {
        "type": "tool_result",
        "tool_use_id": "toolu_2",
        "content": CLOSING[reason],
        "is_error": True,
    }


def test_close_takes_no_other_reason() -> None:
    convo = conversation(TURNS[Phase.CALLED])
    assert isinstance(convo, AwaitingTools)
    assert refused(lambda: convo.close(cast("Any", "bored"))) == [("field-value", "reason")]


# ---------------------------------------------------------------- replies

REASONS = {
    "end_turn": ("AwaitingUser", "Interrupted"),
    "stop_sequence": ("AwaitingUser", "Interrupted"),
    "tool_use": ("AwaitingUser", "AwaitingTools"),
    "pause_turn": ("AwaitingUser", "AwaitingTools"),  # without a server tool there is nothing to resume
    "max_tokens": ("Interrupted", "Interrupted"),
    "model_context_window_exceeded": ("Interrupted", "Interrupted"),
    "refusal": ("Interrupted", "Interrupted"),
    "compaction": ("AwaitingUser", "Interrupted"),  # a reason that is not known
    None: ("AwaitingUser", "AwaitingTools"),
}


def test_the_table_of_replies_has_every_reason_of_the_sdk_and_the_unknown_ones_are_tested() -> None:
    from typing import get_args

    from anthropic.types import StopReason

    assert set(get_args(StopReason)) <= RECEIVED.keys() <= REASONS.keys()
    assert REASONS.keys() - RECEIVED.keys() == {"compaction"}


@pytest.mark.parametrize(("reason", "with_calls"), list(itertools.product(REASONS, [False, True])))
def test_what_a_reply_becomes_follows_from_its_stop_reason_and_its_calls(
    reason: str | None, with_calls: bool
) -> None:
    before = start("hi")
    blocks: list[AssistantBlock] = [THOUGHT, Text("I see."), *([CALL] if with_calls else [])]
    outcome = before.receive(Reply(blocks, Origin(stop_reason=reason)))
    assert type(outcome).__name__ == REASONS[reason][with_calls]
    if not isinstance(outcome, Interrupted):
        turn = outcome.turns[-1]
        assert isinstance(turn, AssistantTurn)
        assert list(turn.blocks) == blocks
        assert turn.origin == Origin(stop_reason=reason, prefix=before.binding)
        return
    assert (outcome.reason, outcome.conversation) == (reason, before)
    if reason == "refusal":
        assert (outcome.kept, outcome.lost) == (None, tuple(blocks))
    else:
        origin = Origin(stop_reason=reason, prefix=before.binding)
        assert (outcome.kept, outcome.lost) == (AssistantTurn(blocks[:2], origin), tuple(blocks[2:]))


def test_an_interrupted_reply_is_discarded_kept_or_resumed() -> None:
    before = start("hi")
    cut = before.receive(Reply(["It is", CALL], Origin(stop_reason="max_tokens")))
    assert isinstance(cut, Interrupted)
    kept = AssistantTurn(["It is"], Origin(stop_reason="max_tokens", prefix=before.binding))
    assert cut.discard() == before
    assert cut.keep() == conversation([UserTurn("hi"), kept])
    assert cut.resume("Go on.") == conversation([UserTurn("hi"), kept, UserTurn("Go on.")])
    assert before == start("hi")


def test_nothing_is_kept_of_a_refusal() -> None:
    before = start("hi")
    for blocks in ([], [Text("I can")]):
        refusal = before.receive(Reply(blocks, Origin(stop_reason="refusal")))
        assert isinstance(refusal, Interrupted)
        assert (refusal.reason, refusal.kept, refusal.lost) == ("refusal", None, tuple(blocks))
        with pytest.raises(ConvmodelError, match="nothing of this reply can be kept"):
            refusal.keep()
        assert refusal.resume("Then this?") == before.user("Then this?")


@pytest.mark.parametrize(
    ("blocks", "reason", "kept"),
    [
        pytest.param([THOUGHT], "end_turn", 0, id="thinking alone"),
        pytest.param([RedactedThinking("eA==")], "end_turn", 0, id="redacted thinking alone"),
        pytest.param([Text("a"), THOUGHT], "end_turn", 1, id="thinking last"),
        pytest.param([Text("a"), THOUGHT, CALL], "max_tokens", 1, id="thinking before a call"),
        pytest.param([CALL, Text("a")], "max_tokens", 0, id="text behind a call"),
        pytest.param([Text("a"), SEARCH], "max_tokens", 1, id="an unfinished server call"),
        pytest.param([SEARCH, FOUND, Text("a"), CALL], "max_tokens", 3, id="a finished server call"),
        pytest.param([Text(" "), CALL], "max_tokens", 0, id="only whitespace"),
        pytest.param([Text("a"), Text(""), Text("b")], "max_tokens", 1, id="an empty text block"),
        pytest.param([], "max_tokens", 0, id="nothing at all"),
    ],
)
def test_what_is_kept_is_the_longest_beginning_that_is_a_turn(
    blocks: list[Any], reason: str, kept: int
) -> None:
    outcome = start("hi").receive(Reply(blocks, Origin(stop_reason=reason)))
    assert isinstance(outcome, Interrupted)
    assert (() if outcome.kept is None else outcome.kept.blocks) == tuple(blocks[:kept])
    assert outcome.lost == tuple(blocks[kept:])
    assert outcome.reason == ("thinking_last" if reason == "end_turn" else reason)


def test_a_reply_that_ended_before_it_was_whole_is_interrupted_whatever_its_reason() -> None:
    for reason in (None, "end_turn"):
        outcome = start("hi").receive(Reply(["It", CALL], Origin(stop_reason=reason), complete=False))
        assert isinstance(outcome, Interrupted)
        assert (outcome.reason, outcome.lost) == ("incomplete", (CALL,))


def test_unsigned_thinking_may_end_a_reply() -> None:
    reply = Reply([UnsignedThinking("hm")], Origin(vendor="deepseek", stop_reason="end_turn"))
    assert isinstance(start("hi").receive(reply), AwaitingUser)


def test_a_pause_goes_on_with_the_next_reply() -> None:
    paused = start("hi").receive(Reply([SEARCH], Origin(stop_reason="pause_turn")))
    assert isinstance(paused, AwaitingModel)
    assert refused(lambda: paused.user("Well?")) == [("server-use-has-result", "turns[1].blocks[0]")]
    done = paused.receive(Reply([FOUND, Text("So.")], Origin(stop_reason="end_turn")))
    assert isinstance(done, AwaitingUser)
    assert done.last_text == "So."


def test_a_cut_reply_after_a_pause_is_kept_from_the_result_on_that_finishes_the_server_call() -> None:
    paused = start("hi").receive(Reply([Text("I look."), SEARCH], Origin(stop_reason="pause_turn")))
    assert isinstance(paused, AwaitingModel)
    cut = paused.receive(Reply([FOUND, Text("So")], Origin(stop_reason="max_tokens")))
    assert isinstance(cut, Interrupted)
    assert cut.kept is not None
    assert cut.kept.blocks == (FOUND, Text("So"))
    assert [turn.text for turn in cut.resume("Go on.").turns] == ["hi", "I look.", "So", "Go on."]


def test_a_cut_reply_that_leaves_the_server_call_unfinished_keeps_nothing_and_can_be_abandoned() -> None:
    paused = start("hi").receive(Reply([Text("I look."), SEARCH], Origin(stop_reason="pause_turn")))
    assert isinstance(paused, AwaitingModel)
    cut = paused.receive(Reply([Text("So")], Origin(stop_reason="max_tokens")))
    assert isinstance(cut, Interrupted)
    assert (cut.kept, cut.lost) == (None, (Text("So"),))
    assert [turn.text for turn in cut.resume("Go on.").turns] == ["hi", "I look.", "Go on."]
    given_up = cut.discard().abandon()
    assert isinstance(given_up, AwaitingUser)
    assert given_up.last_text == "I look."


def test_what_stands_behind_a_missing_block_is_not_kept() -> None:
    reply = Reply([Text("a"), THOUGHT, Text("b")], Origin(), complete=False, unbroken=1)
    cut = start("hi").receive(reply)
    assert isinstance(cut, Interrupted)
    assert cut.kept is not None
    assert (cut.kept.blocks, cut.lost) == ((Text("a"),), (THOUGHT, Text("b")))


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("max_tokens", "max_tokens"),
        ("model_context_window_exceeded", "model_context_window_exceeded"),
        ("refusal", "refusal"),
        ("pause_turn", "incomplete"),
        ("tool_use", "incomplete"),
        ("end_turn", "incomplete"),
        (None, "incomplete"),
    ],
)
def test_an_incomplete_reply_is_cut_for_the_stop_reason_if_that_says_so(reason: str | None, why: str) -> None:
    cut = start("hi").receive(Reply([Text("a")], Origin(stop_reason=reason), complete=False))
    assert isinstance(cut, Interrupted)
    assert cut.reason == why


def test_a_reply_that_breaks_a_rule_is_an_error_that_carries_it() -> None:
    before = start("hi").assistant(CALL)
    assert isinstance(before, AwaitingTools)
    reply = Reply([CALL], Origin(stop_reason="tool_use"))
    with pytest.raises(InvalidReply) as caught:
        before.answer(CALL.result("1")).receive(reply)
    assert caught.value.reply is reply
    assert [(v.rule.id, v.path) for v in caught.value.violations] == [
        ("tool-use-id-unique", "turns[3].blocks[0].id")
    ]
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.reply, again.violations) == (reply, caught.value.violations)


def test_another_vendor_may_repeat_ids_which_are_then_renamed() -> None:
    first = start("hi").assistant(CALL)
    assert isinstance(first, AwaitingTools)
    twice = Reply([CALL, CALL2, CALL2], Origin(vendor="kimi", stop_reason="tool_use"))
    second = first.answer(CALL.result("1")).receive(twice)
    assert isinstance(second, AwaitingTools)
    assert [call.id for call in second.open_calls] == ["toolu_1_2", "toolu_2", "toolu_2_2"]


def test_receive_refuses_what_is_no_reply() -> None:
    with pytest.raises(InvalidReply) as caught:
        start("hi").receive(cast("Any", "Hello."))
    assert [(v.rule.id, v.path) for v in caught.value.violations] == [("field-type", "reply")]


# ---------------------------------------------------------------- abandon, rewind


@pytest.mark.parametrize(
    ("turns", "after"),
    [
        pytest.param([ASK], [ASK], id="nothing is unfinished"),
        pytest.param([ASK, AssistantTurn([SEARCH])], [ASK], id="a turn that holds nothing else"),
        pytest.param(
            [ASK, AssistantTurn([THOUGHT, Text("a"), SEARCH])],
            [ASK, AssistantTurn([THOUGHT, Text("a")])],
            id="what stands before it stays",
        ),
        pytest.param([ASK, AssistantTurn([THOUGHT, SEARCH])], [ASK], id="thinking alone is no turn"),
        pytest.param(
            [ASK, AssistantTurn([SEARCH, THOUGHT, CALL]), UserTurn([CALL.result("1")])],
            [ASK, AssistantTurn([CALL]), UserTurn([CALL.result("1")])],
            id="answers stay, thinking behind it goes",
        ),
        pytest.param(
            [ASK, AssistantTurn([SEARCH, FOUND], Origin(model="m", stop_reason="pause_turn"))],
            [ASK, AssistantTurn([SEARCH, FOUND], Origin(model="m"))],
            id="a pause without an unfinished call is forgotten",
        ),
        pytest.param(
            [
                ASK,
                AssistantTurn([SEARCH], Origin(stop_reason="pause_turn")),
                AssistantTurn("a", Origin(stop_reason="pause_turn")),
            ],
            [ASK, AssistantTurn("a", Origin())],
            id="a pause that was resumed",
        ),
    ],
)
def test_abandon_drops_the_unfinished_server_call(turns: list[Turn], after: list[Turn]) -> None:
    before = conversation(turns)
    assert isinstance(before, AwaitingModel)
    assert before.abandon() == conversation(after)
    assert before == conversation(turns)


def test_rewind_keeps_the_first_turns() -> None:
    turns: list[Turn] = [ASK, CALLS, BOTH, SAY, ASK]
    convo = conversation(turns, system="s")
    for length in range(len(turns) + 1):
        back = convo.rewind(length)
        assert back == conversation(turns[:length], system="s")
        assert back.digest == conversation(turns[:length], system="s").digest
    for length in (-1, len(turns) + 1):
        with pytest.raises(
            ValueError, match=rf"length: {length}\. Pass a number from 0 to 5\. \[field-value\]"
        ):
            convo.rewind(length)


# ---------------------------------------------------------------- values


def test_forks_from_one_parent_keep_working_and_leave_it_unchanged() -> None:
    parent = start("hi").assistant("Hello.")
    assert isinstance(parent, AwaitingUser)
    before = (parent.digest, parent.binding, tuple(parent.turns), to_messages(parent))
    left, right = parent.user("left"), parent.user("right")
    for _ in range(3):
        left, right = left.user("more left"), right.user("more right")
    assert left == conversation([*parent.turns, *map(UserTurn, ["left", *["more left"] * 3])])
    assert right == conversation([*parent.turns, *map(UserTurn, ["right", *["more right"] * 3])])
    assert (parent.digest, parent.binding, tuple(parent.turns), to_messages(parent)) == before
    assert left.extends(parent)
    assert right.extends(parent)
    assert not left.extends(right)
    assert left.first_difference(right) == "turns[2].blocks[0]"


def test_a_call_of_one_branch_takes_no_id_from_another() -> None:
    parent = start("hi")
    for _ in range(2):
        branch = parent.assistant(CALL)
        assert isinstance(branch, AwaitingTools)
        assert branch.answer(CALL.result("1")).assistant(CALL2).open_calls == (CALL2,)


def test_many_threads_append_to_one_parent_at_once() -> None:
    parent = start("hi").assistant("Hello.")
    assert isinstance(parent, AwaitingUser)
    threads, rounds = 16, 40
    barrier = threading.Barrier(threads)
    got: list[AwaitingModel | None] = [None] * threads

    def run(name: int) -> None:
        barrier.wait()
        for n in range(rounds):
            convo = parent.user(f"{name}-{n}").user(f"{name}-{n}-more")
            assert (convo.digest, len(to_messages(convo))) == (convo.rewind(4).digest, 4)
            got[name] = convo

    pool = [threading.Thread(target=run, args=(name,)) for name in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    last = rounds - 1
    for name, convo in enumerate(got):
        expected = conversation([*parent.turns, UserTurn(f"{name}-{last}"), UserTurn(f"{name}-{last}-more")])
        assert convo == expected
        assert convo is not None
        assert (convo.digest, convo.binding) == (expected.digest, expected.binding)
        assert to_messages(convo) == to_messages(expected)
    assert parent == conversation([UserTurn("hi"), AssistantTurn("Hello.")])


def test_a_reply_of_another_vendor_is_received_while_other_threads_append() -> None:
    before = conversation([ASK, AssistantTurn([CALL]), UserTurn([CALL.result("1")])])
    assert isinstance(before, AwaitingModel)
    reply = Reply([CALL], Origin(vendor="kimi", stop_reason="tool_use"))

    def grow() -> None:
        convo = before
        for n in range(500):
            called = convo.assistant(ToolUse(f"call_{n}", "look", {}))
            assert isinstance(called, AwaitingTools)
            convo = called.answer(ToolResult(f"call_{n}"))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread = threading.Thread(target=grow)
        thread.start()
        while thread.is_alive():
            received = before.receive(reply)
            assert isinstance(received, AwaitingTools)
            assert [call.id for call in received.open_calls] == ["toolu_1_2"]
        thread.join()
    finally:
        sys.setswitchinterval(interval)


def test_conversations_are_values() -> None:
    convo = conversation([ASK, CALLS, BOTH], system="s", tools=[{"name": "look", "input_schema": {}}])
    same = conversation([ASK, CALLS, BOTH], system="s", tools=[{"name": "look", "input_schema": {}}])
    assert convo == same
    assert hash(convo) == hash(same)
    assert convo != conversation([ASK, CALLS, BOTH], system="s")
    assert convo != conversation([ASK, CALLS, BOTH], system="t", tools=convo.preamble.tools)
    assert copy.copy(convo) is copy.deepcopy(convo) is convo
    again = pickle.loads(pickle.dumps(convo))
    assert again == convo
    assert (type(again), again.digest, to_messages(again)) == (type(convo), convo.digest, to_messages(convo))
    changes: list[Callable[[], object]] = [
        lambda: setattr(convo, "turns", ()),
        lambda: setattr(convo, "x", 1),
        lambda: delattr(convo, "_log"),
    ]
    for change in changes:
        with pytest.raises((attrs.exceptions.FrozenInstanceError, AttributeError)):
            change()
    assert not hasattr(convo, "__dict__")
    assert convo != 1


def test_turns_are_an_immutable_sequence() -> None:
    turns = conversation([ASK, SAY, ASK]).turns
    assert (len(turns), turns[0], turns[-1], turns[1:]) == (3, ASK, ASK, (SAY, ASK))
    assert turns == (ASK, SAY, ASK)
    assert list(reversed(turns)) == [ASK, SAY, ASK]
    assert SAY in turns
    for index in (3, -4):
        with pytest.raises(IndexError):
            turns[index]
    with pytest.raises(TypeError):
        cast("Any", turns)[0] = SAY


def test_the_order_of_keys_counts_on_the_wire_and_in_digests_but_not_in_equality() -> None:
    one, other = VARIANTS["tools"], VARIANTS["tools in another order of keys"]
    assert one == other
    assert hash(one) == hash(other)
    assert one.first_difference(other) == "preamble.tools"
    assert not one.extends(other)
    assert one.digest != other.digest


def test_a_conversation_shows_its_class_length_and_last_turn_only() -> None:
    convo = conversation([ASK, AssistantTurn([ToolUse("toolu_1", "login", {"password": "hunter2"})])])
    assert repr(convo) == (
        "AwaitingTools(<2 turns>, "
        "last=AssistantTurn([ToolUse('toolu_1', 'login', input=JsonObject(<1 key>))]))"
    )
    assert repr(empty()) == "AwaitingUser(<0 turns>)"


def test_what_is_no_turn_is_refused_with_its_place() -> None:
    assert refused(lambda: conversation([ASK, cast("Any", "hi")])) == [("field-type", "turns[1]")]


# ---------------------------------------------------------------- digests


def split(*sizes: int) -> Conversation:
    """A round whose three results are split into turns of these sizes."""
    calls = [ToolUse(f"toolu_{n}", "look", {}) for n in range(3)]
    results = iter([call.result(str(n)) for n, call in enumerate(calls)])
    turns = [UserTurn(itertools.islice(results, size)) for size in sizes]
    return conversation([ASK, AssistantTurn(calls), *turns, SAY])


def test_digests_do_not_depend_on_how_results_were_split() -> None:
    ways = [split(3), split(1, 2), split(2, 1), split(1, 1, 1)]
    assert {convo.digest for convo in ways} == {split(3).digest}
    assert {convo.binding for convo in ways} == {split(3).binding}
    assert [to_messages(convo) for convo in ways] == [to_messages(split(3))] * 4


BASE: list[Turn] = [ASK, AssistantTurn([THOUGHT, Text("a")], Origin(model="m"))]
VARIANTS: dict[str, Conversation] = {
    "base": conversation(BASE),
    "system": conversation(BASE, system="s"),
    "tools": conversation(BASE, tools=[{"name": "look", "input_schema": {"a": 1, "b": 2}}]),
    "tools in another order of keys": conversation(
        BASE, tools=[{"name": "look", "input_schema": {"b": 2, "a": 1}}]
    ),
    "one turn less": conversation(BASE[:1]),
    "text": conversation([UserTurn("Is it cold?"), BASE[1]]),
    "two blocks": conversation([UserTurn(["Is it ", "warm?"]), BASE[1]]),
    "two turns": conversation([UserTurn("Is it "), UserTurn("warm?"), BASE[1]]),
    "signature": conversation(
        [ASK, AssistantTurn([Thinking("I look.", "c2lm"), Text("a")], Origin(model="m"))]
    ),
    "origin": conversation([ASK, AssistantTurn([THOUGHT, Text("a")], Origin(model="n"))]),
    "no origin": conversation([ASK, AssistantTurn([THOUGHT, Text("a")])]),
    "an empty turn": conversation([ASK, AssistantTurn([]), BASE[1]]),
    "a result": conversation([ASK, AssistantTurn([CALL]), UserTurn([CALL.result("1")])]),
    "a result made by close": conversation(
        [ASK, AssistantTurn([CALL]), UserTurn([ToolResult("toolu_1", "1", synthetic="lost")])]
    ),
    "a number as float": conversation([ASK, AssistantTurn([ToolUse("toolu_1", "look", {"q": 1.0})])]),
    "a number as integer": conversation([ASK, AssistantTurn([ToolUse("toolu_1", "look", {"q": 1})])]),
}


def test_conversations_that_differ_in_anything_have_different_digests() -> None:
    digests = {name: convo.digest for name, convo in VARIANTS.items()}
    assert len(set(digests.values())) == len(digests)


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations(VARIANTS, 2)))
def test_equal_digests_mean_equal_wire_data(a: str, b: str) -> None:
    one, other = VARIANTS[a], VARIANTS[b]
    if to_messages(one) != to_messages(other) or one.preamble != other.preamble:
        assert one.digest != other.digest


def test_the_binding_covers_all_but_thinking_origins_and_where_turns_end() -> None:
    base = VARIANTS["base"].binding
    same = {name for name, convo in VARIANTS.items() if convo.binding == base}
    assert same == {"base", "signature", "origin", "no origin", "an empty turn"}
    assert VARIANTS["two blocks"].binding == VARIANTS["two turns"].binding


def test_digests_are_what_they_were_when_they_were_first_released() -> None:
    golden = json.loads(GOLDEN.read_text("utf-8"))
    assert {name: [convo.digest, convo.binding] for name, convo in VARIANTS.items()} == golden


def test_a_reply_remembers_what_it_answered() -> None:
    before = start("hi", system="s")
    after = before.receive(Reply(["Hello."], Origin(stop_reason="end_turn")))
    assert isinstance(after, AwaitingUser)
    turn = after.turns[-1]
    assert isinstance(turn, AssistantTurn)
    assert turn.origin == Origin(stop_reason="end_turn", prefix=before.binding)
    known = Origin(stop_reason="end_turn", prefix="b0:other")
    other = before.receive(AssistantTurn("Hello.", known))
    assert isinstance(other, AwaitingUser)
    assert other.turns[-1] == AssistantTurn("Hello.", known)


def test_extends_tells_whether_another_conversation_is_an_earlier_point_of_this_one() -> None:
    turns: list[Turn] = [
        ASK,
        CALLS,
        UserTurn([CALL.result("1")]),
        UserTurn([CALL2.result("2")]),
        AssistantTurn([]),
        SAY,
    ]
    whole = conversation(turns)
    for length in range(len(turns) + 1):
        part = conversation(turns[:length])
        assert whole.extends(part)
        assert part.extends(whole) == (length == len(turns))
    assert conversation([ASK, CALLS, BOTH, SAY]).extends(conversation([ASK, CALLS, BOTH]))
    assert not whole.extends(conversation(turns[:3], system="s"))
    assert not whole.extends(conversation([UserTurn("Is it cold?")]))


@pytest.mark.parametrize(
    ("other", "place"),
    [
        ("base", None),
        ("system", "preamble.system"),
        ("tools", "preamble.tools"),
        ("one turn less", "turns[1]"),
        ("text", "turns[0].blocks[0]"),
        ("two blocks", "turns[0].blocks[0]"),
        ("signature", "turns[1].blocks[0]"),
        ("origin", "turns[1].origin"),
        ("no origin", "turns[1].origin"),
        ("an empty turn", "turns[1].blocks[0]"),
    ],
)
def test_first_difference_names_the_place_from_both_sides(other: str, place: str | None) -> None:
    assert VARIANTS["base"].first_difference(VARIANTS[other]) == place
    assert VARIANTS[other].first_difference(VARIANTS["base"]) == place


def test_first_difference_finds_a_turn_of_another_party() -> None:
    assert conversation([ASK, SAY]).first_difference(conversation([ASK, ASK])) == "turns[1]"


def test_first_difference_is_none_exactly_for_equal_conversations() -> None:
    others = [convo for name, convo in VARIANTS.items() if name != "tools in another order of keys"]
    for one, other in itertools.combinations([*others, split(3), split(1, 2)], 2):
        assert one != other
        assert one.first_difference(other) is not None
        assert one.first_difference(one) is None


@pytest.mark.parametrize("move", ["append", "digest", "extends", "difference", "messages"])
def test_a_log_that_someone_is_changing_is_neither_waited_for_nor_touched(move: str) -> None:
    parent = start("hi").assistant("Hello.")
    same = start("hi").assistant("Hello.")
    assert isinstance(parent, AwaitingUser)
    assert isinstance(same, AwaitingUser)
    log = parent._log
    before = (len(log.turns), len(log.chains), dict(log.written))
    log.lock.acquire()  # what a signal handler, another thread or a forked child may find
    try:
        match move:
            case "append":
                assert parent.user("a").turns[-1] == UserTurn("a")
            case "digest":
                assert parent.digest == same.digest
            case "extends":
                assert parent.extends(start("hi"))
            case "difference":
                assert parent.first_difference(start("ho").assistant("Hello.")) == "turns[0].blocks[0]"
            case _:
                assert to_messages(parent) == to_messages(same)
        assert (len(log.turns), len(log.chains)) == before[:2]
        assert all(pieces == [] for pieces, _ in log.written.values())
    finally:
        log.lock.release()
    assert parent.user("b").digest == same.user("b").digest
