"""LLM conversations as frozen, typed values: a history that the API would refuse cannot be built."""

from typing import TYPE_CHECKING, Any

from .blocks import (
    AssistantBlock,
    Base64ImageSource,
    Base64PDFSource,
    BashCodeExecutionToolResult,
    Block,
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
    ResultContent,
    SearchResult,
    ServerToolCaller,
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
from .conversation import (
    AwaitingModel,
    AwaitingTools,
    AwaitingUser,
    Conversation,
    Interrupted,
    Outcome,
    conversation,
    empty,
    start,
)
from .errors import ConvmodelError, InvalidReply, Rule, ValidationError, Violation
from .jsonvalue import JsonObject
from .preamble import Preamble, Tool
from .turns import AssistantTurn, Origin, Reply, SystemTurn, Turn, UserTurn

if TYPE_CHECKING:
    from .rules import RULES as RULES

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # The catalogue gathers the rules of every wire, so it is loaded when it is asked for.
    if name == "RULES":
        from .rules import RULES

        return RULES
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "RULES",
    "AssistantBlock",
    "AssistantTurn",
    "AwaitingModel",
    "AwaitingTools",
    "AwaitingUser",
    "Base64ImageSource",
    "Base64PDFSource",
    "BashCodeExecutionToolResult",
    "Block",
    "BrowserState",
    "Caller",
    "Citation",
    "CitationCharLocation",
    "CitationContentBlockLocation",
    "CitationPageLocation",
    "CitationSearchResultLocation",
    "CitationWebSearchResultLocation",
    "CitationsConfig",
    "CodeExecutionToolResult",
    "ContainerUpload",
    "ContentBlockSource",
    "Conversation",
    "ConvmodelError",
    "DirectCaller",
    "Document",
    "FileDocumentSource",
    "FileImageSource",
    "Image",
    "ImageTransformations",
    "Interrupted",
    "InvalidReply",
    "JsonObject",
    "OpaqueBlock",
    "Origin",
    "Outcome",
    "PlainTextSource",
    "Preamble",
    "RedactedThinking",
    "Reply",
    "ResultContent",
    "Rule",
    "SearchResult",
    "ServerToolCaller",
    "ServerToolCaller20260120",
    "ServerToolResult",
    "ServerToolUse",
    "SystemTurn",
    "Text",
    "TextEditorCodeExecutionToolResult",
    "Thinking",
    "Tool",
    "ToolReference",
    "ToolResult",
    "ToolSearchToolResult",
    "ToolUse",
    "Turn",
    "URLImageSource",
    "URLPDFSource",
    "UnsignedThinking",
    "UserBlock",
    "UserTurn",
    "ValidationError",
    "Violation",
    "WebFetchToolResult",
    "WebSearchToolResult",
    "__version__",
    "conversation",
    "empty",
    "start",
]
