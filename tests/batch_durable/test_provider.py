"""Batches that go to the provider's own batch API: the same endpoints, the same policies, the same results."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from batch_durable.provider import Provider, provider
from batch_durable.test_batch_clients import ended, lines_of, submitted
from batch_durable.test_exchanges import asking, client_of
from gateway.running import Running, running
from store.servers import Postgres
from streamglot.batch.durable import provider as provider_module
from streamglot.batch.durable.model import LARGEST_COUNT
from streamglot.batch.durable.provider import ProviderQueue
from streamglot.store.database import StoreLocked
from waiting import until


def configured(remote: Provider, store: str, folder: Path, dialect: str = "openai_chat", **more: Any) -> dict[str, Any]:
    up = {"dialect": dialect, "base_url": f"{remote.url}/v1", "models": ["m"], "key": "secret", "batches": "provider"}
    batches = {"poll_seconds": 0.1, "directory": str(folder / "files")}
    return {"store": {"url": store, "content": True}, "upstreams": {"up": up}, "batches": batches, **more}


def texts(client: openai.OpenAI, batch: Any) -> dict[str, str]:
    return {
        entry["custom_id"]: entry["response"]["body"]["choices"][0]["message"]["content"]
        for entry in lines_of(client, batch.output_file_id)
    }


@pytest.mark.parametrize("dialect", ["openai_chat", "anthropic"])
def test_a_batch_is_sent_to_the_provider_and_its_results_are_stored(url: str, tmp_path: Path, dialect: str) -> None:
    with provider() as remote, running(configured(remote, url, tmp_path, dialect)) as gateway:
        client = client_of(gateway, "one")
        batch = submitted(client, asking(*(f"question {number}" for number in range(250)), "this is bad", max_tokens=9))
        until(lambda: remote.batches, lambda: f"nothing was sent: {gateway.lines}")
        assert client.batches.retrieve(batch.id).status == "in_progress"
        assert [len(requests) for requests in remote.batches.values()] == [251]
        assert all("stream" not in body or not body["stream"] for body in remote.batches["remote-0"].values())
        remote.end()
        done = ended(client, batch)
        assert done.request_counts.model_dump() == {"total": 251, "completed": 250, "failed": 1}
        assert done.usage is not None
        assert done.usage.input_tokens == 250 * 7
        assert texts(client, done) == {f"r{number}": f"answer to question {number}" for number in range(250)}
        failed = lines_of(client, done.error_file_id)
        assert [(entry["custom_id"], entry["response"]["status_code"]) for entry in failed] == [("r250", 400)]
        assert remote.calls == []


def test_token_counts_of_a_provider_that_do_not_fit_into_a_column_are_limited(url: str, tmp_path: Path) -> None:
    with provider() as remote, running(configured(remote, url, tmp_path)) as gateway:
        client = client_of(gateway, "one")
        batch = submitted(client, asking("this has a huge usage"))
        until(lambda: remote.batches, lambda: f"nothing was sent: {gateway.lines}")
        remote.end()
        done = ended(client, batch)
        assert done.usage is not None
        assert (done.request_counts.completed, done.usage.input_tokens) == (1, LARGEST_COUNT)


def test_policies_hold_before_a_request_leaves_and_after_its_answer_comes(tmp_path: Path) -> None:
    policies = [{"use": "redact", "words": ["swordfish"], "apply_to": ["request", "text"]}]
    with provider() as remote:
        config = configured(remote, f"sqlite:///{tmp_path}/s.db", tmp_path, policies=policies)
        with running(config) as gateway:
            client = client_of(gateway, "one")
            batch = submitted(client, asking("the word is swordfish", "nothing of the kind"))
            until(lambda: remote.batches, lambda: f"nothing was sent: {gateway.lines}")
            assert "swordfish" not in str(remote.batches)
            remote.end()
            done = ended(client, batch)
            assert done.request_counts.completed == 2
            assert "swordfish" not in str(texts(client, done))


def test_items_that_the_provider_did_not_run_are_reported(tmp_path: Path) -> None:
    with provider() as remote, running(configured(remote, f"sqlite:///{tmp_path}/s.db", tmp_path)) as gateway:
        client = client_of(gateway, "one")
        batch = submitted(client, asking("this ran", "this was lost"))
        until(lambda: remote.batches)
        remote.end()
        done = ended(client, batch)
        assert texts(client, done) == {"r0": "answer to this ran"}
        failed = lines_of(client, done.error_file_id)
        assert [entry["response"]["body"]["error"]["code"] for entry in failed] == ["provider_batch_ended"]


def test_a_cancelled_batch_is_cancelled_at_the_provider(tmp_path: Path) -> None:
    with provider() as remote, running(configured(remote, f"sqlite:///{tmp_path}/s.db", tmp_path)) as gateway:
        client = client_of(gateway, "one")
        batch = submitted(client, asking("a", "b", "c"))
        until(lambda: remote.batches)
        client.batches.cancel(batch.id)
        done = ended(client, batch)
        assert done.status == "cancelled"
        assert remote.cancelled == {"remote-0"}
        assert {entry["error"]["code"] for entry in lines_of(client, done.error_file_id)} == {"batch_cancelled"}


def test_a_gateway_that_starts_again_does_not_send_again(postgres: Postgres, tmp_path: Path) -> None:
    store = asyncio.run(postgres.database())
    with provider() as remote:
        config = configured(remote, store, tmp_path)
        with running(config) as gateway:
            batch = submitted(client_of(gateway, "one"), asking("only once"))
            until(lambda: remote.batches)
        with running(config) as gateway:
            remote.end()
            client = client_of(gateway, "one")
            assert texts(client, ended(client, batch)) == {"r0": "answer to only once"}
        assert len(remote.batches) == 1


def test_a_provider_that_refuses_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_module, "REFUSED_SECONDS", 0.05)
    with provider() as remote, running(configured(remote, f"sqlite:///{tmp_path}/s.db", tmp_path)) as gateway:
        remote.refuses = True
        client = client_of(gateway, "one")
        batch = submitted(client, asking("in the end"))
        gateway.log_line(lambda line: line.get("event") == "provider_batch_refused")
        remote.refuses = False
        until(lambda: remote.batches)
        remote.end()
        assert texts(client, ended(client, batch)) == {"r0": "answer to in the end"}


@pytest.mark.parametrize("step", ["sent", "look_again", "items_of", "landed"])
def test_a_database_that_is_locked_for_a_moment_delays_nothing_and_sends_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    work = getattr(ProviderQueue, step)
    failed: list[str] = []

    async def locked_once(*given: Any) -> Any:  # Any: what each step is given and returns
        if not failed:
            failed.append(step)
            raise StoreLocked("the database is locked")
        return await work(*given)

    monkeypatch.setattr(ProviderQueue, step, locked_once)
    with provider() as remote, running(configured(remote, f"sqlite:///{tmp_path}/s.db", tmp_path)) as gateway:
        client = client_of(gateway, "one")
        batch = submitted(client, asking("only once"))
        until(lambda: remote.batches)
        if step == "look_again":
            until(lambda: failed)
        remote.end()
        assert texts(client, ended(client, batch)) == {"r0": "answer to only once"}
    assert (failed, len(remote.batches)) == ([step], 1)


def test_an_upstream_that_did_not_opt_in_is_called(tmp_path: Path) -> None:
    with provider() as remote:
        config = configured(remote, f"sqlite:///{tmp_path}/s.db", tmp_path)
        del config["upstreams"]["up"]["batches"]
        with running(config) as gateway:
            client = client_of(gateway, "one")
            assert texts(client, ended(client, submitted(client, asking("a call")))) == {"r0": "answer to a call"}
        assert (len(remote.calls), remote.batches) == (1, {})


def test_live_requests_are_calls(tmp_path: Path) -> None:
    with provider() as remote, running(configured(remote, f"sqlite:///{tmp_path}/s.db", tmp_path)) as gateway:
        assert isinstance(gateway, Running)
        body = {"model": "m", "messages": [{"role": "user", "content": "now"}]}
        assert gateway.ask("/v1/chat/completions", body).status == 200
        assert remote.batches == {}
