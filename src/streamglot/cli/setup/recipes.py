"""The settings with which other programs use this gateway: a row for each program."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from ...errors import ConfigError
from ...upstream.local import ALIAS, CONTEXT, NAME, context_tokens, runs_default
from ...upstream.local.weights import CHOICE

Form = Literal["json", "toml", "yaml", "env"]
ACTIVE: Final = "\"'`$\\ ;&|<>()#"
"""Characters that are special in a shell or in quotes. No address, model or key needs them."""


class Recipe(Struct, frozen=True):
    """``file``: where the client reads its settings, in this ``form``; ``text`` belongs there, or is pasted where ``how`` says.
    ``then`` describes the remaining step after the settings were written. ``first_tokens``: about how many tokens the first
    request of a coding agent has, most of them its tools."""

    how: str
    text: str
    file: str = ""
    form: Form = "json"
    then: str = ""
    first_tokens: int = 0


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
supports_websockets = true
""",
        "~/.codex/config.toml",
        "toml",
        then="set STREAMGLOT_KEY to the key of the gateway (any word if it requires none), and run: codex",
        first_tokens=10_000,
    ),
    "claude-code": Recipe(
        "in ~/.claude/settings.json",
        """\
{
  "env": {
    "ANTHROPIC_BASE_URL": "$address",
    "ANTHROPIC_AUTH_TOKEN": "$key",
    "ANTHROPIC_MODEL": "$model",
    "ANTHROPIC_DEFAULT_OPUS_MODEL": "$model",
    "ANTHROPIC_DEFAULT_SONNET_MODEL": "$model",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": "$model",
    "CLAUDE_CODE_SUBAGENT_MODEL": "$model"
  }
}
""",
        "~/.claude/settings.json",
        first_tokens=23_000,
    ),
    "gemini-cli": Recipe(
        "in ~/.gemini/.env; choose the API key when gemini asks how to sign in",
        """\
GEMINI_API_KEY=$key
GOOGLE_GEMINI_BASE_URL=$address
GEMINI_MODEL=$model
""",
        "~/.gemini/.env",
        "env",
        then="run gemini, and choose the API key if it asks how to sign in",
        first_tokens=13_000,
    ),
    "qwen-code": Recipe(
        "in ~/.qwen/.env; then: qwen --auth-type openai",
        """\
OPENAI_API_KEY=$key
OPENAI_BASE_URL=$address/v1
OPENAI_MODEL=$model
""",
        "~/.qwen/.env",
        "env",
        then="run: qwen --auth-type openai",
        first_tokens=16_000,
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
        first_tokens=8_000,
    ),
    "crush": Recipe(
        "in ~/.config/crush/crush.json, or in crush.json in the folder of your project",
        """\
{
  "$$schema": "https://charm.land/crush.json",
  "providers": {
    "streamglot": {
      "type": "openai-compat",
      "name": "streamglot",
      "base_url": "$address/v1",
      "api_key": "$key",
      "models": [{ "id": "$model", "name": "$model", "context_window": 128000, "default_max_tokens": 16000 }]
    }
  },
  "models": {
    "large": { "provider": "streamglot", "model": "$model" },
    "small": { "provider": "streamglot", "model": "$model" }
  }
}
""",
        "~/.config/crush/crush.json",
    ),
    "goose": Recipe(
        "in ~/.config/goose/config.yaml; then: OPENAI_API_KEY=$key goose",
        """\
GOOSE_PROVIDER: openai
GOOSE_MODEL: "$model"
OPENAI_HOST: "$address"
OPENAI_BASE_PATH: "v1/chat/completions"
""",
        "~/.config/goose/config.yaml",
        "yaml",
        then="set OPENAI_API_KEY to the key of the gateway (any word if it requires none), and run: goose",
    ),
    "zed": Recipe(
        "in ~/.config/zed/settings.json; then: STREAMGLOT_API_KEY=$key zed",
        """\
{
  "language_models": {
    "openai_compatible": {
      "streamglot": {
        "api_url": "$address/v1",
        "available_models": [{ "name": "$model", "display_name": "$model", "max_tokens": 128000 }]
      }
    }
  },
  "agent": { "default_model": { "provider": "streamglot", "model": "$model" } }
}
""",
        "~/.config/zed/settings.json",
        then="set STREAMGLOT_API_KEY to the key of the gateway (any word if it requires none), and start zed from that shell",
    ),
    "copilot": Recipe(
        "in the shell from which copilot is started",
        """\
export COPILOT_PROVIDER_TYPE=openai
export COPILOT_PROVIDER_BASE_URL=$address/v1
export COPILOT_PROVIDER_API_KEY=$key
export COPILOT_MODEL=$model
""",
    ),
    "cline": Recipe(
        "in the settings of the Cline panel: provider OpenAI Compatible",
        """\
Base URL: $address/v1
API Key: $key
Model ID: $model
""",
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
            raise ConfigError(
                f"{name} {value!r} contains a character that settings files cannot hold without escapes; choose another value"
            )
    values = {"address": address.rstrip("/"), "model": model, "key": key}
    how, text = Template(found.how).substitute(values), Template(found.text).substitute(values)
    return replace(found, how=how, text=text)


def context_warning(client: str, model: str, environment: Mapping[str, str]) -> str:
    """A warning if the context of the model is smaller than the agent's first request; empty if it fits or is unknown."""
    needed = RECIPES[client].first_tokens if client in RECIPES else 0
    known = context_tokens(environment) if model in (NAME, ALIAS) else 0
    if not known or known >= needed:
        return ""
    more = f"{CONTEXT}={2 ** (2 * needed - 1).bit_length()}"
    other = f"run other weights with {CHOICE}=path/to/model.gguf and {more}" if runs_default(environment) else f"set {more}"
    return (
        f"the first request of {client} has about {needed:,} tokens, but the model {model!r} has a context of {known:,}; "
        f"choose another model, or {other} where the gateway starts"
    )
