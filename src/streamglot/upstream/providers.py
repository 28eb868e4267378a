"""The known providers: their addresses, how they are discovered, and how their abilities differ from their dialect's.

A configured upstream at the address of a known provider has that provider's abilities, whatever its name.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct, field

from ..dialects.common.abilities import UNSPECIFIED, Abilities
from ..json_types import JsonObject
from ..plugins import Plugins
from .settings import Upstream


class Provider(Struct, frozen=True):
    """A row of the table. ``key_env``: the variable with the API key. A provider without one is a server on this machine, which
    is found by its port. ``models``: patterns of model names that prefer this provider. ``abilities``: differences from its
    dialect's, for all dialects of the provider. ``convention``: its name in the OpenTelemetry conventions, where that is
    another."""

    name: str
    title: str
    dialect: str
    base_url: str
    key_env: str = ""
    models: tuple[str, ...] = ("*",)
    options: JsonObject = field(default_factory=dict)
    probe: str = ""
    abilities: Abilities = UNSPECIFIED
    convention: str = ""

    def upstream(self, key: str = "") -> Upstream:
        return Upstream(
            name=self.name,
            dialect=self.dialect,
            base_url=self.base_url,
            key=key,
            key_env=self.key_env,
            models=list(self.models),
            options=dict(self.options),
        )


_OWN_LIMIT: Final = {"max_tokens": "max_completion_tokens"}
_STRICT: Final = Abilities(
    call_id_chars=9,
    call_id_fixed=True,
    user_chars=0,
    refused=(
        *("store", "service_tier", "cache_key", "verbosity", "top_k", "min_p", "repetition_penalty"),
        *("logit_bias", "logprobs", "top_logprobs", "seed"),
    ),
)
"""A server that refuses unknown fields and call ids in other forms than its own."""

BATCH_APIS: Final = {
    "openai_chat": ("files", "/v1/chat/completions"),
    "openai_responses": ("files", "/v1/responses"),
    "anthropic": ("messages", ""),
}
"""The batch API of the upstreams of each dialect: one with uploaded files and a given endpoint, or one of messages."""
PROVIDER_PRICE_SHARE: Final = 0.5
"""The price of these batch APIs, as a share of the price of a call."""

PROVIDERS: Final = (
    Provider(
        "openai",
        "OpenAI",
        "openai_responses",
        "https://api.openai.com/v1",
        "OPENAI_API_KEY",
        ("gpt-*", "o1*", "o3*", "o4*", "chatgpt-*", "codex-*"),
        abilities=Abilities(custom_tools=True, developer_role=True, inner_system=True, call_id_chars=64),
    ),
    Provider(
        "anthropic",
        "Anthropic",
        "anthropic",
        "https://api.anthropic.com",
        "ANTHROPIC_API_KEY",
        ("claude-*",),
        abilities=Abilities(inner_system=True),
    ),
    Provider(
        "gemini",
        "Google Gemini",
        "gemini",
        "https://generativelanguage.googleapis.com/v1beta",
        "GEMINI_API_KEY",
        ("gemini-*", "gemma-*"),
        convention="gcp.gemini",
    ),
    Provider(
        "openrouter",
        "OpenRouter",
        "openai_chat",
        "https://openrouter.ai/api/v1",
        "OPENROUTER_API_KEY",
        ("*/*",),
        abilities=Abilities(developer_role=True, cache_control=True, user_chars=128, reasoning_object=True),
    ),
    Provider(
        "mistral",
        "Mistral",
        "openai_chat",
        "https://api.mistral.ai/v1",
        "MISTRAL_API_KEY",
        ("mistral-*", "ministral-*", "magistral-*", "codestral-*", "devstral-*", "pixtral-*"),
        abilities=_STRICT,
        convention="mistral_ai",
    ),
    Provider("deepseek", "DeepSeek", "openai_chat", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", ("deepseek-*",)),
    Provider("groq", "Groq", "openai_chat", "https://api.groq.com/openai/v1", "GROQ_API_KEY", ("llama-*", "groq/*"), _OWN_LIMIT),
    Provider("xai", "xAI", "openai_chat", "https://api.x.ai/v1", "XAI_API_KEY", ("grok-*",), convention="x_ai"),
    Provider("cohere", "Cohere", "cohere", "https://api.cohere.com", "COHERE_API_KEY", ("command-*", "c4ai-*")),
    Provider(
        "cerebras",
        "Cerebras",
        "openai_chat",
        "https://api.cerebras.ai/v1",
        "CEREBRAS_API_KEY",
        ("cerebras/*",),
        _OWN_LIMIT,
        abilities=Abilities(refused=("frequency_penalty", "presence_penalty", "logit_bias", "service_tier")),
    ),
    Provider("together", "Together", "openai_chat", "https://api.together.xyz/v1", "TOGETHER_API_KEY", ("*/*",)),
    Provider(
        "fireworks", "Fireworks", "openai_chat", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY", ("accounts/*",)
    ),
    Provider("moonshot", "Moonshot", "openai_chat", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", ("kimi-*", "moonshot-*")),
    Provider(
        "zai",
        "Z.ai",
        "openai_chat",
        "https://api.z.ai/api/paas/v4",
        "ZAI_API_KEY",
        ("glm-*",),
        abilities=Abilities(user_chars=128),
    ),
    Provider("perplexity", "Perplexity", "openai_chat", "https://api.perplexity.ai", "PERPLEXITY_API_KEY", ("sonar*",)),
    Provider("huggingface", "Hugging Endpoint", "openai_chat", "https://router.huggingface.co/v1", "HF_TOKEN", ("*/*",)),
    Provider("ollama", "Ollama on this machine", "ollama", "http://127.0.0.1:11434", probe="http://127.0.0.1:11434/api/tags"),
    Provider(
        "llamacpp",
        "llama.cpp on this machine",
        "openai_chat",
        "http://127.0.0.1:8080/v1",
        probe="http://127.0.0.1:8080/v1/models",
    ),
    Provider("vllm", "vLLM on this machine", "openai_chat", "http://127.0.0.1:8000/v1", probe="http://127.0.0.1:8000/v1/models"),
)

KNOWN_PROVIDERS: Final = Plugins("provider", Provider, lambda: {row.name: row for row in PROVIDERS})
"""The providers by name: ours, and those of installed packages."""

VENDORS: Final = {
    "openai_chat": "openai",
    "openai_responses": "openai",
    "openai_completions": "openai",
    "anthropic": "anthropic",
    "gemini": "gemini",
    "cohere": "cohere",
    "ollama": "ollama",
}
"""The provider that a dialect is named after, for dialects with one address."""


_PORTS: Final = {"http": 80, "https": 443}


def _host(base_url: str) -> str:
    """The host and port of a URL, without anything secret and without the port that the scheme has anyway."""
    place = urlsplit(base_url)
    try:
        port = place.port
    except ValueError:  # an invalid port: no provider has this address
        return ""
    return f"{place.hostname}:{port}" if port and port != _PORTS.get(place.scheme) else place.hostname or ""


_BY_HOST: Final = {_host(provider.base_url): provider for provider in PROVIDERS}


@lru_cache(1024)
def _at(host: str) -> Provider | None:
    """The provider at a host and port: one of ours, else one of an installed package."""
    known = _BY_HOST.get(host)
    return known or next((row for row in KNOWN_PROVIDERS.usable() if host and _host(row.base_url) == host), None)


@lru_cache(1024)
def _keyed(base_url: str) -> Provider | None:
    """The provider with keys at an address. Servers of this machine have no abilities by their port."""
    found = _at(_host(base_url))
    return found if found is not None and found.key_env else None


@lru_cache(1024)
def _known(base_url: str, abilities: Abilities) -> Abilities:
    found = _keyed(base_url)
    return abilities.over(found.abilities if found is not None else UNSPECIFIED)


def provider_name(upstream: Upstream) -> str:
    """The known provider at the address of an upstream; for another address, the upstream's own name."""
    return _name_at(_host(upstream.base_url)) or upstream.name


def _name_at(host: str) -> str:
    found = _at(host)
    return found.name if found is not None else ""


def maker_of(upstream: Upstream) -> str:
    """Who makes the opaque state in the answers of this upstream, whatever the upstream is called: upstreams of one maker accept
    each other's state."""
    return _maker(upstream.dialect, upstream.state, upstream.base_url, upstream.name)


@lru_cache(1024)
def _maker(dialect: str, state: str, base_url: str, name: str) -> str:
    host = _host(base_url)
    return f"{dialect}@{state or _name_at(host) or host or name}"


def abilities_of(upstream: Upstream) -> Abilities:
    """The abilities of an upstream: from its configuration, else from its provider's row."""
    return _known(upstream.base_url, upstream.abilities)


@lru_cache(1024)
def is_at_provider(base_url: str) -> bool:
    """Whether this is the address of a provider with keys, which parses the text of its models itself."""
    return _keyed(base_url) is not None


_CONVENTION_BY_DOMAIN: Final = {
    ".openai.azure.com": "azure.ai.openai",
    ".services.ai.azure.com": "azure.ai.inference",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
}
_CONVENTION_BY_DIALECT: Final = {"bedrock_converse": "aws.bedrock", "bedrock_invoke": "aws.bedrock"}
_OPERATIONS: Final = {"gemini": "generate_content", "openai_completions": "text_completion"}


@lru_cache(1024)
def _convention(base_url: str, dialect: str, name: str) -> str:
    provider, host = _keyed(base_url), _host(base_url)
    if provider is not None:
        return provider.convention or provider.name
    found = next((known for domain, known in _CONVENTION_BY_DOMAIN.items() if host.endswith(domain)), "")
    return found or _CONVENTION_BY_DIALECT.get(dialect, "") or name


def convention_name(upstream: Upstream) -> str:
    """The provider of an upstream as the OpenTelemetry conventions name it; for another one, the upstream's own name."""
    return _convention(upstream.base_url, upstream.dialect, upstream.name)


def operation_name(dialect: str) -> str:
    """The name of a request in this dialect in the OpenTelemetry conventions."""
    return _OPERATIONS.get(dialect, "chat")
