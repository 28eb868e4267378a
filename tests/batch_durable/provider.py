"""A provider with batch APIs of its own, in a thread: it runs nothing until the test says so, and records its requests."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


class Provider:
    """``batches`` are those that were made, by their id: the requests of each by its custom_id."""

    def __init__(self) -> None:
        self.batches: dict[str, dict[str, Any]] = {}
        self.names: dict[str, str] = {}
        self.uploads: dict[str, bytes] = {}
        self.calls: list[dict[str, Any]] = []
        self.ended: set[str] = set()
        self.cancelled: set[str] = set()
        self.refuses = False
        self.url = ""

    def end(self) -> None:
        """Every batch has run."""
        self.ended |= set(self.batches)

    # --- what is answered

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if self.refuses:
            return 503, {"error": {"message": "no batches today", "type": "server_error"}}
        place = path.partition("?")[0].removeprefix("/v1")
        match method, place.strip("/").split("/"):
            case "POST", ["files"]:
                found = re.search(rb'name="file".*?\r\n\r\n(.*?)\r\n--', body, re.S)
                assert found is not None
                name = f"file-{len(self.uploads)}"
                self.uploads[name] = found[1]
                return 200, {"id": name}
            case "POST", ["batches"]:
                asked = json.loads(body)
                lines = [json.loads(line) for line in self.uploads[asked["input_file_id"]].splitlines()]
                assert {line["url"] for line in lines} == {asked["endpoint"]}
                id = self._made({line["custom_id"]: line["body"] for line in lines})
                self.names[id] = asked["metadata"]["name"]
                return 200, self._file_batch(id)
            case "GET", ["batches"]:
                return 200, {"data": [self._file_batch(id) for id in self.names]}
            case "GET", ["batches", id]:
                return 200, self._file_batch(id)
            case "POST", ["batches", id, "cancel"]:
                self.cancelled.add(id)
                return 200, self._file_batch(id)
            case "GET", ["files", id, "content"]:
                return 200, self._file_results(id.removeprefix("out-"))
            case "POST", ["messages", "batches"]:
                asked = json.loads(body)["requests"]
                return 200, self._message_batch(self._made({one["custom_id"]: one["params"] for one in asked}))
            case "GET", ["messages", "batches", id]:
                return 200, self._message_batch(id)
            case "GET", ["messages", "batches", id, "results"]:
                return 200, self._message_results(id)
            case "POST", ["chat", "completions"]:
                self.calls.append(json.loads(body))
                return 200, chat_answer(json.loads(body))
        return 404, {"error": {"message": f"nothing at {path}"}}

    def _made(self, requests: dict[str, Any]) -> str:
        id = f"remote-{len(self.batches)}"
        self.batches[id] = requests
        return id

    def _file_batch(self, id: str) -> dict[str, Any]:
        over = id in self.ended or id in self.cancelled
        status = "cancelled" if id in self.cancelled else "completed" if over else "in_progress"
        made = {"id": id, "object": "batch", "status": status, "metadata": {"name": self.names.get(id)}}
        return made | {"output_file_id": f"out-{id}" if over else None, "error_file_id": None}

    def _file_results(self, id: str) -> bytes:
        """In another order than they were asked, and nothing for what was cancelled."""
        if id in self.cancelled:
            return b""
        lines = []
        for name, body in reversed(self.batches[id].items()):
            question = body["messages"][-1]["content"]
            if question.endswith("bad"):
                response: Any = {"status_code": 400, "body": {"error": {"message": "refused", "code": "bad_word"}}}
            elif question.endswith("lost"):
                lines.append({"custom_id": name, "response": None, "error": {"code": "batch_expired", "message": "late"}})
                continue
            else:
                response = {"status_code": 200, "body": chat_answer(body)}
            lines.append({"custom_id": name, "response": response, "error": None})
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    def _message_batch(self, id: str) -> dict[str, Any]:
        over = id in self.ended
        url = f"/v1/messages/batches/{id}/results" if over else None
        return {"id": id, "type": "message_batch", "processing_status": "ended" if over else "in_progress", "results_url": url}

    def _message_results(self, id: str) -> bytes:
        lines = []
        for name, body in reversed(self.batches[id].items()):
            question = body["messages"][-1]["content"]
            question = question if isinstance(question, str) else question[0]["text"]
            message = {"id": "m", "type": "message", "role": "assistant", "model": body["model"], "stop_reason": "end_turn"}
            message |= {
                "content": [{"type": "text", "text": f"answer to {question}"}],
                "usage": {"input_tokens": 7, "output_tokens": 2},
            }
            result: Any = {"type": "succeeded", "message": message}
            if question.endswith("bad"):
                error = {"type": "error", "error": {"type": "invalid_request_error", "message": "refused"}}
                result = {"type": "errored", "error": error}
            lines.append({"custom_id": name, "result": result})
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def chat_answer(body: dict[str, Any]) -> dict[str, Any]:
    question = f"answer to {body['messages'][-1]['content']}"
    choice = {"index": 0, "message": {"role": "assistant", "content": question}, "finish_reason": "stop"}
    usage = dict.fromkeys(USAGE, 2**39) if question.endswith("huge usage") else USAGE
    return {"id": "c1", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice], "usage": usage}


@contextmanager
def provider() -> Iterator[Provider]:
    state = Provider()

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _body(self) -> bytes:
            if self.headers.get("transfer-encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("content-length", 0)))
            pieces = []
            while size := int(self.rfile.readline(), 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)

        def do_GET(self) -> None:
            status, found = state.answer(self.command, self.path, self._body())
            data = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
