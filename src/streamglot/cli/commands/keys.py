"""``streamglot keys``: adds, lists and revokes the gateway keys in the store."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from ...authentication import Authentication, authentication
from ...config import LoadedConfig, load
from ...errors import RequestError
from ...store import Spent, StoredKey
from ..output import table
from ..output.cost import money
from ..output.json_output import seen
from ..output.units import seconds, shown_time
from ..store_view import StoreView, reading


def add(name: str, limits: dict[str, Any], per: str) -> int:  # Any: fields of a StoredKey
    """Creates a key. Standard output gets only the secret, so that it can be piped."""
    limits = {what: value for what, value in limits.items() if value is not None}
    if per:
        limits["budget_seconds"] = seconds(per)

    async def work(view: StoreView) -> str:
        return (await view.keys.add(name, **limits))[1]

    loaded = load()
    secret = reading(work, loaded)
    print(secret)
    print("the key is shown only this once: the store has only its hash", file=sys.stderr)
    if loaded.config.server.authentication == "none":
        print('the gateway does not require it: server.authentication is "none"', file=sys.stderr)
    return 0


def listed(revoked: bool, as_json: bool) -> int:
    loaded = load()

    async def work(view: StoreView) -> tuple[list[tuple[StoredKey, Spent]], Authentication]:
        listed = [(key, await view.keys.spent(key)) for key in await view.keys.all(revoked=revoked)]
        return listed, await state_of(view, loaded)

    found, state = reading(work, loaded)
    if as_json:
        for key, spent in found:
            facts = {**msgspec.to_builtins(key), "spent": spent}
            del facts["hash"]
            sys.stdout.buffer.write(seen(msgspec.json.encode(facts) + b"\n"))
    elif found:
        names = ("key", "begins", "made", "turns", "tokens", "cost", "limits")
        table.show(names, [_row(key, spent) for key, spent in found], ("turns", "tokens", "cost"))
    if not found and state.usable and not as_json:
        print("the store has no keys; `streamglot keys add NAME` creates one", file=sys.stderr)
    _explain(state)
    return 0


def revoke(name: str) -> int:
    loaded = load()

    async def work(view: StoreView) -> tuple[bool, Authentication]:
        return await view.keys.revoke(name), await state_of(view, loaded)

    found, state = reading(work, loaded)
    if not found:
        raise RequestError(f"there is no valid key {name!r}; `streamglot keys list` lists them")
    print(f"{name!r} is revoked: the gateway refuses it from now on")
    _explain(state)
    return 0


async def state_of(view: StoreView, loaded: LoadedConfig) -> Authentication:
    """Returns whether a gateway with this configuration and store requires keys, and whether any key is valid."""
    keys = await view.keys.all(revoked=True)
    valid = sum(key.revoked is None for key in keys)
    had_keys = bool(keys) or view.keys.had_keys()
    return authentication(loaded.config.server, stored=valid, revoked=len(keys) - valid, had_keys=had_keys)


def _explain(state: Authentication) -> None:
    """Warns if the gateway refuses every request because no key is valid."""
    if not state.usable:
        print(f"{state.summary}. Every request is refused with 401: {state.step}", file=sys.stderr)
    elif not state.required:
        print(state.summary, file=sys.stderr)


def _row(key: StoredKey, spent: Spent) -> list[str]:
    made = shown_time(key.created, "%Y-%m-%d")
    return [key.name, f"{key.shown}…", made, str(spent.turns), str(spent.tokens), money(spent.cost), ", ".join(_limits(key))]


def _limits(key: StoredKey) -> list[str]:
    per = "" if key.budget_seconds is None else f" in {key.budget_seconds / 86_400:g} days"
    words = [f"revoked {shown_time(key.revoked, '%Y-%m-%d')}"] if key.revoked is not None else []
    words += [f"models {' '.join(key.models)}"] if key.models != ["*"] else []
    words += [f"tools {' '.join(key.tools) or 'none'}"] if key.tools is not None else []
    words += [f"{key.requests_per_minute} requests/min"] if key.requests_per_minute else []
    words += [f"{key.tokens_per_minute} tokens/min"] if key.tokens_per_minute else []
    words += [f"{key.concurrent} at once"] if key.concurrent else []
    words += [f"{money(key.budget_cost)}{per}"] if key.budget_cost is not None else []
    words += [f"{key.budget_tokens} tokens{per}"] if key.budget_tokens is not None else []
    return words
