"""``streamglot record`` and ``probe``: what an upstream really sends, saved with its times, and compared with the dialect."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from msgspec import structs

from ...client import Client
from ...client.capture import Capture, capture, chosen
from ...dialects import dialect as find_dialect
from ...engine.upstreams import UpstreamPool
from ...errors import ConfigError
from ...json_types import JsonObject
from ...messages import Request
from ...upstream import Timeouts, Upstream
from ...upstream.local import NAME as LOCAL
from ...upstream.providers import KNOWN_PROVIDERS
from .. import completion
from ..options import (
    FILE,
    Command,
    completed,
    read_json,
    text,
)
from ..output.terminal import neutral, print_error
from ..probe.observation import CASES, Probed, observe, report_lines
from ..question import MAX_TOKENS, MODEL, SYSTEM, WORDS, Question, question_text

DIALECTS = completed(completion.dialects)


@click.command(cls=Command, examples=('streamglot record -m local -o hello.sse "Hello"',))
@WORDS
@click.option(
    "-o",
    "--output",
    type=FILE,
    default=Path("recording"),
    show_default=True,
    help="The file for the bytes; their times go to FILE.times.",
)
@MODEL
@SYSTEM
@click.option("--tools-file", type=FILE, help="A JSON list of tools that the model may call.")
@MAX_TOKENS
def record(words: tuple[str, ...], output: Path, **asking: Any) -> int:  # Any: Click passes the options by their names
    """Ask a question and save the bytes that the upstream sends, with their times.

    Standard input is added to the words of the command line.
    """
    text = question_text(list(words))
    if not text:
        raise ConfigError("nothing was asked: give words or standard input")
    question = Question(**asking)
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


# --- probe

TRIED: Final = ("openai_chat", "openai_responses", "anthropic")
"""The dialects that one server may support."""
LOCAL_REASONING_FIELDS: Final[dict[str, JsonObject]] = {
    "anthropic": {
        "thinking": {"type": "enabled", "budget_tokens": 16},
        "chat_template_kwargs": {"reasoning_effort": "low"},
    }
}
"""Fields that make the local model reason in a dialect whose own fields do not reach its template. It stops only when a budget
ends, and the smallest budget of the dialect is far longer than its reasoning."""
PROBE_TIMEOUTS: Final = Timeouts(connect=10.0, first_byte=120.0, idle=60.0)


@click.command(
    cls=Command,
    examples=(
        "streamglot probe http://127.0.0.1:8080/v1 -m llama3",
        "streamglot probe local -o recordings",
    ),
)
@click.argument("target", type=text)
@MODEL
@click.option(
    "-d",
    "--dialect",
    "dialects",
    type=text,
    multiple=True,
    help="A dialect to try. May be repeated.",
    shell_complete=DIALECTS,
)
@click.option(
    "--key",
    type=text,
    default="",
    envvar="STREAMGLOT_PROBE_KEY",
    show_envvar=True,
    help="The key, if the target is an address.",
)
@click.option("-o", "--output", type=FILE, help="The folder for the recordings.")
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=64, show_default=True, help="The maximum length of an answer, in tokens."
)
@click.option("--body", type=text, default="", help="A JSON object with more fields for the body of each request.")
@click.option("--json", is_flag=True, help="Print the findings as JSON.")
def probe(
    target: str, model: str, dialects: tuple[str, ...], key: str, output: Path | None, max_tokens: int, body: str, json: bool
) -> int:
    """Find out how an upstream really streams.

    TARGET is an address such as http://127.0.0.1:8080/v1, or the name of an upstream. It is asked four times in each dialect:
    plainly, with reasoning, with tools, and with both. Departures from the dialect are listed; the recordings are kept.
    """
    fields = _fields(body)
    probed = asyncio.run(_probe(target, model, list(dialects), key, output or _folder(target), max_tokens, fields))
    if json:
        sys.stdout.buffer.write(msgspec.json.encode(probed) + b"\n")
    else:
        for line in report_lines(probed):
            print(neutral(line))
    return 0 if any(one.supported for one in probed) else 1


async def _probe(
    target: str, model: str, dialects: list[str], key: str, output: Path, max_tokens: int, extra: JsonObject
) -> list[Probed]:
    async with Client() as client:
        upstreams, model = await _upstreams(client.pool, target, model, dialects, key)
        probed = []
        for upstream in upstreams:
            one = Probed(upstream.dialect, upstream.place, model)
            for case in CASES:
                thinks = LOCAL_REASONING_FIELDS.get(upstream.dialect, {}) if case.reasoning and target == LOCAL else {}
                captured = await capture(upstream, model, case.request(model, max_tokens), {**thinks, **extra})
                if thinks:
                    captured.dropped = [name for name in captured.dropped if name != "reasoning"]
                one.url = captured.url
                seen = observe(case, captured)
                one.observations.append(seen)
                if not seen.supported:
                    break
                path = output / f"{upstream.dialect}.{case.name}"
                captured.save(path)
                seen.recording = str(path)
            probed.append(one)
        return probed


async def _upstreams(pool: UpstreamPool, target: str, model: str, dialects: list[str], key: str) -> tuple[list[Upstream], str]:
    """The upstream in each of the dialects to try, and its name for the model."""
    usual: tuple[str, ...] = TRIED
    if target.startswith(("http://", "https://")):
        upstream, model = Upstream(name="probe", base_url=target, key=key), model or "default"
    elif target in pool.routes.upstreams:
        upstream, model = await chosen(pool, f"{target}/{model or target}" if target != LOCAL else LOCAL)
        usual = TRIED if target == LOCAL else (upstream.dialect,)
    elif (provider := KNOWN_PROVIDERS.get(target)) and provider.key_env:
        raise ConfigError(f"there is no key for {provider.title}: set {provider.key_env}, or configure the upstream {target!r}")
    else:
        known = ", ".join(pool.routes.upstreams)
        raise ConfigError(f"{target!r} is neither an address nor an upstream; choose one of: {known}")
    names = dialects or list(usual)
    for name in names:
        if not find_dialect(name).has_reader:
            raise ConfigError(f"no upstream speaks {name!r}")
    return [structs.replace(upstream, dialect=name, timeouts=PROBE_TIMEOUTS, inband="none") for name in names], model


def _fields(extra: str) -> JsonObject:
    if not extra:
        return {}
    value = read_json(extra.encode(), "--body")
    if not isinstance(value, dict):
        raise ConfigError("--body must be a JSON object")
    return value


def _folder(target: str) -> Path:
    return Path(f"probe-{re.sub(r'[^A-Za-z0-9.]+', '-', target.split('//')[-1]).strip('-') or 'target'}")
