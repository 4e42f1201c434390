"""What repair libraries find, mend and lose in the same broken histories.

    python benchmarks/compare_repair.py [--seed N] [--drawn N] [--speed] [--write]

Valid histories, drawn from the strategies with a fixed seed and written by hand, are broken in named ways. Each library
repairs each of them through its recommended entry point, and `convmodel.testing.judge`, which shares no code with our
repair, says whether the Messages API would take what comes out. Everything that a user, a model or a tool has said
carries a mark, so that what is lost, made up or given to the wrong call can be counted. `--write` puts the tables into
`docs/repair-compared.md`. The other libraries come with the dependency group `compare`; one that is not there is named.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import copy
import gc
import importlib
import json
import random
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, cast

import anthropic
import httpx2
from hypothesis import HealthCheck, Phase, given, seed, settings

from convmodel import Conversation
from convmodel.anthropic import Target, check, to_messages
from convmodel.repair import repair
from convmodel.testing import judge
from convmodel.testing.strategies import TOOL_NAMES, sendable_conversations

Json = dict[str, Any]
History = list[Json]

PAGE = Path(__file__).parent.parent / "docs" / "repair-compared.md"
TARGET = Target("claude-opus-4-8", {"type": "adaptive"})
TOOLS: list[Any] = [{"name": name, "input_schema": {"type": "object"}} for name in TOOL_NAMES]
NEXT: Json = {"role": "user", "content": [{"type": "text", "text": "And now?"}]}
"""What the user says when the session is loaded again; every history ends with it, so that all can be sent."""


def faults(messages: object, system: Any = None) -> set[str]:
    """The rules for which the API would refuse a request with these messages."""
    body: Json = {"model": TARGET.model, "max_tokens": 64, "messages": messages, "tools": TOOLS}
    if system:
        body["system"] = system
    return {fault.rule for fault in judge({**body, "thinking": {"type": "adaptive"}})}


# ---------------------------------------------------------------- valid histories


def say(*content: Json | str) -> Json:
    return {"role": "user", "content": [as_block(each) for each in content]}


def reply(*content: Json | str) -> Json:
    return {"role": "assistant", "content": [as_block(each) for each in content]}


def as_block(value: Json | str) -> Json:
    return {"type": "text", "text": value} if isinstance(value, str) else value


def call(id: str, **given: Any) -> Json:
    return {"type": "tool_use", "id": id, "name": TOOL_NAMES[0], "input": given}


def result(id: str, content: Any = "done", **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


def thought(text: str = "Let me see.") -> Json:
    return {"type": "thinking", "thinking": text, "signature": "c2lnbmVk"}


def search(id: str) -> list[Json]:
    page = {
        "type": "web_search_result",
        "url": "https://a.org",
        "title": "A page",
        "encrypted_content": "b3BhcXVl",
    }
    use = {"type": "server_tool_use", "id": id, "name": "web_search", "input": {"query": "lamps"}}
    return [use, {"type": "web_search_tool_result", "tool_use_id": id, "content": [page]}]


PIXEL = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
HIDDEN = {"type": "redacted_thinking", "data": "aGlkZGVu"}
WRITTEN: dict[str, History] = {
    "a tool loop": [
        say("Fix the test."),
        *(
            message
            for n in range(4)
            for message in (
                reply(thought(), f"Step {n}.", call(f"toolu_{n}", step=n)),
                say(result(f"toolu_{n}", f"output {n}")),
            )
        ),
        reply("Fixed."),
    ],
    "parallel calls": [
        say("Compare three cities."),
        reply(
            thought(),
            call("toolu_a", city="Oslo"),
            thought("And."),
            call("toolu_b", city="Rome"),
            call("toolu_c", city="Bonn"),
        ),
        say(result("toolu_b"), result("toolu_a", is_error=True), result("toolu_c"), "Be quick."),
        reply("Rome is warmest."),
        say("And coldest?"),
        reply(call("toolu_d", city="Kiruna"), call("toolu_e", city="Tromsø")),
        say(result("toolu_d"), result("toolu_e")),
        reply("Kiruna."),
    ],
    "thinking": [
        say("Prove it."),
        reply(thought(), HIDDEN, thought(""), "So it follows."),
        say("Again."),
        reply(thought("Once more."), "It follows."),
    ],
    "server tools": [
        say("Where are lamps sold?"),
        reply("Searching.", *search("srvtoolu_1"), *search("srvtoolu_2"), "Here."),
        say("Order one."),
        reply(*search("srvtoolu_3"), "I will.", call("toolu_o", n=1)),
        say(result("toolu_o")),
        reply("Ordered."),
    ],
    "system turns": [
        say("Hello."),
        reply("Hi."),
        say("What next?"),
        {"role": "system", "content": [{"type": "text", "text": "Answer in French."}]},
        reply(call("toolu_s", n=1)),
        say(result("toolu_s", [as_block("done")]), PIXEL, "See?"),
        reply("Oui."),
    ],
    "plain strings": [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Run it."},
        reply(call("toolu_p", n=1)),
        say(result("toolu_p")),
        {"role": "assistant", "content": "It ran."},
    ],
}
"""By hand: what agents hold most."""


def drawn(number: int, examples: int) -> list[History]:
    """Histories out of the strategies, the same for the same seed."""
    found: list[History] = []

    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large),
    )
    @seed(number)
    @given(sendable_conversations(opaque=False, max_moves=16))
    def collect(convo: Conversation) -> None:
        made_up = any(getattr(block, "synthetic", None) for turn in convo.turns for block in turn.blocks)
        # A container is kept beside the messages, where none of the others looks.
        if convo.container is None and not made_up:
            found.append(cast("History", to_messages(convo)))

    collect()
    return found


def usable(histories: Iterable[History]) -> list[History]:
    """Marked, each with a new prompt at its end: those that the API takes, and that have no turn without content."""
    made = [marked([*messages, NEXT]) for messages in histories]
    return [
        messages
        for messages in made
        if len(messages) > 2 and all(message["content"] for message in messages) and not faults(messages)
    ]


# ---------------------------------------------------------------- marks, and what they tell

MARK = re.compile(r"#\d+#")


def marked(messages: History) -> History:
    """A copy in which everything said, thought, called and answered can be told apart."""
    messages = copy.deepcopy(messages)
    numbers = iter(range(10**6))

    def mark(text: str) -> str:
        return f"{text} #{next(numbers)}#".strip()

    for message in messages:
        if isinstance(message["content"], str):
            message["content"] = mark(message["content"])
            continue
        for block in message["content"]:
            match block["type"]:
                case "text" if block["text"].strip():
                    block["text"] = mark(block["text"])
                case "thinking":
                    block["signature"] = mark(block["signature"])
                case "redacted_thinking":
                    block["data"] = mark(block["data"])
                case "tool_use":
                    block["input"] = {"mark": mark(""), **block["input"]}
                case "tool_result":
                    mark_result(block, mark)
                case _:
                    pass
    return messages


def mark_result(block: Json, mark: Callable[[str], str]) -> None:
    content = block.get("content")
    if not isinstance(content, list):
        block["content"] = mark(content or "")
    elif content and content[0]["type"] == "search_result":
        content[0]["title"] = mark(content[0]["title"])
    else:
        content.append({"type": "text", "text": mark("")})


class Told(NamedTuple):
    """What a history tells."""

    said: dict[str, dict[str, set[int]]]
    """For each kind of saying the marks, each with the messages that hold it."""
    pairs: dict[str, str]
    """For each result the call that it answers."""
    made: list[tuple[str, bool]]
    """Each result without a mark, and whether it is an error."""


KINDS = ("words", "replies", "thinking", "calls", "results", "searches")


def marks_in(value: object) -> list[str]:
    return MARK.findall(value if isinstance(value, str) else json.dumps(value))


def told(messages: Iterable[Any], system: Any = None) -> Told:
    """What is said in a history, also in OpenAI's rows."""
    found = Told({kind: defaultdict(set) for kind in KINDS}, {}, [])
    answered: dict[str, str] = {}

    def note(kind: str, value: object, at: int) -> None:
        for mark in marks_in(value):
            found.said[kind][mark].add(at)

    note("words", system or "", -1)
    for at, message in enumerate(messages):
        spoken = "replies" if message["role"] == "assistant" else "words"
        if message["role"] == "tool":
            note("results", message["content"], at)
            continue
        for row in message.get("tool_calls") or ():
            note("calls", row["function"]["arguments"], at)
        content = message["content"]
        for block in [as_block(content)] if isinstance(content, str) else content or ():
            kind = block.get("type")
            if kind == "text":
                note(spoken, block.get("text"), at)
            elif kind in ("thinking", "redacted_thinking"):
                note("thinking", block.get("signature") or block.get("data") or "", at)
            elif kind == "tool_use":
                note("calls", block.get("input"), at)
                answered[block["id"]] = "".join(marks_in(block.get("input"))[:1])
            elif kind == "tool_result":
                note("results", block.get("content"), at)
                marks = marks_in(block.get("content"))
                found.pairs.update((mark, answered.get(block["tool_use_id"], "")) for mark in marks)
                if not marks:
                    found.made.append((json.dumps(block.get("content")), bool(block.get("is_error"))))
            elif str(kind).endswith("_tool_result"):
                found.said["searches"][block["tool_use_id"]].add(at)
    return found


def keepable(messages: History) -> Told:
    """What a repair could keep: all but results whose call is gone, and searches without their call."""
    found = told(messages)
    ids = {block.get("id") for block in blocks_of(messages)}
    ids |= {row["id"] for message in messages for row in message.get("tool_calls") or ()}
    gone: set[str] = set()
    for block in blocks_of(messages):
        if block.get("type") == "tool_result" and block.get("tool_use_id") not in ids:
            gone.update(marks_in(block.get("content")))
    for mark in gone:
        del found.said["results"][mark]
    for id in set(found.said["searches"]) - ids:
        del found.said["searches"][id]
    return found


# ---------------------------------------------------------------- ways to break them


def lists_of(messages: History) -> list[list[Json]]:
    return [
        message["content"]
        for message in messages
        if isinstance(message["content"], list) and message["content"]
    ]


def blocks_of(messages: History, *types: str) -> list[Json]:
    every = [block for content in lists_of(messages) for block in content]
    return [block for block in every if not types or block.get("type") in types]


Break = Callable[[random.Random, History], History | None]
BREAKS: dict[str, Break] = {}
"""Each way, by its name: an edit in place, or one that returns another list. The new prompt is added afterwards."""


def way(name: str) -> Callable[[Break], Break]:
    def added(edit: Break) -> Break:
        BREAKS[name] = edit
        return edit

    return added


@way("a block deleted")
def _(rng: random.Random, messages: History) -> None:
    content = rng.choice(lists_of(messages))
    del content[rng.randrange(len(content))]


@way("a block twice")
def _(rng: random.Random, messages: History) -> None:
    content = rng.choice(lists_of(messages))
    at = rng.randrange(len(content))
    content.insert(at, copy.deepcopy(content[at]))


@way("two blocks swapped")
def _(rng: random.Random, messages: History) -> None:
    content = rng.choice(lists_of(messages))
    at = rng.randrange(len(content))
    content[at - 1], content[at] = content[at], content[at - 1]


@way("a block moved to another turn")
def _(rng: random.Random, messages: History) -> None:
    content, other = rng.choice(lists_of(messages)), rng.choice(lists_of(messages))
    other.insert(rng.randrange(len(other) + 1), content.pop(rng.randrange(len(content))))


@way("a turn deleted")
def _(rng: random.Random, messages: History) -> None:
    del messages[rng.randrange(len(messages))]


@way("a turn twice")
def _(rng: random.Random, messages: History) -> None:
    at = rng.randrange(len(messages))
    messages.insert(at, copy.deepcopy(messages[at]))


@way("two turns swapped")
def _(rng: random.Random, messages: History) -> None:
    at = rng.randrange(1, len(messages)) if len(messages) > 1 else 0
    messages[at - 1], messages[at] = messages[at], messages[at - 1]


@way("head cut off, `messages[n:]`")
def _(rng: random.Random, messages: History) -> None:
    del messages[: rng.randrange(1, len(messages) + 1)]


@way("tail cut off, `messages[:n]`")
def _(rng: random.Random, messages: History) -> None:
    del messages[rng.randrange(1, len(messages) + 1) :]


@way("cut inside a turn")
def _(rng: random.Random, messages: History) -> None:
    at = rng.randrange(len(messages))
    del messages[at + 1 :]
    if isinstance(messages[at]["content"], list):
        del messages[at]["content"][rng.randrange(len(messages[at]["content"]) + 1) :]


@way("results deleted")
def _(_: random.Random, messages: History) -> None:
    for content in lists_of(messages):
        content[:] = [block for block in content if block["type"] != "tool_result"]


@way("results behind the text")
def _(_: random.Random, messages: History) -> None:
    for message in messages:
        if blocks_of([message], "tool_result"):
            message["content"].insert(0, as_block("Meanwhile."))


@way("results apart, words between")
def _(_: random.Random, messages: History) -> History:
    out: History = []
    for message in messages:
        results = blocks_of([message], "tool_result")
        rest = [block for block in blocks_of([message]) if block["type"] != "tool_result"]
        if not results:
            out.append(message)
            continue
        for block in results:
            out += [say("Wait."), {"role": "user", "content": [block]}]
        out += [{"role": "user", "content": rest}] if rest else []
    return out


@way("results an exchange late")
def _(_: random.Random, messages: History) -> None:
    for at in reversed(range(len(messages))):
        if blocks_of([messages[at]], "tool_result"):
            messages[at:at] = [say("Are you there?"), reply("One moment.")]


@way("a result before its call")
def _(rng: random.Random, messages: History) -> None:
    found = [at for at, message in enumerate(messages) if at and blocks_of([message], "tool_result")]
    if found:
        at = rng.choice(found)
        messages[at - 1], messages[at] = messages[at], messages[at - 1]


@way("a second, other result")
def _(_: random.Random, messages: History) -> None:
    for content in lists_of(messages):
        content.extend(
            result(block["tool_use_id"], "again") for block in list(content) if block["type"] == "tool_result"
        )


@way("results of unknown calls")
def _(rng: random.Random, messages: History) -> None:
    prompts = lists_of([message for message in messages if message["role"] == "user"])
    if prompts:
        rng.choice(prompts).insert(0, result("toolu_gone", "an orphan"))


@way("ids illegal on both sides")
def _(_: random.Random, messages: History) -> None:
    for block in blocks_of(messages, "tool_use", "tool_result"):
        key = "id" if block["type"] == "tool_use" else "tool_use_id"
        block[key] = f"functions.{block[key]}:0"


@way("ids renamed on one side")
def _(_: random.Random, messages: History) -> None:
    for block in blocks_of(messages, "tool_use"):
        block["id"] = f"x_{block['id']}"


@way("ids begin anew each turn")
def _(_: random.Random, messages: History) -> None:
    names: dict[str, str] = {}
    for content in lists_of(messages):
        calls = [block for block in content if block["type"] == "tool_use"]
        names |= {block["id"]: f"call_{at}" for at, block in enumerate(calls)}
        for block in content:
            if block["type"] == "tool_use":
                block["id"] = names[block["id"]]
            elif block["type"] == "tool_result":
                block["tool_use_id"] = names.get(block["tool_use_id"], block["tool_use_id"])


@way("signatures emptied")
def _(_: random.Random, messages: History) -> None:
    for block in blocks_of(messages, "thinking"):
        block["signature"] = ""


@way("signatures stripped")
def _(_: random.Random, messages: History) -> None:
    for block in blocks_of(messages, "thinking"):
        del block["signature"]


@way("output-only fields")
def _(_: random.Random, messages: History) -> None:
    for message in messages:
        if message["role"] == "assistant":
            for block in blocks_of([message]):
                block["index"] = 0
                if block["type"] == "text":
                    block |= {"parsed_output": None, "citations": block.get("citations")}
                if block["type"] == "tool_use":
                    block["caller"] = block.get("caller")


@way("whole responses")
def _(_: random.Random, messages: History) -> None:
    usage = {"input_tokens": 1, "output_tokens": 1}
    for message in messages:
        if message["role"] == "assistant":
            stop = "tool_use" if blocks_of([message], "tool_use") else "end_turn"
            envelope = {"id": "msg_1", "type": "message", "model": TARGET.model, "usage": usage}
            message.update(envelope, stop_reason=stop, stop_sequence=None)


@way("empty texts")
def _(rng: random.Random, messages: History) -> None:
    for content in lists_of(messages):
        content.insert(rng.randrange(len(content) + 1), as_block(""))


@way("turns of whitespace")
def _(rng: random.Random, messages: History) -> None:
    at = rng.randrange(len(messages))
    if not blocks_of([messages[at]], "tool_use", "tool_result"):
        messages[at]["content"] = " \n"


@way("inputs as JSON text")
def _(_: random.Random, messages: History) -> None:
    for block in blocks_of(messages, "tool_use"):
        block["input"] = json.dumps(block["input"])


@way("inputs cut off")
def _(_: random.Random, messages: History) -> None:
    for block in blocks_of(messages, "tool_use"):
        block["input"] = json.dumps(block["input"])[:-1]


@way("halves of characters")
def _(_: random.Random, messages: History) -> None:
    for block in blocks_of(messages, "text", "tool_result"):
        key = "text" if block["type"] == "text" else "content"
        if isinstance(block.get(key), str):
            block[key] = f"{block[key]} \ud83d"


@way("the system prompt as a message")
def _(_: random.Random, messages: History) -> None:
    messages.insert(0, {"role": "system", "content": "Be brief. #999999#"})


@way("half of a search")
def _(rng: random.Random, messages: History) -> None:
    halves = [
        block
        for block in blocks_of(messages)
        if str(block.get("id", block.get("tool_use_id"))).startswith("srv")
    ]
    if halves:
        doomed = rng.choice(halves)
        for content in lists_of(messages):
            content[:] = [block for block in content if block is not doomed]


@way("OpenAI's rows")
def _(_: random.Random, messages: History) -> History:
    if blocks_of(messages, "image", "document", "search_result", "container_upload", "server_tool_use"):
        return messages
    return [row for message in messages for row in openai_rows(message)]


def openai_rows(message: Json) -> Iterator[Json]:
    content = [as_block(message["content"])] if isinstance(message["content"], str) else message["content"]
    for block in content:
        if block["type"] == "tool_result":
            texts = block["content"] if isinstance(block["content"], str) else json.dumps(block["content"])
            yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": texts}
    row: Json = {"role": message["role"]}
    row["content"] = "\n".join(block["text"] for block in content if block["type"] == "text") or None
    calls = [block for block in content if block["type"] == "tool_use"]
    if calls:
        row["tool_calls"] = [
            {
                "id": block["id"],
                "type": "function",
                "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
            }
            for block in calls
        ]
    if row["content"] or calls:
        yield row


@way("two of these")
def _(rng: random.Random, messages: History) -> History:
    for name in rng.sample([name for name in BREAKS if name not in ("OpenAI's rows", "two of these")], 2):
        if lists_of(messages):
            messages = BREAKS[name](rng, messages) or messages
    return messages


def broken_by(name: str, base: History, rng: random.Random) -> History | None:
    """A history after one of the ways, with the new prompt at its end; None if that changes nothing."""
    *before, last = copy.deepcopy(base)
    if not lists_of(before):
        return None
    edited = BREAKS[name](rng, before) or before
    return None if edited == base[:-1] else [*edited, last]


# ---------------------------------------------------------------- the libraries


class Mended(NamedTuple):
    """What a library made of a history."""

    messages: History | None
    """None if it said that it cannot, or failed."""
    system: Any = None
    found: bool | None = None
    """Whether it says that something is wrong, asked beforehand; None if it cannot be asked."""
    report: tuple[str, ...] = ()
    lossy: frozenset[int] = frozenset()
    """The messages of which its report says that something was taken out."""
    failure: str = ""
    """The error with which it failed; empty if it said in a way of its own that it cannot."""
    seconds: float = 0.0
    again: bool = True
    """Whether a second repair changes nothing."""
    same: bool = False
    """Whether the history came back as it was."""


class Library:
    """A repair library through its recommended entry point, with the options for the Messages API."""

    package = "convmodel"

    def __init__(self) -> None:
        self.version = metadata.version(self.package)

    def readable(self, base: History) -> bool:
        """Whether it has a form for what a valid history holds."""
        return True

    def mend(self, messages: History) -> Mended:
        raise NotImplementedError

    def large(self, messages: History) -> Callable[[], object]:
        """A repair of a large history, without what stands around it."""
        raise NotImplementedError


RUNS = 3


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """The shortest time of a few runs in seconds, and what the last one gave."""
    best, made = float("inf"), None
    for _ in range(RUNS):
        begin = time.perf_counter()
        made = work()
        best = min(best, time.perf_counter() - begin)
    return best, made


class UnreadableError(Exception):
    """A library has no form for what a history holds."""


def its_wire(messages: History) -> str:
    """The wire of a history, for libraries that know more than one."""
    if any(message["role"] == "tool" or "tool_calls" in message for message in messages):
        raise UnreadableError("a history of another wire, which it would leave in that wire")
    return "anthropic"


class Convmodel(Library):
    def mend(self, messages: History) -> Mended:
        options: Json = {"tools": TOOLS, "target": TARGET, "stage": "send"}
        found = bool(check(messages, **options))
        seconds, made = timed(lambda: repair(messages, **options))
        if made.messages is None:
            return Mended(None, found=found, seconds=seconds)
        lossy = {int(change.path.split("[")[1].split("]")[0]) for change in made.changes if change.lost}
        return Mended(
            made.messages,
            made.system,
            found,
            tuple(map(str, made.changes)),
            frozenset(lossy),
            seconds=seconds,
            again=repair(made.messages, system=made.system, **options).messages == made.messages,
            same=made.messages == messages,
        )

    def large(self, messages: History) -> Callable[[], object]:
        return lambda: repair(messages, tools=TOOLS, target=TARGET, stage="send")


class Turnsafe(Library):
    package = "turnsafe"

    def __init__(self) -> None:
        super().__init__()
        self.module: Any = importlib.import_module("turnsafe")

    def mend(self, messages: History) -> Mended:
        wire = its_wire(messages)
        try:
            found = not self.module.validate(messages, wire)
            seconds, (out, fixes) = timed(lambda: self.module.repair_detailed(messages, wire))
            if not self.module.validate(out, wire):
                return Mended(None, found=found, seconds=seconds)
            again = self.module.repair(out, wire) == out
        except (ValueError, TypeError) as error:  # its word for what it does not read, with the place
            return Mended(None, found=True, failure="" if "messages" in str(error) else repr(error))
        except Exception as error:  # noqa: BLE001 - that it fails is a finding
            return Mended(None, failure=repr(error))
        lossy = {fix.index for fix in fixes if fix.action.startswith(("dropped", "removed"))}
        report = tuple(map(str, fixes))
        return Mended(
            out, None, found, report, frozenset(lossy), seconds=seconds, again=again, same=out == messages
        )

    def large(self, messages: History) -> Callable[[], object]:
        return lambda: self.module.repair_detailed(messages, "anthropic")


class Tessera(Library):
    package = "tessera-transcript"
    marks_sent = 0
    """How often a history held the field that the service does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.module: Any = importlib.import_module("tessera")

    def mend(self, messages: History) -> Mended:
        wire = its_wire(messages)
        known = (self.module.IrreparableError, self.module.MalformedTranscriptError)
        try:
            found = bool(self.module.inspect(messages, adapter=wire).findings)
            seconds, made = timed(lambda: self.module.repair(messages, adapter=wire))
            if not made.is_valid:
                return Mended(None, found=found, seconds=seconds)
            again = self.module.repair(made.transcript, adapter=wire).transcript == made.transcript
        except known:
            return Mended(None, found=True)
        except Exception as error:  # noqa: BLE001 - that it fails is a finding
            return Mended(None, failure=repr(error))
        out = copy.deepcopy(made.transcript)
        made_up = [block for block in blocks_of(out) if block.pop("_tessera_synthesised", None)]
        self.marks_sent += bool(made_up)
        lossy = {change.message_index for change in made.changes if change.action.startswith("drop")}
        return Mended(
            out,
            None,
            found,
            tuple(map(str, made.changes)),
            frozenset(lossy),
            seconds=seconds,
            again=again,
            same=out == messages,
        )

    def large(self, messages: History) -> Callable[[], object]:
        return lambda: self.module.repair(messages, adapter="anthropic")


class PydanticAI(Library):
    """Its repair works on message classes of its own.

    Assistant turns are read as its Anthropic model reads responses, and histories are written as it writes requests, both
    through the SDK over a transport in memory and with the steps of an agent's run; user turns are made of its parts here. What
    is timed is the repair alone.
    """

    package = "pydantic-ai-slim"

    def __init__(self) -> None:
        super().__init__()
        self.messages: Any = importlib.import_module("pydantic_ai.messages")
        models: Any = importlib.import_module("pydantic_ai.models")
        native: Any = importlib.import_module("pydantic_ai.native_tools")
        tools = [native.WebSearchTool(), native.WebFetchTool(), native.CodeExecutionTool()]
        self.params = models.ModelRequestParameters(native_tools=tools)
        self.loop = asyncio.new_event_loop()
        self.sent: Json = {}
        self.response: Json = {}
        client = anthropic.AsyncAnthropic(
            api_key="none", http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(self.serve))
        )
        provider: Any = importlib.import_module("pydantic_ai.providers.anthropic")
        made: Any = importlib.import_module("pydantic_ai.models.anthropic")
        provider = provider.AnthropicProvider(anthropic_client=client)
        self.model = made.AnthropicModel(TARGET.model, provider=provider)
        self.request: Any = importlib.import_module("pydantic_ai.direct").model_request

    def serve(self, request: httpx2.Request) -> httpx2.Response:
        self.sent = json.loads(request.content)
        return httpx2.Response(
            200, content=json.dumps(self.response).encode(), headers={"content-type": "application/json"}
        )

    def exchange(self, history: Sequence[Any], content: object) -> Any:
        """What the model makes of a response with this content, after it has written the history."""
        usage = {"input_tokens": 1, "output_tokens": 1}
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": TARGET.model, "usage": usage}
        self.response = {**head, "content": content, "stop_reason": "end_turn", "stop_sequence": None}
        return self.loop.run_until_complete(
            self.request(
                self.model,
                list(history),
                model_settings={"max_tokens": 64},
                model_request_parameters=self.params,
            )
        )

    def read(self, messages: History) -> list[Any]:
        names = {str(block.get("id")): block.get("name") for block in blocks_of(messages, "tool_use")}
        opening = [self.messages.ModelRequest.user_text_prompt("Hello.")]
        read: list[Any] = []
        for message in messages:
            if message["role"] == "assistant":
                content = message["content"]
                content = [as_block(content)] if isinstance(content, str) else content
                try:
                    read.append(self.exchange(opening, content))
                except Exception as error:
                    raise UnreadableError(repr(error)) from error
                if len(read[-1].parts) != len(content):
                    raise UnreadableError("a block of a response that it leaves out")
            else:
                read.append(self.messages.ModelRequest(parts=self.parts(message, names)))
        return read

    def parts(self, message: Json, names: dict[str, Any]) -> list[Any]:
        content = message["content"]
        blocks = [as_block(content)] if isinstance(content, str) else content
        if message["role"] == "system":
            return [self.messages.SystemPromptPart(block["text"]) for block in blocks]
        if message["role"] != "user":
            raise UnreadableError("a row of another wire")
        return [
            self.returned(block, names)
            if block["type"] == "tool_result"
            else self.messages.UserPromptPart([self.item(block)])
            for block in blocks
        ]

    def returned(self, block: Json, names: dict[str, Any]) -> Any:
        content = block.get("content") or ""
        if not isinstance(content, str):
            content = [self.item(each) for each in content]
            content = content[0] if len(content) == 1 else content
        return self.messages.ToolReturnPart(
            tool_name=names.get(block["tool_use_id"]) or "unknown",
            content=content,
            tool_call_id=block["tool_use_id"],
            outcome="failed" if block.get("is_error") else "success",
        )

    def item(self, block: Json) -> Any:
        if block["type"] == "text":
            return block["text"]
        source = block.get("source") if block["type"] == "image" else None
        match source:
            case {"type": "url", "url": url}:
                return self.messages.ImageUrl(url)
            case {"type": "base64", "data": data, "media_type": kind}:
                return self.messages.BinaryContent(base64.b64decode(data), media_type=kind)
            case _:
                raise UnreadableError(f"a {block['type']} block")

    def write(self, history: Sequence[Any]) -> tuple[History, Any]:
        prepared = self.model.prepare_messages(list(history), self.params)
        self.exchange(self.messages.repair_messages(prepared), [as_block("Done.")])
        return self.sent["messages"], self.sent.get("system")

    def readable(self, base: History) -> bool:
        try:
            messages, system = self.write(self.read(base))
        except UnreadableError:
            return False
        return not faults(messages, system) and not lost(told(base), told(messages, system))

    def mend(self, messages: History) -> Mended:
        read = self.read(messages)
        seconds, made = timed(lambda: self.messages.repair_messages(read))
        again = self.messages.repair_messages(made) == made
        try:
            out, system = self.write(made)
        except Exception as error:  # noqa: BLE001 - that it fails is a finding
            return Mended(None, failure=repr(error))
        return Mended(out, system, seconds=seconds, again=again, same=made == read)

    def large(self, messages: History) -> Callable[[], object]:
        # Responses are read one by one over the transport, which would take minutes: the plain ones are made here.
        read: list[Any] = []
        names = {block["id"]: block["name"] for block in blocks_of(messages, "tool_use")}
        for message in messages:
            if message["role"] == "user":
                read.append(self.messages.ModelRequest(parts=self.parts(message, names)))
            else:
                parts = [
                    self.messages.ToolCallPart(block["name"], block["input"], block["id"])
                    if block["type"] == "tool_use"
                    else self.messages.TextPart(block["text"])
                    for block in message["content"]
                ]
                read.append(self.messages.ModelResponse(parts=parts))
        return lambda: self.messages.repair_messages(read)


LIBRARIES: tuple[type[Library], ...] = (Convmodel, Turnsafe, Tessera, PydanticAI)


def lost(before: Told, after: Told) -> dict[str, set[str]]:
    """What is gone, by kind."""
    gone = {kind: set(before.said[kind]) - set(after.said[kind]) for kind in KINDS}
    return {kind: marks for kind, marks in gone.items() if marks}


# ---------------------------------------------------------------- counting


class Tally:
    """What one library did to the histories of one kind."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.gone: Counter[str] = Counter()
        """Marks that are gone, by kind."""
        self.silent: Counter[str] = Counter()
        """Those of them that no report tells of."""
        self.failures: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        """The rules for which the judge refuses what came back."""
        self.seconds = 0.0
        self.ours = 0.0
        """The time of our repair for the same histories."""

    def add(self, other: Tally) -> None:
        for mine, theirs in (
            (self.count, other.count),
            (self.gone, other.gone),
            (self.silent, other.silent),
            (self.failures, other.failures),
            (self.refusals, other.refusals),
        ):
            mine.update(theirs)
        self.seconds += other.seconds
        self.ours += other.ours

    def part(self, name: str, of: str = "histories") -> str:
        """A share in per cent."""
        return f"{100 * self.count[name] / self.count[of]:.0f}" if self.count[of] else "-"

    @property
    def cell(self) -> str:
        if not self.count["histories"]:
            return "-"
        found = self.part("found", "asked")
        return f"{found} / {self.part('mended')} / {self.part('with losses')}"

    def take(self, made: Mended, given: History, truth: Told) -> None:
        """Count what came of a broken history, of which `truth` says which result belonged to which call."""
        self.count["histories"] += 1
        self.count["asked"] += made.found is not None
        self.count["found"] += bool(made.found)
        if made.messages is None:
            self.count["failed" if made.failure else "declined"] += 1
            self.failures[made.failure.partition("(")[0]] += bool(made.failure)
            return
        self.count["returned"] += 1
        refused = faults(made.messages, made.system)
        self.count["wrong" if refused else "mended"] += 1
        self.refusals.update(refused)
        before, after = keepable(given), told(made.messages, made.system)
        gone = lost(before, after)
        self.count["with losses"] += bool(gone)
        for kind, marks in gone.items():
            places = before.said[kind]
            self.gone[kind] += len(marks)
            self.silent[kind] += sum(not places[mark] & made.lossy for mark in marks)
        known = {text for text, _ in before.made}
        made_up = [is_error for text, is_error in after.made if text not in known]
        self.count["made up"] += len(made_up)
        self.count["made up as success"] += made_up.count(False)
        right = truth.pairs
        wrong = sum(bool(call) and right.get(mark, call) != call for mark, call in after.pairs.items())
        self.count["results of other calls"] += wrong
        self.count["unstable"] += not made.again
        self.count["changed"] += not made.same
        self.count["changed and said"] += not made.same and bool(made.report)


class Comparison:
    """Every library on every broken history."""

    def __init__(self, number: int, examples: int) -> None:
        self.libraries: list[Library] = []
        self.missing: list[str] = []
        for made in LIBRARIES:
            try:
                self.libraries.append(made())
            except (ImportError, metadata.PackageNotFoundError):
                self.missing.append(made.package)
        written = usable(messages for messages in WRITTEN.values() for _ in range(5))
        self.bases = [*written, *usable(drawn(number, examples))]
        self.tallies: dict[str, dict[str, Tally]] = {
            name: {library.package: Tally() for library in self.libraries} for name in BREAKS
        }
        self.by_hand = {library.package: Tally() for library in self.libraries}
        self.valid = {library.package: Tally() for library in self.libraries}
        self.differences: Counter[tuple[str, str]] = Counter()
        for at, base in enumerate(self.bases):
            truth = told(base)
            able = [library for library in self.libraries if library.readable(base)]
            self.judged(base, truth, able)
            for name in BREAKS:
                broken = broken_by(name, base, random.Random(f"{number}/{at}/{name}"))
                if broken is not None:
                    rows = [self.tallies[name], *([self.by_hand] if at < len(written) else [])]
                    self.judged(broken, truth, able, *rows)

    def judged(self, given: History, truth: Told, able: list[Library], *rows: dict[str, Tally]) -> None:
        """Let the libraries repair a history, and count what came of it in these rows, or as valid if it is."""
        theirs = faults(given)
        ours = {fault.rule.id for fault in check(given, tools=TOOLS, target=TARGET, stage="send")}
        if bool(ours) != bool(theirs):
            self.differences.update(("check", rule) for rule in ours)
            self.differences.update(("judge", rule) for rule in theirs)
        seconds = 0.0
        for library in able:
            try:
                made = library.mend(copy.deepcopy(given))
            except UnreadableError:
                continue
            seconds = made.seconds if isinstance(library, Convmodel) else seconds
            if not theirs:
                valid = self.valid[library.package]
                valid.count["histories"] += 1
                valid.count["same"] += made.same
                continue
            for row in rows:
                tally = row[library.package]
                tally.take(made, given, truth)
                if made.seconds:
                    tally.seconds += made.seconds
                    tally.ours += seconds

    def total(self, package: str) -> Tally:
        total = Tally()
        for row in self.tallies.values():
            total.add(row[package])
        return total


# ---------------------------------------------------------------- tables


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def kinds_table(made: Comparison) -> str:
    packages = [library.package for library in made.libraries]
    rows: list[list[str]] = []
    for name, tallies in made.tallies.items():
        count = tallies["convmodel"].count["histories"]
        if count:
            few = {p: tallies[p].count["histories"] for p in packages}
            cells = [tallies[p].cell + (f" of {few[p]}" if 0 < few[p] < count else "") for p in packages]
            rows.append([name, str(count), *cells])
    return table(["what was done", "broken", *packages], rows)


def totals_table(made: Comparison) -> str:
    packages = [library.package for library in made.libraries]
    totals = {package: made.total(package) for package in packages}

    def row(name: str, figure: Callable[[Tally], object]) -> list[object]:
        return [name, *(figure(totals[package]) for package in packages)]

    def gone(kind: str) -> Callable[[Tally], str]:
        return lambda tally: f"{tally.gone[kind]} ({tally.silent[kind]})"

    rows: list[list[object]] = [
        row("broken histories that it was given", lambda tally: tally.count["histories"]),
        row("says beforehand that something is wrong, %", lambda tally: tally.part("found", "asked")),
        row("mended: the judge takes it, %", lambda tally: tally.part("mended")),
        [
            "mended, of what was written by hand, %",
            *(made.by_hand[package].part("mended") for package in packages),
        ],
        row("came back broken, without a word, %", lambda tally: tally.part("wrong")),
        row("says that it cannot, %", lambda tally: tally.part("declined")),
        row("fails with an error from inside, %", lambda tally: tally.part("failed")),
        *(row(f"lost (untold): {kind}", gone(kind)) for kind in KINDS),
        row(
            "placeholders made, of them not as errors",
            lambda t: f"{t.count['made up']}, {t.count['made up as success']}",
        ),
        row("results given to another call", lambda tally: tally.count["results of other calls"]),
        row("a second repair changes something", lambda tally: tally.count["unstable"]),
        row(
            "says what it changed, % of the changed", lambda tally: tally.part("changed and said", "changed")
        ),
        [
            "valid histories that came back as they were, %",
            *(made.valid[package].part("same") for package in packages),
        ],
        row("time / ours for the same histories", lambda t: f"{t.seconds / t.ours:.2f}" if t.ours else "-"),
    ]
    return table(["over all", *packages], rows)


def remarks(made: Comparison) -> str:
    lines: list[str] = []
    for library in made.libraries:
        total = made.total(library.package)
        refused = ", ".join(f"`{rule}` {n}" for rule, n in total.refusals.most_common(6))
        failed = ", ".join(f"`{name}` {n}" for name, n in total.failures.most_common() if n)
        lines.append(f"- {library.package}: {refused or 'nothing came back broken'}")
        lines[-1] += f"; fails with {failed}." if failed else "."
    lines = ["Why the judge refuses what came back:", "", *lines]
    if marks := sum(library.marks_sent for library in made.libraries if isinstance(library, Tessera)):
        text = "tessera marks its placeholders with the field `_tessera_synthesised`, which the service does not know. In"
        text += f" {marks} of the histories the judge would refuse what came back for that alone; the field is taken out"
        lines += ["", f"{text} here, so that the rest can be compared."]
    if made.differences:
        lines += ["", "Where our `check` and the judge differ over a history that was given:", ""]
        lines += [f"- only the {who}: `{rule}` {n}" for (who, rule), n in made.differences.most_common()]
    return "\n".join(lines)


def large_history(count: int) -> History:
    """Rounds of one call each, where every tenth result is missing and every tenth comes twice."""
    messages: History = [say("Begin.")]
    while len(messages) < count - 2:
        n = len(messages)
        answer = result(f"toolu_{n}", f"output {n}")
        content = {0: [as_block("Go on.")], 1: [answer, answer]}.get(n // 2 % 10, [answer])
        messages += [reply(f"Step {n}.", call(f"toolu_{n}", step=n)), say(*content)]
    return [*messages, reply("Done."), say("And now?")]


def speed_table(made: Comparison) -> str:
    sizes = (10_000, 100_000)
    histories = [large_history(size) for size in sizes]
    rows: list[list[str]] = []
    base: float | None = None
    for library in made.libraries:
        seconds: list[float] = []
        for messages in histories:
            work = library.large(messages)
            gc.collect()
            seconds.append(timed(work)[0])
        base = base or seconds[0]
        rows.append([library.package, f"{seconds[0] / base:.2f}", f"{seconds[1] / seconds[0]:.1f}"])
        print(library.package, *(f"{each:.2f} s" for each in seconds), file=sys.stderr)
    return table(["", "10,000 messages, time / ours", "100,000 / 10,000"], rows)


def put(page: str, name: str, text: str) -> str:
    """A page with the text between the markers of that name."""
    begin, end = f"<!-- measured: {name} -->", "<!-- end -->"
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n\n{text}\n\n{end}{tail}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare repair libraries on broken histories.")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--drawn", type=int, default=400, help="how many histories to draw")
    parser.add_argument("--speed", action="store_true", help="also repair 10,000 and 100,000 messages")
    parser.add_argument("--write", action="store_true", help="write the tables into the page")
    given = parser.parse_args()
    made = Comparison(given.seed, given.drawn)
    versions = ", ".join(f"{library.package} {library.version}" for library in made.libraries)
    run = f"{versions}; Hypothesis {metadata.version('hypothesis')}, Python {sys.version.split()[0]}; seed {given.seed},"
    run += f" {len(made.bases)} valid histories."
    if made.missing:
        run += f" Not installed: {', '.join(made.missing)}."
    texts = {"run": run, "kinds": kinds_table(made), "totals": totals_table(made), "remarks": remarks(made)}
    if given.speed:
        texts["speed"] = speed_table(made)
    for text in texts.values():
        print(text, end="\n\n")
    if given.write:
        page = PAGE.read_text("utf-8")
        for name, text in texts.items():
            page = put(page, name, text)
        PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
