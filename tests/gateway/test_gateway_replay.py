"""The built-in replay upstream: scripted answers and recordings with their timing; and internal errors."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.dialect_clients import CLIENT_DIALECTS, asked, body_of
from gateway.running import running
from gateway.scenarios import PLAIN, SCENARIOS, TEXT, anthropic, stopped
from store.turns import asynchronous
from streamglot.config import Config, LoadedConfig, ServerConfig, StoreConfig
from streamglot.counters import REQUESTS, TOKENS, Take, workers
from streamglot.gateway.app import Gateway
from streamglot.upstream.recorded import recordings
from streamglot.upstream.settings import Upstream

CHAT = "/v1/chat/completions"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plain.sse").write_bytes(PLAIN)
    (tmp_path / "timed.sse").write_bytes(PLAIN)
    half = len(PLAIN) // 2
    (tmp_path / "timed.sse.times").write_text(f"0.0 {half}\n0.4 {half - 10}\n")
    (tmp_path / "endless.sse").write_bytes(PLAIN)
    (tmp_path / "endless.sse.times").write_text(f"0.0 {half}\n3600 {half - 10}\n")
    (tmp_path / "cut.sse").write_bytes(PLAIN[:400])
    (tmp_path / "empty.sse").write_bytes(b"")
    return tmp_path


def test_recordings_are_replayed(folder: Path) -> None:
    upstreams = {"recorded": {"base_url": f"file:{folder}"}, "fast": {"base_url": f"file:{folder}", "options": {"speed": 0}}}
    with running({"upstreams": upstreams}) as gateway:
        for client in CLIENT_DIALECTS:
            assert asked(gateway, client, "recorded/plain").text == "Hello world"
        assert asked(gateway, "anthropic", "recorded/plain.sse", False).text == "Hello world"
        began = time.monotonic()
        assert asked(gateway, "anthropic", "recorded/timed").text == "Hello world"
        assert time.monotonic() - began > 0.2
        assert asked(gateway, "anthropic", "fast/endless").text == "Hello world"
        assert asked(gateway, "openai_chat", "recorded/cut").error is not None
        assert asked(gateway, "openai_chat", "recorded/empty").status == 502
        assert asked(gateway, "openai_chat", "recorded/../secret").status == 400
        assert asked(gateway, "openai_chat", "recorded/unknown").text == "You said: q"
    assert recordings(Upstream(base_url=f"file:{folder}")) == ["cut.sse", "empty.sse", "endless.sse", "plain.sse", "timed.sse"]
    assert recordings(Upstream(base_url="file:/nowhere")) == []


def test_recordings_of_another_dialect_are_translated(folder: Path) -> None:
    (folder / "claude.sse").write_bytes(anthropic(*TEXT, *stopped("end_turn")))
    with running({"upstreams": {"recorded": {"base_url": f"file:{folder}", "dialect": "anthropic"}}}) as gateway:
        assert asked(gateway, "openai_chat", "recorded/claude").text == SCENARIOS["anthropic_all"].text
        assert asked(gateway, "openai_chat", "recorded/unknown").text == "You said: q"


def test_a_request_without_a_model_uses_the_only_one() -> None:
    with running() as gateway:
        assert (
            gateway.ask(CHAT, {"messages": [{"role": "user", "content": "q"}]}).json()["choices"][0]["message"]["content"]
            == "You said: q"
        )


class Broken:
    def named(self, _model: str) -> str:
        raise ZeroDivisionError("sk-secret-in-a-fault-0123456789")

    upstreams: dict[str, Upstream] = {}


def test_an_internal_error_is_reported_in_every_dialect() -> None:
    with running() as gateway:
        broken: Any = Broken()
        gateway.gateway.services.pool.routes = broken
        for client in CLIENT_DIALECTS:
            found = asked(gateway, client, "replay")
            assert found.status == 500
            assert found.error is not None
            assert "internal error of the gateway" in found.error
            assert "ZeroDivision" not in found.error
        line = gateway.log_line(lambda line: line.get("event") == "fault")
        assert "ZeroDivisionError" in line["trace"]
        assert "sk-secret" not in line["trace"]
        assert gateway.ask("/v1/models/x").status == 500
        assert gateway.ask("/health").status == 200


@asynchronous
async def test_processes_share_their_rate_limits(tmp_path: Path) -> None:
    try:
        workers.share(str(tmp_path))
        mine, yours, other = workers.counters_of("a"), workers.counters_of("a"), workers.counters_of("b")
        for counters in (mine, yours, other):
            counters.resize(requests=3, tokens=3)
        request = [Take(REQUESTS, 1, needs=1)]
        assert [await each.admit(request, {}, 100.0) for each in (mine, yours, mine)] == [None] * 3
        refused = await yours.admit(request, {}, 100.0)
        assert refused is not None
        assert refused.wait == pytest.approx(20.0)
        assert await other.admit(request, {}, 100.0) is None
        yours.settle({}, 3, 120.0)
        assert await mine.admit([Take(TOKENS, 0)], {}, 120.0) is not None
    finally:
        workers.unshare()


def test_a_hang_up_is_noticed_on_other_asgi_servers() -> None:
    """There only ``receive`` reports that a client has hung up."""
    lines: list[Any] = []
    gateway = Gateway(LoadedConfig(Config(server=ServerConfig(discover=False), store=StoreConfig(url="none"))), {}, lines.append)
    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "query_string": b""}
    body = msgspec.json.encode(body_of("openai_chat", "replay"))

    async def asked_by(patient: bool) -> list[Any]:
        """The messages sent to a client that waits for the end, or that disconnects after the first one."""
        sent: list[Any] = []
        disconnected = asyncio.Event()
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await disconnected.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if message.get("body") and not patient:
                disconnected.set()

        async with gateway.running():
            await gateway(dict(scope), receive, send)
        return sent

    asyncio.run(asked_by(patient=False))
    assert lines[-1]["ending"] == "client_gone"
    sent = asyncio.run(asked_by(patient=True))
    assert sent[-1]["more_body"] is False
    assert lines[-1]["ending"] == "end"
