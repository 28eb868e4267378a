"""Records what an upstream sends: status, headers and each read of bytes with its time, before a reader interprets them.

Recordings are stored and shared, so the upstream's secrets are masked in them, as in stored streams.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct, field, structs

from ..dialects import dialect
from ..engine.answer import with_tools_as_text
from ..engine.upstreams import REPLAY, UpstreamPool
from ..errors import ConfigError, UpstreamError
from ..messages import Request
from ..tasks import patient_timeout
from ..upstream import Upstream, UpstreamResponse
from ..upstream.http.pool import ConnectionPool as Connections
from ..upstream.providers import abilities_of, maker_of
from ..upstream.secrets import hide, mask_for, shown_url

MAX_BYTES = 256 * 2**20
"""Bytes of one recording, which is held in memory until it is written."""


class Capture(Struct):
    """A recording.

    ``pieces`` are the seconds since the request was sent and the bytes of each read. ``broken`` says how the connection failed;
    it is empty if the connection ended normally.
    """

    upstream: str
    dialect: str
    url: str
    body: dict[str, object]
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    broken: str = ""

    @property
    def data(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)

    def save(self, path: Path) -> None:
        """Writes the bytes, and a second file with one ``SECONDS BYTES`` pair per line."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.data)
            lines = "".join(f"{when:.6f} {len(piece)}\n" for when, piece in self.pieces)
            path.with_name(f"{path.name}.times").write_text(lines)
        except OSError as error:
            raise ConfigError(f"the recording cannot be written to {path}: {error.strerror or error}") from None


async def chosen(pool: UpstreamPool, model: str) -> tuple[Upstream, str]:
    """The first upstream for a model, started if necessary, and the upstream's name for the model."""
    candidate = await pool.first_candidate(model)
    if candidate.upstream.name == REPLAY:
        raise ConfigError("the replay upstream makes its answers itself, so there is nothing to record: name another model")
    return candidate.upstream, candidate.model


async def capture(upstream: Upstream, model: str, request: Request, extra: Mapping[str, object] | None = None) -> Capture:
    """Sends one request on a new connection, without retries, and reads to the end or to the failure.

    ``extra`` fields are added to the body.
    """
    outgoing = structs.replace(request, model=model, stream=True)
    wire = dialect(upstream.dialect)
    as_text = with_tools_as_text(upstream, outgoing)
    built = wire.build_request(as_text, abilities=abilities_of(upstream), provider=maker_of(upstream), **upstream.options)
    built.body.update(extra or {})
    place = wire.endpoint(upstream.base_url, as_text, key=upstream.key, **upstream.options)
    headers = {"content-type": "application/json", **place.headers, **upstream.headers}
    captured = Capture(upstream.name, upstream.dialect, shown_url(place.url), built.body, dropped=built.dropped)
    secrets = list(upstream.secrets())
    async with Connections() as connections:
        began = time.monotonic()
        limits = upstream.timeouts
        try:
            async with patient_timeout(limits.first_byte):
                answer = await connections.post(upstream, place.url, headers, msgspec.json.encode(built.body))
        except TimeoutError:
            captured.broken = f"no answer within {limits.first_byte:g} s"
        except UpstreamError as error:
            captured.broken = hide(error.message, secrets)
        else:
            captured.status = answer.status
            captured.headers = {name.lower(): hide(value, secrets) for name, value in answer.headers.items()}
            await _listen(answer, captured, began, limits.idle, secrets)
    return captured


async def _listen(answer: UpstreamResponse, captured: Capture, began: float, patience: float, secrets: list[str]) -> None:
    mask = mask_for(secrets, answer.headers)
    size = 0
    try:
        while size <= MAX_BYTES:
            async with patient_timeout(patience):
                piece = await answer.read()
            if not piece:
                return
            size += len(piece)
            masked = mask.feed(piece)
            if masked:
                captured.pieces.append((time.monotonic() - began, masked))
        captured.broken = f"more than {MAX_BYTES} bytes came"
    except TimeoutError:
        captured.broken = f"it was silent for {patience:g} s"
    except UpstreamError as error:
        captured.broken = hide(error.message, secrets)
    finally:
        held = mask.close()
        if held:
            captured.pieces.append((time.monotonic() - began, held))
        answer.close()
