"""MCP servers behind OAuth: as a client with a secret, and with the sign-in of a person."""

from __future__ import annotations

import asyncio
import stat
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cli.shell import Shell
from gateway.running import running
from streamglot.errors import ConfigError
from streamglot.tools import ToolError
from streamglot.tools.mcp.oauth import TokenFile, login, provider
from streamglot.tools.mcp.source import McpSource
from streamglot.tools.settings import McpOAuth, McpServer
from tools.chat_model import ChatModel
from tools.mcp_process import START_SECONDS, mcp_server
from waiting import WAIT_SECONDS

pytestmark = pytest.mark.anyio

SERVER = Path(__file__).with_name("oauth_test_server.py")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with mcp_server([sys.executable, str(SERVER)], SERVER.parent) as address:
        yield address


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("ROBOT_SECRET", "secret")


async def _echo(source: McpSource) -> str:
    try:
        await source.tools()
        return (await source.call("echo", {"text": "hi"})).text
    finally:
        await source.close()


async def test_a_client_with_a_secret_signs_in_by_itself(url: str) -> None:
    oauth = McpOAuth(client_id="robot", client_secret_env="ROBOT_SECRET")
    assert await _echo(McpSource("robot", McpServer(url=url, oauth=oauth, start_seconds=START_SECONDS))) == "hi"
    assert stat.S_IMODE(TokenFile("robot", url).path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("oauth", "words"),
    [
        (McpOAuth(client_id="robot", client_secret_env="WRONG"), "WRONG is not set"),
        (McpOAuth(client_id="another", client_secret_env="ROBOT_SECRET"), "invalid_client|401"),
        (McpOAuth(), "streamglot tools login person"),
        (None, "person"),
    ],
)
async def test_a_refusing_server_is_reported_with_its_reason(url: str, oauth: McpOAuth | None, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        await _echo(McpSource("person", McpServer(url=url, oauth=oauth, start_seconds=START_SECONDS)))


async def _browse(address: str) -> None:
    """Acts as the browser of a person."""
    await asyncio.to_thread(lambda: urllib.request.urlopen(address).read())


@pytest.mark.parametrize("client_id", ["", "by-hand"])
async def test_the_tokens_of_a_person_are_used_by_the_worker(url: str, client_id: str) -> None:
    oauth = McpOAuth(client_id=client_id)
    assert "echo" in await login("person", url, oauth, _browse)
    assert await _echo(McpSource("person", McpServer(url=url, oauth=oauth, start_seconds=START_SECONDS))) == "hi"
    assert await TokenFile("person", "http://elsewhere/mcp").get_tokens() is None


async def test_a_person_who_does_not_agree_is_not_signed_in(url: str) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        await login("person", url, McpOAuth(client_id="unwanted"), _browse)
    assert caught.group_contains(Exception, match="access_denied", depth=None)


# --- tokens that expire


def _control(url: str, *forget: str) -> list[str]:
    """Makes the server forget tokens. Returns the grants that it was asked for since the last time."""
    address = f"{url.removesuffix('/mcp')}/control?{'&'.join(f'{kind}=1' for kind in forget)}"
    told: list[str] = msgspec.json.decode(urllib.request.urlopen(address).read())
    return told


def _expire(file: TokenFile) -> None:
    """Sets the clock of the stored tokens forward."""
    file._write(expires_at=1.0)


def _secrets(file: TokenFile) -> list[str]:
    tokens = file._read()["tokens"]
    return [tokens["access_token"], tokens["refresh_token"]]


@pytest.mark.parametrize("client_id", ["", "by-hand", "timeless"])
@pytest.mark.parametrize("expired", ["by the clock", "by the server"])
async def test_an_expired_token_is_refreshed_and_the_call_continues(url: str, client_id: str, expired: str) -> None:
    """``timeless``: the server does not say when its tokens expire."""
    oauth, file = McpOAuth(client_id=client_id), TokenFile("person", url)
    await login("person", url, oauth, _browse)
    _control(url, "access")
    before = _secrets(file)
    if expired == "by the clock":
        _expire(file)
    assert await _echo(McpSource("person", McpServer(url=url, oauth=oauth, start_seconds=START_SECONDS))) == "hi"
    assert _control(url) == ["refresh_token"]
    after = _secrets(file)
    assert not set(before) & set(after)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]
    assert (
        await _echo(McpSource("person", McpServer(url=url, oauth=oauth, start_seconds=START_SECONDS))) == "hi"
    )  # the new token is used
    assert _control(url) == []


async def test_a_token_that_expires_while_the_server_is_used_is_refreshed(url: str) -> None:
    oauth = McpOAuth()
    await login("person", url, oauth, _browse)
    source = McpSource("person", McpServer(url=url, oauth=oauth, start_seconds=START_SECONDS))
    try:
        await source.tools()
        _control(url, "access")
        assert (await source.call("echo", {"text": "still here"})).text == "still here"
    finally:
        await source.close()
    assert "refresh_token" in _control(url)


@pytest.mark.parametrize("expired", ["by the clock", "by the server"])
async def test_a_refused_refresh_names_the_command_to_sign_in_again(url: str, expired: str) -> None:
    oauth, file = McpOAuth(), TokenFile("person", url)
    await login("person", url, oauth, _browse)
    _control(url, "access", "refresh")
    if expired == "by the clock":
        _expire(file)
    known = _secrets(file)
    with pytest.raises(ToolError) as caught:
        await _echo(McpSource("person", McpServer(url=url, oauth=oauth, start_seconds=START_SECONDS)))
    assert "the sign-in is no longer valid: run `streamglot tools login person`" in str(caught.value)
    assert not any(secret in str(caught.value) for secret in known)
    assert _control(url) == ["refused"]
    assert "echo" in await login("person", url, oauth, _browse)
    assert await _echo(McpSource("person", McpServer(url=url, oauth=oauth, start_seconds=START_SECONDS))) == "hi"


async def test_a_client_with_a_secret_signs_in_again_where_its_refresh_is_refused(url: str) -> None:
    oauth = McpOAuth(client_id="robot", client_secret_env="ROBOT_SECRET")
    assert await _echo(McpSource("robot", McpServer(url=url, oauth=oauth, start_seconds=START_SECONDS))) == "hi"
    _control(url, "access", "refresh")
    assert await _echo(McpSource("robot", McpServer(url=url, oauth=oauth, start_seconds=START_SECONDS))) == "hi"
    assert _control(url)[-1] == "client_credentials"


async def test_tokens_are_never_in_logs_or_answers(url: str, tmp_path: Path) -> None:
    await login("person", url, McpOAuth(), _browse)
    file = TokenFile("person", url)
    known = _secrets(file)
    model = ChatModel()
    store = tmp_path / "store.db"
    config = {
        "upstreams": {"scripted": {"base_url": model.url, "models": ["m"]}},
        "tools": {"enabled": ["person.echo"], "mcp": {"person": {"url": url, "oauth": {}, "start_seconds": START_SECONDS}}},
        "store": {"url": f"sqlite:///{store}"},
    }
    body = {"model": "m", "messages": [{"role": "user", "content": "q"}], "streamglot": {"tools": ["person.echo"]}}
    shown: list[str] = []
    for forget in ((), ("access",), ("access", "refresh")):
        _control(url, *forget)
        with running(config) as gateway:
            shown.append((await asyncio.to_thread(gateway.ask, "/v1/chat/completions", body)).body.decode())
            shown += map(str, gateway.lines)
        known += _secrets(file)
    model.close()
    shown.append(store.read_bytes().decode("latin-1"))
    assert len(set(known)) == 4
    assert not [secret for secret in known if any(secret in text for text in shown)]
    assert "streamglot tools login person" in str(shown)


def test_oauth_needs_an_address_and_a_secret_that_is_there() -> None:
    with pytest.raises(ConfigError, match="has oauth and no url"):
        McpSource("x", McpServer(command=["x"], oauth=McpOAuth()))
    with pytest.raises(ConfigError, match="NOTHING is not set"):
        provider("x", "http://x/mcp", McpOAuth(client_secret_env="NOTHING"))


def test_an_unreadable_token_file_counts_as_missing() -> None:
    file = TokenFile("x", "http://x/mcp")
    file.path.parent.mkdir(parents=True)
    for data in (b"", b"[]", b"{"):
        file.path.write_bytes(data)
        assert file._read() == {}


def test_the_login_command_shows_the_address(tmp_path: Path, url: str) -> None:
    (tmp_path / "home").mkdir()
    shell = Shell(tmp_path / "home")
    config = shell.home / "streamglot.toml"
    config.write_text(f'{config.read_text()}[tools.mcp.person]\nurl = "{url}"\nstart_seconds = {START_SECONDS}\n')
    with shell.started("tools", "login", "person") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        address = next(line for line in iter(process.stderr.readline, b"") if line.startswith(b"http"))
        urllib.request.urlopen(address.decode().strip()).read()
        assert process.stdout.read().startswith(b"signed in at 'person', which has ")
        assert b"oauth = {}" in process.stderr.read()
        assert process.wait(WAIT_SECONDS) == 0
    config.write_text(f"{config.read_text()}oauth = {{}}\n")
    done = shell.run("tools", "run", "person.echo", "text=hi")
    assert (done.returncode, done.stdout) == (0, b"hi\n"), done.stderr
    unknown = shell.run("tools", "login", "nobody")
    assert (unknown.returncode != 0, b"there are: person" in unknown.stderr) == (True, True)
