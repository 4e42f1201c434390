"""From the declarations to the cattrs converters that write them, one converter for each direction.

cattrs is loaded when the first block is written, not on import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import attrs
import msgspec

from .blocks import OpaqueBlock
from .fields import Flow, Value, fields_of
from .jsonvalue import JsonObject

if TYPE_CHECKING:
    from cattrs import Converter

SENT = frozenset({Flow.SHARED, Flow.CALLER, Flow.ECHO})
"""The flows of what a request may hold."""
ANSWERED = frozenset({Flow.SHARED, Flow.ECHO, Flow.SERVICE})
"""The flows of what a response may hold."""
STORED = frozenset(Flow)
"""The flows of what the stored form holds: all."""


def writer(flows: frozenset[Flow], tags: Mapping[str, str] | None = None) -> Converter:
    """A converter that unstructures declared values to JSON data, free JSON as raw bytes.

    Args:
        flows: The flows whose fields are written; fields that hold nothing are left out, unless they are required.
        tags: Types that this direction writes under another name.
    """
    from cattrs import Converter
    from cattrs.gen import make_dict_unstructure_fn, override

    converter = Converter(unstruct_collection_overrides={tuple: list})
    renamed = tags or {}

    def hook(cls: type) -> Callable[[Any], Any]:
        overrides = {
            field.name: override(omit=True)
            if field.flow not in flows
            else override(omit_if_default=attrs.fields_dict(cls)[field.name].default in (None, ()))
            for field in fields_of(cls)
        }
        fields: Callable[[Any], dict[str, Any]] = make_dict_unstructure_fn(
            cls, converter, **cast("Any", overrides)
        )
        tag = getattr(cls, "type", None)
        if tag is None:
            return fields
        name = renamed.get(tag, tag)
        return lambda value: {"type": name, **fields(value)}

    converter.register_unstructure_hook_factory(
        lambda cls: isinstance(cls, type) and issubclass(cls, Value) and attrs.has(cls), hook
    )
    converter.register_unstructure_hook(JsonObject, _raw)
    converter.register_unstructure_hook(OpaqueBlock, lambda block: block.data.raw)
    return converter


def _raw(value: JsonObject) -> msgspec.Raw:
    return value.raw


@cache
def storing() -> Converter:
    """The converter of the stored form, which the digests are taken from too."""
    return writer(STORED)


def stored_bytes(value: Value) -> bytes:
    """The stored form of a value as JSON, declared keys sorted, free JSON in its own order."""
    return msgspec.json.encode(storing().unstructure(value), order="deterministic")
