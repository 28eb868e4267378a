"""docs/configuration.md: every setting with its type, default, environment variable and meaning, from the structs."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo, fields

from streamglot.config import PREFIX, Config
from streamglot.gateway.lifecycle import FIXED_SECTIONS, FIXED_SERVER

from .words import NOTE, cell, code, sentence

MEANINGS = {
    "server.host": "The address to listen on. Keys are required unless it is a loopback address.",
    "server.port": "The port to listen on; 0 for any free one.",
    "server.workers": "Processes that share the socket.",
    "server.max_body_bytes": "The largest body of a request, in bytes.",
    "server.body_seconds": "The time for the body of a request, in seconds.",
    "server.wait": "How long a request may wait for a free slot, in seconds.",
    "server.shutdown_seconds": "The time that running requests have when the server stops, in seconds.",
    "server.default_model": "The model for requests that name none.",
    "server.discover": "Look for API keys in the environment and for model servers on this machine.",
    "server.telemetry": "Send OpenTelemetry spans and metrics. Needs the extra `otel`.",
    "server.log": "Write a line of JSON for each request to standard error.",
    "server.redact": "Patterns in RE2's syntax that are hidden in the log.",
    "server.cache_bytes": "Memory for cached answers, in bytes. Routes with `cache_seconds` use it.",
    "server.batch_concurrent": "Requests of one call of `/v1/batch` that run at once.",
    "server.keys": "Keys that clients may use.",
    "server.keys.name": "The name of the key; logs and the store show it.",
    "server.keys.hash": "The SHA-256 of the key, in hexadecimal.",
    "server.keys.key_env": "The environment variable that holds the key.",
    "server.keys.models": "Patterns of the models that the key may use.",
    "server.keys.requests_per_minute": "Requests that the key may start in a minute; 0 means no limit.",
    "server.keys.tokens_per_minute": "Tokens that the key may use in a minute; 0 means no limit.",
    "server.keys.concurrent": "Streams that the key may have open at once; 0 means no limit.",
    "store.raw": "Store the bytes of upstreams too, with their timing.",
    "valkey.url": "`valkey://` or `redis://`: where streams that can be resumed are held, in place of the store.",
    "upstreams.name": "The name of the table; do not set it.",
    "upstreams.base_url": "The address of the API, or `file:` and a folder of recordings.",
    "upstreams.key_env": "The environment variable with the key.",
    "upstreams.pass_key": "Send the client's own key instead.",
    "upstreams.inband": "The notation of calls and reasoning in the model's text; `auto` selects it by the name of the model.",
    "upstreams.headers": "Headers that are added to every request. Their values are secrets, unless their names are public (SECURITY.md).",
    "upstreams.proxy": "The address of an HTTP proxy.",
    "upstreams.timeouts": "Time limits of a request, in seconds.",
    "upstreams.timeouts.connect": "For the connection.",
    "upstreams.timeouts.first_byte": "Until the first byte of the answer; long, because models may reason before they answer.",
    "upstreams.timeouts.idle": "The longest gap between two reads after that.",
    "upstreams.timeouts.total": "For the whole answer.",
    "upstreams.breaker.failures": "Failures in a row that open the circuit breaker.",
    "upstreams.breaker.seconds": "How long the circuit breaker stays open, in seconds.",
    "upstreams.rest": "The former name of `breaker`.",
    "upstreams.attempts": "The number of attempts of a request.",
    "upstreams.pause": "The seconds before the second attempt.",
    "upstreams.merge_seconds": "How long a small request may wait for others.",
    "upstreams.batches": "Run batches as calls (`own`) or through the batch API of the provider (`provider`).",
    "routes.models": "Patterns of model names.",
    "routes.to": "Targets that are chosen by weight.",
    "routes.fallbacks": "Targets that are tried in order if those fail.",
    "routes.cache_seconds": "How long identical requests get the cached answer, in seconds; 0 turns the cache off.",
    "routes.tools": "Globs of the gateway's tools that are offered with its requests.",
    "routes.to.upstream": "The name of an upstream.",
    "routes.to.model": "The upstream's name for the model; empty for the client's name.",
    "routes.to.weight": "The target's share of the requests.",
    "engine.stages": "Stages of your own, as `module:name`.",
    "engine.observers": "Observers of your own, as `module:name`.",
    "tools.enabled": "Globs of the tools that may run; all others are off.",
    "tools.disabled": "Globs of tools that may not run.",
    "tools.python": "Modules, files or folders with `@streamglot.tool` functions.",
    "tools.hosted": "Tools that providers host (`web_search`), each with the tool of the gateway that replaces it.",
    "tools.mcp.command": "The command of the server, which communicates over standard input and output.",
    "tools.mcp.url": "The address of a running server.",
    "tools.mcp.headers": "Headers for that address. `config show` hides their values, unless their names are public.",
    "tools.mcp.env": "Variables that are added for the command.",
    "tools.mcp.cwd": "The directory of the command.",
    "tools.executables.command": "The program and its arguments.",
    "tools.executables.env": "Variables that are added for the program, beside those that every program needs.",
    "tools.executables.description": "The description that the model gets.",
    "tools.executables.parameters": "The JSON Schema of the arguments.",
    "upstreams.abilities.call_id_fixed": "Ids of calls have exactly `call_id_chars` letters and digits.",
    "tools.limits.cost": "US dollars that all model turns together may cost; 0 is no limit.",
    "tools.limits.tokens": "Tokens that all model turns together may use; 0 is no limit.",
    "batches.enabled": "Offer durable batches. They need a store.",
    "batches.max_file_bytes": "The largest upload, in bytes.",
    "batches.max_key_bytes": "The uploaded files of one key together, in bytes; 0: no limit.",
    "batches.max_items": "The most requests of a batch.",
    "server.fallback_model": "The model that answers for names that no upstream serves.",
}
"""Meanings of settings whose docstring does not say ``name``: meaning. The others come from the docstrings."""
_DESCRIBED = re.compile(r"``(\w+)``:\s+((?:(?!``\w+``:\s|\n\s*- ``).)*)", re.S)


def configuration_page() -> str:
    lines = [
        "# Configuration",
        "",
        NOTE,
        "`streamglot serve` and the other commands read `streamglot.toml` in the current folder, or else",
        "`~/.config/streamglot/streamglot.toml`; `STREAMGLOT_CONFIG` or `--config` names another file. A variable overrides the file, and an",
        "option of the command line overrides both. Two underscores divide the parts of a name: `STREAMGLOT_SERVER__PORT=9000`. Lists and",
        "tables are written as JSON: `STREAMGLOT_SERVER__ORIGINS='[\"https://chat.example\"]'`.",
        "",
        "`streamglot config show` shows every value and its source. An unknown setting, a wrong type and a number below 0 are refused,",
        "with the name of the setting. A running gateway reloads the file on SIGHUP. It refuses a file with a fault or with another",
        "`server.host`, and keeps the previous settings. Some settings keep their values until a restart, and the log line `reloaded` names",
        "those that differ (`needs_restart`):",
        ", ".join(f"`server.{name}`" for name in FIXED_SERVER),
        f"and the sections {', '.join(f'`{name}`' for name in FIXED_SECTIONS)}.",
        "",
        "```toml",
        "[server]",
        "port = 8484",
        "",
        "[upstreams.work]",
        'dialect = "openai_chat"',
        'base_url = "https://llm.example/v1"',
        'key_env = "WORK_KEY"',
        'models = ["work-*"]',
        "",
        "[[routes]]",
        'models = ["fast"]',
        'to = [{ upstream = "work", model = "work-small" }]',
        "```",
        "",
    ]
    for place, kind, heading, variable in _tables(Config, "", "", PREFIX):
        lines += _table(place, kind, heading, variable)
    lines += [
        "## `[[policies]]`",
        "",
        "Each table has `use`, the name of a policy, and the options of that policy: [the guide](policies.md), [all options](policy-reference.md).",
        "",
    ]
    return "\n".join(lines)


def _tables(kind: type, place: str, heading: str, variable: str) -> Iterator[tuple[str, type, str, str]]:
    """Every table of the configuration, with the path of its settings, its heading and the beginning of its variables. A variable
    cannot name a part of a list."""
    for field in fields(kind):
        inner, wrap = _struct_in(field.type)
        if inner is None:
            continue
        path = f"{place}.{field.name}" if place else field.name
        shown = f"{heading}.{field.encode_name}" if heading else field.encode_name
        prefix = f"{variable}{field.name.upper()}__" if variable else ""
        if wrap == "dict":
            shown, prefix = f"{shown}.NAME", f"{prefix}NAME__" if prefix else ""
        if wrap == "list":
            prefix = ""
        if (path, wrap) != ("routes.fallbacks", "list"):  # the same struct as those before it
            yield path, inner, f"[[{shown}]]" if wrap == "list" else f"[{shown}]", prefix
        yield from _tables(inner, path, shown, prefix)


def _struct_in(kind: Any) -> tuple[type | None, str]:  # a type annotation
    """The struct that a field holds, alone, in a list or in a table."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind, ""
    origin = get_origin(kind)
    if origin in (list, dict):
        inner = get_args(kind)[-1]
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            return inner, origin.__name__
    return None, ""


def _table(place: str, kind: type, heading: str, variable: str) -> list[str]:
    described = {name: sentence(text.replace("``", "`")) for name, text in _DESCRIBED.findall(kind.__doc__ or "")}
    rows = [
        f"| `{field.encode_name}` | {_type(field.type)} | {_default(field)} | {code(variable + field.name.upper()) if variable else '–'} "
        f"| {cell(MEANINGS.get(f'{place}.{field.name}') or described.get(field.name, ''))} |"
        for field in fields(kind)
        if _struct_in(field.type)[0] is None and field.name != "rest"
    ]
    if not rows:
        return []
    columns = ["| setting | type | default | variable | meaning |", "|---|---|---|---|---|"]
    return [f"## `{heading}`", "", *columns, *rows, ""]


def undescribed() -> list[str]:
    """Settings without a meaning."""
    missing = []
    for place, kind, _, _ in _tables(Config, "", "", PREFIX):
        described = {name for name, _ in _DESCRIBED.findall(kind.__doc__ or "")}
        own = [field.name for field in fields(kind) if _struct_in(field.type)[0] is None and field.name != "rest"]
        missing += [f"{place}.{name}" for name in own if name not in described and f"{place}.{name}" not in MEANINGS]
    return missing


def _type(kind: Any) -> str:  # a type annotation
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(each) for each in get_args(kind) if each is not type(None))
    if origin is Literal:
        return ", ".join(code(f'"{value}"') for value in get_args(kind))
    if origin in (list, tuple):
        return f"list of {_type(get_args(kind)[0])}"
    if origin is dict:
        return "table"
    words = {str: "text", bool: "true or false", int: "whole number", float: "number"}
    return words.get(kind, "object" if kind in (Any, object) else kind.__name__)


def _default(field: FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if value is None:
        return "–"
    return code(f"{value}" if isinstance(value, float) else msgspec.json.encode(value).decode())
