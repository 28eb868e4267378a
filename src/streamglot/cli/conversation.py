"""The commands that ask a model: query, chat and reply."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .guard import guarded
from .offers import sessions

if TYPE_CHECKING:
    from .answer import Look

app = typer.Typer()


class Markdown(StrEnum):
    auto = "auto"
    always = "always"
    never = "never"


def _models(incomplete: str) -> list[str]:
    """Names for the shell to offer: those that need no question to anybody."""
    from ..config import load
    from ..upstream.local import ALIAS, NAME

    named = [model for upstream in load().config.upstreams.values() for model in upstream.listed]
    return [name for name in (NAME, ALIAS, "replay", *named) if name.startswith(incomplete)]


Model = Annotated[
    str, typer.Option("--model", "-m", help="The model, or upstream/model.", autocompletion=_models, show_default=False)
]
System = Annotated[str, typer.Option("--system", "-s", help="The system message.", show_default=False)]
Schema = Annotated[str, typer.Option(help="A JSON schema for the answer: a file, or the schema itself.", show_default=False)]
Attach = Annotated[
    list[str] | None, typer.Option("--attach", "-a", help="A file or address to send along; may be repeated.", show_default=False)
]
ToolsFile = Annotated[Path | None, typer.Option(help="A JSON list of tools that the model may call; calls are shown, not run.")]
Tools = Annotated[
    list[str] | None,
    typer.Option("--tools", "-T", help="Tools that are run for the model: a name or glob; may be repeated.", show_default=False),
]
Mcp = Annotated[
    list[str] | None,
    typer.Option(help="Tools of an MCP server: its name, address or command; may be repeated.", show_default=False),
]
Approve = Annotated[
    list[str] | None,
    typer.Option(help="Run tools `always`, `ask` (unless they only read) or `never`; GLOB=MODE for some.", show_default=False),
]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="The longest answer, in tokens.")]
Temperature = Annotated[float | None, typer.Option("--temperature", "-t", help="How freely it chooses its words.")]
Effort = Annotated[str, typer.Option(help="How much to think: none, low, medium, high …", show_default=False)]
Rendered = Annotated[Markdown, typer.Option(help="Render markdown: `auto` at a terminal only.")]
HideReasoning = Annotated[bool, typer.Option("--hide-reasoning", help="Do not show what the model thinks.")]
Raw = Annotated[bool, typer.Option("--raw", help="The text exactly as it came (a terminal still gets no control characters).")]
Json = Annotated[bool, typer.Option("--json", help="The whole answer as one JSON object, at its end.")]
Events = Annotated[bool, typer.Option("--events", help="Our events, one JSON object a line, as they come.")]
Usage = Annotated[bool, typer.Option("--usage", "-u", help="Tokens and cost, on standard error.")]
NoLog = Annotated[bool, typer.Option("--no-log", help="Keep nothing of this.")]


@app.command()
def query(
    words: Annotated[list[str] | None, typer.Argument(help="The question; standard input is added to it.")] = None,
    model: Model = "",
    system: System = "",
    schema: Schema = "",
    attach: Attach = None,
    tools_file: ToolsFile = None,
    tools: Tools = None,
    mcp: Mcp = None,
    approve: Approve = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    effort: Effort = "",
    markdown: Rendered = Markdown.auto,
    hide_reasoning: HideReasoning = False,
    raw: Raw = False,
    json: Json = False,
    events: Events = False,
    usage: Usage = False,
    no_log: NoLog = False,
) -> None:
    """Asks one question and shows the answer as it comes. Ctrl-C stops it and keeps what came."""
    look = _look(markdown, hide_reasoning, raw, json, events, usage)
    with guarded():
        from .query import run
        from .question import Question
        from .tool_options import ToolOptions

        question = Question(
            model=model,
            system=system,
            schema=schema,
            attachments=attach or [],
            tools_file=tools_file,
            tools=ToolOptions(patterns=tools or [], mcp=mcp or [], approve=approve or []),
            max_tokens=max_tokens,
            temperature=temperature,
            effort=effort,
        )
        raise typer.Exit(run(words or [], question, look, not no_log))


@app.command()
def chat(
    model: Model = "",
    system: System = "",
    attach: Attach = None,
    tools_file: ToolsFile = None,
    tools: Tools = None,
    mcp: Mcp = None,
    approve: Approve = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    effort: Effort = "",
    markdown: Rendered = Markdown.auto,
    hide_reasoning: HideReasoning = False,
    raw: Raw = False,
    usage: Usage = False,
    no_log: NoLog = False,
) -> None:
    """A conversation: several lines with Alt-Enter, former lines with the arrow keys, /help for commands."""
    look = _look(markdown, hide_reasoning, raw, False, False, usage)
    with guarded():
        from .chat import run
        from .question import Question
        from .tool_options import ToolOptions

        question = Question(
            model=model,
            system=system,
            attachments=attach or [],
            tools_file=tools_file,
            tools=ToolOptions(patterns=tools or [], mcp=mcp or [], approve=approve or []),
            max_tokens=max_tokens,
            temperature=temperature,
            effort=effort,
        )
        raise typer.Exit(run(question, look, not no_log))


@app.command()
def reply(
    words: Annotated[list[str] | None, typer.Argument(help="What to say; standard input is added to it.")] = None,
    session: Annotated[
        str,
        typer.Option(help="The session to go on with, or the beginning of its id.", autocompletion=sessions, show_default=False),
    ] = "",
    here: Annotated[bool, typer.Option("--here", help="The last conversation of this directory.")] = False,
    model: Model = "",
    system: System = "",
    schema: Schema = "",
    attach: Attach = None,
    tools_file: ToolsFile = None,
    tools: Tools = None,
    mcp: Mcp = None,
    approve: Approve = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    effort: Effort = "",
    markdown: Rendered = Markdown.auto,
    hide_reasoning: HideReasoning = False,
    raw: Raw = False,
    json: Json = False,
    events: Events = False,
    usage: Usage = False,
    no_log: NoLog = False,
) -> None:
    """Goes on with the last conversation, with its model and its system message unless others are named."""
    look = _look(markdown, hide_reasoning, raw, json, events, usage)
    with guarded():
        from .question import Question
        from .reply import run
        from .tool_options import ToolOptions

        question = Question(
            model=model,
            system=system,
            schema=schema,
            attachments=attach or [],
            tools_file=tools_file,
            tools=ToolOptions(patterns=tools or [], mcp=mcp or [], approve=approve or []),
            max_tokens=max_tokens,
            temperature=temperature,
            effort=effort,
        )
        raise typer.Exit(run(words or [], question, look, session, here, not no_log))


def _look(markdown: Markdown, hide_reasoning: bool, raw: bool, json: bool, events: bool, usage: bool) -> Look:
    if raw + json + events > 1:
        raise typer.BadParameter("--raw, --json and --events are three different things")
    from .answer import Look

    return Look(
        markdown=markdown.value,
        reasoning=not hide_reasoning,
        form="raw" if raw else "json" if json else "events" if events else "text",
        usage=usage,
    )
