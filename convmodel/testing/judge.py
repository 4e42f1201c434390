"""What the Messages API refuses, decided on the plain body of one request.

The judge shares no code with the rest of the package, so that it can serve as an oracle for it. Rules are
known by their ids; each theme below is one function that yields the faults of its rules.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, cast, final

from .schema import shape_fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Fault", "judge"]

Json = dict[str, Any]

_BEDROCK = ("bedrock", "bedrock_converse")


@final
@dataclass(frozen=True, slots=True)
class Fault:
    """One reason for which the API refuses a request.

    `rule` is the id of the broken rule, `message` the text of the API's error, with positions filled in.

    >>> Fault("messages-nonempty", "messages: at least one message is required").rule
    'messages-nonempty'
    """

    rule: str
    message: str


def judge(body: object, *, platform: str = "anthropic", betas: Iterable[str] = ()) -> list[Fault]:
    """Return the faults for which the API would refuse `body`, none if it would take it.

    `body` is the decoded JSON of a request to `/v1/messages`; any other value is judged too, and nothing is
    raised. `platform` says where the request goes: "anthropic", "bedrock", "bedrock_converse", "vertex" and
    so on; `betas` are those that its header names. The first fault is the one the API would
    print. A body of the wrong shape has one fault; the other rules need its shape.

    >>> body = {"model": "claude-opus-5", "max_tokens": 9, "messages": [{"role": "user", "content": ""}]}
    >>> judge(body)
    [Fault(rule='user-content-nonempty', message='messages.0: user messages must have non-empty content')]
    """
    try:
        # Stands for the bytes on the wire: what has no JSON text in UTF-8 never arrives.
        json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return [_not_json(f"no low surrogate in string: line 1 column {error.start + 1}")]
    except (ValueError, TypeError, RecursionError) as error:
        return [_not_json(str(error))]
    if shape := shape_fault(body, frozenset(betas)):
        return [Fault(*shape)]
    request = _Request(cast("Json", body), platform)
    return [fault for theme in _THEMES for fault in theme(request)]


def _not_json(reason: str) -> Fault:
    return Fault("json-valid-utf8", f"The request body is not valid JSON: {reason}")


# What the rules look at.


class _Block(NamedTuple):
    message: int
    position: int
    value: Json

    @property
    def type(self) -> str:
        kind: str = self.value["type"]
        return kind

    @property
    def at(self) -> str:
        return f"messages.{self.message}.content.{self.position}"


@dataclass(slots=True)
class _Turn:
    """Consecutive messages of one role, which the API joins first ("Working with messages" page)."""

    role: str
    first: int
    last: int
    blocks: list[_Block] = field(default_factory=list["_Block"])

    def of(self, *types: str) -> list[_Block]:
        return [block for block in self.blocks if block.type in types]

    @property
    def has_server_tools(self) -> bool:
        return any(block.type == "server_tool_use" or _is_server_result(block) for block in self.blocks)


class _Request:
    """A body of the right shape, with its messages also as blocks with positions and as turns."""

    def __init__(self, body: Json, platform: str) -> None:
        self.body = body
        self.platform = platform
        self.model = _model(body["model"])
        self.thinking: str | None = body.get("thinking", {}).get("type")
        self.messages: list[Json] = body["messages"]
        self.contents = [_blocks(index, message["content"]) for index, message in enumerate(self.messages)]
        self.blocks = [block for content in self.contents for block in content]
        self.turns: list[_Turn] = []
        for index, message in enumerate(self.messages):
            if not self.turns or self.turns[-1].role != message["role"]:
                self.turns.append(_Turn(message["role"], index, index))
            self.turns[-1].last = index
            self.turns[-1].blocks += self.contents[index]
        self.spoken = [turn for turn in self.turns if turn.role != "system"]

    def role(self, block: _Block) -> str:
        role: str = self.messages[block.message]["role"]
        return role


def _blocks(index: int, content: str | list[Json]) -> list[_Block]:
    """A string is one text block; an empty one is like an empty list."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    return [_Block(index, position, value) for position, value in enumerate(content)]


def _with_nested(block: Json, at: str) -> Iterator[tuple[str, Json]]:
    """A block and the blocks inside it (of a result, a document, a search result), each with its place."""
    yield at, block
    for key in ("content", "source"):
        inner = block.get(key)
        inside = enumerate(inner) if _is_list(inner) else [("", inner)]
        for index, value in inside:
            if isinstance(value, dict):
                place = f"{at}.{block['type']}.{key}.{index}".removesuffix(".")
                yield from _with_nested(cast("Json", value), place)


def _is_list(content: object) -> TypeGuard[list[Json]]:
    return isinstance(content, list)


def _is_server_result(block: _Block) -> bool:
    return block.type.endswith("_tool_result")


# Facts about models.


class _Model(NamedTuple):
    thinking: tuple[str, ...]
    prefill: bool = False
    system_role: bool = True
    forced_tools: bool = True
    disabled_at_any_effort: bool = True
    checks_prefix: bool = False


_NEWEST = _Model(("adaptive",), forced_tools=False, checks_prefix=True)

# First row that fits: lines of models, lowest version, facts. From the pages on errors (prefill, thinking
# types), on mid-conversation system messages, and on what is new in each model; what is not documented counts
# as in new models.
_MODELS = (
    (("fable", "mythos"), (5, 1), _NEWEST),
    (("fable", "mythos"), (5, 0), _Model(("adaptive",))),
    (("fable", "mythos"), (0, 0), _Model(("enabled", "adaptive"), system_role=False)),
    (("opus",), (5, 5), _NEWEST),
    (("sonnet",), (5, 5), _Model(("adaptive", "between_tools"), forced_tools=False, checks_prefix=True)),
    (("haiku",), (5, 5), _Model(("adaptive", "disabled"), checks_prefix=True)),
    (("opus",), (5, 0), _Model(("adaptive", "disabled"), disabled_at_any_effort=False)),
    (("opus",), (4, 8), _Model(("adaptive", "disabled"))),
    (("opus", "sonnet", "haiku"), (4, 7), _Model(("adaptive", "disabled"), system_role=False)),
    (("opus", "sonnet", "haiku"), (4, 6), _Model(("enabled", "adaptive", "disabled"), system_role=False)),
    (("opus", "sonnet", "haiku"), (0, 0), _Model(("enabled", "disabled"), prefill=True, system_role=False)),
)
_LINE_FIRST = re.compile(
    r"claude-(fable|mythos|opus|sonnet|haiku)-(?:preview|(\d{1,2})(?:-(\d{1,2}))?)(?!\d)"
)
_VERSION_FIRST = re.compile(r"claude-(\d)(?:-(\d))?-(opus|sonnet|haiku)")


def checks_prefix(model: str, platform: str) -> bool:
    """Whether a model compares what stands before thinking ("Preserved thinking" page); not so by way of OpenRouter."""
    return _model(model).checks_prefix and platform != "openrouter"


def _model(name: str) -> _Model:
    """The facts of a model under any platform's name for it; those of the newest when it is not known."""
    if found := _LINE_FIRST.search(name):
        line, major, minor = found.groups()
    elif found := _VERSION_FIRST.search(name):
        major, minor, line = found.groups()
    else:
        return _NEWEST
    version = (int(major or 0), int(minor or 0))
    return next(facts for lines, least, facts in _MODELS if line in lines and version >= least)


# The envelope.

_MAX_MESSAGES = 100_000
_MAX_USER_ID = 512
_FIRST_ROLE = {
    "bedrock": 'messages: first message must use the "user" role',
    "bedrock_converse": "A conversation must start with a user message. "
    "Try again with a conversation that starts with a user message.",
}


def _envelope(request: _Request) -> Iterator[Fault]:
    count = len(request.messages)
    if not count:
        yield Fault("messages-nonempty", "messages: at least one message is required")
    if count > _MAX_MESSAGES:
        text = f"messages: List should have at most {_MAX_MESSAGES} items, not {count}"
        yield Fault("messages-max-100k", text)
    if len(request.body.get("metadata", {}).get("user_id") or "") > _MAX_USER_ID:
        text = f"metadata.user_id: String should have at most {_MAX_USER_ID} characters"
        yield Fault("metadata-user-id", text)
    if request.platform in _BEDROCK:
        yield from _bedrock(request)


def _bedrock(request: _Request) -> Iterator[Fault]:
    """Bedrock's older paths keep rules that the Anthropic platform has given up."""
    if request.spoken and request.spoken[0].role != "user":
        yield Fault("first-role-user", _FIRST_ROLE[request.platform])
    for turn in request.spoken:
        if turn.first != turn.last:
            text = 'messages: roles must alternate between "user" and "assistant"'
            yield Fault("bedrock-alternation", f'{text}, but found multiple "{turn.role}" roles in a row')
    if request.platform != "bedrock_converse":
        return
    for index, content in enumerate(request.contents):
        if not content:
            text = f"The content field in the Message object at messages.{index} is empty. "
            text += "Add a ContentBlock object to the content field and try again."
            yield Fault("assistant-empty-allowed", text)
    for block in request.blocks:
        for _, value in _with_nested(block.value, block.at):
            if value["type"] == "text" and not value.get("text", "x").strip():
                text = f"The text field in the ContentBlock object at {block.at} is blank. "
                yield Fault("bedrock-blank-text", f"{text}Add text to the text field, and try again.")


# Single fields.

_ID = re.compile(r"[a-zA-Z0-9_-]+", re.ASCII)
_SERVER_ID = re.compile(r"srvtoolu_[a-zA-Z0-9_]+", re.ASCII)
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}", re.ASCII)
_TOOLSET_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
_MAX_CALL_NAME = 200

# Type of block (or the ending of one), field, pattern, rule.
_PATTERNS = (
    ("tool_use", "id", _ID, "tool-use-id-pattern"),
    ("tool_use", "toolset_name", _TOOLSET_NAME, "toolset-name-pattern"),
    ("server_tool_use", "id", _SERVER_ID, "server-id-pattern"),
    ("tool_result", "tool_use_id", _ID, "tool-use-id-pattern"),
    ("tool_result", "toolset_name", _TOOLSET_NAME, "toolset-name-pattern"),
    ("*_tool_result", "tool_use_id", _SERVER_ID, "server-id-pattern"),
)


def _mismatch(value: str | None, pattern: re.Pattern[str]) -> str:
    fits = value is None or pattern.fullmatch(value)
    return "" if fits else f"String should match pattern '^{pattern.pattern}$'"


def _fields(request: _Request) -> Iterator[Fault]:
    for block in request.blocks:
        at = f"{block.at}.{block.type}"
        kind = "*_tool_result" if _is_server_result(block) else block.type
        for wanted, key, pattern, rule in _PATTERNS:
            if kind == wanted and (text := _mismatch(block.value.get(key), pattern)):
                yield Fault(rule, f"{at}.{key}: {text}")
        caller = block.value.get("caller", {})
        if text := _mismatch(caller.get("tool_id"), _SERVER_ID):
            yield Fault("caller-shape", f"{at}.caller.{caller['type']}.tool_id: {text}")
        if block.type == "tool_use":
            yield from _call_name(block.value["name"], at)
    for index, tool in enumerate(request.body.get("tools", [])):
        if text := _mismatch(tool.get("name"), _TOOL_NAME):
            yield Fault("tool-use-name", f"tools.{index}.custom.name: {text}")


def _call_name(name: str, at: str) -> Iterator[Fault]:
    if not name:
        yield Fault("tool-use-name", f"{at}.name: String should have at least 1 character")
    if len(name) > _MAX_CALL_NAME:
        yield Fault("tool-use-name", f"{at}.name: String should have at most {_MAX_CALL_NAME} characters")


# Text and emptiness.

_EMPTY = "text content blocks must be non-empty"
_BLANK = "text content blocks must contain non-whitespace text"


def _text(request: _Request) -> Iterator[Fault]:
    system: str | list[Json] = request.body.get("system", [])
    yield from _texts("system", [block.value["text"] for block in _blocks(0, system)])
    for index, content in enumerate(request.contents):
        if not content and request.messages[index]["role"] == "user":
            text = f"messages.{index}: user messages must have non-empty content"
            yield Fault("user-content-nonempty", text)
        texts = [block.value["text"] if block.type == "text" else None for block in content]
        yield from _texts("messages", texts)
    for block in request.blocks:
        if request.role(block) == "user" and request.platform == "anthropic":
            yield from _citations(block)


def _texts(where: str, texts: list[str | None]) -> Iterator[Fault]:
    """Judge the texts of one message, where None stands for any other block."""
    if "" in texts:
        yield Fault("text-block-nonempty", f"{where}: {_EMPTY}")
    elif texts and all(text is not None and not text.strip() for text in texts):
        rule = "system-empty" if where == "system" else "turn-not-all-whitespace"
        yield Fault(rule, f"{where}: {_BLANK}")


def _citations(block: _Block) -> Iterator[Fault]:
    """Refuse cited text that a user wrote, since API version 2026-10-21 (its migration page)."""
    for at, value in _with_nested(block.value, block.at):
        if value["type"] == "text" and value.get("citations"):
            text = "citations are not permitted on text blocks in `user` messages"
            yield Fault("text-citations-user-forbidden", f"{at}.text.citations: {text}")


# Which block may stand where.

_ONLY_IN = "messages.{0}: `{1}` blocks can only be in `{2}` messages"
_THINKING_IN = "messages.{0}.content: thinking blocks may only be in `{2}` messages"
_NOT_IN = "messages.{0}.content: '{1}' blocks are not permitted within assistant turns"

# Type of block: the only role that may hold it, the rule, the text. Blocks not listed stand in both roles.
_PLACES = {
    "tool_use": ("assistant", "role-blocks-tool-use", _ONLY_IN),
    "server_tool_use": ("assistant", "role-blocks-server-tools", _ONLY_IN),
    "*_tool_result": ("assistant", "role-blocks-server-tools", _ONLY_IN),
    "thinking": ("assistant", "role-blocks-thinking", _THINKING_IN),
    "redacted_thinking": ("assistant", "role-blocks-thinking", _THINKING_IN),
    "tool_result": ("user", "role-blocks-tool-result", _ONLY_IN),
    "search_result": ("user", "role-blocks-search-result", _ONLY_IN),
    "image": ("user", "role-blocks-image", _NOT_IN),
    "document": ("user", "role-blocks-document", _NOT_IN),
}


def _places(request: _Request) -> Iterator[Fault]:
    for block in request.blocks:
        kind = "*_tool_result" if _is_server_result(block) else block.type
        role, rule, text = _PLACES.get(kind, (request.role(block), "", ""))
        # The version of the API that refuses documents here is sent to the Anthropic platform only.
        if request.role(block) != role and not (kind == "document" and request.platform != "anthropic"):
            yield Fault(rule, text.format(block.message, block.type, role))


def _results(request: _Request) -> Iterator[Fault]:
    """Judge what a client's result or a search result holds ("Handle tool calls", "Search results" pages)."""
    for block in request.blocks:
        for at, value in _with_nested(block.value, block.at):
            if value["type"] == "search_result" and not _has_text(value["content"], every=True):
                text = "content must hold at least one text block, and none that is empty"
                yield Fault("search-result-content", f"{at}.search_result.content: {text}")
        if block.type != "tool_result":
            continue
        at, content = f"{block.at}.tool_result", block.value.get("content")
        types = {inner["type"] for inner in content} if _is_list(content) else {"text"}
        if "search_result" in types and len(types) > 1:
            text = "all content must be type `search_result` if any is"
            yield Fault("tool-result-search-homogeneous", f"{at}: {text}")
        if block.value.get("is_error"):
            if types - {"text"}:
                text = "all content must be type `text` if `is_error` is true"
                yield Fault("tool-result-error-text-only", f"{at}: {text}")
            elif block.value.get("toolset_name") and not _has_text(content):
                text = "an error result of a toolset member must carry non-empty text"
                yield Fault("tool-result-error-toolset-nonempty", f"{at}: {text}")


def _has_text(content: str | list[Json] | None, *, every: bool = False) -> bool:
    """Whether one text, or every text and at least one, is not empty."""
    texts = [inner["text"] for inner in content] if _is_list(content) else [content]
    return any(texts) and (all(texts) or not every)


# Messages of role system.

_DIRECTIVE = "the directive-only form (content: [] with output_config) is accepted at any position"


def _system_messages(request: _Request) -> Iterator[Fault]:
    """Judge each run of system messages as one section ("Mid-conversation system messages" page)."""
    turns = request.turns
    for index, turn in enumerate(turns):
        if turn.role != "system":
            continue
        at = f"messages.{turn.first}"
        if not request.model.system_role:
            yield Fault("sysmsg-models", f"{at}: role 'system' is not supported on this model")
            continue
        for message in range(turn.first, turn.last + 1):
            if not request.contents[message]:
                text = f"messages.{message}: system content must contain at least one block"
                yield Fault("sysmsg-nonempty", text)
        before = turns[index - 1] if index else None
        if before is None:
            text = f"{at}: use the top-level 'system' parameter for the initial system prompt; {_DIRECTIVE}"
            yield Fault("sysmsg-not-first", text)
        elif before.of("tool_use"):
            continue  # the rule of that place is one of pairing
        elif before.role == "assistant" and not (before.blocks and _is_server_result(before.blocks[-1])):
            text = "must follow a 'user' message or an 'assistant' message ending in a server tool result"
            yield Fault("sysmsg-after", f"{at}: role 'system' {text}; {_DIRECTIVE}")
        if turn is not turns[-1] and turns[index + 1].role != "assistant":
            text = f"role 'system' must precede an 'assistant' message or end the array; {_DIRECTIVE}"
            yield Fault("sysmsg-before", f"messages.{turn.last}: {text}")


# Client calls and their results.


def _calls(request: _Request) -> Iterator[Fault]:
    seen: set[str] = set()
    for block in request.blocks:
        if block.type == "tool_use":
            if block.value["id"] in seen:
                yield Fault("tool-use-id-unique", f"{block.at}: `tool_use` ids must be unique")
            seen.add(block.value["id"])
    pairs = zip([None, *request.spoken], [*request.spoken, None], strict=True)
    for before, turn in pairs:
        asking = before.of("tool_use") if before and before.role == "assistant" else []
        calls = {block.value["id"]: block for block in asking}
        answering = turn if turn and turn.role == "user" else None
        if before and calls:
            yield from _answered(request, before, answering, calls)
        if answering:
            yield from _answers(answering, calls)
    if any(b.type in ("tool_use", "tool_result") for b in request.blocks) and not request.body.get("tools"):
        text = "Requests which include `tool_use` or `tool_result` blocks must define tools."
        yield Fault("tools-must-be-declared", text)


def _answered(
    request: _Request, turn: _Turn, answering: _Turn | None, calls: dict[str, _Block]
) -> Iterator[Fault]:
    """Judge whether each call has its result at the start of the next turn ("Handle tool calls" page)."""

    def fault(rule: str, ids: list[str]) -> Iterator[Fault]:
        if ids:
            yield Fault(
                rule,
                f"messages.{calls[ids[0]].message}: `tool_use` ids were found without `tool_result` blocks "
                f"immediately after: {', '.join(ids)}. Each `tool_use` block must have a corresponding "
                "`tool_result` block in the next message.",
            )

    after = turn.last + 1
    if after < len(request.messages) and request.messages[after]["role"] == "system":
        yield from fault("sysmsg-not-between-use-and-result", list(calls))
        return
    lead, late = _split(answering.blocks if answering else [])
    given = {block.value["tool_use_id"] for block in lead + late}
    rule = "tool-use-answered-next" if turn is not request.turns[-1] else "tool-use-tail-open"
    yield from fault(rule, [call for call in calls if call not in given])
    too_late = {block.value["tool_use_id"] for block in late} - {block.value["tool_use_id"] for block in lead}
    yield from fault("tool-result-first", [call for call in calls if call in too_late])


def _split(blocks: list[_Block]) -> tuple[list[_Block], list[_Block]]:
    """The results that open a user turn, and those that stand behind another block."""
    lead = next((index for index, block in enumerate(blocks) if block.type != "tool_result"), len(blocks))
    return blocks[:lead], [block for block in blocks[lead:] if block.type == "tool_result"]


def _answers(turn: _Turn, calls: dict[str, _Block]) -> Iterator[Fault]:
    """Judge each result against the call that it names."""
    results = turn.of("tool_result")
    seen: set[str] = set()
    for block in results:
        name: str = block.value["tool_use_id"]
        if name not in calls:
            of_server = name.startswith(("srvtoolu_", "mcptoolu_"))
            yield Fault(
                "server-id-not-answered-by-user" if of_server else "tool-result-has-use",
                f"{block.at}: unexpected `tool_use_id` found in `tool_result` blocks: {name}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message.",
            )
            continue
        if name in seen:
            text = "each tool_use must have a single result. Found multiple `tool_result` blocks with id"
            yield Fault("tool-result-once", f"{block.at}: {text}: {name}")
        seen.add(name)
        call = calls[name].value
        if block.value.get("toolset_name") != call.get("toolset_name"):
            text = "toolset_name must be that of the `tool_use` block with the same id"
            yield Fault("toolset-name-echo", f"{block.at}.tool_result.toolset_name: {text}")
        content = block.value.get("content")
        if _programmatic(call) and _is_list(content) and any(b["type"] != "text" for b in content):
            text = "the result of a programmatic tool call must be text"
            yield Fault("ptc-result-text-only", f"{block.at}.tool_result.content: {text}")
    if len(results) < len(turn.blocks) and any(_programmatic(calls[name].value) for name in seen):
        text = "only `tool_result` blocks may answer pending programmatic tool calls"
        yield Fault("ptc-reply-only-results", f"messages.{turn.last}: {text}")


def _programmatic(call: Json) -> bool:
    return bool(call.get("caller", {}).get("type", "direct") != "direct")


# Server tools.

_RESULT_TYPES = {
    "tool_search_tool_regex": "tool_search_tool_result",
    "tool_search_tool_bm25": "tool_search_tool_result",
}


def _result_type(use: _Block) -> str:
    name: str = use.value["name"]
    return _RESULT_TYPES.get(name, f"{name}_tool_result")


def _server_tools(request: _Request) -> Iterator[Fault]:
    """Pair server calls by id over the whole turn, which client results do not end ("Server tools" page)."""
    pending: dict[str, _Block] = {}
    before: _Turn | None = None
    for turn in request.spoken:
        if turn.role == "user":
            if not _only_results(turn):
                yield from _unfinished(before, turn, list(pending.values()))
                pending = {}
            continue
        before = turn
        for block in turn.blocks:
            if block.type == "server_tool_use":
                pending[block.value["id"]] = block
            elif _is_server_result(block):
                name: str = block.value["tool_use_id"]
                use = pending.pop(name, None)
                if use is None or _result_type(use) != block.type:
                    rule = "server-result-has-use" if use is None else "server-result-type"
                    yield Fault(
                        rule,
                        f"{block.at}: unexpected `tool_use_id` found in `{block.type}` blocks: {name}. Each "
                        f"`{block.type}` block must have a corresponding `server_tool_use` block before it.",
                    )


def _unfinished(turn: _Turn | None, closing: _Turn, pending: list[_Block]) -> Iterator[Fault]:
    """Name the server calls that a user's words cut off, unless a rule on programmatic calls names them."""
    if turn is None or any(_programmatic(call.value) for call in turn.of("tool_use")):
        return
    for use in pending:
        if closing.of("tool_result"):
            rule = "mixed-turn-reply"
        elif use in turn.blocks[-1:]:
            rule = "pause-turn-verbatim"
        else:
            rule = "server-use-has-result"
        text = f"`{use.value['name']}` tool use with id `{use.value['id']}` was found without a corresponding"
        yield Fault(rule, f"messages.{use.message}: {text} `{_result_type(use)}` block")


def _only_results(turn: _Turn) -> bool:
    return all(block.type == "tool_result" for block in turn.blocks)


# Thinking.

_THINKING = ("thinking", "redacted_thinking")


def _thinking(request: _Request) -> Iterator[Fault]:
    for block in request.blocks:
        if block.type == "thinking" and not block.value["signature"]:
            if block.value["thinking"]:
                text = f"{block.at}: Invalid `signature` in `thinking` block"
                yield Fault("thinking-signature-valid", text)
            else:
                text = f"{block.at}.thinking: each thinking block must contain thinking"
                yield Fault("thinking-empty-and-unsigned", text)
        if block.type == "redacted_thinking" and not block.value["data"]:
            text = f"{block.at}: Invalid `data` in `redacted_thinking` block"
            yield Fault("thinking-signature-valid", text)
    for turn in request.turns:
        if turn.role == "assistant" and turn.blocks and turn.blocks[-1].type in _THINKING:
            last = turn.blocks[-1]
            text = f"The final block in an assistant message cannot be `{last.type}`."
            yield Fault("thinking-not-last", f"messages.{last.message}: {text}")
    if request.thinking == "enabled":
        yield from _thinking_first(request)


def _thinking_first(request: _Request) -> Iterator[Fault]:
    """In manual mode the open tool loop starts with thinking ("Extended thinking" page)."""
    loop: list[_Block] = []
    for turn in request.spoken:
        if turn.role == "assistant":
            loop += turn.blocks
        elif not _only_results(turn):
            loop = []
    if any(block.type in ("tool_use", "server_tool_use") for block in loop) and loop[0].type not in _THINKING:
        yield Fault(
            "thinking-first-when-manual",
            f"{loop[0].at}.type: Expected `thinking` or `redacted_thinking`, but found `{loop[0].type}`. "
            "When `thinking` is enabled, a final `assistant` message must start with a thinking block "
            "(preceeding the lastmost set of `tool_use` and `tool_result` blocks). We recommend you include "
            "thinking blocks from previous turns. To avoid this requirement, disable `thinking`.",
        )


# The end of the conversation.


def _tail(request: _Request) -> Iterator[Fault]:
    tail = request.spoken[-1] if request.spoken else None
    if tail is None or tail.role == "user" or tail.has_server_tools or tail.of("tool_use"):
        return  # a turn with server tools may be paused and resumed; open calls have their own rule
    if not request.model.prefill:
        text = "This model does not support assistant message prefill. "
        yield Fault("prefill-unsupported", f"{text}The conversation must end with a user message.")
        return
    last = tail.blocks[-1] if tail.blocks else None
    if last and last.type == "text" and last.value["text"] != last.value["text"].rstrip():
        text = "messages: final assistant content cannot end with trailing whitespace"
        yield Fault("final-assistant-trailing-whitespace", text)
    if request.thinking not in (None, "disabled"):
        text = f"messages.{tail.last}: assistant message prefill is not supported when `thinking` is enabled"
        yield Fault("prefill-with-thinking", text)
    elif thoughts := tail.of(*_THINKING):
        text = "When thinking is disabled, an `assistant` message in the final position cannot contain"
        text += " `thinking`. To use thinking blocks, enable `thinking` in your request."
        yield Fault("prefill-with-thinking", f"{thoughts[0].at}: {text}")


# Cache markers.

_MAX_MARKERS = 4
_NO_AUTOMATIC = (*_BEDROCK, "vertex")  # reports of 2026; explicit markers are taken there


def _cache(request: _Request) -> Iterator[Fault]:
    markers = list(_markers(request))
    automatic = 1 if request.body.get("cache_control") else 0
    if (count := len(markers) + automatic) > _MAX_MARKERS:
        text = f"A maximum of {_MAX_MARKERS} blocks with cache_control may be provided. Found {count}."
        yield Fault("cache-max-4", text)
    if automatic and request.platform in _NO_AUTOMATIC:
        yield Fault("cache-auto-slot", "cache_control: Extra inputs are not permitted")
    elif automatic and request.blocks:
        ttls = {
            each.get("ttl", "5m") for each in (request.body["cache_control"], _last_marker(request)) if each
        }
        if len(ttls) > 1:
            yield Fault("cache-auto-slot", "cache_control: the last block has a marker with a different ttl")
    for index, tool in enumerate(request.body.get("tools") or []):
        if tool.get("defer_loading") and tool.get("cache_control"):
            text = f"tools.{index}: a tool cannot have both defer_loading=true and cache_control set"
            yield Fault("deferred-no-cache-control", text)
    short = False
    for at, block in markers:
        if block["cache_control"].get("ttl", "5m") == "5m":
            short = True
        elif short:
            text = "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. "
            text += "Note that blocks are processed in the following order: `tools`, `system`, `messages`."
            yield Fault("cache-ttl-order", f"{at}.cache_control.ttl: {text}")
        if block.get("text") == "":
            text = "cache_control cannot be set for empty text blocks"
            yield Fault("cache-not-on-empty-text", f"{at}.text: {text}")


def _last_marker(request: _Request) -> Json | None:
    return request.blocks[-1].value.get("cache_control")


def _markers(request: _Request) -> Iterator[tuple[str, Json]]:
    """The places with an explicit marker, in the order in which the API handles them."""
    system = request.body.get("system", [])
    for key, values in (("tools", request.body.get("tools", [])), ("system", system)):
        for index, value in enumerate(values):
            if not isinstance(value, str) and value.get("cache_control"):
                yield f"{key}.{index}", value
    for block in request.blocks:
        for at, value in _with_nested(block.value, block.at):
            if value.get("cache_control"):
                yield at, value


# What the request asks for.

_UNSUPPORTED = '"thinking.type.{}" is not supported for this model.'
_USE_ADAPTIVE = ' Use "thinking.type.adaptive" and "output_config.effort" to control thinking behavior.'


def _config(request: _Request) -> Iterator[Fault]:
    kind = request.thinking
    effort = request.body.get("output_config", {}).get("effort")
    if kind == "adaptive" and kind not in request.model.thinking:
        yield Fault("thinking-config-by-model", "adaptive thinking is not supported on this model")
    elif kind and kind not in request.model.thinking:
        yield Fault("thinking-config-by-model", _UNSUPPORTED.format(kind) + _USE_ADAPTIVE)
    elif kind == "disabled" and effort in ("xhigh", "max") and not request.model.disabled_at_any_effort:
        text = f'{_UNSUPPORTED.format(kind)} Effort "{effort}" needs "thinking.type.adaptive".'
        yield Fault("thinking-config-by-model", text)
    if request.body.get("tool_choice", {}).get("type") in ("any", "tool"):
        if not request.model.forced_tools:
            text = 'tool_choice: type "tool" and "any" are not supported for this model.'
            yield Fault("tool-choice-forced-thinking", text)
        elif kind == "enabled":
            text = "Thinking may not be enabled when tool_choice forces tool use."
            yield Fault("tool-choice-forced-thinking", text)


# In the order in which the API looks, as far as reports of single errors show it.
_THEMES = (
    _envelope,
    _fields,
    _config,
    _text,
    _places,
    _results,
    _system_messages,
    _calls,
    _server_tools,
    _thinking,
    _cache,
    _tail,
)
