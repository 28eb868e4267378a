"""Authenticates clients by the SHA-256 of their key, and holds the models and limits of each key.

Some keys are in the configuration, others in the store. ``StoredCallers`` has those of the store as this process knows them: they
are read in the background, never while a request waits.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Final

from ...config import KeyConfig, ServerConfig
from ...config.checks import LOOPBACK, Authentication, authentication
from ...counters import BATCHED, HELD_COST, HELD_TOKENS, OPEN, REQUESTS, TOKENS, Left, Room, Take, workers
from ...counters.workers import counters_of
from ...errors import ConfigError, RequestError
from ...messages import TokenCounts
from ...tasks import WriteLine
from ...text import ANONYMOUS, overlap
from ...upstream.prices import price
from ...upstream.providers import PROVIDERS
from .budgets import OUTPUT_TOKENS, Budget, Price, Reservation

if TYPE_CHECKING:
    from ...store import BudgetExceeded, Store, StoredKey

OWN_HEADER = "x-streamglot-key"
"""The header for the gateway's key when the usual header holds a key for the upstream."""
WAIT_SECONDS = 1.0
"""Seconds after which a client should retry that was refused because of requests that run now."""
_UNITS = {REQUESTS: "requests", TOKENS: "tokens"}


class Caller:
    """The state of one key: what it may use, what it used in the last minute and what it has reserved.

    All processes of a gateway count together. ``refusal`` makes the error for a budget that is used up.
    """

    def __init__(self, key: KeyConfig | StoredKey, digest: str = "") -> None:
        self._counters = counters_of(digest)
        self.budget = Budget(self._counters)
        self.refusal: Callable[[], RequestError] | None = None
        self.take(key)

    def take(self, key: KeyConfig | StoredKey) -> None:
        """Applies new settings. The counts of the key stay."""
        self.name = key.name
        self.concurrent = key.concurrent
        self._models = key.models
        self.tools = key.tools
        self._counters.resize(key.requests_per_minute, key.tokens_per_minute)
        self.budget.tokens = getattr(key, "budget_tokens", None)  # only keys in the store have budgets
        self.budget.cost = getattr(key, "budget_cost", None)

    def may_use(self, model: str) -> bool:
        return any(fnmatchcase(model, pattern) for pattern in self._models)

    def may_use_some(self, pattern: str) -> bool:
        """Whether the key may use any of the models that this glob matches."""
        return any(overlap(pattern, allowed) for allowed in self._models)

    async def check(self, model: str, now: float) -> None:
        """Counts a request, or raises the error of the limit that it exceeds."""
        self.check_model(model)
        await self.count(now)

    def check_model(self, model: str) -> None:
        """Raises an error if the key may not use this model."""
        if not self.may_use(model):
            raise RequestError(f"the key {self.name!r} may not use the model {model!r}", code="model_not_allowed", status=403)

    async def count(self, now: float) -> None:
        """Counts a request that names no model, such as a tool call. Raises the error of a limit that it exceeds."""
        if self.budget.limited and self.budget.used_up():
            raise self.budget_exceeded()
        for take in (Take(REQUESTS, 1.0, needs=1.0), Take(TOKENS, 0.0)):
            refused = await self._counters.admit([take], {}, now) if self._counters.limited(take.bucket) else None
            if refused is not None:
                raise self._too_fast(take, refused.wait)

    def limits(self, now: float) -> dict[str, Left]:
        """What is left of the limits of requests and tokens, for those that there are."""
        return {what: self._counters.left(bucket, now) for bucket, what in _UNITS.items() if self._counters.limited(bucket)}

    def budget_exceeded(self) -> RequestError:
        if self.refusal is not None:
            return self.refusal()
        return RequestError(f"the key {self.name!r} has used up its budget", code="budget_exceeded", status=429)

    def _too_fast(self, take: Take, wait: float) -> RequestError:
        return RequestError(
            f"the key {self.name!r} is over its {_UNITS[take.bucket]} per minute; try again in {wait:.0f} s",
            code="rate_limit_exceeded",
            status=429,
            retryable=True,
            detail={"retry_after": wait},
        )

    # --- running requests

    async def enter(self) -> None:
        """Counts one more open request. ``leave`` ends it."""
        await self._take(OPEN, (OPEN,), "wait until one of them ends, or ask for a larger `concurrent`")

    def leave(self) -> None:
        self._counters.add(OPEN, -1)

    async def enter_batched(self) -> None:
        """Counts one more running item of a batch, within the slots that live requests of the key leave. A live request is never
        refused because of a batch. ``leave_batched`` ends it."""
        await self._take(BATCHED, (OPEN, BATCHED), "this request of a batch runs when one of them ends")

    def leave_batched(self) -> None:
        self._counters.add(BATCHED, -1)

    async def _take(self, field: int, counted: tuple[int, ...], step: str) -> None:
        """Adds one to a field, if the sum of the ``counted`` fields leaves room for it."""
        rules = [Room(counted, self.concurrent)] if self.concurrent else []
        if await self._counters.admit(rules, {field: 1.0}) is not None:
            raise RequestError(
                f"the key {self.name!r} has reached its limit of {self.concurrent} concurrent requests; {step}",
                code="too_many_streams",
                status=429,
                retryable=True,
                detail={"retry_after": WAIT_SECONDS},
            )

    @property
    def metered(self) -> bool:
        """Whether the key has limits or budgets of tokens. If not, nothing needs to be reserved."""
        return self.budget.limited or self._counters.limited(TOKENS)

    async def reserve(self, input_tokens: int, output_tokens: int | None, price: Price, now: float) -> Reservation:
        """Reserves the expected usage of a request, or raises the reason why it is refused.

        ``output_tokens`` is the client's limit for the length of the answer.
        """
        tokens = input_tokens, max(0, min(OUTPUT_TOKENS if output_tokens is None else output_tokens, OUTPUT_TOKENS))
        budget, held, minute = self.budget, (0.0, 0.0), Take(TOKENS, sum(tokens))
        rules: list[tuple[Take | Room, Callable[[], RequestError]]] = []
        priced = price if budget.cost is not None else None
        if budget.limited:
            cost, input_cost = (priced(*tokens), priced(input_tokens, 0)) if priced is not None else (0.0, 0.0)
            held = float(minute.amount), cost
            rules += [(rule, self.budget_exceeded) for rule in budget.rooms_beside_usage()]
            rules += [(rule, self._budget_reserved) for rule in budget.rooms_beside_reservations()]
            rules += [
                (rule, partial(self._budget_too_small, input_tokens))
                for rule in budget.rooms_beside_usage(input_tokens, input_cost)
            ]
        refused = await self._counters.admit(
            [minute, *(rule for rule, _ in rules)], {HELD_TOKENS: held[0], HELD_COST: held[1]}, now
        )
        if refused is None:
            return Reservation(self._counters, budget, tokens, held, priced)
        raise rules[refused.rule - 1][1]() if refused.rule else self._too_fast(minute, refused.wait)

    def _budget_reserved(self) -> RequestError:
        return RequestError(
            f"the key {self.name!r} has reserved the rest of its budget for requests that run now; wait until one of them ends",
            code="budget_reserved",
            status=429,
            retryable=True,
            detail={"retry_after": WAIT_SECONDS},
        )

    def _budget_too_small(self, input_tokens: int) -> RequestError:
        return RequestError(
            f"this request has about {input_tokens} tokens of input, which is more than the key {self.name!r} has left of its "
            "budget; send less, or ask for a larger budget",
            code="budget_exceeded",
            status=429,
        )


class Authenticator:
    """Finds the caller by the hash of its key. ``config/checks.py`` has the rule when a key is required."""

    def __init__(
        self,
        server: ServerConfig,
        environment: Mapping[str, str],
        stored: StoredCallers,
        before: Authenticator | None = None,
        starting: bool = True,
    ) -> None:
        """``before`` is the authenticator that this one replaces: callers keep their state, and nothing changes for them until
        ``take_effect``.

        ``starting``: the gateway is not open yet, so a configuration that no client could use is refused.
        """
        self._callers: dict[str, Caller] = {}
        self._stored = stored
        self._server = server
        self._new: list[tuple[Caller, KeyConfig]] = []
        known = before._callers if before is not None else {}
        for key in server.keys:
            digest = _configured_digest(key, environment)
            if digest in self._callers:
                raise ConfigError(
                    f"the key {key.name!r} is the same as that of {self._callers[digest].name!r}; remove one of them"
                )
            caller = self._callers[digest] = known.get(digest) or Caller(key, digest)
            self._new.append((caller, key))
        if server.host in LOOPBACK:
            return
        if server.authentication == "none" or (stored.known and not self.state.usable and (starting or not stored.ever)):
            revoked = " that are valid" if stored.revoked else ""
            raise ConfigError(
                f"refusing to listen on {server.host} without keys{revoked}: anybody who reaches it could use your upstream keys. "
                "Make one with `streamglot keys add NAME`, add [[server.keys]], or listen on 127.0.0.1"
            )

    def take_effect(self) -> None:
        for caller, key in self._new:
            caller.take(key)
        if self._callers:
            self._stored.note_keys()

    @property
    def state(self) -> Authentication:
        stored = self._stored
        return authentication(self._server, stored=len(stored.callers), revoked=stored.revoked, had_keys=stored.ever)

    @property
    def asks(self) -> bool:
        """Whether keys are required. They are until the store's keys are known."""
        server, stored = self._server, self._stored
        if server.authentication != "auto":
            return server.authentication == "required"
        return bool(self._callers) or stored.ever or not stored.known or server.host not in LOOPBACK

    def passed_key(self, caller: Caller | None, headers: Mapping[str, str]) -> str:
        """The key that the client sent for an upstream. The key of an admitted caller is for this gateway alone, unless it came
        in a header of its own."""
        return presented(headers) if caller is None or headers.get(OWN_HEADER) else ""

    def admit(self, headers: Mapping[str, str], query_key: str = "") -> Caller | None:
        """The caller that these headers name; None if no keys are required."""
        if not self.asks:
            return None
        secret = headers.get(OWN_HEADER) or presented(headers) or query_key
        if not secret:
            raise self._refused(
                "this gateway asks for a key: send it as Authorization: Bearer …, x-api-key or x-goog-api-key", "missing_api_key"
            )
        digest = digest_of(secret)
        for known, caller in self._callers.items():
            if hmac.compare_digest(known, digest):
                return caller
        if digest in self._stored.callers:
            return self._stored.callers[digest]
        raise self._refused("this key is not known here", "invalid_api_key")

    def named(self, name: str) -> Caller | None:
        """The caller whose key has this name, if the key is still valid."""
        callers = (*self._callers.values(), *self._stored.callers.values())
        return next((caller for caller in callers if caller.name == name), None)

    def _refused(self, why: str, code: str) -> RequestError:
        """The error for a refused key. If no key at all can pass, the message says how to change that."""
        state = self.state
        if not state.usable:
            why = f"{why}. No key can pass now: {state.summary}; {state.step}"
        return RequestError(why, code=code, status=401)


def _configured_digest(key: KeyConfig, environment: Mapping[str, str]) -> str:
    """The SHA-256 of a key in the configuration."""
    digest = key.hash.lower().removeprefix("sha256:")
    if key.key_env:
        secret = environment.get(key.key_env, "")
        if not secret:
            raise ConfigError(f"the key {key.name!r} needs the environment variable {key.key_env}, which is not set; set it")
        digest = digest_of(secret)
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise ConfigError(f"the key {key.name!r} needs a hash of 64 hexadecimal digits (the SHA-256 of the key) or a key_env")
    return digest


def presented(headers: Mapping[str, str]) -> str:
    """The key that a client sent, from any of the usual headers."""
    for name in ("x-api-key", "x-goog-api-key", "api-key"):
        if headers.get(name):
            return headers[name]
    kind, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


def anonymous(headers: Mapping[str, str]) -> str:
    """The name of a caller if no keys are required. Clients that present different keys are different callers."""
    secret = presented(headers)
    return f"{ANONYMOUS}{digest_of(secret)[:16]}" if secret else ""


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


REFRESH_SECONDS: Final = 2.0
"""Seconds within which a new key is accepted and a revoked key is refused."""
BUDGET_SHARE: Final = 20
"""One part in this many of the time may be spent on adding up usage."""
ADD_UP_TIMES: Final = 3
"""How often usage is added up until nothing was written meanwhile, which might count twice. A busy gateway writes all the time."""
_PERIODS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


class StoredCallers:
    """The callers of the store's keys.

    ``known``: the store was read, or there is none. ``revoked``: the number of keys that are no longer valid.
    """

    def __init__(self) -> None:
        self.callers: dict[str, Caller] = {}
        self.known = False
        self.revoked = 0
        self._had_keys = False
        self._renews: dict[str, float | None] = {}
        self._count_at = 0.0

    @property
    def ever(self) -> bool:
        """Whether there ever was a key: in the store, in the configuration, or in a process that shares its numbers.

        It never becomes false again, even if the database is lost.
        """
        return self._had_keys or workers.is_raised(workers.KEYS_IN_USE)

    def note_keys(self) -> None:
        """Records that keys are required from now on."""
        self._had_keys = True
        workers.raise_flag(workers.KEYS_IN_USE)

    async def refresh(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        """Reads the keys of the store. The counts of the last minute stay."""
        keys = await store.keys.changes()
        if keys is not None:
            callers: dict[str, Caller] = {}
            for key in keys:
                if key.revoked is None:
                    caller = callers[key.hash] = self.callers.get(key.hash) or Caller(key, key.hash)
                    caller.take(key)
                    caller.refusal = partial(self._refusal, key, caller)
            if keys or store.keys.had_keys():
                self.note_keys()
            self.callers, self.revoked, self.known = callers, len(keys) - len(callers), True
        began = clock()
        if began >= self._count_at and any(caller.budget.limited for caller in self.callers.values()):
            await self._add_up(store)
            self._count_at = clock() + BUDGET_SHARE * (clock() - began)

    async def _add_up(self, store: Store) -> None:
        """Reads the usage of each budget from the database."""
        if any(caller.budget.cost is not None for caller in self.callers.values()):
            await asyncio.to_thread(_load_prices)
        for _ in range(ADD_UP_TIMES):
            marks = self._marks()
            balances = await store.keys.balances()
            if marks == self._marks():
                break
        for key, spent in balances:
            caller = self.callers.get(key.hash)
            if caller is not None and key.hash in marks:
                caller.budget.rebase(spent, marks[key.hash])
        self._renews = {over.key.hash: over.renews for over in await store.keys.budget_exceeded()} if self._any_over() else {}

    def _marks(self) -> dict[str, tuple[float, float]]:
        """How much of the usage of each key is in the database."""
        return {digest: caller.budget.mark() for digest, caller in self.callers.items()}

    def _any_over(self) -> bool:
        return any(caller.budget.limited and caller.budget.used_up() for caller in self.callers.values())

    def _refusal(self, key: StoredKey, caller: Caller) -> RequestError:
        """The error for a key whose budget is used up, from what is known now."""
        from ...store import BudgetExceeded, Spent

        tokens, cost = caller.budget.used()
        renews, latest = self._renews.get(key.hash), False
        if renews is None and key.budget_seconds is not None:
            renews, latest = time.time() + key.budget_seconds, True  # by then all present usage has left the period
        spent = Spent(turns=0, tokens=round(tokens), cost=cost)
        return refusal(BudgetExceeded(key=key, spent=spent, renews=renews), latest)

    async def watch(self, store: Store, tick: Callable[[], object], log: WriteLine) -> None:
        """Refreshes the keys until it is cancelled. If the store does not answer, nothing changes."""
        from ...store import StoreUnavailable

        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                tick()
                await self.refresh(store)
            except StoreUnavailable:
                continue
            except Exception as error:
                log({"event": "store_fault", "message": f"{type(error).__name__}: {error}"[:300]})


def refusal(over: BudgetExceeded, latest: bool = False) -> RequestError:
    """The error that names the budget that is used up and when it renews. ``latest``: the time is an upper bound."""
    key, spent = over.key, over.spent
    period = "" if key.budget_seconds is None else f" in {_period(key.budget_seconds)}"
    used: list[str] = []
    if key.budget_cost is not None and spent.cost >= key.budget_cost:
        used.append(f"{spent.cost:.2f} of the {key.budget_cost:.2f} that it may cost{period}")
    if key.budget_tokens is not None and spent.tokens >= key.budget_tokens:
        used.append(f"{spent.tokens} of the {key.budget_tokens} tokens that it may use{period}")
    next_step = "it does not renew: ask for a larger budget or another key"
    if over.renews is not None:
        moment = f"{datetime.fromtimestamp(over.renews, UTC):%Y-%m-%d %H:%M:%S} UTC"
        next_step = f"it renews at {moment}{' at the latest' if latest else ''}"
    return RequestError(
        f"the key {key.name!r} has used {' and '.join(used)}; {next_step}",
        code="budget_exceeded",
        status=429,
        detail=None if over.renews is None else {"retry_after": max(1.0, over.renews - time.time())},
    )


def _period(seconds: float) -> str:
    size, name = next(((size, name) for size, name in _PERIODS if seconds >= size and seconds % size == 0), (1, "second"))
    count = seconds / size
    return f"{count:g} {name}{'' if count == 1 else 's'}"


def _load_prices() -> None:
    """Loads the price table ahead of the first request, because loading it is slow."""
    price(TokenCounts(0, 0), "", next(provider.name for provider in PROVIDERS if provider.key_env))
