"""Decodes compressed request bodies, within the limit for bodies.

A small body may expand to gigabytes. Each decoder therefore stops one byte after the limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final

from ...errors import RequestError, excerpt
from .call import too_large

Decoder = Callable[[bytes, int], bytes | None]
"""Decodes a body, up to a number of bytes. None: the body is longer."""
MAX_CODINGS: Final = 2
"""Codings that one body may have. No client uses more than one; each costs a copy of the body."""
FREE_BYTES: Final = 2**20
"""Decoded bytes for which no ratio applies: they cost less than reading a plain body of this size."""
MAX_RATIO: Final = 200
"""Decoded bytes for each compressed byte of a larger body. JSON with repeated texts has 10 to 50; a bomb has 1,000."""
MAX_PARTS: Final = 10_000
"""Members of gzip, or frames of zstd, in one body. Programs that compress in parallel write one for each 64 KB or more."""
STEP_BYTES: Final = 16_384
"""Compressed bytes that a decoder gets at once. Behind the end of a part it copies what it was given."""
_ZSTANDARD_STEP_BYTES: Final = 512
"""The same for a decoder whose output has no limit: this many expand to at most 22 MB."""
_GZIP, _ZLIB, _RAW = 31, 15, -15


def _parts(
    data: bytes,
    max_bytes: int,
    new: Callable[[], Any],  # Any: the libraries are optional
    step: int = STEP_BYTES,
    many: bool = True,
) -> bytes | None:
    """Decodes a body with a new object of a library for each part. Only gzip and zstd have ``many`` of them."""
    out, at, view = bytearray(), 0, memoryview(data)
    for _ in range(MAX_PARTS):
        box = new()
        while not box.eof:
            piece = view[at : at + step]
            if not piece:
                raise ValueError("it ends too early")
            out += box.decompress(piece, max_bytes + 1 - len(out))
            if len(out) > max_bytes:
                return None
            at += len(piece) - len(box.unused_data)
        if at == len(data) or not many:
            return bytes(out)
    raise ValueError(f"it has more than {MAX_PARTS} parts")


def _gzip(data: bytes, max_bytes: int) -> bytes | None:
    return _parts(data, max_bytes, partial(zlib.decompressobj, _GZIP))


def _deflate(data: bytes, max_bytes: int) -> bytes | None:
    """The standard means the zlib format; some clients send the bare one."""
    try:
        return _parts(data, max_bytes, partial(zlib.decompressobj, _ZLIB), many=False)
    except zlib.error:
        return _parts(data, max_bytes, partial(zlib.decompressobj, _RAW), many=False)


def _brotli(module: Any) -> Decoder:  # Any: the library is optional
    def decode(data: bytes, max_bytes: int) -> bytes | None:
        box = module.Decompressor()
        out = bytearray(box.process(data, output_buffer_limit=max_bytes + 1))
        while len(out) <= max_bytes and not box.can_accept_more_data():
            out += box.process(b"", output_buffer_limit=max_bytes + 1 - len(out))
        if len(out) > max_bytes:
            return None
        if not box.is_finished():
            raise ValueError("it ends too early")
        return bytes(out)

    return decode


class _Unlimited:
    """A decoder whose output has no limit, with the interface of those that have one."""

    def __init__(self, box: Any) -> None:  # Any: the library is optional
        self._box = box

    @property
    def eof(self) -> bool:
        return bool(self._box.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._box.unused_data)

    def decompress(self, data: memoryview, _: int) -> bytes:
        return bytes(self._box.decompress(data))


def _zstandard(module: Any) -> Decoder:  # Any: as above
    def new() -> _Unlimited:
        return _Unlimited(module.ZstdDecompressor().decompressobj())

    def decode(data: bytes, max_bytes: int) -> bytes | None:
        return _parts(data, max_bytes, new, _ZSTANDARD_STEP_BYTES)

    return decode


def _zstd(module: Any) -> Decoder:  # Any: as above
    """The module of Python 3.14, and its backport."""

    def decode(data: bytes, max_bytes: int) -> bytes | None:
        return _parts(data, max_bytes, module.ZstdDecompressor)

    return decode


def _optional(*choices: tuple[str, Callable[[Any], Decoder], str]) -> Decoder | None:  # Any: as above
    """The decoder of the first library that is installed and has this name, without which its output would have no limit."""
    for name, make, needed in choices:
        try:
            module = import_module(name)
        except ImportError:
            continue
        if hasattr(getattr(module, needed.partition(".")[0], None), needed.partition(".")[2]):
            return make(module)
    return None


def decoders() -> dict[str, Decoder]:
    """The decoder of each content coding that can be read here."""
    optional = {
        "br": _optional(
            ("brotli", _brotli, "Decompressor.can_accept_more_data"), ("brotlicffi", _brotli, "Decompressor.can_accept_more_data")
        ),
        "zstd": _optional(
            ("compression.zstd", _zstd, "ZstdDecompressor.decompress"),
            ("backports.zstd", _zstd, "ZstdDecompressor.decompress"),
            ("zstandard", _zstandard, "ZstdDecompressor.decompressobj"),
        ),
    }
    found = {name: decoder for name, decoder in optional.items() if decoder is not None}
    return {"gzip": _gzip, "x-gzip": _gzip, "deflate": _deflate, **found}


_found: dict[str, Decoder] = {}


def decoded(body: bytes, headers: Mapping[str, str], max_bytes: int) -> bytes:
    """The body without its content codings. The last coding was applied last."""
    codings = [coding.strip().lower() for coding in headers.get("content-encoding", "").split(",")]
    codings = [coding for coding in codings if coding not in ("", "identity")]
    if not codings or not body:
        return body
    if not _found:
        _found.update(decoders())
    if len(codings) > MAX_CODINGS or not _found.keys() >= set(codings):
        raise RequestError(
            f"the body has the content-encoding {excerpt(', '.join(codings))}; send it plain or with one of: {', '.join(_found)}",
            code="unsupported_encoding",
            status=415,
        )
    for coding in reversed(codings):
        body = _decoded(body, coding, max_bytes)
    return body


def _decoded(body: bytes, coding: str, max_bytes: int) -> bytes:
    room = min(max_bytes, max(FREE_BYTES, MAX_RATIO * len(body)))
    try:
        plain = _found[coding](body, room)
    except Exception as error:  # each library has its own errors
        raise RequestError(f"the body is not valid {coding}: {error}", code="bad_encoding") from None
    if plain is not None:
        return plain
    if room == max_bytes:
        raise too_large(max_bytes)
    raise RequestError(
        f"the body expands to more than {MAX_RATIO} times its size; send it plain", code="body_too_large", status=413
    )
