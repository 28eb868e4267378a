"""An MCP server behind OAuth, with its authorization server. Run as ``python oauth_test_server.py PORT``."""

from __future__ import annotations

import base64
import secrets
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

sys.path.insert(0, str(Path(__file__).parents[1]))
from tools.mcp_test_server import server  # a program of its own finds the folder of the tests only now

PORT = int(sys.argv[1])
BASE = f"http://127.0.0.1:{PORT}"
TOKENS: set[str] = set()
REFRESH: set[str] = set()
GRANTS: list[str] = []
"""The kinds of grants that were asked for, and whether they were given."""


async def resource(_request: Request) -> Response:
    return JSONResponse({"resource": f"{BASE}/mcp", "authorization_servers": [BASE]})


async def authorization(_request: Request) -> Response:
    return JSONResponse(
        {
            "issuer": BASE,
            "authorization_endpoint": f"{BASE}/authorize",
            "token_endpoint": f"{BASE}/oauth/token",  # not where the SDK looks if it does not know better
            "registration_endpoint": f"{BASE}/register",
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "none"],
        }
    )


async def register(request: Request) -> Response:
    return JSONResponse({**await request.json(), "client_id": "registered"}, 201)


async def authorize(request: Request) -> Response:
    """Every person agrees at once, but for one client."""
    asked = request.query_params
    if asked["client_id"] == "unwanted":
        reply = {"error": "access_denied", "state": asked["state"]}
    else:
        reply = {"code": f"code-{asked['client_id']}", "state": asked["state"]}
    return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(reply)}", 302)


async def token(request: Request) -> Response:
    form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
    given = request.headers.get("authorization", "").removeprefix("Basic ")
    if form["grant_type"] == "client_credentials":
        if base64.b64decode(given) != b"robot:secret":
            return JSONResponse({"error": "invalid_client"}, 401)
    elif form["grant_type"] == "authorization_code" and not form["code"].startswith("code-"):
        return JSONResponse({"error": "invalid_grant"}, 400)
    elif form["grant_type"] == "refresh_token" and form["refresh_token"] not in REFRESH:
        GRANTS.append("refused")
        return JSONResponse({"error": "invalid_grant"}, 400)
    GRANTS.append(form["grant_type"])
    made = secrets.token_hex(8)
    TOKENS.add(f"access-{made}")
    REFRESH.discard(form.get("refresh_token", ""))  # a refresh token is used once
    REFRESH.add(f"refresh-{made}")
    answer = {"access_token": f"access-{made}", "token_type": "Bearer", "refresh_token": f"refresh-{made}"}
    return JSONResponse({**answer, "expires_in": 3600} if form.get("client_id") != "timeless" else answer)


async def control(request: Request) -> Response:
    """Control of the server by a test: forgets access tokens or refresh tokens, and returns the grants since the last call."""
    told = list(GRANTS)
    GRANTS.clear()
    if "access" in request.query_params:
        TOKENS.clear()
    if "refresh" in request.query_params:
        REFRESH.clear()
    return JSONResponse(told)


class Guarded:
    """Lets requests through that have a token."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/mcp":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            if headers.get("authorization", "").removeprefix("Bearer ") not in TOKENS:
                challenge = f'Bearer resource_metadata="{BASE}/.well-known/oauth-protected-resource/mcp"'
                await Response("sign in", 401, {"www-authenticate": challenge})(scope, receive, send)
                return
        elif scope["type"] == "http":
            await OAUTH(scope, receive, send)
            return
        await self._inner(scope, receive, send)


OAUTH = Starlette(
    routes=[
        Route("/.well-known/oauth-protected-resource/mcp", resource),
        Route("/.well-known/oauth-authorization-server", authorization),
        Route("/register", register, methods=["POST"]),
        Route("/authorize", authorize),
        Route("/oauth/token", token, methods=["POST"]),
        Route("/control", control),
    ]
)

if __name__ == "__main__":
    uvicorn.run(Guarded(server.streamable_http_app()), port=PORT, log_level="warning")
