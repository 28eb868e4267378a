"""Merges text completions of concurrent clients into one upstream request, for upstreams whose settings enable it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from ..batch.merging import COMPLETIONS, RequestMerger, mergeable
from ..engine.upstream_stream import refused
from ..json_types import JsonObject
from ..upstream import Upstream, UpstreamResponse
from ..upstream.response import read_whole
from .endpoints import COMPLETES

ANSWER_BYTES: Final = 64 * 2**20
"""Bytes. Enough for the answer to some tens of prompts, each as long as a model can write."""
ADVICE: Final = "remove completions from the upstream's merge setting"
KIND: Final = "completions"

Post = Callable[[Upstream, str, Mapping[str, str], bytes], Awaitable[UpstreamResponse]]


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

    def __init__(self, post: Post, merger: RequestMerger) -> None:
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
