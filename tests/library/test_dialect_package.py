"""Packages that add dialects, formats and providers: the example, installed as pip installs it, and packages that are broken."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.shell import Shell
from gateway.process import Served
from gateway.worker_client import asked
from response_server import serve_response

EXAMPLE = Path(__file__).parents[2] / "examples/dialect_package"
ANSWER = b"""{"id": "a1", "think": "Hm."}
{"say": "Hel"}
{"say": "lo"}
{"tool": "weather", "call": "c1", "args": "{\\"city\\": "}
{"args": "\\"Oslo\\"}"}
{"stop": "tools", "tokens": [12, 9]}
"""
IN_TEXT = b"""{"id": "a2", "say": "<muse>Far.</muse>Wait. <act>{\\"name\\": \\"weather\\", \\"arguments\\": {\\"city\\": \\"Oslo\\"}}</act>"}
{"stop": "done", "tokens": [3, 4]}
"""
RELAY_REQUEST = {"model": "m", "turns": [{"by": "user", "say": "Hello"}], "limit": 9}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with the example in it."""
    folder = tmp_path_factory.mktemp("packages")
    source = shutil.copytree(EXAMPLE, folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", folder / "site", source], check=True)
    return folder / "site"


def offer(site: Path, group: str, entry: str, code: str = "", package: str = "acme") -> None:
    """A package as an installer leaves it. ``entry`` is a line of its entry points."""
    site.mkdir(exist_ok=True)
    (site / f"{package}_wire.py").write_text(code)
    info = site / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[streamglot.{group}]\n{entry}\n")


def run(site: Path, program: str) -> str:
    """What a program prints for which these packages are installed."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(site), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def shell(tmp_path: Path, installed: Path) -> Shell:
    shell = Shell(tmp_path)
    shell.environment["PYTHONPATH"] = str(installed)
    return shell


# --- the library


def test_nothing_is_imported_or_looked_for_before_a_name_is_asked_for(installed: Path) -> None:
    run(
        installed,
        """
import sys, streamglot
started = set(sys.modules)
from streamglot.inband import FORMATS
from streamglot.upstream.providers import KNOWN_PROVIDERS

later = {"hashlib", "html", "urllib.parse", "streamglot.inband.formats", "streamglot.dialects.common.adapt"}
assert not later & started, later & started
streamglot.translator("anthropic", "openai_chat"), streamglot.inband("hermes"), KNOWN_PROVIDERS["openai"]
assert "importlib.metadata" not in sys.modules
assert "relay" in streamglot.DIALECTS and "acts" in FORMATS and "relay_cloud" in KNOWN_PROVIDERS
assert [*streamglot.DIALECTS][-1] == "relay" and len(FORMATS) == len([*FORMATS])
assert not [name for name in sys.modules if name.startswith("streamglot_relay")]
assert streamglot.dialect("relay").has_reader and "streamglot_relay.formats" not in sys.modules
""",
    )


def test_a_program_uses_the_dialect_the_format_and_the_provider_of_a_package(installed: Path) -> None:
    run(
        installed,
        f"""
import streamglot

ANSWER, IN_TEXT = {ANSWER!r}, {IN_TEXT!r}
answer = streamglot.collect(streamglot.read([ANSWER], "relay"))
assert (answer.reasoning, answer.text, answer.stop_reason) == ("Hm.", "Hello", "tool_calls"), answer
assert answer.tool_calls[0].json() == {{"city": "Oslo"}} and answer.usage.output_tokens == 9
assert streamglot.collect(streamglot.read([bytes([byte]) for byte in ANSWER], "relay")) == answer
assert streamglot.collect(streamglot.read([ANSWER[:60]], "relay")).error.code == "upstream_truncated"
written = b"".join(streamglot.write(streamglot.replay(answer), "relay"))
assert streamglot.collect(streamglot.read([written], "relay")) == answer
assert b'"tool_use"' in b"".join(streamglot.translate([ANSWER], "relay", "anthropic"))

box = streamglot.inband("acts")
found = streamglot.collect(streamglot.read([IN_TEXT], "relay", inband="acts"))
assert (found.reasoning, found.text.strip(), found.tool_calls[0].name) == ("Far.", "Wait.", "weather"), found

relay = streamglot.dialect("relay")
whole = relay.build_response(answer)
assert relay.parse_response(whole) == answer and relay.error_body(streamglot.StreamError("upstream", "no"))["error"]["message"] == "no"

request = streamglot.Request("relay-1", "Hello", max_tokens=5, seed=3)
ready = streamglot.prepare(request, provider="relay_cloud", key="k")
assert (ready.url, ready.dialect, ready.dropped) == ("https://relay.example/v2/turns", "relay", ["seed"])
assert ready.body == {{"model": "relay-1", "live": False, "turns": [{{"by": "user", "say": "Hello"}}], "limit": 5}}
again = relay.parse_request(ready.body)
assert (again.messages, again.max_tokens) == (request.messages, 5)
try:
    streamglot.prepare({{"model": "m", "turns": [{{"by": "me"}}]}}, "openai_chat", source="relay")
except streamglot.RequestError as error:
    assert "turns[0].by must be user, model, rules or tool" in error.message, error.message
else:
    raise AssertionError("no error")
""",
    )


def test_the_provider_of_a_package_is_known_by_its_address(installed: Path) -> None:
    run(
        installed,
        """
import asyncio
from streamglot import Upstream
from streamglot.upstream.discovery import discover
from streamglot.upstream.providers import convention_name, is_at_provider, maker_of, provider_name

found = {one.provider.name: one for one in asyncio.run(discover({"RELAY_API_KEY": "k"}))}
assert found["relay_cloud"].there and found["relay_cloud"].upstream({"RELAY_API_KEY": "k"}).model_for("relay-1") == "relay-1"
mine = Upstream(name="mine", dialect="relay", base_url="https://relay.example/v3")
assert (provider_name(mine), maker_of(mine), convention_name(mine)) == ("relay_cloud", "relay@relay_cloud", "relay_cloud")
assert is_at_provider(mine.base_url) and not is_at_provider("https://other.example")
""",
    )


# --- the command line


def test_the_command_line_uses_a_package(shell: Shell, tmp_path: Path) -> None:
    recording = tmp_path / "answer.jsonl"
    recording.write_bytes(ANSWER)
    done = shell.run("translate", "--from", "relay", "--to", "openai_chat", str(recording))
    assert b'"content":"Hel"' in done.stdout, done.stderr
    assert shell.run("formats", "acts").stdout.startswith(b"<act>")
    assert b"\nacts " in shell.run("formats").stdout
    done = shell.run("doctor", "--offline", environment={"RELAY_API_KEY": "k"})
    assert b"upstream relay_cloud" in done.stdout, done.stderr


def test_the_command_line_asks_an_upstream_of_the_dialect(shell: Shell) -> None:
    posted: list[bytes] = []
    with serve_response(IN_TEXT, "application/x-ndjson", asked=posted) as url:
        with (shell.home / "streamglot.toml").open("a") as file:
            file.write(f'[upstreams.mine]\ndialect = "relay"\nbase_url = "{url}"\ninband = "acts"\n')
        done = shell.run("query", "-m", "mine/m", "Hello", "--json")
    assert done.returncode == 0, done.stderr
    assert b"Wait." in done.stdout
    assert json.loads(posted[0])["turns"] == [{"by": "user", "say": "Hello"}]


# --- the gateway


@pytest.fixture
def served(tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, list[bytes]]]:
    """A gateway with an upstream that speaks the dialect of the package, and the bodies that the upstream got."""
    monkeypatch.setenv("PYTHONPATH", str(installed))
    posted: list[bytes] = []
    with serve_response(IN_TEXT, "application/x-ndjson", asked=posted) as url:
        more = f'[upstreams.mine]\ndialect = "relay"\nbase_url = "{url}"\ninband = "acts"\nmodels = ["m"]\n'
        gateway = Served(tmp_path / "gateway", "http://127.0.0.1:9", f"sqlite:///{tmp_path}/store.db", "", more=more)
        try:
            yield gateway, posted
        finally:
            gateway.process.terminate()
            gateway.process.wait()


def test_the_gateway_serves_a_package_on_both_sides(served: tuple[Served, list[bytes]]) -> None:
    gateway, posted = served
    chat = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    status, body = asked(gateway.port, "/v1/chat/completions", chat)
    message = json.loads(body)["choices"][0]["message"]
    assert (status, message["content"].strip(), message["reasoning_content"]) == (200, "Wait.", "Far.")
    assert message["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert json.loads(posted[-1])["turns"] == [{"by": "user", "say": "Hello"}]

    status, body = asked(gateway.port, "/relay/turns", RELAY_REQUEST)
    whole = json.loads(body)
    assert (status, whole["say"].strip(), whole["calls"][0]["tool"], whole["stop"]) == (200, "Wait.", "weather", "tools")
    assert whole["tokens"] == [3, 4]
    assert json.loads(posted[-1])["limit"] == 9

    status, body = asked(gateway.port, "/relay/turns", {**RELAY_REQUEST, "live": True})
    lines = [json.loads(line) for line in body.splitlines()]
    assert (status, lines[1], lines[-1]) == (200, {"think": "Far."}, {"stop": "tools", "tokens": [3, 4]})

    status, body = asked(gateway.port, "/relay/turns", {**RELAY_REQUEST, "turns": []})
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_request")
    assert asked(gateway.port, "/relay/other", RELAY_REQUEST)[0] == 404


# --- packages that are broken


DIALECT = "from streamglot.dialects import Dialect, lazy\nclass Wire(Dialect):\n    name = title = 'acme'\n"
BROKEN = {
    "a module that is not there": ("dialects", "acme = acme_elsewhere:WIRE", "", "ModuleNotFoundError"),
    "an object that is not there": ("dialects", "acme = acme_wire:WIRE", "", "AttributeError"),
    "an error in the module": ("dialects", "acme = acme_wire:WIRE", "1 / 0", "ZeroDivisionError"),
    "an exit in the module": ("dialects", "acme = acme_wire:WIRE", "raise SystemExit(3)", "SystemExit: 3"),
    "a class": ("dialects", "acme = acme_wire:Wire", DIALECT, "it is of the type type, and must be a streamglot.dialects.interface.Dialect"),
    "another name": ("dialects", "acme = acme_wire:WIRE", f"{DIALECT}    name = 'other'\nWIRE = Wire()", "the dialect has another name, 'other'"),
    "a part that is not there": (
        "dialects",
        "acme = acme_wire:WIRE",
        f"{DIALECT}    reader = lazy('acme_reader.Reader')\nWIRE = Wire()",
        "ModuleNotFoundError: No module named 'acme_reader'",
    ),
    "no format": ("formats", "acme = acme_wire:WIRE", "WIRE = 'acme'", "it is of the type str"),
    "no provider": ("providers", "acme = acme_wire:WIRE", "WIRE = None", "it is of the type NoneType"),
}  # fmt: skip


@pytest.mark.parametrize(("group", "entry", "code", "fault"), BROKEN.values(), ids=BROKEN)
def test_a_broken_package_is_named_when_its_name_is_asked_for(
    tmp_path: Path, group: str, entry: str, code: str, fault: str
) -> None:
    offer(tmp_path / "site", group, entry, code)
    printed = run(
        tmp_path / "site",
        f"""
import streamglot
from streamglot.inband import FORMATS, find_format
from streamglot.upstream.providers import KNOWN_PROVIDERS

table = dict(dialects=streamglot.DIALECTS, formats=FORMATS, providers=KNOWN_PROVIDERS)[{group!r}]
ask = dict(dialects=streamglot.dialect, formats=find_format, providers=lambda name: streamglot.prepare(b"{{}}", "openai_chat", source="openai_chat", provider=name))
assert "acme" in table and len([*table.usable()]) == len(table) - 1
for _ in range(2):
    try:
        ask[{group!r}]("acme")
    except streamglot.ConfigError as error:
        message = error.message
print(message)
assert table.faults() == [message]
""",
    )
    assert f"the entry point 'acme' of streamglot.{group} cannot be loaded: " in printed
    assert f"; the package acme 1.0 offers it as {entry.partition(' = ')[2]}" in printed
    assert fault in printed


def test_everything_else_goes_on_beside_a_broken_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tmp_path / "site", "dialects", "acme = acme_wire:WIRE", "1 / 0")
    offer(tmp_path / "site", "providers", "nobody = nobody_wire:ROW", "1 / 0", package="nobody")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    gateway = Served(tmp_path / "gateway", "http://127.0.0.1:9", f"sqlite:///{tmp_path}/store.db", "")
    try:
        status, body = asked(gateway.port, "/acme", {"model": "m"})
        assert status == 500
        assert (
            "the entry point 'acme' of streamglot.dialects cannot be loaded: ZeroDivisionError"
            in json.loads(body)["error"]["message"]
        )
        assert asked(gateway.port, "/health")[0] == 200
    finally:
        gateway.process.terminate()
        gateway.process.wait()
    (tmp_path / "home").mkdir()
    shell = Shell(tmp_path / "home")
    shell.environment["PYTHONPATH"] = str(tmp_path / "site")
    done = shell.run("doctor", "--offline")
    assert b"the entry point 'acme' of streamglot.dialects cannot be loaded" in done.stdout
    assert b"the package nobody 1.0 offers it as nobody_wire:ROW" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize(("group", "kind", "name"), [("dialects", "dialect", "cohere"), ("formats", "format", "hermes"), ("providers", "provider", "groq"), ("policies", "policy", "redact")])  # fmt: skip
def test_a_name_that_is_taken_is_refused(tmp_path: Path, group: str, kind: str, name: str) -> None:
    offer(tmp_path / "site", group, f"{name} = acme_wire:WIRE")
    (tmp_path / "home").mkdir()
    shell = Shell(tmp_path / "home")
    shell.environment["PYTHONPATH"] = str(tmp_path / "site")
    done = shell.run("policies", "list") if group == "policies" else shell.run("serve", "--port", "0")
    assert done.returncode != 0
    assert f"the entry point '{name}' of streamglot.{group} has the name of a {kind} of streamglot" in done.stderr.decode()
    assert b"the package acme 1.0 offers it as acme_wire:WIRE" in done.stderr


def test_two_packages_with_one_name_are_refused(tmp_path: Path) -> None:
    offer(tmp_path / "site", "dialects", "acme = acme_wire:WIRE")
    offer(tmp_path / "site", "dialects", "acme = second_wire:WIRE", package="second")
    printed = run(
        tmp_path / "site",
        """
import streamglot

assert streamglot.dialect("cohere").name == "cohere"
try:
    streamglot.dialect("acme")
except streamglot.ConfigError as error:
    print(error.message)
""",
    )
    assert "the entry point 'acme' of streamglot.dialects has a name that is taken by the package" in printed
    assert "acme 1.0" in printed
    assert "second 1.0" in printed
