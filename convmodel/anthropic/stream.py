"""Streams in: the events of a response, and the reply that they make.

A block counts once it has ended. What is left open when a stream ends is no block: only text that has come is kept, and
the reply is incomplete. What an event does not say plainly spoils its block, never more and never without a word.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, final

import attrs

from ..blocks import TOOL_USE_INPUT
from ..declared import ANSWERED
from ..errors import Rule, ValidationError, Violation, quoted
from ..fields import Reading, described, mapping, require, thawed
from ..jsonvalue import JsonObject, decode
from ..turns import Reply
from .read import ROLE, read_reply
from .targets import Target

if TYPE_CHECKING:
    from anthropic.lib.streaming import BetaMessageStreamEvent, MessageStreamEvent
    from anthropic.types import RawMessageStreamEvent
    from anthropic.types.beta import BetaRawMessageStreamEvent

STREAM_ORDER = Rule(
    "stream-order",
    "The events of a stream come in the order in which the service sends them: each block starts once, grows and ends.",
    "Streaming messages, API documentation",
)
STREAM_WHOLE = Rule(
    "stream-whole",
    "A stream ends when each of its blocks has ended and the service has said why it stopped.",
    "Streaming messages, API documentation",
)

_SDKEvent: TypeAlias = (
    "RawMessageStreamEvent | MessageStreamEvent | BetaRawMessageStreamEvent | BetaMessageStreamEvent"
)
Event: TypeAlias = "_SDKEvent | Mapping[str, Any] | bytes | bytearray | memoryview | str"
"""An event of a stream: the SDK's, a dict, a piece of an event stream's bytes, or a line of its text."""


@final
@attrs.frozen
class Partial:
    """A block as far as it has come, to be shown. It is no block, and no turn takes it.

    Args:
        type: The type of the block.
        text: The text that has come: of text and thinking what it says, of a call the beginning of its input as text.
        done: Whether the block has ended.
        name: The name of the tool, if it is a call.
    """

    type: str
    text: str = attrs.field(repr=lambda text: f"<{len(text)} characters>")
    done: bool
    name: str | None = None


class _Growing:
    """A block on its way."""

    __slots__ = ("data", "done", "parts", "spoilt")

    def __init__(self, data: dict[str, Any], spoilt: Violation | None = None) -> None:
        self.data = data
        self.parts: list[str] = []
        """What deltas have brought of the text that the block grows by."""
        self.done = False
        self.spoilt = spoilt
        """Why the block can be no block."""

    @property
    def type(self) -> str:
        kind = self.data.get("type")
        return kind if isinstance(kind, str) else "?"

    @property
    def key(self) -> str:
        """The field that the block grows by; empty for a block that comes whole."""
        if self.type == "compaction":
            return "content"
        return next((key for key in ("text", "thinking", "input") if key in self.data), "")

    @property
    def text(self) -> str:
        """The text that has come."""
        start = self.data.get(self.key)
        if len(self.parts) > 1:
            self.parts = ["".join(self.parts)]  # who asks again asks for little more
        return "".join((start if isinstance(start, str) else "", *self.parts))

    @property
    def bare(self) -> bool:
        """Whether it is a call without arguments."""
        return self.key == "input" and not self.data["input"]

    def finish(self, path: str) -> None:
        """Make the block whole: its text joined once, its input parsed once."""
        if self.key == "input" and (text := "".join(self.parts)):  # a call without arguments may send nothing
            value, faults = decode(text)
            try:
                self.data["input"] = JsonObject({} if faults else value)
            except ValidationError as error:
                faults = list(error.violations)
            if faults:
                self.spoilt = _fault(path, "an input that is no JSON object", TOOL_USE_INPUT)
        elif self.key != "input" and self.parts:
            self.data[self.key], self.parts = self.text, []
        self.done = True

    def shown(self) -> Partial:
        name = self.data.get("name")
        return Partial(
            self.type, self.text if self.key else "", self.done, name if isinstance(name, str) else None
        )


def _fault(path: str, found: str, rule: Rule) -> Violation:
    return Violation(rule, path, found, "It was left out.")


def _of(value: Any, name: str) -> Any:
    """A field of an event, which may be an object of the SDK or a mapping."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


# ---------------------------------------------------------------- deltas


def _text(block: _Growing, delta: Any) -> bool:
    return _more(block, "text", _of(delta, "text"))


def _thinking(block: _Growing, delta: Any) -> bool:
    # Some endpoints send the signature with the last piece of the thinking.
    signed = _of(delta, "signature") in (None, "") or _signature(block, delta)
    return signed and _more(block, "thinking", _of(delta, "thinking"))


def _input(block: _Growing, delta: Any) -> bool:
    return _more(block, "input", _of(delta, "partial_json"))


def _more(block: _Growing, key: str, part: Any) -> bool:
    if block.key != key or not isinstance(part, str):
        return False
    start = block.data.get(key)
    if not isinstance(start, Mapping if key == "input" else (str, type(None))):
        return False
    block.parts.append(part)
    return True


def _signature(block: _Growing, delta: Any) -> bool:
    """The signature of a thinking block. Of several the last counts, as in the SDK."""
    signature = _of(delta, "signature")
    if block.type != "thinking" or not isinstance(signature, str):
        return False
    block.data["signature"] = signature or block.data.get("signature", "")
    return True


def _citation(block: _Growing, delta: Any) -> bool:
    citation = mapping(_of(delta, "citation"))
    if block.type != "text" or citation is None:
        return False
    if not isinstance(block.data.get("citations"), list):
        block.data["citations"] = []
    block.data["citations"].append(thawed(dict(citation)))
    return True


def _compaction(block: _Growing, delta: Any) -> bool:
    """More of a compaction. What is null changes nothing (reports of 2026)."""
    more, sealed = _of(delta, "content"), _of(delta, "encrypted_content")
    if block.type != "compaction" or not all(isinstance(each, (str, type(None))) for each in (more, sealed)):
        return False
    if sealed is not None:
        block.data["encrypted_content"] = sealed
    return more is None or _more(block, "content", more)


DELTAS: Mapping[str, Callable[[_Growing, Any], bool]] = {
    "text_delta": _text,
    "thinking_delta": _thinking,
    "input_json_delta": _input,
    "signature_delta": _signature,
    "citations_delta": _citation,
    "compaction_delta": _compaction,
}
"""What each kind of delta does to a block; False if it does not fit."""


# ---------------------------------------------------------------- the accumulator


@final
class Accumulator:
    """Takes the events of one response, one after the other, and makes a reply of what has come at any time.

    Args:
        target: Where the request went; it tells whose thinking this is. None is the Anthropic API.

    Raises:
        ValidationError: `field-type` for another target.

    >>> stream = Accumulator()
    >>> stream.feed({"type": "message_start", "message": {"role": "assistant", "content": []}})
    >>> stream.feed({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    >>> stream.feed({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}})
    >>> [part.text for part in stream.snapshot]
    ['Hel']
    >>> reply = stream.reply()
    >>> reply.blocks, reply.complete
    ((Text('Hel'),), False)
    """

    def __init__(self, target: Target | None = None) -> None:
        require(target, (Target, type(None)), "target", "a Target")
        self._target = target
        self._lines = _Lines()
        self._envelope: dict[str, Any] | None = None
        self._blocks: dict[int, _Growing] = {}
        self._ended = False
        self._broken: Violation | None = None

    def feed(self, event: Event) -> None:
        """Take one more event.

        Passed over is what is no part of the response: pings, events of new kinds, what the SDK's helpers add, and
        everything behind the end.

        Args:
            event: An event of the SDK (of `messages.create(stream=True)` or of its helper stream), its JSON as a mapping,
                bytes of the event stream, split anywhere, or a line of its text.

        Raises:
            ValidationError: `field-type` for what is no event. It breaks the stream; `reply` has what came before.
        """
        given: object = event
        if isinstance(given, (bytes, bytearray, memoryview, str)):
            for data in self._lines.events(given):
                self._take(data)
        elif isinstance(given, Mapping) or hasattr(type(given), "model_fields_set"):
            self._take(given)
        else:
            if not self._ended:
                self._break(f"{described(given)} where an event is due", STREAM_ORDER)
            require(given, (), "event", "an event")

    @property
    def snapshot(self) -> tuple[Partial, ...]:
        """The blocks as far as they have come, to be shown. It costs what it shows: take one a frame, not one an event."""
        return tuple(self._blocks[index].shown() for index in sorted(self._blocks))

    def reply(self, error: BaseException | None = None) -> Reply:
        """What has come, as a reply.

        It is complete if each block has ended and the service has said why it stopped. Else it holds the blocks that have
        ended and the beginning of a text that was cut; what else has come is named in `dropped`.

        Args:
            error: What broke the stream off, if something did.

        Raises:
            InvalidReply: A block that has come whole cannot be read; `.reply` holds the others.

        >>> Accumulator().reply().complete
        False
        """
        envelope = self._envelope or {}
        content: list[dict[str, Any]] = []
        unbroken: int | None = None
        reading = Reading(ANSWERED, lenient=True)
        unsaid, last = envelope.get("stop_reason") is None, max(self._blocks, default=0)
        for expected, index in enumerate(sorted(self._blocks)):
            block, path = self._blocks[index], f"content[{index}]"
            # Whether the last call has no arguments, or has lost them, is known once the service says why it stopped.
            bare = unsaid and index == last and block.bare
            whole = block.done and block.spoilt is None and not bare
            if unbroken is None and index != expected:
                reading.drop(
                    STREAM_WHOLE, f"content[{expected}]", "a block that never came", "Nothing stands for it."
                )
                unbroken = len(content)
            if whole:
                content.append(block.data)
            elif block.spoilt is not None:
                unbroken = len(content) if unbroken is None else unbroken
                if block.type == "text" and block.text:  # it was paid for, and is there to be seen
                    reading.dropped.append(
                        attrs.evolve(block.spoilt, fix="What has come is no part of `kept`.")
                    )
                    content.append({**block.data, "text": block.text})
                else:
                    reading.dropped.append(block.spoilt)
            elif block.type == "text" and block.text:  # what it says is the user's to keep
                reading.drop(STREAM_WHOLE, path, "text that was cut", "What has come of it was kept.")
                content.append({**block.data, "text": block.text})
            else:
                reading.drop(
                    STREAM_WHOLE, path, f"a {quoted(block.type)} block that was cut", "It was left out."
                )
            if unbroken is None and not whole:
                unbroken = len(content)
        if unsaid:
            broken = f" ({type(error).__name__})" if error is not None else ""
            cut = _fault("", f"a stream that broke off{broken}", STREAM_WHOLE)
            reading.dropped.append(self._broken or cut)
            unbroken = len(content) if unbroken is None else unbroken
        return read_reply(envelope, content, self._target, reading, unbroken=unbroken)

    # ------------------------------------------------------------ events

    def _take(self, event: Any) -> None:
        kind = _of(event, "type")
        take = _TAKE.get(kind) if isinstance(kind, str) and not self._ended else None
        if take is not None:
            take(self, event)

    def _start(self, event: Any) -> None:
        message = mapping(_of(event, "message")) or {}
        if self._envelope is None:
            kept = ("id", "model", "stop_reason", "container")
            self._envelope = {key: message[key] for key in kept if message.get(key) is not None}
            if self._blocks:
                self._break("blocks before the response began", STREAM_ORDER)
            if message.get("role") not in (None, "assistant"):
                self._break("a message of another party", ROLE)
                return
            content = message.get("content")
            for index, block in enumerate(content if isinstance(content, (list, tuple)) else ()):
                self._open({"index": index, "content_block": block})  # as some endpoints send what is whole
                self._stop({"index": index})
        elif message.get("id") != self._envelope.get("id"):
            self._break("a second response in one stream", STREAM_ORDER)

    def _open(self, event: Any) -> None:
        raw, place = mapping(_of(event, "content_block")), self._place(event)
        if place is None:
            return
        path, before = f"content[{place}]", self._blocks.get(place)
        data: dict[str, Any] = thawed(dict(raw)) if raw is not None else {}
        served = (mapping(data.get("to")) or {}).get("model") if data.get("type") == "fallback" else None
        if isinstance(served, str) and self._envelope is not None:
            self._envelope["model"] = served  # what comes from here on is another model's, as in the SDK
        if before is not None:
            if before.done or before.parts or before.data != data:
                before.spoilt = before.spoilt or _fault(path, "a block that starts twice", STREAM_ORDER)
            return
        if data.get("type") in ("tool_use", "server_tool_use"):
            data.setdefault("input", {})
        block = self._blocks[place] = _Growing(data)
        if not isinstance(data.get("type"), str):
            block.spoilt = _fault(path, "a block that starts without a type", STREAM_ORDER)

    def _delta(self, event: Any) -> None:
        place = self._place(event)
        if place is None:
            return
        block = self._started(place)
        delta = _of(event, "delta")
        kind = _of(delta, "type")
        apply = DELTAS.get(kind) if isinstance(kind, str) else None
        # A signature may come late; nothing else may.
        late = block.done and not (apply is _signature and not block.data.get("signature"))
        if block.spoilt is None and (apply is None or late or not apply(block, delta)):
            found = f"a delta {quoted(kind)} that a {block.type[:60]} block cannot take"
            block.spoilt = _fault(f"content[{place}]", found, STREAM_ORDER)

    def _stop(self, event: Any) -> None:
        place = self._place(event)
        if place is None:
            return
        block = self._started(place)
        if not block.done and block.spoilt is None:
            block.finish(f"content[{place}]")

    def _reason(self, event: Any) -> None:
        if self._envelope is None:
            return
        delta = _of(event, "delta")
        for key in ("stop_reason", "container"):
            if (said := _of(delta, key)) is not None:
                self._envelope[key] = said

    def _end(self, _: Any) -> None:
        self._ended = True

    def _error(self, event: Any) -> None:
        kind = _of(_of(event, "error"), "type")
        self._break(f"a stream that the service broke off ({quoted(kind)})", STREAM_WHOLE)

    def _break(self, found: str, rule: Rule) -> None:
        self._broken, self._ended = _fault("", found, rule), True
        if self._envelope is not None:
            self._envelope["stop_reason"] = None

    def _started(self, place: int) -> _Growing:
        """The block at a place; a spoilt one if its start never came."""
        if place not in self._blocks:
            spoilt = _fault(f"content[{place}]", "a block without its start", STREAM_ORDER)
            self._blocks[place] = _Growing({}, spoilt)
        return self._blocks[place]

    def _place(self, event: Any) -> int | None:
        """Which block an event is about."""
        index = _of(event, "index")
        if type(index) is int and 0 <= index < 1_000_000:
            return index
        self._break("an event that names no block", STREAM_ORDER)
        return None


_TAKE: Mapping[str, Callable[[Accumulator, Any], None]] = {
    "message_start": Accumulator._start,
    "content_block_start": Accumulator._open,
    "content_block_delta": Accumulator._delta,
    "content_block_stop": Accumulator._stop,
    "message_delta": Accumulator._reason,
    "message_stop": Accumulator._end,
    "error": Accumulator._error,
}
"""What is done with each kind of event."""


# ---------------------------------------------------------------- the event stream


class _Lines:
    """Bytes and lines of an event stream, as its events.

    Only what the Messages API sends is read: `data` fields of JSON, with a blank line behind each event. The SDK's decoder
    is private and would have to be imported; the grammar that is left is a few lines.
    """

    __slots__ = ("_data", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        """The beginning of a line, in pieces."""
        self._data: list[str] = []

    def events(self, chunk: bytes | bytearray | memoryview | str) -> Iterator[Any]:
        """The events that end with a chunk."""
        if isinstance(chunk, str):
            lines: Iterable[bytes | str] = re.split(r"\r\n|\n|\r", chunk)
        else:
            lines = self._ended(bytes(chunk))
        for line in lines:
            if not line:
                if self._data:
                    yield from self._event()
                continue
            try:
                text = line if isinstance(line, str) else line.decode("utf-8")
            except UnicodeDecodeError:
                yield _UNREADABLE
                continue
            if text.startswith("data:"):
                self._data.append(text[5:].removeprefix(" "))

    def _ended(self, chunk: bytes) -> list[bytes]:
        """The lines that end with some bytes. A carriage return waits for what comes behind it."""
        waits = chunk.endswith(b"\r")
        if not waits and b"\n" not in chunk and b"\r" not in chunk and not self._held():
            self._parts.append(chunk)
            return []
        text = b"".join((*self._parts, chunk))
        *lines, rest = re.split(rb"\r\n|\n|\r(?!\Z)", text)
        self._parts = [rest] if rest else []
        return lines

    def _held(self) -> bool:
        return bool(self._parts) and self._parts[-1].endswith(b"\r")

    def _event(self) -> Iterator[Any]:
        text, self._data = "\n".join(self._data), []
        if text.strip() == "[DONE]":  # gateways end their streams with it
            return
        value, faults = decode(text)
        yield _UNREADABLE if faults or not isinstance(value, dict) else value


_UNREADABLE = {"type": "error", "error": {"type": "no JSON"}}


# ---------------------------------------------------------------- whole streams


def read_stream(events: Iterable[Event], target: Target | None = None) -> Reply:
    """Read a response from its events, to their end.

    Args:
        events: The SDK's stream of `messages.create(stream=True)` or its helper's, or any iterable of what
            `Accumulator.feed` takes.
        target: Where the request went; it tells whose thinking this is. None is the Anthropic API.

    Returns:
        The reply, as `from_message` gives it; not complete if the connection broke or the stream ended early. What cannot be
        read to its end, such as on Ctrl-C, is for an `Accumulator`, which holds what has come.

    Raises:
        InvalidReply: A block that has come whole cannot be read; `.reply` holds the others.
        ValidationError: `field-type` for what is no stream of events.

    >>> read_stream([]).complete
    False
    """
    if not isinstance(events, Iterable) or isinstance(events, Mapping):
        require(events, (), "events", "an iterable of events; `aread_stream` takes asynchronous ones")
    stream, broken = Accumulator(target), None
    given: Any = events
    if isinstance(given, (bytes, bytearray, memoryview, str)):
        given = (given,)
    try:
        for event in given:
            try:
                stream.feed(event)
            except ValidationError:  # it is no event, and the end of what can be read
                break
    except Exception as error:
        if not _is_transport(error):
            raise
        broken = error
    return stream.reply(broken)


async def aread_stream(events: AsyncIterable[Event], target: Target | None = None) -> Reply:
    """As `read_stream`, from events that are awaited.

    Args:
        events: The stream of an asynchronous client.
        target: Where the request went.

    Returns:
        The reply; not complete if the connection broke or the stream ended early.

    Raises:
        InvalidReply: A block that has come whole cannot be read; `.reply` holds the others.
        ValidationError: `field-type` for what is no stream of events.
    """
    require(events, AsyncIterable, "events", "an asynchronous iterable of events")
    stream, broken = Accumulator(target), None
    try:
        async for event in events:
            try:
                stream.feed(event)
            except ValidationError:
                break
    except Exception as error:
        if not _is_transport(error):
            raise
        broken = error
    return stream.reply(broken)


_CLIENTS = frozenset(
    {"anthropic", "httpx", "httpx2", "httpcore", "httpcore2", "h11", "h2", "aiohttp", "requests", "urllib3"}
)
"""The packages whose errors mean that a connection broke."""
_TORN = (UnicodeDecodeError, json.JSONDecodeError)
"""What the SDK's own decoder raises where a stream ends inside a character or an event."""


def _is_transport(error: Exception) -> bool:
    """Whether an error is of the connection, not of the code that reads it."""
    homes = {cls.__module__.partition(".")[0] for cls in type(error).__mro__}
    return isinstance(error, (OSError, EOFError, *_TORN)) or bool(homes & _CLIENTS)
