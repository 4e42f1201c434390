"""The command line: check a history, repair it, say what an error means, explain a rule, show a history.

FILE is one of the files that `convmodel.files` reads; `-` is standard input. Exit codes: 0 valid, 1 violations found, 2
unreadable input or wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import stat
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import attrs

from .anthropic import PLATFORMS, Target, check
from .anthropic.targets import judged, tail_faults, target_faults
from .conversation import Conversation
from .errors import BUILT, ValidationError, Violation
from .files import History, UnreadableError, UnwritableError, back_up, read_history, write
from .recovery import diagnose
from .repair import Change, Policy, Repaired, repair
from .rules import RULES
from .storage import loads
from .view import view, view_messages

THINKING: dict[str, Any] = {
    "off": None,
    "enabled": {"type": "enabled", "budget_tokens": 1024},
    "adaptive": {"type": "adaptive"},
}


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
    where = mending.add_mutually_exclusive_group()
    where.add_argument(
        "-o", dest="out", metavar="OUT", help="write the result there, in the shape it came in; `-` prints it"
    )
    where.add_argument(
        "--in-place",
        action="store_true",
        help="write the result over FILE, and keep what it held as FILE.bak",
    )
    mending.add_argument("--dry-run", action="store_true", help="print the plan and write nothing")
    kinds = "; ".join(f"{kind}: {', '.join(actions)}" for kind, actions in Policy.actions().items())
    mending.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="KIND=ACTION",
        help=f"what to do about a kind of defect, the default first ({kinds}); `refuse` alone is for all kinds",
    )

    diagnosing = commands.add_parser("diagnose", help="say what an error of the API means, and what helps")
    diagnosing.add_argument(
        "file", metavar="ERROR", help="a file with the body of the error or its text, or -"
    )
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
    except UnwritableError as error:
        print(f"convmodel: {error}", file=sys.stderr)
        return 1
    return code


def _run(args: argparse.Namespace) -> int:
    if args.command == "explain":
        return _explain(args.rule)
    data, found = _read(args.file)
    if args.command == "diagnose":
        return _diagnose(args, data)
    history = _history(data)
    if args.command == "show":
        return _show(history, data)
    return _check(args, history, data) if args.command == "check" else _repair(args, history, data, found)


def _read(name: str) -> tuple[bytes, os.stat_result]:
    """What a file holds, and which file it is."""
    with open(sys.stdin.fileno() if name == "-" else name, "rb", closefd=name != "-") as file:
        return file.read(), os.fstat(file.fileno())


def _history(data: bytes) -> History:
    history = read_history(data)
    for note in history.notes:
        print(f"convmodel: {note}", file=sys.stderr)
    return history


def _check(args: argparse.Namespace, history: History, data: bytes) -> int:
    if "convmodel" in history.body:
        try:
            violations = _stored_violations(args, loads(data))
        except ValidationError as error:
            violations = error.violations
    else:
        violations = (*history.faults, *_violations(args, history))
    if args.json:
        print(json.dumps({"violations": [_violation_row(fault, history) for fault in violations]}))
    elif violations:
        for fault in violations:
            place = f"{fault.path or 'input'}{_line(fault.path, history)}"
            print(f"{place}\n  {fault.found}\n  {fault.fix}\n  [{fault.rule}]")
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
        request = _request(args, history.body)
        return check(history.messages, origins=history.origins, stage=args.stage, **request)
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


def _repair(args: argparse.Namespace, history: History, data: bytes, found: os.stat_result) -> int:
    if "convmodel" in history.body:
        raise UnreadableError("a stored conversation is valid or damaged; only wire data is repaired")
    _writable(args, found)
    try:
        request = _request(args, history.body)
        result = repair(
            history.messages, origins=history.origins, stage=args.stage, policy=_policy(args), **request
        )
    except ValidationError as error:  # of the target or the policy
        raise UnreadableError(str(error)) from None
    left = (*history.faults, *result.unrepaired)
    mended = result.messages is not None and not history.faults
    with contextlib.redirect_stdout(sys.stderr if args.out == "-" else sys.stdout):
        if args.json:
            print(
                json.dumps(
                    {
                        "changes": [_change_row(each, history) for each in result.changes],
                        "refused": [_change_row(each, history) for each in result.refused],
                        "violations": [_violation_row(each, history) for each in left],
                        "system": result.system if mended else None,
                        "messages": result.messages if mended else None,
                    }
                )
            )
        else:
            _print_plan(result, left, history)
    if not mended:
        return 1
    if result.system and not history.body:
        print(
            "convmodel: a list of messages has no place for the system prompt; --json shows it",
            file=sys.stderr,
        )
    _write(args, history.mended(data, result), data, found)
    return 0


def _print_plan(result: Repaired, left: tuple[Violation, ...], history: History) -> None:
    for change in result.changes:
        line = _line(change.path, history)
        print(f"{change.path}{line}{str(change).removeprefix(change.path)}")
        if change.before or change.after:
            print(f"  {change.before or '(nothing)'} -> {change.after or '(nothing)'}")
    for change in result.refused:
        print(f"refused: {change} (policy {change.defect}=refuse)")
    for fault in left:
        print(fault)
    if not (result.changes or result.refused or left):
        print("valid as it is")


def _line(path: str, history: History) -> str:
    number = history.line(path)
    return f" (line {number})" if number else ""


def _violation_row(fault: Violation, history: History) -> dict[str, Any]:
    row = {"rule": fault.rule.id, "path": fault.path, "found": fault.found, "fix": fault.fix}
    return row | ({"line": history.line(fault.path)} if history.lines else {})


def _change_row(change: Change, history: History) -> dict[str, Any]:
    row = {
        "rule": change.rule.id,
        "path": change.path,
        "kind": change.kind,
        "lost": change.lost,
        "severity": change.severity,
        "defect": change.defect,
        "before": change.before,
        "after": change.after,
    }
    return row | ({"line": history.line(change.path)} if history.lines else {})


def _policy(args: argparse.Namespace) -> Policy:
    """The policy of the options; later ones win."""
    policy = Policy()
    for option in args.policy:
        kind, _, action = option.partition("=")
        if option == "refuse":
            policy = Policy.refuse_all()
        elif kind in Policy.actions():
            policy = attrs.evolve(policy, **{kind: action})
        else:
            raise UnreadableError(f"no kind of defect {kind!r}; there are {', '.join(Policy.actions())}")
    return policy


def _writable(args: argparse.Namespace, found: os.stat_result) -> None:
    """Refuse to write over what is read, under whatever name."""
    if args.in_place and args.file == "-":
        raise UnreadableError("--in-place needs a file")
    if args.out and args.out != "-":
        out = Path(args.out)
        if out.exists() and os.path.samestat(out.stat(), found):
            raise UnreadableError(f"{args.out} is the input; --in-place writes over it, and keeps a backup")


def _write(args: argparse.Namespace, made: bytes, data: bytes, found: os.stat_result) -> None:
    if args.dry_run:
        return
    if args.out == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(made)
    elif args.out:
        write(Path(args.out), made, stat.S_IMODE(found.st_mode) if stat.S_ISREG(found.st_mode) else 0o600)
    elif args.in_place and made != data:
        path = Path(args.file)
        if path.read_bytes() != data:  # whoever wrote it goes on writing
            raise UnreadableError(f"{path} has changed meanwhile; nothing was written")
        kept = back_up(path, data)
        write(path, made)
        print(f"convmodel: {kept} keeps what it held", file=sys.stderr)


def _diagnose(args: argparse.Namespace, error: bytes) -> int:
    data, _ = _read(args.history)
    history = _history(data)
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


def _show(history: History, data: bytes) -> int:
    if "convmodel" in history.body:
        try:
            print(view(loads(data)))
        except ValidationError as error:
            raise UnreadableError(str(error)) from None
    else:
        print(view_messages(history.messages))
    return 0
