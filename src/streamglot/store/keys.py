"""The callers' API keys with their limits and budgets. Only the SHA-256 of a key is stored; the key is shown once, when it is
made."""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from sqlalchemy import BigInteger, ColumnElement, Connection, and_, cast, func, insert, literal, or_, select, update
from sqlalchemy.exc import IntegrityError

from ..callers import MAX_LIMIT, fault_of_key_name
from ..errors import RequestError, excerpt
from . import schema
from .database import Database, Watch
from .key_marker import KeyMarker
from .sql_types import DatabaseRow, Query, SqlRow, SqlValue
from .turn import TURN, first_id

PREFIX: Final = "sg-"
SHOWN_CHARS: Final = 8
TOTAL: Final = 0
MINUTE: Final = 60
DAY: Final = 86_400
"""The periods of ``spending``, in seconds."""


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
        self._watch = Watch(database, select(schema.keys).order_by(schema.keys.c.created))
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
        except IntegrityError:
            raise RequestError(f"a key named {name!r} exists or existed; choose another name") from None
        self._watch.forget()
        self._marker.set()
        return key, secret

    def _add(self, connection: Connection, row: SqlRow) -> None:
        """Adds the key, and what earlier turns of its caller used. From then on a trigger adds to it; other writers are excluded, so
        that no turn is left out."""
        connection.execute(insert(schema.keys), row)
        turns, endings, spending = schema.turns, schema.endings, schema.spending
        for size in (TOTAL, MINUTE, DAY):
            at = period_of(turns.c.started, size)
            used = select(turns.c.caller, literal(size), at, *_SUMS).join(endings, endings.c.turn_id == turns.c.id)
            used = used.where(turns.c.caller == row["name"]).group_by(turns.c.caller, at)
            connection.execute(insert(spending).from_select(list(spending.c), used))

    async def all(self, *, revoked: bool = False) -> list[StoredKey]:
        """All valid keys, and with ``revoked`` also those that were revoked."""
        table = schema.keys
        question = select(table).order_by(table.c.created)
        return [
            _key(row) for row in await self._database.fetch(question if revoked else question.where(table.c.revoked.is_(None)))
        ]

    async def changes(self) -> list[StoredKey] | None:
        """All keys, valid or revoked; None if nothing changed since the last call."""
        rows = await self._watch.look()
        if rows:
            self._marker.set()
        return None if rows is None else [_key(row) for row in rows]

    async def find(self, secret: str) -> StoredKey | None:
        """The valid key with this secret."""
        table = schema.keys
        mark = hashlib.sha256(secret.encode()).hexdigest()
        rows = await self._database.fetch(select(table).where(table.c.hash == mark, table.c.revoked.is_(None)))
        return _key(rows[0]) if rows else None

    async def revoke(self, name: str) -> bool:
        """Makes the key invalid. Its turns stay."""
        table = schema.keys
        valid = update(table).where(table.c.name == name, table.c.revoked.is_(None))
        found = await self._database.execute(valid.values(revoked=time.time()))
        self._watch.forget()
        return found > 0

    async def spent(self, key: StoredKey, now: float | None = None) -> Spent:
        """The used part of the key's budget."""
        return (await self._spent_by([key], now or time.time()))[key.name]

    async def charged(self, which: ColumnElement[bool]) -> list[str]:
        """The names of the valid keys whose budgets these turns count for."""
        keys = schema.keys
        counts = or_(and_(keys.c.budget_cost.is_not(None), COST > 0), and_(keys.c.budget_tokens.is_not(None), TOKENS > 0))
        question = _used(keys.c.name).where(keys.c.revoked.is_(None), counts, which).distinct()
        return [row.name for row in await self._database.fetch(question.order_by(keys.c.name))]

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
        names, seconds, spending = [key.name for key in keys], keys[0].budget_seconds, schema.spending
        if seconds is None:
            parts = [_sums(spending.c.caller.in_(names), spending.c.size == TOTAL, spending.c.at == 0)]
        else:
            begin = max(0.0, now - seconds)
            minute, day = _next(begin, MINUTE), _next(begin, DAY)
            parts = [
                _sums(spending.c.caller.in_(names), spending.c.size == DAY, spending.c.at >= day),
                _sums(spending.c.caller.in_(names), spending.c.size == MINUTE, spending.c.at >= minute, spending.c.at < day),
                _turns_between(begin, minute, schema.turns.c.caller, *_SUMS)
                .where(schema.turns.c.caller.in_(names))
                .group_by(schema.turns.c.caller),
            ]
        found = {name: Spent(turns=0, tokens=0, cost=0.0) for name in names}
        for part in parts:
            for row in await self._database.fetch(part):
                spent = found[row.caller]
                spent.turns, spent.tokens, spent.cost = (
                    spent.turns + row.turns,
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
            for row in await self._database.fetch(_amounts(key.name, name, size, first, end)):
                excess -= row.amount
                if excess < 0:
                    if not size:
                        return float(row.start)
                    excess += row.amount
                    periods = [(0 if size == MINUTE else MINUTE, row.start, row.start + size)]  # it is within this period
                    break
        return None


TOKENS: Final = func.coalesce(cast(schema.endings.c.input_tokens, BigInteger), 0) + func.coalesce(
    schema.endings.c.output_tokens, 0
)
"""The sum is a BigInteger, because two values of the column may exceed its type."""
COST: Final = func.coalesce(schema.endings.c.cost, 0.0)
_SUMS: Final = (
    func.count(schema.endings.c.turn_id).label("turns"),
    func.coalesce(func.sum(TOKENS), 0).label("tokens"),
    func.coalesce(func.sum(COST), 0.0).label("cost"),
)


def _used(*columns: ColumnElement[SqlValue]) -> Query:
    """Selects these columns of the turns that count for the budget of their key."""
    keys, turns, endings = schema.keys, schema.turns, schema.endings
    at = time.time()
    counted = and_(turns.c.caller == keys.c.name, turns.c.started >= at - func.coalesce(keys.c.budget_seconds, at))
    return select(*columns).select_from(keys).join(turns, counted).join(endings, endings.c.turn_id == turns.c.id)


def _sums(*conditions: ColumnElement[bool]) -> Query:
    spending = schema.spending
    sums = (func.sum(spending.c[name]).label(name) for name in ("turns", "tokens", "cost"))
    return select(spending.c.caller, *sums).where(*conditions).group_by(spending.c.caller)


def _turns_between(begin: float, end: float, *columns: ColumnElement[SqlValue]) -> Query:
    """These columns of the turns that started in this time and have ended."""
    turns, endings = schema.turns, schema.endings
    question = select(*columns).join_from(turns, endings, endings.c.turn_id == turns.c.id)
    return question.where(turns.c.id >= first_id(TURN, begin), turns.c.id < first_id(TURN, end))


def _amounts(caller: str, name: str, size: int, first: float, end: float) -> Query:
    """When the turns of a caller started and what each used, or the same of periods of this size; the oldest first."""
    turns, spending = schema.turns, schema.spending
    if not size:
        amount = {"cost": COST, "tokens": TOKENS}[name].label("amount")
        return (
            _turns_between(first, end, turns.c.started.label("start"), amount)
            .where(turns.c.caller == caller)
            .order_by(turns.c.id)
        )
    question = select(spending.c.at.label("start"), spending.c[name].label("amount")).where(
        spending.c.caller == caller, spending.c.size == size
    )
    question = question.where(spending.c.at >= first)
    return (question if end == math.inf else question.where(spending.c.at < end)).order_by(spending.c.at)


def period_of(started: ColumnElement[float], size: int) -> ColumnElement[int]:
    """The beginning of the period of ``spending`` in which a turn started."""
    return (cast(func.floor(started / size), BigInteger) * size if size else cast(literal(0), BigInteger)).label("at")


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
        if number is not None and not 0 <= number <= MAX_LIMIT:
            raise RequestError(f"{name} must be a number from 0 to {MAX_LIMIT}, not {excerpt(number)}; leave it out for no limit")
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
    known = {name: row._mapping[name] for name in StoredKey.__struct_fields__}
    tools = None if row.tools is None else msgspec.json.decode(row.tools)
    return StoredKey(**{**known, "models": msgspec.json.decode(row.models), "tools": tools})


def _text(patterns: list[str]) -> str:
    return msgspec.json.encode(patterns).decode()
