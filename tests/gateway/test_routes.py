"""The table of routes: one way for everything that the server answers beside the endpoints of dialects, on our server and others."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from gateway.raw import raw
from gateway.running import Running, running
from streamglot.config import Config, LoadedConfig
from streamglot.errors import RequestError
from streamglot.gateway.api.router import PARAMETER, APIRoute, Router
from streamglot.gateway.app import Gateway
from streamglot.gateway.auth.authenticator import digest_of
from streamglot.gateway.http.asgi import ASGICall
from streamglot.gateway.http.call import Reply, RoutedCall, StreamedReply
from waiting import WAIT_SECONDS

ROOT = "/below"
CHAT = "/v1/chat/completions"
PUBLIC = {"/", "/web/{path:path}", "/health", "/openapi.json", "/docs", "/api/version"}
"""The routes that tell nothing about this gateway."""


class Asked:
    """One request to an ASGI application, and what it answered. The client stays until ``gone``."""

    def __init__(self, path: str, body: bytes = b"", method: str = "GET", root: str = "", **headers: str) -> None:
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self._body = [body]
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": root + path.partition("?")[0],
            "root_path": root,
            "query_string": path.partition("?")[2].encode(),
            "scheme": "https",
            "server": ("10.0.0.1", 443),
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        }

    async def receive(self) -> dict[str, Any]:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def by(self, application: Callable[..., Any]) -> Asked:
        async with asyncio.timeout(WAIT_SECONDS):
            await application(self.scope, self.receive, self.send)
        return self

    @property
    def call(self) -> ASGICall:
        return ASGICall(self.scope, self.receive, self.send)

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    def header(self, name: str) -> list[str]:
        return [value.decode() for field, value in self.sent[0]["headers"] if field.decode() == name]

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def named(call: RoutedCall, *values: str) -> Reply:
    return Reply(200, f"{call.method} {values}".encode(), "text/plain")


async def other(_: RoutedCall) -> Reply:
    return Reply(201)


ROUTER = Router(
    [
        APIRoute("GET", "/things", named),
        APIRoute("POST", "/things", other),
        APIRoute("GET", "/things/{id}", named),
        APIRoute("GET", "/deep/{path:path}", named),
        APIRoute("POST", "/deep/{name:path}:count", named),
    ]
)


def routed(path: str, method: str = "GET") -> Asked:
    async def within() -> Asked:
        asked = Asked(path, method=method, host="gw")
        await ROUTER.answer(asked.call)
        return asked

    return asyncio.run(within())


@pytest.mark.parametrize(
    ("method", "path", "values"),
    [
        ("GET", "/things", ()),
        ("GET", "/things/a.b c", ("a.b c",)),
        ("GET", "/things/a\0b", ("a\ufffdb",)),
        ("GET", "/deep/", ("",)),
        ("GET", "/deep/a/b:count", ("a/b:count",)),
        ("POST", "/deep/a/b:count", ("a/b",)),
    ],
)
def test_a_call_finds_its_route(method: str, path: str, values: tuple[str, ...]) -> None:
    assert routed(path, method).body.decode() == f"{method} {values}"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/things/a/b", 404),
        ("PUT", "/things", 405),
        ("POST", "/things/a", 405),
        ("POST", "/deep/a", 405),
        ("POST", "/things", 201),
        ("HEAD", "/things/a", 200),
        ("HEAD", "/nothing", 404),
    ],
)
def test_the_status_of_a_path(method: str, path: str, status: int) -> None:
    assert routed(path, method).status == status


def test_a_slash_too_many_leads_to_the_route() -> None:
    answer = routed("/things/?a=b c", "PUT")
    assert (answer.status, answer.header("location")) == (307, ["https://gw/things?a=b%20c"])
    assert routed("/deep").header("location") == ["https://gw/deep/"]
    assert routed("/").status == 404


def test_no_two_rows_answer_the_same_call() -> None:
    rows = [(route.method, route.path) for route in Gateway(LoadedConfig(Config()), {}).router.routes]
    assert len(rows) == len(set(rows)) > 50


def test_every_route_but_the_public_ones_asks_for_a_key() -> None:
    keys = [{"name": "me", "hash": digest_of("mine")}]
    with running({"server": {"keys": keys, "public_paths": []}}) as gateway:
        for route in gateway.gateway.router.routes:
            if route.path not in PUBLIC:
                path = PARAMETER.sub("x", route.path) + ("?q=x" if "q" in route.query else "")
                answer = gateway.ask(path, method=route.method)
                assert answer.status == 401, f"{route.method} {path}"


# --- streams


def streamed(pieces: AsyncIterator[bytes], ended: Callable[[], Any]) -> Router:
    async def handler(_: RoutedCall) -> StreamedReply:
        async def end() -> None:
            ended()

        return StreamedReply(pieces, "text/plain", ended=end)

    return Router([APIRoute("GET", "/", handler)])


def test_a_stream_ends_when_its_client_is_gone() -> None:
    happened: list[str] = []

    async def within() -> None:
        asked = Asked("/")

        async def endless() -> AsyncIterator[bytes]:
            try:
                yield b"first"
                asked.gone.set()
                await asyncio.Event().wait()
            finally:
                happened.append("closed")

        await streamed(endless(), lambda: happened.append("ended")).answer(asked.call)
        assert asked.body == b"first"
        assert all(message.get("more_body", True) for message in asked.sent), "nobody gets an end"

    asyncio.run(asyncio.wait_for(within(), WAIT_SECONDS))
    assert happened == ["closed", "ended"]


def test_a_stream_whose_client_is_gone_before_it_ends_too() -> None:
    happened: list[str] = []

    async def within() -> None:
        asked = Asked("/")
        asked.gone.set()
        asked._body.clear()

        async def slow() -> AsyncIterator[bytes]:
            await asyncio.Event().wait()
            yield b""

        await streamed(slow(), lambda: happened.append("ended")).answer(asked.call)

    asyncio.run(asyncio.wait_for(within(), WAIT_SECONDS))
    assert happened == ["ended"]


def test_an_error_inside_a_stream_is_no_second_answer() -> None:
    async def within() -> Asked:
        asked = Asked("/")

        async def broken() -> AsyncIterator[bytes]:
            yield b"first"
            raise RequestError("no")

        with pytest.raises(RequestError):
            await streamed(broken(), lambda: None).answer(asked.call)
        return asked

    asked = asyncio.run(within())
    assert [message["type"] for message in asked.sent] == ["http.response.start", "http.response.body"]
    assert asked.sent[-1]["more_body"], "the server sees that the answer is not complete"


# --- our own server


@contextmanager
def connected(gateway: Running) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=WAIT_SECONDS)
    try:
        yield connection
    finally:
        connection.close()


def test_a_connection_is_usable_after_every_kind_of_answer() -> None:
    """A download of nothing, the head of a feed that does not end, an unknown path, and a redirect."""
    form = b'--X\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    form += b'--X\r\ncontent-disposition: form-data; name="file"; filename="empty"\r\n\r\n\r\n--X--\r\n'
    with running() as gateway, connected(gateway) as connection:

        def ask(method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read()

        status, shown = ask("POST", "/v1/files", form, content_type="multipart/form-data; boundary=X")
        assert status == 200
        file = msgspec.json.decode(shown)["id"]
        socket = connection.sock
        for method, path, status in (
            ("GET", f"/v1/files/{file}/content", 200),
            ("HEAD", "/overview/events", 200),
            ("HEAD", "/approvals/events", 200),
            ("GET", "/nothing", 404),
            ("PUT", "/health", 405),
            ("GET", "/health/", 307),
        ):
            assert ask(method, path)[0] == status, path
            assert ask("GET", "/health") == (200, b'{"status":"ok"}'), f"after {method} {path}"
            assert connection.sock is socket, f"the connection stays open after {method} {path}"
        with raw(gateway.port) as one:
            for path in (f"/v1/files/{file}/content", "/health"):
                one.send(b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path.encode())
            assert one.read_until(b"ok").count(b"\r\n0\r\n") == 1, "a body ends once"


def test_an_internal_error_has_a_number_and_its_place_is_in_the_log() -> None:
    with running() as gateway:

        async def broken(_: RoutedCall) -> Reply:
            raise ValueError("a defect")

        gateway.gateway._router = Router([APIRoute("GET", "/broken", broken)])
        answer = gateway.ask("/broken", headers={"x-request-id": "mine"})
        assert (answer.status, answer.headers["x-request-id"]) == (500, "mine")
        assert b"request id mine" in answer.body
        assert b"defect" not in answer.body
        gateway.log_line(lambda line: line.get("event") == "fault" and "a defect" in str(line["trace"]))


# --- other servers


def test_a_mounted_gateway_answers_below_its_path() -> None:
    """An application that mounts another passes the whole path on, with the part that is not the gateway's."""
    config = {"server": {"discover": False}, "store": {"url": "none"}}
    gateway = Gateway(LoadedConfig(msgspec.convert(config, Config)), {}, lambda _: None)

    async def within() -> None:
        async with gateway.running():
            assert (await Asked("/health", root=ROOT, host="localhost").by(gateway)).body == b'{"status":"ok"}'
            slash = await Asked("/health/", root=ROOT, host="localhost").by(gateway)
            assert slash.header("location") == [f"https://localhost{ROOT}/health"]
            body = msgspec.json.encode({"model": "replay", "messages": [{"role": "user", "content": "hi"}]})
            chat = await Asked(CHAT, body, "POST", ROOT, host="localhost").by(gateway)
            assert (chat.status, b"You said: hi" in chat.body) == (200, True)
            missing = await Asked("/v1/messages/none", root=ROOT, host="localhost").by(gateway)
            assert msgspec.json.decode(missing.body)["type"] == "error", "the error has the shape of the dialect at this path"
            top = await Asked("", root=ROOT, host="localhost").by(gateway)
            assert top.header("location") == [f"https://localhost{ROOT}/"]
            unmounted = await Asked(f"{ROOT}/health", host="localhost").by(gateway)
            assert unmounted.status == 404

    asyncio.run(within())


def test_both_fields_about_caches_are_sent() -> None:
    gateway = Gateway(LoadedConfig(Config()), {}, lambda _: None)
    page = asyncio.run(Asked("/", host="localhost", origin="http://localhost").by(gateway))
    assert page.status == 200
    assert sorted(page.header("vary")) == ["accept-encoding", "origin"]
