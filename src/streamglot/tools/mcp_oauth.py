"""OAuth for remote MCP servers: the SDK does the protocol; here are the tokens, and the sign-in of a person.

Only the worker process and ``streamglot tools login`` import this module, because it imports the SDK.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import urllib.parse
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from ..directories import data_directory
from ..errors import ConfigError
from .settings import McpOAuth

CALLBACK: Final = "/callback"
HEAD_BYTES: Final = 64 * 1024
"""The longest head of the browser's request: a code and a state, with room to spare."""
PAGE: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\n%b\n"
Show = Callable[[str], Awaitable[None]]


class TokenFile:
    """The tokens and the client registration of one server, in a file that only its user can read."""

    def __init__(self, name: str, url: str) -> None:
        # A server that was given another address must not get the tokens of the old one.
        mark = hashlib.sha256(url.encode()).hexdigest()[:16]
        self.path: Path = data_directory() / "mcp" / f"{urllib.parse.quote(name, safe='')}-{mark}.json"

    async def get_tokens(self) -> OAuthToken | None:
        value = self._read().get("tokens")
        return None if value is None else OAuthToken.model_validate(value)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._write("tokens", tokens.model_dump(mode="json", exclude_none=True))

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        value = self._read().get("client")
        return None if value is None else OAuthClientInformationFull.model_validate(value)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._write("client", client_info.model_dump(mode="json", exclude_none=True))

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        try:
            value = msgspec.json.decode(self.path.read_bytes())
        except (OSError, msgspec.DecodeError):
            return {}
        return value if isinstance(value, dict) else {}

    def _write(self, name: str, value: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = self.path.with_suffix(f".{os.getpid()}.new")
        data = msgspec.json.encode({**self._read(), name: value})
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        new.replace(self.path)


def provider(name: str, url: str, settings: McpOAuth, environment: dict[str, str] | None = None) -> OAuthClientProvider:
    """The authentication of a worker, which no person can see: as a client with a secret, or with the tokens of a sign-in."""
    if settings.client_secret_env:
        secret = (os.environ if environment is None else environment).get(settings.client_secret_env, "")
        if not secret:
            raise ConfigError(f"tools.mcp.{name}.oauth: the variable {settings.client_secret_env} is not set")
        return ClientCredentialsOAuthProvider(url, TokenFile(name, url), settings.client_id, secret, scope=settings.scope or None)

    async def refuse(_address: str) -> None:
        raise OAuthFlowError(f"a person must sign in first: run `streamglot tools login {name}`")

    async def nothing() -> AuthorizationCodeResult:
        raise OAuthFlowError("nobody can sign in here")

    return _of_person(name, url, settings, 0, refuse, nothing)


def _of_person(
    name: str,
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
    tokens: Any = TokenFile(name, url)
    if settings.client_id:
        tokens = _KnownClient(tokens, settings.client_id, metadata)
    return OAuthClientProvider(url, metadata, tokens, show, callback)


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
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    TokenFile(name, url).clear()  # a client that was registered before has the address of another port
    answer: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The browser comes back with the code."""
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
        auth = _of_person(name, url, settings, port, show, wait)
        async with (
            httpx2.AsyncClient(auth=auth, timeout=None, follow_redirects=True) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            return [tool.name for tool in (await client.list_tools()).tools]
