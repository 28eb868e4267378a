"""The commands for setup and operation: serve, models, formats, doctor, setup, launch, config, local."""

from __future__ import annotations

from pathlib import Path

import click

from ...extras import require
from ..help import Command, group
from ..values import FILE, text

CONFIG_FILE = click.option("-c", "--config", type=FILE, help="The configuration file.")
JSON = click.option("--json", is_flag=True, help="Print JSON.")


@click.command(
    cls=Command,
    examples=(
        "streamglot serve",
        "streamglot serve --port 9000 --workers 2",
        "streamglot serve --config gateway.toml --host 0.0.0.0",
    ),
)
@CONFIG_FILE
@click.option("--host", type=text, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), help="The port to listen on; 0 for any free one.")
@click.option("--workers", type=click.IntRange(min=1), help="The number of processes that share the socket.")
def serve(config: Path | None, host: str | None, port: int | None, workers: int | None) -> int:
    """Run the gateway: any client, any upstream."""
    require("prometheus_client", "wsproto")
    from .serve import run

    return run(config, host, port, workers)


@click.command(cls=Command, examples=("streamglot models", "streamglot models --json"))
@JSON
def models(json: bool) -> int:
    """List the available models and the upstreams that serve them."""
    from .models import run

    return run(json)


@click.command(cls=Command, examples=("streamglot formats", "streamglot formats hermes", "streamglot formats -m qwen3-coder"))
@click.argument("name", type=text, required=False)
@click.option("-m", "--model", type=text, help="Show which format a model of this name writes.")
def formats(name: str | None, model: str | None) -> int:
    """List the notations in which models write calls and reasoning into their text.

    NAME selects one format, which is shown with an example. Without NAME, all formats are listed.
    """
    from .formats import run

    return run(name, model)


@click.command(cls=Command, examples=("streamglot doctor", "streamglot doctor --offline --json"))
@JSON
@click.option("--offline", is_flag=True, help="Do not connect to any upstream.")
def doctor(json: bool, offline: bool) -> int:
    """Check keys, upstreams, the store, the local model and versions, and suggest fixes.

    The exit status is 1 if something is broken.
    """
    from .doctor import run

    return run(json, offline)


@click.command(
    cls=Command,
    examples=(
        "streamglot setup                     # list the clients",
        "streamglot setup claude-code         # print the settings",
        "streamglot setup codex -m gpt-5 --write",
    ),
)
@click.argument("client", type=text, required=False)
@click.option("--address", type=text, help="The address of the gateway. Default: that of the configuration, on this machine.")
@click.option("-m", "--model", type=text, default="local", show_default=True, help="The model to use.")
@click.option("--key", type=text, default="streamglot", help="The key for the gateway, if it requires one.")
@click.option("--write", is_flag=True, help="Merge the settings into the client's settings file; other settings stay.")
def setup(client: str | None, address: str | None, model: str, key: str, write: bool) -> int:
    """Print or write the settings with which a client uses the gateway.

    CLIENT is the name of a program. Without CLIENT, all known programs are listed.
    """
    from ..client_setup.setup import run

    return run(client, address, model, key, write)


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
    from .launch import run

    return run(agent, model, key, config, list(arguments))


config = group("Show the configuration with the origin of each value, check or edit its file, print its schema.")


@config.command("show", examples=("streamglot config show", "streamglot config show --config gateway.toml"))
@CONFIG_FILE
def config_show(config: Path | None) -> int:
    """Print every setting with its value and the origin of the value. Secrets are shown as dots."""
    from ...config import load, shown
    from ..output.terminal import neutral

    for place, value, origin in shown(load(config)):
        print(neutral(f"{place} = {value}  # {origin}"))
    return 0


@config.command("edit", examples=("streamglot config edit", "EDITOR=nano streamglot config edit"))
@CONFIG_FILE
def config_edit(config: Path | None) -> int:
    """Open the configuration file in $EDITOR, and check it afterwards."""
    from .config_edit import run

    return run(config)


@config.command("check", examples=("streamglot config check", "streamglot config check gateway.toml"))
@click.argument("file", type=FILE, required=False)
def config_check(file: Path | None) -> int:
    """Check a configuration file: settings, routes, policies, tools. Nothing is started.

    FILE is the one that `streamglot serve` would read, if it is left out. The status is 2 if something is wrong.
    """
    from .config_check import run

    return run(file)


@config.command("schema", examples=("streamglot config schema",))
def config_schema() -> int:
    """Print the JSON Schema of the configuration file, with which editors complete and check it."""
    from ...config_schema import schema_text

    print(schema_text(), end="")
    return 0


local = group("Fetch, list and remove the weights of the model on this machine.")


@local.command(
    "pull",
    examples=(
        "streamglot local pull                     # SmolLM2, 93 MB",
        "streamglot local pull ~/models/qwen3.gguf",
    ),
)
@click.argument("source", default="")
@click.option("--sha256", type=text, default="", help="The SHA-256 that the file must have.")
def local_pull(source: str, sha256: str) -> int:
    """Fetch weights into the cache and check them.

    SOURCE is a GGUF file or its https address; without it, the small default model is fetched.
    """
    from .local import pull

    return pull(source, sha256)


@local.command("list", examples=("streamglot local list",))
def local_list() -> int:
    """List the weights in the cache, and mark those in use."""
    from .local import listed

    return listed()


@local.command("remove", examples=("streamglot local remove smollm2",))
@click.argument("name", type=text)
def local_remove(name: str) -> int:
    """Remove weights from the cache.

    NAME is one that `streamglot local list` shows.
    """
    from ...upstream.weights import remove

    print(f"removed {remove(name)}")
    return 0


COMMANDS = (serve, launch, models, formats, doctor, setup)
GROUPS = {"config": config, "local": local}
