"""Who may come in: keys by their SHA-256, the models they may use, and how often. Some are in the configuration, others in
the store (``stored_keys.py``)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ..callers import ANONYMOUS
from ..config import Keys, Server
from ..errors import ConfigError, RequestError
from .ledger import Bucket

if TYPE_CHECKING:
    from ..store import StoredKey
    from .stored_keys import StoredCallers

LOOPBACK = ("127.0.0.1", "::1", "localhost")
OWN_HEADER = "x-streamglot-key"
"""For our key where the usual header holds one that is meant for the upstream."""


class Caller:
    """A key's own state: what it may do and what it has done in the last minute."""

    def __init__(self, key: Keys | StoredKey, digest: str = "") -> None:
        self.open = 0
        self.refusal: Callable[[], RequestError] | None = None
        self._requests = Bucket(f"requests {digest}")
        self._tokens = Bucket(f"tokens {digest}")
        self.take(key)

    def take(self, key: Keys | StoredKey) -> None:
        """New settings; what was done in the last minute stays done."""
        self.name = key.name
        self.concurrent = key.concurrent
        self._models = key.models
        self.tools = key.tools if isinstance(key, Keys) else None
        self._requests.resize(key.requests_per_minute)
        self._tokens.resize(key.tokens_per_minute)

    def may_use(self, model: str) -> bool:
        return any(fnmatchcase(model, pattern) for pattern in self._models)

    def check(self, model: str, now: float) -> None:
        if not self.may_use(model):
            raise RequestError(f"the key {self.name!r} may not use the model {model!r}", code="model_not_allowed", status=403)
        if self.refusal is not None:
            raise self.refusal()
        for bucket, cost, what in ((self._requests, 1.0, "requests"), (self._tokens, 0.0, "tokens")):
            wait = bucket.take(cost, now)
            if wait > 0:
                raise RequestError(
                    f"the key {self.name!r} is over its {what} per minute; try again in {wait:.0f} s",
                    code="rate_limit_exceeded",
                    status=429,
                    retryable=True,
                    detail={"retry_after": wait},
                )

    def spent(self, tokens: int, now: float) -> None:
        self._tokens.spend(tokens, now)


class Authenticator:
    """Knows the callers by the hash of their key. Without keys everybody on this machine may come in, and nobody else."""

    def __init__(
        self, server: Server, environment: Mapping[str, str], stored: StoredCallers, before: Authenticator | None = None
    ) -> None:
        self._callers: dict[str, Caller] = {}
        self._stored = stored
        self._host = server.host
        known = before._callers if before is not None else {}
        taken: list[tuple[Caller, Keys]] = []
        for key in server.keys:
            digest = key.hash.lower().removeprefix("sha256:")
            if key.key_env:
                secret = environment.get(key.key_env, "")
                if not secret:
                    raise ConfigError(f"the key {key.name!r} is to come from {key.key_env}, which is not set")
                digest = digest_of(secret)
            if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
                raise ConfigError(
                    f"the key {key.name!r} needs a hash of 64 hexadecimal digits (the SHA-256 of the key) or a key_env"
                )
            caller = self._callers[digest] = known.get(digest) or Caller(key, digest)
            taken.append((caller, key))
        if not self._callers and not self._stored.callers and self._stored.known and server.host not in LOOPBACK:
            raise ConfigError(
                f"refusing to listen on {server.host} without keys: anybody who reaches it could use your upstream keys. "
                "Make one with `streamglot keys add NAME`, add [[server.keys]], or listen on 127.0.0.1"
            )
        for caller, key in taken:
            caller.take(key)

    @property
    def asks(self) -> bool:
        """Are keys asked for at all? Once there was one, the door does not open to all because it was taken back."""
        return bool(self._callers) or self._stored.ever or self._host not in LOOPBACK

    def admitted_by(self, headers: Mapping[str, str]) -> bool:
        """Did the usual header hold a key of ours? Then it is not the upstream's to see."""
        return self.asks and not headers.get(OWN_HEADER)

    def admit(self, headers: Mapping[str, str], query_key: str = "") -> Caller | None:
        """The caller that these headers name; None where no keys are asked for."""
        if not self.asks:
            return None
        secret = headers.get(OWN_HEADER) or presented(headers) or query_key
        if not secret:
            raise RequestError(
                "this gateway asks for a key: send it as Authorization: Bearer …, x-api-key or x-goog-api-key",
                code="missing_api_key",
                status=401,
            )
        digest = digest_of(secret)
        for known, caller in self._callers.items():
            if hmac.compare_digest(known, digest):
                return caller
        if digest in self._stored.callers:
            return self._stored.callers[digest]
        raise RequestError("this key is not known here", code="invalid_api_key", status=401)


def presented(headers: Mapping[str, str]) -> str:
    """The key that a client sent, in any of the ways that clients send one."""
    for name in ("x-api-key", "x-goog-api-key", "api-key"):
        if headers.get(name):
            return headers[name]
    kind, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


def anonymous(headers: Mapping[str, str]) -> str:
    """Who asks, where no keys are asked for: clients that present different ones are different callers."""
    secret = presented(headers)
    return f"{ANONYMOUS}{digest_of(secret)[:16]}" if secret else ""


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
