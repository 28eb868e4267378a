"""How much a turn of a coding agent adds to the database. The gateway runs as it does by default, before an upstream that answers
with a text and a call; the agent repeats its instructions, its tools and its whole history with every request."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from .candidates import gateway_command
from .programs import GATEWAY_CORE, Program, free_port

TOOLS = 40
TOOLS_BYTES = 25_000
NEW_BYTES = 4_500
"""New text of a turn: the result of a tool, the answer, and the arguments of its call."""
WARM_UP = 20
TURNS = 100
MOST_BYTES = 15 * 1024
"""The line for one turn."""
SETTLE_SECONDS = 1.0
"""Seconds until everything is written."""
WORDS = 3_000
"""Different words of the texts, about as many as a project has. The search index grows with them."""
ANSWER_BYTES, ARGUMENTS_BYTES = 1_300, 500
QUESTION_BYTES = 200
"""The question that the agent works on. It is not new, but each turn has it."""
RESULT_BYTES = NEW_BYTES - ANSWER_BYTES - ARGUMENTS_BYTES
DIALECTS = {"openai_chat": "/v1/chat/completions", "anthropic": "/v1/messages"}


class Writing:
    """Texts of made-up words, the same in each run."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        letters = "etaoinsrhldcumfpgwybvk"
        self._words = ["".join(self._random.choices(letters, k=self._random.randint(2, 11))) for _ in range(WORDS)]

    def text(self, size: int) -> str:
        found: list[str] = []
        while sum(map(len, found)) + len(found) < size:
            found += self._random.choices(self._words, k=max(1, size // 20))
        return " ".join(found)[:size]


def tools(dialect: str, writing: Writing) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for number in range(TOOLS):
        schema = {
            "type": "object",
            "properties": {
                name: {"type": "string", "description": writing.text(TOOLS_BYTES // TOOLS // 5)}
                for name in ("path", "text", "mode")
            },
            "required": ["path"],
            "additionalProperties": False,
        }
        function = {"name": f"tool_{number}", "description": writing.text(TOOLS_BYTES // TOOLS // 10)}
        if dialect == "anthropic":
            made.append({**function, "input_schema": schema})
        else:
            made.append({"type": "function", "function": {**function, "parameters": schema}})
    made[-1].get("function", made[-1])["description"] += writing.text(max(1, TOOLS_BYTES - len(json.dumps(made))))
    return made


class Agent:
    """A conversation. ``ask`` sends the next request; its answer and the result of its call become history."""

    def __init__(self, port: int, dialect: str, seed: int = 1) -> None:
        self._writing = Writing(seed)
        self._port, self._dialect = port, dialect
        self._tools = tools(dialect, self._writing)
        self._system = self._writing.text(6_000)
        self._messages: list[dict[str, Any]] = [{"role": "user", "content": self._writing.text(QUESTION_BYTES)}]

    def ask(self) -> None:
        path, body = DIALECTS[self._dialect], getattr(self, f"_{self._dialect}")()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json", "authorization": "Bearer k"})
            answer = connection.getresponse()
            data = answer.read().decode()
        finally:
            connection.close()
        if answer.status != 200:
            raise RuntimeError(data)
        frames = [json.loads(line[6:]) for line in data.splitlines() if line.startswith("data: ") and line != "data: [DONE]"]
        getattr(self, f"_read_{self._dialect}")(frames)

    def _openai_chat(self) -> dict[str, Any]:
        messages = [{"role": "system", "content": self._system}, *self._messages]
        return {"model": "m", "stream": True, "temperature": 0, "messages": messages, "tools": self._tools}

    def _read_openai_chat(self, frames: list[Any]) -> None:
        deltas = [choice["delta"] for frame in frames for choice in frame["choices"]]
        calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
        arguments = "".join(call["function"].get("arguments") or "" for call in calls)
        call = {
            "id": calls[0]["id"],
            "type": "function",
            "function": {"name": calls[0]["function"]["name"], "arguments": arguments},
        }
        text = "".join(delta.get("content") or "" for delta in deltas)
        self._messages.append({"role": "assistant", "content": text, "tool_calls": [call]})
        self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": self._writing.text(RESULT_BYTES)})

    def _anthropic(self) -> dict[str, Any]:
        """The mark for the provider's cache moves with the last message."""
        last = self._messages[-1]
        content = last["content"] if isinstance(last["content"], list) else [{"type": "text", "text": last["content"]}]
        mark = {"cache_control": {"type": "ephemeral"}}
        marked = {**last, "content": [*content[:-1], {**content[-1], **mark}]}
        system = [{"type": "text", "text": self._system, **mark}]
        messages = [*self._messages[:-1], marked]
        return {"model": "m", "stream": True, "max_tokens": 9000, "system": system, "messages": messages, "tools": self._tools}

    def _read_anthropic(self, frames: list[Any]) -> None:
        deltas = [frame["delta"] for frame in frames if frame["type"] == "content_block_delta"]
        call = next(frame["content_block"] for frame in frames if frame.get("content_block", {}).get("type") == "tool_use")
        call["input"] = json.loads("".join(delta.get("partial_json", "") for delta in deltas))
        text = {"type": "text", "text": "".join(delta.get("text", "") for delta in deltas)}
        self._messages.append({"role": "assistant", "content": [text, call]})
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": self._writing.text(RESULT_BYTES)}
        self._messages.append({"role": "user", "content": [result]})


@contextmanager
def upstream() -> Iterator[int]:
    """A model that speaks chat completions: each answer is a text and a call, in pieces of some characters."""
    writing, lock = Writing(2), threading.Lock()
    count = iter(range(10**9))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_args: object) -> None: ...

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            with lock:
                number, text, arguments = next(count), writing.text(ANSWER_BYTES), writing.text(ARGUMENTS_BYTES - 12)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
            deltas += [{"content": text[at : at + 20]} for at in range(0, len(text), 20)]
            call = {"index": 0, "id": f"call_{number:024}", "type": "function", "function": {"name": "tool_3", "arguments": ""}}
            deltas.append({"tool_calls": [call]})
            written = json.dumps({"path": arguments})
            pieces = [written[at : at + 20] for at in range(0, len(written), 20)]
            deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces]
            same = {"id": f"chatcmpl-{number:024}", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m"}
            frames = [{**same, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
            frames.append({**same, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
            usage = {"prompt_tokens": 9000 + number, "completion_tokens": 400, "total_tokens": 9400 + number}
            frames.append({**same, "choices": [], "usage": usage})
            self.wfile.write(b"".join(f"data: {json.dumps(frame)}\n\n".encode() for frame in frames) + b"data: [DONE]\n\n")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def sizes(url: str) -> dict[str, int]:
    """Bytes of each table and index, without free pages."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return dict(database.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name").fetchall())
    return asyncio.run(_sizes(url))


async def _sizes(url: str) -> dict[str, int]:
    import asyncpg  # type: ignore[import-untyped]  # it has no types

    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "SELECT c.relname, pg_relation_size(c.oid) AS own, coalesce(pg_total_relation_size(nullif(c.reltoastrelid, 0)), 0) AS toast "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'public' AND c.relkind IN ('r', 'i')"
        )
    finally:
        await connection.close()
    return {row["relname"]: row["own"] + row["toast"] for row in rows}


def growth(dialect: str, url: str = "", turns: int = TURNS) -> dict[str, float]:
    """Bytes that one turn adds to each table and index. Without ``url`` it is the file that the gateway makes by default."""
    with tempfile.TemporaryDirectory() as home, upstream() as upstream_port:
        config, port = Path(home) / "streamglot.toml", free_port()
        config.write_text(
            f'[server]\ndiscover = false\n[upstreams.model]\ndialect = "openai_chat"\nbase_url = "http://127.0.0.1:{upstream_port}/v1"\n'
        )
        given = {"STREAMGLOT_STORE__URL": url} if url else {}
        environment = {"HOME": home, "XDG_DATA_HOME": home, "XDG_CONFIG_HOME": home, **given}
        command = [gateway_command(), "serve", "--port", str(port), "--config", str(config)]
        program = Program("streamglot-agent-turn", command, GATEWAY_CORE, environment)
        try:
            program.wait_for(port)
            agent, found = Agent(port, dialect), []
            for count in (WARM_UP, turns):
                for _ in range(count):
                    agent.ask()
                time.sleep(SETTLE_SECONDS)
                # the search of another process writes the index
                searched = [gateway_command(), "logs", "search", "nothing"]
                subprocess.run(searched, cwd=home, env={**os.environ, **environment}, check=False, capture_output=True)
                place = url or f"sqlite:///{next(Path(home).glob('**/*.db'))}"
                found.append(sizes(place))
        finally:
            program.stop()
    before, after = found
    return {name: (after[name] - before.get(name, 0)) / turns for name in after}


def print_growth(url: str = "", detailed: bool = False) -> None:
    """A row for each dialect of a client."""
    for dialect in DIALECTS:
        added = growth(dialect, url)
        total = sum(added.values())
        verdict = f"{'within' if total <= MOST_BYTES else 'ABOVE'} the line of {MOST_BYTES}"
        print(f"  an agent's turn adds ({dialect}) {total:12.0f} bytes: {TOOLS} tools, {NEW_BYTES} bytes of new text  {verdict}")
        if detailed:
            for name, size in sorted(added.items(), key=lambda item: -item[1]):
                if size:
                    print(f"    {name:40} {size:8.0f}")


if __name__ == "__main__":
    print_growth(sys.argv[1] if len(sys.argv) > 1 else "", detailed=True)
