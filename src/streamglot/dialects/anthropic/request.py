"""Message requests: a client's body to a Request, and a Request to the body for an upstream."""

from __future__ import annotations

from typing import Final

from ...errors import Unsupported
from ...events import Echo
from ...json_types import JsonObject
from ...messages import Built, OutputFormat, Request, ToolChoice, ToolSpec
from ..common.conversation import cache_mark
from ..common.function_tools import NO_PARAMETERS
from ..echo import is_native
from ..fields import Fields
from ..parameters import begin, drop, give, give_extra, keep_extra, take
from .history import parse_cache, parse_messages, parse_system
from .reasoning import build_reasoning, parse_reasoning
from .turns import Turns
from .wire import DIALECT

PARAMETERS: Final = {
    "max_tokens": "max_tokens",
    "stop_sequences": "stop",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "service_tier": "service_tier",
}
NESTED: Final = {"metadata.user_id": "user", "tool_choice.disable_parallel_tool_use": "parallel_tool_calls"}
"""Parameters inside another field, or with the opposite meaning."""
ESSENTIAL: Final = frozenset(("mcp_servers", "container", "inference_geo"))
DEFAULT_MAX_TOKENS: Final = 8192
"""The default of the limit that the API requires, in tokens. All models of the last generations accept it."""
SINCE_2026: Final = "2026-10-21"
"""The version that refuses sampling parameters, assistant documents and user citations."""
SAMPLING: Final = ("temperature", "top_p", "top_k")
TIERS: Final = {"auto": "auto", "standard_only": "default"}
"""Our words for the service tiers, which most dialects use."""


def parse(body: JsonObject) -> Request:
    fields, request = begin(body, DIALECT)
    request.messages = parse_system(fields) + parse_messages(fields.objects("messages"))
    request.tools = [_parse_tool(tool) for tool in fields.objects("tools")]
    _parse_choice(fields, request)
    _parse_output(fields, request)
    metadata = fields.inner("metadata")
    if metadata is not None:
        request.user = metadata.take("user_id", str)
        if metadata.rest:
            fields.rest["metadata"] = metadata.rest
    take(fields, PARAMETERS, request)
    if request.service_tier is not None:
        request.service_tier = TIERS.get(request.service_tier, request.service_tier)
    keep_extra(request, fields.rest, ESSENTIAL)
    return request


def build(
    request: Request,
    *,
    version: str = "2023-06-01",
    max_tokens: int = DEFAULT_MAX_TOKENS,
    adaptive: bool | None = None,
) -> Built:
    """``version`` is the API version of the request: what it refuses is left out
    and reported. ``max_tokens`` applies if the client set no limit. ``adaptive``: the model takes an effort instead of a budget
    (by default with the newer version)."""
    refusing = version >= SINCE_2026
    own = request.dialect == DIALECT
    built = Built({"model": request.model, "max_tokens": max_tokens})
    body = built.body
    Turns(built, refusing, system_inside=own or refusing).add(request.messages)
    if request.stream:
        body["stream"] = True
    _build_tools(request, built)
    _build_output(request.output, built)
    give(request, {**PARAMETERS, "user": "user", "parallel_tool_calls": "parallel_tool_calls"}, built)
    if "user" in body:
        body["metadata"] = {"user_id": body.pop("user")}
    _build_choice(request, built)
    build_reasoning(request, built, refusing if adaptive is None else adaptive)
    _fit_parameters(request, built, refusing)
    for name in ("output_config", "metadata"):
        if own and isinstance(request.extra.get(name), dict):
            body[name] = {**request.extra[name], **body.get(name, {})}
    give_extra(request, DIALECT, built)
    return built


def _fit_parameters(request: Request, built: Built, refusing: bool) -> None:
    """Leaves out what this version or thinking does not allow, and corrects values that are out of range."""
    body = built.body
    thinking = body.get("thinking", {}).get("type") in ("enabled", "adaptive")
    for name in SAMPLING:
        if name in body and (refusing or (thinking and request.dialect != DIALECT)):
            del body[name]
            built.dropped.append(name)
    if request.dialect == DIALECT:
        back = {word: name for name, word in TIERS.items()}
        if "service_tier" in body:
            body["service_tier"] = back.get(body["service_tier"], body["service_tier"])
        return
    if body.get("temperature", 0) > 1:
        body["temperature"] = 1.0
        built.dropped.append("temperature")
    if any(not text.strip() for text in body.get("stop_sequences", ())):
        drop(built, "stop", True, "a text to stop at that is only white space")
    tier = body.pop("service_tier", None)
    if tier in TIERS.values():
        body["service_tier"] = next(name for name, word in TIERS.items() if word == tier)
    elif tier is not None:
        built.dropped.append("service_tier")


# --- tools


def _parse_tool(tool: Fields) -> ToolSpec:
    kind = tool.take("type", str, "custom")
    if kind != "custom":
        cache, name = parse_cache(tool), tool.take("name", str)
        native = {"type": kind, **({"name": name} if name else {}), **tool.rest}
        return ToolSpec(name or kind, kind="server", native=Echo(DIALECT, native), cache=cache)
    spec = ToolSpec(
        tool.need("name", str),
        tool.take("description", str, ""),
        tool.take("input_schema", dict),
        tool.take("strict", bool),
        cache=parse_cache(tool),
    )
    spec.native = Echo(DIALECT, tool.rest) if tool.rest else None
    return spec


def _build_tools(request: Request, built: Built) -> None:
    tools = request.tools
    choice = request.tool_choice
    if choice is not None and choice.tools and not (choice.mode == "required" and len(choice.tools) == 1):
        tools = [tool for tool in tools if tool.name in choice.tools]
    if tools:
        built.body["tools"] = [_build_tool(tool) for tool in tools]


def _build_tool(tool: ToolSpec) -> JsonObject:
    own = tool.native.data if tool.native is not None and is_native(tool.native, DIALECT) else {}
    body: JsonObject
    if tool.kind == "server":
        body = dict(own)
    else:
        body = {"name": tool.name}
        if tool.description:
            body["description"] = tool.description
        schema = NO_PARAMETERS if tool.parameters is None else tool.parameters
        body["input_schema"] = schema if "type" in schema else {"type": "object", **schema}
        if tool.strict is not None:
            body["strict"] = tool.strict
        body.update(own)
    if tool.cache is not None:
        body["cache_control"] = cache_mark("ephemeral", tool.cache)
    return body


def _parse_choice(fields: Fields, request: Request) -> None:
    choice = fields.inner("tool_choice")
    if choice is None:
        return
    kind = choice.need("type", str)
    match kind:
        case "auto" | "none":
            request.tool_choice = ToolChoice(kind)
        case "any":
            request.tool_choice = ToolChoice("required")
        case "tool":
            request.tool_choice = ToolChoice("required", [choice.need("name", str)])
        case _:
            raise choice.wrong("type", "auto, any, tool or none", kind)
    alone = choice.take("disable_parallel_tool_use", bool)
    request.parallel_tool_calls = None if alone is None else not alone


def _build_choice(request: Request, built: Built) -> None:
    choice, body = request.tool_choice, built.body
    parallel = body.pop("parallel_tool_calls", None)
    if "tools" not in body:
        return
    if choice is not None:
        if choice.mode == "required":
            single = len(choice.tools) == 1
            body["tool_choice"] = {"type": "tool", "name": choice.tools[0]} if single else {"type": "any"}
        else:
            body["tool_choice"] = {"type": choice.mode}
    if parallel is not None and (parallel is False or choice is not None) and (choice is None or choice.mode != "none"):
        body.setdefault("tool_choice", {"type": "auto"})["disable_parallel_tool_use"] = not parallel


# --- output


def _parse_output(fields: Fields, request: Request) -> None:
    output = fields.inner("output_config")
    form = fields.inner("output_format")
    request.reasoning = parse_reasoning(fields, output)
    if output is not None:
        form = output.inner("format") or form
        if output.rest:
            fields.rest["output_config"] = output.rest
    if form is not None:
        kind = form.need("type", str)
        if kind != "json_schema":
            raise form.wrong("type", "json_schema", kind)
        request.output = OutputFormat("json_schema", schema=form.need("schema", dict))


def _build_output(output: OutputFormat | None, built: Built) -> None:
    if output is None or output.kind == "text":
        return
    if output.kind == "json_object":
        raise Unsupported(
            "the chosen upstream cannot write JSON without a schema; request 'json_schema'", detail={"param": "output"}
        )
    built.body["output_config"] = {"format": {"type": "json_schema", "schema": output.schema or {"type": "object"}}}
