"""How each agent is started without a terminal: its command, its variables and its settings, all in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from agents.scenarios import PROMPT

HERE = Path(__file__).parent
KEY = "sk-scripted"
MODEL = "scripted-1"
RUN_SECONDS = 120
"""A run takes some seconds; agents that go on without end are stopped."""


INTERRUPT_SECONDS = 5
"""Between two signals: some agents want a second one."""


class Place(Struct):
    """Where an agent runs: ``home`` for its settings, ``work`` for its files, and the server that it asks."""

    home: Path
    work: Path
    url: str
    model: str = MODEL


class Driver(Struct, frozen=True):
    """``dialect`` is the agent's dialect, ``base_path`` the path after the server's address in its settings."""

    name: str
    package: str
    dialect: str
    base_path: str
    command: Callable[[Place], list[str]]
    environment: Callable[[Place], dict[str, str]]
    prepare: Callable[[Place], None] = lambda place: None


def _codex_settings(place: Place, more: str = "") -> None:
    (place.home / "config.toml").write_text(
        f'model = "{place.model}"\n'
        'model_provider = "scripted"\n'
        "[model_providers.scripted]\n"
        'name = "scripted"\n'
        f'base_url = "{place.url}"\n'
        'env_key = "SCRIPTED_KEY"\n'
        f'wire_api = "responses"\n{more}'
    )


def _codex_websocket_settings(place: Place) -> None:
    _codex_settings(place, "supports_websockets = true\n")


def _gemini_settings(place: Place) -> None:
    settings = place.home / ".gemini" / "settings.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(
        json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}}, "general": {"disableAutoUpdate": True}})
    )


_OPENCODE_MODEL = {
    "tool_call": True,
    "attachment": True,
    "modalities": {"input": ["text", "image"], "output": ["text"]},
    "limit": {"context": 128_000, "output": 16_000},
}


def _opencode_config(place: Place) -> str:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": place.url, "apiKey": KEY},
        "models": {place.model: {"name": place.model, **_OPENCODE_MODEL}},
    }
    return json.dumps(
        {
            "provider": {"scripted": provider},
            "model": f"scripted/{place.model}",
            "permission": {"*": "allow"},
            "autoupdate": False,
            "share": "disabled",
        }
    )


DRIVERS = {
    driver.name: driver
    for driver in (
        *(
            Driver(
                name,
                "@openai/codex",
                "openai_responses",
                "/v1",
                lambda place: ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", PROMPT],
                lambda place: {"CODEX_HOME": str(place.home), "SCRIPTED_KEY": KEY},
                settings,
            )
            for name, settings in (("codex", _codex_settings), ("codex-ws", _codex_websocket_settings))
        ),
        Driver(
            "claude-code",
            "@anthropic-ai/claude-code",
            "anthropic",
            "",
            lambda place: ["claude", "-p", PROMPT, "--allowedTools", "Write", "Read", "Bash"],
            lambda place: {
                "ANTHROPIC_BASE_URL": place.url,
                "ANTHROPIC_AUTH_TOKEN": KEY,
                "ANTHROPIC_MODEL": place.model,
                "ANTHROPIC_SMALL_FAST_MODEL": place.model,
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
            },
        ),
        Driver(
            "gemini-cli",
            "@google/gemini-cli",
            "gemini",
            "",
            lambda place: ["gemini", "--skip-trust", "-y", "-m", place.model, "-p", PROMPT],
            lambda place: {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": place.url, "GEMINI_TELEMETRY_ENABLED": "false"},
            _gemini_settings,
        ),
        Driver(
            "opencode",
            "opencode-ai",
            "openai_chat",
            "/v1",
            lambda place: ["opencode", "run", PROMPT],
            lambda place: {"OPENCODE_CONFIG_CONTENT": _opencode_config(place), "OPENCODE_DISABLE_AUTOUPDATE": "1"},
        ),
        Driver(
            "qwen-code",
            "@qwen-code/qwen-code",
            "openai_chat",
            "/v1",
            lambda place: ["qwen", "--auth-type", "openai", "-y", "-p", PROMPT],
            lambda place: {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": place.url, "OPENAI_MODEL": place.model},
        ),
    )
}


class Ran(Struct):
    """How a run ended. ``code`` is None for one that was stopped."""

    code: int | None
    output: str
    errors: str


def _interrupt(process: subprocess.Popen[bytes], wanted: Callable[[], bool]) -> None:
    while process.poll() is None and not wanted():
        time.sleep(0.05)
    while process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        time.sleep(INTERRUPT_SECONDS)


def installed(modules: Path) -> bool:
    return (modules / ".bin").is_dir()


def run(driver: Driver, place: Place, modules: Path, interrupt: Callable[[], bool] = lambda: False) -> Ran:
    """Runs the agent to its end. ``modules`` is the folder ``node_modules`` that it was installed into. As soon as ``interrupt``
    is true, it gets the signal of Ctrl-C."""
    place.home.mkdir(parents=True, exist_ok=True)
    place.work.mkdir(parents=True, exist_ok=True)
    driver.prepare(place)
    kept = {name: value for name, value in os.environ.items() if name in ("LANG", "LC_ALL", "TERM", "TMPDIR")}
    environment = {
        **kept,
        "PATH": f"{modules / '.bin'}:{os.environ['PATH']}",
        "HOME": str(place.home),
        "XDG_CONFIG_HOME": str(place.home / "config"),
        "XDG_DATA_HOME": str(place.home / "data"),
        "XDG_STATE_HOME": str(place.home / "state"),
        "XDG_CACHE_HOME": str(place.home / "cache"),
        "NO_COLOR": "1",
        "CI": "1",
        **driver.environment(place),
    }
    output, errors = place.home / "printed", place.home / "errors"
    with output.open("wb") as out, errors.open("wb") as err:  # some agents end before a pipe has taken all of their output
        process = subprocess.Popen(
            driver.command(place),
            cwd=place.work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    threading.Thread(target=_interrupt, args=[process, interrupt], daemon=True).start()
    code: int | None
    try:
        code = process.wait(RUN_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        code = None
    return Ran(code, output.read_text(errors="replace"), errors.read_text(errors="replace"))
