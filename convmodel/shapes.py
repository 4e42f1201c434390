"""Free JSON that is not quite free: the results of server tools and the like.

Their content is kept as a `JsonObject` behind this table of key sets, taken from the SDK's parameter types, so that the
input allow-list reaches every depth without a class for each. Unknown *values* (a new kind of result, a new error code)
are kept as they are; unknown *keys* are refused, or left out of a response.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from .errors import Rule, ValidationError, Violation, join, key_name
from .fields import BROKEN, FIELD_TYPE, REQUIRED_FIELD, UNKNOWN_FIELD, Kind, Reading, described, thawed
from .jsonvalue import JsonObject, plain


class Tagged(NamedTuple):
    """An object whose `type` is one of these rows; what a row's name has before a colon only tells it from others."""

    rows: tuple[str, ...]


class Untagged(NamedTuple):
    """An object of one row, without a `type`."""

    row: str


class ListOf(NamedTuple):
    """A list of items of one kind."""

    item: Any


class Key(NamedTuple):
    """What one key may hold: a Python type, `Tagged`, `Untagged`, `ListOf`, or a tuple of alternatives."""

    holds: Any
    required: bool = True
    nullable: bool = False


TEXT, WHOLE, BOOL = Key(str), Key(int), Key(bool)
MAYBE_TEXT, MAYBE_WHOLE = Key(str, False, True), Key(int, False, True)


def _tagged(*rows: str) -> Key:
    return Key(Tagged(rows))


def _list(*rows: str) -> Key:
    return Key(ListOf(Tagged(rows)))


TITLE = Key(str, nullable=True)
_CITED = {"cited_text": TEXT, "document_index": WHOLE, "document_title": TITLE}
_CITATIONS = (
    "char_location",
    "page_location",
    "content_block_location",
    "web_search_result_location",
    "search_result_location",
)
_ERROR = {"error_code": TEXT}
_EXPLAINED_ERROR = {"error_code": TEXT, "error_message": MAYBE_TEXT}
_RUN = {"return_code": WHOLE, "stderr": TEXT}

MARKABLE = ("document", "tool_reference", "block:text", "block:image")
"""The rows of objects inside results that a request may put a cache marker on."""

ROWS: dict[str, dict[str, Key]] = {
    "web_search_result": {"encrypted_content": TEXT, "title": TEXT, "url": TEXT, "page_age": MAYBE_TEXT},
    "web_search_tool_result_error": _ERROR,
    "web_fetch_result": {"content": _tagged("document"), "url": TEXT, "retrieved_at": MAYBE_TEXT},
    "web_fetch_tool_result_error": _ERROR,
    "document": {
        "source": _tagged("base64", "text", "content", "url", "file"),
        "citations": Key(Untagged("citations"), False, True),
        "context": MAYBE_TEXT,
        "title": MAYBE_TEXT,
    },
    "base64": {"data": TEXT, "media_type": TEXT},
    "text": {"data": TEXT, "media_type": TEXT},
    "content": {"content": Key((str, ListOf(Tagged(("block:text", "block:image")))))},
    "block:text": {"text": TEXT, "citations": Key(ListOf(Tagged(_CITATIONS)), False, True)},
    "char_location": {**_CITED, "start_char_index": WHOLE, "end_char_index": WHOLE},
    "page_location": {**_CITED, "start_page_number": WHOLE, "end_page_number": WHOLE},
    "content_block_location": {**_CITED, "start_block_index": WHOLE, "end_block_index": WHOLE},
    "web_search_result_location": {"cited_text": TEXT, "encrypted_index": TEXT, "title": TITLE, "url": TEXT},
    "search_result_location": {
        "cited_text": TEXT,
        "search_result_index": WHOLE,
        "source": TEXT,
        "title": TITLE,
        "start_block_index": WHOLE,
        "end_block_index": WHOLE,
    },
    "thinking:enabled": {"budget_tokens": WHOLE, "display": MAYBE_TEXT},
    "thinking:adaptive": {"display": MAYBE_TEXT},
    "thinking:disabled": {},
    "thinking:between_tools": {},
    "block:image": {
        "source": _tagged("base64", "url", "file"),
        "transformations": Key(Untagged("transformations"), False, True),
    },
    "transformations": {"oversized_image": Key(str, False)},
    "url": {"url": TEXT},
    "file": {"file_id": TEXT},
    "citations": {"enabled": Key(bool, False)},
    "code_execution_result": {**_RUN, "content": _list("code_execution_output"), "stdout": TEXT},
    "encrypted_code_execution_result": {
        **_RUN,
        "content": _list("code_execution_output"),
        "encrypted_stdout": TEXT,
    },
    "code_execution_output": {"file_id": TEXT},
    "code_execution_tool_result_error": _ERROR,
    "bash_code_execution_result": {**_RUN, "content": _list("bash_code_execution_output"), "stdout": TEXT},
    "bash_code_execution_output": {"file_id": TEXT},
    "bash_code_execution_tool_result_error": _ERROR,
    "text_editor_code_execution_view_result": {
        "content": TEXT,
        "file_type": TEXT,
        "num_lines": MAYBE_WHOLE,
        "start_line": MAYBE_WHOLE,
        "total_lines": MAYBE_WHOLE,
    },
    "text_editor_code_execution_create_result": {"is_file_update": BOOL},
    "text_editor_code_execution_str_replace_result": {
        "lines": Key(ListOf(str), False, True),
        "new_lines": MAYBE_WHOLE,
        "new_start": MAYBE_WHOLE,
        "old_lines": MAYBE_WHOLE,
        "old_start": MAYBE_WHOLE,
    },
    "text_editor_code_execution_tool_result_error": _EXPLAINED_ERROR,
    "tool_search_tool_search_result": {"tool_references": _list("tool_reference")},
    "tool_search_tool_result_error": _EXPLAINED_ERROR,
    "tool_reference": {"tool_name": TEXT},
    "custom_tool": {
        "name": TEXT,
        "input_schema": Key(dict),
        "type": MAYBE_TEXT,
        "description": Key(str, False),
        "allowed_callers": Key(ListOf(str), False),
        "defer_loading": Key(bool, False),
        "eager_input_streaming": Key(bool, False, True),
        "input_examples": Key(ListOf(dict), False),
        "strict": Key(bool, False),
    },
    "browser_tab": {"tab_id": TEXT, "title": TEXT, "url": TEXT, "active": Key(bool, False)},
    "tab_opened": {"tab_id": TEXT},
    "download_started": {"download_id": TEXT, "url": TEXT},
    "download_completed": {"download_id": TEXT, "url": TEXT, "path": MAYBE_TEXT, "size_bytes": MAYBE_WHOLE},
    "download_failed": {"download_id": TEXT, "url": TEXT, "error": MAYBE_TEXT},
}


def _row(holds: Tagged | Untagged, value: Mapping[str, Any]) -> dict[str, Key] | None:
    """The row that an object is judged by; None where its type is not known."""
    if isinstance(holds, Untagged):
        return ROWS[holds.row]
    tag = value.get("type")
    return next((ROWS[name] for name in holds.rows if name.rpartition(":")[2] == tag), None)


def faults(value: Any, holds: Any, path: str = "") -> Iterator[Violation]:
    """Everything in a plain JSON value that its table row does not admit."""
    if isinstance(holds, tuple) and not isinstance(holds, (Tagged, Untagged, ListOf)):
        if not any(next(faults(value, each), None) is None for each in holds):
            yield Violation(
                FIELD_TYPE, path, f"{described(value)} of the wrong kind", "Send it back as it came."
            )
    elif isinstance(holds, ListOf):
        if not isinstance(value, list):
            yield Violation(FIELD_TYPE, path, f"{described(value)} where a list is due", "Pass a list.")
            return
        for i, item in enumerate(value):
            yield from faults(item, holds.item, f"{path}[{i}]")
    elif isinstance(holds, (Tagged, Untagged)):
        if not isinstance(value, dict):
            yield Violation(FIELD_TYPE, path, f"{described(value)} where an object is due", "Pass an object.")
            return
        data = cast("dict[str, Any]", value)
        if isinstance(holds, Tagged) and not isinstance(data.get("type"), str):
            yield Violation(REQUIRED_FIELD, join(path, "type"), "nothing", "Add `type`.")
        elif (row := _row(holds, data)) is not None:
            yield from _row_faults(data, row, isinstance(holds, Tagged), path)
    elif type(value) is not holds:
        expected = {str: "text", int: "a whole number", bool: "true or false", dict: "an object"}[holds]
        yield Violation(FIELD_TYPE, path, f"{described(value)} where {expected} is due", f"Pass {expected}.")


def _row_faults(data: dict[str, Any], row: dict[str, Key], tagged: bool, path: str) -> Iterator[Violation]:
    for name, key in row.items():
        where = join(path, name)
        if name not in data:
            if key.required:
                yield Violation(REQUIRED_FIELD, where, "nothing", f"Add `{name}`; it goes back as it came.")
        elif data[name] is not None or not key.nullable:
            yield from faults(data[name], key.holds, where)
    for name in data:
        if name not in row and not (tagged and name == "type"):
            where = join(path, key_name(name))
            yield Violation(UNKNOWN_FIELD, where, "a field that requests do not have", "Remove it.")


def trimmed(value: Any, holds: Any, reading: Reading, path: str) -> Any:
    """A plain JSON value of a response without the keys that requests do not have; what is left out is reported."""
    if isinstance(holds, ListOf) and isinstance(value, list):
        items = value
        return [trimmed(item, holds.item, reading, f"{path}[{i}]") for i, item in enumerate(items)]
    if not isinstance(holds, (Tagged, Untagged)) or not isinstance(value, dict):
        return value
    data = cast("dict[str, Any]", value)
    row = _row(holds, data)
    if row is None:
        return data
    out: dict[str, Any] = {}
    for name, item in data.items():
        key = row.get(name)
        if name == "type" and isinstance(holds, Tagged):
            out[name] = item
        elif key is not None and (item is not None or (key.nullable and key.required)):
            out[name] = trimmed(item, key.holds, reading, join(path, name))
        elif item is not None:
            where = join(path, key_name(name))
            reading.drop(UNKNOWN_FIELD, where, "a field that requests do not have", "It was left out.")
    return out


class Shaped(Kind):
    """A JSON object that a row of the table admits."""

    def __init__(self, *rows: str, tagged: bool = True) -> None:
        self.holds: Tagged | Untagged = Tagged(rows) if tagged else Untagged(rows[0])
        self.expected: str = f"a JSON object ({' or '.join(rows)})"

    def admits(self, value: Any) -> bool:
        return type(value) is JsonObject and next(faults(value.thaw(), self.holds), None) is None

    def faults(self, value: Any, wrong: Rule) -> Iterator[Violation]:
        if type(value) is JsonObject:
            yield from faults(value.thaw(), self.holds)
        else:
            yield from super().faults(value, wrong)

    def read(self, raw: Any, reading: Reading, path: str) -> Any:
        value = thawed(raw)
        if not isinstance(value, Mapping):
            reading.fault(FIELD_TYPE, path, f"{described(raw)} where an object is due", "Pass an object.")
            return BROKEN
        try:
            data: dict[str, Any] = plain(value)
        except ValidationError as error:
            reading.violations.extend(fault.under(path) for fault in error.violations)
            return BROKEN
        if reading.lenient:
            return trimmed(data, self.holds, reading, path)
        return _unmarked(data, reading, path) if reading.marked else data


def _admits_marker(data: dict[str, Any]) -> bool:
    tag = data.get("type")
    return tag in MARKABLE or (
        f"block:{tag}" in MARKABLE and "data" not in data
    )  # a text source has data, no text


def _unmarked(value: Any, reading: Reading, path: str) -> Any:
    """A plain JSON value less the cache markers at the places that admit one."""
    if isinstance(value, list):
        return [_unmarked(item, reading, f"{path}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    data = cast("dict[str, Any]", value)
    if "cache_control" in data and _admits_marker(data):
        reading.marker(data["cache_control"], path)
        data = {name: item for name, item in data.items() if name != "cache_control"}
    return {name: _unmarked(item, reading, join(path, name)) for name, item in data.items()}
