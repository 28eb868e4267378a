"""``streamglot keys``: those of the gateway's callers that live in the store."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from ...errors import RequestError
from ...store import Spent, StoredKey
from ..output import table
from ..output.cost import money
from ..output.json_output import seen
from ..output.units import seconds, shown_time
from ..store_view import StoreView, reading


def add(name: str, limits: dict[str, Any], per: str) -> int:
    """The secret alone on standard output, so that it can go straight to where it is wanted."""
    limits = {what: value for what, value in limits.items() if value is not None}
    if per:
        limits["budget_seconds"] = seconds(per)

    async def work(library: StoreView) -> str:
        return (await library.keys.add(name, **limits))[1]

    secret = reading(work)
    print(secret)
    print("this is the only time that it is shown: only its hash is kept", file=sys.stderr)
    return 0


def listed(revoked: bool, as_json: bool) -> int:
    async def work(library: StoreView) -> list[tuple[StoredKey, Spent]]:
        return [(key, await library.keys.spent(key)) for key in await library.keys.all(revoked=revoked)]

    found = reading(work)
    if as_json:
        for key, spent in found:
            facts = {**msgspec.to_builtins(key), "spent": spent}
            del facts["hash"]
            sys.stdout.buffer.write(seen(msgspec.json.encode(facts) + b"\n"))
    elif not found:
        print("no key is in the store; `streamglot keys add NAME` makes one", file=sys.stderr)
    else:
        names = ("key", "begins", "made", "turns", "tokens", "cost", "limits")
        table.show(names, [_row(key, spent) for key, spent in found], ("turns", "tokens", "cost"))
    return 0


def revoke(name: str) -> int:
    async def work(library: StoreView) -> bool:
        return await library.keys.revoke(name)

    if not reading(work):
        raise RequestError(f"there is no valid key {name!r}; `streamglot keys list` lists them")
    print(f"{name!r} is revoked: it opens nothing any more")
    return 0


def _row(key: StoredKey, spent: Spent) -> list[str]:
    made = shown_time(key.created, "%Y-%m-%d")
    return [key.name, f"{key.shown}…", made, str(spent.turns), str(spent.tokens), money(spent.cost), ", ".join(_limits(key))]


def _limits(key: StoredKey) -> list[str]:
    per = "" if key.budget_seconds is None else f" in {key.budget_seconds / 86_400:g} days"
    words = [f"revoked {shown_time(key.revoked, '%Y-%m-%d')}"] if key.revoked is not None else []
    words += [f"models {' '.join(key.models)}"] if key.models != ["*"] else []
    words += [f"{key.requests_per_minute} requests/min"] if key.requests_per_minute else []
    words += [f"{key.tokens_per_minute} tokens/min"] if key.tokens_per_minute else []
    words += [f"{key.concurrent} at once"] if key.concurrent else []
    words += [f"{money(key.budget_cost)}{per}"] if key.budget_cost is not None else []
    words += [f"{key.budget_tokens} tokens{per}"] if key.budget_tokens is not None else []
    return words
