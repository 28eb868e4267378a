"""generateContent requests: a client's body to a Request, and a Request to the body for an upstream; the contents, then the
parameters.

The model and the streaming mode are in the URL, not in the body, and are the same for every version of the API.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from ...errors import RequestError
from ...events import Echo
from ...json_types import JsonObject, JsonValue
from ...messages import (
    Built,
    MediaPart,
    Message,
    NativePart,
    OutputFormat,
    Part,
    Reasoning,
    ReasoningPart,
    Request,
    Role,
    TextPart,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
    ToolSpec,
)
from ..common.fields import Fields, give, give_extra, is_off, keep_extra, take
from ..common.state import is_native
from .parts import DIALECT, SIGNATURE, PartBuilder, read_signature
from .wire import camel, json_schema

_ROLES: Final[dict[str, Role]] = {"user": "user", "model": "assistant", "function": "tool", "system": "system"}
_DETAILS: Final = {"MEDIA_RESOLUTION_LOW": "low", "MEDIA_RESOLUTION_MEDIUM": "medium", "MEDIA_RESOLUTION_HIGH": "high"}
_SIGNED_GENERATION: Final = 3
"""From this generation on, the first call of a step needs a signature, or the API refuses the whole conversation."""
_GENERATION: Final = re.compile(r"gemini-(\d+)")
_UNSIGNED: Final = "skip_thought_signature_validator"
"""The value that the API accepts instead of a signature for calls that another model made."""


# --- the client's contents


class HistoryParser:
    """Calls and results without ids are matched by name and order, and get numbered ids: the same conversation always has the
    same ids."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._count = 0
        self._open: list[ToolCallPart] = []
        self._server_id = ""
        self._joined: TextPart | ReasoningPart | None = None
        self._pieces: list[str] = []

    def parse(self, contents: list[Fields]) -> list[Message]:
        for content in contents:
            parts = content.rest.get("parts")
            for part in parts if isinstance(parts, list) else ():
                call = part.get("functionCall") if isinstance(part, dict) else None
                if isinstance(call, dict) and isinstance(call.get("id"), str):
                    self._ids.add(call["id"])
        messages: list[Message] = []
        for content in contents:
            role = _ROLES.get(word := content.take("role", str, "user"))
            if role is None:
                raise content.wrong("role", " or ".join(_ROLES), word)
            if role == "assistant":
                self._answer(content, messages)
            else:
                messages += self._messages(role, content)
        self._join()
        return messages

    def _answer(self, content: Fields, messages: list[Message]) -> None:
        """Client libraries keep every chunk of a streamed answer as a separate content. They become one message again, and a
        text that was split by chunks becomes one text."""
        if not messages or messages[-1].role != "assistant":
            messages.append(Message("assistant", []))
        parts = messages[-1].parts
        for number, fields in enumerate(content.objects("parts")):
            self._part(fields, parts, continues=number == 0)
        if not parts:
            messages.pop()

    def _messages(self, role: Role, content: Fields) -> Iterator[Message]:
        """Results always become messages of the role tool."""
        parts: list[Part] = []
        for fields in content.objects("parts"):
            self._part(fields, parts)
        run: list[Part] = []
        for part in parts:
            if run and isinstance(run[0], ToolResultPart) is not isinstance(part, ToolResultPart):
                yield _message(role, run)
                run = []
            run.append(part)
        if run:
            yield _message(role, run)

    def _join(self) -> None:
        """Appends the collected pieces to the open text."""
        if self._pieces and self._joined is not None:
            self._joined.text = "".join((self._joined.text, *self._pieces))
            self._pieces.clear()

    def _part(self, fields: Fields, parts: list[Part], continues: bool = False) -> None:
        raw = dict(fields.rest)
        signature, thought = fields.take(SIGNATURE, str), fields.take("thought", bool, False)
        text = fields.take("text", str)
        if text is not None:
            self._text(text, thought, signature, parts, continues)
        elif "functionCall" in raw:
            parts.append(self._call(Fields(raw["functionCall"], fields.where("functionCall")), signature))
        elif "functionResponse" in raw:
            parts.append(self._result(Fields(raw["functionResponse"], fields.where("functionResponse"))))
        elif "inlineData" in raw or "fileData" in raw:
            if signature:
                parts.append(ReasoningPart("", redacted=True, echo=read_signature(signature, next=True)))
            parts.append(_media(fields))
        elif "executableCode" in raw or "toolCall" in raw:
            parts.append(self._server_call(raw, fields))
        elif "codeExecutionResult" in raw or "toolResponse" in raw:
            parts.append(self._server_result(raw, fields))
        elif signature:
            self._text("", thought, signature, parts)
        elif raw:
            parts.append(NativePart(DIALECT, raw))

    def _text(self, text: str, thought: bool, signature: str | None, parts: list[Part], continues: bool = False) -> None:
        """A signature on an empty part belongs to the preceding text; an empty part without one is ignored."""
        last = parts[-1] if parts else None
        kind = ReasoningPart if thought else TextPart
        if text and not (continues and not signature and isinstance(last, kind) and last is self._joined and last.echo is None):
            self._join()
            echo = read_signature(signature) if signature else None
            self._joined = ReasoningPart(text, summary=True, echo=echo) if thought else TextPart(text, echo=echo)
            parts.append(self._joined)
        elif text:
            self._pieces.append(text)
        elif signature:
            self._join()
            packed = read_signature(signature)
            if thought and not is_native(packed, DIALECT) and not isinstance(last, ReasoningPart):
                parts.append(ReasoningPart("", redacted=True, echo=packed))  # hidden reasoning of another dialect
            elif isinstance(last, (TextPart, ReasoningPart)) and last.echo is None:
                place: JsonObject = {"offset": len(last.text)}
                if thought is not isinstance(last, ReasoningPart):
                    place["thought"] = thought
                last.echo = read_signature(signature, **place)
            else:
                place = {} if thought else {"thought": False}
                parts.append(ReasoningPart("", redacted=True, echo=read_signature(signature, **place)))

    def _call(self, call: Fields, signature: str | None) -> ToolCallPart:
        arguments = call.take("args", dict, {})
        part = ToolCallPart(call.take("id", str, "") or self._new_id(), call.need("name", str), _json(arguments))
        part.echo = read_signature(signature) if signature else None
        self._open.append(part)
        return part

    def _new_id(self) -> str:
        while True:
            self._count += 1
            minted = f"call_{self._count}"
            if minted not in self._ids:
                return minted

    def _result(self, result: Fields) -> ToolResultPart:
        name, call_id = result.need("name", str), result.take("id", str, "")
        found = [call for call in self._open if (call.call_id == call_id if call_id else call.name == name)]
        if found:
            self._open.remove(found[0])
            call_id = found[0].call_id
        response = result.take("response", dict, {})
        is_error = set(response) == {"error"}
        value = next(iter(response.values())) if set(response) in ({"error"}, {"output"}, {"result"}) else response
        content: list[TextPart | MediaPart | NativePart] = [TextPart(value if isinstance(value, str) else _json(value))]
        content += [_media(part) for part in result.objects("parts")]
        return ToolResultPart(call_id or f"call_{name}", content, is_error, name)

    def _server_call(self, raw: JsonObject, fields: Fields) -> ToolCallPart:
        code = "executableCode" in raw
        data = Fields(raw["executableCode" if code else "toolCall"], fields.path)
        self._server_id = data.take("id", str, "") or self._new_id()
        name = "code_execution" if code else data.take("toolType", str, "tool")
        arguments = data.rest if code else data.take("args", dict, {})
        return ToolCallPart(self._server_id, name, _json(arguments), "server", native=Echo(DIALECT, raw))

    def _server_result(self, raw: JsonObject, fields: Fields) -> ToolResultPart:
        code = "codeExecutionResult" in raw
        data = Fields(raw["codeExecutionResult" if code else "toolResponse"], fields.path)
        call_id = data.take("id", str, "") or self._server_id
        text = data.take("output", str, "") if code else _json(data.take("response", dict, {}))
        failed = code and data.take("outcome", str, "OUTCOME_OK") != "OUTCOME_OK"
        return ToolResultPart(call_id, [TextPart(text)], failed, kind="server", native=Echo(DIALECT, raw))


def _message(role: Role, parts: list[Part]) -> Message:
    if isinstance(parts[0], ToolResultPart):
        return Message("tool", parts)
    return Message("user" if role == "tool" else role, parts)


def _media(part: Fields) -> MediaPart:
    inline, file = part.inner("inlineData"), part.inner("fileData")
    if inline is not None:
        media = MediaPart(inline.take("mimeType", str, ""), inline.need("data", str).replace("-", "+").replace("_", "/"))
        media.filename = inline.take("displayName", str, "")
    elif file is not None:
        media = MediaPart(file.take("mimeType", str, ""), url=file.need("fileUri", str))
        media.filename = file.take("displayName", str, "")
    else:
        raise RequestError(f"{part.path or 'a part'} must have inlineData or fileData", detail={"param": part.path})
    resolution = part.any("mediaResolution")
    level = resolution.get("level") if isinstance(resolution, dict) else resolution
    media.detail = _DETAILS.get(level, "") if isinstance(level, str) else ""
    return media


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- the upstream's contents


def build_contents(messages: list[Message], model: str, ids: bool) -> tuple[list[JsonObject], list[JsonObject]]:
    """The parts of the system instruction, and the contents. A system message inside the conversation becomes a user message in
    the same place, because its position has a meaning."""

    def own(echo: Echo) -> str | None:
        signature = echo.data.get(SIGNATURE)
        return signature if isinstance(signature, str) else None

    builder = PartBuilder(own, ids=ids)
    system: list[JsonObject] = []
    contents: list[JsonObject] = []
    results = False
    for message in messages:
        parts = [part for part in message.parts if not _is_unsigned_thought(part)]
        built = builder.build(parts)
        if message.role in ("system", "developer") and not contents:
            system += built
            continue
        if message.role == "assistant" and _needs_signatures(model):
            _sign_first_call(built)
        merged = message.role == "tool" and results
        results = message.role == "tool"
        if merged:
            contents[-1]["parts"] += built
        elif built:
            contents.append({"role": "model" if message.role == "assistant" else "user", "parts": built})
        else:
            results = False
    return system, contents


def _is_unsigned_thought(part: Part) -> bool:
    return isinstance(part, ReasoningPart) and (part.echo is None or SIGNATURE not in part.echo.data)


def generation(model: str) -> int | None:
    """The generation in the model's name, if there is one."""
    found = _GENERATION.search(model)
    return int(found[1]) if found else None


def _needs_signatures(model: str) -> bool:
    return (generation(model) or 0) >= _SIGNED_GENERATION


def _sign_first_call(parts: list[JsonObject]) -> None:
    first = next((part for part in parts if "functionCall" in part), None)
    if first is not None and SIGNATURE not in first:
        first[SIGNATURE] = _UNSIGNED


# --- the request

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
