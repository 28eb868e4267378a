"""``streamglot launch``: a coding agent on this gateway, for one run and without changing any file of the user."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from ...config import PARENT, load
from ...errors import ConfigError
from ...store.paths import data_directory
from ...upstream.local import NAME
from ..client_setup.setup import context_warning

LOOK_SECONDS: Final = 2.0
"""Seconds for a gateway on this machine to answer."""
START_SECONDS: Final = 120.0
"""Seconds for a gateway to start: a local model may have to be loaded on a busy machine."""
STOP_SECONDS: Final = 10.0
"""Seconds for a gateway to end before it is killed. The agent is gone, so nothing waits for it."""
STARTED: Final = re.compile(r"^streamglot listens on (http://\S+)$", re.MULTILINE)
REPLAY: Final = "replay"
LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that a server listens on and nobody can connect to, with one that can be connected to."""


class Place(Struct, frozen=True):
    """What an agent must be told. ``folder`` is for settings that it reads from a file; it is removed in the end."""

    address: str
    model: str
    key: str
    folder: Path


class Agent(Struct, frozen=True):
    """``client`` is its name among the recipes of ``streamglot setup``. ``removed`` are variables that would go before ours."""

    client: str
    program: str
    package: str
    environment: Callable[[Place], dict[str, str]]
    options: Callable[[Place], list[str]] = lambda place: []
    removed: tuple[str, ...] = ()


def _codex_options(place: Place) -> list[str]:
    fields = {"name": "streamglot", "base_url": f"{place.address}/v1", "env_key": "STREAMGLOT_KEY", "wire_api": "responses"}
    written = ", ".join(f"{name} = {json.dumps(value)}" for name, value in fields.items())
    provider = f"model_providers.streamglot={{ {written}, supports_websockets = true }}"
    return ["-c", 'model_provider="streamglot"', "-c", provider, "-m", place.model]


def _claude_environment(place: Place) -> dict[str, str]:
    models = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU")))
    named = dict.fromkeys((*models, "CLAUDE_CODE_SUBAGENT_MODEL"), place.model)
    return {"ANTHROPIC_BASE_URL": place.address, "ANTHROPIC_AUTH_TOKEN": place.key, **named}


def _opencode_environment(place: Place) -> dict[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "streamglot",
        "options": {"baseURL": f"{place.address}/v1", "apiKey": place.key},
        "models": {place.model: {"name": place.model}},
    }
    model = f"streamglot/{place.model}"
    return {"OPENCODE_CONFIG_CONTENT": json.dumps({"provider": {"streamglot": provider}, "model": model, "small_model": model})}


def _gemini_environment(place: Place) -> dict[str, str]:
    """An API key is used only where the settings say so. Those of the system go before the user's, which stay as they are."""
    settings = place.folder / "gemini-settings.json"
    settings.write_text(json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}}}))
    return {
        "GEMINI_API_KEY": place.key,
        "GOOGLE_GEMINI_BASE_URL": place.address,
        "GEMINI_MODEL": place.model,
        "GEMINI_CLI_SYSTEM_SETTINGS_PATH": str(settings),
    }


AGENTS: Final = {
    "codex": Agent("codex", "codex", "@openai/codex", lambda place: {"STREAMGLOT_KEY": place.key}, _codex_options),
    "claude": Agent("claude-code", "claude", "@anthropic-ai/claude-code", _claude_environment, removed=("ANTHROPIC_API_KEY",)),
    "gemini": Agent(
        "gemini-cli",
        "gemini",
        "@google/gemini-cli",
        _gemini_environment,
        removed=("GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA"),
    ),
    "opencode": Agent("opencode", "opencode", "opencode-ai", _opencode_environment),
    "qwen": Agent(
        "qwen-code",
        "qwen",
        "@qwen-code/qwen-code",
        lambda place: {"OPENAI_API_KEY": place.key, "OPENAI_BASE_URL": f"{place.address}/v1", "OPENAI_MODEL": place.model},
        lambda place: ["--auth-type", "openai"],
    ),
}


def run(name: str, model: str, key: str, config: Path | None, arguments: list[str]) -> int:
    agent = AGENTS.get(name) or next((known for known in AGENTS.values() if known.client == name), None)
    if agent is None:
        raise ConfigError(f"no agent {name!r} is known; there are: {', '.join(AGENTS)}")
    program = shutil.which(agent.program)
    if program is None:
        raise ConfigError(
            f"{agent.program} is not installed, or not on the PATH; install it with: npm install -g {agent.package}"
        )
    with gateway(config) as address, _settings_folder() as folder:
        place = Place(address, model or _only_model(address, key), key, folder)
        warning = context_warning(agent.client, place.model, os.environ)
        if warning:
            print(f"warning: {warning}", file=sys.stderr)
        kept = {variable: value for variable, value in os.environ.items() if variable not in agent.removed}
        return _run([program, *agent.options(place), *arguments], {**kept, **agent.environment(place)})


@contextmanager
def _settings_folder() -> Iterator[Path]:
    """A folder for settings that an agent reads. It is in the home of the user: agents distrust files that others could write."""
    parent = data_directory()
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix="launch-", dir=parent) as folder:
        yield Path(folder)


def _run(command: list[str], environment: Mapping[str, str]) -> int:
    """Runs the agent in this terminal. What Ctrl-C means is the agent's to decide; a signal to us goes to it."""
    running: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: object) -> None:
        for process in running:
            process.send_signal(number)

    handlers: dict[int, Any] = {signal.SIGINT: lambda *_: None}  # the terminal sends it to the agent as well
    handlers |= dict.fromkeys((signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)), pass_on)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        running.append(subprocess.Popen(command, env=environment))
        status = running[0].wait()
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be started: {error.strerror}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


# --- the gateway


@contextmanager
def gateway(config: Path | None) -> Iterator[str]:
    """The address of the gateway of this machine: one that runs, or one for as long as this takes."""
    server = load(config).config.server
    host = LOOPBACK.get(server.host, server.host)
    running = f"http://[{host}]:{server.port}" if ":" in host else f"http://{host}:{server.port}"
    if is_gateway(running):
        yield running
        return
    with tempfile.TemporaryDirectory(prefix="streamglot-launch-") as folder, (Path(folder) / "gateway.log").open("w+") as log:
        command = [sys.executable, "-c", "from streamglot.cli import main; main()", "serve", "--host", "127.0.0.1", "--port", "0"]
        command += ["--workers", "1"]
        if config is not None:
            command += ["--config", str(config)]
        environment = {**os.environ, "STREAMGLOT_SERVER__SHUTDOWN_SECONDS": "1", PARENT: str(os.getpid())}
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield _address_of(process, Path(log.name))
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            process.kill()
            process.wait()


def _address_of(process: subprocess.Popen[bytes], log: Path) -> str:
    """Waits until the gateway says where it listens, and answers there."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        ended = process.poll() is not None
        said = log.read_text(errors="replace")
        found = STARTED.search(said)
        if found is not None and is_gateway(found[1]):
            return found[1]
        if ended:
            raise ConfigError(f"the gateway did not start: {said.strip()[-2000:]}")
        time.sleep(0.05)
    raise ConfigError(f"the gateway did not start within {START_SECONDS:g} s; try `streamglot serve` to see why")


def is_gateway(address: str) -> bool:
    """Does a gateway of ours answer there?"""
    told = _get(address, "/openapi.json")
    return isinstance(told, dict) and told.get("info", {}).get("title") == "streamglot"


def _only_model(address: str, key: str) -> str:
    """The model to use where none was named: the local one, or the only one."""
    told = _get(address, "/v1/models", {"authorization": f"Bearer {key}"})
    if not isinstance(told, dict) or "data" not in told:
        raise ConfigError(f"the gateway at {address} does not list its models; name one with -m, and its key with --key")
    names = [str(model["id"]) for model in told["data"] if model["id"] != REPLAY]
    if NAME in names:
        return NAME
    if len(names) == 1:
        return names[0]
    known = f"; there are: {', '.join(names[:20])}" if names else ""
    raise ConfigError(f"no model was named, and there is not exactly one to choose: name one with -m{known}")


def _get(address: str, path: str, headers: Mapping[str, str] | None = None) -> Any:
    """What is there, if it is JSON; None if nothing answers."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port or 80, timeout=LOOK_SECONDS)
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        return json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
