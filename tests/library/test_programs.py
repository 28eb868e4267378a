"""The five programs at the beginning of docs/library.md, each with the real packages and a server in place of the vendor's."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from docs.code_blocks import blocks_of

from response_server import serve_response
from streamglot import Event, StreamEnd, StreamStart, TextDelta, TextEnd, TextStart, collect, dialect, reader, writer
from tools.chat_model import ChatModel
from waiting import WAIT_SECONDS

ROOT = Path(__file__).parents[2]
EVENTS = "text/event-stream"
BODY = (ROOT / "examples" / "anthropic.sse").read_bytes()
MARKUP = '<think>Hm.</think>One moment. <tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
MAX_LINES = 15
PROGRAMS = [block.text for block in blocks_of("docs/library.md") if block.language == "python"]
PAGES = (
    "docs/library.md",
    "docs/library/client.md",
    *(f"docs/library/{page}.md" for page in ("streams", "boxes", "requests", "answers", "text")),
)


def run(program: str, **names: object) -> str:
    """What the program prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program, "docs/library.md", "exec", dont_inherit=True), {"__name__": "example", **names})
    return out.getvalue()


def test_the_page_begins_with_five_short_programs() -> None:
    assert len(PROGRAMS) == 5
    assert [len(program.splitlines()) for program in PROGRAMS if len(program.splitlines()) > MAX_LINES] == []


# --- 1. a proxy


def proxy_to(url: str) -> str:
    """The first program with the address of another upstream than the vendor."""
    return PROGRAMS[0].replace('source="openai_chat"', f'source="openai_chat", base_url="{url}"')


@contextlib.contextmanager
def served(program: str) -> Iterator[tuple[str, ModuleType]]:
    """The address of the program's application, and its names."""
    module = ModuleType("proxy")
    sys.modules["proxy"] = module  # FastAPI looks up annotations there
    exec(compile(program, "docs/library.md", "exec", dont_inherit=True), vars(module))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(module.app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1", module
    finally:
        server.should_exit = True
        thread.join(WAIT_SECONDS)
        listener.close()
        del sys.modules["proxy"]


def test_the_official_client_streams_from_the_proxy() -> None:
    asked: list[bytes] = []
    with (
        serve_response(BODY, EVENTS, asked=asked) as url,
        served(proxy_to(url)) as (proxy, _),
    ):
        client = openai.OpenAI(api_key="x", base_url=proxy)
        pieces: list[str] = []
        names: list[str] = []
        finish = ""
        for chunk in client.chat.completions.create(
            model="claude-sonnet-5", messages=[{"role": "user", "content": "Hello"}], stream=True
        ):
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                names += [call.function.name for call in choice.delta.tool_calls or () if call.function and call.function.name]
                finish = choice.finish_reason or finish
    answer = collect(reader("anthropic").feed(BODY))
    assert ("".join(pieces), names, finish) == (answer.text, ["weather"], "tool_calls")
    assert json.loads(asked[0])["messages"] == [{"role": "user", "content": "Hello"}]


def test_the_proxy_passes_on_the_status_of_an_error() -> None:
    refused = b'{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}'
    with (
        serve_response(refused, "application/json", 401) as url,
        served(proxy_to(url)) as (proxy, _),
    ):
        client = openai.OpenAI(api_key="x", base_url=proxy, max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hello"}], stream=True)


def test_a_client_that_hangs_up_closes_the_stream_of_the_upstream() -> None:
    from client.scripted_upstreams import ChunkServer

    upstream = ChunkServer(0.01)
    address = upstream.url
    program = proxy_to(address).replace('"anthropic"', '"openai_chat"')
    with served(program) as (proxy, _):
        with httpx.stream("POST", f"{proxy}/chat/completions", json={"model": "m", "messages": [], "stream": True}) as response:
            next(response.iter_bytes())
        assert upstream.gone.wait(WAIT_SECONDS)
    upstream.close()


# --- 2. to 5.


def test_reasoning_and_calls_come_out_of_text() -> None:
    events: list[Event] = [StreamStart("r", "m", 1), TextStart(), *map(TextDelta, MARKUP), TextEnd(), StreamEnd()]
    asked: list[bytes] = []
    with serve_response(writer("openai_chat").feed(events), EVENTS, asked=asked) as url:
        printed = run(PROGRAMS[1].replace("http://127.0.0.1:8000", url))
    assert (
        printed == "Hm.One moment. weather {'city': 'Oslo'}\n"
        or printed.replace("\n", "") == "Hm.One moment.weather {'city': 'Oslo'}"
    )
    assert dialect("openai_chat").parse_request(json.loads(asked[0])).tools[0].name == "weather"


def test_a_user_interface_shows_the_answer_so_far() -> None:
    with serve_response(BODY, EVENTS) as url:
        printed = run(PROGRAMS[2].replace("https://api.anthropic.com", url))
    answer = collect(reader("anthropic").feed(BODY))
    assert f"\r{len(answer.text)} characters, 1 calls" in printed
    assert printed.count("\r") > 10
    assert printed.endswith(f"{answer}\n")


def test_a_conversation_with_tools() -> None:
    model = ChatModel()
    try:
        printed = run(PROGRAMS[3].replace("http://127.0.0.1:8000/v1", str(model.upstream().base_url)))
    finally:
        model.close()
    assert len(printed.strip().splitlines()) == 2


def test_a_policy_judges_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    printed = run(PROGRAMS[4]).encode()
    box = reader("openai_chat")
    answer = collect(box.feed(printed) + box.close())
    assert answer.complete
    assert answer.tool_calls == []
    assert answer.text.endswith("[no forecasts today]")


# --- types


def sources(folder: Path) -> list[str]:
    made: list[str] = []
    for page in PAGES:
        for number, block in enumerate(block for block in blocks_of(page) if block.language == "python"):
            path = folder / f"{Path(page).stem}_{number}.py"
            path.write_text(block.text)
            made.append(str(path))
    return made


@pytest.mark.slow
def test_the_examples_pass_mypy_strict(mypy_cache: Path, tmp_path: Path) -> None:
    files = sources(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", str(mypy_cache), *files],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(find_spec("basedpyright") is None, reason="basedpyright is not installed")
def test_the_examples_pass_pyright(tmp_path: Path) -> None:
    """By basedpyright, which brings its own Node, with the rules of pyright."""
    sources(tmp_path)
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps({"typeCheckingMode": "strict", "include": ["."], "failOnWarnings": False})
    )
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found: Any = json.loads(done.stdout)
    errors = [
        f"{each['file']}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in found["generalDiagnostics"]
        if each["severity"] == "error"
    ]
    assert found["summary"]["filesAnalyzed"] >= len(PROGRAMS)
    assert errors == []
