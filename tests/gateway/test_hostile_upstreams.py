"""Every scenario once at the reader and once end to end, and the client of every dialect with the scenarios that differ for it."""

from __future__ import annotations

import pytest

from gateway.dialect_clients import CLIENT_DIALECTS, STREAMS_ONLY, TOOLS, Understood, asked, in_turn, of_response
from gateway.running import Running
from gateway.scenarios import SCENARIOS, Scenario
from gateway.upstream import UPSTREAM_NAMES, HostileUpstream, Script
from split_checks import every_cut
from streamglot import collect
from streamglot.dialects import dialect

TEXT_ONLY = ("openai_completions",)
TEXT_MOVES = ("anthropic",)
"""That dialect allows no text after a call: it is folded into a block that may."""
NO_FINISH = ("agui", "vercel_ui")
NO_USAGE = ("agui", "vercel_ui")
NO_CACHED = ("ollama",)
NO_FILTER = ("ollama", "anthropic")
FULL_CLIENTS = [name for name in CLIENT_DIALECTS if name not in (*TEXT_ONLY, *STREAMS_ONLY)]
"""The clients that see text, reasoning, calls, finish and usage, streamed and whole."""
EVERY_CLIENT = (
    "plain",
    "text_after_call",
    "interleaved",
    "anthropic_all",
    "cached_usage",
    "filtered",
    "done_in_arguments",
    "too_many",
)
"""What a dialect writes in its own way: text, order, several calls, reasoning with a signature, usage, a finish, an error in the middle
and one before the first byte."""


def check(found: Understood, scenario: Scenario, client: str, stream: bool) -> None:
    partial = stream and scenario.error and not scenario.status
    if scenario.error:
        assert found.error is not None, found
        assert scenario.error in found.error, found
        assert "request id" in found.error
        assert found.status == (200 if partial else scenario.status or found.status), found
        if not partial:
            assert found.status >= 400
            return
    else:
        assert found.error is None, found
        assert found.status == 200
    if client in TEXT_MOVES and scenario.calls and not scenario.reasoning:
        found.text, found.reasoning = found.text + found.reasoning, ""
    if client not in TEXT_ONLY:
        assert found.reasoning == scenario.reasoning
        assert found.calls == scenario.calls
    assert found.text == scenario.text
    if scenario.error:
        return
    finish = scenario.finish
    if client in TEXT_ONLY and finish == "tool_calls":
        return
    if client not in NO_FINISH and not (client in NO_FILTER and finish == "content_filter"):
        assert found.finish == finish
    if scenario.usage is not None and client not in NO_USAGE:
        assert found.usage is not None
        assert found.usage[:2] == scenario.usage[:2]
        if client not in NO_CACHED:
            assert (found.usage[2] or None) == scenario.usage[2]


def check_through(gateway: Running, upstream: HostileUpstream, name: str, client: str) -> None:
    """The client asks for a stream, and without one: then the upstream streams nevertheless."""
    scenario = SCENARIOS[name]
    upstream.scripts[name] = scenario.script
    for stream in (True, False):
        if stream or client not in STREAMS_ONLY:
            check(asked(gateway, client, f"{scenario.via}/{name}", stream, TOOLS), scenario, client, stream)


@pytest.mark.parametrize(("name", "client"), in_turn(SCENARIOS, FULL_CLIENTS))
def test_scenarios_end_to_end(gateway: Running, upstream: HostileUpstream, name: str, client: str) -> None:
    check_through(gateway, upstream, name, client)


@pytest.mark.parametrize("client", CLIENT_DIALECTS)
@pytest.mark.parametrize("name", EVERY_CLIENT)
def test_scenarios_for_every_client(gateway: Running, upstream: HostileUpstream, name: str, client: str) -> None:
    check_through(gateway, upstream, name, client)


OF_THE_CONNECTION = (
    *("compressed", "many_headers", "redirect", "no_http", "nobody_there", "hangs_up", "resets", "reset_in_text"),
    *("chunks_without_end", "silent_in_the_middle", "never_answers", "only_headers"),
)
OF_THE_PARSER = ("thinking-split", "thinking-repeated", "in_band_call")
"""The reader passes them on as text; a stage after it finds reasoning and calls."""


def body_of(script: Script) -> bytes:
    """What a reader gets of this answer."""
    first, *rest = [step for step in script if isinstance(step, bytes)]
    head, _, body = first.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head:
        return b"".join(step.partition(b"\r\n")[2][:-2] for step in rest)
    return b"".join([body, *rest])


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in OF_THE_CONNECTION + OF_THE_PARSER])
def test_scenarios_at_the_reader(name: str) -> None:
    scenario = SCENARIOS[name]
    wire = next((one for one, via in UPSTREAM_NAMES.items() if via == scenario.via), "openai_chat")
    found = of_response(collect(every_cut(lambda: dialect(wire).reader(), body_of(scenario.script), cuts=1)), 200)
    assert (found.text, found.reasoning) == (scenario.text, scenario.reasoning)
    if scenario.error:
        assert scenario.error in (found.error or "")
        return
    assert found.error is None
    assert found.calls == scenario.calls
    assert found.finish == scenario.finish
    if scenario.usage is not None:
        assert found.usage == scenario.usage


def test_there_are_at_least_forty_scenarios() -> None:
    assert len(SCENARIOS) >= 40
