"""The configuration: files, variables, origins, reading it again, and what is found without one."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gateway.conftest import upstreams_at
from gateway.dialect_clients import asked, body_of, path_of, understood
from gateway.running import Answer, Running, running
from gateway.scenarios import DONE, END, PLAIN, text_chunk
from gateway.upstream import HostileUpstream, Until, sse, streamed
from streamglot import ConfigError, tasks
from streamglot.cli.app import run
from streamglot.cli.commands.serve import table
from streamglot.cli.exit_status import exit_status
from streamglot.config import load, shown
from streamglot.gateway.app import Gateway
from streamglot.gateway.auth.authenticator import digest_of
from streamglot.upstream import discovery
from streamglot.upstream.discovery import discover
from streamglot.upstream.providers import PROVIDERS, Provider
from waiting import WAIT_SECONDS

SECRET = "sk-very-secret-0123456789"
FILE = """
[server]
port = 9000
[[server.keys]]
name = "a"
hash = "{hash}"
[upstreams.mine]
dialect = "openai_chat"
base_url = "http://user:{secret}@127.0.0.1:9000/v1"
key_env = "MINE_API_KEY"
models = ["*"]
inband = "hermes"
[upstreams.mine.headers]
x-api-token = "{secret}"
[upstreams.mine.timeouts]
idle = 5
[[routes]]
models = ["ours"]
to = [{{ upstream = "mine", model = "theirs" }}]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "streamglot.toml"
    path.write_text(FILE.format(hash="0" * 64, secret=SECRET))
    return path


def test_settings_come_from_file_environment_and_command_line(file: Path) -> None:
    environment = {
        "MINE_API_KEY": SECRET,
        "STREAMGLOT_SERVER__WORKERS": "3",
        "STREAMGLOT_SERVER__DISCOVER": "false",
        "STREAMGLOT_UPSTREAMS__MINE__TIMEOUTS__IDLE": "7.5",
        "STREAMGLOT_UPSTREAMS__OTHER__BASE_URL": "http://127.0.0.1:1",
        "STREAMGLOT_UPSTREAMS__OTHER__KEY": "123456",
        "STREAMGLOT_UPSTREAMS__OTHER__MODELS": '["a", "b"]',
    }
    loaded = load(file, environment, {"server.port": 1234, "server.host": None})
    config = loaded.config
    assert (config.server.port, config.server.workers, config.server.discover) == (1234, 3, False)
    assert config.upstreams["mine"].key == SECRET
    assert config.upstreams["mine"].timeouts.idle == 7.5
    assert config.upstreams["other"].models == ["a", "b"]
    assert config.upstreams["other"].key == "123456"
    rows = {place: (value, origin) for place, value, origin in shown(loaded)}
    assert rows["server.port"] == ("1234", "the command line")
    assert rows["server.workers"] == ("3", "STREAMGLOT_SERVER__WORKERS")
    assert rows["server.host"] == ('"127.0.0.1"', "default")
    assert rows["upstreams.mine.inband"] == ('"hermes"', str(file))
    assert rows["upstreams.mine.timeouts.idle"] == ("7.5", "STREAMGLOT_UPSTREAMS__MINE__TIMEOUTS__IDLE")
    assert rows["upstreams.mine.key"] == ("••••", "MINE_API_KEY")
    assert rows["routes[0].to[0].model"] == ('"theirs"', str(file))
    assert rows["server.keys[0].hash"][0] == "••••"
    assert SECRET not in str(rows)
    assert "123456" not in str(rows)


def test_the_command_shows_the_configuration(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINE_API_KEY", SECRET)
    assert exit_status(lambda: run(["config", "show", "--config", str(file)])) == 0
    shown = capsys.readouterr().out
    assert f'upstreams.mine.inband = "hermes"  # {file}' in shown
    assert SECRET not in shown
    assert exit_status(lambda: run(["config", "show", "--config", "/nowhere.toml"])) == 2
    assert exit_status(lambda: run(["config", "hide"])) == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[server\n", "TOML"),
        ("[server]\nprot = 1\n", "prot"),
        ("[server]\nport = 'x'\n", "port"),
        ("[upstreams.a]\ndialect = 'klingon'\nbase_url = 'http://x'\n", "klingon"),
        ("[upstreams.a]\ndialect = 'agui'\nbase_url = 'http://x'\n", "agui"),
        ("[upstreams.a]\n", "base_url"),
        ("[upstreams.a]\nbase_url = 'localhost:80'\n", "base_url"),
        ("[upstreams.a]\nbase_url = 'http://x'\ninband = 'nonsense'\n", "nonsense"),
        ("[[server.keys]]\nname = ''\n", "server.keys: a key cannot have the name ''"),
        ("[[server.keys]]\nname = 'cli:me'\n", "server.keys: a key cannot have the name 'cli:me'"),
        ("[server]\nredact = ['[']\n", "redact"),
        ("[server]\nredact = ['a{99999999999999999999}']\n", "redact.*not a valid pattern"),
        ("[server]\nredact = ['" + "(" * 5_000 + ")" * 5_000 + "']\n", "redact"),
        ("[server]\nx = " + "[" * 20_000 + "]" * 20_000, "bad.toml is not valid TOML: maximum recursion"),
        ("[server]\nkeep_alive_seconds = nan\n", "server.keep_alive_seconds is nan"),
        ("[server]\nstall_seconds = inf\n", "server.stall_seconds is inf"),
        ("[server]\nworkers = -1\n", "server.workers is -1"),
        ("[server]\nport = 65536\n", "server.port is 65536"),
        ("[server]\nport = 99999999999999999999999\n", "server.port"),
        ("[server]\nauthentication = 'no'\n", "authentication"),
        ("[server]\nauthentication = 'none'\n[[server.keys]]\nname = 'a'\n", "remove one of the two"),
        ("[[server.keys]]\nname = 'a'\nconcurrent = -5\n", r"server.keys\[0\].concurrent is -5"),
        ("[upstreams.a]\nbase_url = 'http://x'\ntimeouts = { idle = -1.0 }\n", "upstreams.a.timeouts.idle is -1"),
        ("[upstreams.a]\nbase_url = 'http://[::1'\n", "upstreams.a.base_url is not a valid address"),
        ("[upstreams.a]\nbase_url = 'http://:80/v1'\n", "it has no host"),
        ("[upstreams.a]\nbase_url = 'http://x:port'\n", "its host or its port"),
        ("[upstreams.a]\nbase_url = 'http://x y'\n", "it has spaces"),
        ("[upstreams.a]\nbase_url = 'http://x'\nproxy = 'http://y:99999'\n", "upstreams.a.proxy"),
        ("[upstreams.a]\nbase_url = 'http://x'\nproxy = '::::'\n", "upstreams.a.proxy must begin with http://"),
        ("[valkey]\nurl = 'localhost:6379'\n", "valkey.url must begin with valkey://"),
        ("[valkey]\nurl = 'redis://u:pw@h:abc/0'\n", "valkey.url is not a valid address: its host or its port"),
        ("[valkey]\nurl = 'valkey://[::1'\n", "valkey.url is not a valid address"),
        ("[upstreams.a]\nbase_url = 'http://x'\nca_file = '/nowhere'\n", "ca_file.*no such file"),
        ('[upstreams.a]\nbase_url = "http://x"\nheaders = { "a b" = "c" }\n', "not the name of an HTTP header"),
        ('[upstreams.a]\nbase_url = "http://x"\nheaders = { a = "b\\r\\nc" }\n', "upstreams.a.headers.a has a line break"),
        ("[[routes]]\nmodels = ['x']\nto = [{ upstream = 'replay', weight = inf }]\n", "weight is inf"),
    ],
)
def test_invalid_settings_are_refused_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        load(path, {})


@pytest.mark.parametrize(
    "text",
    [
        "[valkey]\nurl = 'redis://'\n",
        "[valkey]\nurl = 'valkey://:word@/0'\n",
        "[valkey]\nurl = 'unix:///run/valkey.sock'\n",
        "[upstreams.a]\nbase_url = 'http://x'\nproxy = 'HTTP://y:8080'\n",
    ],
)
def test_addresses_that_work_are_accepted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "good.toml"
    path.write_text(text)
    load(path, {})


def test_an_address_that_is_wrong_does_not_show_its_password(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    for address in (f"ftp://user:{SECRET}@host/", f"http://user:{SECRET}@host:port/"):
        path.write_text(f'[upstreams.a]\nbase_url = "{address}"\n')
        with pytest.raises(ConfigError) as refused:
            load(path, {})
        assert SECRET not in refused.value.message


def test_options_of_a_dialect_may_be_any_number(tmp_path: Path) -> None:
    path = tmp_path / "good.toml"
    path.write_text("[upstreams.a]\nbase_url = 'http://x'\noptions = { bias = -1.0 }\n")
    assert load(path, {}).config.upstreams["a"].options == {"bias": -1.0}


@pytest.mark.parametrize(
    ("dialect", "options", "reason"),
    [
        ("bedrock_converse", 'region = "x"', "upstreams.up.options: the dialect 'bedrock_converse' has no option 'region'"),
        ("openai_chat", 'max_tokens = ["x"]', "upstreams.up.options: a value has the wrong type"),
        ("gemini", "ids = false", ""),
        ("openai_chat", 'max_tokens = "max_completion_tokens"', ""),
    ],
)
def test_options_that_the_dialect_cannot_use_are_refused(tmp_path: Path, dialect: str, options: str, reason: str) -> None:
    path = tmp_path / "streamglot.toml"
    place = 'base_url = "http://127.0.0.1:9"'
    path.write_text(f'[upstreams.up]\ndialect = "{dialect}"\n{place}\nmodels = ["m"]\noptions = {{ {options} }}\n')
    if not reason:
        assert Gateway(load(path, {})).services.pool.routes
        return
    with pytest.raises(ConfigError) as refused:
        Gateway(load(path, {}))
    assert reason in refused.value.message


def test_a_bad_variable_is_named(tmp_path: Path) -> None:
    path = tmp_path / "good.toml"
    path.write_text("[server]\nport = 1\n")
    with pytest.raises(ConfigError, match="STREAMGLOT_SERVER__PORT"):
        load(path, {"STREAMGLOT_SERVER__PORT": "many"})
    with pytest.raises(ConfigError, match="STREAMGLOT_SERVER__PORT__X"):
        load(path, {"STREAMGLOT_SERVER__PORT__X": "1"})


def test_the_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "streamglot").mkdir()
    (tmp_path / "streamglot" / "streamglot.toml").write_text("[server]\nport = 7\n")
    (tmp_path / "named.toml").write_text("[server]\nport = 8\n")
    monkeypatch.chdir(tmp_path)
    assert load(None, {"XDG_CONFIG_HOME": str(tmp_path)}).config.server.port == 7
    assert load(None, {"STREAMGLOT_CONFIG": str(tmp_path / "named.toml")}).config.server.port == 8
    assert load(None, {"HOME": str(tmp_path / "nowhere")}).path is None
    (tmp_path / "streamglot.toml").write_text("[server]\nport = 9\n")
    assert load(None, {"XDG_CONFIG_HOME": str(tmp_path)}).config.server.port == 9


# --- read again


def written(path: Path, upstream: HostileUpstream, models: str, more: str = "") -> None:
    limits = "timeouts = { idle = 120.0 }"
    path.write_text(
        f'[server]\ndiscover = false\nfallback_model = "none"\n{more}\n[upstreams.mine]\nbase_url = "{upstream.url}/v1"\nmodels = {models}\n{limits}\n'
    )


def reload_events(gateway: Running) -> list[str]:
    """The log lines about reloads, without the lines about requests."""
    return [line["event"] for line in gateway.lines if str(line.get("event")).startswith("reload")]


def test_a_reload_drops_no_stream(upstream: HostileUpstream, tmp_path: Path) -> None:
    path = tmp_path / "streamglot.toml"
    go_on = threading.Event()
    upstream.scripts["reload-a"] = streamed(sse(text_chunk("Hello")), Until(go_on), sse(text_chunk(" world"), END, DONE))
    upstream.scripts["reload-b"] = streamed(PLAIN)
    written(path, upstream, '["reload-a"]')
    with running(path=path) as gateway:
        answers: list[Answer] = []

        def stream() -> None:
            answers.append(gateway.ask(path_of("anthropic", "reload-a"), body_of("anthropic", "reload-a")))

        thread = threading.Thread(target=stream)
        thread.start()
        upstream.wait_for("reload-a", lambda seen: seen.sent > 0)
        assert asked(gateway, "openai_chat", "reload-b").status == 404
        written(path, upstream, '["reload-b"]')
        gateway.gateway.reload()
        assert reload_events(gateway) == ["reloaded"]
        assert asked(gateway, "openai_chat", "reload-b").text == "Hello world"
        assert asked(gateway, "openai_chat", "reload-a").status == 404
        for number, bad in enumerate(("[server", "[server]\nhost = '0.0.0.0'", "[server]\nport = 'x'"), 1):
            path.write_text(bad)
            gateway.gateway.reload()
            assert reload_events(gateway) == ["reloaded"] + ["reload_failed"] * number
            assert asked(gateway, "openai_chat", "reload-b").text == "Hello world"
        go_on.set()
        thread.join()
        assert understood("anthropic", answers[0]).text == "Hello world"


def test_a_configuration_that_fails_changes_nothing(upstream: HostileUpstream, tmp_path: Path) -> None:
    """Also where it fails late: the keys are fine, and a route is not."""
    path = tmp_path / "streamglot.toml"
    key = f'keys = [{{ name = "a", hash = "{digest_of("sesame")}", models = ["replay"] }}]'
    written(path, upstream, '["x"]', key)
    with running(path=path) as gateway:
        before = gateway.gateway.lifecycle.loaded
        for bad in (
            key.replace("replay", "other") + "\n[[routes]]\nmodels = ['y']\nto = [{ upstream = 'nobody' }]",
            key.replace("replay", "other") + "\nredact = ['a{99999999999999999999}']",
            key.replace("replay", "other") + "\norigins = ['http://stranger']\nkeep_alive_seconds = -1",
            'keys = [{ name = "a", key_env = "NOT_SET" }]',
            f"{key[:-1]}, {key.removeprefix('keys = [')}",
        ):
            written(path, upstream, '["x"]', bad)
            gateway.gateway.reload()
            assert reload_events(gateway)[-1] == "reload_failed", bad
            assert gateway.gateway.lifecycle.loaded is before
            assert asked(gateway, "openai_chat", "replay", x_api_key="sesame").status == 200
            assert asked(gateway, "openai_chat", "replay").status == 401
        path.unlink()
        gateway.gateway.reload()
        assert reload_events(gateway)[-1] == "reload_failed"
        assert asked(gateway, "openai_chat", "replay").status == 401


def test_an_internal_error_during_a_reload_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "streamglot.toml"
    path.write_text("[server]\ndiscover = false\nlog_content = true\n")
    with running(path=path) as gateway:

        def fail(*_: object) -> None:
            raise ZeroDivisionError("a fault")

        monkeypatch.setattr("streamglot.gateway.observe.recording.ContentLog", fail)
        gateway.gateway.reload()
        line = gateway.log_line(lambda line: line.get("event") == "reload_failed")
        assert line["message"] == "ZeroDivisionError: a fault"
        assert asked(gateway, "openai_chat", "replay").status == 200


def test_a_reload_keeps_the_counters_of_a_key(upstream: HostileUpstream, tmp_path: Path) -> None:
    path = tmp_path / "streamglot.toml"
    key = f'keys = [{{ name = "a", hash = "{digest_of("sesame")}", requests_per_minute = 2 }}]'
    written(path, upstream, '["x"]', key)
    with running(path=path) as gateway:
        for _ in range(2):
            assert asked(gateway, "openai_chat", "replay", x_api_key="sesame").status == 200
        gateway.gateway.reload()
        assert asked(gateway, "openai_chat", "replay", x_api_key="sesame").status == 429
        written(path, upstream, '["x"]', key.replace("= 2 ", "= 3 "))
        gateway.gateway.reload()
        assert asked(gateway, "openai_chat", "replay", x_api_key="sesame").status == 200


# --- found without one


def test_keys_are_found_and_not_shown() -> None:
    found = asyncio.run(
        discover({"OPENAI_API_KEY": SECRET, "GROQ_API_KEY": SECRET}, tuple(one for one in PROVIDERS if one.key_env))
    )
    assert {one.provider.name for one in found if one.there} == {"openai", "groq"}
    assert SECRET not in str([one.because for one in found])
    upstream = next(one for one in found if one.provider.name == "openai").upstream({"OPENAI_API_KEY": SECRET})
    assert (upstream.key, upstream.dialect) == (SECRET, "openai_responses")
    names = {one.key_env for one in PROVIDERS}
    assert names >= {
        f"{name}_API_KEY" for name in ("OPENAI", "ANTHROPIC", "GEMINI", "OPENROUTER", "MISTRAL", "DEEPSEEK", "GROQ", "XAI")
    }


class _Local(BaseHTTPRequestHandler):
    answers = {
        "/api/tags": {"models": [{"name": "llama3:8b"}]},
        "/v1/models": {"object": "list", "data": [{"id": "qwen"}]},
        "/odd": [1],
    }

    def do_GET(self) -> None:
        body = json.dumps(self.answers.get(self.path, {})).encode()
        self.send_response(200 if self.path in self.answers else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize("stall", [0.0, 0.1])
def test_servers_on_this_machine_are_found(monkeypatch: pytest.MonkeyPatch, stall: float) -> None:
    """Also if the process stood still: the time is over when it goes on, and the server answers at once."""
    monkeypatch.setattr(discovery, "PROBE_SECONDS", stall / 2 or WAIT_SECONDS)
    monkeypatch.setattr(tasks, "GRACE_SECONDS", WAIT_SECONDS)
    connect = asyncio.open_connection

    async def stand_still(*place: Any, **more: Any) -> Any:
        time.sleep(stall)
        return await connect(*place, **more)

    monkeypatch.setattr(asyncio, "open_connection", stand_still)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Local)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_address[1]}"
    rows = [
        Provider("tags", "", "ollama", base, probe=f"{base}/api/tags"),
        Provider("list", "", "openai_chat", f"{base}/v1", probe=f"{base}/v1/models"),
        Provider("odd", "", "openai_chat", base, probe=f"{base}/odd"),
        Provider("other", "", "openai_chat", base, probe=f"{base}/nothing"),
        Provider("nobody", "", "openai_chat", base, probe="http://127.0.0.1:9/"),
    ]
    found = {one.provider.name: one for one in asyncio.run(discover({}, tuple(rows)))}
    server.shutdown()
    assert {name: one.there for name, one in found.items()} == {
        "tags": True,
        "list": True,
        "odd": False,
        "other": False,
        "nobody": False,
    }
    assert found["tags"].upstream({}).listed == ["llama3:8b"]
    assert found["list"].upstream({}).models == ["qwen", "*"]


def test_discovered_upstreams_are_used() -> None:
    loaded = load(None, {"HOME": "/nowhere"})
    gateway = Gateway(loaded, {"OPENAI_API_KEY": SECRET}, lambda line: None)
    gateway.services.pool.found = asyncio.run(discover({"OPENAI_API_KEY": SECRET}))
    gateway.lifecycle.apply(loaded)
    assert gateway.services.pool.routes.find("gpt-5", lambda: 0.0)[0].upstream.name == "openai"
    assert "replay" in gateway.services.pool.routes.upstreams


def test_the_table_of_upstreams_is_aligned() -> None:
    assert table([("a", "found"), ("long", "not found")]) == "  a     found\n  long  not found"


def test_limits_of_an_upstream_are_its_own(upstream: HostileUpstream) -> None:
    upstreams = upstreams_at(upstream.url)
    upstreams["slow"] = {
        **upstreams["work"],
        "headers": {"x-team": "ours"},
        "options": {"max_tokens": "max_completion_tokens"},
    }
    upstream.scripts["own"] = streamed(PLAIN)
    with running({"upstreams": upstreams}) as gateway:
        gateway.ask("/v1/messages", body_of("anthropic", "slow/own"))
    seen = upstream.requests("own")[0]
    assert seen.headers["x-team"] == "ours"
    assert seen.body["max_completion_tokens"] == 99
