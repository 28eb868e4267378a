"""``streamglot setup``: the settings with which other programs talk to this gateway."""

from __future__ import annotations

import sys
from pathlib import Path
from string import Template
from typing import Final

from msgspec import Struct

from ..errors import ConfigError


class Recipe(Struct, frozen=True):
    """``file``: where the client reads its settings; ``text`` belongs there, or is pasted where ``how`` says."""

    how: str
    text: str
    file: str = ""


_RECIPES: Final[dict[str, Recipe]] = {
    "codex": Recipe(
        "in ~/.codex/config.toml; then: STREAMGLOT_KEY=$key codex",
        """\
model = "$model"
model_provider = "streamglot"

[model_providers.streamglot]
name = "streamglot"
base_url = "$address/v1"
env_key = "STREAMGLOT_KEY"
wire_api = "responses"
""",
        "~/.codex/config.toml",
    ),
    "claude-code": Recipe(
        "in ~/.claude/settings.json",
        """\
{
  "env": {
    "ANTHROPIC_BASE_URL": "$address",
    "ANTHROPIC_AUTH_TOKEN": "$key",
    "ANTHROPIC_MODEL": "$model",
    "ANTHROPIC_SMALL_FAST_MODEL": "$model"
  }
}
""",
        "~/.claude/settings.json",
    ),
    "openai": Recipe(
        "in the shell, for the Python and JavaScript packages and everything that is built on them",
        """\
export OPENAI_BASE_URL=$address/v1
export OPENAI_API_KEY=$key
""",
    ),
    "anthropic": Recipe(
        "in the shell, for the Python and JavaScript packages and everything that is built on them",
        """\
export ANTHROPIC_BASE_URL=$address
export ANTHROPIC_API_KEY=$key
""",
    ),
    "opencode": Recipe(
        "in opencode.json, in the folder of your project",
        """\
{
  "$$schema": "https://opencode.ai/config.json",
  "provider": {
    "streamglot": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "streamglot",
      "options": { "baseURL": "$address/v1", "apiKey": "$key" },
      "models": { "$model": { "name": "$model" } }
    }
  },
  "model": "streamglot/$model"
}
""",
        "opencode.json",
    ),
    "aider": Recipe(
        "in .aider.conf.yml, in the folder of your project or at home",
        """\
model: openai/$model
openai-api-base: $address/v1
openai-api-key: $key
""",
        ".aider.conf.yml",
    ),
    "continue": Recipe(
        "in ~/.continue/config.yaml",
        """\
name: streamglot
version: 0.0.1
schema: v1
models:
  - name: $model
    provider: openai
    model: $model
    apiBase: $address/v1
    apiKey: $key
""",
        "~/.continue/config.yaml",
    ),
    "open-webui": Recipe(
        "in the environment of Open WebUI",
        """\
OPENAI_API_BASE_URL=$address/v1
OPENAI_API_KEY=$key
OLLAMA_BASE_URL=$address
""",
    ),
    "vercel": Recipe(
        "in the browser, with the AI SDK's own stream; or on a server, with its OpenAI-compatible provider",
        """\
// React
import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport } from "ai";
const chat = useChat({ transport: new DefaultChatTransport({ api: "$address/ui", body: { model: "$model" } }) });

// server
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { streamText } from "ai";
const streamglot = createOpenAICompatible({ name: "streamglot", baseURL: "$address/v1", apiKey: "$key" });
const answer = streamText({ model: streamglot("$model"), prompt: "Hello" });
""",
    ),
    "langchain": Recipe(
        "in Python: pip install langchain-openai",
        """\
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="$model", base_url="$address/v1", api_key="$key")
for piece in model.stream("Hello"):
    print(piece.content, end="", flush=True)
""",
    ),
    "curl": Recipe(
        "in the shell: the same question in several dialects",
        """\
curl -N $address/v1/chat/completions -H 'authorization: Bearer $key' -H 'content-type: application/json' \\
  -d '{"model": "$model", "stream": true, "messages": [{"role": "user", "content": "Hello"}]}'

curl -N $address/v1/responses -H 'authorization: Bearer $key' -H 'content-type: application/json' \\
  -d '{"model": "$model", "stream": true, "input": "Hello"}'

curl -N $address/v1/messages -H 'x-api-key: $key' -H 'anthropic-version: 2023-06-01' -H 'content-type: application/json' \\
  -d '{"model": "$model", "stream": true, "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]}'

curl -N "$address/v1beta/models/$model:streamGenerateContent?alt=sse" -H 'x-goog-api-key: $key' \\
  -H 'content-type: application/json' -d '{"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]}'

curl -N $address/api/chat -H 'authorization: Bearer $key' \\
  -d '{"model": "$model", "messages": [{"role": "user", "content": "Hello"}]}'

curl -N $address/agui -H 'authorization: Bearer $key' -H 'content-type: application/json' \\
  -d '{"threadId": "t1", "runId": "r1", "state": {}, "messages": [{"id": "m1", "role": "user", "content": "Hello"}],
       "tools": [], "context": [], "forwardedProps": {}}'
""",
    ),
}


def recipe(client: str, address: str, model: str, key: str) -> Recipe:
    found = _RECIPES.get(client)
    if found is None:
        raise ConfigError(f"no settings are known for {client!r}; there are: {', '.join(_RECIPES)}")
    for name, value in (("--address", address), ("--model", model), ("--key", key)):
        if not value.isprintable() or any(mark in value for mark in "\"'`$\\ "):
            raise ConfigError(f"{name} {value!r} has a character in it that settings files cannot hold as it is")
    values = {"address": address.rstrip("/"), "model": model, "key": key}
    return Recipe(Template(found.how).substitute(values), Template(found.text).substitute(values), found.file)


def run(client: str | None, address: str, model: str, key: str, write: bool) -> int:
    if client is None:
        for name, known in _RECIPES.items():
            print(f"{name:12} {known.file}".rstrip())
        return 0
    made = recipe(client, address, model, key)
    if not write:
        print(f"# {made.how}", file=sys.stderr)
        print(made.text, end="")
        return 0
    if not made.file:
        raise ConfigError(f"{client} has no settings file of its own; without --write it is shown what to paste")
    path = Path(made.file).expanduser()
    if path.exists():
        raise ConfigError(f"{path} is there already and is not changed; add to it what is shown without --write")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(made.text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None
    print(f"written: {path}")
    return 0
