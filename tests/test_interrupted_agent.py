"""An agent that is interrupted at any point of its loop goes on, and the double takes every request it makes."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

import anthropic
import httpx2
import pytest

from convmodel import (
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    Conversation,
    Interrupted,
    Outcome,
    Tool,
    ToolResult,
    ToolUse,
    start,
)
from convmodel.anthropic import Accumulator, Target, to_request
from convmodel.testing import MessagesServer, Streamed, StreamFault, to_events

Json = dict[str, Any]
Choice = Literal["discard", "resume"]


def thought(text: str = "") -> Json:
    return {"type": "thinking", "thinking": text, "signature": "c2lnbmF0dXJl"}


def calling(id: str, *paths: str) -> Json:
    return {"type": "tool_use", "id": id, "name": "delete", "input": {"paths": list(paths)}}


# What the model says, by the number of calls that stand in the request.
SAID: dict[int, list[Json]] = {
    0: [
        thought("What is old may go — all of it."),
        {"type": "text", "text": "I'll clear the größten folders."},
        calling("toolu_1", "/srv/old", "/srv/older"),
        thought(),
        calling("toolu_2", "/var/cache/old"),
        calling("toolu_3", "/"),
    ],
    3: [{"type": "text", "text": "One more."}, calling("toolu_4", "/srv/oldest")],
    4: [thought(), {"type": "text", "text": "Done."}],
}
EVENTS = to_events({"content": SAID[0]})
INPUTS = {
    block["id"]: block["input"] for said in SAID.values() for block in said if block["type"] == "tool_use"
}
OLDER = Target(model="claude-opus-4-8", thinking={"type": "adaptive"})
# Its thinking is bound to what stands before it, and the double checks that.
BOUND = Target(model="claude-opus-5-5", thinking={"type": "adaptive"})
TASK = start("Clear the disk.", system="Be brief.", tools=[Tool("delete", {"type": "object"})])

targets = pytest.mark.parametrize("target", [OLDER, BOUND], ids=lambda target: target.model)
choices = pytest.mark.parametrize("choice", ["discard", "resume"])


def said(body: Json) -> list[Json]:
    """What the model answers to a request."""
    blocks = [
        block for message in body["messages"] for block in message["content"] if isinstance(block, dict)
    ]
    return SAID[sum(block["type"] == "tool_use" for block in blocks)]


def gone_on(outcome: Outcome, choice: Choice) -> Conversation:
    """What the user makes of a reply that was cut, so that the model can go on."""
    if not isinstance(outcome, Interrupted):
        return outcome
    assert not (outcome.kept and outcome.kept.calls)
    return outcome.discard() if choice == "discard" else outcome.resume("Go on.")


class Agent:
    """A loop that streams and runs tools one by one. At each step, of which it keeps count, something may happen."""

    def __init__(
        self,
        client: anthropic.Anthropic,
        target: Target,
        choice: Choice,
        happens: Callable[[int], object] = lambda _: None,
    ) -> None:
        self.client, self.target, self.happens = client, target, happens
        self.choice: Choice = choice
        self.steps = 0
        self.ran: list[ToolUse] = []

    def step(self) -> None:
        self.steps += 1
        self.happens(self.steps)

    def ask(self, convo: AwaitingModel) -> Outcome:
        accumulator = Accumulator(self.target)
        try:
            self.step()
            with self.client.messages.create(
                max_tokens=64, stream=True, **to_request(convo, self.target)
            ) as events:
                for event in events:
                    accumulator.feed(event)
                    self.step()
        except (KeyboardInterrupt, httpx2.HTTPError):
            pass
        except anthropic.APIStatusError as error:
            if error.status_code != 200:  # else it came in mid-stream, and the request was taken
                raise
        return convo.receive(accumulator.reply())

    def run(self, call: ToolUse) -> ToolResult:
        self.step()
        self.ran.append(call)
        self.step()
        return call.result("gone")

    def answer(self, convo: AwaitingTools) -> Conversation:
        left: Conversation = convo
        try:
            while isinstance(left, AwaitingTools):
                left = left.answer_one(self.run(left.open_calls[0]))
        except KeyboardInterrupt:
            assert isinstance(left, AwaitingTools)
            return left.close("interrupted")
        return left

    def finished(self, convo: Conversation) -> Conversation:
        while not isinstance(convo, AwaitingUser):
            before = convo
            if isinstance(convo, AwaitingTools):
                convo = self.answer(convo)
            else:
                convo = gone_on(self.ask(convo), self.choice)
            assert convo.extends(before)
        return convo


@contextmanager
def double(target: Target, streams: list[Streamed] | None = None) -> Generator[anthropic.Anthropic]:
    """A client of a double that sends what stands in `streams` first, whenever something does."""

    def answer(body: Json) -> list[Json] | Streamed:
        return streams.pop() if streams else said(body)

    with (
        MessagesServer(itertools.repeat(answer), preserved_thinking=target is BOUND) as server,
        anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client,
    ):
        yield client


def whole(ran: list[ToolUse]) -> bool:
    """Whether all calls that ran had the input that the model gave."""
    return all(call.input == INPUTS[call.id] for call in ran)


# ---------------------------------------------------------------- Ctrl-C


def press_at(number: int) -> Callable[[int], None]:
    """A user who presses Ctrl-C at a step."""

    def press(step: int) -> None:
        if step == number:
            raise KeyboardInterrupt

    return press


@targets
@choices
def test_ctrl_c_at_any_step_of_the_loop(target: Target, choice: Choice) -> None:
    with double(target) as client:
        number, steps = 0, len(EVENTS)
        while number < steps:
            number += 1
            agent = Agent(client, target, choice, press_at(number))
            convo = agent.finished(TASK)
            steps = agent.steps
            assert convo.last_text == "Done."
            assert whole(agent.ran)


def test_a_real_ctrl_c_while_the_stream_is_silent() -> None:
    """The signal comes while the client waits for the next event."""
    main = threading.main_thread().ident
    assert main is not None

    def press(step: int) -> None:
        if step == 12:  # the eleven events that the client reads of the twelve, and the step before them
            threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()

    with double(OLDER, [Streamed(SAID[0], "stall", after=12)]) as client:
        convo = Agent(client, OLDER, "resume", press).finished(TASK)

    assert convo.last_text == "Done."
    assert [turn.text for turn in convo.turns if turn.role == "user"][:2] == ["Clear the disk.", "Go on."]


def test_a_task_that_is_cancelled_at_any_event() -> None:
    async def ask(client: anthropic.AsyncAnthropic, convo: AwaitingModel, cancel_at: int) -> Outcome:
        accumulator = Accumulator(OLDER)

        async def read() -> None:
            events = await client.messages.create(max_tokens=64, stream=True, **to_request(convo, OLDER))
            for number in itertools.count():
                if number == cancel_at:
                    task.cancel()
                    await asyncio.sleep(0)
                if (event := await anext(aiter(events), None)) is None:
                    break
                accumulator.feed(event)

        task = asyncio.create_task(read())
        with suppress(asyncio.CancelledError):
            await task
        return convo.receive(accumulator.reply())

    async def run(url: str) -> None:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="any") as client:
            for cancel_at in range(len(EVENTS) - 2):  # the reply is whole once it says why it stopped
                outcome = await ask(client, TASK, cancel_at)
                assert isinstance(outcome, Interrupted)
                resumed = outcome.resume("Go on.")
                assert isinstance(await ask(client, resumed, -1), AwaitingTools)

    with MessagesServer(itertools.repeat(said)) as server:
        asyncio.run(run(server.url))


# ---------------------------------------------------------------- streams that break


ANYWHERE = range(len(EVENTS))
# A delta that comes twice cannot be told from two deltas; everything else can.
TWICE = [at for at, event in enumerate(EVENTS, 1) if event["type"] != "content_block_delta"]
FAULTS: list[tuple[StreamFault, Sequence[int]]] = [
    ("cut", ANYWHERE),
    ("cut_character", [at for at in ANYWHERE if not str(EVENTS[at:]).isascii()]),
    ("end", ANYWHERE),
    ("error", ANYWHERE),
    ("repeat", TWICE),
]


@choices
@pytest.mark.parametrize(("fault", "places"), FAULTS, ids=[fault for fault, _ in FAULTS])
def test_a_stream_that_breaks_at_any_event(choice: Choice, fault: StreamFault, places: Sequence[int]) -> None:
    assert places
    streams: list[Streamed] = []
    with double(BOUND, streams) as client:
        for after in places:
            streams.append(Streamed(SAID[0], fault, after=after))
            agent = Agent(client, BOUND, choice)
            convo = agent.finished(TASK)
            assert convo.last_text == "Done."
            assert whole(agent.ran)
            assert len(agent.ran) == len(INPUTS)
