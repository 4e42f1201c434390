"""What stands before the first turn: the system prompt and the tool definitions."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeAlias, cast, final

import attrs

from .blocks import Text
from .errors import Rule, ValidationError, Violation, quoted
from .fields import (
    BROKEN,
    CALLER,
    CONTENT_TYPE,
    FIELD_TYPE,
    SHARED,
    Flow,
    Reading,
    Value,
    described,
    flow,
    mapping,
    matches,
    read_value,
    thawed,
)
from .jsonvalue import JsonObject, freeze
from .shapes import Untagged, faults

SYSTEM_EMPTY = Rule(
    "system-empty",
    "A system prompt that is given as blocks has no empty block, and says more than whitespace.",
    "Live probes, 2026",
    "system: text content blocks must be non-empty",
)
TOOL_NAME = Rule(
    "tool-name",
    "A declared tool's name has 1 to 128 characters out of a-z, A-Z, 0-9, `_` and `-`.",
    "Create a message, API reference",
)
TOOL_NAME_PATTERN = r"[a-zA-Z0-9_-]{1,128}"

SystemPrompt: TypeAlias = str | Iterable["str | Text | Mapping[str, object]"] | None
"""A system prompt: text, or text blocks (values, or the SDK's parameters)."""


@final
@attrs.frozen
class Tool(Value):
    """A client tool.

    Args:
        name: 1 to 128 characters out of a-z, A-Z, 0-9, `_` and `-`.
        input_schema: The JSON Schema of its input.
        description: What it does, for the model.

    Raises:
        ValidationError: `tool-name`, or a fault of a field's type.

    >>> Tool("weather", {"type": "object", "properties": {"city": {"type": "string"}}}, description="The weather.")
    Tool(name='weather')
    """

    name: str = attrs.field(metadata=flow(Flow.CALLER, matches(TOOL_NAME, TOOL_NAME_PATTERN, "Rename it.")))
    input_schema: JsonObject = attrs.field(converter=freeze, metadata=CALLER, repr=False)
    description: str | None = attrs.field(default=None, kw_only=True, metadata=CALLER, repr=False)


ToolDefinition: TypeAlias = Tool | Mapping[str, object]
"""A tool: a `Tool`, or any of the SDK's tool parameters."""


@final
@attrs.frozen
class Preamble(Value):
    """The system prompt and the tool definitions of a conversation.

    Args:
        system: Text blocks; empty if there is no system prompt.
        tools: The definitions as they are sent, less cache markers.
    """

    nullable_on_wire: ClassVar[frozenset[str]] = frozenset()
    system: tuple[Text, ...] = attrs.field(default=(), metadata=SHARED)
    tools: tuple[JsonObject, ...] = attrs.field(default=(), metadata=SHARED)

    def faults(self) -> Iterable[Violation]:
        for i, block in enumerate(self.system):
            if not block.text:
                yield Violation(SYSTEM_EMPTY, f"system[{i}].text", "empty text", "Drop the block.")
        if self.system and all(block.text.isspace() for block in self.system):
            yield Violation(SYSTEM_EMPTY, "system", "only whitespace", "Leave the system prompt out.")


def is_deferred(tool: JsonObject) -> bool:
    """Whether a tool is loaded only when something refers to it."""
    return tool.get("defer_loading") is True


def make_preamble(system: SystemPrompt, tools: Iterable[ToolDefinition]) -> Preamble:
    """A preamble from what a caller passes.

    Raises:
        ValidationError: Everything wrong with it.
    """
    from .markers import marker_faults

    reading = Reading(frozenset(Flow), marked=True)
    made = read_preamble(system, tools, reading)
    violations = [*reading.violations, *marker_faults(reading.markers)]
    if violations or made is None:
        raise ValidationError(violations)
    return made


def read_preamble(system: Any, tools: Any, reading: Reading) -> Preamble | None:
    """A preamble from raw data; None if it is broken, with the reasons in `reading`."""
    before = len(reading.violations)
    for what, value in (("system", system), ("tools", tools)):
        if isinstance(value, (bytes, Mapping)) or not (value is None or isinstance(value, Iterable)):
            reading.fault(CONTENT_TYPE, what, f"{described(value)} where a list is due", "Pass a list.")
    if isinstance(tools, str):
        reading.fault(CONTENT_TYPE, "tools", "text where a list is due", "Pass a list.")
    if len(reading.violations) > before:
        return None
    if isinstance(system, str):
        system = [system] if system else []  # an empty string is accepted and means none
    texts = [
        _read_text(each, reading, f"system[{i}]")
        for i, each in enumerate(cast("Iterable[object]", system if system is not None else ()))
    ]
    defined = [
        _read_tool(each, reading, f"tools[{i}]")
        for i, each in enumerate(cast("Iterable[object]", tools if tools is not None else ()))
    ]
    if len(reading.violations) > before:
        return None
    try:
        return Preamble(tuple(texts), tuple(defined))
    except ValidationError as error:
        reading.violations.extend(error.violations)
        return None


def _read_text(value: object, reading: Reading, path: str) -> Any:
    if isinstance(value, (Text, str)):
        try:
            return Text(value) if isinstance(value, str) else value
        except ValidationError as error:
            reading.violations.extend(fault.under(path) for fault in error.violations)
            return BROKEN
    data = mapping(value)
    if data is not None and data.get("type") != "text":
        reading.fault(FIELD_TYPE, path, "a block that is not text", "Use text blocks.")
        return BROKEN
    return read_value(Text, value, reading, path)


def _read_tool(value: object, reading: Reading, path: str) -> Any:
    if isinstance(value, Tool):
        made: dict[str, Any] = {"name": value.name, "input_schema": value.input_schema}
        if value.description is not None:
            made["description"] = value.description
        return JsonObject(made)
    data = value if isinstance(value, JsonObject) else mapping(value)
    if data is None:
        reading.fault(FIELD_TYPE, path, f"{described(value)} where a tool is due", "Pass a tool definition.")
        return BROKEN
    if "cache_control" in data and reading.marked:
        reading.marker(data["cache_control"], path)
        data = {key: item for key, item in data.items() if key != "cache_control"}
    try:
        definition = JsonObject({key: thawed(item) for key, item in data.items()})
    except ValidationError as error:
        reading.violations.extend(fault.under(path) for fault in error.violations)
        return BROKEN
    if definition.get("type") in (None, "custom"):  # the service's own tools change with each version
        reading.violations.extend(faults(definition.thaw(), Untagged("custom_tool"), path))
    name = definition.get("name")
    if isinstance(name, str) and not re.fullmatch(TOOL_NAME_PATTERN, name):
        reading.fault(TOOL_NAME, f"{path}.name", f"the name {quoted(name)}", "Rename it.")
    return definition
