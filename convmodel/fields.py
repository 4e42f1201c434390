"""How a field of a block is declared, checked and read.

A block class declares each field once: its type by annotation, who may write it and extra checks by metadata. From the
annotation follows a *kind*, which tells good values from bad ones and reads raw wire data. Constructors, the strict
parser, the reader of responses and the stored form all work from these kinds.
"""

from __future__ import annotations

import enum
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Final, Literal, NamedTuple, Union, cast, get_args, get_origin

import attrs

from .errors import Rule, ValidationError, Violation, join, key_name, quoted
from .jsonvalue import MAX_DEPTH, JsonObject, is_text, plain, text_fault

FIELD_TYPE = Rule(
    "field-type",
    "A field holds a value of its declared type.",
    "Create a message, API reference (the request schema)",
    "Input should be a valid string",
)
FIELD_VALUE = Rule(
    "field-value",
    "A field with a closed set of values, or with bounds, holds one of them.",
    "Create a message, API reference (the request schema)",
    "Input should be …",
)
REQUIRED_FIELD = Rule(
    "required-field",
    "Every required field is present.",
    "Create a message, API reference (the request schema)",
    "Field required",
)
UNKNOWN_FIELD = Rule(
    "unknown-field-rejected",
    "An object holds only fields that the request schema knows, at every depth.",
    "The API validates with extra fields forbidden (anthropic-sdk-python issue 1112)",
    "Extra inputs are not permitted",
)
BLOCK_TYPE = Rule(
    "block-type-known",
    "Each block has a `type` that the request schema knows.",
    "Create a message, API reference",
    "Input tag '…' found using 'type' does not match any of the expected tags",
)
CONTENT_TYPE = Rule(
    "content-type",
    "Content is a string or a list of blocks.",
    "Create a message, API reference",
    "Input should be a valid list",
)
CACHE_SHAPE = Rule(
    "cache-control-shape",
    'A cache marker is `{"type": "ephemeral"}`, with a `ttl` of `5m` or `1h` if any.',
    "Prompt caching, API documentation",
    "cache_control.ttl: Input should be '5m' or '1h'",
)
CACHE_PLACE = Rule(
    "cache-not-on-thinking",
    "Cache markers stand on blocks that admit one: never on thinking, redacted thinking or citations.",
    "Prompt caching, API documentation",
    "thinking.cache_control: Extra inputs are not permitted",
)
CACHE_EMPTY = Rule(
    "cache-not-on-empty-text",
    "An empty text block carries no cache marker.",
    "Prompt caching, API documentation",
    "cache_control cannot be set for empty text blocks",
)


class Flow(enum.Enum):
    """Who writes a field, and so where it may be read and written."""

    SHARED = "either party writes it"
    CALLER = "the caller writes it; responses never hold it"
    ECHO = "the service writes it; it goes back as it came"
    SERVICE = "the service writes it; it is never sent"
    LOCAL = "convmodel writes it; it is never sent"


Check = Callable[[Any], Violation | None]


def flow(
    who: Flow,
    *checks: Check,
    missing: Rule = REQUIRED_FIELD,
    wrong: Rule = FIELD_TYPE,
    kind: Kind | None = None,
    free: bool = False,
) -> dict[str, Any]:
    """Metadata of a field.

    Args:
        who: Its flow.
        checks: Checks beyond its type.
        missing: The rule under which it is refused when it is missing.
        wrong: The rule under which it is refused when it has another type.
        kind: What it may hold, where the annotation does not say all.
        free: Whether it is free text or JSON, in which redaction may put a placeholder.
    """
    return {"flow": who, "checks": checks, "missing": missing, "wrong": wrong, "kind": kind, "free": free}


SHARED: Final = flow(Flow.SHARED)
CALLER: Final = flow(Flow.CALLER)
ECHO: Final = flow(Flow.ECHO)
SERVICE: Final = flow(Flow.SERVICE)
LOCAL: Final = flow(Flow.LOCAL)
SAID: Final = flow(Flow.SHARED, free=True)


def matches(rule: Rule, pattern: str, fix: str) -> Check:
    """A check that a whole text matches a pattern."""
    compiled = re.compile(pattern)

    def check(value: str) -> Violation | None:
        if value is None or compiled.fullmatch(value):
            return None
        is_name = len(value) <= 64 and not any(map(str.isspace, value))  # the rest may be what a tool gave
        shown = quoted(value) if is_name else f"text of {len(value)} characters"
        return Violation(rule, "", f"{shown} does not match {pattern}", fix)

    return check


def length(rule: Rule, least: int, most: int | None, fix: str) -> Check:
    """A check of how many characters or items a value has."""

    def check(value: Sequence[object] | None) -> Violation | None:
        if value is None or (least <= len(value) and (most is None or len(value) <= most)):
            return None
        bounds = f"at least {least}" if most is None else f"{least} to {most}"
        return Violation(rule, "", f"a length of {len(value)} where {bounds} is due", fix)

    return check


def at_least(rule: Rule, least: int) -> Check:
    """A check of the smallest number a field takes."""

    def check(value: int | None) -> Violation | None:
        if value is None or value >= least:
            return None
        return Violation(rule, "", f"{value}, below {least}", f"Use {least} or more.")

    return check


# ---------------------------------------------------------------- reading


class Broken(NamedTuple):
    """Stands in for a block that could not be read, so that one fault brings no other faults with it."""

    type: str
    id: str | None = None
    tool_use_id: str | None = None


class Reading:
    """One pass over raw data: what it found wrong, what it left out, which cache markers it met.

    Args:
        flows: The flows whose fields the data may hold.
        lenient: For responses: unknown fields and nulls that the request schema lacks are left out, not refused.
        marked: Whether cache markers may stand in it.
    """

    __slots__ = ("dropped", "flows", "lenient", "marked", "markers", "violations")

    def __init__(self, flows: frozenset[Flow], *, lenient: bool = False, marked: bool = False) -> None:
        self.flows: frozenset[Flow] = flows
        self.lenient: bool = lenient
        self.marked: bool = marked
        self.violations: list[Violation] = []
        self.dropped: list[Violation] = []
        self.markers: list[tuple[str, str]] = []

    def fault(self, rule: Rule, path: str, found: str, fix: str) -> None:
        self.violations.append(Violation(rule, path, found, fix))

    def drop(self, rule: Rule, path: str, found: str, fix: str) -> None:
        self.dropped.append(Violation(rule, path, found, fix))

    def marker(self, value: object, path: str) -> None:
        """Take note of a cache marker; markers are no part of a conversation."""
        path = join(path, "cache_control")
        if value is None:
            return
        data = mapping(value)
        if data is None or data.get("type") != "ephemeral" or data.keys() - {"type", "ttl"}:
            self.fault(CACHE_SHAPE, path, "a cache marker of another shape", 'Use {"type": "ephemeral"}.')
        elif data.get("ttl", "5m") not in ("5m", "1h"):
            self.fault(CACHE_SHAPE, join(path, "ttl"), "an unknown lifetime", "Use '5m' or '1h'.")
        else:
            self.markers.append((path, cast("str", data.get("ttl", "5m"))))


def mapping(value: object) -> Mapping[str, Any] | None:
    """The keys that a dict, a mapping or an SDK object really holds; None if it is nothing of the kind.

    SDK objects are read by attribute and by `model_fields_set`, which tells what was sent from what was filled in.
    """
    if type(value) is dict:
        return value
    if isinstance(value, Mapping):
        try:
            return dict(cast("Mapping[str, Any]", value))
        except Exception:  # noqa: BLE001 - a mapping of a foreign class may raise anything at all
            return None
    if not hasattr(type(value), "model_fields_set"):
        return None
    sdk = cast("Any", value)
    sent = sdk.model_fields_set
    values: dict[str, Any] = getattr(sdk, "__dict__", {})
    extra = getattr(sdk, "__pydantic_extra__", None)
    named = _aliases(cast("Any", type(value)))
    return {named.get(name, name): item for name, item in values.items() if name in sent} | (extra or {})


@cache
def _aliases(cls: Any) -> dict[str, str]:
    """The fields of an SDK class whose name in Python is not the one on the wire, such as `from_`."""
    fields: dict[str, Any] = getattr(cls, "model_fields", {})
    return {name: field.alias for name, field in fields.items() if field.alias not in (None, name)}


def held(value: object) -> Mapping[str, Any] | None:
    """As `mapping`, but an SDK object's unset fields count as null; for responses, where null means nothing."""
    if type(value) is not dict and hasattr(type(value), "model_fields_set"):
        sdk: Any = value
        extra = getattr(sdk, "__pydantic_extra__", None)
        values: dict[str, Any] = getattr(sdk, "__dict__", {})
        return values | extra if extra else values
    return mapping(value)


def thawed(value: object) -> Any:
    """A value in which SDK objects are plain dicts. What is too deep for JSON, or in itself, is left as it is."""
    try:
        return _thawed(value, MAX_DEPTH + 8)  # a history stands some levels above the free JSON in it
    except RecursionError:
        return value


def _thawed(value: object, depth: int) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if not depth:
        raise RecursionError
    if isinstance(value, (list, tuple)):
        return [_thawed(item, depth - 1) for item in cast("list[object]", value)]
    if type(value) is not dict and isinstance(value, Mapping):
        return value
    data = mapping(value)
    return value if data is None else {key: _thawed(item, depth - 1) for key, item in data.items()}


BROKEN: Final = object()


# ---------------------------------------------------------------- kinds


class Kind:
    """What a field may hold. `admits` judges a value, `faults` explains, `read` makes one from raw data."""

    expected: str = "a value"

    def admits(self, value: Any) -> bool:
        raise NotImplementedError

    def faults(self, value: Any, wrong: Rule) -> Iterator[Violation]:
        if isinstance(value, str) and not is_text(value) and type(value) is str:
            yield text_fault()
        else:
            yield Violation(
                wrong, "", f"{described(value)} where {self.expected} is due", f"Pass {self.expected}."
            )

    def read(self, raw: Any, reading: Reading, path: str) -> Any:
        """A value from raw data, or BROKEN with the reasons noted; what `admits` will refuse may pass as it is."""
        return raw


def described(value: object) -> str:
    """What a value is, without showing it."""
    return _DESCRIPTIONS.get(type(value)) or f"a value of type {type(value).__name__}"


def require(value: object, classes: type | tuple[type, ...], name: str, expected: str) -> None:
    """Refuse an argument of another class.

    Raises:
        ValidationError: `field-type`, with the argument's name as the path.
    """
    if not isinstance(value, classes):
        found = f"{described(value)} where {expected} is due"
        raise ValidationError([Violation(FIELD_TYPE, name, found, f"Pass {expected}.")])


def require_function(value: object, name: str) -> None:
    """Refuse an argument that cannot be called, as `require` does."""
    if not callable(value):
        require(value, (), name, "a function")


_DESCRIPTIONS: dict[type, str] = {
    type(None): "nothing",
    str: "text",
    dict: "an object",
    list: "a list",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    bytes: "bytes",
}


_WHOLE = 2**63
"""Whole numbers are positions and counts; none comes near it."""


class Plain(Kind):
    """Text, a whole number, or true and false."""

    names: ClassVar[dict[type, str]] = {str: "text", int: "a whole number", bool: "true or false"}

    def __init__(self, of: type) -> None:
        self.of: type = of
        self.expected: str = self.names[of]

    def admits(self, value: Any) -> bool:
        return type(value) is self.of and (type(value) is not int or -_WHOLE < value < _WHOLE)

    def faults(self, value: Any, wrong: Rule) -> Iterator[Violation]:
        if type(value) is self.of is int:
            yield Violation(FIELD_VALUE, "", "a number of more than 63 bits", "Pass a position or a count.")
        else:
            yield from super().faults(value, wrong)


class Words(Plain):
    """Text that UTF-8 can write."""

    def admits(self, value: Any) -> bool:
        return is_text(value)


class Choice(Kind):
    """One of a closed set of values."""

    def __init__(self, values: tuple[str, ...]) -> None:
        self.values: tuple[str, ...] = values
        self.expected: str = " or ".join(map(repr, values))

    def admits(self, value: Any) -> bool:
        return type(value) is str and value in self.values

    def faults(self, value: Any, wrong: Rule) -> Iterator[Violation]:
        rule = FIELD_VALUE if isinstance(value, str) and wrong is FIELD_TYPE else wrong
        # Only what looks like a name is shown: arguments in the wrong order would put data or a signature here.
        is_name = isinstance(value, str) and re.fullmatch(r"[a-z0-9_./+-]{0,32}", value)
        found = quoted(value) if is_name else described(value)
        yield Violation(rule, "", f"{found} where {self.expected} is due", f"Pass {self.expected}.")


class Json(Kind):
    """A free JSON object."""

    expected = "a JSON object"

    def admits(self, value: Any) -> bool:
        return type(value) is JsonObject

    def faults(self, value: Any, wrong: Rule) -> Iterator[Violation]:
        if isinstance(value, Mapping):
            try:
                plain(value)
            except ValidationError as error:
                yield from error.violations
                return
        yield from super().faults(value, wrong)

    def read(self, raw: Any, reading: Reading, path: str) -> Any:
        return raw if type(raw) is dict else thawed(raw)


class Nested(Kind):
    """One of several declared values, told apart by their `type`; `unknown` is the rule for any other type."""

    def __init__(self, classes: tuple[type, ...], unknown: Rule = BLOCK_TYPE) -> None:
        self.classes: tuple[type, ...] = classes
        self.unknown: Rule = unknown
        self.by_type: dict[str, type] = {
            cast("str", cls.type): cls for cls in classes if hasattr(cls, "type")
        }
        self.expected: str = " or ".join(cls.__name__ for cls in classes)

    def admits(self, value: Any) -> bool:
        return type(value) in self.classes

    def read(self, raw: Any, reading: Reading, path: str) -> Any:
        if type(raw) in self.classes:
            return raw
        if not self.by_type:
            return read_value(self.classes[0], raw, reading, path)
        data = mapping(raw)
        if data is None:
            reading.fault(FIELD_TYPE, path, f"{described(raw)} where an object is due", "Pass an object.")
            return BROKEN
        tag = data.get("type")
        if "type" not in data:
            reading.fault(REQUIRED_FIELD, join(path, "type"), "nothing", "Add `type`.")
            return BROKEN
        cls = self.by_type.get(tag) if isinstance(tag, str) else None
        if cls is None:
            found = f"the type {quoted(tag)}"
            reading.fault(self.unknown, path, found, f"Use one of {', '.join(self.by_type)}.")
            return BROKEN
        return read_value(cls, data, reading, path)


class Many(Kind):
    """A tuple of values of one kind."""

    def __init__(self, item: Kind) -> None:
        self.item: Kind = item
        self.expected: str = f"a list of {item.expected}"

    def admits(self, value: Any) -> bool:
        return type(value) is tuple and all(map(self.item.admits, cast("tuple[object, ...]", value)))

    def faults(self, value: Any, wrong: Rule) -> Iterator[Violation]:
        if type(value) is not tuple:
            yield from super().faults(value, wrong)
            return
        for i, item in enumerate(cast("tuple[object, ...]", value)):
            if not self.item.admits(item):
                yield from (fault.under(f"[{i}]") for fault in self.item.faults(item, wrong))

    def read(self, raw: Any, reading: Reading, path: str) -> Any:
        if not isinstance(raw, (list, tuple)):
            return raw
        items = [
            self.item.read(item, reading, f"{path}[{i}]") for i, item in enumerate(cast("list[object]", raw))
        ]
        return BROKEN if BROKEN in items else tuple(items)


class Either(Kind):
    """A value of one of two kinds: text or a list, one object or a list of them."""

    def __init__(self, one: Kind, many: Kind) -> None:
        self.one: Kind = one
        self.many: Kind = many
        self.expected: str = f"{one.expected} or {many.expected}"

    def admits(self, value: Any) -> bool:
        return self.one.admits(value) or self.many.admits(value)

    def faults(self, value: Any, wrong: Rule) -> Iterator[Violation]:
        if isinstance(value, (str, Mapping)):
            yield from self.one.faults(value, wrong)
        elif isinstance(value, tuple):
            yield from self.many.faults(value, wrong)
        else:
            yield from super().faults(value, wrong)

    def read(self, raw: Any, reading: Reading, path: str) -> Any:
        return (self.many if isinstance(raw, (list, tuple)) else self.one).read(raw, reading, path)


def kind_of(annotation: Any, unknown: Rule = BLOCK_TYPE) -> Kind:
    """The kind that a type annotation stands for, None aside; `unknown` is the rule for a value of another type."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is str:
        return Words(str)
    if annotation in Plain.names:
        return Plain(annotation)
    if annotation is JsonObject:
        return Json()
    if origin is Literal:
        return Choice(args)
    if origin is tuple:
        return Many(kind_of(args[0], unknown))
    if origin in (Union, types.UnionType):
        rest = [arg for arg in args if arg is not type(None)]
        if len(rest) == 1:
            return kind_of(rest[0], unknown)
        many = [arg for arg in rest if get_origin(arg) is tuple]
        if many:
            return Either(kind_of(rest[0], unknown), kind_of(many[0], unknown))
        return Nested(tuple(rest), unknown)
    return Nested((annotation,), unknown)


class Declared(NamedTuple):
    """What a declaration says of one field."""

    name: str
    flow: Flow
    kind: Kind
    optional: bool
    nullable: bool
    checks: tuple[Check, ...]
    missing: Rule
    wrong: Rule
    free: bool

    def faults(self, value: Any) -> Iterator[Violation]:
        """Everything wrong with a value of this field, paths from the field on."""
        if value is None and self.nullable:
            return
        if not self.kind.admits(value):
            rule = self.missing if value is None and self.missing is not REQUIRED_FIELD else self.wrong
            yield from (fault.under(self.name) for fault in self.kind.faults(value, rule))
            return
        for check in self.checks:
            if fault := check(value):
                yield fault.under(self.name)
                return


@cache
def fields_of(cls: Any) -> tuple[Declared, ...]:
    """The declared fields of a class, in their order."""
    return tuple(map(_declared, attrs.fields(cls)))


def _declared(field: attrs.Attribute[Any]) -> Declared:
    meta = field.metadata
    return Declared(
        field.name,
        meta["flow"],
        meta["kind"] or kind_of(field.type, BLOCK_TYPE if meta["wrong"] is FIELD_TYPE else meta["wrong"]),
        # A default that says something is a convenience of the constructor; data has to say it.
        optional=field.default in (None, ()),
        nullable=type(None) in get_args(field.type),
        checks=meta["checks"],
        missing=meta["missing"],
        wrong=meta["wrong"],
        free=meta["free"],
    )


@cache
def _admitted_by(cls: Any) -> Callable[[Any], bool]:
    """One expression that is true of a value whose fields are all as declared.

    It is compiled from the declaration, as attrs compiles a class's constructor, so that what is right costs little; what
    is wrong is then looked at field by field.
    """
    names: dict[str, Any] = {"is_text": is_text}
    terms: list[str] = []
    for n, field in enumerate(fields_of(cls)):
        value = f"value.{field.name}"
        names[f"admits{n}"] = field.kind.admits
        term = f"admits{n}({value})"
        if type(field.kind) is Words:
            term = f"(type({value}) is str and {value}.isascii() or is_text({value}))"
        for m, check in enumerate(field.checks):
            names[f"check{n}_{m}"] = check
            term += f" and check{n}_{m}({value}) is None"
        terms.append(f"({value} is None or {term})" if field.nullable else f"({term})")
    compiled: Callable[[Any], bool] = eval(f"lambda value: {' and '.join(terms) or True}", names)  # noqa: S307
    return compiled


class Value:
    """Base of every declared value: its constructor refuses what its declaration does not admit."""

    __slots__ = ()
    nullable_on_wire: ClassVar[frozenset[str]] = frozenset()
    """Fields that a request may hold as null, which then means the same as leaving them out."""
    admits_marker: ClassVar[bool] = False
    """Whether a request may put a cache marker here."""

    def __attrs_post_init__(self) -> None:
        cls: Any = type(self)
        violations: list[Violation] = []
        if not _admitted_by(cls)(self):
            for field in fields_of(cls):
                violations.extend(field.faults(getattr(self, field.name)))
        elif cls.faults is not Value.faults:
            violations.extend(self.faults())
        if violations:
            raise ValidationError(violations)

    def faults(self) -> Iterable[Violation]:
        """What is wrong among the fields of this value taken together."""
        return ()


@cache
def _readable(cls: Any, flows: frozenset[Flow]) -> tuple[tuple[Any, ...], ...]:
    """The fields of a class that data of these flows may hold, as rows for `read_value`."""
    return tuple(
        (
            field.name,
            None if type(field.kind).read is Kind.read else field.kind.read,
            field.flow in flows,
            field.optional,
            field.nullable,
            field,
        )
        for field in fields_of(cls)
    )


def read_value(cls: Any, raw: Any, reading: Reading, path: str) -> Any:
    """A declared value from raw data, or BROKEN with the reasons noted in `reading`."""
    lenient = reading.lenient
    data = held(raw) if lenient else mapping(raw)
    if data is None:
        reading.fault(FIELD_TYPE, path, f"{described(raw)} where an object is due", "Pass an object.")
        return BROKEN
    values: dict[str, Any] = {}
    broken = False
    used = int("type" in data and hasattr(cls, "type"))
    for name, read, may_hold, optional, nullable, field in _readable(cls, reading.flows):
        if name not in data or not may_hold:
            if optional:
                continue
            if not (lenient and nullable):
                reading.fault(field.missing, join(path, name), "nothing", f"Add `{name}`.")
                broken = True
            values[name] = None
            continue
        used += 1
        value = data[name]
        if value is None:
            if not optional:
                values[name] = None
            elif not (lenient or name in cls.nullable_on_wire):
                fix = f"Leave `{name}` out."
                reading.fault(field.wrong, join(path, name), "null", fix)
                broken = True
            continue
        if read is not None:
            value = read(value, reading, join(path, name))
            if value is BROKEN:
                broken = True
                continue
        values[name] = value
    if used != len(data):
        broken |= _unknown(cls, data, reading, path)
    if broken:
        _report(cls, data, values, reading, path)
        return BROKEN
    try:
        return cls(**values)
    except ValidationError as error:
        reading.violations.extend(fault.under(path) for fault in error.violations)
        return BROKEN


def _report(cls: Any, data: Mapping[str, Any], values: dict[str, Any], reading: Reading, path: str) -> None:
    """Note what is wrong with the other fields of a value that cannot be made."""
    for field in fields_of(cls):
        if field.name in values and field.name in data:
            convert = getattr(attrs.fields_dict(cls)[field.name], "converter", None)
            value = values[field.name]
            value = value if convert is None else convert(value)
            reading.violations.extend(fault.under(path) for fault in field.faults(value))


def _unknown(cls: Any, data: Mapping[str, Any], reading: Reading, path: str) -> bool:
    """Judge the keys of `data` that the declaration does not have; True if one is refused."""
    known = {field.name for field in fields_of(cls) if field.flow in reading.flows}
    broken = False
    for key in data:
        if key in known or (key == "type" and hasattr(cls, "type")):
            continue
        where = join(path, key_name(key))
        if key == "cache_control" and reading.marked and cls.admits_marker:
            reading.marker(data[key], path)
            if data[key] is not None and data.get("text") == "":
                reading.fault(CACHE_EMPTY, where, "a cache marker on empty text", "Move the marker.")
        elif not reading.lenient:
            rule = CACHE_PLACE if key == "cache_control" and reading.marked else UNKNOWN_FIELD
            reading.fault(rule, where, "a field that requests do not have", "Remove it.")
            broken = True
        elif data[key] is not None:
            reading.drop(UNKNOWN_FIELD, where, "a field that requests do not have", "It was left out.")
    return broken
