"""A server of the web chat as it really works: it makes the chats, demands one, and keeps their messages."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct, field

USAGE = {"input_tokens": 25, "output_tokens": 15}


class Asked(Struct):
    path: str
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def content(self) -> str:
        text: str = self.body["messages"][0]["content"]
        return text

    @property
    def place(self) -> tuple[str, str | None]:
        """The chat and the message that it follows."""
        return self.body["chat_id"], self.body["parent_id"]


class WebChat(Struct):
    """``answer`` says what to answer to a text: words, one chunk each. ``cookie``, if it is set, must be sent. ``refusals`` are the
    next answers to requests for a new chat: a status and a body. ``own`` are chats that exist already."""

    url: str = ""
    cookie: str = ""
    usage: dict[str, int] | None = field(default_factory=lambda: dict(USAGE))
    answer: Callable[[str], list[str]] = lambda text: [f"You said {len(text)} characters."]
    refusals: list[tuple[int, Any]] = field(default_factory=list)
    failures: list[tuple[int, Any]] = field(default_factory=list)
    chats: dict[str, set[str]] = field(default_factory=dict)
    made: list[Asked] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)

    @property
    def places(self) -> list[tuple[str, str | None]]:
        return [one.place for one in self.asked]

    def reply(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, str, bytes]:
        where, one = urlsplit(path), Asked(path, body, headers)
        if self.cookie and headers.get("cookie") != self.cookie:
            return 401, "application/json", _json({"success": False, "data": {"code": "Unauthorized", "details": "log in"}})
        if where.path == "/api/v2/chats/new":
            self.made.append(one)
            if self.refusals:
                status, refusal = self.refusals.pop(0)
                return status, "application/json", refusal if isinstance(refusal, bytes) else _json(refusal)
            chat = f"chat-{len(self.chats) + 1}"
            self.chats[chat] = set()
            return 200, "application/json", _json({"success": True, "request_id": "q", "data": {"id": chat}})
        assert where.path == "/api/v2/chat/completions", path
        if self.failures:
            status, refusal = self.failures.pop(0)
            return status, "application/json", _json(refusal)
        chat, parent = body["chat_id"], body["parent_id"]
        known = self.chats.get(chat)
        if not chat or parse_qs(where.query).get("chat_id") != [chat] or known is None or (parent and parent not in known):
            return (
                200,
                "application/json",
                _json({"success": False, "data": {"code": "Not_Found", "details": f"no chat {chat!r}"}}),
            )
        self.asked.append(one)
        response = f"r-{len(self.asked)}"
        known.add(response)
        words = self.answer(one.content)
        if not body["stream"]:
            message = {"role": "assistant", "content": "".join(words)}
            data = {"chat_id": chat, "parent_id": parent, "message_id": response, "choices": [{"message": message}]}
            return 200, "application/json", _json({"success": True, "data": data})
        chunks: list[dict[str, Any]] = [{"response.created": {"chat_id": chat, "parent_id": parent, "response_id": response}}]
        chunks += [{"choices": [{"delta": {"role": "assistant", "content": word, "phase": "answer"}}]} for word in words]
        chunks.append({"choices": [{"delta": {"content": "", "phase": "answer", "status": "finished"}}]})
        if self.usage is not None:
            chunks[-2 if words else -1]["usage"] = self.usage
        stream = b"".join(b"data: " + _json(chunk) + b"\n\n" for chunk in chunks)
        return 200, "text/event-stream", stream + b"data: [DONE]\n\n"


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


@contextmanager
def web_chat() -> Iterator[WebChat]:
    chat = WebChat()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, kind, data = chat.reply(self.path, body, {name.lower(): value for name, value in self.headers.items()})
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    chat.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield chat
    finally:
        server.shutdown()
        server.server_close()
