"""The list of models, in the shape that the client's dialect expects."""

from __future__ import annotations

from collections.abc import Mapping

from ...dialects.ollama import wire as catalog
from ...json_types import JsonObject
from ...upstream.models import CLIENT_WAIT_SECONDS
from ...upstream.providers import provider_name
from ..admission import Admission
from ..auth.authenticator import Caller
from ..http.call import Reply, RoutedCall
from ..services import GatewayServices
from .router import KEY, APIRoute, json_of, json_reply, query_of

Named = list[tuple[str, str]]
"""Models, each with its upstream."""
MODEL_CREATED = "2026-01-01T00:00:00Z"
MODEL_CREATED_SECONDS = 1_767_225_600


def listing(models: Named, providers: Mapping[str, str], headers: Mapping[str, str], path: str, key_in_query: bool) -> JsonObject:
    """The list. Two dialects share one shape. A third is recognised by its path or header. ``providers`` has the provider of each
    upstream."""
    if by_address(headers, path, key_in_query):
        return {"models": [by_path(name) for name, _ in models]}
    data = [entry(name, owner, providers.get(owner, owner)) for name, owner in models]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, "has_more": False, **ends}


def by_address(headers: Mapping[str, str], path: str, key_in_query: bool) -> bool:
    """Whether the client's dialect names models in paths."""
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


def model_routes(services: GatewayServices, admission: Admission) -> list[APIRoute]:
    def caller_of(call: RoutedCall) -> Caller | None:
        return admission.caller(call.headers, query_of(call).get(KEY, ""))

    async def allowed(call: RoutedCall) -> Named:
        caller = caller_of(call)
        known = await services.pool.models_known(CLIENT_WAIT_SECONDS)
        return [(name, owner) for name, owner in known if caller is None or caller.may_use(name)]

    def providers() -> dict[str, str]:
        return {name: provider_name(upstream) for name, upstream in services.pool.routes.upstreams.items()}

    def owner_of(name: str) -> str:
        return services.pool.routes.find(name, lambda: 0.0)[0].upstream.name

    async def models(call: RoutedCall) -> Reply:
        return json_reply(listing(await allowed(call), providers(), call.headers, call.path, KEY in query_of(call)))

    async def model(call: RoutedCall, path: str) -> Reply:
        name = path.removeprefix("models/")
        owner = dict(await allowed(call)).get(name)
        if owner is None:
            caller = caller_of(call)
            if caller is not None:
                await caller.check(name, services.clock())
            owner = owner_of(name)
        in_path = by_address(call.headers, call.path, KEY in query_of(call))
        return json_reply(by_path(name) if in_path else entry(name, owner, providers()[owner]))

    async def local_tags(call: RoutedCall) -> Reply:
        return json_reply(catalog.tags(await allowed(call)))

    async def local_running(call: RoutedCall) -> Reply:
        return json_reply(catalog.running(await allowed(call)))

    async def local_version(_: RoutedCall) -> Reply:
        return json_reply(catalog.version())

    async def local_show(call: RoutedCall) -> Reply:
        caller = caller_of(call)
        body = await json_of(services, call)
        name = str(body.get("model") or body.get("name") or "")
        await admission.check(caller, name)
        return json_reply(catalog.show(name, owner_of(name)))

    return [
        APIRoute("GET", "/v1/models", models, "The models that can be named"),
        APIRoute("GET", "/v1/models/{model:path}", model, "One model"),
        APIRoute("GET", "/v1beta/models", models, "The models, for clients of Gemini"),
        APIRoute("GET", "/v1beta/models/{model:path}", model),
        APIRoute("GET", "/v1alpha/models", models),
        APIRoute("GET", "/v1alpha/models/{model:path}", model),
        APIRoute("GET", "/api/tags", local_tags, "The models, for clients of Ollama"),
        APIRoute("GET", "/api/ps", local_running, "The models that are loaded, for clients of Ollama"),
        APIRoute("GET", "/api/version", local_version),
        APIRoute("POST", "/api/show", local_show, "One model, for clients of Ollama"),
    ]
