"""Small requests that come together are sent to an upstream as one, and its answer is split again.

Embeddings and text completions take several texts in one request, and a server computes them together. A request goes out at
once while none of its group is under way. Requests that come while one is wait a few milliseconds for each other. Only requests
of the same owner, upstream, model and parameters are a group.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from ..errors import StreamglotError, UpstreamProtocolError
from .async_batcher import AsyncBatcher

SMALL_TEXTS: Final = 8
SMALL_BYTES: Final = 16 * 2**10
"""A request with more texts or bytes than this gains nothing from company, and would delay it."""
MERGED_TEXTS: Final = 32
"""Texts of one merged request: as many as the common servers of embedding models take unless they are told otherwise."""
ALONE_AFTER: Final = frozenset((400, 404, 413, 422))
"""Statuses after which the requests of a merged one are sent alone: one of them may be at fault, or the upstream takes no lists."""

Post = Callable[[dict[str, Any]], Awaitable[bytes]]
"""Sends a body and returns the bytes of the answer, or raises."""


class MergeKind(Struct, frozen=True):
    """``field`` of the request holds the texts, ``answers`` of the answer what came of them."""

    field: str
    answers: str


EMBEDDINGS: Final = MergeKind("input", "data")
COMPLETIONS: Final = MergeKind("prompt", "choices")


class MergeableRequest(Struct):
    """A request that may be merged. ``group`` has what must be the same, ``each`` counts the answers to one text."""

    kind: MergeKind
    body: dict[str, Any]
    texts: list[Any]
    group: bytes
    each: int = 1

    @property
    def weights(self) -> int:
        """The size of its texts, by which the usage is divided."""
        return sum(max(1, len(text)) for text in self.texts)


def mergeable(kind: MergeKind, body: dict[str, Any]) -> MergeableRequest | None:
    """The request as one that may be merged; None if it must go alone."""
    texts = _texts(body.get(kind.field))
    each = body.get("n") or 1
    if texts is None or body.get("stream") or not isinstance(each, int) or isinstance(each, bool) or each < 1:
        return None
    if len(texts) > SMALL_TEXTS or sum(map(len, texts)) > SMALL_BYTES:
        return None
    rest = {name: value for name, value in body.items() if name != kind.field}
    sort = b"text" if isinstance(texts[0], str) else b"tokens"
    return MergeableRequest(kind, body, texts, sort + msgspec.json.encode(rest, order="deterministic"), each)


def _texts(value: object) -> list[Any] | None:
    """The texts of a request: strings, or lists of tokens. A list of tokens alone is one text."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        return None
    if all(isinstance(one, str) for one in value):
        return value
    if all(isinstance(one, int) and not isinstance(one, bool) for one in value):
        return [value]
    if all(isinstance(one, list) and one and all(isinstance(token, int) for token in one) for one in value):
        return value
    return None


def merge(requests: Sequence[MergeableRequest]) -> dict[str, Any]:
    """One body with the texts of all."""
    first = requests[0]
    return {**first.body, first.kind.field: [text for request in requests for text in request.texts]}


def split(answer: bytes, requests: Sequence[MergeableRequest]) -> list[bytes]:
    """The answer to each request, in order. Raises if the answer does not have exactly what was asked for."""
    kind = requests[0].kind
    try:
        whole = msgspec.json.decode(answer, type=dict[str, Raw])
        entries = msgspec.json.decode(whole[kind.answers], type=list[dict[str, Raw]])
        ordered = _ordered(entries)
    except (msgspec.MsgspecError, UnicodeError, KeyError, RecursionError) as error:
        raise UpstreamProtocolError(f"the answer to several texts cannot be read: {error}") from None
    wanted = [len(request.texts) * request.each for request in requests]
    if len(ordered) != sum(wanted):
        raise UpstreamProtocolError(f"the answer to several texts has {len(ordered)} {kind.answers}, not {sum(wanted)}")
    usages = _usages(whole.get("usage"), [request.weights for request in requests])
    answers: list[bytes] = []
    place = 0
    for count, usage in zip(wanted, usages, strict=True):
        own = [{**entry, "index": number} for number, entry in enumerate(ordered[place : place + count])]
        place += count
        used = {} if usage is None else {"usage": usage}
        answers.append(msgspec.json.encode({**whole, kind.answers: own, **used}))
    return answers


def _ordered(entries: list[dict[str, Raw]]) -> list[dict[str, Raw]]:
    """By their index, which counts over all texts. Without one they are in the order of the texts."""
    if not any("index" in entry for entry in entries):
        return entries
    places = [msgspec.json.decode(entry["index"], type=int) for entry in entries]
    if sorted(places) != list(range(len(entries))):
        raise UpstreamProtocolError("the answer to several texts has indices that are not those of the texts")
    return [entry for _, entry in sorted(zip(places, entries, strict=True), key=lambda pair: pair[0])]


def _usages(raw: Raw | None, weights: list[int]) -> list[dict[str, Any] | None]:
    """The usage of each request: every count is divided by the size of the texts, and the parts add up to the whole."""
    try:
        counts = {} if raw is None else msgspec.json.decode(raw, type=dict[str, Any] | None)
    except msgspec.MsgspecError:
        counts = {}
    if not counts:
        return [None] * len(weights)
    parts: list[dict[str, Any]] = [{} for _ in weights]
    for name, count in counts.items():
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            for part, share in zip(parts, _shares(count, weights), strict=True):
                part[name] = share
    for part in parts:
        if {"prompt_tokens", "total_tokens"} <= set(part):  # rounding must not make the sum another one
            part["total_tokens"] = part["prompt_tokens"] + part.get("completion_tokens", 0)
    return list(parts)


def _shares(count: int, weights: list[int]) -> list[int]:
    """Whole numbers in proportion to the weights, which add up to the count."""
    total, shares, before, given = sum(weights), [], 0, 0
    for weight in weights:
        before += weight
        upto = count * before // total
        shares.append(upto - given)
        given = upto
    return shares


class _Waiting(Struct):
    request: MergeableRequest
    post: Post


class RequestMerger:
    """Merges requests on one event loop."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, _Group] = {}

    async def send(self, owner: Hashable, request: MergeableRequest, post: Post, seconds: float) -> bytes:
        """The answer to this request, sent alone or with others. ``owner`` has all that must be the same beside the body.
        ``seconds``: how long it waits for others while one of its group is under way."""
        key = owner, request.kind, request.group
        group = self._groups.get(key)
        if group is not None:
            return await group.join(request, post)
        group = self._groups[key] = _Group(seconds)
        try:
            return await post(request.body)
        finally:
            del self._groups[key]  # those that wait are sent by its batcher all the same


class _Group:
    """Requests that differ in their texts only. It exists while the request that began it is under way."""

    def __init__(self, seconds: float) -> None:
        self._batcher: AsyncBatcher[_Waiting, bytes | StreamglotError] = AsyncBatcher(
            _send,
            max_size=MERGED_TEXTS,
            flush_interval=seconds,
            size_of=lambda waiting: len(waiting.request.texts),
            unclaimed=0,
        )

    async def join(self, request: MergeableRequest, post: Post) -> bytes:
        answer = await self._batcher.add(_Waiting(request, post))
        if isinstance(answer, StreamglotError):
            raise answer
        return answer


async def _send(batch: list[_Waiting]) -> AsyncIterator[tuple[int, bytes | StreamglotError]]:
    requests = [waiting.request for waiting in batch]
    if len(batch) > 1:
        try:
            answers = split(await batch[0].post(merge(requests)), requests)
        except StreamglotError as error:
            if error.status not in ALONE_AFTER and not isinstance(error, UpstreamProtocolError):
                for place in range(len(batch)):
                    yield place, copy.copy(error)  # an exception that is raised in several tasks would collect all their traces
                return
        else:
            for place, answer in enumerate(answers):
                yield place, answer
            return
    alone = [_alone(waiting) for waiting in batch]
    for place, result in enumerate(await asyncio.gather(*alone)):
        yield place, result


async def _alone(waiting: _Waiting) -> bytes | StreamglotError:
    try:
        return await waiting.post(waiting.request.body)
    except StreamglotError as error:
        return error
