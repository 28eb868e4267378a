"""OAuth for remote MCP servers: the SDK does the protocol; here are the tokens, and the sign-in of a person.

The SDK refreshes a token only if it received the token in the same process: it stores neither when a token expires nor where it is
refreshed. A worker is a new process, so ``TokenFile`` keeps both, and ``RefreshFirst`` refreshes a token that the server refuses.

Only the worker process and ``streamglot tools login`` import this module, because it imports the SDK.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
import urllib.parse
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Final

import httpx2
import msgspec
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthMetadata, OAuthToken

from ...errors import ConfigError
from ...installation import data_directory
from ...json_types import JSON_ERRORS, JsonObject
from ..settings import McpOAuth

CALLBACK: Final = "/callback"
HEAD_BYTES: Final = 64 * 1024
"""The longest head of the browser's request: a code and a state, with room to spare."""
PAGE: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\n%b\n"
EXPIRED: Final = 1.0
"""A time in the past, in seconds since 1970. The SDK takes 0 for no time."""
Show = Callable[[str], Awaitable[None]]


class TokenFile:
    """The tokens and the client registration of one server, in a file that only its user can read. With the tokens it keeps when
    they expire, and the description of the authorization server that issued them."""

    def __init__(self, name: str, url: str) -> None:
        # A server that was given another address must not get the tokens of the old one.
        mark = hashlib.sha256(url.encode()).hexdigest()[:16]
        self.path: Path = data_directory() / "mcp" / f"{urllib.parse.quote(name, safe='')}-{mark}.json"
        self._context: OAuthContext | None = None

    def serve(self, context: OAuthContext) -> None:
        """Gives the SDK what it does not read itself, and remembers it for the next process."""
        self._context = context
        stored = self._read()
        expires, issuer = stored.get("expires_at"), stored.get("issuer")
        context.token_expiry_time = expires if isinstance(expires, float) else None
        context.oauth_metadata = None if issuer is None else OAuthMetadata.model_validate(issuer)

    async def get_tokens(self) -> OAuthToken | None:
        value = self._read().get("tokens")
        return None if value is None else OAuthToken.model_validate(value)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        known = None if self._context is None else self._context.oauth_metadata
        self._write(
            tokens=tokens.model_dump(mode="json", exclude_none=True),
            expires_at=None if tokens.expires_in is None else time.time() + tokens.expires_in,
            issuer=None if known is None else known.model_dump(mode="json", exclude_none=True),
        )

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        value = self._read().get("client")
        return None if value is None else OAuthClientInformationFull.model_validate(value)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._write(client=client_info.model_dump(mode="json", exclude_none=True))

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)

    def _read(self) -> JsonObject:
        try:
            value = msgspec.json.decode(self.path.read_bytes())
        except (OSError, *JSON_ERRORS):
            return {}
        return value if isinstance(value, dict) else {}

    def _write(self, **values: object) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = self.path.with_suffix(f".{os.getpid()}.new")
        data = msgspec.json.encode({**self._read(), **values})
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        new.replace(self.path)


class RefreshFirst(httpx2.Auth):
    """Refreshes a token once that the server refuses, before ``inner`` asks for a new sign-in."""

    requires_response_body = True

    def __init__(self, inner: OAuthClientProvider) -> None:
        self._inner = inner

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        context, refreshed = self._inner.context, False
        flow = self._inner.async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                response = yield outgoing
                if outgoing is not request:  # a request of the sign-in, or of a refresh
                    refreshed = True
                elif response.status_code == 401 and not refreshed and context.can_refresh_token():
                    refreshed = True
                    await flow.aclose()
                    context.token_expiry_time = EXPIRED
                    flow = self._inner.async_auth_flow(request)
                    outgoing = await anext(flow)
                    continue
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()


def provider(name: str, url: str, settings: McpOAuth, environment: dict[str, str] | None = None) -> RefreshFirst:
    """The authentication of a worker, which no person can see: as a client with a secret, or with the tokens of a sign-in."""
    tokens = TokenFile(name, url)
    if settings.client_secret_env:
        secret = (os.environ if environment is None else environment).get(settings.client_secret_env, "")
        if not secret:
            raise ConfigError(f"tools.mcp.{name}.oauth: the variable {settings.client_secret_env} is not set")
        robot = ClientCredentialsOAuthProvider(url, tokens, settings.client_id, secret, scope=settings.scope or None)
        tokens.serve(robot.context)
        return RefreshFirst(robot)
    signed_in = tokens.path.exists()

    async def refuse(_address: str) -> None:
        why = "the sign-in is no longer valid" if signed_in else "a person must sign in first"
        raise OAuthFlowError(f"{why}: run `streamglot tools login {name}`")

    async def nothing() -> AuthorizationCodeResult:
        raise OAuthFlowError("nobody can sign in here")

    return RefreshFirst(_of_person(tokens, url, settings, 0, refuse, nothing))


def _of_person(
    tokens: TokenFile,
    url: str,
    settings: McpOAuth,
    port: int,
    show: Show,
    callback: Callable[[], Awaitable[AuthorizationCodeResult]],
) -> OAuthClientProvider:
    address = f"http://127.0.0.1:{port}{CALLBACK}"
    metadata = OAuthClientMetadata.model_validate(
        {
            "client_name": "streamglot",
            "redirect_uris": [address],
            "token_endpoint_auth_method": "none",
            "scope": settings.scope or None,
        }
    )
    storage = _KnownClient(tokens, settings.client_id, metadata) if settings.client_id else tokens
    person = OAuthClientProvider(url, metadata, storage, show, callback)
    tokens.serve(person.context)
    return person


class _KnownClient:
    """A token file whose client was registered by hand."""

    def __init__(self, file: TokenFile, client_id: str, metadata: OAuthClientMetadata) -> None:
        self._file = file
        self._client = OAuthClientInformationFull.model_validate({**metadata.model_dump(), "client_id": client_id})
        self.get_tokens, self.set_tokens = file.get_tokens, file.set_tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """The client is known and does not change."""


async def login(name: str, url: str, settings: McpOAuth, show: Show) -> list[str]:
    """Lets a person sign in, with the address that ``show`` shows them, and returns the names of the server's tools."""
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    tokens = TokenFile(name, url)
    tokens.clear()  # a client that was registered before has the address of another port
    answer: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Receives the redirect of the browser, which has the code."""
        head = await reader.readuntil(b"\r\n\r\n")
        target = urllib.parse.urlsplit(head.split(b" ", 2)[1].decode("latin-1"))
        query, said = urllib.parse.parse_qs(target.query), b"There is nothing here."
        if target.path == CALLBACK and not answer.done():
            if "code" in query:
                told = {field: query[field][0] for field in ("code", "state", "iss") if field in query}
                answer.set_result(AuthorizationCodeResult(**told))
                said = b"You can close this page. The terminal says whether you are signed in."
            else:
                answer.set_exception(OAuthFlowError(f"the sign-in was refused: {query.get('error', ['no code came'])[0]}"))
                said = b"You are not signed in."
        writer.write(PAGE % said)
        await writer.drain()
        writer.close()

    async def wait() -> AuthorizationCodeResult:
        return await answer

    async with await asyncio.start_server(answered, "127.0.0.1", 0, limit=HEAD_BYTES) as server:
        port = server.sockets[0].getsockname()[1]
        auth = _of_person(tokens, url, settings, port, show, wait)
        async with (
            httpx2.AsyncClient(auth=auth, timeout=None, follow_redirects=True) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            return [tool.name for tool in (await client.list_tools()).tools]
