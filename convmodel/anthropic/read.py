"""Wire data in: responses leniently, histories strictly."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from ..blocks import (
    BLOCKS,
    TOOL_USE_ID,
    TOOL_USE_INPUT,
    AssistantBlock,
    OpaqueBlock,
    ServerToolUse,
    Text,
    Thinking,
    ToolUse,
    UnsignedThinking,
    class_of,
)
from ..conversation import Conversation, at_length, cuts
from ..declared import ANSWERED, SENT
from ..errors import WIRE, InvalidReply, Rule, ValidationError, Violation, join, key_name, quoted
from ..fields import (
    BLOCK_TYPE,
    BROKEN,
    CACHE_PLACE,
    CONTENT_TYPE,
    FIELD_TYPE,
    FIELD_VALUE,
    REQUIRED_FIELD,
    UNKNOWN_FIELD,
    Broken,
    Reading,
    described,
    held,
    mapping,
    read_value,
    require,
    thawed,
)
from ..jsonvalue import VALID_UTF8, decode, is_text, rejoined
from ..log import Log
from ..machine import State, step
from ..markers import marker_faults
from ..preamble import Preamble, SystemPrompt, ToolDefinition, read_preamble
from ..turns import THOUGHTS, AssistantTurn, Origin, Reply, SystemTurn, Turn, UserTurn, traits_of, turn_faults
from .targets import (
    MAX_MESSAGES,
    MESSAGES_MAX,
    UNSIGNED_FOREIGN,
    Judged,
    Target,
    binds_prefix,
    issuer_of,
    tail_faults,
    target_faults,
)

if TYPE_CHECKING:
    from anthropic.types import Message, MessageParam

ROLE = Rule(
    "role-enum",
    "The role of a message is `user`, `assistant` or `system`.",
    "Create a message, API reference",
    'messages: Unexpected role "…"',
)
EMPTY_SEPARATOR = Rule(
    "adaptive-empty-separator",
    "An empty text block that the model put between its thoughts is not sent back.",
    "opencode issues 16750, 21370 and 42296",
    "messages: text content blocks must be non-empty",
)
TURNS: dict[str, type[Turn]] = {"user": UserTurn, "assistant": AssistantTurn, "system": SystemTurn}
WIRE_BLOCKS = {tag: cls for tag, cls in BLOCKS.items() if cls is not UnsignedThinking}
"""The block types that the wire knows."""

# ---------------------------------------------------------------- responses


def from_message(message: Message | Mapping[str, Any] | str | bytes, target: Target | None = None) -> Reply:
    """Read a response.

    Everything the service returns is taken, in its order. What requests do not have is left out and reported in
    `dropped`; blocks of an unknown type, and calls of unknown server tools, are kept as they are.

    Args:
        message: The SDK's `Message` (read by attribute), its JSON as a mapping, or as text or bytes.
        target: Where the request went; it tells whose thinking this is. None is the Anthropic API.

    Returns:
        The reply; `AwaitingModel.receive` makes a turn of it.

    Raises:
        InvalidReply: A block cannot be read, or this is no message; `.reply` holds the blocks that could be read.

    >>> from_message({"role": "assistant", "content": [{"type": "text", "text": "Hi."}], "stop_reason": "end_turn"})
    Reply(blocks=(Text('Hi.'),), origin=Origin(vendor='anthropic', stop_reason='end_turn'), complete=True, dropped=())
    """
    require(target, (Target, type(None)), "target", "a Target")
    reading = Reading(ANSWERED, lenient=True)
    data: Mapping[str, Any] | None
    if isinstance(message, (str, bytes, bytearray, memoryview)):
        value, faults = decode(message)
        if faults:
            raise InvalidReply(faults)
        data = mapping(value)
    else:
        data = held(message)
    if data is None:
        raise InvalidReply(
            [Violation(FIELD_TYPE, "", f"{described(message)} where a message is due", "Pass one.")]
        )
    content = data.get("content")
    if not isinstance(content, (list, tuple)):
        rule = REQUIRED_FIELD if content is None else CONTENT_TYPE
        raise InvalidReply(
            [Violation(rule, "content", f"{described(content)} where blocks are due", "Pass a list.")]
        )
    if data.get("role") not in (None, "assistant"):
        raise InvalidReply(
            [Violation(ROLE, "role", "a message of another party", "Pass what the model answered.")]
        )
    return read_reply(data, cast("list[object]", content), target, reading)


def read_reply(
    data: Mapping[str, Any],
    content: Iterable[object],
    target: Target | None,
    reading: Reading,
    *,
    unbroken: int | None = None,
) -> Reply:
    """A reply from a response's envelope and its blocks.

    Args:
        data: The envelope.
        content: The blocks.
        target: Where the request went.
        reading: How blocks are read, and what was left out before.
        unbroken: How many of the blocks stand before the first that is missing; None if all of the response has come.

    Raises:
        InvalidReply: A block cannot be read; `.reply` holds the blocks that could be read.
    """
    origin = _origin(data, target, reading)
    blocks: list[AssistantBlock] = []
    whole: int | None = None
    place = 0
    for at, raw in enumerate(content):
        before = len(reading.violations)
        block = _reply_block(raw, origin.vendor, reading, f"content[{at}]")
        if whole is None and (at == unbroken or len(reading.violations) > before):
            whole = len(blocks)
        if block is not None:
            blocks.append(block)
            place = at
    if whole is None and unbroken is not None:
        whole = len(blocks)
    last = blocks[-1] if blocks and whole is None else None
    unsaid = origin.stop_reason is None
    if isinstance(last, (ToolUse, ServerToolUse)) and (
        unsaid or (cuts(origin.stop_reason) and not last.input)
    ):
        # Where the service has cut the reply, a call without arguments is one whose arguments did not come. Where it has
        # not said why it stopped, half an input may pass for a whole one: so the SDK's helper shows a stream that broke.
        reading.drop(
            TOOL_USE_INPUT,
            f"content[{place}].input",
            f"a `{last.type}` that may have been cut",
            "It was left out.",
        )
        blocks.pop()
        whole = len(blocks)
    complete = whole is None and origin.stop_reason is not None and not reading.violations
    model = origin.model or (target.model if target is not None else "")
    bound = binds_prefix(model, origin.platform or "anthropic")
    dropped = tuple(reading.dropped)
    reply = Reply(blocks, origin, complete=complete, dropped=dropped, unbroken=whole, bound=bound)
    if reading.violations:
        raise InvalidReply(reading.violations, reply)
    return reply


def _origin(data: Mapping[str, Any], target: Target | None, reading: Reading) -> Origin:
    container = mapping(data.get("container"))
    known = {
        "model": data.get("model"),
        "id": data.get("id"),
        "stop_reason": data.get("stop_reason"),
        "container": container.get("id") if container is not None else data.get("container"),
    }
    said: dict[str, Any] = {}
    for name, value in known.items():
        if value is None:
            continue
        if type(value) is str:
            said[name] = value
        else:
            reading.fault(
                FIELD_TYPE, name, f"{described(value)} where text is due", "Pass the message as it came."
            )
    if target is not None:
        said["vendor"], said["platform"], said["account"] = target.vendor, target.platform, target.account
    try:
        return Origin(**said)
    except ValidationError as error:
        reading.violations.extend(error.violations)
        return Origin()


def _reply_block(raw: object, vendor: str, reading: Reading, path: str) -> AssistantBlock | None:
    data = held(raw)
    tag = data.get("type") if data is not None else None
    if data is None or not isinstance(tag, str):
        reading.fault(BLOCK_TYPE, path, "a block without `type`", "Pass the message as it came.")
        return None
    cls = class_of(data)
    if cls is None or tag not in WIRE_BLOCKS:
        sent = mapping(raw) or data
        if tag in WIRE_BLOCKS:  # a call of a new server tool: its nulls mean nothing, as in every known block
            sent = {key: value for key, value in sent.items() if value is not None}
        return cast("AssistantBlock | None", _read_opaque(sent, reading, path))
    if cls is Text and data.get("text") == "":
        reading.drop(EMPTY_SEPARATOR, path, "an empty text block", "It was left out.")
        return None
    said = data.get("text") if cls is Text else data.get("thinking") if cls is Thinking else None
    if isinstance(said, str) and not is_text(said):
        data = {**data, **_rejoined(cls, said, reading, path)}
    if cls is Thinking and not data.get("signature") and vendor != "anthropic":
        return cast("AssistantBlock | None", _read_unsigned(data, reading, path))
    if cls is ToolUse and vendor != "anthropic":
        data = _legal_id(data, reading, path)
    block: Any = read_value(cls, data, reading, path)
    return None if block is BROKEN else block


def _rejoined(cls: type, said: str, reading: Reading, path: str) -> dict[str, str]:
    """What a block says, with halves of characters joined. In a text, which no signature covers, the rest is replaced."""
    if cls is Thinking:
        return {"thinking": rejoined(said)}
    text = rejoined(said)
    if not is_text(text):
        text = rejoined(said, replace=True)
        reading.drop(VALID_UTF8, join(path, "text"), "half a character", "U+FFFD stands in its place.")
    return {"text": text}


def _read_opaque(data: Mapping[str, Any], reading: Reading, path: str) -> OpaqueBlock | None:
    kept = {key: value for key, value in data.items() if key != "cache_control"}
    if len(kept) < len(data):
        reading.drop(CACHE_PLACE, join(path, "cache_control"), "a cache marker", "It was left out.")
    try:
        return OpaqueBlock(thawed(kept))
    except ValidationError as error:
        reading.violations.extend(fault.under(path) for fault in error.violations)
        return None


def _read_unsigned(data: Mapping[str, Any], reading: Reading, path: str) -> Any:
    kept = {key: value for key, value in data.items() if key != "signature" or value == ""}
    return read_value(UnsignedThinking, kept, reading, path)


def _legal_id(data: Mapping[str, Any], reading: Reading, path: str) -> Mapping[str, Any]:
    """A call of another vendor with an id that every target takes (vLLM issue 50295: ids such as `functions.f:0`)."""
    id = data.get("id")
    if not isinstance(id, str) or re.fullmatch(r"[a-zA-Z0-9_-]+", id):
        return data
    legal = re.sub(r"[^a-zA-Z0-9_-]", "_", id) or "call"
    reading.drop(
        TOOL_USE_ID, join(path, "id"), f"the id {quoted(id)}", f"The call was given the id {legal!r}."
    )
    return {**data, "id": legal}


# ---------------------------------------------------------------- histories


class _Draft:
    """A message that could not become a turn, with what the rules need to know of it."""

    __slots__ = ("blocks", "origin", "role")

    def __init__(self, role: str, blocks: list[Any], origin: Origin | None) -> None:
        self.role, self.blocks, self.origin = role, blocks, origin

    @property
    def traits(self) -> frozenset[str]:
        return traits_of(cast("Any", self.role), self.blocks)


class _History:
    """One strict pass over messages: every fault, and the log of turns if there is none."""

    def __init__(self, preamble: Preamble | None, reading: Reading, origins: Mapping[int, Origin]) -> None:
        self.reading, self.origins = reading, origins
        self.log = Log(preamble or Preamble())
        self.state = State()
        self.turns: list[Any] = []

    def add(self, index: int, raw: object) -> None:
        """Read one more message."""
        reading, path = self.reading, WIRE.turn(index)
        self.turns.append(_Draft("?", [], None))
        data = mapping(raw)
        if data is None:
            reading.fault(FIELD_TYPE, path, f"{described(raw)} where a message is due", "Pass an object.")
            return
        role = data.get("role")
        if not isinstance(role, str) or role not in TURNS:
            rule, found = (REQUIRED_FIELD, "nothing") if role is None else (ROLE, f"the role {quoted(role)}")
            reading.fault(rule, f"{path}.role", found, "Use `user`, `assistant` or `system`.")
            return
        for key in [key for key in data if key not in ("role", "content")] if len(data) > 2 else ():
            where = join(path, key_name(key))
            reading.fault(UNKNOWN_FIELD, where, "a field that requests do not have", "Remove it.")
        origin = self.origins.get(index) if role == "assistant" else None
        turn = self._turn(role, data, path, origin)
        if turn is None:
            return
        self.turns[index] = turn
        self.state, faults = step(self.state, index, turn, self.log.calls, WIRE)
        reading.violations.extend(faults)
        if isinstance(turn, _Draft) or reading.violations:
            self.log.calls.add(index, self.state)
        else:
            self.log.append(turn, self.state)

    def _turn(self, role: str, data: Mapping[str, Any], path: str, origin: Origin | None) -> Any:
        reading = self.reading
        before = len(reading.violations)
        content = data.get("content")
        if isinstance(content, str):
            raws: list[object] = [{"type": "text", "text": content}] if content else []
        elif isinstance(content, (list, tuple)):
            raws = list(cast("list[object]", content))
        else:
            rule, found = (
                (REQUIRED_FIELD, "nothing") if "content" not in data else (CONTENT_TYPE, described(content))
            )
            reading.fault(rule, f"{path}.content", found, "Use a string or a list of blocks.")
            return None
        vendor = origin.vendor if origin is not None else "anthropic"
        blocks = [self._block(raw, vendor, f"{path}.content[{at}]") for at, raw in enumerate(raws)]
        if len(reading.violations) == before:
            try:
                return (
                    AssistantTurn(blocks, origin) if role == "assistant" else TURNS[role](cast("Any", blocks))
                )
            except ValidationError:
                pass  # the same rules say it again below, with the paths of the wire
        faults = turn_faults(cast("Any", role), blocks, WIRE)
        reading.violations.extend(fault.under(path) for fault in faults)
        return _Draft(role, blocks, origin)

    def _block(self, raw: object, vendor: str, path: str) -> Any:
        reading = self.reading
        data = mapping(raw)
        if data is None:
            reading.fault(FIELD_TYPE, path, f"{described(raw)} where a block is due", "Pass an object.")
            return Broken("?")
        tag = data.get("type")
        cls = WIRE_BLOCKS.get(tag) if isinstance(tag, str) else None
        if cls is None:
            if "type" in data:
                fix = "Use a type that the API knows, or drop the block."
                reading.fault(BLOCK_TYPE, path, f"the type {quoted(tag)}", fix)
            else:
                reading.fault(REQUIRED_FIELD, f"{path}.type", "nothing", "Add `type`.")
            return Broken(tag if isinstance(tag, str) else "?")
        if cls is Thinking and not data.get("signature") and vendor != "anthropic":
            block = _read_unsigned(data, reading, path)
        else:
            block = read_value(cls, data, reading, path)
        if block is not BROKEN:
            return block
        id, answers = data.get("id"), data.get("tool_use_id")
        return Broken(
            cast("str", tag),
            id if isinstance(id, str) else None,
            answers if isinstance(answers, str) else None,
        )


def read_wire(
    messages: object,
    system: object = None,
    tools: object = None,
    origins: Mapping[int, Origin] | None = None,
    target: Target | None = None,
    stage: str = "hold",
) -> tuple[Conversation | None, tuple[Violation, ...]]:
    """What `check` and `parse` give, of one reading: the conversation that turns make, if they all do, and all faults."""
    require(target, (Target, type(None)), "target", "a Target")
    if not isinstance(cast("object", stage), str) or stage not in ("hold", "send"):
        found, fix = f"the stage {quoted(stage)}", "Use 'hold' or 'send'."
        raise ValidationError([Violation(FIELD_VALUE, "stage", found, fix)])
    known = {} if origins is None else origins
    require(known, Mapping, "origins", "a mapping of origins")
    for index, origin in known.items():
        require(origin, Origin, f"origins[{quoted(index)}]", "an Origin")
    reading = Reading(SENT, marked=True)
    if isinstance(messages, (str, bytes, bytearray, memoryview)):
        messages, faults = decode(messages)
        reading.violations.extend(faults)
        if faults and messages is None:
            return None, tuple(reading.violations)
    body = None if isinstance(messages, (list, tuple)) else mapping(messages)
    if body is not None and "messages" in body:
        messages = body["messages"]
        system = system if system is not None else body.get("system")
        tools = tools if tools is not None else body.get("tools")
    if not isinstance(messages, (list, tuple)):
        reading.fault(
            CONTENT_TYPE, "messages", f"{described(messages)} where a list is due", "Pass a list of messages."
        )
        return None, tuple(reading.violations)
    preamble = read_preamble(system, tools, reading)
    history = _History(preamble, reading, known)
    for index, raw in enumerate(cast("list[object]", messages)):
        history.add(index, raw)
    reading.violations.extend(marker_faults(_in_request_order(reading.markers)))
    whole = len(history.log.turns) == len(messages) and preamble is not None
    convo = at_length(history.log, len(messages)) if whole else None
    seen = Judged(
        history.turns,
        history.state,
        history.log.calls,
        None if tools is None or preamble is None else preamble.tools,
        lambda: history.log.chain(len(messages)).stale_turns() if whole else (),
    )
    if len(messages) > MAX_MESSAGES and (target is not None or stage == "send"):
        reading.fault(MESSAGES_MAX, "messages", f"{len(messages)} messages", f"Send at most {MAX_MESSAGES}.")
    if target is not None:
        reading.violations.extend(_foreign_thinking(history.turns, target))
        reading.violations.extend(target_faults(seen, target, WIRE))
    if stage == "send":
        reading.violations.extend(tail_faults(seen, target, WIRE))
    return convo, tuple(sorted(reading.violations, key=_place))


def _place(fault: Violation) -> tuple[int, ...]:
    """Where a fault stands: what is no part of a message first, then by message and block."""
    if not fault.path.startswith("messages["):
        return (-1,)
    return tuple(map(int, re.findall(r"\[(\d+)\]", fault.path)))


def _in_request_order(markers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    order = {"tools": 0, "system": 1, "messages": 2}
    return sorted(markers, key=lambda marker: order[marker[0].partition("[")[0]])


def _foreign_thinking(turns: list[Any], target: Target) -> Iterator[Violation]:
    """Thinking in wire data that the target cannot read. A conversation leaves it out when it is written."""
    for index, turn in enumerate(turns):
        issuer = issuer_of(turn)
        for at, block in enumerate(turn.blocks):
            if type(block) in THOUGHTS and issuer != target.vendor:
                found, fix = f"thinking of {issuer}", "Drop the block for this target."
                yield Violation(UNSIGNED_FOREIGN, WIRE.at(index, at), found, fix)


def check(
    messages: object,
    *,
    system: SystemPrompt = None,
    tools: Iterable[ToolDefinition] | None = None,
    origins: Mapping[int, Origin] | None = None,
    target: Target | None = None,
    stage: Literal["hold", "send"] = "hold",
) -> tuple[Violation, ...]:
    """Everything wrong with a history in wire form. Never raises on any JSON value.

    Args:
        messages: A list of messages or a request body, as values or as JSON text or bytes.
        system: The system prompt of the request.
        tools: The tools of the request; None if they are not known, `()` if there are none.
        origins: What is known of where assistant messages came from, by the index of the message.
        target: Where the history is to go; None checks only what holds everywhere.
        stage: `hold` for a history at rest, which may end with open calls; `send` for one to be sent as it is.

    Returns:
        The violations, each with rule and path, in the order of their places; empty if there are none.

    Raises:
        ValidationError: `field-type` or `field-value` for an argument other than the history that is none of these.

    >>> [str(v) for v in check([{"role": "user", "content": ""}])]
    ['messages[0].content: no content. Add content, or leave the turn out. [user-content-nonempty]']
    """
    return read_wire(messages, system, tools, origins, target, stage)[1]


def parse(
    messages: Sequence[MessageParam | Mapping[str, Any]] | Mapping[str, Any] | str | bytes,
    *,
    system: SystemPrompt = None,
    tools: Iterable[ToolDefinition] | None = None,
    origins: Mapping[int, Origin] | None = None,
) -> Conversation:
    """A conversation from a history in wire form, strictly. Cache markers are checked, then left out.

    Args:
        messages: A list of messages or a request body, as values or as JSON text or bytes.
        system: The system prompt of the request.
        tools: The tools of the request; None if they are not known.
        origins: What is known of where assistant messages came from, by the index of the message.

    Raises:
        ValidationError: Every violation, each with rule and path.

    >>> parse([{"role": "user", "content": "Hello."}])
    AwaitingModel(<1 turn>, last=UserTurn([Text('Hello.')]))
    """
    convo, violations = read_wire(messages, system, tools, origins)
    if violations or convo is None:
        raise ValidationError(violations)
    return convo
