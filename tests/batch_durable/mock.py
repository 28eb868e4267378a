"""A mock upstream as a process of its own: it answers chat, embeddings and messages at once, and counts what it was asked.

The last word of a question says what happens: ``fail-N`` fails the first N times with a 500, ``bad`` is refused with a 400, ``slow``
waits until /release was asked for, ``limit-N`` is refused N times with a 429. ``GET /stats`` has the counts of each question.

With a limit and the seconds of a window as arguments, it accepts only so many calls in each window, refuses the rest with a 429,
and reports in its headers what is left.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LIMITED = (429, {"error": {"message": "too fast", "type": "rate_limit_error", "code": "rate_limit_exceeded"}})
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


class Mock:
    def __init__(self, arguments: list[str]) -> None:
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.open = self.most_open = 0
        self.released = asyncio.Event()
        self.limit = int(arguments[0]) if arguments else 0
        self.window = float(arguments[1]) if arguments else 0.0
        self.accepted: Counter[int] = Counter()
        self.refused = 0

    async def serve(self) -> None:
        server = await asyncio.start_server(self._converse, "127.0.0.1", 0, limit=2**24)
        print(server.sockets[0].getsockname()[1], flush=True)
        async with server:
            await server.serve_forever()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                found = re.search(r"content-length: *(\d+)", head, re.I)
                body = await reader.readexactly(int(found[1])) if found else b""
                path = head.split(" ", 2)[1]
                admitted, fields = self._admit() if self.limit and body else (True, "")
                status, answer = await self._answer(path, json.loads(body) if body else {}) if admitted else LIMITED
                data = json.dumps(answer).encode()
                after = ("retry-after: 0\r\n" if status == 429 else "") + fields
                writer.write(
                    f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{after}content-length: {len(data)}\r\n\r\n".encode()
                    + data
                )
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _admit(self) -> tuple[bool, str]:
        """Returns whether the current window has room for a call, and the headers about it. Times are rounded up."""
        now = time.monotonic()
        number = int(now / self.window)
        admitted = self.accepted[number] < self.limit
        if admitted:
            self.accepted[number] += 1
        else:
            self.refused += 1
        left, reset = self.limit - self.accepted[number], math.ceil(((number + 1) * self.window - now) * 1000)
        values = {"limit": self.limit, "remaining": left, "reset": f"{reset}ms"}
        return admitted, "".join(f"x-ratelimit-{name}-requests: {value}\r\n" for name, value in values.items())

    async def _answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/stats":
            counts = {"accepted": list(self.accepted.values()), "refused": self.refused}
            return 200, {"asked": self.asked, "answered": self.answered, "most_open": self.most_open, **counts}
        if path == "/release":
            self.released.set()
            return 200, {}
        question = body["input"] if "input" in body else body["messages"][-1]["content"]
        if isinstance(question, list):
            question = question[0]["text"]
        self.asked[question] += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            word = question.rpartition(" ")[2]
            if word == "slow":
                await self.released.wait()
            if word == "bad":
                return 400, {"error": {"message": "this is refused", "type": "invalid_request_error", "code": "bad_word"}}
            times = re.fullmatch(r"(fail|limit)-(\d+)", word)
            if times and self.asked[question] <= int(times[2]):
                if times[1] == "limit":
                    return LIMITED
                return 500, {"error": {"message": "a fault was injected", "type": "server_error", "code": None}}
            self.answered[question] += 1
            return 200, _answer_of(path, body, question)
        finally:
            self.open -= 1


def _answer_of(path: str, body: dict[str, Any], question: str) -> dict[str, Any]:
    text = f"answer to {question}"
    if path.endswith("/embeddings"):
        vector = {"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}
        return {"object": "list", "data": [vector], "model": body["model"], "usage": {"prompt_tokens": 7, "total_tokens": 7}}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"id": "c1", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice], "usage": USAGE}


class RunningMock:
    """The process, from outside."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    def stats(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/stats", timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def asked(self) -> int:
        return sum(self.stats()["asked"].values())

    def release(self) -> None:
        urllib.request.urlopen(f"{self.url}/release", timeout=60).close()


@contextmanager
def mocked(*arguments: str) -> Iterator[RunningMock]:
    process = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield RunningMock(process, int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    asyncio.run(Mock(sys.argv[1:]).serve())
