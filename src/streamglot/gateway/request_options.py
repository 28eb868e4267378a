"""Reads what a client says about its answer: in headers ``x-streamglot-*``, or in the object ``streamglot`` of its body."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, get_args

from ..config import ServerConfig
from ..dialects import dialect
from ..errors import RequestError, excerpt
from ..json_types import JsonObject, JsonValue
from ..messages import ReasoningField
from .endpoints import Endpoint

FIELD: Final = "streamglot"
"""The body field for the gateway, in any dialect: ``"streamglot": {"tools": ["weather.*"]}``."""
OF_TOOLS: Final = ("tools", "activity")
"""The options in it that ``take_tool_options`` reads."""
OUTPUT_HEADER: Final = "x-streamglot-output"
REASONING_HEADER: Final = "x-streamglot-reasoning-field"
STRICT: Final = "strict"
_OUTPUTS: Final = ("rich", STRICT)
_REASONING_FIELDS: Final[tuple[str, ...]] = get_args(ReasoningField)
_HEADERS: Final = {
    "output": OUTPUT_HEADER,
    "reasoning_field": REASONING_HEADER,
    "session": "x-streamglot-session",
    "directory": "x-streamglot-directory",
}
"""Options that are headers otherwise."""
_FIELDS: Final[dict[str, type]] = {"keep": bool, "extensions": bool, "session_id": str}
"""Options that are fields of the body otherwise."""


def lift_options(endpoint: Endpoint, body: JsonObject, headers: dict[str, str]) -> tuple[JsonObject, dict[str, str]]:
    """The body and the headers with each option of ``streamglot`` where it is read: as a header, or as a field of the body. What
    a client says in both places counts as the object says it."""
    nested = body.get(endpoint.options_in) if endpoint.options_in else None
    inner = isinstance(nested, dict) and FIELD in nested
    if not inner and FIELD not in body:
        return body, headers
    given: JsonObject = {}
    if isinstance(nested, dict) and inner:
        given |= _options(nested[FIELD], f"{endpoint.options_in}.{FIELD}")
        body = {**body, endpoint.options_in: {name: value for name, value in nested.items() if name != FIELD}}
    if FIELD in body:
        given |= _options(body[FIELD], FIELD)
    headers = {**headers, **{_HEADERS[name]: value for name, value in given.items() if name in _HEADERS}}
    fields = {name: value for name, value in given.items() if name in _FIELDS}
    of_tools = {name: value for name, value in given.items() if name in OF_TOOLS}
    return {**body, **fields, FIELD: of_tools}, headers


def _options(value: JsonValue, where: str) -> JsonObject:
    known = (*OF_TOOLS, *_HEADERS, *_FIELDS)
    if not isinstance(value, dict) or not value.keys() <= set(known):
        raise RequestError(f"{where} must be an object with {', '.join(known)}, not {excerpt(value)}", detail={"param": where})
    for name, option in value.items():
        kind = _FIELDS.get(name, str)
        if name not in OF_TOOLS and not isinstance(option, kind):
            wanted = "true or false" if kind is bool else "a text"
            raise RequestError(f"{where}.{name} must be {wanted}, not {excerpt(option)}", detail={"param": f"{where}.{name}"})
    return value


def strict_output(configured: str, headers: Mapping[str, str]) -> bool:
    """Whether an answer has only the fields of its dialect's specification. The request's header goes before the
    configuration."""
    return _chosen(OUTPUT_HEADER, headers, configured, _OUTPUTS) == STRICT


def output_options(server: ServerConfig, name: str, headers: Mapping[str, str]) -> JsonObject:
    """The options for the writer or the response builder of a dialect that depend on settings and headers."""
    options: JsonObject = {"strict": strict_output(server.output, headers)}
    field = _chosen(REASONING_HEADER, headers, server.reasoning_field, _REASONING_FIELDS)
    if dialect(name).reasoning_field:
        options["reasoning_field"] = field
    return options


def wants_extensions(body: JsonObject, server: ServerConfig) -> bool:
    """Whether a whole answer has ``extensions``. The request's field goes before the configuration."""
    return bool(body.get("extensions", server.extensions))


def _chosen(header: str, headers: Mapping[str, str], configured: str, known: Collection[str]) -> str:
    if header not in headers:
        return configured
    requested = headers[header].strip().lower()
    if requested not in known:
        raise RequestError(
            f"the header {header} must be {' or '.join(known)}, not {excerpt(requested)}", detail={"param": header}
        )
    return requested
