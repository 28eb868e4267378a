"""The ``[tools]`` table of the configuration."""

from __future__ import annotations

from msgspec import Struct, field


class ToolLimits(Struct, forbid_unknown_fields=True, kw_only=True):
    """Limits of one tool loop.

    ``rounds``: model turns that may call tools; the turn after them must answer without. ``seconds``: the time of one call.
    ``total_seconds``: the time of the whole loop. ``concurrent``: calls of one turn that run at once. ``calls``: calls of one
    turn that are run at all. ``repeats``: how often the same call with the same arguments is run. ``result_chars``: the longest
    result that goes to the model. ``tokens`` and ``cost`` (US dollars): what all model turns together may use; 0 is no limit.
    """

    rounds: int = 8
    seconds: float = 30.0
    total_seconds: float = 300.0
    concurrent: int = 8
    calls: int = 32
    repeats: int = 2
    result_chars: int = 50_000
    tokens: int = 0
    cost: float = 0.0


class McpOAuth(Struct, forbid_unknown_fields=True, kw_only=True):
    """How to sign in at an MCP server that asks for OAuth. With ``client_secret_env``, the variable that holds the secret, we
    sign in as the client ``client_id`` itself. Without it a person signs in once, by ``streamglot tools login``; ``client_id``
    may then be left out if the server registers clients. ``scope``: what is asked for; the server's own list if left out."""

    client_id: str = ""
    client_secret_env: str = ""
    scope: str = ""


class McpServer(Struct, forbid_unknown_fields=True, kw_only=True):
    """An MCP server: a ``command`` that is started and used over standard input and output, or the ``url`` of one that
    runs. ``env`` is added to the variables of the command. ``start_seconds``: how long it may take to list its tools.
    ``oauth``: how to sign in at a ``url`` that asks for it."""

    command: list[str] = field(default_factory=list)
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = ""
    start_seconds: float = 30.0
    oauth: McpOAuth | None = None


class Executable(Struct, forbid_unknown_fields=True, kw_only=True):
    """A program that is a tool: it reads its arguments as JSON from standard input and writes its result to standard output.
    ``parameters`` is the JSON Schema of the arguments. The program gets PATH, HOME and what else every program needs, and ``env``,
    but no other variable of the gateway."""

    command: list[str]
    env: dict[str, str] = field(default_factory=dict)
    description: str = ""
    parameters: dict[str, object] = field(default_factory=lambda: {"type": "object", "properties": {}})


class BuiltIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """The files, hosts and commands that the built-in tools may use. Empty lists allow nothing. ``directory``: files below it may
    be read and listed.
    ``hosts``: hosts that may be fetched from. ``commands``: commands that may be run, each as its list of words. The command must
    have exactly these words; ``*`` is one free argument, ``**`` any number of them, ``?word`` a word that may be left out. A free
    argument may not begin with ``-``. ``env``: variables that are added for the commands."""

    directory: str = ""
    hosts: list[str] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)


class ToolsConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """``enabled`` and ``disabled`` are globs over the names of all sources; a tool that is not enabled never runs. ``python``
    names modules, files or folders. ``hosted`` maps a tool that providers host (``web_search``) to a tool of ours."""

    enabled: list[str] = field(default_factory=list)
    disabled: list[str] = field(default_factory=list)
    python: list[str] = field(default_factory=list)
    mcp: dict[str, McpServer] = field(default_factory=dict)
    executables: dict[str, Executable] = field(default_factory=dict)
    built_in: BuiltIn = field(default_factory=BuiltIn)
    hosted: dict[str, str] = field(default_factory=dict)
    limits: ToolLimits = field(default_factory=ToolLimits)
