"""Merges small concurrent requests into one upstream request, and splits its answer.

Embeddings and text completions accept several texts in one request, and a server computes them together. A request is sent at
once while no other of its group is in progress. Requests that arrive in that time wait a few milliseconds for each other. A group
has the same owner, upstream, model and parameters. ``MergingPost`` does it for the text completions of upstreams whose settings
enable it.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from ..batch.collector import AsyncBatcher
from ..engine.answer import refused
from ..errors import StreamglotError, UpstreamProtocolError
from ..json_types import JSON_ERRORS, JsonObject, JsonValue
from ..upstream import Upstream, UpstreamResponse
from ..upstream.http import read_whole
from .endpoints import COMPLETES

SMALL_TEXTS: Final = 8
SMALL_BYTES: Final = 16 * 2**10
"""Texts and bytes of a request that may be merged. A larger one gains nothing and would delay the others."""
MERGED_TEXTS: Final = 32
"""Texts of one merged request: the default limit of the common embedding servers."""
SEND_SEPARATELY_STATUSES: Final = frozenset((400, 404, 413, 422))
"""Statuses after which merged requests are sent separately: one of them may be invalid, or the upstream accepts no lists."""

Post = Callable[[JsonObject], Awaitable[bytes]]
"""Sends a body and returns the bytes of the answer, or raises."""


class MergeKind(Struct, frozen=True):
    """A kind of request. ``field`` is the request field with the texts, ``answers`` the answer field with their results."""

    field: str
    answers: str


EMBEDDINGS: Final = MergeKind("input", "data")
COMPLETIONS: Final = MergeKind("prompt", "choices")


class MergeableRequest(Struct):
    """A request that may be merged. ``group`` contains what must be equal; ``each`` is the number of answers per text."""

    kind: MergeKind
    body: JsonObject
    texts: list[JsonValue]
    group: bytes
    each: int = 1

    @property
    def weights(self) -> int:
        """The size of the texts, by which the usage is divided."""
        return sum(max(1, len(text)) for text in self.texts)


def mergeable(kind: MergeKind, body: JsonObject) -> MergeableRequest | None:
    """The request in mergeable form; None if it must be sent separately."""
    texts = _texts(body.get(kind.field))
    each = body.get("n") or 1
    if texts is None or body.get("stream") or not isinstance(each, int) or isinstance(each, bool) or each < 1:
        return None
    if len(texts) > SMALL_TEXTS or sum(map(len, texts)) > SMALL_BYTES:
        return None
    rest = {name: value for name, value in body.items() if name != kind.field}
    sort = b"text" if isinstance(texts[0], str) else b"tokens"
    return MergeableRequest(kind, body, texts, sort + msgspec.json.encode(rest, order="deterministic"), each)


def _texts(value: object) -> list[JsonValue] | None:
    """The texts of a request: strings or lists of tokens. A single list of tokens is one text."""
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


def merge(requests: Sequence[MergeableRequest]) -> JsonObject:
    """One body with the texts of all requests."""
    first = requests[0]
    return {**first.body, first.kind.field: [text for request in requests for text in request.texts]}


def split(answer: bytes, requests: Sequence[MergeableRequest]) -> list[bytes]:
    """The answer to each request, in order. Raises if the number of answers is wrong."""
    kind = requests[0].kind
    try:
        whole = msgspec.json.decode(answer, type=dict[str, Raw])
        entries = msgspec.json.decode(whole[kind.answers], type=list[dict[str, Raw]])
        ordered = _ordered(entries)
    except (msgspec.MsgspecError, UnicodeError, KeyError, RecursionError) as error:
        raise UpstreamProtocolError(f"the answer to several texts is invalid: {error}") from None
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
    """Sorts the answers by their index, which counts over all texts. Without an index they are in the order of the texts."""
    if not any("index" in entry for entry in entries):
        return entries
    places = [msgspec.json.decode(entry["index"], type=int) for entry in entries]
    if sorted(places) != list(range(len(entries))):
        raise UpstreamProtocolError("the answer to several texts has indices that are not those of the texts")
    return [entry for _, entry in sorted(zip(places, entries, strict=True), key=lambda pair: pair[0])]


def _usages(raw: Raw | None, weights: list[int]) -> list[JsonObject | None]:
    """The usage of each request.

    Every count is divided in proportion to the texts' sizes, and the parts add up exactly.
    """
    try:
        counts = {} if raw is None else msgspec.json.decode(raw, type=JsonObject | None)
    except JSON_ERRORS:
        counts = {}
    if not counts:
        return [None] * len(weights)
    parts: list[JsonObject] = [{} for _ in weights]
    for name, count in counts.items():
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            for part, share in zip(parts, _shares(count, weights), strict=True):
                part[name] = share
    for part in parts:
        if {"prompt_tokens", "total_tokens"} <= set(part):  # rounding must not change the sum
            part["total_tokens"] = part["prompt_tokens"] + part.get("completion_tokens", 0)
    return list(parts)


def _shares(count: int, weights: list[int]) -> list[int]:
    """Divides the count into whole numbers in proportion to the weights. They add up to the count."""
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
        """The answer to this request, sent separately or merged.

        ``owner`` is everything beside the body that must be equal. ``seconds`` is the time to wait for others while a request of
        the group is in progress.
        """
        key = owner, request.kind, request.group
        group = self._groups.get(key)
        if group is not None:
            return await group.join(request, post)
        group = self._groups[key] = _Group(seconds)
        try:
            return await post(request.body)
        finally:
            del self._groups[key]  # its batcher still sends the requests that wait


class _Group:
    """Requests that differ only in their texts. The group exists while its first request is in progress."""

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
            if error.status not in SEND_SEPARATELY_STATUSES and not isinstance(error, UpstreamProtocolError):
                for place in range(len(batch)):
                    yield place, copy.copy(error)  # raising one exception in several tasks would accumulate all their tracebacks
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


ANSWER_BYTES: Final = 64 * 2**20
"""Bytes. Enough for the answer to some tens of prompts, each as long as a model can write."""
ADVICE: Final = "remove completions from the upstream's merge setting"
KIND: Final = "completions"

PostUpstream = Callable[[Upstream, str, Mapping[str, str], bytes], Awaitable[UpstreamResponse]]


class WholeAnswer:
    """An answer that has already been received. Satisfies ``UpstreamResponse``."""

    def __init__(self, data: bytes) -> None:
        self.status = 200
        self.headers: Mapping[str, str] = {"content-type": "application/json", "content-length": str(len(data))}
        self._data = data

    async def read(self) -> bytes:
        data, self._data = self._data, b""
        return data

    async def drain(self) -> None:
        """Does nothing: the answer was read completely."""

    def close(self) -> None:
        """Does nothing: the connection is already back in its pool."""


class MergingPost:
    """Posts requests and merges those that can be merged. Satisfies ``WholePost``."""

    def __init__(self, post: PostUpstream, merger: RequestMerger) -> None:
        self._post = post
        self._merger = merger

    def merges(self, upstream: Upstream) -> bool:
        return upstream.dialect == COMPLETES and KIND in upstream.merge

    async def __call__(
        self, upstream: Upstream, url: str, headers: Mapping[str, str], body: JsonObject, owner: str
    ) -> UpstreamResponse:
        request = mergeable(COMPLETIONS, body)
        if request is None:
            return await self._post(upstream, url, headers, msgspec.json.encode(body))
        same = tuple(sorted((name, value) for name, value in headers.items() if name != "x-request-id"))

        async def post(sent: JsonObject) -> bytes:
            answer = await self._post(upstream, url, headers, msgspec.json.encode(sent))
            try:
                if not 200 <= answer.status < 300:
                    raise await refused(answer)
                data = await read_whole(answer, "the merged answer", ANSWER_BYTES, ADVICE)
                await answer.drain()
                return data
            finally:
                answer.close()

        return WholeAnswer(await self._merger.send((owner, upstream.name, url, same), request, post, upstream.merge_seconds))
