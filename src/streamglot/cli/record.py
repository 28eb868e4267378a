"""``streamglot record``: an upstream's bytes as they came, with their times."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from ..client import Client
from ..client.wiretap import Tapped, chosen, tap
from ..errors import ConfigError
from ..messages import Request
from .question import Question, spoken
from .terminal import complain


def run(words: list[str], question: Question, output: Path) -> int:
    text = spoken(words)
    if not text:
        raise ConfigError("nothing was asked: give words or standard input")
    tapped = asyncio.run(_tapped(question.request([question.message(text)])))
    tapped.save(output)
    if tapped.broken or not 200 <= tapped.status < 300:
        complain(tapped.broken or f"the upstream answered with status {tapped.status}; its words are in {output}")
        return 1
    seconds = tapped.pieces[-1][0] if tapped.pieces else 0.0
    print(
        f"{output}: {len(tapped.data)} bytes of {tapped.dialect} in {len(tapped.pieces)} pieces over {seconds:.2f} s; "
        f"play it with: streamglot replay {output} --from {tapped.dialect}",
        file=sys.stderr,
    )
    return 0


async def _tapped(request: Request) -> Tapped:
    async with Client() as client:
        upstream, model = await chosen(client.desk, request.model)
        if not upstream.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"upstream {upstream.name!r} is no server: it sends nothing that could be recorded")
        return await tap(upstream, model, request)
