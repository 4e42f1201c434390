"""Requests: what of a conversation goes on the wire, as bytes that are written once and as fresh plain dicts."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict, cast

import msgspec

from ..conversation import STATE_OF, AwaitingModel, AwaitingTools, AwaitingUser, Conversation
from ..declared import SENT, writer
from ..errors import BUILT, ValidationError, Violation
from ..fields import FIELD_TYPE, require
from ..jsonvalue import JsonObject
from ..log import Log
from ..machine import PTC_ONLY_RESULTS, SYSTEM_BEFORE
from ..preamble import is_deferred
from ..turns import Turn
from .cache import STRIDE, Point, marked_turns
from .targets import (
    MAX_MESSAGES,
    MESSAGES_MAX,
    MESSAGES_NONEMPTY,
    PLATFORMS,
    Platform,
    Target,
    judged,
    sent_places,
    target_faults,
)

if TYPE_CHECKING:
    from anthropic.types import (
        AnthropicBetaParam,
        CacheControlEphemeralParam,
        MessageParam,
        TextBlockParam,
        ThinkingConfigParam,
        ToolUnionParam,
    )
    from anthropic.types.beta import (
        BetaCacheControlEphemeralParam,
        BetaMessageParam,
        BetaTextBlockParam,
        BetaThinkingConfigParam,
        BetaToolUnionParam,
    )
    from cattrs import Converter


class _Required(TypedDict):
    model: str
    messages: list[MessageParam]


class Request(_Required, total=False):
    """The parameters of `client.messages.create` that a conversation and its target decide."""

    system: str | list[TextBlockParam]
    tools: list[ToolUnionParam]
    thinking: ThinkingConfigParam
    container: str
    cache_control: CacheControlEphemeralParam
    extra_headers: dict[str, str]
    extra_body: dict[str, object]


class _BetaRequired(TypedDict):
    model: str
    messages: list[BetaMessageParam]


class BetaRequest(_BetaRequired, total=False):
    """The parameters of `client.beta.messages.create` that a conversation and its target decide."""

    system: str | list[BetaTextBlockParam]
    tools: list[BetaToolUnionParam]
    thinking: BetaThinkingConfigParam
    container: str
    cache_control: BetaCacheControlEphemeralParam
    betas: list[AnthropicBetaParam]


_UNSIGNED = {"unsigned_thinking": "thinking"}


@cache
def wire() -> Converter:
    """The converter of requests: input fields only, unsigned thinking under the name that its issuer knows."""
    return writer(SENT, _UNSIGNED)


def _content(turn: Turn, vendor: str) -> bytes:
    """A turn's blocks as they stand between the brackets of a message's content; written once and kept."""
    kept = turn._kept.get(vendor)
    if kept is None:
        convert = wire().unstructure
        blocks = [convert(turn.blocks[at]) for at in sent_places(turn, vendor)]
        kept = turn._kept[vendor] = msgspec.json.encode(blocks)[1:-1]
    return kept


_OPEN = {role: b'{"role":"%b","content":[' % role.encode() for role in ("user", "assistant", "system")}
_NEXT = {role: b"]}," + opening for role, opening in _OPEN.items()}
_JOIN = b","
_LEFT_OUT = b""


def _pieces(convo: Conversation, target: Target | None) -> list[bytes]:
    """The messages of a conversation as pieces to be joined, two a turn: what opens it, and its content.

    Turns that answer the same calls are one message, and nothing else is joined, except for targets that refuse repeated
    roles. A turn that has nothing to send is left out, save where a system turn needs one behind it. The pieces of a
    turn depend only on the turns before it, so they are kept beside the log, and a request costs what is new and one
    join.
    """
    require(convo, (AwaitingUser, AwaitingModel, AwaitingTools), "conversation", "a conversation")
    require(target, (Target, type(None)), "target", "a Target")
    platform = target.facts if target is not None else PLATFORMS["anthropic"]
    log, length = convo._log, len(convo.turns)
    pieces, lasts = log.written.setdefault(platform, ([], [None]))
    claimed = log.lock.acquire(blocking=False)
    try:
        if not claimed:  # someone is writing into them
            lasts = lasts.copy()
            pieces = pieces[: 2 * len(lasts) - 2]
        _write_on(log, platform, pieces, lasts, length)
        return pieces[: 2 * length]
    finally:
        if claimed:
            log.lock.release()


def _write_on(
    log: Log, platform: Platform, pieces: list[bytes], lasts: list[int | None], length: int
) -> None:
    """Add the pieces of the turns that have none yet, and for each the last turn up to it that is not left out."""
    del pieces[2 * len(lasts) - 2 :]  # of a turn that an interrupt has left half written
    for index in range(len(lasts) - 1, length):
        turn = log.turns[index]
        content = _content(turn, platform.vendor)
        last = lasts[index]  # the last turn before this one that was not left out
        takes_empty = platform.blank_text and platform.repeats_roles
        # Behind a system turn an assistant turn must stand, even if nothing in it can be sent.
        # The same holds behind results of calls made by code, with which the next user turn would be joined.
        parts = last is not None and (log.turns[last].role == "system" or log.states[last + 1].by_code)
        needed = not turn.blocks or parts
        if not content and not (takes_empty and needed):
            pieces += (_LEFT_OUT, b"")
            lasts.append(last)
            continue
        if parts and turn.role == "user" and last is not None and last < index - 1:
            rule = SYSTEM_BEFORE if log.turns[last].role == "system" else PTC_ONLY_RESULTS
            found = "a user turn behind an assistant turn of which this target gets nothing"
            fix = "Rewind to before the assistant turn, or send it elsewhere."
            raise ValidationError([Violation(rule, BUILT.turn(index), found, fix)])
        if last is None:
            opening = _OPEN[turn.role]
        elif log.states[index + 1].joined or (
            not platform.repeats_roles and log.turns[last].role == turn.role
        ):
            opening = _JOIN
        else:
            opening = _NEXT[turn.role]
        pieces += (opening, content)
        lasts.append(index)


def _marked(convo: Conversation, target: Target, pieces: list[bytes]) -> list[bytes]:
    """The pieces with cache markers.

    A request may have ended with each turn after which the model was to speak. A marker goes into the last object of such
    a turn's piece, so that nothing is written anew; where that block admits none, the turn gets none.
    """
    policy = target.cache
    if policy is None or not policy.points:
        return pieces
    log, length = convo._log, len(convo.turns)

    def point(index: int) -> Point:
        turn = log.turns[index]
        ends = bool(pieces[2 * index + 1]) and STATE_OF[log.states[index + 1].phase] is AwaitingModel
        ends = ends and bool(turn.blocks[sent_places(turn, target.vendor)[-1]].admits_marker)
        answered = index + 1 < length and log.turns[index + 1].role == "assistant"
        return Point(len(turn.blocks), ends, answered, index % STRIDE < 2)

    turns = map(point, reversed(range(length)))
    marker = msgspec.json.encode(policy._marker(policy.ttl))
    for back in marked_turns(turns, policy.points):
        at = 2 * (length - back) - 1
        pieces[at] = b'%b,"cache_control":%b}' % (pieces[at][:-1], marker)
    return pieces


def _messages_bytes(convo: Conversation, target: Target | None, *, marked: bool = False) -> list[bytes]:
    """The messages as JSON text, in pieces."""
    pieces = _pieces(convo, target)
    if marked and target is not None:
        pieces = _marked(convo, target, pieces)
    if len(convo.turns) > MAX_MESSAGES:
        written = sum(opening not in (_JOIN, _LEFT_OUT) for opening in pieces[::2])
        if written > MAX_MESSAGES:
            found = f"{written} messages"
            raise ValidationError(
                [Violation(MESSAGES_MAX, "messages", found, f"Send at most {MAX_MESSAGES}.")]
            )
    return [b"[", *pieces, b"]}]" if any(pieces) else b"]"]


def message_map(convo: Conversation, target: Target | None = None) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Where each written content block comes from, since joins and left-out blocks shift positions.

    Args:
        convo: The conversation.
        target: As for `to_messages`.

    Returns:
        `message_map(c, t)[n][m]` is the index of the turn and of the block that the API calls `messages.n.content.m`.

    >>> from convmodel import start
    >>> message_map(start("Hello."))
    (((0, 0),),)
    """
    openings = _pieces(convo, target)[::2]
    vendor = target.vendor if target is not None else "anthropic"
    messages: list[list[tuple[int, int]]] = []
    for index, opening in enumerate(openings):
        if opening == _LEFT_OUT:
            continue
        if opening != _JOIN:
            messages.append([])
        messages[-1].extend((index, at) for at in sent_places(convo.turns[index], vendor))
    return tuple(map(tuple, messages))


def to_messages(convo: Conversation, target: Target | None = None) -> list[MessageParam]:
    """The messages of a conversation in any state, as fresh plain dicts that hold input fields only.

    No rule of the target is checked; `to_request` does that.

    Args:
        convo: The conversation.
        target: Decides whose thinking is sent and which turns are joined; None is the Anthropic API.

    Raises:
        ValidationError: `messages-max-100k`; `sysmsg-before` or `ptc-reply-only-results` where an assistant turn of which
            the target gets nothing parts what may not be joined.

    >>> from convmodel import start
    >>> to_messages(start("Hello."))
    [{'role': 'user', 'content': [{'type': 'text', 'text': 'Hello.'}]}]
    """
    return cast("list[MessageParam]", msgspec.json.decode(b"".join(_messages_bytes(convo, target))))


def _fields(convo: AwaitingModel, target: Target) -> dict[str, msgspec.Raw]:
    """All of a request but its messages, each part as bytes."""
    require(convo, AwaitingModel, "conversation", "an AwaitingModel")
    require(target, Target, "target", "a Target")
    if faults := list(target_faults(judged(convo), target, BUILT)):
        raise ValidationError(faults)
    if not any(_pieces(convo, target)):
        found = "nothing that this target can be sent"
        raise ValidationError([Violation(MESSAGES_NONEMPTY, "turns", found, "Let the user speak.")])
    encode = msgspec.json.encode
    parts = {"model": msgspec.Raw(encode(target.model))}
    preamble = convo.preamble
    policy = target.cache
    if preamble.system:
        plain = len(preamble.system) == 1 and not preamble.system[0].citations
        system: object = preamble.system[0].text
        if not plain or (policy is not None and policy.system):
            texts = [wire().unstructure(text) for text in preamble.system]
            if policy is not None and policy.system:
                texts[-1]["cache_control"] = policy._marker(policy.preamble_ttl)
            system = texts
        parts["system"] = msgspec.Raw(encode(system))
    if preamble.tools:
        tools: list[object] = [tool.raw for tool in preamble.tools]
        # A tool whose loading is deferred takes no marker (Tool search tool, API documentation).
        last = next((at for at in range(len(tools) - 1, -1, -1) if not is_deferred(preamble.tools[at])), None)
        if policy is not None and policy.tools and last is not None:
            marker = {"cache_control": policy._marker(policy.preamble_ttl)}
            tools[last] = preamble.tools[last].thaw() | marker
        parts["tools"] = msgspec.Raw(encode(tools))
    if policy is not None and policy.automatic:
        parts["cache_control"] = msgspec.Raw(encode(policy._marker(policy.ttl)))
    if (thinking := target._sent_thinking) is not None:
        parts["thinking"] = thinking.raw
    if convo.container is not None:
        parts["container"] = msgspec.Raw(encode(convo.container))
    return parts


_DECIDED = ("model", "messages", "system", "tools", "thinking")


def to_request(convo: AwaitingModel, target: Target) -> Request:
    """The parameters of `client.messages.create` that the conversation and the target decide.

    Args:
        convo: A conversation that awaits the model.
        target: Where it goes.

    Returns:
        Fresh plain dicts: `model`, `messages`, and where they are set `system`, `tools`, `thinking`, `container`, with the
        cache markers of the target's policy. A target
        that uses a beta adds `extra_headers`, and `extra_body` with what only the beta's parameters have.

    Raises:
        ValidationError: Every rule of the target that the history breaks.

    >>> from convmodel import start
    >>> list(to_request(start("Hello.", system="Be brief."), Target(model="claude-opus-4-8")))
    ['model', 'system', 'messages']
    """
    request = _decoded(convo, target)
    if target.betas:
        # The client lets `extra_body` replace a parameter of the same name; the stable `thinking` has no `block_binding`.
        beyond = {"extra_headers": target.headers, "extra_body": {"thinking": request["thinking"]}}
        request |= {"thinking": target.thinking, **beyond}
    return cast("Request", request)


def to_beta_request(convo: AwaitingModel, target: Target) -> BetaRequest:
    """The parameters of `client.beta.messages.create` that the conversation and the target decide.

    Args:
        convo: A conversation that awaits the model.
        target: Where it goes.

    Returns:
        As `to_request`, in the types of the SDK's beta parameters: the betas that the target uses are in `betas`.

    Raises:
        ValidationError: Every rule of the target that the history breaks.

    >>> from convmodel import start
    >>> target = Target("claude-opus-5-5", {"type": "adaptive"}, on_stale="drop_block")
    >>> to_beta_request(start("Hello."), target)["betas"]
    ['thinking-binding-controls-2026-08-01']
    """
    request = _decoded(convo, target)
    if target.betas:
        request["betas"] = list(target.betas)
    return cast("BetaRequest", request)


def _decoded(convo: AwaitingModel, target: Target) -> dict[str, Any]:
    request = {key: msgspec.json.decode(part) for key, part in _fields(convo, target).items()}
    messages = b"".join(_messages_bytes(convo, target, marked=True))
    return {**request, "messages": msgspec.json.decode(messages)}


def to_body(convo: AwaitingModel, target: Target, **params: Any) -> bytes:
    """The whole request body as bytes; what earlier requests wrote of the turns is written no second time.

    Send it with `client.post("/v1/messages", cast_to=Message, content=body)`, and `options={"headers": target.headers}`
    where the target uses a beta.

    Args:
        convo: A conversation that awaits the model.
        target: Where it goes.
        params: The other parameters of the request, such as `max_tokens`.

    Raises:
        ValidationError: Every rule of the target that the history breaks; `json-value` for a parameter that is not
            JSON; `field-type` for one that the conversation decides.

    >>> from convmodel import start
    >>> to_body(start("Hello."), Target(model="claude-opus-4-8"), max_tokens=100)[:44]
    b'{"model":"claude-opus-4-8","max_tokens":100,'
    """
    parts = _fields(convo, target)
    if decided := [name for name in dict.fromkeys((*_DECIDED, *parts)) if name in params]:
        fix = "The conversation and the target decide it."
        raise ValidationError(
            [Violation(FIELD_TYPE, name, "a parameter given twice", fix) for name in decided]
        )
    extra = JsonObject(params)
    more = {key: msgspec.Raw(msgspec.json.encode(extra[key])) for key in extra}
    head = msgspec.json.encode({"model": parts.pop("model"), **more, **parts})
    return b"".join([head[:-1], b',"messages":', *_messages_bytes(convo, target, marked=True), b"}"])
