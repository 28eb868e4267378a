"""Requests for text completions: a client's body to a Request, and a Request to the body for an upstream.

A conversation becomes one plain prompt, for models that only continue a text::

    You are a helper.

    User: What is the capital of France?

    Assistant: Paris.

    User: And of Peru?

    Assistant:

A ``PromptTemplate`` defines the words, because models were trained on different ones.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ...errors import Unsupported
from ...json_types import JsonObject
from ...messages import (
    Built,
    MediaPart,
    Message,
    NativePart,
    Part,
    ReasoningPart,
    RefusalPart,
    Request,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from ..common.completions import SAMPLING, build_stream, parse_usage_option
from ..common.conversation import failure_marked
from ..common.fields import Fields, begin, give, give_extra, keep_extra, take

DIALECT = "openai_completions"


class PromptTemplate(Struct, frozen=True):
    """How each turn is written: ``{text}`` is its text, ``{name}`` the tool, ``{arguments}`` its arguments. ``cue`` comes last
    and makes the model answer; ``stop`` are texts that end the answer."""

    system: str = "{text}\n\n"
    user: str = "User: {text}\n\n"
    assistant: str = "Assistant: {text}\n\n"
    call: str = "[calls {name}({arguments})]"
    result: str = "Result of {name}: {text}\n\n"
    cue: str = "Assistant:"
    stop: tuple[str, ...] = ("\n\nUser:",)


def build_prompt(messages: list[Message], template: PromptTemplate) -> str:
    names = {part.call_id: part.name for message in messages for part in message.parts if isinstance(part, ToolCallPart)}
    pieces = []
    for message in messages:
        texts: list[str] = []
        for part in message.parts:
            if isinstance(part, ToolResultPart):
                pieces.append(_result(part, names, template))
            else:
                texts.append(_part_text(part, template))
        if any(texts):
            pieces.append(_turn(message, template).replace("{text}", "".join(texts)))
    return "".join([*pieces, template.cue])


def _turn(message: Message, template: PromptTemplate) -> str:
    if message.role in ("system", "developer"):
        return template.system
    return template.assistant if message.role == "assistant" else template.user


def _part_text(part: Part, template: PromptTemplate) -> str:
    match part:
        case TextPart() | RefusalPart():
            return part.text
        case ToolCallPart():
            return template.call.replace("{name}", part.name).replace("{arguments}", part.arguments)
        case ReasoningPart():
            return ""
        case MediaPart():
            raise Unsupported(f"a file of the type {part.mime!r} cannot be put into a plain prompt")
        case _:
            raise Unsupported("a part of another dialect cannot be put into a plain prompt")


def _result(part: ToolResultPart, names: dict[str, str], template: PromptTemplate) -> str:
    if any(isinstance(piece, (MediaPart, NativePart)) for piece in part.content):
        raise Unsupported("a tool result with files cannot be put into a plain prompt")
    text = failure_marked(part.text, part.is_error)
    name = part.name or names.get(part.call_id, part.call_id)
    return template.result.replace("{name}", name).replace("{text}", text)


PARAMETERS: Final = SAMPLING
"""``logprobs`` is missing because it is a number here: how many per position."""
ESSENTIAL: Final = frozenset(("echo", "suffix"))
DEFAULT_TEMPLATE: Final = PromptTemplate()


def parse(body: JsonObject) -> Request:
    """Parses a request. The prompt becomes one user message."""
    fields, request = begin(body, DIALECT)
    parse_usage_option(fields, request)
    request.messages = [Message("user", [_parse_prompt(fields)])]
    logprobs = fields.take("logprobs", int)
    if logprobs is not None:
        request.logprobs, request.top_logprobs = True, logprobs
    take(fields, PARAMETERS, request)
    keep_extra(request, fields.rest, [name for name in ESSENTIAL if fields.rest.get(name)])
    return request


def build(
    request: Request,
    *,
    template: PromptTemplate = DEFAULT_TEMPLATE,
    max_tokens: int | None = None,
) -> Built:
    """A prompt of this dialect is passed on unchanged; a conversation is written with the ``template``. ``max_tokens`` applies
    if the request has no limit: servers of this kind stop after 16 tokens otherwise."""
    built = Built({"model": request.model})
    body = built.body
    stop = list(request.stop)
    if request.dialect == DIALECT:
        body["prompt"] = _own_prompt(request)
    else:
        body["prompt"] = build_prompt(request.messages, template)
        stop += [text for text in template.stop if text not in stop]
    body.update(build_stream(request))
    _refuse(request, built)
    give(request, {**PARAMETERS, "logprobs": "logprobs", "top_logprobs": "top_logprobs"}, built)
    if body.pop("logprobs", None):
        body["logprobs"] = request.top_logprobs or 0
    body.pop("top_logprobs", None)
    if stop:
        body["stop"] = stop
    if max_tokens is not None:
        body.setdefault("max_tokens", max_tokens)
    give_extra(request, DIALECT, built)
    return built


def _parse_prompt(fields: Fields) -> Part:
    prompt = fields.any("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return TextPart(prompt)
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return NativePart(DIALECT, {"prompt": prompt})
    if isinstance(prompt, list) and prompt and all(isinstance(piece, (str, list)) for piece in prompt):
        raise Unsupported(f"prompt has {len(prompt)} prompts; send one in each request", detail={"param": "prompt"})
    raise fields.wrong("prompt", "a string or a list of tokens", prompt)


def _own_prompt(request: Request) -> str | list[int]:
    """The prompt that ``parse`` received, unchanged. Policies may have added text around it."""
    parts = [part for message in request.messages for part in message.parts]
    if len(parts) == 1 and isinstance(parts[0], NativePart) and parts[0].dialect == DIALECT:
        tokens: list[int] = parts[0].data["prompt"]
        return tokens
    if not all(isinstance(part, TextPart) for part in parts):
        raise Unsupported("a prompt must be one text or one list of tokens", detail={"param": "prompt"})
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def _refuse(request: Request, built: Built) -> None:
    """Refuses what a plain prompt cannot express."""
    if request.tools and (request.tool_choice is None or request.tool_choice.mode != "none"):
        raise Unsupported("the chosen upstream continues plain text and cannot call tools", detail={"param": "tools"})
    if request.output is not None and request.output.kind != "text":
        raise Unsupported("the chosen upstream cannot guarantee JSON", detail={"param": "response_format"})
    if request.reasoning is not None:
        built.dropped.append("reasoning")
    if any(message.name for message in request.messages):
        built.dropped.append("messages.name")
