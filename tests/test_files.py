"""Files of each form: what they hold, and what of them stays byte for byte when their history is mended."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from convmodel.anthropic import check
from convmodel.cli import main
from convmodel.files import UnreadableError, UnwritableError, back_up, read_history, write
from convmodel.repair import repair

Json = dict[str, Any]

CALL = '{"type": "tool_use", "id": "a", "name": "ls", "input": {"n": 123456789012345678901234567890}}'


def mended(data: bytes, stage: Literal["hold", "send"] = "hold") -> bytes:
    """The file with its history mended; read again it is valid, and mending it again changes nothing."""
    history = read_history(data)
    common: Json = {"system": history.body.get("system"), "origins": history.origins, "stage": stage}
    result = repair(history.messages, **common)
    made = history.mended(data, result)
    again = read_history(made)
    assert again.messages == result.messages
    common = {"system": again.body.get("system"), "origins": again.origins, "stage": stage}
    assert check(again.messages, **common) == ()
    assert again.mended(made, repair(again.messages, **common)) is made
    return made


# ---------------------------------------------------------------- arrays, bodies, lines


ARRAY = (
    b"\xef\xbb\xbf [\r\n"
    b'    { "content" : "caf\\u00e9 \\/ \xc3\xa9", "role":"user" } ,\r\n'
    b'    {"role": "assistant", "content": [{"type": "text", "text": "A", "parsed_output": null}]},\r\n'
    b"\r\n"
    b'    {"role":"user","content":[{"type":"text","text":""}]},\r\n'
    b'    {"role": "user", "content": "bye"}\r\n'
    b"  ]\r\n\r\n"
)


def test_an_array_keeps_the_text_of_what_was_not_touched() -> None:
    assert mended(ARRAY) == (
        b"\xef\xbb\xbf [\r\n"
        b'    { "content" : "caf\\u00e9 \\/ \xc3\xa9", "role":"user" } ,\r\n'
        b'    {"role": "assistant", "content": [{"type": "text", "text": "A"}]} ,\r\n'
        b'    {"role": "user", "content": "bye"}\r\n'
        b"  ]\r\n\r\n"
    )


def test_a_valid_file_is_the_same_file() -> None:
    data = b'[ {"role" : "user","content":"\\u0061"} ]'
    assert mended(data) is data


def test_a_message_that_changes_is_indented_as_it_was() -> None:
    rows = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [json.loads(CALL)]},
        {"role": "user", "content": "y"},
    ]
    styles: list[Json] = [{"indent": 2}, {"indent": "\t"}, {"separators": (",", ":")}, {}]
    for style in styles:
        text = json.dumps(rows, **style)
        result = repair(rows)
        assert mended(text.encode()).decode() == json.dumps(result.messages, **style)
        for end in ("\r\n",) if "indent" in style else ():
            whole = text.replace("\n", end).encode()
            assert mended(whole).decode() == json.dumps(result.messages, **style).replace("\n", end)


def test_a_new_message_stands_on_a_line_of_its_own() -> None:
    lines = ['{"role": "user", "content": "x"}', f'{{"role": "assistant", "content": [{CALL}]}}']
    for start, between, end in (("[\n  ", ",\n  ", "\n]"), ("", "\n", "\n"), ("", "\r\n", "")):
        data = f"{start}{between.join(lines)}{end}"
        made = mended(data.encode(), "send").decode()
        assert made.startswith(
            data.removesuffix(end) + between + '{"role": "user", "content": [{"type": "tool_'
        )
        assert made.endswith('"is_error": true}]}' + end)


BODY = b'{"max_tokens": 1e2,\n "messages" : [{"role": "user", "content": ""},{"role": "user","content": "\\u0061"}] , "x": 1.50}\n'


def test_a_body_keeps_all_that_stands_around_its_messages() -> None:
    assert (
        mended(BODY)
        == b'{"max_tokens": 1e2,\n "messages" : [{"role": "user","content": "\\u0061"}] , "x": 1.50}\n'
    )


@pytest.mark.parametrize("system", [None, "T"])
@pytest.mark.parametrize("style", [{}, {"indent": 2}, {"separators": (",", ":")}])
def test_a_system_message_at_the_front_joins_the_system_prompt_of_a_body(
    system: str | None, style: Json
) -> None:
    before = {"model": "claude-opus-4-8"} | ({} if system is None else {"system": system})
    rows = [{"role": "system", "content": "S"}, {"role": "user", "content": "x"}]
    made = mended(json.dumps({**before, "messages": rows, "x": 1}, **style).encode()).decode()
    prompt = [text(each) for each in (system, "S") if each]
    assert made == json.dumps({**before, "system": prompt, "messages": rows[1:], "x": 1}, **style)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "\n", "\n\n"])
def test_lines_keep_their_ends(end: str, last: str) -> None:
    lines = [
        '{"role" : "user", "content": "\u2028 x"}',
        '{"role": "user", "content": ""}',
        '{"content": "y", "role": "user"}',
    ]
    tail = last.replace("\n", end)
    assert mended((end.join(lines) + tail).encode()).decode() == f"{lines[0]}{end}{lines[2]}{tail}"


def test_a_last_line_that_was_cut_off_is_no_message() -> None:
    data = b'{"role": "user", "content": "x"}\n{"role": "assistant", "content": "\xc3'
    history = read_history(data)
    assert [fault.path for fault in check(history.messages)] == ["messages[1]"]
    assert mended(data) == b'{"role": "user", "content": "x"}\n'.rstrip()
    with pytest.raises(UnreadableError, match="line 2"):
        read_history(data + b"\n")


def test_bytes_that_are_no_text_become_the_character_that_says_so() -> None:
    assert (
        mended(b'[{"role": "user", "content": "a\xff"}]')
        == b'[{"role": "user", "content": [{"type": "text", "text": "a\xef\xbf\xbd"}]}]'
    )


def test_two_values_of_one_key_are_a_fault() -> None:
    history = read_history(
        b'{"role": "user", "content": "x", "content": "y"}\n{"role": "user", "content": "z"}'
    )
    assert [(fault.rule.id, fault.path) for fault in history.faults] == [("json-value", "messages[0]")]


def test_a_stored_conversation_is_only_read() -> None:
    history = read_history(b'{"convmodel": 1, "turns": []}')
    assert (history.messages, history.spell, history.body["turns"]) == (None, None, [])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"3",
        b"{}",
        b"[1",
        b'"x"',
        b"\xff",
        b"[NaN]",
        b"[" * 100_000,
        b'{"role": "user"\n',
    ],
)
def test_what_is_no_history_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(UnreadableError):
        read_history(data)


# ---------------------------------------------------------------- session files


class Records:
    """A session file as it is written, record by record."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, uuid: str, parent: str | None, type: str, content: Any = None, **more: Any) -> None:
        message: Json = {"role": type, "content": content}
        if "id" in more:
            message = {
                "id": more.pop("id"),
                "model": "claude-opus-4-8",
                "usage": {"n": 1},
                **message,
                "stop_reason": None,
            }
        said = {"message": message} if content is not None else {}
        row = {
            "parentUuid": parent,
            "isSidechain": False,
            "sessionId": "s",
            "type": type,
            **said,
            "uuid": uuid,
            **more,
        }
        self.lines.append(json.dumps(row, separators=(",", ":")))

    def other(self, **row: Any) -> None:
        self.lines.append(json.dumps(row))

    @property
    def data(self) -> bytes:
        return "".join(line + "\n" for line in self.lines).encode()


def call(id: str) -> Json:
    return {"type": "tool_use", "id": id, "name": "ls", "input": {}}


def result(id: str, said: str = "R") -> Json:
    return {"type": "tool_result", "tool_use_id": id, "content": said}


def text(said: str) -> Json:
    return {"type": "text", "text": said}


def roles(data: bytes) -> list[tuple[str, Any]]:
    """Each message as its party and, of its blocks, the text or the id."""
    return [
        (
            message["role"],
            content
            if isinstance(content := message["content"], str)
            else [block.get("text") or block.get("id") or block.get("tool_use_id") for block in content],
        )
        for message in read_history(data).messages
    ]


def parallel() -> Records:
    """Two calls of one response, each a record, whose results hang on them: the chain passes by the first result."""
    file = Records()
    file.add("1", None, "user", "x")
    file.add("2", "1", "assistant", [text("I look.")], id="m1")
    file.add("3", "2", "assistant", [call("a")], id="m1")
    file.add("5", "3", "user", [result("a")], toolUseResult={"stdout": "R"})
    file.add("4", "3", "assistant", [call("b")], id="m1")
    file.add("6", "4", "user", [result("b")])
    file.add("7", "6", "assistant", [text("Done.")], id="m2")
    return file


def test_records_of_one_response_are_one_message_with_all_of_its_results() -> None:
    data = parallel().data
    assert roles(data) == [
        ("user", "x"),
        ("assistant", ["I look.", "a", "b"]),
        ("user", ["a"]),
        ("user", ["b"]),
        ("assistant", ["Done."]),
    ]
    history = read_history(data)
    assert [history.line(f"messages[1].content[{at}]") for at in range(3)] == [2, 3, 5]
    assert (history.line("messages[3]"), history.line("messages"), history.line("")) == (6, None, None)
    assert (history.origins[1].id, history.origins[1].model) == ("m1", "claude-opus-4-8")
    assert mended(data) == data


def test_what_is_no_part_of_the_main_conversation_is_left_alone() -> None:
    file = Records()
    file.other(type="summary", summary="A talk", leafUuid="9")
    file.add("0", None, "user", "before the compaction")
    file.add("1", None, "system", subtype="compact_boundary", logicalParentUuid="0")
    file.add("2", "1", "user", "The summary.", isCompactSummary=True)
    file.add("side1", "2", "user", "a task", isSidechain=True)
    file.add("side2", "side1", "assistant", [call("s")], isSidechain=True, id="ms")
    file.add("old", "2", "assistant", [text("a branch that was given up"), call("o")], id="m0")
    file.add("3", "2", "progress", data={"n": 1.5})
    file.add("4", "3", "assistant", [text("API Error: 529")], isApiErrorMessage=True, id="me")
    file.add("5", "4", "user", "y")
    file.add("6", "5", "assistant", [call("c")], id="m1")
    file.add("7", "6", "system", subtype="turn_duration")
    file.add("8", "7", "user", "z")
    file.other(type="file-history-snapshot", messageId="8")
    assert roles(file.data) == [
        ("user", "The summary."),
        ("user", "y"),
        ("assistant", ["c"]),
        ("user", "z"),
    ]
    made = mended(file.data).decode().splitlines()
    changed = [(old, new) for old, new in zip(file.lines, made, strict=True) if old != new]
    [(old, new)] = changed
    assert json.loads(new)["message"]["content"][0]["tool_use_id"] == "c"
    assert new.startswith(old[: old.index('"content":') + len('"content":')])


def test_a_new_message_is_a_record_between_its_neighbours() -> None:
    file = Records()
    file.add("1", None, "user", "x")
    file.add("2", "1", "assistant", [call("a")], id="m1", cwd="/home", timestamp="2026-01-01T00:00:00Z")
    file.add("3", "2", "progress", data={"n": 1.50})
    file.add("4", "3", "assistant", [text("API Error")], id="m2", isApiErrorMessage=True)
    made = mended(file.data, "send").decode().splitlines()
    new = json.loads(made[2])
    assert (made[:2], made[4]) == (file.lines[:2], file.lines[3])
    assert made[3] == file.lines[2].replace('"parentUuid":"2"', f'"parentUuid":"{new["uuid"]}"')
    assert made[2].startswith(
        '{"parentUuid":"2","isSidechain":false,"cwd":"/home","sessionId":"s","timestamp":"2026'
    )
    assert (new["type"], new["message"]["role"], new["message"]["content"][0]["is_error"]) == (
        "user",
        "user",
        True,
    )
    assert mended(file.data, "send").decode().splitlines() == made


def test_children_of_a_record_that_goes_hang_on_the_one_above_it() -> None:
    file = Records()
    file.add("1", None, "user", "x")
    file.add("2", "1", "user", "")
    file.add("3", "2", "user", " ")
    file.add("p", "3", "progress", data={})
    file.add("4", "3", "user", "y")
    made = mended(file.data).decode().splitlines()
    assert made == [
        file.lines[0],
        *(line.replace('"parentUuid":"3"', '"parentUuid":"1"') for line in file.lines[3:]),
    ]


def test_a_record_with_nothing_left_goes_and_the_others_of_its_response_stay() -> None:
    file = Records()
    file.add("1", None, "user", "x")
    file.add("2", "1", "assistant", [text("")], id="m1")
    file.add("3", "2", "assistant", [call("a")], id="m1")
    file.add("4", "3", "user", [result("a")])
    made = mended(file.data).decode().splitlines()
    assert made == [
        file.lines[0],
        file.lines[2].replace('"parentUuid":"2"', '"parentUuid":"1"'),
        file.lines[3],
    ]


def test_what_is_left_of_a_response_stays_on_the_chain() -> None:
    file = Records()
    file.add("1", None, "user", "x")
    file.add("2", "1", "assistant", [text("")], id="m1")
    file.add("3", "2", "assistant", [call("a")], id="m1")  # the chain passes by it
    file.add("4", "3", "user", [result("a")])
    file.add("5", "2", "user", "y")
    assert roles(mended(file.data)) == [("user", "x"), ("assistant", ["a"]), ("user", ["a"]), ("user", "y")]


def test_messages_that_a_compaction_kept_stand_behind_its_summary() -> None:
    file = Records()
    file.add("0", None, "user", "old")
    file.add("1", "0", "assistant", [call("a")], id="m1")
    kept = {"preservedSegment": {"headUuid": "1", "anchorUuid": "3", "tailUuid": "1"}}
    file.add("2", None, "system", subtype="compact_boundary", compactMetadata=kept)
    file.add("3", "2", "user", "The summary.", isCompactSummary=True)
    file.add("4", "3", "user", [result("a")])
    assert roles(file.data) == [("user", "The summary."), ("assistant", ["a"]), ("user", ["a"])]
    assert mended(file.data) == file.data


def test_the_file_of_a_sub_agent_is_its_conversation() -> None:
    file = Records()
    file.add("1", None, "user", "a task", isSidechain=True)
    file.add("2", "1", "assistant", [text("Done.")], isSidechain=True, id="m1")
    assert roles(file.data) == [("user", "a task"), ("assistant", ["Done."])]


def hostile(name: str) -> Records:
    file = Records()
    file.add("1", "2" if name == "circle" else "gone" if name == "parent" else None, "user", "x")
    file.add("2", "1", "assistant", [text("y")], id="m1")
    if name == "twice":
        file.add("2", "1", "assistant", [text("y"), text("")], id="m1")
    file.add("3", "2", "user", "")
    file.add("4", "3", "user", "z")
    if name == "broken":
        file.lines.insert(2, '{"parentUuid":"2","type":"us')
    return file


@pytest.mark.parametrize(
    ("name", "notes"),
    [
        pytest.param(
            "circle", ["line 2: its parents lead in a circle; the history starts behind it"], id="circle"
        ),
        pytest.param(
            "parent", ["line 1: its parent is not in the file; the history starts with it"], id="parent"
        ),
        pytest.param("twice", [], id="two records with one uuid"),
        pytest.param("broken", ["line 3: no JSON; it is left as it is"], id="a line that is no JSON"),
    ],
)
def test_what_does_not_hang_together_is_named_and_the_rest_is_mended(name: str, notes: list[str]) -> None:
    file = hostile(name)
    history = read_history(file.data)
    assert [note.replace("line 1", "line 2") if name == "circle" else note for note in history.notes] == notes
    assert roles(mended(file.data)) == [("user", "x"), ("assistant", ["y"]), ("user", "z")]


def test_a_record_that_goes_takes_no_other_of_its_uuid_along() -> None:
    file = Records()
    file.add("1", None, "user", "x")
    file.add("3", "1", "user", "a branch that was given up")
    file.add("2", "1", "assistant", [text("y")], id="m1")
    file.add("3", "2", "user", "")
    file.add("4", "3", "user", "z")
    made = mended(file.data).decode().splitlines()
    assert made == [*file.lines[:3], file.lines[4].replace('"parentUuid":"3"', '"parentUuid":"2"')]


def test_no_record_becomes_its_own_parent() -> None:
    file = Records()
    file.add("1", "2", "user", "x")
    file.add("2", "1", "user", "")
    made = mended(file.data).decode().splitlines()
    assert made == [file.lines[0].replace('"parentUuid":"2"', '"parentUuid":null')]
    assert read_history(mended(file.data)).notes == ()


def test_a_result_beside_the_chain_hangs_on_a_response_that_stays() -> None:
    file = Records()
    file.add("1", None, "user", "x")
    file.add("2", "1", "assistant", [call("a")], id="m1")
    file.add("p", "2", "progress", data={})
    file.add("3", "p", "assistant", [text("")], id="m2")
    file.add("4", "3", "user", [result("a")])
    file.add("5", "3", "user", "y")
    assert roles(file.data)[2:] == [("assistant", [None]), ("user", ["a"]), ("user", "y")]
    assert roles(mended(file.data)) == [("user", "x"), ("assistant", ["a"]), ("user", ["a"]), ("user", "y")]


def test_results_beside_the_chain_go_on_it_behind_a_message_that_is_new() -> None:
    file = Records()
    file.add("1", None, "user", "x")
    file.add("2", "1", "assistant", [call("a")], id="m1")
    file.add("3", "2", "assistant", [call("b"), result("c")], id="m1")
    file.add("4", "3", "assistant", [call("c")], id="m1")
    file.add("5", "2", "user", [result("a")])
    file.add("6", "4", "user", [result("b")])
    assert roles(file.data)[2:] == [("user", ["a"]), ("user", ["b"])]
    assert roles(mended(file.data))[2:] == [("user", ["c"]), ("user", ["a"]), ("user", ["b"])]
    assert mended(mended(file.data)) == mended(file.data)


def test_a_write_that_was_cut_off_is_named_and_left() -> None:
    data = parallel().data
    cut = data + data[:40]
    assert read_history(cut).notes == ("line 8: no JSON; it is left as it is",)
    assert read_history(cut).messages == read_history(data).messages
    assert mended(cut) == cut


def test_a_session_whose_last_message_would_vanish_before_another_branch_is_refused() -> None:
    file = Records()
    file.add("1", None, "user", "x")
    file.add("2", "1", "user", "a branch that was given up")
    file.add("3", "1", "user", "")
    history = read_history(file.data)
    with pytest.raises(UnwritableError):
        history.mended(file.data, repair(history.messages))


@pytest.mark.parametrize(
    "rows",
    [
        [{"parentUuid": None}],
        [{"parentUuid": 3, "type": "user", "message": {"role": "user", "content": "x"}}],
        [{"uuid": ["1"], "parentUuid": [], "type": "assistant", "message": {}}],
    ],
)
def test_a_session_without_uuids_cannot_be_followed(rows: list[Json]) -> None:
    with pytest.raises(UnreadableError, match="uuid"):
        read_history("\n".join(json.dumps(row) for row in rows).encode())


@pytest.mark.parametrize("junk", [None, 1, "x", [], {}, True])
def test_no_value_in_a_record_makes_reading_fail(junk: Any) -> None:
    for key in ("parentUuid", "uuid", "type", "message", "isSidechain", "subtype", "compactMetadata"):
        file = parallel()
        rows = [json.loads(line) for line in file.lines]
        rows[2][key] = junk
        mended("\n".join(map(json.dumps, rows)).encode())
    for key in ("role", "id", "content", "model", "stop_reason"):
        rows = [json.loads(line) for line in parallel().lines]
        rows[2]["message"][key] = junk
        mended("\n".join(map(json.dumps, rows)).encode())


def test_a_message_without_content_gets_some_or_goes() -> None:
    rows = [json.loads(line) for line in parallel().lines]
    rows.append({"parentUuid": [], "uuid": "9", "type": "user", "message": {"role": "user"}})
    rows.append(
        {"parentUuid": "9", "uuid": "10", "type": "user", "message": {"role": "user", "content": "x"}}
    )
    rows.append({"parentUuid": "10", "uuid": "11", "type": "assistant", "message": {"role": "assistant"}})
    made = mended("\n".join(map(json.dumps, rows)).encode()).decode().splitlines()
    assert json.loads(made[-2]) == {**rows[-2], "parentUuid": None}
    assert made[-1] == json.dumps(rows[-1]).replace('{"role"', '{"content":[],"role"')


def test_the_work_on_a_session_grows_with_its_records_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder is asked a fixed number of times a record, whatever the length of the file."""
    from convmodel import files, jsontext, jsonvalue

    def asked(rounds: int) -> int:
        file = Records()
        file.add("u", None, "user", "x")
        tip = "u"
        for n in range(rounds):
            file.add(f"a{n}", tip, "assistant", [call(f"c{n}")], id=f"m{n}")
            file.add(tip := f"b{n}", f"a{n}", "user", "no result")
        count = 0

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                nonlocal count
                count += 1
                return function(*args)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(files, "decode", counted(jsonvalue.decode))
            patch.setattr(jsontext, "_value", counted(jsontext._value))
            history = read_history(file.data)
            history.mended(file.data, repair(history.messages))
        return count

    few, many = asked(20), asked(200)
    assert many < 10.5 * few


# ---------------------------------------------------------------- writing


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fails(_: int) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="no room"):
            write(path, b"new")
    assert ([each.name for each in tmp_path.iterdir()], path.read_bytes()) == (["a"], b"old")


def test_the_mode_of_a_file_stays_and_a_link_is_followed(tmp_path: Path) -> None:
    path, link = tmp_path / "a", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    write(link, b"new")
    assert (link.is_symlink(), path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (True, b"new", 0o640)
    write(tmp_path / "b", b"new", 0o604)
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o604
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        write(tmp_path / "pipe", b"x")


def test_a_backup_never_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"")
    path.chmod(0o600)
    kept = [back_up(path, data) for data in (b"1", b"2", b"3")]
    assert [each.name for each in kept] == ["a.json.bak", "a.json.bak.1", "a.json.bak.2"]
    assert [each.read_bytes() for each in kept] == [b"1", b"2", b"3"]
    assert stat.S_IMODE(kept[2].stat().st_mode) == 0o600


# ---------------------------------------------------------------- the command


BROKEN = b'[{"role":"user","content":"x"}, {"role":"user","content":""}]'
MENDED = b'[{"role":"user","content":"x"}]'


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.json"
    path.write_bytes(BROKEN)
    return path


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_repair_prints_its_plan_and_writes_nothing(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in ([], ["--dry-run", "--in-place"], ["--dry-run", "-o", str(broken.with_name("out"))]):
        assert main(["repair", str(broken), *options]) == 0
        out, err = capsys.readouterr()
        assert (out.splitlines(), err) == (
            [
                "messages[1].content.text: dropped [text-block-nonempty]",
                "  '' -> (nothing)",
                "messages[1]: dropped [user-content-nonempty]",
            ],
            "",
        )
    assert (names(broken.parent), broken.read_bytes()) == (["broken.json"], BROKEN)


def test_repair_in_place_keeps_what_the_file_held(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repair", str(broken), "--in-place"]) == 0
    assert broken.read_bytes() == MENDED
    assert broken.with_name("broken.json.bak").read_bytes() == BROKEN
    assert "broken.json.bak keeps what it held" in capsys.readouterr().err
    before = broken.stat()
    assert main(["repair", str(broken), "--in-place"]) == 0
    assert capsys.readouterr() == ("valid as it is\n", "")
    assert broken.stat() == before
    assert names(broken.parent) == ["broken.json", "broken.json.bak"]


@pytest.mark.parametrize("kind", ["itself", "hard link", "link", "longer path"])
def test_repair_never_writes_over_its_input_by_any_name(broken: Path, kind: str) -> None:
    out = broken.with_name("out")
    match kind:
        case "itself":
            out = broken
        case "hard link":
            out.hardlink_to(broken)
        case "link":
            out.symlink_to(broken)
        case _:
            out = broken.parent / ".." / broken.parent.name / broken.name
    assert main(["repair", str(broken), "-o", str(out)]) == 2
    assert broken.read_bytes() == BROKEN


def test_repair_writes_to_standard_output_only_when_asked(
    broken: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["repair", str(broken), "-o", "-"]) == 0
    out, err = capfdbinary.readouterr()
    assert (out, b"text-block-nonempty" in err) == (MENDED, True)


def test_repair_reads_standard_input(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = broken.with_name("out")
    with broken.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["repair", "-", "-o", str(out)]) == 0
    assert (out.read_bytes(), stat.S_IMODE(out.stat().st_mode)) == (
        MENDED,
        stat.S_IMODE(broken.stat().st_mode),
    )
    with broken.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["repair", "-", "--in-place"]) == 2
        assert main(["repair", "-", "-o", str(broken)]) == 2
    assert broken.read_bytes() == BROKEN


def test_a_policy_is_given_by_kind(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for policy in (["refuse"], ["texts=refuse"]):
        assert main(["repair", str(broken), "--json", "--in-place", "--policy", *policy]) == 1
        printed = json.loads(capsys.readouterr().out)
        assert [row["defect"] for row in printed["refused"]] == ["texts", "texts"]
        assert (printed["changes"], printed["messages"]) == ([], None)
    assert main(["repair", str(broken), "--policy", "refuse", "--policy", "texts=drop"]) == 0
    for wrong in ("texts", "texts=answer", "nothing=drop", ""):
        assert main(["repair", str(broken), "--policy", wrong]) == 2
    assert broken.read_bytes() == BROKEN


def test_a_file_that_changes_meanwhile_is_left_alone(
    broken: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def busy(*args: Any, **options: Any) -> Any:
        broken.write_bytes(BROKEN + b" ")
        return repair(*args, **options)

    monkeypatch.setattr("convmodel.cli.repair", busy)
    assert main(["repair", str(broken), "--in-place"]) == 2
    assert "has changed meanwhile" in capsys.readouterr().err
    assert names(broken.parent) == ["broken.json"]


def test_what_cannot_be_mended_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "h.json"
    for data in (
        b'[{"role":"user","content":"x","content":"y"}]',
        b'{"messages": 3}',
        b'{"role":"user","content":""}\n',
    ):
        path.write_bytes(data)
        assert main(["repair", str(path), "--in-place"]) == 1
        assert (path.read_bytes(), names(tmp_path)) == (data, ["h.json"])
    path.write_bytes(b'{"convmodel": 1, "turns": []}')
    assert main(["repair", str(path)]) == 2
    assert "only wire data" in capsys.readouterr().err


def test_a_system_prompt_without_a_place_is_not_lost_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "h.json"
    path.write_text('[{"role":"system","content":"S"},{"role":"user","content":"x"}]')
    assert main(["repair", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["system"] == [text("S")]
    assert "has no place for the system prompt" in err


def test_the_commands_say_on_which_line_of_a_session_file_a_block_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = parallel()
    del file.lines[5]
    file.lines[5] = file.lines[5].replace('"parentUuid":"6"', '"parentUuid":"4"')
    path = tmp_path / "s.jsonl"
    path.write_bytes(file.data)
    assert main(["check", str(path)]) == 1
    assert capsys.readouterr().out.startswith("messages[1].content[2] (line 5)\n")
    assert main(["check", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["violations"][0]["line"] == 5
    assert main(["repair", str(path), "--in-place", "--json"]) == 0
    assert [row["line"] for row in json.loads(capsys.readouterr().out)["changes"]] == [5]
    assert main(["check", str(path)]) == 0
    assert main(["show", str(path)]) == 0
    assert "tool_result b error" in capsys.readouterr().out
