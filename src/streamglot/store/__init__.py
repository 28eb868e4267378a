"""What was said, kept: sessions, turns, messages, keys, and streams that can be resumed.

One ``Store`` for each process, on SQLite or PostgreSQL. Nothing on the path of a stream waits for it and nothing raises into
it: what happens is handed over, a writer commits it every fifth of a second, and what cannot be kept is counted.

    store = await Store.open(StoreSettings(url=..., content=..., raw=...), say)        # when the gateway starts
    want = wanted(caller, request, body, headers)                                       # what the client names
    session = await store.find_session(want, request)                                   # waits a second at most
    request.messages[:0] = await store.history(session)                                 # only for a previous_response_id
    answers = await store.answers(session)                                              # once, before upstreams are asked

    turn = store.start(session, Started(caller=..., request=request, dialect=..., model=..., probe=is_probe(request)))
    asked = restore_echoes(request, answers, provider=upstream.name)                    # for each upstream that is asked
    state = session.told_by(upstream.name)                                              # what it told us in the turn before
    turn.frame("up", seconds, chunk)                                                    # each read, if ``raw``
    turn.learn(upstream.name, event)                                                    # each Extra of the upstream's dialect
    turn.finish(Finished(ending=..., response=collected, upstream=..., upstream_request=asked, ...))   # always, in a finally
    await store.close()                                                                 # when the gateway stops: writes all

``caller`` tells two callers apart (the name of a key, or a hash of what the client presented); every question takes it, and
``None`` is the operator. A request that is handed over must not be changed afterwards. A turn that is never finished is
there as ``interrupted`` when its process is gone.

    store.buffer.open(id, caller, on_stop); .append(id, number, data); .end(id)         # the producer: none of it waits
    async for chunk in store.buffer.read(id, after, caller): ...                        # any worker, live or after the end
    await store.buffer.stop(id, caller)                                                 # any worker; calls on_stop there

``store.responses`` has the answers that clients may ask for again; ``store.queries`` lists, searches and shows;
``store.keys`` has the callers' keys; ``prune`` removes, and nothing else does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .buffer import Chunk, DatabaseBuffer, StreamBuffer
    from .conversation import Conversation, hash_conversation
    from .database import Database, StoreUnavailable
    from .echoes import restore_echoes
    from .export import detail_line, export_jsonl, export_markdown, markdown, summary_line
    from .keys import Overdrawn, Spent, StoredKey, StoredKeys
    from .paths import data_directory, default_url
    from .prune import Pruned, prune_turns
    from .queries import Filter, Queries, RawFrame, SessionSummary, TurnDetail, TurnSummary
    from .responses import Responses
    from .sessions import Wanted, chat_session, wanted
    from .store import Store, StoreSettings
    from .turn import ENDINGS, Finished, Session, Started, Turn, is_probe
    from .valkey_buffer import ValkeyBuffer
    from .writer import Report

_EXPORTS = {
    "buffer": (
        "Chunk",
        "DatabaseBuffer",
        "StreamBuffer",
    ),
    "conversation": (
        "Conversation",
        "hash_conversation",
    ),
    "database": (
        "Database",
        "StoreUnavailable",
    ),
    "echoes": ("restore_echoes",),
    "export": (
        "detail_line",
        "export_jsonl",
        "export_markdown",
        "markdown",
        "summary_line",
    ),
    "keys": (
        "Overdrawn",
        "Spent",
        "StoredKey",
        "StoredKeys",
    ),
    "paths": (
        "data_directory",
        "default_url",
    ),
    "prune": (
        "Pruned",
        "prune_turns",
    ),
    "queries": (
        "Filter",
        "Queries",
        "RawFrame",
        "SessionSummary",
        "TurnDetail",
        "TurnSummary",
    ),
    "responses": ("Responses",),
    "sessions": (
        "Wanted",
        "chat_session",
        "wanted",
    ),
    "store": (
        "Store",
        "StoreSettings",
    ),
    "turn": (
        "ENDINGS",
        "Finished",
        "Session",
        "Started",
        "Turn",
        "is_probe",
    ),
    "valkey_buffer": ("ValkeyBuffer",),
    "writer": ("Report",),
}
_MODULES = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports a module when one of its names is first used: SQLAlchemy takes 0.3 s of CPU, and parts of the store need none of it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


__all__ = [
    "ENDINGS",
    "Chunk",
    "Conversation",
    "Database",
    "DatabaseBuffer",
    "Filter",
    "Finished",
    "Overdrawn",
    "Pruned",
    "Queries",
    "RawFrame",
    "Report",
    "Responses",
    "Session",
    "SessionSummary",
    "Spent",
    "Started",
    "Store",
    "StoreSettings",
    "StoreUnavailable",
    "StoredKey",
    "StoredKeys",
    "StreamBuffer",
    "Turn",
    "TurnDetail",
    "TurnSummary",
    "ValkeyBuffer",
    "Wanted",
    "chat_session",
    "data_directory",
    "default_url",
    "detail_line",
    "export_jsonl",
    "export_markdown",
    "hash_conversation",
    "is_probe",
    "markdown",
    "prune_turns",
    "restore_echoes",
    "summary_line",
    "wanted",
]
