"""Reading a broken history, mending it pass by pass, and judging what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, cast

import attrs
import msgspec

from ..anthropic import Target
from ..anthropic.read import read_wire
from ..blocks import UnsignedThinking
from ..conversation import Conversation, conversation
from ..declared import SENT
from ..edits import PREFIX_BOUND
from ..errors import Rule, Violation, join
from ..fields import BROKEN, Reading, mapping, read_value, require, thawed
from ..jsonvalue import decode
from ..markers import CACHE_MAX, CACHE_ORDER
from ..preamble import SystemPrompt, ToolDefinition
from ..turns import AssistantTurn, Origin, UserTurn
from . import blocks, pairs, turns
from .plan import Defect, Message, Policy, Repaired, Work, as_data
from .rows import read_rows

DEFAULT = Policy()
PASSES: tuple[tuple[Defect, Callable[[Work], None]], ...] = (
    ("values", blocks.surrogates),
    ("values", blocks.values),
    ("values", blocks.media),
    ("values", blocks.inputs),
    ("blocks", blocks.places),
    ("texts", blocks.empty_texts),
    ("fields", blocks.user_citations),
    ("thinking", blocks.unsigned),
    ("blocks", blocks.unreadable),
    ("cut_calls", blocks.cut_calls),
    ("ids", pairs.ids),
    ("missing_results", pairs.pairs),
    ("order", pairs.error_results),
    ("server_tools", pairs.server_tools),
    ("texts", turns.texts),
    ("order", turns.system_turns),
    ("texts", turns.tail),
    ("thinking", turns.void),
)
"""The passes in their order, blocks first, then pairs, then turns; each with the kind of defect that it is about."""


def repair(
    messages: object,
    *,
    system: SystemPrompt = None,
    tools: Iterable[ToolDefinition] | None = None,
    target: Target | None = None,
    origins: Mapping[int, Origin] | None = None,
    stage: Literal["hold", "send"] = "hold",
    policy: Policy = DEFAULT,
) -> Repaired:
    """Mend a broken history.

    Args:
        messages: A list of messages as agents store them: dicts, SDK objects, OpenAI-shaped rows; a request body with
            `messages`; or either as JSON text. It is not changed.
        system: The system prompt of the request.
        tools: The tools of the request; None if they are not known.
        target: Where the history is to go; None mends only what is wrong everywhere.
        origins: What is known of where assistant messages came from, by the index of the message. Whole responses among
            the messages say it themselves.
        stage: `hold` for a history at rest, which may end with open calls; `send` for one to be sent as it is.
        policy: What to do about each kind of defect.

    Returns:
        The plan that was carried out, the mended history, and what could not be mended. A valid history comes back as it
        is, without changes; repairing a mended history changes nothing.

    Raises:
        ValidationError: `field-type` or `field-value` for an argument other than the history that is none of these.

    >>> broken = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": [{"type": "text", "text": ""}]}]
    >>> [str(change) for change in repair(broken).changes]
    ['messages[1].content[0].text: dropped [text-block-nonempty]', 'messages[1]: dropped [user-content-nonempty]']
    """
    require(policy, Policy, "policy", "a Policy")
    if isinstance(messages, (str, bytes, bytearray, memoryview)):
        messages, faults = decode(messages)
        if messages is None or faults:
            return Repaired(None, None, system, unrepaired=tuple(faults))
    if isinstance(tools, Iterator):
        tools = tuple(tools)  # it is read more than once
    body = None if isinstance(messages, (list, tuple)) else mapping(messages)
    if body is not None and "messages" in body:
        messages = body["messages"]
        system = body.get("system") if system is None else system
        tools = body.get("tools") if tools is None else tools
    valid, found = read_wire(messages, system, tools, origins, target, stage)
    if not found:
        wire = thawed(messages)
        return Repaired(valid, wire, system, sources=tuple(range(len(wire))))
    if not isinstance(messages, (list, tuple)):
        return Repaired(None, None, system, unrepaired=found)
    work = Work(target, stage, system, policy)
    read_rows(work, list(cast("Iterable[object]", messages)), origins or {})
    for work.defect, each in PASSES:
        each(work)
    made, left = _judged(work, tools)
    actions = attrs.asdict(policy)
    refused = tuple(change for change in work.changes if actions[change.defect] == "refuse")
    if refused:
        return Repaired(None, None, system, unrepaired=found, refused=refused)
    if made is None or left:
        return Repaired(None, None, work.system, tuple(work.changes), left)
    wire = [
        thawed(messages[message.index]) if message.index is not None and message.untouched else data
        for message, data in zip(work.messages, _written(work)[0], strict=True)
    ]
    # It shares nothing with what was given.
    wire = msgspec.json.decode(msgspec.json.encode(wire, enc_hook=dict))
    sources = tuple(message.index for message in work.messages)
    return Repaired(_whole(made, work), wire, work.system, tuple(work.changes), sources=sources)


def _judged(work: Work, tools: object) -> tuple[Conversation | None, tuple[Violation, ...]]:
    """The conversation that a history makes after the passes, and what is still wrong with it."""

    def read() -> tuple[Conversation | None, tuple[Violation, ...]]:
        wire, known = _written(work)
        return read_wire(wire, work.system, tools, known, work.target, work.stage)

    made, found = read()
    wrong = next((fault.rule for fault in found if fault.rule in (CACHE_MAX, CACHE_ORDER)), None)
    if wrong is not None:
        _unmark(work, wrong)
        made, found = read()
    stale = next((fault.path for fault in found if fault.rule == PREFIX_BOUND), None)
    if stale is not None:
        work.defect = "thinking"
        turns.unbind(work, int(stale.split("[")[1].split("]")[0]))
        made, found = read()
    return made, found


def _written(work: Work) -> tuple[list[Any], dict[int, Origin]]:
    wire = [{"role": each.role, "content": as_data(each.pieces)} for each in work.messages]
    known = {index: each.origin for index, each in enumerate(work.messages) if each.origin is not None}
    return wire, known


def _unmark(work: Work, rule: Rule) -> None:
    """Take out all cache markers, which are placed anew when a request is written."""
    work.defect = "fields"
    for message in work.messages:
        for piece in message.pieces:
            inner = piece.data.get("content")
            for data in (piece.data, *(inner if isinstance(inner, list) else ())):
                if isinstance(data, dict) and data.pop("cache_control", None) is not None:
                    where = join(piece.path, "cache_control")
                    work.rewrite(piece, where, rule, "a marker", now="", kind="dropped")


def _whole(made: Conversation, work: Work) -> Conversation:
    """The conversation with what the wire does not have: marks of made results, and thinking that is not the target's."""
    made_turns = list(made.turns)
    marked = [
        (index, message)
        for index, message in enumerate(work.messages)
        if any(piece.synthetic or piece.unsent for piece in message.pieces)
    ]
    if not marked:
        return made
    for index, message in marked:
        made_turns[index] = _whole_turn(made_turns[index].blocks, message)
    return conversation(made_turns, system=made.preamble.system, tools=made.preamble.tools)


def _whole_turn(sent: tuple[Any, ...], message: Message) -> Any:
    rest = iter(sent)
    blocks: list[Any] = []
    for piece in message.pieces:
        if piece.unsent:
            cls = UnsignedThinking if piece.unsigned else piece.cls
            data = {"thinking": piece.data.get("thinking")} if piece.unsigned else piece.data
            block = read_value(cls, data, Reading(SENT, lenient=True), piece.path)
            blocks += [] if block is BROKEN else [block]
        else:
            block = next(rest)
            blocks.append(
                attrs.evolve(block, synthetic=piece.synthetic) if piece.synthetic is not None else block
            )
    if message.role == "user":
        return UserTurn(blocks)
    return AssistantTurn(blocks, message.origin)
