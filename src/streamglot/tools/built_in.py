"""The built-in tools. All are off unless ``tools.enabled`` names them, and reach only what ``tools.built_in`` allows."""

from __future__ import annotations

import ast
import asyncio
import math
import operator
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from datetime import datetime
from http.client import HTTPMessage
from pathlib import Path
from typing import IO, Any, Final, TypeAlias
from zoneinfo import ZoneInfo

from .processes import run_process
from .settings import BuiltIn
from .tool import FunctionTool, Tool, ToolError

FILE_BYTES: Final = 2**20
"""The most of a file that is read: more would not fit into the context of a model."""
LISTED_FILES: Final = 1000
"""Names of one listing."""
FETCH_BYTES: Final = 2**20
"""The most of a response that is read."""
FETCH_SECONDS: Final = 20.0
"""How long a host may be silent; below the time limit of a call, so that the model gets the reason."""
NUMBER_BITS: Final = 4096
"""The longest whole number of a calculation, in bits. The interpreter computes a longer one without letting anything else run:
9**9**9 would take hours."""
DIGITS: Final = 1300
"""The most digits that a number is rounded to, on both sides of the point: as many as the longest number has."""
EXPRESSION_CHARS: Final = 1000
"""The longest expression; a longer one would nest deeper than Python's parser can go."""


def built_in_tools(allowed: BuiltIn) -> list[Tool]:
    tools: list[Tool] = [
        FunctionTool(current_time, "time", read_only=True),
        FunctionTool(calculate, "calculator", read_only=True),
    ]
    if allowed.directory:
        files = _Files(Path(allowed.directory).expanduser())
        tools += [
            FunctionTool(files.read_file, "read_file", read_only=True),
            FunctionTool(files.list_files, "list_files", read_only=True),
        ]
    if allowed.hosts:
        tools.append(FunctionTool(_Fetch(allowed.hosts).fetch, "fetch", read_only=True))
    if allowed.commands:
        tools.append(FunctionTool(_Commands(allowed.commands, allowed.env).run_command, "run_command"))
    return tools


def current_time(zone: str = "UTC") -> str:
    """The current date and time.

    Args:
        zone: An IANA time zone, such as Europe/Berlin.
    """
    try:
        return datetime.now(ZoneInfo(zone)).strftime("%A, %Y-%m-%d %H:%M:%S %Z (UTC%z)")
    except (KeyError, ValueError, OSError):
        raise ToolError(f"There is no time zone {zone!r}. Use an IANA name, such as Europe/Berlin.") from None


# --- the calculator

Number: TypeAlias = Any  # Any: int, float or complex; an operation that a number does not have raises TypeError

_OPERATORS: Final[dict[type, Callable[[Number, Number], Number]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: Final[dict[str, Callable[..., Number]]] = {
    "abs": abs,
    "round": lambda value, digits=None: round(value) if digits is None else round(value, max(-DIGITS, min(DIGITS, digits))),
    "min": min,
    "max": max,
    **{
        name: getattr(math, name)
        for name in ("sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "floor", "ceil")
    },
}
_NAMES: Final = {"pi": math.pi, "e": math.e, "tau": math.tau}


def calculate(expression: str) -> str:
    """Calculates an arithmetic expression, such as (3 + 4) * sqrt(2).

    Args:
        expression: Numbers, + - * / // % **, parentheses, pi, e, and functions such as sqrt, log, sin, round, min, max.
    """
    if len(expression) > EXPRESSION_CHARS:
        raise ToolError(f"The expression has more than {EXPRESSION_CHARS} characters.")
    try:
        return str(_value(ast.parse(expression.strip(), mode="eval").body))
    except SyntaxError:
        raise ToolError(f"{expression!r} is not an arithmetic expression.") from None
    except (ArithmeticError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ToolError(f"{expression!r} cannot be calculated: {error}.") from None


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _bounded(_power(_value(left), _value(right)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _bounded(_OPERATORS[type(op)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*map(_value, args)))
    raise ToolError(f"{ast.unparse(node)!r} is not part of arithmetic. Use numbers, operators and the functions of this tool.")


def _bounded(value: Number) -> Number:
    """The value, if what is computed with it stays short: two whole numbers within the limit have a product of twice its length."""
    if isinstance(value, int) and value.bit_length() > NUMBER_BITS:
        raise ToolError(f"The calculation has a whole number of more than {NUMBER_BITS} bits. Use smaller numbers, or decimals.")
    return value


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0 and base.bit_length() * exponent > NUMBER_BITS:
        return float(base) ** exponent
    return base**exponent


# --- files


class _Files:
    """Files below one directory. A link that leads out of it is refused like any other path outside."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()

    def _inside(self, path: str) -> Path:
        found = (self._directory / path).resolve()
        if not found.is_relative_to(self._directory):
            raise ToolError(f"{path!r} is outside of the allowed directory. Use a path relative to it.")
        return found

    def read_file(self, path: str) -> str:
        """Reads a text file.

        Args:
            path: The path of the file, relative to the allowed directory.
        """
        try:
            with self._inside(path).open("rb") as file:
                data = file.read(FILE_BYTES + 1)
        except OSError as error:
            raise ToolError(f"{path!r} cannot be read: {error.strerror}.") from None
        text = data[:FILE_BYTES].decode("utf-8", "replace")
        return text if len(data) <= FILE_BYTES else f"{text}\n[cut here: the file has more than {FILE_BYTES} bytes]"

    def list_files(self, path: str = ".", pattern: str = "*") -> str:
        """Lists the files of a directory. The names of directories end in a slash.

        Args:
            path: The path of the directory, relative to the allowed directory.
            pattern: A glob that the names must match, such as *.md.
        """
        try:
            found = sorted(entry for entry in self._inside(path).iterdir() if entry.match(pattern))
        except (OSError, ValueError) as error:
            raise ToolError(f"{path!r} cannot be listed: {getattr(error, 'strerror', error)}.") from None
        names = [f"{entry.name}/" if entry.is_dir() else entry.name for entry in found[:LISTED_FILES]]
        more = [f"[and {len(found) - LISTED_FILES} more]"] if len(found) > LISTED_FILES else []
        return "\n".join([*names, *more]) or "The directory has no such files."


# --- HTTP


class _Fetch:
    """Responses of allowed hosts. A redirect is followed only to a host that is allowed too."""

    def __init__(self, hosts: list[str]) -> None:
        self._hosts = hosts
        self._opener = urllib.request.build_opener(_Redirects(self.check))

    def check(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not any(host in (parts.hostname, parts.netloc) for host in self._hosts):
            raise ToolError(f"{url!r} is not allowed. The allowed hosts are {', '.join(self._hosts)}.")

    async def fetch(self, url: str) -> str:
        """Fetches a page over HTTP and returns its text.

        Args:
            url: The address of the page. Only allowed hosts can be fetched from.
        """
        self.check(url)
        return await asyncio.to_thread(self._fetch, url)

    def _fetch(self, url: str) -> str:
        try:
            with self._opener.open(url, timeout=FETCH_SECONDS) as answer:
                data: bytes = answer.read(FETCH_BYTES + 1)
                charset = answer.headers.get_content_charset() or "utf-8"
        except urllib.error.HTTPError as error:
            raise ToolError(f"{url} answered with the status {error.code}.") from None
        except (OSError, ValueError) as error:
            raise ToolError(f"{url} cannot be fetched: {error}.") from None
        try:
            text = data[:FETCH_BYTES].decode(charset, "replace")
        except LookupError:
            text = data[:FETCH_BYTES].decode("utf-8", "replace")
        return text if len(data) <= FETCH_BYTES else f"{text}\n[cut here: the page has more than {FETCH_BYTES} bytes]"


class _Redirects(urllib.request.HTTPRedirectHandler):
    def __init__(self, check: Callable[[str], None]) -> None:
        self._check = check

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        self._check(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


# --- commands


class _Commands:
    def __init__(self, allowed: list[list[str]], env: dict[str, str]) -> None:
        self._allowed = [words for words in allowed if words]
        self._env = env

    async def run_command(self, command: list[str]) -> str:
        """Runs a command without a shell and returns its output.

        Args:
            command: The program and its arguments, one string each. Only allowed commands can be run.
        """
        if not any(_allows(words, command) for words in self._allowed):
            allowed = "; ".join(" ".join(words) for words in self._allowed)
            raise ToolError(f"This command is not allowed. Allowed commands (* is one argument, ** any number): {allowed}.")
        done = await run_process(command, env=self._env)
        output = done.stdout + done.stderr
        return output if not done.status else f"exit status {done.status}\n{output}"


ONE: Final = "*"
"""A word of an allowed command: one argument that is not an option."""
SEVERAL: Final = "**"
"""A word of an allowed command: any number of arguments that are not options."""
OPTIONAL: Final = "?"
"""Begins a word of an allowed command that may be left out."""


def _allows(words: Sequence[str], command: Sequence[str]) -> bool:
    """Whether a command is this allowed one. Free arguments may be no options: an option may write files, or run programs. The
    places are tried side by side, so the time grows with the length of both."""
    places = {0}
    for argument in command:
        free = not argument.startswith("-")
        after: set[int] = set()
        for place in _skipped(words, places):
            word = words[place] if place < len(words) else None
            if word == SEVERAL and free:
                after.add(place)
            elif word is not None and (argument == word.removeprefix(OPTIONAL) or (word == ONE and free)):
                after.add(place + 1)
        places = after
    return len(words) in _skipped(words, places)


def _skipped(words: Sequence[str], places: set[int]) -> set[int]:
    """The places, and those behind words that may be left out."""
    reached = set(places)
    for place in sorted(places):
        while place < len(words) and (words[place] == SEVERAL or words[place].startswith(OPTIONAL)):
            place += 1
            reached.add(place)
    return reached
