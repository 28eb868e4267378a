"""The probe command: chooses upstreams and dialects, and writes the recordings."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Final

import msgspec
from msgspec import structs

from ...client import Client
from ...client.capture import capture, chosen
from ...dialects import dialect as find_dialect
from ...engine.pool import UpstreamPool
from ...errors import ConfigError
from ...json_types import JsonObject
from ...upstream import Timeouts, Upstream
from ...upstream.local import NAME as LOCAL
from ...upstream.providers import KNOWN_PROVIDERS
from ..files import read_json
from ..output.terminal import neutral
from .observation import observe
from .plan import CASES
from .report import Probed, report_lines

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


def run(
    target: str, model: str, dialects: list[str], key: str, output: Path | None, max_tokens: int, extra: str, as_json: bool
) -> int:
    fields = _fields(extra)
    probed = asyncio.run(_probe(target, model, dialects, key, output or _folder(target), max_tokens, fields))
    if as_json:
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
