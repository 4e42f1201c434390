"""Where a payload goes, and what holds only there: facts about models and platforms, and the rules made of them.

Facts are rows of two tables. A rule of a target is a row too: a trait of turns that it is about, the fact that forbids
it, and what to say. Nothing here is a branch in the core.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast, final

import attrs

from ..blocks import Text
from ..conversation import AwaitingModel, AwaitingTools, AwaitingUser, Conversation
from ..edits import PREFIX_BOUND
from ..errors import BUILT, Place, Rule, ValidationError, Violation, quoted
from ..fields import FIELD_TYPE, FIELD_VALUE, Choice, Json, described, require
from ..jsonvalue import JsonObject, freeze, is_text
from ..log import Thinker, thinker
from ..machine import Calls, Phase, State
from ..shapes import Tagged
from ..shapes import faults as shape_faults
from ..turns import SIGNED, THOUGHTS, cites, has_long_id, is_blank, is_mute_error
from .cache import CACHE_AUTO, CachePolicy

if TYPE_CHECKING:
    from anthropic.types import ThinkingConfigParam

_THINKING = Tagged(("thinking:enabled", "thinking:adaptive", "thinking:disabled", "thinking:between_tools"))

OnStale: TypeAlias = Literal["refuse", "drop_block"]
_BINDING_BETA = "thinking-binding-controls-2026-08-01"
_BINDABLE = ("adaptive", "enabled")
"""The thinking configurations that have `block_binding`, by the SDK's beta parameters."""

# ---------------------------------------------------------------- facts


class Platform(NamedTuple):
    """What is known of one platform."""

    vendor: str = "anthropic"
    """Whose signatures its models can read."""
    repeats_roles: bool = True
    """Takes several turns of one party in a row, and an assistant turn first."""
    version_2026_10_21: bool = False
    """Enforces the rules that came with this API version."""
    server_tools: frozenset[str] | None = None
    """The server tools whose blocks it takes; None for all."""
    blank_text: bool = True
    """Takes text that is only whitespace, and empty assistant turns."""
    short_ids: bool = False
    """Takes ids of calls of at most 64 characters."""
    mute_errors: bool = True
    """Takes error results without text."""
    document_needs_text: bool = False
    """Refuses a message with a document and no text."""
    automatic_marker: bool = False
    """Takes a cache marker of the request's own."""
    binds_prefix: bool = True
    """Lets models check what stands before thinking."""


_SEARCHES = frozenset({"tool_search_tool_regex", "tool_search_tool_bm25"})
PLATFORMS: Mapping[str, Platform] = {
    "anthropic": Platform(version_2026_10_21=True, automatic_marker=True),
    # Claude in Amazon Bedrock: user first and alternating (anthropic-sdk-typescript issue 622), no web search.
    "bedrock": Platform(repeats_roles=False, server_tools=_SEARCHES),
    # Converse besides: no blank text, ids of at most 64 characters, text in errors and beside documents (AWS API
    # reference).
    "bedrock_converse": Platform(
        repeats_roles=False,
        server_tools=frozenset(),
        blank_text=False,
        short_ids=True,
        mute_errors=False,
        document_needs_text=True,
    ),
    "vertex": Platform(server_tools=_SEARCHES | {"web_search"}),
    "foundry": Platform(version_2026_10_21=True, automatic_marker=True),
    "openrouter": Platform(binds_prefix=False, automatic_marker=True),  # OpenRouter's page on Opus 5.5
    # Anthropic-compatible endpoints of other vendors: their thinking is theirs, server tools are unknown to them.
    "deepseek": Platform(vendor="deepseek", server_tools=frozenset(), blank_text=False),
    "kimi": Platform(vendor="kimi", server_tools=frozenset(), blank_text=False),
    "minimax": Platform(vendor="minimax", server_tools=frozenset(), blank_text=False),
    "glm": Platform(vendor="glm", server_tools=frozenset(), blank_text=False),
}
"""Platforms by name. Sources: the platform pages of the API documentation and the AWS API reference."""


_READ_BY_ITS_KIND = r"(fable|mythos)-5-[2-9]"
"""Families whose thinking only they themselves read."""


class Model(NamedTuple):
    """What is known of one family of models."""

    pattern: str
    """Which names belong to it, platform prefixes and date suffixes aside."""
    thinking: frozenset[str]
    """The types of thinking configuration it takes."""
    prefill: bool = False
    """Lets the last message be the beginning of its answer."""
    system_turns: bool = False
    """Takes system turns in mid-conversation."""
    prefix_bound: bool = False
    """Checks that what stands before a thinking block is what stood there when it was made."""
    cannot_read: str = _READ_BY_ITS_KIND
    """Families whose thinking the service drops for it."""
    cannot_read_elsewhere: str = ""
    """Families whose thinking the service drops for it on other platforms than its own."""
    account_bound: bool = False
    """Its thinking is dropped outside the account that it was made for, and those linked with it."""


_MANUAL = frozenset({"enabled", "disabled"})
_ADAPTIVE = frozenset({"adaptive"})
MODELS: tuple[Model, ...] = (
    Model(r"(fable|mythos)-5-[2-9]", _ADAPTIVE, system_turns=True, prefix_bound=True, cannot_read=""),
    Model(
        r"(fable|mythos)-5-1",
        _ADAPTIVE,
        system_turns=True,
        prefix_bound=True,
        cannot_read_elsewhere=r"opus-5-5",
    ),
    Model(r"(fable|mythos)-5", _ADAPTIVE, system_turns=True),
    Model(
        r"opus-5-5",
        _ADAPTIVE,
        system_turns=True,
        prefix_bound=True,
        cannot_read=r"(fable|mythos)-5-[1-9]",
    ),
    Model(
        r"sonnet-5-5",
        _ADAPTIVE | {"between_tools"},
        system_turns=True,
        prefix_bound=True,
        account_bound=True,
    ),
    Model(
        r"haiku-5-5",
        _ADAPTIVE | {"disabled"},
        system_turns=True,
        prefix_bound=True,
        cannot_read=r"(?!haiku-5-5).*",
        account_bound=True,
    ),
    Model(r"opus-5", _ADAPTIVE | {"disabled"}, system_turns=True, cannot_read=r"(fable|mythos)-5-[1-9]"),
    Model(r"sonnet-5", _ADAPTIVE | {"disabled"}),
    Model(r"opus-4-8", _ADAPTIVE | {"disabled"}, system_turns=True),
    Model(r"opus-4-7|mythos-preview", _ADAPTIVE | {"disabled"}),
    Model(r"(opus|sonnet)-4-6", _ADAPTIVE | _MANUAL),
    Model(r"(opus|sonnet|haiku)-4(-[0-5])?|3.*|2.*|instant.*", _MANUAL, prefill=True),
)
"""Families of models, the first that matches. Sources: the API documentation's pages on errors (prefill), thinking,
preserved thinking and mid-conversation system messages, and the migration guides of Opus 5.5 and Haiku 5.5. Whether
Sonnet 5.5 and Haiku 5.5 take system turns is not documented; they are not refused. Nor is whose thinking each model reads,
beyond what stands here."""
NEWEST = Model("", _ADAPTIVE, system_turns=True, prefix_bound=True, cannot_read="")
"""What an unknown model is taken for: the newest family."""
FOREIGN_MODEL = Model("", _ADAPTIVE | _MANUAL, prefill=True)
"""What a model of another vendor is taken for."""

_NAME = re.compile(r"claude-(.+?)(?:[-@]20\d{6})?(?:-v\d+(?::\d+)?)?(?:@.*|:.*)?$")


@lru_cache(maxsize=128)
def model_facts(model: str, platform: Platform) -> Model:
    """The row of `MODELS` that a model name belongs to."""
    if platform.vendor != "anthropic":
        return FOREIGN_MODEL
    return next((row for row in MODELS if re.fullmatch(row.pattern, _family(model))), NEWEST)


def binds_prefix(model: str, platform: str) -> bool:
    """Whether a model checks what stands before thinking, where it is served."""
    facts = PLATFORMS[platform]
    return facts.binds_prefix and model_facts(model, facts).prefix_bound


def _family(model: str) -> str:
    """A model's name less what the platform and the date add to it; empty if it is not known."""
    found = _NAME.search(model)
    return found.group(1).replace(".", "-") if found else ""


def _frozen(thinking: ThinkingConfigParam | None) -> JsonObject | None:
    return None if thinking is None else freeze(cast("Any", thinking))


@final
@attrs.frozen
class Target:
    """Where a payload goes. A value: two are equal when they say the same.

    Args:
        model: The model's name, as the platform writes it. An unknown one is taken for the newest family.
        thinking: The thinking configuration, as the SDK's `ThinkingConfigParam`; None writes none.
        platform: One of `PLATFORMS`: `anthropic`, `bedrock`, `bedrock_converse`, `vertex`, `foundry`, …
        account: The account that requests are made for, where that is known; replies remember it.
        on_stale: What becomes of thinking that is bound to another prefix, where the model checks that: `refuse` raises
            when the request is written; `drop_block` lets the service leave it out (`block_binding`, a beta). Once used,
            it has to be sent with all later requests.
        cache: Which points of a request are marked for the prompt cache; None marks none.

    Raises:
        ValidationError: `field-type` for a model that is no short text, an unknown platform, an account that is no text, or
            a configuration or a policy that is none; `required-field`, `unknown-field-rejected` or `json-value` for what is
            wrong inside the configuration; `cache-auto-slot` for an automatic marker where the platform has none;
            `field-value` for another `on_stale`, or for `drop_block` without enabled or adaptive thinking, or where the
            platform binds none.

    >>> Target(model="claude-opus-4-8", thinking={"type": "adaptive"}).vendor
    'anthropic'
    """

    model: str
    _thinking: JsonObject | None = attrs.field(default=None, alias="thinking", converter=_frozen)
    platform: str = "anthropic"
    account: str | None = attrs.field(default=None, kw_only=True)
    on_stale: OnStale = attrs.field(default="refuse", kw_only=True)
    cache: CachePolicy | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        violations: list[Violation] = []
        if not is_text(self.model) or not 0 < len(self.model) <= 200:
            violations.append(
                Violation(FIELD_TYPE, "model", described(self.model), "Name a model in short text.")
            )
        if type(self.platform) is not str or self.platform not in PLATFORMS:
            fix = f"Use one of {', '.join(PLATFORMS)}."
            violations.append(Violation(FIELD_TYPE, "platform", f"the platform {quoted(self.platform)}", fix))
        if type(self._thinking) is JsonObject:
            violations.extend(shape_faults(self._thinking.thaw(), _THINKING, "thinking"))
        elif self._thinking is not None:
            violations.extend(fault.under("thinking") for fault in Json().faults(self._thinking, FIELD_TYPE))
        if not (self.account is None or is_text(self.account)):
            violations.append(Violation(FIELD_TYPE, "account", described(self.account), "Pass text."))
        if self.cache is not None and type(self.cache) is not CachePolicy:
            violations.append(Violation(FIELD_TYPE, "cache", described(self.cache), "Pass a CachePolicy."))
        elif self.cache is not None and self.cache.automatic:
            facts = None if violations else self.facts
            if facts is not None and not facts.automatic_marker:
                found = f"an automatic marker on {quoted(self.platform)}"
                fix = "Mark points of the messages."
                violations.append(Violation(CACHE_AUTO, "cache.automatic", found, fix))
        choice = Choice(("refuse", "drop_block"))
        if not choice.admits(self.on_stale):
            violations.extend(fault.under("on_stale") for fault in choice.faults(self.on_stale, FIELD_TYPE))
        elif self.on_stale == "drop_block" and not violations and not self._binds:
            found = f"'drop_block' on {quoted(self.platform)}"
            violations.append(
                Violation(FIELD_VALUE, "on_stale", found, "Its models bind no thinking; refuse.")
            )
        elif self.on_stale == "drop_block" and not violations and self.thinking_type not in _BINDABLE:
            found = f"'drop_block' with thinking {quoted(self.thinking_type)}"
            violations.append(
                Violation(FIELD_VALUE, "on_stale", found, "Configure enabled or adaptive thinking.")
            )
        if violations:
            raise ValidationError(violations)

    @property
    def _binds(self) -> bool:
        return self.facts.vendor == "anthropic" and self.facts.binds_prefix

    @property
    def thinking(self) -> ThinkingConfigParam | None:
        """The thinking configuration, as a fresh dict."""
        given = self._thinking
        return None if given is None else cast("ThinkingConfigParam", given.thaw())

    @property
    def betas(self) -> tuple[str, ...]:
        """The betas that a request to this target uses."""
        return (_BINDING_BETA,) if self.on_stale == "drop_block" else ()

    @property
    def headers(self) -> dict[str, str]:
        """The headers that a request to this target needs; `to_body` cannot say them.

        >>> Target("claude-opus-5-5", {"type": "adaptive"}, on_stale="drop_block").headers
        {'anthropic-beta': 'thinking-binding-controls-2026-08-01'}
        """
        return {"anthropic-beta": ",".join(self.betas)} if self.betas else {}

    @property
    def _sent_thinking(self) -> JsonObject | None:
        given = self._thinking
        if given is None or self.on_stale == "refuse":
            return given
        return JsonObject({**given, "block_binding": {"prefix_mismatch_behavior": "drop_block"}})

    @property
    def facts(self) -> Platform:
        """What is known of the platform."""
        return PLATFORMS[self.platform]

    @property
    def model_facts(self) -> Model:
        """What is known of the model."""
        return model_facts(self.model, self.facts)

    @property
    def vendor(self) -> str:
        """Whose thinking the target can read."""
        return self.facts.vendor

    @property
    def thinking_type(self) -> str | None:
        """`enabled`, `adaptive`, `disabled`, …; None if none is written."""
        return None if self._thinking is None else cast("str | None", self._thinking.get("type"))


# ---------------------------------------------------------------- rules

MESSAGES_NONEMPTY = Rule(
    "messages-nonempty",
    "A request has at least one message.",
    "Error reports",
    "messages: at least one message is required",
)
MESSAGES_MAX = Rule(
    "messages-max-100k", "A request has at most 100,000 messages.", "Parameter types of the SDK"
)
FIRST_USER = Rule(
    "first-role-user",
    "On platforms that demand it, the user speaks first.",
    "anthropic-sdk-typescript issue 622; AWS API reference",
    'messages: first message must use the "user" role',
)
SYSTEM_MODELS = Rule(
    "sysmsg-models",
    "System turns go to models that have them.",
    "Mid-conversation system messages, API documentation",
    "role 'system' is not supported on this model",
)
THINKING_CONFIG = Rule(
    "thinking-config-by-model",
    "The thinking configuration is one that the model takes.",
    "Errors; thinking, API documentation",
    '"thinking.type.enabled" is not supported for this model.',
)
THINKING_FIRST = Rule(
    "thinking-first-when-manual",
    "With manual thinking, the assistant turn of the open tool loop starts with thinking.",
    "Extended thinking; thinking and tool workflows, API documentation",
    "messages.N.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` is "
    "enabled, a final `assistant` message must start with a thinking block",
)
UNSIGNED_FOREIGN = Rule(
    "third-party-unsigned-thinking",
    "Thinking goes back only to the vendor that issued it.",
    "Reports on Anthropic-compatible endpoints",
    "messages.N.content.M: Invalid `signature` in `thinking` block",
)
TOOLS_DECLARED = Rule(
    "tools-must-be-declared",
    "A request with calls or results declares tools.",
    "Error reports since 2024",
    "Requests which include `tool_use` or `tool_result` blocks must define tools.",
)
SERVER_TOOL_PLATFORM = Rule(
    "server-tool-platform",
    "Blocks of server tools go to platforms that have the tool.",
    "Platform pages of the API documentation; coder pull request 26555",
)
DOCUMENT_PLACE = Rule(
    "role-blocks-document",
    "From API version 2026-10-21 on, no document stands directly in an assistant turn.",
    "API versions, API documentation",
)
USER_CITATIONS = Rule(
    "text-citations-user-forbidden",
    "From API version 2026-10-21 on, text of the user's side has no citations.",
    "API versions, API documentation",
)
PREFILL = Rule(
    "prefill-unsupported",
    "The last message is not the assistant's, except on models that continue it.",
    "Errors, API documentation",
    "This model does not support assistant message prefill. The conversation must end with a user message.",
)
PREFILL_THINKING = Rule(
    "prefill-with-thinking",
    "A prefill and thinking exclude each other.",
    "Prefill, API documentation",
)
TRAILING_WHITESPACE = Rule(
    "final-assistant-trailing-whitespace",
    "A prefill does not end in whitespace.",
    "Prefill, API documentation",
    "messages: final assistant content cannot end with trailing whitespace",
)
THINKING_OFF_FINAL = Rule(
    "thinking-off-final-turn",
    "With thinking off, an assistant turn in the last place has no thinking.",
    "Error reports, 2025",
    "messages.N.content.M: When thinking is disabled, an `assistant` message in the final position cannot contain "
    "`thinking`.",
)
TAIL_OPEN = Rule(
    "tool-use-tail-open",
    "A conversation with open calls is not sent.",
    "Handle tool calls, API documentation",
    "messages.N: `tool_use` ids were found without `tool_result` blocks immediately after: ID",
)
BEDROCK_ID = Rule(
    "bedrock-tool-id-len",
    "On Bedrock Converse, ids of calls have at most 64 characters.",
    "AWS API reference",
)
BEDROCK_BLANK = Rule(
    "bedrock-blank-text",
    "On Bedrock Converse, no text is blank.",
    "Reports; AWS API reference",
    "The text field in the ContentBlock object at messages.N.content.M is blank. Add text to the text field, and try "
    "again.",
)
BEDROCK_ERROR = Rule(
    "bedrock-error-result-nonempty",
    "On Bedrock Converse, an error result says something.",
    "sample-multi-agent-orchestration-chat-on-agentcore issue 15",
    "The content field at messages.N.content.M.toolResult cannot be empty when status value is error.",
)
BEDROCK_DOCUMENT = Rule(
    "bedrock-document-needs-text",
    "On Bedrock Converse, a message with a document has text.",
    "Reports",
    "A text block must be included when using documents.",
)

MAX_MESSAGES = 100_000


class TraitRule(NamedTuple):
    """A rule about a trait of turns."""

    rule: Rule
    trait: str
    forbids: Callable[[Target, str], bool]
    """Whether the target forbids the trait."""
    marks: Callable[[str, Any], bool]
    """Whether a block, in a turn of this role, has the trait."""
    found: str
    fix: str


def _server_tool(block: Any) -> str:
    return cast("str", getattr(block, "name", "")) if block.type == "server_tool_use" else ""


TRAIT_RULES: tuple[TraitRule, ...] = (
    TraitRule(
        SYSTEM_MODELS,
        "system-turn",
        lambda target, _: not target.model_facts.system_turns,
        lambda role, _: role == "system",
        "a system turn",
        "Give the instruction in a user turn, or in the system prompt.",
    ),
    TraitRule(
        DOCUMENT_PLACE,
        "assistant-document",
        lambda target, _: target.facts.version_2026_10_21,
        lambda role, block: role == "assistant" and block.type == "document",
        "a document in an assistant turn",
        "Give the document in a user turn.",
    ),
    TraitRule(
        USER_CITATIONS,
        "user-citations",
        lambda target, _: target.facts.version_2026_10_21,
        lambda role, block: role == "user" and cites(block),
        "citations on text of the user's side",
        "Leave the citations out.",
    ),
    TraitRule(
        SERVER_TOOL_PLATFORM,
        "server-tool:",
        lambda target, tool: target.facts.server_tools is not None and tool not in target.facts.server_tools,
        lambda role, block: role == "assistant" and bool(_server_tool(block)),
        "a call of a server tool that the platform does not have",
        "Drop the call with its result, or send it elsewhere.",
    ),
    TraitRule(
        BEDROCK_ID,
        "long-id",
        lambda target, _: target.facts.short_ids,
        lambda _, block: has_long_id(block),
        "an id of more than 64 characters",
        "Shorten it on the call and on its result.",
    ),
    TraitRule(
        BEDROCK_BLANK,
        "blank-text",
        lambda target, _: not target.facts.blank_text,
        lambda _, block: is_blank(block),
        "blank text",
        "Drop the block.",
    ),
    TraitRule(
        BEDROCK_ERROR,
        "mute-error",
        lambda target, _: not target.facts.mute_errors,
        lambda _, block: is_mute_error(block),
        "an error result without text",
        "Say what went wrong.",
    ),
    TraitRule(
        BEDROCK_DOCUMENT,
        "document-alone",
        lambda target, _: target.facts.document_needs_text,
        lambda _, block: block.type == "document",
        "a document without text",
        "Say something beside it.",
    ),
)


class Judged(NamedTuple):
    """What the rules of a target look at: a conversation, or a history in which some turns could not be read."""

    turns: Sequence[Any]
    state: State
    calls: Calls
    tools: Sequence[object] | None
    """The tools of the request; None if they are not known."""
    stale: Callable[[], Sequence[tuple[int, int]]]
    """The turns whose thinking is bound to something else, each with the block from which on."""


def judged(convo: Conversation) -> Judged:
    """A conversation, for the rules of a target."""
    log, length = convo._log, len(convo.turns)
    tools = convo.preamble.tools
    return Judged(convo.turns, convo._state, log.calls, tools, lambda: log.chain(length).stale_turns())


def target_faults(history: Judged, target: Target, place: Place) -> Iterator[Violation]:
    """What a target has against a history, wherever it ends."""
    turns, state, thinking = history.turns, history.state, target.thinking_type
    if thinking is not None and thinking not in target.model_facts.thinking:
        fix = f"Use {' or '.join(sorted(target.model_facts.thinking))}."
        yield Violation(
            THINKING_CONFIG, "thinking.type", f"{quoted(thinking)} for {quoted(target.model)}", fix
        )
    for row in TRAIT_RULES:
        for trait in sorted(state.traits):
            if trait.startswith(row.trait) and row.forbids(target, trait[len(row.trait) :]):
                yield from _marked(turns, row, trait, place)
    if turns and not target.facts.repeats_roles and turns[0].role == "assistant":
        yield Violation(FIRST_USER, place.turn(0), "an assistant turn first", "Let the user speak first.")
    if history.tools is not None and not history.tools and "client-tools" in state.traits:
        yield Violation(TOOLS_DECLARED, "tools", "no tools", "Declare the tools that the history has used.")
    bound = _bound(turns, history.stale, target) if target.on_stale == "refuse" else ()
    for index, first in bound[:1]:
        blocks = turns[index].blocks
        at = next(at for at in range(first, len(blocks)) if type(blocks[at]) in SIGNED)
        fix = "Restore what stood before it, drop this and all later thinking, or send it with `drop_block`."
        yield Violation(PREFIX_BOUND, place.at(index, at), "thinking bound to another prefix", fix)
    if thinking == "enabled" and state.loop is not None and state.phase is not Phase.DONE:
        yield from _loop_start(turns, state.loop, target, place)


def _bound(
    turns: Sequence[Any], stale: Callable[[], Sequence[tuple[int, int]]], target: Target
) -> list[tuple[int, int]]:
    """The turns whose thinking the target reads and finds bound to something else, each with the block from which on."""
    if not binds_prefix(target.model, target.platform):
        return []
    return [
        (index, block)
        for index, block in stale()
        if (who := thinker(turns[index])) is None or _unread(who, target) is None
    ]


def _unread(who: Thinker, target: Target) -> StaleReason | None:
    """Why the target does not get thinking of this producer, whatever stands before it.

    The reasons of the API in its order of precedence, behind the one that comes before all: it is left out here.
    """
    if who.vendor != target.vendor:
        return "foreign_vendor"
    if target.vendor != "anthropic" or who.model is None:
        return None
    facts, made_by = target.model_facts, _family(who.model)
    elsewhere = who.account is not None and target.account is not None and who.account != target.account
    if elsewhere and model_facts(who.model, target.facts).account_bound:
        return "organization_binding_mismatch"
    unread = [facts.cannot_read] + [facts.cannot_read_elsewhere] * (target.platform != "anthropic")
    if made_by and any(re.fullmatch(pattern, made_by) for pattern in unread):
        return "model_binding_mismatch"
    return None


StaleReason: TypeAlias = Literal[
    "foreign_vendor",
    "organization_binding_mismatch",
    "model_binding_mismatch",
    "prefix_binding_mismatch",
]
"""Why a thinking block does not reach a model. All but the first are the API's words; `foreign_vendor` is thinking of
another vendor, or without a signature, which convmodel leaves out itself."""


@final
@attrs.frozen
class StaleThinking:
    """A thinking block that a target would refuse, or not get.

    Args:
        turn: The turn that it stands in.
        block: Its place there.
        reason: Why.
    """

    turn: int
    block: int
    reason: StaleReason

    @property
    def path(self) -> str:
        """Where it stands: `turns[1].blocks[0]`."""
        return BUILT.at(self.turn, self.block)


def stale_thinking(conversation: Conversation, target: Target) -> tuple[StaleThinking, ...]:
    """The thinking blocks that a target would refuse, or that its model would not get. The history keeps them all.

    Thinking that is bound to another prefix (`prefix_binding_mismatch`) is refused, or dropped with
    `on_stale="drop_block"`; the service drops what the model cannot read without a word, and takes it again once the model
    can. What is not known of an origin counts as fitting. The check costs what it finds, not what the history holds.

    Args:
        conversation: A conversation in any state.
        target: Where it is to go.

    Returns:
        The blocks in their order, each with one reason: the first that holds, in the API's order of precedence.

    Raises:
        ValidationError: `field-type` for anything else.

    >>> from convmodel import AssistantTurn, Origin, Thinking, UserTurn, conversation
    >>> thought = AssistantTurn([Thinking("Hm.", "c2ln"), "Hi."], Origin(model="claude-opus-5-5"))
    >>> stale_thinking(conversation([UserTurn("Hello."), thought]), Target("claude-haiku-5-5"))
    (StaleThinking(turn=1, block=0, reason='model_binding_mismatch'),)
    """
    require(conversation, (AwaitingUser, AwaitingModel, AwaitingTools), "conversation", "a conversation")
    require(target, Target, "target", "a Target")
    log, turns = conversation._log, conversation.turns
    reasons: dict[int, StaleReason] = {}
    unsigned: set[int] = set()
    for who, at in log.thinkers.copy().items():
        until = bisect_left(at, len(turns))
        if (reason := _unread(who, target)) is not None:
            reasons.update(dict.fromkeys(at[:until], reason))
        elif not who.signed and target.vendor == "anthropic":
            unsigned.update(at[:until])
    bound = dict(_bound(turns, log.chain(len(turns)).stale_turns, target))
    found: list[StaleThinking] = []
    for index in sorted(reasons.keys() | unsigned | bound.keys()):
        for place, block in enumerate(turns[index].blocks):
            reason = reasons.get(index)
            if index in bound and place >= bound[index]:
                reason = "prefix_binding_mismatch"
            if type(block) in THOUGHTS - SIGNED:
                reason = (
                    "foreign_vendor" if target.vendor == "anthropic" or reason == "foreign_vendor" else None
                )
            if type(block) in THOUGHTS and reason is not None:
                found.append(StaleThinking(index, place, reason))
    return tuple(found)


def _marked(turns: Sequence[Any], row: TraitRule, trait: str, place: Place) -> Iterator[Violation]:
    """The first block of each turn that has a forbidden trait."""
    for index, turn in enumerate(turns):
        if trait not in turn.traits:
            continue
        for at, block in enumerate(turn.blocks):
            if row.marks(turn.role, block) and (
                row.trait == trait or trait == row.trait + _server_tool(block)
            ):
                path = place.turn(index) if turn.role == "system" else place.at(index, at)
                yield Violation(row.rule, path, row.found, row.fix)
                break


def sent_places(turn: Any, vendor: str) -> list[int]:
    """The places of the blocks that go to a vendor: all but thinking that it did not issue and cannot read."""
    foreign = issuer_of(turn) != vendor
    places = [
        at
        for at, block in enumerate(turn.blocks)
        if not (
            block.type in ("thinking", "redacted_thinking", "unsigned_thinking")
            and (foreign or (block.type == "unsigned_thinking" and vendor == "anthropic"))
        )
    ]
    if len(places) < len(turn.blocks) and all(is_blank(turn.blocks[at]) for at in places):
        return []  # what is left says nothing, and the API would refuse it
    return places


def issuer_of(turn: Any) -> str:
    """The vendor whose thinking a turn holds."""
    origin = getattr(turn, "origin", None)
    return "anthropic" if origin is None else cast("str", origin.vendor)


def _loop_start(turns: Sequence[Any], loop: int, target: Target, place: Place) -> Iterator[Violation]:
    """Whether the open tool loop starts with thinking that the target can read."""
    for index in range(loop, len(turns)):
        turn = turns[index]
        at = next(iter(sent_places(turn, target.vendor)), None) if turn.role == "assistant" else None
        if at is None:
            continue  # the API joins what follows with a turn that has nothing to send
        if turn.blocks[at].type not in ("thinking", "redacted_thinking", "unsigned_thinking"):
            fix = "Send the thinking that came with the turn, or use a mode without manual thinking."
            yield Violation(THINKING_FIRST, place.at(index, at), f"{turn.blocks[at].type} first", fix)
        return


def tail_faults(history: Judged, target: Target | None, place: Place) -> Iterator[Violation]:
    """What a history lacks to be sent as it ends: no open calls, and no prefill where the model has none."""
    turns, state = history.turns, history.state
    if not turns:
        yield Violation(MESSAGES_NONEMPTY, place.turns, "no message", "Say something.")
        return
    for call in history.calls.open(state, len(turns)):
        found = f"the call {quoted(call.block.id)} is open"
        yield Violation(TAIL_OPEN, place.at(call.turn, call.at), found, "Answer it before sending.")
    last = len(turns) - 1
    if turns[last].role != "assistant" or state.phase is not Phase.DONE or target is None:
        return
    first = last
    while first and turns[first - 1].role == "assistant":
        first -= 1
    # The API joins the assistant turns at the end, of which the last may be empty.
    joined = [
        (index, at, block) for index in range(first, last + 1) for at, block in enumerate(turns[index].blocks)
    ]
    off = target.thinking_type in (None, "disabled")
    thought = next((each for each in joined if type(each[2]) in THOUGHTS), None)
    if off and thought is not None:
        index, at, block = thought
        fix = "Turn thinking on, or let the user speak."
        yield Violation(THINKING_OFF_FINAL, place.at(index, at), f"{block.type} with thinking off", fix)
    elif any(block.type.endswith(("server_tool_use", "_tool_result")) for *_, block in joined):
        return  # a turn in which the service used its tools may be resumed
    elif not target.model_facts.prefill:
        yield Violation(PREFILL, place.turn(last), "an assistant turn at the end", "Let the user speak.")
    elif not off:
        yield Violation(
            PREFILL_THINKING, place.turn(last), "a prefill with thinking on", "Turn thinking off."
        )
    elif joined and isinstance(final := joined[-1][2], Text) and final.text[-1:].isspace():
        index, at, _ = joined[-1]
        yield Violation(TRAILING_WHITESPACE, place.at(index, at), "whitespace at the end", "Strip it.")
