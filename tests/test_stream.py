"""Streams read back: what each kind of event does, what is kept of a stream that broke, and the real client's streams."""

from __future__ import annotations

import asyncio
import copy
import json
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import anthropic
import httpx2
import pytest

from convmodel import (
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    Interrupted,
    InvalidReply,
    OpaqueBlock,
    Reply,
    Text,
    Thinking,
    ToolUse,
    UnsignedThinking,
    ValidationError,
    start,
)
from convmodel.anthropic import (
    Accumulator,
    Partial,
    Target,
    aread_stream,
    from_message,
    read_stream,
    to_messages,
    to_request,
)
from convmodel.testing import MessagesServer, Streamed, to_events

Json = dict[str, Any]
TARGET = Target("claude-opus-4-8", {"type": "adaptive"})
TEXT = {"type": "text", "text": "Grüße, 那."}
THOUGHT = {"type": "thinking", "thinking": "Let me see.", "signature": "c2ln"}
HIDDEN = {"type": "thinking", "thinking": "", "signature": "c2ln"}
REDACTED = {"type": "redacted_thinking", "data": "ZGF0YQ=="}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "rm", "input": {"paths": ["/srv/a", "/"], "n": 10**30}}
BARE = {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}}
CITED = {
    "type": "text",
    "text": "Yes.",
    "citations": [
        {
            "type": "char_location",
            "cited_text": "yes",
            "document_index": 0,
            "document_title": None,
            "start_char_index": 0,
            "end_char_index": 3,
        }
    ],
}
FALLBACK = {"type": "fallback", "from": {"model": "claude-x"}, "to": {"model": "claude-y"}}


def message(*blocks: Json, **more: Any) -> Json:
    calls = any(block["type"] == "tool_use" for block in blocks)
    envelope = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-4-8"}
    return {
        **envelope,
        "content": list(blocks),
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 9},
        **more,
    }


WHOLE = [
    message(TEXT),
    message(THOUGHT, TEXT, CALL, BARE),
    message(HIDDEN, TEXT),
    message(THOUGHT, REDACTED, THOUGHT, CALL),
    message(CITED, TEXT),
    message(HIDDEN, FALLBACK, HIDDEN, TEXT, model="claude-y"),
    message(TEXT, container={"id": "container_1", "expires_at": "2026-01-01T00:00:00Z"}),
    message({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}, stop_reason="pause_turn"),
    message({"type": "text", "text": ""}, CALL),
    message(),
]  # fmt: skip
each_whole = pytest.mark.parametrize("whole", WHOLE, ids=range(len(WHOLE)))


def sse(events: list[Json], end: str = "\n") -> bytes:
    return "".join(
        f"event: {event['type']}{end}data: {json.dumps(event, ensure_ascii=False)}{end}{end}"
        for event in events
    ).encode()


def delta(index: int, **fields: Any) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def opened(index: int, block: Json) -> Json:
    return {"type": "content_block_start", "index": index, "content_block": block}


def closed(index: int) -> Json:
    return {"type": "content_block_stop", "index": index}


def reason(**fields: Any) -> Json:
    return {"type": "message_delta", "delta": fields, "usage": {"output_tokens": 1}}


BEGIN = {"type": "message_start", "message": message(stop_reason=None)}
END = {"type": "message_stop"}


def read(*events: Json) -> Reply:
    return read_stream([BEGIN, *events])


def ended(*events: Json, stop: str = "end_turn") -> Reply:
    return read(*events, reason(stop_reason=stop), END)


def dropped(reply: Reply) -> list[tuple[str, str]]:
    return [(fault.rule.id, fault.path) for fault in reply.dropped]


# ---------------------------------------------------------------- whole streams


@each_whole
def test_a_stream_read_back_is_the_message(whole: Json) -> None:
    events = to_events(whole, piece=3)
    kept = copy.deepcopy(events)
    assert read_stream(events) == from_message(whole)
    assert events == kept


@each_whole
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10**9])
def test_bytes_may_be_split_anywhere(whole: Json, end: str, size: int) -> None:
    data = sse(to_events(whole, piece=5), end) + b"data: [DONE]\n\n"
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    assert read_stream(chunks) == from_message(whole)
    assert read_stream([bytearray(data), b""]) == from_message(whole)


def test_lines_of_text_are_read_with_and_without_their_ends() -> None:
    text = sse(to_events(WHOLE[1])).decode()
    assert read_stream(text.split("\n")) == from_message(WHOLE[1])
    assert read_stream(text.splitlines(keepends=True)) == from_message(WHOLE[1])
    assert read_stream(text) == from_message(WHOLE[1])
    assert read_stream([": a comment", "id: 3", "retry: 3", *text.split("\n")]) == from_message(WHOLE[1])


def test_whose_thinking_it_is_follows_from_the_target() -> None:
    kimi = Target("kimi-k2", platform="kimi")
    unsigned = message({"type": "thinking", "thinking": "t", "signature": ""}, TEXT)
    reply = read_stream(to_events(unsigned), kimi)
    assert reply == from_message(unsigned, kimi)
    assert reply.blocks[0] == UnsignedThinking("t", signature="")


# ---------------------------------------------------------------- each kind of event


def test_a_call_without_arguments_has_an_empty_input() -> None:
    bare = {"type": "tool_use", "id": "a", "name": "now", "input": {}}
    for parts in ([], [""], ["", ""]):
        events = [delta(0, type="input_json_delta", partial_json=part) for part in parts]
        assert ended(opened(0, bare), *events, closed(0), stop="tool_use").blocks == (
            ToolUse("a", "now", {}),
        )


def test_an_input_that_comes_whole_is_kept_until_pieces_come() -> None:
    given = {"type": "tool_use", "id": "a", "name": "read", "input": {"path": "/a"}}
    [call] = ended(opened(0, given), closed(0), stop="tool_use").blocks
    assert call == ToolUse("a", "read", {"path": "/a"})
    pieces = delta(0, type="input_json_delta", partial_json='{"path": "/b"}')
    [call] = ended(opened(0, given), pieces, closed(0), stop="tool_use").blocks
    assert call == ToolUse("a", "read", {"path": "/b"})


@pytest.mark.parametrize(
    "text",
    [
        '{"paths": ["/"',
        '{"a": "\\ud83d"}',
        '"a"',
        "[]",
        "3",
        "null",
        "nope",
        '{"a": NaN}',
        '{"a":1,"a":2}',
        "{}{}",
        "[",
    ],
)
def test_an_input_that_is_no_object_is_never_reached(text: str) -> None:
    bare = {"type": "tool_use", "id": "a", "name": "rm", "input": {}}
    events = [
        opened(0, TEXT | {"text": "Now."}),
        closed(0),
        opened(1, bare),
        delta(1, type="input_json_delta", partial_json=text),
    ]
    for rest in ([], [closed(1)], [closed(1), reason(stop_reason="tool_use"), END]):
        stream = Accumulator()
        for event in [BEGIN, *events, *rest]:
            stream.feed(event)
        reply = stream.reply()
        assert (reply.blocks, reply.complete) == ((Text("Now."),), False)
        outcome = start("x").receive(reply)
        assert isinstance(outcome, Interrupted)
        assert (outcome.reason, outcome.lost) == (outcome.reason, ())
        assert stream.snapshot[1] == Partial("tool_use", text, bool(rest), "rm")
    assert dropped(reply)[0] == ("tool-use-input-object", "content[1]")


def test_thinking_is_signed_in_every_way_that_endpoints_sign_it() -> None:
    bare = {"type": "thinking", "thinking": ""}
    said, signed = (
        delta(0, type="thinking_delta", thinking="t"),
        delta(0, type="signature_delta", signature="s2"),
    )
    expected = (Thinking("t", "s2"), Text("a"))
    text = [opened(1, {"type": "text", "text": "a"}), closed(1)]
    ways = {
        "a delta, without a key at the start": [opened(0, bare), said, signed, closed(0), *text],
        "at the start": [opened(0, {**bare, "signature": "s2"}), said, closed(0), *text],
        "two signatures": [opened(0, bare), delta(0, type="signature_delta", signature="s1"), said, signed, closed(0), *text],
        "beside the thinking": [opened(0, bare), delta(0, type="thinking_delta", thinking="t", signature="s2"), closed(0), *text],
        "an empty one behind it": [opened(0, bare), said, signed, delta(0, type="signature_delta", signature=""), closed(0), *text],
        "late": [opened(0, bare), said, closed(0), *text, signed],
    }  # fmt: skip
    assert {name: ended(*events).blocks for name, events in ways.items()} == dict.fromkeys(ways, expected)


def test_a_second_late_signature_spoils_the_block() -> None:
    events = [opened(0, THOUGHT), closed(0), delta(0, type="signature_delta", signature="other")]
    assert dropped(ended(*events)) == [("stream-order", "content[0]")]


def test_a_call_that_starts_without_its_input_takes_it() -> None:
    start_of_call = {"type": "tool_use", "id": "a", "name": "f"}
    piece = delta(0, type="input_json_delta", partial_json='{"a": 1}')
    [call] = ended(opened(0, start_of_call), piece, closed(0), stop="tool_use").blocks
    assert call == ToolUse("a", "f", {"a": 1})
    [bare] = ended(opened(0, start_of_call), closed(0), stop="tool_use").blocks
    assert bare == ToolUse("a", "f", {})


def test_blocks_that_come_with_the_start_are_blocks() -> None:
    begin = {"type": "message_start", "message": message(TEXT, THOUGHT, stop_reason=None)}
    reply = read_stream([begin, opened(2, TEXT), closed(2), reason(stop_reason="end_turn"), END])
    assert [block.type for block in reply.blocks] == ["text", "thinking", "text"]
    late = read_stream([opened(0, TEXT), closed(0), BEGIN, reason(stop_reason="end_turn"), END])
    assert not late.complete


def test_the_cost_of_a_stream_follows_its_events() -> None:
    def steps(count: int) -> int:
        events = sse(
            to_events(
                message({"type": "text", "text": "x" * count}, CALL | {"input": {"a": "y" * count}}), piece=1
            )
        )
        calls = 0

        def called(_: object, event: str, __: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(called)
        try:
            assert read_stream(events[at : at + 50] for at in range(0, len(events), 50)).complete
        finally:
            sys.setprofile(None)
        return calls

    assert steps(1200) < 4.5 * steps(300)


def test_a_compaction_grows_and_nulls_change_nothing() -> None:
    bare = {"type": "compaction", "content": None}
    parts: list[Json] = [
        {"content": "part1"},
        {"content": " part2", "encrypted_content": "ENC"},
        {"content": None, "encrypted_content": None},
    ]
    events = [delta(0, type="compaction_delta", **part) for part in parts]
    [block] = ended(opened(0, bare), *events, closed(0)).blocks
    assert block == OpaqueBlock({"type": "compaction", "content": "part1 part2", "encrypted_content": "ENC"})
    [empty] = ended(opened(0, bare), delta(0, type="compaction_delta", content=None), closed(0)).blocks
    assert empty == OpaqueBlock(bare)


def test_the_last_reason_that_is_none_of_null_counts() -> None:
    events = [
        opened(0, TEXT),
        closed(0),
        reason(stop_reason="max_tokens"),
        reason(stop_reason="end_turn", stop_sequence=None),
    ]
    assert read(*events, reason(stop_reason=None), reason(), END).origin.stop_reason == "end_turn"


def test_blocks_that_are_interleaved_find_their_places() -> None:
    events = [
        opened(1, {"type": "text", "text": ""}),
        opened(0, {"type": "text", "text": ""}),
        delta(1, type="text_delta", text="b"),
        delta(0, type="text_delta", text="a"),
        closed(1),
        closed(0),
    ]
    assert ended(*events).blocks == (Text("a"), Text("b"))


def test_what_is_no_part_of_the_response_is_passed_over() -> None:
    noise: list[Json] = [
        {"type": "ping"},
        {"type": "something_new", "index": 0},
        {"type": "text", "text": "a", "snapshot": "a"},
        {"type": "input_json", "partial_json": "{", "snapshot": {}},
        {"type": None},
        {},
    ]
    events = [
        *noise,
        opened(0, TEXT),
        *noise,
        closed(0),
        closed(0),
        *noise,
        reason(stop_reason="end_turn"),
        *noise,
        END,
    ]
    reply = read(*events, *noise, BEGIN, opened(1, TEXT), closed(1), {"type": "error", "error": {}})
    assert reply == from_message(message(TEXT))


def test_a_character_that_is_cut_in_two_is_one_again() -> None:
    halves = [delta(0, type="text_delta", text=part) for part in ("a\ud83d", "\ude00b")]
    events = [opened(0, {"type": "text", "text": ""}), *halves, closed(0)]
    whole = ended(*events)
    assert whole.blocks == (Text("a\U0001f600b"),)
    assert (whole.complete, whole.dropped) == (True, ())
    escaped = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)
    assert read_stream([escaped]).blocks == whole.blocks
    thinks = [
        opened(0, {"type": "thinking", "thinking": "", "signature": ""}),
        *(delta(0, type="thinking_delta", thinking=part) for part in ("\ud83d", "\ude00")),
        delta(0, type="signature_delta", signature="sig"),
        closed(0),
        opened(1, TEXT),
        closed(1),
    ]
    assert ended(*thinks).blocks[0] == Thinking("\U0001f600", "sig")


def test_half_a_character_is_replaced_with_a_word() -> None:
    reply = ended(opened(0, {"type": "text", "text": "a\ud83d"}), closed(0))
    assert reply.blocks == (Text("a\ufffd"),)
    assert reply.complete
    assert dropped(reply) == [("json-valid-utf8", "content[0].text")]
    assert from_message(message({"type": "text", "text": "\ude00b"})).blocks == (Text("\ufffdb"),)


def test_a_start_that_comes_twice_is_the_same_start() -> None:
    assert ended(BEGIN, opened(0, TEXT), opened(0, TEXT), closed(0)).blocks == (Text(TEXT["text"]),)


SPOILT: dict[str, list[Json]] = {
    "a second start behind a delta": [opened(0, TEXT), delta(0, type="text_delta", text="a"), opened(0, TEXT), closed(0)],
    "a second start behind the end": [opened(0, TEXT), closed(0), opened(0, TEXT), closed(0)],
    "another start": [opened(0, TEXT), opened(0, THOUGHT), closed(0)],
    "a delta behind the end": [opened(0, TEXT), closed(0), delta(0, type="text_delta", text="a")],
    "a delta of another kind": [opened(0, TEXT), delta(0, type="input_json_delta", partial_json="{"), closed(0)],
    "an unknown delta": [opened(0, TEXT), delta(0, type="new_delta", text="a"), closed(0)],
    "an unknown delta of a call": [opened(0, BARE), delta(0, type="new_json_delta", json="{"), closed(0)],
    "a delta without a type": [opened(0, TEXT), delta(0, text="a"), closed(0)],
    "a delta that is none": [opened(0, TEXT), {"type": "content_block_delta", "index": 0, "delta": 3}, closed(0)],
    "a text that is none": [opened(0, TEXT), delta(0, type="text_delta", text=3), closed(0)],
    "a signature that is none": [opened(0, THOUGHT), delta(0, type="signature_delta", signature=None), closed(0)],
    "a citation that is none": [opened(0, TEXT), delta(0, type="citations_delta", citation=3), closed(0)],
    "a delta without a start": [delta(0, type="text_delta", text="a"), closed(0)],
    "an end without a start": [closed(0)],
    "a start that is none": [opened(0, cast("Any", 3)), closed(0)],
    "a start of no type": [opened(0, {"text": "a"}), closed(0)],
    "a delta of a wrong text": [opened(0, {"type": "text", "text": []}), delta(0, type="text_delta", text="a"), closed(0)],
    "a delta of a wrong input": [opened(0, {**BARE, "input": "{}"}), delta(0, type="input_json_delta", partial_json="{}"), closed(0)],
}  # fmt: skip


@pytest.mark.parametrize("events", SPOILT.values(), ids=SPOILT)
def test_what_does_not_fit_spoils_its_block_with_a_word(events: list[Json]) -> None:
    reply = ended(*events, opened(1, {"type": "text", "text": "later"}), closed(1), stop="tool_use")
    *before, later = reply.blocks
    assert (later, reply.complete, reply.unbroken) == (Text("later"), False, 0)
    assert dropped(reply) == [("stream-order", "content[0]")]
    outcome = start("x").receive(reply)
    assert isinstance(outcome, Interrupted)
    assert (outcome.kept, outcome.lost) == (None, reply.blocks)
    # Text that has come is there to be seen; nothing else of a spoilt block is.
    begun = next((event["content_block"] for event in events if "content_block" in event), None)
    assert bool(before) == (isinstance(begun, dict) and begun.get("type") == "text" and bool(begun["text"]))
    assert all(isinstance(block, Text) and block.text.startswith(TEXT["text"]) for block in before)


def test_behind_a_gap_nothing_is_kept() -> None:
    reply = ended(opened(0, TEXT), closed(0), opened(2, CALL), closed(2), stop="tool_use")
    assert reply.blocks == (Text(TEXT["text"]), ToolUse("toolu_1", "rm", cast("Any", CALL["input"])))
    assert (reply.complete, reply.unbroken) == (False, 1)
    assert dropped(reply) == [("stream-whole", "content[1]")]
    outcome = start("x").receive(reply)
    assert isinstance(outcome, Interrupted)
    assert outcome.kept is not None
    assert outcome.kept.blocks == reply.blocks[:1]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "content_block_start", "content_block": TEXT},
        {"type": "content_block_delta", "index": -1, "delta": {}},
        {"type": "content_block_stop", "index": True},
        {"type": "content_block_stop", "index": 10**30},
        {"type": "content_block_delta", "index": "0", "delta": {}},
        {"type": "message_start", "message": {"id": "msg_2"}},
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        {"type": "error"},
    ],
)
def test_what_breaks_a_stream_leaves_what_was_whole(event: Json) -> None:
    reply = read(
        opened(0, TEXT), closed(0), reason(stop_reason="end_turn"), event, opened(1, TEXT), closed(1), END
    )
    assert (reply.blocks, reply.complete) == ((Text(TEXT["text"]),), False)
    assert [fault.rule.id in ("stream-order", "stream-whole") for fault in reply.dropped] == [True]


def test_a_block_that_cannot_be_read_leaves_the_others() -> None:
    with pytest.raises(InvalidReply) as caught:
        ended(
            opened(0, TEXT), closed(0), opened(1, {"type": "tool_use", "name": "f", "input": {}}), closed(1)
        )
    assert [(fault.rule.id, fault.path) for fault in caught.value.violations] == [
        ("required-field", "content[1].id")
    ]
    assert caught.value.reply is not None
    assert caught.value.reply.blocks == (Text(TEXT["text"]),)


@pytest.mark.parametrize(
    "data", [b"data: {\n\n", b"data: 3\n\n", b'data: {"type": "\xff"}\n\n', b'data: {"type":1,"type":2}\n\n']
)
def test_an_event_that_is_no_json_breaks_the_stream(data: bytes) -> None:
    events = [BEGIN, opened(0, TEXT), closed(0)]
    reply = read_stream([sse(events), data, sse([reason(stop_reason="end_turn"), END])])
    assert (reply.blocks, reply.complete) == ((Text(TEXT["text"]),), False)


@pytest.mark.parametrize("event", [None, 3, 1.5, [], object(), True])
def test_what_is_no_event_breaks_the_stream_and_loses_nothing_that_has_come(event: Any) -> None:
    reply = read(
        opened(0, TEXT), closed(0), event, opened(1, TEXT), closed(1), reason(stop_reason="end_turn"), END
    )
    assert (reply.blocks, reply.complete) == ((Text(TEXT["text"]),), False)
    assert dropped(reply) == [("stream-order", "")]
    assert read(opened(0, TEXT), closed(0), reason(stop_reason="end_turn"), END, event).complete


@pytest.mark.parametrize("event", [None, 3, 1.5, [], object(), True])
def test_what_is_no_event_is_refused(event: Any) -> None:
    stream = Accumulator()
    for each in (BEGIN, opened(0, TEXT), closed(0)):
        stream.feed(each)
    with pytest.raises(ValidationError) as caught:
        stream.feed(event)
    assert [(fault.rule.id, fault.path) for fault in caught.value.violations] == [("field-type", "event")]
    stream.feed(reason(stop_reason="end_turn"))
    assert (stream.reply().blocks, stream.reply().complete) == ((Text(TEXT["text"]),), False)


def test_a_message_of_another_party_is_no_reply() -> None:
    begin = {"type": "message_start", "message": message(stop_reason=None) | {"role": "user"}}
    reply = read_stream([begin, opened(0, TEXT), closed(0), reason(stop_reason="end_turn"), END])
    assert (reply.blocks, reply.complete) == ((), False)
    assert dropped(reply) == [("role-enum", "")]


def test_an_async_stream_is_refused_with_the_way_out() -> None:
    async def events() -> AsyncIterator[Json]:
        yield BEGIN

    with pytest.raises(ValidationError, match="aread_stream"):
        read_stream(cast("Any", events()))


@pytest.mark.parametrize("after", range(3, 8))
def test_what_the_helper_shows_of_half_a_call_is_no_call(after: int) -> None:
    request: Any = to_request(start("x"), TARGET)
    with (
        MessagesServer([Streamed([TEXT, CALL], "cut", after=4 + after, piece=9)]) as server,
        anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0) as client,
        client.messages.stream(max_tokens=2048, **request) as stream,
    ):
        with pytest.raises(httpx2.RemoteProtocolError):
            stream.until_done()
        half = stream.current_message_snapshot
    assert [block.type for block in half.content] == ["text", "tool_use"]
    reply = from_message(half, TARGET)
    assert (reply.calls, reply.complete, reply.unbroken) == ((), False, 1)
    assert dropped(reply) == [("tool-use-input-object", "content[1].input")]


def test_a_call_that_may_be_cut_is_named_by_its_place_in_the_message() -> None:
    empty = {"type": "text", "text": ""}
    reply = from_message({"role": "assistant", "content": [empty, CALL], "stop_reason": None}, TARGET)
    assert dropped(reply) == [
        ("adaptive-empty-separator", "content[0]"),
        ("tool-use-input-object", "content[1].input"),
    ]


@pytest.mark.parametrize("events", [None, 3, {"type": "ping"}])
def test_what_is_no_stream_is_refused(events: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        read_stream(events)
    assert [(fault.rule.id, fault.path) for fault in caught.value.violations] == [("field-type", "events")]
    with pytest.raises(ValidationError):
        asyncio.run(aread_stream(events))


def test_nothing_that_was_passed_in_or_got_back_changes_what_is_kept() -> None:
    block = copy.deepcopy(CITED)
    stream = Accumulator()
    for event in (BEGIN, opened(0, block), closed(0), reason(stop_reason="end_turn")):
        stream.feed(event)
    first = stream.reply()
    block["text"], block["citations"] = "changed", []
    assert stream.reply() == first
    with pytest.raises(AttributeError):
        setattr(stream.snapshot[0], "text", "x")  # noqa: B010 - a type checker refuses the plain form


def test_a_snapshot_is_nothing_that_a_turn_takes_and_shows_no_values() -> None:
    stream = Accumulator()
    for event in to_events(message(THOUGHT, CALL), piece=5)[:-4]:
        stream.feed(event)
    shown = stream.snapshot
    assert [(part.type, part.done, part.name) for part in shown] == [
        ("thinking", True, None),
        ("tool_use", False, "rm"),
    ]
    assert "/srv" in shown[1].text
    assert "/srv" not in repr(shown)
    with pytest.raises(ValidationError):
        start("x").assistant(cast("Any", shown[0]))


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded", "refusal"])
def test_a_call_that_was_cut_before_its_input_is_no_call(reason: str) -> None:
    events = [opened(0, TEXT), closed(0), opened(1, BARE), closed(1)]
    reply = ended(*events, stop=reason)
    assert (reply.blocks, reply.unbroken) == ((Text(TEXT["text"]),), 1)
    assert dropped(reply) == [("tool-use-input-object", "content[1].input")]


def test_a_call_without_arguments_is_no_call_until_the_service_says_why_it_stopped() -> None:
    bare = [opened(0, TEXT), closed(0), opened(1, BARE), closed(1)]
    cut = read(*bare)
    assert (cut.blocks, cut.unbroken) == ((Text(TEXT["text"]),), 1)
    assert dropped(cut)[0] == ("stream-whole", "content[1]")
    assert read(*bare, opened(2, TEXT)).calls == (ToolUse("toolu_2", "now", {}),)
    assert ended(*bare, stop="tool_use").calls == (ToolUse("toolu_2", "now", {}),)


def test_a_model_that_took_over_is_named_and_its_mark_stays() -> None:
    reply = ended(opened(0, TEXT), closed(0), opened(1, FALLBACK), closed(1), opened(2, TEXT), closed(2))
    assert reply.origin.model == "claude-y"
    assert reply.blocks[1] == OpaqueBlock(FALLBACK)


# ---------------------------------------------------------------- the real client


def sync_streams(client: anthropic.Anthropic, asked: AwaitingModel) -> Iterator[Reply]:
    request: Any = to_request(asked, TARGET)
    yield read_stream(client.messages.create(max_tokens=2048, stream=True, **request), TARGET)
    with client.messages.stream(max_tokens=2048, **request) as stream:
        yield read_stream(stream, TARGET)
    with client.messages.with_streaming_response.create(max_tokens=2048, stream=True, **request) as response:
        yield read_stream(response.iter_bytes(7), TARGET)
    with client.messages.with_streaming_response.create(max_tokens=2048, stream=True, **request) as response:
        yield read_stream(response.iter_lines(), TARGET)


async def async_streams(client: anthropic.AsyncAnthropic, asked: AwaitingModel) -> AsyncIterator[Reply]:
    request: Any = to_request(asked, TARGET)
    yield await aread_stream(await client.messages.create(max_tokens=2048, stream=True, **request), TARGET)
    async with client.messages.stream(max_tokens=2048, **request) as stream:
        yield await aread_stream(stream, TARGET)


KNOWN = [whole for whole in WHOLE if FALLBACK not in whole["content"]]


@pytest.mark.parametrize("whole", KNOWN, ids=range(len(KNOWN)))
def test_the_clients_streams_are_read(whole: Json) -> None:
    expected = from_message(whole, TARGET)
    asked = start("x", tools=[{"name": "rm", "input_schema": {"type": "object"}}])
    with (
        MessagesServer([Streamed(whole, piece=3)] * 4) as server,
        anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0) as client,
    ):
        assert list(sync_streams(client, asked)) == [expected] * 4

    async def gathered(url: str) -> list[Reply]:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
            return [reply async for reply in async_streams(client, asked)]

    with MessagesServer([Streamed(whole, piece=3)] * 2) as server:
        assert asyncio.run(gathered(server.url)) == [expected] * 2


FAULTS = ["cut", "cut_character", "end", "error", "stall"]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("helper", [False, True])
def test_a_stream_that_breaks_off_gives_what_was_whole(fault: Any, helper: bool) -> None:
    whole = message({"type": "text", "text": "First."}, {"type": "text", "text": "Grüße und noch viel mehr."})
    asked = start("x")
    request: Any = to_request(asked, TARGET)
    with (
        MessagesServer([Streamed(whole, fault, after=6, piece=4), whole]) as server,
        anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0, timeout=0.5) as client,
    ):
        if helper:
            with client.messages.stream(max_tokens=9, **request) as stream:
                reply = read_stream(stream, TARGET)
        else:
            reply = read_stream(client.messages.create(max_tokens=9, stream=True, **request), TARGET)
        assert not reply.complete
        assert reply.blocks[0] == Text("First.")
        outcome = asked.receive(reply)
        assert isinstance(outcome, Interrupted)
        for then in (outcome.discard(), outcome.resume("Go on.")):
            assert isinstance(then, AwaitingModel)
        client.messages.create(max_tokens=9, **to_request(outcome.resume("Go on."), TARGET))
    assert [message_["role"] for message_ in to_messages(outcome.resume("Go on."))] == [
        "user",
        "assistant",
        "user",
    ]


def test_an_error_of_the_callers_own_passes() -> None:
    def broken() -> Iterator[Json]:
        yield BEGIN
        raise KeyError("mine")

    with pytest.raises(KeyError):
        read_stream(broken())


def test_what_has_come_is_there_after_an_interrupt() -> None:
    stream = Accumulator()

    def interrupted() -> Iterator[Json]:
        yield from to_events(message(THOUGHT, TEXT, CALL), piece=4)[:-4]
        raise KeyboardInterrupt

    def fed() -> None:
        for event in interrupted():
            stream.feed(event)

    with pytest.raises(KeyboardInterrupt):
        fed()
    outcome = start("x").receive(stream.reply())
    assert isinstance(outcome, Interrupted)
    assert outcome.kept is not None
    assert [block.type for block in outcome.kept.blocks] == ["thinking", "text"]
    kept = outcome.keep()
    assert isinstance(kept, AwaitingUser)


def test_a_whole_reply_is_received_as_ever() -> None:
    outcome = start("x").receive(read_stream(to_events(message(THOUGHT, CALL))))
    assert isinstance(outcome, AwaitingTools)
    assert outcome.open_calls == (ToolUse("toolu_1", "rm", cast("Any", CALL["input"])),)
