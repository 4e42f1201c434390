"""The local double streams: its events, and its faults, through the real client."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import anthropic
import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from convmodel.testing import ApiError, MessagesServer, Streamed, to_events

if TYPE_CHECKING:
    from convmodel.testing import ScriptedReply

Json = dict[str, Any]

NEW = "claude-opus-5"
CITATION = {
    "type": "char_location",
    "cited_text": "x",
    "document_index": 0,
    "document_title": None,
    "start_char_index": 0,
    "end_char_index": 1,
}
REPLY: Json = {
    "content": [
        {"type": "thinking", "thinking": "Search, then look — twice.", "signature": "c2lnbmF0dXJl"},
        {"type": "redacted_thinking", "data": "ZGF0YQ=="},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "Wetter 🌦"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "text", "text": "Es regnet, größtenteils.", "citations": [CITATION, CITATION]},
        {"type": "thinking", "thinking": "", "signature": "b21pdHRlZA=="},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"paths": ["/ä", "/b"], "n": 1e300}},
        {"type": "tool_use", "id": "toolu_2", "name": "look", "input": {}, "caller": {"type": "direct"}},
    ],
    "stop_reason": "tool_use",
    "usage": {
        "input_tokens": 7,
        "output_tokens": 99,
        "cache_read_input_tokens": 3,
        "service_tier": "standard",
    },
    "container": {"id": "container_1", "expires_at": "2026-12-01T00:00:00Z"},
}
ASKED: Json = {"model": NEW, "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}


def asked(**more: Any) -> Json:
    return {**ASKED, **more}


@contextmanager
def served(*script: ScriptedReply, **options: Any) -> Generator[anthropic.Anthropic]:
    with (
        MessagesServer(script) as server,
        anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0, **options) as client,
    ):
        yield client


def sent(client: anthropic.Anthropic) -> list[Json]:
    """The events that a client reads; it keeps pings to itself."""
    return [event.to_dict() for event in client.messages.create(**ASKED, stream=True)]


def without_pings(events: list[Json]) -> list[Json]:
    return [event for event in events if event["type"] != "ping"]


# ---------------------------------------------------------------- events


def test_the_events_of_a_reply() -> None:
    response = {
        "id": "msg_1",
        "content": [
            {"type": "thinking", "thinking": "Hmm.", "signature": "c2ln"},
            {"type": "text", "text": "Look.", "citations": [CITATION]},
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": 1}},
            {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 7, "output_tokens": 9, "service_tier": "standard"},
    }

    def start(index: int, **block: Any) -> Json:
        return {"type": "content_block_start", "index": index, "content_block": block}

    def delta(index: int, type: str, **fields: Any) -> Json:
        return {"type": "content_block_delta", "index": index, "delta": {"type": type, **fields}}

    def stop(index: int) -> Json:
        return {"type": "content_block_stop", "index": index}

    assert to_events(response, piece=3) == [
        {
            "type": "message_start",
            "message": {
                "id": "msg_1",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {"input_tokens": 7, "output_tokens": 1, "service_tier": "standard"},
            },
        },
        start(0, type="thinking", thinking="", signature=""),
        {"type": "ping"},
        delta(0, "thinking_delta", thinking="Hmm"),
        delta(0, "thinking_delta", thinking="."),
        delta(0, "signature_delta", signature="c2ln"),
        stop(0),
        start(1, type="text", text="", citations=[]),
        delta(1, "text_delta", text="Loo"),
        delta(1, "text_delta", text="k."),
        delta(1, "citations_delta", citation=CITATION),
        stop(1),
        start(2, type="tool_use", id="toolu_1", name="look", input={}),
        delta(2, "input_json_delta", partial_json=""),
        delta(2, "input_json_delta", partial_json='{"a'),
        delta(2, "input_json_delta", partial_json='t":'),
        delta(2, "input_json_delta", partial_json=" 1}"),
        stop(2),
        start(3, type="web_search_tool_result", tool_use_id="srvtoolu_1", content=[]),
        stop(3),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"input_tokens": 7, "output_tokens": 9},
        },
        {"type": "message_stop"},
    ]


def test_a_reply_without_content_has_events_too() -> None:
    kinds = [event["type"] for event in to_events({"content": [], "stop_reason": "refusal"})]

    assert kinds == ["message_start", "message_delta", "message_stop"]


def test_a_block_of_another_type_starts_whole() -> None:
    block = {"type": "a_type_to_come", "text": "x", "input": {}}

    assert [event for event in to_events({"content": [block]}) if event.get("index") == 0] == [
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_stop", "index": 0},
    ]


def test_half_a_call_goes_out_as_it_is() -> None:
    half = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": '{"paths": ["/'}
    with served({"content": [half], "stop_reason": "max_tokens"}) as client:
        events = sent(client)

    pieces = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
    assert pieces == ["", '{"paths": ["/']


@pytest.mark.parametrize("piece", [1, 16, 1000])
def test_the_client_puts_the_reply_together_again(piece: int) -> None:
    with served(REPLY, Streamed(REPLY, piece=piece)) as client:
        whole = client.messages.create(**ASKED).to_dict()
        with client.messages.stream(**ASKED) as stream:
            said = "".join(stream.text_stream)
            streamed = stream.get_final_message().to_dict()

    assert said == "Es regnet, größtenteils."
    assert streamed.pop("stop_details") is None  # the client adds it
    assert {**streamed, "id": whole["id"]} == whole
    assert whole["content"] == REPLY["content"]


def test_the_async_client_puts_the_reply_together_again() -> None:
    async def run(url: str) -> tuple[Json, list[Json]]:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="any") as client:
            async with client.messages.stream(**ASKED) as stream:
                message = await stream.get_final_message()
            events = [event.to_dict() async for event in await client.messages.create(**ASKED, stream=True)]
            return message.to_dict(), events

    with MessagesServer([REPLY, REPLY]) as server:
        message, events = asyncio.run(run(server.url))

    assert message["content"] == REPLY["content"]
    assert message.pop("stop_details") is None  # the client adds it
    assert events == without_pings(to_events({**message, "id": events[0]["message"]["id"]}))


def test_what_comes_over_the_wire_is_what_to_events_says() -> None:
    with served(REPLY) as client, client.messages.with_streaming_response.create(**ASKED, stream=True) as raw:
        assert raw.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = b"".join(raw.iter_bytes()).decode().split("\n\n")

    assert lines.pop() == ""
    names, data = zip(*(line.split("\n") for line in lines), strict=True)
    events = [json.loads(line.removeprefix("data: ")) for line in data]
    message = {
        **events[0]["message"],
        **events[-2]["delta"],
        "usage": REPLY["usage"],
        "content": REPLY["content"],
    }
    assert events == to_events(message)
    assert list(names) == [f"event: {event['type']}" for event in events]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
BLOCKS = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, st.text(st.characters())),
    st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "c2ln"}, st.text()),
    st.builds(
        lambda arguments: {"type": "tool_use", "id": "toolu_1", "name": "look", "input": arguments},
        st.dictionaries(st.text(), PLAIN, max_size=3),
    ),
)


def as_text(value: object) -> str:
    """JSON text, in which unlike `==` a number differs from a truth value."""
    return json.dumps(value, sort_keys=True)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=40)
@given(st.lists(BLOCKS, max_size=4), st.integers(1, 40))
def test_any_reply_is_the_same_streamed_and_whole(content: list[Json], piece: int) -> None:
    with served(Streamed(content, piece=piece)) as client, client.messages.stream(**ASKED) as stream:
        message = stream.get_final_message()

    assert as_text([block.to_dict() for block in message.content]) == as_text(content)


def test_an_error_of_the_script_is_no_stream() -> None:
    with served(ApiError(529, "overloaded_error", "Overloaded")) as client:
        with pytest.raises(anthropic.APIStatusError, match="Overloaded") as caught:
            client.messages.create(**ASKED, stream=True)
        assert caught.value.status_code == 529
        with pytest.raises(anthropic.BadRequestError):
            client.messages.create(**asked(messages=[], stream=True))


def test_a_streamed_reply_is_for_requests_that_ask_for_streaming() -> None:
    def later(_: Json) -> Streamed:
        return Streamed([{"type": "text", "text": "Hi."}])

    with served(Streamed([]), later) as client:
        with pytest.raises(anthropic.InternalServerError, match="does not ask for streaming"):
            client.messages.create(**ASKED)
        assert [event["type"] for event in sent(client)][-1] == "message_stop"


def test_thinking_is_signed_over_what_it_answers() -> None:
    thoughts: list[Json] = [
        {"type": "thinking", "thinking": "", "signature": "x"},
        {"type": "text", "text": "Hi."},
    ]
    with (
        MessagesServer([thoughts, thoughts, thoughts], preserved_thinking=True) as server,
        anthropic.Anthropic(base_url=server.url, api_key="any") as client,
    ):
        with client.messages.stream(**asked(model="claude-opus-5-5")) as stream:
            first: Any = stream.get_final_message()
        turns = [*ASKED["messages"], first.to_param(), {"role": "user", "content": "go on"}]
        client.messages.create(**asked(model="claude-opus-5-5", messages=turns))
        turns[0] = {"role": "user", "content": "ho"}
        with pytest.raises(anthropic.BadRequestError, match="bound to a different conversation"):
            client.messages.create(**asked(model="claude-opus-5-5", messages=turns))


# ---------------------------------------------------------------- faults


def read_until_it_breaks(client: anthropic.Anthropic) -> tuple[list[Json], Exception | None]:
    events: list[Json] = []
    try:
        events.extend(event.to_dict() for event in client.messages.create(**ASKED, stream=True))
    except Exception as error:  # noqa: BLE001
        return events, error
    return events, None


EVENTS = to_events(REPLY)


@pytest.mark.parametrize("after", range(len(EVENTS) + 1))
def test_a_connection_breaks_after_any_event(after: int) -> None:
    with served(Streamed(REPLY, "cut", after=after), Streamed(REPLY)) as client:
        events, error = read_until_it_breaks(client)
        assert sent(client)[-1] == {"type": "message_stop"}

    assert isinstance(error, httpx2.RemoteProtocolError)
    assert [event["type"] for event in events] == [
        event["type"] for event in EVENTS[:after] if event["type"] != "ping"
    ]


def test_a_connection_breaks_inside_a_character() -> None:
    received: list[bytes] = []
    with (
        served(Streamed([{"type": "text", "text": "Grüße"}], "cut_character", after=2, piece=3)) as client,
        client.messages.with_streaming_response.create(**ASKED, stream=True) as raw,
        pytest.raises(httpx2.RemoteProtocolError),
    ):
        received.extend(raw.iter_bytes())

    assert b"".join(received).endswith('"text": "Grü'.encode()[:-1])


def test_a_stream_that_only_seems_whole() -> None:
    with served(
        Streamed(REPLY, "end"), Streamed(REPLY, "end", after=0), Streamed(REPLY, "end", after=-2)
    ) as client:
        for after in (-1, 0, -2):
            events, error = read_until_it_breaks(client)
            assert error is None
            assert len(events) == len(without_pings(EVENTS[:after]))


def test_an_error_in_mid_stream() -> None:
    with served(Streamed(REPLY, "error", after=5)) as client:
        events, error = read_until_it_breaks(client)

    assert len(events) == 4
    assert isinstance(error, anthropic.APIStatusError)
    assert error.body == {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


def test_an_event_comes_twice() -> None:
    with served(Streamed([{"type": "text", "text": "Hi."}], "repeat", after=4)) as client:
        kinds = [event["type"].removeprefix("content_block_") for event in sent(client)]

    assert kinds == ["message_start", "start", "delta", "delta", "stop", "message_delta", "message_stop"]


def test_a_stall_lasts_until_the_client_gives_up() -> None:
    started = time.monotonic()
    with served(Streamed(REPLY, "stall", after=4), timeout=0.2) as client:
        events, error = read_until_it_breaks(client)

    assert len(events) == 3
    assert isinstance(error, httpx2.ReadTimeout)
    assert time.monotonic() - started < 5  # the server does not wait for more


def test_a_stall_ends_with_the_server() -> None:
    with MessagesServer([Streamed(REPLY, "stall", after=1)]) as server:
        client = anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0)
        stream = client.messages.create(**ASKED, stream=True)
        assert next(stream).type == "message_start"
    with client, pytest.raises(httpx2.RemoteProtocolError):
        next(stream)


def test_a_stall_may_pass() -> None:
    with served(Streamed(REPLY, "stall", after=4, seconds=0.05)) as client:
        assert len(sent(client)) == len(without_pings(EVENTS))


def test_a_task_that_is_cancelled_in_a_stall_leaves_the_server_free() -> None:
    async def run(url: str) -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client:
            seen: list[str] = []
            arrived = asyncio.Event()

            async def read() -> None:
                async for event in await client.messages.create(**ASKED, stream=True):
                    seen.append(event.type)
                    if event.type == "content_block_start":
                        arrived.set()

            task = asyncio.create_task(read())
            await arrived.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await read()
            return seen

    with MessagesServer([Streamed(REPLY, "stall", after=2), []]) as server:
        seen = asyncio.run(run(server.url))

    assert seen == ["message_start", "content_block_start", "message_start", "message_delta", "message_stop"]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (
            Streamed([{"type": "text", "text": "ascii"}], "cut_character", after=0),
            "no character of several bytes",
        ),
        (Streamed([], cast("Any", "nap")), "no fault is named 'nap'"),
        (Streamed([{"type": "text", "text": "x"}], piece=0), "the script failed: ValueError"),
        (Streamed([{"type": "text", "text": b"x"}]), "the script failed: TypeError"),
    ],
)
def test_a_fault_that_cannot_be_made_is_told_to_the_client(reply: Streamed, said: str) -> None:
    with served(reply) as client, pytest.raises(anthropic.InternalServerError, match=said):
        client.messages.create(**ASKED, stream=True)
