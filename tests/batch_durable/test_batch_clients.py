"""The vendors' own clients, unchanged, against a gateway process: upload, create, poll, download."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from batch_durable.mock import RunningMock, mocked
from batch_durable.processes import Process, config_of, gateway, input_lines
from waiting import WAIT_SECONDS, until

ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture(scope="module")
def upstream() -> Iterator[RunningMock]:
    with mocked() as mock:
        yield mock


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(scope="module")
def served(upstream: RunningMock, folder: Path) -> Iterator[Process]:
    with gateway(folder, config_of(upstream.url, f"sqlite:///{folder}/s.db", attempts=3)) as process:
        yield process


def client_of(process: Process, key: str = "one") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{process.url}/v1", api_key=key, max_retries=0, timeout=60)


def messages_of(process: Process, key: str = "one") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=process.url, api_key=key, max_retries=0, timeout=60)


def submitted(client: openai.OpenAI, data: bytes, endpoint: Any = "/v1/chat/completions", **more: Any) -> Any:
    file = client.files.create(file=("in.jsonl", io.BytesIO(data)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


def ended(client: openai.OpenAI, batch: Any) -> Any:
    """Waits for the end of a batch, however long it takes, as long as it goes on."""
    found = client.batches.retrieve(batch.id)
    while found.status not in ENDED:
        found = changed(client, found)
    return found


def changed(client: openai.OpenAI, before: Any) -> Any:
    """Waits until the state or the counts of a batch are others than before."""
    found: list[Any] = []

    def other() -> bool:
        found.append(client.batches.retrieve(before.id))
        return (found[-1].status, found[-1].request_counts) != (before.status, before.request_counts)

    until(other, lambda: f"it does not go on: {found[-1]}")
    return found[-1]


def lines_of(client: openai.OpenAI, file_id: str | None) -> list[Any]:
    return [json.loads(one) for one in client.files.content(file_id).text.splitlines()] if file_id else []


def test_a_file_of_requests_is_answered_line_by_line(served: Process) -> None:
    client = client_of(served)
    questions = [(f"r{number}", f"question {number}" + (" bad" if number % 100 == 7 else "")) for number in range(1000)]
    batch = submitted(client, input_lines(questions), metadata={"k": "v"})
    assert batch.object == "batch"
    assert batch.metadata == {"k": "v"}
    done = ended(client, batch)
    assert done.status == "completed"
    assert done.request_counts.model_dump() == {"total": 1000, "completed": 990, "failed": 10}
    assert done.usage is not None
    assert (done.usage.input_tokens, done.usage.output_tokens) == (990 * 7, 990 * 2)
    good, bad = lines_of(client, done.output_file_id), lines_of(client, done.error_file_id)
    names = [entry["custom_id"] for entry in (*good, *bad)]
    assert sorted(names) == sorted(name for name, _ in questions), "every custom_id exactly once"
    for entry in good:
        assert entry["response"]["status_code"] == 200
        number = entry["custom_id"][1:]
        assert entry["response"]["body"]["choices"][0]["message"]["content"] == f"answer to question {number}"
    for entry in bad:
        assert entry["error"] is None
        assert entry["response"]["status_code"] == 400
        assert entry["response"]["body"]["error"]["code"] == "bad_word"
    listed = client.files.retrieve(done.output_file_id)
    assert listed.bytes == len(client.files.content(done.output_file_id).read())
    assert batch.id in [one.id for one in client.batches.list()]


def test_faults_are_retried_and_only_those(served: Process, upstream: RunningMock) -> None:
    client = client_of(served)
    questions = [(f"f{number}", f"faulty {number}" + (" fail-1" if number % 100 == 0 else "")) for number in range(300)]
    questions.append(("f300", "faulty 300 fail-9"))
    done = ended(client, submitted(client, input_lines(questions)))
    assert done.request_counts.model_dump() == {"total": 301, "completed": 300, "failed": 1}
    asked = {question: count for question, count in upstream.stats()["asked"].items() if question.startswith("faulty")}
    assert {question: count for question, count in asked.items() if count > 1} == {
        "faulty 0 fail-1": 2,
        "faulty 100 fail-1": 2,
        "faulty 200 fail-1": 2,
        "faulty 300 fail-9": 3,
    }
    assert [entry["response"]["status_code"] for entry in lines_of(client, done.error_file_id)] == [500]


def test_rate_limits_cost_no_item_an_attempt(served: Process, upstream: RunningMock) -> None:
    client = client_of(served)
    done = ended(client, submitted(client, input_lines([("l1", "limited limit-5"), ("l2", "not limited")])))
    assert done.request_counts.model_dump() == {"total": 2, "completed": 2, "failed": 0}
    assert upstream.stats()["asked"]["limited limit-5"] == 6


def test_bad_lines_have_their_numbers_and_stop_no_others(served: Process) -> None:
    client = client_of(served)
    good = input_lines([("a", "first"), ("b", "second")]).splitlines()
    no_name = json.dumps({"method": "POST", "url": "/v1/chat/completions", "body": {"model": "m"}}).encode()
    elsewhere = good[0].replace(b'"a"', b'"c"').replace(b"/v1/chat/completions", b"/v1/embeddings")
    unknown = input_lines([("d", "x")], model="nobody-has-this").strip()
    data = b"\n".join([good[0], b"{not json", no_name, good[0], elsewhere, unknown, b"", good[1]])
    done = ended(client, submitted(client, data))
    assert done.status == "completed"
    assert done.request_counts.model_dump() == {"total": 7, "completed": 2, "failed": 5}
    assert done.errors is not None
    assert done.errors.data is not None
    assert sorted((error.line, error.code) for error in done.errors.data) == [
        (2, "invalid_json_line"),
        (3, "missing_required_parameter"),
        (4, "duplicate_custom_id"),
        (5, "mismatched_endpoint"),
        (6, "model_not_found"),
    ]
    assert sorted(entry["custom_id"] for entry in lines_of(client, done.output_file_id)) == ["a", "b"]
    assert sorted(str(entry["custom_id"]) for entry in lines_of(client, done.error_file_id)) == ["None", "None", "None", "c", "d"]


def test_a_file_without_a_usable_line_fails(served: Process) -> None:
    client = client_of(served)
    for data, code in ((b"\n\n", "empty_file"), (b"nothing\n", "invalid_json_line")):
        done = ended(client, submitted(client, data))
        assert done.status == "failed"
        assert done.errors is not None
        assert done.errors.data is not None
        assert done.errors.data[0].code == code
        assert done.output_file_id is None


def test_embeddings_and_responses_run_too(served: Process) -> None:
    client = client_of(served)
    bodies: dict[str, dict[str, Any]] = {
        "/v1/embeddings": {"model": "m", "input": "to embed"},
        "/v1/responses": {"model": "m", "input": "to respond"},
        "/v1/messages": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "a message"}]},
    }
    for endpoint, body in bodies.items():
        data = json.dumps({"custom_id": "one", "method": "POST", "url": endpoint, "body": body}).encode()
        done = ended(client, submitted(client, data, endpoint))
        assert done.request_counts.completed == 1, (endpoint, lines_of(client, done.error_file_id))
        answer = lines_of(client, done.output_file_id)[0]["response"]["body"]
        assert answer.get("object", answer.get("type")) in ("list", "response", "message")


def test_a_cancelled_batch_keeps_what_is_done(served: Process, upstream: RunningMock) -> None:
    client = client_of(served)
    questions = [("done", "quickly"), *((f"s{number}", f"cancelled {number} slow") for number in range(200))]
    batch = submitted(client, input_lines(questions))
    until(lambda: (counts := client.batches.retrieve(batch.id).request_counts) and counts.completed == 1)
    partial = client.batches.retrieve(batch.id)
    assert partial.status == "in_progress"
    assert [entry["custom_id"] for entry in lines_of(client, partial.output_file_id)] == ["done"], "partial results are readable"
    assert client.batches.cancel(batch.id).status == "cancelling"
    upstream.release()
    done = ended(client, batch)
    assert done.status == "cancelled"
    good, bad = lines_of(client, done.output_file_id), lines_of(client, done.error_file_id)
    assert sorted(entry["custom_id"] for entry in (*good, *bad)) == sorted(name for name, _ in questions)
    assert {entry["error"]["code"] for entry in bad} == {"batch_cancelled"}
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)


def test_keys_do_not_see_each_other(served: Process) -> None:
    one, two = client_of(served), client_of(served, "two")
    batch = submitted(one, input_lines([("a", "private")]))
    done = ended(one, batch)
    for call in (
        lambda: two.batches.retrieve(batch.id),
        lambda: two.batches.cancel(batch.id),
        lambda: two.files.retrieve(batch.input_file_id),
        lambda: two.files.content(done.output_file_id),
        lambda: two.files.delete(batch.input_file_id),
    ):
        with pytest.raises(openai.NotFoundError):
            call()
    assert batch.id not in [found.id for found in two.batches.list()]
    with pytest.raises(openai.BadRequestError):
        two.batches.create(input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h")


def test_files_are_listed_downloaded_and_deleted(served: Process) -> None:
    client = client_of(served, "files")
    files = [client.files.create(file=(f"f{number}.jsonl", b"%d\n" % number * 1000), purpose="batch") for number in range(3)]
    assert [file.id for file in client.files.list(limit=2)] == [file.id for file in reversed(files)], "two pages"
    assert client.files.content(files[1].id).read() == b"1\n" * 1000
    assert client.files.delete(files[1].id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(files[1].id)
    with pytest.raises(openai.BadRequestError):
        client.files.create(file=("x", b"y"), purpose="nonsense")  # type: ignore[arg-type]  # that is the test


def test_message_batches_run(served: Process) -> None:
    client = messages_of(served)
    requests: list[Any] = [
        {"custom_id": f"m{n}", "params": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": f"msg {n}"}]}}
        for n in range(30)
    ]
    requests[3]["params"]["messages"][0]["content"] = "msg 3 bad"
    requests[4]["params"]["model"] = "nobody-has-this"
    batch = client.messages.batches.create(requests=requests)
    assert batch.processing_status == "in_progress"
    assert batch.results_url is None
    assert sum(batch.request_counts.model_dump().values()) == 30
    until(lambda: client.messages.batches.retrieve(batch.id).processing_status == "ended")
    done = client.messages.batches.retrieve(batch.id)
    counts = done.request_counts
    assert (counts.processing, counts.succeeded, counts.errored) == (0, 28, 2)
    results = {result.custom_id: result.result for result in client.messages.batches.results(batch.id)}
    assert len(results) == 30
    first = results["m0"]
    assert first.type == "succeeded"
    assert first.message.content[0].type == "text"
    assert first.message.content[0].text == "answer to msg 0"
    for name in ("m3", "m4"):
        failed = results[name]
        assert failed.type == "errored"
        assert failed.error.type == "error"
    assert batch.id in [found.id for found in client.messages.batches.list()]
    with pytest.raises(anthropic.NotFoundError):
        messages_of(served, "two").messages.batches.retrieve(batch.id)
    assert client.messages.batches.delete(batch.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.retrieve(batch.id)


def test_message_batches_of_a_wrong_shape_are_refused(served: Process) -> None:
    client = messages_of(served)
    params: Any = {"model": "m", "max_tokens": 9, "messages": []}
    with pytest.raises(anthropic.BadRequestError, match="custom_id"):
        client.messages.batches.create(
            requests=[{"custom_id": "same", "params": params}, {"custom_id": "same", "params": params}]
        )
    with pytest.raises(anthropic.BadRequestError, match="at least one"):
        client.messages.batches.create(requests=[])
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.cancel("msgbatch_nothing")


def test_a_batch_expires(served: Process, folder: Path) -> None:
    client = client_of(served)
    file = client.files.create(file=("in.jsonl", input_lines([("a", "never limit-1000000")])), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="2h")  # type: ignore[arg-type]  # ours
    until(lambda: client.batches.retrieve(batch.id).status == "in_progress")
    with closing(sqlite3.connect(folder / "s.db", timeout=WAIT_SECONDS)) as database, database:
        database.execute("UPDATE batches SET expires = 1 WHERE id = ?", (batch.id,))
    done = ended(client, batch)
    assert done.status == "expired"
    assert done.expired_at is not None
    assert [entry["error"]["code"] for entry in lines_of(client, done.error_file_id)] == ["batch_expired"]


def test_uploads_above_the_limit_are_refused(upstream: RunningMock, tmp_path: Path) -> None:
    with gateway(tmp_path, config_of(upstream.url, f"sqlite:///{tmp_path}/s.db", max_file_bytes=10_000)) as process:
        client = client_of(process)
        with pytest.raises(openai.APIStatusError) as refused:
            client.files.create(file=("x", b"y" * 20_000), purpose="batch")
        assert refused.value.status_code == 413
        assert list(client.files.list()) == []
        assert not [path for path in (tmp_path / "s.db-files").iterdir() if path.stat().st_size]
