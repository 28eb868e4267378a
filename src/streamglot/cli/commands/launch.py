"""``streamglot launch``: runs a coding agent on this gateway without changing any file of the user."""

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
from typing import Final
from urllib.parse import urlsplit

import click
from msgspec import Struct

from ...config import PARENT, load
from ...errors import ConfigError
from ...installation import require
from ...json_types import JsonValue
from ...store.database.paths import data_directory
from ...tasks import woken_by_signals
from ...upstream.local import NAME
from ..address import local_address
from ..exit_status import TERMINATION_SIGNALS
from ..options import (
    CONFIG_FILE,
    Command,
    text,
)
from ..setup.recipes import context_warning

PROBE_SECONDS: Final = 30.0
"""Seconds for a gateway on this machine to answer, even a busy one. Where nothing listens, the answer comes at once."""
START_SECONDS: Final = 120.0
"""Seconds for a gateway to start. It may have to load a local model on a busy machine."""
STOP_SECONDS: Final = 10.0
"""Seconds for a gateway to end before it is killed. The agent has ended, so no client waits for a response."""
STARTED: Final = re.compile(r"^streamglot listens on (http://\S+)$", re.MULTILINE)
REPLAY: Final = "replay"


class Place(Struct, frozen=True):
    """The values for the agent's settings. ``folder`` is for settings that it reads from a file; it is removed at the end."""

    address: str
    model: str
    key: str
    folder: Path


class Agent(Struct, frozen=True):
    """``client`` is its name among the recipes of ``streamglot setup``. ``removed`` lists variables that would override ours."""

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
    """Selects the API key by system settings, which override the user's. The user's settings are not changed."""
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


@click.command(
    cls=Command,
    context_settings={"ignore_unknown_options": True},
    examples=(
        "streamglot launch codex",
        "streamglot launch claude -m gpt-5.5",
        'streamglot launch gemini -m openai/gpt-5.5 -- -p "Explain this"',
    ),
)
@click.argument("agent", type=text)
@click.option("-m", "--model", type=text, default="", help="The model to use; required if the gateway serves several.")
@click.option("--key", type=text, default="streamglot", help="The key for the gateway, if it requires one.")
@CONFIG_FILE
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch(agent: str, model: str, key: str, config: Path | None, arguments: tuple[str, ...]) -> int:
    """Run a coding agent on any model.

    AGENT is codex, claude, gemini, opencode or qwen. If no gateway runs, one is started and stopped with the agent. The agent
    gets its settings as variables and options; its files are not changed. ARGUMENTS are passed to the agent.
    """
    require("prometheus_client", "wsproto")
    known = AGENTS.get(agent) or next((other for other in AGENTS.values() if other.client == agent), None)
    if known is None:
        raise ConfigError(f"the agent {agent!r} is not known; choose one of: {', '.join(AGENTS)}")
    program = shutil.which(known.program)
    if program is None:
        raise ConfigError(
            f"{known.program} is not installed, or not on the PATH; install it with: npm install -g {known.package}"
        )
    with gateway(config) as address, _settings_folder() as folder:
        place = Place(address, model or _only_model(address, key), key, folder)
        warning = context_warning(known.client, place.model, os.environ)
        if warning:
            print(f"warning: {warning}", file=sys.stderr)
        kept = {variable: value for variable, value in os.environ.items() if variable not in known.removed}
        return _run([program, *known.options(place), *arguments], {**kept, **known.environment(place)})


@contextmanager
def _settings_folder() -> Iterator[Path]:
    """Creates a folder for the agent's settings in the user's home, because agents reject files that other users could write."""
    parent = data_directory()
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix="launch-", dir=parent) as folder:
        yield Path(folder)


def _run(command: list[str], environment: Mapping[str, str]) -> int:
    """Runs the agent in this terminal. The agent handles Ctrl-C; SIGTERM and SIGHUP are passed on to it, unless they are ignored
    (``nohup``)."""
    received: list[int] = []
    handlers: dict[int, Callable[[int, object], None]] = {
        signal.SIGINT: lambda *_: None,  # the terminal sends it to the agent too
        **dict.fromkeys(TERMINATION_SIGNALS, lambda number, _: received.append(number)),
    }
    handled = {number: handler for number, handler in handlers.items() if signal.getsignal(number) is not signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in handled.items()}
    try:
        with woken_by_signals() as woken:
            agent = _start(command, environment)
            while agent.poll() is None:
                while received:
                    agent.send_signal(received.pop(0))
                woken.recv(4096)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return agent.returncode if agent.returncode >= 0 else 128 - agent.returncode


def _start(command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, env=environment)
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be started: {error.strerror}") from None


# --- the gateway


@contextmanager
def gateway(config: Path | None) -> Iterator[str]:
    """The address of a gateway on this machine: the running one, or one that is started for this context."""
    running = local_address(load(config).config.server)
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
    """Waits until the gateway reports its address and answers there."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        ended = process.poll() is not None
        output = log.read_text(errors="replace")
        found = STARTED.search(output)
        if found is not None and is_gateway(found[1]):
            return found[1]
        if ended:
            raise ConfigError(f"the gateway did not start: {output.strip()[-2000:]}")
        time.sleep(0.05)
    raise ConfigError(f"the gateway did not start within {START_SECONDS:g} s; try `streamglot serve` to see why")


def is_gateway(address: str) -> bool:
    """Does a streamglot gateway answer at this address?"""
    description = _get(address, "/openapi.json")
    return isinstance(description, dict) and description.get("info", {}).get("title") == "streamglot"


def _only_model(address: str, key: str) -> str:
    """The model to use if none was named: the local one, or the only one."""
    listed = _get(address, "/v1/models", {"authorization": f"Bearer {key}"})
    if not isinstance(listed, dict) or "data" not in listed:
        raise ConfigError(f"the gateway at {address} does not list its models; name one with -m, and its key with --key")
    names = [str(model["id"]) for model in listed["data"] if model["id"] != REPLAY]
    if NAME in names:
        return NAME
    if len(names) == 1:
        return names[0]
    known = f"; there are: {', '.join(names[:20])}" if names else ""
    raise ConfigError(f"no model was named, and the gateway does not serve exactly one: name one with -m{known}")


def _get(address: str, path: str, headers: Mapping[str, str] | None = None) -> JsonValue:
    """The JSON value at this address; None if nothing answers or the answer is not JSON."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port or 80, timeout=PROBE_SECONDS)
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        return json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
