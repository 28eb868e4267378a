"""Builds the chat completion object for a client."""

from __future__ import annotations

from ...events import Extra
from ...json_types import JsonObject, JsonValue
from ...messages import MediaPart, ReasoningField, ReasoningPart, RefusalPart, Response, ResponseChoice, TextPart, ToolCallPart
from ...stages.steps import with_step_breaks
from ..common.completions import build_completion
from ..common.function_tools import build_call
from ..echo import pack
from .details import marker, of_text, our_summary, own_details, signed, without_texts
from .wire import DIALECT, FINISH_OF, error_body, extra_content, write_citation


def build(
    response: Response,
    *,
    strict: bool = False,
    functions: bool = False,
    reasoning_field: ReasoningField = "reasoning_content",
) -> JsonObject:
    """An incomplete call is left out, so that no client runs it. The options are those of ``ChatWriter``."""
    choices = [_build_choice(choice, response.extras, strict, functions, reasoning_field) for choice in response.choices]
    if not strict:
        _add_summaries(choices, response.extras)
    own = (extra.data for extra in response.extras if extra.dialect == DIALECT)
    extras = ({name: value for name, value in data.items() if name not in ("choice", "reasoning_summary")} for data in own)
    return build_completion(response, "chat.completion", choices, extras, error_body, strict=strict)


def _build_choice(
    choice: ResponseChoice, extras: list[Extra], strict: bool, functions: bool, reasoning_field: ReasoningField
) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": None, "refusal": None}
    calls: list[JsonObject] = []
    thoughts: list[ReasoningPart] = []
    annotations: list[JsonObject] = []
    for part in with_step_breaks(choice):
        match part:
            case TextPart():
                start = len(message["content"] or "")
                message["content"] = (message["content"] or "") + part.text
                if part.echo is not None:
                    echo = of_text(part.echo, start, len(message["content"]))
                    thoughts.append(ReasoningPart("", redacted=True, echo=echo))
                for citation in part.citations:
                    annotation = write_citation(citation)
                    if annotation is not None:
                        annotations.append(annotation)
            case RefusalPart():
                message["refusal"] = (message["refusal"] or "") + part.text
            case ReasoningPart():
                thoughts.append(part)
            case ToolCallPart(kind="function" | "custom", complete=True):
                calls.append(_build_call(part, strict))
            case MediaPart() if part.mime.startswith("audio/"):
                message["audio"] = {"id": part.id, "data": part.data, "transcript": part.transcript, "expires_at": 0}
            case MediaPart() if part.mime.startswith("image/") and not strict:
                url = part.url or f"data:{part.mime};base64,{part.data}"
                message.setdefault("images", []).append({"type": "image_url", "image_url": {"url": url}})
    if annotations:
        message["annotations"] = annotations
    if thoughts and not strict:
        _add_reasoning(message, thoughts, reasoning_field)
    if calls and functions:
        message["function_call"] = calls[0]["function"]
    elif calls:
        message["tool_calls"] = calls
    finish = FINISH_OF[choice.stop_reason] if choice.stop_reason else None
    if functions and finish == "tool_calls":
        finish = "function_call"
    logprobs = _joined_logprobs(choice.extras if choice.index else extras)
    return {"index": choice.index, "message": message, "finish_reason": finish, "logprobs": logprobs}


def _joined_logprobs(extras: list[Extra]) -> JsonObject | None:
    """Joins log probabilities, which arrive in pieces as lists of tokens."""
    joined: dict[str, list[JsonValue]] = {}
    for extra in extras:
        choice = extra.data.get("choice") if extra.dialect == DIALECT else None
        logprobs = choice.get("logprobs") if isinstance(choice, dict) else None
        for name, tokens in logprobs.items() if isinstance(logprobs, dict) else ():
            if isinstance(tokens, list):
                joined.setdefault(name, []).extend(tokens)
    return {"content": None, "refusal": None, **joined} if joined else None


def _build_call(part: ToolCallPart, strict: bool) -> JsonObject:
    call = build_call(part)
    if part.kind == "function" and part.echo is not None and not strict:
        call["extra_content"] = extra_content(part.echo)
    return call


def _add_summaries(choices: list[JsonObject], extras: list[Extra]) -> None:
    """Adds the summaries that the gateway had made of the first choice's thoughts."""
    texts = [text for extra in extras if isinstance(text := extra.data.get("reasoning_summary"), str)]
    if texts and choices:
        details = choices[0]["message"].setdefault("reasoning_details", [])
        details += [our_summary(text, len(details) + number) for number, text in enumerate(texts)]


def _add_reasoning(message: JsonObject, thoughts: list[ReasoningPart], field: ReasoningField) -> None:
    text = "".join(part.text for part in thoughts)
    in_details = field in ("reasoning_details", "all")
    if text:
        message.update(
            dict.fromkeys(("reasoning", "reasoning_content") if field == "all" else () if in_details else (field,), text)
        )
    details: list[JsonObject] = []
    for part in thoughts:
        echo = part.echo
        own = own_details(echo)
        if echo is not None and own is not None:
            details += [*(own if in_details else without_texts(own, echo.provider)), marker(echo, own)]
            continue
        kind, name = ("reasoning.summary", "summary") if part.summary else ("reasoning.text", "text")
        if echo is not None and not part.text:
            details.append({"type": "reasoning.encrypted", "data": pack(echo)})
        elif in_details:
            details.append({"type": kind, name: part.text, **({} if echo is None else {"signature": pack(echo)})})
        elif echo is not None:
            details.append(signed(echo, part.text, part.summary))
    if details:
        message["reasoning_details"] = [{**entry, "index": index} for index, entry in enumerate(details)]
