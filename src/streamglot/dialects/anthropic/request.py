"""Message requests: a client's body to a Request, and a Request to the body for an upstream.

``Turns`` builds the messages under the API's rules: turns of one role are merged; tool results come first in a user turn; calls
come last in an assistant turn; blank text is left out.

The reasoning effort is ``thinking`` or ``output_config.effort``. Older models take a number of tokens; newer ones decide
themselves how long to think and take a word. If a client sent one and the upstream takes the other, this table converts:

    effort   minimal    low  medium    high  xhigh    max
    budget      1024   2048    8192  16,384  32,768  65,536

A budget becomes the smallest word whose budget is not below it. ``fit_budget`` makes it fit into ``max_tokens``.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Final

import msgspec

from ...errors import Unsupported
from ...events import Echo
from ...json_types import JsonObject
from ...messages import (
    EFFORTS,
    Built,
    Effort,
    MediaPart,
    Message,
    NativePart,
    OutputFormat,
    Part,
    Reasoning,
    ReasoningPart,
    RefusalPart,
    Request,
    TextPart,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
    ToolSpec,
)
from ..common.conversation import add_content, add_turn, cache_mark, result_content
from ..common.fields import Fields, begin, drop, fit_budget, give, give_extra, is_off, keep_extra, take
from ..common.function_tools import NO_PARAMETERS
from ..common.server_tools import OWN_SERVER
from ..common.state import is_native
from .wire import (
    DIALECT,
    LATE_TEXT,
    arguments_object,
    beside,
    call_block,
    is_custom,
    is_failure,
    read_citation,
    read_id,
    result_text,
    unpacked,
    wire_id,
    write_citation,
)

# --- reasoning

BUDGET_OF: Final[dict[Effort, int]] = {
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16_384,
    "xhigh": 32_768,
    "max": 65_536,
}
API_EFFORTS: Final = EFFORTS[2:]
"""The efforts that this API knows: all but "none" and "minimal"."""


def effort_for(budget_tokens: int) -> Effort:
    """The effort of this dialect for a number of thinking tokens."""
    return next((word for word in API_EFFORTS if budget_tokens <= BUDGET_OF[word]), "max")


def parse_reasoning(fields: Fields, output: Fields | None) -> Reasoning | None:
    """Settings that other dialects cannot express (``display: omitted``, an unknown type of thinking) also stay in the
    remaining fields."""
    thinking = fields.take("thinking", dict)
    given = output.take("effort", str) if output is not None else None
    effort = fields.effort("output_config.effort", given, API_EFFORTS)
    if thinking is None and effort is None:
        return None
    reasoning = Reasoning(effort=effort)
    if thinking is None:
        return reasoning
    inner = Fields(thinking, "thinking")
    kind = inner.need("type", str)
    display = inner.take("display", str)
    reasoning.summary = "auto" if display == "summarized" else None
    match kind:
        case "enabled":
            reasoning.enabled, reasoning.budget_tokens = True, inner.need("budget_tokens", int)
        case "adaptive":
            reasoning.enabled = True
        case "disabled":
            reasoning.enabled = False
    if inner.rest or kind not in ("enabled", "adaptive", "disabled") or display not in (None, "summarized"):
        fields.rest["thinking"] = thinking
    return reasoning


def build_reasoning(request: Request, built: Built, adaptive: bool) -> None:
    """Writes ``thinking`` and ``output_config.effort``; ``max_tokens`` is in the body already."""
    reasoning = request.reasoning
    own = request.dialect == DIALECT
    if own and "thinking" in request.extra:
        built.body["thinking"] = request.extra["thinking"]
        _give_effort(built, reasoning.effort if reasoning else None)
        return
    if reasoning is None:
        return
    if is_off(reasoning):
        built.body["thinking"] = {"type": "disabled"}
        return
    forced = built.body.get("tool_choice", {}).get("type") in ("any", "tool")
    if forced and not own:
        built.dropped.append("reasoning")
        return
    budget = reasoning.budget_tokens
    thinking: JsonObject | None = {"type": "adaptive"}
    if own and budget is None:
        thinking = {"type": "adaptive"} if reasoning.enabled else None
        _give_effort(built, reasoning.effort)
    elif adaptive:
        _give_effort(built, reasoning.effort or (effort_for(budget) if budget is not None else None))
    else:
        wanted = BUDGET_OF[reasoning.effort or "medium"] if budget is None else budget
        thinking = _with_budget(request, built, wanted, given=budget is not None)
        if own:
            _give_effort(built, reasoning.effort)
    if thinking is None:
        return
    if reasoning.summary is not None and (own or adaptive):
        thinking["display"] = "summarized"
    built.body["thinking"] = thinking


def _with_budget(request: Request, built: Built, budget: int, *, given: bool) -> JsonObject | None:
    if request.dialect == DIALECT:
        return {"type": "enabled", "budget_tokens": budget}
    fitted = fit_budget(budget, request.max_tokens, given=given)
    if fitted is None:
        built.dropped.append("reasoning")
        return None
    if request.max_tokens is None:
        built.body["max_tokens"] += fitted  # our own default is for the answer alone
    return {"type": "enabled", "budget_tokens": fitted}


def _give_effort(built: Built, effort: Effort | None) -> None:
    if effort is not None and effort != "none":
        built.body.setdefault("output_config", {})["effort"] = "low" if effort == "minimal" else effort


def parse_system(fields: Fields) -> list[Message]:
    parts = _parse_content(fields, "system")
    return [Message("system", parts)] if parts else []


def parse_messages(messages: list[Fields]) -> list[Message]:
    parsed: list[Message] = []
    for fields in messages:
        role = fields.need("role", str)
        if role not in ("user", "assistant", "system"):
            raise fields.wrong("role", "user or assistant or system", role)
        add_turn(parsed, role, _parse_content(fields, "content"))  # type: ignore[arg-type]  # one of the three above
    return parsed


def _parse_content(fields: Fields, name: str) -> list[Part]:
    content = fields.any(name)
    if content is None:
        return []
    if isinstance(content, str):
        return [TextPart(content)] if content else []
    if not isinstance(content, list):
        raise fields.wrong(name, "a string or a list of blocks", content)
    parts: list[Part] = []
    for number, block in enumerate(content):
        part = parse_block(Fields(block, f"{fields.where(name)}[{number}]"), parts)
        if part is not None:
            parts.append(part)
    return parts


def parse_block(block: Fields, before: list[Part]) -> Part | None:
    """The part of this block; None if the block only has state for the previous part, or nothing."""
    body = dict(block.rest)
    kind = block.need("type", str)
    cache = parse_cache(block)
    match kind:
        case "text":
            text = block.need("text", str)
            citations = [read_citation(citation.rest) for citation in block.objects("citations")]
            return TextPart(text, citations, cache=cache) if text else None
        case "thinking":
            echo = unpacked(block.take("signature", str, ""), "signature")
            thought = block.take("thinking", str, "")
            return TextPart(thought) if echo == LATE_TEXT else ReasoningPart(thought, echo=echo)
        case "redacted_thinking":
            return _parse_redacted(block.need("data", str), before)
        case "image" | "document":
            return _parse_media(kind, block, body, cache)
        case "tool_use":
            return _parse_call(block, cache)
        case "tool_result":
            call_id, failed = read_id(block.need("tool_use_id", str)), block.take("is_error", bool, False)
            content = result_content(_parse_content(block, "content"))
            return ToolResultPart(call_id, content, failed, native=_more(block), cache=cache)
    if kind.endswith("_tool_use"):
        arguments = msgspec.json.encode(block.any("input") or {}).decode()
        call_id, name = block.need("id", str), block.need("name", str)
        if body.get("server_name") == OWN_SERVER:
            return ToolCallPart(call_id, name, arguments, "server", cache=cache)
        native = Echo(DIALECT, {"type": kind, **block.rest})
        return ToolCallPart(call_id, name, arguments, "server", native=native, cache=cache)
    if kind.endswith("_tool_result"):
        result = TextPart(result_text(body.get("content")))
        call_id = block.need("tool_use_id", str)
        if any(isinstance(part, ToolCallPart) and part.call_id == call_id and part.native is None for part in before):
            return ToolResultPart(call_id, [result], is_failure(body), kind="server")
        return ToolResultPart(call_id, [result], is_failure(body), kind="server", native=Echo(DIALECT, body))
    return NativePart(DIALECT, body, _in_words(body))


def _in_words(block: JsonObject) -> str:
    """The text of a block for models of other dialects: a tool that was found, or the results of a search."""
    match block:
        case {"type": "tool_reference", "tool_name": str(name)}:
            return f"The tool {name} can be called now."
        case {"type": "search_result", "title": str(title), "source": str(source)}:
            return f"{title} ({source})\n{result_text(block.get('content'))}"
    return ""


def _parse_call(block: Fields, cache: str | None) -> ToolCallPart:
    given = block.take("input", dict, {})
    wire, name = block.need("id", str), block.need("name", str)
    part = ToolCallPart(read_id(wire), name, msgspec.json.encode(given).decode(), native=_more(block), cache=cache)
    if is_custom(wire) and isinstance(given.get("input"), str):
        part.kind, part.arguments = "custom", given["input"]
    return part


def _more(block: Fields) -> Echo | None:
    """The remaining fields. The vendor's own clients also send null fields."""
    rest = {name: value for name, value in block.rest.items() if value is not None}
    return Echo(DIALECT, rest) if rest else None


def parse_cache(fields: Fields) -> str | None:
    cache = fields.inner("cache_control")
    return None if cache is None else cache.take("ttl", str, "")


def _parse_redacted(data: str, before: list[Part]) -> Part | None:
    echo = unpacked(data, "data")
    state = beside(echo)
    if state is None:
        return ReasoningPart("", redacted=True, echo=echo)
    if before and isinstance(before[-1], (TextPart, ToolCallPart)):
        before[-1].echo = state
        return None
    return TextPart("", echo=state)  # of a text in white space, which is not written


def _parse_media(kind: str, block: Fields, body: JsonObject, cache: str | None) -> Part:
    """An image or a document. One with further options (citations, a context) stays native to this dialect."""
    source = block.inner("source")
    title = block.take("title", str, "")
    citations = block.take("citations", dict, {})
    if source is None or block.rest or citations.get("enabled"):
        return NativePart(DIALECT, body)
    mime = "image/*" if kind == "image" else "application/pdf"
    part = MediaPart(mime, filename=title, cache=cache)
    match source.need("type", str):
        case "base64":
            part.mime, part.data = source.take("media_type", str, mime), source.need("data", str)
        case "text":
            part.mime, part.data = "text/plain", b64encode(source.need("data", str).encode("utf-8", "replace")).decode()
        case "url":
            part.url = source.need("url", str)
        case "file":
            part.file_id = source.need("file_id", str)
        case _:
            return NativePart(DIALECT, body)
    return part


_IMAGES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
_RESULT, _CALL = "tool_result", "tool_use"


class Turns:
    """Builds ``system`` and ``messages``. ``refusing``: the upstream has a version that refuses some old blocks.
    ``system_inside``: it accepts system messages among the others."""

    def __init__(self, built: Built, refusing: bool, system_inside: bool) -> None:
        self._built = built
        self._refusing = refusing
        self._system_inside = system_inside

    def add(self, messages: list[Message]) -> None:
        system: list[JsonObject] = []
        turns: list[JsonObject] = []
        for message in messages:
            role = {"developer": "system", "tool": "user"}.get(message.role, message.role)
            if message.name:
                self._built.drop("messages.name")
            if role == "system" and turns and not self._system_inside:
                self._built.drop("messages.system")
                role = "user"  # in its place, because the position has a meaning
            blocks = [block for part in message.parts for block in self._build(part, role)]
            if role == "system" and not turns:
                system += blocks
            else:
                add_content(turns, role, blocks)
        if system:
            self._built.body["system"] = _plain(system)
        for turn in turns:
            turn["content"] = _plain(_in_order(turn["content"]))
        self._built.body["messages"] = turns
        if turns and turns[-1]["role"] == "assistant":
            self._trim(turns[-1])

    def _trim(self, last: JsonObject) -> None:
        """Removes white space at the end of a turn that the model continues; the API refuses it."""
        if isinstance(last["content"], str):
            last["content"] = last["content"].rstrip()
        elif last["content"][-1]["type"] == "text":
            last["content"][-1]["text"] = last["content"][-1]["text"].rstrip()

    # --- one part

    def _build(self, part: Part, role: str) -> list[JsonObject]:
        body: JsonObject | None = None
        match part:
            case TextPart() | RefusalPart():
                body = self._build_text(part, role)
            case ReasoningPart():
                body = self._build_reasoning(part)
            case ToolCallPart():
                body = self._build_call(part)
            case ToolResultPart():
                body = self._build_result(part)
            case MediaPart():
                body = self._build_media(part)
            case NativePart(dialect="anthropic"):
                body = dict(part.data)
            case _:
                raise Unsupported(f"a part of the dialect {part.dialect} cannot be sent to an upstream of another dialect")
        if body is None:
            return []
        if role == "assistant" and (body["type"] == "image" or (body["type"] == "document" and self._refusing)):
            self._built.drop(f"messages.assistant.{body['type']}")
            return []
        cache = getattr(part, "cache", None)
        if cache is not None:
            body["cache_control"] = cache_mark("ephemeral", cache)
        return [body]

    def _build_text(self, part: TextPart | RefusalPart, role: str) -> JsonObject | None:
        if not part.text.strip():
            return None
        body: JsonObject = {"type": "text", "text": part.text}
        written = [write_citation(citation) for citation in part.citations] if isinstance(part, TextPart) else []
        citations = [citation for citation in written if citation and citation.get("encrypted_index") != ""]
        if citations and role == "user" and self._refusing:
            self._built.drop("messages.user.citations")
        elif citations:
            body["citations"] = citations
        return body

    def _build_reasoning(self, part: ReasoningPart) -> JsonObject | None:
        if part.echo is None:
            return None
        if "data" in part.echo.data:
            return {"type": "redacted_thinking", "data": part.echo.data["data"]}
        if "signature" in part.echo.data:
            return {"type": "thinking", "thinking": part.text, "signature": part.echo.data["signature"]}
        return None

    def _build_call(self, part: ToolCallPart) -> JsonObject | None:
        own = None if part.native is None else part.native.data
        return call_block(part, own, arguments_object(part.arguments))

    def _build_result(self, part: ToolResultPart) -> JsonObject | None:
        own = None if part.native is None else part.native.data
        if part.kind == "server" or (own is not None and own.get("type", _RESULT) != _RESULT):
            return None if own is None else dict(own)
        body: JsonObject = {"type": _RESULT, "tool_use_id": wire_id(part.call_id), **(own or {})}
        content = [block for inner in part.content for block in self._build(inner, "user")]
        if content:
            body["content"] = _plain(content)
        if part.is_error:
            body["is_error"] = True
        return body

    def _build_media(self, part: MediaPart) -> JsonObject:
        if part.detail and part.detail != "auto":
            self._built.drop("image.detail")
        if part.mime.startswith("image/"):
            return {"type": "image", "source": _source(part, _IMAGES)}
        body = {"type": "document", "source": _source(part, ("application/pdf", "text/plain"))}
        if part.filename:
            body["title"] = part.filename
        return body


def _source(part: MediaPart, mimes: tuple[str, ...]) -> JsonObject:
    mime = part.mime
    if mime == "application/octet-stream" and part.filename.lower().endswith(".pdf"):
        mime = "application/pdf"
    elif mime.startswith("text/"):
        mime = "text/plain"
    if part.file_id:
        return {"type": "file", "file_id": part.file_id}
    if part.url and not mime.startswith(("audio/", "video/")):
        return {"type": "url", "url": part.url}
    if mime not in mimes or not part.data:
        raise Unsupported(f"a file of the type {part.mime!r} cannot be sent to the chosen upstream; it takes {', '.join(mimes)}")
    if mime == "text/plain":
        try:
            text = b64decode("".join(part.data.split()), validate=True).decode("utf-8", "replace")
        except ValueError:
            raise Unsupported("the data of a text file is not base64") from None
        return {"type": "text", "media_type": mime, "data": text}
    return {"type": "base64", "media_type": mime, "data": part.data}


def _in_order(blocks: list[JsonObject]) -> list[JsonObject]:
    """Results first, calls last, the rest in order."""
    place = {_RESULT: 0, _CALL: 2}
    return sorted(blocks, key=lambda block: place.get(block["type"], 1))


def _plain(blocks: list[JsonObject]) -> str | list[JsonObject]:
    """A single text without further fields as a string."""
    return blocks[0]["text"] if len(blocks) == 1 and set(blocks[0]) == {"type", "text"} else blocks


# --- the request

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
