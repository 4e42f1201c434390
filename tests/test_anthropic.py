"""The Messages API through the real client: requests out, replies in, and other vendors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, cast

import anthropic
import pytest
from anthropic.types import Message

from convmodel import (
    AssistantTurn,
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    CitationCharLocation,
    CitationWebSearchResultLocation,
    Conversation,
    DirectCaller,
    Document,
    Image,
    Interrupted,
    InvalidReply,
    OpaqueBlock,
    Origin,
    PlainTextSource,
    RedactedThinking,
    Reply,
    ServerToolCaller,
    ServerToolUse,
    SystemTurn,
    Text,
    Thinking,
    Tool,
    ToolResult,
    ToolUse,
    Turn,
    UnsignedThinking,
    UserTurn,
    ValidationError,
    WebFetchToolResult,
    WebSearchToolResult,
    conversation,
    start,
)
from convmodel.anthropic import (
    Target,
    check,
    from_message,
    message_map,
    parse,
    to_beta_request,
    to_body,
    to_messages,
    to_request,
)
from convmodel.storage import dumps, loads
from convmodel.testing import ApiError, MessagesServer, judge

Json = dict[str, Any]
Faults = list[tuple[str, str]]
TARGET = Target(model="claude-opus-5", thinking={"type": "adaptive"})
LOOK = Tool("look", {"type": "object"})
CALL, CALL2 = ToolUse("toolu_1", "look", {"q": 1}), ToolUse("toolu_2", "look", {"q": 2})
THOUGHT = Thinking("I look.", "c2ln")
ENVELOPE: Json = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-5",
    "stop_sequence": None,
}
USAGE = {"input_tokens": 1, "output_tokens": 1}


def text(said: str, **more: Any) -> Json:
    return {"type": "text", "text": said, **more}


def thinking(n: int) -> Json:
    return {"type": "thinking", "thinking": f"thought {n}", "signature": f"c2ln{n}"}


def tool_use(n: int, **more: Any) -> Json:
    return {"type": "tool_use", "id": f"toolu_{n}", "name": "look", "input": {"q": n}, **more}


def refused(act: Callable[[], object]) -> Faults:
    with pytest.raises(ValidationError) as caught:
        act()
    return [(v.rule.id, v.path) for v in caught.value.violations]


def response(*content: Json, stop_reason: str | None = "end_turn", **more: Any) -> Json:
    return {**ENVELOPE, "content": list(content), "stop_reason": stop_reason, "usage": USAGE, **more}


def by_model(data: Json) -> Message:
    return Message.model_validate(data)


def by_client(data: Json) -> Message:
    with (
        MessagesServer([data]) as server,
        anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0) as client,
    ):
        return client.messages.create(
            model="claude-opus-5", max_tokens=64, messages=[{"role": "user", "content": "hi"}]
        )


def by_text(data: Json) -> str:
    return json.dumps(data)


def by_bytes(data: Json) -> bytes:
    return json.dumps(data).encode()


READINGS: list[Callable[[Json], Any]] = [dict, by_text, by_bytes, by_client]
# pydantic itself refuses blocks of unknown types, which the client lets through.
each_reading = pytest.mark.parametrize("reading", READINGS, ids=lambda reading: reading.__name__)
each_full_reading = pytest.mark.parametrize(
    "reading", [*READINGS, by_model], ids=lambda reading: reading.__name__
)


def ask(client: anthropic.Anthropic, convo: AwaitingModel, target: Target = TARGET) -> Reply:
    return from_message(client.messages.create(max_tokens=64, **to_request(convo, target)), target)


@pytest.fixture
def client() -> Iterator[Callable[[MessagesServer], anthropic.Anthropic]]:
    opened: list[anthropic.Anthropic] = []

    def make(server: MessagesServer) -> anthropic.Anthropic:
        opened.append(anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


Clients = Callable[[MessagesServer], anthropic.Anthropic]

# ---------------------------------------------------------------- the loop


def test_the_loop_keeps_interleaved_thinking_in_its_order_and_the_double_takes_every_request(
    client: Clients,
) -> None:
    first = [thinking(1), tool_use(1), thinking(2), tool_use(2), text("Let me see.")]
    second = [thinking(3), text("One more."), tool_use(3)]
    with MessagesServer([first, second, [thinking(4), text("21 degrees.")]]) as server:
        convo: Conversation = start("Is it warm?", system="Be brief.", tools=[LOOK])
        prefixes: list[bytes] = []
        while isinstance(convo, AwaitingModel):
            outcome = convo.receive(ask(client(server), convo))
            assert not isinstance(outcome, Interrupted)
            convo = outcome
            if isinstance(convo, AwaitingTools):
                convo = convo.answer(call.result(str(call.input["q"])) for call in reversed(convo.open_calls))
            prefixes.append(json.dumps(to_messages(convo)).encode())
    assert isinstance(convo, AwaitingUser)
    assert convo.last_text == "21 degrees."
    written: Any = to_messages(convo)
    assert [message["role"] for message in written] == ["user", "assistant"] * 3
    assert written[1]["content"] == first
    assert written[3]["content"] == second
    assert [block["tool_use_id"] for block in written[2]["content"]] == ["toolu_2", "toolu_1"]
    sent = server.requests
    assert sent[0] == {
        "model": "claude-opus-5",
        "max_tokens": 64,
        "system": "Be brief.",
        "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        "thinking": {"type": "adaptive"},
        "messages": [{"role": "user", "content": [text("Is it warm?")]}],
    }
    for before, after in pairwise(sent):
        assert after["messages"][: len(before["messages"])] == before["messages"]
    for shorter, longer in pairwise(prefixes):
        assert longer.startswith(shorter[:-1])


def test_a_failed_request_leaves_the_conversation_as_it_was(client: Clients) -> None:
    with MessagesServer([ApiError(529, "overloaded_error", "Overloaded"), [text("Yes.")]]) as server:
        convo = start("Is it warm?")
        before = (convo.digest, to_messages(convo))
        with pytest.raises(anthropic.APIStatusError):
            ask(client(server), convo)
        assert (convo.digest, to_messages(convo)) == before
        after = convo.receive(ask(client(server), convo))
    assert isinstance(after, AwaitingUser)
    assert server.requests[0] == server.requests[1]


def test_prepared_bytes_go_out_as_they_are(client: Clients) -> None:
    with MessagesServer([[tool_use(1)], [text("Yes.")]]) as server:
        convo = start("Is it warm?", tools=[LOOK])
        body = to_body(convo, TARGET, max_tokens=64, metadata={"user_id": "u"})
        message = client(server).post("/v1/messages", cast_to=Message, content=body)
        called = convo.receive(from_message(message, TARGET))
        assert isinstance(called, AwaitingTools)
        answered = called.answer(CALL.result("1"))
        more = to_body(answered, TARGET, max_tokens=64, metadata={"user_id": "u"})
        client(server).post("/v1/messages", cast_to=Message, content=more)
    assert server.bodies == (body, more)
    assert more.startswith(body[: -len(b"]}")])
    assert json.loads(more) == {
        **to_request(answered, TARGET),
        "max_tokens": 64,
        "metadata": {"user_id": "u"},
    }


def test_a_parameter_that_the_conversation_decides_cannot_be_given() -> None:
    convo = start("hi")
    assert refused(lambda: to_body(convo, TARGET, messages=[])) == [("field-type", "messages")]
    assert refused(lambda: to_body(convo, TARGET, thinking=None, tools=[])) == [
        ("field-type", "tools"),
        ("field-type", "thinking"),
    ]
    assert refused(lambda: to_body(convo, TARGET, top=float("nan"))) == [("json-value", "top")]


def test_only_a_conversation_that_awaits_the_model_is_sent_and_only_to_a_target() -> None:
    done: Any = start("hi").assistant("Hello.")
    to: Any = "claude-opus-5"
    assert refused(lambda: to_request(done, TARGET)) == [("field-type", "conversation")]
    assert refused(lambda: to_request(start("hi"), to)) == [("field-type", "target")]


# ---------------------------------------------------------------- replies


@each_full_reading
def test_a_reply_reads_alike_from_every_form_of_it(reading: Callable[[Json], Any]) -> None:
    data = response(
        thinking(1),
        text("It is"),
        {"type": "redacted_thinking", "data": "eA=="},
        {
            "type": "server_tool_use",
            "id": "srvtoolu_1",
            "name": "web_search",
            "input": {"query": "q"},
            "caller": {"type": "direct"},
        },
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "caller": {"type": "direct"},
            "content": [
                {
                    "type": "web_search_result",
                    "title": "T",
                    "url": "u",
                    "encrypted_content": "e",
                    "page_age": None,
                }
            ],
        },
        text(
            "warm",
            citations=[
                {
                    "type": "web_search_result_location",
                    "cited_text": "c",
                    "encrypted_index": "i",
                    "title": None,
                    "url": "u",
                }
            ],
        ),
        {"type": "thinking", "thinking": "", "signature": "c2ln"},
        tool_use(1, caller={"type": "direct"}),
        stop_reason="tool_use",
        container={"id": "container_1", "expires_at": "2026-12-01T00:00:00Z"},
    )
    reply = from_message(reading(data), Target(model="claude-opus-5", platform="vertex"))
    assert reply.blocks == (
        Thinking("thought 1", "c2ln1"),
        Text("It is"),
        RedactedThinking("eA=="),
        ServerToolUse("srvtoolu_1", "web_search", {"query": "q"}, caller=DirectCaller()),
        WebSearchToolResult(
            "srvtoolu_1",
            [{"type": "web_search_result", "title": "T", "url": "u", "encrypted_content": "e"}],
            caller=DirectCaller(),
        ),
        Text("warm", citations=[CitationWebSearchResultLocation("c", "i", None, "u")]),
        Thinking("", "c2ln"),
        ToolUse("toolu_1", "look", {"q": 1}, caller=DirectCaller()),
    )
    assert reply.origin == Origin(
        platform="vertex", model="claude-opus-5", id="msg_1", stop_reason="tool_use", container="container_1"
    )
    assert (reply.complete, reply.dropped) == (True, ())


@each_reading
def test_a_block_of_an_unknown_type_is_kept_in_place_and_sent_back_verbatim(
    reading: Callable[[Json], Any],
) -> None:
    unknown = {
        "type": "connector_text",
        "z": None,
        "connector_text": "c",
        "signature": "s",
        "a": {"index": [1.0, 2**60]},
    }
    reply = from_message(reading(response(text("a"), unknown, text("b"))))
    assert reply.blocks == (Text("a"), OpaqueBlock(unknown), Text("b"))
    after = start("hi").receive(reply)
    assert isinstance(after, AwaitingUser)
    assert json.dumps(cast("Any", to_messages(after))[1]["content"][1]) == json.dumps(unknown)


@each_reading
def test_a_call_of_an_unknown_server_tool_is_kept_in_place_and_pairs_up(
    reading: Callable[[Json], Any],
) -> None:
    call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "memory_search", "input": {"q": [1.0]}}
    found = {"type": "memory_search_tool_result", "tool_use_id": "srvtoolu_1", "content": {"type": "new"}}
    called = {**call, "caller": {"type": "direct"}}
    whole = from_message(reading(response(text("a"), called, found, text("b"))))
    assert whole.blocks == (Text("a"), OpaqueBlock(called), OpaqueBlock(found), Text("b"))
    assert whole.dropped == ()
    after = start("hi").receive(whole)
    assert isinstance(after, AwaitingUser)
    assert cast("Any", to_messages(after))[1]["content"] == [text("a"), called, found, text("b")]
    assert loads(dumps(after)) == after
    assert [v.rule for v in check(to_messages(after))] == ["server-name-enum", "block-type-known"]

    paused = start("hi").receive(from_message(reading(response(text("a"), call, stop_reason="pause_turn"))))
    assert isinstance(paused, AwaitingModel)
    with pytest.raises(ValidationError, match="server-use-has-result"):
        paused.user("Well?")
    assert paused.abandon().turns[-1].blocks == (Text("a"),)
    assert isinstance(paused.receive(from_message(reading(response(found, text("b"))))), AwaitingUser)
    cut = start("hi").receive(from_message(reading(response(text("a"), call, stop_reason="max_tokens"))))
    assert isinstance(cut, Interrupted)
    assert cut.kept is not None
    assert cut.kept.blocks == (Text("a"),)
    elsewhere = Target(model="claude-opus-4-8", platform="bedrock")
    with pytest.raises(ValidationError, match="server-tool-platform"):
        to_request(after.user("And?"), elsewhere)


@each_reading
def test_output_only_fields_are_never_sent_again(reading: Callable[[Json], Any]) -> None:
    citation = {
        "type": "char_location",
        "cited_text": "sky",
        "document_index": 0,
        "document_title": None,
        "start_char_index": 0,
        "end_char_index": 3,
        "file_id": "file_1",
    }
    fetched: Json = {
        "type": "web_fetch_tool_result",
        "tool_use_id": "srvtoolu_1",
        "citations": [],
        "caller": None,
        "content": {
            "type": "web_fetch_result",
            "url": "u",
            "retrieved_at": None,
            "content": {
                "type": "document",
                "title": None,
                "citations": None,
                "source": {"type": "text", "media_type": "text/plain", "data": "d"},
            },
        },
    }
    data = response(
        {
            "type": "server_tool_use",
            "id": "srvtoolu_1",
            "name": "web_fetch",
            "input": {"url": "u"},
            "index": 0,
        },
        fetched,
        text("blue", citations=[citation], parsed_output={"a": 1}, index=1),
        text("sky", citations=None, parsed_output=None),
        tool_use(1, caller=None, toolset_name=None, index=2, partial_json="{}"),
        stop_reason="tool_use",
    )
    reply = from_message(reading(data))
    after = start("hi").receive(reply)
    assert isinstance(after, AwaitingTools)
    sent: Any = to_messages(after)[1]
    assert sent["content"] == [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_fetch", "input": {"url": "u"}},
        {
            "type": "web_fetch_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": {
                "type": "web_fetch_result",
                "url": "u",
                "content": {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "d"},
                },
            },
        },
        text("blue", citations=[{key: value for key, value in citation.items() if key != "file_id"}]),
        text("sky"),
        tool_use(1),
    ]
    assert after.turns[1].blocks[2] == Text(
        "blue", citations=[CitationCharLocation("sky", 0, None, 0, 3, file_id="file_1")]
    )
    assert check(to_messages(after)) == ()
    dropped = {(v.rule.id, v.path) for v in reply.dropped}
    told = {
        ("unknown-field-rejected", f"content[{path}")
        for path in ("0].index", "2].index", "4].index", "4].partial_json")
    }
    told |= {
        ("unknown-field-rejected", "content[1].citations"),
        ("unknown-field-rejected", "content[2].parsed_output"),
    }
    assert dropped == told


@each_full_reading
def test_an_empty_text_between_thoughts_is_left_out_and_told(reading: Callable[[Json], Any]) -> None:
    reply = from_message(reading(response(thinking(1), text(""), thinking(2), text("Yes."))))
    assert reply.blocks == (Thinking("thought 1", "c2ln1"), Thinking("thought 2", "c2ln2"), Text("Yes."))
    assert [(v.rule.id, v.path) for v in reply.dropped] == [("adaptive-empty-separator", "content[1]")]


@each_full_reading
def test_a_reply_without_a_stop_reason_is_not_complete(reading: Callable[[Json], Any]) -> None:
    reply = from_message(reading(response(text("It"), stop_reason=None)))
    assert reply.complete is False
    assert isinstance(start("hi").receive(reply), Interrupted)


def test_a_truncated_input_is_never_a_call_that_can_be_run() -> None:
    cut = start("hi", tools=[LOOK]).receive(
        from_message(response(text("a"), tool_use(1), stop_reason="max_tokens"))
    )
    assert isinstance(cut, Interrupted)
    assert (cut.reason, cut.lost) == ("max_tokens", (ToolUse("toolu_1", "look", {"q": 1}),))
    assert cut.kept == AssistantTurn("a", cut.kept.origin if cut.kept else None)


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded", "refusal"])
def test_a_call_that_was_cut_before_its_input_is_left_out(reason: str) -> None:
    reply = from_message(response(text("a"), tool_use(1, input={}), stop_reason=reason))
    assert (reply.blocks, reply.complete, reply.unbroken) == ((Text("a"),), False, 1)
    assert [(v.rule, v.path) for v in reply.dropped] == [("tool-use-input-object", "content[1].input")]
    cut = start("hi", tools=[LOOK]).receive(reply)
    assert isinstance(cut, Interrupted)
    assert (cut.reason, cut.lost) == (reason, () if cut.kept else (Text("a"),))


def test_changing_the_message_afterwards_changes_no_turn() -> None:
    message = by_client(response(text("a"), tool_use(1, input={"a": [1]}), stop_reason="tool_use"))
    reply = from_message(message)
    cast("Any", message.content[1]).input["a"].append(2)
    cast("Any", message.content[0]).text = "other"
    message.content.clear()
    assert reply.blocks == (Text("a"), ToolUse("toolu_1", "look", {"a": [1]}))


UNREADABLE: list[tuple[str, Any, Faults, tuple[Any, ...] | None]] = [
    ("a number", 5, [("field-type", "")], None),
    ("a list", [], [("field-type", "")], None),
    ("text that is no JSON", "{", [("json-value", "")], None),
    ("no content", {"role": "assistant"}, [("required-field", "content")], None),
    ("content as text", {"content": "hi"}, [("content-type", "content")], None),
    ("another party", {"role": "user", "content": []}, [("role-enum", "role")], None),
    (
        "a block without type",
        response(text("a"), {"text": "b"}),
        [("block-type-known", "content[1]")],
        (Text("a"),),
    ),
    ("a block that is text", {"content": ["a"]}, [("block-type-known", "content[0]")], ()),
    (
        "a call without id",
        response(text("a"), {"type": "tool_use", "name": "look", "input": {}}),
        [("required-field", "content[1].id")],
        (Text("a"),),
    ),
    (
        "a thought without signature",
        response({"type": "thinking", "thinking": "hm"}, text("a")),
        [("thinking-fields", "content[0].signature")],
        (Text("a"),),
    ),
    (
        "an input that is text",
        response(tool_use(1, input="{}")),
        [("tool-use-input-object", "content[0].input")],
        (),
    ),
    ("an id of another type", response(text("a"), id=5), [("field-type", "id")], (Text("a"),)),
]


@pytest.mark.parametrize(
    ("message", "faults", "kept"), [each[1:] for each in UNREADABLE], ids=[each[0] for each in UNREADABLE]
)
def test_a_reply_that_cannot_be_read_is_an_error_that_carries_what_could(
    message: Any, faults: Faults, kept: tuple[Any, ...] | None
) -> None:
    with pytest.raises(InvalidReply) as caught:
        from_message(message)
    assert [(v.rule.id, v.path) for v in caught.value.violations] == faults
    reply = caught.value.reply
    assert (None if reply is None else reply.blocks) == kept
    if reply is not None:
        assert reply.complete is False


def test_a_mapping_of_any_class_is_a_message() -> None:
    class Lazy(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            return response(text("a"))[key]

        def __iter__(self) -> Iterator[str]:
            return iter(response())

        def __len__(self) -> int:
            return len(response())

    assert from_message(Lazy()).blocks == (Text("a"),)


# ---------------------------------------------------------------- containers and server tools


def test_the_last_container_is_named_in_every_later_request(client: Clients) -> None:
    container = {"id": "container_1", "expires_at": "2026-12-01T00:00:00Z"}
    replies = [response(text("a"), container=container), response(text("b"))]
    with MessagesServer(replies) as server:
        convo = start("hi")
        for _ in range(2):
            outcome = convo.receive(ask(client(server), convo))
            assert isinstance(outcome, AwaitingUser)
            convo = outcome.user("more")
        to_request(convo, TARGET)
    assert [request.get("container") for request in server.requests] == [None, "container_1"]
    assert convo.container == "container_1"
    assert to_request(convo, TARGET).get("container") == "container_1"


def test_a_pause_is_sent_again_as_it_is_and_the_pair_spans_two_messages(client: Clients) -> None:
    use = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    with MessagesServer(
        [response(text("a"), use, stop_reason="pause_turn"), response(found, text("b"))]
    ) as server:
        paused = start("hi").receive(ask(client(server), start("hi")))
        assert isinstance(paused, AwaitingModel)
        done = paused.receive(ask(client(server), paused))
    assert isinstance(done, AwaitingUser)
    assert server.requests[1]["messages"] == to_messages(paused)
    assert [message["role"] for message in to_messages(done)] == ["user", "assistant", "assistant"]


# ---------------------------------------------------------------- what is written


def test_citations_go_back_with_their_titles_and_search_results_with_their_nulls_left_out() -> None:
    cited = Text(
        "x",
        citations=[
            CitationCharLocation("c", 0, None, 0, 1, file_id="f"),
            CitationWebSearchResultLocation("c", "i", None, "u"),
        ],
    )
    (_, message) = cast("Any", to_messages(start("hi").assistant(cited)))
    assert message["content"][0]["citations"] == [
        {
            "type": "char_location",
            "cited_text": "c",
            "document_index": 0,
            "document_title": None,
            "start_char_index": 0,
            "end_char_index": 1,
        },
        {
            "type": "web_search_result_location",
            "cited_text": "c",
            "encrypted_index": "i",
            "title": None,
            "url": "u",
        },
    ]


def test_what_only_convmodel_knows_is_not_sent() -> None:
    convo = conversation(
        [
            UserTurn("hi"),
            AssistantTurn([CALL], Origin(id="msg_1")),
            UserTurn([ToolResult("toolu_1", synthetic="lost")]),
        ]
    )
    assert to_messages(convo)[1:] == [
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"q": 1}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1"}]},
    ]


def test_the_map_of_messages_follows_joins_and_left_out_blocks() -> None:
    foreign = AssistantTurn([UnsignedThinking("hm"), "a", CALL, CALL2], Origin(vendor="kimi"))
    turns: list[Turn] = [
        UserTurn("hi"),
        foreign,
        UserTurn([CALL2.result("2")]),
        UserTurn([CALL.result("1"), "and?"]),
        AssistantTurn([UnsignedThinking("hm")], Origin(vendor="kimi")),
        UserTurn("well?"),
    ]
    convo = conversation(turns)
    assert message_map(convo) == (
        ((0, 0),),
        ((1, 1), (1, 2), (1, 3)),
        ((2, 0), (3, 0), (3, 1)),
        ((5, 0),),
    )
    kimi = Target(model="kimi-k2", platform="kimi")
    assert message_map(convo, kimi)[1] == ((1, 0), (1, 1), (1, 2), (1, 3))
    for target in (None, kimi, Target(model="m", platform="bedrock")):
        written: Any = to_messages(convo, target)
        places = message_map(convo, target)
        assert [len(message["content"]) for message in written] == [len(each) for each in places]
        for message, each in zip(written, places, strict=True):
            for block, (turn, at) in zip(message["content"], each, strict=True):
                assert block["type"].removeprefix("unsigned_") == convo.turns[turn].blocks[
                    at
                ].type.removeprefix("unsigned_")


def test_bedrock_gets_the_turns_of_one_party_as_one_message() -> None:
    convo = conversation(
        [
            UserTurn("a"),
            UserTurn("b"),
            AssistantTurn("c"),
            AssistantTurn([]),
            AssistantTurn("d"),
            UserTurn("e"),
        ]
    )
    bedrock = Target(model="claude-opus-4-6", platform="bedrock")
    assert isinstance(convo, AwaitingModel)
    assert to_request(convo, bedrock)["messages"] == [
        {"role": "user", "content": [text("a"), text("b")]},
        {"role": "assistant", "content": [text("c"), text("d")]},
        {"role": "user", "content": [text("e")]},
    ]
    assert len(to_messages(convo)) == 6


def test_a_request_made_for_one_target_says_nothing_about_the_next() -> None:
    turns: list[Turn] = [UserTurn("a"), UserTurn("b"), AssistantTurn([THOUGHT, "c"]), UserTurn("d")]
    convo = conversation(turns)
    targets = [None, Target(model="m", platform="bedrock"), Target(model="m", platform="kimi"), TARGET]
    alone = [to_messages(conversation(turns), target) for target in targets]
    assert [to_messages(convo, target) for target in targets] == alone
    assert [to_messages(convo, target) for target in reversed(targets)] == alone[::-1]


def test_tools_and_system_go_out_as_they_were_given_less_their_markers() -> None:
    marker = {"type": "ephemeral"}
    tools: list[Any] = [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 2, "cache_control": marker},
        LOOK,
        {"name": "see", "input_schema": {"type": "object", "z": 1, "a": 2}, "description": "Sees."},
    ]
    convo = start("hi", system=[{"type": "text", "text": "a", "cache_control": marker}, "b"], tools=tools)
    request: Any = to_request(convo, TARGET)
    assert request["system"] == [text("a"), text("b")]
    assert json.dumps(request["tools"]) == json.dumps(
        [
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 2},
            {"name": "look", "input_schema": {"type": "object"}},
            {"name": "see", "input_schema": {"type": "object", "z": 1, "a": 2}, "description": "Sees."},
        ]
    )
    assert tools[0]["cache_control"] == marker
    request["tools"][1]["input_schema"]["type"] = "x"
    again: Any = to_request(convo, TARGET)
    assert again["tools"][1] == {"name": "look", "input_schema": {"type": "object"}}


# ---------------------------------------------------------------- parse


def test_what_was_written_parses_to_the_same_conversation() -> None:
    turns: list[Turn] = [
        UserTurn(["hi", Image.from_url("https://example.org/a.png"), Document(PlainTextSource("d"))]),
        AssistantTurn([THOUGHT, "a", CALL, CALL2]),
        UserTurn([CALL2.result([Text("")]), CALL.result("no", is_error=True)]),
        SystemTurn("Be brief."),
        AssistantTurn([]),
    ]
    convo = conversation(turns, system="s", tools=[LOOK])
    again = parse(
        to_messages(convo), system="s", tools=[{"name": "look", "input_schema": {"type": "object"}}]
    )
    assert again == convo
    assert again.digest == convo.digest


def test_the_messages_of_the_sdk_parse_too() -> None:
    message = by_client(response(text("a"), tool_use(1, input={"a": 1}), stop_reason="tool_use"))
    history: list[Any] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": message.content},
    ]
    convo = parse(history)
    assert convo == start("hi").assistant("a", ToolUse("toolu_1", "look", {"a": 1}))
    body = json.dumps(
        {"model": "m", "system": "s", "tools": [], "messages": [{"role": "user", "content": "hi"}]}
    )
    assert parse(body) == start("hi", system="s")


def test_cache_markers_are_checked_and_then_forgotten() -> None:
    marked = [{"role": "user", "content": [text("hi", cache_control={"type": "ephemeral", "ttl": "1h"})]}]
    assert parse(cast("Any", marked)) == start("hi")
    assert parse(cast("Any", marked)).digest == start("hi").digest


def test_an_id_that_cannot_be_read_brings_no_other_fault() -> None:
    def ask(id: Any) -> Json:
        return {"type": "tool_use", "id": id, "name": "f", "input": {}}

    def answer(id: Any) -> Json:
        return {"type": "tool_result", "tool_use_id": id}

    hello = {"role": "user", "content": "hi"}
    asked = [hello, {"role": "assistant", "content": [ask("a"), ask("b")]}]
    together = [*asked, {"role": "user", "content": [answer(1), answer("b")]}]
    apart = [
        *asked,
        {"role": "user", "content": [answer(1)]},
        {"role": "user", "content": [answer("b")]},
    ]
    for messages in (together, apart):
        assert [(v.rule, v.path) for v in check(messages)] == [
            ("field-type", "messages[2].content[0].tool_use_id")
        ]
    search = {"type": "server_tool_use", "id": 1, "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    searched = [hello, {"role": "assistant", "content": [search, found]}, hello]
    assert [(v.rule, v.path) for v in check(searched)] == [("field-type", "messages[1].content[0].id")]


def test_origins_belong_to_the_messages_that_they_are_given_for() -> None:
    origin = Origin(vendor="kimi", model="k2")
    history: list[Any] = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm", "signature": ""}, text("a")],
        },
    ]
    assert parse(history, origins={1: origin}).turns[1] == AssistantTurn(
        [UnsignedThinking("hm", ""), "a"], origin
    )
    assert refused(lambda: parse(history)) == [
        ("thinking-signature-valid", "messages[1].content[0].signature")
    ]


# ---------------------------------------------------------------- other vendors

DEEPSEEK = Target(model="deepseek-chat", platform="deepseek")


def test_thinking_of_another_vendor_goes_back_to_it_and_never_to_anthropic() -> None:
    foreign = response(
        {"type": "thinking", "thinking": "hm"},
        {"type": "thinking", "thinking": "so", "signature": ""},
        text("a"),
    )
    reply = from_message(foreign, DEEPSEEK)
    assert reply.blocks == (UnsignedThinking("hm"), UnsignedThinking("so", ""), Text("a"))
    assert reply.origin.vendor == "deepseek"
    answered = start("hi").receive(reply)
    assert isinstance(answered, AwaitingUser)
    convo = answered.user("more")
    ours: Any = to_request(convo, TARGET)["messages"]
    theirs: Any = to_request(convo, DEEPSEEK)["messages"]
    assert ours[1]["content"] == [text("a")]
    assert theirs[1]["content"] == foreign["content"]
    other: Any = to_request(convo, Target(model="k2", platform="kimi"))["messages"]
    assert other[1]["content"] == [text("a")]
    assert check(ours, target=TARGET, stage="send") == ()


def test_signed_thinking_of_anthropic_goes_to_no_other_vendor_but_to_every_platform_of_its_own() -> None:
    answered = start("hi").receive(from_message(response(thinking(1), text("a")), TARGET))
    assert isinstance(answered, AwaitingUser)
    convo = answered.user("more")
    for platform in ("anthropic", "bedrock", "vertex", "foundry", "openrouter"):
        written: Any = to_messages(convo, Target(model="m", platform=platform))
        assert written[1]["content"] == [thinking(1), text("a")]
    foreign: Any = to_messages(convo, DEEPSEEK)
    assert foreign[1]["content"] == [text("a")]


def test_a_turn_of_nothing_but_foreign_thinking_is_left_out() -> None:
    answered = start("hi").receive(from_message(response({"type": "thinking", "thinking": "hm"}), DEEPSEEK))
    assert isinstance(answered, AwaitingUser)
    assert [message["role"] for message in to_messages(answered.user("more"))] == ["user", "user"]
    assert [message["role"] for message in to_messages(answered.user("more"), DEEPSEEK)] == [
        "user",
        "assistant",
        "user",
    ]


def test_illegal_and_repeated_ids_of_another_vendor_are_renamed_and_pair_up() -> None:
    kimi = Target(model="kimi-k2", platform="kimi")
    convo: AwaitingModel = start("hi", tools=[LOOK])
    ids: list[str] = []
    for _ in range(2):
        reply = from_message(
            response(tool_use(1, id="functions.look:0"), tool_use(2, id=""), stop_reason="tool_use"), kimi
        )
        assert [(v.rule.id, v.path) for v in reply.dropped] == [
            ("tool-use-id-pattern", "content[0].id"),
            ("tool-use-id-pattern", "content[1].id"),
        ]
        called = convo.receive(reply)
        assert isinstance(called, AwaitingTools)
        ids += [call.id for call in called.open_calls]
        convo = called.answer(call.result("ok") for call in called.open_calls)
    assert ids == ["functions_look_0", "call", "functions_look_0_2", "call_2"]
    assert (
        check(to_messages(convo), tools=[{"name": "look", "input_schema": {}}], target=TARGET, stage="send")
        == ()
    )
    with pytest.raises(InvalidReply):
        from_message(response(tool_use(1, id="functions.look:0")), TARGET)


# ---------------------------------------------------------------- targets


def test_targets_are_values() -> None:
    one = Target(model="m", thinking={"type": "enabled", "budget_tokens": 1024})
    assert one == Target(model="m", thinking={"budget_tokens": 1024, "type": "enabled"})
    assert hash(one) == hash(Target(model="m", thinking={"budget_tokens": 1024, "type": "enabled"}))
    assert one != Target(model="m")
    assert one != Target(model="m", thinking={"type": "enabled", "budget_tokens": 1024}, platform="vertex")
    assert refused(lambda: Target(model="", platform="moon")) == [
        ("field-type", "model"),
        ("field-type", "platform"),
    ]
    assert refused(lambda: Target(model="m", thinking=cast("Any", 5))) == [("field-type", "thinking")]


def test_the_thinking_of_a_target_does_not_change_with_what_it_was_made_of() -> None:
    config: Any = {"type": "adaptive"}
    target = Target(model="claude-opus-5", thinking=config)
    config["type"] = "disabled"
    cast("Any", target.thinking)["display"] = "omitted"
    assert to_request(start("hi"), target).get("thinking") == {"type": "adaptive"}


def test_a_target_refuses_what_it_does_not_take_with_the_place_in_the_turns() -> None:
    fetched = WebFetchToolResult("srvtoolu_1", {"type": "web_fetch_tool_result_error", "error_code": "x"})
    convo = conversation(
        [
            UserTurn("hi"),
            AssistantTurn([ServerToolUse("srvtoolu_1", "web_fetch", {}), fetched]),
            SystemTurn("Be brief."),
            AssistantTurn([CALL]),
            UserTurn([CALL.result("1")]),
        ]
    )
    assert isinstance(convo, AwaitingModel)
    assert refused(lambda: to_request(convo, Target(model="claude-opus-4-6", platform="vertex"))) == [
        ("sysmsg-models", "turns[2]"),
        ("server-tool-platform", "turns[1].blocks[0]"),
        ("tools-must-be-declared", "tools"),
    ]
    manual = Target(model="claude-opus-4-6", thinking={"type": "enabled", "budget_tokens": 1024})
    looped = start("hi", tools=[LOOK]).assistant(CALL)
    assert isinstance(looped, AwaitingTools)
    assert refused(lambda: to_request(looped.answer(CALL.result("1")), manual)) == [
        ("thinking-first-when-manual", "turns[1].blocks[0]")
    ]


@pytest.mark.parametrize(
    ("model", "bound"),
    [
        ("claude-opus-5-5", True),
        ("claude-opus-5", False),
        ("anthropic.claude-sonnet-4-5-20250929-v1:0", False),
        ("claude-fable-5-1@20261001", True),
        ("a-model-to-come", True),
    ],
)
def test_thinking_bound_to_another_prefix_is_refused_where_the_model_checks(model: str, bound: bool) -> None:
    answered = start("hi").receive(Reply([THOUGHT, Text("a")], Origin(stop_reason="end_turn")))
    assert isinstance(answered, AwaitingUser)
    turn = answered.turns[1]
    target = Target(model=model)
    kept = conversation([UserTurn("hi"), turn, UserTurn("more")])
    moved = conversation([UserTurn("hello"), turn, UserTurn("more")])
    assert isinstance(kept, AwaitingModel)
    assert isinstance(moved, AwaitingModel)
    to_request(kept, target)
    if bound:
        assert refused(lambda: to_request(moved, target)) == [("thinking-prefix-bound", "turns[1].blocks[0]")]
    else:
        to_request(moved, target)


BETA = "thinking-binding-controls-2026-08-01"
DROPPING = Target(model="claude-opus-5-5", thinking={"type": "adaptive"}, on_stale="drop_block")
BOUND = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}


def spliced() -> AwaitingModel:
    """A conversation whose thinking answered something else."""
    turn = AssistantTurn([THOUGHT, Text("a")], Origin(prefix=start("hi").binding))
    made = conversation([UserTurn("hello"), turn, UserTurn("more")])
    assert isinstance(made, AwaitingModel)
    return made


def test_a_target_that_lets_the_service_drop_stale_thinking_refuses_none(client: Clients) -> None:
    convo = spliced()
    refusing = Target(model="claude-opus-5-5", thinking={"type": "adaptive"})
    assert refused(lambda: to_request(convo, refusing)) == [("thinking-prefix-bound", "turns[1].blocks[0]")]
    assert (refusing.betas, refusing.headers) == ((), {})
    assert (DROPPING.betas, DROPPING.headers) == ((BETA,), {"anthropic-beta": BETA})
    assert DROPPING.thinking == {"type": "adaptive"}
    with MessagesServer([[text("a")]] * 3) as server:
        stable = client(server)
        stable.messages.create(max_tokens=64, **to_request(convo, DROPPING))
        stable.beta.messages.create(max_tokens=64, **to_beta_request(convo, DROPPING))
        stable.post(
            "/v1/messages",
            cast_to=Message,
            content=to_body(convo, DROPPING, max_tokens=64),
            options={"headers": DROPPING.headers},
        )
        first, *rest = server.requests
    assert first["thinking"] == BOUND
    assert rest == [first] * 2


def test_a_request_without_a_beta_names_none() -> None:
    convo = start("hi")
    assert to_request(convo, TARGET) == to_beta_request(convo, TARGET)
    assert to_request(convo, TARGET).keys() == {"model", "messages", "thinking"}


@pytest.mark.parametrize("thinking", [None, {"type": "disabled"}, {"type": "between_tools"}])
def test_only_a_thinking_configuration_that_has_block_binding_lets_the_service_drop(thinking: Any) -> None:
    assert refused(lambda: Target(model="m", thinking=thinking, on_stale="drop_block")) == [
        ("field-value", "on_stale")
    ]


def test_on_stale_has_two_values() -> None:
    for value, rule in (("ignore", "field-value"), (None, "field-type"), (["refuse"], "field-type")):
        assert refused(lambda value=value: Target(model="m", on_stale=cast("Any", value))) == [  # type: ignore[misc]
            (rule, "on_stale")
        ]
    with pytest.raises(TypeError):
        cast("Any", Target)("m", None, "anthropic", "refuse")


def test_the_double_takes_block_binding_with_its_beta_alone(client: Clients) -> None:
    request = to_beta_request(start("hi"), DROPPING)
    del request["betas"]
    body = {**request, "max_tokens": 9}
    extra = "thinking.adaptive.block_binding: Extra inputs are not permitted"
    assert [(fault.rule, fault.message) for fault in judge(body)] == [("block-binding-param", extra)]
    assert judge(body, betas=[BETA]) == judge(body, betas=["another", BETA]) == []
    with MessagesServer([[text("a")]]) as server:
        with pytest.raises(anthropic.BadRequestError, match="block_binding: Extra inputs are not permitted"):
            client(server).beta.messages.create(max_tokens=9, **request)
        request["betas"] = ["another", BETA]
        client(server).beta.messages.create(max_tokens=9, **request)
    off = {"type": "disabled", "block_binding": {}}
    wrong = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "ignore"}}
    for config in (off, wrong):
        assert judge({**body, "thinking": config}, betas=[BETA])


def test_a_turn_that_is_left_out_never_joins_what_it_parted() -> None:
    code = ToolUse("c1", "look", {}, caller=ServerToolCaller("srvtoolu_1"))
    foreign = AssistantTurn([UnsignedThinking("hm")], Origin(vendor="deepseek"))
    bedrock = Target("claude-opus-4-8", platform="bedrock")
    for gone in (AssistantTurn([]), foreign):
        instructed = conversation([UserTurn("x"), SystemTurn("s"), gone, UserTurn("y")])
        by_code = conversation(
            [UserTurn("x"), AssistantTurn([code]), UserTurn([code.result("r")]), gone, UserTurn("more")],
            tools=[LOOK],
        )
        for convo, rule in ((instructed, "sysmsg-before"), (by_code, "ptc-reply-only-results")):
            assert isinstance(convo, AwaitingModel)
            first_party = to_request(convo, Target("claude-opus-4-8"))
            assert judge({**first_party, "max_tokens": 9}) == []
            assert refused(lambda convo=convo: to_request(convo, bedrock)) == [  # type: ignore[misc]
                (rule, f"turns[{len(convo.turns) - 1}]")
            ]
