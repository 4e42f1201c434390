"""An agent with tools that streams: interleaved thinking, several rounds, parallel calls, a tool that fails.

With ANTHROPIC_API_KEY set, the service answers. Without it a local double does, which judges each request as
the service would and takes its answers from `SCRIPT`.
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import anthropic

from convmodel import (
    AwaitingModel,
    AwaitingTools,
    Conversation,
    Interrupted,
    Reply,
    Tool,
    ToolResult,
    ToolUse,
    start,
)
from convmodel.anthropic import Accumulator, Target, to_request
from convmodel.testing import MessagesServer
from convmodel.view import view

TARGET = Target(model="claude-opus-4-8", thinking={"type": "adaptive"})
QUESTION = "What is order 17 worth? Orders are in orders.csv, prices in price.csv."

# The tools: what the model is told of them, and what they do.
FILES = {"orders.csv": "order,item,count\n17,lamp,3\n", "prices.csv": "item,price\nlamp,12\n"}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TOOLS = [
    Tool("list_files", {"type": "object"}, description="List the names of all files."),
    Tool("read_file", NAME, description="Read one file."),
]
FUNCTIONS: Mapping[str, Callable[..., str]] = {
    "list_files": lambda: "\n".join(FILES),
    "read_file": lambda name: FILES[name],
}


def run(call: ToolUse) -> ToolResult:
    """Run one tool. Whatever goes wrong, the model is told."""
    try:
        return call.result(FUNCTIONS[call.name](**call.input))
    except Exception as error:  # noqa: BLE001
        return call.result(f"{type(error).__name__}: {error}", is_error=True)


def replied(client: anthropic.Anthropic, convo: AwaitingModel) -> Reply:
    """What the model answers, its text shown as it comes."""
    accumulator, shown = Accumulator(TARGET), 0
    with client.messages.create(max_tokens=4096, stream=True, **to_request(convo, TARGET)) as events:
        for event in events:
            accumulator.feed(event)
            text = "".join(part.text for part in accumulator.snapshot if part.type == "text")
            print(text[shown:], end="", flush=True)
            shown = len(text)
    print("\n" if shown else "", end="")
    return accumulator.reply()


def answered(client: anthropic.Anthropic, convo: Conversation) -> Conversation:
    """Run the tools that the model calls until it has said all."""
    rounds = 0
    while isinstance(convo, AwaitingModel):
        outcome = convo.receive(replied(client, convo))
        if isinstance(outcome, Interrupted):
            raise SystemExit(f"interrupted: {outcome.reason}")
        convo, rounds = outcome, rounds + 1
        print(f"round {rounds}: {', '.join(block.type for block in convo.turns[-1].blocks)}")
        if isinstance(convo, AwaitingTools):
            with ThreadPoolExecutor() as pool:
                results = list(pool.map(run, convo.open_calls))
            for result in results:
                print(f"  {'failed' if result.is_error else 'ran'}: {result.tool_use_id}")
            convo = convo.answer(results)
    return convo


# What the local double answers, as the service writes it.
def thought(text: str = "") -> dict[str, object]:
    """A signed thought; the service leaves its text empty unless it is asked for a summary."""
    return {"type": "thinking", "thinking": text, "signature": "EqQBCkYIBxgCKkDlb3JkZXI"}


def calling(id: str, name: str, arguments: dict[str, object]) -> dict[str, object]:
    """A call of a tool."""
    return {"type": "tool_use", "id": id, "name": name, "input": arguments, "caller": {"type": "direct"}}


SCRIPT: list[list[dict[str, object]]] = [
    [
        thought("I need both files."),
        {"type": "text", "text": "I'll read both files."},
        calling("toolu_01A", "read_file", {"name": "orders.csv"}),
        thought(),
        calling("toolu_01B", "read_file", {"name": "price.csv"}),
    ],
    [thought("There is no price.csv; what is there?"), calling("toolu_02A", "list_files", {})],
    [thought(), calling("toolu_03A", "read_file", {"name": "prices.csv"})],
    [thought(), {"type": "text", "text": "Order 17 is worth 36: three lamps at 12 each."}],
]


def main() -> None:
    """Answer one question, and show the conversation that came of it."""
    with ExitStack() as stack:
        if "ANTHROPIC_API_KEY" in os.environ:
            client = stack.enter_context(anthropic.Anthropic())
        else:
            server = stack.enter_context(MessagesServer(SCRIPT))
            client = stack.enter_context(anthropic.Anthropic(base_url=server.url, api_key="any"))
        convo = answered(client, start(QUESTION, system="Be brief.", tools=TOOLS))
    print(f"\n{view(convo)}")


if __name__ == "__main__":
    main()
