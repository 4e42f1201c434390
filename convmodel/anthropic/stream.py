"""Streamed responses: events in, a reply out, whole or cut."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast, final

import attrs

from ..blocks import TOOL_USE_INPUT, AssistantBlock, ServerToolUse, Text, ToolUse, short, size
from ..declared import ANSWERED
from ..errors import Rule, ValidationError, Violation, quoted
from ..fields import FIELD_TYPE, Reading, described, held, mapping, require
from ..jsonvalue import JsonObject, decode
from ..turns import Reply
from .read import ROLE, WIRE_BLOCKS, finished, reply_block, reply_origin
from .targets import Target

if TYPE_CHECKING:
    from anthropic.types import RawMessageStreamEvent
    from anthropic.types.beta import BetaRawMessageStreamEvent

    from anthropic import BetaMessageStreamEvent, MessageStreamEvent

    StreamEvent: TypeAlias = (
        RawMessageStreamEvent
        | MessageStreamEvent
        | BetaRawMessageStreamEvent
        | BetaMessageStreamEvent
        | Mapping[str, Any]
        | str
        | bytes
    )

STREAM_WHOLE = Rule(
    "stream-whole",
    "A streamed response is whole: each event fits those before it, and `message_stop` ends it.",
    "Streaming messages, API documentation",
)

# ---------------------------------------------------------------- what the events say, as data


class _Piece(NamedTuple):
    """What one key of a delta does to a field of its block."""

    key: str
    field: str
    how: Literal["join", "replace", "collect"]


_SIGNATURE = _Piece("signature", "signature", "replace")  # the SDK's accumulator takes the last, too
_DELTAS: dict[str, tuple[frozenset[str] | None, tuple[_Piece, ...]]] = {
    "text_delta": (frozenset({"text"}), (_Piece("text", "text", "join"),)),
    "thinking_delta": (
        frozenset({"thinking"}),
        (_Piece("thinking", "thinking", "join"), _SIGNATURE),  # compatible endpoints sign here
    ),
    "signature_delta": (None, (_SIGNATURE,)),
    "input_json_delta": (
        frozenset({"tool_use", "server_tool_use"}),
        (_Piece("partial_json", "input", "join"),),
    ),
    "citations_delta": (frozenset({"text"}), (_Piece("citation", "citations", "collect"),)),
    "compaction_delta": (  # null changes nothing: anthropic-sdk-python pull request 1830
        frozenset(),
        (_Piece("content", "content", "join"), _Piece("encrypted_content", "encrypted_content", "replace")),
    ),
}
"""By type of delta: the known block types that it may fill, None for all, and what it does. Blocks of unknown types take
any of them."""

_SHOWN = {"text": "text", "thinking": "thinking"}
"""By type of block, the field that a display shows; of all others it is the input."""

_BREAKS = {("anthropic", "APIError"), ("httpx2", "HTTPError"), ("httpx", "HTTPError")}
"""The package and the name of exceptions by which clients say that a stream broke; known by name, so that no client is
imported for it."""


def _breaks(error: Exception) -> bool:
    """Whether an exception says that the stream broke, rather than that a program is wrong.

    Besides those of the clients these are errors of the connection, and of a decoder that meets what it cannot read: the
    SDK's own raises UnicodeDecodeError where a stream ends inside a character.
    """
    return isinstance(error, (OSError, ValueError)) or not _BREAKS.isdisjoint(
        (cls.__module__.partition(".")[0], cls.__name__) for cls in type(error).__mro__
    )


# ---------------------------------------------------------------- server-sent events

_LINE_END = re.compile(rb"\r\n|\n|\r")


class _Lines:
    """Server-sent events out of bytes that are cut anywhere.

    The SDK's decoder is private but for `Stream.raw_events`, which pulls from an HTTP response where this is pushed to,
    and copies a long line once for each chunk of it.
    """

    __slots__ = ("_data", "_line", "_returned")

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._returned = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The data of each event that ends in a chunk."""
        if self._returned and chunk:  # the chunk before ended in \r, whose \n may come now
            chunk = chunk.removeprefix(b"\n")
            self._returned = False
        self._returned |= chunk.endswith(b"\r")
        *lines, rest = _LINE_END.split(chunk)
        for line in lines:
            if self._line:
                line = b"".join([*self._line, line])  # noqa: PLW2901
                self._line.clear()
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data.clear()
        if rest:
            self._line.append(rest)


# ---------------------------------------------------------------- blocks that are still coming


@final
@attrs.frozen(repr=False)
class PartialBlock:
    """A block of a reply that is still coming, for display. It is no block: no turn and no request takes it.

    Args:
        index: The block's index in the stream.
        type: The type of the block.
        text: What came so far of its text or its thinking; of a call, of the JSON text of its input.
        name: The name of the called tool, if it is a call.
        ended: Whether the block has ended.
    """

    index: int
    type: str
    text: str
    name: str | None
    ended: bool

    def __repr__(self) -> str:
        shown = short(self.text) if self.type == "text" else size(self.text)
        name = f", {short(self.name)}" if self.name is not None else ""
        return f"PartialBlock({self.index}, {self.type!r}{name}, {shown}, ended={self.ended})"


class _Growing:
    """A block of a stream: how it started, what came since, and in the end the block."""

    __slots__ = ("block", "data", "ended", "index", "parts", "reading", "stale", "wrong")

    def __init__(self, index: int, data: dict[str, Any]) -> None:
        self.index, self.data = index, data
        self.parts: dict[str, list[Any]] = {}
        self.ended = self.stale = self.wrong = False
        self.block: AssistantBlock | None = None
        self.reading: Reading = Reading(ANSWERED, lenient=True)

    @property
    def path(self) -> str:
        return f"content[{self.index}]"

    @property
    def type(self) -> str:
        type_ = self.data.get("type")
        return type_ if isinstance(type_, str) else "?"

    def joined(self, field: str) -> str:
        """What came of a field piece by piece."""
        parts = self.parts.get(field, [])
        if len(parts) > 1:
            parts[:] = ["".join(parts)]
        return parts[0] if parts else ""

    def raw(self) -> dict[str, Any]:
        """The block as it would stand in a response that came at once, with the text of an input not yet read."""
        data = dict(self.data)
        for field, parts in self.parts.items():
            before = data.get(field)
            if field == "citations" and isinstance(before, (list, type(None))):
                data[field] = [*(before or ()), *parts]
            elif field not in ("input", "citations") and isinstance(before, (str, type(None))):
                data[field] = (before or "") + self.joined(field)
        return data

    def read(self, vendor: str) -> list[Violation]:
        """Make the block, now that it has ended; what is wrong with the input of a call is returned."""
        self.reading, self.block = Reading(ANSWERED, lenient=True), None
        data = self.raw()
        text = self.joined("input")
        if text:
            value, faults = decode(text)
            if not faults and not isinstance(value, dict):
                found = f"{described(value)} where an object is due"
                faults = [Violation(TOOL_USE_INPUT, "", found, "Ask the model again.")]
            if not faults:
                try:
                    data["input"] = JsonObject(value)
                except ValidationError as error:
                    faults = list(error.violations)
            if faults:
                return [fault.under(f"{self.path}.input") for fault in faults]
        elif self.type in ("tool_use", "server_tool_use") and data.get("input") is None:
            data["input"] = {}
        self.block = reply_block(data, vendor, self.reading, self.path)
        return []

    def read_text(self, vendor: str) -> Text | None:
        """What came of a text that was cut; None if nothing did, or the block is another."""
        if self.type != "text":
            return None
        reading = Reading(ANSWERED, lenient=True)
        block = reply_block(self.raw(), vendor, reading, self.path)
        return block if isinstance(block, Text) else None


# ---------------------------------------------------------------- the accumulator


@final
class Accumulator:
    """Builds a reply out of the events of a stream, one at a time.

    `read_stream` does the same with a whole stream. Use this one to show the reply while it comes, or to hold what came
    when something else than the connection ends the loop: Ctrl-C, a cancelled task.

    An event is one of the SDK's (of `messages.create(stream=True)`, or of `messages.stream()`), a mapping, or server-sent
    events: bytes as chunks that are cut anywhere, text as whole lines. Events of unknown types are passed over.

    Args:
        target: Where the request went; it tells whose thinking this is. None is the Anthropic API.

    >>> accumulator = Accumulator()
    >>> accumulator.feed({"type": "message_start", "message": {"role": "assistant", "content": []}})
    >>> accumulator.feed({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    >>> accumulator.feed({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi."}})
    >>> accumulator.snapshot
    (PartialBlock(0, 'text', 'Hi.', ended=False),)
    >>> accumulator.reply().complete
    False
    """

    __slots__ = ("_blocks", "_lines", "_message", "_notes", "_open", "_over", "_stopped", "_target", "_wrong")

    def __init__(self, target: Target | None = None) -> None:
        require(target, (Target, type(None)), "target", "a Target")
        self._target = target
        self._lines = _Lines()
        self._message: dict[str, Any] | None = None
        self._blocks: list[_Growing] = []
        self._open: dict[int, _Growing] = {}
        self._notes: list[Violation] = []
        self._wrong = False
        self._over = False
        """Nothing that still comes is part of the reply."""
        self._stopped = False
        """The stream has said that the reply ends here."""

    # ------------------------------------------------------------ events in

    def feed(self, event: StreamEvent) -> None:
        """Take in one event, or a chunk of server-sent events. What does not fit makes the reply incomplete.

        Args:
            event: The event.
        """
        given: object = event
        if isinstance(given, str):  # lines, with or without what ends them
            given = given.encode(errors="surrogatepass")
            given = given if given.endswith((b"\n", b"\r")) else given + b"\n"
        if isinstance(given, (bytes, bytearray, memoryview)):
            for text in self._lines.feed(bytes(given)):
                value, faults = decode(text)
                if faults:
                    self._misfit("data that is not JSON")
                else:
                    self._take(value)
        else:
            self._take(given)

    def _take(self, event: object) -> None:
        if self._over:
            return
        data = held(event)
        kind = data.get("type") if data is not None else None
        if data is None or not isinstance(kind, str):
            self._misfit(f"{described(event)} where an event is due")
        elif kind == "content_block_delta":
            self._delta(data)
        elif kind == "content_block_start":
            self._start(data)
        elif kind == "content_block_stop":
            self._stop(data)
        elif kind == "message_start":
            self._begin(data)
        elif kind == "message_delta":
            self._change(data)
        elif kind == "message_stop":
            self._over = self._stopped = True
        elif kind == "error":
            error = mapping(data.get("error")) or {}
            self._misfit(f"the error {quoted(error.get('type'))} of the service")
            self._over = True

    def _begin(self, data: Mapping[str, Any]) -> None:
        message = held(data.get("message"))
        if message is None:
            self._misfit("a message_start without a message")
        elif self._message is None:
            if self._blocks:
                self._misfit("a message_start behind blocks")
            self._message = dict(message)
            content = self._message.pop("content", None)
            for index, block in enumerate(content if isinstance(content, (list, tuple)) else ()):
                self._start({"index": index, "content_block": block})
                self._stop({"index": index})
        elif message.get("id") != self._message.get("id") or self._blocks:
            self._misfit("a second message_start")
            self._over = True

    def _start(self, data: Mapping[str, Any]) -> None:
        index = self._index(data)
        if index is None:
            return
        raw = data.get("content_block")
        block = held(raw)
        tag = block.get("type") if block is not None else None
        if not isinstance(tag, str) or tag not in WIRE_BLOCKS:
            block = mapping(raw)  # of an unknown type, what the SDK has filled in is no part
        before = self._open.get(index)
        if before is not None and not before.parts and not before.ended and block == before.data:
            return  # the same event again
        growing = self._open[index] = _Growing(index, dict(block or {}))
        self._blocks.append(growing)
        if block is None:
            self._misfit("a content_block_start without a block", growing)
        elif before is not None:
            self._misfit("a second start", growing)

    def _delta(self, data: Mapping[str, Any]) -> None:
        growing = self._started(data)
        if growing is None:
            return
        delta = held(data.get("delta"))
        kind = delta.get("type") if delta is not None else None
        row = _DELTAS.get(kind) if isinstance(kind, str) else None
        if delta is None or row is None:
            self._misfit(f"a delta of the type {quoted(kind)}", growing)
            return
        fills, pieces = row
        if fills is not None and growing.type not in fills and growing.type in WIRE_BLOCKS:
            self._misfit(f"a {kind} for a `{growing.type}` block", growing)
            return
        if growing.ended and kind != "signature_delta":
            self._misfit(f"a {kind} behind the block's end", growing)
            return
        for key, field, how in pieces:
            part = delta.get(key)
            if part is None:
                continue
            if how == "collect":
                growing.parts.setdefault(field, []).append(part)
            elif not isinstance(part, str):
                self._misfit(f"{described(part)} where text is due", growing)
            elif how == "join":
                growing.parts.setdefault(field, []).append(part)
            elif part:
                before = growing.data.get(field)
                if before and before != part:
                    self._note(growing.path, f"a second {field}", "The last was taken.")
                growing.data[field] = part
        growing.stale = growing.ended  # a signature that came late

    def _stop(self, data: Mapping[str, Any]) -> None:
        growing = self._started(data)
        if growing is not None and not growing.ended:
            growing.ended = True
            self._read(growing)

    def _read(self, growing: _Growing) -> None:
        growing.stale = False
        if faults := growing.read(self._vendor):
            growing.wrong = True
            self._notes += faults

    def _change(self, data: Mapping[str, Any]) -> None:
        delta = held(data.get("delta"))
        if delta is None:
            self._misfit("a message_delta without a delta")
            return
        said = {key: value for key, value in delta.items() if value is not None}
        if self._message is None:
            self._misfit("a message_delta before message_start")
        else:
            self._message.update(said)  # what a later one leaves out stays

    # ------------------------------------------------------------ what does not fit

    def _index(self, data: Mapping[str, Any]) -> int | None:
        index = data.get("index")
        if type(index) is int and 0 <= index < 2**63:
            return index
        self._misfit(f"{described(index)} where the index of a block is due")
        return None

    def _started(self, data: Mapping[str, Any]) -> _Growing | None:
        index = self._index(data)
        if index is None:
            return None
        growing = self._open.get(index)
        if growing is None:  # its start is lost, and with it the block
            growing = self._open[index] = _Growing(index, {})
            self._blocks.append(growing)
            self._misfit("a block without a start", growing)
        return growing

    def _misfit(self, found: str, growing: _Growing | None = None) -> None:
        self._wrong = True
        if growing is not None:
            growing.wrong = True
        self._note(growing.path if growing is not None else "", found, "The reply is incomplete.")

    def _note(self, path: str, found: str, fix: str) -> None:
        self._notes.append(Violation(STREAM_WHOLE, path, found, fix))

    # ------------------------------------------------------------ what came

    @property
    def _vendor(self) -> str:
        return self._target.vendor if self._target is not None else "anthropic"

    @property
    def snapshot(self) -> tuple[PartialBlock, ...]:
        """The blocks as far as they came, for display. It costs what it shows: take one for each frame, not each event."""
        return tuple(
            PartialBlock(
                growing.index,
                growing.type,
                self._shown(growing),
                name if isinstance(name := growing.data.get("name"), str) else None,
                growing.ended,
            )
            for growing in sorted(self._blocks, key=_by_index)
        )

    @staticmethod
    def _shown(growing: _Growing) -> str:
        field = _SHOWN.get(growing.type, "input")
        before = growing.data.get(field)
        return (before if isinstance(before, str) else "") + growing.joined(field)

    def reply(self, error: BaseException | None = None) -> Reply:
        """The reply, as far as it came. More events may follow.

        It is complete if `message_stop` came, a stop reason was given, and every event fitted. Otherwise it holds the
        blocks that have ended and the text that was cut; all else that was cut is left out and reported in `dropped`.

        Args:
            error: What ended the stream, if something did; `dropped` names its class.

        Raises:
            InvalidReply: A block that has ended cannot be read, as with `from_message`.
        """
        for growing in self._blocks:
            if growing.stale:
                self._read(growing)
        reading = Reading(ANSWERED, lenient=True)
        reading.dropped += self._notes
        message = self._message or {}
        origin = reply_origin(message, self._target, reading)
        if message.get("role") not in (None, "assistant"):
            reading.fault(ROLE, "role", "a message of another party", "Pass what the model answered.")
        blocks: list[AssistantBlock] = []
        unbroken: int | None = None
        due = 0
        for growing in sorted(self._blocks, key=_by_index):
            if growing.index > due:
                found = "indexes without a block"
                reading.drop(STREAM_WHOLE, f"content[{due}]", found, "The blocks behind them moved up.")
            due = growing.index + 1
            whole = growing.ended and not growing.wrong
            block = growing.block if whole else growing.read_text(self._vendor)
            if whole:
                reading.dropped += growing.reading.dropped
                reading.violations += growing.reading.violations
            elif not growing.wrong:  # else it was said when it went wrong
                left = "What came of it was kept." if block is not None else "It was left out."
                reading.drop(STREAM_WHOLE, growing.path, f"a {quoted(growing.type)} block that was cut", left)
            lost = not whole or bool(growing.reading.violations)
            if lost and unbroken is None:
                unbroken = len(blocks) + (block is not None and not growing.wrong)
            if block is not None:
                blocks.append(block)
        if not self._over:
            why = f" ({type(error).__name__})" if error is not None else ""
            reading.drop(STREAM_WHOLE, "", f"no message_stop{why}", "The reply is incomplete.")
        whole = self._stopped and not self._wrong and self._message is not None
        return finished(blocks, origin, reading, whole=whole, unbroken=unbroken)


def _by_index(growing: _Growing) -> int:
    return growing.index


# ---------------------------------------------------------------- whole streams


def read_stream(events: Iterable[StreamEvent], target: Target | None = None) -> Reply:
    """Read a streamed response to its end.

    A stream that breaks is no error: the reply is incomplete then, and says why in `dropped`. So end errors of the
    SDK (`APIError`) and of its HTTP library, and every `OSError` and `ValueError`. What else the iterable raises goes
    through, as do `KeyboardInterrupt` and the cancelling of a task; to hold what came before, feed an `Accumulator`.

    Args:
        events: The SDK's stream, raw (`messages.create(stream=True)`) or of the helper (`messages.stream()`); mappings;
            or server-sent events, as chunks of bytes cut anywhere or as whole lines of text.
        target: Where the request went; it tells whose thinking this is. None is the Anthropic API.

    Returns:
        The reply, complete or not; `AwaitingModel.receive` decides what becomes of it.

    Raises:
        InvalidReply: A block that has ended cannot be read, as with `from_message`.
        ValidationError: `field-type` for what is no iterable of events.

    >>> read_stream([
    ...     {"type": "message_start", "message": {"role": "assistant", "content": [], "model": "claude-opus-4-8"}},
    ...     {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hi."}},
    ...     {"type": "content_block_stop", "index": 0},
    ...     {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    ...     {"type": "message_stop"},
    ... ]).blocks
    (Text('Hi.'),)
    """
    accumulator = Accumulator(target)
    given: object = events
    if isinstance(given, (str, bytes, bytearray, memoryview)):
        accumulator.feed(cast("str | bytes", given))
        return accumulator.reply()
    if not isinstance(given, Iterable) or isinstance(given, Mapping):
        raise _no_events(given, "Pass the stream, or use `aread_stream` for an async one.")
    try:
        for event in events:
            accumulator.feed(event)
    except Exception as error:
        if not _breaks(error):
            raise
        return accumulator.reply(error)
    return accumulator.reply()


async def aread_stream(events: AsyncIterable[StreamEvent], target: Target | None = None) -> Reply:
    """Read a streamed response to its end, as `read_stream` does, from an async iterable.

    Args:
        events: The stream of the SDK's async client, or any async iterable of what `read_stream` takes.
        target: Where the request went; it tells whose thinking this is. None is the Anthropic API.

    Returns:
        The reply, complete or not.

    Raises:
        InvalidReply: A block that has ended cannot be read, as with `from_message`.
        ValidationError: `field-type` for what is no async iterable of events.
    """
    accumulator = Accumulator(target)
    if not isinstance(cast("object", events), AsyncIterable):
        raise _no_events(events, "Pass the stream, or use `read_stream` for one that is not async.")
    try:
        async for event in events:
            accumulator.feed(event)
    except Exception as error:
        if not _breaks(error):
            raise
        return accumulator.reply(error)
    return accumulator.reply()


def _no_events(given: object, fix: str) -> ValidationError:
    found = f"{described(given)} where a stream of events is due"
    return ValidationError([Violation(FIELD_TYPE, "events", found, fix)])
