"""A mock upstream of the chat API: it answers with the text of the prompt, counts its requests, and fails on request."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from streamglot import Upstream


class _QuietServer(ThreadingHTTPServer):
    request_queue_size = 128  # the usual five are soon full while it stands still, and then the system drops connections

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up early is what some tests are about."""


class MockUpstream:
    """``asked`` counts prompts, ``bodies`` has what was posted. ``fails(prompt, times)`` returns a status to fail with, or 0.
    ``most`` is how many requests were open at once."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.fails: Callable[[str, int], int] = lambda prompt, times: 0
        self.hold: threading.Event | None = None
        self.held: Callable[[str], bool] = lambda prompt: True
        self.most = 0
        self._open = 0
        self._lock = threading.Lock()
        self._server = _QuietServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def upstream(self, **settings: Any) -> Upstream:
        return Upstream(**{"name": "mock", "base_url": self.url, "attempts": 1, "pause": 0.001, **settings})

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        if self.hold is not None:
            self.hold.set()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and body for one request."""
        if path.endswith("/embeddings"):
            return self.embeddings(body)
        prompt = str(body["messages"][-1]["content"])
        with self._lock:
            self.asked[prompt] += 1
            times = self.asked[prompt]
            self.bodies.append(body)
        if self.hold is not None and self.held(prompt):
            self.hold.wait(60)
        status = self.fails(prompt, times)
        if status:
            return status, {"error": {"message": f"failing {prompt}", "code": "mock_failure"}}
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        message = {"role": "assistant", "content": f"re: {prompt}"}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return 200, {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}

    def embeddings(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """A text's embedding is its length."""
        with self._lock:
            self.bodies.append(body)
        if self.hold is not None:
            self.hold.wait(60)
        given = body["input"] if isinstance(body["input"], list) else [body["input"]]
        status = max((self.fails(str(text), 1) for text in given), default=0)
        if status:
            return status, {"error": {"message": "failing", "code": "mock_failure"}}
        data = [{"object": "embedding", "index": place, "embedding": [len(text)]} for place, text in enumerate(given)]
        usage = {"prompt_tokens": 3 * len(given), "total_tokens": 3 * len(given)}
        return 200, {"object": "list", "data": data, "model": body["model"], "usage": usage}

    def _handler(mock) -> type[BaseHTTPRequestHandler]:  # noqa: N805  # `self` is the handler below
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = msgspec.json.decode(self.rfile.read(int(self.headers["content-length"])))
                with mock._lock:
                    mock.paths.append(self.path)
                    mock._open += 1
                    mock.most = max(mock.most, mock._open)
                try:
                    status, answer = mock.answer(self.path, body)
                finally:
                    with mock._lock:
                        mock._open -= 1
                if body.get("stream") and status == 200:
                    self._stream(answer)
                else:
                    self._send(status, "application/json", msgspec.json.encode(answer))

            def _stream(self, answer: dict[str, Any]) -> None:
                start = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
                text: str = answer["choices"][0]["message"]["content"]
                chunks: list[dict[str, Any]] = [{"index": 0, "delta": {"content": piece}} for piece in _pieces(text)]
                chunks.append({"index": 0, "delta": {}, "finish_reason": "stop"})
                lines = [{**start, "choices": [chunk]} for chunk in chunks]
                lines.append({**start, "choices": [], "usage": answer["usage"]})
                data = b"".join(b"data: " + msgspec.json.encode(line) + b"\n\n" for line in lines)
                self._send(200, "text/event-stream", data + b"data: [DONE]\n\n")

            def _send(self, status: int, media_type: str, data: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", media_type)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


def _pieces(text: str) -> list[str]:
    return [text[place : place + 3] for place in range(0, len(text), 3)]


@contextmanager
def mock_upstream() -> Iterator[MockUpstream]:
    server = MockUpstream()
    server.start()
    try:
        yield server
    finally:
        server.stop()
