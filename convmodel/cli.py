"""The command line: check a history, repair it, say what an error means, explain a rule, show a history.

FILE is a JSON array of messages, a request body with `messages`, JSON lines with one message a line, or a conversation
as `convmodel.storage.dumps` wrote it; `-` is standard input. Exit codes: 0 valid, 1 violations found, 2 unreadable
input or wrong usage.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, cast

from .anthropic import PLATFORMS, Target, check
from .anthropic.targets import judged, tail_faults, target_faults
from .conversation import Conversation
from .errors import BUILT, ConvmodelError, ValidationError, Violation
from .jsonvalue import decode
from .recovery import diagnose
from .repair import repair
from .rules import RULES
from .storage import loads
from .view import view, view_messages

THINKING: dict[str, Any] = {
    "off": None,
    "enabled": {"type": "enabled", "budget_tokens": 1024},
    "adaptive": {"type": "adaptive"},
}


class UnreadableError(ConvmodelError):
    """The input is no history in any of the forms that are read."""


class History(NamedTuple):
    """What a file holds, and what its text alone shows to be wrong."""

    messages: Any
    body: dict[str, Any]
    faults: tuple[Violation, ...]
    lines: bool = False
    """Whether it came as JSON lines."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments; None takes those of the process.

    Returns:
        The exit code.

    >>> main(["explain", "tool-result-once"])
    tool-result-once
      Each call has one result.
      source  Error reports, 2025
      error   messages.N.content.M: each tool_use must have a single result. Found multiple `tool_result` blocks with id: ID
    0
    """
    parser = argparse.ArgumentParser(
        prog="convmodel", description="Judge, explain and show LLM conversation histories."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    judging = argparse.ArgumentParser(add_help=False)
    judging.add_argument("file", metavar="FILE")
    judging.add_argument("--model", help="the model that the history goes to")
    judging.add_argument("--thinking", choices=THINKING, help="the thinking mode of the request")
    judging.add_argument(
        "--platform", choices=PLATFORMS, default="anthropic", help="where the model is served"
    )
    judging.add_argument(
        "--stage", choices=("hold", "send"), default="hold", help="`send` for a history to be sent as it ends"
    )
    judging.add_argument("--json", action="store_true", help="print one JSON object")
    commands.add_parser("check", parents=[judging], help="name every fault of a history")
    mending = commands.add_parser(
        "repair", parents=[judging], help="mend a history without inventing anything"
    )
    mending.add_argument(
        "-o", dest="out", metavar="OUT", help="write the result there, in the shape it came in"
    )

    diagnosing = commands.add_parser("diagnose", help="say what an error of the API means, and what helps")
    diagnosing.add_argument("file", metavar="ERROR", help="the body of the error, or its text")
    diagnosing.add_argument("--history", required=True, metavar="FILE", help="what was sent")
    diagnosing.add_argument("--model", help="the model that it was sent to")
    diagnosing.add_argument("--thinking", choices=THINKING, help="the thinking mode of the request")
    diagnosing.add_argument(
        "--platform", choices=PLATFORMS, default="anthropic", help="where the model is served"
    )
    diagnosing.add_argument("--json", action="store_true", help="print one JSON object")

    explaining = commands.add_parser("explain", help="say what a rule demands and where it comes from")
    explaining.add_argument("rule", metavar="RULE")

    showing = commands.add_parser(
        "show", help="print a history: readable, short, without tool inputs, results and signatures"
    )
    showing.add_argument("file", metavar="FILE")

    args = parser.parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a pipe may not take every character
    try:
        code = _run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OSError, UnreadableError) as error:
        print(f"convmodel: {error}", file=sys.stderr)
        return 2
    return code


def _run(args: argparse.Namespace) -> int:
    if args.command == "explain":
        return _explain(args.rule)
    text = sys.stdin.buffer.read() if args.file == "-" else Path(args.file).read_bytes()
    if args.command == "show":
        return _show(text)
    if args.command == "diagnose":
        return _diagnose(args, text)
    return _check(args, text) if args.command == "check" else _repair(args, text)


def read_history(text: bytes) -> History:
    """What a file holds.

    Raises:
        UnreadableError: It is neither JSON nor JSON lines, or holds no messages.
    """
    value, faults = decode(text)
    if value is None and faults:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            raise UnreadableError(str(faults[0]))
        messages: list[Any] = []
        kept: list[Violation] = []
        for number, line in enumerate(lines):
            message, wrong = decode(line)
            if message is None and wrong:
                raise UnreadableError(f"neither JSON nor JSON lines: line {number + 1}: {wrong[0]}")
            kept += [fault.under(f"messages[{number}]") for fault in wrong]
            messages.append(message)
        return History(messages, {}, tuple(kept), lines=True)
    if isinstance(value, list):
        return History(value, {}, tuple(faults))
    if isinstance(value, dict):
        data = cast("dict[str, Any]", value)
        if "messages" in data or "convmodel" in data:
            return History(data.get("messages"), data, tuple(faults))
        if "role" in data:  # a file of JSON lines with one line
            return History([data], {}, tuple(faults), lines=True)
    raise UnreadableError("no list of messages, no request body with `messages`, no JSON lines")


def _check(args: argparse.Namespace, text: bytes) -> int:
    history = read_history(text)
    if "convmodel" in history.body:
        try:
            violations = _stored_violations(args, loads(text))
        except ValidationError as error:
            violations = error.violations
    else:
        violations = (*history.faults, *_violations(args, history))
    if args.json:
        rows = [
            {"rule": fault.rule.id, "path": fault.path, "found": fault.found, "fix": fault.fix}
            for fault in violations
        ]
        print(json.dumps({"violations": rows}))
    elif violations:
        for fault in violations:
            print(f"{fault.path or 'input'}\n  {fault.found}\n  {fault.fix}\n  [{fault.rule}]")
        print(
            f"{len(violations)} violation{'s' * (len(violations) != 1)}; `convmodel explain RULE` says more"
        )
    else:
        print(
            "valid"
            if args.stage == "send"
            else "valid at rest; `--stage send` says whether it can be sent as it ends"
        )
    return 1 if violations else 0


def _violations(args: argparse.Namespace, history: History) -> tuple[Violation, ...]:
    try:
        return check(history.messages, stage=args.stage, **_request(args, history.body))
    except ValidationError as error:  # of the target
        return error.violations


def _stored_violations(args: argparse.Namespace, convo: Conversation) -> tuple[Violation, ...]:
    """What a target has against a stored conversation; that it is valid at rest is sure once it is loaded."""
    target, history = _request(args, {})["target"], judged(convo)
    faults = [] if target is None else list(target_faults(history, target, BUILT))
    return (*faults, *(tail_faults(history, target, BUILT) if args.stage == "send" else ()))


def _request(args: argparse.Namespace, body: dict[str, Any]) -> dict[str, Any]:
    """What beside the messages decides; options win over the request body."""
    model = args.model or body.get("model")
    thinking = THINKING[args.thinking] if args.thinking else body.get("thinking")
    target = None
    if isinstance(model, str) and model:
        target = Target(model, thinking, args.platform)
    elif args.thinking or args.platform != "anthropic":
        raise UnreadableError("--thinking and --platform need a --model")
    tools = body.get("tools", () if "model" in body else None)
    return {"system": body.get("system"), "tools": tools, "target": target}


def _repair(args: argparse.Namespace, text: bytes) -> int:
    history = read_history(text)
    if "convmodel" in history.body:
        raise UnreadableError("a stored conversation is valid or damaged; only wire data is repaired")
    try:
        result = repair(history.messages, stage=args.stage, **_request(args, history.body))
    except ValidationError as error:  # of the target
        raise UnreadableError(str(error)) from None
    rows = [
        {"rule": each.rule.id, "path": each.path, "kind": each.kind, "lost": each.lost}
        for each in result.changes
    ]
    left = [
        {"rule": each.rule.id, "path": each.path, "found": each.found, "fix": each.fix}
        for each in result.unrepaired
    ]
    if args.json:
        print(json.dumps({"changes": rows, "violations": left, "messages": result.messages}))
    else:
        print("\n".join(map(str, [*result.changes, *result.unrepaired])) or "valid as it is")
    if result.messages is None:
        return 1
    if args.out:
        _write(Path(args.out), history, result.messages, result.system)
    return 0


def _write(path: Path, history: History, messages: list[Any], system: Any) -> None:
    """Write a mended history in the shape in which it came, whole or not at all."""
    made: Any = messages
    if "messages" in history.body:
        made = {**history.body, "messages": messages, **({"system": system} if system else {})}
    lines = [json.dumps(message) for message in messages] if history.lines else [json.dumps(made)]
    beside = path.with_name(path.name + ".part")
    beside.write_text("\n".join(lines) + "\n", encoding="utf-8")
    beside.replace(path)


def _diagnose(args: argparse.Namespace, error: bytes) -> int:
    data = Path(args.history).read_bytes()
    history = read_history(data)
    try:
        stored = "convmodel" in history.body
        sent = loads(data) if stored else {**history.body, "messages": history.messages}
        found = diagnose(error, sent, _request(args, {} if stored else history.body)["target"])
    except ValidationError as wrong:
        raise UnreadableError(str(wrong)) from None
    if args.json:
        made = found.apply() if found.recoverable else None
        row = {
            "rule": found.rule,
            "path": found.path,
            "recoverable": found.recoverable,
            "plan": found.plan,
            "says": found.says,
            "done": made and made.done,
            "voided": made and made.voided,
        }
        print(json.dumps(row))
    else:
        print(found)
    return 0 if found.recoverable else 1


def _explain(name: str) -> int:
    rule = RULES.get(name)
    if rule is None:
        near = [id for id in RULES if name in id or id in name] or get_close_matches(name, RULES)
        hint = f"; did you mean {', '.join(near[:5])}?" if near else ""
        raise UnreadableError(f"no rule {name!r}{hint}")
    print(f"{rule}\n  {rule.says}\n  source  {rule.source}")
    if rule.error:
        print(f"  error   {rule.error}")
    return 0


def _show(text: bytes) -> int:
    history = read_history(text)
    if "convmodel" in history.body:
        try:
            print(view(loads(text)))
        except ValidationError as error:
            raise UnreadableError(str(error)) from None
    else:
        print(view_messages(history.messages))
    return 0
