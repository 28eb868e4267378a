"""The examples of the document that asked for batches, run as they are written there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batch.mock import MockUpstream
from streamglot.batch import HybridBatcher, RequestBatch, SizeBasedBatcher, TimeBasedBatcher

TOOLS = '''
from streamglot import tool

@tool
def get_markdown(scope: str) -> dict:
    """The document."""
    return {"markdown": "# Document"}

@tool
def read_range(range: str) -> str:
    """Cells of a sheet."""
    return f"cells {range}"
'''


@pytest.fixture(autouse=True)
def configured(upstream: MockUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch without any settings uses the upstreams and tools of the configuration."""
    (tmp_path / "sheet.py").write_text(TOOLS)
    config = tmp_path / "streamglot.toml"
    config.write_text(
        f'[server]\ndiscover = false\ndefault_model = "llama3"\n[upstreams.mock]\nbase_url = "{upstream.url}"\n'
        f'[tools]\npython = ["{tmp_path / "sheet.py"}"]\nenabled = ["*"]\n'
    )
    monkeypatch.setenv("STREAMGLOT_CONFIG", str(config))


def test_multiple_tool_calls() -> None:
    batch = RequestBatch()
    batch.add_tool_call("get_markdown", {"scope": "full"})
    batch.add_tool_call("read_range", {"range": "A1:B10"})
    results = batch.flush()
    assert [result["result"] for result in results] == [{"markdown": "# Document"}, "cells A1:B10"]


def test_chat_message_processing() -> None:
    pending_messages = [f"message {number}" for number in range(25)]
    batch = RequestBatch()
    for message in pending_messages:
        batch.add_chat_request(message)
    responses = batch.flush()
    assert [response["result"] for response in responses] == [f"re: {message}" for message in pending_messages]


def test_the_settings_and_the_ids_of_a_batch() -> None:
    batch = RequestBatch(max_size=10, flush_timeout=0.5)
    assert (batch.max_size, batch.flush_timeout, batch.requests) == (10, 0.5, [])
    assert [batch.add_request("chat_completion", {"prompt": "Hello", "model": "llama3"}) for _ in range(2)] == [1, 2]
    assert [response["request_id"] for response in batch.flush()] == [1, 2]
    assert batch.flush() == []


def test_strategies() -> None:
    request = {"type": "chat_completion", "payload": {"prompt": "Hello", "model": "llama3"}}
    for batcher in (SizeBasedBatcher(max_size=10), TimeBasedBatcher(flush_interval=0.1), HybridBatcher(10, 0.1)):
        batcher.add(request)
        assert [response["result"] for response in batcher.flush()] == ["re: Hello"]
        assert batcher.batch == []


def _chunk_response(text: str) -> Iterator[str]:
    yield from text.split()


def stream_with_batching(messages: list[str]) -> Iterator[tuple[str, Any]]:
    batcher = HybridBatcher(max_size=5, flush_interval=0.2)
    for message in messages:
        batcher.add({"type": "chat_completion", "payload": {"prompt": message, "stream": False}})
    batch_responses = batcher.flush()
    for response in batch_responses:
        if response["error"]:
            yield ("error", response["error"])
        else:
            for chunk in _chunk_response(response["result"]):
                yield ("chunk", chunk)
    yield ("stream_done", None)


def test_streaming_with_a_batcher() -> None:
    messages = [f"m{number}" for number in range(7)]
    expected = [("chunk", word) for message in messages for word in ("re:", message)]
    assert list(stream_with_batching(messages)) == [*expected, ("stream_done", None)]


def handle_batch_response(batch_response: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    results, errors = [], []
    for response in batch_response["responses"]:
        if response.get("error"):
            errors.append({"request_id": response["request_id"], "error": response["error"]})
        else:
            results.append({"request_id": response["request_id"], "result": response["result"]})
    return results, errors


def test_partial_failure_handling(upstream: MockUpstream) -> None:
    upstream.fails = lambda prompt, times: 400 if prompt == "bad" else 0
    batch = RequestBatch()
    for message in ("good", "bad"):
        batch.add_chat_request(message)
    results, errors = handle_batch_response({"responses": batch.flush()})
    assert results == [{"request_id": 1, "result": "re: good"}]
    assert [error["request_id"] for error in errors] == [2]
