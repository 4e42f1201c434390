"""A prompt cache as the Messages API documents it, for what a double reports as usage."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, final

__all__ = ["PrefixCache"]

Json = dict[str, Any]
LOOK_BACK = 20
"""How many blocks before a marker are searched, the marked one among them ("Prompt caching" page)."""
_SECONDS = {"5m": 300.0, "1h": 3600.0}


class _Block(NamedTuple):
    """A block of a request, in the order tools, system, messages."""

    digest: bytes
    """Identifies the request up to here."""
    size: int
    """How many bytes the request has up to here."""
    seconds: float | None
    """How long the prefix that ends here lives, if it is marked."""


@final
class PrefixCache:
    """Keeps the prefixes that requests mark, and says what of a request was read.

    A byte of a block's JSON counts as a token. There is no least length. Entries of one model are not read by another.

    Args:
        clock: Gives the time in seconds, so that a test can let entries grow old.

    >>> cache = PrefixCache()
    >>> marked = {"type": "text", "text": "Hi.", "cache_control": {"type": "ephemeral"}}
    >>> body = {"model": "m", "messages": [{"role": "user", "content": [marked]}]}
    >>> [cache.usage(body)["cache_read_input_tokens"] for _ in range(2)]
    [0, 31]
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ends: dict[bytes, tuple[float, float]] = {}  # when it ends, and for how long it is kept

    def usage(self, body: Json) -> Json:
        """What of a request was read and written, as the API reports it.

        Args:
            body: The body of an accepted request.
        """
        blocks = list(_blocks(body))
        now = self._clock()
        with self._lock:
            marked = [at for at, block in enumerate(blocks) if block.seconds is not None]
            seen = [
                at
                for mark in marked
                for at in range(max(0, mark - LOOK_BACK + 1), mark + 1)
                if self._ends.get(blocks[at].digest, (now, 0))[0] > now
            ]
            read = max(seen, default=None)
            for at in {*marked, *([] if read is None else [read])}:  # what is read lives on for as long again
                end, kept_for = self._ends.get(blocks[at].digest, (now, 0))
                seconds = max(blocks[at].seconds or 0, kept_for if end > now else 0)
                self._ends[blocks[at].digest] = (now + seconds, seconds)
        hit = 0 if read is None else blocks[read].size
        kept = blocks[marked[-1]].size if marked else 0
        total = blocks[-1].size if blocks else 0
        return {
            "cache_read_input_tokens": hit,
            "cache_creation_input_tokens": max(kept - hit, 0),
            "input_tokens": total - max(kept, hit),
        }


def _blocks(body: Json) -> Iterator[_Block]:
    """The blocks of a request, each with what identifies all before it."""
    parts = [*body.get("tools", []), *_content(body.get("system", []))]
    roles = ["preamble"] * len(parts)
    for message in body["messages"]:
        content = _content(message["content"])
        parts += content
        roles += [message["role"]] * len(content)
    automatic = body.get("cache_control")
    last = max((at for at, part in enumerate(parts) if part.get("type") not in _UNMARKED), default=-1)
    digest, size = hashlib.sha256(str(body.get("model")).encode()).digest(), 0
    for at, (role, part) in enumerate(zip(roles, parts, strict=True)):
        marker = part.get("cache_control") or (automatic if at == last else None)
        text = json.dumps(
            {key: value for key, value in part.items() if key != "cache_control"}, sort_keys=True
        )
        digest = hashlib.sha256(digest + role.encode() + text.encode()).digest()
        size += len(text)
        yield _Block(digest, size, _SECONDS[marker.get("ttl", "5m")] if marker else None)


_UNMARKED = ("thinking", "redacted_thinking")


def _content(value: Any) -> list[Json]:
    return [{"type": "text", "text": value}] if isinstance(value, str) else list(value)
