"""The commands around the streams: serve, models, formats, config, doctor, setup, local."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .guard import guarded

app = typer.Typer()
config = typer.Typer(help="The configuration: show it with the origin of each value, or edit its file.", no_args_is_help=True)
local = typer.Typer(help="The model on this machine: fetch its weights, list them, remove them.", no_args_is_help=True)
app.add_typer(config, name="config")
app.add_typer(local, name="local")

ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="The configuration file.")]


@app.command()
def serve(
    config: ConfigFile = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that share the socket.")] = None,
) -> None:
    """Runs the gateway: any client, any upstream."""
    with guarded():
        from .serve import run

        raise typer.Exit(run(config, host, port, workers))


@app.command()
def models(json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """The models that can be named, and the upstreams that serve them."""
    with guarded():
        from .models import run

        raise typer.Exit(run(json))


@app.command()
def formats(
    name: Annotated[str | None, typer.Argument(help="One format, with its example; all of them if left out.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="The format that a model of this name speaks.")] = None,
) -> None:
    """The notations in which models write calls and thinking into their text."""
    with guarded():
        from .formats import run

        raise typer.Exit(run(name, model))


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Do not try to reach anybody.")] = False,
) -> None:
    """Looks at keys, upstreams, the store, the local model and versions, and says what to do. Exits with 1 if something is broken."""
    with guarded():
        from .doctor import run

        raise typer.Exit(run(json, offline))


@app.command()
def setup(
    client: Annotated[str | None, typer.Argument(help="The client; all of them are listed if left out.")] = None,
    address: Annotated[str, typer.Option(help="Where the gateway listens.")] = "http://127.0.0.1:8484",
    model: Annotated[str, typer.Option("--model", "-m", help="The model to use.")] = "local",
    key: Annotated[str, typer.Option(help="The key for the gateway, if it wants one.")] = "streamglot",
    write: Annotated[
        bool, typer.Option("--write", help="Put them into the client's settings file; the rest of it stays.")
    ] = False,
) -> None:
    """The settings with which a client talks to the gateway: printed, or written."""
    with guarded():
        from .setup import run

        raise typer.Exit(run(client, address, model, key, write))


@config.command("show")
def config_show(config: ConfigFile = None) -> None:
    """Every value and where it came from; secrets as dots."""
    with guarded():
        from ..config import load, shown

        for place, value, origin in shown(load(config)):
            typer.echo(f"{place} = {value}  # {origin}")


@config.command("edit")
def config_edit(config: ConfigFile = None) -> None:
    """Opens the configuration file in $EDITOR, and checks it afterwards."""
    with guarded():
        from .edit import run

        raise typer.Exit(run(config))


@local.command("pull")
def local_pull(
    source: Annotated[str, typer.Argument(help="A GGUF file or its https address; the small default model if left out.")] = "",
    sha256: Annotated[str, typer.Option(help="What the file must add up to.")] = "",
) -> None:
    """Fetches weights into the cache, checks them, and shows how far it is."""
    with guarded():
        from .weights import pull

        raise typer.Exit(pull(source, sha256))


@local.command("list")
def local_list() -> None:
    """The weights in the cache, and which of them is run."""
    with guarded():
        from .weights import listed

        raise typer.Exit(listed())


@local.command("remove")
def local_remove(name: Annotated[str, typer.Argument(help="A name of `streamglot local list`.")]) -> None:
    """Removes weights from the cache."""
    with guarded():
        from ..upstream.weights import remove

        typer.echo(f"removed {remove(name)}")
