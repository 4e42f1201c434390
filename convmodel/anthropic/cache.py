"""Where cache markers stand: a policy, and the points of a conversation that it marks.

The service keeps the prefix that ends at a marker, and reads the longest one it finds at a marker or in the 19 blocks
before it (Prompt caching, API documentation). A marker is no part of a conversation: it is placed when a request is
written, and moves nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, TypeAlias, final

import attrs

from ..errors import Rule, ValidationError, Violation, quoted
from ..fields import FIELD_TYPE, Choice
from ..markers import CACHE_MAX, CACHE_ORDER, MAX_MARKERS

CACHE_AUTO = Rule(
    "cache-auto-slot",
    "The request's own cache marker takes one of four slots, and goes to platforms that have it.",
    "Prompt caching, API documentation",
)
Lifetime: TypeAlias = Literal["5m", "1h"]
_LIFETIME = Choice(("5m", "1h"))


@final
@attrs.frozen(kw_only=True)
class CachePolicy:
    """Which points of a request are marked for the service's prompt cache.

    Args:
        tools: Whether the end of the tools is marked. It helps only where the system prompt changes and the tools stay,
            since the mark behind the system prompt covers both.
        system: Whether the end of the system prompt is marked. The prompt is then written as blocks.
        points: How many points of the messages are marked: the end, then the end of the request before if the service does
            not look back so far, else a fixed point. Two let each request read all that the one before has written,
            however much was added.
        automatic: Whether the request has a marker of its own, which the service puts on the last block that takes one.
        ttl: How long marked prefixes of the messages live: five minutes or an hour from their last use.
        preamble_ttl: How long those of tools and system prompt live; not shorter than `ttl`, which None stands for.

    Raises:
        ValidationError: `cache-max-4` for more than four markers, `cache-auto-slot` if the automatic one is one too many,
            `cache-ttl-order` for a preamble that lives shorter than the messages, `field-type` or `field-value`.

    >>> CachePolicy(points=3).points
    3
    """

    tools: bool = False
    system: bool = True
    points: int = 2
    automatic: bool = False
    ttl: Lifetime = "5m"
    preamble_ttl: Lifetime | None = None

    def __attrs_post_init__(self) -> None:
        wrong = [
            Violation(FIELD_TYPE, name, "what is no boolean", "Pass True or False.")
            for name in ("tools", "system", "automatic")
            if type(getattr(self, name)) is not bool
        ]
        if type(self.points) is not int or self.points < 0:
            wrong.append(Violation(FIELD_TYPE, "points", "what is no count", "Pass a number from 0 to 4."))
        for name in ("ttl", "preamble_ttl"):
            given = getattr(self, name)
            if not (_LIFETIME.admits(given) or (given is None and name == "preamble_ttl")):
                wrong += (fault.under(name) for fault in _LIFETIME.faults(given, FIELD_TYPE))
        if wrong:
            raise ValidationError(wrong)
        explicit = self.tools + self.system + self.points
        if explicit + self.automatic > MAX_MARKERS:
            rule = CACHE_MAX if explicit > MAX_MARKERS else CACHE_AUTO
            found = f"{quoted(explicit + self.automatic)} markers"
            raise ValidationError([Violation(rule, "points", found, f"Have at most {MAX_MARKERS} in all.")])
        if (self.tools or self.system) and (self.preamble_ttl, self.ttl) == ("5m", "1h"):
            found = "a preamble that lives shorter than the messages"
            raise ValidationError(
                [Violation(CACHE_ORDER, "preamble_ttl", found, "Let it live for an hour too.")]
            )

    def _marker(self, ttl: Lifetime | None) -> dict[str, str]:
        """A marker as the API takes it; five minutes are what it takes without a word."""
        ttl = self.ttl if ttl is None else ttl
        return {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}


LOOK_BACK = 20
"""At how many blocks the service looks for a kept prefix, the marked one included."""
STRIDE = 8
"""Of so many turns, the ends of the first two are fixed points: one of them, as user and model take turns."""


class Point(NamedTuple):
    """A turn, as far as markers are concerned."""

    blocks: int
    ends: bool
    """Whether a request may have ended with it, and it takes a marker."""
    answered: bool
    """Whether the model has answered it, so that a request did end with it."""
    fixed: bool


def marked_turns(turns: Iterable[Point], points: int) -> Iterator[int]:
    """Which turns get a marker at their end, counted from the last one back.

    The first is the last one that takes any. The next is the one with which the request before may have ended, if the
    look-back of the first does not reach it: so all that it wrote is read, however much was added. Else it is the nearest
    fixed point beyond that reach, which stays where it is for many requests; and so on from there.

    Args:
        turns: The turns, the last one first.
        points: How many to mark.

    >>> end, reply = Point(2, ends=True, answered=True, fixed=False), Point(1, ends=False, answered=False, fixed=False)
    >>> list(marked_turns([end, reply._replace(blocks=30), end, reply, end._replace(fixed=True)], 2))
    [0, 2]
    >>> list(marked_turns([end, reply, end, reply._replace(blocks=30), end._replace(fixed=True)], 2))
    [0, 4]
    """
    passed, before_is_near = LOOK_BACK, False
    for back, (blocks, ends, answered, fixed) in enumerate(turns):
        if not points:
            return
        if ends and passed >= LOOK_BACK and (fixed or not before_is_near):
            yield back
            passed, points, before_is_near = 0, points - 1, False
        elif ends and answered:
            before_is_near = True
        passed += blocks
