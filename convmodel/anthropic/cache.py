"""Where cache markers stand: a policy, and the points of a conversation that it marks.

The service keeps the prefix that ends at a marker, and reads the longest one it finds at a marker or in the 20 blocks
before it (Prompt caching, API documentation). A marker is no part of a conversation: it is placed when a request is
written, and moves nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias, final

import attrs

from ..errors import Rule, ValidationError, Violation, quoted
from ..fields import FIELD_TYPE, Choice
from ..markers import CACHE_MAX, CACHE_ORDER, MAX_MARKERS
from ..turns import Turn

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
        points: How many points of the messages are marked, counted from the end: the end itself, and what earlier
            requests ended with. Two let each request read all that the one before has written, however much was added.
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


def marked_places(turns: Sequence[Turn], sent: Callable[[Turn], list[int]], points: int) -> dict[int, int]:
    """The blocks to be marked, as turn and place in it.

    A point is where a request ended or may end: the end, and what stands before each assistant turn. It stays where it is
    while the conversation grows, so that what was written there is read again.

    Args:
        turns: The turns.
        sent: Gives the places of a turn's blocks that are sent.
        points: How many to mark.
    """
    places: dict[int, int] = {}
    for end in _ends(turns):
        if len(places) >= points:
            break
        place = next(_admitting(turns, sent, end), None)
        if place is not None:
            places.setdefault(*place)
    return places


def _ends(turns: Sequence[Turn]) -> Iterator[int]:
    """The turns that requests ended with, the last first."""
    for index in range(len(turns) - 1, -1, -1):
        if index == len(turns) - 1 or turns[index + 1].role == "assistant":
            yield index


def _admitting(
    turns: Sequence[Turn], sent: Callable[[Turn], list[int]], end: int
) -> Iterator[tuple[int, int]]:
    """Blocks that take a marker, from a turn's end on backwards."""
    for index in range(end, -1, -1):
        for place in reversed(sent(turns[index])):
            if type(turns[index].blocks[place]).admits_marker:
                yield index, place
