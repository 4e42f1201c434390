"""Immutable JSON objects, kept as compact text.

All free JSON (tool inputs, tool definitions, results of server tools) is held as the bytes that one encoder wrote once.
Key order, exact integers and the shortest form of floats survive, and nothing that is handed out can change it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, cast, final

import attrs
import msgspec

from .errors import Rule, ValidationError, Violation, join

JSON_VALUE = Rule(
    "json-value",
    "Free JSON holds only what JSON can hold: objects with text keys, lists, text, finite numbers, booleans and null, "
    "nested at most 200 levels deep, integers of at most 4,300 digits.",
    "RFC 8259; the digit limit is the one of the reference interpreter",
    "The request body is not valid JSON",
)
VALID_UTF8 = Rule(
    "json-valid-utf8",
    "Text can be written as UTF-8: it holds no lone surrogates.",
    "Claude Code error reference; the SDK's encoder refuses it too",
    "The request body is not valid JSON: no low surrogate in string",
)

MAX_DEPTH = 200
_LARGEST, _SMALLEST = 10**4300, -(10**4299)  # both are written with 4,300 characters
_encode = msgspec.json.encode
_decode = msgspec.json.decode


def is_text(value: object) -> bool:
    """Whether a value is a plain string that UTF-8 can write."""
    if type(value) is not str:
        return False
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    return True


def text_fault(path: str = "") -> Violation:
    """The violation of a string that `is_text` refuses."""
    return Violation(VALID_UTF8, path, "text with a lone surrogate", "Replace it, for example by U+FFFD.")


def _encoded(value: dict[str, Any]) -> bytes | None:
    """A dict as JSON text if the encoder writes all of it as it stands, else None.

    The encoder would let through what JSON cannot hold (NaN as null, bytes as text), so what it wrote is read back.
    """
    try:
        text = _encode(value)
        exact = text.count(b"{") + text.count(b"[") <= MAX_DEPTH and _decode(text) == value
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return None
    return text if exact else None


def plain(value: Any, path: str = "", depth: int = MAX_DEPTH) -> Any:
    """A fresh plain copy of a JSON value; mappings become dicts, tuples lists, text and numbers lose their subclass.

    Raises:
        ValidationError: `json-value` or `json-valid-utf8`, at the first place that JSON cannot hold.
    """
    if isinstance(value, str):
        text = str.__str__(value)
        if not is_text(text):
            raise ValidationError([text_fault(path)])
        return text
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not _SMALLEST < value < _LARGEST:
            raise _refused(path, "an integer of more than 4,300 digits", "Pass it as text.")
        return int(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise _refused(path, "a number that is not finite", "Pass null or text.")
        return float(value)
    if isinstance(value, JsonObject):
        return value.thaw()
    if not isinstance(value, (Mapping, list, tuple)):
        raise _refused(path, f"a {type(value).__name__}", "Convert it to what JSON can hold.")
    if not depth:
        raise _refused(
            "", f"nested more than {MAX_DEPTH} levels deep, or in itself", "Flatten it, or pass it as text."
        )
    if isinstance(value, Mapping):
        out: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise _refused(path, f"a key that is a {type(key).__name__}", "Use text keys.")
            if not is_text(str.__str__(key)):
                raise ValidationError([text_fault(path)])
            out[str.__str__(key)] = plain(item, join(path, key if len(key) < 40 else "…"), depth - 1)
        return out
    return [plain(item, f"{path}[{i}]", depth - 1) for i, item in enumerate(cast("list[Any]", value))]


def _refused(path: str, found: str, fix: str) -> ValidationError:
    return ValidationError([Violation(JSON_VALUE, path, found, fix)])


@final
@attrs.frozen(init=False, eq=False, repr=False)
class JsonObject(Mapping[str, Any]):
    """An immutable JSON object.

    A mapping whose items are fresh plain values at each access. Two are equal when they hold the same JSON: key order
    does not count, types do (`1`, `1.0` and `True` all differ). It is hashable, can be pickled, and unpacks with `**`.

    Args:
        value: Any mapping of JSON values; it is copied.

    Raises:
        ValidationError: `json-value` or `json-valid-utf8` where a part is not JSON.

    >>> value = JsonObject({"city": "Paris", "days": [1, 2]})
    >>> value["days"].append(3)
    >>> value["days"]
    [1, 2]
    >>> value == {"days": [1, 2], "city": "Paris"}, value == {"days": [True, 2], "city": "Paris"}
    (True, False)
    """

    _text: bytes
    _parts: dict[str, msgspec.Raw] | None

    def __init__(self, value: Mapping[str, Any]) -> None:
        text = _encoded(value) if type(value) is dict else None
        if text is None:
            if not isinstance(cast("object", value), Mapping):
                raise _refused("", f"a {type(value).__name__} where an object belongs", "Pass a mapping.")
            text = value._text if type(value) is JsonObject else _encode(plain(value))
        object.__setattr__(self, "_text", text)
        object.__setattr__(self, "_parts", None)

    @property
    def text(self) -> str:
        """The object as compact JSON text, keys in their order."""
        return self._text.decode()

    @property
    def raw(self) -> msgspec.Raw:
        """The object as bytes that the encoder takes as they are."""
        return msgspec.Raw(self._text)

    def thaw(self) -> dict[str, Any]:
        """A fresh plain dict, which the caller may change."""
        return cast("dict[str, Any]", msgspec.json.decode(self._text))

    def _lookup(self) -> dict[str, msgspec.Raw]:
        parts = self._parts
        if parts is None:
            parts = msgspec.json.decode(self._text, type=dict[str, msgspec.Raw])
            object.__setattr__(self, "_parts", parts)
        return parts

    def __getitem__(self, key: str) -> Any:
        return msgspec.json.decode(self._lookup()[key])

    def __contains__(self, key: object) -> bool:
        return key in self._lookup()

    def __iter__(self) -> Iterator[str]:
        return iter(self._lookup())

    def __len__(self) -> int:
        return len(self._lookup())

    def _canonical(self) -> bytes:
        return _encode(msgspec.json.decode(self._text), order="deterministic")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mapping) and not isinstance(other, JsonObject):
            try:
                other = JsonObject(cast("Mapping[str, Any]", other))
            except ValidationError:
                return False
        if not isinstance(other, JsonObject):
            return NotImplemented
        return self._text == other._text or self._canonical() == other._canonical()

    def __hash__(self) -> int:
        return hash(self._canonical())

    def __repr__(self) -> str:
        return f"JsonObject(<{len(self)} key{'s' * (len(self) != 1)}>)"

    def __reduce__(self) -> tuple[type[JsonObject], tuple[dict[str, Any]]]:
        return JsonObject, (self.thaw(),)

    def __copy__(self) -> JsonObject:
        return self

    def __deepcopy__(self, memo: object) -> JsonObject:
        return self


def freeze(value: Mapping[str, Any]) -> JsonObject:
    """A mapping as a `JsonObject`. What cannot be one stays as it is, for the constructor's check to name."""
    if type(value) is JsonObject:
        return value
    try:
        return JsonObject(value)
    except ValidationError:
        return cast("JsonObject", value)


def rejoined(text: str, *, replace: bool = False) -> str:
    """A text in which halves of a character that stand side by side are one; others stay, or become U+FFFD.

    JavaScript cuts text between the halves, and each half then is escaped alone.
    """
    if text.isascii():
        return text
    errors = "replace" if replace else "surrogatepass"
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", errors)


def decode(text: str | bytes | bytearray | memoryview) -> tuple[Any, list[Violation]]:
    """JSON text as plain values, and what the text shows that values cannot: duplicate keys, NaN, depth, digits.

    The standard library's decoder reads it, since it alone shows repeated keys and exact integers.
    """
    import json

    repeated: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(items)
        if len(out) != len(items):
            seen: set[str] = set()
            repeated.extend(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        return out

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        source = text if isinstance(text, str) else bytes(text).decode("utf-8")
        value = json.loads(source, object_pairs_hook=pairs, parse_constant=constant)
    except RecursionError:
        return None, [Violation(JSON_VALUE, "", "JSON text that is nested too deeply", "Flatten it.")]
    except ValueError as error:
        position = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        what = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        return None, [
            Violation(JSON_VALUE, "", f"text that is not JSON{position} ({what[:80]})", "Pass valid JSON.")
        ]
    faults = [
        Violation(JSON_VALUE, "", f"the key {key[:40]!r} twice in one object", "Keep one of the two.")
        for key in dict.fromkeys(repeated)
    ]
    return value, faults
