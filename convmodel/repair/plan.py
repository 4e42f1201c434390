"""What a repair may do, what it did, and the history on its way through it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, Literal, TypeAlias, cast, final, get_args, get_type_hints

import attrs

from ..anthropic import Target
from ..anthropic.read import WIRE_BLOCKS
from ..conversation import CloseReason, Conversation
from ..declared import SENT
from ..errors import Rule, ValidationError, Violation, join, quoted
from ..fields import BROKEN, FIELD_VALUE, Either, Kind, Many, Nested, Reading, fields_of, read_value
from ..turns import Origin
from ..view import block_line

THOUGHTS = ("thinking", "redacted_thinking")


@final
@attrs.frozen(kw_only=True)
class Policy:
    """What to do about each kind of defect. `refuse` leaves a history with such a defect as it is.

    Args:
        fields: Fields, envelopes and rows that requests do not have.
        blocks: Blocks of unknown types, blocks that cannot be read, blocks where they may not stand, and what is no
            message.
        values: Inputs, texts, contents of results and flags of another type, ids that are no text, halves of
            characters, media in a wrong spelling.
        ids: Ids that are illegal or used twice.
        missing_results: Calls without a result: `answer` makes an error result that says what is known, `drop` takes
            the call out, save from a turn with signed thinking, where it is answered.
        extra_results: Results without a call, and second results.
        order: Results and system turns in the wrong place.
        cut_calls: Calls whose input is known to be cut, by the stop reason: `drop` takes them out, save from a turn with
            signed thinking; `answer` leaves them to `missing_results`.
        thinking: Thinking that is unsigned, of another vendor, at the end of a turn, or void.
        server_tools: Calls and results of server tools without each other, or that the platform does not have.
        texts: Text that says nothing, and turns in which nothing is left.

    Raises:
        ValidationError: `field-value` for an action that the kind does not have.

    >>> Policy(missing_results="refuse").thinking
    'drop'
    """

    fields: Literal["drop", "refuse"] = "drop"
    blocks: Literal["drop", "refuse"] = "drop"
    values: Literal["rewrite", "refuse"] = "rewrite"
    ids: Literal["rename", "refuse"] = "rename"
    missing_results: Literal["answer", "drop", "refuse"] = "answer"
    extra_results: Literal["drop", "refuse"] = "drop"
    order: Literal["move", "refuse"] = "move"
    cut_calls: Literal["drop", "answer", "refuse"] = "drop"
    thinking: Literal["drop", "refuse"] = "drop"
    server_tools: Literal["drop", "refuse"] = "drop"
    texts: Literal["drop", "refuse"] = "drop"

    def __attrs_post_init__(self) -> None:
        wrong = [
            Violation(
                FIELD_VALUE,
                name,
                f"the action {quoted(getattr(self, name))}",
                f"Use one of {', '.join(actions)}.",
            )
            for name, actions in self.actions().items()
            if getattr(self, name) not in actions
        ]
        if wrong:
            raise ValidationError(wrong)

    @classmethod
    def actions(cls) -> dict[str, tuple[str, ...]]:
        """The actions that each kind of defect has, the default first.

        >>> Policy.actions()["cut_calls"]
        ('drop', 'answer', 'refuse')
        """
        return {name: get_args(hint) for name, hint in get_type_hints(cls).items()}

    @classmethod
    def refuse_all(cls) -> Policy:
        """A policy under which a repair changes nothing and is a check.

        >>> Policy.refuse_all().order
        'refuse'
        """
        return cls(**cast("Any", dict.fromkeys(cls.actions(), "refuse")))


Defect: TypeAlias = Literal[
    "fields",
    "blocks",
    "values",
    "ids",
    "missing_results",
    "extra_results",
    "order",
    "cut_calls",
    "thinking",
    "server_tools",
    "texts",
]
"""The kinds of defect, by their names in `Policy`."""


@final
@attrs.frozen
class Change:
    """One thing that a repair did.

    Args:
        path: Where it stood in the history that was given.
        rule: The rule that was broken.
        kind: What was done: `dropped`, `moved`, `added`, `renamed` or `rewritten`.
        lost: What is gone, in words; empty if nothing is.
        defect: The kind of defect, by its name in `Policy`.
        before: What stood there, as a short line without the values of inputs and results; empty if nothing did.
        after: What stands there now, in the same form; empty if nothing does.
    """

    path: str
    rule: Rule
    kind: Literal["dropped", "moved", "added", "renamed", "rewritten"]
    lost: str = ""
    defect: Defect = attrs.field(default="fields", kw_only=True)
    before: str = attrs.field(default="", kw_only=True)
    after: str = attrs.field(default="", kw_only=True)

    @property
    def severity(self) -> Literal["lossless", "lossy"]:
        """Whether something was lost."""
        return "lossy" if self.lost else "lossless"

    def __str__(self) -> str:
        return f"{self.path}: {self.kind}{f' ({self.lost} lost)' if self.lost else ''} [{self.rule}]"


@final
@attrs.frozen
class Repaired:
    """What a repair gave.

    Args:
        conversation: The mended history as a value; None if it was not mended.
        messages: The same in wire form, as fresh plain dicts; None if it was not mended.
        system: The system prompt, with what stood in front of the messages; in wire form.
        changes: What was done, in the order in which it was done; empty for a valid history, and where the policy
            refused.
        unrepaired: What is still wrong.
        refused: The changes that the policy did not allow. If there are any, nothing was changed.
        sources: For each message of `messages` the index of the given one that it was made from; None if it is new.
    """

    conversation: Conversation | None
    messages: list[Any] | None
    system: Any
    changes: tuple[Change, ...] = ()
    unrepaired: tuple[Violation, ...] = ()
    refused: tuple[Change, ...] = ()
    sources: tuple[int | None, ...] = ()


# ---------------------------------------------------------------- a history on its way


@attrs.define(eq=False)
class Piece:
    """A block on its way, and where it stood."""

    data: dict[str, Any]
    path: str
    synthetic: CloseReason | None = None
    rewritten: bool = False
    """Whether a pass changed what it says."""
    unsent: bool = False
    """Whether the conversation keeps it and the wire does not have it: thinking that is not the target's."""

    @property
    def type(self) -> Any:
        return self.data.get("type")

    @property
    def cls(self) -> Any:
        """The class of the block; None for a type that the wire does not know."""
        return WIRE_BLOCKS.get(self.type) if isinstance(self.type, str) else None

    @property
    def unsigned(self) -> bool:
        """Whether it is thinking that nobody signed."""
        return self.type == "thinking" and not self.data.get("signature")

    @property
    def named(self) -> str:
        """What it is, in words."""
        return f"{'an' if str(self.type)[:1] in 'aeiou' else 'a'} {self.type} block"

    @property
    def line(self) -> str:
        """A short line that names the block, without what may be secret in it."""
        return block_line(self.data)


@attrs.define(eq=False)
class Message:
    """A message on its way, and where it stood."""

    role: str
    pieces: list[Piece]
    path: str
    index: int | None = None
    origin: Origin | None = None
    as_read: tuple[Piece, ...] | None = None
    """The pieces it was read with; None if reading it has left something out or changed it."""
    was_empty: bool = False
    """Whether it came without content."""

    @property
    def results(self) -> list[Piece]:
        return [piece for piece in self.pieces if piece.type == "tool_result"]

    @property
    def calls(self) -> list[Piece]:
        return [piece for piece in self.pieces if piece.type == "tool_use"]

    @property
    def signed(self) -> bool:
        return any(piece.type in THOUGHTS and not piece.unsent for piece in self.pieces)

    @property
    def untouched(self) -> bool:
        return self.as_read == tuple(self.pieces) and not any(
            piece.rewritten or piece.unsent for piece in self.pieces
        )


@attrs.define(eq=False)
class Work:
    """A history on its way through the passes."""

    target: Target | None
    stage: str
    system: Any
    policy: Policy
    messages: list[Message] = attrs.Factory(list["Message"])
    changes: list[Change] = attrs.Factory(list["Change"])
    names: dict[str, int] = attrs.Factory(dict[str, int])
    """The ids of the history, and how often `fresh` was asked for each."""
    defect: Defect = "fields"
    """The kind of defect that is being worked on."""
    given: list[Piece] = attrs.Factory(list["Piece"])
    """All pieces, as they were read."""

    def note(
        self,
        path: str,
        rule: Rule,
        kind: Any,
        lost: str = "",
        *,
        before: str = "",
        after: str = "",
        defect: Defect | None = None,
    ) -> None:
        self.changes.append(
            Change(path, rule, kind, lost, defect=defect or self.defect, before=before, after=after)
        )

    def drop(self, message: Message, doomed: Callable[[Piece], bool], rule: Rule, lost: str = "") -> None:
        """Drop the blocks of a message that a condition names."""
        kept: list[Piece] = []
        for piece in message.pieces:
            if doomed(piece):
                self.note(piece.path, rule, "dropped", lost or piece.named, before=piece.line)
            else:
                kept.append(piece)
        message.pieces = kept

    def rewrite(
        self,
        piece: Piece,
        path: str,
        rule: Rule,
        was: str,
        *,
        now: str | None = None,
        kind: str = "rewritten",
        lost: str = "",
        defect: Defect | None = None,
    ) -> None:
        """Note that a piece says something else now than it did."""
        piece.rewritten = True
        after = piece.line if now is None else now
        self.note(path, rule, kind, lost, before=was, after=after, defect=defect)

    def drop_parts(
        self, piece: Piece, name: str, wrong: Callable[[Any, str], Rule | None], lost: str
    ) -> None:
        """Drop from a list in a block the parts that break a rule."""
        given, where = piece.data.get(name), join(piece.path, name)
        if not isinstance(given, list):
            return
        kept: list[Any] = []
        for at, part in enumerate(given):
            rule = wrong(part, f"{where}[{at}]")
            if rule is None:
                kept.append(part)
            else:
                was = type_of(part) or type(part).__name__
                self.rewrite(piece, f"{where}[{at}]", rule, was, now="", kind="dropped", lost=lost)
        if kept or name == "content":
            piece.data[name] = kept
        else:
            del piece.data[name]

    def fresh(self, wish: str) -> str:
        """An id that nothing in the history has."""
        id, n = wish, self.names.get(wish, 0)
        while id in self.names:
            n += 1
            id = f"{wish}_{n}"
        self.names[wish] = max(n, 1)
        self.names.setdefault(id, 1)
        return id

    def runs(self) -> Iterator[tuple[str, list[Message]]]:
        """The messages as the API joins them."""
        for role, run in groupby(self.messages, key=lambda message: message.role):
            yield role, list(run)


def unread(piece: Piece) -> Rule | None:
    """The rule that keeps a block from being read; None if it can be."""
    reading = Reading(SENT, marked=True)
    made = read_value(piece.cls, piece.data, reading, piece.path)
    return reading.violations[0].rule if made is BROKEN else None


def is_served(piece: Piece) -> bool:
    """Whether it is a call of a server tool, or the result of one."""
    return piece.type == "server_tool_use" or str(piece.type).endswith("_tool_result")


def parts_of(cls: Any, name: str) -> Nested:
    """What may stand in a list that a class declares."""
    kind: Kind = next(field.kind for field in fields_of(cls) if field.name == name)
    many = kind.many if isinstance(kind, Either) else kind
    return cast("Nested", cast("Many", many).item)


def type_of(part: object) -> str | None:
    """The type of what says that it is a block."""
    type = part.get("type") if isinstance(part, dict) else None
    return type if isinstance(type, str) else None


def as_data(pieces: Iterable[Piece]) -> list[dict[str, Any]]:
    """What the wire has of some pieces."""
    return [piece.data for piece in pieces if not piece.unsent]


def as_text(value: object) -> str | None:
    """A value that is due as text, as JSON; None for what JSON cannot hold."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, default=str)
    except (ValueError, RecursionError):  # it holds itself, or a number of thousands of digits
        return None
