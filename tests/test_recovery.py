"""What errors of the API mean, which edit helps, and that a refused conversation comes back in one retry."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import anthropic
import pytest

from convmodel import (
    RULES,
    AssistantTurn,
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    Conversation,
    ConvmodelError,
    Document,
    Image,
    OpaqueBlock,
    Origin,
    PlainTextSource,
    ServerToolUse,
    SystemTurn,
    Thinking,
    Tool,
    ToolResult,
    ToolUse,
    UnsignedThinking,
    UserTurn,
    ValidationError,
    WebSearchToolResult,
    conversation,
    start,
)
from convmodel.anthropic import Target, to_messages, to_request
from convmodel.anthropic.faults import FAULTS, fault_of
from convmodel.cli import main
from convmodel.recovery import PLANS, Diagnosis, arecover, diagnose, recover
from convmodel.storage import dumps
from convmodel.testing import ApiError, MessagesServer

Json = dict[str, Any]
ADAPTIVE = Target("claude-opus-4-8", {"type": "adaptive"})
BOUND = Target("claude-opus-5-5", {"type": "adaptive"})
MANUAL = Target("claude-opus-4-6", {"type": "enabled", "budget_tokens": 1024})
LOOK = Tool("look", {"type": "object"})
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mP8/x8AAwMCAO+aH1sAAAAASUVORK5CYII="
PICTURE = Image.from_bytes(base64.b64decode(PNG))
SEARCH = ServerToolUse("srvtoolu_1", "web_search", {"query": "q"})
FOUND = WebSearchToolResult("srvtoolu_1", cast("Any", []))


def thought(n: int = 1) -> Thinking:
    return Thinking("t", f"sig{n}")


# ---------------------------------------------------------------- texts

FROZEN = (
    "messages.3.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. "
    "These blocks must remain as they were in the original response."
)
WORDINGS: list[tuple[str, str | None, str]] = [
    (row["rule"], row["plan"], row["text"])
    for row in json.loads((Path(__file__).parent / "vectors" / "errors.json").read_text("utf-8"))
]
"""Texts of errors as they were reported, each with the rule behind it and what helps."""


@cache
def bad_request(message: str, status: int = 400) -> anthropic.APIStatusError:
    """The error that the SDK raises for an answer of the service."""
    answer = ApiError(status, "invalid_request_error", message)
    request = to_request(start("x"), ADAPTIVE)
    with (
        MessagesServer([answer]) as server,
        client_of(server) as client,
        pytest.raises(anthropic.APIStatusError) as caught,
    ):
        client.messages.create(max_tokens=9, **request)
    return caught.value


def client_of(server: MessagesServer) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0)


def in_body(message: str) -> Json:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


WRAPPED: dict[str, Callable[[str], object]] = {
    "as text": lambda message: message,
    "as bytes": lambda message: json.dumps(in_body(message)).encode(),
    "as the body": in_body,
    "as the SDK's error": bad_request,
    "by a gateway of another status": lambda message: bad_request(message, 500),
    "by Bedrock": lambda message: (
        f"An error occurred (ValidationException) when calling the Converse operation: {message}"
    ),
    "by Google": lambda message: {
        "error": {"code": 400, "message": json.dumps(in_body(message)), "status": "INVALID_ARGUMENT"}
    },
    "by OpenRouter": lambda message: {
        "error": {
            "message": "Provider returned error",
            "code": 400,
            "metadata": {"raw": json.dumps(in_body(message)), "provider_name": "Anthropic"},
        }
    },
    "by LiteLLM": lambda message: (
        f"litellm.BadRequestError: AnthropicException - {json.dumps(in_body(message)).encode()!r}"
    ),
}


@pytest.mark.parametrize(("rule", "plan", "message"), WORDINGS, ids=[each[2][:60] for each in WORDINGS])
@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_each_text_is_known_however_it_is_wrapped(
    rule: str, plan: str | None, message: str, wrap: Callable[[str], object]
) -> None:
    fault = fault_of(message)
    assert fault is not None
    assert (fault.rule, fault.plan) == (rule, plan)
    assert diagnose(wrap(message), start("x")).rule == rule


def test_every_row_of_the_table_is_met_and_every_rule_has_its_own_text() -> None:
    met = {fault_of(message) for _, _, message in WORDINGS}
    met |= {fault_of(f"{kind} {text}") for _, kind, text, _ in HOPELESS}
    assert [fault.pattern for fault in FAULTS if fault not in met] == []
    texts = {fault.rule: fault.rule.error for fault in FAULTS if fault.rule is not None and fault.rule.error}
    generic = {"turn-not-all-whitespace", "block-type-known", "unknown-field-rejected"}
    for rule, text in texts.items():
        found = fault_of(text)
        assert found is not None, rule
        assert found.rule == rule or rule in generic, rule
    assert {fault.plan for fault in FAULTS if fault.plan} | {"strip_thinking"} == set(PLANS)


HOPELESS: list[tuple[int, str, str, str]] = [
    (400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API.", "pay"),
    (400, "invalid_request_error", "This organization has been disabled.", "disabled"),
    (401, "authentication_error", "invalid x-api-key", "authenticated"),
    (403, "permission_error", "Your key may not use this.", "may not"),
    (404, "not_found_error", "model: claude-none", "model"),
    (429, "rate_limit_error", "This request would exceed your rate limit.", "too often"),
    (529, "overloaded_error", "Overloaded", "overloaded"),
    (529, "overloaded_error", "compaction_unavailable", "later"),
    (500, "api_error", "Internal server error", "failed"),
    (400, "invalid_request_error", "Something nobody has seen.", "not known"),
]
"""Errors that no edit of a history mends: status, type, text, and a word of what is said of them."""


@pytest.mark.parametrize(("status", "kind", "message", "word"), HOPELESS)
def test_what_a_history_cannot_mend_is_said_and_stops_at_once(
    status: int, kind: str, message: str, word: str
) -> None:
    asked = start("x")
    with MessagesServer([ApiError(status, kind, message)]) as server, client_of(server) as client:
        with pytest.raises(anthropic.APIStatusError) as caught:
            recover(lambda c, t: client.messages.create(max_tokens=9, **to_request(c, t)), asked, ADAPTIVE)
        assert len(server.requests) == 1
    assert caught.value.status_code == status
    [note] = caught.value.__notes__
    assert note.startswith("convmodel: ")
    assert word in note
    found = diagnose(caught.value, asked, ADAPTIVE)
    assert (found.rule, found.plan, found.recoverable) == (None, None, False)
    with pytest.raises(ConvmodelError, match=word):
        found.apply()


@pytest.mark.parametrize(
    "message",
    [
        "messages.1: this resource cannot be modified",
        "These blocks cannot be modified. These blocks must remain as they were.",
        "The signature of the webhook is invalid",
        "thinking is hard",
        "prompt is too short",
        "tool_use ids look fine",
        "",
    ],
)
def test_a_text_that_merely_resembles_is_not_swept_in(message: str) -> None:
    assert fault_of(message) is None
    assert diagnose(bad_request(message), start("x")).plan is None


# ---------------------------------------------------------------- plans


def answered(*blocks: Any, origin: Origin | None = None) -> AssistantTurn:
    return AssistantTurn(blocks, origin)


LOOP = conversation(
    [
        UserTurn("x"),
        answered(thought(1), "a"),
        UserTurn("y"),
        answered(thought(2), ToolUse("c1", "look", {})),
        UserTurn([ToolResult("c1", "ok")]),
        answered(thought(3), ToolUse("c2", "look", {})),
        UserTurn([ToolResult("c2", "ok")]),
    ],
    tools=[LOOK],
)


def signatures(convo: Conversation) -> list[str]:
    return [b.signature for turn in convo.turns for b in turn.blocks if isinstance(b, Thinking)]


class Refusal(NamedTuple):
    """A conversation, a refusal of it, and what must hold of what is sent then."""

    plan: str
    convo: Conversation
    target: Target
    message: str
    holds: Callable[[Any], bool]


REFUSALS = [
    Refusal(
        "strip_thinking",
        LOOP,
        ADAPTIVE,
        "messages.3.content.0: Invalid `signature` in `thinking` block",
        lambda made: (signatures(made.conversation), made.voided)
        == (["sig1"], ("turns[3].blocks[0]", "turns[5].blocks[0]")),
    ),
    Refusal(
        "strip_thinking",
        LOOP,
        ADAPTIVE,
        "Invalid `signature` in `thinking` block",
        lambda made: signatures(made.conversation) == [],
    ),
    Refusal(
        "strip_turn_thinking",
        LOOP,
        ADAPTIVE,
        FROZEN.replace("messages.3", "messages.5"),
        lambda made: signatures(made.conversation) == ["sig1", "sig2"],
    ),
    Refusal(
        "strip_turn_thinking",
        LOOP,
        MANUAL,
        FROZEN.replace("messages.3.content.0: ", ""),
        lambda made: signatures(made.conversation) == ["sig1", "sig2"]
        and made.target.thinking_type == "adaptive",
    ),
    Refusal(
        "drop_block",
        LOOP,
        BOUND,
        "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation.",
        lambda made: made.target.on_stale == "drop_block" and made.conversation == LOOP,
    ),
    Refusal(
        "strip_thinking",
        LOOP,
        Target("claude-opus-5-5"),
        "messages.3.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation.",
        lambda made: signatures(made.conversation) == ["sig1"],
    ),
    Refusal(
        "change_thinking",
        LOOP,
        MANUAL,
        "messages.5.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`.",
        lambda made: made.target.thinking_type == "adaptive" and made.conversation == LOOP,
    ),
    Refusal(
        "change_thinking",
        start("x"),
        Target("claude-opus-4-6", {"type": "enabled", "budget_tokens": 1024}),
        '"thinking.type.enabled" is not supported for this model.',
        lambda made: made.target.thinking_type == "adaptive",
    ),
    Refusal(
        "abandon",
        conversation([UserTurn("x"), answered("a", SEARCH, ToolUse("c1", "look", {})), UserTurn([ToolResult("c1", "ok")])], tools=[LOOK]),
        ADAPTIVE,
        "`web_search` tool use with id `srvtoolu_1` was found without a corresponding `web_search_tool_result` block",
        lambda made: [b.type for b in made.conversation.turns[1].blocks] == ["text", "tool_use"],
    ),
    Refusal(
        "drop_named",
        conversation([UserTurn("x"), answered(SEARCH, FOUND, "a"), UserTurn("y")]),
        ADAPTIVE,
        "messages.1.content.1: Invalid `encrypted_content` in `search_result` block",
        lambda made: made.conversation.turns[1] == AssistantTurn("a"),
    ),
    Refusal(
        "drop_named",
        conversation(
            [UserTurn("x"), answered(OpaqueBlock({"type": "connector_text", "text": "c"}), "a"), UserTurn("y")]
        ),
        ADAPTIVE,
        "messages.1.content.0: Input tag 'connector_text' found using 'type' does not match any of the expected tags",
        lambda made: made.conversation.turns[1] == AssistantTurn("a"),
    ),
    Refusal(
        "drop_named",
        conversation(
            [UserTurn("x"), answered(OpaqueBlock({"type": "advisor_tool_result", "tool_use_id": "s"}), "a"), UserTurn("y")]
        ),
        ADAPTIVE,
        "Advisor tool result content could not be processed",
        lambda made: made.conversation.turns[1] == AssistantTurn("a"),
    ),
    Refusal(
        "drop_blank_text",
        conversation([UserTurn("x"), answered("a", " "), UserTurn("y")]),
        ADAPTIVE,
        "messages: text content blocks must contain non-whitespace text",
        lambda made: made.conversation.turns[1] == AssistantTurn("a"),
    ),
    Refusal(
        "strip_field",
        conversation([UserTurn("x"), answered("a"), UserTurn([Document(PlainTextSource("d"), title="t"), "y"])]),
        ADAPTIVE,
        "messages.2.content.0.document.title: Extra inputs are not permitted",
        lambda made: made.conversation.turns[2].blocks[0].title is None,
    ),
    Refusal(
        "declare_tools",
        conversation([UserTurn("x"), answered(ToolUse("c1", "look", {})), UserTurn([ToolResult("c1", "ok")]), answered("a"), UserTurn("y")]),
        ADAPTIVE,
        "Requests which include `tool_use` or `tool_result` blocks must define tools.",
        lambda made: [tool["name"] for tool in made.conversation.preamble.tools] == ["look"],
    ),
    Refusal(
        "fold_system",
        conversation([UserTurn("x"), SystemTurn("s")]),
        ADAPTIVE,
        "role 'system' is not supported on this model",
        lambda made: made.conversation.turns == (UserTurn("x"), UserTurn("s")),
    ),
    Refusal(
        "replace_media",
        conversation([UserTurn([PICTURE, "x"]), answered("a"), UserTurn([PICTURE, "y"])]),
        ADAPTIVE,
        "messages.0.content.0.image.source.base64.data: Could not process image",
        lambda made: [b.type for turn in made.conversation.turns for b in turn.blocks]
        == ["text", "text", "text", "image", "text"],
    ),
    Refusal(
        "replace_media",
        conversation([UserTurn("x"), answered(ToolUse("c1", "look", {})), UserTurn([ToolResult("c1", ["seen", PICTURE])])], tools=[LOOK]),
        ADAPTIVE,
        "messages.2.content.0.tool_result.content.1.image.source.base64.data: Could not process image",
        lambda made: [b.type for b in made.conversation.turns[2].blocks[0].content] == ["text", "text"],
    ),
    Refusal(
        "drop_oldest_media",
        conversation([UserTurn([PICTURE, "x"]), UserTurn([PICTURE, "y"]), UserTurn([PICTURE, "z"])]),
        ADAPTIVE,
        "too much media",
        lambda made: [turn.blocks[0].type for turn in made.conversation.turns] == ["text", "text", "image"],
    ),
    Refusal(
        "clear_results",
        conversation(
            [
                UserTurn("x"),
                *[
                    turn
                    for n in range(4)
                    for turn in (answered(ToolUse(f"c{n}", "look", {})), UserTurn([ToolResult(f"c{n}", "long" * 99)]))
                ],
            ],
            tools=[LOOK],
        ),
        ADAPTIVE,
        "prompt is too long: 206421 tokens > 200000 maximum",
        lambda made: [len(turn.blocks[0].content) > 99 for turn in made.conversation.turns if turn.role == "user" and turn.results]
        == [False, False, True, True],
    ),
    Refusal(
        "rewind_open_turn",
        LOOP,
        ADAPTIVE,
        "container_id is required when there are pending tool uses generated by code execution with tools.",
        lambda made: made.conversation == LOOP.rewind(3),
    ),
    Refusal(
        "retry",
        start("x"),
        ADAPTIVE,
        "thinking: Input tag 'adaptive' found using 'type' does not match any of the expected tags: 'disabled', 'enabled'",
        lambda made: made.conversation == start("x"),
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS, ids=[f"{n}-{each.plan}" for n, each in enumerate(REFUSALS)])
def test_a_loop_that_hits_a_recoverable_refusal_comes_back_in_one_retry(case: Refusal) -> None:
    convo = case.convo
    assert isinstance(convo, AwaitingModel)
    found = diagnose(bad_request(case.message), convo, case.target)
    assert found.plan == case.plan
    made = found.apply()
    assert case.holds(made)

    # The refusal is scripted, since the double finds no fault; what is sent after it, the double judges.
    script: Any = [ApiError(400, "invalid_request_error", case.message), [{"type": "text", "text": "Well."}]]
    with MessagesServer(script) as server, client_of(server) as client:

        def call(convo: AwaitingModel, target: Target) -> Any:
            # Some of the refused conversations break a rule that the double has too: they go in another's place.
            sent = start("x") if (convo, target) == (case.convo, case.target) else convo
            to = ADAPTIVE if sent is not convo else target
            if case.plan == "retry":
                sent, to = convo, target
            return client.messages.create(max_tokens=2048, **to_request(sent, to))

        came = recover(call, convo, case.target)
        assert len(server.requests) == 2
    assert came.result.content[0].text == "Well."
    assert (came.conversation, came.target) == (made.conversation, made.target)
    assert [each.plan for each in came.diagnoses] == [case.plan]


def test_what_the_double_itself_refuses_is_mended() -> None:
    """A history that was sent by hand with an open call."""
    called = start("x", tools=[LOOK]).assistant("a", ToolUse("c1", "look", {}))
    assert isinstance(called, AwaitingTools)
    with MessagesServer([[{"type": "text", "text": "Well."}]]) as server, client_of(server) as client:
        with pytest.raises(anthropic.BadRequestError) as caught:
            client.messages.create(
                model="claude-opus-4-8",
                max_tokens=9,
                tools=cast("Any", [{"name": "look", "input_schema": {"type": "object"}}]),
                messages=[*to_messages(called), {"role": "user", "content": "y"}],
            )
        found = diagnose(caught.value, called, ADAPTIVE)
        assert (found.rule, found.plan) == ("tool-use-answered-next", "re_pair")
        closed = found.apply().conversation
        assert isinstance(closed, AwaitingModel)
        client.messages.create(max_tokens=9, **to_request(closed, ADAPTIVE))
    assert cast("ToolResult", closed.turns[-1].blocks[0]).synthetic == "interrupted"


def test_a_prefill_that_was_refused_leaves_the_move_to_the_user() -> None:
    paused = start("x").receive(AssistantTurn([SEARCH, FOUND, "a"], Origin(stop_reason="pause_turn")))
    assert isinstance(paused, AwaitingModel)
    found = diagnose("This model does not support assistant message prefill.", paused, ADAPTIVE)
    assert isinstance(found.apply().conversation, AwaitingUser)


@pytest.mark.parametrize(
    ("target", "then"),
    [
        (Target("claude-opus-4-5", {"type": "enabled", "budget_tokens": 1024}), None),
        (Target("claude-opus-4-6", {"type": "enabled", "budget_tokens": 1024}), "adaptive"),
        (Target("claude-opus-5-5", {"type": "adaptive"}, on_stale="drop_block"), None),
        (Target("claude-opus-4-8", {"type": "disabled"}), "adaptive"),
    ],
)
def test_a_thinking_mode_that_was_refused_is_changed(target: Target, then: str | None) -> None:
    made = diagnose('"thinking.type.x" is not supported for this model.', start("x"), target).apply()
    assert made.target is not None
    assert made.target.thinking_type == then
    without = Target("claude-opus-4-8")
    assert not diagnose("adaptive thinking is not supported on this model", start("x"), without).recoverable


# ---------------------------------------------------------------- places


def test_the_place_is_mapped_back_through_joined_turns_and_left_out_blocks() -> None:
    convo = conversation(
        [
            UserTurn("x"),
            AssistantTurn(
                [UnsignedThinking("u"), thought(), ToolUse("a", "look", {}), ToolUse("b", "look", {})]
            ),
            UserTurn([ToolResult("a", "1")]),
            UserTurn([ToolResult("b", [PICTURE])]),
            AssistantTurn([thought(2), "y"]),
            UserTurn("z"),
        ],
        tools=[LOOK],
    )
    named = {
        "messages.1.content.0: Invalid `signature` in `thinking` block": "turns[1].blocks[1]",
        "messages.2.content.1.tool_result.content.0: Could not process image": "turns[3].blocks[0]",
        "messages[3].content[0]: Invalid `signature` in `thinking` block": "turns[4].blocks[0]",
        "messages.3: the final block in an assistant message cannot be `thinking`": "turns[4]",
        "messages.9.content.0: Invalid `signature` in `thinking` block": None,
        "messages.99999999999999999999.content.0: Invalid `signature` in `thinking` block": None,
    }
    assert {text: diagnose(text, convo, ADAPTIVE).path for text in named} == named


def test_on_a_model_that_binds_thinking_an_edit_takes_out_what_it_voids() -> None:
    convo = conversation(
        [
            UserTurn([PICTURE, "x"]),
            answered(thought(1), "a"),
            UserTurn("y"),
            answered(thought(2), "b"),
            UserTurn("z"),
        ]
    )
    text = "messages.0.content.0.image.source.base64.data: Could not process image"
    assert diagnose(text, convo, ADAPTIVE).apply().voided == ()
    made = diagnose(text, convo, BOUND).apply()
    assert made.voided == ("turns[1].blocks[0]", "turns[3].blocks[0]")
    assert signatures(made.conversation) == []
    lenient = Target("claude-opus-5-5", {"type": "adaptive"}, on_stale="drop_block")
    assert diagnose(text, convo, lenient).apply().voided == ()


# ---------------------------------------------------------------- ends of the loop


def test_the_same_history_never_gets_the_same_plan_twice() -> None:
    text = "thinking: Input tag 'adaptive' found using 'type' does not match any of the expected tags"
    first = diagnose(text, start("x"), ADAPTIVE)
    second = diagnose(text, start("x"), ADAPTIVE, attempts=first.attempts)
    assert (first.plan, second.plan, second.recoverable) == ("retry", None, False)
    other = diagnose(text, start("y"), ADAPTIVE, attempts=second.attempts)
    assert other.recoverable


def test_a_fault_that_comes_again_is_raised_with_what_was_tried() -> None:
    sent: list[AwaitingModel] = []

    def call(convo: AwaitingModel, _: Target) -> None:
        sent.append(convo)
        raise bad_request("messages.5.content.0: Invalid `signature` in `thinking` block")

    with pytest.raises(anthropic.APIStatusError) as caught:
        recover(call, cast("AwaitingModel", LOOP), ADAPTIVE)
    assert len(sent) == 2
    assert caught.value.__notes__[0].startswith("convmodel: ")


def test_two_kinds_of_faults_are_mended_one_after_the_other() -> None:
    texts = iter(
        [
            "messages.5.content.0: Invalid `signature` in `thinking` block",
            "thinking: Input tag 'adaptive' found using 'type' does not match any of the expected tags",
        ]
    )

    def call(convo: AwaitingModel, _: Target) -> int:
        for text in texts:
            raise bad_request(text)
        return len(signatures(convo))

    came = recover(call, cast("AwaitingModel", LOOP), ADAPTIVE)
    assert (came.result, [each.plan for each in came.diagnoses]) == (2, ["strip_thinking", "retry"])


def test_errors_of_the_callers_own_pass_untouched() -> None:
    def call(*_: object) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        recover(call, start("x"), ADAPTIVE)
    assert not hasattr(caught.value, "__notes__")


def test_an_awaited_call_comes_back_too() -> None:
    script = [
        ApiError(400, "invalid_request_error", "role 'system' is not supported on this model"),
        [{"type": "text", "text": "Well."}],
    ]
    asked = start("x").system("s")

    async def run(url: str) -> Any:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="k") as client:

            async def call(convo: AwaitingModel, target: Target) -> Any:
                return await client.messages.create(max_tokens=9, **to_request(convo, target))

            return await arecover(call, asked, ADAPTIVE)

    with MessagesServer(cast("Any", script)) as server:
        came = asyncio.run(run(server.url))
    assert came.conversation.turns == (UserTurn("x"), UserTurn("s"))


# ---------------------------------------------------------------- histories in wire form


def test_a_broken_history_is_repaired_first() -> None:
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
        {"role": "user", "content": "y"},
    ]
    text = "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: a"
    found = diagnose(text, {"messages": messages, "tools": [{"name": "look", "input_schema": {}}]}, ADAPTIVE)
    assert (found.path, found.plan) == ("turns[1]", "re_pair")
    assert cast("ToolResult", found.apply().conversation.turns[2].blocks[0]).is_error
    marked = [
        {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}
    ]
    assert (
        diagnose("A maximum of 4 blocks with cache_control may be provided. Found 5.", marked).plan
        == "drop_markers"
    )


@pytest.mark.parametrize("history", [3, None, object()])
def test_what_is_no_history_is_refused(history: object) -> None:
    with pytest.raises(ValidationError) as caught:
        diagnose("x", history)
    assert [(fault.rule.id, fault.path) for fault in caught.value.violations] == [
        ("field-type", "conversation")
    ]


@pytest.mark.parametrize("error", [3, None, object(), 1.5])
def test_what_is_no_error_is_refused(error: object) -> None:
    with pytest.raises(ValidationError) as caught:
        diagnose(error, start("x"))
    assert [(fault.rule.id, fault.path) for fault in caught.value.violations] == [("field-type", "error")]


@pytest.mark.parametrize(
    "error",
    [
        "",
        b"\xff\xfe",
        "[" * 100_000,
        {"error": {"error": [{"x": None}]}},
        [[]],
        "messages.1.content." * 100_000,
        {},
    ],
)
def test_hostile_errors_are_read(error: object) -> None:
    found = diagnose(error, start("x"))
    assert isinstance(found, Diagnosis)
    assert not found.recoverable


def test_rules_that_only_errors_name_are_in_the_catalogue() -> None:
    assert all(fault.rule is None or RULES[fault.rule] is fault.rule for fault in FAULTS)


def test_the_command_says_what_an_error_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history, error = tmp_path / "history.json", tmp_path / "error.json"
    history.write_text(dumps(LOOP))
    error.write_text(json.dumps(in_body("messages.5.content.0: Invalid `signature` in `thinking` block")))
    assert main(["diagnose", str(error), "--history", str(history), "--model", "claude-opus-4-8"]) == 0
    assert capsys.readouterr().out == (
        "turns[5].blocks[0]: The service does not accept a signature. 1 thinking block is taken out. "
        "[thinking-signature-valid]\n"
    )
    assert main(["diagnose", str(error), "--history", str(history), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["plan"], shown["voided"]) == ("strip_thinking", ["turns[5].blocks[0]"])
    error.write_text("Overloaded")
    history.write_text(json.dumps([{"role": "user", "content": "x"}]))
    assert main(["diagnose", str(error), "--history", str(history)]) == 1
    assert main(["diagnose", str(error), "--history", str(tmp_path / "none")]) == 2
