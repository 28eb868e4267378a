"""A fake of a gateway's files and batches, as the batch API describes them: enough to test a client of it."""

from __future__ import annotations

import email.parser
import email.policy
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec


class FakeGateway:
    """A batch takes one step each time it is looked at. ``fails`` says which requests fail."""

    def __init__(self, key: str = "") -> None:
        self.key = key
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.fails: Callable[[str], bool] = lambda custom_id: False
        self.steps = 2
        self.looks = 0
        self.unwell = 0
        """How many of the next looks at a batch are answered with 503."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0)) if not self._chunked() else self._dechunk()
                status, answer = fake.answer(self.command, self.path, self.headers, body)
                data = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = _answer  # noqa: N815  # the names that http.server looks for

            def _chunked(self) -> bool:
                return self.headers.get("transfer-encoding", "") == "chunked"

            def _dechunk(self) -> bytes:
                data = b""
                while size := int(self.rfile.readline(), 16):
                    data += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return data

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, Any]:
        if self.key and headers.get("authorization") != f"Bearer {self.key}":
            return 401, {"error": {"message": "this key is not known here", "code": "invalid_api_key"}}
        if (method, path) == ("POST", "/v1/files"):
            return 200, self._upload(headers["content-type"], body)
        if (method, path) == ("POST", "/v1/batches"):
            return self._create(msgspec.json.decode(body))
        if method == "GET" and path.startswith("/v1/batches?"):
            return 200, {"object": "list", "data": list(reversed(self.batches.values())), "has_more": False}
        if found := re.fullmatch(r"/v1/files/([^/]+)/content", path):
            return (200, self.files[found[1]]) if found[1] in self.files else _missing()
        if found := re.fullmatch(r"/v1/batches/([^/]+)(/cancel)?", path):
            if found[1] not in self.batches:
                return _missing()
            return self._cancel(self.batches[found[1]]) if found[2] else self._look(self.batches[found[1]])
        return _missing()

    def _upload(self, kind: str, body: bytes) -> dict[str, Any]:
        message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(
            b"content-type: " + kind.encode() + b"\r\n\r\n" + body
        )
        parts = {part.get_param("name", header="content-disposition"): part for part in message.iter_parts()}
        assert parts["purpose"].get_content().strip() == "batch"
        data = parts["file"].get_payload(decode=True)
        assert isinstance(data, bytes)
        id = f"file-{len(self.files) + 1}"
        self.files[id] = data
        return {"id": id, "object": "file", "bytes": len(data), "filename": parts["file"].get_filename(), "purpose": "batch"}

    def _create(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if body["input_file_id"] not in self.files:
            return 400, {"error": {"message": "there is no such file", "code": "invalid_request"}}
        id = f"batch_{len(self.batches) + 1}"
        total = len(self.files[body["input_file_id"]].splitlines())
        self.batches[id] = {
            "id": id,
            "object": "batch",
            "status": "validating",
            "created_at": 1_800_000_000,
            **body,
            "request_counts": {"total": total, "completed": 0, "failed": 0},
        }
        return 200, self.batches[id]

    def _look(self, batch: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.unwell:
            self.unwell -= 1
            return 503, {"error": {"message": "restarting"}}
        self.looks += 1
        if batch["status"] == "validating":
            batch["status"] = "in_progress"
        elif batch["status"] == "in_progress" and self.looks >= self.steps:
            self._finish(batch)
        return 200, batch

    def _finish(self, batch: dict[str, Any]) -> None:
        requests = [msgspec.json.decode(line) for line in self.files[batch["input_file_id"]].splitlines()]
        if any(request["url"] != batch["endpoint"] for request in requests):
            batch["status"] = "failed"
            fault = {"code": "mismatched_endpoint", "line": 2, "message": "the url is another one", "param": "url"}
            batch["errors"] = {"object": "list", "data": [fault]}
            return
        good = [request for request in requests if not self.fails(request["custom_id"])]
        bad = [request for request in requests if self.fails(request["custom_id"])]
        batch |= {"status": "completed", "request_counts": {"total": len(requests), "completed": len(good), "failed": len(bad)}}
        batch["usage"] = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
        for name, status, some in (("output_file_id", 200, good), ("error_file_id", 500, bad)):
            if some:
                id = batch[name] = f"file-{len(self.files) + 1}"
                done = [{"custom_id": one["custom_id"], "response": {"status_code": status}, "error": None} for one in some]
                self.files[id] = b"\n".join(map(msgspec.json.encode, done))

    def _cancel(self, batch: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if batch["status"] == "completed":
            return 400, {"error": {"message": "the batch has ended"}}
        batch["status"] = "cancelling"
        return 200, batch


def _missing() -> tuple[int, dict[str, Any]]:
    return 404, {"error": {"message": "there is nothing here", "code": "not_found"}}


@contextmanager
def fake_gateway(key: str = "") -> Iterator[FakeGateway]:
    server = FakeGateway(key)
    server.start()
    try:
        yield server
    finally:
        server.stop()
