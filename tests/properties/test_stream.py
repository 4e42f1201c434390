"""Any reply, streamed in any way, is read back as it is; cut anywhere, nothing that was cut is reachable as whole."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from convmodel import (
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    Interrupted,
    InvalidReply,
    Reply,
    ToolUse,
    start,
)
from convmodel.anthropic import Accumulator, Target, from_message, read_stream, to_messages
from convmodel.anthropic.write import wire
from convmodel.testing import judge, to_events
from convmodel.testing.strategies import json_values, replies

from .common import PROPERTY, TARGET, Json

TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]


def response(reply: Reply) -> Json:
    """A reply as the service would send it."""
    blocks: Any = json.loads(msgspec.json.encode([wire().unstructure(block) for block in reply.blocks]))
    return {
        "id": "msg_1",
        "role": "assistant",
        "model": "m",
        "content": blocks,
        "stop_reason": reply.origin.stop_reason,
    }


def is_readable(whole: Json) -> bool:
    """Whether the service could have sent it: some blocks are the caller's alone."""
    try:
        from_message(whole)
    except InvalidReply:
        return False
    return True


@st.composite
def streams(draw: st.DrawFn) -> tuple[Json, list[Json]]:
    """A response and the events that it is streamed in: cut into pieces of any size, blocks interleaved, with pings."""
    whole = response(draw(replies()))
    whole["stop_reason"] = whole["stop_reason"] or "end_turn"
    assume(is_readable(whole))
    events = to_events(whole, piece=draw(st.integers(1, 40)))
    start, end = events[:1], events[-2:]
    by_block: dict[int, list[Json]] = {}
    for event in events[1:-2]:
        if "index" in event:
            by_block.setdefault(event["index"], []).append(event)
    mixed: list[Json] = []
    waiting = [by_block[index] for index in sorted(by_block)]
    together = draw(st.booleans())
    while waiting:
        which = draw(st.integers(0, len(waiting) - 1)) if together else 0
        mixed.append(waiting[which].pop(0))
        if not waiting[which]:
            del waiting[which]
        if draw(st.integers(0, 9)) == 0:
            mixed.append({"type": "ping"})
    return whole, [*start, *mixed, *end]


def sse(events: list[Json]) -> bytes:
    return "".join(f"data: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events).encode()


@PROPERTY
@given(streams(), st.integers(1, 60))
def test_a_stream_read_back_is_the_message(given: tuple[Json, list[Json]], size: int) -> None:
    whole, events = given
    expected = from_message(whole)
    assert read_stream(events) == expected
    data = sse(events)
    assert read_stream(data[at : at + size] for at in range(0, len(data), size)) == expected


@PROPERTY
@given(streams(), st.data())
def test_of_a_stream_that_is_cut_nothing_cut_is_reachable(
    given: tuple[Json, list[Json]], data: st.DataObject
) -> None:
    whole, events = given
    end = data.draw(st.integers(0, len(events)))
    stream = Accumulator()
    for event in events[:end]:
        stream.feed(event)
    assert stream.snapshot is not None
    reply = stream.reply(ConnectionError())
    everything = from_message(whole)
    assert reply.complete == (everything.complete and end >= len(events) - 1)
    calls = [block for block in reply.blocks if isinstance(block, ToolUse)]
    assert all(call in everything.blocks for call in calls)
    unbroken = len(reply.blocks) if reply.unbroken is None else reply.unbroken
    for mine, theirs in zip(reply.blocks[: max(unbroken - 1, 0)], everything.blocks, strict=False):
        assert mine == theirs
    if reply.complete:
        return
    asked = start("Hi.", tools=TOOLS)
    outcome = asked.receive(reply)
    assert isinstance(outcome, Interrupted)
    assert outcome.discard() == asked
    resumed = outcome.resume("Go on.")
    assert isinstance(resumed, AwaitingModel)
    request = {"model": TARGET.model, "max_tokens": 9, "messages": to_messages(resumed), "tools": TOOLS}
    # New types, which the judge cannot know, and what only some targets refuse.
    assert {fault.rule for fault in judge(request)} <= {"block-type-known", "role-blocks-document"}


@PROPERTY
@given(
    st.lists(
        st.one_of(
            json_values(),
            st.fixed_dictionaries(
                {
                    "type": st.sampled_from(
                        [
                            "message_start",
                            "content_block_start",
                            "content_block_delta",
                            "content_block_stop",
                            "message_delta",
                            "message_stop",
                            "error",
                        ]
                    )
                },
                optional={
                    "index": st.one_of(st.integers(-1, 2), json_values()),
                    "message": json_values(),
                    "delta": st.one_of(
                        json_values(),
                        st.fixed_dictionaries(
                            {
                                "type": st.sampled_from(
                                    [
                                        "text_delta",
                                        "thinking_delta",
                                        "signature_delta",
                                        "input_json_delta",
                                        "citations_delta",
                                        "compaction_delta",
                                        "x",
                                    ]
                                )
                            },
                            optional={
                                "text": json_values(),
                                "partial_json": json_values(),
                                "citation": json_values(),
                                "stop_reason": json_values(),
                            },
                        ),
                    ),
                    "content_block": st.one_of(
                        json_values(),
                        st.fixed_dictionaries(
                            {"type": st.sampled_from(["text", "thinking", "tool_use", "compaction", "x"])},
                            optional={
                                "text": json_values(),
                                "input": json_values(),
                                "id": json_values(),
                                "thinking": json_values(),
                            },
                        ),
                    ),
                    "error": json_values(),
                },
            ),
        ),
        max_size=8,
    )
)
def test_any_values_as_events_give_an_answer(events: list[Any]) -> None:
    taken = [event for event in events if isinstance(event, dict)]
    for stream in (events, [sse(taken)]):
        try:
            reply: Reply | None = read_stream(stream, Target("claude-opus-4-8"))
        except InvalidReply as error:
            reply = error.reply
        assert reply is not None
        with suppress(InvalidReply):
            outcome = start("Hi.").receive(reply)
            assert isinstance(outcome, (AwaitingUser, AwaitingModel, AwaitingTools, Interrupted))
