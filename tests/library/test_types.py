"""What an editor knows: names, options, signatures and documentation of everything that is public."""

from __future__ import annotations

import inspect
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

import streamglot
from each import each
from streamglot import Dialect, Message, Request, ToolResultPart, errors, events, messages, names
from streamglot.dialects import DIALECTS
from streamglot.dialects.common import options
from streamglot.dialects.common.options import options_of
from streamglot.inband import FORMATS
from streamglot.upstream.providers import PROVIDERS

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, streamglot
before = set(sys.modules)
print(sorted(name for name in before if name.partition(".")[0] in ("asyncio", "aiohttp", "httptools", "ssl", "inspect", "difflib")))
"""


def able(capability: str) -> set[str]:
    return {name for name in DIALECTS if getattr(DIALECTS[name], capability)}


@pytest.mark.parametrize(
    ("literal", "known"),
    [
        (names.DialectName, set(DIALECTS)),
        (names.ReaderName, able("has_reader")),
        (names.WriterName, able("has_writer")),
        (names.SourceName, able("has_request")),
        (names.TargetName, able("has_body")),
        (names.ProviderName, {row.name for row in PROVIDERS}),
        (names.FormatName, {"auto", *FORMATS}),
    ],
    ids=["dialects", "readers", "writers", "sources", "targets", "providers", "formats"],
)
def test_the_literal_types_are_the_tables(literal: object, known: set[str]) -> None:
    assert set(get_args(literal)) == known


def test_the_option_types_are_the_options_of_the_functions() -> None:
    common = {"strict", "id", "model", "created", "request"}
    of_writers = {name for entry in able("has_writer") for name in options_of(DIALECTS[entry].writer)}
    assert set(get_type_hints(options.DialectWriterOptions)) - common == of_writers - common
    of_builders = {name for entry in able("has_body") for name in options_of(DIALECTS[entry].build_body)} - {"abilities"}
    assert set(get_type_hints(options.BuildOptions)) == of_builders
    of_responses = {name for entry in able("has_response") for name in options_of(DIALECTS[entry].response_builder)} - {"strict"}
    assert set(get_type_hints(options.ResponseOptions)) == of_responses
    of_readers = {name for entry in able("has_reader") for name in options_of(DIALECTS[entry].reader)}
    assert of_readers == {"provider", "limits", "call_prefix"}
    assert set(get_type_hints(options.TranslateOptions)) == set(get_type_hints(options.DialectWriterOptions)) - {"tools"}
    assert set(get_type_hints(options.PrepareOptions)) == of_builders - {"provider"}


@pytest.mark.parametrize("kind", [Request, Message, ToolResultPart], ids=lambda kind: kind.__name__)
def test_the_written_signature_of_a_struct_has_its_fields(kind: type[msgspec.Struct]) -> None:
    """For mypy and editors the signature is written by hand, because a message may be given as text."""
    source = inspect.getsource(kind)
    written = source[source.index("def __init__(") : source.index(") -> None: ...")]
    assert tuple(re.findall(r"(\w+): ", written)) == kind.__struct_fields__


def test_dir_is_all() -> None:
    assert dir(streamglot) == sorted(streamglot.__all__)
    namespace: dict[str, object] = {}
    exec("from streamglot import *", namespace)
    assert set(streamglot.__all__) <= set(namespace)
    assert "streamglot" in pydoc.render_doc(streamglot)


@pytest.mark.parametrize("name", ["parse_request", "build_request", "build_response", "endpoint", "parse_response", "error_body"])
def test_the_methods_of_a_dialect_have_signatures(name: str) -> None:
    signature = inspect.signature(getattr(Dialect, name))
    named = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    assert len(named) >= 2
    assert all(each.annotation is not each.empty for each in named[1:])
    assert signature.return_annotation is not signature.empty


@pytest.mark.parametrize("name", ["read", "write", "translate", "translator", "prepare", "reader", "writer", "inband", "dialect"])
def test_pydoc_alone_is_enough(name: str) -> None:
    shown = pydoc.render_doc(f"streamglot.{name}", renderer=pydoc.TextDoc())
    assert f"{name}(" in re.sub(r".\x08", "", shown)
    assert "Raises" in shown
    assert "Gives" in shown


FUNCTIONS = sorted(name for name in streamglot.__all__ if inspect.isfunction(getattr(streamglot, name)) or name == "tool")
CLASSES = sorted(name for name in streamglot.__all__ if inspect.isclass(getattr(streamglot, name)))
VALUES = sorted(set(streamglot.__all__) - set(FUNCTIONS) - set(CLASSES))


def mentioned(text: str) -> set[str]:
    """The names that a text has in double backticks, alone or in an expression."""
    return set(re.findall(r"\w+", " ".join(re.findall(r"``(.+?)``", text, re.DOTALL))))


def own_doc(kind: type) -> str:
    """The documentation of a class and of the classes of ours that it is made of."""
    ours = [each for each in kind.__mro__ if each.__module__.startswith("streamglot") and each.__doc__]
    return "\n".join(inspect.cleandoc(each.__doc__ or "") for each in ours)


def parameters(function: Callable[..., object]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls", "more")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_it_takes_gives_and_raises(name: str) -> None:
    function = getattr(streamglot, name)
    text = inspect.getdoc(function) or ""
    assert set(parameters(function)) <= mentioned(text), "what it takes"
    assert re.search(r"\b[Gg]ives\b|\bReturns\b", text), "what it gives"
    assert re.search(r"\b[Rr]aises\b", text), "what it raises"


@each(name=CLASSES)
def test_a_class_says_what_it_has(name: str) -> None:
    kind = getattr(streamglot, name)
    text = own_doc(kind)
    assert text, name
    if issubclass(kind, msgspec.Struct):
        fields = [field for field in kind.__struct_fields__ if not field.startswith("_")]
        assert set(fields) <= mentioned(text), sorted(set(fields) - mentioned(text))
    elif issubclass(kind, BaseException):
        assert "``" in text or len(text) > 20
    elif "__init__" in vars(kind):
        assert set(parameters(kind)) <= mentioned(text) | {"source", "box", "reading"}, sorted(
            set(parameters(kind)) - mentioned(text)
        )


@each(name=CLASSES)
def test_a_public_method_says_what_it_does(name: str) -> None:
    kind = getattr(streamglot, name)
    for owner in kind.__mro__:
        if not owner.__module__.startswith("streamglot"):
            continue
        for method, member in vars(owner).items():
            function = member.fget if isinstance(member, property) else member
            if not method.startswith("_") and inspect.isfunction(function):
                assert inspect.getdoc(getattr(kind, method)) or inspect.getdoc(function), f"{name}.{method}"


def test_the_values_are_the_tables_and_the_union_of_events() -> None:
    assert VALUES == ["DIALECTS", "Event"]


def test_every_event_and_error_is_public() -> None:
    assert {kind.__name__ for kind in events.EVENT_TYPES} <= set(streamglot.__all__)
    assert {kind.__name__ for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, Exception)} <= set(
        streamglot.__all__
    )
    assert {kind.__name__ for kind in get_args(messages.Part)} <= set(streamglot.__all__)


def test_the_import_loads_no_heavy_module() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    loaded = done.stdout.strip()
    assert "asyncio" not in loaded
    assert "aiohttp" not in loaded
    assert "difflib" not in loaded
