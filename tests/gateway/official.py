"""The vendors' own clients, pointed at the gateway: what each understood, or the exception that it raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import ollama
import openai
from conformance.oracles import Reading
from google import genai
from google.genai import types

from gateway.dialect_clients import SCHEMA
from waiting import WAIT_SECONDS

Asked = Callable[[str, str, bool], Reading]
USER: Any = {"role": "user", "content": "q"}
CHAT_TOOLS: Any = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("weather", "time")]


def openai_client(url: str, retries: int = 0) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="k-openai", max_retries=retries, timeout=WAIT_SECONDS)


def openai_chat(url: str, model: str, stream: bool) -> Reading:
    client = openai_client(url)
    if not stream:
        return _chat_message(client.chat.completions.create(model=model, messages=[USER], tools=CHAT_TOOLS))
    options: Any = {"include_usage": True}
    with client.chat.completions.stream(model=model, messages=[USER], tools=CHAT_TOOLS, stream_options=options) as events:
        for _ in events:
            pass
        return _chat_message(events.current_completion_snapshot)


def _chat_message(answer: Any) -> Reading:
    choice = answer.choices[0]
    message = choice.message
    return Reading(
        text=message.content or "",
        reasoning=(message.model_extra or {}).get("reasoning_content") or "",
        calls=[(call.function.name, call.function.arguments) for call in message.tool_calls or []],
        finish=choice.finish_reason,
        usage=(answer.usage.prompt_tokens, answer.usage.completion_tokens) if answer.usage else None,
    )


def openai_responses(url: str, model: str, stream: bool) -> Reading:
    client = openai_client(url)
    tools: Any = [{"type": "function", "name": name, "parameters": SCHEMA, "strict": False} for name in ("weather", "time")]
    if stream:
        final: Any = None
        with client.responses.stream(model=model, input="q", tools=tools) as events:
            for event in events:
                if event.type in ("response.completed", "response.incomplete", "response.failed"):
                    final = event.response
        assert final is not None, "no end"
    else:
        final = client.responses.create(model=model, input="q", tools=tools)
    reading = Reading(finish=final.status)
    if final.error is not None:
        reading.error = final.error.message
    for item in final.output:
        if item.type == "message":
            reading.text += "".join(part.text for part in item.content)
        elif item.type == "reasoning":
            reading.reasoning += "".join(part.text for part in item.content or []) or "".join(part.text for part in item.summary)
        elif item.type == "function_call":
            reading.calls.append((item.name, item.arguments))
    if final.usage is not None:
        reading.usage = (final.usage.input_tokens, final.usage.output_tokens)
    return reading


def anthropic_client(url: str, retries: int = 0) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="k-anthropic", max_retries=retries, timeout=WAIT_SECONDS)


def anthropic_messages(url: str, model: str, stream: bool) -> Reading:
    client = anthropic_client(url)
    asked: Any = {
        "model": model,
        "max_tokens": 99,
        "messages": [USER],
        "tools": [{"name": name, "input_schema": SCHEMA} for name in ("weather", "time")],
    }
    if stream:
        with client.messages.stream(**asked) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(**asked)
    reading = Reading(finish=message.stop_reason, usage=(message.usage.input_tokens, message.usage.output_tokens))
    for block in message.content:
        if block.type == "text":
            reading.text += block.text
        elif block.type == "thinking":
            reading.reasoning += block.thinking
        elif block.type == "tool_use":
            reading.calls.append((block.name, block.input))
    return reading


def gemini_client(url: str) -> genai.Client:
    return genai.Client(api_key="k-gemini", http_options=types.HttpOptions(base_url=url, timeout=round(WAIT_SECONDS * 1000)))


def gemini(url: str, model: str, stream: bool) -> Reading:
    client = gemini_client(url)
    declared: Any = [{"name": name, "parameters_json_schema": SCHEMA} for name in ("weather", "time")]
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=declared)],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    reading = Reading()
    chunks: Any = (
        client.models.generate_content_stream(model=model, contents="q", config=config)
        if stream
        else [client.models.generate_content(model=model, contents="q", config=config)]
    )
    for chunk in chunks:
        if chunk.usage_metadata:
            counts = chunk.usage_metadata
            reading.usage = (
                counts.prompt_token_count or 0,
                (counts.candidates_token_count or 0) + (counts.thoughts_token_count or 0),
            )
        for candidate in chunk.candidates or []:
            reading.finish = candidate.finish_reason.value if candidate.finish_reason else reading.finish
            for part in (candidate.content and candidate.content.parts) or []:
                if part.function_call:
                    reading.calls.append((part.function_call.name or "", part.function_call.args or {}))
                elif part.thought:
                    reading.reasoning += part.text or ""
                else:
                    reading.text += part.text or ""
    return reading


def ollama_client(url: str) -> ollama.Client:
    return ollama.Client(host=url, timeout=httpx.Timeout(WAIT_SECONDS))


def ollama_chat(url: str, model: str, stream: bool) -> Reading:
    client = ollama_client(url)
    reading = Reading()
    options: Any = {"stream": stream}
    answer: Any = client.chat(model=model, messages=[USER], tools=CHAT_TOOLS, **options)
    for line in answer if stream else [answer]:
        reading.text += line.message.content or ""
        reading.reasoning += line.message.thinking or ""
        reading.calls += [(call.function.name, dict(call.function.arguments)) for call in line.message.tool_calls or []]
        if line.done:
            reading.finish = line.done_reason
            reading.usage = (line.prompt_eval_count or 0, line.eval_count or 0)
    return reading


OFFICIAL: dict[str, Asked] = {
    "openai_chat": openai_chat,
    "openai_responses": openai_responses,
    "anthropic": anthropic_messages,
    "gemini": gemini,
    "ollama": ollama_chat,
}
