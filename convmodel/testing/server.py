"""A local stand-in for the Messages API that judges each request and answers from a script."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

from .cache import PrefixCache
from .judge import judge
from .prefix import BINDING_BETA, Checked, Signer
from .schema import block_types
from .streaming import Streamed, to_parts

if TYPE_CHECKING:
    from socketserver import BaseServer
    from types import TracebackType
    from typing import Self

__all__ = ["ApiError", "MessagesServer", "ScriptedReply"]

Json = dict[str, Any]

_MEGABYTE = 2**20
# Size of a body per platform ("Errors" page); other platforms take what the Anthropic platform takes.
_MAX_BODY = {"bedrock": 20 * _MEGABYTE, "bedrock_converse": 20 * _MEGABYTE, "vertex": 30 * _MEGABYTE}
_SECONDS_TO_END = 5.0


@dataclass(frozen=True, slots=True)
class ApiError:
    """An error to answer with, in the API's error format.

    `status` is the HTTP status, `type` the API's name of the error, `message` its text. The SDK retries 408,
    409, 429 and 5xx by itself, and each retry takes the next reply of the script.

    >>> ApiError(529, "overloaded_error", "Overloaded").status
    529
    """

    status: int
    type: str
    message: str


class _ScriptError(ApiError):
    """A fault of the script, which a retry would meet again, so that the SDK is told not to."""

    __slots__ = ()


Answer = Sequence[Mapping[str, object]] | Mapping[str, object] | ApiError
_Sent = Json | list[bytes | float] | ApiError  # a response, the parts of a stream, an error
ScriptedReply = Answer | Streamed | Callable[[Json], Answer | Streamed]
"""What a script may hold: content blocks, a whole response, an error, how to stream one, or a function of the body."""


class MessagesServer:
    """The Messages API on a free port of this machine: strict in what it takes, scripted in what it answers.

    `script` gives the replies in order; each accepted request takes one. A reply is

    - a list of content blocks; the stop reason is `tool_use` if one is a client's tool call, else `end_turn`;
    - a response as a mapping; keys of the envelope that it leaves out are filled in;
    - an `ApiError`;
    - `Streamed`, a reply with a say in how it is streamed, and what goes wrong with that;
    - a function of the request's body that returns one of these.

    Replies are sent as they are, without a check. With `preserved_thinking` the thinking in them is signed over
    the request that it answers, whatever signature the script gives, and later requests are held to it, as the
    models with preserved thinking do. With a `cache` the usage says what was read from it. `platform` says whose rules hold, as in `judge`. A request
    that `judge` finds fault with is answered with status 400 and takes no reply. One that asks for streaming gets the
    same reply as events. When the script has no reply left, or a function in it fails, the answer is status 500.

    Use it as a context manager; inside, it serves any number of clients and threads.

    >>> import anthropic
    >>> with MessagesServer([[{"type": "text", "text": "Hello."}]]) as server:
    ...     with anthropic.Anthropic(base_url=server.url, api_key="any") as client:
    ...         said = [{"role": "user", "content": "Hi"}]
    ...         message = client.messages.create(model="claude-opus-5", max_tokens=64, messages=said)
    >>> message.content[0].text
    'Hello.'
    >>> server.requests[0]["messages"]
    [{'role': 'user', 'content': 'Hi'}]
    """

    def __init__(
        self,
        script: Iterable[ScriptedReply] = (),
        *,
        platform: str = "anthropic",
        preserved_thinking: bool = False,
        cache: PrefixCache | None = None,
    ) -> None:
        self._script = iter(script)
        self._platform = platform
        self._lock = threading.Lock()
        self._bodies: list[bytes] = []
        self._cache = cache
        self._signer = Signer(platform) if preserved_thinking else None
        self._requests: list[bytes] = []
        self._answered = 0
        self._unknown: list[object] = []
        self._live: dict[threading.Thread, socket.socket] = {}
        self._http: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """The base URL to give to a client; RuntimeError outside the `with` statement."""
        if self._http is None:
            message = (
                "the server runs inside a with statement only: with MessagesServer(script) as server: ..."
            )
            raise RuntimeError(message)
        return f"http://127.0.0.1:{self._http.server_port}"

    @property
    def requests(self) -> tuple[Json, ...]:
        """The bodies that came to `/v1/messages` as JSON, refused ones too, in order; fresh copies."""
        with self._lock:
            seen = list(self._requests)
        return tuple(json.loads(raw) for raw in seen)

    @property
    def bodies(self) -> tuple[bytes, ...]:
        """The bytes of every body that arrived at `/v1/messages`, whether or not they are JSON, in order."""
        with self._lock:
            return tuple(self._bodies)

    def __enter__(self) -> Self:
        self._http = _Http(("127.0.0.1", 0), partial(_Handler, self._live, self._answer))
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        http, self._http = self._http, None
        if http is not None:
            http.shutdown()
            http.server_close()
        # A kept-alive connection leaves its thread waiting for a request that will not come.
        for thread, connection in list(self._live.items()):
            with contextlib.suppress(OSError):  # the client may have been faster
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(_SECONDS_TO_END)

    def _answer(self, raw: bytes, betas: Sequence[str]) -> _Sent:
        """The response to the body of one request that came to the right address with a key, and to its betas."""
        with self._lock:
            self._bodies.append(raw)
        if len(raw) > _MAX_BODY.get(self._platform, 32 * _MEGABYTE):
            return ApiError(413, "request_too_large", "Request exceeds the maximum size")
        try:
            body: Any = json.loads(raw)
        except (ValueError, RecursionError) as error:
            return ApiError(400, "invalid_request_error", f"The request body is not valid JSON: {error}")
        with self._lock:
            self._requests.append(raw)
        if faults := judge(self._without_own(body), platform=self._platform, betas=betas):
            return ApiError(400, "invalid_request_error", faults[0].message)
        checked = self._signer.check(body) if self._signer else Checked()
        if checked.fault:
            return ApiError(400, "invalid_request_error", checked.fault.message)
        added = {"input_transformations": list(checked.dropped)} if BINDING_BETA in betas else {}
        try:
            return self._reply(body, added)
        except Exception as error:  # noqa: BLE001  # whatever a script does wrong is told to its client
            return _ScriptError(500, "api_error", f"the script failed: {type(error).__name__}: {error}")

    def _without_own(self, body: Any) -> Any:
        """A body without the blocks of unknown types that this server sent: the service takes its own blocks back."""
        messages = body.get("messages") if isinstance(body, dict) else None
        if not self._unknown or not isinstance(messages, list):
            return body

        def known(message: Any) -> Any:
            if not isinstance(message, dict) or message.get("role") != "assistant":
                return message
            content = message.get("content")
            if not isinstance(content, list):
                return message
            return {**message, "content": [block for block in content if block not in self._unknown]}

        return {**body, "messages": list(map(known, messages))}

    def _reply(self, body: Json, added: Json) -> _Sent:
        with self._lock:
            reply = next(self._script, None)
            self._answered += 1
            number = self._answered
        if reply is None:
            return _ScriptError(500, "api_error", "the script has no reply left")
        answer = reply(body) if callable(reply) else reply
        if isinstance(answer, ApiError):
            return answer
        streamed = answer if isinstance(answer, Streamed) else Streamed(answer)
        if streamed is answer and not body.get("stream"):
            raise ValueError("a Streamed reply to a request that does not ask for streaming")
        answer = streamed.reply
        given: Json = dict(answer) if isinstance(answer, Mapping) else {"content": list(answer)}
        content: Any = given.get("content", [])
        if self._signer:
            given["content"] = content = self._signer.signed(body, content)
        calls = any(block.get("type") == "tool_use" for block in content)
        self._unknown += [block for block in content if block.get("type") not in block_types()]
        response = {
            "id": f"msg_{number:024}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1}
            | (self._cache.usage(body) if self._cache else {}),
            **given,
            **added,
        }
        json.dumps(response)  # a reply that is no JSON fails here, where it can be told
        return to_parts(streamed, response) if body.get("stream") else response


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that hangs up is no news."""


class _Handler(BaseHTTPRequestHandler):
    """One connection, in a thread of its own."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(
        self,
        live: dict[threading.Thread, socket.socket],
        answer: Callable[[bytes, Sequence[str]], _Sent],
        request: socket.socket,
        client_address: tuple[str, int],
        server: BaseServer,
    ) -> None:
        self._live = live
        self._answer = answer
        super().__init__(request, client_address, server)

    def setup(self) -> None:
        super().setup()
        self._live[threading.current_thread()] = self.connection

    def finish(self) -> None:
        self._live.pop(threading.current_thread())
        super().finish()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the tests that use the server own the terminal."""

    def do_POST(self) -> None:
        length = self.headers.get("content-length", "0")
        raw = self.rfile.read(int(length)) if length.isdecimal() else b""
        if self.command != "POST" or urlsplit(self.path).path != "/v1/messages":
            self._send(ApiError(404, "not_found_error", "Not found"))
        elif not (self.headers.get("x-api-key") or self.headers.get("authorization")):
            self._send(ApiError(401, "authentication_error", "x-api-key header is required"))
        else:
            betas = ",".join(self.headers.get_all("anthropic-beta", []))
            self._send(self._answer(raw, [beta.strip() for beta in betas.split(",")]))

    do_GET = do_PUT = do_PATCH = do_DELETE = do_POST  # noqa: N815

    def _send(self, answer: _Sent) -> None:
        headers = {"content-type": "application/json", "request-id": f"req_{uuid4().hex}"}
        if isinstance(answer, list):
            streaming = {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"}
            self._head(200, {**headers, **streaming})
            self._stream(answer)
            return
        status = 200
        if isinstance(answer, _ScriptError):
            headers["x-should-retry"] = "false"
        if isinstance(answer, ApiError):
            status = answer.status
            error = {"type": answer.type, "message": answer.message}
            answer = {"type": "error", "error": error, "request_id": headers["request-id"]}
        data = json.dumps(answer).encode()
        self._head(status, {**headers, "content-length": str(len(data))})
        self.wfile.write(data)

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _stream(self, parts: list[bytes | float]) -> None:
        for part in parts:
            if isinstance(part, bytes):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
                continue
            self.connection.settimeout(None if part == math.inf else part)
            with contextlib.suppress(TimeoutError):
                if not self.connection.recv(1):
                    raise ConnectionAbortedError  # the client has hung up
            self.connection.settimeout(None)
        self.close_connection = parts[-1:] != [b""]
