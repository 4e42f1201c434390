"""Turns: which blocks one may hold and in which order; where an assistant turn came from; what a response held."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, Literal, TypeAlias, final

import attrs

from .blocks import (
    BLOCKS,
    AssistantBlock,
    OpaqueBlock,
    RedactedThinking,
    Role,
    ServerToolUse,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    UserBlock,
)
from .declared import stored_bytes
from .errors import BUILT, Place, Rule, ValidationError, Violation, quoted
from .fields import (
    BLOCK_TYPE,
    CONTENT_TYPE,
    ECHO,
    FIELD_TYPE,
    Broken,
    Flow,
    Value,
    described,
    flow,
    length,
    require,
)

TEXT_NONEMPTY = Rule(
    "text-block-nonempty",
    "No text block outside a tool result is empty.",
    "Live probes, 2026",
    "messages: text content blocks must be non-empty",
)
NOT_ALL_WHITESPACE = Rule(
    "turn-not-all-whitespace",
    "A turn whose only blocks are text says more than whitespace.",
    "Live probes, 2026",
    "messages: text content blocks must contain non-whitespace text",
)
USER_NONEMPTY = Rule(
    "user-content-nonempty",
    "A user turn has content.",
    "Live probes, 2026",
    "messages.N: user messages must have non-empty content",
)
SYSTEM_NONEMPTY = Rule(
    "sysmsg-nonempty",
    "A system turn has content.",
    "Mid-conversation system messages, API documentation",
    "messages.N: system content must contain at least one block",
)
THINKING_NOT_LAST = Rule(
    "thinking-not-last",
    "An assistant turn does not end with thinking.",
    "Error reports; the SDK's middleware",
    "messages.N: The final block in an assistant message cannot be `thinking`.",
)
RESULT_ONCE = Rule(
    "tool-result-once",
    "Each call has one result.",
    "Error reports, 2025",
    "messages.N.content.M: each tool_use must have a single result. Found multiple `tool_result` blocks with id: ID",
)
RESULT_FIRST = Rule(
    "tool-result-first",
    "In the turn that answers calls, results stand before everything else.",
    "Handle tool calls, API documentation",
    "messages.N: `tool_use` ids were found without `tool_result` blocks immediately after: ID",
)
ID_UNIQUE = Rule(
    "tool-use-id-unique",
    "The ids of client calls are unique in the whole conversation.",
    "Error reports, 2025 and 2026",
    "messages.N.content.M: `tool_use` ids must be unique",
)

AnyBlock: TypeAlias = Any  # a block, or the stand-in of one that could not be read


@final
@attrs.frozen(kw_only=True)
class Origin(Value):
    """Who produced an assistant turn, as far as it is known.

    Args:
        vendor: Who issued the model's signatures; `anthropic` on every platform that serves its models.
        platform: Where it was served: `anthropic`, `bedrock`, `vertex`, …
        model: The model.
        id: The id of the response.
        stop_reason: Why the model stopped, as the service said it.
        container: The id of the container that the response used; later requests must name it.
        account: The account that the request was made for, where it matters.
        prefix: The `binding` of the conversation that the turn answered.

    >>> Origin(model="claude-opus-4-8", stop_reason="end_turn")
    Origin(vendor='anthropic', model='claude-opus-4-8', stop_reason='end_turn')
    """

    vendor: str = attrs.field(
        default="anthropic", metadata=flow(Flow.LOCAL, length(FIELD_TYPE, 1, None, "Name it."))
    )
    platform: str | None = attrs.field(default=None, metadata=ECHO)
    model: str | None = attrs.field(default=None, metadata=ECHO)
    id: str | None = attrs.field(default=None, metadata=ECHO)
    stop_reason: str | None = attrs.field(default=None, metadata=ECHO)
    container: str | None = attrs.field(default=None, metadata=ECHO)
    account: str | None = attrs.field(default=None, metadata=ECHO)
    prefix: str | None = attrs.field(default=None, metadata=ECHO)

    def __repr__(self) -> str:
        known = ((field.name, getattr(self, field.name)) for field in attrs.fields(Origin))
        return f"Origin({', '.join(f'{name}={value!r}' for name, value in known if value is not None)})"


# ---------------------------------------------------------------- rules of one turn


def turn_faults(role: Role, blocks: Sequence[AnyBlock], place: Place) -> Iterator[Violation]:
    """Everything wrong with one turn taken alone; the blocks may be stand-ins."""
    if not blocks and role != "assistant":
        rule = USER_NONEMPTY if role == "user" else SYSTEM_NONEMPTY
        yield Violation(rule, place.blocks, "no content", "Add content, or leave the turn out.")
    blank = bool(blocks)
    seen: set[str] = set()
    other = False
    for i, block in enumerate(blocks):
        kind = block.type
        cls: Any = type(block) if type(block) is not Broken else BLOCKS.get(kind)
        if cls is None:  # it could not be read, so nothing is known of where it belongs
            blank, other = False, True
            continue
        if role not in cls.roles:
            rule = cls.misplaced if role != "system" else BLOCKS["text"].misplaced
            yield Violation(rule, place.block(i), f"`{kind}` in {role} content", "Move or drop it.")
            blank = False
            continue
        if cls is not Text:
            blank = False
        elif not isinstance(block, Broken):
            if not block.text:
                yield Violation(TEXT_NONEMPTY, place.block(i, "text"), "empty text", "Drop the block.")
                blank = False
            elif blank and not block.text.isspace():
                blank = False
        if cls is ToolUse:
            if block.id in seen:
                found = f"the id {quoted(block.id)} a second time"
                yield Violation(
                    ID_UNIQUE, place.block(i, "id"), found, "Drop the copy, or give call and result a new id."
                )
            elif block.id is not None:
                seen.add(block.id)
        elif cls is ToolResult:
            if block.tool_use_id in seen:
                found = f"a second result for {quoted(block.tool_use_id)}"
                yield Violation(RESULT_ONCE, place.block(i), found, "Keep one of the two.")
            elif other:
                yield Violation(
                    RESULT_FIRST, place.block(i), "a result after other content", "Move results to the front."
                )
            if block.tool_use_id is not None:
                seen.add(block.tool_use_id)
        else:
            other = True
    if blank and all(isinstance(block, Text) for block in blocks):
        yield Violation(
            NOT_ALL_WHITESPACE, place.block(0), "only whitespace", "Drop the turn, or say something."
        )
    if role == "assistant":
        last = next((i for i in reversed(range(len(blocks))) if blocks[i].type != "unsigned_thinking"), None)
        if last is not None and blocks[last].type in ("thinking", "redacted_thinking"):
            fix = "Drop trailing thinking; the whole turn if nothing else is left."
            yield Violation(THINKING_NOT_LAST, place.block(last), f"{blocks[last].type} at the end", fix)


def traits_of(role: Role, blocks: Sequence[AnyBlock]) -> frozenset[str]:
    """What rules of targets ask of a turn, so that none is paid over the whole history at each request."""
    traits: set[str] = {"system-turn"} if role == "system" else set()
    has_text = any(block.type == "text" for block in blocks)
    for block in blocks:
        kind = block.type
        if kind in ("tool_use", "tool_result"):
            traits.add("client-tools")
            if has_long_id(block):
                traits.add("long-id")
            if is_mute_error(block):
                traits.add("mute-error")
        elif kind == "server_tool_use":
            traits.add(f"server-tool:{getattr(block, 'name', '')}")
        elif kind == "document" and role == "assistant":
            traits.add("assistant-document")
        elif kind == "document" and not has_text:
            traits.add("document-alone")
        if is_blank(block):
            traits.add("blank-text")
        if role == "user" and cites(block):
            traits.add("user-citations")
    return frozenset(traits)


def has_long_id(block: AnyBlock) -> bool:
    """Whether a call or a result has an id of more than `SHORT_ID` characters."""
    return len(getattr(block, "id", None) or getattr(block, "tool_use_id", None) or "") > SHORT_ID


def is_mute_error(block: AnyBlock) -> bool:
    """Whether a block is an error result that says nothing."""
    return isinstance(block, ToolResult) and bool(block.is_error) and not block.says


def is_blank(block: AnyBlock) -> bool:
    """Whether a block is text that is only whitespace, or holds some."""
    if isinstance(block, Text):
        return not block.text or block.text.isspace()
    return any(map(is_blank, inner_blocks(block)))


def cites(block: AnyBlock) -> bool:
    """Whether a block, or one inside it, is text that cites."""
    if isinstance(block, Text):
        return bool(block.citations)
    return any(map(cites, inner_blocks(block)))


def inner_blocks(block: AnyBlock) -> Iterator[AnyBlock]:
    """The blocks of a result's or a search result's content, or of a document's source."""
    for holder in (block, getattr(block, "source", None)):
        content = getattr(holder, "content", None)
        if isinstance(content, tuple):
            yield from content


# ---------------------------------------------------------------- turns


def _as_blocks(blocks: Any) -> tuple[Any, ...]:
    if type(blocks) in (tuple, list) and str not in map(type, blocks):
        return tuple(blocks)
    if isinstance(blocks, str):
        return (Text(blocks),)
    if isinstance(blocks, (bytes, dict)) or not isinstance(blocks, Iterable):
        found = f"{described(blocks)} where blocks are due"
        raise ValidationError([Violation(CONTENT_TYPE, "blocks", found, "Pass blocks, or a string.")])
    return tuple(Text(block) if isinstance(block, str) else block for block in blocks)


def user_blocks(blocks: str | Iterable[str | UserBlock]) -> tuple[UserBlock, ...]:
    return _as_blocks(blocks)


def _assistant_blocks(blocks: str | Iterable[str | AssistantBlock]) -> tuple[AssistantBlock, ...]:
    return _as_blocks(blocks)


def _system_blocks(blocks: str | Iterable[str | Text]) -> tuple[Text, ...]:
    return _as_blocks(blocks)


def _violations(dropped: Iterable[Violation]) -> tuple[Violation, ...]:
    require(dropped, Iterable, "dropped", "a list of violations")
    return tuple(dropped)


def _no_blocks(blocks: tuple[object, ...]) -> list[Violation]:
    """Everything among some blocks that is none."""
    if _BLOCK_CLASSES.issuperset(map(type, blocks)):
        return []
    return [
        Violation(
            BLOCK_TYPE,
            BUILT.block(i),
            f"{described(block)} where a block is due",
            "Unpack the list." if isinstance(block, (list, tuple)) else "Pass a block.",
        )
        for i, block in enumerate(blocks)
        if type(block) not in _BLOCK_CLASSES
    ]


class _Turn:
    """What all turns share. The slots hold what is written once: neither equality, pickle nor `asdict` sees them."""

    __slots__ = ("_hashes", "_traits", "_wire")
    role: ClassVar[Any]  # a Role, which each class narrows to its own
    blocks: tuple[Any, ...]
    _wire: dict[str, bytes]
    _hashes: tuple[tuple[bytes, bool], ...]
    _traits: frozenset[str]

    def __attrs_post_init__(self) -> None:
        violations = _no_blocks(self.blocks) or list(turn_faults(self.role, self.blocks, BUILT))
        if violations:
            raise ValidationError(violations)

    @property
    def text(self) -> str:
        """The text of all text blocks, joined; empty if there are none."""
        return "".join(block.text for block in self.blocks if isinstance(block, Text))

    @property
    def traits(self) -> frozenset[str]:
        try:
            return self._traits
        except AttributeError:
            object.__setattr__(self, "_traits", traits_of(self.role, self.blocks))
            return self._traits

    @property
    def hashes(self) -> tuple[tuple[bytes, bool], ...]:
        """For each block the hash of its stored form, and whether the binding covers it."""
        try:
            return self._hashes
        except AttributeError:
            hashes = tuple(
                (hashlib.sha256(stored_bytes(block)).digest(), type(block) not in THOUGHTS)
                for block in self.blocks
            )
            object.__setattr__(self, "_hashes", hashes)
            return hashes

    @property
    def _kept(self) -> dict[str, bytes]:
        """The bytes that writers made of the blocks, by what they were made for."""
        try:
            return self._wire
        except AttributeError:
            object.__setattr__(self, "_wire", {})
            return self._wire

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self.blocks[:4]))
        more = f", … {len(self.blocks) - 4} more" if len(self.blocks) > 4 else ""
        return f"{type(self).__name__}([{shown}{more}])"


@final
@attrs.frozen(repr=False)
class UserTurn(_Turn):
    """What the user's side says in one go: results of calls first, then everything else.

    Args:
        blocks: Blocks; a plain string is a text block, alone or among them.

    Raises:
        ValidationError: The rules of blocks and places: `user-content-nonempty`, `text-block-nonempty`,
            `turn-not-all-whitespace`, `tool-result-first`, `tool-result-once`, `role-blocks-…`.

    >>> UserTurn("Hello.")
    UserTurn([Text('Hello.')])
    """

    role: ClassVar[Literal["user"]] = "user"
    blocks: tuple[UserBlock, ...] = attrs.field(converter=user_blocks)

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """The results, in their order."""
        return tuple(block for block in self.blocks if type(block) is ToolResult)


@final
@attrs.frozen(repr=False)
class AssistantTurn(_Turn):
    """What the model said in one go, in the order in which it came. It may be empty.

    Args:
        blocks: Blocks; a plain string is a text block, alone or among them.
        origin: Where it came from, if that is known.

    Raises:
        ValidationError: `thinking-not-last`, `text-block-nonempty`, `turn-not-all-whitespace`, `tool-use-id-unique`,
            `role-blocks-…`.

    >>> AssistantTurn(["Hello."]).text
    'Hello.'
    """

    role: ClassVar[Literal["assistant"]] = "assistant"
    blocks: tuple[AssistantBlock, ...] = attrs.field(converter=_assistant_blocks)
    origin: Origin | None = attrs.field(default=None)

    def __attrs_post_init__(self) -> None:
        if self.origin is not None and type(self.origin) is not Origin:
            found = f"{described(self.origin)} where an Origin is due"
            raise ValidationError([Violation(FIELD_TYPE, "origin", found, "Pass an Origin.")])
        _Turn.__attrs_post_init__(self)

    @property
    def calls(self) -> tuple[ToolUse, ...]:
        """The client calls, in their order."""
        return tuple(block for block in self.blocks if type(block) is ToolUse)

    @property
    def thinking(self) -> str:
        """The text of all signed thinking, joined; empty where it is omitted."""
        return "".join(block.thinking for block in self.blocks if type(block) is Thinking)


@final
@attrs.frozen(repr=False)
class SystemTurn(_Turn):
    """An instruction in mid-conversation, which leaves all that stands before it as it is.

    Args:
        blocks: Text blocks; a plain string is a text block, alone or among them.

    Raises:
        ValidationError: `sysmsg-blocks`, `sysmsg-nonempty`, `text-block-nonempty`, `turn-not-all-whitespace`.

    >>> SystemTurn("Answer in French from now on.").text
    'Answer in French from now on.'
    """

    role: ClassVar[Literal["system"]] = "system"
    blocks: tuple[Text, ...] = attrs.field(converter=_system_blocks)


Turn: TypeAlias = UserTurn | AssistantTurn | SystemTurn
"""A turn of any party."""

SHORT_ID: Final = 64
"""How many characters ids may have where they have to be short."""
SIGNED: Final = frozenset({Thinking, RedactedThinking})
THOUGHTS: Final = SIGNED | {BLOCKS["unsigned_thinking"]}
_BLOCK_CLASSES: Final = frozenset({*BLOCKS.values(), OpaqueBlock})


# ---------------------------------------------------------------- replies


@final
@attrs.frozen
class Reply:
    """What one response held, before it is a turn. `AwaitingModel.receive` makes it one, or says why it can't.

    Args:
        blocks: The blocks, in the order in which they came.
        origin: Who produced it and why it stopped.
        complete: False if the response ended before it was whole.
        dropped: What was left out, because requests do not have it or because it was cut, each with its place.
        unbroken: How many blocks there are before the first place where one is missing or cut; a text that was cut is
            the last of them. None if no block is missing.
        bound: Whether the model that made it binds its thinking to all that stands before.

    >>> Reply([Text("Hi.")], Origin(stop_reason="end_turn")).complete
    True
    """

    blocks: tuple[AssistantBlock, ...] = attrs.field(converter=_assistant_blocks)
    origin: Origin = attrs.field(factory=Origin)
    complete: bool = attrs.field(default=True, kw_only=True)
    dropped: tuple[Violation, ...] = attrs.field(default=(), converter=_violations, kw_only=True)
    unbroken: int | None = attrs.field(default=None, kw_only=True, repr=False)
    bound: bool = attrs.field(default=True, kw_only=True, repr=False)

    def __attrs_post_init__(self) -> None:
        wrong = _no_blocks(self.blocks)
        if type(self.origin) is not Origin:
            wrong.append(Violation(FIELD_TYPE, "origin", described(self.origin), "Pass an Origin."))
        if wrong:
            raise ValidationError(wrong)

    @property
    def text(self) -> str:
        """The text of all text blocks, joined."""
        return "".join(block.text for block in self.blocks if isinstance(block, Text))

    @property
    def calls(self) -> tuple[ToolUse, ...]:
        """The client calls. Run them only once `receive` has given an `AwaitingTools`."""
        return tuple(block for block in self.blocks if type(block) is ToolUse)


def unfinished_calls(blocks: Sequence[AnyBlock]) -> tuple[AnyBlock, ...]:
    """The server calls among some blocks that no result among them answers."""
    answered = {getattr(block, "tool_use_id", None) for block in blocks}
    return tuple(block for block in blocks if block.type == ServerToolUse.type and block.id not in answered)
