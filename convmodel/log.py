"""The log that conversations share, and the digests that identify what stands in it.

A conversation is a length into an append-only log, with the folded state after each turn kept beside the turn. A move
therefore costs what is new, and a thousand conversations that grew from one another cost little more than the longest.
"""

import hashlib
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple, cast, final, overload

import attrs

from .blocks import referred_tools
from .declared import stored_bytes
from .errors import BUILT, ValidationError, Violation
from .jsonvalue import JsonObject
from .machine import Calls, State, step
from .preamble import Preamble, is_deferred
from .turns import SIGNED, THOUGHTS, AssistantTurn, Origin, Turn


class Stale(NamedTuple):
    """A turn with signed thinking that no longer stands behind what it answered."""

    turn: int
    block: int
    """From which block on."""
    before: "Stale | None"
    """The last such turn before it."""


class Chain(NamedTuple):
    """What identifies the turns up to a point."""

    digest: bytes
    binding: bytes
    role: str = ""
    """The party of the last block that the binding covers."""
    blocks: int = 0
    stale: Stale | None = None
    """The last turn whose thinking is bound to another prefix; the earlier ones hang on it."""
    loaded: frozenset[str] = frozenset()
    """The deferred tools that blocks up to there refer to."""

    def stale_turns(self) -> list[tuple[int, int]]:
        """All such turns in their order, each with the block from which on its thinking is bound to something else."""
        turns: list[tuple[int, int]] = []
        stale = self.stale
        while stale is not None:
            turns.append((stale.turn, stale.block))
            stale = stale.before
        return turns[::-1]


class Thinker(NamedTuple):
    """Who produced a turn's thinking."""

    vendor: str
    model: str | None
    account: str | None
    signed: bool
    """False if some of it has no signature."""


DIGEST_VERSION = "d1"
BINDING_VERSION = "b1"
_ALTERED = re.compile(rf"{BINDING_VERSION}:altered(?:-(\d{{1,9}}))?")


def altered(block: int) -> str:
    """The prefix of a turn whose thinking from a block on is known to be void: it is that of no conversation."""
    return f"{BINDING_VERSION}:altered-{block}"


def answered(binding: bytes) -> str:
    """The prefix of a turn that answered what a binding identifies."""
    return f"{BINDING_VERSION}:{binding.hex()}"


def is_recorded(prefix: str | None) -> bool:
    """Whether a prefix says what stood before a turn, in the form of this release."""
    return (prefix or "").startswith(f"{BINDING_VERSION}:") and not _ALTERED.fullmatch(prefix or "")


def void_from(prefix: str | None, binding: bytes) -> int | None:
    """From which block on a turn that answered a prefix is void behind a binding; None if it is not known to be."""
    if found := _ALTERED.fullmatch(prefix or ""):
        return int(found[1] or 0)
    return 0 if is_recorded(prefix) and prefix != answered(binding) else None


class Log:
    """An append-only list of turns with what was folded from them. A conversation is a length into one."""

    __slots__ = ("calls", "chains", "deferred", "lock", "preamble", "states", "thinkers", "turns", "written")

    def __init__(self, preamble: Preamble) -> None:
        self.preamble: Preamble = preamble
        self.lock: Lock = Lock()
        """Claimed, never waited for: who does not get it works on a copy. So neither another thread, a signal handler
        that interrupts its own thread, nor a child process forked in the middle can wait for ever or see half a change."""
        self.turns: list[Turn] = []
        self.states: list[State] = [State()]
        self.chains: list[Chain] = []
        self.deferred: Mapping[str, JsonObject] = {}
        """The deferred tools by name, once the chains begin."""
        self.calls: Calls = Calls()
        self.thinkers: dict[Thinker, list[int]] = {}
        """The turns with thinking, by who produced it."""
        self.written: dict[Any, tuple[list[bytes], list[int | None]]] = {}
        """What writers made of the turns, by what it was made for; see `convmodel.anthropic.write`."""

    def append(self, turn: Turn, state: State) -> None:
        # The turn first: if an interrupt stops this half-way, no conversation is the log's tip, and the next move copies.
        self.turns.append(turn)
        self.states.append(state)
        self.calls.add(len(self.turns) - 1, state)
        if turn.role == "assistant" and (who := thinker(turn)) is not None:
            self.thinkers.setdefault(who, []).append(len(self.turns) - 1)

    def extend(self, turns: Iterable[Turn]) -> None:
        """Add turns to a log that nobody shares yet.

        Raises:
            ValidationError: Every fault among them.
        """
        faults: list[Violation] = []
        for turn in turns:
            state, wrong = step(self.states[-1], len(self.turns), turn, self.calls, BUILT)
            faults += wrong
            self.append(turn, state)
        if faults:
            raise ValidationError(faults)

    def prefix(self, length: int) -> "Log":
        """A log of its own for a branch that leaves this one."""
        log = Log(self.preamble)
        log.turns = self.turns[:length]
        log.states = self.states[: length + 1]
        log.chains, log.deferred = self.chains[: length + 1], self.deferred
        log.calls = self.calls.prefix(log.states, self.states[length + 1 :])
        for platform, (pieces, lasts) in self.written.copy().items():
            known = min(len(lasts) - 1, length)  # a piece is whole once its turn stands in `lasts`
            log.written[platform] = pieces[: 2 * known], lasts[: known + 1]
        cut = ((who, at[: bisect_left(at, length)]) for who, at in self.thinkers.copy().items())
        log.thinkers = {who: at for who, at in cut if at}
        return log

    def chain(self, length: int) -> Chain:
        """The chain after so many turns."""
        return self.chained(length)[length]

    def chained(self, length: int) -> list[Chain]:
        """The chains after 0 to at least so many turns, folded on from where they were last asked for."""
        if len(self.chains) > length:
            return self.chains
        claimed = self.lock.acquire(blocking=False)
        try:
            chains = self.chains if claimed else self.chains.copy()
            if not chains:
                self.deferred = {str(tool["name"]): tool for tool in self.preamble.tools if is_deferred(tool)}
                whole = stored_bytes(self.preamble)
                bound = whole
                if self.deferred:
                    kept = tuple(tool for tool in self.preamble.tools if not is_deferred(tool))
                    bound = stored_bytes(attrs.evolve(self.preamble, tools=kept))
                chains.append(Chain(hashlib.sha256(whole).digest(), hashlib.sha256(bound).digest()))
            for at in range(len(chains) - 1, length):
                turn, joined = self.turns[at], self.states[at + 1].joined
                chains.append(_linked(chains[at], at, turn, joined, self.deferred))
            return chains
        finally:
            if claimed:
                self.lock.release()


_UNKNOWN = Origin()


def thinker(turn: AssistantTurn) -> Thinker | None:
    kinds = THOUGHTS.intersection(map(type, turn.blocks))
    if not kinds:
        return None
    origin = turn.origin or _UNKNOWN
    return Thinker(origin.vendor, origin.model, origin.account, kinds <= SIGNED)


def _linked(chain: Chain, index: int, turn: Turn, joined: bool, deferred: Mapping[str, JsonObject]) -> Chain:
    digest, binding, role, stale, loaded = chain.digest, chain.binding, chain.role, chain.stale, chain.loaded
    if type(turn) is AssistantTurn and turn.origin is not None:
        origin = turn.origin
        void = void_from(origin.prefix, binding)
        if void is not None and any(type(block) in SIGNED for block in turn.blocks[void:]):
            stale = Stale(index, void, stale)
        digest = hashlib.sha256(digest + stored_bytes(origin)).digest()
    if not joined:
        digest = hashlib.sha256(digest + turn.role.encode()).digest()
    for block, (hashed, bound) in zip(turn.blocks, turn.hashes, strict=True):
        digest = hashlib.sha256(digest + hashed).digest()
        if bound:
            mark = b"" if role == turn.role else turn.role.encode()
            binding = hashlib.sha256(binding + mark + hashed).digest()
            role = turn.role
            for name in referred_tools(block) if deferred else ():
                # A deferred tool is a part of the prefix from where it is first referred to (Preserved thinking, API
                # documentation).
                if name in deferred and name not in loaded:
                    loaded |= {name}
                    binding = hashlib.sha256(binding + deferred[name].text.encode()).digest()
    return Chain(digest, binding, role, chain.blocks + len(turn.blocks), stale, loaded)


@final
class Turns(Sequence[Turn]):
    """The turns of a conversation, as a sequence that copies nothing."""

    __slots__ = ("_length", "_turns")

    def __init__(self, turns: list[Turn], length: int) -> None:
        self._turns, self._length = turns, length

    @overload
    def __getitem__(self, index: int) -> Turn: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Turn, ...]: ...
    def __getitem__(self, index: int | slice) -> Turn | tuple[Turn, ...]:
        if isinstance(index, slice):
            return tuple(self._turns[at] for at in range(*index.indices(self._length)))
        if not -self._length <= index < self._length:
            raise IndexError("turn index out of range")
        return self._turns[index if index >= 0 else index + self._length]

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Turn]:
        turns = self._turns
        return (turns[at] for at in range(self._length))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Turns) and other._turns is self._turns:
            return other._length == self._length
        if isinstance(other, (Turns, tuple)):
            items = cast("Sequence[Turn]", other)
            return len(items) == len(self) and all(a is b or a == b for a, b in zip(self, items, strict=True))
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<{self._length} turn{'s' * (self._length != 1)}>"
