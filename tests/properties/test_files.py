"""Files of every form keep what a repair did not touch, byte for byte, and hold what it made."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from convmodel.anthropic import check
from convmodel.files import History, UnwritableError, read_history
from convmodel.repair import Repaired, repair

from .common import PROPERTY, Json
from .edits import edited

ENDS = st.sampled_from(["\n", "\r\n"])
STYLES = st.sampled_from([{}, {"indent": 2}, {"indent": "\t"}, {"separators": (",", ":")}])


def mended(data: bytes) -> tuple[History, Repaired, bytes]:
    """What a file holds, its repair, and the file after it."""
    history = read_history(data)
    result = repair(history.messages, system=history.body.get("system"), origins=history.origins)
    made = history.mended(data, result) if result.messages else data
    return history, result, made


def holds(data: bytes) -> None:
    """A mended file is valid, mending it again changes nothing, and a valid one stays as it is."""
    _, result, made = mended(data)
    if not result.messages:
        return
    assert (made == data) == (not result.changes)
    again, second, same = mended(made)
    assert again.messages == result.messages
    system = again.body.get("system", result.system)
    assert check(again.messages, system=system, origins=again.origins) == ()
    assert (second.changes, same) == ((), made)


@PROPERTY
@given(edited(), STYLES, ENDS, st.booleans(), st.booleans())
def test_an_array_and_a_body(
    messages: list[Json], style: Json, end: str, ascii_only: bool, bom: bool
) -> None:
    for value in (messages, {"x": 1e3, "messages": messages, "model": "claude-opus-4-8"}):
        text = json.dumps(value, ensure_ascii=ascii_only, **style).replace("\n", end) + end
        data = (b"\xef\xbb\xbf" if bom else b"") + text.encode()
        if repair(messages).messages == []:
            continue
        holds(data)


@PROPERTY
@given(edited(), ENDS, st.booleans())
def test_json_lines(messages: list[Json], end: str, last: bool) -> None:
    lines = [json.dumps(message) for message in messages]
    if not lines or not repair(messages).messages or any("role" not in message for message in messages):
        return
    data = (end.join(lines) + end * last).encode()
    _, result, made = mended(data)
    holds(data)
    kept = [
        lines[source]
        for at, source in enumerate(result.sources)
        if source is not None and (result.messages or [])[at] == messages[source]
    ]
    rest = iter(made.decode().split(end))
    assert all(any(line == other for other in rest) for line in kept)


# ---------------------------------------------------------------- session files


@st.composite
def sessions(draw: st.DrawFn) -> list[Json]:
    """The records of a session: one a block, between them what else such a file has."""
    records: list[Json] = []
    tip: str | None = None

    def add(parent: str | None, **said: Any) -> str:
        id = f"u{len(records)}"
        records.append({"parentUuid": parent, "isSidechain": False, "uuid": id, **said})
        return id

    def noise() -> None:
        nonlocal tip
        match draw(st.integers(0, 9)):
            case 0:
                tip = add(tip, type="progress", data={"n": 1.50})
            case 1:
                aside = {"role": "user", "content": "a given up branch"}
                add(tip, type="user", message=aside)
            case 2:
                add(None, type="user", isSidechain=True, message={"role": "user", "content": "a task"})
            case 3:
                records.append({"type": "summary", "summary": "é", "leafUuid": "u0"})
            case 4:
                error = {"role": "assistant", "id": "e", "model": "<synthetic>", "content": []}
                tip = add(tip, type="assistant", isApiErrorMessage=True, message=error)
            case _:
                pass

    for number, message in enumerate(draw(edited())):
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant"):
            continue
        noise()
        if role == "user" or not isinstance(content, list):
            blocks = content if isinstance(content, list) else []
            alone = [
                block for block in blocks if isinstance(block, dict) and block.get("type") == "tool_result"
            ]
            if len(alone) == len(blocks) > 1 and draw(st.booleans()):
                for block in blocks[:-1]:  # results of parallel calls, each on the record of its call
                    home = [
                        r for r in records if "toolu" in str(r) and str(block.get("tool_use_id")) in str(r)
                    ]
                    add(
                        home[-1]["uuid"] if home else tip,
                        type="user",
                        message={"role": "user", "content": [block]},
                    )
                content = blocks[-1:]
            tip = add(tip, type=role, message={"role": role, "content": content})
            continue
        response = {"role": role, "id": f"msg_{number}", "type": "message", "model": "claude-opus-4-8"}
        for part in [[block] for block in content] or [[]]:
            tip = add(tip, type=role, message={**response, "content": part, "stop_reason": None})
            if draw(st.integers(0, 5)) == 0:
                noise()
    return records


@PROPERTY
@given(sessions(), ENDS)
def test_a_session_file(records: list[Json], end: str) -> None:
    if not any(
        record.get("type") in ("user", "assistant") and not record.get("isSidechain") for record in records
    ):
        return
    lines = [json.dumps(record, separators=(",", ":")) for record in records]
    data = (end.join(lines) + end).encode()
    try:
        history, _, made = mended(data)
    except (
        UnwritableError
    ):  # nothing is left of the last message, and a branch that was given up would be the last
        history = read_history(data)
        gone = repair(history.messages, origins=history.origins).sources
        assert len(history.messages) - 1 not in gone
        return
    holds(data)
    assert history.notes == ()
    after = {json.loads(line).get("uuid", "summary"): line for line in made.decode().split(end) if line}
    for line, record in zip(lines, records, strict=True):
        new = after.get(record.get("uuid", "summary"))
        if record.get("isSidechain") or record["type"] == "summary":
            assert new == line
        elif new is not None and new != line:  # of what changes, all but content and parent stays
            changed = json.loads(new)
            changed["parentUuid"] = record["parentUuid"]
            if "message" in record:
                changed["message"]["content"] = record["message"]["content"]
            assert json.dumps(changed) == json.dumps(record)
