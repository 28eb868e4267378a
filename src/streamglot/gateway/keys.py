"""Who may come in: keys by their SHA-256, the models they may use, and how often."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from fnmatch import fnmatchcase

from ..errors import ConfigError, RequestError
from .config import Keys, Server

LOOPBACK = ("127.0.0.1", "::1", "localhost")
MINUTE = 60.0


class Caller:
    """A key's own state: what it may do and what it has done in the last minute."""

    def __init__(self, key: Keys) -> None:
        self.name = key.name
        self.concurrent = key.concurrent
        self.open = 0
        self._models = key.models
        self._requests = _Bucket(key.requests_per_minute)
        self._tokens = _Bucket(key.tokens_per_minute)

    def check(self, model: str, now: float) -> None:
        if model and not any(fnmatchcase(model, pattern) for pattern in self._models):
            raise RequestError(f"the key {self.name!r} may not use the model {model!r}", code="model_not_allowed", status=403)
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


class _Bucket:
    """So many a minute, saved up for a minute at most. 0 is no limit."""

    def __init__(self, per_minute: int) -> None:
        self._rate = per_minute / MINUTE
        self._most = float(per_minute)
        self._left = float(per_minute)
        self._at = 0.0

    def take(self, cost: float, now: float) -> float:
        """Takes it and gives 0, or gives the seconds to wait."""
        if not self._rate:
            return 0.0
        self._fill(now)
        if self._left < max(cost, 1e-9):
            return (max(cost, 1.0) - self._left) / self._rate
        self._left -= cost
        return 0.0

    def spend(self, amount: float, now: float) -> None:
        if self._rate:
            self._fill(now)
            self._left -= amount

    def _fill(self, now: float) -> None:
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now


class Doorkeeper:
    """Knows the callers by the hash of their key. Without keys everybody on this machine may come in."""

    def __init__(self, server: Server, environment: Mapping[str, str]) -> None:
        self._callers: dict[str, Caller] = {}
        for key in server.keys:
            digest = key.hash.lower().removeprefix("sha256:")
            if key.key_env:
                secret = environment.get(key.key_env, "")
                if not secret:
                    raise ConfigError(f"the key {key.name!r} is to come from {key.key_env}, which is not set")
                digest = digest_of(secret)
            if len(digest) != 64:
                raise ConfigError(f"the key {key.name!r} needs a hash of 64 hexadecimal digits (`streamglot key` makes one) or a key_env")
            self._callers[digest] = Caller(key)
        if not self._callers and server.host not in LOOPBACK:
            raise ConfigError(
                f"refusing to listen on {server.host} without keys: anybody who reaches it could use your upstream keys. "
                "Add [[server.keys]], or listen on 127.0.0.1"
            )

    def admit(self, headers: Mapping[str, str], query_key: str = "") -> Caller | None:
        """The caller that these headers name; None where no keys are asked for."""
        if not self._callers:
            return None
        secret = presented(headers) or query_key
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
        raise RequestError("this key is not known here", code="invalid_api_key", status=401)


def presented(headers: Mapping[str, str]) -> str:
    """The key that a client sent, in any of the ways that clients send one."""
    for name in ("x-api-key", "x-goog-api-key", "api-key"):
        if headers.get(name):
            return headers[name]
    kind, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
