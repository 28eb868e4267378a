"""The vendors' own Python clients as judges: each reads one stream from an address and says what it understood."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec import Struct, field


class Reading(Struct):
    """The answer that a client read. ``error`` is an error that it reported, as it should if the stream has one."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    finish: str | None = None
    usage: tuple[int, int] | None = None
    error: str | None = None


Oracle = Callable[[str], Reading]


@cache
def _openai() -> Any:
    import openai

    return openai.OpenAI(base_url="http://127.0.0.1:9", api_key="k", max_retries=0)


def openai_chat_chunks(url: str) -> Reading:
    """The plain iterator over chunks."""
    import openai

    reading = Reading()
    calls: dict[int, list[str]] = {}
    try:
        client = _openai().with_options(base_url=f"{url}/v1")
        stream = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}], stream=True)
        for chunk in stream:
            if chunk.usage:
                reading.usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
            for choice in chunk.choices:
                if choice.index:
                    continue
                delta = choice.delta
                reading.text += delta.content or ""
                reading.refusal += delta.refusal or ""
                reading.reasoning += (delta.model_extra or {}).get("reasoning_content") or ""
                reading.finish = choice.finish_reason or reading.finish
                for call in delta.tool_calls or []:
                    body = call.function or _Custom(call)
                    known = calls.setdefault(call.index, ["", ""])
                    known[0] += body.name or ""
                    known[1] += body.arguments or ""
    except openai.APIError as error:
        reading.error = f"{type(error).__name__}: {error}"
    reading.calls = [(name, arguments) for _, (name, arguments) in sorted(calls.items())]
    return reading


class _Custom:
    """A custom call, which the client leaves untyped, in the form of a function call."""

    def __init__(self, call: Any) -> None:
        custom = (call.model_extra or {}).get("custom") or {}
        self.name, self.arguments = custom.get("name"), custom.get("input")


def openai_chat_helper(url: str) -> Reading:
    """The helper that accumulates, the strictest reader of this dialect."""
    import openai

    reading = Reading()
    client = _openai().with_options(base_url=f"{url}/v1")
    snapshot = None
    try:
        with client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "q"}]) as stream:
            for _ in stream:
                pass
            snapshot = stream.current_completion_snapshot
    except openai.APIError as error:
        reading.error = f"{type(error).__name__}: {error}"
        return reading
    choice = snapshot.choices[0]
    assert choice.message.role == "assistant", choice.message.role
    reading.text, reading.refusal = choice.message.content or "", choice.message.refusal or ""
    reading.reasoning = (choice.message.model_extra or {}).get("reasoning_content") or ""
    reading.calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    reading.finish = choice.finish_reason
    if snapshot.usage:
        reading.usage = (snapshot.usage.prompt_tokens, snapshot.usage.completion_tokens)
    return reading


def openai_responses_helper(url: str) -> Reading:
    import openai

    reading = Reading()
    client = _openai().with_options(base_url=f"{url}/v1")
    final: Any = None
    numbers = []
    try:
        with client.responses.stream(model="m", input="q") as stream:
            for event in stream:
                numbers.append(event.sequence_number)
                if event.type in ("response.completed", "response.incomplete", "response.failed"):
                    final = event.response
    except openai.APIError as error:
        reading.error = f"{type(error).__name__}: {error}"
        return reading
    assert numbers == list(range(len(numbers))), "sequence numbers have a gap"
    if final is None:
        reading.error = "no end"
        return reading
    reading.finish = final.incomplete_details.reason if final.incomplete_details else final.status
    if final.error:
        reading.error = final.error.message
    for item in final.output:
        if item.type == "message":
            reading.text += "".join(part.text for part in item.content if part.type == "output_text")
            reading.refusal += "".join(part.refusal for part in item.content if part.type == "refusal")
        elif item.type == "reasoning":
            reading.reasoning += "".join(part.text for part in item.content or []) or "".join(part.text for part in item.summary)
        elif item.type == "function_call":
            reading.calls.append((item.name, item.arguments))
        elif item.type == "custom_tool_call":
            reading.calls.append((item.name, item.input))
    if final.usage:
        reading.usage = (final.usage.input_tokens, final.usage.output_tokens)
    return reading


@cache
def _anthropic() -> Any:
    import anthropic

    return anthropic.Anthropic(base_url="http://127.0.0.1:9", api_key="k", max_retries=0)


def anthropic_helper(url: str) -> Reading:
    import anthropic

    reading = Reading()
    client = _anthropic().with_options(base_url=url)
    try:
        with client.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "q"}]) as stream:
            message = stream.get_final_message()
    except anthropic.APIError as error:
        reading.error = f"{type(error).__name__}: {error}"
        return reading
    for block in message.content:
        if block.type == "text":
            assert block.text, "the API refuses every later request after an empty text block"
            reading.text += block.text
        elif block.type == "thinking":
            reading.reasoning += block.thinking
        elif block.type == "tool_use":
            reading.calls.append((block.name, block.input))
    kinds = [block.type for block in message.content]
    if "tool_use" in kinds:
        assert "text" not in kinds[kinds.index("tool_use") :], "the API refuses every later request with text after a tool_use"
    reading.finish = message.stop_reason
    usage = message.usage
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    reading.usage = (usage.input_tokens + cached, usage.output_tokens)
    return reading


@cache
def _gemini() -> Any:
    from google import genai

    return genai.Client(api_key="k")


def gemini_client(url: str) -> Reading:
    from google.genai import errors

    reading = Reading()
    try:
        place = {"http_options": {"base_url": url}}
        for chunk in _gemini().models.generate_content_stream(model="m", contents="q", config=place):
            if chunk.usage_metadata:
                usage = chunk.usage_metadata
                written = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
                reading.usage = ((usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0), written)
            for candidate in chunk.candidates or []:
                if candidate.index:
                    continue
                if candidate.finish_reason:
                    reading.finish = candidate.finish_reason.value
                if reading.finish == "MALFORMED_FUNCTION_CALL":  # how this dialect reports a call that cannot be read
                    reading.error = f"{reading.finish}: {candidate.finish_message}"
                for part in (candidate.content and candidate.content.parts) or []:
                    if part.function_call:
                        reading.calls.append((part.function_call.name, part.function_call.args or {}))
                    elif part.thought:
                        reading.reasoning += part.text or ""
                    else:
                        reading.text += part.text or ""
    except errors.APIError as error:
        reading.error = f"{type(error).__name__}: {error}"
    return reading


@cache
def _ollama() -> Any:
    import ollama

    return ollama.Client()


def ollama_client(url: str) -> Reading:
    import ollama

    reading = Reading()
    client = _ollama()
    client._client.base_url = url  # a client of its own for each stream costs more than the stream
    try:
        for line in client.chat(model="m", messages=[{"role": "user", "content": "q"}], stream=True):
            reading.text += line.message.content or ""
            reading.reasoning += line.message.thinking or ""
            for call in line.message.tool_calls or []:
                reading.calls.append((call.function.name, dict(call.function.arguments)))
            if line.done:
                reading.finish = line.done_reason
                reading.usage = (line.prompt_eval_count or 0, line.eval_count or 0)
    except ollama.ResponseError as error:
        reading.error = str(error)
    return reading


@cache
def _openrouter() -> Any:
    from openrouter import OpenRouter
    from openrouter.utils import serializers

    module: Any = serializers
    make: Any = module.create_model

    @cache
    def made(name: str, type_: Any) -> Any:
        return make(name, body=(type_, ...), __config__={"populate_by_name": True, "arbitrary_types_allowed": True})

    # the client makes the same model anew for each chunk, which takes longer than all the rest of this run
    module.create_model = lambda name, *, body, **_: made(name, body[0])
    return OpenRouter(api_key="k")


def openrouter_client(url: str) -> Reading:
    """Checks every chunk against a strict schema, reasoning_details included."""
    from openrouter import errors

    reading = Reading()
    calls: dict[int, list[str]] = {}
    try:
        asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "q"}], "stream": True}
        with _openrouter().chat.send(**asked, server_url=f"{url}/v1") as stream:
            for chunk in stream:
                if chunk.error:
                    reading.error = chunk.error.message
                if chunk.usage:
                    reading.usage = (int(chunk.usage.prompt_tokens), int(chunk.usage.completion_tokens))
                for choice in chunk.choices:
                    if choice.index:
                        continue
                    reading.text += choice.delta.content or ""
                    reading.refusal += choice.delta.refusal or ""
                    reading.reasoning += choice.delta.reasoning or ""
                    reading.finish = choice.finish_reason or reading.finish
                    for call in choice.delta.tool_calls or []:
                        known = calls.setdefault(int(call.index), ["", ""])
                        if call.function:
                            known[0] += call.function.name or ""
                            known[1] += call.function.arguments or ""
    except errors.OpenRouterError as error:
        reading.error = str(error)
    reading.calls = [(name, arguments) for _, (name, arguments) in sorted(calls.items())]
    return reading


def openai_completions_client(url: str) -> Reading:
    import openai

    reading = Reading()
    try:
        client = _openai().with_options(base_url=f"{url}/v1")
        for chunk in client.completions.create(model="m", prompt="q", stream=True):
            if chunk.usage:
                reading.usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
            for choice in chunk.choices:
                if not choice.index:
                    reading.text += choice.text or ""
                    reading.finish = choice.finish_reason or reading.finish
    except openai.APIError as error:
        reading.error = f"{type(error).__name__}: {error}"
    return reading


ORACLES: dict[str, dict[str, Oracle]] = {
    "openai_chat": {
        "openai (chunks)": openai_chat_chunks,
        "openai (helper)": openai_chat_helper,
        "openrouter": openrouter_client,
    },
    "openai_responses": {"openai (responses helper)": openai_responses_helper},
    "anthropic": {"anthropic (helper)": anthropic_helper},
    "gemini": {"google-genai": gemini_client},
    "ollama": {"ollama": ollama_client},
    "openai_completions": {"openai (completions)": openai_completions_client},
}
"""The clients that read each dialect."""
