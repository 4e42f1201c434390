"""Tools for tests of code that talks to the Messages API: a strict local double of it, and its judge.

`MessagesServer` answers a real client from a script and refuses what the API refuses; `judge` gives the same
verdicts on plain request bodies. Both need the extra `testing`.
"""

from .cache import PrefixCache
from .judge import Fault, judge
from .server import ApiError, MessagesServer, ScriptedReply
from .streaming import Streamed, StreamFault, to_events

__all__ = [
    "ApiError",
    "Fault",
    "MessagesServer",
    "PrefixCache",
    "ScriptedReply",
    "StreamFault",
    "Streamed",
    "judge",
    "to_events",
]
