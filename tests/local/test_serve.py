"""The gateway as it starts: with the model, and where there is none."""

from __future__ import annotations

import json
from pathlib import Path

from local.model import needed
from local.serving import awaited, serving


def test_the_model_is_what_an_omitted_one_means(tmp_path: Path) -> None:
    needed()
    with serving(tmp_path, STREAMGLOT_LOCAL="on") as gateway:
        status, body = awaited(lambda: (answer := gateway.ask())[0] and answer, "it never answered")
        assert (status, json.loads(body)["model"]) == (200, "local")
        said = gateway.said()
    assert "  local        started" in said
    assert '"model": "local"' in said
    for line in ("OPENAI_BASE_URL=", "ANTHROPIC_BASE_URL=", "/v1beta", "/agui", "/ui"):
        assert line in said
    assert "runs on replay" not in said


def test_without_weights_it_says_so_and_runs_on_replay(tmp_path: Path) -> None:
    with serving(tmp_path, STREAMGLOT_CACHE=str(tmp_path), STREAMGLOT_LOCAL="on") as gateway:
        status, body = awaited(lambda: (answer := gateway.ask())[0] and answer, "it never answered")
        said = gateway.said()
    assert status == 200
    assert "You said: Hi" in json.loads(body)["choices"][0]["message"]["content"]
    assert "  local        not started" in said
    assert "it runs on replay" in said
    assert '"model": "replay"' in said


def test_without_looking_around(tmp_path: Path) -> None:
    with serving(tmp_path, STREAMGLOT_SERVER__DISCOVER="false") as gateway:
        said = gateway.said()
    assert "server.discover is off" in said
    assert "it runs on replay" not in said
