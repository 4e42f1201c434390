"""What convmodel costs beside plain dicts through the SDK, as ratios within one run.

    python benchmarks/bench.py [loop append message body parse memory prefix stream import]

A standard turn is thinking of 1.5 kB with a signature of 400 characters, 200 B of text and two calls with 300 B of nested
input, then two results of 2 kB. Each section interleaves what it compares and prints medians, so that a machine whose
speed drifts does not decide. Targets stand beside the figures. It needs the dev group.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

from convmodel import AwaitingModel, AwaitingTools, Conversation, start
from convmodel.anthropic import (
    CachePolicy,
    Target,
    from_message,
    parse,
    read_stream,
    stale_thinking,
    to_body,
    to_request,
)
from convmodel.testing import to_events

TARGET = Target(model="claude-opus-4-8", thinking={"type": "adaptive"})
BOUND = Target(model="claude-opus-5-5", thinking={"type": "adaptive"})
TOOLS: list[Any] = [{"name": "edit", "input_schema": {"type": "object"}}]
WORDS = [
    "def",
    "return",
    "self",
    "import",
    "value",
    "file",
    "error",
    "test",
    "path",
    '"quoted"',
    "result",
    "→",
    "index\n",
    "",
    "",
    "",
    "class",
    "é",
    "list",
    "42",
    "{}",
]


class Transcript:
    """Deterministic traffic: responses and tool results, every string an object of its own."""

    def __init__(self) -> None:
        self.random, self.calls = random.Random(7), 0

    def text(self, size: int) -> str:
        return " ".join(self.random.choices(WORDS, k=size // 5))[:size]

    def call(self) -> dict[str, Any]:
        self.calls += 1
        edits = [
            {"old": self.text(60), "new": self.text(80), "count": 3, "flags": {"regex": False, "ci": None}}
        ]
        given = {"path": f"/srv/app/{self.calls}.py", "edits": edits, "options": {"limits": [1, 2.5, 10**6]}}
        return {"type": "tool_use", "id": f"toolu_{self.calls:022d}", "name": "edit", "input": given}

    def response(self) -> dict[str, Any]:
        content = [
            {"type": "thinking", "thinking": self.text(1500), "signature": self.text(400)},
            {"type": "text", "text": self.text(200), "citations": None},
            self.call(),
            self.call(),
        ]
        envelope = {"id": f"msg_{self.calls}", "type": "message", "role": "assistant", "model": TARGET.model}
        usage = {"input_tokens": 1, "output_tokens": 1}
        return {
            **envelope,
            "content": content,
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": usage,
        }

    def messages(self, rounds: int) -> list[dict[str, Any]]:
        out: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "Begin."}]}]
        for _ in range(rounds):
            content = [
                {k: v for k, v in block.items() if v is not None} for block in self.response()["content"]
            ]
            out.append({"role": "assistant", "content": content})
            ids = [block["id"] for block in content if block["type"] == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": id, "content": self.text(2000)} for id in ids]
            out.append({"role": "user", "content": results})
        return out


def medians(*work: Callable[[], object], runs: int = 7) -> list[float]:
    """The median time of each piece of work in seconds, measured in turns."""
    times: list[list[float]] = [[] for _ in work]
    for _ in range(runs):
        for kept, do in zip(times, work, strict=True):
            gc.collect()
            begin = time.perf_counter()
            do()
            kept.append(time.perf_counter() - begin)
    return [statistics.median(each) for each in times]


def show(what: str, figure: float, target: str) -> None:
    print(f"  {what:<64} {figure:8.3f}   target {target}")


def sdk_body(messages: list[Any]) -> bytes:
    """A body as the client makes it of plain dicts."""
    from anthropic._utils._json import openapi_dumps
    from anthropic._utils._prepare import prepare_request_data

    body = {"model": TARGET.model, "max_tokens": 4096, "messages": messages, "tools": TOOLS}
    return openapi_dumps(prepare_request_data(body, location="body"))


def dict_loop(rounds: list[tuple[Any, list[str]]], encode: Callable[[list[Any]], bytes]) -> None:
    messages: list[Any] = [{"role": "user", "content": "Begin."}]
    for message, results in rounds:
        encode(messages)
        content = [block.model_dump(mode="json", exclude_none=True) for block in message.content]
        messages.append({"role": "assistant", "content": content})
        ids = [block["id"] for block in content if block["type"] == "tool_use"]
        pairs = zip(ids, results, strict=True)
        answers = [{"type": "tool_result", "tool_use_id": id, "content": text} for id, text in pairs]
        messages.append({"role": "user", "content": answers})


def convmodel_loop(
    rounds: list[tuple[Any, list[str]]], send: Callable[[AwaitingModel], object]
) -> Conversation:
    convo: AwaitingModel = start("Begin.", tools=TOOLS)
    for message, results in rounds:
        send(convo)
        outcome = convo.receive(from_message(message, TARGET))
        assert isinstance(outcome, AwaitingTools)
        pairs = zip(outcome.open_calls, results, strict=True)
        convo = outcome.answer(call.result(text) for call, text in pairs)
    return convo


def loop() -> None:
    from anthropic.types import Message

    made = Transcript()
    rounds = [(Message.construct(**made.response()), [made.text(2000), made.text(2000)]) for _ in range(400)]
    through_sdk, as_bytes, as_dicts, orjson_loop = medians(
        lambda: dict_loop(rounds, sdk_body),
        lambda: convmodel_loop(rounds, lambda convo: to_body(convo, TARGET, max_tokens=4096)),
        lambda: convmodel_loop(rounds, lambda convo: sdk_body(list(to_request(convo, TARGET)["messages"]))),
        lambda: dict_loop(rounds, dumps()),
        runs=1,
    )
    print(f"agent loop, 400 rounds (plain dicts through the SDK: {through_sdk:.2f} s)")
    show("bytes path / plain dicts through the SDK", as_bytes / through_sdk, "<= 0.015")
    show("bytes path / plain dicts with orjson", as_bytes / orjson_loop, "<= 0.4")
    show("`messages.create` path / plain dicts through the SDK", as_dicts / through_sdk, "<= 1.1")


def dumps() -> Callable[[Any], bytes]:
    import orjson  # of the dev group

    return orjson.dumps


def append() -> None:
    def grown(length: int) -> Conversation:
        return parse([{"role": ("user", "assistant")[i % 2], "content": "text"} for i in range(length)])

    def times(convo: Conversation) -> float:
        assert isinstance(convo, AwaitingModel)
        taken: list[float] = []
        for _ in range(2000):
            begin = time.perf_counter()
            convo = convo.user("More.")
            taken.append(time.perf_counter() - begin)
        return statistics.median(taken)

    short, long = times(grown(11)), times(grown(100_001))
    print(f"append ({short * 1e6:.1f} µs at 11 turns)")
    show("append at 100,000 turns / at 11", long / short, "<= 1.3")


def message() -> None:
    from anthropic._models import construct_type
    from anthropic.types import Message

    made = Transcript()
    raw = [made.response() for _ in range(400)]
    objects = [Message.construct(**each) for each in raw]
    sdk, ours = medians(
        lambda: [construct_type(type_=Message, value=each) for each in raw],
        lambda: [from_message(each, TARGET) for each in objects],
    )
    print(f"from_message ({ours / 400 * 1e6:.1f} µs a message)")
    show("from_message / what the SDK needs to make the object", ours / sdk, "10 µs; <= 0.06 of the SDK")


def body() -> None:
    messages = Transcript().messages(500)
    convo = parse(messages, tools=TOOLS)
    assert isinstance(convo, AwaitingModel)
    to_body(convo, TARGET, max_tokens=4096)
    caching = Target(model=TARGET.model, thinking=TARGET.thinking, cache=CachePolicy())
    latest = [convo]

    def one_more(target: Target) -> None:
        latest[0] = latest[0].user("More.")
        to_body(latest[0], target, max_tokens=4096)

    encode = dumps()
    plain, ours, marked = medians(
        lambda: encode(messages), lambda: one_more(TARGET), lambda: one_more(caching), runs=21
    )
    print(f"body of 1,000 messages after one append ({ours * 1e3:.2f} ms)")
    show("body / orjson of the plain dicts", ours / plain, "<= 0.35")
    show("body with cache markers / without", marked / ours, "<= 1.1")


def parsing() -> None:
    text = json.dumps(Transcript().messages(500))
    loads, ours = medians(lambda: json.loads(text), lambda: parse(text))
    print(f"parse of 1,000 stored messages ({ours * 1e3:.0f} ms)")
    show("parse with every check / json.loads alone", ours / loads, "<= 1.6")


def memory() -> None:
    def held(make: Callable[[], object]) -> tuple[int, object]:
        gc.collect()
        tracemalloc.start()
        kept = make()
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return used, kept

    def conversation() -> AwaitingModel:
        convo = parse(json.loads(text), tools=TOOLS)
        assert isinstance(convo, AwaitingModel)
        to_body(convo, TARGET, max_tokens=4096)
        return convo

    text = json.dumps(Transcript().messages(500))
    to_body(start("Warm up.", tools=TOOLS), TARGET)
    plain, _ = held(lambda: json.loads(text))
    ours, convo = held(conversation)
    assert isinstance(convo, AwaitingModel)

    def snapshots() -> list[AwaitingModel]:
        kept = [convo]
        for _ in range(1000):
            kept.append(kept[-1].user("x"))
        return kept

    many, kept = held(snapshots)
    one, _ = held(lambda: [convo.rewind(convo_length(convo)) for _ in range(1000)])
    print(f"memory ({ours / 1001:.0f} B a turn after a body was written)")
    show("conversation / plain dicts", ours / plain, "<= 1.3")
    show("kB for one more kept snapshot, its turn included", many / 1000 / 1024, "<= 0.5 without the turn")
    show("kB for one more kept snapshot", one / 1000 / 1024, "<= 0.5")
    del kept


def convo_length(convo: Conversation) -> int:
    return len(convo.turns)


def prefix() -> None:
    def grown(length: int) -> AwaitingModel:
        convo = parse(Transcript().messages(length // 2), tools=TOOLS)
        assert isinstance(convo, AwaitingModel)
        assert convo.binding
        return convo

    def times(convo: AwaitingModel) -> list[float]:
        """A thousand checks, a hundred comparisons, a branch, an edit at the end, and one of everything."""
        one, two = convo.user("One."), convo.user("Other.")
        last = convo.turns[-1]
        return medians(
            lambda: [stale_thinking(convo, BOUND) for _ in range(1000)],
            lambda: [one.common_prefix(two) for _ in range(100)],
            lambda: convo.user("More."),
            lambda: convo.replace(len(convo.turns) - 1, last),
            lambda: convo.with_system("Be brief.", on_thinking="strip_after"),
        )

    print("prefix and edits, on 100 turns and on 10,000")
    short, long = times(grown(100)), times(grown(10_000))
    names = ("us for stale_thinking", "us for common_prefix", "us for a branch", "us for an edit at the end")
    targets = ("<= 10, the same for both", "<= 100, the same within 5", "<= 1,000", "<= 2,000")
    per = (1e3, 1e4, 1e6, 1e6)
    for name, small, large, scale, target in zip(names, short, long, per, targets, strict=False):
        show(f"{name}, 100 turns", small * scale, target)
        show(f"{name}, 10,000 turns", large * scale, target)
    show("us a turn to strip all thinking of 10,000", long[4] * 1e6 / 1e4, "<= 50")


def deltas(kind: str, text: str, count: int) -> list[Any]:
    """The SDK's events of a response of one block, whose text comes in so many pieces."""
    block = {
        "text": {"type": "text", "text": text},
        "tool_use": {"type": "tool_use", "id": "a", "name": "f", "input": text},
    }
    from anthropic._models import construct_type
    from anthropic.types import RawMessageStreamEvent

    size = -(-len(text) // count)
    reply = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": TARGET.model,
        "content": [block[kind]],
    }
    usage = {"input_tokens": 1, "output_tokens": 1}
    events = to_events(
        {**reply, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}, piece=size
    )
    return [construct_type(type_=RawMessageStreamEvent, value=event) for event in events]


def stream() -> None:
    from anthropic.lib.streaming._messages import accumulate_event

    def theirs(events: list[Any]) -> None:
        snapshot: Any = None
        inputs: dict[int, bytes] = {}
        for event in events:
            snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=inputs)

    argument = json.dumps({"text": "a line of code\n" * 70_000})
    for what, events in (
        ("10 MB of text in 100,000 deltas", deltas("text", "word " * 2_000_000, 100_000)),
        ("10 kB of a call's input in 1,000 deltas", deltas("tool_use", argument[:10_000] + '"}', 1_000)),
    ):
        sdk, ours = medians(partial(theirs, events), partial(read_stream, events), runs=1)
        show(f"read_stream of {what} / the SDK's accumulator", ours / sdk, "< 1")
    # The SDK parses all of a call's input anew at each delta, so that the large one is compared with its own tenth.
    large, small = (
        deltas("tool_use", argument, 100_000),
        deltas("tool_use", argument[:100_000] + '"}', 10_000),
    )
    tenth, whole = medians(lambda: read_stream(small), lambda: read_stream(large), runs=3)
    print(f"1 MB of a call's input in 100,000 deltas ({whole * 1e3:.0f} ms)")
    show("ten times the input and the deltas / ten times the time", whole / tenth / 10, "<= 1.5")


def importing() -> None:
    def fresh(code: str) -> float:
        timed = f"import time; begin = time.perf_counter(); {code}; print(time.perf_counter() - begin)"
        run = [float(subprocess.check_output([sys.executable, "-c", timed])) for _ in range(5)]
        return statistics.median(run)

    ours, sdk = fresh("import convmodel"), fresh("import anthropic")
    print(f"import ({ours * 1e3:.0f} ms)")
    show("import convmodel / import anthropic", ours / sdk, "<= 0.07")


SECTIONS: dict[str, Callable[[], None]] = {
    "loop": loop,
    "append": append,
    "message": message,
    "body": body,
    "parse": parsing,
    "memory": memory,
    "prefix": prefix,
    "stream": stream,
    "import": importing,
}

if __name__ == "__main__":
    print(f"Python {sys.version.split()[0]}")
    for name in sys.argv[1:] or SECTIONS:
        SECTIONS[name]()
