"""The declarations against the installed SDK: what requests may hold, and what responses hold.

The SDK's parameter types are walked from the union of content blocks down to the last nested object, and
compared with our declarations. Whatever differs is named with its reason below, or fails; so does a reason
that is no longer needed.
"""

from __future__ import annotations

import collections.abc
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Required, Union, get_args, get_origin

import anthropic.types as sdk
import pydantic
import pytest
from typing_extensions import get_type_hints, is_typeddict

from convmodel import CitationCharLocation, Text
from convmodel.anthropic import from_message
from convmodel.anthropic.targets import _THINKING
from convmodel.blocks import BLOCKS
from convmodel.declared import ANSWERED, SENT
from convmodel.fields import Choice, Declared, Either, Json, Kind, Many, Nested, Plain, fields_of
from convmodel.shapes import MARKABLE, ROWS, Key, ListOf, Shaped, Tagged, Untagged

# ---------------------------------------------------------------- two descriptions of one object


class Field(NamedTuple):
    """What one side says of one key."""

    required: bool
    nullable: bool


class Named(NamedTuple):
    """An object: where it was met, and its keys."""

    name: str
    fields: dict[str, Field]
    marker: bool


def alternatives(hint: Any) -> Iterator[Any]:
    """The members of a type, wrappers and lists taken off."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Required, NotRequired, Annotated):
        yield from alternatives(args[0])
    elif origin in (Union, types.UnionType):
        for arg in args:
            yield from alternatives(arg)
    elif origin in (list, collections.abc.Iterable, collections.abc.Sequence):
        yield from alternatives(args[0])
    else:
        yield hint


def objects(hint: Any) -> list[Any]:
    return [each for each in alternatives(hint) if is_typeddict(each)]


def is_nullable(hint: Any) -> bool:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Required, NotRequired, Annotated):
        return is_nullable(args[0])
    return type(None) in args if origin in (Union, types.UnionType) else False


def hints_of(param: Any) -> dict[str, Any]:
    return get_type_hints(param, include_extras=True)


def described_by_sdk(param: Any) -> Named:
    hints = hints_of(param)
    fields = {
        key: Field(get_origin(hint) is Required, is_nullable(hint))
        for key, hint in hints.items()
        if key not in ("type", "cache_control")
    }
    return Named(param.__name__, fields, "cache_control" in hints)


def tag_of(param: Any) -> str | None:
    hint = hints_of(param).get("type")
    if hint is None:
        return None
    literal = next(each for each in alternatives(hint) if get_origin(each) is Literal)
    return str(get_args(literal)[0])


def described_by_class(cls: Any) -> Named:
    fields = {
        field.name: Field(
            not field.optional,
            field.name in cls.nullable_on_wire or (field.nullable and not field.optional),
        )
        for field in fields_of(cls)
        if field.flow in SENT
    }
    return Named(cls.__name__, fields, cls.admits_marker)


def described_by_row(name: str) -> Named:
    fields = {key: Field(what.required, what.nullable) for key, what in ROWS[name].items() if key != "type"}
    return Named(name, fields, name in MARKABLE or name == "custom_tool")


# ---------------------------------------------------------------- the walk


class Met(NamedTuple):
    """A parameter type beside what describes it on our side."""

    param: Any
    ours: Named


def kinds(kind: Kind) -> Iterator[Kind]:
    if isinstance(kind, Many):
        yield from kinds(kind.item)
    elif isinstance(kind, Either):
        yield from kinds(kind.one)
        yield from kinds(kind.many)
    else:
        yield kind


def rows_held(holds: Any) -> Iterator[str]:
    if isinstance(holds, Tagged):
        yield from holds.rows
    elif isinstance(holds, Untagged):
        yield holds.row
    elif isinstance(holds, ListOf):
        yield from rows_held(holds.item)
    elif isinstance(holds, tuple):
        for each in holds:
            yield from rows_held(each)


def walk_rows(params: list[Any], rows: list[str], seen: dict[tuple[Any, str], Met], where: str) -> None:
    """Rows of the table beside the parameter types that stand in the same place."""
    by_tag = {row.rpartition(":")[2]: row for row in rows}
    if len(rows) == len(params) == 1:
        pairs = [(params[0], rows[0])]
    else:
        assert by_tag.keys() == {tag_of(param) for param in params}, f"{where}: other types of objects"
        pairs = [(param, by_tag[str(tag_of(param))]) for param in params]
    for param, row in pairs:
        if (param, row) in seen:
            continue
        seen[param, row] = Met(param, described_by_row(row))
        for key, hint in hints_of(param).items():
            inner = objects(hint)
            what: Key | None = ROWS[row].get(key)
            if key != "cache_control" and what is not None and list(rows_held(what.holds)):
                walk_rows(inner, list(rows_held(what.holds)), seen, f"{where}.{key}")


def walk_class(param: Any, cls: Any, seen: dict[tuple[Any, str], Met]) -> None:
    """A declared class beside its parameter type, and whatever both hold inside."""
    if (param, cls.__name__) in seen:
        return
    seen[param, cls.__name__] = Met(param, described_by_class(cls))
    hints = hints_of(param)
    for field in fields_of(cls):
        inner = objects(hints.get(field.name, str))
        if inner:
            walk_field(inner, field, seen, f"{cls.__name__}.{field.name}")


def walk_field(params: list[Any], field: Declared, seen: dict[tuple[Any, str], Met], where: str) -> None:
    nested = [kind for kind in kinds(field.kind) if isinstance(kind, Nested)]
    shaped = [kind for kind in kinds(field.kind) if isinstance(kind, Shaped)]
    if shaped:
        walk_rows(params, [row for kind in shaped for row in rows_held(kind.holds)], seen, where)
    for kind in nested:
        if not kind.by_type:
            assert len(params) == len(kind.classes) == 1, where
            walk_class(params[0], kind.classes[0], seen)
            continue
        assert kind.by_type.keys() == {tag_of(param) for param in params}, f"{where}: other types of objects"
        for param in params:
            walk_class(param, kind.by_type[str(tag_of(param))], seen)


def everything() -> list[Met]:
    seen: dict[tuple[Any, str], Met] = {}
    for param in objects(sdk.ContentBlockParam):
        walk_class(param, BLOCKS[str(tag_of(param))], seen)
    walk_rows([sdk.ToolParam], ["custom_tool"], seen, "tools")
    walk_rows(list(objects(sdk.ThinkingConfigParam)), list(rows_held(_THINKING)), seen, "thinking")
    return list(seen.values())


MET = everything()

# Where we say something else than the SDK's types: object, key, what differs, and why.
DIFFERENCES: dict[tuple[str, str, str], str] = {
    ("ToolResultBlockParam", "content", "nullable"): (
        "the API reference lets it be null, and a live probe of August 2026 had it accepted"
    ),
}


def differences(met: Met) -> set[tuple[str, str, str]]:
    theirs, ours = described_by_sdk(met.param), met.ours
    found: set[tuple[str, str, str]] = set()
    for key in theirs.fields.keys() | ours.fields.keys():
        if key not in ours.fields:
            found.add((theirs.name, key, "missing here"))
        elif key not in theirs.fields:
            found.add((theirs.name, key, "missing there"))
        else:
            pair = zip(Field._fields, ours.fields[key], theirs.fields[key], strict=True)
            found |= {(theirs.name, key, what) for what, mine, yours in pair if mine != yours}
    if theirs.marker != ours.marker:
        found.add((theirs.name, "cache_control", "admitted"))
    return found


def test_the_blocks_are_those_of_the_sdk_and_the_unsigned_thought() -> None:
    tags = {tag_of(param) for param in objects(sdk.ContentBlockParam)}
    assert set(BLOCKS) - tags == {"unsigned_thinking"}
    assert tags - set(BLOCKS) == set()


def test_the_walk_meets_every_parameter_type_inside_a_block_and_every_row_of_the_table() -> None:
    reached: set[Any] = set()

    def reach(param: Any) -> None:
        if param not in reached:
            reached.add(param)
            for key, hint in hints_of(param).items():
                for inner in objects(hint):
                    if key not in ("cache_control", "input_schema"):  # the schema of a tool is free JSON
                        reach(inner)

    for param in (*objects(sdk.ContentBlockParam), sdk.ToolParam, *objects(sdk.ThinkingConfigParam)):
        reach(param)
    assert {met.param.__name__ for met in MET} == {param.__name__ for param in reached}
    assert set(ROWS) - {met.ours.name for met in MET} == set()


@pytest.mark.parametrize("met", MET, ids=lambda met: f"{met.param.__name__}-{met.ours.name}")
def test_keys_required_and_nullable_are_those_of_the_sdk(met: Met) -> None:
    assert differences(met) - DIFFERENCES.keys() == set()


def test_every_difference_that_has_a_reason_is_still_there() -> None:
    found = {difference for met in MET for difference in differences(met)}
    assert DIFFERENCES.keys() - found == set()
    assert all(DIFFERENCES.values())


def scalars(hint: Any) -> set[type]:
    return {
        type(get_args(each)[0]) if get_origin(each) is Literal else each for each in alternatives(hint)
    } & {str, int, bool}


def choices(hint: Any) -> set[str]:
    return {value for each in alternatives(hint) if get_origin(each) is Literal for value in get_args(each)}


@pytest.mark.parametrize("cls", [BLOCKS[str(tag_of(param))] for param in objects(sdk.ContentBlockParam)])
def test_the_simple_fields_of_blocks_have_the_sdks_types_and_choices(cls: Any) -> None:
    param = next(param for param in objects(sdk.ContentBlockParam) if tag_of(param) == cls.type)
    hints = hints_of(param)
    for field in fields_of(cls):
        if field.flow not in SENT:
            continue
        for kind in kinds(field.kind):
            if isinstance(kind, Plain):
                assert kind.of in scalars(hints[field.name]), field.name
            elif isinstance(kind, Json):
                assert dict in {get_origin(each) for each in alternatives(hints[field.name])}, field.name
            elif isinstance(kind, Choice):
                assert set(kind.values) == choices(hints[field.name]), field.name


# ---------------------------------------------------------------- responses


def models(hint: Any) -> list[type[pydantic.BaseModel]]:
    return [
        each for each in alternatives(hint) if isinstance(each, type) and issubclass(each, pydantic.BaseModel)
    ]


RESPONSES = {
    str(get_args(model.model_fields["type"].annotation)[0]): model for model in models(sdk.ContentBlock)
}
# Fields of response models that are left out of what goes back, and why.
NOT_SENT: dict[tuple[str, str], str] = {
    ("CitationCharLocation", "file_id"): "the input schema lacks it",
    ("CitationPageLocation", "file_id"): "the input schema lacks it",
    ("CitationContentBlockLocation", "file_id"): "the input schema lacks it",
}
# Fields of the envelope that `from_message` does not read, and why.
NOT_READ = {
    "content": "read as blocks",
    "diagnostics": "about the request, not about the conversation",
    "role": "always the assistant",
    "stop_details": "about the request, not about the conversation",
    "stop_sequence": "about the request, not about the conversation",
    "type": "always message",
    "usage": "about the request, not about the conversation",
}
READ = {"id", "model", "stop_reason", "container"}


def test_every_field_of_a_message_is_read_or_left_for_a_reason() -> None:
    assert set(sdk.Message.model_fields) == READ | NOT_READ.keys()


def test_every_block_of_a_response_has_a_class() -> None:
    assert set(RESPONSES) - set(BLOCKS) == set()


def walk_response(
    model: type[pydantic.BaseModel], cls: Any, seen: set[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """Fields of a response model that our declaration does not read, or does not send."""
    if (model.__name__, cls.__name__) in seen:
        return
    seen.add((model.__name__, cls.__name__))
    declared = {field.name: field for field in fields_of(cls)}
    for name, info in model.model_fields.items():
        if name == "type":
            continue
        field = declared.get(name)
        if field is None or field.flow not in ANSWERED or field.flow not in SENT:
            yield model.__name__, name
        if field is None:
            continue
        for inner in models(info.annotation):
            for kind in kinds(field.kind):
                if isinstance(kind, Nested):
                    tag = (
                        get_args(inner.model_fields["type"].annotation)[0]
                        if "type" in inner.model_fields
                        else None
                    )
                    held = kind.by_type.get(tag) if tag is not None else kind.classes[0]
                    if held is None:
                        yield inner.__name__, "type"
                    else:
                        yield from walk_response(inner, held, seen)
                elif isinstance(kind, Shaped):
                    yield from walk_response_rows(inner, list(rows_held(kind.holds)), seen)


def walk_response_rows(
    model: type[pydantic.BaseModel], rows: list[str], seen: set[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    tag = get_args(model.model_fields["type"].annotation)[0] if "type" in model.model_fields else None
    row = next((row for row in rows if tag is None or row.rpartition(":")[2] == tag), None)
    if row is None or (model.__name__, row) in seen:
        return
    seen.add((model.__name__, row))
    for name, info in model.model_fields.items():
        if name == "type":
            continue
        if name not in ROWS[row]:
            yield model.__name__, name
            continue
        for inner in models(info.annotation):
            yield from walk_response_rows(inner, list(rows_held(ROWS[row][name].holds)), seen)


def test_every_field_of_a_response_block_goes_back_or_is_left_out_for_a_reason() -> None:
    seen: set[tuple[str, str]] = set()
    found = {each for tag, model in RESPONSES.items() for each in walk_response(model, BLOCKS[tag], seen)}
    assert found == NOT_SENT.keys()


def test_a_field_that_the_service_alone_writes_is_read_and_kept() -> None:
    citation = {
        "type": "char_location",
        "cited_text": "sky",
        "document_index": 0,
        "document_title": None,
        "start_char_index": 0,
        "end_char_index": 3,
        "file_id": "file_1",
    }
    reply = from_message(
        {"content": [{"type": "text", "text": "blue", "citations": [citation]}], "stop_reason": "end_turn"}
    )
    (block,) = reply.blocks
    assert isinstance(block, Text)
    assert block.citations[0] == CitationCharLocation("sky", 0, None, 0, 3, file_id="file_1")
    assert reply.dropped == ()
