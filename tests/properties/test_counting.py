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
from convmodel.anthropic import to_body, write
from convmodel.log import Log

from .common import TARGET

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


def test_a_branch_leaves_the_other_as_it_was() -> None:
    convo = rounds(3)
    one, other = convo.user("One."), convo.user("Other.")
    assert one != other
    assert one.rewind(len(convo.turns)) == other.rewind(len(convo.turns)) == convo
    assert to_body(one, TARGET) != to_body(other, TARGET)
    assert b"Other." not in to_body(one, TARGET)
