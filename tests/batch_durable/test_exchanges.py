"""Every item is an exchange like any other: keys, budgets, policies, tools and the store hold for it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest

from batch_durable.mock import RunningMock, mocked
from batch_durable.test_batch_clients import ended, lines_of, submitted
from gateway.archived import with_store
from gateway.running import Running, running
from store.turns import asynchronous
from streamglot.gateway import services as requests
from streamglot.gateway.auth.authenticator import digest_of
from tools.chat_model import ChatModel
from tools.test_gateway_tools import ANSWER, TOOLS
from waiting import WAIT_SECONDS, soon, until

LONG_TIMEOUTS = {"connect": 120.0, "first_byte": 120.0, "idle": 120.0, "total": 240.0}


@pytest.fixture(scope="module")
def upstream() -> Iterator[RunningMock]:
    with mocked() as mock:
        yield mock


def configured(upstream: RunningMock, folder: Path, **more: Any) -> dict[str, Any]:
    up = {
        "dialect": "openai_chat",
        "base_url": f"{upstream.url}/v1",
        "models": ["m", "other"],
        "attempts": 1,
        "timeouts": LONG_TIMEOUTS,
    }
    store = {"url": f"sqlite:///{folder}/s.db", "content": True}
    return {"store": store, "upstreams": {"up": up}, **more}


def client_of(gateway: Running, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0, timeout=60)


def asking(*questions: str, model: str = "m", **more: Any) -> bytes:
    lines = [
        {
            "custom_id": f"r{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": model, "messages": [{"role": "user", "content": question}], **more},
        }
        for number, question in enumerate(questions)
    ]
    return "\n".join(map(json.dumps, lines)).encode()


def test_a_key_may_use_its_models_only(upstream: RunningMock, tmp_path: Path) -> None:
    keys = [{"name": "narrow", "hash": digest_of("one"), "models": ["m"]}, {"name": "wide", "hash": digest_of("two")}]
    with running(configured(upstream, tmp_path, server={"keys": keys})) as gateway:
        narrow, wide = client_of(gateway, "one"), client_of(gateway, "two")
        mixed = asking("a question") + b"\n" + asking("another", model="other").replace(b'"r0"', b'"r1"')
        done = ended(narrow, submitted(narrow, mixed))
        assert [entry["custom_id"] for entry in lines_of(narrow, done.output_file_id)] == ["r0"]
        assert [entry["error"]["code"] for entry in lines_of(narrow, done.error_file_id)] == ["model_not_allowed"]
        with pytest.raises(openai.NotFoundError):
            wide.batches.retrieve(done.id)
        with pytest.raises(openai.AuthenticationError):
            client_of(gateway, "three").batches.list()


def test_a_batch_uses_the_slots_of_its_key_that_live_requests_leave(tmp_path: Path) -> None:
    keys = [{"name": "two", "hash": digest_of("two"), "concurrent": 2}, {"name": "wide", "hash": digest_of("wide")}]
    with (
        mocked() as upstream,
        running(configured(upstream, tmp_path, server={"keys": keys}, batches={"concurrency": 16})) as gateway,
    ):
        two, wide = client_of(gateway, "two"), client_of(gateway, "wide")
        batch = submitted(two, asking(*(f"{number} slow" for number in range(8))))
        until(lambda: upstream.asked() == 2)
        done = ended(wide, submitted(wide, asking(*(f"other {number}" for number in range(20)))))
        assert done.request_counts.completed == 20, "a key that waits for its slots holds up no other key"
        assert two.chat.completions.create(model="m", messages=[{"role": "user", "content": "live"}]).choices
        assert sum(count for name, count in upstream.stats()["asked"].items() if name.endswith("slow")) == 2
        upstream.release()
        done = ended(two, batch)
        assert done.request_counts.completed == 8
        assert done.model_extra["streamglot"]["retried"] == 0, "waiting for a slot is no call"
        assert sum(count for name, count in upstream.stats()["asked"].items() if name.endswith("slow")) == 8


def test_the_files_of_a_key_are_limited_together(upstream: RunningMock, tmp_path: Path) -> None:
    keys = [{"name": "one", "hash": digest_of("one")}, {"name": "two", "hash": digest_of("two")}]
    config = configured(upstream, tmp_path, server={"keys": keys}, batches={"max_key_bytes": 1000})
    with running(config) as gateway:
        one, two = client_of(gateway, "one"), client_of(gateway, "two")
        first = one.files.create(file=("a.jsonl", b"x" * 700), purpose="batch")
        with pytest.raises(openai.APIStatusError, match="max_key_bytes") as refused:
            one.files.create(file=("b.jsonl", b"x" * 301), purpose="batch")
        assert (refused.value.status_code, refused.value.code) == (413, "file_quota_exceeded")
        assert [file.id for file in one.files.list()] == [first.id], "nothing of the refused file stays"
        one.files.create(file=("b.jsonl", b"x" * 300), purpose="batch")
        two.files.create(file=("c.jsonl", b"x" * 1000), purpose="batch")
        one.files.delete(first.id)
        one.files.create(file=("d.jsonl", b"x" * 700), purpose="batch")


def test_a_budget_that_is_used_up_ends_the_items_after_it(upstream: RunningMock, tmp_path: Path) -> None:
    config = configured(upstream, tmp_path, batches={"concurrency": 1})
    _, secret = with_store(config["store"]["url"], lambda store: store.keys.add("poor", budget_tokens=40))
    with running(config) as gateway:
        client = client_of(gateway, secret)
        done = ended(client, submitted(client, asking(*(f"paid {number}" for number in range(20)))))
        assert done.request_counts.total == 20
        assert 1 <= done.request_counts.completed <= 10, "9 tokens each of 40"
        bodies = [entry["response"] for entry in lines_of(client, done.error_file_id)]
        assert {body["status_code"] for body in bodies} == {429}
        assert {body["body"]["error"]["code"] for body in bodies} == {"budget_exceeded"}


def test_requests_per_minute_slow_a_batch_down_and_fail_nothing(upstream: RunningMock, tmp_path: Path) -> None:
    keys = [{"name": "slow", "hash": digest_of("one"), "requests_per_minute": 600}]
    with running(configured(upstream, tmp_path, server={"keys": keys})) as gateway:
        client = client_of(gateway, "one")
        done = ended(client, submitted(client, asking(*(f"limited {number}" for number in range(30)))))
        assert done.request_counts.model_dump() == {"total": 30, "completed": 30, "failed": 0}


def test_policies_judge_items(upstream: RunningMock, tmp_path: Path) -> None:
    policies = [{"use": "block_patterns", "words": ["forbidden"]}]
    with running(configured(upstream, tmp_path, policies=policies)) as gateway:
        client = client_of(gateway, "one")
        done = ended(client, submitted(client, asking("an allowed word", "a forbidden word")))
        answers = {
            entry["custom_id"]: entry["response"]["body"]["choices"][0]["message"]["content"]
            for entry in lines_of(client, done.output_file_id)
        }
        assert answers["r0"] == "answer to an allowed word"
        assert "withheld" in answers["r1"]
        assert "forbidden" not in answers["r1"]


def test_items_are_turns_of_one_session(upstream: RunningMock, tmp_path: Path) -> None:
    with running(configured(upstream, tmp_path)) as gateway:
        client = client_of(gateway, "one")
        done = ended(client, submitted(client, asking("first of two", "second of two")))
        until(lambda: len(gateway.ask("/turns").json()["data"]) == 2)
        sessions = gateway.ask("/sessions").json()["data"]
        assert [session["name"] for session in sessions] == [done.id]
        turns = gateway.ask("/turns").json()["data"]
        until(lambda: {turn["ending"] for turn in gateway.ask("/turns").json()["data"]} == {"end"})
        assert {turn["request_id"] for turn in turns} == {
            entry["response"]["request_id"] for entry in lines_of(client, done.output_file_id)
        }


def test_an_item_calls_a_tool_of_ours(tmp_path: Path) -> None:
    """The model is asked twice: for the calls, and with their results. The answer of the item is the second one."""
    model = ChatModel()
    (tmp_path / "mytools.py").write_text(TOOLS)
    config = {
        "store": {"url": f"sqlite:///{tmp_path}/s.db", "content": True},
        "upstreams": {"scripted": {"base_url": model.url, "models": ["m"], "timeouts": LONG_TIMEOUTS}},
        "tools": {"enabled": ["weather.*"], "python": [str(tmp_path / "mytools.py")]},
    }
    with closing(model), running(config) as gateway:
        client = client_of(gateway, "one")
        lines = asking("What is the weather?", streamglot={"tools": ["weather.*"]})
        done = ended(client, submitted(client, lines))
        assert done.request_counts.model_dump() == {"total": 1, "completed": 1, "failed": 0}
        answer = lines_of(client, done.output_file_id)[0]["response"]["body"]
        assert answer["choices"][0]["message"]["content"] == ANSWER
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert len(model.bodies) == 2
        assert (done.usage.input_tokens, done.usage.output_tokens) == (20, 10), "both turns of the model are counted"


def test_the_options_of_an_item_are_those_of_a_request(upstream: RunningMock, tmp_path: Path) -> None:
    """Also ``activity``, which asks for the extensions of a whole answer, and a wrong one refuses the item."""
    with running(configured(upstream, tmp_path)) as gateway:
        client = client_of(gateway, "any")
        done = ended(client, submitted(client, asking("a question", streamglot={"activity": "extensions"})))
        [entry] = lines_of(client, done.output_file_id)
        assert "extensions" in entry["response"]["body"]
        done = ended(client, submitted(client, asking("a question", streamglot={"activity": "loud"})))
        [entry] = lines_of(client, done.error_file_id)
    assert "activity" in entry["response"]["body"]["error"]["message"]


def test_text_completions_run(upstream: RunningMock, tmp_path: Path) -> None:
    """The upstream speaks the chat API; the answer is in the dialect of the endpoint."""
    with running(configured(upstream, tmp_path)) as gateway:
        client = client_of(gateway, "one")
        body = {"model": "m", "prompt": "to complete", "max_tokens": 5}
        data = json.dumps({"custom_id": "one", "method": "POST", "url": "/v1/completions", "body": body}).encode()
        done = ended(client, submitted(client, data, "/v1/completions"))
        assert done.request_counts.completed == 1, lines_of(client, done.error_file_id)
        answer = lines_of(client, done.output_file_id)[0]["response"]["body"]
        assert answer["object"] == "text_completion"
        assert [choice["text"] for choice in answer["choices"]] == ["answer to to complete"]
        assert (done.usage.input_tokens, done.usage.output_tokens) == (7, 2)


def test_a_batch_whose_window_is_over_is_finalizing_until_its_last_call_has_ended(tmp_path: Path) -> None:
    with mocked() as upstream, running(configured(upstream, tmp_path, batches={"concurrency": 1})) as gateway:
        client = client_of(gateway, "one")
        batch = submitted(client, asking("under way slow", "never asked"))
        until(lambda: upstream.asked() == 1)
        with closing(sqlite3.connect(tmp_path / "s.db", timeout=60)) as database, database:
            database.execute("UPDATE batches SET expires = 1 WHERE id = ?", (batch.id,))
        until(lambda: client.batches.retrieve(batch.id).status == "finalizing")
        upstream.release()
        done = ended(client, batch)
        assert done.status == "expired"
        assert done.in_progress_at <= done.finalizing_at <= done.expired_at
        assert [entry["custom_id"] for entry in lines_of(client, done.output_file_id)] == ["r0"]
        assert [entry["error"]["code"] for entry in lines_of(client, done.error_file_id)] == ["batch_expired"]


def test_a_gateway_without_a_store_says_that_it_has_no_batches(upstream: RunningMock, tmp_path: Path) -> None:
    config = configured(upstream, tmp_path)
    with running({**config, "store": {"url": "none"}}) as gateway:
        assert gateway.ask("/v1/batches").status == 501
        assert gateway.ask("/v1/messages/batches").status == 501
    with running({**config, "batches": {"enabled": False}}) as gateway:
        assert gateway.ask("/v1/files").status == 501


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"endpoint": "/v1/nothing"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"input_file_id": "file-unknown"}, "file"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after"),
        ({"more": 1}, "more"),
    ],
)
def test_a_batch_that_makes_no_sense_is_refused(served: Running, change: dict[str, Any], word: str) -> None:
    file = client_of(served, "one").files.create(file=("in.jsonl", asking("q")), purpose="batch")
    body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h", **change}
    answer = served.ask("/v1/batches", body, {"authorization": "Bearer one"})
    assert answer.status == 400
    assert word in answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def served(upstream: RunningMock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(configured(upstream, tmp_path_factory.mktemp("served"))) as gateway:
        yield gateway


def test_batches_are_listed_page_by_page(served: Running) -> None:
    client = client_of(served, "pages")
    made = [submitted(client, asking("q")).id for _ in range(5)]
    assert [batch.id for batch in client.batches.list(limit=2)] == made[::-1]
    assert client.batches.list(limit=2).has_more
    assert not client.batches.list(limit=5).has_more


@asynchronous
async def test_live_requests_are_seen_by_the_worker(
    upstream: RunningMock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(configured(upstream, tmp_path)) as gateway:
        assert not gateway.gateway.requests.answers_live()
        monkeypatch.setattr(requests, "LIVE_SECONDS", WAIT_SECONDS)
        body = {"model": "m", "messages": [{"role": "user", "content": "live"}]}
        assert gateway.ask("/v1/chat/completions", body).status == 200
        assert gateway.gateway.requests.answers_live()
        monkeypatch.setattr(requests, "LIVE_SECONDS", 0.0)
        await soon(lambda: not gateway.gateway.requests.answers_live())
