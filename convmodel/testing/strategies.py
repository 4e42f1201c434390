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
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

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
from ..turns import THOUGHTS, AssistantTurn, Origin, Reply, SystemTurn, UserTurn, unfinished_calls

Json: TypeAlias = dict[str, Any]

# ---------------------------------------------------------------- values


def texts(min_size: int = 0) -> SearchStrategy[str]:
    """Text that can be sent: any characters but lone surrogates.

    >>> def short_enough(text: str) -> bool: return len(text) <= 12
    >>> bounded = texts().filter(short_enough)
    """
    return st.text(st.characters(codec="utf-8"), min_size=min_size, max_size=12)


def _said() -> SearchStrategy[str]:
    """Text that is more than whitespace."""
    few = st.sampled_from(["Hello.", " Go on. ", "naïve \N{SNOWMAN}", '"quoted" \\ \N{BELL}', "two\nlines\u2028"])
    return few | texts(1).filter(lambda text: not text.isspace())


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


def _keys() -> SearchStrategy[str]:
    return st.sampled_from(["type", "text", "city", "_text", "__class__", "cache_control", ""]) | texts()


def json_objects() -> SearchStrategy[JsonObject]:
    """Free JSON as a `JsonObject`; `.thaw()` makes a plain dict of it.

    >>> plain = json_objects().map(lambda value: value.thaw())
    """
    return st.dictionaries(_keys(), json_values(), max_size=3).map(JsonObject)


def _index(least: int = 0) -> SearchStrategy[int]:
    return st.integers(least, 2**66)


def citations() -> SearchStrategy[Citation]:
    """Citations of all five kinds, as the model writes them.

    >>> pages = citations().filter(lambda citation: citation.type == "page_location")
    """
    title = st.none() | st.just("Facts")
    return st.one_of(
        st.builds(
            CitationCharLocation, texts(), _index(), title, _index(), _index(), file_id=st.none() | st.just("file_1")
        ),
        st.builds(CitationPageLocation, texts(), _index(), title, _index(1), _index(1)),
        st.builds(CitationContentBlockLocation, texts(), _index(), title, _index(), _index()),
        st.builds(CitationWebSearchResultLocation, texts(), texts(), title, texts()),
        st.builds(CitationSearchResultLocation, texts(), _index(), texts(), title, _index(), _index()),
    )


# ---------------------------------------------------------------- blocks of the user


def text_blocks(*, cited: bool = False) -> SearchStrategy[Text]:
    """Text that says something.

    Args:
        cited: Whether it may hold citations, as the model's text does.

    >>> answers = text_blocks(cited=True)
    """
    quoting = st.lists(citations(), max_size=2) if cited else st.just([])
    return st.builds(Text, _said(), citations=quoting)


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
        lambda kind, tail: Base64ImageSource(base64.b64encode(heads[kind] + tail).decode(), cast("Any", kind)),
        st.sampled_from(sorted(heads)),
        st.binary(max_size=4),
    )
    elsewhere = st.sampled_from([URLImageSource("https://example.org/a.png"), FileImageSource("file_1")])
    sized = st.sampled_from(
        [None, None, ImageTransformations(), ImageTransformations("downsize"), ImageTransformations("error")]
    )
    return st.builds(Image, encoded | elsewhere, transformations=sized)


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


def _citing() -> SearchStrategy[CitationsConfig | None]:
    return st.sampled_from([None, CitationsConfig(), CitationsConfig(enabled=True), CitationsConfig(enabled=False)])


def search_results() -> SearchStrategy[SearchResult]:
    """Search results that the caller gives.

    >>> citable = search_results().filter(lambda result: bool(result.citations and result.citations.enabled))
    """
    content = st.lists(text_blocks(), min_size=1, max_size=2)
    return st.builds(SearchResult, texts(), texts(), content, citations=_citing())


def container_uploads() -> SearchStrategy[ContainerUpload]:
    """Files for the container of the code execution tool.

    >>> uploads = container_uploads()
    """
    return st.builds(ContainerUpload, st.sampled_from(["file_1", "file_2"]))


def tool_references() -> SearchStrategy[ToolReference]:
    """References to declared tools, for results of a tool search of the caller's own.

    >>> found = st.lists(tool_references(), min_size=1)
    """
    return st.builds(ToolReference, st.sampled_from(TOOL_NAMES))


def browser_states() -> SearchStrategy[BrowserState]:
    """What a browser tool of the caller's own shows: one active tab, and what happened to it.

    >>> quiet = browser_states().filter(lambda state: state.state_changes is None)
    """
    tab = {"tab_id": "1", "title": "Start", "url": "https://example.org", "active": True}
    opened = {"type": "tab_opened", "tab_id": "1"}
    loaded = {"type": "download_completed", "download_id": "d", "url": "https://example.org/f", "size_bytes": 3}
    return st.builds(BrowserState, st.just([tab]), st.sampled_from([None, [opened], [opened, loaded]]))


def tool_results(call: ToolUse | None = None) -> SearchStrategy[ToolResult]:
    """Results of calls, also empty ones and errors.

    Args:
        call: The call to answer; None for any.

    >>> answers = tool_results(ToolUse("toolu_1", "weather", {"city": "Paris"}))
    """
    if call is None:
        return tool_uses().flatmap(tool_results)
    blank = st.sampled_from(["", " ", "\n"]).map(Text)
    written = st.lists(text_blocks() | blank, max_size=2)
    worded = texts() | written if call.toolset_name is None else _said()
    answered = st.none() | texts() | written
    if not call.is_programmatic:
        mixed = text_blocks() | images() | documents() | tool_references() | browser_states()
        answered |= st.lists(search_results(), min_size=1, max_size=2) | st.lists(mixed, max_size=2)
    return st.one_of(
        answered.map(call.result),
        st.builds(call.result, answered, is_error=st.just(False)),
        st.builds(call.result, worded, is_error=st.just(True)),
    )


def user_blocks() -> SearchStrategy[UserBlock]:
    """Everything that a user may say besides results.

    >>> content = st.lists(user_blocks(), min_size=1)
    """
    return text_blocks() | images() | documents() | search_results() | container_uploads()


# ---------------------------------------------------------------- blocks of the model

TOOL_NAMES = ("weather", "run-query", "A_long_name")
"""The names of the tools that the strategies declare and call."""


def thinking_blocks() -> SearchStrategy[Thinking]:
    """Signed thinking, its text often omitted.

    >>> omitted = thinking_blocks().filter(lambda block: not block.thinking)
    """
    return st.builds(Thinking, texts(), st.sampled_from(["c2lnbmVk", "c2lnbmVkIHRvbw=="]))


def redacted_thinking_blocks() -> SearchStrategy[RedactedThinking]:
    """Thinking that the service encrypted.

    >>> hidden = st.lists(redacted_thinking_blocks(), min_size=2)
    """
    return st.builds(RedactedThinking, texts(1))


def unsigned_thinking_blocks() -> SearchStrategy[UnsignedThinking]:
    """Thinking of a compatible endpoint, which the Messages API never sees.

    >>> foreign = unsigned_thinking_blocks()
    """
    return st.builds(UnsignedThinking, texts(), st.sampled_from([None, ""]))


def _callers() -> SearchStrategy[Caller | None]:
    return st.sampled_from([None, None, None, DirectCaller(), ServerToolCaller20260120("srvtoolu_code")])


def tool_uses() -> SearchStrategy[ToolUse]:
    """Client calls: with and without caller and toolset, with any input.

    >>> bare = tool_uses().filter(lambda call: call.toolset_name is None)
    """
    ids = st.integers(0, 99).map("toolu_{}".format) | st.sampled_from(["0", "call-1", "_", "srvtoolu_x"])
    toolset = st.sampled_from([None, None, None, "browser"])
    return st.builds(
        ToolUse, ids, st.sampled_from(TOOL_NAMES), json_objects(), caller=_callers(), toolset_name=toolset
    )


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
_FILE_READ: Json = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Facts."}}
_PAGE: Json = {"type": "web_search_result", "encrypted_content": "b3BhcXVl", "title": "A page", "url": "https://a.org"}
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
    return cast("SearchStrategy[ServerToolResult]", st.builds(made, st.just(call.id), st.sampled_from(contents)))


def opaque_blocks() -> SearchStrategy[OpaqueBlock]:
    """Blocks of a type that convmodel has no class for.

    >>> unknown = opaque_blocks().map(lambda block: block.type)
    """
    kinds = st.sampled_from(["connector_text", "advisor_notes"])
    return st.builds(lambda kind, data: OpaqueBlock({**data, "type": kind}), kinds, json_objects())


def assistant_blocks(*, opaque: bool = True) -> SearchStrategy[AssistantBlock]:
    """Everything that the model may say in one block, the results of server tools aside.

    Args:
        opaque: Whether blocks of unknown types are among them.

    >>> content = st.lists(assistant_blocks(opaque=False))
    """
    rare = container_uploads() | documents() | unsigned_thinking_blocks() | redacted_thinking_blocks()
    common = text_blocks(cited=True) | thinking_blocks() | tool_uses() | server_tool_uses() | rare
    return common | opaque_blocks() if opaque else common


# ---------------------------------------------------------------- turns and replies


@st.composite
def _spoken(draw: st.DrawFn, *, opaque: bool, owed: Sequence[ServerToolUse] = ()) -> list[AssistantBlock]:
    """Blocks in an order in which the model may give them: most server calls are answered, `owed` ones first."""
    blocks: list[AssistantBlock] = [
        draw(server_tool_results(call)) for call in owed if draw(st.sampled_from([True, True, False]))
    ]
    used: set[str] = set()
    for block in draw(st.lists(assistant_blocks(opaque=opaque), max_size=4)):
        if isinstance(block, (ToolUse, ServerToolUse)):
            if block.id in used:
                continue
            used.add(block.id)
        blocks.append(block)
        if isinstance(block, ServerToolUse) and draw(st.sampled_from([True, True, True, False])):
            blocks.append(draw(server_tool_results(block)))
    return blocks


def _ended(blocks: list[AssistantBlock]) -> list[AssistantBlock]:
    """Blocks that may be a turn: not ending in thinking."""
    while blocks and type(blocks[-1]) in THOUGHTS:
        blocks = blocks[:-1]
    return blocks


@st.composite
def user_turns(draw: st.DrawFn) -> UserTurn:
    """User turns taken alone: results of any calls, then anything else.

    >>> speaking = user_turns().filter(lambda turn: not turn.results)
    """
    results = draw(st.lists(tool_results(), max_size=2, unique_by=lambda result: result.tool_use_id))
    said = draw(st.lists(user_blocks(), min_size=0 if results else 1, max_size=2))
    return UserTurn((*results, *said))


def assistant_turns(*, opaque: bool = True) -> SearchStrategy[AssistantTurn]:
    """Assistant turns taken alone, also empty ones, with and without origin.

    Args:
        opaque: Whether blocks of unknown types may stand in them.

    >>> asking = assistant_turns().filter(lambda turn: bool(turn.calls))
    """
    origin = st.none() | _spoken(opaque=opaque).flatmap(lambda blocks: _origins(blocks, strange=False))
    return st.builds(AssistantTurn, _spoken(opaque=opaque).map(_ended), origin)


REASONS = (*RECEIVED, "a_reason_to_come")
"""Every stop reason that is documented, none at all, and an unknown one."""


def _origins(blocks: Sequence[AssistantBlock], *, strange: bool) -> SearchStrategy[Origin]:
    """Origins that suit some blocks; if `strange`, any stop reason may stand beside them."""
    calls = any(isinstance(block, ToolUse) for block in blocks)
    fitting = "pause_turn" if unfinished_calls(blocks) and not calls else "tool_use" if calls else "end_turn"
    reasons = st.sampled_from([fitting] * 12 + list(REASONS) * strange)
    return st.builds(
        Origin,
        vendor=st.sampled_from(["anthropic"] * 5 + ["deepseek"] * strange),
        model=st.sampled_from([None, "claude-opus-4-8"]),
        id=st.none() | st.just("msg_1"),
        stop_reason=reasons,
        container=st.sampled_from([None, None, None, "container_1"]),
    )


@st.composite
def replies(draw: st.DrawFn, *, opaque: bool = True, owed: Sequence[ServerToolUse] = ()) -> Reply:
    """Replies under every stop reason, most of them fitting: whole, cut, refused, paused, ending in thinking.

    Args:
        opaque: Whether blocks of unknown types may stand in them.
        owed: Server calls of the conversation that wait for a result; the reply brings some.

    >>> cut = replies().filter(lambda reply: reply.origin.stop_reason == "max_tokens")
    """
    blocks = draw(_spoken(opaque=opaque, owed=owed))
    if draw(st.sampled_from([True, True, True, False])):
        blocks = _ended(blocks)
    complete = draw(st.sampled_from([True] * 9 + [False]))
    return Reply(blocks, draw(_origins(blocks, strange=True)), complete=complete)


# ---------------------------------------------------------------- conversations


def system_prompts() -> SearchStrategy[list[Text] | str | None]:
    """System prompts as `start` and `empty` take them.

    >>> prompted = system_prompts().filter(bool)
    """
    return st.none() | _said() | st.lists(text_blocks(), max_size=2)


def tools() -> SearchStrategy[list[Tool]]:
    """Definitions of the tools that the strategies call; never none.

    >>> declared = tools()
    """
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    described = st.none() | texts()
    return st.tuples(described, described).map(
        lambda said: [Tool(name, schema, description=each) for name, each in zip(TOOL_NAMES, said, strict=False)]
    )


@st.composite
def conversations(draw: st.DrawFn, *, opaque: bool = True, max_moves: int = 8) -> Conversation:
    """Conversations in any state, built by the public moves alone.

    Args:
        opaque: Whether blocks of unknown types may stand in them.
        max_moves: How many moves are made at most.

    >>> waiting = conversations().filter(lambda convo: isinstance(convo, AwaitingTools))
    """
    convo: Conversation = empty(draw(system_prompts()), draw(tools()))
    for _ in range(draw(st.integers(0, max_moves))):
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
    if isinstance(convo, AwaitingTools):
        return convo.answer(_answers(draw, convo))
    if isinstance(convo, AwaitingModel):
        last = convo.turns[-1]
        if not isinstance(last, AssistantTurn) or any(isinstance(block, ServerToolUse) for block in last.blocks):
            return convo
        convo = convo.abandon()  # a pause that has no server call does not occur in the wild
    return convo if isinstance(convo, AwaitingModel) else convo.user(*draw(_contents()))


def _contents() -> SearchStrategy[list[UserBlock]]:
    return st.lists(user_blocks(), min_size=1, max_size=2)


def _moved(draw: st.DrawFn, convo: Conversation, *, opaque: bool) -> Conversation:
    """The conversation after one move that its state has. A move that is refused leaves it as it is."""
    moves = _MOVES[type(convo)]
    try:
        return draw(st.sampled_from(moves))(draw, convo, opaque)
    except ConvmodelError:
        return convo


Move: TypeAlias = Callable[[st.DrawFn, Any, bool], Conversation]


def _user(draw: st.DrawFn, convo: AwaitingUser | AwaitingModel, _: bool) -> Conversation:
    return convo.user(*draw(_contents()))


def _assistant(draw: st.DrawFn, convo: AwaitingUser | AwaitingModel, opaque: bool) -> Conversation:
    turn = draw(assistant_turns(opaque=opaque))
    return convo.assistant(*_unused(turn.blocks, convo), origin=turn.origin)


def _system(draw: st.DrawFn, convo: AwaitingModel, _: bool) -> Conversation:
    return convo.system(*draw(st.lists(text_blocks(), min_size=1, max_size=2)))


def _receive(draw: st.DrawFn, convo: AwaitingModel, opaque: bool) -> Conversation:
    owed = tuple(call.block for call in convo._state.unfinished if isinstance(call.block, ServerToolUse))
    reply = draw(replies(opaque=opaque, owed=owed))
    outcome = convo.receive(attrs.evolve(reply, blocks=_unused(reply.blocks, convo)))
    if not isinstance(outcome, Interrupted):
        return outcome
    way = draw(st.sampled_from([outcome.discard, outcome.keep, outcome.resume]))
    return way("Go on.") if way == outcome.resume else way()


def _abandon(_: st.DrawFn, convo: AwaitingModel, __: bool) -> Conversation:
    return convo.abandon()


def _answer(draw: st.DrawFn, convo: AwaitingTools, _: bool) -> Conversation:
    return convo.answer(_answers(draw, convo), draw(st.just([]) | st.lists(user_blocks(), max_size=2)))


def _answer_one(draw: st.DrawFn, convo: AwaitingTools, _: bool) -> Conversation:
    return convo.answer_one(draw(tool_results(draw(st.sampled_from(convo.open_calls)))))


def _close(draw: st.DrawFn, convo: AwaitingTools, _: bool) -> Conversation:
    return convo.close(draw(st.sampled_from(["interrupted", "not_run", "lost"])))


def _rewind(draw: st.DrawFn, convo: Conversation, _: bool) -> Conversation:
    return convo.rewind(draw(st.integers(0, len(convo.turns))))


def _answers(draw: st.DrawFn, convo: AwaitingTools) -> list[ToolResult]:
    return [draw(tool_results(call)) for call in draw(st.permutations(convo.open_calls))]


def _unused(blocks: Sequence[AssistantBlock], convo: Conversation) -> list[AssistantBlock]:
    """Blocks whose client calls have ids that the conversation has not used, as those of the service have."""
    used = {call.id for turn in convo.turns if isinstance(turn, AssistantTurn) for call in turn.calls}
    made: list[AssistantBlock] = []
    for block in blocks:
        if isinstance(block, ToolUse):
            while block.id in used:
                block = attrs.evolve(block, id=f"{block.id}_")
            used.add(block.id)
        made.append(block)
    return made


_MOVES: dict[type, list[Move]] = {
    AwaitingUser: [_user, _user, _user, _user, _assistant, _rewind],
    AwaitingModel: [_receive, _receive, _receive, _receive, _receive, _user, _system, _assistant, _abandon, _rewind],
    AwaitingTools: [_answer, _answer, _answer, _answer_one, _answer_one, _close, _rewind],
}
