"""The first examples of the vendors' documentation read every recording, as users paste them: without a guard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conformance.examples import Examples

from clients.node import NodeClients, missing
from clients.server import StreamServer
from recordings import Recording, recordings
from streamglot import Event, Extra, StreamEnd, StreamStart, TextDelta, TextEnd, TextStart, Usage


@pytest.fixture(scope="module")
def examples() -> Iterator[Examples]:
    with StreamServer() as server:
        if missing():  # test_matrix says so
            yield Examples(server, None)
            return
        with NodeClients() as node:
            yield Examples(server, node)


@pytest.mark.parametrize("recording", recordings(), ids=lambda recording: f"{recording.dialect}-{recording.name}")
def test_first_examples_print_every_recording(examples: Examples, recording: Recording) -> None:
    assert not examples.run(recording.events())


TEXT: list[Event] = [TextStart(), TextDelta("Hello"), TextEnd()]
EXTRAS = {
    "the timings of llama.cpp": [StreamStart("c", "m"), *TEXT, Extra("openai_chat", {"timings": {"n": 1}}), Usage(3, 2)],
    "the search results of Perplexity": [StreamStart("c", "m"), Extra("openai_chat", {"search_results": [{"url": "u"}]}), *TEXT],
    "the filter results of Azure": [StreamStart("c", "m"), Extra("openai_chat", {"prompt_filter_results": [{"a": 1}]}), *TEXT],
    "activity of a tool": [StreamStart("c", "m"), Extra("openai_chat", {"extensions": {"tool_call_chunks": [1]}}), *TEXT],
    "timings of text completions": [StreamStart("c", "m"), *TEXT, Extra("openai_completions", {"timings": {"n": 1}})],
}


@pytest.mark.parametrize("about", EXTRAS)
def test_first_examples_print_an_answer_with_fields_that_nobody_asked_for(examples: Examples, about: str) -> None:
    assert not examples.run([*EXTRAS[about], StreamEnd()])
