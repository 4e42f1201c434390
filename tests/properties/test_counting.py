"""The cost of a move is that of what is new: counted, not timed."""

from __future__ import annotations

from typing import Any

import pytest

from convmodel import (
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    Conversation,
    Origin,
    Reply,
    Text,
    ToolUse,
    conversation,
    declared,
)
from convmodel import log as logs
from convmodel import turns as turns_module
from convmodel.anthropic import check, parse, to_body, write
from convmodel.log import Log
from convmodel.machine import Calls

from .common import TARGET, Json

TOOL = {"name": "f", "input_schema": {"type": "object"}}


class Watched(list[Any]):
    """A list that counts how often its items are read."""

    reads = 0

    def __getitem__(self, at: Any) -> Any:
        self.reads += len(range(*at.indices(len(self)))) if isinstance(at, slice) else 1
        return super().__getitem__(at)

    def __iter__(self) -> Any:
        self.reads += len(self)
        return super().__iter__()


def rounds(count: int) -> AwaitingModel:
    """A conversation of so many rounds, each a call and its result."""
    convo: Conversation = conversation([], tools=[TOOL])
    for n in range(count):
        assert isinstance(convo, AwaitingUser)
        asked = convo.user("Go on.").receive(reply(f"call_{n}"))
        assert isinstance(asked, AwaitingTools)
        convo = asked.close("lost").assistant("Done.")
    assert isinstance(convo, AwaitingUser)
    return convo.user("And now?")


def reply(id: str) -> Reply:
    return Reply([Text("So."), ToolUse(id, "f", {"n": 1})], Origin(stop_reason="tool_use"))


def watch(convo: Conversation) -> Watched:
    log: Log = convo._log
    log.turns = watched = Watched(log.turns)
    return watched


@pytest.mark.parametrize("count", [5, 100])
def test_a_move_and_its_digest_read_no_earlier_turn(count: int) -> None:
    convo = rounds(count)
    assert convo.digest
    watched = watch(convo)
    asked = convo.receive(reply("new"))
    assert isinstance(asked, AwaitingTools)
    answered = asked.answer_one(asked.open_calls[0].result("ok"))
    assert answered.digest
    assert answered.binding
    assert answered.open_calls == ()
    assert answered._log.turns is watched
    assert watched.reads <= 6


@pytest.mark.parametrize("count", [5, 100])
def test_a_digest_hashes_new_blocks_alone(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    convo = rounds(count)
    assert convo.digest
    hashed: list[object] = []
    kept = declared.stored_bytes

    def noted(value: Any) -> bytes:
        hashed.append(value)
        return kept(value)

    monkeypatch.setattr(turns_module, "stored_bytes", noted)
    monkeypatch.setattr(logs, "stored_bytes", noted)
    asked = convo.receive(reply("new"))
    assert not hashed
    assert isinstance(asked, AwaitingTools)
    assert asked.close("lost").digest
    assert len(hashed) == 4  # two blocks, their origin, one result


def test_each_block_is_written_once_over_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []

    class Counting:
        def unstructure(self, value: Any) -> Any:
            written.append(value)
            return kept().unstructure(value)

    kept = write.wire
    monkeypatch.setattr(write, "wire", Counting)
    convo = rounds(20)
    for length in range(1, len(convo.turns) + 1):
        point = convo.rewind(length)
        if isinstance(point, AwaitingModel):
            to_body(point, TARGET, max_tokens=64)
    assert len(written) == sum(len(turn.blocks) for turn in convo.turns)
    to_body(convo, TARGET, max_tokens=64)
    to_body(convo.user("More."), TARGET, max_tokens=64)
    assert len(written) == sum(len(turn.blocks) for turn in convo.turns) + 1


@pytest.mark.parametrize("count", [5, 100])
def test_a_request_reads_new_turns_alone(count: int) -> None:
    convo = rounds(count)
    to_body(convo, TARGET, max_tokens=64)
    watched = watch(convo)
    to_body(convo.user("More."), TARGET, max_tokens=64)
    assert watched.reads <= 6


# ---------------------------------------------------------------- many calls


def call(n: int) -> Json:
    return {"type": "tool_use", "id": f"call_{n}", "name": "f", "input": {}}


def search(n: int) -> Json:
    return {"type": "server_tool_use", "id": f"srvtoolu_{n}", "name": "web_search", "input": {}}


def found(n: int) -> Json:
    return {"type": "web_search_tool_result", "tool_use_id": f"srvtoolu_{n}", "content": []}


def said(role: str, *content: Json) -> Json:
    return {"role": role, "content": list(content)}


def answers(count: int) -> list[Json]:
    """A turn for each result."""
    return [said("user", {"type": "tool_result", "tool_use_id": f"call_{n}"}) for n in range(count)]


# Ways in which many calls wait at once, in histories that are valid.
WAITING = {
    "calls of one turn": lambda count: [said("assistant", *map(call, range(count))), *answers(count)],
    "calls of many turns": lambda count: [
        *[said("assistant", call(n)) for n in range(count)],
        *answers(count),
    ],
    "server calls of one turn": lambda count: [
        said("assistant", *map(search, range(count))),
        *[said("assistant", found(n)) for n in range(count)],
    ],
    "server calls of many turns": lambda count: [
        *[said("assistant", search(n)) for n in range(count)],
        *[said("assistant", found(n)) for n in range(count)],
    ],
}


def held(convo: Conversation) -> int:
    """How many items the states of a conversation hold between them."""
    return sum(
        len(part) for state in convo._log.states for part in state if isinstance(part, (tuple, frozenset))
    )


def listed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Notes how many calls are looked at each time that all which wait are listed."""
    counts: list[int] = []
    kept = Calls._waiting

    def noted(self: Calls, kind: str, since: int, before: int) -> Any:
        waiting = kept(self, kind, since, before)
        counts.append(len(waiting))
        return waiting

    monkeypatch.setattr(Calls, "_waiting", noted)
    return counts


@pytest.mark.parametrize("count", [10, 200])
@pytest.mark.parametrize("way", WAITING)
def test_a_history_holds_each_call_that_waits_once(
    way: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = listed(monkeypatch)
    messages = WAITING[way](count)
    convo = parse(messages)
    assert check(messages) == ()
    assert counts == []
    traits = sum(len(state.traits) for state in convo._log.states)
    assert held(convo) - traits == 2 * count  # where it is made, and where it is answered
    assert traits <= len(convo._log.states)


@pytest.mark.parametrize("count", [10, 200])
def test_answering_one_of_many_calls_reads_that_call_alone(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    convo: Conversation = conversation([], tools=[TOOL])
    assert isinstance(convo, AwaitingUser)
    convo = convo.assistant(*[ToolUse(f"call_{n}", "f", {}) for n in range(count)])
    made = watch_calls(convo)
    assert isinstance(convo, AwaitingTools)
    calls = convo.open_calls
    assert len(calls) == count
    counts, made.reads = listed(monkeypatch), 0
    for done, call in enumerate(calls):
        assert isinstance(convo, AwaitingTools)
        assert convo._state.open == count - done
        convo = convo.answer_one(call.result("ok"))
    assert isinstance(convo, AwaitingModel)
    assert (counts, made.reads) == ([], 0)


def watch_calls(convo: Conversation) -> Watched:
    log: Log = convo._log
    log.calls._made = watched = Watched(log.calls._made)
    return watched


def test_branches_answer_the_same_call_each_for_itself() -> None:
    asked = rounds(1).receive(Reply([ToolUse("a", "f", {}), ToolUse("b", "f", {})]))
    assert isinstance(asked, AwaitingTools)
    a, b = asked.open_calls
    first, second = asked.answer_one(a.result("1")), asked.answer_one(a.result("2"))
    assert first != second
    assert first.open_calls == second.open_calls == (b,)
    assert asked.open_calls == (a, b)
    other = asked.answer_one(b.result("3"))
    assert other.open_calls == (a,)
    assert isinstance(other, AwaitingTools)
    assert other.answer_one(a.result("1")).open_calls == ()
    assert first.rewind(len(asked.turns)).open_calls == (a, b)


def test_a_branch_leaves_the_other_as_it_was() -> None:
    convo = rounds(3)
    one, other = convo.user("One."), convo.user("Other.")
    assert one != other
    assert one.rewind(len(convo.turns)) == other.rewind(len(convo.turns)) == convo
    assert to_body(one, TARGET) != to_body(other, TARGET)
    assert b"Other." not in to_body(one, TARGET)
