"""Uploaded files in an S3-compatible store: parts, limits, faults, credentials and keys, against a real server."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from batch_durable.s3_server import S3Server, Tunnel, s3_server
from store.turns import asynchronous
from streamglot.batch.durable import storage as s3_storage
from streamglot.batch.durable.storage import (
    BLOCK_BYTES,
    PART_BYTES,
    PIECE_BYTES,
    DirectoryStorage,
    FileMissing,
    FileStorage,
    FileStorageUnavailable,
    S3Storage,
)
from streamglot.config import S3Config, load, shown
from streamglot.errors import ConfigError, LimitExceeded, StreamglotError
from waiting import soon

LIMIT = 2**30


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def bucket(server: S3Server) -> str:
    return server.bucket()


class Opened:
    """A storage and its log."""

    def __init__(self, server: S3Server, bucket: str, address: str = "", **environment: str) -> None:
        self.lines: list[Mapping[str, Any]] = []
        settings = S3Config(endpoint=address or server.address)
        self.storage = S3Storage(f"s3://{bucket}/some/prefix", settings, server.environment | environment, self.lines.append)

    @property
    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]


async def pieces(data: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def read(storage: FileStorage, id: str) -> bytes:
    return b"".join([chunk async for chunk in storage.chunks(id)])


@asynchronous
@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES + BLOCK_BYTES + 7])
async def test_a_file_of_any_size_is_read_as_it_was_saved(server: S3Server, bucket: str, size: int) -> None:
    storage = Opened(server, bucket).storage
    data = random.Random(size).randbytes(size)
    assert await storage.save("file-1", pieces(data), LIMIT) == size
    assert server.keys(bucket) == ["some/prefix/file-1"]
    assert server.unfinished(bucket) == []
    assert await storage.exists("file-1")
    assert hashlib.sha256(await read(storage, "file-1")).digest() == hashlib.sha256(data).digest()
    await storage.remove("file-1")
    assert server.keys(bucket) == []
    assert not await storage.exists("file-1")
    await storage.remove("file-1")
    await storage.clean()
    await storage.close()


@asynchronous
async def test_a_large_file_is_sent_in_parts_and_read_in_pieces(server: S3Server, bucket: str) -> None:
    storage = Opened(server, bucket).storage
    data = random.Random(1).randbytes(7 * PART_BYTES)
    await storage.save("file-1", pieces(data, 300_000), LIMIT)
    head = server.client.head_object(Bucket=bucket, Key="some/prefix/file-1")
    assert head["ETag"].strip('"').endswith("-7"), "the ETag of a multipart upload ends with the number of its parts"
    sizes = [len(chunk) async for chunk in storage.chunks("file-1")]
    assert max(sizes) == PIECE_BYTES
    assert sum(sizes) == len(data)


@asynchronous
async def test_a_larger_limit_makes_larger_parts(server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_storage, "MAX_PARTS", 2)
    data = random.Random(2).randbytes(3 * PART_BYTES)
    await Opened(server, bucket).storage.save("file-1", pieces(data), 4 * PART_BYTES)
    head = server.client.head_object(Bucket=bucket, Key="some/prefix/file-1")
    assert head["ETag"].strip('"').endswith("-2")


@asynchronous
@pytest.mark.parametrize("parts", [0, 2])
async def test_a_file_beyond_the_limit_leaves_nothing(server: S3Server, bucket: str, parts: int) -> None:
    limit = parts * PART_BYTES + BLOCK_BYTES

    async def too_much() -> AsyncIterator[bytes]:
        async for piece in pieces(bytes(limit)):
            yield piece
        await soon(lambda: server.parts(bucket) == parts, lambda: "the parts were not sent")
        yield b"x"

    with pytest.raises(LimitExceeded, match="max_file_bytes"):
        await Opened(server, bucket).storage.save("file-1", too_much(), limit)
    assert server.keys(bucket) == []
    await soon(lambda: not server.unfinished(bucket), lambda: "the upload was not aborted")


class Gone(Exception):
    """The client of an upload has gone."""


@asynchronous
@pytest.mark.parametrize("parts", [0, 2])
async def test_an_upload_whose_client_goes_away_leaves_nothing(server: S3Server, bucket: str, parts: int) -> None:
    async def broken() -> AsyncIterator[bytes]:
        async for piece in pieces(bytes(parts * PART_BYTES + BLOCK_BYTES)):
            yield piece
        await soon(lambda: server.parts(bucket) == parts, lambda: "the parts were not sent")
        raise Gone

    with pytest.raises(Gone):
        await Opened(server, bucket).storage.save("file-1", broken(), LIMIT)
    await soon(lambda: not server.unfinished(bucket), lambda: "the upload was not aborted")
    assert server.keys(bucket) == []


@asynchronous
async def test_a_cancelled_upload_leaves_nothing(server: S3Server, bucket: str) -> None:
    async def endless() -> AsyncIterator[bytes]:
        async for piece in pieces(bytes(2 * PART_BYTES + BLOCK_BYTES)):
            yield piece
        await asyncio.Event().wait()

    storage = Opened(server, bucket).storage
    saving = asyncio.ensure_future(storage.save("file-1", endless(), LIMIT))
    await soon(lambda: server.parts(bucket) == 2, lambda: "the parts were not sent")
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    await soon(lambda: not server.unfinished(bucket), lambda: "the upload was not aborted")
    assert server.keys(bucket) == []


@asynchronous
async def test_more_large_uploads_than_threads_are_refused(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_storage, "LARGE_UPLOADS", 1)
    storage = Opened(server, bucket).storage
    more = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        async for piece in pieces(bytes(2 * PART_BYTES)):
            yield piece
        await more.wait()

    first = asyncio.ensure_future(storage.save("file-1", slow(), LIMIT))
    await soon(lambda: server.unfinished(bucket), lambda: "the upload did not begin")
    with pytest.raises(FileStorageUnavailable, match="again") as refused:
        await storage.save("file-2", pieces(bytes(2 * PART_BYTES)), LIMIT)
    assert (refused.value.code, refused.value.status, refused.value.retryable) == ("file_storage_busy", 503, True)
    await storage.save("file-3", pieces(b"a small file needs no such thread"), LIMIT)
    more.set()
    assert await first == 2 * PART_BYTES
    await storage.save("file-2", pieces(bytes(2 * PART_BYTES)), LIMIT)
    assert len(server.keys(bucket)) == 3


# --- faults


@asynchronous
async def test_a_missing_object_is_a_clear_error(server: S3Server, bucket: str, tmp_path: Path) -> None:
    opened = Opened(server, bucket)
    for storage in (opened.storage, DirectoryStorage(tmp_path)):
        with pytest.raises(FileMissing, match="file-1 are missing") as fault:
            await read(storage, "file-1")
        assert (fault.value.status, fault.value.code) == (404, "file_missing")
    assert opened.events == [], "a missing object is no fault of the store"


@asynchronous
async def test_a_missing_bucket_is_a_clear_error(server: S3Server) -> None:
    opened = Opened(server, "there-is-no-such-bucket")
    for size in (1, 2 * PART_BYTES):
        with pytest.raises(FileStorageUnavailable, match="bucket does not exist"):
            await opened.storage.save("file-1", pieces(bytes(size)), LIMIT)
    assert opened.events == ["file_storage_failing"]
    assert "NoSuchBucket" in opened.lines[0]["message"]


@asynchronous
async def test_wrong_credentials_are_reported_without_showing_them(server: S3Server, bucket: str) -> None:
    await Opened(server, bucket).storage.save("file-1", pieces(b"kept"), LIMIT)
    wrong = "this-is-not-the-secret-of-the-key"
    opened = Opened(server, bucket, AWS_SECRET_ACCESS_KEY=wrong, AWS_SESSION_TOKEN="")
    messages = []
    for work in (
        opened.storage.save("file-2", pieces(b"x"), LIMIT),
        opened.storage.save("file-2", pieces(bytes(2 * PART_BYTES)), LIMIT),
        opened.storage.exists("file-1"),
        read(opened.storage, "file-1"),
        opened.storage.remove("file-1"),
    ):
        with pytest.raises(FileStorageUnavailable, match="AWS_SECRET_ACCESS_KEY") as fault:
            await work
        messages.append(fault.value.message)
    assert opened.events == ["file_storage_failing"], "a series of faults is one line"
    told = json.dumps([messages, opened.lines])
    for secret in (wrong, server.key, server.secret, "StringToSign", "AWS4-HMAC"):
        assert secret not in told
    assert wrong not in repr(vars(opened.storage)["_store"])
    assert server.keys(bucket) == ["some/prefix/file-1"]


@asynchronous
async def test_a_server_that_is_down_is_noticed_and_comes_back(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_storage, "RETRIES", 1)
    tunnel = Tunnel(server.address)
    opened = Opened(server, bucket, tunnel.address)
    await opened.storage.save("file-1", pieces(b"before"), LIMIT)
    tunnel.close()
    for _ in range(2):
        with pytest.raises(FileStorageUnavailable, match="does not answer"):
            await read(opened.storage, "file-1")
    assert opened.events == ["file_storage_failing"]
    tunnel.open()
    assert await read(opened.storage, "file-1") == b"before"
    assert opened.events == ["file_storage_failing", "file_storage_back"]


@asynchronous
async def test_a_server_that_goes_down_in_the_middle_of_an_upload_leaves_no_object(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_storage, "RETRIES", 1)
    tunnel = Tunnel(server.address, close_after=2 * PART_BYTES)
    opened = Opened(server, bucket, tunnel.address)
    with pytest.raises(FileStorageUnavailable, match="does not answer"):
        await opened.storage.save("file-1", pieces(bytes(6 * PART_BYTES)), LIMIT)
    assert tunnel.closed
    assert server.keys(bucket) == []
    tunnel.open()
    await opened.storage.save("file-1", pieces(bytes(6 * PART_BYTES)), LIMIT)
    assert server.keys(bucket) == ["some/prefix/file-1"]
    assert opened.events == ["file_storage_failing", "file_storage_back"]


@asynchronous
async def test_a_short_outage_is_survived_by_retries(server: S3Server, bucket: str) -> None:
    tunnel = Tunnel(server.address)
    opened = Opened(server, bucket, tunnel.address)
    await opened.storage.save("file-1", pieces(bytes(3 * PIECE_BYTES)), LIMIT)
    size = 0
    async for chunk in opened.storage.chunks("file-1"):
        size += len(chunk)
        tunnel.close()
        tunnel.open()
    assert size == 3 * PIECE_BYTES
    assert opened.events == []


# --- names


@asynchronous
@pytest.mark.parametrize(
    "id", ["", ".", "..", "../file", "a/../../b", "/etc/passwd", "a//b", "a\\b", "a b", "ä", "a\x00b", "%2e%2e", "a?b", "x" * 129]
)
async def test_no_id_leaves_the_prefix(server: S3Server, bucket: str, tmp_path: Path, id: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for storage in (Opened(server, bucket).storage, DirectoryStorage(outside / "files")):
        with pytest.raises(StreamglotError, match="file id"):
            await storage.save(id, pieces(b"x"), LIMIT)
        with pytest.raises(StreamglotError, match="file id"):
            await storage.exists(id)
        with pytest.raises(StreamglotError, match="file id"):
            await storage.remove(id)
        with pytest.raises(StreamglotError, match="file id"):
            await read(storage, id)
    assert server.keys(bucket) == []
    assert list(outside.rglob("*")) == []


@pytest.mark.parametrize(
    "directory",
    [
        "s3://",
        "s3://b",
        "s3://bucket/../other",
        "s3://bucket/./x",
        "s3://bucket//x",
        "s3://bucket/a b",
        "s3://bucket/x?y=z",
        "s3://bucket/x#y",
        "s3://bucket/%2e%2e",
        "s3://key:password@bucket/x",
        "https://bucket.s3.amazonaws.com/x",
        "gs://bucket/x",
    ],
)
def test_other_addresses_are_refused_without_quoting_them(directory: str) -> None:
    with pytest.raises(ConfigError, match=r"batches\.directory") as fault:
        load(environment={}, overrides={"batches.directory": directory})
    assert "password" not in fault.value.message


@pytest.mark.parametrize("endpoint", ["minio:9000", "ftp://host", "http://", "http://a b", "https://me:password@host"])
def test_other_endpoints_are_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"batches\.s3\.endpoint") as fault:
        load(environment={}, overrides={"batches.directory": "s3://bucket/x", "batches.s3.endpoint": endpoint})
    assert "password" not in fault.value.message


def test_an_endpoint_without_a_bucket_is_refused() -> None:
    with pytest.raises(ConfigError, match="no effect"):
        load(environment={}, overrides={"batches.s3.endpoint": "https://minio.example"})


@pytest.mark.parametrize("directory", ["s3://bucket", "s3://bucket/", "s3://my.bucket-1/a/b_c/", "/var/lib/files", "files", ""])
def test_usual_places_are_accepted(directory: str) -> None:
    assert load(environment={}, overrides={"batches.directory": directory}).config.batches.directory == directory


def test_credentials_are_needed_and_never_part_of_the_configuration() -> None:
    environment = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "a-very-secret-value"}
    for name in environment:
        with pytest.raises(ConfigError, match=name) as fault:
            S3Storage("s3://bucket/x", S3Config(), {**environment, name: ""})
        assert "a-very-secret-value" not in fault.value.message
    loaded = load(environment=environment, overrides={"batches.directory": "s3://bucket/x"})
    assert "a-very-secret-value" not in json.dumps(shown(loaded))
    storage = S3Storage("s3://bucket/x", S3Config(region="eu-central-1", path_style=False), environment)
    assert "secret-value" not in repr(vars(storage)["_store"])


def test_the_address_of_a_bucket_follows_the_settings_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore.store

    made: list[dict[str, Any]] = []
    monkeypatch.setattr(obstore.store, "S3Store", lambda bucket, **options: made.append({"bucket": bucket, **options}))
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}

    def opened(settings: S3Config, url: str = "s3://bucket/a/b/", **environment: str) -> dict[str, Any]:
        S3Storage(url, settings, keys | environment)
        return made[-1]

    plain = opened(S3Config(), "s3://bucket")
    assert (plain["bucket"], plain["region"], "endpoint" in plain, "prefix" in plain) == ("bucket", "us-east-1", False, False)
    assert not plain["client_options"]["allow_http"]
    given = opened(S3Config(endpoint="http://minio:9000/", region="eu"), AWS_ENDPOINT_URL="http://other", AWS_REGION="us")
    assert (given["endpoint"], given["region"], given["prefix"]) == ("http://minio:9000", "eu", "a/b")
    assert given["client_options"]["allow_http"]
    usual = opened(S3Config(), AWS_ENDPOINT_URL="http://other", AWS_DEFAULT_REGION="us", AWS_SESSION_TOKEN="t")
    assert (usual["endpoint"], usual["region"], usual["session_token"]) == ("http://other", "us", "t")
    hosted = opened(S3Config(endpoint="https://s3.example", path_style=False))
    assert hosted["endpoint"] == "https://bucket.s3.example"
    assert hosted["virtual_hosted_style_request"]
