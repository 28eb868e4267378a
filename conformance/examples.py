"""The first examples of the vendors' documentation and READMEs against every recording: ``python -m conformance.examples CORPUS``.

Each example is verbatim except for the address, the key and the model. It guards against nothing, because nobody guards at the first
try: an example that fails in any way but with its vendor's own error, or that prints other text than the answer has, is a fault of
our writer. ``tests/clients/examples.mjs`` has the examples in JavaScript. LangChain and LiteLLM are not installed here; their loops
run over the same chunks.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import streamglot
from streamglot import Event
from streamglot.messages import ReasoningPart, Response, TextPart, ToolCallPart, ToolResultPart

from .limits import Limit, calls, custom_calls, parts, several_choices
from .matrix import rows
from .oracles import _anthropic, _gemini, _ollama, _openai

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from clients.node import NodeClients, missing
from clients.server import StreamServer


class Example(NamedTuple):
    """``prints`` says whether exactly the text of the answer is printed; others print objects."""

    dialect: str
    streams: bool
    run: Callable[[str], None]
    prints: bool = True


def openai_chat_stream(url: str) -> None:
    client = _openai().with_options(base_url=f"{url}/v1")
    stream = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "Say 'double bubble bath' ten times fast."}], stream=True
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content)


def openai_chat_stream_of_deltas(url: str) -> None:
    client = _openai().with_options(base_url=f"{url}/v1")
    completion = client.chat.completions.create(
        model="m",
        messages=[{"role": "developer", "content": "You are a helpful assistant."}, {"role": "user", "content": "Hello!"}],
        stream=True,
    )
    for chunk in completion:
        print(chunk.choices[0].delta)


def openai_chat(url: str) -> None:
    client = _openai().with_options(base_url=f"{url}/v1")
    completion = client.chat.completions.create(
        model="m",
        messages=[
            {"role": "developer", "content": "Talk like a pirate."},
            {"role": "user", "content": "How do I check if a Python object is an instance of a class?"},
        ],
    )
    print(completion.choices[0].message.content)


def openai_completions_stream(url: str) -> None:
    client = _openai().with_options(base_url=f"{url}/v1")
    for chunk in client.completions.create(model="m", prompt="Say this is a test", max_tokens=7, temperature=0, stream=True):
        print(chunk.choices[0].text)


def openai_completions(url: str) -> None:
    client = _openai().with_options(base_url=f"{url}/v1")
    response = client.completions.create(model="m", prompt="Say this is a test", max_tokens=7, temperature=0)
    print(response.choices[0].text)


def openai_responses_stream(url: str) -> None:
    client = _openai().with_options(base_url=f"{url}/v1")
    stream = client.responses.create(
        model="m",
        input="Write a one-sentence bedtime story about a unicorn.",
        stream=True,
    )
    for event in stream:
        print(event)


def openai_responses(url: str) -> None:
    client = _openai().with_options(base_url=f"{url}/v1")
    response = client.responses.create(
        model="m",
        instructions="You are a coding assistant that talks like a pirate.",
        input="How do I check if a Python object is an instance of a class?",
    )
    print(response.output_text)


def anthropic_stream(url: str) -> None:
    client = _anthropic().with_options(base_url=url)
    with client.messages.stream(
        max_tokens=1024,
        messages=[{"role": "user", "content": "Hello"}],
        model="m",
    ) as stream:
        for text in stream.text_stream:
            print(text, end="", flush=True)


def anthropic_stream_of_events(url: str) -> None:
    client = _anthropic().with_options(base_url=url)
    stream = client.messages.create(
        max_tokens=1024,
        messages=[{"role": "user", "content": "Hello, Claude"}],
        model="m",
        stream=True,
    )
    for event in stream:
        print(event.type)


def anthropic(url: str) -> None:
    client = _anthropic().with_options(base_url=url)
    message = client.messages.create(
        max_tokens=1024,
        messages=[{"role": "user", "content": "Hello, Claude"}],
        model="m",
    )
    print(message.content)


def gemini_stream(url: str) -> None:
    client = _gemini()
    for chunk in client.models.generate_content_stream(
        model="m", contents="Tell me a story in 300 words.", config={"http_options": {"base_url": url}}
    ):
        print(chunk.text, end="")


def gemini(url: str) -> None:
    client = _gemini()
    response = client.models.generate_content(
        model="m", contents="Why is the sky blue?", config={"http_options": {"base_url": url}}
    )
    print(response.text)


def ollama_stream(url: str) -> None:
    client = _ollama()
    client._client.base_url = url
    stream = client.chat(
        model="m",
        messages=[{"role": "user", "content": "Why is the sky blue?"}],
        stream=True,
    )
    for chunk in stream:
        print(chunk["message"]["content"], end="", flush=True)


def ollama(url: str) -> None:
    client = _ollama()
    client._client.base_url = url
    response = client.chat(
        model="m",
        messages=[
            {
                "role": "user",
                "content": "Why is the sky blue?",
            },
        ],
    )
    print(response["message"]["content"])
    print(response.message.content)


def litellm_stream(url: str) -> None:
    """The loop of LiteLLM's README. ``completion`` gives chunks of this form."""
    client = _openai().with_options(base_url=f"{url}/v1")
    response = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hello!"}], stream=True)
    for part in response:
        print(part.choices[0].delta.content or "", end="")


def langchain_stream(url: str) -> None:
    """The loop of LangChain's documentation, over the dictionaries of which LangChain makes its chunks."""
    client = _openai().with_options(base_url=f"{url}/v1")
    stream = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hello!"}], stream=True)
    for chunk in (chunk.model_dump() for chunk in stream):
        print(chunk["choices"][0]["delta"].get("content") or "", end="|", flush=True)


EXAMPLES: Final = {
    run.__name__: Example(dialect, streams, run, prints)
    for dialect, streams, run, prints in (
        ("openai_chat", True, openai_chat_stream, True),
        ("openai_chat", True, openai_chat_stream_of_deltas, False),
        ("openai_chat", True, litellm_stream, True),
        ("openai_chat", True, langchain_stream, False),
        ("openai_chat", False, openai_chat, True),
        ("openai_completions", True, openai_completions_stream, True),
        ("openai_completions", False, openai_completions, True),
        ("openai_responses", True, openai_responses_stream, False),
        ("openai_responses", False, openai_responses, True),
        ("anthropic", True, anthropic_stream, True),
        ("anthropic", True, anthropic_stream_of_events, False),
        ("anthropic", False, anthropic, False),
        ("gemini", True, gemini_stream, True),
        ("gemini", False, gemini, True),
        ("ollama", True, ollama_stream, True),
        ("ollama", False, ollama, False),
    )
}
NODE: Final = {
    "example-openai-chat-stream": ("openai_chat", True),
    "example-openai-chat": ("openai_chat", False),
    "example-openai-responses-stream": ("openai_responses", True),
    "example-openai-responses": ("openai_responses", False),
    "example-anthropic-stream": ("anthropic", True),
    "example-anthropic": ("anthropic", False),
    "example-google-genai-stream": ("gemini", True),
    "example-google-genai": ("gemini", False),
    "example-ollama-stream": ("ollama", True),
    "example-ollama": ("ollama", False),
    "example-ai-sdk-chat-stream": ("openai_chat", True),
    "example-ai-sdk-chat": ("openai_chat", False),
    "example-ai-sdk-responses-stream": ("openai_responses", True),
    "example-ai-sdk-responses": ("openai_responses", False),
    "example-ai-sdk-anthropic-stream": ("anthropic", True),
    "example-ai-sdk-anthropic": ("anthropic", False),
}
"""The examples in JavaScript, with the dialect that each reads, and whether it streams."""


def text_after_a_call(response: Response) -> bool:
    given = response.choices[0].parts if response.choices else []
    first = next((place for place, part in enumerate(given) if isinstance(part, ToolCallPart)), len(given))
    return any(isinstance(part, TextPart) for part in given[first:])


LIMITS: Final[list[Limit]] = [
    Limit(
        ("example-ai-sdk-chat",),
        "calls of custom tools",
        "its type of a whole answer knows calls of functions only",
        custom_calls,
    ),
    Limit(
        ("example-ai-sdk-responses",),
        "a compaction",
        "its type of a whole answer does not know the item",
        lambda response: any(
            part.echo is not None and part.echo.data.get("type") == "compaction"
            for choice in response.choices
            for part in choice.parts
            if isinstance(part, ReasoningPart)
        ),
    ),
    Limit(
        ("example-ai-sdk-anthropic",),
        "a search of an earlier answer",
        "it refuses the result of a call that is not in the same answer",
        lambda response: not calls(response, "server") and any(isinstance(part, ToolResultPart) for part in parts(response)),
    ),
    Limit(
        ("anthropic_stream", "example-anthropic-stream", "example-anthropic", "example-ai-sdk-anthropic-stream"),
        "text after a call",
        "the API has none; the writer counts it as lost",
        text_after_a_call,
    ),
]
"""Answers that an example cannot show, whoever serves them."""


def limited(name: str, response: Response) -> bool:
    return any(name in limit.clients and limit.met(response) for limit in LIMITS)


@cache
def own_errors() -> tuple[type[Exception], ...]:
    """The errors by which the vendors' clients report what a stream says."""
    import anthropic
    import ollama
    import openai
    from google.genai import errors

    return openai.APIError, anthropic.APIError, errors.APIError, ollama.ResponseError


def served(server: StreamServer, dialect: str, events: list[Event], response: Response, streams: bool) -> str:
    """The address of the answer that a client gets which asked for nothing special."""
    known = streamglot.DIALECTS[dialect]
    if streams:
        box = streamglot.writer(dialect, id="id-1", model="m", created=1)
        return server.serve(box.feed(events) + box.close(), known.media_type)
    if response.error is not None:
        status = response.error.status if 400 <= response.error.status < 600 else 500
        return server.serve(json.dumps(known.error_body(response.error)).encode(), "application/json", status)
    response.id, response.model, response.created = response.id or "id-1", response.model or "m", response.created or 1
    return server.serve(json.dumps(known.build_response(response)).encode(), "application/json")


def fault_of(example: Example, url: str, response: Response) -> str:
    """Runs the example. Returns what is wrong with it, or nothing."""
    out = io.StringIO()
    try:
        with redirect_stdout(out):
            example.run(url)
    except own_errors() as error:
        return "" if response.error is not None else f"{type(error).__name__}: {error!s:.300}"
    except Exception as error:  # any other exception is a finding
        return f"{type(error).__name__}: {error!s:.300}"
    if response.error is not None and not example.streams:
        return "the example did not report the error"
    return _other_text(out.getvalue(), response) if example.prints else ""


def _other_text(printed: str, response: Response) -> str:
    """What is printed with white space and the word None removed, which loops print for a chunk without text."""
    if response.error is not None or not response.choices or several_choices(response):  # loops mix several answers
        return ""
    wanted = "".join(part.text for part in response.choices[0].parts if type(part) is TextPart)
    if wanted and _plain(wanted) not in _plain(printed):
        return f"printed {printed[:200]!r}, not {wanted[:200]!r}"
    return ""


def _plain(text: str) -> str:
    return "".join(text.replace("None", "").split())


class Examples:
    """Runs all examples on one answer after the other."""

    def __init__(self, server: StreamServer, node: NodeClients | None) -> None:
        self.count: Counter[str] = Counter()
        self._server = server
        self._node = node

    def run(self, events: list[Event]) -> list[str]:
        """The faults of this answer."""
        faults = []
        response = streamglot.collect(events)
        urls = {
            (dialect, streams): served(self._server, dialect, events, response, streams)
            for dialect in dict.fromkeys(example.dialect for example in EXAMPLES.values())
            for streams in (True, False)
        }
        node = self._node
        asked = [] if node is None else [name for name in NODE if not limited(name, response)]
        for name in asked:
            assert node is not None
            node.ask(name, urls[NODE[name]])  # they read while those in Python do
        for name, example in EXAMPLES.items():
            if limited(name, response):
                continue
            self.count[name] += 1
            fault = fault_of(example, urls[example.dialect, example.streams], response)
            if fault:
                faults.append(f"{name}: {fault}")
        for name in asked:
            self.count[name] += 1
            assert node is not None
            said = node.answer()
            if said["error"] and (said["rejected"] or response.error is None):
                faults.append(f"{name}: {said['error']}")
            elif not said["error"] and (fault := _other_text(said["text"], response)):
                faults.append(f"{name}: {fault}")
        self._server.forget()
        return faults


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("corpus", type=Path)
    options.add_argument("--node", action="store_true")
    chosen = options.parse_args()
    if chosen.node and missing():
        sys.exit(f"cannot run the examples in Node: {missing()}")
    wrong = 0
    with StreamServer() as server:
        node = NodeClients().__enter__() if chosen.node else None
        examples = Examples(server, node)
        for reader, file, body in rows(chosen.corpus, None):
            box = streamglot.reader(reader)
            faults = examples.run(box.feed(body) + box.close())
            wrong += bool(faults)
            if faults:
                print(f"WRONG {reader}: {file}", *faults, sep="\n    ")
        if node is not None:
            node.__exit__(None, None, None)
    for name, count in examples.count.items():
        print(f"{name:40} {count:5} answers")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
