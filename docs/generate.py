"""Writes the generated parts of the documentation: `python docs/generate.py`; with `--check` it only compares.

A page is written by hand but for what stands between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin

import attrs

from convmodel import (
    RULES,
    AssistantTurn,
    Conversation,
    OpaqueBlock,
    Origin,
    Preamble,
    Reply,
    ServerToolUse,
    SystemTurn,
    Tool,
    ToolUse,
    Turn,
    UserTurn,
    ValidationError,
    conversation,
    start,
)
from convmodel.anthropic.faults import FAULTS, ONLY_IN_ERRORS
from convmodel.blocks import BLOCKS
from convmodel.conversation import RECEIVED, STATE_OF, TABLE
from convmodel.fields import Either, Kind, Many, Nested, Value, fields_of
from convmodel.recovery import PLANS
from convmodel.repair import Policy
from convmodel.shapes import ROWS

DOCS = Path(__file__).parent
PAGES = (
    "states.md",
    "how-to/repair.md",
    "reference/rules.md",
    "reference/blocks.md",
    "reference/recovery.md",
)

# ---------------------------------------------------------------- states

ASKED, TOLD, SAID = UserTurn("Hi."), SystemTurn("Be brief."), AssistantTurn("Hello.")
SEARCH, ONE, TWO = ServerToolUse("srvtoolu_1", "web_search", {}), ToolUse("a", "f", {}), ToolUse("b", "f", {})
FIRST = UserTurn([ONE.result()])
SAMPLES: tuple[tuple[Turn, ...], ...] = (
    (),
    (ASKED, SAID),
    (ASKED,),
    (ASKED, TOLD),
    (ASKED, AssistantTurn([SEARCH])),
    (ASKED, AssistantTurn([SEARCH, ONE]), FIRST),
    (ASKED, AssistantTurn([ONE, TWO])),
    (ASKED, AssistantTurn([ONE, TWO]), FIRST),
)
"""A conversation in each phase, in the order of the table."""
PAUSE = Origin(stop_reason="pause_turn")
NEXT: dict[str, Turn] = {
    "user": ASKED,
    "system": TOLD,
    "the model's text": SAID,
    "the model's calls": AssistantTurn([ToolUse("c", "f", {})]),
    "the model's pause": AssistantTurn("Wait.", PAUSE),
}


def following(turns: tuple[Turn, ...]) -> Iterator[tuple[str, str, Conversation]]:
    """What may follow some turns: a kind of the table, what it is in words, and the conversation it makes."""
    open_calls = conversation(turns).open_calls
    answers = {"one result": open_calls[:1] if open_calls[1:] else (), "all results": open_calls}
    results = {name: UserTurn([call.result() for call in calls]) for name, calls in answers.items() if calls}
    turns_after: dict[str, Turn] = {**NEXT, **results}
    for name, turn in turns_after.items():
        kind = "results" if name in results else turn.role
        try:
            yield kind, name, conversation([*turns, turn])
        except ValidationError as error:
            rules = {fault.rule for fault in error.violations}
            if rules != {TABLE[conversation(turns)._state.phase][cast("Any", kind)]}:
                raise


def diagram() -> Iterator[str]:
    """The three classes and the moves between them."""
    edges: dict[tuple[str, str], list[str]] = {}
    for turns in SAMPLES:
        for _, name, after in following(turns):
            edge = type(conversation(turns)).__name__, type(after).__name__
            edges.setdefault(edge, []).append(name)
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield "    [*] --> AwaitingUser"
    for (here, there), names in edges.items():
        yield f"    {here} --> {there} : {', '.join(dict.fromkeys(names))}"
    yield "```"


def table() -> Iterator[str]:
    """For each phase and kind of turn where it leads, or the rule that refuses it."""
    kinds = list(next(iter(TABLE.values())))
    yield f"| phase | class | {' | '.join(kinds)} |"
    yield f"|---|---|{'---|' * len(kinds)}"
    for (phase, row), turns in zip(TABLE.items(), SAMPLES, strict=True):
        assert conversation(turns)._state.phase is phase
        led = {
            kind: [after._state.phase.name for k, _, after in following(turns) if k == kind] for kind in kinds
        }
        cells = [
            ", ".join(dict.fromkeys(led[kind])) if rule is None else link(rule, "reference/rules.md")
            for kind, rule in row.items()
        ]
        yield f"| {phase.name}: {phase.value} | `{STATE_OF[phase].__name__}` | {' | '.join(cells)} |"


def received() -> Iterator[str]:
    """What a reply becomes, by stop reason and with or without calls of the caller's tools."""
    yield "| stop reason | without client calls | with client calls |"
    yield "|---|---|---|"
    for reason in (*filter(None, RECEIVED), "one that is not known"):
        replies = [Reply(["Hi."], Origin(stop_reason=reason)), Reply([ONE], Origin(stop_reason=reason))]
        yield f"| {reason} | {' | '.join(became(reply) for reply in replies)} |"
    yield f"| none, a turn made by hand | {became(SAID)} | {became(AssistantTurn([ONE]))} |"
    cut = [Reply(blocks, complete=False) for blocks in ("Hi.", [ONE])]
    yield f"| none, the reply ended early | {' | '.join(map(became, cut))} |"


def became(reply: Reply | AssistantTurn) -> str:
    """The class of what `receive` gives."""
    return f"`{type(start('Hi.').receive(reply)).__name__}`"


def link(rule: str, page: str = "") -> str:
    """A rule's id as a link to its place in the reference."""
    return f"[`{rule}`]({page}#{rule})"


# ---------------------------------------------------------------- rules


def rules() -> Iterator[str]:
    """Every rule, in the order of the modules that hold them."""
    for rule in RULES.values():
        yield f"## {rule}\n"
        yield f"{rule.says}\n"
        yield f"- Source: {rule.source}."
        if rule.error:
            yield f"- The API says: `` {rule.error} ``"
        if rule in ONLY_IN_ERRORS:
            yield "- Nothing checks it beforehand; [recovery](recovery.md) knows the error."
        yield ""


def faults() -> Iterator[str]:
    """What errors mean."""
    yield "| text | rule | plan | meaning |\n|---|---|---|---|"
    for fault in FAULTS:
        pattern = fault.pattern.replace("|", "\\|")
        rule = link(fault.rule, "rules.md") if fault.rule is not None else ""
        plan = f"`{fault.plan}`" if fault.plan else "none"
        yield f"| `` {pattern} `` | {rule} | {plan} | {fault.says} |"


def plans() -> Iterator[str]:
    """What each plan does."""
    for name, plan in PLANS.items():
        yield f"- `{name}`: {' '.join((plan.__doc__ or '').split())}"


def policies() -> Iterator[str]:
    """The kinds of defects, and what may be done about each."""
    yield "| kind | what it is | actions, the default first |\n|---|---|---|"
    said = arguments(Policy)
    for kind, actions in Policy.actions().items():
        yield f"| `{kind}` | {said[kind]} | {', '.join(f'`{each}`' for each in actions)} |"


# ---------------------------------------------------------------- blocks


def blocks() -> Iterator[str]:
    """Every block, then every value that stands inside one."""
    classes = [*BLOCKS.values(), OpaqueBlock]
    inner: dict[type, None] = {}
    for cls in classes:
        for field in fields_of(cls):
            inner |= dict.fromkeys(nested(field.kind))
    yield "## Blocks\n"
    for cls in classes:
        yield from declared(cls)
    yield "## Values inside blocks\n"
    for cls in sorted(inner.keys() - set(classes), key=lambda cls: cls.__name__):
        yield from declared(cls)
    yield "## What stands around them\n"
    for cls in (Tool, Preamble, Origin):
        yield from declared(cls)


def nested(kind: Kind) -> Iterator[type]:
    """The classes of the values that a field may hold, at every depth."""
    if isinstance(kind, Many):
        yield from nested(kind.item)
    elif isinstance(kind, Either):
        yield from nested(kind.one)
        yield from nested(kind.many)
    elif isinstance(kind, Nested):
        for cls in kind.classes:
            yield cls
            if cls not in BLOCKS.values():
                for field in fields_of(cls):
                    yield from nested(field.kind)


def declared(cls: type[Any]) -> Iterator[str]:
    """One class: what it is, where it stands, its fields."""
    summary = (cls.__doc__ or "").partition("\n\n")[0]
    said = arguments(cls)
    yield f"### {cls.__name__}\n"
    tag = getattr(cls, "type", None)
    notes = [f"`{tag}` on the wire"] if isinstance(tag, str) else []
    if roles := getattr(cls, "roles", None):
        notes.append(f"in {', '.join(sorted(roles))} turns")
    if cls.admits_marker:
        notes.append("may carry a cache marker")
    yield f"{summary}\n"
    if notes:
        yield f"{'; '.join(notes).replace('unsigned_thinking', 'thinking').capitalize()}.\n"
    fields = fields_of(cast("Any", cls))
    if not fields:
        return
    yield "| field | holds | written by | needed | what it is |"
    yield "|---|---|---|---|---|"
    for field in fields:
        kept = attrs.fields_dict(cast("Any", cls))[field.name]
        needed = "optional" if field.optional else "required"
        if field.name in cls.nullable_on_wire or (field.nullable and not field.optional):
            needed += ", null on the wire allowed"
        words = said.get(field.name, "")
        yield f"| `{field.name}` | {typed(kept.type)} | {field.flow.name.lower()} | {needed} | {words} |"
    yield ""


def arguments(cls: type[Any]) -> dict[str, str]:
    """What the docstring of a class says of each argument."""
    said = re.findall(r"^        (\w+): (.+(?:\n            .+)*)", cls.__doc__ or "", re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in said}


def typed(annotation: Any) -> str:
    """A type as a reader would write it."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value!r}`" for value in args)
    if origin is tuple:
        return f"several of {typed(args[0])}"
    if origin in (Union, UnionType):
        return " or ".join(typed(arg) for arg in args if arg is not type(None))
    name = annotation.__name__
    return (
        f"[{name}](#{name.lower()})"
        if isinstance(annotation, type) and issubclass(annotation, Value)
        else f"`{name}`"
    )


def shapes() -> Iterator[str]:
    """The keys of free JSON that is not quite free."""
    yield "| object | keys |"
    yield "|---|---|"
    for name, row in ROWS.items():
        keys = [f"`{key}`{'' if each.required else '?'}" for key, each in row.items()]
        yield f"| `{name}` | {', '.join(keys)} |"


# ---------------------------------------------------------------- pages

PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "diagram": diagram,
    "table": table,
    "received": received,
    "rules": rules,
    "blocks": blocks,
    "shapes": shapes,
    "faults": faults,
    "plans": plans,
    "policies": policies,
}


def rendered(page: str) -> str:
    """A page with its generated parts made anew."""

    def part(found: re.Match[str]) -> str:
        made = "\n".join(PARTS[found[1]]())
        return f"<!-- generated: {found[1]} -->\n\n{made.strip()}\n\n<!-- end -->"

    text = (DOCS / page).read_text("utf-8")
    return re.sub(r"<!-- generated: (\w+) -->.*?<!-- end -->", part, text, flags=re.DOTALL)


def main(argv: list[str]) -> int:
    """Write the pages, or with `--check` say which are stale."""
    stale = [page for page in PAGES if rendered(page) != (DOCS / page).read_text("utf-8")]
    for page in stale:
        if "--check" in argv:
            print(f"docs/{page} is stale: run python docs/generate.py")
        else:
            (DOCS / page).write_text(rendered(page), "utf-8")
    return int(bool(stale) and "--check" in argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
