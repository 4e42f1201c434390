"""A request that was refused: what the error means, and the one edit that may help.

`diagnose` looks and changes nothing; `apply` gives the mended conversation without sending it; `recover` does both around
a call, at most once for each kind of fault. What the texts of errors mean is a table of `convmodel.anthropic.faults`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar, cast, final

import attrs

from .anthropic import Target, message_map
from .anthropic.faults import STATUSES, Fault, Named, Plan, fault_of, named_in
from .anthropic.targets import binds_prefix, judged, target_faults
from .blocks import Document, Image, OpaqueBlock, ServerToolUse, Text, ToolResult
from .conversation import AwaitingModel, AwaitingTools, AwaitingUser, Conversation, Edit
from .edits import Moved, OnThinking, Rewrite
from .errors import BUILT, ConvmodelError, Rule, ValidationError, Violation
from .fields import FIELD_TYPE, described, fields_of, mapping
from .jsonvalue import decode
from .preamble import Tool
from .repair import Repaired, repair
from .turns import THOUGHTS, AssistantTurn, SystemTurn, UserTurn, is_blank

T = TypeVar("T")
MAX_TEXT = 100_000
"""How much of an error's text is read."""


@final
@attrs.frozen
class Mended:
    """What a recovery made of a conversation. Nothing has been sent.

    Args:
        conversation: The conversation with the edit.
        target: The target with the edit; None if none was given.
        done: What was done, in words.
        voided: The thinking blocks that were taken out, as `turns[3].blocks[0]` of the conversation before.
    """

    conversation: Conversation
    target: Target | None
    done: str
    voided: tuple[str, ...] = ()


@final
@attrs.frozen
class Diagnosis:
    """What an error means for a conversation.

    Args:
        rule: The rule that is behind it; None if the error is not known, or has nothing to do with the history.
        path: The place that the error names, as `turns[3].blocks[1]`; None if it names none.
        plan: The name of the edit that may help; None if none does.
        says: What has happened, and what to do.
        attempts: What has been tried, with this plan in it; pass it to the next `diagnose`.
    """

    rule: Rule | None
    path: str | None
    plan: Plan | None
    says: str
    attempts: frozenset[tuple[str, str]] = frozenset()
    _mended: Mended | None = attrs.field(default=None, repr=False)

    @property
    def recoverable(self) -> bool:
        """Whether there is an edit to try."""
        return self._mended is not None

    def apply(self) -> Mended:
        """The conversation with the edit, without sending it.

        Raises:
            ConvmodelError: There is no edit to try; the text says why.
        """
        if self._mended is None:
            raise ConvmodelError(self.says)
        return self._mended

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        what = self._mended.done if self._mended is not None else "There is no edit to try."
        return f"{where}{self.says} {what}{f' [{self.rule}]' if self.rule else ''}"


def diagnose(
    error: object,
    conversation: object,
    target: Target | None = None,
    *,
    attempts: frozenset[tuple[str, str]] = frozenset(),
) -> Diagnosis:
    """Say what an error means for the conversation that was sent.

    Args:
        error: An `anthropic.APIStatusError`, the body of one, or its text; gateways may have wrapped it.
        conversation: What was sent: a conversation, or a history in wire form, which is repaired first.
        target: Where it was sent.
        attempts: The `attempts` of the last diagnosis. What was tried on this conversation is not tried again.

    Raises:
        ValidationError: `field-type` if the error, the conversation or the target is nothing of the kind.

    >>> from convmodel import start
    >>> error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    >>> print(diagnose(error, start("Hello.")))
    The service is overloaded; wait and try again. There is no edit to try.
    """
    text, status = _text_of(error)
    if target is not None and type(target) is not Target:
        raise _wrong("target", target, "Pass a Target.")
    fault, named = fault_of(text), named_in(text)
    case = _case(conversation, target, named)
    if fault is None:
        says = STATUSES.get(
            status or 0, "The error is not known." if (status or 0) < 500 else "The service failed."
        )
        return Diagnosis(None, case.path, None, says, attempts)
    if case.conversation is None:
        says = f"{fault.says} The history cannot be repaired: {case.unrepaired}"
        return Diagnosis(fault.rule, case.path, None, says, attempts)
    for plan in _plans(fault, case):
        key = (case.conversation.digest, plan)
        mended = None if key in attempts else _tried(plan, case)
        if mended is not None and _helps(mended, case, plan):
            return Diagnosis(fault.rule, case.path, plan, fault.says, attempts | {key}, mended)
    return Diagnosis(fault.rule, case.path, None, fault.says, attempts)


def _text_of(error: object) -> tuple[str, int | None]:
    """All text of an error, and its status."""
    status = getattr(error, "status_code", None)
    if isinstance(error, BaseException):
        parts = [*_texts(getattr(error, "body", None)), str(error)]
    elif isinstance(error, (str, bytes, bytearray)):
        raw = error if isinstance(error, str) else bytes(error).decode("utf-8", "replace")
        value = decode(raw)[0] if raw.lstrip()[:1] in ("{", "[") and len(raw) <= MAX_TEXT else None
        parts = list(_texts(value)) or [raw]
    elif isinstance(error, (Mapping, list)) or mapping(error) is not None:
        parts = list(_texts(error))
        data = mapping(error) or {}
        inner = mapping(data.get("error")) or {}
        status = next((each for each in (data.get("status"), inner.get("code")) if type(each) is int), None)
    else:
        raise _wrong("error", error, "Pass the exception, its body or its text.")
    return " ".join(parts)[:MAX_TEXT], status if type(status) is int else None


def _texts(value: object, depth: int = 20, seen: set[int] | None = None) -> Iterator[str]:
    """The text in a body, wherever gateways have put it. What occurs again is read once."""
    seen = set() if seen is None else seen
    if not isinstance(value, str):
        if id(value) in seen:
            return
        seen.add(id(value))
    if isinstance(value, str):
        yield value[:MAX_TEXT]
    elif depth and isinstance(value, list):
        for item in cast("list[object]", value[:100]):
            yield from _texts(item, depth - 1, seen)
    elif depth and (data := mapping(value)) is not None:
        for item in list(data.values())[:100]:
            yield from _texts(item, depth - 1, seen)


def _wrong(path: str, value: object, fix: str) -> ValidationError:
    return ValidationError([Violation(FIELD_TYPE, path, described(value), fix)])


# ---------------------------------------------------------------- the case


@final
@attrs.frozen
class _Case:
    """A refused conversation, and the place in it that the error names."""

    conversation: Conversation | None
    target: Target | None
    named: Named | None
    turn: int | None
    block: int | None
    repaired: Repaired | None = None

    @property
    def path(self) -> str | None:
        if self.turn is None:
            return None
        return BUILT.turn(self.turn) if self.block is None else BUILT.at(self.turn, self.block)

    @property
    def unrepaired(self) -> str:
        return str(self.repaired.unrepaired[0]) if self.repaired and self.repaired.unrepaired else ""

    @property
    def convo(self) -> Conversation:
        """The conversation; a plan is only made for a case that has one."""
        return cast("Conversation", self.conversation)

    @property
    def on_thinking(self) -> OnThinking:
        """What becomes of thinking that an edit voids."""
        target = self.target
        checks = (
            target is not None and binds_prefix(target.model, target.platform) and target.on_stale == "refuse"
        )
        return "strip_after" if checks else "keep"

    def mended(self, edit: Edit, done: str) -> Mended:
        """What an edit has made; what it voids is gone where the target checks that."""
        voided = edit.voided if self.on_thinking == "strip_after" else ()
        return Mended(edit.conversation, self.target, done, voided)

    def changed(self, done: str, target: Target | None = None) -> Mended:
        """The conversation as it is, for another target or as a repair has made it."""
        return Mended(self.convo, target or self.target, done)


def _case(history: object, target: Target | None, named: Named | None) -> _Case:
    if isinstance(history, (AwaitingUser, AwaitingModel, AwaitingTools)):
        turn, block = _mapped(history, target, named)
        return _Case(history, target, named, turn, block)
    if not isinstance(history, (list, tuple, Mapping, str, bytes)):
        raise _wrong("conversation", history, "Pass a conversation, or a history in wire form.")
    made = repair(history, target=target, stage="send")
    if made.conversation is None:
        made = repair(history, target=target)  # it may end with the model
    turn = block = None
    if named is not None and named.message in made.sources:
        turn = made.sources.index(named.message)
        block = named.block if not made.changes else None  # what a repair has moved stands elsewhere
    return _Case(made.conversation, target, named, turn, block, made)


def _mapped(convo: Conversation, target: Target | None, named: Named | None) -> tuple[int | None, int | None]:
    """The turn and the block that the API calls `messages.N.content.M`."""
    if named is None:
        return None, None
    try:
        written = message_map(convo, target)
    except ValidationError:
        return None, None
    if named.message >= len(written) or not written[named.message]:
        return None, None
    blocks = written[named.message]
    if named.block is None or named.block >= len(blocks):
        return blocks[0][0], None
    return blocks[named.block]


def _plans(fault: Fault, case: _Case) -> list[Plan]:
    """The plan of a fault, and what takes its place where it cannot be carried out."""
    if fault.plan is None or not case.convo.turns:
        return []
    plans: list[Plan] = [fault.plan]
    if fault.plan == "drop_block":
        plans.append("strip_thinking")
    if case.repaired is not None and case.repaired.changes:
        plans.insert(0, "re_pair")  # the history in wire form was broken: that comes first
    return plans


def _tried(plan: Plan, case: _Case) -> Mended | None:
    try:
        return PLANS[plan](case)
    except ValidationError:  # what the edit would leave breaks a rule
        return None


def _helps(mended: Mended, case: _Case, plan: Plan) -> bool:
    """Whether a request would differ from the refused one, and no rule of the target forbids it."""
    changed = mended.conversation.digest != case.convo.digest or mended.target != case.target
    if not (changed or plan == "retry" or case.repaired is not None):
        return False
    return mended.target is None or not any(target_faults(judged(mended.conversation), mended.target, BUILT))


# ---------------------------------------------------------------- the plans


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s are' if count != 1 else ' is'}"


def _strip(case: _Case, turn: int, block: int) -> Mended | None:
    edit = case.convo.strip_thinking(turn, block)
    if not edit.voided:
        return None
    target = case.target
    # A loop that has lost its thinking cannot go on with manual thinking.
    if target is not None and target.thinking_type == "enabled" and case.convo._state.loop is not None:
        target = _without_manual(target)
    done = f"{_counted(len(edit.voided), 'thinking block')} taken out."
    return Mended(edit.conversation, target, done, edit.voided)


def _strip_thinking(case: _Case) -> Mended | None:
    """Take the named thinking block out, and all later thinking; all thinking if none is named."""
    return _strip(case, case.turn or 0, case.block or 0)


def _strip_turn_thinking(case: _Case) -> Mended | None:
    """Take all thinking of the named turn out, with those that the API joins with it, and all later thinking."""
    turns = case.convo.turns
    turn = len(turns) - 1 if case.turn is None else case.turn
    while turn and turns[turn].role != "assistant":
        turn -= 1
    while turn and turns[turn - 1].role == "assistant":
        turn -= 1
    return _strip(case, turn, 0)


def _drop_block(case: _Case) -> Mended | None:
    """Let the service leave void thinking out, from now on."""
    if case.target is None or case.target.on_stale == "drop_block":
        return None
    try:
        target = attrs.evolve(case.target, on_stale="drop_block")
    except ValidationError:  # the thinking mode does not have it
        return None
    return case.changed("The service is told to drop void thinking.", target)


def _without_manual(target: Target) -> Target:
    takes = target.model_facts.thinking
    return attrs.evolve(target, thinking={"type": "adaptive"} if "adaptive" in takes else None)


def _change_thinking(case: _Case) -> Mended | None:
    """Send another thinking mode: adaptive where it was something else, none where it was adaptive."""
    if case.target is None or case.target.thinking_type is None:
        return None
    if case.target.thinking_type == "adaptive":
        target = attrs.evolve(case.target, thinking=None, on_stale="refuse")
    elif case.target.thinking_type == "enabled":
        target = _without_manual(case.target)
    else:
        target = attrs.evolve(case.target, thinking={"type": "adaptive"})
    return case.changed(f"The thinking mode is {target.thinking_type or 'off'} now.", target)


def _re_pair(case: _Case) -> Mended | None:
    """Answer what is open; or take the history as it was repaired."""
    convo = case.conversation
    if case.repaired is not None and case.repaired.changes:
        count = len(case.repaired.changes)
        return case.changed(f"The history is repaired: {_counted(count, 'change')} made.")
    if isinstance(convo, AwaitingTools):
        return Mended(convo.close("interrupted"), case.target, "Open calls are answered with errors.")
    return None


def _abandon(case: _Case) -> Mended | None:
    """Give up a server call that will not be finished."""
    if not isinstance(case.convo, AwaitingModel):
        return None
    return Mended(case.convo.abandon(), case.target, "The unfinished server call is given up.")


def _edited(
    case: _Case, edit: Callable[[Any, int, int], Any], done: str, only: tuple[int, int | None] | None = None
) -> Mended | None:
    """Put other blocks in place of some. Turns that hold nothing any more go too.

    `edit` is given a block, the index of its turn and its own, and gives None for a block that goes.
    """
    turns: list[Moved] = []
    first: int | None = None
    for index, turn in enumerate(case.convo.turns):
        blocks: list[Any] = []
        changed = False
        for at, block in enumerate(turn.blocks):
            here = only is None or (index == only[0] and only[1] in (None, at))
            made = edit(block, index, at) if here else block
            changed |= made is not block
            blocks += [] if made is None else [made]
        if not changed:
            turns.append(Moved(turn, index))
            continue
        first = index if first is None else first
        while blocks and type(blocks[-1]) in THOUGHTS:
            blocks.pop()
        if blocks:
            turns.append(Moved(attrs.evolve(cast("Any", turn), blocks=blocks), index))
    if first is None:
        return None
    return case.mended(case.convo._edited(Rewrite(first, turns[first:]), case.on_thinking), done)


def _drop_named(case: _Case) -> Mended | None:
    """Take the named block out, with the other half of its pair; advisor's and compaction's blocks if none is named."""
    turn, at = case.turn, case.block
    if turn is None or at is None:
        ours = ("advisor", "compaction")
        return _edited(
            case,
            lambda block, *_: None if _name(block).startswith(ours) else block,
            "The blocks that it is about are taken out.",
        )
    block: Any = case.convo.turns[turn].blocks[at]
    if type(block) not in (OpaqueBlock, ServerToolUse) and not str(block.type).endswith("_tool_result"):
        return None
    pair = _pair_id(block)
    return _edited(
        case,
        lambda each, *where: (
            None if where == (turn, at) or (pair is not None and _pair_id(each) == pair) else each
        ),
        "The block is taken out, with the other half of its pair.",
    )


def _name(block: Any) -> str:
    return str(block.name if type(block) is ServerToolUse else block.type)


def _pair_id(block: Any) -> str | None:
    """The id that the two halves of a server tool's pair share."""
    if type(block) is ToolResult:
        return None
    data = block.data if type(block) is OpaqueBlock else {}
    id = getattr(block, "tool_use_id", None) or data.get("tool_use_id")
    if id is None and (type(block) is ServerToolUse or str(block.type).endswith("_tool_use")):
        id = getattr(block, "id", None) or data.get("id")
    return id if isinstance(id, str) else None


def _drop_blank_text(case: _Case) -> Mended | None:
    """Take out text that is only whitespace."""
    return _edited(
        case,
        lambda block, *_: None if type(block) is Text and is_blank(block) else block,
        "Blank text is taken out.",
    )


def _strip_field(case: _Case) -> Mended | None:
    """Take the named field out of the named block, if the block can be without it."""
    if case.named is None or case.turn is None or case.block is None or not case.named.tail:
        return None
    block: Any = case.convo.turns[case.turn].blocks[case.block]
    if type(block) is OpaqueBlock:
        return None
    name = case.named.tail[-1]
    field = next(
        (each for each in fields_of(cast("Any", type(block))) if each.name == name and each.optional), None
    )
    default = next((each.default for each in attrs.fields(type(block)) if each.name == name), attrs.NOTHING)
    if field is None or default is attrs.NOTHING:
        return None
    return _edited(
        case,
        lambda each, *_: attrs.evolve(each, **{name: default}),
        f"The field `{name}` is taken out.",
        (case.turn, case.block),
    )


def _drop_markers(case: _Case) -> Mended | None:
    """Send no cache markers, from now on."""
    done, target = "The cache markers are left out.", case.target
    if target is not None and target.cache is not None:
        return case.changed(done, attrs.evolve(target, cache=None))
    return None if case.repaired is None else case.changed(done)


def _declare_tools(case: _Case) -> Mended | None:
    """Declare the tools that the history has called, by name alone."""
    turns = case.convo.turns
    names = dict.fromkeys(call.name for turn in turns if type(turn) is AssistantTurn for call in turn.calls)
    if case.convo.preamble.tools or not names:
        return None
    tools = [Tool(name, {"type": "object"}) for name in names]
    done = "The tools that the history has used are declared; send `tool_choice` of type `none` to have none called."
    return case.mended(case.convo.with_tools(tools, on_thinking=case.on_thinking), done)


def _fold_system(case: _Case) -> Mended | None:
    """Say what system turns say as the user."""
    folded = [
        Moved(UserTurn(turn.blocks) if type(turn) is SystemTurn else turn, index)
        for index, turn in enumerate(case.convo.turns)
    ]
    first = next((each.was for each in folded if each.turn is not case.convo.turns[each.was]), None)
    if first is None:
        return None
    edit = case.convo._edited(Rewrite(first, folded[first:]), case.on_thinking)
    return case.mended(edit, "System turns are user turns now.")


def _media_stub(block: Any) -> Text:
    return Text(f"[{'An image' if type(block) is Image else 'A document'} was here that could not be sent.]")


def _stubbed(block: Any, *_: int) -> Any:
    """A block with a note in place of its images and documents."""
    if type(block) in (Image, Document):
        return _media_stub(block)
    if type(block) is ToolResult and isinstance(block.content, tuple):
        inner = tuple(
            _media_stub(each) if type(each) in (Image, Document) else each for each in block.content
        )
        return block if inner == block.content else attrs.evolve(block, content=inner)
    return block


def _replace_media(case: _Case) -> Mended | None:
    """Put a note in place of the image or document that is named."""
    if case.turn is None:
        return None
    return _edited(case, _stubbed, "A note stands in its place.", (case.turn, case.block))


def _drop_oldest_media(case: _Case) -> Mended | None:
    """Put a note in place of the older half of all images and documents."""
    holders = [
        (index, at)
        for index, turn in enumerate(case.convo.turns)
        for at, block in enumerate(turn.blocks)
        if _stubbed(block) is not block
    ]
    doomed = set(holders[: (len(holders) + 1) // 2])
    done = (
        f"Notes stand in place of the images and documents of the {len(doomed)} oldest blocks that hold any."
    )
    return _edited(case, lambda block, *where: _stubbed(block) if where in doomed else block, done)


def _clear_results(case: _Case) -> Mended | None:
    """Clear the results of all rounds but the last two."""
    turns = case.convo.turns
    answered = [at for at, turn in enumerate(turns) if type(turn) is UserTurn and turn.results]
    if len(answered) <= 2:
        return None
    edit = case.convo.clear_tool_results(answered[-2], on_thinking=case.on_thinking)
    return case.mended(edit, "The results of older calls are cleared.")


def _rewind_open_turn(case: _Case) -> Mended | None:
    """Go back to what the user said last. What the calls of the open turn did stays done."""
    loop = case.convo._state.loop
    return Mended(case.convo.rewind(loop), case.target, "The open turn is taken back.") if loop else None


def _retry(case: _Case) -> Mended | None:
    """Send the same again."""
    return case.changed("The same request is sent again.")


PLANS: Mapping[Plan, Callable[[_Case], Mended | None]] = {
    "strip_thinking": _strip_thinking,
    "strip_turn_thinking": _strip_turn_thinking,
    "drop_block": _drop_block,
    "change_thinking": _change_thinking,
    "re_pair": _re_pair,
    "abandon": _abandon,
    "drop_named": _drop_named,
    "drop_blank_text": _drop_blank_text,
    "strip_field": _strip_field,
    "drop_markers": _drop_markers,
    "declare_tools": _declare_tools,
    "fold_system": _fold_system,
    "replace_media": _replace_media,
    "drop_oldest_media": _drop_oldest_media,
    "clear_results": _clear_results,
    "rewind_open_turn": _rewind_open_turn,
    "retry": _retry,
}
"""What each plan does. One that changes nothing here gives None."""

# ---------------------------------------------------------------- around a call


@final
@attrs.frozen
class Recovered(Generic[T]):
    """What came of a call that was tried again where that helped.

    Args:
        result: What the call returned.
        conversation: The conversation that was sent in the end; the reply belongs to it.
        target: The target that it was sent to; later requests go there too.
        diagnoses: What was found and done on the way; empty if the first try went through.
    """

    result: T
    conversation: AwaitingModel
    target: Target
    diagnoses: tuple[Diagnosis, ...] = ()


class _Tries:
    """What is sent next, and what was tried."""

    def __init__(self, conversation: AwaitingModel, target: Target) -> None:
        self.conversation, self.target = conversation, target
        self.diagnoses: list[Diagnosis] = []

    def refused(self, error: Exception) -> None:
        """Prepare the next try, or raise the error with what it means as a note."""
        attempts = self.diagnoses[-1].attempts if self.diagnoses else frozenset[tuple[str, str]]()
        found = diagnose(error, self.conversation, self.target, attempts=attempts)
        again = found.rule in {each.rule for each in self.diagnoses}
        mended = found.apply() if found.recoverable and not again else None
        if mended is None or not isinstance(mended.conversation, AwaitingModel) or mended.target is None:
            error.add_note(f"convmodel: {'Tried before: ' if again else ''}{found}")
            raise error
        self.diagnoses.append(found)
        self.conversation, self.target = mended.conversation, mended.target

    def done(self, result: T) -> Recovered[T]:
        return Recovered(result, self.conversation, self.target, tuple(self.diagnoses))


def recover(
    call: Callable[[AwaitingModel, Target], T], conversation: AwaitingModel, target: Target
) -> Recovered[T]:
    """Send a conversation, and once more after each kind of refusal that an edit may mend.

    Args:
        call: Sends a conversation to a target, such as
            `lambda convo, target: client.messages.create(max_tokens=4096, **to_request(convo, target))`.
        conversation: What to send.
        target: Where to send it.

    Returns:
        What the call returned, with the conversation and the target that went through.

    Raises:
        Exception: What the call raised, where no edit helps or the edit for this kind of fault was tried; a note on it
            says what it means.

    >>> from convmodel import start
    >>> recover(lambda convo, target: len(convo.turns), start("Hello."), Target("claude-opus-4-8")).result
    1
    """
    tries = _Tries(conversation, target)
    while True:
        try:
            result = call(tries.conversation, tries.target)
        except Exception as error:
            if not _answered(error):
                raise
            tries.refused(error)
        else:
            return tries.done(result)


async def arecover(
    call: Callable[[AwaitingModel, Target], Awaitable[T]], conversation: AwaitingModel, target: Target
) -> Recovered[T]:
    """As `recover`, around a call that is awaited.

    Args:
        call: Sends a conversation to a target.
        conversation: What to send.
        target: Where to send it.

    Raises:
        Exception: As `recover`.
    """
    tries = _Tries(conversation, target)
    while True:
        try:
            result = await call(tries.conversation, tries.target)
        except Exception as error:
            if not _answered(error):
                raise
            tries.refused(error)
        else:
            return tries.done(result)


def _answered(error: Exception) -> bool:
    """Whether the service has said something; every client's status errors have a status."""
    return isinstance(getattr(error, "status_code", None), int)


__all__ = ["Diagnosis", "Mended", "Plan", "Recovered", "arecover", "diagnose", "recover"]
