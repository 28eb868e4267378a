"""``POST /v1/batch``: many requests in one call."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batch.mock import MockUpstream
from gateway.running import Answer, Running, running
from streamglot.batch.runner import RetryPolicy
from streamglot.framing import Frame, Sse
from streamglot.gateway.api import batch, batch_answers
from streamglot.gateway.api.batch_answers import BatchAnswers
from waiting import WAIT_SECONDS, until

TOOLS = '''
from streamglot import tool

@tool
def get_markdown(scope: str) -> dict:
    """The document."""
    return {"markdown": "# Document"}

@tool
def secret() -> str:
    """Not for everybody."""
    return "secret"
'''


@contextmanager
def serving(upstream: MockUpstream, tmp_path: Path, **config: Any) -> Iterator[Running]:
    (tmp_path / "sheet.py").write_text(TOOLS)
    mock = {"base_url": upstream.url, "attempts": 1, "pause": 0.001, "breaker": {"failures": 1_000_000}}
    tools = {"python": [str(tmp_path / "sheet.py")], "enabled": ["*"]}
    with running({"upstreams": {"mock": mock}, "tools": tools, **config}) as gateway:
        yield gateway


@pytest.fixture
def gateway(upstream: MockUpstream, tmp_path: Path) -> Iterator[Running]:
    with serving(upstream, tmp_path) as started:
        yield started


def chat(id: int | str, prompt: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "type": "chat_completion", "payload": {"prompt": prompt, "model": "llama3", **more}}


def ask(gateway: Running, requests: object, headers: Mapping[str, str] | None = None, **more: Any) -> Answer:
    return gateway.ask("/v1/batch", {"requests": requests, **more}, headers)


def events_of(answer: Answer) -> list[tuple[str, Any]]:
    box = Sse()
    frames = [frame for frame in (*box.feed(answer.body), *box.close()) if frame.kind == "data"]
    return [(frame.event, msgspec.json.decode(frame.data)) for frame in frames]


def test_the_example_of_the_seed(gateway: Running) -> None:
    requests = [
        {"id": 1, "type": "chat_completion", "payload": {"prompt": "Hello", "model": "llama3"}},
        {"id": 2, "type": "tool_call", "payload": {"tool": "get_markdown", "params": {"scope": "full"}}},
    ]
    answer = gateway.ask("/v1/batch", {"batch_id": "unique-identifier", "requests": requests})
    assert answer.status == 200
    assert answer.json() == {
        "batch_id": "unique-identifier",
        "responses": [
            {"request_id": 1, "result": "re: Hello", "error": None},
            {"request_id": 2, "result": {"markdown": "# Document"}, "error": None},
        ],
    }


def test_every_item_has_its_own_result_or_error(gateway: Running, upstream: MockUpstream) -> None:
    upstream.fails = lambda prompt, times: 400 if prompt == "bad" else 0
    whole = {"model": "llama3", "messages": [{"role": "user", "content": "whole"}], "stream": True, "temperature": 0.5}
    requests = [
        chat("a", "good"),
        chat("b", "bad"),
        {"id": "c", "type": "chat_completion", "payload": whole},
        {"id": "d", "type": "nothing", "payload": {}},
        {"id": "e", "type": "chat_completion", "payload": "x"},
        {"id": "f", "type": "chat_completion", "payload": {"model": "llama3"}},
        {"id": "g", "type": "tool_call", "payload": {"tool": "*"}},
        {"id": "h", "type": "tool_call", "payload": {"tool": "none"}},
        chat("i", "no model", model=5),
    ]
    got = ask(gateway, requests).json()["responses"]
    assert [one["request_id"] for one in got] == list("abcdefghi")
    assert got[0]["result"] == "re: good"
    assert got[2]["result"]["object"] == "chat.completion"
    assert got[2]["result"]["choices"][0]["message"]["content"] == "re: whole"
    assert [one["request_id"] for one in got if one["error"]] == list("bdefghi")
    assert all(one["result"] is None and one["error"]["message"] and one["error"]["code"] for one in got if one["error"])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"requests": {}}, 400),
        ({"requests": [1]}, 400),
        ({"requests": [{"type": "chat_completion"}]}, 400),
        ({"requests": [{"id": True}]}, 400),
        ({"requests": [{"id": ""}]}, 400),
        ({"requests": [chat(1, "a"), chat(1, "b")]}, 400),
        ({"requests": [], "batch_id": 5}, 400),
        ({"requests": [], "batch_id": "x" * 257}, 400),
        ({"requests": [], "stream": "yes"}, 400),
        ({"requests": [chat(number, "a") for number in range(1001)]}, 413),
    ],
)
def test_a_batch_with_duplicate_ids_is_refused(gateway: Running, body: dict[str, Any], status: int) -> None:
    answer = gateway.ask("/v1/batch", body)
    assert answer.status == status
    assert answer.json()["error"]["message"]


def test_an_empty_batch_has_no_responses(gateway: Running) -> None:
    answer = ask(gateway, []).json()
    assert answer["responses"] == []
    assert answer["batch_id"]


def test_items_run_at_once_within_the_limit(upstream: MockUpstream, tmp_path: Path) -> None:
    upstream.hold = threading.Event()
    with serving(upstream, tmp_path, server={"batch_concurrent": 3}) as gateway:
        answers: list[Answer] = []
        asking = threading.Thread(target=lambda: answers.append(ask(gateway, [chat(n, f"p{n}") for n in range(9)])))
        asking.start()
        until(lambda: sum(upstream.asked.values()) == 3)
        upstream.hold.set()
        asking.join(WAIT_SECONDS)
    assert [one["result"] for one in answers[0].json()["responses"]] == [f"re: p{n}" for n in range(9)]
    assert upstream.most == 3


def test_a_temporary_failure_is_retried_alone(gateway: Running, upstream: MockUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "RETRY", RetryPolicy(retries=2, first=0.001))
    upstream.fails = lambda prompt, times: {"flaky": 503 if times < 3 else 0, "bad": 400, "down": 503}.get(prompt, 0)
    got = ask(gateway, [chat(name, name) for name in ("fine", "flaky", "bad", "down")]).json()["responses"]
    assert [one["error"] is None for one in got] == [True, True, False, False]
    assert upstream.asked == {"fine": 1, "flaky": 3, "bad": 1, "down": 3}


def test_a_repeated_batch_is_answered_without_running_again(gateway: Running, upstream: MockUpstream) -> None:
    requests = [chat(1, "once")]
    first = ask(gateway, requests, batch_id="b1")
    again = ask(gateway, requests, batch_id="b1")
    assert first.body == again.body
    assert upstream.asked["once"] == 1
    other = ask(gateway, [chat(1, "other")], batch_id="b1")
    assert (other.status, other.json()["error"]["code"]) == (409, "batch_id_reused")
    replayed = events_of(ask(gateway, requests, batch_id="b1", stream=True))
    assert [name for name, _ in replayed] == ["response", "done"]
    assert replayed[0][1] == first.json()["responses"][0]
    unnamed = [ask(gateway, requests) for _ in range(2)]
    assert upstream.asked["once"] == 3
    assert unnamed[0].json()["batch_id"] != unnamed[1].json()["batch_id"]


@pytest.mark.parametrize("stored", [True, False])
def test_a_batch_that_runs_is_joined(upstream: MockUpstream, tmp_path: Path, stored: bool) -> None:
    upstream.hold = threading.Event()
    answers: list[Answer] = []
    store = {"url": f"sqlite:///{tmp_path / 'db' / 'store.db'}" if stored else "none"}
    with serving(upstream, tmp_path, store=store) as gateway:
        threads = [
            threading.Thread(target=lambda: answers.append(ask(gateway, [chat(1, "once")], batch_id="joined"))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        until(lambda: upstream.asked["once"])
        upstream.hold.set()
        for thread in threads:
            thread.join(WAIT_SECONDS)
    assert len({answer.body for answer in answers}) == 1
    assert upstream.asked["once"] == 1


def test_a_named_batch_continues_without_its_client_and_another_one_does_not(gateway: Running, upstream: MockUpstream) -> None:
    upstream.hold = threading.Event()
    for body in ({"batch_id": "left", "requests": [chat(1, "named")]}, {"requests": [chat(n, f"un{n}") for n in range(40)]}):
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=WAIT_SECONDS)
        connection.request("POST", "/v1/batch", msgspec.json.encode(body))
        until(lambda prompt=body["requests"][0]["payload"]["prompt"]: upstream.asked[prompt])  # type: ignore[misc, index]  # a default binds the variable
        connection.close()
    gateway.log_line(lambda line: line.get("ending") == "client_gone")
    upstream.hold.set()
    again = ask(gateway, [chat(1, "named")], batch_id="left")
    assert again.json()["responses"][0]["result"] == "re: named"
    assert upstream.asked["named"] == 1
    assert sum(count for prompt, count in upstream.asked.items() if prompt.startswith("un")) <= 16


def test_a_stream_has_deltas_and_results_as_they_come(gateway: Running, upstream: MockUpstream) -> None:
    upstream.fails = lambda prompt, times: 400 if prompt == "bad" else 0
    requests = [
        chat(1, "one"),
        chat(2, "bad"),
        {"id": 3, "type": "tool_call", "payload": {"tool": "get_markdown", "params": {"scope": "x"}}},
        {"id": 4, "type": "chat_completion", "payload": {"model": "llama3", "messages": [{"role": "user", "content": "four"}]}},
    ]
    answer = ask(gateway, requests, stream=True, batch_id="s")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer)
    assert events[-1] == ("done", {"batch_id": "s"})
    responses = {data["request_id"]: data for name, data in events if name == "response"}
    assert responses[1] == {"request_id": 1, "result": "re: one", "error": None}
    assert responses[2]["error"]["code"] == "mock_failure"
    assert responses[3]["result"] == {"markdown": "# Document"}
    assert responses[4]["result"]["choices"][0]["message"]["content"] == "re: four"
    assert responses[4]["result"]["usage"]["total_tokens"] == 12
    for number, text in ((1, "re: one"), (4, "re: four")):
        deltas = [data["delta"] for name, data in events if name == "delta" and data["request_id"] == number]
        assert "".join(delta.get("content") or "" for delta in deltas) == text
        last = max(place for place, (name, data) in enumerate(events) if name == "delta" and data["request_id"] == number)
        assert events.index(("response", responses[number])) > last


def test_results_of_a_stream_come_before_the_slow_ones_are_done(gateway: Running, upstream: MockUpstream) -> None:
    upstream.hold = threading.Event()
    upstream.held = lambda prompt: prompt == "slow"
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=WAIT_SECONDS)
    body = {"requests": [chat(1, "slow"), chat(2, "fast")], "stream": True}
    connection.request("POST", "/v1/batch", msgspec.json.encode(body))
    answer, box = connection.getresponse(), Sse()
    seen: list[Frame] = []
    while not any(frame.event == "response" for frame in seen):
        seen += box.feed(answer.read1(65_536))
    upstream.hold.set()
    seen += box.feed(answer.read())
    connection.close()
    assert [msgspec.json.decode(frame.data)["request_id"] for frame in seen if frame.event == "response"] == [2, 1]


def test_a_silent_stream_is_kept_alive(upstream: MockUpstream, tmp_path: Path) -> None:
    upstream.hold = threading.Event()
    with serving(upstream, tmp_path, server={"keep_alive_seconds": 0.01}) as gateway:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=WAIT_SECONDS)
        connection.request("POST", "/v1/batch", msgspec.json.encode({"requests": [chat(1, "a")], "stream": True}))
        answer = connection.getresponse()
        assert answer.read1(100).startswith(b": ping")
        upstream.hold.set()
        assert b'"result":"re: a"' in answer.read()
        connection.close()


RIGHTS: dict[str, dict[str, Any]] = {
    "ada": {"models": ["llama*"], "tools": ["get_*"]},
    "bob": {},
    "eve": {"concurrent": 1},
    "tim": {"requests_per_minute": 2},
}
KEYS = {"keys": [{"name": name, "hash": hashlib.sha256(name.encode()).hexdigest(), **rights} for name, rights in RIGHTS.items()]}


def test_each_key_has_its_own_rights_limits_and_batches(
    upstream: MockUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(upstream, tmp_path, server=KEYS) as gateway:
        assert ask(gateway, []).status == 401
        ada, bob, eve = ({"authorization": f"Bearer {name}"} for name in ("ada", "bob", "eve"))
        requests = [
            chat(1, "mine"),
            chat(2, "other", model="gpt"),
            {"id": 3, "type": "tool_call", "payload": {"tool": "secret"}},
            {"id": 4, "type": "tool_call", "payload": {"tool": "get_markdown", "params": {"scope": ""}}},
        ]
        got = ask(gateway, requests, ada, batch_id="same").json()["responses"]
        codes = [one["error"] and one["error"]["code"] for one in got]
        assert codes == [None, "model_not_allowed", "tool_not_allowed", None]
        bobs = ask(gateway, [chat(1, "bobs")], bob, batch_id="same").json()["responses"]
        assert bobs[0]["result"] == "re: bobs"
        many = ask(gateway, [chat(number, f"e{number}") for number in range(5)], eve).json()["responses"]
        assert [one["error"] for one in many] == [None] * 5
        monkeypatch.setattr(batch, "RETRY", RetryPolicy(retries=0))
        call = {"type": "tool_call", "payload": {"tool": "get_markdown", "params": {"scope": ""}}}
        calls = ask(gateway, [{"id": number, **call} for number in range(4)], {"authorization": "Bearer tim"}).json()["responses"]
        assert sorted(one["error"]["code"] if one["error"] else "" for one in calls) == ["", "", *["rate_limit_exceeded"] * 2]
    lines = [line for line in gateway.lines if line.get("key") == "eve"]
    assert len(lines) == 5


def test_each_item_is_an_exchange_with_a_turn_and_a_line(upstream: MockUpstream, tmp_path: Path) -> None:
    store = {"url": f"sqlite:///{tmp_path / 'db' / 'store.db'}"}
    with serving(upstream, tmp_path, store=store) as gateway:
        ask(gateway, [chat(1, "a"), chat("two", "b")], {"x-request-id": "req"})
        logged = gateway.log_line(lambda line: line.get("event") == "batch")
        assert (logged["request_id"], logged["requests"], logged["failed"]) == ("req", 2, 0)
        assert gateway.line("req-1")["upstream"] == "mock"
        assert gateway.line("req-two")["input_tokens"] == 10
        until(lambda: len(gateway.ask("/turns").json()["data"]) == 2)


@pytest.mark.parametrize("buffer", ["database", "valkey"])
def test_a_repeated_batch_is_known_after_a_restart(
    upstream: MockUpstream, tmp_path: Path, buffer: str, request: pytest.FixtureRequest
) -> None:
    store = {"url": f"sqlite:///{tmp_path / 'db' / 'store.db'}"}
    valkey = {"url": request.getfixturevalue("valkey_url") if buffer == "valkey" else ""}
    with serving(upstream, tmp_path, store=store, valkey=valkey) as gateway:
        first = ask(gateway, [chat(1, "once")], batch_id="kept")
    with serving(upstream, tmp_path, store=store, valkey=valkey) as gateway:
        again = ask(gateway, [chat(1, "once")], batch_id="kept")
        assert ask(gateway, [chat(1, "else")], batch_id="kept").status == 409
    assert again.body == first.body
    assert upstream.asked["once"] == 1


def test_the_answer_of_a_gateway_that_stops_is_not_kept(upstream: MockUpstream, tmp_path: Path) -> None:
    upstream.hold = threading.Event()
    with serving(upstream, tmp_path, server={"batch_concurrent": 1}) as gateway:
        answers: list[Answer] = []
        requests = [chat(1, "a"), chat(2, "b")]
        asking = threading.Thread(target=lambda: answers.append(ask(gateway, requests, batch_id="x")))
        asking.start()
        until(lambda: upstream.asked["a"])
        gateway.gateway.requests.stopping = True
        upstream.hold.set()
        asking.join(WAIT_SECONDS)
        first, second = answers[0].json()["responses"]
        assert (first["result"], second["error"]["code"]) == ("re: a", "shutting_down")
        gateway.gateway.requests.stopping = False
        again = ask(gateway, requests, batch_id="x").json()["responses"]
        assert [one["result"] for one in again] == ["re: a", "re: b"]


def test_an_internal_error_is_not_a_proper_end(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that cannot be finished ends with an error, and never with ``done``."""

    def broken(*_: object) -> bytes:
        raise KeyError("a fault")

    monkeypatch.setattr(batch, "answer_of", broken)
    names: list[dict[str, Any]] = [{}, {"batch_id": "faulty"}]
    for named in names:
        events = events_of(ask(gateway, [chat(1, "a")], stream=True, **named))
        assert [name for name, _ in events if name != "delta"] == ["response", "error"]
        assert events[-1][1]["error"]["code"] == "batch_stopped"
        assert ask(gateway, [chat(1, "a")], **named).status == 500
    gateway.log_line(lambda line: line.get("event") == "fault" and "a fault" in line["trace"])
    monkeypatch.undo()
    assert ask(gateway, [chat(1, "a")], batch_id="faulty").json()["responses"][0]["result"] == "re: a"


def test_answers_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        answers = BatchAnswers(lambda: None)
        monkeypatch.setattr(batch_answers, "KEPT_BATCHES", 3)
        monkeypatch.setattr(batch_answers, "KEPT_BYTES", 100)
        for number in range(5):
            answers.begin("me", str(number), "d")
            answers.finish("me", str(number), b"x" * 10)
        assert [await answers.find("me", str(number), "d") for number in range(5)] == [None, None, *[b"x" * 10] * 3]
        answers.begin("me", "large", "d")
        answers.finish("me", "large", b"x" * 95)
        assert [await answers.find("me", number, "d") is None for number in ("3", "4", "large")] == [True, True, False]
        monkeypatch.setattr(batch_answers, "KEPT_SECONDS", -1.0)
        assert await answers.find("me", "large", "d") is None

    asyncio.run(run())


def test_the_description_names_the_address(gateway: Running) -> None:
    assert "post" in gateway.ask("/openapi.json").json()["paths"]["/v1/batch"]
