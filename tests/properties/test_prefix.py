"""Edits know what they void: the double, which signs thinking over the request it saw, is asked about every result."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convmodel import (
    AssistantTurn,
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    Conversation,
    Edit,
    Interrupted,
    RedactedThinking,
    ServerToolUse,
    SystemTurn,
    Text,
    Thinking,
    Tool,
    ToolResult,
    ToolUse,
    UserTurn,
    ValidationError,
    conversation,
    empty,
    start,
)
from convmodel.anthropic import (
    Target,
    check,
    from_message,
    parse,
    stale_thinking,
    to_body,
    to_messages,
    to_request,
)
from convmodel.storage import dumps, loads
from convmodel.testing import judge
from convmodel.testing.prefix import BINDING_BETA, Signer
from convmodel.testing.strategies import conversations

from .common import BRIEF, PROPERTY, Json, body

BOUND = Target(model="claude-opus-5-5", thinking={"type": "adaptive"})
FREE = Target(model="claude-opus-5", thinking={"type": "adaptive"})
SIGNER = Signer("anthropic")
PREFIX = "thinking-prefix-bound"
LOOK = Tool("look", {"type": "object"})
OTHER = Tool("other", {"type": "object"})


def deferred(name: str, description: str = "A tool.") -> Any:
    return {
        "name": name,
        "description": description,
        "input_schema": {"type": "object"},
        "defer_loading": True,
    }


Kind = Literal["t", "r", "x", "c", "s"]
# Replies by the kinds of their blocks: thinking, redacted thinking, text, a call, a finished call of a server tool.
SHAPES: tuple[str, ...] = (
    "x",
    "tx",
    "c",
    "tc",
    "tcc",
    "txtc",
    "ttx",
    "rtc",
    "tctc",
    "tstx",
    "sx",
    "trx",
    "t x",
)


def content(shape: str, turn: int) -> list[Json]:
    """The blocks of a scripted reply."""
    out: list[Json] = []
    for at, kind in enumerate(shape):
        n = f"{turn}_{at}"
        if kind == "t":
            out.append({"type": "thinking", "thinking": f"thought {n}", "signature": ""})
        elif kind == "r":
            out.append({"type": "redacted_thinking", "data": ""})
        elif kind == "c":
            out.append({"type": "tool_use", "id": f"toolu_{n}", "name": "look", "input": {"q": n}})
        elif kind == "s":
            use = {"type": "server_tool_use", "id": f"srvtoolu_{n}", "name": "web_search", "input": {"q": n}}
            found = {"type": "web_search_tool_result", "tool_use_id": f"srvtoolu_{n}", "content": []}
            out += [use, found]
        else:
            out.append({"type": "text", "text": " " if kind == " " else f"text {n}"})
    return out


def received(convo: AwaitingModel, shape: str, target: Target = BOUND) -> Conversation:
    """The conversation with a reply whose thinking is signed over its request."""
    signed = SIGNER.signed(body(convo, target), content(shape, len(convo.turns)))
    called = any(block["type"] == "tool_use" for block in signed)
    stop = "tool_use" if called else "end_turn"
    after = convo.receive(
        from_message({"content": signed, "stop_reason": stop, "model": target.model}, target)
    )
    assert not isinstance(after, Interrupted)
    return after


@st.composite
def sessions(draw: st.DrawFn, target: Target = BOUND) -> Conversation:
    """A conversation whose replies came from the double."""
    system = draw(st.sampled_from([None, "Be brief."]))
    tools = draw(st.sampled_from([[LOOK], [LOOK], [OTHER, deferred("look"), deferred("later")]]))
    convo: Conversation = start("hi", system=system, tools=tools)
    for at in range(draw(st.integers(1, 8))):
        if isinstance(convo, AwaitingModel):
            convo = received(convo, draw(st.sampled_from(SHAPES)), target)
        elif isinstance(convo, AwaitingTools):
            how = draw(st.sampled_from(["all", "one", "then", "close"]))
            if how == "one":
                convo = convo.answer_one(convo.open_calls[0].result("found"))
            elif how == "close":
                convo = convo.close("not_run")
            else:
                then = "and now?" if how == "then" else ()
                convo = convo.answer([call.result(f"result {at}") for call in convo.open_calls], then)
        else:
            convo = convo.user(f"more {at}")
            if draw(st.booleans()):
                convo = convo.system("Shorter.")
    return convo


def sendable(convo: Conversation) -> AwaitingModel:
    """The conversation with something behind it, where it does not await the model."""
    if isinstance(convo, AwaitingTools):
        return convo.close("not_run")
    return convo.user("go on") if isinstance(convo, AwaitingUser) else convo


Change = Callable[[Conversation, Any], Edit]


def rearranged(draw: st.DrawFn, turn: AssistantTurn) -> AssistantTurn:
    """A turn with its thinking taken out, in part or whole, moved or repeated."""
    blocks = list(turn.blocks)
    places = [at for at, block in enumerate(blocks) if isinstance(block, (Thinking, RedactedThinking))]
    if not places:
        return turn
    at, to = draw(st.sampled_from(places)), draw(st.integers(0, len(blocks) - 1))
    match draw(st.sampled_from(["keep", "none", "drop", "move", "repeat"])):
        case "none":
            blocks = [block for place, block in enumerate(blocks) if place not in places]
        case "drop":
            del blocks[at]
        case "move":
            blocks.insert(to, blocks.pop(at))
        case "repeat":
            blocks.insert(to, blocks[at])
        case _:
            pass
    try:
        return AssistantTurn(blocks, turn.origin)
    except ValidationError:  # it would end in thinking
        return turn


@st.composite
def edits(draw: st.DrawFn, convo: Conversation, *, replacing: bool = True) -> Change:
    """An edit of a conversation, to be made in each mode; one that puts in another turn may break a rule."""
    before = draw(st.integers(0, len(convo.turns)))
    index = min(before, len(convo.turns) - 1)
    turn = convo.turns[index]
    if isinstance(turn, AssistantTurn):
        other: Any = rearranged(draw, turn)
    elif isinstance(turn, UserTurn):
        results = [ToolResult(result.tool_use_id, "another result") for result in turn.results]
        other = UserTurn(results or "another text") if draw(st.booleans()) else turn
    else:
        other = SystemTurn("Longer.")
    blocks = [block for each in convo.turns for block in each.blocks]
    mark = draw(st.sampled_from(["nothing has it", *(b.text for b in blocks if isinstance(b, Text))]))
    one = draw(st.sampled_from(["none", *(b.id for b in blocks if isinstance(b, (ToolUse, ServerToolUse)))]))
    replace: Change = lambda c, mode: c.replace(index, other, on_thinking=mode)  # noqa: E731
    changes: list[Change] = [
        *[replace] * replacing,
        lambda c, mode: c.drop_rounds(before, on_thinking=mode),
        lambda c, mode: c.clear_tool_results(before, on_thinking=mode),
        lambda c, mode: c.compact("They talked.", before=before, on_thinking=mode),
        lambda c, mode: c.with_system(draw_system, on_thinking=mode),
        lambda c, mode: c.with_tools([LOOK, OTHER], on_thinking=mode),
        lambda c, mode: c.with_tools([*convo.preamble.tools, deferred("one_more")], on_thinking=mode),
        lambda c, mode: c.with_tools([OTHER, deferred("look", "Another look.")], on_thinking=mode),
        lambda c, mode: c.map_text(lambda text: "some" if text == mark else text, on_thinking=mode),
        lambda c, mode: c.map_tool_inputs(
            lambda call: {"q": "…"} if call.id == one else call.input, on_thinking=mode
        ),
    ]
    draw_system = draw(st.sampled_from([None, "Be brief.", "Be long."]))
    return draw(st.sampled_from(changes))


def signature_at(convo: Conversation, path: str) -> str:
    turn, block = (int(part.split("]")[0]) for part in path.split("[")[1:])
    found: Any = convo.turns[turn].blocks[block]
    return found.signature if isinstance(found, Thinking) else found.data


def signatures(convo: Conversation) -> list[str]:
    blocks: list[Any] = [block for turn in convo.turns for block in turn.blocks]
    return [
        block.signature if isinstance(block, Thinking) else block.data
        for block in blocks
        if isinstance(block, (Thinking, RedactedThinking))
    ]


def refused_at(request: Json) -> str | None:
    """The signature that the double stops at, if it stops at one."""
    fault = SIGNER.check(request).fault
    if fault is None:
        return None
    assert fault.rule == PREFIX
    at, _, rest = fault.message.partition(":")
    _, message, _, block = at.split(".")
    assert "The block is bound to a different conversation." in rest
    return signature_of(request["messages"][int(message)]["content"][int(block)])


def signature_of(block: Json) -> str:
    return str(block.get("signature") or block["data"])


def taken(convo: Conversation) -> Json:
    """The request of a conversation, which both judges and our own rules take."""
    sent = sendable(convo)
    request = body(sent, BOUND)
    assert json.loads(to_body(sent, BOUND, max_tokens=64))["messages"] == request["messages"]
    assert judge(request) == []
    assert SIGNER.check(request) == (None, ())
    return request


@PROPERTY
@given(sessions())
def test_a_conversation_that_only_grew_is_never_stale(convo: Conversation) -> None:
    taken(convo)
    assert stale_thinking(convo, BOUND) == ()
    assert stale_thinking(loads(dumps(convo)), BOUND) == ()


@PROPERTY
@given(st.data())
def test_an_edit_names_the_thinking_that_it_voids_and_the_double_agrees(data: st.DataObject) -> None:
    convo = data.draw(sessions())
    change = data.draw(edits(convo))
    shown = (tuple(convo.turns), convo.digest, dumps(convo))
    kept = change(convo, "keep")
    stripped = change(convo, "strip_after")
    assert (tuple(convo.turns), convo.digest, dumps(convo)) == shown
    assert kept.voided == stripped.voided
    voided = [signature_at(convo, path) for path in kept.voided]
    if voided:
        with pytest.raises(ValidationError) as caught:
            change(convo, "refuse")
        assert [(fault.rule.id, fault.path) for fault in caught.value.violations] == [
            (PREFIX, path) for path in kept.voided
        ]
    else:
        assert change(convo, "refuse") == kept == stripped
    # What is stripped is taken; what is kept is refused at the first block that the report names.
    taken(stripped.conversation)
    all_of_them, left = signatures(kept.conversation), signatures(stripped.conversation)
    assert left == all_of_them[: len(all_of_them) - len(voided)]
    request = body(sendable(kept.conversation), FREE)
    assert SIGNER.check(request) == (None, ())
    bound = {**request, "model": BOUND.model}
    assert refused_at(bound) == (voided[0] if voided else None)
    # The service leaves out no block that the report does not name.
    dropping = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    checked = SIGNER.check({**bound, "thinking": dropping})
    assert checked.fault is None
    assert len(checked.dropped) <= len(voided)
    assert bool(checked.dropped) == bool(voided)
    assert judge({**bound, "thinking": dropping}, betas=[BINDING_BETA]) == []


@PROPERTY
@given(st.data())
def test_what_was_kept_is_refused_before_it_is_sent(data: st.DataObject) -> None:
    convo = data.draw(sessions())
    index = data.draw(st.integers(0, len(convo.turns) - 1))
    blocks = convo.turns[index].blocks
    place = data.draw(st.integers(0, len(blocks) - 1))

    def change(text: str) -> str:
        return "other" if text == getattr(blocks[place], "text", None) else text

    kept = convo.map_text(change, on_thinking="keep")
    stale = stale_thinking(kept.conversation, BOUND)
    assert [each.path for each in stale] == list(kept.voided)
    assert {each.reason for each in stale} <= {"prefix_binding_mismatch"}
    assert stale_thinking(kept.conversation, FREE) == ()
    to_request(sendable(kept.conversation), FREE)
    if kept.voided:
        with pytest.raises(ValidationError) as caught:
            to_request(sendable(kept.conversation), BOUND)
        assert caught.value.violations[0].rule == PREFIX
    # A later edit voids what an earlier one has voided and kept, unless it restores what stood before.
    again = kept.conversation.with_tools([LOOK, OTHER], on_thinking="strip_after")
    taken(again.conversation)
    noop = kept.conversation.map_text(lambda text: text, on_thinking="strip_after")
    taken(noop.conversation)


@PROPERTY
@given(st.data(), st.booleans())
def test_what_edit_after_edit_has_voided_stays_known(data: st.DataObject, remembered: bool) -> None:
    convo = data.draw(sessions())
    if not remembered:  # as `parse` reads it: nothing is known of what a turn answered
        convo = parse(to_messages(convo), system=convo.preamble.system, tools=convo.preamble.tools)
    for _ in range(data.draw(st.integers(1, 4))):
        change = data.draw(edits(convo))
        convo = change(convo, data.draw(st.sampled_from(["keep", "keep", "strip_after"]))).conversation
        sent = sendable(convo)
        request = {**body(sent, FREE), "model": BOUND.model}
        stale = stale_thinking(sent, BOUND)
        # What an edit did inside a turn is not forgotten when another one undoes it.
        assert refused_at(request) in (None, *(signature_at(sent, each.path) for each in stale))
        if stale:
            with pytest.raises(ValidationError) as caught:
                to_request(sent, BOUND)
            assert [(it.rule.id, it.path) for it in caught.value.violations] == [(PREFIX, stale[0].path)]
            taken(sent.map_text(lambda text: text, on_thinking="strip_after").conversation)
        elif data.draw(st.booleans()):
            convo = received(sent, data.draw(st.sampled_from(["x", "tx", "ttx"])))


@PROPERTY
@given(conversations(opaque=False), st.data())
def test_an_edit_of_any_conversation_is_one_that_could_be_built(
    convo: Conversation, data: st.DataObject
) -> None:
    if not convo.turns:
        return
    change = data.draw(edits(convo, replacing=False))
    made = change(convo, data.draw(st.sampled_from(["strip_after", "keep"]))).conversation
    assert made == conversation(made.turns, system=made.preamble.system, tools=made.preamble.tools)
    assert type(made) is type(conversation(made.turns))
    assert made.digest == loads(dumps(made)).digest
    assert check(to_messages(made)) == ()


@PROPERTY
@given(sessions())
def test_an_edit_that_is_undone_voids_nothing(convo: Conversation) -> None:
    edited = convo.with_system("Another.", on_thinking="keep").conversation
    back = edited.with_system(convo.preamble.system)
    assert (back.conversation, back.voided) == (convo, ())
    longer = convo.map_text(lambda text: f"{text}!", on_thinking="keep").conversation
    assert isinstance(longer, type(convo))


@BRIEF
@given(sessions())
def test_the_oldest_thinking_may_go_and_all_of_it_but_none_in_the_middle(convo: Conversation) -> None:
    request = body(sendable(convo), BOUND)
    places = [
        (message, at)
        for message, each in enumerate(request["messages"])
        for at, block in enumerate(each["content"])
        if block["type"] in ("thinking", "redacted_thinking")
    ]

    def without(gone: set[tuple[int, int]]) -> Json:
        messages: list[Json] = [
            {**each, "content": [b for at, b in enumerate(each["content"]) if (message, at) not in gone]}
            for message, each in enumerate(request["messages"])
        ]
        return {**request, "messages": messages}

    for count in range(len(places) + 1):
        assert SIGNER.check(without(set(places[:count]))) == (None, ())
    for middle in range(1, len(places) - 1):
        gone = without({places[middle]})
        after = request["messages"][places[middle + 1][0]]["content"][places[middle + 1][1]]
        assert refused_at(gone) == signature_of(after)


@PROPERTY
@given(st.data())
def test_stripped_thinking_is_the_named_block_and_all_behind_it(data: st.DataObject) -> None:
    convo = data.draw(sessions())
    turn = data.draw(st.integers(0, len(convo.turns) - 1))
    block = data.draw(st.integers(0, len(convo.turns[turn].blocks) - 1))
    edit = convo.strip_thinking(turn, block)
    gone = [signature_at(convo, path) for path in edit.voided]
    assert signatures(convo) == [*signatures(edit.conversation), *gone]
    assert edit.conversation.rewind(turn) == convo.rewind(turn)
    taken(edit.conversation)
    for before, after in zip(convo.turns, edit.conversation.turns, strict=True):
        spoken = [each for each in before.blocks if not isinstance(each, (Thinking, RedactedThinking))]
        left = [each for each in after.blocks if not isinstance(each, (Thinking, RedactedThinking))]
        assert left in (spoken, [] if all(each == Text(" ") for each in spoken) else spoken)


@PROPERTY
@given(sessions(), st.data())
def test_the_common_prefix_is_the_longest_that_both_extend(convo: Conversation, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(convo.turns)))
    other: Conversation = convo.rewind(cut)
    if isinstance(other, AwaitingTools):
        other = other.answer([call.result("other") for call in other.open_calls])
    elif isinstance(other, AwaitingUser):
        other = other.user("another")
    else:
        other = received(other, "tx")
    shared = convo.common_prefix(other)
    assert shared is not None
    assert convo.extends(shared)
    assert other.extends(shared)
    longest = max(n for n in range(len(convo.turns) + 1) if other.extends(convo.rewind(n)))
    assert len(shared.turns) == longest
    assert convo.common_prefix(convo) == convo
    assert convo.common_prefix(empty(system="Something else.")) is None
