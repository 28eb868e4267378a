"""The methods of the dialect objects that the gateway calls by name."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest

from streamglot.dialects import DIALECTS, Dialect, dialect
from streamglot.dialects.common.reader import Reader
from streamglot.dialects.common.writer import Writer
from streamglot.dialects.interface import FindAnswers, Lazy, encoded, lazy, path_segment
from streamglot.errors import ConfigError, RequestError
from streamglot.events import StreamError
from streamglot.json_types import JsonObject
from streamglot.messages import Built, Request

USER: dict[str, Any] = {"role": "user", "content": "Hello"}
BODIES: dict[str, dict[str, Any]] = {
    "openai_chat": {"model": "m", "messages": [USER]},
    "openai_responses": {"model": "m", "input": "Hello"},
    "anthropic": {"model": "m", "max_tokens": 5, "messages": [USER]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]},
    "ollama": {"model": "m", "messages": [USER]},
    "openai_completions": {"model": "m", "prompt": "Hello"},
    "agui": {"threadId": "t", "runId": "r", "messages": [{"id": "1", **USER}], "tools": [], "context": [], "state": {}},
    "vercel_ui": {"id": "c", "messages": [{"id": "1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}]},
}


def test_every_client_dialect_has_a_body_here() -> None:
    assert {name for name in DIALECTS if DIALECTS[name].has_writer} == set(BODIES)


@pytest.mark.parametrize("name", BODIES)
def test_a_client_dialect_parses_its_request(name: str) -> None:
    assert dialect(name).parse_request(BODIES[name]).messages[-1].text == "Hello"


@pytest.mark.parametrize("name", sorted(set(DIALECTS) - {"qwen_web", "bedrock_invoke"}))
def test_an_error_body_has_the_message(name: str) -> None:
    assert "it broke" in str(dialect(name).error_body(StreamError(message="it broke", code="upstream")))


@pytest.mark.parametrize("name", ["qwen_web", "bedrock_invoke"])
def test_a_dialect_of_upstreams_only_has_no_error_body(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' has no error body: only upstreams speak it"):
        dialect(name).error_body(StreamError(message="it broke", code="upstream"))


@pytest.mark.parametrize("name", ["agui", "vercel_ui"])
def test_a_dialect_of_clients_only_has_no_endpoint(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' has no endpoint: only clients speak it"):
        dialect(name).endpoint("http://localhost", Request(model="m", messages=[]))


def test_a_name_that_a_url_cannot_contain_is_refused() -> None:
    with pytest.raises(RequestError, match="half a surrogate pair"):
        encoded("a\ud800")


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_would_change_the_path_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="would change the path"):
        path_segment(name)


def test_a_model_keeps_its_name_unless_a_dialect_changes_it() -> None:
    assert dialect("agui").model_name("m") == "m"


ROOT = Path(__file__).parents[2]
LAZY = [(name, part) for name in DIALECTS for part, value in vars(type(DIALECTS[name])).items() if isinstance(value, Lazy)]
MADE_BY: dict[str, type] = {"reader": Reader, "writer": Writer}
RETURNED_BY = {"request_parser": Request, "build_body": Built, "response_builder": JsonObject}


def test_most_parts_are_bound_when_they_are_needed() -> None:
    assert len(LAZY) > 60
    assert {part for _, part in LAZY} >= {*MADE_BY, *RETURNED_BY, "error_body", "approval_answers", "hosted_events"}


@pytest.mark.parametrize(("name", "part"), LAZY)
def test_a_part_in_another_module_is_what_the_interface_says(name: str, part: str) -> None:
    known = dialect(name)
    found = getattr(known, part)
    assert vars(known)[part] is found, "the object keeps the part"
    if part in MADE_BY:
        assert issubclass(found, MADE_BY[part])
        assert found.dialect == name
    elif part in RETURNED_BY:
        assert get_type_hints(found)["return"] == RETURNED_BY[part]
    elif part == "approval_answers":
        arguments, answers = get_args(FindAnswers)
        assert [*get_type_hints(found).values()] == [*arguments, answers]
    else:
        assert get_type_hints(found) == get_type_hints(getattr(Dialect, part))


def test_no_dialect_may_import_another() -> None:
    """Every dialect is in the import contract. One wraps the formats of others: it asks the table for them while it runs."""
    contract = (ROOT / ".importlinter").read_text().partition("[importlinter:contract:dialects]")[2]
    assert re.findall(r"streamglot\.dialects\.(\w+)$", contract, re.M) == sorted(DIALECTS)
    asks = {path.parent.name for path in (ROOT / "src/streamglot/dialects").glob("*/*.py") if "dialect(" in path.read_text()}
    assert asks == {"bedrock_invoke"}


def test_a_part_of_a_dialect_without_a_package_is_in_a_module_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    name, module = "a_dialect_in_one_file", ModuleType("a_dialect_in_one_file")
    monkeypatch.setitem(sys.modules, name, module)
    made = type("Alone", (Dialect,), {"__module__": name, "name": "alone", "reader": lazy("collections.abc.Callable")})
    assert made().reader is Callable
