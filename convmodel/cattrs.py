"""Hooks for converters of cattrs, so that conversations stand in attrs classes of your own.

Importing this imports cattrs, which is why it is a module of its own.
"""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
from cattrs import BaseConverter

from .conversation import WRONG_STATE, AwaitingModel, AwaitingTools, AwaitingUser, Conversation
from .errors import ValidationError, Violation
from .storage import dumps
from .storage.stored import structured

_STATES = (AwaitingUser, AwaitingModel, AwaitingTools)


def register(converter: BaseConverter) -> None:
    """Let a converter unstructure conversations to plain data and structure them again.

    The data is the stored form, as `convmodel.storage.dumps` writes it, so it is versioned and loses nothing. Fields may
    have the type `Conversation`, one of its states, or either with None.

    Args:
        converter: Any converter; its other hooks stay.

    Raises:
        ValidationError: Structuring raises, wrapped by cattrs in its own error unless detailed validation is off, what
            `convmodel.storage.loads` raises; and `conversation-state` for another state than the field's.

    >>> import attrs
    >>> from cattrs import Converter
    >>> from convmodel import Conversation, start
    >>> @attrs.frozen
    ... class Session:
    ...     name: str
    ...     conversation: Conversation
    >>> converter = Converter()
    >>> register(converter)
    >>> session = Session("one", start("Hello."))
    >>> data = converter.unstructure(session)
    >>> data["conversation"]["turns"]
    [{'role': 'user', 'blocks': [{'type': 'text', 'text': 'Hello.'}]}]
    >>> converter.structure(data, Session) == session
    True
    """
    for state in _STATES:
        converter.register_unstructure_hook(state, _unstructured)
    converter.register_structure_hook_func(_is_conversation, _structure)


def _is_conversation(type: Any) -> bool:
    """Whether a type is a state, or a union of states, with None or without."""
    members = get_args(type) if get_origin(type) in (Union, UnionType) else (type,)
    states = [member for member in members if member is not NoneType]
    return bool(states) and all(member in _STATES for member in states)


def _unstructured(conversation: Conversation) -> Any:
    return msgspec.json.decode(dumps(conversation))


def _structure(data: object, type: Any) -> Conversation | None:
    members: tuple[Any, ...] = get_args(type) or (type,)
    if data is None and NoneType in members:
        return None
    made: Conversation = structured(data)
    if made.__class__ not in members:
        names = " or ".join(member.__name__ for member in members)
        found, fix = (
            f"a {made.__class__.__name__} where {names} is due",
            "Declare the field as a Conversation.",
        )
        raise ValidationError([Violation(WRONG_STATE, "", found, fix)])
    return made


__all__ = ["register"]
