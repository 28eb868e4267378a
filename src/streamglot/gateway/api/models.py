"""The list of models, in the shape that the client's dialect expects."""

from __future__ import annotations

from collections.abc import Mapping

from ...json_types import JsonObject

Named = list[tuple[str, str]]
"""Models, each with its upstream."""
MODEL_CREATED = "2026-01-01T00:00:00Z"
MODEL_CREATED_SECONDS = 1_767_225_600


def listing(models: Named, providers: Mapping[str, str], headers: Mapping[str, str], path: str, key_in_query: bool) -> JsonObject:
    """Returns the list. Two dialects share one shape. A third is recognised by its path or header. ``providers`` has the provider
    of each upstream."""
    if by_address(headers, path, key_in_query):
        return {"models": [by_path(name) for name, _ in models]}
    data = [entry(name, owner, providers.get(owner, owner)) for name, owner in models]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, "has_more": False, **ends}


def by_address(headers: Mapping[str, str], path: str, key_in_query: bool) -> bool:
    """Returns whether the client's dialect names models in paths."""
    return path.startswith(("/v1beta", "/v1alpha")) or "x-goog-api-key" in headers or key_in_query


def entry(name: str, owner: str, provider: str) -> JsonObject:
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "created": MODEL_CREATED_SECONDS,
        "created_at": MODEL_CREATED,
        "display_name": name,
        "owned_by": owner,
        "provider": provider,
        "lifecycle": "active",
    }


def by_path(name: str) -> JsonObject:
    return {
        "name": f"models/{name}",
        "displayName": name,
        "version": "1",
        "supportedGenerationMethods": ["generateContent", "streamGenerateContent", "countTokens"],
    }
