"""The settings with which other programs talk to this gateway: a row for each program."""

from __future__ import annotations

from string import Template
from typing import Final, Literal

from msgspec import Struct

from ...errors import ConfigError

Form = Literal["json", "toml", "yaml", "env"]
ACTIVE: Final = "\"'`$\\ ;&|<>()#"
"""Characters that mean something to a shell or inside quotes: no address, model or key needs them."""


class Recipe(Struct, frozen=True):
    """``file``: where the client reads its settings, in this ``form``; ``text`` belongs there, or is pasted where ``how``
    says."""

    how: str
    text: str
    file: str = ""
    form: Form = "json"


RECIPES: Final[dict[str, Recipe]] = {
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
        "toml",
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
        "in the shell, for the Python and JavaScript packages and everything that is built on them; or in .env",
        """\
export OPENAI_BASE_URL=$address/v1
export OPENAI_API_KEY=$key
""",
        ".env",
        "env",
    ),
    "anthropic": Recipe(
        "in the shell, for the Python and JavaScript packages and everything that is built on them; or in .env",
        """\
export ANTHROPIC_BASE_URL=$address
export ANTHROPIC_API_KEY=$key
""",
        ".env",
        "env",
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
model: "openai/$model"
openai-api-base: "$address/v1"
openai-api-key: "$key"
""",
        ".aider.conf.yml",
        "yaml",
    ),
    "continue": Recipe(
        "in ~/.continue/config.yaml",
        """\
name: streamglot
version: 0.0.1
schema: v1
models:
  - name: streamglot
    provider: openai
    model: "$model"
    apiBase: "$address/v1"
    apiKey: "$key"
""",
        "~/.continue/config.yaml",
        "yaml",
    ),
    "open-webui": Recipe(
        "in the environment of Open WebUI, or in the file .env from which it is started",
        """\
OPENAI_API_BASE_URL=$address/v1
OPENAI_API_KEY=$key
OLLAMA_BASE_URL=$address
""",
        ".env",
        "env",
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
    found = RECIPES.get(client)
    if found is None:
        raise ConfigError(f"no settings are known for {client!r}; there are: {', '.join(RECIPES)}")
    for name, value in (("--address", address), ("--model", model), ("--key", key)):
        if not value.isprintable() or any(mark in value for mark in ACTIVE):
            raise ConfigError(f"{name} {value!r} has a character in it that settings files cannot hold as it is")
    values = {"address": address.rstrip("/"), "model": model, "key": key}
    how, text = Template(found.how).substitute(values), Template(found.text).substitute(values)
    return Recipe(how, text, found.file, found.form)
