"""A response as the events in which the Messages API streams it, and what can go wrong with them on the way."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, final

__all__ = ["StreamFault", "Streamed", "to_events"]

Json = dict[str, Any]

# By type of block: each field that comes piece by piece, the delta that carries it, and the delta's own field. A block
# starts with these fields empty; all others, and all blocks of other types, come whole ("Streaming messages" page).
_DELTAS = {
    "text": [("text", "text_delta", "text"), ("citations", "citations_delta", "citation")],
    "thinking": [("thinking", "thinking_delta", "thinking"), ("signature", "signature_delta", "signature")],
    "tool_use": [("input", "input_json_delta", "partial_json")],
    "server_tool_use": [("input", "input_json_delta", "partial_json")],
}
# What of the envelope comes at the end, and what of the usage comes once more (RawMessageDeltaEvent of the SDK).
_LATE = ("stop_reason", "stop_sequence", "stop_details", "container")
_COUNTED_AGAIN = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
    "output_tokens_details",
    "server_tool_use",
)
_OVERLOADED: Json = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}

StreamFault = Literal["cut", "cut_character", "end", "error", "repeat", "stall"]
"""What goes wrong with a stream; see `Streamed`."""


@final
@dataclass(frozen=True, slots=True)
class Streamed:
    """A scripted reply with a say in how it is streamed.

    `reply` is a list of content blocks or a response. `piece` is the number of characters in a delta of text or JSON.
    `fault` comes once the events `[:after]` are sent; by default these are all but the last, `message_stop`:

    - `cut`: the connection breaks.
    - `cut_character`: the connection breaks inside the next character that takes several bytes.
    - `end`: the stream ends as if it were whole.
    - `error`: an `overloaded_error` follows, and the stream ends.
    - `repeat`: the last event comes a second time, and the stream goes on.
    - `stall`: nothing comes for `seconds`, then the stream goes on; by default until the client hangs up.

    >>> Streamed([{"type": "text", "text": "Hello."}], "cut", after=3).fault
    'cut'
    """

    reply: Sequence[Mapping[str, object]] | Mapping[str, object]
    fault: StreamFault | None = None
    after: int = -1
    seconds: float = math.inf
    piece: int = 16


def to_events(response: Mapping[str, Any], piece: int = 16) -> list[Json]:
    """The events in which the API streams a response.

    Args:
        response: A response as the API gives it when it does not stream. The input of a call may also be JSON text,
            which goes out as it is; so the half of a call can be sent that a reply cut at `max_tokens` ends with.
        piece: The number of characters in a delta of text or JSON.

    >>> for event in to_events({"content": [{"type": "text", "text": "Hello."}], "stop_reason": "end_turn"}, piece=4):
    ...     print(*filter(None, (event["type"], event.get("delta"))))
    message_start
    content_block_start
    ping
    content_block_delta {'type': 'text_delta', 'text': 'Hell'}
    content_block_delta {'type': 'text_delta', 'text': 'o.'}
    content_block_stop
    message_delta {'stop_reason': 'end_turn'}
    message_stop
    """
    usage = response.get("usage", {"output_tokens": 1})
    message = {key: None if key in _LATE else value for key, value in response.items()}
    events: list[Json] = [
        {
            "type": "message_start",
            "message": {**message, "content": [], "usage": {**usage, "output_tokens": 1}},
        }
    ]
    for index, block in enumerate(response["content"]):
        started, deltas = _split(block, piece)
        events.append({"type": "content_block_start", "index": index, "content_block": started})
        if index == 0:
            events.append({"type": "ping"})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    last = {key: response[key] for key in _LATE if key in response}
    counted = {key: usage[key] for key in _COUNTED_AGAIN if key in usage}
    return [*events, {"type": "message_delta", "delta": last, "usage": counted}, {"type": "message_stop"}]


def _split(block: Mapping[str, Any], piece: int) -> tuple[Json, list[Json]]:
    """A block as it starts, and the deltas that fill it."""
    started, deltas = dict(block), list[Json]()
    for field, delta, key in _DELTAS.get(str(block.get("type")), ()):
        value = block.get(field)
        if field == "input" and isinstance(value, (str, dict)):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            started[field] = {}
            # The first piece is empty, and no other comes if there are no arguments.
            parts: list[Any] = ["", *_pieces("" if text == "{}" else text, piece)]
        elif field == "signature" and isinstance(value, str):
            started[field], parts = "", [value]
        elif isinstance(value, (str, list)):
            started[field] = type(value)()
            parts = value if isinstance(value, list) else list(_pieces(value, piece))
        else:
            continue
        deltas += [{"type": delta, key: part} for part in parts]
    return started, deltas


def _pieces(text: str, size: int) -> Iterator[str]:
    return (text[at : at + size] for at in range(0, len(text), size))


def to_parts(streamed: Streamed, response: Json) -> list[bytes | float]:
    """What goes over the connection: chunks of the body, and silences in seconds. The chunk that ends a body is empty."""
    chunks = [_encoded(event) for event in to_events(response, streamed.piece)]
    if streamed.fault is None:
        return [*chunks, b""]
    sent, rest = chunks[: streamed.after], chunks[streamed.after :]
    match streamed.fault:
        case "cut":
            return [*sent]
        case "cut_character":
            text = b"".join(rest)
            at = next((at for at, byte in enumerate(text) if byte > 127), None)
            if at is None:
                raise ValueError("no character of several bytes is left to cut")
            return [*sent, text[: at + 1]]
        case "end":
            return [*sent, b""]
        case "error":
            return [*sent, _encoded(_OVERLOADED), b""]
        case "repeat":
            return [*sent, *sent[-1:], *rest, b""]
        case "stall":
            return [*sent, streamed.seconds, *rest, b""]
        case _:
            raise ValueError(f"no fault is named {cast('object', streamed.fault)!r}")


def _encoded(event: Json) -> bytes:
    """An event as the API sends it. A lone surrogate, which UTF-8 cannot write, becomes its JSON escape."""
    data = json.dumps(event, ensure_ascii=False)
    return f"event: {event['type']}\ndata: {data}\n\n".encode(errors="backslashreplace")
