"""``streamglot record``: saves the bytes of an upstream with their times."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from ...client import Client
from ...client.capture import Capture, capture, chosen
from ...errors import ConfigError
from ...messages import Request
from ..output.terminal import print_error
from ..question import Question, question_text


def run(words: list[str], question: Question, output: Path) -> int:
    text = question_text(words)
    if not text:
        raise ConfigError("nothing was asked: give words or standard input")
    captured = asyncio.run(_captured(question.request([question.message(text)])))
    captured.save(output)
    if captured.broken or not 200 <= captured.status < 300:
        print_error(captured.broken or f"the upstream answered with status {captured.status}; its response is in {output}")
        return 1
    seconds = captured.pieces[-1][0] if captured.pieces else 0.0
    print(
        f"{output}: {len(captured.data)} bytes of {captured.dialect} in {len(captured.pieces)} pieces over {seconds:.2f} s; "
        f"play it with: streamglot replay {output} --from {captured.dialect}",
        file=sys.stderr,
    )
    return 0


async def _captured(request: Request) -> Capture:
    async with Client() as client:
        upstream, model = await chosen(client.pool, request.model)
        if not upstream.base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"upstream {upstream.name!r} is not a server and sends no bytes to record; choose another model with -m"
            )
        return await capture(upstream, model, request)
