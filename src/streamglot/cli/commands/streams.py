"""The commands that work on streams: translate, replay, record, probe."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

from ...errors import BadCall
from .. import completion_values
from ..help import Command
from ..values import FILE, completed, text
from .ask import MAX_TOKENS, MODEL, SYSTEM, WORDS

DIALECTS = completed(completion_values.dialects)


@click.command(
    cls=Command,
    examples=(
        "streamglot translate --to openai_chat recording.sse",
        "streamglot translate --to response < recording.sse     # the whole answer",
        "streamglot translate --from text --inband hermes out.txt",
    ),
)
@click.argument("file", type=FILE, required=False)
@click.option(
    "--from",
    "source",
    type=text,
    default="",
    help="The dialect of the input, `events`, or `text`. By default it is recognised by the first bytes.",
    shell_complete=DIALECTS,
)
@click.option(
    "--to",
    "target",
    type=text,
    default="events",
    show_default=True,
    help="A dialect; `events`, one a line; or `response`, the whole answer as one JSON object.",
    shell_complete=DIALECTS,
)
@click.option("--strict/--no-strict", default=False, help="Write only the fields of the dialect's specification.")
@click.option("--inband", type=text, help="The format of calls and reasoning inside the text (see `streamglot formats`).")
@click.option("--tools", type=FILE, help="A JSON list of the tools that were declared, for --inband.")
@click.option(
    "--bad-call",
    type=click.Choice(get_args(BadCall)),
    default="incomplete",
    show_default=True,
    help="What to do with a call that --inband cannot parse: an incomplete call and an error, text, or an error at once.",
)
def translate(
    file: Path | None, source: str, target: str, strict: bool, inband: str | None, tools: Path | None, bad_call: BadCall
) -> int:
    """Read a stream in one dialect and write it in another, live.

    FILE is a recorded stream; by default standard input. The exit status is 1 if the stream ended in an error.
    """
    from .translate import run

    return run(file, source, target, strict, inband, tools, bad_call)


@click.command(
    cls=Command,
    examples=(
        "streamglot replay recording.sse",
        "streamglot replay recording.sse --as anthropic --speed 2x",
    ),
)
@click.argument("file", type=FILE)
@click.option(
    "--as",
    "target",
    type=text,
    default="text",
    show_default=True,
    help="A dialect; `events`; or `text`, the answer as `query` shows it.",
    shell_complete=DIALECTS,
)
@click.option(
    "--from",
    "source",
    type=text,
    default="",
    help="The dialect of the recording. By default it is recognised by the first bytes.",
    shell_complete=DIALECTS,
)
@click.option(
    "--speed", type=text, default="1x", show_default=True, help="1x is the recorded speed, 2x twice as fast, 0 without pauses."
)
def replay(file: Path, source: str, target: str, speed: str) -> int:
    """Play a recorded stream with its timing, in any dialect.

    FILE has the bytes of a stream. Their times are read from FILE.times if it exists.
    """
    from .replay import run

    return run(file, source, target, speed)


@click.command(cls=Command, examples=('streamglot record -m local -o hello.sse "Hello"',))
@WORDS
@click.option(
    "-o",
    "--output",
    type=FILE,
    default=Path("recording"),
    show_default=True,
    help="The file for the bytes; their times go to FILE.times.",
)
@MODEL
@SYSTEM
@click.option("--tools-file", type=FILE, help="A JSON list of tools that the model may call.")
@MAX_TOKENS
def record(words: tuple[str, ...], output: Path, **given: Any) -> int:  # Any: Click passes the options by their names
    """Ask a question and save the bytes that the upstream sends, with their times.

    Standard input is added to the words of the command line.
    """
    from ..question import Question
    from .record import run

    return run(list(words), Question(**given), output)


@click.command(
    cls=Command,
    examples=(
        "streamglot probe http://127.0.0.1:8080/v1 -m llama3",
        "streamglot probe local -o recordings",
    ),
)
@click.argument("target", type=text)
@MODEL
@click.option(
    "-d",
    "--dialect",
    "dialects",
    type=text,
    multiple=True,
    help="A dialect to try. May be repeated.",
    shell_complete=DIALECTS,
)
@click.option(
    "--key",
    type=text,
    default="",
    envvar="STREAMGLOT_PROBE_KEY",
    show_envvar=True,
    help="The key, if the target is an address.",
)
@click.option("-o", "--output", type=FILE, help="The folder for the recordings.")
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=64, show_default=True, help="The maximum length of an answer, in tokens."
)
@click.option("--body", type=text, default="", help="A JSON object with more fields for the body of each request.")
@click.option("--json", is_flag=True, help="Print the findings as JSON.")
def probe(
    target: str, model: str, dialects: tuple[str, ...], key: str, output: Path | None, max_tokens: int, body: str, json: bool
) -> int:
    """Find out how an upstream really streams.

    TARGET is an address such as http://127.0.0.1:8080/v1, or the name of an upstream. It is asked four times in each dialect:
    plainly, with reasoning, with tools, and with both. Departures from the dialect are listed; the recordings are kept.
    """
    from ..probe.command import run

    return run(target, model, list(dialects), key, output, max_tokens, body, json)


COMMANDS = (translate, replay, record, probe)
