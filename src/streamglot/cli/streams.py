"""The commands that work on streams: translate, replay, record, probe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .conversation import MaxTokens, Model, System
from .guard import guarded
from .offers import dialects as known_dialects

app = typer.Typer()


@app.command()
def translate(
    file: Annotated[Path | None, typer.Argument(help="The recorded stream; standard input if left out.")] = None,
    source: Annotated[
        str, typer.Option("--from", help="The dialect of the input, or `text`.", autocompletion=known_dialects)
    ] = "openai_chat",
    target: Annotated[
        str,
        typer.Option(
            "--to", help="A dialect; `events`, one a line; `response`, the whole answer.", autocompletion=known_dialects
        ),
    ] = "events",
    strict: Annotated[bool, typer.Option(help="Write the fields of the dialect's specification only.")] = False,
    inband: Annotated[
        str | None, typer.Option(help="The format of calls and thinking inside the text (`streamglot formats`).")
    ] = None,
    tools: Annotated[Path | None, typer.Option(help="A JSON list of the tools that were declared, for --inband.")] = None,
) -> None:
    """Reads a stream in one dialect and writes it in another, as it comes. Exits with 1 if it ended in an error."""
    with guarded():
        from .translate import run

        raise typer.Exit(run(file, source, target, strict, inband, tools))


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="A recording: the bytes of a stream, its times beside it in FILE.times.")],
    target: Annotated[
        str,
        typer.Option("--as", help="A dialect, `events`, or `text`: the answer as query shows it.", autocompletion=known_dialects),
    ] = "text",
    source: Annotated[
        str, typer.Option("--from", help="The dialect of the recording; guessed if left out.", autocompletion=known_dialects)
    ] = "",
    speed: Annotated[str, typer.Option(help="1x as it came, 2x twice as fast, 0 without any pause.")] = "1x",
) -> None:
    """Plays a recorded stream again with its timing, in any dialect."""
    with guarded():
        from .replay import run

        raise typer.Exit(run(file, source, target, speed))


@app.command()
def record(
    words: Annotated[list[str] | None, typer.Argument(help="The question; standard input is added to it.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the bytes go; their times go to FILE.times.")] = Path(
        "recording"
    ),
    model: Model = "",
    system: System = "",
    tools_file: Annotated[Path | None, typer.Option(help="A JSON list of tools that the model may call.")] = None,
    max_tokens: MaxTokens = None,
) -> None:
    """Asks a question and saves what the upstream sends, byte for byte, with the times at which it came."""
    with guarded():
        from .question import Question
        from .record import run

        question = Question(model=model, system=system, tools_file=tools_file, max_tokens=max_tokens)
        raise typer.Exit(run(words or [], question, output))


@app.command()
def probe(
    target: Annotated[str, typer.Argument(help="An address such as http://127.0.0.1:8080/v1, or the name of an upstream.")],
    model: Model = "",
    dialects: Annotated[
        list[str] | None,
        typer.Option("--dialect", "-d", help="The dialects to try; may be repeated.", autocompletion=known_dialects),
    ] = None,
    key: Annotated[str, typer.Option(envvar="STREAMGLOT_PROBE_KEY", help="The key, where the target is an address.")] = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The folder for the recordings.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="The longest answer, in tokens.")] = 64,
    body: Annotated[str, typer.Option(help="A JSON object of further fields for the body of each request.")] = "",
    json: Annotated[bool, typer.Option("--json", help="The findings as JSON.")] = False,
) -> None:
    """Finds out how an upstream really streams: plain, with reasoning, with tools, with both. Says in words where it departs
    from its dialect, and keeps the recordings."""
    with guarded():
        from .probe.command import run

        raise typer.Exit(run(target, model, dialects or [], key, output, max_tokens, body, json))
