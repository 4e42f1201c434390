"""Redaction: credentials out of text and free JSON, and a placeholder in the place of each.

A placeholder names the kind of what it stands for and nothing else, since a hash of a password can be guessed back. What
has no secret stays the same object, so that its bytes stay too, and redacting twice changes nothing more. Which fields may
be changed stands in the declarations of blocks (`free` in `convmodel.fields.flow`): never thinking, signatures, ids, names
or what the service encrypted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast, final

import attrs

from .errors import ValidationError, Violation, quoted
from .fields import FIELD_TYPE, FIELD_VALUE, Value, described, fields_of, require, require_function
from .jsonvalue import JsonObject

B = TypeVar("B", bound=Value)

Find: TypeAlias = Callable[[str], Iterable[tuple[int, int]]]
"""Where in a text secrets stand, each as start and end."""
Detector: TypeAlias = str | re.Pattern[str] | Find
"""A pattern, whose groups are the secrets if it has any that matched, or a function."""

# ---------------------------------------------------------------- what is found

_KIND = "[a-z0-9]+(?:-[a-z0-9]+)*"
_MASK = "[redacted:secret]"
_Key: TypeAlias = Literal["given", "named"]
"""Why what stands under a key is a secret: the caller said so, or its name does."""
_PLACEHOLDER = re.compile(rf"(\[redacted:{_KIND}\])")

KEYS: frozenset[str] = frozenset(
    {
        "password",
        "passwords",
        "passwd",
        "passphrase",
        "pwd",
        "secret",
        "secrets",
        "credential",
        "credentials",
        "token",
        "passcode",
        "pincode",
        "otp",
        "apikey",
        "accesskey",
        "secretkey",
        "privatekey",
        "signingkey",
        "encryptionkey",
        "accountkey",
        "apikeys",
        "accesstokens",
        "refreshtokens",
        "apitokens",
        "connectionstring",
        "dbpass",
        "authorization",
        "cookie",
        "cookies",
    }
)
"""What the names of secrets end with, in small letters, without dashes and underscores."""
_PAGING = ("pagetoken", "nexttoken", "synctoken", "continuationtoken")
"""What ends with a name of a secret and is none."""
_JOINTS = str.maketrans("", "", "-_")

# Every repetition is bounded, or ends where the next match may begin, so that a text costs what its length costs. A
# pattern begins with plain letters and looks behind them afterwards, so that most of a text is skipped fast.
_STANDS_IN = r"(?![$%*<{]|https?:|(?i:(?:pass(?:word|wd)?|pwd|secret|token)\b))"
"""Not a reference, a mask or a word where a secret would stand."""
_QUOTED, _BARE, _TOKEN = r"[^\s\"'\\`]", r"[^\s\"'\\`,;&|<>(){}\[\]$]", "[A-Za-z0-9._~+/=-]"
_PLAIN = rf"{_STANDS_IN}(?={_BARE}{{0,64}}[0-9])({_BARE}{{6,}})"
_OPTION = rf"--(?<!---)([a-z][a-z-]{{1,30}}) [\"']?{_PLAIN}"
_LOGIN = rf" (?:-u|--user)[ =]?[\"']?[A-Za-z0-9._@%+-]{{1,64}}:(?![0-9]+\b){_PLAIN}"
_SCHEME = rf"(?i:bearer|basic|token) {{1,5}}(?={_TOKEN}{{0,64}}(?:[0-9]|[a-z][A-Z]))({_TOKEN}{{8,}})"
_ENDS = r"(?=\s{0,50}(?:\n|\Z))"
# Code assigns names, files of settings assign values: what has spaces around its sign must look like none of code's.
_SETTING = rf"{_STANDS_IN}(?={_BARE}{{0,64}}[0-9])((?:[A-Za-z0-9]{{12,}}|(?={_BARE}{{0,64}}[/+=!@#%^&~]){_BARE}{{8,}}){_ENDS})"
_ASSIGNED = (
    rf"[:=]\s{{0,5}}\\{{0,3}}[\"'](?:{_SCHEME}|{_STANDS_IN}(?={_QUOTED}{{0,64}}[0-9!#$%^&*+=@~?])({_QUOTED}{{6,}}))"
    rf"|: {{0,3}}{_SCHEME}"
    rf"|=(?!=){_PLAIN}(?!{_BARE}|[,()\[])"
    rf"|= {{1,3}}{_SETTING}"
    rf"|:(?!:|[^\s@]{{1,1000}}@) {{0,3}}{_PLAIN}(?:{_ENDS}|(?=\\{{0,3}}[\"']))"
    rf"|: {{1,3}}(?={_BARE}{{0,64}}[A-Za-z]){_PLAIN}(?=[,;] )"
)


def _is_name(text: str, keys: frozenset[str]) -> bool:
    """Whether a text ends like the name of a secret."""
    name = text.lower().translate(_JOINTS)
    return name.endswith(tuple(keys)) and not name.endswith(_PAGING)


def assignments(text: str) -> Iterator[tuple[int, int]]:
    """What is given to a name of a secret: `"api_key": "…"`, `PASSWORD=…`, `--token …`, `-u me:…`, `password: …` on a line."""
    for option in re.finditer(_OPTION, text):
        if _is_name(option[1], KEYS):
            yield option.span(2)
    for login in re.finditer(_LOGIN, text):
        yield login.span(1)
    assigned = re.compile(_ASSIGNED)
    for sign in re.finditer("[:=]", text):
        at = sign.start()
        if _is_name(text[max(0, at - 32) : at].rstrip(" \t\"'\\"), KEYS) and (
            value := assigned.match(text, at)
        ):
            yield value.span(value.lastindex or 0)


DETECTORS: Mapping[str, Detector] = MappingProxyType(
    {
        "private-key": (
            r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
            r"(?:[^-]*(?:-(?!-)[^-]*)*-----END [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
            r"|(?:(?:\s|\\[nr])*[A-Za-z0-9+/=]{20,})*)"
        ),
        "aws-key": r"(?:AKIA|ASIA|ABIA|ACCA)(?<![A-Za-z0-9]....)[A-Z2-7]{16}(?![A-Za-z0-9])",
        "github-token": r"gh[pousr]_(?<!\w....)[A-Za-z0-9]{36,}|github_pat_(?<!\wgithub_pat_)[A-Za-z0-9_]{22,}",
        "gitlab-token": (
            r"gl(?<![\w-]gl)(?:pat|dt|rt|oas|ptt|cbt|imt|agent|soat|ft)-[A-Za-z0-9_-]{20,}(?:\.[A-Za-z0-9_-]{2,})*"
        ),
        "slack-token": (
            r"(?:xox[abeoprs]|xapp)-(?<![A-Za-z0-9].....)[A-Za-z0-9-]{10,}"
            r"|hooks\.slack\.com/services/([A-Za-z0-9/]{20,})"
        ),
        "anthropic-key": r"sk-ant-(?<![\w-]sk-ant-)[A-Za-z0-9_-]{16,}",
        "openai-key": (
            r"sk-(?<![\w-]sk-)(?:(?:proj|svcacct|admin|or-v1)-[A-Za-z0-9_-]{20,}|[A-Za-z0-9]{32,}(?![\w-]))"
        ),
        "stripe-key": (
            r"(?:sk|rk)_(?<!\w...)(?:live|test)_[A-Za-z0-9]{16,}|whsec_(?<!\wwhsec_)[A-Za-z0-9+/=]{24,}"
        ),
        "google-key": (
            r"AIza(?<![\w-]AIza)[A-Za-z0-9_-]{35,}|ya29\.(?<![\w-]ya29\.)[A-Za-z0-9_-]{20,}"
            r"|GOCSPX-(?<![\w-]GOCSPX-)[A-Za-z0-9_-]{20,}"
        ),
        "package-token": r"npm_(?<!\wnpm_)[A-Za-z0-9]{36}(?!\w)|pypi-(?<![\w-]pypi-)AgE[A-Za-z0-9_-]{40,}",
        "huggingface-token": r"hf_(?<!\whf_)[A-Za-z0-9]{30,}",
        "sendgrid-key": r"SG\.(?<![\w-]SG\.)[A-Za-z0-9_-]{20,24}\.[A-Za-z0-9_-]{40,}",
        "jwt": r"eyJ(?<![\w-]eyJ)[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*){2,4}",
        "bearer-token": rf"[bB](?i:earer) {{1,5}}(?={_TOKEN}{{0,250}}[0-9])({_TOKEN}{{8,}})",
        "url-password": rf"://[^\s:/@?#\"'<>()\[\]{{}}]{{0,128}}:{_STANDS_IN}([^\s/\"'<>{{}}]{{1,1000}})@(?=[\w\[])",
        "secret": assignments,
    }
)
"""The default detectors by kind: common formats of credentials, and what is given to a name of one."""

_REFERENCE = re.compile(r"\$(?:[A-Za-z_]+|[A-Z_][A-Z0-9_]*)|\$?\{[^}]*\}+|%\w+%|<[^>]*>|\*+|")
"""Values that stand for a secret, or for none."""


@final
@attrs.frozen
class Redaction:
    """What was replaced in one block.

    Args:
        path: The block: `turns[3].blocks[1]` in a conversation, `blocks[1]` in what enters one.
        kind: The detector that found it; `secret` for what was found by its key.
        count: How many.
    """

    path: str
    kind: str
    count: int

    def under(self, prefix: str) -> Redaction:
        """The same, seen from what holds these blocks at `prefix`."""
        return attrs.evolve(self, path=self.path.replace("blocks", prefix, 1))


@final
@attrs.frozen
class Redacted(Generic[B]):
    """Blocks without secrets, and what was replaced.

    Args:
        blocks: The blocks. One without a secret is the object that it was.
        found: What was replaced.
        voided: The paths of signed thinking that was dropped, since it was bound to what was replaced before it.
    """

    blocks: tuple[B, ...]
    found: tuple[Redaction, ...]
    voided: tuple[str, ...] = ()


# ---------------------------------------------------------------- the redactor


def _finders(given: Mapping[str, Detector]) -> tuple[tuple[str, re.Pattern[str] | Find], ...]:
    require(given, Mapping, "detectors", "a mapping")
    return tuple((kind, _finder(kind, find)) for kind, find in given.items())


def _finder(kind: object, find: Detector) -> re.Pattern[str] | Find:
    require(kind, str, "detectors", "names of kinds")
    if not re.fullmatch(_KIND, cast("str", kind)):
        found, fix = f"the kind {quoted(kind)}", "Name it in a-z, 0-9 and single dashes."
        raise ValidationError([Violation(FIELD_VALUE, "detectors", found, fix)])
    path = f"detectors.{kind}"
    try:
        made = re.compile(find) if isinstance(find, str) else find
    except re.error as error:
        found = f"text that is no pattern ({error})"
        raise ValidationError([Violation(FIELD_VALUE, path, found, "Mend it.")]) from None
    if isinstance(made, re.Pattern):
        require(cast("object", made.pattern), str, path, "a pattern of text")
    else:
        require_function(made, path)
    return made


def _names(given: Mapping[str, Iterable[str]]) -> tuple[tuple[str, frozenset[str]], ...]:
    require(given, Mapping, "inputs", "a mapping")
    return tuple((tool, frozenset(_listed(keys, "inputs"))) for tool, keys in given.items())


def _endings(given: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower().translate(_JOINTS) for name in _listed(given, "keys")) - {""}


def _listed(given: Iterable[str], path: str) -> tuple[str, ...]:
    """Names that are given as a list; one string is none."""
    listed: Any = given if not isinstance(given, str) else None
    require(listed, Iterable, path, "a list of names")
    names = tuple(listed)
    for name in names:
        require(name, str, path, "names")
    return names


@final
@attrs.frozen
class Redactor:
    r"""What counts as a secret. A value, which conversations take where something enters them.

    Args:
        detectors: By kind a pattern or a function from a text to the places of its secrets. The secrets of a pattern are
            the groups that matched, or all of the match if there are none. Places that go beyond the text count as far
            as there is text. Kinds have a-z, 0-9 and single dashes.
        keys: What the names of keys in tool inputs end with whose text is a secret, whatever it looks like; case,
            dashes and underscores do not count.
        inputs: The keys whose text and numbers are secrets in the inputs of single tools, by the name of the tool.
        report: Called with what was replaced whenever something was, in what enters a conversation.

    Raises:
        ValidationError: `field-type` or `field-value` for what is no detector, kind or key.

    >>> redactor = Redactor({**DETECTORS, "badge": r"\bE-[0-9]{6}\b"}, inputs={"unlock": ["code"]})
    >>> redactor.text("E-123456 logs in with curl -H 'Authorization: Bearer tok-demo-1'")
    "[redacted:badge] logs in with curl -H 'Authorization: Bearer [redacted:bearer-token]'"
    """

    detectors: tuple[tuple[str, re.Pattern[str] | Find], ...] = attrs.field(
        default=cast("Any", DETECTORS),
        converter=_finders,
        repr=lambda value: repr([kind for kind, _ in value]),
    )
    keys: frozenset[str] = attrs.field(default=KEYS, converter=_endings, repr=False)
    inputs: tuple[tuple[str, frozenset[str]], ...] = attrs.field(
        default=cast("Any", MappingProxyType({})), converter=_names
    )
    report: Callable[[Redacted[Any]], object] | None = attrs.field(default=None, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.report is not None:
            require_function(self.report, "report")

    def text(self, text: str) -> str:
        """A text with a placeholder in the place of each secret; the same object if it has none.

        Raises:
            ValidationError: `field-type` for what is no text.

        >>> Redactor().text("postgres://me:hunter2@db/main")
        'postgres://me:[redacted:url-password]@db/main'
        """
        require(text, str, "text", "text")
        return self._text(text, Counter())

    def blocks(self, blocks: Iterable[B]) -> Redacted[B]:
        """Blocks with a placeholder in the place of each secret in them.

        Raises:
            ValidationError: `field-type` for what is no block.

        >>> from convmodel import Text, ToolUse
        >>> call = ToolUse("toolu_1", "login", {"user": "me", "password": "swordfish"})
        >>> made = Redactor().blocks([Text("I log in."), call])
        >>> made.blocks[1].input["password"], made.found
        ('[redacted:secret]', (Redaction(path='blocks[1]', kind='secret', count=1),))
        """
        require(blocks, Iterable, "blocks", "a list of blocks")
        made: list[B] = []
        found: list[Redaction] = []
        for at, block in enumerate(blocks):
            require(block, Value, f"blocks[{at}]", "a block")
            kinds: Counter[str] = Counter()
            made.append(self._value(block, kinds))
            found += (Redaction(f"blocks[{at}]", kind, count) for kind, count in kinds.items())
        return Redacted(tuple(made), tuple(found))

    def tell(self, made: Redacted[Any]) -> None:
        """Report what was replaced."""
        if self.report is not None:
            self.report(made)

    def _value(self, value: B, found: Counter[str]) -> B:
        named = next(
            (keys for tool, keys in self.inputs if tool == getattr(value, "name", None)), frozenset()
        )
        changes: dict[str, Any] = {}
        for field in fields_of(cast("Any", type(value))):
            old = getattr(value, field.name)
            new = self._field(old, field.free, named, found)
            if new is not old:
                if any(check(new) is not None for check in field.checks):
                    new = new[: len(old)]  # placeholders have made a title longer than it may be
                changes[field.name] = new
        return attrs.evolve(cast("Any", value), **changes) if changes else value

    def _field(self, value: Any, free: bool, named: frozenset[str], found: Counter[str]) -> Any:
        if isinstance(value, Value):
            return self._value(value, found)
        if type(value) is tuple:
            made = tuple(self._field(item, free, named, found) for item in value)
            return made if any(new is not old for new, old in zip(made, value, strict=True)) else value
        if free and type(value) is str:
            return self._text(value, found)
        if free and type(value) is JsonObject:
            before = found.total()
            made = self._json(value.thaw(), named, None, found)
            return JsonObject(made) if found.total() > before else value
        return value

    def _json(self, value: Any, named: frozenset[str], under: _Key | None, found: Counter[str]) -> Any:
        """A plain JSON value without secrets, under a key that tells a secret or under none; keys and the shape stay."""
        if isinstance(value, str):
            if under is None or _REFERENCE.fullmatch(value) or _PLACEHOLDER.fullmatch(value):
                return self._text(value, found)
            found["secret"] += 1
            return _MASK
        if under == "given" and type(value) in (int, float):
            found["secret"] += 1
            return _MASK
        if isinstance(value, list):
            return [self._json(item, named, under, found) for item in value]
        if isinstance(value, dict):
            return {
                key: self._json(
                    item,
                    named,
                    "given" if key in named else under or ("named" if _is_name(key, self.keys) else None),
                    found,
                )
                for key, item in cast("dict[str, Any]", value).items()
            }
        return value

    def _text(self, text: str, found: Counter[str]) -> str:
        """A text without secrets. What a replacement leaves is looked at again, so that a second time finds nothing."""
        while True:
            # What stands in place of a secret parts the text: no detector sees it.
            pieces = _PLACEHOLDER.split(text)
            clean = True
            for at in range(0, len(pieces), 2):
                if spans := self._spans(pieces[at]):
                    pieces[at] = _replaced(pieces[at], spans)
                    found.update(kind for _, _, kind in spans)
                    clean = False
            if clean:
                return text
            text = "".join(pieces)

    def _spans(self, text: str) -> list[tuple[int, int, str]]:
        """The secrets in a text, in their order; of two that overlap the whole, under the kind of the first."""
        if not text:
            return []
        found = (
            (start, end, kind)
            for kind, find in self.detectors
            for start, end in (
                _matches(find, text) if isinstance(find, re.Pattern) else _places(kind, find(text), len(text))
            )
        )
        merged: list[tuple[int, int, str]] = []
        for start, end, kind in sorted(found, key=lambda span: (span[0], -span[1])):
            if merged and start < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]), merged[-1][2])
            else:
                merged.append((start, end, kind))
        return merged


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
    for match in pattern.finditer(text):
        groups = [(start, end) for start, end in match.regs[1:] if start < end]
        yield from groups or [(start, end) for start, end in match.regs[:1] if start < end]


def _places(kind: str, given: object, length: int) -> Iterator[tuple[int, int]]:
    """The places that a function has found, as far as there is text."""
    path = f"detectors.{kind}"
    require(given, Iterable, path, "a list of starts and ends")
    for place in cast("Iterable[object]", given):
        bounds = cast("tuple[object, ...]", place) if isinstance(place, (tuple, list)) else ()
        if len(bounds) != 2 or any(type(bound) is not int for bound in bounds):
            found, fix = f"{described(place)} where a start and an end are due", "Give pairs of numbers."
            raise ValidationError([Violation(FIELD_TYPE, path, found, fix)])
        start, end = (min(max(cast("int", bound), 0), length) for bound in bounds)
        if start < end:
            yield start, end


def _replaced(text: str, spans: list[tuple[int, int, str]]) -> str:
    starts = [0, *(end for _, end, _ in spans)]
    parts = [
        text[at:start] + f"[redacted:{kind}]" for at, (start, _, kind) in zip(starts, spans, strict=False)
    ]
    return "".join([*parts, text[starts[-1] :]])


@cache
def default() -> Redactor:
    """The redactor of reprs and views."""
    return Redactor()


def masked(input: JsonObject) -> bool:
    """Whether the input of a call holds a placeholder, so that the call must not be run.

    A call that was masked when it entered has one, and so may a call of a model that has read one.

    Args:
        input: The input of the call.

    Raises:
        ValidationError: `field-type` for what is no `JsonObject`.

    >>> masked(JsonObject({"user": "me", "password": "[redacted:secret]"}))
    True
    """
    require(input, JsonObject, "input", "a JsonObject")
    return _PLACEHOLDER.search(input.text) is not None


__all__ = ["DETECTORS", "KEYS", "Detector", "Redacted", "Redaction", "Redactor", "masked"]
