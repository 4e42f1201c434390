"""The Anthropic Messages API: requests out, responses in, histories checked."""

from .cache import CachePolicy
from .read import check, from_message, parse
from .stream import Accumulator, Partial, aread_stream, read_stream
from .targets import PLATFORMS, StaleThinking, Target, stale_thinking
from .write import BetaRequest, Request, message_map, to_beta_request, to_body, to_messages, to_request

__all__ = [
    "PLATFORMS",
    "Accumulator",
    "BetaRequest",
    "CachePolicy",
    "Partial",
    "Request",
    "StaleThinking",
    "Target",
    "aread_stream",
    "check",
    "from_message",
    "message_map",
    "parse",
    "read_stream",
    "stale_thinking",
    "to_beta_request",
    "to_body",
    "to_messages",
    "to_request",
]
