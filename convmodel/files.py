"""Files that hold a history, and the mended history in their shape: what was not touched stays byte for byte.

A file is a JSON array of messages, a request body with `messages`, JSON lines with one message a line, a session file of
Claude Code, or a conversation as `convmodel.storage.dumps` wrote it, which is only read.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast, final

import attrs

from .claude_code import UnwritableError, is_session, read_session
from .errors import ConvmodelError, Violation
from .jsontext import Piece, Span, elements, lines, members, replaced, spelled, spliced
from .jsonvalue import decode
from .repair import Repaired
from .turns import Origin

BOM = "\ufeff"


class UnreadableError(ConvmodelError):
    """The input is no history in any of the forms that are read."""


@final
@attrs.frozen
class History:
    """What a file holds.

    Args:
        messages: What stands where a list of messages is due.
        body: The object around them: a request body or a stored conversation; empty for other forms.
        faults: What its text alone shows to be wrong.
        origins: What the file says of where messages came from.
        lines: For each message of a session file the lines on which its blocks stand; empty for other forms.
        notes: What a reader of the file should know of it.
        spell: How a mended history is written in the same shape.
    """

    messages: Any
    body: dict[str, Any]
    faults: tuple[Violation, ...] = ()
    origins: dict[int, Origin] = attrs.Factory(dict)
    lines: tuple[tuple[int, ...], ...] = ()
    notes: tuple[str, ...] = ()
    spell: Callable[[Repaired], str] | None = None

    def line(self, path: str) -> int | None:
        """The line of a session file on which the block that a path names stands; None for other forms.

        Args:
            path: The path of a violation or a change.
        """
        found = re.match(r"messages\[(\d+)\](?:\.content\[(\d+)\])?", path)
        if found is None or int(found[1]) >= len(self.lines):
            return None
        homes = self.lines[int(found[1])]
        return homes[min(int(found[2] or 0), len(homes) - 1)]

    def mended(self, data: bytes, result: Repaired) -> bytes:
        """The bytes of the file with a mended history in it.

        Args:
            data: The bytes that it was read from.
            result: The repair of `messages`.

        Raises:
            UnwritableError: The file cannot hold it.
        """
        if self.spell is None or not result.changes:
            return data
        text = self.spell(result)
        made = (BOM if data.startswith(BOM.encode()) else "").encode() + _bytes(text)
        try:
            again = read_history(made).messages
        except UnreadableError:
            again = None
        if again != result.messages:
            raise UnwritableError(
                "the mended history does not fit into the file: it would be read as another one"
            )
        return made


def read_history(data: bytes) -> History:
    """What a file holds. Bytes that are not UTF-8 are kept as halves of characters, which `check` names.

    Args:
        data: The bytes of the file.

    Raises:
        UnreadableError: It is neither JSON nor JSON lines, or holds no messages.

    >>> read_history(b'{"role": "user", "content": "Hi."}').messages
    [{'role': 'user', 'content': 'Hi.'}]
    """
    text = data.decode("utf-8", "surrogateescape").removeprefix(BOM)
    value, faults = decode(text)
    if value is None and faults:
        return _read_lines(text, faults[0])
    if isinstance(value, list):
        return History(value, {}, tuple(faults), spell=partial(_array, text, text.index("["), value))
    if isinstance(value, dict):
        body = cast("dict[str, Any]", value)
        if "convmodel" in body:
            return History(None, body, tuple(faults))
        if "messages" in body:
            return History(body["messages"], body, tuple(faults), spell=partial(_body, text, body))
        if "role" in body or is_session([body]):  # JSON lines, of which there is one
            return _read_lines(text, None)
    raise UnreadableError("no list of messages, no request body with `messages`, no JSON lines")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _read_lines(text: str, wrong: Violation | None) -> History:
    spans = lines(text)
    if wrong is not None and len(spans) < 2:
        raise UnreadableError(str(wrong))
    read = [decode(text[start:end]) for start, end in spans]
    broken = [at for at, (value, faults) in enumerate(read) if value is None and faults]
    rows = [value for value, _ in read]
    if is_session(rows):
        return _session(text, spans, read, broken)
    for at in broken:
        if at < len(rows) - 1 or text[spans[at][1] :]:
            raise UnreadableError(f"neither JSON nor JSON lines: line {at + 1}: {read[at][1][0]}")
        rows[at] = text[slice(*spans[at])]  # a write was cut off: what is left is no message
    faults = [
        fault.under(f"messages[{at}]")
        for at, (value, found) in enumerate(read)
        if value is not None
        for fault in found
    ]
    return History(rows, {}, tuple(faults), spell=partial(_lines, text, spans, rows))


def _session(
    text: str, spans: list[Span], read: list[tuple[Any, list[Violation]]], broken: list[int]
) -> History:
    session = read_session([value for value, _ in read])
    if not session.chain:
        raise UnreadableError("a session file in which no record of the user or the model has a `uuid`")
    faults = [
        fault.under(f"messages[{index}]")
        for index, group in enumerate(session.groups)
        for at in group
        for fault in read[at][1]
    ]
    numbers = _numbers(text, spans)
    return History(
        session.messages,
        {},
        tuple(faults),
        session.origins,
        tuple(tuple(numbers[at] for at in homes) for homes in session.homes),
        tuple(
            f"line {numbers[at]}: {note}"
            for at, note in sorted((*session.notes, *((at, "no JSON; it is left as it is") for at in broken)))
        ),
        lambda result: session.mended(text, spans, result.messages or [], result.sources),
    )


def _numbers(text: str, spans: Sequence[Span]) -> list[int]:
    """The numbers of lines as editors count them."""
    numbers: list[int] = []
    number, before = 1, 0
    for start, end in spans:
        number += text.count("\n", before, start)
        numbers.append(number)
        before = end
    return numbers


# ---------------------------------------------------------------- writing


def _array(text: str, start: int, given: list[Any], result: Repaired) -> str:
    spans = elements(text, start)
    first, second = spans[0][0], spans[1][0] if len(spans) > 1 else 0
    between = text[spans[0][1] : second] if second else "," + text[start + 1 : first]
    return spliced(text, spans, _pieces(text, spans, given, result), between)


def _lines(text: str, spans: Sequence[Span], given: list[Any], result: Repaired) -> str:
    end = next((end for end in ("\r\n", "\n", "\r") if end in text), "\n")
    return spliced(text, spans, _pieces(text, spans, given, result), end)


def _pieces(text: str, spans: Sequence[Span], given: list[Any], result: Repaired) -> list[Piece]:
    """The messages of a result: the old text of those that are what they were, new text of the others."""
    plain = text.isascii()
    pieces: list[Piece] = []
    for message, source in zip(result.messages or (), result.sources, strict=True):
        if source is not None and message == given[source]:
            pieces.append((source, None))
        else:
            like = text[slice(*spans[source or 0])]
            pieces.append((source, spelled(message, like, ascii_only=plain)))
    return pieces


def _body(text: str, body: dict[str, Any], result: Repaired) -> str:
    parts = members(text, text.index("{"))
    messages = parts["messages"]
    edits: list[tuple[Span, str]] = []
    if result.system != body.get("system"):
        member = spelled({"system": result.system}, text, ascii_only=text.isascii())[1:-1].strip(" \t\r\n")
        if "system" in parts:
            edits.append(((parts["system"].key, parts["system"].end), member))
        else:
            lead = text[: messages.key]
            space = lead[len(lead.rstrip(" \t\r\n")) :]
            edits.append(((messages.key, messages.key), f"{member},{space}"))
    made = _array(text, messages.start, body["messages"], result)
    edits.append(
        ((messages.start, messages.end), made[messages.start : len(made) - len(text) + messages.end])
    )
    return replaced(text, edits)


def write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file whole or not at all. A link is followed; the mode of a file that is there stays.

    Args:
        path: Where.
        data: What.
        mode: The mode of a new file.

    Raises:
        OSError: It cannot be written; what was there is there still.
    """
    path = Path(os.path.realpath(path))
    if path.exists():
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is no regular file")
        mode = stat.S_IMODE(found.st_mode)
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def back_up(path: Path, data: bytes) -> Path:
    """Keep what a file held, beside it: `FILE.bak`, or the first of `FILE.bak.1` and so on that is free.

    Args:
        path: The file.
        data: What it held.

    Raises:
        OSError: It cannot be written.
    """
    mode, number = stat.S_IMODE(path.stat().st_mode), 0
    while True:
        beside = path.with_name(f"{path.name}.bak{f'.{number}' * bool(number)}")
        try:
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            number += 1
            continue
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        beside.chmod(mode)
        return beside


__all__ = ["History", "UnreadableError", "UnwritableError", "back_up", "read_history", "write"]
