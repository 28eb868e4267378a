"""The settings: a struct for each table of the configuration file. The documentation quotes their docstrings."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ..json_types import JsonObject
from ..messages import ReasoningField
from ..tools.settings import ToolsConfig
from ..upstream.routing.routes import Route
from ..upstream.settings import Upstream

DISABLED = "none"
"""The ``store.url`` that switches the store off, and the ``server.fallback_model`` that refuses unknown models."""
AUTO = "auto"


class KeyConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """A key for clients: its SHA-256 or the variable that contains it, what it may use, and its limits.

    ``tools``: globs of the gateway's tools that its requests are offered. A request may ask for fewer, not for more.
    """

    name: str
    hash: str = ""
    key_env: str = ""
    models: list[str] = field(default_factory=lambda: ["*"])
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrent: int = 0
    tools: list[str] | None = None


class ServerConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """The settings of the HTTP server.

    - ``concurrent``: the maximum number of simultaneous requests; ``wait``: how many seconds one may wait for a slot.
    - ``keep_alive_seconds``: the longest silence towards a client. ``stall_seconds``: how long a client may read nothing.
    - ``max_connections``: client connections per worker; 0 means as many as the limit of open files allows.
    - ``origins``: origins of web pages that may use the gateway, in addition to this machine.
    - ``allowed_hosts``: host names, in addition to this machine's, of a gateway without keys; ``"*"`` allows any.
    - ``public_paths``: which of ``/metrics`` and ``/ready`` need no key if keys are required. By default both on loopback,
      under the names of this machine and ``allowed_hosts``; else none.
    - ``log_content``: write requests and answers to the log, without what ``redact`` matches: patterns in RE2's syntax, which
      need the extra ``policies``.
    - ``batch_items``: requests of one call of ``/v1/batch``; ``batch_concurrent``: how many of them run at once.
    - ``default_model``: for requests that name no model. ``fallback_model``: for names that no upstream serves, for example in
      side requests of coding agents; ``auto`` takes the only model if just one is served, ``none`` refuses them.
    - ``output``: ``rich`` adds reasoning, extensions and other fields that many clients read to the dialect's specification;
      ``strict`` writes the specification's fields only. The header ``x-streamglot-output`` decides for one request.
    - ``broken_stream``: what follows the error of a broken stream. ``event``: the usual end. ``abort``: the connection is cut,
      so that clients that do not know the dialect's errors fail, too.
    - ``extensions``: give every answer that is not streamed its ``extensions``: the pieces of reasoning, and calls as start,
      arguments and end. The field ``extensions`` of a request decides for that request.
    - ``reasoning``: send each piece of reasoning as it arrives, or hold it until its sentence is complete; ``summary`` sends
      summaries in place of it, and needs ``reasoning_summary``.
    - ``reasoning_summary``: a model that summarises the thoughts that no provider summarised, block by block while the answer
      streams. The answer does not wait for it. Empty: none. Chat clients get the summaries in ``reasoning_details``, Responses and
      AG-UI clients in their own form, whole answers also in ``extensions``.
    - ``reasoning_field``: the field in which chat clients get the text of reasoning. ``all`` is for several clients that read
      different fields; a client that reads two of them shows each thought twice. The header ``x-streamglot-reasoning-field``
      decides for one request. Opaque state is in ``reasoning_details`` with every value.
    - ``reasoning_key``: encrypts the reasoning and signatures that the gateway packs into opaque fields of clients, so that nobody
      else reads them: 64 hexadecimal digits, or the name of a variable or the path of a file that has them. Of a list, the first
      key seals and all open. State that does not open is dropped, and counted in ``x-streamglot-dropped``.
    - ``tool_arguments``: send the arguments of calls in pieces as the upstream has them, or in pieces that end at bounds of JSON
      (``json``): never in a key, an escape, a number or a word. The policy ``tool_arguments`` is something else: it checks values.
    - ``usage``: write the usage chunk of a chat stream if the client asked for it, or at the end of every stream. If no upstream
      reports the usage, ``always`` estimates it.
    - ``authentication``: ``auto`` requires keys if other machines can reach the gateway, and after the first key was made;
      ``required`` always does, ``none`` never does.
    """

    host: str = "127.0.0.1"
    port: int = 8484
    workers: int = 1
    max_body_bytes: int = 32 * 2**20
    body_seconds: float = 60.0
    concurrent: int = 4000
    wait: float = 5.0
    keep_alive_seconds: float = 15.0
    stall_seconds: float = 600.0
    shutdown_seconds: float = 30.0
    authentication: Literal["auto", "required", "none"] = "auto"
    default_model: str = ""
    fallback_model: str = AUTO
    discover: bool = True
    max_connections: int = 0
    origins: list[str] = field(default_factory=list)
    allowed_hosts: list[str] = field(default_factory=list)
    public_paths: list[str] | None = None
    telemetry: bool = False
    log: bool = True
    log_content: bool = False
    redact: list[str] = field(default_factory=list)
    output: Literal["rich", "strict"] = "rich"
    broken_stream: Literal["event", "abort"] = "event"
    extensions: bool = False
    reasoning: Literal["piece", "sentence", "summary"] = "piece"
    reasoning_summary: str = ""
    reasoning_field: ReasoningField = "reasoning_content"
    reasoning_key: str | list[str] = ""
    tool_arguments: Literal["piece", "json"] = "piece"
    usage: Literal["asked", "always"] = "asked"
    cache_bytes: int = 64 * 2**20
    batch_items: int = 1000
    batch_concurrent: int = 16
    keys: list[KeyConfig] = field(default_factory=list)


class StoreConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """``url``: where turns are stored; empty for a file in the user's data directory, ``none`` to store nothing. ``content``:
    store the messages, not only the fact of a turn; by default only if the gateway serves only this machine. ``raw``: also store
    the bytes of upstreams, with their timing."""

    url: str = ""
    content: bool | None = None
    raw: bool = False


class ValkeyConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """Where resumable streams are stored, instead of the store, and where the workers of batches count their calls together."""

    url: str = ""


class S3Config(Struct, forbid_unknown_fields=True, kw_only=True):
    """The S3-compatible store of ``batches.directory``. The credentials are not settings: they are read from the environment.

    ``endpoint``: the address of the store, by default ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL`` or Amazon's. ``region``: by
    default ``AWS_REGION`` or ``AWS_DEFAULT_REGION``. ``path_style``: the bucket is in the path of an address, not in its host.
    """

    endpoint: str = ""
    region: str = ""
    path_style: bool = True


class BatchesConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """Durable batches: ``/v1/files``, ``/v1/batches`` and ``/v1/messages/batches``. They need a store.

    ``worker``: run batches in this gateway; turn it off if ``streamglot batch worker`` runs them. ``concurrency``: concurrent
    calls in each process. ``directory``: the place of uploaded files, a path or ``s3://bucket/prefix``; by default beside the
    database. ``window_seconds``: how long a batch may run. ``keep_days``: how long files and results are kept.
    ``max_file_bytes`` and ``max_items``: the largest input. ``max_key_bytes``: uploaded files of one key together; 0: no limit.
    ``attempts``: how often a failing item is run. ``poll_seconds``: how often a provider is asked for the state of its batch.
    ``bad_lines``: report unusable lines and run the others, or fail the whole batch.
    """

    enabled: bool = True
    worker: bool = True
    concurrency: int = 32
    directory: str = ""
    window_seconds: float = 86_400.0
    keep_days: float = 30.0
    max_file_bytes: int = 2**30
    max_key_bytes: int = 0
    max_items: int = 1_000_000
    attempts: int = 4
    poll_seconds: float = 30.0
    bad_lines: Literal["report", "fail"] = "report"
    s3: S3Config = field(default_factory=S3Config)


class EngineConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """``stages`` and ``observers`` name Python objects as ``module:name``: a stage class or factory, an observer class."""

    stages: list[str] = field(default_factory=list)
    observers: list[str] = field(default_factory=list)


class Config(Struct, forbid_unknown_fields=True, kw_only=True):
    """``policies`` are tables with ``use = "NAME"`` and that policy's own options; docs/policies.md describes them."""

    server: ServerConfig = field(default_factory=ServerConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    valkey: ValkeyConfig = field(default_factory=ValkeyConfig)
    upstreams: dict[str, Upstream] = field(default_factory=dict)
    routes: list[Route] = field(default_factory=list)
    engine: EngineConfig = field(default_factory=EngineConfig)
    policies: list[JsonObject] = field(default_factory=list)
    tools: ToolsConfig = field(default_factory=ToolsConfig)
    batches: BatchesConfig = field(default_factory=BatchesConfig)
