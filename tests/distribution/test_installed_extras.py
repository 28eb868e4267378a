"""The package in a clean environment for each extra, as a user installs it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from distribution.environments import EXTRAS, ROOT, Environment, succeed

Get = Callable[[str], Environment]

PURE = """
from streamglot import Collect, reader
stream = b'data: {"choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":"stop"}]}\\n\\ndata: [DONE]\\n\\n'
box, collect = reader("openai_chat"), Collect()
events = [*box.feed(stream), *box.close()]
print(type(events[0]).__name__, type(events[-1]).__name__, "".join(getattr(event, "text", "") for event in events))
"""
CLIENT = """
from streamglot import Client
with Client() as client:
    print("".join(getattr(event, "text", "") for event in client.stream(model="replay", messages="hi")))
"""
SIZES = re.compile(r"^\| `(?P<what>[^`]+)` \| (?P<megabytes>[\d.]+) MB \|", re.MULTILINE)
TOLERANCE = 0.2
"""Part of the size by which the table may be wrong before it must be updated."""


def test_the_base_is_the_pure_library_with_msgspec_alone(environment: Get) -> None:
    base = environment("")
    packages = {path.name.partition("-")[0] for path in base.site.glob("*.dist-info")}
    assert packages == {"streamglot", "msgspec"}
    assert base.code(PURE) == "StreamStart StreamEnd Hello\n"


def test_a_command_without_its_extra_says_which_one_to_install(environment: Get) -> None:
    for arguments, extra in (([], "cli"), (["serve"], "server"), (["query", "hi"], "cli")):
        done = environment("").streamglot(*arguments)
        assert done.returncode == 2
        assert f"pip install 'streamglot[{extra}]'" in done.stderr
        assert "Traceback" not in done.stderr
    done = environment("client").streamglot("serve")
    assert (done.returncode, "pip install 'streamglot[" in done.stderr) == (2, True)


def test_the_version_needs_no_extra(environment: Get) -> None:
    for extra in ("", "server"):
        lines = environment(extra).streamglot("--version").stdout.splitlines()
        assert lines[0].startswith("streamglot ")
        assert any(line.startswith("msgspec ") for line in lines)
        assert any(line.startswith("uvloop ") for line in lines) is (extra == "server")


def test_the_client_extra_is_enough_to_ask(environment: Get) -> None:
    assert environment("client").code(CLIENT).endswith("You said: hi\n")


def test_the_server_extra_has_the_command_line_and_the_gateway(environment: Get) -> None:
    server = environment("server")
    assert server.streamglot("query", "-m", "replay", "hi").stdout.endswith("You said: hi\n")
    assert json.loads(server.streamglot("config", "schema").stdout)["type"] == "object"
    assert server.code("from streamglot.gateway.app import Gateway; print(Gateway.__name__)") == "Gateway\n"


def test_the_module_can_be_run(environment: Get) -> None:
    server = environment("server")
    output = succeed(str(server.python), "-m", "streamglot", "--version", cwd=server.folder)
    assert output == server.streamglot("--version").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands(environment: Get, shell: str) -> None:
    server = environment("server")
    script = server.streamglot("--show-completion", shell).stdout
    assert "_STREAMGLOT_COMPLETE" in script
    asked = {
        "_STREAMGLOT_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "streamglot ser",
        "COMP_CWORD": "ser" if shell == "fish" else "1",
    }
    assert "serve" in server.streamglot(env=asked).stdout


def test_all_extras_can_be_imported_together(environment: Get) -> None:
    modules = (
        "gateway.observe.tracing",
        "patterns.detectors",
        "store",
        "tools.mcp.source",
        "upstream.local",
        "store.streams.valkey",
    )
    code = "".join(f"import streamglot.{module}\n" for module in modules) + "print('done')"
    assert environment("all").code(code) == "done\n"
    for package in ("opentelemetry.sdk", "re2", "asyncpg", "valkey", "mcp", "xllamacpp"):
        environment("all").code(f"import {package}")


def test_the_table_of_sizes_is_current(environment: Get) -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    table = {found["what"]: float(found["megabytes"]) for found in SIZES.finditer(page)}
    measured = {f"streamglot[{extra}]" if extra else "streamglot": environment(extra).megabytes() for extra in EXTRAS}
    shown = "; ".join(f"{what} {size:.1f} MB" for what, size in measured.items())
    assert set(table) == set(measured)
    for what, size in measured.items():
        assert abs(size - table[what]) <= TOLERANCE * size, f"docs/deployment.md must say: {shown}"
