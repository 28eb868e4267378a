"""Every reader, every writer, every client: the recordings pass through all of them over a real socket."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from conformance.limits import LIMITS
from conformance.matrix import NODE, Clients, Matrix
from conformance.oracles import ORACLES
from conformance.state import CLIENTS, MAKER, UPSTREAMS, trips
from conformance.turns import run

import streamglot
from clients.node import missing
from gateway.upstream import UPSTREAM_NAMES
from recordings import recordings

READERS = sorted(name for name, entry in streamglot.DIALECTS.items() if entry.has_reader)
WRITERS = sorted(name for name, entry in streamglot.DIALECTS.items() if entry.has_writer)


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    reason = missing()
    if reason is not None:
        warnings.warn(f"NOT CHECKED with the clients in Node: {reason}", stacklevel=1)
    with Clients(node=reason is None) as running:
        yield running


def test_every_writer_is_read_by_a_client() -> None:
    assert sorted({*ORACLES, *NODE}) == WRITERS


def test_limits_name_clients_that_there_are() -> None:
    known = {name for clients in ORACLES.values() for name in clients}
    known |= {f"{name} (node)" for names in NODE.values() for name in names}
    assert {client for limit in LIMITS for client in limit.clients} <= known


@pytest.mark.parametrize("reader", READERS)
def test_every_client_of_every_writer_understands_every_stream(clients: Clients, reader: str) -> None:
    wrong: list[str] = []
    matrix = Matrix(wrong.append)
    for recording in recordings():
        if recording.dialect == reader:
            clients.run(matrix, reader, recording.name, recording.events(provider=MAKER))
    assert not wrong, "\n".join(wrong)
    read = {writer for (_, writer, _), count in matrix.cells.items() if count["streams"]}
    assert read == set(WRITERS) - ({"agui", "vercel_ui"} if missing() else set())


def test_no_upstream_is_called_like_its_dialect() -> None:
    assert not set(UPSTREAM_NAMES.values()) & set(streamglot.DIALECTS)


@pytest.mark.parametrize("store", [True, False], ids=["store", "none"])
def test_a_fresh_process_answers_every_second_turn(store: bool) -> None:
    """``make conformance`` does it for more recordings, and for clients that return less."""
    chosen = [trip for trip in trips() if trip.streamed and trip.returns == "everything" and not trip.store]
    streams = [(one.dialect, f"{one.dialect}/{one.name}", one.body) for one in recordings()]
    found = list(run(streams, chosen, store))
    assert [one for one in found if one[2]] == []
    assert {trip.client for _, trip, _ in found} == set(CLIENTS)
    assert {file.partition("/")[0] for file, _, _ in found} == set(UPSTREAMS)


def test_clients_in_node_are_checked() -> None:
    """A missing Node is an error: the writers of user interfaces have no other check."""
    reason = missing()
    if reason is not None:
        pytest.skip(f"NOT CHECKED with the clients in Node: {reason}")
