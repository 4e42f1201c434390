"""What type checkers must reject. An ignore that is no longer needed is an error, so each line fails the day it passes.

This file is checked by mypy and pyright, not run.
"""

from convmodel import (
    AssistantTurn,
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    Conversation,
    Thinking,
    ToolResult,
    ToolUse,
    UserTurn,
    empty,
    start,
)
from convmodel.anthropic import Target, to_request


def answering_without_calls(done: AwaitingUser, asked: AwaitingModel) -> None:
    done.answer(ToolResult("toolu_1"))  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    asked.answer(ToolResult("toolu_1"))  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    asked.close("lost")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def sending_what_does_not_await_the_model(called: AwaitingTools, convo: Conversation, target: Target) -> None:
    to_request(called, target)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    to_request(convo, target)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    to_request(empty(), target)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def speaking_while_calls_are_open(called: AwaitingTools) -> None:
    called.user("Well?")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    called.system("Be brief.")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def receiving_unasked(done: AwaitingUser, turn: AssistantTurn) -> None:
    done.receive(turn)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def blocks_of_the_other_party(call: ToolUse, result: ToolResult, thinking: Thinking) -> None:
    AssistantTurn([result])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    UserTurn([thinking])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    UserTurn([call])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    start(thinking)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def an_unknown_reason(called: AwaitingTools) -> None:
    called.close("bored")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def changing_a_value(turn: UserTurn, call: ToolUse) -> None:
    turn.blocks = ()  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    call.input["city"] = "Rome"  # type: ignore[index]  # pyright: ignore[reportIndexIssue]
