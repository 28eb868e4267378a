"""The contents of uploaded files: in a directory, as objects of an S3-compatible store, or in any storage with the same methods.

An object's name is ``<prefix>/<file id>``. A file of one part is one request. A larger file is a multipart upload that runs in a
thread: it takes the blocks as they arrive, and is aborted if the client or the store fails, so no incomplete object is ever
visible. A download is a series of range requests, so a slow reader holds no connection open, and a fault is retried for one
piece only.

obstore is called in threads, not by its asynchronous functions: their runtime may abort the process while Python exits.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, TypeVar
from urllib.parse import urlsplit

from ...config import S3Config
from ...errors import ConfigError, LimitExceeded, StreamglotError, excerpt
from ...installation import require
from ...tasks import WriteLine
from ...upstream.secrets import hide

if TYPE_CHECKING:
    from obstore.store import S3Store

BLOCK_BYTES: Final = 2**20
"""Bytes per read or write. Using a thread costs as much as copying about 100 KB."""

PART: Final = ".part"
"""The file name suffix of an upload in progress."""
ABANDONED_SECONDS: Final = 86_400.0
"""Seconds. A part that was not written to for a day belongs to no running upload."""
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""The syntax of an id. It becomes part of a path or of an object's key, so it has neither dots nor slashes."""


class FileStorageUnavailable(StreamglotError):
    """The storage does not answer or refuses the gateway. The contents are not lost: the same call may succeed later."""

    status = 503
    code = "file_storage_failed"
    retryable = True


class FileMissing(StreamglotError):
    """The storage answers, and does not have the contents."""

    status = 404
    code = "file_missing"


class FileStorage(Protocol):
    """Contents by file id. The gateway makes the ids, never a client."""

    shared: bool
    """Whether all processes see the same contents. Otherwise contents that are missing here may exist on another machine."""

    async def save(self, id: str, chunks: AsyncIterator[bytes], maximum: int) -> int:
        """Stores the chunks completely or not at all, and returns their size. Refuses more than ``most`` bytes."""

    def chunks(self, id: str) -> AsyncIterator[bytes]:
        """The contents in pieces. Raises ``FileMissing`` if there are none."""

    async def exists(self, id: str) -> bool: ...

    async def remove(self, id: str) -> None:
        """Removes the contents, if there are any."""

    async def clean(self) -> None:
        """Removes the remains of uploads whose process died."""

    async def close(self) -> None: ...


class DirectoryStorage:
    """One file for each id, readable by this user only. A file gets its name when it is complete."""

    shared = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def save(self, id: str, chunks: AsyncIterator[bytes], maximum: int) -> int:
        path = self._path(id)
        part = path.with_name(f"{path.name}{PART}")
        file = await asyncio.to_thread(self._create, part)
        size, waiting, held = 0, 0, list[bytes]()
        try:
            async for chunk in chunks:
                size += len(chunk)
                waiting += len(chunk)
                held.append(chunk)
                if size > maximum:
                    raise too_large(maximum)
                if waiting >= BLOCK_BYTES:
                    await asyncio.to_thread(_write, file, b"".join(held))
                    held.clear()
                    waiting = 0
            await asyncio.to_thread(_finish, file, b"".join(held), part, path)
        except OSError as error:
            raise _failed(error) from None
        finally:
            file.close()
            with suppress(OSError):
                part.unlink()
        return size

    async def chunks(self, id: str) -> AsyncIterator[bytes]:
        try:
            with open(self._path(id), "rb") as file:
                while block := await asyncio.to_thread(file.read, BLOCK_BYTES):
                    yield block
        except FileNotFoundError:
            raise missing(id) from None
        except OSError as error:
            raise _failed(error) from None

    async def exists(self, id: str) -> bool:
        return self._path(id).is_file()

    async def remove(self, id: str) -> None:
        with suppress(OSError):
            self._path(id).unlink()

    async def clean(self) -> None:
        await asyncio.to_thread(self._clean)

    async def close(self) -> None:
        """Does nothing: no file stays open."""

    def _clean(self) -> None:
        for part in self._directory.glob(f"*{PART}"):
            with suppress(OSError):
                if time.time() - part.stat().st_mtime > ABANDONED_SECONDS:
                    part.unlink()

    def _path(self, id: str) -> Path:
        return self._directory / checked_id(id)

    def _create(self, part: Path) -> BinaryIO:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        except OSError as error:
            raise _failed(error) from None


def too_large(maximum: int) -> LimitExceeded:
    return LimitExceeded(f"the file has more than {maximum} bytes (batches.max_file_bytes); divide it into several batches")


def missing(id: str) -> FileMissing:
    return FileMissing(
        f"the contents of the file {id} are missing in the file storage (batches.directory); upload the file again"
    )


def checked_id(id: str) -> str:
    """The id if it can be part of a path. Any other id is a defect, because the gateway makes the ids."""
    if not _ID.fullmatch(id):
        raise StreamglotError(f"the file id {excerpt(id)} is not one that the gateway makes: letters, digits, - and _")
    return id


def _write(file: BinaryIO, data: bytes) -> None:
    file.write(data)


def _finish(file: BinaryIO, data: bytes, part: Path, path: Path) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())
    part.rename(path)


def _failed(error: OSError) -> StreamglotError:
    return StreamglotError(
        f"the directory of files (batches.directory) cannot be used: {error.strerror or error}",
        code="file_storage_failed",
        status=503,
    )


T = TypeVar("T")

KEY_ID, SECRET, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
DEFAULT_REGION: Final = "us-east-1"
"""The region that stores without regions expect in a signature."""
PART_BYTES: Final = 5 * 2**20
"""Bytes per part of an upload: the smallest part that S3 accepts, because each upload holds a few of them in memory."""
MAX_PARTS: Final = 10_000
"""Parts of one upload: the limit of S3. Files that need more get larger parts."""
PARALLEL_PARTS: Final = 2
"""Parts of one upload that are sent at once: enough to hide the latency, at 5 MiB of memory each."""
LARGE_UPLOADS: Final = 32
"""Multipart uploads at once in a process. Each takes a thread and about 15 MiB, together at most 0.5 GiB."""
THREADS: Final = 8
"""Short requests at once in a process."""
PIECE_BYTES: Final = 4 * 2**20
"""Bytes per range request of a download. Each costs a round trip, and is held in memory."""
CONNECT_SECONDS: Final = 5.0
REQUEST_SECONDS: Final = 60.0
"""Seconds for one request: a part or a piece passes in this time at 1 Mbit/s."""
RETRIES: Final = 4
RETRY_SECONDS: Final = 20.0
"""Seconds in which a request is retried. A client waits this long for the answer that the store cannot be reached."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds between two attempts, at first and at most."""
MESSAGE_CHARS: Final = 300
"""Characters of the store's message in a log line."""
_ERROR_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>")


class S3Storage:
    """``url`` is ``s3://bucket/prefix``. The credentials are in ``environment`` by their usual names, and nowhere else."""

    shared = True

    def __init__(
        self,
        url: str,
        settings: S3Config,
        environment: Mapping[str, str],
        log: WriteLine = lambda line: None,
    ) -> None:
        require("obstore")
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        self._secrets = [environment.get(name, "") for name in (KEY_ID, SECRET, TOKEN)]
        self._store = _open(bucket, prefix.strip("/"), settings, environment)
        self._log = log
        self._short = ThreadPoolExecutor(THREADS, "s3")
        self._long = ThreadPoolExecutor(LARGE_UPLOADS, "s3 upload")
        self._uploads = 0
        self._failing_since = 0.0

    # --- the methods of a storage

    async def save(self, id: str, chunks: AsyncIterator[bytes], maximum: int) -> int:
        key = checked_id(id)
        size, waiting, held = 0, 0, list[bytes]()
        upload: _Upload | None = None
        try:
            async for chunk in chunks:
                size += len(chunk)
                waiting += len(chunk)
                held.append(chunk)
                if size > maximum:
                    raise too_large(maximum)
                if waiting >= (BLOCK_BYTES if upload is not None else PART_BYTES):
                    upload = upload or self._begin(key, maximum)
                    await upload.give(b"".join(held))
                    held.clear()
                    waiting = 0
            if upload is None:
                await self._run(lambda: self._store.put(key, b"".join(held), use_multipart=False))
            else:
                await upload.give(b"".join(held))
                await upload.finish()
                self._answered()
        except BaseException:
            if upload is not None:
                upload.abandon()
            raise
        return size

    async def chunks(self, id: str) -> AsyncIterator[bytes]:
        key = checked_id(id)
        try:
            size = (await self._run(lambda: self._store.head(key)))["size"]
            for start in range(0, size, PIECE_BYTES):
                yield await self._run(self._piece, key, start, min(size, start + PIECE_BYTES))
        except FileNotFoundError:
            raise missing(id) from None

    async def exists(self, id: str) -> bool:
        key = checked_id(id)
        try:
            await self._run(lambda: self._store.head(key))
        except FileNotFoundError:
            return False
        return True

    async def remove(self, id: str) -> None:
        key = checked_id(id)
        try:
            await self._run(lambda: self._store.delete(key))
        except FileNotFoundError:
            return

    async def clean(self) -> None:
        """Removes nothing: a rule of the bucket removes the remains of uploads whose process died."""

    async def close(self) -> None:
        """Frees the threads. Requests in progress end within their time limits."""
        self._short.shutdown(wait=False, cancel_futures=True)
        self._long.shutdown(wait=False, cancel_futures=True)

    # --- requests in threads

    def _piece(self, key: str, start: int, end: int) -> bytes:
        return bytes(self._store.get_range(key, start=start, end=end))

    def _begin(self, key: str, maximum: int) -> _Upload:
        if self._uploads >= LARGE_UPLOADS:
            raise FileStorageUnavailable(
                f"{LARGE_UPLOADS} large files are being uploaded to this process; upload the file again in a minute",
                code="file_storage_busy",
            )
        self._uploads += 1
        part = max(PART_BYTES, -(-maximum // MAX_PARTS))
        upload = _Upload(asyncio.get_running_loop(), self._faults)
        upload.task = asyncio.get_running_loop().run_in_executor(self._long, self._send, key, upload, part)
        upload.task.add_done_callback(self._ended)
        upload.task.add_done_callback(upload.ended)
        return upload

    def _ended(self, _: object) -> None:
        self._uploads -= 1

    def _send(self, key: str, upload: _Upload, part: int) -> None:
        """Sends a large file, in a thread."""
        self._store.put(key, iter(upload), use_multipart=True, chunk_size=part, max_concurrency=PARALLEL_PARTS)
        if upload.abandoned:  # the request was cancelled while the last part was sent
            self._store.delete(key)

    async def _run(self, work: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        try:
            result = await loop.run_in_executor(self._short, work, *arguments)
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._faults(error) from None
            self._answered()
            raise
        except Exception as error:
            raise self._faults(error) from None
        self._answered()
        return result

    # --- faults

    def _faults(self, error: BaseException) -> FileStorageUnavailable:
        """Logs the first of a series of faults. The client's error has no details, which may name internal addresses."""
        if not self._failing_since:
            self._failing_since = time.monotonic()
            self._log({"event": "file_storage_failing", "message": self._shown(error)})
        if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
            why = f"it refused the gateway's credentials; its operator must check {KEY_ID}, {SECRET} and the rights of the key"
        elif isinstance(error, FileNotFoundError):
            why = "its bucket does not exist; its operator must create it, or correct batches.directory"
        else:
            why = "it does not answer; try again later"
        return FileStorageUnavailable(f"the file storage (batches.directory) cannot be used: {why}")

    def _answered(self) -> None:
        if self._failing_since:
            seconds, self._failing_since = time.monotonic() - self._failing_since, 0.0
            self._log({"event": "file_storage_back", "seconds": round(seconds, 3)})

    def _shown(self, error: BaseException) -> str:
        """The store's message without credentials and signatures."""
        text = str(error)
        code = _ERROR_CODE.search(text)
        first = text.partition("\n")[0].partition("<")[0].strip()
        return hide(f"{first} {code[1]}" if code else first, self._secrets)[:MESSAGE_CHARS]


class _Upload:
    """The blocks of a large file on their way from the event loop to the thread that sends them. One block waits at a time."""

    task: asyncio.Future[None]

    def __init__(self, loop: asyncio.AbstractEventLoop, faults: Callable[[BaseException], Exception]) -> None:
        self.abandoned = False
        self._loop = loop
        self._faults = faults
        self._blocks: SimpleQueue[bytes | None] = SimpleQueue()
        self._room = asyncio.Semaphore(1)

    async def give(self, block: bytes) -> None:
        """Hands a block over. Raises the error of an upload that has failed."""
        await self._room.acquire()
        if self.task.done():
            await self.finish()
        self._blocks.put(block)

    async def finish(self) -> None:
        """Completes the object, and waits until it is visible."""
        self._blocks.put(None)
        try:
            await asyncio.shield(self.task)
        except Exception as error:
            raise self._faults(error) from None

    def abandon(self) -> None:
        """Ends the upload without an object."""
        self.abandoned = True
        self._blocks.put(None)

    def ended(self, task: asyncio.Future[None]) -> None:
        self._room.release()
        if not task.cancelled():
            task.exception()  # an abandoned upload is not waited for

    def __iter__(self) -> Iterator[bytes]:
        """The blocks, in the thread. An abandoned upload is aborted by an exception."""
        while (block := self._blocks.get()) is not None and not self.abandoned:
            self._loop.call_soon_threadsafe(self._room.release)
            yield block
        if self.abandoned:
            raise _Abandoned


class _Abandoned(Exception):
    """Makes obstore abort an upload."""


def _open(bucket: str, prefix: str, settings: S3Config, environment: Mapping[str, str]) -> S3Store:
    from obstore.store import S3Store

    key, secret, token = (environment.get(name, "") for name in (KEY_ID, SECRET, TOKEN))
    if not key or not secret:
        absent = " and ".join(name for name, value in ((KEY_ID, key), (SECRET, secret)) if not value)
        raise ConfigError(f"batches.directory is an S3 bucket, which needs credentials: set {absent} in the environment")
    endpoint = (settings.endpoint or _first(environment, ENDPOINTS)).rstrip("/")
    if endpoint and not settings.path_style:
        scheme, _, host = endpoint.partition("://")
        endpoint = f"{scheme}://{bucket}.{host}"
    options: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}  # Any: keyword arguments of several types
    if token:
        options["session_token"] = token
    if prefix:
        options["prefix"] = prefix
    try:
        return S3Store(
            bucket,
            access_key_id=key,
            secret_access_key=secret,
            region=settings.region or _first(environment, REGIONS) or DEFAULT_REGION,
            virtual_hosted_style_request=not settings.path_style,
            disable_bulk_delete=True,  # several stores do not have it
            client_options={
                "allow_http": urlsplit(endpoint).scheme == "http",
                "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
                "timeout": timedelta(seconds=REQUEST_SECONDS),
            },
            retry_config={
                "max_retries": RETRIES,
                "retry_timeout": timedelta(seconds=RETRY_SECONDS),
                "backoff": {
                    "init_backoff": timedelta(seconds=FIRST_PAUSE),
                    "max_backoff": timedelta(seconds=LONGEST_PAUSE),
                    "base": 2,
                },
            },
            **options,
        )
    except Exception as error:
        message = hide(str(error).partition("\n")[0], (key, secret, token))[:MESSAGE_CHARS]
        raise ConfigError(f"batches.directory and batches.s3 cannot be used: {message}") from None


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")
