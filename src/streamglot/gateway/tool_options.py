"""Decides which of the gateway's tools a request may use, from its body or header, its key and its route."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from ..errors import RequestError, excerpt
from ..json_types import JsonObject, JsonValue
from ..messages import Request
from ..tool_names import matches_tool
from ..tools.activity import KINDS
from ..tools.hosted import tool_for
from .request_options import FIELD, OF_TOOLS

HEADER: Final = "x-streamglot-tools"
"""The tools as a header: globs separated by commas. An empty header selects no tools."""
ACTIVITY_HEADER: Final = "x-streamglot-activity"
MAX_PATTERNS: Final = 64
"""Globs in one request. Each is compared with every tool."""


class RequestTools(Struct):
    """The tool options of a request.

    ``patterns`` are the globs in the request; None if it has none. ``activity`` says how the client wants to see tool runs if its
    dialect has no form for them.
    """

    patterns: list[str] | None = None
    activity: str = ""


def take_tool_options(body: JsonObject, headers: Mapping[str, str]) -> tuple[RequestTools, JsonObject]:
    """The tool options of a request, and the body without them."""
    requested: JsonValue = None
    activity: JsonValue = headers.get(ACTIVITY_HEADER, "").strip().lower()
    param = ACTIVITY_HEADER if activity else f"{FIELD}.activity"
    if FIELD in body:
        options = body[FIELD]
        body = {name: value for name, value in body.items() if name != FIELD}
        unknown = set(options) - set(OF_TOOLS) if isinstance(options, dict) else set()
        if not isinstance(options, dict) or unknown:
            raise RequestError(
                f'{FIELD} must be an object with "tools" and "activity", not {excerpt(options)}', detail={"param": FIELD}
            )
        requested, activity = options.get("tools"), options.get("activity", activity)
        param = f"{FIELD}.activity" if "activity" in options else param
        if requested is not None and not (isinstance(requested, list) and all(isinstance(pattern, str) for pattern in requested)):
            raise RequestError(
                f"{FIELD}.tools must be a list of names and globs, not {excerpt(requested)}", detail={"param": FIELD}
            )
    if activity not in ("", *KINDS):
        raise RequestError(f"{param} must be {' or '.join(KINDS)}, not {excerpt(activity)}", detail={"param": param})
    if requested is None and HEADER in headers:
        requested = [pattern.strip() for pattern in headers[HEADER].split(",") if pattern.strip()]
    if requested is not None and len(requested) > MAX_PATTERNS:
        raise RequestError(
            f"a request may name at most {MAX_PATTERNS} tools and globs, not {len(requested)}", detail={"param": FIELD}
        )
    return RequestTools(requested, activity), body


def tools_for(requested: Sequence[str] | None, of_key: Sequence[str] | None, of_route: Sequence[str]) -> list[str]:
    """The globs for one exchange. A key that has a list of tools may use no others."""
    if requested is None:
        return list(of_route if of_key is None else of_key)
    if of_key is None:
        return list(requested)
    refused = [pattern for pattern in requested if not _allowed(pattern, of_key)]
    if refused:
        raise RequestError(
            f"this key may not use the tools {excerpt(refused[0])}; it may use {', '.join(of_key) or 'none'}",
            code="tool_not_allowed",
            status=403,
        )
    return list(requested)


def hosted_tools(request: Request, hosted: Mapping[str, str], of_key: Sequence[str] | None) -> list[str]:
    """The gateway's tools that replace tools hosted by a provider, as far as the key may use them."""
    found = [tool_for(tool.name, hosted) for tool in request.tools if tool.kind == "server"] if hosted else []
    return [name for name in found if name is not None and (of_key is None or _allowed(name, of_key))]


def _allowed(pattern: str, of_key: Sequence[str]) -> bool:
    """Whether a key's globs match this name or contain this very glob. Two different globs cannot be compared."""
    if any(mark in pattern for mark in "*?["):
        return pattern in of_key
    return matches_tool(pattern, of_key)
