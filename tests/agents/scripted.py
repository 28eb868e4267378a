"""The scripted upstream: a server with six dialects that answers by a script.

It is the upstream of the gateway, or of the agent itself in the control run.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from agents import wires
from agents.scenarios import Reply, Script
from agents.turns import asked
from streamglot.dialects import dialect
from streamglot.errors import StreamglotError

_ROUTES = (
    (re.compile(r"/v1/chat/completions"), "openai_chat"),
    (re.compile(r"/v1/responses"), "openai_responses"),
    (re.compile(r"/v1/messages"), "anthropic"),
    (re.compile(r"/v1(?:beta)?/models/(?P<model>.+):(?P<verb>streamGenerateContent|generateContent)"), "gemini"),
    (re.compile(r"/api/chat"), "ollama"),
    (re.compile(r"/model/(?P<model>[^/]+)/(?P<verb>converse-stream|converse)"), "bedrock_converse"),
)
_STREAMING_VERBS = ("streamGenerateContent", "converse-stream")
PATHS = {
    "openai_chat": "/v1",
    "openai_responses": "/v1",
    "anthropic": "",
    "gemini": "/v1beta",
    "ollama": "",
    "bedrock_converse": "",
}
"""The path after the address of this server in the ``base_url`` of an upstream."""


HANG_SECONDS = 600
"""Longer than any run: a run that is not interrupted ends by its own limit."""


class ScriptedUpstream(ThreadingHTTPServer):
    """``seen`` has a line for each request."""

    daemon_threads = True

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.seen: list[str] = []
        self.bodies: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedUpstream

    def log_message(self, format: str, *args: Any) -> None:
        """The runner keeps ``seen`` instead."""

    def do_HEAD(self) -> None:  # the name that the base class looks for
        self._note(200)
        self._reply(200, b"")

    def do_GET(self) -> None:
        if self.headers.get("upgrade"):
            self._note(426)
            self._reply(426, b"{}")
            return
        self._note(200)
        self._reply(200, json.dumps({"object": "list", "data": [], "models": [], "has_more": False}).encode())

    def do_POST(self) -> None:
        body = self._body()
        path = urlsplit(self.path).path
        for pattern, name in _ROUTES:
            found = pattern.fullmatch(path)
            if found is not None:
                self._answer(name, {key: unquote(value) for key, value in found.groupdict().items()}, body)
                return
        if path.endswith(":countTokens"):
            self._note(200)
            self._reply(200, b'{"totalTokens": 1200}')
        elif path.endswith("/count_tokens"):
            self._note(200)
            self._reply(200, b'{"input_tokens": 1200}')
        else:
            self._note(404)
            self._reply(404, b'{"error": {"message": "no such address", "type": "not_found_error"}}')

    # --- inside

    def _body(self) -> dict[str, Any]:
        data = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            pieces = []
            while size := int(self.rfile.readline().strip() or b"0", 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            data = b"".join(pieces)
        value = json.loads(data or b"{}")
        return value if isinstance(value, dict) else {}

    def _answer(self, name: str, named: dict[str, str], body: dict[str, Any]) -> None:
        parse: Any = dialect(name).parse_request
        try:
            if name == "gemini":
                request = parse(body, model=named["model"], stream=named["verb"] in _STREAMING_VERBS)
            elif name == "bedrock_converse":
                request = parse({**body, "modelId": named["model"]})
                request.stream = named["verb"] in _STREAMING_VERBS
            else:
                request = parse(body)
        except StreamglotError as error:
            self.server.script.fail(f"the request is not one of {name}: {error.message}")
            self._note(400, error.message)
            self._reply(400, wires.refused(name, 400, error.message))
            return
        self.server.bodies.append(body)
        conversation = asked(name, request, body)
        reply = self.server.script.answer(conversation)
        about = f"{len(conversation.tools)} tools, {len(conversation.results)} results, {'stream' if conversation.stream else 'whole'}, model {conversation.model}"
        if reply.status != 200:
            self._note(reply.status, about)
            headers = {"retry-after": str(reply.retry_after)} if reply.retry_after is not None else {}
            self._reply(reply.status, wires.refused(name, reply.status, "scripted refusal"), headers)
        elif conversation.stream:
            self._note(200, f"{about}{', cut' if reply.cut_after is not None else ''}")
            self._stream(name, reply, conversation.model)
        else:
            self._note(200, about)
            self._reply(200, wires.whole(name, reply.turn, conversation.model))

    def _stream(self, name: str, reply: Reply, model: str) -> None:
        self.send_response(200)
        self.send_header("content-type", wires.MEDIA_TYPES.get(name, "text/event-stream"))
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        pieces = wires.streamed(name, reply.turn, model)
        for piece in pieces[: reply.cut_after]:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.flush()
        if reply.cut_after is None:
            self.wfile.write(b"0\r\n\r\n")
        elif reply.hangs:
            self._wait_for_the_end()
        else:
            self.close_connection = True

    def _wait_for_the_end(self) -> None:
        script = self.server.script
        script.hangs.set()
        self.close_connection = True
        with suppress(OSError):
            self.connection.settimeout(HANG_SECONDS)
            if self.connection.recv(1):
                return  # it sends more: it did not hang up
        script.hung_up.set()

    def _reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for header, value in {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _note(self, status: int, about: str = "") -> None:
        self.server.seen.append(f"{self.command} {self.path} {status} {about}".rstrip())


@contextmanager
def scripted(script: Script) -> Iterator[ScriptedUpstream]:
    server = ScriptedUpstream(script)
    thread = threading.Thread(target=server.serve_forever, name="scripted upstream", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
