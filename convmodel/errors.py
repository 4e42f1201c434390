"""Rules, violations of them, and the errors that carry violations.

A rule is one named invariant. Everything convmodel refuses, it refuses under a rule, at a path, with a remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, final

import attrs

if TYPE_CHECKING:
    from .turns import Reply


@final
class Rule(str):
    """One named invariant. A rule *is* its id: it compares, hashes and prints as that string.

    Args:
        id: The kebab-case name. Ids are API: they are never renamed or used again.
        says: What must hold, as a sentence.
        source: Where the rule comes from (a page of the API documentation, a report, or convmodel itself).
        error: The text that the Messages API answers with, where one is known.

    >>> rule = Rule("tool-result-once", "Each call has one result.", "Handle tool calls, API documentation")
    >>> rule == "tool-result-once", rule.says
    (True, 'Each call has one result.')
    """

    __slots__ = ("error", "says", "source")

    says: str
    source: str
    error: str | None

    def __new__(cls, id: str, says: str, source: str, error: str | None = None) -> Rule:
        rule = super().__new__(cls, id)
        rule.says, rule.source, rule.error = says, source, error
        return rule

    @property
    def id(self) -> str:
        """The id as a plain string."""
        return str(self)

    def __reduce__(self) -> tuple[type[Rule], tuple[str, str, str, str | None]]:
        return Rule, (str(self), self.says, self.source, self.error)


@final
@attrs.frozen
class Violation:
    """One place where a value breaks a rule.

    Args:
        rule: The rule that is broken.
        path: Where: `messages[3].content[1].id` in wire data, `turns[3].blocks[1].id` in built values; relative to
            the value where a single block or turn is built.
        found: What stands there, without the values of tool inputs, results, signatures or bytes.
        fix: What to do about it.

    >>> rule = Rule("tool-result-once", "Each call has one result.", "Handle tool calls")
    >>> print(Violation(rule, "blocks[1]", "a second result for 'toolu_1'", "Drop one of the two."))
    blocks[1]: a second result for 'toolu_1'. Drop one of the two. [tool-result-once]
    """

    rule: Rule
    path: str
    found: str
    fix: str

    def __str__(self) -> str:
        return f"{self.path + ': ' if self.path else ''}{self.found}. {self.fix} [{self.rule}]"

    def under(self, prefix: str) -> Violation:
        """The same violation, seen from the value that holds this one at `prefix`."""
        return attrs.evolve(self, path=join(prefix, self.path))


def join(prefix: str, path: str) -> str:
    """Two pieces of a path as one."""
    return f"{prefix}{'.' if prefix and path and not path.startswith('[') else ''}{path}"


class Place(NamedTuple):
    """How a path names turns and blocks: built values say `turns[0].blocks[0]`, wire data `messages[0].content[0]`."""

    turns: str
    blocks: str

    def turn(self, turn: int) -> str:
        return f"{self.turns}[{turn}]"

    def block(self, block: int, tail: str = "") -> str:
        return join(f"{self.blocks}[{block}]", tail)

    def at(self, turn: int, block: int, tail: str = "") -> str:
        return f"{self.turn(turn)}.{self.block(block, tail)}"


def key_name(key: object) -> str:
    """A key as a path shows it, if it looks like the name of a field: the rest may be data, or a secret."""
    return key if isinstance(key, str) and _FIELD_NAME.fullmatch(key) else "…"


_FIELD_NAME = re.compile(r"[$@]?[A-Za-z_][A-Za-z_.-]{0,40}[0-9]{0,2}")


BUILT = Place("turns", "blocks")
WIRE = Place("messages", "content")


class ConvmodelError(Exception):
    """The base of every error that convmodel raises on purpose."""


class ValidationError(ConvmodelError, ValueError):
    """A value breaks rules.

    Attributes:
        violations: All of them.
    """

    violations: tuple[Violation, ...]

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = tuple(violations)
        super().__init__(self.violations)

    def __str__(self) -> str:
        return summary(self.violations)


class InvalidReply(ValidationError):
    """A response that cannot become a turn.

    Attributes:
        reply: What could be read of it, since a reply that was paid for must not be lost; None if nothing could.
    """

    reply: Reply | None

    def __init__(self, violations: Iterable[Violation], reply: Reply | None = None) -> None:
        super().__init__(violations)
        self.reply = reply

    def __reduce__(self) -> tuple[type[InvalidReply], tuple[tuple[Violation, ...], Reply | None]]:
        return InvalidReply, (self.violations, self.reply)


def summary(violations: Sequence[Violation], most: int = 20) -> str:
    """The violations as text, a line each; a long list is cut."""
    lines = [str(violation) for violation in violations[:most]]
    if len(violations) > most:
        lines.append(f"and {len(violations) - most} more")
    return "\n".join(lines)


def quoted(value: object, most: int = 40) -> str:
    """A short form of a name or an id for messages."""
    if not isinstance(value, str):  # the repr of anything else may be endless
        short = value is None or (isinstance(value, int) and -1000 < value < 1000)
        return repr(value) if short else f"a {type(value).__name__}"
    text = repr(value[: most + 1])
    return text if len(text) <= most else f"{text[: most - 2]}…{text[0]}"
