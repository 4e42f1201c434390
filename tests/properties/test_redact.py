"""Properties of redaction: no planted secret is left, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import cycle
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from convmodel import (
    AwaitingModel,
    Conversation,
    Interrupted,
    Reply,
    Text,
    ToolUse,
    ValidationError,
)
from convmodel.declared import stored_bytes
from convmodel.redact import DETECTORS, KEYS, Redactor
from convmodel.storage import dumps, loads
from convmodel.testing import strategies as gen
from convmodel.turns import SIGNED, THOUGHTS
from convmodel.view import view

from .common import PROPERTY, wire_bytes

BY_FORMAT = (
    "sk-" + "ant-api03-aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC2dF4hJ6",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC2dF4hJ6",
    "xoxb-" + "123456789012-aB3dE5gH7jK9",
    "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0In0" + ".abc_DEF-123",
)
BY_KEY = "correct horse battery"
SECRETS = (*BY_FORMAT, BY_KEY)
REDACTOR = Redactor()


@st.composite
def planted(draw: st.DrawFn) -> Conversation:
    """A conversation with secrets at some of the places where one may stand."""
    convo = draw(gen.conversations())
    here = cycle(draw(st.lists(st.booleans(), min_size=1, max_size=9)))
    secrets = cycle(draw(st.permutations(BY_FORMAT)))
    key = draw(st.sampled_from(["password", "API-Key", "myAuthToken"]))

    def said(text: str) -> str:
        return f"{text} ({next(secrets)})" if next(here) else text

    def called(call: Any) -> dict[str, Any]:
        if not next(here):
            return call.input.thaw()  # type: ignore[no-any-return]
        return {**call.input, "deep": [{"in": [next(secrets)]}, {key: BY_KEY, "list": [1, None]}]}

    with suppress(ValidationError):  # the text of a title is bounded
        convo = convo.map_text(said, on_thinking="keep").conversation
    return convo.map_tool_inputs(called, on_thinking="keep").conversation


def refused(act: Callable[[], object]) -> str:
    """What an error says; empty if there is none."""
    try:
        act()
    except ValidationError as error:
        return f"{error} {error!r}"
    return ""


def shown(convo: Conversation) -> str:
    return "\n".join([view(convo), repr(convo), repr(convo.preamble), *map(repr, convo.turns)])


@settings(PROPERTY)
@given(planted())
def test_no_secret_is_left_and_nothing_else_is_touched(convo: Conversation) -> None:
    refusal = refused(lambda: convo.redact(REDACTOR))
    edit = convo.redact(REDACTOR, on_thinking="keep")
    after = edit.conversation
    for secret in SECRETS:
        assert secret not in shown(convo) + refusal
        assert secret not in dumps(after) + wire_bytes(after).decode() + shown(after)
    assert len(after.turns) == len(convo.turns)
    changed = {each.path for each in edit.found}
    for index, (old, new) in enumerate(zip(convo.turns, after.turns, strict=True)):
        assert old.role == new.role
        assert len(old.blocks) == len(new.blocks)
        for at, (was, now) in enumerate(zip(old.blocks, new.blocks, strict=True)):
            assert type(was) is type(now)
            if f"turns[{index}].blocks[{at}]" not in changed:
                assert now is was
            else:
                assert stored_bytes(now) != stored_bytes(was)
                assert type(was) not in THOUGHTS
                for name in ("id", "tool_use_id", "name", "caller", "toolset_name", "is_error", "synthetic"):
                    assert getattr(now, name, None) == getattr(was, name, None)
    assert wire_bytes(loads(dumps(after))) == wire_bytes(after)
    again = after.redact(REDACTOR, on_thinking="keep")
    assert again.conversation == after
    assert again.found == ()


@settings(PROPERTY)
@given(planted())
def test_thinking_before_the_first_change_is_kept_byte_for_byte(convo: Conversation) -> None:
    edit = convo.redact(REDACTOR, on_thinking="strip_after")
    voided = set(edit.voided)
    before = [
        stored_bytes(block)
        for index, turn in enumerate(convo.turns)
        for at, block in enumerate(turn.blocks)
        if type(block) in SIGNED and f"turns[{index}].blocks[{at}]" not in voided
    ]
    after = [
        stored_bytes(block)
        for turn in edit.conversation.turns
        for block in turn.blocks
        if type(block) in SIGNED
    ]
    assert after == before
    assert edit.conversation.redact(REDACTOR).voided == ()


@settings(PROPERTY)
@given(gen.sendable_conversations(), st.data())
def test_what_enters_is_masked_at_once(convo: AwaitingModel, data: st.DataObject) -> None:
    reply = data.draw(gen.replies())
    blocks = [
        ToolUse(block.id, block.name, {**block.input, "password": BY_KEY}, caller=block.caller)
        if isinstance(block, ToolUse) and block.toolset_name is None
        else Text(f"{block.text} {BY_FORMAT[0]}")
        if isinstance(block, Text) and not block.citations
        else block
        for block in reply.blocks
    ]
    bound = data.draw(st.booleans())
    told: list[object] = []
    redactor = Redactor(report=told.append)
    given = Reply(blocks, reply.origin, complete=reply.complete, bound=bound)
    if text := refused(lambda: convo.receive(given, redactor=redactor)):
        assert BY_KEY not in text
        return
    told.clear()
    outcome = convo.receive(given, redactor=redactor)
    assert bool(told) == (blocks != list(reply.blocks))
    if isinstance(outcome, Interrupted):
        text = repr(outcome) + "".join(stored_bytes(block).decode() for block in outcome.lost)
        text += repr(outcome.kept) if outcome.kept is None else dumps(outcome.keep())
    else:
        text = dumps(outcome) + wire_bytes(outcome).decode() + shown(outcome)
        calls = [block for block in blocks if isinstance(block, ToolUse)]
        assert [call.name for call in outcome.open_calls] == [call.name for call in calls]
        kept = [block for block in outcome.turns[-1].blocks if type(block) not in SIGNED]
        assert len(kept) == len([block for block in blocks if type(block) not in SIGNED])
    assert BY_KEY not in text
    assert BY_FORMAT[0] not in text


PIECES = [
    *BY_FORMAT,
    *(
        "password=",
        "token: ",
        "'",
        '"',
        " ",
        "\n",
        "hunter2",
        "://",
        "me:",
        "@",
        "Bearer ",
        "--secret ",
        "$",
        "a",
        "1",
    ),
    *(
        "[redacted:",
        "secret]",
        "[redacted:x]",
        "-----BEGIN PRIVATE KEY-----",
        "-----END PRIVATE KEY-----",
        "\\n",
    ),
]


@settings(PROPERTY, max_examples=500)
@given(st.lists(st.sampled_from(PIECES) | gen.texts(), max_size=12).map("".join))
def test_redacting_twice_changes_nothing(text: str) -> None:
    once = REDACTOR.text(text)
    assert REDACTOR.text(once) is once
    greedy = Redactor({**DETECTORS, "words": r"\b[a-z]{2,6}\b", "marks": r"(?<=\]).|\["})
    once = greedy.text(text)
    assert greedy.text(once) is once


@settings(PROPERTY)
@given(gen.json_values(), st.sampled_from(sorted(KEYS)))
def test_free_json_keeps_its_shape(value: Any, key: str) -> None:
    call = ToolUse("a", "f", {key: value, "other": value})
    made = REDACTOR.blocks([call]).blocks[0].input

    def shape(of: Any) -> Any:
        if isinstance(of, dict):
            return [(name, shape(item)) for name, item in of.items()]
        return (
            [shape(item) for item in of] if isinstance(of, list) else type(of) if isinstance(of, str) else of
        )

    assert shape(made.thaw()) == shape(call.input.thaw())
