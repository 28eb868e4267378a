"""Opens the durable batches of a gateway: the service over its store and, if configured, a worker."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from ..batch.checking import Route
from ..batch.files import FileStorage
from ..batch.model import PROVIDER, Batch, LineError
from ..batch.service import BatchService
from ..callers import ANONYMOUS
from ..dialects import dialect
from ..errors import RequestError
from ..store import Database, Store
from ..upstream.providers import BATCH_APIS
from .batch_runner import BatchRunner
from .endpoints import COUNTED_BY, ENDPOINTS

if TYPE_CHECKING:
    from ..batch.shared_limits import SharedLimits
    from .app import Gateway


async def open_batches(gateway: Gateway, store: Store) -> BatchService:
    """Starts the batch service of this gateway.

    On PostgreSQL the service has its own connections, so that results do not wait behind turns. SQLite has only one writer, so
    separate connections would not help.
    """
    config = gateway.loaded.config.batches

    def route(batch: Batch) -> Route:
        owner = batch.owner

        def upstream_of(model: str) -> str:
            named = gateway.pool.routes.named(model)
            caller = gateway.authenticator.named(owner) if owner and not owner.startswith(ANONYMOUS) else None
            if caller is not None and not caller.may_use(named):
                raise RequestError(f"the key {owner!r} may not use the model {named!r}", code="model_not_allowed", status=403)
            upstream = gateway.pool.routes.find(named, lambda: 0.0)[0].upstream
            sent = upstream.batches == "provider" and upstream.dialect in BATCH_APIS and batch.endpoint in ENDPOINTS
            return f"{PROVIDER}{upstream.name}" if sent else upstream.name

        return upstream_of

    service = BatchService(
        store,
        config,
        gateway.tasks,
        route=route,
        describe=described,
        line_bytes=gateway.server.max_body_bytes,
        storage=bucket_of(gateway),
        database=None if store.database.is_sqlite else await Database.open(store.settings.url),
        limits=_limits(gateway, store),
    )
    service.start(BatchRunner(gateway, service.traffic) if config.worker else None, gateway.answers_live, gateway.log)
    return service


def bucket_of(gateway: Gateway) -> FileStorage | None:
    """Returns the S3-compatible store of uploaded files; None if they are in a directory."""
    config = gateway.loaded.config.batches
    if not config.directory.startswith("s3://"):
        return None
    from ..batch.s3_storage import S3Storage

    return S3Storage(config.directory, config.s3, gateway.environment, gateway.log)


def _limits(gateway: Gateway, store: Store) -> SharedLimits | None:
    """Returns the rate limits that all workers count in Valkey; None if there is none, or no worker."""
    config = gateway.loaded.config
    if not config.valkey.url or not config.batches.worker:
        return None
    from ..batch.shared_limits import SharedLimits

    def account(name: str) -> str:
        """The key identifies the account, and cannot be found from its hash."""
        upstream = gateway.pool.routes.upstreams.get(name)
        identity = f"{upstream.base_url}\n{upstream.key}" if upstream is not None else name
        return hashlib.sha256(identity.encode()).hexdigest()[:32]

    return SharedLimits(config.valkey.url, str(store.process.id), account=account, say=gateway.log)


def described(fault: LineError) -> bytes:
    """Returns the error of a line in the form that a message batch reports."""
    error = RequestError(f"request {fault.line}: {fault.message}", code=fault.code)
    return msgspec.json.encode(dialect(COUNTED_BY).error_body(error.as_event()))
