"""The contents of uploaded files: in a directory, or in any storage with the same methods."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from ..errors import LimitExceeded, StreamglotError, excerpt

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
