"""generateContent requests: a client's body to a Request, and a Request to the body for an upstream.

The model and the streaming mode are in the URL, not in the body, and are the same for every version of the API.
"""

from __future__ import annotations

from typing import Final

from ...errors import RequestError
from ...events import Echo
from ...json_types import JsonObject, JsonValue
from ...messages import Built, OutputFormat, Reasoning, Request, ToolChoice, ToolSpec
from ..echo import is_native
from ..fields import Fields
from ..parameters import give, give_extra, keep_extra, take
from ..thinking_budget import is_off
from .history import HistoryParser, build_contents, generation
from .schema import json_schema
from .signature import DIALECT
from .wire import camel

PARAMETERS: Final = {
    "maxOutputTokens": "max_tokens",
    "stopSequences": "stop",
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "frequencyPenalty": "frequency_penalty",
    "presencePenalty": "presence_penalty",
    "seed": "seed",
    "candidateCount": "n",
    "responseLogprobs": "logprobs",
    "logprobs": "top_logprobs",
    "responseModalities": "modalities",
}
"""All of them are fields of ``generationConfig``."""
ESSENTIAL: Final = frozenset(
    (
        "cachedContent",
        "generationConfig.speechConfig",
        "generationConfig.responseFormat",
        "generationConfig.responseMimeType",
        "generationConfig.responseSchema",
    )
)
_OPAQUE: Final = frozenset(
    ("args", "response", "parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema", "partMetadata", "labels")
)
"""Objects with keys of the client, which keep their case."""
_MODES: Final = {"AUTO": "auto", "ANY": "required", "NONE": "none", "VALIDATED": "auto", "MODE_UNSPECIFIED": "auto"}
_LEVELS: Final = {"MINIMAL": "minimal", "LOW": "low", "MEDIUM": "medium", "HIGH": "high"}
_LEVEL_OF: Final = {
    "none": "MINIMAL",
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "HIGH",
    "max": "HIGH",
}
_BUDGET_OF: Final = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24_576, "xhigh": 24_576, "max": 24_576}
"""For models before the third generation, which have no levels: 1K, 8K and 24K, as the provider itself maps these words."""
_LEVEL_GENERATION: Final = 3


def parse(body: JsonObject, *, model: str = "", stream: bool = False) -> Request:
    """``model`` and ``stream`` come from the URL."""
    try:
        return _parse(Fields(_camel(body)), model, stream)
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None


def _parse(fields: Fields, model: str, stream: bool) -> Request:
    named = fields.take("model", str, "")
    request = Request((model or named).removeprefix("models/"), dialect=DIALECT, stream=stream)
    system = fields.any("systemInstruction")
    if system is not None:
        content = {"parts": [{"text": system}]} if isinstance(system, str) else system
        inner = Fields(content, "systemInstruction")
        inner.rest["role"] = "system"
        request.messages += HistoryParser().parse([inner])
    contents = fields.rest.get("contents")
    if isinstance(contents, (str, dict)):
        fields.rest["contents"] = [{"parts": [{"text": contents}]} if isinstance(contents, str) else contents]
    request.messages += HistoryParser().parse(fields.objects("contents"))
    for tool in fields.objects("tools"):
        request.tools += _parse_tool(tool)
    extra: JsonObject = {}
    choice = fields.inner("toolConfig")
    if choice is not None:
        request.tool_choice = _parse_choice(choice, extra)
    config = fields.inner("generationConfig")
    if config is not None:
        request.reasoning = _parse_reasoning(config)
        request.output = _parse_output(config)
        take(config, PARAMETERS, request)
        if request.modalities is not None:
            request.modalities = [str(word).lower() for word in request.modalities]
        extra.update({f"generationConfig.{name}": value for name, value in config.rest.items()})
    keep_extra(request, {**fields.rest, **extra}, ESSENTIAL)
    return request


def parse_count(body: JsonObject, model: str = "") -> Request:
    """The body has contents only, or a whole request in a field; the URL names the model."""
    inner = body.get("generateContentRequest", body.get("generate_content_request"))
    if inner is None:
        inner = body
    if not isinstance(inner, dict):
        raise RequestError("generateContentRequest must be an object", detail={"param": "generateContentRequest"})
    return parse(inner, model=model)


def build(request: Request, *, ids: bool = True) -> Built:
    """``ids``: the upstream accepts ids of calls and results."""
    system, contents = build_contents(request.messages, request.model, ids)
    built = Built({"contents": contents})
    body = built.body
    if system:
        body["systemInstruction"] = {"parts": system}
    if request.tools:
        body["tools"] = _build_tools(request.tools)
    if request.tool_choice is not None:
        body["toolConfig"] = {"functionCallingConfig": _build_choice(request.tool_choice)}
    config = Built({}, built.dropped)
    give(request, PARAMETERS, config)
    if "responseModalities" in config.body:
        config.body["responseModalities"] = [word.upper() for word in config.body["responseModalities"]]
    if request.reasoning is not None:
        config.body["thinkingConfig"] = _build_reasoning(request.reasoning, request.model)
    if request.output is not None:
        config.body.update(_build_output(request.output))
    if config.body:
        body["generationConfig"] = config.body
    if request.dialect == DIALECT:
        _give_own(request.extra, body)
    else:
        give_extra(request, DIALECT, built)
    return built


def _camel(value: object) -> JsonValue:
    if isinstance(value, list):
        return [_camel(element) for element in value]
    if not isinstance(value, dict):
        return value
    return {(name := camel(str(key))): inner if name in _OPAQUE else _camel(inner) for key, inner in value.items()}


def _give_own(extra: JsonObject, body: JsonObject) -> None:
    """Puts the fields that only this dialect has back in their places."""
    for path, value in extra.items():
        *steps, name = path.split(".")
        place = body
        for step in steps:
            place = place.setdefault(step, {})
        place[name] = value


# --- tools


def _parse_tool(tool: Fields) -> list[ToolSpec]:
    """An entry contains functions, or tools that the provider runs, each under its own name."""
    specs = []
    for function in tool.objects("functionDeclarations"):
        name, description = function.need("name", str), function.take("description", str, "")
        plain, own = function.take("parametersJsonSchema", dict), function.take("parameters", dict)
        spec = ToolSpec(name, description, plain if plain is not None else json_schema(own))
        spec.native = Echo(DIALECT, function.rest) if function.rest else None
        specs.append(spec)
    return specs + [ToolSpec(name, kind="server", native=Echo(DIALECT, {name: value})) for name, value in tool.rest.items()]


def _build_tools(tools: list[ToolSpec]) -> list[JsonObject]:
    functions: list[JsonObject] = []
    others: list[JsonObject] = []
    for tool in tools:
        own = tool.native.data if tool.native is not None and is_native(tool.native, DIALECT) else {}
        if tool.kind == "server":
            others.append(own)
            continue
        function: JsonObject = {"name": tool.name, "description": tool.description, **own}
        if tool.parameters:
            function["parametersJsonSchema"] = tool.parameters
        functions.append(function)
    return ([{"functionDeclarations": functions}] if functions else []) + others


def _parse_choice(config: Fields, extra: JsonObject) -> ToolChoice | None:
    choice, calling = None, config.inner("functionCallingConfig")
    if calling is not None:
        mode = calling.take("mode", str, "AUTO").upper()
        if mode not in _MODES:
            raise calling.wrong("mode", " or ".join(_MODES), mode)
        choice = ToolChoice(_MODES[mode], calling.words("allowedFunctionNames"))  # type: ignore[arg-type]  # values of _MODES
        if mode == "VALIDATED":
            calling.rest["mode"] = mode
        extra.update({f"toolConfig.functionCallingConfig.{name}": value for name, value in calling.rest.items()})
    extra.update({f"toolConfig.{name}": value for name, value in config.rest.items()})
    return choice


def _build_choice(choice: ToolChoice) -> JsonObject:
    """Names are only allowed if a call is required, or if the calls are validated."""
    mode = {"auto": "VALIDATED" if choice.tools else "AUTO", "none": "NONE", "required": "ANY"}[choice.mode]
    return {"mode": mode, **({"allowedFunctionNames": choice.tools} if choice.tools and mode != "NONE" else {})}


# --- reasoning and output


def _parse_reasoning(config: Fields) -> Reasoning | None:
    thinking = config.inner("thinkingConfig")
    if thinking is None:
        return None
    reasoning = Reasoning(summary="auto" if thinking.take("includeThoughts", bool, False) else "none")
    budget, level = thinking.take("thinkingBudget", int), thinking.take("thinkingLevel", str)
    if budget is not None and budget >= 0:
        reasoning.budget_tokens = budget
    if budget is not None:
        reasoning.enabled = budget != 0
    if level is not None and level.upper() != "THINKING_LEVEL_UNSPECIFIED":
        if level.upper() not in _LEVELS:
            raise thinking.wrong("thinkingLevel", " or ".join(_LEVELS), level)
        reasoning.effort = _LEVELS[level.upper()]  # type: ignore[assignment]  # values of _LEVELS
    return reasoning


def _build_reasoning(reasoning: Reasoning, model: str) -> JsonObject:
    """A number of tokens or a level: the API refuses both together, and older models have no levels."""
    thinking: JsonObject = {}
    off = is_off(reasoning)
    levels = (generation(model) or _LEVEL_GENERATION) >= _LEVEL_GENERATION
    effort = "none" if off else reasoning.effort
    if reasoning.budget_tokens is not None and not (off and levels):
        thinking["thinkingBudget"] = reasoning.budget_tokens
    elif effort is not None:
        thinking.update({"thinkingLevel": _LEVEL_OF[effort]} if levels else {"thinkingBudget": _BUDGET_OF[effort]})
    elif reasoning.enabled:
        thinking["thinkingBudget"] = -1
    if not off and reasoning.summary != "none":
        thinking["includeThoughts"] = True
    return thinking


def _parse_output(config: Fields) -> OutputFormat | None:
    """JSON and plain text. Any other type, such as one word of a list, stays a field of this dialect."""
    kind = config.rest.get("responseMimeType")
    if kind not in ("application/json", "text/plain"):
        return None
    config.any("responseMimeType")
    if kind == "text/plain":
        return OutputFormat("text")
    plain, own = config.take("responseJsonSchema", dict), config.take("responseSchema", dict)
    schema = plain if plain is not None else json_schema(own)
    return OutputFormat("json_schema", schema=schema) if schema is not None else OutputFormat("json_object")


def _build_output(output: OutputFormat) -> JsonObject:
    if output.kind == "text":
        return {"responseMimeType": "text/plain"}
    schema = {"responseJsonSchema": output.schema} if output.kind == "json_schema" and output.schema is not None else {}
    return {"responseMimeType": "application/json", **schema}
