"""docs/http-api.md: every address of the gateway, from its OpenAPI description, and the headers."""

from __future__ import annotations

from typing import Any

from streamglot.config import Config, LoadedConfig
from streamglot.gateway.api.pages import description
from streamglot.gateway.app import Gateway

from .words import NOTE, cell

HEADERS = {
    "x-streamglot-session": ("request, response", "The name of the session that a request belongs to."),
    "x-streamglot-keep": ("request", "`true`: complete the answer even if the client disconnects."),
    "x-streamglot-output": (
        "request",
        "`strict`: write only the fields of the dialect's specification; `rich`: also those that many clients read.",
    ),
    "x-streamglot-reasoning-field": (
        "request",
        "The field with the text of reasoning in chat answers: `reasoning`, `reasoning_content`, `reasoning_details` or `all`.",
    ),
    "x-streamglot-tools": ("request", "Globs of the gateway's tools that the model may call; empty for none."),
    "x-streamglot-activity": (
        "request",
        "How runs of tools are shown: `extensions` (AG-UI: activity events) or `reasoning`.",
    ),
    "x-streamglot-key": ("request", "The key for the gateway, if the usual header has a key for the upstream."),
    "x-streamglot-directory": ("request", "The folder that a session belongs to."),
    "x-streamglot-upstream": ("response", "The upstream that answered."),
    "x-streamglot-model": ("response", "The model that answered, if the client named another one."),
    "x-streamglot-turn": ("response", "The id of the stored turn."),
    "x-streamglot-stream": ("response", "The id under which the stream can be resumed."),
    "x-streamglot-after": ("response", "The event after which a resumed stream begins."),
    "x-streamglot-dropped": (
        "response",
        "What the upstream cannot express, and was left out or converted: parameters, and state in the history that is not the "
        "upstream's own (`messages.reasoning`); `delta.NAME` for text of the upstream in a field that nobody knows, if it came before "
        "the answer began.",
    ),
    "x-ratelimit-limit-requests": (
        "response",
        "The limit of the key; likewise `remaining` and `reset`, and `tokens`. `/v1/messages` has the names of its own vendor. Without "
        "keys, the headers of the upstream about its limits, as they came. Embeddings and token counts have them, too.",
    ),
    "x-streamglot-policy": ("response", "What policies decided before the first byte."),
    "x-streamglot-cache": ("response", "`hit` or `miss`, on routes with `cache_seconds`."),
}


def http_api_page() -> str:
    lines = [
        "# HTTP API",
        "",
        NOTE,
        "A running gateway describes itself at `/openapi.json` (OpenAPI 3.1), and shows that at `/docs`. Errors have the shape of the dialect that",
        "the address belongs to; [errors](errors.md) lists the codes. [The HTTP server](http-server.md) has limits, hosts and origins.",
        "",
        "## Requests to models",
        "",
        "The body is that of the dialect, as its vendor documents it, with or without `stream`. The key is in `Authorization: Bearer`, `x-api-key`",
        "or `x-goog-api-key`.",
        "",
        "| address | dialect |",
        "|---|---|",
    ]
    paths: dict[str, dict[str, dict[str, Any]]] = description(Gateway(LoadedConfig(Config()), {}).router.routes)["paths"]
    for path, methods in paths.items():
        lines += [f"| `{verb.upper()} {path}` | `{each['tags'][0]}` |" for verb, each in methods.items() if "tags" in each]
    lines += [
        "",
        "Clients that are configured for Google's OpenAI endpoint use the same addresses under `/v1beta/openai/` instead of `/v1/`. A model may",
        "be named `models/x`, as it is in the list for clients of Gemini. A request whose `messages`, `input` or `contents` is missing or empty",
        "is refused with 400, unless that has a meaning: Ollama's empty request loads the model, and a response may continue a",
        "`previous_response_id`, a `conversation` or a `prompt` without input.",
        "",
        "A chat client gets its usage in a last chunk with empty `choices` only if it set `stream_options.include_usage`. Fields that no client",
        "asked for, such as llama.cpp's `timings`, stand in a chunk with a choice.",
    ]
    lines += ["", "## Everything else", "", "| address | what it does | query |", "|---|---|---|"]
    for path, methods in sorted(paths.items()):
        for verb, each in methods.items():
            if "tags" not in each:
                query = ", ".join(f"`{one['name']}`" for one in each.get("parameters", ()) if one["in"] == "query")
                lines.append(f"| `{verb.upper()} {path}` | {cell(each['summary'])} | {query or '–'} |")
    known = {*_names(), *(name for name in HEADERS if not name.startswith("x-streamglot-"))}
    lines += ["", "## Headers", "", "| header | in | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {where} | {meaning} |" for name, (where, meaning) in HEADERS.items() if name in known]
    lines += [
        "",
        'Clients that cannot set headers put the same options into their body, in every dialect: `"streamglot": {"output": "strict"}`, with',
        "`tools`, `activity`, `output`, `reasoning_field`, `session`, `directory`, and the fields `keep`, `extensions` and `session_id`. AG-UI clients",
        "may put the object into `forwardedProps`.",
    ]
    return "\n".join([*lines, ""])


def _names() -> set[str]:
    """Headers that the code knows."""
    import re
    from pathlib import Path

    import streamglot

    folder = Path(streamglot.__file__).parent
    return {name for path in folder.rglob("*.py") for name in re.findall(r"x-streamglot-[a-z]+(?:-[a-z]+)*", path.read_text())}


def undescribed() -> list[str]:
    return sorted(_names() - set(HEADERS))
