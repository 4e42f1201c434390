"""Session files of Claude Code: one record a line, most of them with a message inside.

What the format is, the vendor says nowhere; the reader of its agent SDK for Python (`_internal/sessions.py`, 2026) and
the sessions themselves show it. Records hang together by `uuid` and `parentUuid`. Branches that were given up and the
side chains of sub-agents stay in the file, so the history is the chain from the last record back to its root. A response
is written as one record a block, all with its `message.id`, and the results of parallel calls hang on the record of their
call, so that the chain passes by some of them: these belong to the history too.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import attrs

from .errors import ConvmodelError, ValidationError
from .fields import mapping
from .jsontext import Piece, Span, members, replaced, spelled, spliced
from .turns import Origin

PARTIES = ("user", "assistant")
SYNTHETIC = "<synthetic>"
"""The model of messages that the client wrote itself."""
CARRIED = (
    "isSidechain",
    "userType",
    "entrypoint",
    "cwd",
    "sessionId",
    "version",
    "gitBranch",
    "slug",
    "agentId",
    "timestamp",
)
"""What a new record has of the one that it follows."""


class UnwritableError(ConvmodelError):
    """A mended history that its file cannot hold."""


def is_session(rows: Iterable[object]) -> bool:
    """Whether lines are records of a session: they have a message inside, or hang on each other."""
    return any(
        isinstance(row, dict)
        and "role" not in row
        and ("parentUuid" in row or (row.get("type") in PARTIES and isinstance(row.get("message"), dict)))
        for row in rows
    )


@final
@attrs.frozen
class Session:
    """The history of the main conversation in a session file, and where it stands there.

    Args:
        rows: The lines as values; None for a line that is not JSON.
        chain: The records of the active branch, from the root to the leaf.
        groups: For each message of the history the records that hold it.
        notes: What a reader of the file should know of it, with the record that it is about.
    """

    rows: Sequence[Any]
    chain: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    notes: tuple[tuple[int, str], ...]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The history in wire form: role and content, without the envelopes."""
        return [self._message(group) for group in self.groups]

    @property
    def origins(self) -> dict[int, Origin]:
        """What the envelopes say of where messages came from."""
        found = ((at, self._origin(group)) for at, group in enumerate(self.groups))
        return {at: origin for at, origin in found if origin is not None}

    @property
    def homes(self) -> list[tuple[int, ...]]:
        """For each message the records that its blocks stand in."""
        return [tuple(at for at in group for _ in self._blocks(at)) or group for group in self.groups]

    def _message(self, group: tuple[int, ...]) -> dict[str, Any]:
        inner = [self.rows[at]["message"] for at in group]
        if len(group) == 1:
            return {key: inner[0][key] for key in ("role", "content") if key in inner[0]}
        blocks = [block for at in group for block in self._blocks(at)]
        return {"role": inner[0]["role"], "content": blocks}

    def _blocks(self, at: int) -> list[Any]:
        content = self.rows[at]["message"].get("content")
        if isinstance(content, str):
            return [{"type": "text", "text": content}] if content else []
        return content if isinstance(content, list) else [] if content is None else [content]

    def _origin(self, group: tuple[int, ...]) -> Origin | None:
        inner = [self.rows[at]["message"] for at in group]
        if inner[0]["role"] != "assistant" or inner[0].get("model") == SYNTHETIC:
            return None
        reasons = [each["stop_reason"] for each in inner if each.get("stop_reason") is not None]
        try:
            return Origin(
                model=inner[0].get("model"),
                id=inner[0].get("id"),
                stop_reason=reasons[-1] if reasons else None,
            )
        except ValidationError:
            return None

    def mended(
        self, text: str, spans: Sequence[Span], messages: Sequence[Any], sources: Sequence[int | None]
    ) -> str:
        """The file with a mended history. Of a record that changes only `content` and `parentUuid` do.

        Args:
            text: The text of the file.
            spans: Where its lines stand.
            messages: The mended history.
            sources: For each of its messages the index of the one it was made from; None for a new one.
        """
        edit = _Edit(self)
        edit.contents_of(dict(zip(sources, messages, strict=True)))
        edit.link()
        edit.order(messages, sources)
        return edit.text(text, spans)


# ---------------------------------------------------------------- reading


def read_session(rows: Sequence[Any]) -> Session:
    """The history of the main conversation; of the sub-agent's in a file that holds nothing else."""
    notes: list[tuple[int, str]] = []
    spoken = [at for at, row in enumerate(rows) if _uuid(row) and row.get("type") in PARTIES]
    main = [at for at in spoken if not rows[at].get("isSidechain")] or spoken
    if not main:
        return Session(rows, (), (), ())
    leaf = max((at for at in main if not rows[at].get("isMeta")), default=main[-1])
    side = bool(rows[leaf].get("isSidechain"))
    # Of two records with one uuid the client reads the later.
    records = {
        _uuid(row): at for at, row in enumerate(rows) if _uuid(row) and bool(row.get("isSidechain")) == side
    }
    leaf = records[_uuid(rows[leaf])]
    chain = tuple(reversed(list(_walk(rows, records, leaf, notes))))
    return Session(rows, chain, tuple(_groups(rows, set(records.values()), chain)), tuple(notes))


def _uuid(row: Any) -> str:
    """The uuid of a record; empty if it has none."""
    value = row.get("uuid") if isinstance(row, dict) else None
    return value if isinstance(value, str) else ""


def _parent(row: Any) -> str | None:
    """The uuid of the record that a record hangs on."""
    value = row.get("parentUuid") if isinstance(row, dict) else None
    return value if isinstance(value, str) else None


def _walk(
    rows: Sequence[Any], records: Mapping[str, int], leaf: int, notes: list[tuple[int, str]]
) -> Iterator[int]:
    """From the leaf back to the root, which is where the history was compacted last."""
    heads, tails = _preserved(rows)
    seen: set[int] = set()
    at: int | None = leaf
    while at is not None:
        if at in seen:
            notes.append((at, "its parents lead in a circle; the history starts behind it"))
            return
        seen.add(at)
        yield at
        row = rows[at]
        parent = _parent(row)
        if parent is None or row.get("subtype") == "compact_boundary":
            return
        parent = heads.get(_uuid(row)) or tails.get(parent, parent)
        if parent not in records:
            notes.append((at, "its parent is not in the file; the history starts with it"))
        at = records.get(parent)


def _preserved(rows: Sequence[Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Messages that a compaction kept as they were: they stand before it, and belong behind its summary.

    The boundary names the first of them, the last, and what they follow.
    """
    heads: dict[str, str] = {}
    tails: dict[str, str] = {}
    for row in rows:
        if isinstance(row, dict) and row.get("subtype") == "compact_boundary":
            kept = mapping((mapping(row.get("compactMetadata")) or {}).get("preservedSegment")) or {}
            head, anchor, tail = (kept.get(name) for name in ("headUuid", "anchorUuid", "tailUuid"))
            if isinstance(head, str) and isinstance(anchor, str) and isinstance(tail, str):
                heads[head], tails[anchor] = anchor, tail
    return heads, tails


def _groups(rows: Sequence[Any], known: set[int], chain: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The records of each message: those of one response as one, and behind it results that hang on its records."""
    spoken = [at for at in sorted(known) if _is_history(rows[at])]
    responses: dict[str, list[int]] = {}
    hanging: dict[str, list[int]] = {}
    on_chain = set(chain)
    answered: set[Any] = set()
    for at in spoken:
        id, parent = _response_id(rows[at]), _parent(rows[at])
        if id is not None:
            responses.setdefault(id, []).append(at)
        elif at in on_chain:
            answered |= _answers(rows[at])
        elif parent is not None and _answers(rows[at]):
            hanging.setdefault(parent, []).append(at)
    for at in chain:
        id = _response_id(rows[at])
        if not _is_history(rows[at]):
            continue
        if id is None:
            yield (at,)
            continue
        group = tuple(responses.pop(id, ()))
        if group:
            yield group
        for result in sorted(each for member in group for each in hanging.get(_uuid(rows[member]), ())):
            if answered.isdisjoint(_answers(rows[result])):
                answered |= _answers(rows[result])
                yield (result,)


def _is_history(row: Any) -> bool:
    """Whether a record holds a message that is sent. What the client shows of an error is none."""
    message = row.get("message")
    return (
        row.get("type") in PARTIES
        and isinstance(message, dict)
        and message.get("role") == row["type"]
        and row.get("isApiErrorMessage") is not True
    )


def _response_id(row: Any) -> str | None:
    id = row["message"].get("id") if row.get("type") == "assistant" and _is_history(row) else None
    return id if isinstance(id, str) else None


def _answers(row: Any) -> set[str]:
    """The ids of the calls that a record of the user answers."""
    content = row["message"].get("content") if row["type"] == "user" else None
    return {
        id
        for block in (content if isinstance(content, list) else ())
        if isinstance(block, dict) and block.get("type") == "tool_result"
        if isinstance(id := block.get("tool_use_id"), str)
    }


# ---------------------------------------------------------------- writing


class _Edit:
    """What changes in a session file."""

    def __init__(self, session: Session) -> None:
        self.session, self.rows = session, session.rows
        self.contents: dict[int, Any] = {}
        """New content, by record."""
        self.parents: dict[int, str | None] = {}
        """New parents, by record."""
        self.dropped: set[int] = set()
        """The records that go. Another one may have the uuid of one of them, and stays."""
        self.made: dict[int, list[dict[str, Any]]] = {}
        """New records, by the record that they follow."""
        self.places = {at: place for place, at in enumerate(session.chain)}

    def contents_of(self, made: Mapping[int | None, Any]) -> None:
        """Find out which records change, and which go."""
        for index, (group, given) in enumerate(zip(self.session.groups, self.session.messages, strict=True)):
            message = made.get(index)
            if message is None:
                self.dropped.update(group)
            elif message == given:
                continue
            elif len(group) == 1:
                self.contents[group[0]] = message["content"]
            else:
                self._share(group, message["content"])

    def _share(self, group: tuple[int, ...], blocks: list[Any]) -> None:
        """Give each record of a response what is left of its blocks; a record with nothing left goes."""
        homes = [(at, _spelling(block)) for at in group for block in self.session._blocks(at)]
        where: dict[str, list[int]] = {}
        for place in range(len(homes) - 1, -1, -1):
            where.setdefault(homes[place][1], []).append(place)
        shares: dict[int, list[Any]] = {at: [] for at in group}
        place = 0
        for block in blocks:
            same = where.get(_spelling(block), [])
            while same and same[-1] < place:
                same.pop()
            place = same[-1] if same else min(place, len(homes) - 1)
            shares[homes[place][0]].append(block)
            place += 1
        linked = [at for at in group if at in self.places]
        kept = next((at for at in linked if shares[at]), None)
        if kept is None:  # the chain would pass by what is left
            kept = linked[0]
            shares = {at: blocks if at == kept else [] for at in group}
        for at, share in shares.items():
            if not share and at != kept:
                self.dropped.add(at)
            elif share != self.session._blocks(at):
                self.contents[at] = share

    def link(self) -> None:
        """Hang the children of records that go on the next one above that stays."""
        above: dict[str | None, str | None] = {
            _uuid(self.rows[at]): _parent(self.rows[at]) for at in self.dropped
        }
        found: dict[str | None, str | None] = {}
        for at, row in enumerate(self.rows):
            parent = _parent(row)
            if parent not in above or at in self.dropped:
                continue
            way: dict[str | None, None] = {}
            up: str | None = parent
            while up in above and up not in found and up not in way:
                way[up] = None
                up = above[up]
            end = None if up in way else found.get(up, up)
            found.update(dict.fromkeys(way, end))
            self.parents[at] = None if end == _uuid(row) else end

    def order(self, messages: Sequence[Any], sources: Sequence[int | None]) -> None:
        """Put all messages in a row: new ones, and results that would be read elsewhere, go on the chain.

        Beside the chain stay the results right behind the response that they hang on, in the order of the file.
        """
        taken = {_uuid(row) for row in self.rows}
        place, tip, hung = -1, None, -1
        response: list[int] = []
        for message, source in zip(messages, sources, strict=True):
            group = () if source is None else self.session.groups[source]
            left = [at for at in group if at not in self.dropped]
            places = [self.places[at] for at in left if at in self.places]
            if places:
                tip = None if max(places) > place else tip
                place = max([place, *places])
                response, hung = left if _response_id(self.rows[left[0]]) is not None else [], -1
                continue
            if left and response and left[0] > hung:
                hung = left[0]
                if hung in self.parents:  # it hung on a record that goes
                    self.parents[hung] = _uuid(self.rows[response[-1]])
                continue
            if place < 0:
                raise UnwritableError("a message in front of all others")
            response = []
            before = self.session.chain[place]
            tip = tip or _uuid(self.rows[before])
            if left:
                self.parents[left[0]] = tip
                tip = _uuid(self.rows[left[0]])
            else:
                tip = self._new(before, tip, message, taken)
            after = place + 1
            while after < len(self.session.chain) and self.session.chain[after] in self.dropped:
                after += 1
            if after < len(self.session.chain):
                self.parents[self.session.chain[after]] = tip

    def _new(self, before: int, parent: str, message: Any, taken: set[str]) -> str:
        """A record of a new message."""
        number, id = 0, parent
        while id in taken:
            number += 1
            id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"convmodel {parent} {number}"))
        taken.add(id)
        carried = {key: self.rows[before][key] for key in CARRIED if key in self.rows[before]}
        record = {"parentUuid": parent, **carried, "type": message["role"], "message": message, "uuid": id}
        self.made.setdefault(before, []).append(record)
        return id

    def text(self, text: str, spans: Sequence[Span]) -> str:
        """The file as it is with all of that."""
        plain, ends = text.isascii(), [end for end in ("\r\n", "\n", "\r") if end in text]
        pieces: list[Piece] = []
        changed = self.contents.keys() | self.parents.keys()
        for at in range(len(self.rows)):
            line = text[slice(*spans[at])]
            if at not in self.dropped:
                pieces.append((at, self._line(at, line, plain) if at in changed else None))
            pieces += [(None, spelled(record, line, ascii_only=plain)) for record in self.made.get(at, ())]
        return spliced(text, spans, pieces, ends[0] if ends else "\n")

    def _line(self, at: int, line: str, plain: bool) -> str:
        record = members(line, 0)
        edits: list[tuple[Span, str]] = []
        if at in self.parents and "parentUuid" in record:
            found = record["parentUuid"]
            edits.append(((found.start, found.end), spelled(self.parents[at], line, ascii_only=plain)))
        if at in self.contents:
            content = spelled(self.contents[at], line, ascii_only=plain)
            inner, start = members(line, record["message"].start), record["message"].start + 1
            if "content" in inner:
                edits.append(((inner["content"].start, inner["content"].end), content))
            else:
                edits.append(((start, start), f'"content":{content},'))
        return replaced(line, edits)


def _spelling(block: Any) -> str:
    """The same text for equal blocks."""
    return json.dumps(block, sort_keys=True)


__all__ = ["Session", "UnwritableError", "is_session", "read_session"]
