"""Opens the durable batches of a gateway: the service over its store and, if configured, a worker."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from ..batch.background import BackgroundTraffic
from ..batch.checking import Route
from ..batch.files import FileStorage
from ..batch.model import PROVIDER, Batch, LineError
from ..batch.service import BatchService, ItemRunner
from ..callers import ANONYMOUS
from ..config import BatchesConfig
from ..dialects import dialect
from ..errors import RequestError
from ..store import Database, Store
from ..tasks import WriteLine
from ..upstream.providers import BATCH_APIS
from .auth.access import Access
from .endpoints import COUNTED_BY, ENDPOINTS
from .services import GatewayServices

if TYPE_CHECKING:
    from ..batch.shared_limits import SharedLimits


async def open_batches(
    services: GatewayServices,
    access: Access,
    store: Store,
    environment: Mapping[str, str],
    runner: Callable[[BackgroundTraffic], ItemRunner],
    answers_live: Callable[[], bool],
) -> BatchService:
    """Starts the batch service of this gateway.

    On PostgreSQL the service has its own connections, so that results do not wait behind turns. SQLite has only one writer, so
    separate connections would not help.
    """
    pool = services.pool
    config = pool.loaded.config.batches

    def route(batch: Batch) -> Route:
        owner = batch.owner

        def upstream_of(model: str) -> str:
            named = pool.routes.named(model)
            caller = access.authenticator.named(owner) if owner and not owner.startswith(ANONYMOUS) else None
            if caller is not None and not caller.may_use(named):
                raise RequestError(f"the key {owner!r} may not use the model {named!r}", code="model_not_allowed", status=403)
            upstream = pool.routes.find(named, lambda: 0.0)[0].upstream
            sent = upstream.batches == "provider" and upstream.dialect in BATCH_APIS and batch.endpoint in ENDPOINTS
            return f"{PROVIDER}{upstream.name}" if sent else upstream.name

        return upstream_of

    service = BatchService(
        store,
        config,
        services.tasks,
        route=route,
        describe=described,
        line_bytes=services.server.max_body_bytes,
        storage=bucket_of(config, environment, services.log),
        database=None if store.database.is_sqlite else await Database.open(store.settings.url),
        limits=_limits(services, store),
    )
    service.start(runner(service.traffic) if config.worker else None, answers_live, services.log)
    return service


def bucket_of(config: BatchesConfig, environment: Mapping[str, str], log: WriteLine) -> FileStorage | None:
    """The S3-compatible store of uploaded files; None if they are in a directory."""
    if not config.directory.startswith("s3://"):
        return None
    from ..batch.s3_storage import S3Storage

    return S3Storage(config.directory, config.s3, environment, log)


def _limits(services: GatewayServices, store: Store) -> SharedLimits | None:
    """The rate limits that all workers count in Valkey; None if there is none, or no worker."""
    config = services.pool.loaded.config
    if not config.valkey.url or not config.batches.worker:
        return None
    from ..batch.shared_limits import SharedLimits

    def account(name: str) -> str:
        """The key identifies the account, and cannot be found from its hash."""
        upstream = services.pool.routes.upstreams.get(name)
        identity = f"{upstream.base_url}\n{upstream.key}" if upstream is not None else name
        return hashlib.sha256(identity.encode()).hexdigest()[:32]

    return SharedLimits(config.valkey.url, str(store.process.id), account=account, say=services.log)


def described(fault: LineError) -> bytes:
    """The error of a line in the form that a message batch reports."""
    error = RequestError(f"request {fault.line}: {fault.message}", code=fault.code)
    return msgspec.json.encode(dialect(COUNTED_BY).error_body(error.as_event()))
