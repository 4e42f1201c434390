"""The local double of the Messages API: its judge rule by rule, and its server through the real client."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import anthropic
import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convmodel.testing import ApiError, MessagesServer, judge
from convmodel.testing.schema import request_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from convmodel.testing.server import ScriptedReply

Json = dict[str, Any]

TOOL: Json = {"name": "look", "input_schema": {"type": "object"}}
OLD = "claude-sonnet-4-5-20250929"
MIDDLE = "claude-opus-4-6"
NEW = "claude-opus-5"
EPHEMERAL = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
CODE_CALLER = {"type": "code_execution_20260120", "tool_id": "srvtoolu_1"}
WIRE_IMAGE: Json = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
DOCUMENT: Json = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}
CITATION = {
    "type": "char_location",
    "cited_text": "x",
    "document_index": 0,
    "document_title": None,
    "start_char_index": 0,
    "end_char_index": 1,
}


def body(*messages: Json, model: str = NEW, **config: Any) -> Json:
    return {"model": model, "max_tokens": 64, "messages": list(messages), "tools": [TOOL], **config}


def user(*blocks: Json | str) -> Json:
    return {"role": "user", "content": [text(b) if isinstance(b, str) else b for b in blocks]}


def assistant(*blocks: Json | str) -> Json:
    return {**user(*blocks), "role": "assistant"}


def system(*blocks: Json | str) -> Json:
    return {**user(*blocks), "role": "system"}


def text(value: str, **fields: Any) -> Json:
    return {"type": "text", "text": value, **fields}


def call(name: str = "a", /, **fields: Any) -> Json:
    return {"type": "tool_use", "id": name, "name": "look", "input": {}, **fields}


def result(name: str = "a", /, **fields: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": name, "content": "x", **fields}


def thinking(value: str = "hm", signature: str = "sig") -> Json:
    return {"type": "thinking", "thinking": value, "signature": signature}


def use(name: str = "srvtoolu_1", tool: str = "web_search") -> Json:
    return {"type": "server_tool_use", "id": name, "name": tool, "input": {}}


def found(name: str = "srvtoolu_1", /, **fields: Any) -> Json:
    return {"type": "web_search_tool_result", "tool_use_id": name, "content": [], **fields}


def search_result(*texts: str) -> Json:
    return {"type": "search_result", "source": "s", "title": "t", "content": [text(t) for t in texts]}


def ask(*blocks: Json | str, **config: Any) -> Json:
    return body(user(*blocks or ("hi",)), **config)


def answered(*blocks: Json | str, **config: Any) -> Json:
    """A whole exchange in which the assistant said `blocks`."""
    return body(user("hi"), assistant(*blocks), user("go on"), **config)


def tool_round(calls: Sequence[Json | str], *replies: Json | str, **config: Any) -> Json:
    return body(user("hi"), assistant(*calls), user(*replies), **config)


def pdf_media(media_type: str) -> Json:
    return {"type": "document", "source": {"type": "base64", "media_type": media_type, "data": "x"}}


def base64_image(media_type: str) -> Json:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": "x"}}


class Case(NamedTuple):
    """A body that is taken, one that differs by one edit and is not, and the rule and text it meets."""

    rule: str
    text: str
    good: Json
    bad: Json
    platform: str = "anthropic"


MANUAL = {"type": "enabled", "budget_tokens": 1024}
ADAPTIVE = {"type": "adaptive"}
DISABLED = {"type": "disabled"}

CASES = [
    # The shape
    Case("json-valid-utf8", "The request body is not valid JSON: no low surr", ask("x"), ask("\ud83d")),
    Case(
        "json-valid-utf8",
        "The request body is not valid JSON: Out of",
        ask(max_tokens=1),
        ask(max_tokens=float("nan")),
    ),
    Case(
        "required-field",
        "max_tokens: Field required",
        ask(),
        {k: v for k, v in ask().items() if k != "max_tokens"},
    ),
    Case(
        "required-field",
        "messages.0.content.0.tool_result.tool_use_id: Field required",
        tool_round([call()], result()),
        ask({"type": "tool_result"}),
    ),
    Case(
        "required-field",
        "tools.1.custom.input_schema: Field required",
        ask(tools=[TOOL, TOOL]),
        ask(tools=[TOOL, {"name": "x"}]),
    ),
    Case("required-field", "messages.0.content.0.type: Field required", ask("x"), ask({"text": "x"})),
    Case(
        "unknown-field-rejected",
        "messages.1.content.0.text.parsed_output: Extra inputs are not permitted",
        answered(text("x")),
        answered(text("x", parsed_output=None)),
    ),
    Case(
        "unknown-field-rejected",
        "messages.0.id: Extra inputs are not permitted",
        ask(),
        body({**user("hi"), "id": "msg_1"}),
    ),
    Case(
        "unknown-field-rejected",
        "messages.1.content.0.text.citations.0.char_location.file_id: Extra inputs",
        answered(text("x", citations=[CITATION])),
        answered(text("x", citations=[{**CITATION, "file_id": None}])),
    ),
    Case(
        "citation-fields",
        "messages.1.content.0.text.citations.0.char_location.document_title: Field required",
        answered(text("x", citations=[CITATION])),
        answered(text("x", citations=[{k: v for k, v in CITATION.items() if k != "document_title"}])),
    ),
    Case("sampling-params", "temperature: Extra inputs are not permitted", ask(), ask(temperature=1.0)),
    Case(
        "block-type-known",
        "messages.0.content.0: Input tag 'video' found using 'type' does not match any of the "
        "expected tags: 'text', 'image'",
        ask("x"),
        ask({"type": "video"}),
    ),
    Case(
        "role-enum",
        "messages.1.role: Unexpected role 'tool'",
        answered("x"),
        body(user("hi"), {**assistant("x"), "role": "tool"}, user("go on")),
    ),
    Case(
        "content-type",
        "messages.0.content: Input should be a valid string",
        body({"role": "user", "content": "x"}),
        body({"role": "user", "content": 7}),
    ),
    Case("content-type", "system: Input should be a valid string", ask(system="x"), ask(system=None)),
    Case("field-type", "max_tokens: Input should be a valid integer", ask(), ask(max_tokens="64")),
    Case(
        "field-value",
        "service_tier: Input should be 'auto' or 'standard_only'",
        ask(service_tier="auto"),
        ask(service_tier="fast"),
    ),
    Case(
        "tool-use-input-object",
        "messages.1.content.0.tool_use.input: Input should be a valid dictionary",
        tool_round([call()], result()),
        tool_round([call(input="{}")], result()),
    ),
    Case(
        "caller-shape",
        "messages.1.content.0.tool_use.caller: Input should be a valid dictionary",
        tool_round([call(caller={"type": "direct"})], result()),
        tool_round([call(caller=None)], result()),
    ),
    Case(
        "tool-result-content-types",
        "messages.2.content.0.tool_result.content.0: Input tag 'thinking' found",
        tool_round([call()], result(content=[text("x")])),
        tool_round([call()], result(content=[thinking()])),
    ),
    Case(
        "document-content-source-types",
        "messages.0.content.0.document.source.content.content.0: Input tag 'document'",
        ask({"type": "document", "source": {"type": "content", "content": [text("x")]}}),
        ask({"type": "document", "source": {"type": "content", "content": [DOCUMENT]}}),
    ),
    Case(
        "server-name-enum",
        "messages.1.content.0.server_tool_use.name: Input should be 'web_search', 'web_fetch'",
        answered(use(), found()),
        answered(use(tool="mail"), found()),
    ),
    Case(
        "image-media-type",
        "messages.0.content.0.image.source.base64.media_type: Input should be 'image/jpeg', "
        "'image/png', 'image/gif' or 'image/webp'",
        ask(base64_image("image/png")),
        ask(base64_image("image/tiff")),
    ),
    Case(
        "document-text-media",
        "messages.0.content.0.document.source.base64.media_type: Input should be",
        ask(pdf_media("application/pdf")),
        ask(pdf_media("text/html")),
    ),
    Case(
        "thinking-fields",
        "messages.1.content.0.thinking.signature: Field required",
        answered(thinking(), "x"),
        answered({"type": "thinking", "thinking": "hm"}, "x"),
    ),
    Case(
        "cache-not-on-thinking",
        "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted",
        answered(thinking(), "x"),
        answered({**thinking(), "cache_control": EPHEMERAL}, "x"),
    ),
    Case(
        "cache-not-on-citations",
        "messages.1.content.0.text.citations.0.char_location.cache_control: Extra",
        answered(text("x", citations=[CITATION])),
        answered(text("x", citations=[{**CITATION, "cache_control": EPHEMERAL}])),
    ),
    Case(
        "sysmsg-blocks",
        "messages.1: role 'system' supports text, tool_addition, and tool_removal blocks only",
        body(user("hi"), system("x")),
        body(user("hi"), system(WIRE_IMAGE)),
    ),
    Case(
        "sysmsg-clear-at",
        "messages.1.clear_at: Extra inputs are not permitted",
        body(user("hi"), system("x")),
        body(user("hi"), {**system("x"), "clear_at": "never"}),
    ),
    # The envelope
    Case("messages-nonempty", "messages: at least one message is required", ask(), body()),
    Case(
        "metadata-user-id",
        "metadata.user_id: String should have at most 512 characters",
        ask(metadata={"user_id": "x" * 512}),
        ask(metadata={"user_id": "x" * 513}),
    ),
    Case(
        "first-role-user",
        'messages: first message must use the "user" role',
        body(user("hi"), model=OLD),
        body(assistant("hi"), user("hi"), model=OLD),
        "bedrock",
    ),
    Case(
        "first-role-user",
        "A conversation must start with a user message.",
        body(user("hi"), model=OLD),
        body(assistant("hi"), user("hi"), model=OLD),
        "bedrock_converse",
    ),
    Case(
        "bedrock-alternation",
        'messages: roles must alternate between "user" and "assistant", but found multiple',
        ask("a", "b"),
        body(user("a"), user("b")),
        "bedrock",
    ),
    Case(
        "assistant-empty-allowed",
        "The content field in the Message object at messages.1 is empty.",
        answered("x"),
        answered(),
        "bedrock_converse",
    ),
    Case(
        "bedrock-blank-text",
        "The text field in the ContentBlock object at messages.0.content.1 is blank.",
        ask("x", "y"),
        ask("x", " "),
        "bedrock_converse",
    ),
    # Single fields
    Case(
        "tool-use-id-pattern",
        "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
        tool_round([call("call_0")], result("call_0")),
        tool_round([call("f:0")], result("f:0")),
    ),
    Case(
        "tool-use-name",
        "messages.1.content.0.tool_use.name: String should have at least 1 character",
        tool_round([call(name="gone")], result()),
        tool_round([call(name="")], result()),
    ),
    Case(
        "tool-use-name",
        "messages.1.content.0.tool_use.name: String should have at most 200 characters",
        tool_round([call(name="x" * 200)], result()),
        tool_round([call(name="x" * 201)], result()),
    ),
    Case(
        "tool-use-name",
        "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'",
        ask(tools=[{**TOOL, "name": "x" * 128}]),
        ask(tools=[{**TOOL, "name": "x" * 129}]),
    ),
    Case(
        "caller-shape",
        "messages.1.content.1.tool_use.caller.code_execution_20260120.tool_id: String should match",
        tool_round([use(tool="code_execution"), call(caller=CODE_CALLER)], result()),
        tool_round([use(tool="code_execution"), call(caller={**CODE_CALLER, "tool_id": "x"})], result()),
    ),
    Case(
        "server-id-pattern",
        "messages.1.content.0.server_tool_use.id: String should match pattern '^srvtoolu_",
        body(user("hi"), assistant(use("srvtoolu_1"))),
        body(user("hi"), assistant(use("srvtoolu-1"))),
    ),
    Case(
        "toolset-name-pattern",
        "messages.1.content.0.tool_use.toolset_name: String should match pattern",
        tool_round([call(toolset_name="browser")], result(toolset_name="browser")),
        tool_round([call(toolset_name="")], result(toolset_name="")),
    ),
    # Text and emptiness
    Case(
        "text-block-nonempty",
        "messages: text content blocks must be non-empty",
        answered("x", " "),
        answered("x", ""),
    ),
    Case(
        "text-block-nonempty",
        "system: text content blocks must be non-empty",
        ask(system=[text("x")]),
        ask(system=[text("")]),
    ),
    Case(
        "system-empty",
        "system: text content blocks must contain non-whitespace text",
        ask(system=""),
        ask(system=" "),
    ),
    Case(
        "turn-not-all-whitespace",
        "messages: text content blocks must contain non-whitespace text",
        answered(" ", "x"),
        answered(" "),
    ),
    Case(
        "user-content-nonempty",
        "messages.0: user messages must have non-empty content",
        ask("x"),
        body({"role": "user", "content": []}),
    ),
    Case(
        "text-citations-user-forbidden",
        "messages.0.content.0.text.citations: ",
        ask(text("x", citations=[])),
        ask(text("x", citations=[CITATION])),
    ),
    # Which block may stand where
    Case(
        "role-blocks-tool-use",
        "messages.0: `tool_use` blocks can only be in `assistant` messages",
        ask("x"),
        ask(call()),
    ),
    Case(
        "role-blocks-thinking",
        "messages.0.content: thinking blocks may only be in `assistant` messages",
        ask("x"),
        ask(thinking()),
    ),
    Case(
        "role-blocks-thinking",
        "messages.0.content: thinking blocks may only be in `assistant` messages",
        ask("x"),
        ask({"type": "redacted_thinking", "data": "x"}),
    ),
    Case(
        "role-blocks-server-tools",
        "messages.0: `server_tool_use` blocks can only be in `assistant` messages",
        ask("x"),
        ask(use()),
    ),
    Case(
        "role-blocks-server-tools",
        "messages.0: `web_search_tool_result` blocks can only be in `assistant` messages",
        ask("x"),
        ask(found()),
    ),
    Case(
        "role-blocks-tool-result",
        "messages.1: `tool_result` blocks can only be in `user` messages",
        answered("x"),
        answered(result()),
    ),
    Case(
        "role-blocks-search-result",
        "messages.1: `search_result` blocks can only be in `user` messages",
        answered("x"),
        answered(search_result("x")),
    ),
    Case(
        "role-blocks-image",
        "messages.1.content: 'image' blocks are not permitted within assistant turns",
        answered("x"),
        answered(WIRE_IMAGE),
    ),
    Case(
        "role-blocks-document",
        "messages.1.content: 'document' blocks are not permitted within assistant turns",
        answered("x"),
        answered(DOCUMENT),
    ),
    # What results hold
    Case(
        "search-result-content",
        "messages.0.content.0.search_result.content: ",
        ask(search_result("x")),
        ask(search_result()),
    ),
    Case(
        "search-result-content",
        "messages.2.content.0.tool_result.content.0.search_result.content: ",
        tool_round([call()], result(content=[search_result("x", "y")])),
        tool_round([call()], result(content=[search_result("x", "")])),
    ),
    Case(
        "tool-result-search-homogeneous",
        "messages.2.content.0.tool_result: ",
        tool_round([call()], result(content=[search_result("x")])),
        tool_round([call()], result(content=[search_result("x"), text("x")])),
    ),
    Case(
        "tool-result-error-text-only",
        "messages.2.content.0.tool_result: all content must be type `text` if `is_error` is true",
        tool_round([call()], result(content=[WIRE_IMAGE])),
        tool_round([call()], result(content=[WIRE_IMAGE], is_error=True)),
    ),
    Case(
        "tool-result-error-toolset-nonempty",
        "messages.2.content.0.tool_result: ",
        tool_round([call(toolset_name="browser")], result(toolset_name="browser", is_error=True)),
        tool_round([call(toolset_name="browser")], result(toolset_name="browser", is_error=True, content="")),
    ),
    # Messages of role system
    Case(
        "sysmsg-models",
        "messages.1: role 'system' is not supported on this model",
        body(user("hi"), system("x")),
        body(user("hi"), system("x"), model="claude-sonnet-5"),
    ),
    Case(
        "sysmsg-not-first",
        "messages.0: use the top-level 'system' parameter for the initial system prompt; the",
        body(assistant("x"), user("hi")),
        body(system("x"), assistant("x"), user("hi")),
    ),
    Case(
        "sysmsg-after",
        "messages.2: role 'system' must follow a 'user' message or an 'assistant' message ending",
        body(user("hi"), assistant(use(), found()), system("x")),
        body(user("hi"), assistant(use(), found(), "x"), system("x")),
    ),
    Case(
        "sysmsg-before",
        "messages.2: role 'system' must precede an 'assistant' message or end the array; the",
        body(user("hi"), system("x"), system("x")),
        body(user("hi"), system("x"), system("x"), user("hi")),
    ),
    Case(
        "sysmsg-nonempty",
        "messages.1: system content must contain at least one block",
        body(user("hi"), system("x")),
        body(user("hi"), system()),
    ),
    Case(
        "sysmsg-not-between-use-and-result",
        "messages.1: `tool_use` ids were found without `tool_result` blocks",
        body(user("hi"), assistant(call()), user(result()), system("x")),
        body(user("hi"), assistant(call()), system("x"), user(result())),
    ),
    # Client calls and results
    Case(
        "tool-use-answered-next",
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately "
        "after: b. Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
        tool_round([call("a"), call("b")], result("a"), result("b")),
        tool_round([call("a"), call("b")], result("a")),
    ),
    Case(
        "tool-use-answered-next",
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: a, b.",
        tool_round([call("a"), call("b")], result("b"), result("a")),
        tool_round([call("a"), call("b")], "stop"),
    ),
    Case(
        "tool-use-tail-open",
        "messages.1: `tool_use` ids were found without `tool_result` blocks",
        tool_round([call()], result()),
        body(user("hi"), assistant(call())),
    ),
    Case(
        "tool-result-has-use",
        "messages.2.content.1: unexpected `tool_use_id` found in `tool_result` blocks: b.",
        tool_round([call("a")], result("a")),
        tool_round([call("a")], result("a"), result("b")),
    ),
    Case(
        "server-id-not-answered-by-user",
        "messages.2.content.0: unexpected `tool_use_id` found in `tool_result`",
        tool_round([use(), found(), "x"], "x"),
        tool_round([use(), found(), "x"], result("srvtoolu_1")),
    ),
    Case(
        "tool-result-once",
        "messages.2.content.1: each tool_use must have a single result. Found multiple "
        "`tool_result` blocks with id: a",
        tool_round([call()], result()),
        tool_round([call()], result(), result()),
    ),
    Case(
        "tool-result-first",
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: a",
        tool_round([call()], result(), "x"),
        tool_round([call()], "x", result()),
    ),
    Case(
        "tool-use-id-unique",
        "messages.3.content.0: `tool_use` ids must be unique",
        body(user("hi"), assistant(call("a")), user(result("a")), assistant(call("b")), user(result("b"))),
        body(user("hi"), assistant(call("a")), user(result("a")), assistant(call("a")), user(result("a"))),
    ),
    Case(
        "tools-must-be-declared",
        "Requests which include `tool_use` or `tool_result` blocks must define tools.",
        tool_round([call(name="other")], result()),
        tool_round([call()], result(), tools=[]),
    ),
    Case(
        "toolset-name-echo",
        "messages.2.content.0.tool_result.toolset_name: ",
        tool_round([call(toolset_name="browser")], result(toolset_name="browser")),
        tool_round([call(toolset_name="browser")], result()),
    ),
    Case(
        "toolset-name-echo",
        "messages.2.content.0.tool_result.toolset_name: ",
        tool_round([call(toolset_name=None)], result()),
        tool_round([call()], result(toolset_name="browser")),
    ),
    Case(
        "ptc-reply-only-results",
        "messages.2: ",
        tool_round([use(tool="code_execution"), call(caller=CODE_CALLER)], result()),
        tool_round([use(tool="code_execution"), call(caller=CODE_CALLER)], result(), "x"),
    ),
    Case(
        "ptc-result-text-only",
        "messages.2.content.0.tool_result.content: ",
        tool_round([use(tool="code_execution"), call(caller=CODE_CALLER)], result(content=[text("x")])),
        tool_round([use(tool="code_execution"), call(caller=CODE_CALLER)], result(content=[WIRE_IMAGE])),
    ),
    # Server tools
    Case(
        "server-result-has-use",
        "messages.1.content.0: unexpected `tool_use_id` found in `web_search_tool_result` "
        "blocks: srvtoolu_1. Each `web_search_tool_result` block must have",
        answered(use(), found()),
        answered(found()),
    ),
    Case(
        "server-result-type",
        "messages.1.content.1: unexpected `tool_use_id` found in `web_search_tool_result`",
        answered(use(), found()),
        answered(use(tool="web_fetch"), found()),
    ),
    Case(
        "server-use-has-result",
        "messages.1: `web_search` tool use with id `srvtoolu_1` was found without a "
        "corresponding `web_search_tool_result` block",
        answered(use(), found(), "x"),
        answered(use(), "x"),
    ),
    Case(
        "pause-turn-verbatim",
        "messages.1: `web_search` tool use with id `srvtoolu_1` was found without",
        body(user("hi"), assistant("x", use())),
        body(user("hi"), assistant("x", use()), user("well?")),
    ),
    Case(
        "mixed-turn-reply",
        "messages.1: `web_search` tool use with id `srvtoolu_1` was found without",
        tool_round([use(), call()], result()),
        tool_round([use(), call()], result(), "x"),
    ),
    Case(
        "server-result-has-use",
        "messages.3.content.0: unexpected `tool_use_id`",
        body(user("hi"), assistant(use(), call()), user(result()), assistant(found(), "x"), user("ok")),
        body(user("hi"), assistant("x", call()), user(result()), assistant(found(), "x"), user("ok")),
    ),
    # Thinking
    Case(
        "thinking-empty-and-unsigned",
        "messages.1.content.0.thinking: each thinking block must contain thinking",
        answered(thinking("", "sig"), "x"),
        answered(thinking("", ""), "x"),
    ),
    Case(
        "thinking-signature-valid",
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        answered(thinking("hm", "sig"), "x"),
        answered(thinking("hm", ""), "x"),
    ),
    Case(
        "thinking-not-last",
        "messages.2: The final block in an assistant message cannot be `thinking`.",
        body(user("hi"), assistant(thinking()), assistant("x"), user("hi")),
        body(user("hi"), assistant("x"), assistant(thinking()), user("hi")),
    ),
    Case(
        "thinking-first-when-manual",
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`.",
        tool_round([thinking(), text("x"), call()], result(), model=OLD, thinking=MANUAL),
        tool_round([text("x"), call()], result(), model=OLD, thinking=MANUAL),
    ),
    Case(
        "thinking-config-by-model",
        '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adap',
        ask(model=MIDDLE, thinking=MANUAL),
        ask(model="claude-opus-4-7", thinking=MANUAL),
    ),
    Case(
        "thinking-config-by-model",
        "adaptive thinking is not supported on this model",
        ask(model=MIDDLE, thinking=ADAPTIVE),
        ask(model=OLD, thinking=ADAPTIVE),
    ),
    Case(
        "thinking-config-by-model",
        '"thinking.type.disabled" is not supported for this model.',
        ask(model="claude-opus-5", thinking=DISABLED),
        ask(model="claude-opus-5-5", thinking=DISABLED),
    ),
    Case(
        "thinking-config-by-model",
        '"thinking.type.between_tools" is not supported for this model.',
        ask(model="claude-sonnet-5-5", thinking={"type": "between_tools"}),
        ask(model="claude-sonnet-5", thinking={"type": "between_tools"}),
    ),
    Case(
        "thinking-config-by-model",
        '"thinking.type.disabled" is not supported for this model.',
        ask(thinking=DISABLED, output_config={"effort": "high"}),
        ask(thinking=DISABLED, output_config={"effort": "max"}),
    ),
    Case(
        "tool-choice-forced-thinking",
        "Thinking may not be enabled when tool_choice forces tool use.",
        ask(model=OLD, thinking=MANUAL, tool_choice={"type": "auto"}),
        ask(model=OLD, thinking=MANUAL, tool_choice={"type": "any"}),
    ),
    Case(
        "tool-choice-forced-thinking",
        'tool_choice: type "tool" and "any" are not supported for this model.',
        ask(tool_choice={"type": "any"}),
        ask(tool_choice={"type": "any"}, model="claude-fable-5-2"),
    ),
    # The end
    Case(
        "prefill-unsupported",
        "This model does not support assistant message prefill. The conversation must end",
        body(user("hi"), assistant("x"), model=OLD),
        body(user("hi"), assistant("x"), model=MIDDLE),
    ),
    Case(
        "final-assistant-trailing-whitespace",
        "messages: final assistant content cannot end with trailing whitespace",
        body(user("hi"), assistant("x"), model=OLD),
        body(user("hi"), assistant("x "), model=OLD),
    ),
    Case(
        "prefill-with-thinking",
        "messages.1: ",
        body(user("hi"), assistant("x"), model=OLD),
        body(user("hi"), assistant("x"), model=OLD, thinking=MANUAL),
    ),
    Case(
        "prefill-with-thinking",
        "messages.1.content.0: When thinking is disabled, an `assistant` message in the",
        body(user("hi"), assistant("x"), model=OLD),
        body(user("hi"), assistant(thinking(), "x"), model=OLD),
    ),
    # Cache markers
    Case(
        "cache-max-4",
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
        ask(*[text("x", cache_control=EPHEMERAL)] * 4),
        ask(*[text("x", cache_control=EPHEMERAL)] * 5),
    ),
    Case(
        "cache-max-4",
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
        ask(*[text("x", cache_control=EPHEMERAL)] * 3, cache_control=EPHEMERAL),
        ask(*[text("x", cache_control=EPHEMERAL)] * 4, cache_control=EPHEMERAL),
    ),
    Case(
        "cache-auto-slot",
        "cache_control: the last block has a marker with a different ttl",
        ask(text("x", cache_control=HOUR), cache_control=HOUR),
        ask(text("x", cache_control=HOUR), cache_control=EPHEMERAL),
    ),
    Case(
        "cache-auto-slot",
        "cache_control: Extra inputs are not permitted",
        ask(text("x", cache_control=EPHEMERAL)),
        ask("x", cache_control=EPHEMERAL),
        platform="bedrock",
    ),
    Case(
        "deferred-no-cache-control",
        "tools.1: a tool cannot have both defer_loading=true and cache_control set",
        ask("x", tools=[{**TOOL, "cache_control": EPHEMERAL}, {**TOOL, "name": "b", "defer_loading": True}]),
        ask(
            "x",
            tools=[TOOL, {**TOOL, "name": "b", "defer_loading": True, "cache_control": EPHEMERAL}],
        ),
    ),
    Case(
        "cache-ttl-order",
        "messages.0.content.0.cache_control.ttl: a ttl='1h' cache_control block must not come after",
        ask(text("x", cache_control=HOUR), system=[text("x", cache_control=HOUR)]),
        ask(text("x", cache_control=HOUR), system=[text("x", cache_control=EPHEMERAL)]),
    ),
    Case(
        "cache-not-on-empty-text",
        "messages.2.content.0.tool_result.content.0.text: cache_control cannot be set for",
        tool_round([call()], result(content=[text("")])),
        tool_round([call()], result(content=[text("", cache_control=EPHEMERAL)])),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_each_rule_takes_one_body_and_refuses_a_neighbour(case: Case) -> None:
    assert judge(case.good, platform=case.platform) == []
    faults = judge(case.bad, platform=case.platform)
    assert {fault.rule for fault in faults} == {case.rule}
    assert faults[0].message.startswith(case.text)


ACCEPTED = {
    "text as a string": body({"role": "user", "content": "hi"}),
    "an assistant message first": body(assistant("x"), user("hi")),
    "an empty assistant message": answered(),
    "an empty assistant string": body(user("hi"), {"role": "assistant", "content": ""}, user("go on")),
    "repeated roles": body(user("a"), user("b"), assistant("x"), assistant("y"), user("c")),
    "text after a call": tool_round([call(), text("x")], result()),
    "results in another order": tool_round([call("a"), call("b")], result("b"), result("a")),
    "results split over messages": body(
        user("hi"), assistant(call("a"), call("b")), user(result("a")), user(result("b"))
    ),
    "calls split over messages": body(
        user("hi"), assistant(call("a")), assistant(call("b")), user(result("a"), result("b"))
    ),
    "text after results": tool_round([call()], result(), "and now?"),
    "a null result": tool_round([call()], result(content=None)),
    "an empty result": tool_round([call()], result(content=[text("")])),
    "a result without content": tool_round([call()], {"type": "tool_result", "tool_use_id": "a"}),
    "null citations": answered(text("x", citations=None)),
    "a null marker": ask(text("x", cache_control=None)),
    "empty thinking with a signature": answered(thinking("", "sig"), "x"),
    "thinking between calls": tool_round(
        [thinking(), call("a"), thinking(), call("b")], result("a"), result("b")
    ),
    "no thinking in adaptive mode": tool_round([call()], result(), thinking=ADAPTIVE),
    "no thinking in a later message of a loop": body(
        user("hi"),
        assistant(thinking(), call("a")),
        user(result("a")),
        assistant(call("b")),
        user(result("b")),
        model=OLD,
        thinking=MANUAL,
    ),
    "no thinking in an earlier loop": body(
        user("hi"),
        assistant(call("a")),
        user(result("a")),
        assistant("x"),
        user("b"),
        model=OLD,
        thinking=MANUAL,
    ),
    "a call under way while a server works": body(
        user("hi"), assistant(use(), call()), user(result()), assistant(found(), "x"), user("go on")
    ),
    "several rounds inside one code execution": body(
        user("hi"),
        assistant(use(tool="code_execution"), call("a", caller=CODE_CALLER)),
        user(result("a")),
        assistant(call("b", caller=CODE_CALLER)),
        user(result("b")),
    ),
    "a resumed pause": body(user("hi"), assistant(use()), assistant(found(), "x"), user("go on")),
    "a pause to resume": body(user("hi"), assistant("x", use(), found(), "y")),
    "a server call in a name of another platform": body(user("hi"), model="us.anthropic.claude-opus-5-v1:0"),
    "a custom tool with its type": ask(tools=[{**TOOL, "type": "custom"}]),
    "a custom tool with a null type": ask(tools=[{**TOOL, "type": None}]),
    "a server tool": ask(tools=[{"type": "web_search_20260318", "name": "web_search"}]),
    "free JSON": ask(tools=[{"name": "x", "input_schema": {"type": "object", "x-own": [None, {"a": 1.5}]}}]),
    "streaming": ask(stream=True),
}


@pytest.mark.parametrize("taken", ACCEPTED.values(), ids=ACCEPTED)
def test_what_is_often_wrongly_refused_is_taken(taken: Json) -> None:
    assert judge(taken) == []


@pytest.mark.parametrize(
    ("model", "prefill", "system_role", "manual"),
    [
        ("claude-3-haiku-20240307", True, False, True),
        ("claude-3-7-sonnet-20250219", True, False, True),
        ("claude-sonnet-4-20250514", True, False, True),
        ("claude-opus-4-1@20250805", True, False, True),
        ("eu.anthropic.claude-sonnet-4-5-20250929-v1:0", True, False, True),
        ("anthropic.claude-opus-4-6-v1:0", False, False, True),
        ("claude-opus-4-7", False, False, False),
        ("claude-opus-4-8", False, True, False),
        ("claude-mythos-preview", False, False, True),
        ("claude-sonnet-5", False, False, False),
        ("claude-opus-5", False, True, False),
        ("claude-fable-5-1", False, True, False),
        ("something-of-tomorrow", False, True, False),
    ],
)
def test_facts_of_models(model: str, *, prefill: bool, system_role: bool, manual: bool) -> None:
    assert (judge(body(user("hi"), assistant("x"), model=model)) == []) is prefill
    assert (judge(body(user("hi"), system("x"), model=model)) == []) is system_role
    assert (judge(ask(model=model, thinking=MANUAL)) == []) is manual


def test_rules_of_a_version_of_the_api_hold_on_the_anthropic_platform_alone() -> None:
    cited = body(user(text("x", citations=[CITATION])), assistant(DOCUMENT), user("go on"))
    rules = {fault.rule for fault in judge(cited)}
    assert rules == {"text-citations-user-forbidden", "role-blocks-document"}
    assert judge(cited, platform="vertex") == []


def test_an_empty_message_behind_a_server_call_under_way() -> None:
    faults = judge(body(user("hi"), assistant(use(), call()), user(result()), assistant(), user("ok")))
    assert [fault.rule for fault in faults] == ["server-use-has-result"]


def test_too_many_messages() -> None:
    many = judge(body(*[{"role": "user", "content": "x"}] * 100_001))
    assert [fault.rule for fault in many] == ["messages-max-100k"]


ODD: list[Any] = [
    None,
    7,
    "x",
    [],
    {},
    b"{}",
    body(),
    {**ask(), "messages": [None]},
    {**ask(), "messages": {}},
    {**ask(), "messages": None},
    {**ask(), "messages": [[]]},
    body({"role": "user", "content": 7}),
    body({"role": ["user"], "content": "x"}),
    body({"role": "user", "content": [[]]}),
    body({"role": "user", "content": [{"type": ["text"], "text": "x"}]}),
    ask(tools=[{}]),
    ask(tools={}),
    ask(max_tokens=float("inf")),
    ask(max_tokens=10**5000),
    ask(metadata={"user_id": {1, 2}}),
]


@pytest.mark.parametrize("odd", ODD)
def test_odd_values_are_judged_without_an_exception(odd: object) -> None:
    assert len(judge(odd)) == 1


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_deep_nesting() -> None:
    deep = nested(100_000)
    bodies = [
        deep,
        {**ask(), "messages": deep},
        ask({"type": deep}),
        tool_round([call(input={"x": deep})], result()),
    ]
    assert [judge(each)[0].rule for each in bodies] == ["json-valid-utf8"] * 4
    assert judge(tool_round([call(input={"x": nested(100)})], result())) == []


POOL = [
    text("x"),
    text(""),
    thinking(),
    call("a"),
    call("b", caller=CODE_CALLER),
    result("a"),
    result("b", content=[text("x")]),
    use(),
    found(),
    DOCUMENT,
    search_result("x"),
]
ROLES = st.sampled_from(["user", "assistant", "system", "tool", None])
ODD_CONTENT: list[Any] = ["x", "", None, {}, [None]]
CONTENTS = st.lists(st.sampled_from(POOL), max_size=4) | st.sampled_from(ODD_CONTENT)
MESSAGES: st.SearchStrategy[Json] = st.fixed_dictionaries({"role": ROLES, "content": CONTENTS})


@given(st.lists(MESSAGES, max_size=6), st.sampled_from([OLD, NEW]), st.sampled_from([MANUAL, ADAPTIVE]))
def test_any_mix_of_blocks_is_judged_without_an_exception(
    messages: list[Json], model: str, mode: Json
) -> None:
    for platform in ("anthropic", "bedrock_converse"):
        faults = judge(body(*messages, model=model, thinking=mode), platform=platform)
        assert all(fault.rule and fault.message for fault in faults)


def seconds(rounds: int) -> float:
    messages = [user("hi")]
    for index in range(rounds):
        messages += [assistant(use(f"srvtoolu_{index}"), call(f"c{index}")), user(result(f"c{index}"))]
    started = time.process_time()
    assert judge(body(*messages)) == []
    return time.process_time() - started


def test_one_loop_of_many_rounds_is_judged_in_linear_time() -> None:
    seconds(1)
    assert seconds(4_000) < 8 * seconds(1_000)


def test_the_schema_is_closed_and_valid_for_any_validator() -> None:
    schema = request_schema()
    plain: Any = jsonschema.Draft202012Validator(schema)
    plain.check_schema(schema)
    assert plain.is_valid(tool_round([thinking(), call()], result(content=[search_result("x")])))
    assert not plain.is_valid(answered(text("x", parsed_output=None)))
    assert all(part.get("additionalProperties") is False for part in objects(schema) if "properties" in part)
    assert "workspace_id" not in schema["properties"]


def objects(schema: Json) -> Iterator[Json]:
    yield schema
    for inner in [*schema.get("properties", {}).values(), *schema.get("anyOf", []), *schema.get("oneOf", [])]:
        yield from objects(inner)
    if "items" in schema:
        yield from objects(schema["items"])


# The server


def client(server: MessagesServer, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="any", **options)


def say(api: Any, *messages: Any, **config: Any) -> anthropic.types.Message:
    said: Any = messages or [{"role": "user", "content": "hi"}]
    message: anthropic.types.Message = api.messages.create(model=NEW, max_tokens=64, messages=said, **config)
    return message


def post(
    server: MessagesServer, raw: bytes, path: str = "/v1/messages", key: str | None = "any"
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]))
    try:
        connection.request("POST", path, raw, {"x-api-key": key} if key else {})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_a_tool_loop_through_the_real_client() -> None:
    script = [[thinking(), call("toolu_1", input={"q": 1})], [text("done")]]
    with MessagesServer(script) as server, client(server) as api:
        first = say(api, tools=[TOOL])
        assert (first.stop_reason, first.model, first.content[1].type) == ("tool_use", NEW, "tool_use")
        history = [{"role": "user", "content": "hi"}, first.to_param(), user(result("toolu_1"))]
        second = say(api, *history, tools=[TOOL])
        assert (second.stop_reason, second.usage.output_tokens) == ("end_turn", 1)
        assert first.id != second.id
    assert [len(seen["messages"]) for seen in server.requests] == [1, 3]
    assert server.requests[1]["messages"][1]["content"][1]["input"] == {"q": 1}
    assert json.loads(server.bodies[0]) == server.requests[0]
    assert server.requests[0] is not server.requests[0]


def test_a_refused_request_takes_no_reply_and_names_its_fault() -> None:
    with MessagesServer([[text("x")]]) as server, client(server) as api:
        with pytest.raises(anthropic.BadRequestError) as caught:
            say(api, user(call()), tools=[TOOL])
        error = caught.value.body
        assert isinstance(error, dict)
        assert error["type"] == "error"
        assert error["error"] == {
            "type": "invalid_request_error",
            "message": "messages.0: `tool_use` blocks can only be in `assistant` messages",
        }
        assert error["request_id"] == caught.value.request_id
        assert say(api).content[0].type == "text"
        assert len(server.requests) == 2


def test_replies_of_every_kind() -> None:
    def echo(request: Json) -> list[Json]:
        return [text(request["messages"][0]["content"])]

    def overloaded(_: Json) -> ApiError:
        return ApiError(529, "overloaded_error", "Overloaded")

    whole: Json = {"id": "msg_own", "content": [], "stop_reason": "refusal", "container": None}
    script: list[ScriptedReply] = [
        echo,
        whole,
        ({"type": "connector_text", "x": None},),
        overloaded,
        ApiError(403, "permission_error", "no"),
    ]
    with MessagesServer(script) as server, client(server, max_retries=0) as api:
        assert say(api).content[0].to_dict() == text("hi")
        refused = say(api)
        assert (refused.id, refused.stop_reason, refused.model) == ("msg_own", "refusal", NEW)
        assert say(api).content[0].to_dict() == {"type": "connector_text", "x": None}
        with pytest.raises(anthropic.APIStatusError, match="Overloaded") as caught:
            say(api)
        assert caught.value.status_code == 529
        with pytest.raises(anthropic.PermissionDeniedError, match="no"):
            say(api)


def test_the_client_tries_again_after_an_error_of_the_script_only() -> None:
    script: list[ScriptedReply] = [ApiError(529, "overloaded_error", "Overloaded"), [text("x")]]
    with MessagesServer(script) as server, client(server) as api:
        assert say(api).stop_reason == "end_turn"
        with pytest.raises(anthropic.InternalServerError, match="the script has no reply left"):
            say(api)
        assert len(server.requests) == 3


def test_a_failing_script_is_told_to_the_client() -> None:
    def fails(request: Json) -> list[Json]:
        raise KeyError(request["model"])

    with MessagesServer([fails, [{"type": "text", "text": b"x"}], [{}]]) as server, client(server) as api:
        with pytest.raises(
            anthropic.InternalServerError, match="the script failed: KeyError: 'claude-opus-5'"
        ):
            say(api)
        with pytest.raises(anthropic.InternalServerError, match="the script failed: TypeError"):
            say(api)
        assert say(api).stop_reason == "end_turn"
        assert len(server.requests) == 3


def test_requests_that_never_reach_the_judge() -> None:
    good = json.dumps(ask()).encode()
    with MessagesServer([[text("x")]] * 2) as server:
        assert post(server, good)[0] == 200
        assert post(server, good, "/v1/messages?beta=true")[0] == 200
        status, error = post(server, good, "/v1/complete")
        assert (status, error["type"], error["error"]["type"]) == (404, "error", "not_found_error")
        status, error = post(server, good, key=None)
        assert (status, error["error"]["type"]) == (401, "authentication_error")
        status, error = post(server, b" " * (32 * 2**20 + 1))
        assert (status, error["error"]["type"]) == (413, "request_too_large")
        assert len(server.bodies) == 3


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff",
        b'{"a": NaN}',
        b'{"a": "\\ud83d"}',
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a": ' + b"9" * 5_000 + b"}",
    ],
    ids=len,
)
def test_what_is_not_json_is_refused(raw: bytes) -> None:
    with MessagesServer() as server:
        status, error = post(server, raw)
    assert status == 400
    assert error["error"]["message"].startswith("The request body is not valid JSON: ")
    assert server.bodies == (raw,)


def test_repeated_keys_are_no_fault() -> None:
    raw = json.dumps(ask()).replace('"max_tokens": 64', '"max_tokens": 1, "max_tokens": 64').encode()
    with MessagesServer([[text("x")]]) as server:
        assert post(server, raw)[0] == 200


def test_many_threads_get_each_reply_once() -> None:
    script = ([text(str(index))] for index in range(64))
    with (
        MessagesServer(script) as server,
        client(server) as api,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        messages = list(pool.map(say, [api] * 64))
    assert {getattr(message.content[0], "text", None) for message in messages} == {str(n) for n in range(64)}
    assert len({message.id for message in messages}) == 64


def test_the_platform_decides_the_rules() -> None:
    with (
        MessagesServer([[text("x")]], platform="bedrock") as server,
        client(server) as api,
        pytest.raises(anthropic.BadRequestError, match="roles must alternate"),
    ):
        say(api, user("a"), user("b"))


def ask_again(connection: http.client.HTTPConnection) -> None:
    connection.request("POST", "/v1/messages", "{}")
    connection.getresponse()


def test_the_server_lives_as_long_as_its_with_statement() -> None:
    server = MessagesServer([[text("x")], [text("y")]])
    with pytest.raises(RuntimeError, match="with statement"):
        _ = server.url
    with server:
        assert post(server, json.dumps(ask()).encode())[0] == 200
        idle = http.client.HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]))
        idle.request("POST", "/v1/messages", json.dumps(ask()), {"x-api-key": "any"})
        assert idle.getresponse().read()
        started = time.monotonic()
    assert time.monotonic() - started < 2
    with contextlib.closing(idle), pytest.raises((ConnectionError, http.client.HTTPException)):
        ask_again(idle)
    with pytest.raises(RuntimeError, match="with statement"):
        _ = server.url
