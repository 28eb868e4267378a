"""Batches that a gateway runs: a client for its files and batches, and the commands submit, list, status, cancel, results, retry.

Files are streamed and never held in memory.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self, TypeVar

import aiohttp
import msgspec

from ...errors import ConfigError, StreamglotError, UpstreamError
from ...json_types import JSON_ERRORS, JsonObject
from ..address import GatewayAddress
from ..exit_status import FAILED, stoppable
from ..options import shown
from ..output import table
from ..output.terminal import neutral, print_error
from ..output.units import shown_time
from .progress import Counts, ProgressBar
from .rows import JsonLines

PIECE_BYTES: Final = 2**18
"""Bytes of a file that are read or written at a time."""
ANSWER_SECONDS: Final = 60.0
"""Seconds without any data after which a request fails. The transfer of a file may take longer while data still flows."""
ERROR_BYTES: Final = 2**16
"""Bytes of an error response that are read: enough for its message."""


class GatewayClient:
    """Used with ``async with``. If the gateway refuses a request, its own message is raised."""

    def __init__(self, address: GatewayAddress) -> None:
        self._address = address
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        headers = {"authorization": f"Bearer {self._address.key}"} if self._address.key else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=ANSWER_SECONDS)
        self._session = aiohttp.ClientSession(headers=headers, timeout=timeout)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        assert self._session is not None
        await self._session.close()

    # --- files

    async def upload(self, path: Path) -> JsonObject:
        try:
            with path.open("rb") as file:
                form = aiohttp.FormData()
                form.add_field("purpose", "batch")
                form.add_field("file", file, filename=path.name, content_type="application/jsonl")
                return await self._json("POST", "/v1/files", data=form)
        except OSError as error:
            raise ConfigError(f"the file {shown(path)} cannot be read: {error.strerror or error}") from None

    async def content(self, file_id: str) -> AsyncIterator[bytes]:
        """The bytes of a file in pieces."""
        async with self._asked("GET", f"/v1/files/{file_id}/content") as answer:
            async for piece in answer.content.iter_chunked(PIECE_BYTES):
                yield piece

    async def lines(self, file_id: str) -> AsyncIterator[bytes]:
        """The lines of a file without their line ends."""
        rest = b""
        async for piece in self.content(file_id):
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line
        if rest:
            yield rest

    # --- batches

    async def create(self, input_file_id: str, endpoint: str, metadata: dict[str, str] | None = None) -> JsonObject:
        body: JsonObject = {"input_file_id": input_file_id, "endpoint": endpoint, "completion_window": "24h"}
        if metadata:
            body["metadata"] = metadata
        return await self._json("POST", "/v1/batches", json=body)

    async def batch(self, id: str) -> JsonObject:
        return await self._json("GET", f"/v1/batches/{id}")

    async def batches(self, limit: int) -> list[JsonObject]:
        found = (await self._json("GET", f"/v1/batches?limit={limit}")).get("data")
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    async def cancel(self, id: str) -> JsonObject:
        return await self._json("POST", f"/v1/batches/{id}/cancel")

    # --- HTTP

    async def _json(self, method: str, path: str, **more: Any) -> JsonObject:  # Any: the arguments of aiohttp's ``request``
        async with self._asked(method, path, **more) as answer:
            try:
                value = msgspec.json.decode(await answer.read())
            except JSON_ERRORS:
                value = None
        if not isinstance(value, dict):
            raise UpstreamError(f"{self._address.url}{path} does not answer with a JSON object: is it a gateway?")
        return value

    @asynccontextmanager
    # Any: as for ``_json``
    async def _asked(self, method: str, path: str, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None
        try:
            async with self._session.request(method, f"{self._address.url}{path}", **more) as answer:
                if answer.status >= 400:
                    raise _refused(answer.status, await answer.content.read(ERROR_BYTES))
                yield answer
        except (TimeoutError, aiohttp.ClientError) as error:
            raise UpstreamError(
                f"the gateway at {self._address.url} does not answer ({error or type(error).__name__}); start it with "
                "`streamglot serve`, or name another one with --url",
                code="upstream_unreachable",
            ) from None


def _refused(status: int, body: bytes) -> StreamglotError:
    try:
        error = msgspec.json.decode(body)["error"]
        message = error["message"]
    except (*JSON_ERRORS, KeyError, TypeError, IndexError):
        message = body.decode("utf-8", "replace")[:300] or "no explanation"
    return StreamglotError(f"the gateway refused the request ({status}): {message}", status=status)


T = TypeVar("T")

ENDED: Final = ("completed", "failed", "expired", "cancelled")
"""Final states of a batch."""
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0
"""Seconds between two status requests: short at first for small batches, long for batches that take hours."""


def _with_client(address: GatewayAddress, work: Callable[[GatewayClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with GatewayClient(address) as client:
            return await work(client)

    return asyncio.run(run())


# --- the commands


@stoppable()
def submit(address: GatewayAddress, path: Path, endpoint: str, *, wait: bool, output: Path | None, quiet: bool) -> int:
    if output is not None and not wait:
        raise ConfigError(
            "-o saves the results, which exist only at the end: add --wait, or run `streamglot batch results` later"
        )
    endpoint = endpoint or _endpoint_of(path)

    async def work(client: GatewayClient) -> int:
        uploaded = await client.upload(path)
        made = await client.create(_text(uploaded, "id"), endpoint)
        return await _begun(client, made, wait=wait, output=output, quiet=quiet)

    return _with_client(address, work)


@stoppable()
def status(address: GatewayAddress, id: str, *, wait: bool, quiet: bool, as_json: bool) -> int:
    async def work(client: GatewayClient) -> int:
        found = await client.batch(id)
        if wait:
            found = await _waited(client, found, quiet=quiet)
        if as_json:
            print(msgspec.json.encode(found).decode())
        else:
            _describe(found)
        return _status_of(found) if wait else 0

    return _with_client(address, work)


def list_batches(address: GatewayAddress, limit: int, as_json: bool) -> int:
    found = _with_client(address, lambda client: client.batches(limit))
    if as_json:
        for one in found:
            print(msgspec.json.encode(one).decode())
        return 0
    rows = []
    for one in found:
        counts = _counts(one)
        made = one.get("created_at")
        when = shown_time(made) if isinstance(made, (int, float)) else ""
        shown_counts = [str(counts.get(name, 0)) for name in ("total", "completed", "failed")]
        rows.append([str(one.get("id")), str(one.get("status")), *shown_counts, when, str(one.get("endpoint"))])
    table.show(("id", "status", "total", "done", "failed", "created", "endpoint"), rows, ("total", "done", "failed"))
    return 0


def cancel(address: GatewayAddress, id: str) -> int:
    found = _with_client(address, lambda client: client.cancel(id))
    print(neutral(f"{found.get('id')} is {found.get('status')}"))
    return 0


@stoppable()
def results(address: GatewayAddress, id: str, output: Path | None) -> int:
    async def work(client: GatewayClient) -> int:
        found = await client.batch(id)
        await _save(client, found, output)
        return 0

    return _with_client(address, work)


@stoppable()
def retry(address: GatewayAddress, id: str, *, wait: bool, output: Path | None, quiet: bool) -> int:
    if output is not None and not wait:
        raise ConfigError(
            "-o saves the results, which exist only at the end: add --wait, or run `streamglot batch results` later"
        )

    async def work(client: GatewayClient) -> int:
        found = await client.batch(id)
        if found.get("status") not in ENDED:
            raise ConfigError(
                f"the batch {id} is {found.get('status')}; its failures are known when it has ended: "
                f"wait with `streamglot batch status {id} --wait`, then retry"
            )
        failed = await _failed_ids(client, found)
        if not failed:
            print("no request failed: there is nothing to retry")
            return 0
        with tempfile.TemporaryDirectory(prefix="streamglot-") as folder:
            path = Path(folder) / f"retry-{Path(id).name}.jsonl"
            await _failed_lines(client, _text(found, "input_file_id"), failed, path)
            uploaded = await client.upload(path)
        made = await client.create(_text(uploaded, "id"), _text(found, "endpoint"), {"retry_of": id})
        return await _begun(client, made, wait=wait, output=output, quiet=quiet)

    return _with_client(address, work)


# --- their parts


def _endpoint_of(path: Path) -> str:
    """The ``url`` of the first line. The gateway checks the other lines."""
    try:
        first = next(iter(JsonLines(path)), None)
    except OSError as error:
        raise ConfigError(f"the file {shown(path)} cannot be read: {error.strerror or error}") from None
    if first is None:
        raise ConfigError(f"the file {shown(path)} is empty")
    url = first.values.get("url")
    if first.error or not isinstance(url, str):
        raise ConfigError(
            f"line 1 of {shown(path)} is not a request of the batch API ({first.error or 'it has no url'}); `streamglot batch run` "
            "takes plain rows"
        )
    return url


async def _begun(client: GatewayClient, made: JsonObject, *, wait: bool, output: Path | None, quiet: bool) -> int:
    """Reports a new batch. Standard output gets only its id, for scripts, unless the command waits for the results."""
    id = _text(made, "id")
    if not wait:
        print(neutral(id))
        return 0
    print_error(f"submitted as {id}")
    try:
        ended = await _waited(client, made, quiet=quiet)
    except asyncio.CancelledError:
        print_error(f"the batch continues to run; `streamglot batch status {id}` shows its progress")
        raise
    if ended.get("status") == "failed":
        _describe(ended)
    else:
        await _save(client, ended, output)
    return _status_of(ended)


async def _waited(client: GatewayClient, found: JsonObject, *, quiet: bool) -> JsonObject:
    """Polls a batch until it has ended, also across a restart of the gateway."""
    bar, pause, id = ProgressBar(quiet=quiet), FIRST_PAUSE, _text(found, "id")
    while found.get("status") not in ENDED:
        bar.update(_progress(found))
        await asyncio.sleep(pause)
        pause = min(LONGEST_PAUSE, pause * 1.5)
        try:
            found = await client.batch(id)
        except StreamglotError as error:
            if error.code != "upstream_unreachable" and error.status < 500:
                raise
    bar.end(_progress(found, ended=True))
    return found


def _progress(found: JsonObject, *, ended: bool = False) -> Counts:
    counts = _counts(found)
    usage = found.get("usage") if isinstance(found.get("usage"), dict) else {}
    total, done, failed = (counts.get(name, 0) for name in ("total", "completed", "failed"))
    streamglot = found.get("streamglot") if isinstance(found.get("streamglot"), dict) else {}
    assert usage is not None
    assert streamglot is not None
    cost = streamglot.get("cost")
    return Counts(
        done=done,
        failed=failed,
        retried=_number(streamglot.get("retried")),
        input_tokens=_number(usage.get("input_tokens")),
        output_tokens=_number(usage.get("output_tokens")),
        cost=float(cost) if isinstance(cost, (int, float)) else None,
        fraction=1.0 if ended else (done + failed) / total if total else 0.0,
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _counts(found: JsonObject) -> dict[str, int]:
    counts = found.get("request_counts")
    return {name: _number(value) for name, value in counts.items()} if isinstance(counts, dict) else {}


def _status_of(found: JsonObject) -> int:
    """The exit status: 0 only if the batch completed and no request failed."""
    return FAILED if found.get("status") != "completed" or _counts(found).get("failed") else 0


def _describe(found: JsonObject) -> None:
    counts = _counts(found)
    shown_counts = ", ".join(f"{counts.get(name, 0)} {name}" for name in ("total", "completed", "failed"))
    print(neutral(f"{found.get('id')}: {found.get('status')}; {shown_counts}"))
    for name in ("input_file_id", "output_file_id", "error_file_id"):
        if found.get(name):
            print(neutral(f"{name}: {found[name]}"))
    for name in ("created_at", "in_progress_at", "completed_at", "failed_at", "expired_at", "cancelled_at", "expires_at"):
        if isinstance(found.get(name), (int, float)):
            print(f"{name}: {shown_time(found[name])}")
    errors = found.get("errors")
    for error in errors.get("data") or () if isinstance(errors, dict) else ():
        where = f"line {error.get('line')}: " if error.get("line") else ""
        print(neutral(f"{where}{error.get('message')} ({error.get('code')})"))


async def _save(client: GatewayClient, found: JsonObject, output: Path | None) -> None:
    """Writes the results and the errors. An existing file is replaced only when the new one is complete."""
    files = [found[name] for name in ("output_file_id", "error_file_id") if found.get(name)]
    if not files:
        print_error(f"the batch {found.get('id')} is {found.get('status')} and has no results")
        return
    if output is None:
        for file in files:
            await _copy(client, file, sys.stdout.buffer)
        return
    part = output.with_name(f"{output.name}.part")
    try:
        with part.open("wb") as target:
            for file in files:
                await _copy(client, file, target)
        os.replace(part, output)
    except OSError as error:
        raise ConfigError(f"{shown(output)} cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            part.unlink()
    print_error(f"the results are in {shown(output)}")


async def _copy(client: GatewayClient, file_id: str, target: IO[bytes]) -> None:
    last = b"\n"
    async for piece in client.content(file_id):
        target.write(piece)
        last = piece[-1:] or last
    if last != b"\n":
        target.write(b"\n")
    target.flush()


async def _failed_ids(client: GatewayClient, found: JsonObject) -> set[str]:
    """The ids of the requests in the error file: those that failed and those that were never run."""
    ids: set[str] = set()
    if found.get("error_file_id"):
        async for line in client.lines(found["error_file_id"]):
            name = msgspec.json.decode(line).get("custom_id") if line.strip() else None
            if isinstance(name, str):  # a line without a name could not be used, and would fail again
                ids.add(name)
    return ids


async def _failed_lines(client: GatewayClient, file_id: str, ids: set[str], path: Path) -> None:
    """Copies the lines of these requests from the input."""
    with path.open("wb") as file:
        async for line in client.lines(file_id):
            with suppress(msgspec.DecodeError):  # a line that is not JSON would fail again
                value = msgspec.json.decode(line) if line.strip() else None
                if isinstance(value, dict) and value.get("custom_id") in ids:
                    file.write(line + b"\n")


def _text(found: JsonObject, name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not value:
        raise StreamglotError(f"the gateway's answer has no {name}: is it a gateway with /v1/batches?")
    return value
