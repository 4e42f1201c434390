"""Cache markers: how many a request may hold, and in which order their lifetimes stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .errors import Rule, Violation

MAX_MARKERS = 4
CACHE_MAX = Rule(
    "cache-max-4",
    "At most four cache markers stand in tools, system and messages together.",
    "Prompt caching, API documentation",
    "A maximum of 4 blocks with cache_control may be provided. Found N.",
)
CACHE_ORDER = Rule(
    "cache-ttl-order",
    "A marker of one hour does not come after a marker of five minutes (order: tools, system, messages).",
    "Prompt caching, API documentation",
    "messages.N.content.M.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' "
    "cache_control block.",
)


def marker_faults(markers: Sequence[tuple[str, str]]) -> Iterator[Violation]:
    """What is wrong with a request's markers, given as path and lifetime in the order tools, system, messages."""
    if len(markers) > MAX_MARKERS:
        found = f"{len(markers)} cache markers"
        yield Violation(CACHE_MAX, markers[MAX_MARKERS][0], found, f"Keep at most {MAX_MARKERS}.")
    short = False
    for path, lifetime in markers:
        if lifetime == "1h" and short:
            yield Violation(
                CACHE_ORDER, f"{path}.ttl", "an hour after five minutes", "Put longer lifetimes first."
            )
            return
        short |= lifetime == "5m"
