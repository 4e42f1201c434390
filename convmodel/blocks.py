"""Every content block: its fields, who writes each, its own rules, and where it may stand.

Adding a block type is one class here and one entry in the unions at the end; parsing, reading responses, writing
requests, the stored form and the reference page follow from the declaration.
"""

import base64
import binascii
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, cast, final, get_args

import attrs
from attrs import field

from .errors import Rule, ValidationError, Violation
from .fields import (
    BLOCK_TYPE,
    CACHE_PLACE,
    CALLER,
    ECHO,
    FIELD_TYPE,
    FIELD_VALUE,
    LOCAL,
    REQUIRED_FIELD,
    SAID,
    SERVICE,
    SHARED,
    Either,
    Flow,
    Many,
    Value,
    at_least,
    described,
    flow,
    length,
    matches,
    require,
)
from .jsonvalue import JsonObject, freeze
from .redact import Redactor, default
from .shapes import Shaped

Role: TypeAlias = Literal["user", "assistant", "system"]
USER: frozenset[Role] = frozenset({"user"})
ASSISTANT: frozenset[Role] = frozenset({"assistant"})

# ---------------------------------------------------------------- rules


def _only_in(role: str, what: str, id: str, error: str, source: str) -> Rule:
    return Rule(id, f"{what} only in {role} turns.", source, error)


HANDLE_CALLS = "Handle tool calls, API documentation"
PLACE_TOOL_USE = _only_in(
    "assistant",
    "`tool_use` stands",
    "role-blocks-tool-use",
    "messages.N: `tool_use` blocks can only be in `assistant` messages",
    "Error reports, 2025 and 2026",
)
PLACE_TOOL_RESULT = _only_in(
    "user",
    "`tool_result` stands",
    "role-blocks-tool-result",
    "messages.N: `tool_result` blocks can only be in `user` messages",
    "Error reports, 2025 and 2026",
)
PLACE_THINKING = _only_in(
    "assistant",
    "`thinking` and `redacted_thinking` stand",
    "role-blocks-thinking",
    "messages.N.content: thinking blocks may only be in `assistant` messages",
    "Error report with a request id",
)
PLACE_SERVER_TOOLS = _only_in(
    "assistant",
    "Server tool calls and their results stand",
    "role-blocks-server-tools",
    "messages.N: `server_tool_use` blocks can only be in `assistant` messages",
    "Error reports, 2026",
)
PLACE_IMAGE = _only_in(
    "user",
    "`image` stands",
    "role-blocks-image",
    "messages.N.content: 'image' blocks are not permitted within assistant turns",
    "Measured live, September 2026",
)
PLACE_SEARCH_RESULT = _only_in(
    "user",
    "`search_result` stands",
    "role-blocks-search-result",
    "messages.N: `search_result` blocks can only be in `user` messages",
    "Search results, API documentation",
)
PLACE_SYSTEM = Rule(
    "sysmsg-blocks",
    "A system turn holds text only.",
    "Mid-conversation system messages, API documentation",
    "messages.N: role 'system' supports text, tool_addition, and tool_removal blocks only",
)
TOOL_USE_ID = Rule(
    "tool-use-id-pattern",
    "Ids of client calls match ^[a-zA-Z0-9_-]+$.",
    "Create a message, API reference",
    "messages.N.content.M.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
)
TOOL_USE_NAME = Rule(
    "tool-use-name",
    "The name of a called tool has 1 to 200 characters.",
    "Create a message, API reference",
    "messages.N.content.M.tool_use.name: String should have at least 1 character",
)
TOOL_USE_INPUT = Rule(
    "tool-use-input-object",
    "The input of a call is a JSON object.",
    "Create a message, API reference",
    "messages.N.content.M.tool_use.input: Input should be a valid dictionary",
)
TOOLSET_NAME = Rule(
    "toolset-name-pattern",
    "A toolset name has 1 to 64 characters out of a-z, A-Z, 0-9, `_` and `-`.",
    "Create a message, API reference",
)
CALLER_SHAPE = Rule(
    "caller-shape",
    "`caller` is direct, or names the server call that made the call; it is never null.",
    "Create a message, API reference; anthropic-sdk-python issue 1112",
    "messages.N.content.M.tool_use.caller: Extra inputs are not permitted",
)
ERROR_TEXT_ONLY = Rule(
    "tool-result-error-text-only",
    "An error result holds only text.",
    "Tool runner of the SDK; error reports",
    "messages.N.content.M.tool_result: all content must be type `text` if `is_error` is true",
)
ERROR_HAS_TEXT = Rule(
    "tool-result-error-toolset-nonempty",
    "An error result for a call of a toolset says something.",
    "Tool runner of the SDK; browser use, API documentation",
)
SEARCH_HOMOGENEOUS = Rule(
    "tool-result-search-homogeneous",
    "If one block of a result is a `search_result`, all are.",
    "Search results, API documentation",
)
RESULT_CONTENT = Rule(
    "tool-result-content-types",
    "The content of a result is text, images, documents, search results, tool references or browser states.",
    "Create a message, API reference",
    "messages.N.content.M.tool_result.content: Input tag '…' found using 'type' does not match any of the expected tags",
)
SEARCH_CONTENT = Rule(
    "search-result-content",
    "A search result holds at least one text block, none of them empty.",
    "Search results, API documentation",
)
SERVER_ID = Rule(
    "server-id-pattern",
    "Ids of server tool calls match ^srvtoolu_[a-zA-Z0-9_]+$.",
    "Create a message, API reference",
    "messages.N.content.M.server_tool_use.id: String should match pattern '^srvtoolu_[a-zA-Z0-9_]+$'",
)
SERVER_NAME = Rule(
    "server-name-enum",
    "A server tool call names one of the service's own tools.",
    "Create a message, API reference",
    "messages.N.content.M.server_tool_use.name: Input should be 'web_search', …",
)
THINKING_FIELDS = Rule(
    "thinking-fields",
    "A thinking block has its text and its signature, both as text.",
    "Create a message, API reference; Claude Code error reference",
    "messages.N.content.M.thinking.signature: Field required",
)
THINKING_EMPTY = Rule(
    "thinking-empty-and-unsigned",
    "A thinking block without text has a signature.",
    "Error reports, 2026",
    "messages.N.content.M.thinking: each thinking block must contain thinking",
)
THINKING_SIGNATURE = Rule(
    "thinking-signature-valid",
    "The signature of a thinking block, or the data of a redacted one, is what the service issued; never empty.",
    "Thinking troubleshooting, API documentation",
    "messages.N.content.M: Invalid `signature` in `thinking` block",
)
CITATION_FIELDS = Rule(
    "citation-fields",
    "A citation has its title key (null if there is none), positions from 0, pages from 1.",
    "Create a message, API reference",
)
IMAGE_TYPE = Rule(
    "image-media-type",
    "A base64 image is a JPEG, PNG, GIF or WebP.",
    "Vision, API documentation",
    "messages.N.content.M.image.source.base64.media_type: Input should be 'image/jpeg', 'image/png', 'image/gif' or "
    "'image/webp'",
)
IMAGE_MATCHES = Rule(
    "image-media-type-matches",
    "The media type of a base64 image is that of its bytes.",
    "Error reports, 2025 and 2026",
    "messages.N.content.M.image.source.base64: The image was specified using the image/png media type, but the image "
    "appears to be a image/jpeg image",
)
IMAGE_DECODABLE = Rule(
    "image-decodable",
    "An image that is made from bytes begins like a JPEG, PNG, GIF or WebP.",
    "Claude Code error reference",
    "Could not process image",
)
BASE64 = Rule(
    "base64-valid",
    "Base64 data is plain base64: no `data:` prefix, no line breaks.",
    "Error reports",
    "messages.N.content.M.image.source.base64.data: invalid base64 data",
)
DOCUMENT_TITLE = Rule(
    "document-title-len",
    "A document's title has 1 to 500 characters and its context at least one, where present.",
    "Create a message, API reference",
)
DOCUMENT_CONTENT = Rule(
    "document-content-source-types",
    "A document's content source is text, or text and image blocks.",
    "Create a message, API reference",
)
TOOL_REFERENCE = Rule(
    "tool-reference-name",
    "A tool reference names a tool in 1 to 256 characters out of a-z, A-Z, 0-9, `_` and `-`.",
    "Tool search, API documentation",
)

# ---------------------------------------------------------------- helpers


_LOOKED_AT = 1000
"""How much of a text is searched for secrets before a few words of it are shown."""


def short(value: object, redactor: Redactor | None = None) -> str:
    """The repr of a text, masked and cut to a few words."""
    if isinstance(value, str):
        value = (redactor or default()).text(value[:_LOOKED_AT])[:60]
    text = repr(value)
    return text if len(text) <= 42 else f"{text[:40]}…{text[0]}"


def address(value: str) -> str:
    """The repr of a URL, without what may hold a key or data."""
    head = re.split(r"[?#;,@]", default().text(value[:_LOOKED_AT]), maxsplit=1)[0]
    return short(head if head == value else f"{head}…")


def size(value: object) -> str:
    """The repr of what is not shown: only how large it is."""
    if value is None or isinstance(value, bool):
        return repr(value)
    return f"<{len(value)} characters>" if isinstance(value, str) else f"<{len(cast('Any', value))} blocks>"


def _tuple(value: Iterable[Any]) -> tuple[Any, ...]:
    """An iterable as a tuple. What is not one stays as it is, for the constructor's check to name."""
    if type(value) is tuple:
        return value
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(cast("object", value), Iterable):
        return cast("tuple[Any, ...]", value)
    return tuple(value)


def _texts(value: Iterable["str | Any"]) -> tuple[Any, ...]:
    """Blocks, among which a plain string stands for a text block."""
    blocks = _tuple(value)
    if not isinstance(cast("object", blocks), tuple):
        return blocks
    return tuple(Text(block) if isinstance(block, str) else block for block in blocks)


def _result_content(
    value: "str | Iterable[str | ResultContent] | None",
) -> "str | tuple[ResultContent, ...] | None":
    return value if value is None or isinstance(value, str) else _texts(value)


def _source_content(value: "str | Iterable[str | Text | Image]") -> "str | tuple[Text | Image, ...]":
    return value if isinstance(value, str) else _texts(value)


CLIENT_ID = flow(
    Flow.SHARED, matches(TOOL_USE_ID, r"[a-zA-Z0-9_-]+", "Rewrite it on the call and on its result.")
)
SERVER_ID_FIELD = flow(
    Flow.SHARED,
    matches(SERVER_ID, r"srvtoolu_[a-zA-Z0-9_]+", "Drop a server call of another vendor with its result."),
)
TOOLSET = flow(Flow.SHARED, matches(TOOLSET_NAME, r"[a-zA-Z0-9_-]{1,64}", "Echo the name from the call."))

# ---------------------------------------------------------------- citations

POSITION = flow(Flow.SHARED, at_least(CITATION_FIELDS, 0), missing=CITATION_FIELDS)
PAGE = flow(Flow.SHARED, at_least(CITATION_FIELDS, 1), missing=CITATION_FIELDS)
TITLE = flow(Flow.SHARED, missing=CITATION_FIELDS, free=True)


@final
@attrs.frozen
class CitationCharLocation(Value):
    """A quotation of a plain text document, by characters.

    Args:
        cited_text: The quoted text.
        document_index: Which document of the request, from 0.
        document_title: Its title; the request needs the key even where there is none.
        start_char_index: The first character, from 0.
        end_char_index: The character after the last.
        file_id: The file that the service read; never sent back.
    """

    type: ClassVar[Literal["char_location"]] = "char_location"
    cited_text: str = field(metadata=SAID, repr=size)
    document_index: int = field(metadata=POSITION)
    document_title: str | None = field(metadata=TITLE, repr=short)
    start_char_index: int = field(metadata=POSITION)
    end_char_index: int = field(metadata=POSITION)
    file_id: str | None = field(default=None, metadata=SERVICE, kw_only=True)


@final
@attrs.frozen
class CitationPageLocation(Value):
    """A quotation of a PDF, by pages.

    Args:
        cited_text: The quoted text.
        document_index: Which document of the request, from 0.
        document_title: Its title; the request needs the key even where there is none.
        start_page_number: The first page, from 1.
        end_page_number: The page after the last.
        file_id: The file that the service read; never sent back.
    """

    type: ClassVar[Literal["page_location"]] = "page_location"
    cited_text: str = field(metadata=SAID, repr=size)
    document_index: int = field(metadata=POSITION)
    document_title: str | None = field(metadata=TITLE, repr=short)
    start_page_number: int = field(metadata=PAGE)
    end_page_number: int = field(metadata=PAGE)
    file_id: str | None = field(default=None, metadata=SERVICE, kw_only=True)


@final
@attrs.frozen
class CitationContentBlockLocation(Value):
    """A quotation of a document made of blocks, by blocks.

    Args:
        cited_text: The quoted text.
        document_index: Which document of the request, from 0.
        document_title: Its title; the request needs the key even where there is none.
        start_block_index: The first block, from 0.
        end_block_index: The block after the last.
        file_id: The file that the service read; never sent back.
    """

    type: ClassVar[Literal["content_block_location"]] = "content_block_location"
    cited_text: str = field(metadata=SAID, repr=size)
    document_index: int = field(metadata=POSITION)
    document_title: str | None = field(metadata=TITLE, repr=short)
    start_block_index: int = field(metadata=POSITION)
    end_block_index: int = field(metadata=POSITION)
    file_id: str | None = field(default=None, metadata=SERVICE, kw_only=True)


@final
@attrs.frozen
class CitationWebSearchResultLocation(Value):
    """A quotation of a web page that the service's search found.

    Args:
        cited_text: The quoted text.
        encrypted_index: Opaque; goes back as it came.
        title: The page's title; the request needs the key even where there is none.
        url: The page's address.
    """

    type: ClassVar[Literal["web_search_result_location"]] = "web_search_result_location"
    cited_text: str = field(metadata=SAID, repr=size)
    encrypted_index: str = field(metadata=ECHO, repr=size)
    title: str | None = field(metadata=TITLE, repr=short)
    url: str = field(metadata=SHARED, repr=short)


@final
@attrs.frozen
class CitationSearchResultLocation(Value):
    """A quotation of a search result that the caller gave.

    Args:
        cited_text: The quoted text.
        search_result_index: Which search result of the request, from 0.
        source: The search result's source.
        title: Its title; the request needs the key even where there is none.
        start_block_index: The first block, from 0.
        end_block_index: The block after the last.
    """

    type: ClassVar[Literal["search_result_location"]] = "search_result_location"
    cited_text: str = field(metadata=SAID, repr=size)
    search_result_index: int = field(metadata=POSITION)
    source: str = field(metadata=SAID, repr=short)
    title: str | None = field(metadata=TITLE, repr=short)
    start_block_index: int = field(metadata=POSITION)
    end_block_index: int = field(metadata=POSITION)


Citation: TypeAlias = (
    CitationCharLocation
    | CitationPageLocation
    | CitationContentBlockLocation
    | CitationWebSearchResultLocation
    | CitationSearchResultLocation
)


@final
@attrs.frozen
class CitationsConfig(Value):
    """Whether the model may cite a document or a search result.

    Args:
        enabled: True to let it cite; None leaves the key out.
    """

    enabled: bool | None = field(default=None, metadata=CALLER)


# ---------------------------------------------------------------- text


@final
@attrs.frozen
class Text(Value):
    """A piece of text, by either party.

    Args:
        text: The text. Empty text is legal only inside a tool result.
        citations: What the text quotes; only the model writes them.

    Raises:
        ValidationError: `field-type` or `json-valid-utf8` if the text cannot be sent.

    >>> Text("Hello.")
    Text('Hello.')
    """

    type: ClassVar[Literal["text"]] = "text"
    roles: ClassVar[frozenset[Role]] = frozenset({"user", "assistant", "system"})
    misplaced: ClassVar[Rule] = PLACE_SYSTEM
    nullable_on_wire: ClassVar[frozenset[str]] = frozenset({"citations"})
    admits_marker: ClassVar[bool] = True
    text: str = field(metadata=SAID)
    citations: tuple[Citation, ...] = field(default=(), converter=_tuple, metadata=SHARED, kw_only=True)

    def __repr__(self) -> str:
        return f"Text({short(self.text)}{f', citations=<{len(self.citations)}>' * bool(self.citations)})"


# ---------------------------------------------------------------- images and documents

_SIGNATURES: tuple[tuple[bytes, int, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF8", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
    # What an address that should serve an image serves instead, when it does not.
    (b"<!doctype html", 0, "text/html"),
    (b"<html", 0, "text/html"),
    (b"<?xml", 0, "text/xml"),
    (b"<svg", 0, "image/svg+xml"),
    (b"%pdf", 0, "application/pdf"),
)
IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")


def media_type_of(data: bytes) -> str | None:
    """The media type that the first bytes of a file tell, or None."""
    head = data[:16]
    for signature, at, media_type in _SIGNATURES:
        part = head[at : at + len(signature)]
        if part == signature or part.lower() == signature:
            return media_type
    return None


def _base64(value: str) -> Violation | None:
    try:
        binascii.a2b_base64(value, strict_mode=True)
    except (ValueError, binascii.Error):
        return Violation(
            BASE64, "", "text that is not plain base64", "Encode the bytes, without prefix or breaks."
        )
    return None


@final
@attrs.frozen
class Base64ImageSource(Value):
    """An image as base64 text.

    Args:
        data: The bytes as base64.
        media_type: Their type, which must be what the bytes are.
    """

    type: ClassVar[Literal["base64"]] = "base64"
    data: str = field(metadata=flow(Flow.CALLER, _base64), repr=size)
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"] = field(
        metadata=flow(Flow.CALLER, wrong=IMAGE_TYPE)
    )

    def faults(self) -> Iterable[Violation]:
        actual = media_type_of(base64.b64decode(self.data[:24]))
        if actual is not None and actual != self.media_type:
            found = f"{self.media_type} where the bytes are {actual}"
            fix = f"Declare {actual}." if actual in IMAGE_TYPES else "Pass the bytes of an image."
            yield Violation(IMAGE_MATCHES, "media_type", found, fix)


@final
@attrs.frozen
class URLImageSource(Value):
    """An image that the service fetches.

    Args:
        url: Its address.
    """

    type: ClassVar[Literal["url"]] = "url"
    url: str = field(metadata=CALLER, repr=address)


@final
@attrs.frozen
class FileImageSource(Value):
    """An image uploaded before.

    Args:
        file_id: The id that the Files API gave.
    """

    type: ClassVar[Literal["file"]] = "file"
    file_id: str = field(metadata=CALLER)


@final
@attrs.frozen
class ImageTransformations(Value):
    """What the service may do to an image.

    Args:
        oversized_image: `downsize` (its default) or `error` for an image beyond the model's limits.
    """

    oversized_image: Literal["downsize", "error"] | None = field(default=None, metadata=CALLER)


@final
@attrs.frozen
class Image(Value):
    """An image from the user, or in a tool result.

    Args:
        source: Where the image is.
        transformations: What the service may do to it.

    >>> Image.from_url("https://example.org/a.png")
    Image(URLImageSource(url='https://example.org/a.png'))
    """

    type: ClassVar[Literal["image"]] = "image"
    roles: ClassVar[frozenset[Role]] = USER
    misplaced: ClassVar[Rule] = PLACE_IMAGE
    nullable_on_wire: ClassVar[frozenset[str]] = frozenset({"transformations"})
    admits_marker: ClassVar[bool] = True
    source: Base64ImageSource | URLImageSource | FileImageSource = field(metadata=CALLER)
    transformations: ImageTransformations | None = field(default=None, metadata=CALLER, kw_only=True)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Image":
        """An image from its bytes; the media type is read from them.

        Raises:
            ValidationError: `image-decodable` if they are no JPEG, PNG, GIF or WebP.
        """
        require(data, (bytes, bytearray, memoryview), "data", "bytes")
        data = bytes(data)
        media_type = media_type_of(data)
        if media_type not in IMAGE_TYPES:
            fix = "Pass the bytes of a JPEG, PNG, GIF or WebP image."
            raise ValidationError([Violation(IMAGE_DECODABLE, "data", "bytes that begin like no image", fix)])
        return cls(Base64ImageSource(base64.b64encode(data).decode("ascii"), cast("Any", media_type)))

    @classmethod
    def from_path(cls, path: "str | os.PathLike[str]") -> "Image":
        """An image from a file, which is read once, now.

        Raises:
            OSError: The file cannot be read.
            ValidationError: `image-decodable` if it is no JPEG, PNG, GIF or WebP.
        """
        require(path, (str, os.PathLike), "path", "a path")
        try:
            data = Path(path).read_bytes()
        except ValueError:  # a zero character, or what the file system cannot encode
            found = "text that is no path"
            raise ValidationError([Violation(FIELD_VALUE, "path", found, "Pass a path.")]) from None
        return cls.from_bytes(data)

    @classmethod
    def from_url(cls, url: str) -> "Image":
        """An image that the service fetches at each request."""
        return cls(URLImageSource(url))

    def __repr__(self) -> str:
        return f"Image({self.source!r})"


@final
@attrs.frozen
class Base64PDFSource(Value):
    """A PDF as base64 text.

    Args:
        data: The bytes as base64.
        media_type: Always `application/pdf`.
    """

    type: ClassVar[Literal["base64"]] = "base64"
    data: str = field(metadata=flow(Flow.SHARED, _base64), repr=size)
    media_type: Literal["application/pdf"] = field(default="application/pdf", metadata=SHARED)


@final
@attrs.frozen
class PlainTextSource(Value):
    """A document given as text.

    Args:
        data: The text.
        media_type: Always `text/plain`.
    """

    type: ClassVar[Literal["text"]] = "text"
    data: str = field(metadata=SAID, repr=size)
    media_type: Literal["text/plain"] = field(default="text/plain", metadata=SHARED)


@final
@attrs.frozen
class ContentBlockSource(Value):
    """A document given as text, or as text and image blocks.

    Args:
        content: The text or the blocks.
    """

    type: ClassVar[Literal["content"]] = "content"
    content: str | tuple[Text | Image, ...] = field(
        metadata=flow(Flow.CALLER, wrong=DOCUMENT_CONTENT, free=True), converter=_source_content, repr=size
    )


@final
@attrs.frozen
class URLPDFSource(Value):
    """A PDF that the service fetches.

    Args:
        url: Its address.
    """

    type: ClassVar[Literal["url"]] = "url"
    url: str = field(metadata=CALLER, repr=address)


@final
@attrs.frozen
class FileDocumentSource(Value):
    """A document uploaded before.

    Args:
        file_id: The id that the Files API gave.
    """

    type: ClassVar[Literal["file"]] = "file"
    file_id: str = field(metadata=CALLER)


@final
@attrs.frozen
class Document(Value):
    """A document from the user, or in a tool result.

    Args:
        source: Where the document is.
        title: 1 to 500 characters.
        context: What the model should know of it; not cited.
        citations: Whether the model may cite it.

    >>> Document(PlainTextSource("The sky is blue."), title="Facts")
    Document(PlainTextSource(data=<16 characters>, media_type='text/plain'), title='Facts')
    """

    type: ClassVar[Literal["document"]] = "document"
    # Documents in assistant turns were legal until API version 2026-10-21; the target decides.
    roles: ClassVar[frozenset[Role]] = frozenset({"user", "assistant"})
    misplaced: ClassVar[Rule] = PLACE_SYSTEM
    nullable_on_wire: ClassVar[frozenset[str]] = frozenset({"title", "context", "citations"})
    admits_marker: ClassVar[bool] = True
    source: Base64PDFSource | PlainTextSource | ContentBlockSource | URLPDFSource | FileDocumentSource = (
        field(metadata=SHARED)
    )
    title: str | None = field(
        default=None,
        kw_only=True,
        metadata=flow(
            Flow.SHARED, length(DOCUMENT_TITLE, 1, 500, "Shorten the title, or leave it out."), free=True
        ),
    )
    context: str | None = field(
        default=None,
        kw_only=True,
        metadata=flow(Flow.CALLER, length(DOCUMENT_TITLE, 1, None, "Leave the context out."), free=True),
    )
    citations: CitationsConfig | None = field(default=None, metadata=SHARED, kw_only=True)

    def __repr__(self) -> str:
        return f"Document({self.source!r}{f', title={short(self.title)}' if self.title else ''})"


@final
@attrs.frozen
class SearchResult(Value):
    """A search result that the caller gives to the model, citable.

    Args:
        source: Where it is from.
        title: Its title.
        content: Its text blocks; at least one, none empty.
        citations: Whether the model may cite it.
    """

    type: ClassVar[Literal["search_result"]] = "search_result"
    roles: ClassVar[frozenset[Role]] = USER
    misplaced: ClassVar[Rule] = PLACE_SEARCH_RESULT
    admits_marker: ClassVar[bool] = True
    source: str = field(metadata=flow(Flow.CALLER, free=True), repr=short)
    title: str = field(metadata=flow(Flow.CALLER, free=True), repr=short)
    content: tuple[Text, ...] = field(
        converter=_texts,
        metadata=flow(
            Flow.CALLER, length(SEARCH_CONTENT, 1, None, "Add a text block."), wrong=SEARCH_CONTENT
        ),
        repr=size,
    )
    citations: CitationsConfig | None = field(default=None, metadata=CALLER, kw_only=True)

    def faults(self) -> Iterable[Violation]:
        for i, text in enumerate(self.content):
            if not text.text:
                yield Violation(SEARCH_CONTENT, f"content[{i}].text", "empty text", "Drop the block.")


@final
@attrs.frozen
class ContainerUpload(Value):
    """A file for the container of the code execution tool.

    Args:
        file_id: The id that the Files API gave.
    """

    type: ClassVar[Literal["container_upload"]] = "container_upload"
    roles: ClassVar[frozenset[Role]] = frozenset({"user", "assistant"})
    misplaced: ClassVar[Rule] = PLACE_SYSTEM
    admits_marker: ClassVar[bool] = True
    file_id: str = field(metadata=SHARED)


# ---------------------------------------------------------------- thinking


THOUGHT = flow(Flow.ECHO, missing=THINKING_FIELDS, wrong=THINKING_FIELDS)


@final
@attrs.frozen
class Thinking(Value):
    """A signed thought of the model. It goes back exactly as it came, and where it stood.

    Args:
        thinking: The text; empty where the service was asked to omit it.
        signature: The service's signature.

    Raises:
        ValidationError: `thinking-empty-and-unsigned` or `thinking-signature-valid` without a signature.
    """

    type: ClassVar[Literal["thinking"]] = "thinking"
    roles: ClassVar[frozenset[Role]] = ASSISTANT
    misplaced: ClassVar[Rule] = PLACE_THINKING
    thinking: str = field(metadata=THOUGHT, repr=size)
    signature: str = field(metadata=THOUGHT, repr=size)

    def faults(self) -> Iterable[Violation]:
        if not self.signature:
            rule = THINKING_SIGNATURE if self.thinking else THINKING_EMPTY
            yield Violation(
                rule, "signature", "an empty signature", "Drop the block, or keep it as UnsignedThinking."
            )


@final
@attrs.frozen
class RedactedThinking(Value):
    """A thought that the service encrypted. It goes back exactly as it came, and where it stood.

    Args:
        data: Opaque.
    """

    type: ClassVar[Literal["redacted_thinking"]] = "redacted_thinking"
    roles: ClassVar[frozenset[Role]] = ASSISTANT
    misplaced: ClassVar[Rule] = PLACE_THINKING
    data: str = field(
        metadata=flow(Flow.ECHO, length(THINKING_SIGNATURE, 1, None, "Drop the block.")), repr=size
    )


@final
@attrs.frozen
class UnsignedThinking(Value):
    """A thought without a signature, from a compatible endpoint. It goes back to its issuer and to nobody else.

    Args:
        thinking: The text.
        signature: Empty text where the issuer sent an empty signature, which goes back to it.
    """

    type: ClassVar[Literal["unsigned_thinking"]] = "unsigned_thinking"
    roles: ClassVar[frozenset[Role]] = ASSISTANT
    misplaced: ClassVar[Rule] = PLACE_THINKING
    thinking: str = field(metadata=ECHO, repr=size)
    signature: Literal[""] | None = field(default=None, metadata=ECHO)


# ---------------------------------------------------------------- calls and results


@final
@attrs.frozen
class DirectCaller(Value):
    """The model itself made the call."""

    type: ClassVar[Literal["direct"]] = "direct"


CODE_CALL = flow(Flow.SHARED, matches(CALLER_SHAPE, r"srvtoolu_[a-zA-Z0-9_]+", "Echo the caller as it came."))


@final
@attrs.frozen
class ServerToolCaller(Value):
    """Code that the service ran made the call (code execution of 2025-08-25).

    Args:
        tool_id: The id of the server tool call that ran the code.
    """

    type: ClassVar[Literal["code_execution_20250825"]] = "code_execution_20250825"
    tool_id: str = field(metadata=CODE_CALL)


@final
@attrs.frozen
class ServerToolCaller20260120(Value):
    """Code that the service ran made the call (code execution of 2026-01-20).

    Args:
        tool_id: The id of the server tool call that ran the code.
    """

    type: ClassVar[Literal["code_execution_20260120"]] = "code_execution_20260120"
    tool_id: str = field(metadata=CODE_CALL)


Caller: TypeAlias = DirectCaller | ServerToolCaller | ServerToolCaller20260120
CALLED_BY = flow(Flow.ECHO, wrong=CALLER_SHAPE)


@final
@attrs.frozen
class ToolReference(Value):
    """Names a tool that a tool search of the caller's own found.

    Args:
        tool_name: The name of a declared tool.
    """

    type: ClassVar[Literal["tool_reference"]] = "tool_reference"
    admits_marker: ClassVar[bool] = True
    tool_name: str = field(
        metadata=flow(Flow.CALLER, matches(TOOL_REFERENCE, r"[a-zA-Z0-9_-]{1,256}", "Name a declared tool."))
    )


def _objects(value: "Iterable[Mapping[str, Any]] | None") -> Any:
    if value is None:
        return None
    items = _tuple(value)
    if not isinstance(cast("object", items), tuple):
        return items
    return tuple(freeze(item) if isinstance(cast("object", item), Mapping) else item for item in items)


@final
@attrs.frozen
class BrowserState(Value):
    """What a browser tool of the caller's own shows after an action.

    Args:
        tabs: One object a tab: `tab_id`, `title`, `url`, `active`.
        state_changes: What happened: tabs opened, downloads.
    """

    type: ClassVar[Literal["browser_state"]] = "browser_state"
    nullable_on_wire: ClassVar[frozenset[str]] = frozenset({"state_changes"})
    admits_marker: ClassVar[bool] = True
    tabs: tuple[JsonObject, ...] = field(
        converter=_objects,
        metadata=flow(Flow.CALLER, kind=Many(Shaped("browser_tab", tagged=False)), free=True),
        repr=size,
    )
    state_changes: tuple[JsonObject, ...] | None = field(
        default=None,
        converter=_objects,
        repr=size,
        metadata=flow(
            Flow.CALLER,
            kind=Many(Shaped("tab_opened", "download_started", "download_completed", "download_failed")),
            free=True,
        ),
    )


ResultContent: TypeAlias = Text | Image | SearchResult | Document | ToolReference | BrowserState


@final
@attrs.frozen
class ToolResult(Value):
    """The answer to a call, by the user's side. `ToolUse.result` makes one that fits its call.

    Args:
        tool_use_id: The id of the call.
        content: Text, or blocks (a plain string among them is a text block); None and empty content are legal.
        is_error: True if the tool failed; then the content is text only. None leaves the key out.
        toolset_name: The toolset of the call, where it has one.
        synthetic: Why convmodel made this result in place of a real one: `interrupted`, `not_run` or `lost`. Kept in
            the stored form, never sent.

    Raises:
        ValidationError: `tool-use-id-pattern`, `tool-result-error-text-only`, `tool-result-search-homogeneous`,
            `tool-result-content-types`, or a fault of a field's type.

    >>> ToolResult("toolu_1", "21 degrees")
    ToolResult('toolu_1', content=<10 characters>)
    """

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    roles: ClassVar[frozenset[Role]] = USER
    misplaced: ClassVar[Rule] = PLACE_TOOL_RESULT
    # The reference allows a null content that the SDK's types do not; a live probe of August 2026 had it accepted.
    nullable_on_wire: ClassVar[frozenset[str]] = frozenset({"content", "toolset_name"})
    admits_marker: ClassVar[bool] = True
    tool_use_id: str = field(metadata=CLIENT_ID)
    content: str | tuple[ResultContent, ...] | None = field(
        default=None, converter=_result_content, metadata=flow(Flow.CALLER, wrong=RESULT_CONTENT, free=True)
    )
    is_error: bool | None = field(default=None, metadata=CALLER, kw_only=True)
    toolset_name: str | None = field(default=None, metadata=TOOLSET, kw_only=True)
    synthetic: Literal["interrupted", "not_run", "lost"] | None = field(
        default=None, metadata=LOCAL, kw_only=True
    )

    def faults(self) -> Iterable[Violation]:
        if self.is_error and self.toolset_name is not None and not self.says:
            yield Violation(ERROR_HAS_TEXT, "content", "an error without text", "Say what went wrong.")
        if not isinstance(self.content, tuple):
            return
        kinds = [block.type for block in self.content]
        if self.is_error:
            for i, kind in enumerate(kinds):
                if kind != "text":
                    fix = "Keep the text, and give the rest in a later user turn."
                    yield Violation(ERROR_TEXT_ONLY, f"content[{i}]", f"`{kind}` in an error result", fix)
        if "search_result" in kinds:
            for i, kind in enumerate(kinds):
                if kind != "search_result":
                    fix = "Give search results alone."
                    yield Violation(
                        SEARCH_HOMOGENEOUS, f"content[{i}]", f"`{kind}` beside search results", fix
                    )

    @property
    def says(self) -> bool:
        """Whether there is any text in it."""
        if self.content is None or isinstance(self.content, str):
            return bool(self.content)
        return any(isinstance(block, Text) and block.text for block in self.content)

    def __repr__(self) -> str:
        error = f", is_error={self.is_error}" if self.is_error is not None else ""
        made = f", synthetic={self.synthetic!r}" if self.synthetic else ""
        return f"ToolResult({self.tool_use_id!r}, content={size(self.content)}{error}{made})"


@final
@attrs.frozen
class ToolUse(Value):
    """A call of one of the caller's tools, by the model.

    Args:
        id: The call's id, unique in the conversation.
        name: The tool's name.
        input: The arguments, as any mapping of JSON values; it is copied.
        caller: Who made the call, if the service said so.
        toolset_name: The toolset that the tool belongs to, if any.

    Raises:
        ValidationError: `tool-use-id-pattern`, `tool-use-name`, `tool-use-input-object`, `json-value`,
            `toolset-name-pattern`, or a fault of a field's type.

    >>> call = ToolUse("toolu_1", "weather", {"city": "Paris"})
    >>> call.input["city"]
    'Paris'
    """

    type: ClassVar[Literal["tool_use"]] = "tool_use"
    roles: ClassVar[frozenset[Role]] = ASSISTANT
    misplaced: ClassVar[Rule] = PLACE_TOOL_USE
    nullable_on_wire: ClassVar[frozenset[str]] = frozenset({"toolset_name"})
    admits_marker: ClassVar[bool] = True
    id: str = field(metadata=CLIENT_ID)
    name: str = field(
        metadata=flow(Flow.SHARED, length(TOOL_USE_NAME, 1, 200, "Use the name of a declared tool."))
    )
    input: JsonObject = field(
        converter=freeze, metadata=flow(Flow.SHARED, missing=TOOL_USE_INPUT, wrong=TOOL_USE_INPUT, free=True)
    )
    caller: Caller | None = field(default=None, metadata=CALLED_BY, kw_only=True)
    toolset_name: str | None = field(default=None, metadata=TOOLSET, kw_only=True)

    def result(
        self, content: "str | Iterable[str | ResultContent] | None" = None, *, is_error: bool | None = None
    ) -> ToolResult:
        """The result that answers this call; it echoes what the pair needs.

        Args:
            content: Text or blocks; None for nothing.
            is_error: True if the tool failed.

        Raises:
            ValidationError: As `ToolResult` does.

        >>> ToolUse("toolu_1", "weather", {"city": "Paris"}).result("21 degrees").tool_use_id
        'toolu_1'
        """
        return ToolResult(self.id, content, is_error=is_error, toolset_name=self.toolset_name)

    @property
    def is_programmatic(self) -> bool:
        """Whether code that the service runs made the call."""
        return self.caller is not None and self.caller.type != "direct"

    def __repr__(self) -> str:
        return f"ToolUse({self.id!r}, {short(self.name)}, input={self.input!r})"


# ---------------------------------------------------------------- server tools


@final
@attrs.frozen
class ServerToolUse(Value):
    """A call of one of the service's own tools; the service answers it.

    Args:
        id: The call's id.
        name: The tool.
        input: The arguments.
        caller: Who made the call, if the service said so.
    """

    type: ClassVar[Literal["server_tool_use"]] = "server_tool_use"
    roles: ClassVar[frozenset[Role]] = ASSISTANT
    misplaced: ClassVar[Rule] = PLACE_SERVER_TOOLS
    admits_marker: ClassVar[bool] = True
    id: str = field(metadata=SERVER_ID_FIELD)
    name: Literal[
        "web_search",
        "web_fetch",
        "code_execution",
        "bash_code_execution",
        "text_editor_code_execution",
        "tool_search_tool_regex",
        "tool_search_tool_bm25",
    ] = field(metadata=flow(Flow.ECHO, wrong=SERVER_NAME))
    input: JsonObject = field(
        converter=freeze, metadata=flow(Flow.ECHO, missing=TOOL_USE_INPUT, wrong=TOOL_USE_INPUT, free=True)
    )
    caller: Caller | None = field(default=None, metadata=CALLED_BY, kw_only=True)


def _result(*rows: str) -> dict[str, Any]:
    return flow(Flow.ECHO, kind=Shaped(*rows))


def _frozen_content(value: "Mapping[str, Any] | Iterable[Mapping[str, Any]]") -> Any:
    return freeze(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else _objects(value)


@final
@attrs.frozen
class WebSearchToolResult(Value):
    """What the service's web search found; it goes back as it came.

    Args:
        tool_use_id: The id of the server call.
        content: The results, or one error object.
        caller: Who made the call, if the service said so.
    """

    type: ClassVar[Literal["web_search_tool_result"]] = "web_search_tool_result"
    roles: ClassVar[frozenset[Role]] = ASSISTANT
    misplaced: ClassVar[Rule] = PLACE_SERVER_TOOLS
    answers: ClassVar[frozenset[str]] = frozenset({"web_search"})
    admits_marker: ClassVar[bool] = True
    tool_use_id: str = field(metadata=SERVER_ID_FIELD)
    content: JsonObject | tuple[JsonObject, ...] = field(
        converter=_frozen_content,
        repr=False,
        metadata=flow(
            Flow.ECHO, kind=Either(Shaped("web_search_tool_result_error"), Many(Shaped("web_search_result")))
        ),
    )
    caller: Caller | None = field(default=None, metadata=CALLED_BY, kw_only=True)


@final
@attrs.frozen
class WebFetchToolResult(Value):
    """What the service's web fetch brought; it goes back as it came.

    Args:
        tool_use_id: The id of the server call.
        content: The fetched document or an error.
        caller: Who made the call, if the service said so.
    """

    type: ClassVar[Literal["web_fetch_tool_result"]] = "web_fetch_tool_result"
    roles: ClassVar[frozenset[Role]] = ASSISTANT
    misplaced: ClassVar[Rule] = PLACE_SERVER_TOOLS
    answers: ClassVar[frozenset[str]] = frozenset({"web_fetch"})
    admits_marker: ClassVar[bool] = True
    tool_use_id: str = field(metadata=SERVER_ID_FIELD)
    content: JsonObject = field(
        converter=freeze, metadata=_result("web_fetch_result", "web_fetch_tool_result_error"), repr=False
    )
    caller: Caller | None = field(default=None, metadata=CALLED_BY, kw_only=True)


@final
@attrs.frozen
class CodeExecutionToolResult(Value):
    """What the service's code execution gave; it goes back as it came.

    Args:
        tool_use_id: The id of the server call.
        content: The result or an error.
    """

    type: ClassVar[Literal["code_execution_tool_result"]] = "code_execution_tool_result"
    roles: ClassVar[frozenset[Role]] = ASSISTANT
    misplaced: ClassVar[Rule] = PLACE_SERVER_TOOLS
    answers: ClassVar[frozenset[str]] = frozenset({"code_execution"})
    admits_marker: ClassVar[bool] = True
    tool_use_id: str = field(metadata=SERVER_ID_FIELD)
    content: JsonObject = field(
        converter=freeze,
        repr=False,
        metadata=_result(
            "code_execution_result", "encrypted_code_execution_result", "code_execution_tool_result_error"
        ),
    )


@final
@attrs.frozen
class BashCodeExecutionToolResult(Value):
    """What a shell command in the service's container gave; it goes back as it came.

    Args:
        tool_use_id: The id of the server call.
        content: The result or an error.
    """

    type: ClassVar[Literal["bash_code_execution_tool_result"]] = "bash_code_execution_tool_result"
    roles: ClassVar[frozenset[Role]] = ASSISTANT
    misplaced: ClassVar[Rule] = PLACE_SERVER_TOOLS
    answers: ClassVar[frozenset[str]] = frozenset({"bash_code_execution"})
    admits_marker: ClassVar[bool] = True
    tool_use_id: str = field(metadata=SERVER_ID_FIELD)
    content: JsonObject = field(
        converter=freeze,
        repr=False,
        metadata=_result("bash_code_execution_result", "bash_code_execution_tool_result_error"),
    )


@final
@attrs.frozen
class TextEditorCodeExecutionToolResult(Value):
    """What the text editor in the service's container gave; it goes back as it came.

    Args:
        tool_use_id: The id of the server call.
        content: The result or an error.
    """

    type: ClassVar[Literal["text_editor_code_execution_tool_result"]] = (
        "text_editor_code_execution_tool_result"
    )
    roles: ClassVar[frozenset[Role]] = ASSISTANT
    misplaced: ClassVar[Rule] = PLACE_SERVER_TOOLS
    answers: ClassVar[frozenset[str]] = frozenset({"text_editor_code_execution"})
    admits_marker: ClassVar[bool] = True
    tool_use_id: str = field(metadata=SERVER_ID_FIELD)
    content: JsonObject = field(
        converter=freeze,
        repr=False,
        metadata=_result(
            "text_editor_code_execution_view_result",
            "text_editor_code_execution_create_result",
            "text_editor_code_execution_str_replace_result",
            "text_editor_code_execution_tool_result_error",
        ),
    )


@final
@attrs.frozen
class ToolSearchToolResult(Value):
    """What the service's tool search found; it goes back as it came.

    Args:
        tool_use_id: The id of the server call.
        content: The tool references or an error.
    """

    type: ClassVar[Literal["tool_search_tool_result"]] = "tool_search_tool_result"
    roles: ClassVar[frozenset[Role]] = ASSISTANT
    misplaced: ClassVar[Rule] = PLACE_SERVER_TOOLS
    answers: ClassVar[frozenset[str]] = frozenset({"tool_search_tool_regex", "tool_search_tool_bm25"})
    admits_marker: ClassVar[bool] = True
    tool_use_id: str = field(metadata=SERVER_ID_FIELD)
    content: JsonObject = field(
        converter=freeze,
        repr=False,
        metadata=_result("tool_search_tool_search_result", "tool_search_tool_result_error"),
    )


ServerToolResult: TypeAlias = (
    WebSearchToolResult
    | WebFetchToolResult
    | CodeExecutionToolResult
    | BashCodeExecutionToolResult
    | TextEditorCodeExecutionToolResult
    | ToolSearchToolResult
)


@final
@attrs.frozen
class OpaqueBlock(Value):
    """A block of a type, or a call of a server tool, that is not known yet. It stays in place and goes back as it came.

    Args:
        data: The whole block, with its `type`.

    Raises:
        ValidationError: `required-field` without a type; `field-value` for a block that has a class of its own;
            `cache-not-on-thinking` for a cache marker.

    >>> OpaqueBlock({"type": "connector_text", "connector_text": "…"}).type
    'connector_text'
    """

    roles: ClassVar[frozenset[Role]] = ASSISTANT
    misplaced: ClassVar[Rule] = BLOCK_TYPE
    data: JsonObject = field(converter=freeze, metadata=ECHO, repr=False)

    @property
    def type(self) -> str:
        """The type that the service gave."""
        return cast("str", self.data["type"])

    @property
    def id(self) -> str | None:
        """The id that the service gave, if it did."""
        return self._text("id")

    @property
    def tool_use_id(self) -> str | None:
        """The id of the call that the block answers, if it answers one."""
        return self._text("tool_use_id")

    @property
    def name(self) -> str | None:
        """The name that the service gave, if it did."""
        return self._text("name")

    def _text(self, key: str) -> str | None:
        value = self.data.get(key)
        return value if isinstance(value, str) else None

    def faults(self) -> Iterable[Violation]:
        if "type" not in self.data:
            yield Violation(REQUIRED_FIELD, "data.type", "nothing", "Add `type`.")
        elif not isinstance(self.data["type"], str):
            yield Violation(FIELD_TYPE, "data.type", described(self.data["type"]), "Use text.")
        elif class_of(self.data) is not None:
            yield Violation(FIELD_VALUE, "data.type", f"the known type {self.type!r}", "Use its own class.")
        elif self.type == ServerToolUse.type and self.id is None:
            yield Violation(REQUIRED_FIELD, "data.id", "nothing", "Add `id`.")
        if "cache_control" in self.data:
            fix = "Remove it; markers are placed when a request is written."
            yield Violation(CACHE_PLACE, "data.cache_control", "a cache marker", fix)

    def __repr__(self) -> str:
        return f"OpaqueBlock({short(self.type)})"


def referred_tools(block: object) -> Iterator[str]:
    """The names of tools that a block refers to: by calling one, or because a tool search has found it."""
    if type(block) is ToolUse:
        yield block.name
    elif type(block) is ToolResult and isinstance(block.content, tuple):
        yield from (part.tool_name for part in block.content if type(part) is ToolReference)
    elif type(block) is ToolSearchToolResult:
        found = block.content.get("tool_references")
        for each in found if isinstance(found, list) else ():
            if isinstance(each, dict) and isinstance(each.get("tool_name"), str):
                yield each["tool_name"]


# ---------------------------------------------------------------- unions

UserBlock: TypeAlias = Text | Image | Document | SearchResult | ToolResult | ContainerUpload
"""What a user turn may hold."""

AssistantBlock: TypeAlias = (
    Text
    | Thinking
    | RedactedThinking
    | UnsignedThinking
    | ToolUse
    | ServerToolUse
    | WebSearchToolResult
    | WebFetchToolResult
    | CodeExecutionToolResult
    | BashCodeExecutionToolResult
    | TextEditorCodeExecutionToolResult
    | ToolSearchToolResult
    | ContainerUpload
    | Document
    | OpaqueBlock
)
"""What an assistant turn may hold."""

Block: TypeAlias = UserBlock | AssistantBlock
"""Any block."""

BLOCKS: dict[str, type[Any]] = {
    cls.type: cls for cls in cast("Any", Block).__args__ if cls is not OpaqueBlock
}
"""The class of each block type."""

_SERVER_TOOLS = frozenset(get_args(attrs.fields(ServerToolUse).name.type))


def class_of(data: Mapping[str, Any]) -> type[Any] | None:
    """The class of a block's data; None for a type, or a call of a server tool, that this version does not know."""
    cls = BLOCKS.get(data["type"])
    new = cls is ServerToolUse and isinstance(data.get("name"), str) and data["name"] not in _SERVER_TOOLS
    return None if new else cls
