"""Batches whose files are in an S3-compatible store: the vendors' own clients against gateway and worker processes."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from batch_durable.mock import RunningMock, mocked
from batch_durable.processes import COMMAND, config_of, gateway, input_lines, worker
from batch_durable.s3_server import S3Server, Tunnel, s3_server
from batch_durable.test_batch_clients import client_of, ended, lines_of, messages_of, submitted
from batch_durable.test_killed_batches import checked, questions
from store.servers import Postgres
from waiting import WAIT_SECONDS, until


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture(scope="module")
def upstream() -> Iterator[RunningMock]:
    with mocked() as mock:
        yield mock


class Place:
    """A bucket, and the configuration of gateways that store files there."""

    def __init__(self, server: S3Server, upstream: str, folder: Path, store: str = "") -> None:
        self.server = server
        self.bucket = server.bucket()
        self._upstream = upstream
        self._store = store or f"sqlite:///{folder}/s.db"

    def config(self, address: str = "", **batches: Any) -> str:
        place = {"directory": f"s3://{self.bucket}/files", "s3.endpoint": address or self.server.address}
        return config_of(self._upstream, self._store, **place, **batches)

    @property
    def keys(self) -> list[str]:
        return self.server.keys(self.bucket)


@pytest.fixture
def place(server: S3Server, upstream: RunningMock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return Place(server, upstream.url, tmp_path)


def test_batches_of_both_vendors_run_with_files_in_a_bucket(place: Place, tmp_path: Path) -> None:
    with gateway(tmp_path, place.config()) as process:
        client = client_of(process)
        data = input_lines([*questions(300), ("wrong", "question bad")])
        done = ended(client, submitted(client, data))
        assert done.request_counts.model_dump() == {"total": 301, "completed": 300, "failed": 1}
        assert len(lines_of(client, done.output_file_id)) == 300
        assert len(lines_of(client, done.error_file_id)) == 1
        assert place.keys == [f"files/{done.input_file_id}"]
        assert client.files.content(done.input_file_id).read() == data
        assert client.files.delete(done.input_file_id).deleted
        assert place.keys == []
        vendor = messages_of(process)
        params: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "a message"}]}
        batch = vendor.messages.batches.create(requests=[{"custom_id": f"m{n}", "params": params} for n in range(50)])
        assert len(place.keys) == 1
        until(lambda: vendor.messages.batches.retrieve(batch.id).processing_status == "ended")
        results = [result.custom_id for result in vendor.messages.batches.results(batch.id)]
        assert sorted(results) == sorted(f"m{n}" for n in range(50))
        vendor.messages.batches.delete(batch.id)
        assert place.keys == []
        assert process.stop() == 0
    assert not list(tmp_path.glob("*-files")), "nothing is stored beside the database"


def test_a_large_upload_is_stored_in_parts(place: Place, tmp_path: Path) -> None:
    with gateway(tmp_path, place.config(max_file_bytes=30_000_000)) as process:
        client = client_of(process)
        data = input_lines([(f"r{number}", f"{number} {'x' * 100_000}") for number in range(200)])
        file = client.files.create(file=("large.jsonl", data), purpose="batch")
        assert file.bytes == len(data)
        assert client.files.content(file.id).read() == data
        head = place.server.client.head_object(Bucket=place.bucket, Key=f"files/{file.id}")
        assert "-" in head["ETag"], "it was sent in parts"
        with pytest.raises(openai.APIStatusError) as refused:
            client.files.create(file=("larger.jsonl", data * 2), purpose="batch")
        assert refused.value.status_code == 413
        assert place.keys == [f"files/{file.id}"]
        assert process.stop() == 0


def test_two_gateways_and_two_workers_share_a_bucket(
    place: Place, postgres: Postgres, upstream: RunningMock, tmp_path: Path
) -> None:
    shared = Place(place.server, upstream.url, tmp_path, asyncio.run(postgres.database()))
    config = shared.config(worker=False, concurrency=8)
    with (
        gateway(tmp_path / "first", config) as first,
        gateway(tmp_path / "second", config) as second,
        worker(tmp_path / "one", config) as one,
        worker(tmp_path / "two", config) as two,
    ):
        client = client_of(first)
        file = client.files.create(file=("in.jsonl", input_lines(questions(1000))), purpose="batch")
        first.kill()
        other = client_of(second)
        assert other.files.content(file.id).read() == input_lines(questions(1000))
        batch = other.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        second.kill()  # a worker imports the file, which no gateway can
        with gateway(tmp_path / "third", config) as third:
            checked(client_of(third), ended(client_of(third), batch), 1000)
        assert one.stop() == 0
        assert two.stop() == 0


def test_an_outage_of_the_bucket_delays_a_batch_and_loses_none(place: Place, tmp_path: Path) -> None:
    tunnel = Tunnel(place.server.address)
    with gateway(tmp_path, place.config(tunnel.address)) as process:
        client = client_of(process)
        file = client.files.create(file=("in.jsonl", input_lines(questions(100))), purpose="batch")
        tunnel.close()
        for call in (
            lambda: client.files.create(file=("in.jsonl", b"{}\n"), purpose="batch"),
            lambda: client.files.content(file.id),
            lambda: client.files.delete(file.id),
        ):
            with pytest.raises(openai.InternalServerError, match="does not answer") as fault:
                call()
            assert (fault.value.status_code, fault.value.code) == (503, "file_storage_failed")
        assert [found.id for found in client.files.list()] == [file.id], "neither stored nor deleted"
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        assert client.batches.retrieve(batch.id).status == "validating"
        tunnel.open()
        checked(client, ended(client, batch), 100)


def test_wrong_credentials_are_a_clear_error_and_never_shown(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "a-secret-that-is-not-the-right-one"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", wrong)
    config = place.config().replace("log = false", "log = true")
    with gateway(tmp_path, config) as process:
        client = client_of(process)
        with pytest.raises(openai.InternalServerError, match="AWS_SECRET_ACCESS_KEY") as fault:
            client.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
        assert (fault.value.status_code, fault.value.code) == (503, "file_storage_failed")
        until(lambda: "file_storage_failing" in process.log.read_text(), lambda: process.log.read_text())
        told = process.log.read_text() + fault.value.response.text
        for secret in (wrong, place.server.key):
            assert secret not in told
    path = tmp_path / "streamglot.toml"
    shown = subprocess.run([*COMMAND, "config", "show", "--config", str(path)], capture_output=True, text=True, check=True)
    assert f"s3://{place.bucket}/files" in shown.stdout
    assert wrong not in shown.stdout + shown.stderr


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["batch", "worker"]])
def test_a_process_without_credentials_says_what_to_set(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    path = tmp_path / "streamglot.toml"
    path.write_text(place.config())
    done = subprocess.run(
        [*COMMAND, *command, "--config", str(path)], capture_output=True, text=True, timeout=2 * WAIT_SECONDS, check=False
    )
    assert done.returncode == 2, "the exit status of a wrong configuration"
    assert "set AWS_SECRET_ACCESS_KEY in the environment" in done.stderr
    assert "Traceback" not in done.stderr


def test_another_key_reads_no_file_of_the_bucket(place: Place, tmp_path: Path) -> None:
    with gateway(tmp_path, place.config()) as process:
        one, two = client_of(process), client_of(process, "two")
        file = one.files.create(file=("in.jsonl", b"private\n"), purpose="batch")
        for id in (file.id, f"../files/{file.id}", f"..%2Ffiles%2F{file.id}", f"{file.id}%00"):
            for call in (two.files.content, two.files.retrieve, two.files.delete):
                with pytest.raises(openai.APIStatusError) as refused:
                    call(id)
                assert refused.value.status_code in (400, 404)
        with pytest.raises(openai.BadRequestError):
            two.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        assert one.files.content(file.id).read() == b"private\n"


def test_the_name_of_an_upload_never_becomes_a_key(place: Place, tmp_path: Path) -> None:
    with gateway(tmp_path, place.config()) as process:
        client = client_of(process)
        names = ["../../other", "a/b\\c", "x" * 1000, "%2e%2e%2f", "new\nline", "ä.jsonl"]
        files = [client.files.create(file=(name, b"{}\n"), purpose="batch") for name in names]
        assert sorted(place.keys) == sorted(f"files/{file.id}" for file in files)


def test_an_object_that_was_removed_elsewhere_is_a_clear_error(place: Place, tmp_path: Path) -> None:
    with gateway(tmp_path, place.config()) as process:
        client = client_of(process)
        file = client.files.create(file=("in.jsonl", input_lines(questions(3))), purpose="batch")
        place.server.client.delete_object(Bucket=place.bucket, Key=f"files/{file.id}")
        with pytest.raises(openai.NotFoundError, match="are missing"):
            client.files.content(file.id)
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        done = ended(client, batch)
        assert done.status == "failed"
        assert [error["code"] for error in json.loads(done.errors.to_json())["data"]] == ["file_unreadable"]


def test_an_upload_that_is_refused_at_its_end_is_removed(place: Place, tmp_path: Path) -> None:
    with gateway(tmp_path, place.config()) as process:
        client = client_of(process)
        with pytest.raises(openai.BadRequestError, match="purpose"):
            client.files.create(file=("in.jsonl", b"{}\n"), purpose="nonsense")  # type: ignore[arg-type]  # that is the test
        assert place.keys == []
