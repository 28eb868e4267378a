"""The callers' API keys with their limits and budgets. Only the SHA-256 of a key is stored; the key is shown once, when it is
made.

``KeyMarker`` is a file beside the database that records that the database has had keys. If the database is deleted or emptied,
its keys are gone, and the next start would let everybody in. The marker survives that: the one of a SQLite file is in the same
directory, under a name that ``rm streamglot.db*`` does not match; the one of a PostgreSQL database is in the user's data
directory on the machine of the gateway.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from ..errors import RequestError, excerpt
from ..text import MAX_KEY_LIMIT, fault_of_key_name
from .database import Database, Watch
from .database.paths import data_directory
from .database.sql import Connection, DatabaseRow, NotUnique, SqlRow, SqlValue, insert_row
from .turns import TURN, first_id

PREFIX: Final = "sg-"
SHOWN_CHARS: Final = 8
TOTAL: Final = 0
MINUTE: Final = 60
DAY: Final = 86_400
"""The periods of ``spending``, in seconds."""

TOKENS: Final = "(CAST(coalesce(endings.input_tokens, 0) AS BIGINT) + coalesce(endings.output_tokens, 0))"
"""The sum is a BIGINT, because two values of the column may exceed its type."""
COST: Final = "coalesce(endings.cost, 0.0)"
_SUMS: Final = f"count(*) AS turns, coalesce(sum({TOKENS}), 0) AS tokens, coalesce(sum({COST}), 0.0) AS cost"
_ALL: Final = "SELECT * FROM keys ORDER BY created"
_VALID: Final = "SELECT * FROM keys WHERE revoked IS NULL ORDER BY created"
_FIND: Final = "SELECT * FROM keys WHERE hash = :hash AND revoked IS NULL"
_REVOKE: Final = "UPDATE keys SET revoked = :at WHERE name = :name AND revoked IS NULL"
_EARLIER: Final = f"""
    INSERT INTO spending (caller, size, at, turns, tokens, cost)
    SELECT turns.caller, {{size}}, {{at}}, {_SUMS} FROM turns JOIN endings ON endings.turn_id = turns.id
    WHERE turns.caller = :name GROUP BY turns.caller, 3
"""
_CHARGED: Final = f"""
    SELECT DISTINCT keys.name FROM keys
    JOIN turns ON turns.caller = keys.name
        AND turns.started >= CAST(:now AS DOUBLE PRECISION) - coalesce(keys.budget_seconds, CAST(:now AS DOUBLE PRECISION))
    JOIN endings ON endings.turn_id = turns.id
    WHERE keys.revoked IS NULL
        AND (keys.budget_cost IS NOT NULL AND {COST} > 0 OR keys.budget_tokens IS NOT NULL AND {TOKENS} > 0)
"""
"""The valid keys for whose budgets turns count."""
_SPENT: Final = """
    SELECT caller, sum(turns) AS turns, sum(tokens) AS tokens, sum(cost) AS cost FROM spending
    WHERE caller IN :names AND {which} GROUP BY caller
"""
_SPENT_BETWEEN: Final = f"""
    SELECT turns.caller, {_SUMS} FROM turns JOIN endings ON endings.turn_id = turns.id
    WHERE turns.id >= :first AND turns.id < :end AND turns.caller IN :names GROUP BY turns.caller
"""
_BETWEEN: Final = """
    SELECT turns.started AS start, {amount} AS amount FROM turns JOIN endings ON endings.turn_id = turns.id
    WHERE turns.id >= :first AND turns.id < :end AND turns.caller = :caller ORDER BY turns.id
"""


class StoredKey(Struct, kw_only=True):
    """``name`` identifies the caller and is never reused. A limit of 0 means no limit. A budget is what the key may cost, or how
    many tokens it may use, in the last ``budget_seconds`` (in total, if that is None). ``tools`` are globs of the gateway's tools
    that the key may use; None leaves that to the configuration."""

    id: str
    name: str
    hash: str = ""
    shown: str = ""
    models: list[str] = field(default_factory=lambda: ["*"])
    tools: list[str] | None = None
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrent: int = 0
    budget_cost: float | None = None
    budget_tokens: int | None = None
    budget_seconds: float | None = None
    created: float = 0.0
    revoked: float | None = None


class Spent(Struct, kw_only=True):
    turns: int
    tokens: int
    cost: float


class BudgetExceeded(Struct, kw_only=True):
    """A key that has used up its budget. It may be used again at ``renews``, or never."""

    key: StoredKey
    spent: Spent
    renews: float | None


class StoredKeys:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._watch = Watch(database, _ALL)
        self._marker = KeyMarker(database.file, database.shown)

    def had_keys(self) -> bool:
        """Whether this store ever had keys, according to the marker file beside it."""
        return self._marker.is_set()

    async def add(self, name: str, **limits: Any) -> tuple[StoredKey, str]:  # Any: fields of a StoredKey
        """Adds a key. Returns it with its secret, which cannot be read again."""
        fault = fault_of_key_name(name)
        if fault:
            raise RequestError(fault)
        secret = PREFIX + secrets.token_urlsafe(32)
        key = StoredKey(
            id=secrets.token_hex(8),
            name=name,
            hash=hashlib.sha256(secret.encode()).hexdigest(),
            shown=secret[:SHOWN_CHARS],
            created=time.time(),
            **limits,
        )
        _check_limits(key)
        row = {**msgspec.structs.asdict(key), "models": _text(key.models)}
        row["tools"] = None if key.tools is None else _text(key.tools)
        try:
            await self._database.write(lambda connection: self._add(connection, row), alone=True)
        except NotUnique:
            raise RequestError(f"a key named {name!r} exists or existed; choose another name") from None
        self._watch.forget()
        self._marker.set()
        return key, secret

    async def _add(self, connection: Connection, row: SqlRow) -> None:
        """Adds the key, and what earlier turns of its caller used. From then on a trigger adds to it; other writers are excluded, so
        that no turn is left out."""
        await connection.execute(insert_row("keys", row), **row)
        for size in (TOTAL, MINUTE, DAY):
            await connection.execute(_EARLIER.format(size=size, at=period_of(size, connection.is_sqlite)), name=row["name"])

    async def all(self, *, revoked: bool = False) -> list[StoredKey]:
        """All valid keys, and with ``revoked`` also those that were revoked."""
        return [_key(row) for row in await self._database.fetch(_ALL if revoked else _VALID)]

    async def changes(self) -> list[StoredKey] | None:
        """All keys, valid or revoked; None if nothing changed since the last call."""
        rows = await self._watch.look()
        if rows:
            self._marker.set()
        return None if rows is None else [_key(row) for row in rows]

    async def find(self, secret: str) -> StoredKey | None:
        """The valid key with this secret."""
        mark = hashlib.sha256(secret.encode()).hexdigest()
        rows = await self._database.fetch(_FIND, hash=mark)
        return _key(rows[0]) if rows else None

    async def revoke(self, name: str) -> bool:
        """Makes the key invalid. Its turns stay."""
        found = await self._database.execute(_REVOKE, name=name, at=time.time())
        self._watch.forget()
        return found > 0

    async def spent(self, key: StoredKey, now: float | None = None) -> Spent:
        """The used part of the key's budget."""
        return (await self._spent_by([key], now or time.time()))[key.name]

    async def charged(self, which: str, **values: SqlValue) -> list[str]:
        """The names of the valid keys whose budgets these turns count for. ``which`` is a condition for turns."""
        rows = await self._database.fetch(f"{_CHARGED} AND {which} ORDER BY keys.name", now=time.time(), **values)
        return [row.name for row in rows]

    async def balances(self, now: float | None = None) -> list[tuple[StoredKey, Spent]]:
        """The valid keys that have a budget, with what was used of it."""
        keys = [key for key in await self.all() if key.budget_cost is not None or key.budget_tokens is not None]
        used: dict[str, Spent] = {}
        for seconds in {key.budget_seconds for key in keys}:
            used |= await self._spent_by([key for key in keys if key.budget_seconds == seconds], now or time.time())
        return [(key, used[key.name]) for key in keys]

    async def _spent_by(self, keys: Sequence[StoredKey], now: float) -> dict[str, Spent]:
        """What these keys used of their budgets, which have the same period. It adds up whole days, the minutes before the first of
        them, and the turns before the first whole minute."""
        names, seconds = [key.name for key in keys], keys[0].budget_seconds
        parts: list[tuple[str, SqlRow]]
        if seconds is None:
            parts = [(_SPENT.format(which=f"size = {TOTAL} AND at = 0"), {})]
        else:
            begin = max(0.0, now - seconds)
            minute, day = _next(begin, MINUTE), _next(begin, DAY)
            parts = [
                (_SPENT.format(which=f"size = {DAY} AND at >= {day}"), {}),
                (_SPENT.format(which=f"size = {MINUTE} AND at >= {minute} AND at < {day}"), {}),
                (_SPENT_BETWEEN, {"first": first_id(TURN, begin), "end": first_id(TURN, minute)}),
            ]
        found = {name: Spent(turns=0, tokens=0, cost=0.0) for name in names}
        for question, values in parts:
            for row in await self._database.fetch(question, names=names, **values):
                spent = found[row.caller]
                spent.turns, spent.tokens, spent.cost = (
                    spent.turns + int(row.turns),
                    spent.tokens + int(row.tokens),
                    spent.cost + row.cost,
                )
        return found

    async def budget_exceeded(self, now: float | None = None) -> list[BudgetExceeded]:
        """The valid keys that have used up their budget."""
        return [
            BudgetExceeded(key=key, spent=spent, renews=await self._renews(key, spent, now))
            for key, spent in await self.balances(now)
            if (key.budget_cost is not None and spent.cost >= key.budget_cost)
            or (key.budget_tokens is not None and spent.tokens >= key.budget_tokens)
        ]

    async def _renews(self, key: StoredKey, spent: Spent, now: float | None) -> float | None:
        """When enough of the oldest turns leave the period for the use to fall below the budget."""
        now = at = now or time.time()
        if key.budget_seconds is None:
            return None
        for name, used, limit in (("cost", spent.cost, key.budget_cost), ("tokens", spent.tokens, key.budget_tokens)):
            if limit is None or used < limit:
                continue
            last = await self._last_counted(key, name, used - limit, max(0.0, now - key.budget_seconds))
            if last is None:
                return None
            at = max(at, last + key.budget_seconds)
        return at

    async def _last_counted(self, key: StoredKey, name: str, excess: float, begin: float) -> float | None:
        """The start of the turn with which the sum of the oldest turns from ``begin`` on becomes larger than ``excess``. It is searched
        in the turns before the first whole minute, then minute by minute, then day by day, and then within that day and minute."""
        minute, day = _next(begin, MINUTE), _next(begin, DAY)
        periods: list[tuple[int, float, float]] = [(0, begin, minute), (MINUTE, minute, day), (DAY, day, math.inf)]
        while periods:
            size, first, end = periods.pop(0)
            question, values = _amounts(name, size, first, end)
            for row in await self._database.fetch(question, caller=key.name, **values):
                excess -= row.amount
                if excess < 0:
                    if not size:
                        return float(row.start)
                    excess += row.amount
                    periods = [(0 if size == MINUTE else MINUTE, row.start, row.start + size)]  # it is within this period
                    break
        return None


def _amounts(name: str, size: int, first: float, end: float) -> tuple[str, SqlRow]:
    """When the turns of a caller started and what each used, or the same of periods of this size; the oldest first."""
    if not size:
        amount = {"cost": COST, "tokens": TOKENS}[name]
        return _BETWEEN.format(amount=amount), {"first": first_id(TURN, first), "end": first_id(TURN, end)}
    until = "" if end == math.inf else f"AND at < {int(end)}"
    question = f"SELECT at AS start, {name} AS amount FROM spending WHERE caller = :caller AND size = {size}"
    return f"{question} AND at >= {int(first)} {until} ORDER BY at", {}


def period_of(size: int, is_sqlite: bool) -> str:
    """The beginning of the period of ``spending`` in which a turn started."""
    if not size:
        return "CAST(0 AS BIGINT)"
    return f"CAST({'' if is_sqlite else 'floor'}(turns.started / {size}) AS BIGINT) * {size}"


def _next(at: float, size: int) -> int:
    """The first beginning of a period of this size from this time on."""
    return math.ceil(at / size) * size


def _check_limits(key: StoredKey) -> None:
    """Refuses limits that make no sense or do not fit the columns, before the database sees them."""
    for what, patterns in (("models", key.models), ("tools", key.tools or [])):
        for pattern in patterns:
            if not pattern or not pattern.isprintable():
                raise RequestError(f"a pattern of {what} must consist of visible characters; {excerpt(pattern)} does not")
    for name in ("requests_per_minute", "tokens_per_minute", "concurrent", "budget_tokens"):
        number = getattr(key, name)
        if number is not None and not 0 <= number <= MAX_KEY_LIMIT:
            raise RequestError(
                f"{name} must be a number from 0 to {MAX_KEY_LIMIT}, not {excerpt(number)}; leave it out for no limit"
            )
    if key.budget_cost is not None and not (math.isfinite(key.budget_cost) and key.budget_cost >= 0):
        raise RequestError(f"a budget must be an amount of money, not {key.budget_cost}; leave it out for no limit")
    if key.budget_seconds is None:
        return
    if not (math.isfinite(key.budget_seconds) and key.budget_seconds > 0):
        raise RequestError(
            f"the period of a budget must be longer than {key.budget_seconds:g} seconds; leave it out if the budget never renews"
        )
    if key.budget_cost is None and key.budget_tokens is None:
        raise RequestError("a budget period was given without a budget: set what the key may cost, or how many tokens it may use")


def _key(row: DatabaseRow) -> StoredKey:
    known = {name: getattr(row, name) for name in StoredKey.__struct_fields__}
    tools = None if row.tools is None else msgspec.json.decode(row.tools)
    return StoredKey(**{**known, "models": msgspec.json.decode(row.models), "tools": tools})


def _text(patterns: list[str]) -> str:
    return msgspec.json.encode(patterns).decode()


class KeyMarker:
    """The marker of one database. ``file`` is the path of a SQLite database, ``shown`` the URL of any other without its
    password."""

    def __init__(self, file: Path | None, shown: str) -> None:
        if file is not None:
            self.path = file.with_name(f".{file.name}.had-keys")
        else:
            self.path = data_directory() / "had-keys" / hashlib.sha256(shown.encode()).hexdigest()[:32]
        self._shown = shown
        self._set = False

    def is_set(self) -> bool:
        try:
            return self.path.exists()
        except OSError:
            return False

    def set(self) -> None:
        """Writes the marker, once per process. A directory that cannot be written to is ignored: the running process remembers
        the keys itself."""
        if self._set:
            return
        self._set = True
        try:
            if not self.path.exists():
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.path.write_text(f"{self._shown} has had keys: a gateway on it requires a key, even if there are none now\n")
        except OSError:
            return
