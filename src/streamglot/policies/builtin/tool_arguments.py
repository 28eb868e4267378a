"""``tool_arguments``: calls whose arguments break a rule are refused."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final
from urllib.parse import urlsplit

from msgspec import Struct

from ...errors import ConfigError
from ...json.schema import Schema, Step, parse_path, values_at
from ...json_types import JsonValue
from ...patterns.expressions import occurs
from ...text import matches_tool
from ..needs import Needs, block
from ..pieces import Piece
from ..policy import JudgeContext, Options, Policy, any_matches
from ..verdicts import FORWARD, Forward, Refuse

_CONTROL: Final = re.compile(r"[\x00-\x20\x7f\\]")


class Rule(Options, frozen=True, kw_only=True):
    """The rule for the values at ``path``. ``deny`` and ``require`` are regular expressions; ``allow_paths`` are globs of
    absolute paths, compared after ``..`` is resolved; ``allow_hosts`` are globs of host names, for URLs. An ``optional`` rule
    accepts a missing value at its path."""

    path: str
    deny: str = ""
    require: str = ""
    allow_paths: Sequence[str] = ()
    allow_hosts: Sequence[str] = ()
    optional: bool = True


class _Compiled(Struct, frozen=True):
    schema: Schema | None
    rules: tuple[tuple[Rule, tuple[Step, ...]], ...]


class ToolArguments(Policy, frozen=True):
    """For calls of ``tools`` (globs): a JSON ``schema``, or the schema that the request declared (``declared``), and ``rules``.
    Arguments that are not valid JSON break every rule."""

    tools: Sequence[str] = ("*",)
    schema: Mapping[str, JsonValue] | None = None
    declared: bool = False
    rules: Sequence[Rule] = ()
    message: str = "[The call of {tool} was refused: {reason}.]"

    use: ClassVar[str] = "tool_arguments"
    title: ClassVar[str] = "Refuses calls whose arguments break a JSON Schema, a pattern, or a list of paths or hosts."

    def check(self) -> None:
        if not (self.schema is not None or self.declared or self.rules):
            raise ConfigError("tool_arguments: give a schema, declared = true, or rules")
        for rule in self.rules:
            if not (rule.deny or rule.require or rule.allow_paths or rule.allow_hosts or not rule.optional):
                raise ConfigError(
                    f"tool_arguments: the rule for {rule.path} has no condition: add deny, require, allow_paths or allow_hosts"
                )
            for pattern in (rule.deny, rule.require):
                occurs(pattern, "")
        self.compile()

    def compile(self) -> _Compiled:
        schema = None if self.schema is None else Schema(self.schema)
        return _Compiled(schema, tuple((rule, parse_path(rule.path)) for rule in self.rules))

    def needs(self) -> Needs:
        return block("tool_call")

    def judge(self, piece: Piece, context: JudgeContext) -> Forward | Refuse:
        if piece.call_kind == "custom" or not matches_tool(piece.name, self.tools):
            return FORWARD  # free text has no arguments
        if not piece.can_run():
            return FORWARD
        fault = self._fault(piece, context)
        if not fault:
            return FORWARD
        message = self.message.replace("{tool}", piece.name).replace("{reason}", fault)
        return Refuse(message=message, reason=fault)

    def _fault(self, piece: Piece, context: JudgeContext) -> str:
        compiled: _Compiled = context.compiled
        try:
            arguments = piece.arguments()
        except ValueError:
            return "its arguments are not valid JSON"
        schemas = [] if compiled.schema is None else [compiled.schema]
        if self.declared and context.request is not None:
            found = [tool.parameters for tool in context.request.tools if tool.name == piece.name]
            if not found:
                return "the request declares no such tool"
            schemas += [Schema(schema, strict=False) for schema in found if schema is not None]
        faults = [schema.fault(arguments) for schema in schemas]
        for rule, steps in compiled.rules:
            values = list(values_at(steps, arguments))
            if not values and not rule.optional:
                faults.append(f"there is nothing at {rule.path}")
            faults += [_fault_of_value(rule, value) for value in values]
        return next(filter(None, faults), "")


def _fault_of_value(rule: Rule, value: object) -> str:
    if not isinstance(value, str):
        if rule.allow_paths or rule.allow_hosts or rule.require:
            return f"{rule.path} is not a string"
        return f"the value of {rule.path} is not allowed" if rule.deny and occurs(rule.deny, str(value)) else ""
    if rule.deny and occurs(rule.deny, value):
        return f"{rule.path} contains a value that is not allowed"
    if rule.require and not occurs(rf"\A(?:{rule.require})\z", value):
        return f"{rule.path} does not have the required form"
    if rule.allow_paths and not allowed_path(value, rule.allow_paths):
        return f"{rule.path} is not one of the allowed paths"
    if rule.allow_hosts and not allowed_host(value, rule.allow_hosts):
        return f"{rule.path} is not one of the allowed hosts"
    return ""


def allowed_path(path: str, globs: Sequence[str]) -> bool:
    """Whether an absolute path is one of these after ``.`` and ``..`` are resolved. A path with a NUL or a backslash never is."""
    if not path.startswith("/") or "\0" in path or "\\" in path:
        return False
    plain = "/" + posixpath.normpath(path).lstrip("/")
    return any_matches(globs, plain) or any_matches(globs, f"{plain}/")


def allowed_host(url: str, globs: Sequence[str]) -> bool:
    """Whether the host of a URL, or a bare host, is one of these. A text that parsers read differently (backslashes, control
    characters) never is."""
    if _CONTROL.search(url):
        return False
    try:
        host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    except ValueError:
        return False
    return bool(host) and any_matches(globs, host.rstrip(".").lower())
