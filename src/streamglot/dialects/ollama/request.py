"""Requests for /api/chat and /api/generate: a client's body to a Request, and a Request to the body for an upstream."""

from __future__ import annotations

from typing import Final

from ...errors import Unsupported
from ...events import Echo
from ...json_types import JsonObject
from ...messages import Built, Message, OutputFormat, Reasoning, Request, ToolChoice, ToolSpec
from ..common.function_tools import build_function, parse_function
from ..echo import is_native
from ..fields import Fields
from ..parameters import begin, give, give_extra, keep_extra, take
from ..thinking_budget import is_off
from .history import build_content, build_messages, parse_content, parse_messages

DIALECT: Final = "ollama"

PARAMETERS: Final = {"logprobs": "logprobs", "top_logprobs": "top_logprobs"}
OPTIONS: Final = {
    "num_predict": "max_tokens",
    "stop": "stop",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "repeat_penalty": "repetition_penalty",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
}
"""Fields of the object ``options``; its other fields (num_ctx, mirostat …) belong to this dialect only."""
ESSENTIAL: Final = frozenset(("suffix", "template", "raw", "context"))
LEVELS: Final = ("low", "medium", "high", "max")
_LEVEL_OF: Final = {"minimal": "low", "xhigh": "high"}


def parse(body: JsonObject) -> Request:
    """A body with ``messages`` is for /api/chat, any other for /api/generate. Both stream by default."""
    fields, request = begin(body, DIALECT, stream=True)
    if "messages" in fields.rest:
        request.messages = parse_messages(fields.objects("messages"))
    else:
        request.messages = _parse_prompt(fields)
    request.tools = [_parse_tool(tool) for tool in fields.objects("tools")]
    request.reasoning = _parse_think(fields)
    request.output = _parse_format(fields)
    take(fields, PARAMETERS, request)
    options = fields.inner("options")
    if options is not None:
        _parse_options(options, request)
        if options.rest:
            fields.rest["options"] = options.rest
    keep_extra(request, fields.rest, [name for name in ESSENTIAL if fields.rest.get(name)])
    return request


def build(request: Request, *, generate: bool = False, think_levels: bool = True) -> Built:
    """``generate``: build the body for /api/generate. ``think_levels``: the model
    accepts low, medium and high for ``think``; most accept only true and false."""
    built = Built({"model": request.model})
    body = built.body
    body.update(_build_prompt(request, built) if generate else _build_chat(request, built))
    body["stream"] = request.stream
    _build_think(request.reasoning, think_levels, built)
    if request.output is not None and request.output.kind != "text":
        body["format"] = request.output.schema or "json"
    give(request, {**OPTIONS, **PARAMETERS}, built)
    options = {name: body.pop(name) for name in OPTIONS if name in body}
    own = request.extra.get("options") if request.dialect == DIALECT else None
    options = {**(own if isinstance(own, dict) else {}), **options}
    if options:
        body["options"] = options
    give_extra(request, DIALECT, built)
    return built


# --- the two forms


def _parse_prompt(fields: Fields) -> list[Message]:
    messages = []
    system = fields.take("system", str, "")
    if system:
        messages += parse_messages([Fields({"role": "system", "content": system})])
    parts = parse_content(fields, "prompt")
    if parts:
        messages.append(Message("user", parts))
    return messages


def _build_prompt(request: Request, built: Built) -> JsonObject:
    system = [message for message in request.messages if message.role in ("system", "developer")]
    rest = [message for message in request.messages if message not in system]
    if len(rest) > 1 or any(message.role != "user" for message in rest):
        raise Unsupported("/api/generate accepts one prompt, not a conversation; use /api/chat", detail={"param": "messages"})
    if request.tools:
        raise Unsupported("/api/generate accepts no tools; use /api/chat", detail={"param": "tools"})
    body = build_content([part for message in rest for part in message.parts], built, "prompt")
    if system:
        body["system"] = "\n\n".join(message.text for message in system)
    return body


def _build_chat(request: Request, built: Built) -> JsonObject:
    body: JsonObject = {"messages": build_messages(request.messages, built)}
    choice = request.tool_choice or ToolChoice()
    if choice.mode == "required" or (choice.tools and choice.mode == "auto"):
        raise Unsupported("the chosen upstream cannot be forced to call a tool", detail={"param": "tool_choice"})
    if request.tools and choice.mode != "none":
        body["tools"] = [_build_tool(tool, built) for tool in request.tools]
    return body


# --- tools


def _parse_tool(tool: Fields) -> ToolSpec:
    kind = tool.take("type", str, "function")
    if kind != "function":
        return ToolSpec(kind, kind="server", native=Echo(DIALECT, {"type": kind, **tool.rest}))
    return parse_function(tool.need_inner("function", "a tool of type 'function'"))


def _build_tool(tool: ToolSpec, built: Built) -> JsonObject:
    if tool.native is not None and is_native(tool.native, DIALECT):
        return tool.native.data
    function = build_function(tool)
    if "strict" in function:
        del function["strict"]
        built.drop("tools.strict")
    return {"type": "function", "function": function}


# --- think, format, options


def _parse_think(fields: Fields) -> Reasoning | None:
    think = fields.any("think")
    if think is None or isinstance(think, bool):
        return None if think is None else Reasoning(enabled=think)
    if think not in LEVELS:
        raise fields.wrong("think", f"true, false, {', '.join(LEVELS)}", think)
    return Reasoning(effort=think)


def _build_think(reasoning: Reasoning | None, levels: bool, built: Built) -> None:
    if reasoning is None:
        return
    if reasoning.budget_tokens is not None:
        built.drop("reasoning.budget_tokens")
    if reasoning.summary is not None:
        built.drop("reasoning.summary")
    if is_off(reasoning):
        built.body["think"] = False
    elif reasoning.effort is not None and levels:
        built.body["think"] = _LEVEL_OF.get(reasoning.effort, reasoning.effort)
    elif reasoning.effort or reasoning.enabled or reasoning.budget_tokens:
        built.body["think"] = True


def _parse_format(fields: Fields) -> OutputFormat | None:
    form = fields.any("format")
    if form is None or form == "":
        return None
    if form == "json":
        return OutputFormat("json_object")
    if not isinstance(form, dict):
        raise fields.wrong("format", "'json' or a JSON schema", form)
    return OutputFormat("json_schema", schema=form)


def _parse_options(options: Fields, request: Request) -> None:
    max_tokens = options.rest.get("num_predict")
    endless = isinstance(max_tokens, int) and max_tokens < 0
    if endless:
        del options.rest["num_predict"]
    take(options, OPTIONS, request)
    if endless:
        # -1 means "no limit" and -2 "until the context is full", only in this dialect.
        options.rest["num_predict"] = max_tokens
