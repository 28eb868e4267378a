"""The endpoints: the paths that clients call, each with its dialect."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct, field

from ..dialects import DIALECTS, Dialect, dialect
from ..errors import ConfigError
from ..json_types import JsonObject
from ..messages import Request, Response

Body = JsonObject
Options = JsonObject


def _no_options(_request: Request, _body: Body) -> Options:
    return {}


class Endpoint(Struct, frozen=True):
    """One endpoint of a dialect.

    ``parse`` builds a request from a body and the model in the path. ``writer`` and ``response`` return the options for the
    stream writer and for the response builder that depend on the body, beside those that follow from the request. ``id_prefix`` begins the response ids that the gateway
    makes. ``passed`` are the client headers that are forwarded to an upstream of the same dialect. ``numbered`` says that clients
    accept event ids in frames; other clients fail on them or use ids for another purpose. ``chat`` is the field that names the
    conversation of a web page. ``options_in`` is the object of the body that may have the options for the gateway in it.
    """

    dialect: str
    parse: Callable[[Body, str], Request]
    id_prefix: str = "sg_"
    writer: Callable[[Request, Body], Options] = _no_options
    response: Callable[[Request, Body], Options] = _no_options
    headers: dict[str, str] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    numbered: bool = False
    chat: str = ""
    options_in: str = ""
    build: Callable[[Response, Body], Body] | None = None
    """Builds the whole answer, if its form differs from that of the dialect."""
    unknown_model_status: int = 404
    """The HTTP status for a model that no upstream serves."""

    @property
    def media_type(self) -> str:
        return dialect(self.dialect).media_type

    @property
    def retrievable(self) -> bool:
        return self.dialect == RETRIEVABLE


def _plain(name: str) -> Callable[[Body, str], Request]:
    def parse(body: Body, _model: str) -> Request:
        known = dialect(name)
        known.need_conversation(body)
        return known.parse_request(body)

    return parse


def _always_streams(name: str) -> Callable[[Body, str], Request]:
    def parse(body: Body, _model: str) -> Request:
        known = dialect(name)
        known.need_conversation(body)
        request = known.parse_request(body)
        request.stream = True
        # thread and run names and approval answers are for the gateway, not the upstream
        request.extra, request.essential = {}, []
        return request

    return parse


def _streams_by_default(name: str) -> Callable[[Body, str], Request]:
    def parse(body: Body, _model: str) -> Request:
        return dialect(name).parse_request({"stream": True, **body})

    return parse


def _compacting(body: Body, _model: str) -> Request:
    retrievable = dialect(RETRIEVABLE)
    retrievable.need_conversation(body)
    return retrievable.summary_request(retrievable.parse_request(body))


def _compacted(response: Response, body: Body) -> Body:
    return dialect(RETRIEVABLE).build_compaction(response, body)


def _gemini(stream: bool) -> Callable[[Body, str], Request]:
    def parse(body: Body, model: str) -> Request:
        known = dialect("gemini")
        known.need_conversation(body)
        return known.parse_request(body, model=model, stream=stream)

    return parse


def _chat_response(request: Request, _body: Body) -> Options:
    return {"functions": request.functions}


def _mirror(request: Request, body: Body) -> Options:
    """The writer's options: a response repeats the fields of its request, except the input, and the declared tools."""
    mirror = {name: value for name, value in body.items() if name in REPEATED and value is not None}
    return {"mirror": mirror, "tools": request.tools}


def _agui_writer(_request: Request, body: Body) -> Options:
    names = {"threadId": "thread_id", "runId": "run_id"}
    return {ours: body[theirs] for theirs, ours in names.items() if isinstance(body.get(theirs), str)}


def _ui_writer(_request: Request, body: Body) -> Options:
    """The writer's options: the answer to an approval continues the message that asked for it."""
    find = dialect("vercel_ui").approval_answers
    answered = find is not None and find(body, lambda _id: True)[0]
    id = body["messages"][-1].get("id") if answered else None
    return {"message_id": id} if isinstance(id, str) else {}


REPEATED: Final = frozenset(
    (
        *("background", "instructions", "max_output_tokens", "max_tool_calls", "parallel_tool_calls", "previous_response_id"),
        *("reasoning", "temperature", "text", "tool_choice", "tools", "top_p", "truncation", "user", "metadata", "store"),
        *("service_tier", "prompt_cache_key", "safety_identifier", "top_logprobs", "conversation"),
    )
)
_BETA: Final = ("openai-beta", "openai-organization", "openai-project")

ENDPOINTS: Final[dict[str, Endpoint]] = {
    "/v1/chat/completions": Endpoint("openai_chat", _plain("openai_chat"), "chatcmpl-", response=_chat_response, passed=_BETA),
    "/v1/completions": Endpoint("openai_completions", _plain("openai_completions"), "cmpl-"),
    "/v1/responses": Endpoint(
        "openai_responses",
        _plain("openai_responses"),
        "resp_",
        _mirror,
        _mirror,
        passed=_BETA,
    ),
    "/v1/responses/compact": Endpoint("openai_responses", _compacting, "resp_", build=_compacted, passed=_BETA),
    "/v1/messages": Endpoint("anthropic", _plain("anthropic"), "msg_", passed=("anthropic-beta",)),
    "/api/chat": Endpoint("ollama", _streams_by_default("ollama")),
    "/api/generate": Endpoint(
        "ollama",
        _streams_by_default("ollama"),
        writer=lambda request, body: {"generate": True},
        response=lambda request, body: {"generate": True},
    ),
    "/agui": Endpoint("agui", _always_streams("agui"), "run_", _agui_writer, numbered=True, options_in="forwardedProps"),
    "/ui": Endpoint(
        "vercel_ui",
        _always_streams("vercel_ui"),
        "msg_",
        _ui_writer,
        numbered=True,
        chat="id",
    ),
}

COMPATIBLE: Final = "/v1beta/openai/"
"""Begins the addresses of chat clients that are configured for Google, which serves them there."""
_OWN: Final = "/v1/"


def compatible(path: str) -> str:
    """Our own address for one under ``COMPATIBLE``."""
    return _OWN + path.removeprefix(COMPATIBLE) if path.startswith(COMPATIBLE) else path


PLAIN: Final = ("openai_chat", "openai_responses", "openai_completions")
"""Dialects whose upstreams serve embeddings under the same base URL as chat."""
COMPLETES: Final = "openai_completions"
"""The dialect whose upstreams accept several prompts in one request."""
RETRIEVABLE: Final = "openai_responses"
"""The dialect whose responses can be fetched, continued and run in the background by id."""
COUNTED_BY: Final = "anthropic"
"""The dialect whose upstreams have an endpoint that counts tokens."""

_GEMINI: Final = re.compile(r"/v1(?:beta|alpha)?/models/(?P<model>.+):(?P<verb>generateContent|streamGenerateContent)")
_GEMINI_UNKNOWN: Final = 400
"""gemini-cli repeats its side requests without a pause when their model is answered with 404. It stops after a 400."""
_GEMINI_STREAM: Final = Endpoint("gemini", _gemini(True), unknown_model_status=_GEMINI_UNKNOWN)
_GEMINI_WHOLE: Final = Endpoint("gemini", _gemini(False), unknown_model_status=_GEMINI_UNKNOWN)
_GEMINI_ARRAY: Final = Endpoint(
    "gemini",
    _gemini(True),
    writer=lambda request, body: {"array": True},
    headers={"content-type": "application/json"},
    unknown_model_status=_GEMINI_UNKNOWN,
)


def dialect_of(path: str, headers: Mapping[str, str]) -> str:
    """The dialect whose error shape the client expects at a path that is not an endpoint."""
    if path.startswith("/api/"):
        return "ollama"
    if "anthropic-version" in headers or path.startswith("/v1/messages"):
        return "anthropic"
    if path.startswith(("/v1beta", "/v1alpha")) or "x-goog-api-key" in headers:
        return "gemini"
    return "openai_chat"


def endpoint_for(path: str, query: Callable[[str], str]) -> tuple[Endpoint, str] | None:
    """The endpoint at this path, and the model if the path names one. ``query`` returns a parameter of the query."""
    endpoint = ENDPOINTS.get(path)
    if endpoint is not None:
        return endpoint, ""
    found = _GEMINI.fullmatch(path)
    if found is None:
        return _of_package(path)
    if found["verb"] == "generateContent":
        return _GEMINI_WHOLE, found["model"]
    return (_GEMINI_STREAM if query("alt") == "sse" else _GEMINI_ARRAY), found["model"]


def _of_package(path: str) -> tuple[Endpoint, str] | None:
    """The endpoint of the dialect of an installed package, whose address begins with the name of the dialect. The package is
    imported when its address is first called."""
    name = path[1:].partition("/")[0]
    if name not in DIALECTS.offered:
        return None
    try:
        known = DIALECTS[name]
    except ConfigError as error:
        return Endpoint(next(iter(DIALECTS)), _refused(error)), ""
    return (Endpoint(name, _plain(name)), "") if known.has_writer and path == _package_path(known) else None


def _refused(error: ConfigError) -> Callable[[Body, str], Request]:
    def parse(_body: Body, _model: str) -> Request:
        raise error

    return parse


def _package_path(known: Dialect) -> str:
    return f"/{known.name}/{known.client_path}".rstrip("/")


def path_of(name: str, model: str) -> str:
    """The path of a dialect for a request with this model.

    A dialect without an endpoint gets the path of the first endpoint.
    """
    if name == "gemini":
        return f"/v1beta/models/{model}:streamGenerateContent?alt=sse"
    if name in DIALECTS.offered and DIALECTS[name].has_writer:
        return _package_path(DIALECTS[name])
    return next((path for path, endpoint in ENDPOINTS.items() if endpoint.dialect == name), next(iter(ENDPOINTS)))
