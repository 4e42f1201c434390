"""What type checkers must accept; `assert_type` pins what they infer. This file is checked, not run."""

from collections.abc import Mapping
from typing import Any, assert_never, assert_type

import anthropic
from anthropic.types import Message, MessageParam, ToolParam
from anthropic.types.beta import BetaMessage

from convmodel import (
    AssistantBlock,
    AssistantTurn,
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    BashCodeExecutionToolResult,
    CodeExecutionToolResult,
    ContainerUpload,
    Conversation,
    Document,
    Edit,
    Image,
    Interrupted,
    JsonObject,
    OpaqueBlock,
    Outcome,
    RedactedThinking,
    Reply,
    SearchResult,
    ServerToolUse,
    SystemTurn,
    Text,
    TextEditorCodeExecutionToolResult,
    Thinking,
    Tool,
    ToolResult,
    ToolSearchToolResult,
    ToolUse,
    Turn,
    UnsignedThinking,
    UserBlock,
    UserTurn,
    Violation,
    WebFetchToolResult,
    WebSearchToolResult,
    empty,
    start,
)
from convmodel.anthropic import (
    BetaRequest,
    Request,
    StaleThinking,
    Target,
    aread_stream,
    check,
    from_message,
    parse,
    read_stream,
    stale_thinking,
    to_beta_request,
    to_body,
    to_messages,
    to_request,
)
from convmodel.redact import DETECTORS, Redactor

WEATHER: ToolParam = {"name": "weather", "input_schema": {"type": "object"}}


def weather(city: str) -> str:
    return city


def run(call: ToolUse) -> str:
    return weather(**call.input)


def edits(convo: Conversation, target: Target) -> tuple[str, ...]:
    assert_type(convo.replace(0, UserTurn("x")), Edit)
    assert_type(convo.common_prefix(convo), Conversation | None)
    assert_type(stale_thinking(convo, target), tuple[StaleThinking, ...])
    edit = convo.map_tool_inputs(lambda call: {**call.input, "key": "…"}, on_thinking="strip_after")
    return edit.conversation.drop_rounds(2).conversation.compact("They talked.", on_thinking="keep").voided


def redaction(asked: AwaitingModel, called: AwaitingTools, reply: Reply, call: ToolUse) -> None:
    redactor = Redactor(
        {**DETECTORS, "badge": r"E-[0-9]+", "all": lambda text: [(0, len(text))]}, report=print
    )
    assert_type(asked.receive(reply, redactor=redactor), Outcome)
    assert_type(called.answer(call.result("x"), redactor=redactor), AwaitingModel)
    assert_type(asked.redact(redactor, on_thinking="keep"), Edit)
    assert_type(redactor.blocks([call]).blocks, tuple[ToolUse, ...])


def a_beta_request(client: anthropic.Anthropic, convo: AwaitingModel, target: Target) -> BetaMessage:
    assert_type(to_beta_request(convo, target), BetaRequest)
    return client.beta.messages.create(max_tokens=4096, **to_beta_request(convo, target))


def the_loop_of_the_tutorial(client: anthropic.Anthropic) -> str:
    target = Target(model="claude-opus-4-8", thinking={"type": "adaptive"})

    convo: Conversation = start("What is the weather in Paris?", system="Be brief.", tools=[WEATHER])
    while isinstance(convo, AwaitingModel):
        message = client.messages.create(max_tokens=4096, **to_request(convo, target))
        outcome = convo.receive(from_message(message, target))
        if isinstance(outcome, Interrupted):
            outcome = outcome.resume("Go on from where you stopped.")
        convo = outcome
        if isinstance(convo, AwaitingTools):
            convo = convo.answer(call.result(run(call)) for call in convo.open_calls)
    return convo.last_text


async def the_same_with_the_async_client(client: anthropic.AsyncAnthropic, convo: AwaitingModel) -> Outcome:
    message = await client.messages.create(max_tokens=4096, **to_request(convo, Target("claude-opus-4-8")))
    return convo.receive(from_message(message))


def streams(client: anthropic.Anthropic, convo: AwaitingModel) -> None:
    target = Target("claude-opus-4-8")
    raw = client.messages.create(max_tokens=4096, stream=True, **to_request(convo, target))
    assert_type(read_stream(raw, target), Reply)
    with client.messages.stream(max_tokens=4096, **to_request(convo, target)) as helped:
        assert_type(read_stream(helped), Reply)
    beta = client.beta.messages.create(max_tokens=4096, stream=True, **to_beta_request(convo, target))
    assert_type(read_stream(beta), Reply)
    with client.beta.messages.stream(max_tokens=4096, **to_beta_request(convo, target)) as helped_beta:
        assert_type(read_stream(helped_beta), Reply)
    assert_type(read_stream([b"data: {}"]), Reply)


async def async_streams(client: anthropic.AsyncAnthropic, convo: AwaitingModel) -> None:
    target = Target("claude-opus-4-8")
    raw = await client.messages.create(max_tokens=4096, stream=True, **to_request(convo, target))
    assert_type(await aread_stream(raw, target), Reply)
    async with client.messages.stream(max_tokens=4096, **to_request(convo, target)) as helped:
        assert_type(await aread_stream(helped), Reply)


def moves(asked: AwaitingModel, called: AwaitingTools, done: AwaitingUser, reply: Reply) -> None:
    assert_type(start("Hello."), AwaitingModel)
    assert_type(empty(), AwaitingUser)
    assert_type(done.user("Go on.", Image.from_url("https://example.org/a.png")), AwaitingModel)
    assert_type(done.assistant("Hi."), AwaitingUser | AwaitingModel | AwaitingTools)
    assert_type(asked.receive(reply), AwaitingUser | AwaitingTools | AwaitingModel | Interrupted)
    assert_type(asked.system("Answer in French."), AwaitingModel)
    assert_type(asked.abandon(), AwaitingUser | AwaitingModel)
    assert_type(called.answer([ToolResult("toolu_1")], then="And now?"), AwaitingModel)
    assert_type(called.answer_one(ToolResult("toolu_1")), AwaitingTools | AwaitingModel)
    assert_type(called.close("interrupted"), AwaitingModel)
    assert_type(called.open_calls, tuple[ToolUse, ...])
    assert_type(done.rewind(0), AwaitingUser | AwaitingModel | AwaitingTools)
    assert_type(done.turns[0], UserTurn | AssistantTurn | SystemTurn)
    assert_type(done.turns[1:], tuple[UserTurn | AssistantTurn | SystemTurn, ...])


def interrupted(cut: Interrupted) -> None:
    assert_type(cut.discard(), AwaitingModel)
    assert_type(cut.keep(), AwaitingUser)
    assert_type(cut.resume("Go on."), AwaitingModel)
    assert_type(cut.kept, AssistantTurn | None)


def wire(client: anthropic.Anthropic, convo: AwaitingModel, messages: list[MessageParam]) -> None:
    target = Target(model="claude-opus-4-8")
    assert_type(to_request(convo, target), Request)
    assert_type(to_messages(convo), list[MessageParam])
    assert_type(parse(messages, tools=[WEATHER]), AwaitingUser | AwaitingModel | AwaitingTools)
    assert_type(check(messages), tuple[Violation, ...])
    body = to_body(convo, target, max_tokens=100)
    assert_type(client.post("/v1/messages", cast_to=Message, content=body), Message)


def values(call: ToolUse, blocks: list[ToolResult]) -> None:
    turn = UserTurn(blocks)  # a list of one block class is a list of blocks
    assert_type(turn.blocks, tuple[UserBlock, ...])
    assert_type(call.input, JsonObject)
    assert_type(call.input.thaw(), dict[str, Any])
    assert_type(call.result(["text", Text("more")]), ToolResult)
    given: Mapping[str, Any] = call.input
    ToolUse("toolu_1", "weather", given)
    UserTurn("Hello.")
    AssistantTurn(["Hi.", call])
    start("Hello.", tools=[Tool("weather", {"type": "object"}, description="The weather.")])


def state(convo: Conversation) -> str:
    match convo:
        case AwaitingUser():
            return "user"
        case AwaitingModel():
            return "model"
        case AwaitingTools():
            return "tools"
        case _:
            assert_never(convo)


def outcome(result: Outcome) -> str:
    match result:
        case AwaitingUser() | AwaitingModel() | AwaitingTools():
            return "goes on"
        case Interrupted():
            return "stops"
        case _:
            assert_never(result)


def turn(each: Turn) -> str:
    match each:
        case UserTurn():
            return "user"
        case AssistantTurn():
            return "assistant"
        case SystemTurn():
            return "system"
        case _:
            assert_never(each)


def user_block(block: UserBlock) -> str:
    match block:
        case Text() | Image() | Document() | SearchResult() | ToolResult() | ContainerUpload():
            return block.type
        case _:
            assert_never(block)


def assistant_block(block: AssistantBlock) -> str:
    match block:
        case Text() | Thinking() | RedactedThinking() | UnsignedThinking() | ToolUse() | ServerToolUse():
            return block.type
        case (
            WebSearchToolResult() | WebFetchToolResult() | ToolSearchToolResult() | CodeExecutionToolResult()
        ):
            return block.type
        case BashCodeExecutionToolResult() | TextEditorCodeExecutionToolResult():
            return block.type
        case ContainerUpload() | Document() | OpaqueBlock():
            return block.type
        case _:
            assert_never(block)
