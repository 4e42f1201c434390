"""Hypothesis strategies for conversations and their parts, and for histories that break exactly one rule.

They are made of one another: values, blocks, turns, replies, conversations. What they give is legal, except the
broken half of `near_misses`; it is also strange wherever that is legal: empty thinking with a signature, text behind
calls, results in any order, several turns of one party, blank text beside other blocks. They need Hypothesis, which
comes with the extra `testing`.

>>> from hypothesis import given
>>> from convmodel.storage import dumps, loads
>>> @given(conversations())
... def test_my_store_loses_nothing(convo):
...     assert loads(dumps(convo)) == convo
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeGuard, TypeVar, cast

import attrs
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ..anthropic import to_messages
from ..blocks import (
    AssistantBlock,
    Base64ImageSource,
    Base64PDFSource,
    BashCodeExecutionToolResult,
    BrowserState,
    Caller,
    Citation,
    CitationCharLocation,
    CitationContentBlockLocation,
    CitationPageLocation,
    CitationsConfig,
    CitationSearchResultLocation,
    CitationWebSearchResultLocation,
    CodeExecutionToolResult,
    ContainerUpload,
    ContentBlockSource,
    DirectCaller,
    Document,
    FileDocumentSource,
    FileImageSource,
    Image,
    ImageTransformations,
    OpaqueBlock,
    PlainTextSource,
    RedactedThinking,
    SearchResult,
    ServerToolCaller20260120,
    ServerToolResult,
    ServerToolUse,
    Text,
    TextEditorCodeExecutionToolResult,
    Thinking,
    ToolReference,
    ToolResult,
    ToolSearchToolResult,
    ToolUse,
    UnsignedThinking,
    URLImageSource,
    URLPDFSource,
    UserBlock,
    WebFetchToolResult,
    WebSearchToolResult,
)
from ..conversation import (
    RECEIVED,
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    Conversation,
    Interrupted,
    empty,
)
from ..errors import ConvmodelError
from ..jsonvalue import JsonObject
from ..preamble import Tool
from ..turns import THOUGHTS, AssistantTurn, Origin, Reply, UserTurn, unfinished_calls

Json: TypeAlias = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")


def _once(make: Callable[P, T]) -> Callable[P, T]:
    """A strategy function that makes each strategy once, since making one costs more than drawing from it."""
    return cast("Callable[P, T]", functools.cache(make))


# ---------------------------------------------------------------- values


@_once
def texts(min_size: int = 0) -> SearchStrategy[str]:
    """Text that can be sent: any characters but lone surrogates.

    >>> def short_enough(text: str) -> bool: return len(text) <= 12
    >>> bounded = texts().filter(short_enough)
    """
    return st.text(st.characters(codec="utf-8"), min_size=min_size, max_size=12)


@_once
def _said() -> SearchStrategy[str]:
    """Text that is more than whitespace."""
    few = st.sampled_from(
        ["Hello.", " Go on. ", "naïve \N{SNOWMAN}", '"quoted" \\ \N{BELL}', "two\nlines\u2028"]
    )
    return few | texts(1).filter(lambda text: not text.isspace())


@_once
def json_values() -> SearchStrategy[Any]:
    """Plain JSON values: nested, with integers of any size and keys of any text.

    >>> lists = json_values().filter(lambda value: isinstance(value, list))
    """
    scalars = (
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts()
    )
    return st.recursive(
        scalars | st.sampled_from([2**64, -(2**63) - 1, 10**40, -0.0, 1e300]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys(), inner, max_size=3),
        max_leaves=5,
    )


@_once
def _keys() -> SearchStrategy[str]:
    return st.sampled_from(["type", "text", "city", "_text", "__class__", "cache_control", ""]) | texts()


@_once
def json_objects() -> SearchStrategy[JsonObject]:
    """Free JSON as a `JsonObject`; `.thaw()` makes a plain dict of it.

    >>> plain = json_objects().map(lambda value: value.thaw())
    """
    return st.dictionaries(_keys(), json_values(), max_size=3).map(JsonObject)


@_once
def _index(least: int = 0) -> SearchStrategy[int]:
    return st.integers(least, 2**31)


@_once
def citations() -> SearchStrategy[Citation]:
    """Citations of all five kinds, as the model writes them.

    >>> pages = citations().filter(lambda citation: citation.type == "page_location")
    """
    title = st.none() | st.just("Facts")
    return st.one_of(
        st.builds(
            CitationCharLocation,
            texts(),
            _index(),
            title,
            _index(),
            _index(),
            file_id=st.none() | st.just("file_1"),
        ),
        st.builds(CitationPageLocation, texts(), _index(), title, _index(1), _index(1)),
        st.builds(CitationContentBlockLocation, texts(), _index(), title, _index(), _index()),
        st.builds(CitationWebSearchResultLocation, texts(), texts(), title, texts()),
        st.builds(CitationSearchResultLocation, texts(), _index(), texts(), title, _index(), _index()),
    )


# ---------------------------------------------------------------- blocks of the user


@_once
def text_blocks(*, cited: bool = False) -> SearchStrategy[Text]:
    """Text that says something.

    Args:
        cited: Whether it may hold citations, as the model's text does.

    >>> answers = text_blocks(cited=True)
    """
    quoting = st.lists(citations(), max_size=2) if cited else st.just([])
    return st.builds(Text, _said(), citations=quoting)


@_once
def images() -> SearchStrategy[Image]:
    """Images by bytes, address and file; the bytes only begin like an image.

    >>> sent_as_bytes = images().filter(lambda image: image.source.type == "base64")
    """
    heads = {
        "image/png": b"\x89PNG\r\n\x1a\n",
        "image/jpeg": b"\xff\xd8\xff",
        "image/gif": b"GIF89a",
        "image/webp": b"RIFF\0\0\0\0WEBP",
    }
    encoded = st.builds(
        lambda kind, tail: Base64ImageSource(
            base64.b64encode(heads[kind] + tail).decode(), cast("Any", kind)
        ),
        st.sampled_from(sorted(heads)),
        st.binary(max_size=4),
    )
    elsewhere = st.sampled_from([URLImageSource("https://example.org/a.png"), FileImageSource("file_1")])
    sized = st.sampled_from(
        [None, None, ImageTransformations(), ImageTransformations("downsize"), ImageTransformations("error")]
    )
    return st.builds(Image, encoded | elsewhere, transformations=sized)


@_once
def documents() -> SearchStrategy[Document]:
    """Documents of every source.

    >>> titled = documents().filter(lambda document: document.title is not None)
    """
    pdf = Base64PDFSource(base64.b64encode(b"%PDF-1.7 ").decode())
    sources = st.one_of(
        st.sampled_from([pdf, URLPDFSource("https://example.org/a.pdf"), FileDocumentSource("file_2")]),
        st.builds(PlainTextSource, texts()),
        st.builds(ContentBlockSource, texts() | st.lists(text_blocks() | images(), max_size=2)),
    )
    label = st.none() | texts(1)
    return st.builds(Document, sources, title=label, context=label, citations=_citing())


@_once
def _citing() -> SearchStrategy[CitationsConfig | None]:
    return st.sampled_from(
        [None, CitationsConfig(), CitationsConfig(enabled=True), CitationsConfig(enabled=False)]
    )


@_once
def search_results() -> SearchStrategy[SearchResult]:
    """Search results that the caller gives.

    >>> citable = search_results().filter(lambda result: bool(result.citations and result.citations.enabled))
    """
    content = st.lists(text_blocks(), min_size=1, max_size=2)
    return st.builds(SearchResult, texts(), texts(), content, citations=_citing())


@_once
def container_uploads() -> SearchStrategy[ContainerUpload]:
    """Files for the container of the code execution tool.

    >>> uploads = container_uploads()
    """
    return st.builds(ContainerUpload, st.sampled_from(["file_1", "file_2"]))


@_once
def tool_references() -> SearchStrategy[ToolReference]:
    """References to declared tools, for results of a tool search of the caller's own.

    >>> found = st.lists(tool_references(), min_size=1)
    """
    return st.builds(ToolReference, st.sampled_from(TOOL_NAMES))


@_once
def browser_states() -> SearchStrategy[BrowserState]:
    """What a browser tool of the caller's own shows: one active tab, and what happened to it.

    >>> quiet = browser_states().filter(lambda state: state.state_changes is None)
    """
    tab = {"tab_id": "1", "title": "Start", "url": "https://example.org", "active": True}
    opened = {"type": "tab_opened", "tab_id": "1"}
    loaded = {
        "type": "download_completed",
        "download_id": "d",
        "url": "https://example.org/f",
        "size_bytes": 3,
    }
    return st.builds(BrowserState, st.just([tab]), st.sampled_from([None, [opened], [opened, loaded]]))


def tool_results(call: ToolUse | None = None) -> SearchStrategy[ToolResult]:
    """Results of calls, also empty ones and errors.

    Args:
        call: The call to answer; None for any.

    >>> answers = tool_results(ToolUse("toolu_1", "weather", {"city": "Paris"}))
    """
    if call is None:
        return tool_uses().flatmap(tool_results)
    outcomes = _outcomes(in_toolset=call.toolset_name is not None, text_only=call.is_programmatic)
    return outcomes.map(lambda outcome: call.result(outcome[0], is_error=outcome[1]))


@_once
def _outcomes(*, in_toolset: bool, text_only: bool) -> SearchStrategy[tuple[Any, bool | None]]:
    """Contents of results, each with its `is_error`."""
    blank = st.sampled_from(["", " ", "\n"]).map(Text)
    written = st.lists(text_blocks() | blank, max_size=2)
    failures = st.tuples(_said() if in_toolset else texts() | written, st.just(True))
    answers: SearchStrategy[Any] = st.none() | texts() | written
    if not text_only:
        mixed = text_blocks() | images() | documents() | tool_references() | browser_states()
        answers |= st.lists(search_results(), min_size=1, max_size=2) | st.lists(mixed, max_size=2)
    return st.tuples(answers, st.sampled_from([None, False])) | failures


@_once
def user_blocks() -> SearchStrategy[UserBlock]:
    """Everything that a user may say besides results.

    >>> content = st.lists(user_blocks(), min_size=1)
    """
    return text_blocks() | images() | documents() | search_results() | container_uploads()


# ---------------------------------------------------------------- blocks of the model

TOOL_NAMES = ("weather", "run-query", "A_long_name")
"""The names of the tools that the strategies declare and call."""


@_once
def thinking_blocks() -> SearchStrategy[Thinking]:
    """Signed thinking, its text often omitted.

    >>> omitted = thinking_blocks().filter(lambda block: not block.thinking)
    """
    return st.builds(Thinking, texts(), st.sampled_from(["c2lnbmVk", "c2lnbmVkIHRvbw=="]))


@_once
def redacted_thinking_blocks() -> SearchStrategy[RedactedThinking]:
    """Thinking that the service encrypted.

    >>> hidden = st.lists(redacted_thinking_blocks(), min_size=2)
    """
    return st.builds(RedactedThinking, texts(1))


@_once
def unsigned_thinking_blocks() -> SearchStrategy[UnsignedThinking]:
    """Thinking of a compatible endpoint, which the Messages API never sees.

    >>> foreign = unsigned_thinking_blocks()
    """
    return st.builds(UnsignedThinking, texts(), st.sampled_from([None, ""]))


@_once
def _callers() -> SearchStrategy[Caller | None]:
    return st.sampled_from([None, None, None, DirectCaller(), ServerToolCaller20260120("srvtoolu_code")])


@_once
def tool_uses() -> SearchStrategy[ToolUse]:
    """Client calls: with and without caller and toolset, with any input.

    >>> bare = tool_uses().filter(lambda call: call.toolset_name is None)
    """
    ids = st.integers(0, 99).map("toolu_{}".format) | st.sampled_from(["0", "call-1", "_", "srvtoolu_x"])
    toolset = st.sampled_from([None, None, None, "browser"])
    return st.builds(
        ToolUse, ids, st.sampled_from(TOOL_NAMES), json_objects(), caller=_callers(), toolset_name=toolset
    )


@_once
def server_tool_uses() -> SearchStrategy[ServerToolUse]:
    """Calls of the service's own tools.

    >>> searches = server_tool_uses().filter(lambda call: call.name == "web_search")
    """
    return st.builds(
        ServerToolUse,
        st.integers(0, 99).map("srvtoolu_{}".format),
        st.sampled_from(sorted(_SERVED)),
        json_objects(),
        caller=_callers(),
    )


def _error(kind: str) -> Json:
    return {"type": f"{kind}_tool_result_error", "error_code": "unavailable"}


_RUN: Json = {"return_code": 0, "stderr": ""}
_FILE_READ: Json = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "Facts."},
}
_PAGE: Json = {
    "type": "web_search_result",
    "encrypted_content": "b3BhcXVl",
    "title": "A page",
    "url": "https://a.org",
}
_FOUND: list[Json] = [{"type": "tool_reference", "tool_name": "weather"}]
_SEARCHED: list[Any] = [
    _error("tool_search"),
    {"type": "tool_search_tool_search_result", "tool_references": _FOUND},
    {"type": "tool_search_tool_search_result", "tool_references": []},
]
_EDIT = "text_editor_code_execution"
_SERVED: dict[str, tuple[Any, list[Any]]] = {
    "web_search": (
        WebSearchToolResult,
        [_error("web_search"), [], [_PAGE, {**_PAGE, "page_age": None}], [{**_PAGE, "page_age": "1 day"}]],
    ),
    "web_fetch": (
        WebFetchToolResult,
        [_error("web_fetch"), {"type": "web_fetch_result", "url": "https://a.org", "content": _FILE_READ}],
    ),
    "code_execution": (
        CodeExecutionToolResult,
        [
            _error("code_execution"),
            {"type": "code_execution_result", "content": [], "stdout": "1\n", **_RUN},
            {"type": "encrypted_code_execution_result", "content": [], "encrypted_stdout": "b3A=", **_RUN},
        ],
    ),
    "bash_code_execution": (
        BashCodeExecutionToolResult,
        [
            _error("bash_code_execution"),
            {
                "type": "bash_code_execution_result",
                "content": [{"type": "bash_code_execution_output", "file_id": "file_3"}],
                "stdout": "",
                **_RUN,
            },
        ],
    ),
    _EDIT: (
        TextEditorCodeExecutionToolResult,
        [
            {**_error(_EDIT), "error_message": None},
            {"type": f"{_EDIT}_view_result", "content": "a\nb", "file_type": "text", "num_lines": 2},
            {"type": f"{_EDIT}_create_result", "is_file_update": False},
            {"type": f"{_EDIT}_str_replace_result", "lines": ["-a", "+b"], "new_start": 1},
        ],
    ),
    "tool_search_tool_regex": (ToolSearchToolResult, _SEARCHED),
    "tool_search_tool_bm25": (ToolSearchToolResult, _SEARCHED),
}
"""For each server tool the class of its results, and contents that one may have."""


def server_tool_results(call: ServerToolUse | None = None) -> SearchStrategy[ServerToolResult]:
    """Results of the service's own tools, of every class.

    Args:
        call: The call that is answered; None for any.

    >>> found = server_tool_results(ServerToolUse("srvtoolu_1", "web_search", {"query": "weather"}))
    """
    if call is None:
        return server_tool_uses().flatmap(server_tool_results)
    made, contents = _SERVED[call.name]
    return cast(
        "SearchStrategy[ServerToolResult]", st.builds(made, st.just(call.id), st.sampled_from(contents))
    )


@_once
def opaque_blocks() -> SearchStrategy[OpaqueBlock]:
    """Blocks of a type that convmodel has no class for.

    >>> unknown = opaque_blocks().map(lambda block: block.type)
    """
    kinds = st.sampled_from(["connector_text", "advisor_notes"])
    data = json_objects().filter(lambda given: "cache_control" not in given)
    return st.builds(lambda kind, given: OpaqueBlock({**given, "type": kind}), kinds, data)


@_once
def assistant_blocks(*, opaque: bool = True) -> SearchStrategy[AssistantBlock]:
    """Everything that the model may say in one block, the results of server tools aside.

    Args:
        opaque: Whether blocks of unknown types are among them.

    >>> content = st.lists(assistant_blocks(opaque=False))
    """
    rare = container_uploads() | documents() | unsigned_thinking_blocks() | redacted_thinking_blocks()
    return _weighted(
        (4, tool_uses()),
        (3, text_blocks(cited=True)),
        (3, thinking_blocks()),
        (2, server_tool_uses()),
        (2, rare | opaque_blocks() if opaque else rare),
    )


def _weighted(*choices: tuple[int, SearchStrategy[Any]]) -> SearchStrategy[Any]:
    """One of some strategies, each as often as its weight says."""
    return st.sampled_from([each for weight, each in choices for _ in range(weight)]).flatmap(
        lambda each: each
    )


# ---------------------------------------------------------------- turns and replies


_MOSTLY = st.sampled_from([True, True, True, False])


@_once
def _thoughts_and_words(*, opaque: bool) -> SearchStrategy[list[AssistantBlock]]:
    return st.lists(assistant_blocks(opaque=opaque), max_size=4)


@_once
def _parallel_calls() -> SearchStrategy[list[ToolUse]]:
    return st.lists(tool_uses(), min_size=2, max_size=3)


@st.composite
def _spoken(draw: st.DrawFn, *, opaque: bool, owed: Sequence[ServerToolUse] = ()) -> list[AssistantBlock]:
    """Blocks in an order in which the model may give them: most server calls are answered, `owed` ones first."""
    blocks: list[AssistantBlock] = [draw(server_tool_results(call)) for call in owed if draw(_MOSTLY)]
    used: set[str] = set()
    parallel = () if draw(_MOSTLY) else draw(_parallel_calls())
    for block in (*draw(_thoughts_and_words(opaque=opaque)), *parallel):
        if isinstance(block, (ToolUse, ServerToolUse)):
            if block.id in used:
                continue
            used.add(block.id)
        blocks.append(block)
        if isinstance(block, ServerToolUse) and draw(st.booleans()):
            blocks.append(draw(server_tool_results(block)))
    return blocks


def _ended(blocks: list[AssistantBlock]) -> list[AssistantBlock]:
    """Blocks that may be a turn: not ending in thinking."""
    while blocks and type(blocks[-1]) in THOUGHTS:
        blocks = blocks[:-1]
    return blocks


@_once
def user_turns() -> SearchStrategy[UserTurn]:
    """User turns taken alone: results of any calls, then anything else.

    >>> speaking = user_turns().filter(lambda turn: not turn.results)
    """
    results = st.lists(tool_results(), max_size=2, unique_by=lambda result: result.tool_use_id)
    more = st.lists(user_blocks(), max_size=2)
    contents = st.tuples(results, more).map(lambda parts: (*parts[0], *parts[1])).filter(bool)
    return contents.map(UserTurn)


@_once
def assistant_turns(*, opaque: bool = True) -> SearchStrategy[AssistantTurn]:
    """Assistant turns taken alone, also empty ones, with and without origin.

    Args:
        opaque: Whether blocks of unknown types may stand in them.

    >>> asking = assistant_turns().filter(lambda turn: bool(turn.calls))
    """
    blocks = _spoken(opaque=opaque).map(_ended)
    return blocks.flatmap(
        lambda said: st.builds(AssistantTurn, st.just(said), st.none() | _origins(_fitting(said)))
    )


REASONS = (*RECEIVED, "a_reason_to_come")
"""Every stop reason that is documented, none at all, and an unknown one."""


def _fitting(blocks: Sequence[AssistantBlock]) -> str:
    """The stop reason under which the model ends with some blocks."""
    if any(isinstance(block, ToolUse) for block in blocks):
        return "tool_use"
    return "pause_turn" if unfinished_calls(blocks) else "end_turn"


@_once
def _origins(fitting: str, *, strange: bool = False) -> SearchStrategy[Origin]:
    """Origins under one stop reason; if `strange`, also under any other, and from another vendor."""
    reasons: SearchStrategy[str | None] = st.just(fitting)
    if strange:
        reasons = _weighted((2, reasons), (1, st.sampled_from(REASONS)))
    return st.builds(
        Origin,
        vendor=st.sampled_from(["anthropic"] * 5 + ["deepseek"] * strange),
        model=st.sampled_from([None, "claude-opus-4-8"]),
        id=st.sampled_from([None, "msg_1"]),
        stop_reason=reasons,
        container=st.sampled_from([None, None, None, "container_1"]),
    )


def replies(*, opaque: bool = True, owed: Sequence[ServerToolUse] = ()) -> SearchStrategy[Reply]:
    """Replies under every stop reason, most of them fitting: whole, cut, refused, paused, ending in thinking.

    Args:
        opaque: Whether blocks of unknown types may stand in them.
        owed: Server calls of the conversation that wait for a result; the reply brings some.

    >>> cut = replies().filter(lambda reply: reply.origin.stop_reason == "max_tokens")
    """
    return _replies(opaque=opaque, owed=owed)


@st.composite
def _replies(draw: st.DrawFn, *, opaque: bool, owed: Sequence[ServerToolUse]) -> Reply:
    blocks = draw(_spoken(opaque=opaque, owed=owed))
    if draw(_MOSTLY):
        blocks = _ended(blocks)
    origin = draw(_origins(_fitting(blocks), strange=True))
    return Reply(blocks, origin, complete=draw(_MOSTLY) or draw(_MOSTLY))


# ---------------------------------------------------------------- conversations


@_once
def system_prompts() -> SearchStrategy[list[Text] | str | None]:
    """System prompts as `start` and `empty` take them.

    >>> prompted = system_prompts().filter(bool)
    """
    return st.none() | _said() | st.lists(text_blocks(), max_size=2)


@_once
def tools() -> SearchStrategy[list[Tool]]:
    """Definitions of the tools that the strategies call; never none.

    >>> declared = tools()
    """
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    described = st.none() | texts()
    return st.tuples(described, described).map(
        lambda said: [
            Tool(name, schema, description=each) for name, each in zip(TOOL_NAMES, said, strict=False)
        ]
    )


def conversations(*, opaque: bool = True, max_moves: int = 8) -> SearchStrategy[Conversation]:
    """Conversations in any state, built by the public moves alone.

    Args:
        opaque: Whether blocks of unknown types may stand in them.
        max_moves: How many moves are made at most.

    >>> waiting = conversations().filter(lambda convo: isinstance(convo, AwaitingTools))
    """
    return _conversations(opaque=opaque, max_moves=max_moves)


@st.composite
def _conversations(draw: st.DrawFn, *, opaque: bool, max_moves: int) -> Conversation:
    convo: Conversation = empty(draw(system_prompts()), draw(tools()))
    for _ in range(draw(st.sampled_from(range(max_moves + 1)))):
        convo = _moved(draw, convo, opaque=opaque)
    return convo


def sendable_conversations(*, opaque: bool = True, max_moves: int = 8) -> SearchStrategy[AwaitingModel]:
    """Conversations that await the model, and tools are declared in all of them.

    Args:
        opaque: Whether blocks of unknown types may stand in them.
        max_moves: How many moves are made at most before the conversation is brought to where it can be sent.

    >>> @st.composite
    ... def sent_twice(draw):
    ...     return draw(sendable_conversations()).user("And another thing.")
    """
    return conversations(opaque=opaque, max_moves=max_moves).flatmap(_sendable)


@st.composite
def _sendable(draw: st.DrawFn, convo: Conversation) -> AwaitingModel:
    earlier = [point for n in range(len(convo.turns)) if _may_be_sent(point := convo.rewind(n))]
    unusual = [point for point in earlier if not isinstance(point.turns[-1], UserTurn)]
    if earlier and not draw(_MOSTLY):
        return draw(st.sampled_from(unusual or earlier))
    if isinstance(convo, AwaitingTools):
        return convo.answer(_answers(draw, convo))
    if isinstance(convo, AwaitingModel) and not _may_be_sent(convo):
        convo = convo.abandon()
    if _may_be_sent(convo):
        return convo
    assert not isinstance(convo, AwaitingTools)
    return convo.user(*draw(_contents()))


def _may_be_sent(convo: Conversation) -> TypeGuard[AwaitingModel]:
    """Whether the model is to go on, as it may happen: a pause that has no server call does not."""
    if not isinstance(convo, AwaitingModel):
        return False
    last = convo.turns[-1]
    return not isinstance(last, AssistantTurn) or any(isinstance(each, ServerToolUse) for each in last.blocks)


@_once
def _contents() -> SearchStrategy[list[UserBlock]]:
    return st.lists(user_blocks(), min_size=1, max_size=2)


def _moved(draw: st.DrawFn, convo: Conversation, *, opaque: bool) -> Conversation:
    """The conversation after one move that its state has. A move that is refused leaves it as it is."""
    try:
        return draw(_MOVES[type(convo)])(draw, convo, opaque)
    except ConvmodelError:
        return convo


Move: TypeAlias = Callable[[st.DrawFn, Any, bool], Conversation]


def _user(draw: st.DrawFn, convo: AwaitingUser | AwaitingModel, _: bool) -> Conversation:
    return convo.user(*draw(_contents()))


def _assistant(draw: st.DrawFn, convo: AwaitingUser | AwaitingModel, opaque: bool) -> Conversation:
    turn = draw(assistant_turns(opaque=opaque))
    return convo.assistant(*_unused(turn.blocks, convo), origin=turn.origin)


def _system(draw: st.DrawFn, convo: AwaitingModel, _: bool) -> Conversation:
    return convo.system(*draw(_instructions()))


@_once
def _instructions() -> SearchStrategy[list[Text]]:
    return st.lists(text_blocks(), min_size=1, max_size=2)


def _receive(draw: st.DrawFn, convo: AwaitingModel, opaque: bool) -> Conversation:
    unfinished = convo._log.calls.unfinished(convo._state, len(convo.turns))
    owed = tuple(call.block for call in unfinished if isinstance(call.block, ServerToolUse))
    reply = draw(replies(opaque=opaque, owed=owed))
    outcome = convo.receive(attrs.evolve(reply, blocks=_unused(reply.blocks, convo)))
    if not isinstance(outcome, Interrupted):
        return outcome
    way = draw(st.sampled_from(["discard", "keep", "resume"]))
    if way == "resume":
        return outcome.resume("Go on.")
    return outcome.keep() if way == "keep" else outcome.discard()


def _abandon(_: st.DrawFn, convo: AwaitingModel, __: bool) -> Conversation:
    return convo.abandon()


def _answer(draw: st.DrawFn, convo: AwaitingTools, _: bool) -> Conversation:
    return convo.answer(_answers(draw, convo), () if draw(_MOSTLY) else draw(_contents()))


def _answer_one(draw: st.DrawFn, convo: AwaitingTools, _: bool) -> Conversation:
    return convo.answer_one(draw(tool_results(draw(st.sampled_from(convo.open_calls)))))


def _close(draw: st.DrawFn, convo: AwaitingTools, _: bool) -> Conversation:
    return convo.close(draw(st.sampled_from(["interrupted", "not_run", "lost"])))


def _rewind(draw: st.DrawFn, convo: Conversation, _: bool) -> Conversation:
    return convo.rewind(max(0, len(convo.turns) - draw(st.integers(0, 3))))


def _answers(draw: st.DrawFn, convo: AwaitingTools) -> list[ToolResult]:
    return [draw(tool_results(call)) for call in draw(st.permutations(convo.open_calls))]


def _unused(blocks: Sequence[AssistantBlock], convo: Conversation) -> list[AssistantBlock]:
    """Blocks whose client calls have ids that the conversation has not used, as those of the service have."""
    used = {call.id for turn in convo.turns if isinstance(turn, AssistantTurn) for call in turn.calls}
    made: list[AssistantBlock] = []
    for block in blocks:
        if isinstance(block, ToolUse):
            id = block.id
            while id in used:
                id += "_"
            used.add(id)
            block = attrs.evolve(block, id=id)  # noqa: PLW2901
        made.append(block)
    return made


_MOVES: dict[type, SearchStrategy[Move]] = {
    AwaitingUser: st.sampled_from([_user] * 8 + [_assistant, _rewind]),
    AwaitingModel: st.sampled_from([_receive] * 12 + [_user, _user, _system, _assistant, _abandon, _rewind]),
    AwaitingTools: st.sampled_from([_answer] * 4 + [_answer_one] * 4 + [_close, _rewind]),
}

# ---------------------------------------------------------------- near misses


class NearMiss(NamedTuple):
    """A history in wire form, and the same with one edit that breaks one rule.

    Args:
        valid: The messages before the edit; they may be sent, with the tools of `tools`.
        broken: The messages after it.
        rule: The id of the rule that the edit breaks.
    """

    valid: list[Json]
    broken: list[Json]
    rule: str


def near_misses(rule: str | None = None) -> SearchStrategy[NearMiss]:
    """Pairs of a valid history and one that breaks exactly one rule.

    The broken place stands behind a conversation, and in front of more, so that it is not always the first or last.

    Args:
        rule: The id of one of `NEAR_MISS_RULES`; None for all.

    >>> from convmodel.anthropic import check
    >>> @given(near_misses())
    ... def test_my_checker_is_as_strict(miss):
    ...     assert {violation.rule for violation in check(miss.broken)} == {miss.rule}
    """
    sites = [site for site in _SITES if rule in (None, site.rule)]
    return st.builds(_placed, st.sampled_from(sites), conversations(opaque=False, max_moves=5), _MOSTLY)


def _placed(site: NearMiss, convo: Conversation, followed: bool) -> NearMiss:
    rest = next(
        point
        for n in reversed(range(len(convo.turns) + 1))
        if isinstance(point := convo.rewind(n), AwaitingUser)
    )
    before = cast("list[Json]", to_messages(rest))
    ended = site.rule == "mixed-turn-reply"  # its server call is unfinished, so nothing else may follow
    after = [_model(_text("Done.")), _ask("Thank you.")] if followed and not ended else []
    if site.rule == "sysmsg-not-first":
        return site._replace(valid=[*site.valid, *after], broken=[*site.broken, *after])
    return site._replace(valid=[*before, *site.valid, *after], broken=[*before, *site.broken, *after])


def _text(text: str, **more: Any) -> Json:
    return {"type": "text", "text": text, **more}


def _ask(*content: Json | str) -> Json:
    return {"role": "user", "content": [_text(each) if isinstance(each, str) else each for each in content]}


def _model(*content: Json) -> Json:
    return {"role": "assistant", "content": list(content)}


def _order(*content: Json) -> Json:
    return {"role": "system", "content": list(content)}


def _call(id: str = "near_1", **more: Any) -> Json:
    return {"type": "tool_use", "id": id, "name": TOOL_NAMES[0], "input": {}, **more}


def _result(id: str = "near_1", content: Any = "ok", **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


def _served(id: str = "srvtoolu_near", **more: Any) -> Json:
    return {"type": "server_tool_use", "id": id, "name": "web_search", "input": {}, **more}


def _hits(id: str = "srvtoolu_near", kind: str = "web_search_tool_result", **more: Any) -> Json:
    return {"type": kind, "tool_use_id": id, "content": [], **more}


def _image(data: bytes | str = b"\x89PNG\r\n\x1a\n", media_type: str = "image/png") -> Json:
    encoded = data if isinstance(data, str) else base64.b64encode(data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": encoded}}


def _document(source: Json | None = None, **more: Any) -> Json:
    plain = {"type": "text", "media_type": "text/plain", "data": "Facts."}
    return {"type": "document", "source": source or plain, **more}


def _found_text(*texts: str) -> Json:
    content = [_text(each) for each in texts]
    return {"type": "search_result", "source": "notes", "title": "Notes", "content": content}


def _quoting(**more: Any) -> Json:
    citation = {
        "type": "char_location",
        "cited_text": "x",
        "document_index": 0,
        "document_title": None,
        "start_char_index": 0,
        "end_char_index": 1,
        **more,
    }
    return _text("So it says.", citations=[{key: value for key, value in citation.items() if value != "-"}])


def _round(call: Json, *reply: Json | str) -> list[Json]:
    """A question, a turn with one call, and what the user says then."""
    return [_ask("Please."), _model(call), _ask(*reply)]


def _said_then(valid: Json, broken: Json, rule: str) -> NearMiss:
    """A block in a user turn, beside text, before and after the edit."""
    return NearMiss([_ask("See:", valid)], [_ask("See:", broken)], rule)


def _answered_by(valid: Json, broken: Json, rule: str) -> NearMiss:
    """A block in an assistant turn, before text, before and after the edit."""
    question, rest = _ask("Please."), _text("So.")
    return NearMiss([question, _model(valid, rest)], [question, _model(broken, rest)], rule)


def _misplaced_in_user(block: Json, rule: str) -> NearMiss:
    return NearMiss([_ask("Please.")], [_ask("Please.", block)], rule)


def _misplaced_in_assistant(block: Json, rule: str) -> NearMiss:
    return _answered_by(_text("Look:"), block, rule)


_THOUGHT: Json = {"type": "thinking", "thinking": "", "signature": "c2lnbmVk"}
_HIDDEN: Json = {"type": "redacted_thinking", "data": "aGlkZGVu"}
_MARK: Json = {"type": "ephemeral"}
_BY_CODE: Json = {"caller": {"type": "code_execution_20260120", "tool_id": "srvtoolu_near"}}
_ROUND = _round(_call(), _result())
_PAIR = [_ask("Please."), _model(_served(), _hits(), _text("So."))]

_SITES: tuple[NearMiss, ...] = (
    # Messages and their content.
    NearMiss([_ask("Hi.")], [{**_ask("Hi."), "role": "tool"}], "role-enum"),
    NearMiss([_ask("Hi.")], [{"role": "user"}], "required-field"),
    NearMiss([_ask("Hi.")], [{"role": "user", "content": 5}], "content-type"),
    NearMiss([_ask("Hi.")], [{**_ask("Hi."), "id": "msg_1"}], "unknown-field-rejected"),
    NearMiss([_ask("Hi.")], [{"role": "user", "content": []}], "user-content-nonempty"),
    NearMiss([_ask("Hi.")], [{"role": "user", "content": ""}], "user-content-nonempty"),
    NearMiss([_ask("Hi.")], [_ask(" \n")], "turn-not-all-whitespace"),
    NearMiss([_ask("Hi.")], [_ask("\ud800")], "json-valid-utf8"),
    _said_then(_text("Hi."), _text(""), "text-block-nonempty"),
    _said_then(_text("Hi."), {"type": "teleport"}, "block-type-known"),
    _said_then(_text("Hi."), {"type": "text"}, "required-field"),
    _said_then(_text("Hi."), _text(cast("Any", 5)), "field-type"),
    _answered_by(_text("Hi."), _text("Hi.", parsed_output={}), "unknown-field-rejected"),
    # Which block may stand where.
    _misplaced_in_user(_call(), "role-blocks-tool-use"),
    _misplaced_in_user(_THOUGHT, "role-blocks-thinking"),
    _misplaced_in_user(_HIDDEN, "role-blocks-thinking"),
    _misplaced_in_user(_served(), "role-blocks-server-tools"),
    _misplaced_in_user(_hits(), "role-blocks-server-tools"),
    _misplaced_in_assistant(_result(), "role-blocks-tool-result"),
    _misplaced_in_assistant(_image(), "role-blocks-image"),
    _misplaced_in_assistant(_found_text("x"), "role-blocks-search-result"),
    # What a block holds.
    _said_then(_image(), _image(b"\xff\xd8\xff"), "image-media-type-matches"),
    _said_then(_image(), _image(media_type="image/bmp"), "image-media-type"),
    _said_then(_image(), _image("data:image/png;base64,iVBORw0KGgo="), "base64-valid"),
    _said_then(_document(title="A"), _document(title=""), "document-title-len"),
    _said_then(_document(title="A"), _document(title="A" * 501), "document-title-len"),
    _said_then(
        _document({"type": "content", "content": [_text("x")]}),
        _document({"type": "content", "content": [_document()]}),
        "document-content-source-types",
    ),
    _said_then(_found_text("x"), _found_text(), "search-result-content"),
    _said_then(_found_text("x"), _found_text("x", ""), "search-result-content"),
    _answered_by(_quoting(), _quoting(document_title="-"), "citation-fields"),
    _answered_by(_quoting(), _quoting(file_id="file_1"), "unknown-field-rejected"),
    _answered_by(_THOUGHT, {"type": "thinking", "thinking": "x"}, "thinking-fields"),
    _answered_by(_THOUGHT, {**_THOUGHT, "signature": None}, "thinking-fields"),
    _answered_by(_THOUGHT, {**_THOUGHT, "signature": ""}, "thinking-empty-and-unsigned"),
    _answered_by(_THOUGHT, {**_THOUGHT, "thinking": "x", "signature": ""}, "thinking-signature-valid"),
    _answered_by(_HIDDEN, {**_HIDDEN, "data": ""}, "thinking-signature-valid"),
    NearMiss(
        [_ask("Please."), _model(_THOUGHT, _text("So."))],
        [_ask("Please."), _model(_THOUGHT)],
        "thinking-not-last",
    ),
    # Client calls and their results.
    NearMiss(_ROUND, _round(_call("a:b"), _result("a:b")), "tool-use-id-pattern"),
    NearMiss(_ROUND, _round(_call(name=""), _result()), "tool-use-name"),
    NearMiss(_ROUND, _round(_call(name="n" * 201), _result()), "tool-use-name"),
    NearMiss(_ROUND, _round(_call(input="{}"), _result()), "tool-use-input-object"),
    NearMiss(_ROUND, _round(_call(input={"x": float("nan")}), _result()), "json-value"),
    NearMiss(_ROUND, _round(_call(caller=None), _result()), "caller-shape"),
    NearMiss(_ROUND, _round(_call(), _ask("Hi.")["content"][0]), "tool-use-answered-next"),
    NearMiss(_ROUND, [*_ROUND[:2], _model(_text("Well.")), _ask("Hi.")], "tool-use-answered-next"),
    NearMiss(
        [
            _ask("Please."),
            _model(_call("near_1"), _call("near_2")),
            _ask(_result("near_2"), _result("near_1")),
        ],
        [_ask("Please."), _model(_call("near_1"), _call("near_2")), _ask(_result("near_2"), "And?")],
        "tool-use-answered-next",
    ),
    NearMiss([_ask("Hi.")], [_ask(_result("near_0"), "Hi.")], "tool-result-has-use"),
    NearMiss(_ROUND, _round(_call(), _result(), _result("near_0")), "tool-result-has-use"),
    NearMiss(_ROUND, _round(_call(), _result(), _result()), "tool-result-once"),
    NearMiss(_round(_call(), _result(), "And?"), _round(_call(), "And?", _result()), "tool-result-first"),
    NearMiss(
        [*_ROUND, _model(_call("near_2")), _ask(_result("near_2"))],
        [*_ROUND, _model(_call("near_1")), _ask(_result("near_1"))],
        "tool-use-id-unique",
    ),
    NearMiss(
        _round(_call(), _result(content=[_image()])),
        _round(_call(), _result(content=[_image()], is_error=True)),
        "tool-result-error-text-only",
    ),
    NearMiss(
        _round(_call(), _result(content=[_found_text("x")])),
        _round(_call(), _result(content=[_found_text("x"), _text("y")])),
        "tool-result-search-homogeneous",
    ),
    NearMiss(
        _round(_call(), _result(content=[_text("x")])),
        _round(_call(), _result(content=[_THOUGHT])),
        "tool-result-content-types",
    ),
    NearMiss(
        _round(_call(), _result(content=[{"type": "tool_reference", "tool_name": "weather"}])),
        _round(_call(), _result(content=[{"type": "tool_reference", "tool_name": "the weather"}])),
        "tool-reference-name",
    ),
    NearMiss(
        _round(_call(toolset_name="browser"), _result(toolset_name="browser")),
        _round(_call(toolset_name="browser"), _result()),
        "toolset-name-echo",
    ),
    NearMiss(
        _round(_call(toolset_name="browser"), _result(toolset_name="browser")),
        _round(_call(toolset_name="br owser"), _result(toolset_name="br owser")),
        "toolset-name-pattern",
    ),
    NearMiss(
        _round(_call(toolset_name="browser"), _result(toolset_name="browser", is_error=True)),
        _round(_call(toolset_name="browser"), _result(toolset_name="browser", is_error=True, content="")),
        "tool-result-error-toolset-nonempty",
    ),
    NearMiss(
        _round(_call(**_BY_CODE), _result()),
        _round(_call(**_BY_CODE), _result(), "And?"),
        "ptc-reply-only-results",
    ),
    NearMiss(
        _round(_call(**_BY_CODE), _result(content=[_text("x")])),
        _round(_call(**_BY_CODE), _result(content=[_image()])),
        "ptc-result-text-only",
    ),
    # Server tools.
    NearMiss(
        _PAIR,
        [_ask("Please."), _model(_served("call_1"), _hits("call_1"), _text("So."))],
        "server-id-pattern",
    ),
    NearMiss(_PAIR, [_ask("Please."), _model(_served(name="x"), _hits(), _text("So."))], "server-name-enum"),
    NearMiss(_PAIR, [_ask("Please."), _model(_hits(), _text("So."))], "server-result-has-use"),
    NearMiss(
        _PAIR,
        [
            _ask("Please."),
            _model(_served(name="web_fetch"), _hits(), _text("So.")),
        ],
        "server-result-type",
    ),
    NearMiss(
        [*_PAIR, _ask("And?")],
        [_ask("Please."), _model(_served(), _text("So.")), _ask("And?")],
        "server-use-has-result",
    ),
    NearMiss(
        [_ask("Please."), _model(_served(), _call()), _ask(_result())],
        [_ask("Please."), _model(_served(), _call()), _ask(_result(), "And?")],
        "mixed-turn-reply",
    ),
    # System turns.
    NearMiss([_ask("Hi."), _order(_text("Be brief."))], [_order(_text("Be brief."))], "sysmsg-not-first"),
    NearMiss(
        [_ask("Hi."), _order(_text("Be brief.")), _model(_text("Hi."))],
        [_ask("Hi."), _model(_text("Hi.")), _order(_text("Be brief."))],
        "sysmsg-after",
    ),
    NearMiss(
        [_ask("Hi."), _order(_text("Be brief.")), _model(_text("Hi.")), _ask("And?")],
        [_ask("Hi."), _order(_text("Be brief.")), _ask("And?")],
        "sysmsg-before",
    ),
    NearMiss(
        [*_ROUND, _order(_text("Be brief."))],
        [*_ROUND[:2], _order(_text("Be brief.")), _ROUND[2]],
        "sysmsg-not-between-use-and-result",
    ),
    NearMiss([_ask("Hi."), _order(_text("Be brief."))], [_ask("Hi."), _order()], "sysmsg-nonempty"),
    NearMiss([_ask("Hi."), _order(_text("Be brief."))], [_ask("Hi."), _order(_image())], "sysmsg-blocks"),
    # Cache markers.
    NearMiss(
        [_ask(*[_text(str(n), cache_control=_MARK) for n in range(4)])],
        [_ask(*[_text(str(n), cache_control=_MARK) for n in range(5)])],
        "cache-max-4",
    ),
    NearMiss(
        [_ask(_text("a", cache_control={**_MARK, "ttl": "1h"}), _text("b", cache_control=_MARK))],
        [_ask(_text("a", cache_control=_MARK), _text("b", cache_control={**_MARK, "ttl": "1h"}))],
        "cache-ttl-order",
    ),
    _said_then(
        _text("a", cache_control=_MARK), _text("a", cache_control={"type": "x"}), "cache-control-shape"
    ),
    _answered_by(_THOUGHT, {**_THOUGHT, "cache_control": _MARK}, "cache-not-on-thinking"),
)

NEAR_MISS_RULES: tuple[str, ...] = tuple(dict.fromkeys(site.rule for site in _SITES))
"""The ids of the rules that `near_misses` knows to break."""
