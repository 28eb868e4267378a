"""The in-band corpus: every portable case, whole and in pieces, against what its suite really checks.

    python -m conformance.inband CORPUS_DIR [--format NAME] [--show N] [--plain]

A case is right if the asserted fields are right for the whole text, for its own chunks, character by character and for
random cuts, and if all of these give the same. Arguments are compared as JSON, text after trimming both ends. Cases
that we decide otherwise are listed, with the reason, in ``inband_exceptions.toml``; more than 2.5 % of them, or one case
that is wrong and not listed, fail the run.

The scope of a case is its subject: a tool parser (``tool``) is given text without thinking, a reasoning parser (``reasoning``)
leaves calls in the text. The prompt belongs to a case too: where it ends with an opening tag, the answer begins in the
thinking. Where a case does not record its prompt, and the template of its format may open the thinking, a closing tag without
an opening one before it says the same. ``--plain`` leaves the scope aside and passes only what the context says.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streamglot.events import (
    ReasoningDelta,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
)
from streamglot.grammar import check
from streamglot.inband import FORMATS, parse_text

ALLOWED = 0.025
"""The share of listed exceptions."""
EXCEPTIONS = Path(__file__).with_name("inband_exceptions.toml")
WITHOUT_REASONING = frozenset(("ParserEngine", "TestParser"))
"""Parsers of the suites that were built without a reasoning part."""


def switches(case: dict[str, Any], plain: bool = False) -> dict[str, Any]:
    """The facts about the template in the context of a case, as arguments of ``parse_text``."""
    context = case["context"] or {}
    kwargs = context.get("chat_template_kwargs") or {}
    thinking: bool | None = None
    for word in ("enable_thinking", "thinking"):
        if isinstance(kwargs.get(word), bool):
            thinking = kwargs[word]
    if "thinking_mode" in kwargs:
        thinking = kwargs["thinking_mode"] == "enabled"
    if "reasoning_effort" in kwargs:
        thinking = kwargs["reasoning_effort"] != "no_think"
    if thinking is None and "enable_thinking" in context and "starts_in_reasoning" not in context:
        thinking = context["enable_thinking"]
    starts = context.get("starts_in_reasoning")
    if "force_reasoning" in context:
        starts = context["force_reasoning"]
    if prompt_opener(case):
        starts = True
    said: dict[str, Any] = {"starts_in_reasoning": starts, "thinking": thinking}
    if plain:
        return said
    if starts is None and case["format"] in MAY_BE_OPENED and closes_first(case):
        said["starts_in_reasoning"] = True
    if case["scope"] == "tool":
        said |= {"starts_in_reasoning": False, "reasoning": False}
    elif case["scope"] == "reasoning":
        said["calls"] = False
        if case["suite"] == "sglang" and starts is None and case["format"] in OPTIONAL_THINKING:
            said["starts_in_reasoning"] = False
        elif thinking is None and case["format"] in DUAL:
            said["thinking"] = True
    elif case["parser"] in WITHOUT_REASONING and starts is None and thinking is None:
        said["starts_in_reasoning"] = False
    return said


def prompt_opener(case: dict[str, Any]) -> str:
    """The opening tag or phrase at the end of the prompt; "" if there is none."""
    context = case["context"] or {}
    tail = [token for token in context.get("prompt_tail_tokens") or () if not token.isdigit()]
    prompt = context.get("generation_prompt") or "".join(tail)
    return next((opener for opener in FORMATS[case["format"]].think.openers if prompt.rstrip().endswith(opener)), "")


def closes_first(case: dict[str, Any]) -> bool:
    """Whether the text has a closing tag before any opening tag."""
    think, text = FORMATS[case["format"]].think, case["input_text"]
    closer = min((text.find(word) for word in think.closers if word in text), default=-1)
    return closer >= 0 and not any(word in text[:closer] for word in think.openers)


MAY_BE_OPENED = frozenset(("gemma4",))
"""Formats whose template opens the thinking for some requests, while their rows begin in the text."""

OPTIONAL_THINKING = frozenset(("qwen3_think", "glm4x", "nemotron_v3", "hy_v3"))
"""Formats of which one suite starts in the text unless ``force_reasoning`` is set, and the others in the thinking."""

DUAL = frozenset(("kimi_k2", "kimi_k3", "olmo3"))
"""Formats of models with and without thinking, whose rows begin in the text: a reasoning parser is there for the former."""


def reading(pieces: str | list[str], case: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    events = parse_text(pieces, case["format"], case["tools"] or None, **said)
    check(events)
    calls: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, ToolCallStart):
            calls.append({"name": event.name, "arguments": ""})
        elif isinstance(event, ToolCallDelta):
            calls[-1]["arguments"] += event.args
    end = events[-1]
    return {
        "content": "".join(event.text for event in events if isinstance(event, TextDelta)),
        "reasoning": "".join(event.text for event in events if isinstance(event, ReasoningDelta)),
        "both": "".join(event.text for event in events if isinstance(event, (TextDelta, ReasoningDelta))),
        "calls": calls,
        "end": end.reason if isinstance(end, StreamEnd) else "error",
    }


def fault(got: dict[str, Any], case: dict[str, Any], plain: bool) -> str:
    """The first asserted field that is wrong; "" if none is."""
    expected = case["expected"]
    wanted = expected.get("tool_calls") or []
    for field in case["asserted"] or ("content", "reasoning", "name", "args"):
        if field == "reasoning":
            # One suite counts the words of the prompt to the thinking.
            reasoning = (expected.get("reasoning") or "").removeprefix(prompt_opener(case)).strip()
            if reasoning != got["reasoning"].strip():
                return "reasoning"
        if field == "content":
            content = (expected.get("content") or "").strip()
            if content != got["content"].strip() and (plain or case["scope"] != "tool" or content != got["both"].strip()):
                return "content"
        if field == "name" and [_bare(call.get("name")) for call in wanted] != [call["name"] for call in got["calls"]]:
            return "name"
        if field == "args" and [_json(call.get("arguments")) for call in wanted] != [
            _json(call["arguments"]) for call in got["calls"]
        ]:
            return "args"
    return ""


def _bare(name: str | None) -> str:
    return (name or "").removeprefix("functions.")


def _json(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except ValueError:
        return f"not JSON: {arguments}"


def cuts(text: str, case: dict[str, Any]) -> Iterator[tuple[str, str | list[str]]]:
    yield "whole", text
    if case["chunks"]:
        yield "chunks", case["chunks"]
    yield "characters", list(text)
    chance = random.Random(case["id"])
    for number in range(3):
        places = sorted(chance.sample(range(len(text) + 1), min(len(text), chance.randint(1, 12))))
        yield f"random {number}", [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


def judge(case: dict[str, Any], plain: bool) -> tuple[str, dict[str, Any]]:
    said = switches(case, plain)
    first: dict[str, Any] | None = None
    for name, pieces in cuts(case["input_text"], case):
        got = reading(pieces, case, said)
        wrong = fault(got, case, plain)
        if wrong:
            return f"{wrong} ({name})", got
        if first is None:
            first = got
        elif got != first and "".join(pieces) == case["input_text"]:
            return f"differs ({name})", got
    return "", first or {}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="conformance.inband")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--format", default="")
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args(arguments)
    corpus = options.corpus / "inband" if (options.corpus / "inband").is_dir() else options.corpus
    listed: dict[str, str] = {}
    if EXCEPTIONS.exists():
        listed = {row["id"]: row["reason"] for row in tomllib.loads(EXCEPTIONS.read_text(encoding="utf-8"))["exception"]}
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    excepted: list[tuple[str, str]] = []
    wrong: list[str] = []
    for line in (corpus / "cases.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if not case["portable"] or (options.format and case["format"] != options.format):
            continue
        total[case["format"]] += 1
        fails, got = judge(case, options.plain)
        if not fails:
            right[case["format"]] += 1
        elif case["id"] in listed:
            excepted.append((case["id"], listed[case["id"]]))
        else:
            wrong.append(f"{case['id']} {case['scope']}: {fails}")
            if len(wrong) <= options.show:
                print(f"--- {wrong[-1]}")
                for key, shown in (
                    ("in", case["input_text"]),
                    ("want", case["expected"]),
                    ("got", got),
                    ("as", case["asserted"]),
                ):
                    print(f"  {key:5}{shown!r}")
    for name in sorted(total):
        print(f"{name:26} {right[name]:4} of {total[name]:4}")
    for identity, reason in excepted:
        print(f"exception {identity}: {reason}")
    for text in wrong:
        print(f"wrong {text}")
    cases = total.total()
    print(
        f"{right.total()} of {cases} right, {len(excepted)} exceptions ({len(excepted) / max(cases, 1):.1%}), {len(wrong)} wrong"
    )
    return 1 if wrong or len(excepted) > ALLOWED * cases else 0


if __name__ == "__main__":
    sys.exit(main())
