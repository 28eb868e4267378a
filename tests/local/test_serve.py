"""Starting the gateway with the local model and without it."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from local.model import needed
from local.serving import WAIT_SECONDS, awaited, serving
from local.test_supervisor import children, named
from streamglot.upstream.local import LocalServer
from streamglot.upstream.local.weights import chosen


def test_requests_without_a_model_use_the_local_model(tmp_path: Path) -> None:
    needed()
    with serving(tmp_path, STREAMGLOT_LOCAL="on") as gateway:
        status, body = awaited(lambda: (answer := gateway.ask())[0] and answer, "it never answered")
        assert (status, json.loads(body)["model"]) == (200, "local")
        output = gateway.log_text()
    assert re.search(r"^  local +started", output, re.M)
    assert '"model": "local"' in output
    for line in ("OPENAI_BASE_URL=", "ANTHROPIC_BASE_URL=", "/v1beta", "/agui", "/ui"):
        assert line in output
    assert "uses replay" not in output


def test_without_weights_the_gateway_reports_it_and_uses_replay(tmp_path: Path) -> None:
    with serving(tmp_path, STREAMGLOT_CACHE=str(tmp_path), STREAMGLOT_LOCAL="on") as gateway:
        status, body = awaited(lambda: (answer := gateway.ask())[0] and answer, "it never answered")
        output = gateway.log_text()
    assert status == 200
    assert "You said: Hi" in json.loads(body)["choices"][0]["message"]["content"]
    assert re.search(r"^  local +not started", output, re.M)
    assert "the gateway uses replay" in output
    assert '"model": "replay"' in output


def test_discovery_can_be_switched_off(tmp_path: Path) -> None:
    with serving(tmp_path, STREAMGLOT_SERVER__DISCOVER="false") as gateway:
        output = gateway.log_text()
    assert "server.discover is off" in output
    assert "it runs on replay" not in output


def test_the_model_is_loaded_on_demand_beside_other_upstreams(tmp_path: Path) -> None:
    needed()
    other = {"STREAMGLOT_UPSTREAMS__OTHER__BASE_URL": "http://127.0.0.1:9/v1"}
    with serving(tmp_path, **other) as gateway:
        supervisor = awaited(
            lambda: named(children(gateway.process.pid), "streamglot.upstream.local.supervisor"), "nothing was started"
        )[0]
        assert children(supervisor) == []
        _, body = awaited(lambda: (answer := gateway.ask(model="local"))[0] == 200 and answer, "it never answered")
        assert json.loads(body)["model"] == "local", body
        assert len(children(supervisor)) == 1
        output = gateway.log_text()
    assert re.search(r"^  local +on demand", output, re.M)


def test_a_request_without_the_key_does_not_load_the_model() -> None:
    needed()
    weights = chosen()
    assert weights is not None
    server = LocalServer(weights, lazy=True)
    try:
        upstream = server.start()
        for key in ("", "Bearer wrong"):
            request = urllib.request.Request(f"{upstream.base_url}/chat/completions", b"{}", {"authorization": key})
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=WAIT_SECONDS)
            assert refused.value.status == 503
            assert b"not loaded yet" in refused.value.read()
        assert server.process is not None
        assert children(server.process) == []
    finally:
        server.stop()
