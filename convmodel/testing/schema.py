"""A closed JSON Schema of the Messages API request body, derived from the installed SDK.

The `*Param` TypedDicts of the `anthropic` package say which keys and which kinds of values a request may
hold. This module walks them into one JSON Schema in which every object is closed, and words what `jsonschema`
finds as the API words it.
"""

from __future__ import annotations

import collections.abc
import os
import re
from functools import cache
from types import NoneType, UnionType
from typing import (
    IO,
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Required,
    TypeAlias,
    TypeGuard,
    Union,
    cast,
    get_args,
    get_origin,
)

# The SDK's classes are made by this package, whose functions know those of every Python version.
from typing_extensions import get_type_hints, is_typeddict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jsonschema import ValidationError
    from jsonschema.protocols import Validator

__all__ = ["ShapeFault", "request_schema", "shape_fault"]

Schema = dict[str, Any]
Value: TypeAlias = Any  # any value of JSON
Checker: TypeAlias = Any  # a validator of `jsonschema`, whose types leave out `descend`

_SCALARS: dict[object, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
    dict: "object",
}
_WORDS = {
    "string": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
    "array": "list",
    "object": "dictionary",
}
# The reference page of the Messages API lets the content of a result be null; the SDK's type does not say so.
_NULLABLE = {("ToolResultBlockParam", "content")}
# Arguments of `messages.create` that the SDK sends as headers.
_HEADERS = ("user_profile_id", "workspace_id")

# Parameters that take more when the header names a beta, with their type among the SDK's beta types.
_WIDENED = {"thinking-binding-controls-2026-08-01": ("thinking", "BetaThinkingConfigParam")}

# Rule of an ill-shaped place: the failed keyword, a pattern for the path, the rule. The first row that fits
# counts.
_RULES = tuple(
    (keyword, re.compile(path), rule)
    for keyword, path, rule in (
        ("additionalProperties", r"\.(redacted_)?thinking\.cache_control$", "cache-not-on-thinking"),
        ("additionalProperties", r"\.citations\.\d+\.\w+\.cache_control$", "cache-not-on-citations"),
        ("additionalProperties", r"^messages\.\d+\.clear_at$", "sysmsg-clear-at"),
        ("additionalProperties", r"^thinking\.\w+\.block_binding$", "block-binding-param"),
        ("additionalProperties", r"^(temperature|top_p|top_k)$", "sampling-params"),
        ("additionalProperties", r"", "unknown-field-rejected"),
        ("", r"\.thinking\.(thinking|signature)$", "thinking-fields"),
        ("required", r"\.citations\.\d+\.\w+\.\w+$", "citation-fields"),
        ("required", r"", "required-field"),
        ("oneOf", r"^messages\.\d+\.role$", "role-enum"),
        ("enum", r"^messages\.\d+\.content\.\d+\.type$", "sysmsg-blocks"),
        ("oneOf", r"\.tool_result\.content\.\d+$", "tool-result-content-types"),
        ("oneOf", r"\.source\.content\.content\.\d+$", "document-content-source-types"),
        ("oneOf", r"^messages\.\d+\.content\.\d+$", "block-type-known"),
        ("", r"\.caller$", "caller-shape"),
        ("", r"\.tool_use\.input$", "tool-use-input-object"),
        ("", r"\.server_tool_use\.name$", "server-name-enum"),
        ("", r"\.image\.source\.base64\.media_type$", "image-media-type"),
        ("", r"\.document\.source\.\w+\.media_type$", "document-text-media"),
        ("", r"^(messages\.\d+\.content|system)$", "content-type"),
        ("type", r"", "field-type"),
        ("", r"", "field-value"),
    )
)
_UNSUPPORTED_BLOCK = "{}: role 'system' supports text, tool_addition, and tool_removal blocks only"


class ShapeFault(NamedTuple):
    """The first place where a body departs from the schema: the rule's id and the API's text."""

    rule: str
    message: str


def shape_fault(body: Value, betas: frozenset[str] = frozenset()) -> ShapeFault | None:
    """Return the first departure of `body` from the request schema, worded as the API words it, or None.

    `body` is any plain Python value, meant to be the decoded body of a request; `betas` are those that its header
    names. Nothing is raised.

    >>> shape_fault({"model": "claude-opus-5", "max_tokens": 9, "messages": "hi"})
    ShapeFault(rule='field-type', message='messages: Input should be a valid list')
    """
    error = next(_validator(betas.intersection(_WIDENED)).iter_errors(body), None)
    if error is None:
        return None
    path = ".".join(map(str, error.absolute_path))
    keyword = str(error.validator)
    rule = next(rule for key, place, rule in _RULES if key in ("", keyword) and place.search(path))
    if rule == "sysmsg-blocks":
        return ShapeFault(rule, _UNSUPPORTED_BLOCK.format(path.partition(".content")[0]))
    return ShapeFault(rule, f"{path}: {error.message}" if path else error.message)


@cache
def request_schema(betas: frozenset[str] = frozenset()) -> Schema:
    """Return the JSON Schema (draft 2020-12) of a request body, made from the installed `anthropic` package.

    `betas` are those whose parameters the schema takes, of the ones that this module knows.

    Objects are closed, except free JSON such as the input of a tool call. A union of tagged objects is a
    `oneOf` with a `discriminator` beside it: the key of the tag, and for each tag the index of its branch.
    Equal parts are shared between places, so do not change what is returned.

    >>> request_schema()["properties"]["max_tokens"]
    {'type': 'integer'}
    """
    from anthropic.types import beta
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

    schema = _schema(MessageCreateParamsNonStreaming)
    own = {key: value for key, value in schema["properties"].items() if key not in _HEADERS}
    for name in betas:
        key, kind = _WIDENED[name]
        own[key] = _schema(getattr(beta, kind))
    # Streaming is a matter of transport: the same request is judged alike with and without.
    return {**schema, "properties": {**own, "stream": {"type": "boolean"}}}


@cache
def block_types() -> frozenset[str]:
    """The types of content blocks that requests may hold."""
    from anthropic.types import ContentBlockParam

    blocks: Any = _union(list(_members(ContentBlockParam)))
    return frozenset(blocks["discriminator"]["mapping"])


@cache
def _validator(betas: frozenset[str]) -> Validator:
    from jsonschema import Draft202012Validator, validators

    keywords: Schema = {
        "type": _check_type,
        "enum": _check_enum,
        "required": _check_required,
        "additionalProperties": _check_extra,
        "anyOf": _check_alternatives,
        "oneOf": _check_tagged,
    }
    base = Draft202012Validator
    cls = cast("Any", validators).create(
        base.META_SCHEMA, {**base.VALIDATORS, **keywords}, type_checker=base.TYPE_CHECKER
    )
    validator: Validator = cls(request_schema(betas))
    return validator


# From type hints to a schema.


@cache
def _schema(hint: object) -> Schema:
    origin: Any = get_origin(hint)
    args = get_args(hint)
    if isinstance(hint, type) and is_typeddict(hint):
        return _object(hint)
    if origin in (Required, NotRequired, Annotated):
        return _schema(args[0])
    if origin is Literal:
        return {"type": _SCALARS[type(args[0])], "enum": list(args)}
    if origin in (Union, UnionType):
        return _union([member for member in _members(hint) if not _left_out(member)])
    if origin in (list, collections.abc.Iterable, collections.abc.Sequence):
        return {"type": "array", "items": _schema(args[0])}
    return {"type": _SCALARS[origin or hint]}


def _object(cls: type) -> Schema:
    hints = get_type_hints(cls, include_extras=True)
    # Under postponed annotations the class knows its own totality but not the marks on single keys.
    total: Iterable[str] = getattr(cls, "__required_keys__", ())
    marks: dict[str, Any] = {key: get_origin(hint) for key, hint in hints.items()}
    required = [
        k for k, mark in marks.items() if mark is Required or (mark is not NotRequired and k in total)
    ]
    properties = {key: _schema(hint) for key, hint in hints.items()}
    for key in properties:
        if (cls.__name__, key) in _NULLABLE:
            properties[key] = {"anyOf": [*properties[key]["anyOf"], {"type": "null"}]}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _members(hint: object) -> Iterator[object]:
    origin: Any = get_origin(hint)
    if origin is Annotated:
        yield from _members(get_args(hint)[0])
    elif origin in (Union, UnionType):
        for member in get_args(hint):
            yield from _members(member)
    else:
        yield hint


def _left_out(hint: object) -> bool:
    """Whether a member of a union is no JSON: files and paths (sent as text), the SDK's response models."""
    from pydantic import BaseModel  # comes with the SDK

    kind: Any = get_origin(hint) or hint
    return kind in (IO, os.PathLike) or (isinstance(kind, type) and issubclass(kind, BaseModel))


def _union(members: list[object]) -> Schema:
    kinds: dict[str, list[Schema]] = {}
    for schema in map(_schema, members):
        kinds.setdefault(schema["type"], []).append(schema)
    branches = [_merged(kind, schemas) for kind, schemas in kinds.items()]
    return branches[0] if len(branches) == 1 else {"anyOf": branches}


def _merged(kind: str, schemas: list[Schema]) -> Schema:
    """One schema for alternatives of one JSON type: the free one where there is one, else by tag."""
    free: Schema = {"type": kind}
    if len(schemas) == 1 or free in schemas:
        return schemas[0] if len(schemas) == 1 else free
    tag = next(key for key in ("type", "role") if all(key in schema["properties"] for schema in schemas))
    mapping = {
        value: index for index, schema in enumerate(schemas) for value in _values(schema["properties"][tag])
    }
    default = next((t for t, index in mapping.items() if tag not in schemas[index]["required"]), None)
    return {
        "type": kind,
        "oneOf": schemas,
        "discriminator": {"propertyName": tag, "mapping": mapping, "default": default},
    }


def _values(schema: Schema) -> list[str]:
    """The values of a tag; that of a custom tool may be null too, which means the same as its absence."""
    values: list[str] = schema["enum"] if "enum" in schema else schema["anyOf"][0]["enum"]
    return values


# The keywords, with the API's wording. The tag of an object is part of the path, as in the API's errors.


def _is_object(value: Value) -> TypeGuard[Schema]:
    return isinstance(value, dict)


def _error(message: str, *path: str) -> ValidationError:
    from jsonschema import ValidationError

    return ValidationError(message, path=path)


def _missing(key: str) -> ValidationError:
    error = _error("Field required", key)
    error.validator = "required"
    return error


def _check_type(validator: Checker, kind: str, value: Value, _: Schema) -> Iterator[ValidationError]:
    if not validator.is_type(value, kind):
        yield _error(f"Input should be a valid {_WORDS[kind]}")


def _check_enum(_: Checker, options: list[Any], value: Value, __: Schema) -> Iterator[ValidationError]:
    if value not in options:
        *most, last = [repr(option) for option in options]
        yield _error(f"Input should be {', '.join(most)}{' or ' if most else ''}{last}")


def _check_required(_: Checker, required: list[str], value: Value, __: Schema) -> Iterator[ValidationError]:
    if _is_object(value):
        yield from (_missing(key) for key in required if key not in value)


def _check_extra(_: Checker, __: object, value: Value, schema: Schema) -> Iterator[ValidationError]:
    if _is_object(value):
        known = schema["properties"]
        yield from (_error("Extra inputs are not permitted", str(k)) for k in value if k not in known)


def _check_alternatives(
    validator: Checker, branches: list[Schema], value: Value, _: Schema
) -> Iterator[ValidationError]:
    fitting = (branch for branch in branches if validator.is_type(value, branch["type"]))
    branch = next(fitting, branches[0])
    yield from validator.descend(value, branch)


def _check_tagged(
    validator: Checker, branches: list[Schema], value: Value, schema: Schema
) -> Iterator[ValidationError]:
    if not _is_object(value):
        return
    key, mapping, default = schema["discriminator"].values()
    tag = default if default and value.get(key) is None else value.get(key)
    listed = ", ".join(repr(known) for known in mapping)
    shown = tag if isinstance(tag, str) else type(tag).__name__
    if tag is None and key not in value:
        yield _missing(key)
    elif isinstance(tag, str) and tag in mapping:
        # Messages are told apart by their role, which the API's paths do not show.
        yield from validator.descend(value, branches[mapping[tag]], path=tag if key == "type" else None)
    elif key == "role":
        yield _error(f"Unexpected role '{shown}'. Expected one of {listed} as an input message role", key)
    else:
        yield _error(
            f"Input tag '{shown}' found using 'type' does not match any of the expected tags: {listed}"
        )
