"""Every scenario for the client of every dialect, streamed and whole: the right answer, or the right error."""

from __future__ import annotations

import pytest

from gateway.dialect_clients import CLIENT_DIALECTS, STREAMS_ONLY, TOOLS, Understood, asked
from gateway.running import Running
from gateway.scenarios import SCENARIOS, Scenario
from gateway.upstream import HostileUpstream

TEXT_ONLY = ("openai_completions",)
TEXT_MOVES = ("anthropic",)
"""That dialect allows no text after a call: it is folded into a block that may."""
NO_FINISH = ("agui", "vercel_ui")
NO_USAGE = ("agui", "vercel_ui")
NO_CACHED = ("ollama",)
NO_FILTER = ("ollama", "anthropic")


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


@pytest.mark.parametrize("client", CLIENT_DIALECTS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_are_streamed(gateway: Running, upstream: HostileUpstream, name: str, client: str) -> None:
    scenario = SCENARIOS[name]
    upstream.scripts[name] = scenario.script
    check(asked(gateway, client, f"{scenario.via}/{name}", True, TOOLS), scenario, client, True)


@pytest.mark.parametrize("client", [name for name in CLIENT_DIALECTS if name not in STREAMS_ONLY])
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_are_answered_without_streaming(gateway: Running, upstream: HostileUpstream, name: str, client: str) -> None:
    """A client without streaming, and an upstream that streams nevertheless."""
    scenario = SCENARIOS[name]
    upstream.scripts[name] = scenario.script
    check(asked(gateway, client, f"{scenario.via}/{name}", False, TOOLS), scenario, client, False)


def test_there_are_at_least_forty_scenarios() -> None:
    assert len(SCENARIOS) >= 40
