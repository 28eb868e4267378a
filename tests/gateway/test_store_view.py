"""The API for stored turns: visibility, filters, raw bytes, exports, and a store that is off or does not answer."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from gateway.archived import database, inside, keep, store_of, with_store
from gateway.running import Running, running
from store.turns import answer, ask, user
from streamglot.config import Config, LoadedConfig
from streamglot.events import StreamError
from streamglot.gateway.api.pages import description
from streamglot.gateway.app import Gateway
from streamglot.gateway.auth.authenticator import digest_of
from streamglot.store import SessionHints, Started, Store, StoreUnavailable
from waiting import until

MINE, YOURS = {"x-api-key": "mine"}, {"x-api-key": "yours"}
FRAMES = [("up", 0.5, b"data: caf\xc3"), ("up", 0.75, b"\xa9\n\n"), ("down", 0.8, b"data: x\n\n")]
KEYS = [{"name": "me", "hash": digest_of("mine")}, {"name": "you", "hash": digest_of("yours")}]


class Kept(Struct):
    """``mine``: the newest last."""

    gateway: Running
    mine: list[str]
    session: str
    yours: str
    running: str


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    url = database(tmp_path_factory.mktemp("archive"))

    async def fill(store: Store) -> tuple[list[str], str, str]:
        mine = []
        for number in range(3):
            turn = await keep(
                store,
                ask(user(f"question {number} about zebras"), model="large" if number else "small"),
                answer(f"<b>answer</b> {number}"),
                caller="me",
                name="mine",
                at=1_000_000.0 + number,
                frames=FRAMES if number == 2 else (),
            )
            mine.append(turn.id)
        broken = answer("half", error=StreamError("upstream_error", "it broke", "upstream", True, 502))
        yours = await keep(store, ask(user("a secret about zebras")), broken, caller="you", name="yours")
        return mine, turn.session.id, yours.id

    mine, session, yours = with_store(url, fill, raw=True)
    with running({"store": {"url": url}, "server": {"keys": KEYS}}) as gateway:
        started = _start(gateway)
        yield Kept(gateway, mine, session, yours, started)


def _start(gateway: Running) -> str:
    """A turn that goes on, in the gateway's own store."""
    store = store_of(gateway)

    async def start() -> str:
        session = await store.find_session(SessionHints(caller="you", name="running"), ask(user("wait")))
        turn = store.start(session, Started(caller="you", request=ask(user("wait")), model="small", response_id="resp_running"))
        await store.writer.flush()
        return turn.id

    return inside(gateway, start())


def ids(answer: Any) -> list[str]:
    assert answer.status == 200, answer.body
    return [found["id"] for found in answer.json()["data"]]


# --- who sees what


def test_a_key_sees_its_own(kept: Kept) -> None:
    gateway = kept.gateway
    assert ids(gateway.ask("/turns", headers=MINE)) == kept.mine[::-1]
    assert ids(gateway.ask("/turns", headers=YOURS)) == [kept.running, kept.yours]
    assert ids(gateway.ask("/sessions", headers=MINE)) == [kept.session]
    assert len(ids(gateway.ask("/sessions", headers=YOURS))) == 2
    assert gateway.ask("/turns").status == 401
    places = (f"/turns/{kept.mine[2]}", f"/turns/{kept.mine[2]}/raw", f"/turns/{kept.mine[2]}/export")
    for path in (*places, f"/sessions/{kept.session}", f"/sessions/{kept.session}/export"):
        assert gateway.ask(path, headers=MINE).status == 200
        hidden = gateway.ask(path, headers=YOURS)
        assert (hidden.status, hidden.json()["error"]["code"]) == (404, f"{path.split('/')[1][:-1]}_not_found")
        assert b"lists yours" in hidden.body
    assert ids(gateway.ask("/search?q=zebras", headers=YOURS)) == [kept.yours]
    assert ids(gateway.ask(f"/turns?session={kept.session}", headers=YOURS)) == []
    hidden, none = (gateway.ask(f"/turns?before={before}", headers=YOURS) for before in (kept.mine[2], "turn_none"))
    assert hidden.status == none.status == 400
    assert hidden.body.replace(kept.mine[2].encode(), b"turn_none") == none.body


def test_without_keys_the_operator_sees_all(tmp_path: Path) -> None:
    url = database(tmp_path)

    async def fill(store: Store) -> list[str]:
        return [(await keep(store, ask(user(caller)), caller=caller, name="n")).id for caller in ("me", "you", "")]

    made = with_store(url, fill)
    with running({"store": {"url": url}}) as gateway:
        assert sorted(ids(gateway.ask("/turns"))) == sorted(made)
        assert gateway.ask(f"/turns/{made[0]}", headers=YOURS).status == 200
        assert len(ids(gateway.ask("/sessions"))) == 3
        first = gateway.ask("/sessions?limit=2").json()
        assert (len(first["data"]), first["has_more"]) == (2, True)
        second = gateway.ask(f"/sessions?limit=2&before={first['last_id']}").json()
        assert (len(second["data"]), second["has_more"]) == (1, False)
        assert len({found["id"] for found in first["data"] + second["data"]}) == 3
        last = first["data"][-1]

        async def go_on() -> None:
            store = store_of(gateway)
            await keep(store, ask(user("more")), caller=last["caller"], name="n")
            await store.writer.flush()

        inside(gateway, go_on())
        assert gateway.ask("/sessions").json()["data"][0]["id"] == last["id"]
        assert gateway.ask(f"/sessions?limit=2&before={first['last_id']}").json()["data"] == second["data"]
        assert len(ids(gateway.ask(f"/sessions?before={last['id']}"))) == 2


# --- turns and sessions


def test_filters_and_pages(kept: Kept) -> None:
    def found(query: str, headers: dict[str, str] = MINE) -> list[str]:
        return ids(kept.gateway.ask(f"/turns?{query}", headers=headers))

    newest, middle, oldest = kept.mine[::-1]
    assert found("model=large") == [newest, middle]
    assert found("upstream=one&ending=end") == [newest, middle, oldest]
    assert found("upstream=two") == []
    assert found("ending=error", YOURS) == [kept.yours]
    assert found("ending=running", YOURS) == [kept.running]
    assert found("since=1000001&until=1000002") == [middle]
    assert found("since=1970-01-12T13:46:42Z") == found("since=1970-01-12T13:46:42") == [newest]
    assert found('search="question%201"') == found('search=zebras%20-"question%200"%20-"question%202"') == [middle]
    assert ids(kept.gateway.ask("/search?q=question%20zebras&limit=1", headers=MINE)) == [newest]
    page = kept.gateway.ask("/turns?limit=2", headers=MINE).json()
    assert (page["has_more"], page["last_id"]) == (True, middle)
    page = kept.gateway.ask(f"/turns?limit=2&before={middle}", headers=MINE).json()
    assert ([turn["id"] for turn in page["data"]], page["has_more"]) == ([oldest], False)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/turns?modle=x", "'modle' is not a parameter of this path; it has session, model"),
        ("/turns?limit=0", "limit must be a number from 1 to 500, not '0'"),
        ("/turns?limit=501", "limit must be a number"),
        ("/turns?limit=99999999999999999999", "limit must be a number"),
        ("/turns?limit=%C2%B2", "limit must be a number"),
        ("/turns?since=yesterday", "since must be seconds since 1970 or a date"),
        ("/turns?since=nan", "since must be seconds since 1970 or a date"),
        ("/turns?until=2026-13-01", "until must be seconds"),
        ("/turns?ending=nope", "there is no ending 'nope'; choose one of end, stop_sequence"),
        ("/search?q=x&ending=END", "truncated, client_gone, interrupted, policy, error, running"),
        (
            "/turns?before=turn_none",
            "before must be the last_id of a page, or the id of a turn that you may see, not 'turn_none'",
        ),
        ("/sessions?before=ses_none", "or the id of a session that you may see, not 'ses_none'"),
        ("/search", "q is required"),
        ("/search?q=-zebras", 'a search needs at least one word that must be present: two words "an exact phrase" -not'),
        ("/search?q=%00", "a search needs at least one word"),
        ("/turns?search=%22", "a search needs at least one word"),
        (f"/search?q={'a+' * 65}", "a search may have at most 64 terms, not 65"),
        ("/sessions?session=x", "'session' is not a parameter of this path; it has limit, before"),
        ("/sessions/x/export?format=html", "format must be jsonl or markdown, not 'html'"),
    ],
)
def test_invalid_queries_are_refused(kept: Kept, path: str, words: str) -> None:
    refused = kept.gateway.ask(path, headers=MINE)
    assert (refused.status, refused.json()["error"]["code"]) == (400, "invalid_request")
    assert words in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/turns/%00", "/turns/a%00b", "/sessions/%ff", "/turns/%F0%9F%A6%93/raw", "/v1/responses/%00x"])
def test_invalid_ids_find_nothing(kept: Kept, path: str) -> None:
    assert kept.gateway.ask(path, headers=MINE).status == 404
    assert kept.gateway.ask(f"/turns?before={path}", headers=MINE).status == 400
    assert ids(kept.gateway.ask(f"/turns?session={path}&search=%00zebras'\"", headers=MINE)) == []


def test_a_session_and_its_turns(kept: Kept) -> None:
    page = kept.gateway.ask(f"/sessions/{kept.session}?limit=2", headers=MINE).json()
    session = page["session"]
    assert (session["id"], session["caller"], session["name"], session["turns"]) == (kept.session, "me", "mine", 3)
    assert session["title"] == "question 0 about zebras"
    assert (session["input_tokens"], session["output_tokens"]) == (75, 45)
    assert ([turn["id"] for turn in page["data"]], page["has_more"]) == (kept.mine[:0:-1], True)


def test_a_turn_is_shown_completely(kept: Kept) -> None:
    turn = kept.gateway.ask(f"/turns/{kept.mine[2]}", headers=MINE).json()
    assert turn["request"]["messages"][0]["parts"] == [{"type": "text", "text": "question 2 about zebras"}]
    assert turn["response"]["choices"][0]["parts"] == [{"type": "text", "text": "<b>answer</b> 2"}]
    assert (turn["ending"], turn["upstream"], turn["started"], turn["usage"]["input_tokens"]) == ("end", "one", 1_000_002.0, 25)
    broken = kept.gateway.ask(f"/turns/{kept.yours}", headers=YOURS).json()
    assert (broken["ending"], broken["error"]["code"]) == ("error", "upstream_error")
    going = kept.gateway.ask("/turns/resp_running", headers=YOURS).json()
    assert (going["id"], going["ending"], going["duration"], going["response"]) == (kept.running, "", None, None)


# --- files


def test_raw_bytes_are_shown(kept: Kept) -> None:
    path = f"/turns/{kept.mine[2]}/raw"
    answer = kept.gateway.ask(path, headers=MINE)
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert [(line["direction"], line["at"]) for line in lines] == [("up", 0.5), ("up", 0.75), ("down", 0.8)]
    assert base64.b64decode(lines[0]["base64"]) == FRAMES[0][2]
    assert lines[2]["text"] == "data: x\n\n"
    answer = kept.gateway.ask(f"{path}?format=bytes&direction=up", headers=MINE)
    assert answer.body.decode() == "data: café\n\n"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    for missing, step in ((f"{path}?direction=sideways", "request down or up"), (f"/turns/{kept.mine[0]}/raw", "set store.raw")):
        refused = kept.gateway.ask(missing, headers=MINE)
        assert (refused.status, refused.json()["error"]["code"]) == (404, "no_raw")
        assert step in refused.json()["error"]["message"]


def test_turns_are_exported(kept: Kept) -> None:
    answer = kept.gateway.ask(f"/sessions/{kept.session}/export", headers=MINE)
    assert [json.loads(line)["id"] for line in answer.body.splitlines()] == kept.mine[::-1]
    assert answer.headers["content-disposition"] == f'attachment; filename="{kept.session}.jsonl"'
    page = kept.gateway.ask(f"/sessions/{kept.session}/export?format=markdown", headers=MINE)
    assert page.headers["content-type"] == "text/markdown; charset=utf-8"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.body.decode().count("about zebras\n") == 6
    one = kept.gateway.ask(f"/turns/{kept.mine[0]}/export", headers=MINE)
    assert json.loads(one.body) == kept.gateway.ask(f"/turns/{kept.mine[0]}", headers=MINE).json()
    one = kept.gateway.ask(f"/turns/{kept.mine[0]}/export?format=markdown", headers=MINE)
    assert "> &#60;b>answer&#60;/b> 0" in one.body.decode()
    assert one.headers["content-disposition"].endswith(f'"{kept.mine[0]}.md"')


# --- a store that is off, or away

PATHS = ("/sessions", "/sessions/x", "/turns", "/turns/x", "/turns/x/raw", "/search?q=x", "/v1/responses/x")


def test_routes_of_a_disabled_store_are_not_found() -> None:
    with running({"store": {"url": "none"}}) as gateway:
        for path in PATHS:
            refused = gateway.ask(path)
            assert (refused.status, refused.json()["error"]["code"]) == (404, "store_off")
            assert "store.url" in refused.json()["error"]["message"]
        ready = gateway.ask("/ready")
        assert (ready.status, ready.json()["store"]) == (200, "off")
        assert b"streamglot_store_queued 0.0" in gateway.ask("/metrics").body


def test_a_store_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running({"store": {"url": database(tmp_path)}}) as gateway:
        store = store_of(gateway)

        async def gone(*_: Any, **_named: Any) -> Any:
            raise StoreUnavailable("the database does not answer")

        monkeypatch.setattr(store.database, "fetch", gone)
        for path in PATHS:
            refused = gateway.ask(path)
            assert (refused.status, refused.json()["error"]["code"]) == (503, "store_unavailable")


def test_numbers_and_readiness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running({"store": {"url": database(tmp_path)}}) as gateway:
        store = store_of(gateway)
        assert gateway.ask("/ready").json()["store"] == "ok"

        async def take() -> None:
            await keep(store, ask(user("x")), answer("y"))
            await store.writer.flush()

        inside(gateway, take())
        page = gateway.ask("/metrics").body.decode()
        assert 'streamglot_store_written_total{kind="endings"} 1.0' in page
        assert "streamglot_store_queued 0.0" in page
        assert gateway.ask("/metrics").body.decode().count('{kind="endings"} 1.0') == 1  # nothing is counted twice

        def broken(*_: Any, **__: Any) -> Any:
            raise StoreUnavailable("the disk is full")

        monkeypatch.setattr(store.database, "write", broken)
        inside(gateway, keep(store, ask(user("x")), answer("y")))
        until(lambda: gateway.ask("/ready").json()["store"] == "failing")
        ready = gateway.ask("/ready")
        assert (ready.status, ready.json()["status"]) == (200, "ready")
        page = gateway.ask("/metrics").body.decode()
        assert "streamglot_store_failing 1.0" in page
        assert "streamglot_store_queued 2.0" in page
        assert "streamglot_store_failures_total 0.0" not in page
        monkeypatch.undo()
        until(lambda: gateway.ask("/ready").json()["store"] == "ok")


def test_the_addresses_are_described() -> None:
    paths = description(Gateway(LoadedConfig(Config()), {}).router.routes)["paths"]
    assert [parameter["name"] for parameter in paths["/turns"]["get"]["parameters"]][:2] == ["session", "model"]
    assert {"get", "delete"} <= set(paths["/v1/responses/{id}"])
    assert "requestBody" not in paths["/v1/streams/{id}/stop"]["post"]
    for path, methods in paths.items():
        for operation in methods.values():
            named = {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "path"}
            assert named == {piece.strip("{}") for piece in path.replace(":", "/").split("/") if piece.startswith("{")}


def test_a_turn_that_is_not_written_yet_is_found(tmp_path: Path) -> None:
    """A page asks for a turn as soon as it knows its id, on a machine that is too busy to have written it."""
    with running({"store": {"url": database(tmp_path)}}) as gateway:
        store = store_of(gateway)
        store.writer._interval = 3600.0

        async def begun(name: str) -> tuple[str, str]:
            request = ask(user(name))
            turn = store.start(await store.find_session(SessionHints(name=name), request), Started(request=request))
            return turn.id, turn.session.id

        turn, session = inside(gateway, begun("one"))
        assert gateway.ask(f"/turns/{turn}").json()["id"] == turn
        turn, session = inside(gateway, begun("inspected"))
        assert gateway.ask(f"/turns/{turn}/inspect?follow=false").status == 200
        turn, session = inside(gateway, begun("two"))
        assert [one["id"] for one in gateway.ask(f"/sessions/{session}").json()["data"]] == [turn]
        assert gateway.ask("/turns/turn_none").status == gateway.ask("/sessions/ses_none").status == 404
