"""The stored form of conversations: versioned JSON that keeps every fact.

The format is not yet stable: version 1 will be upgraded by later releases, but they may still write another one.
"""

from .stored import FORMAT, dumps, loads

__all__ = ["FORMAT", "dumps", "loads"]
