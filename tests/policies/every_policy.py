"""Each built-in policy with options, and random streams on which the policy has something to do."""

from __future__ import annotations

import json
import random
from typing import Final

from policies.policy_streams import call, reasoning, stream, text
from streamglot.events import Citation, Echo, Event, Extra, KeepAlive, ToolResult, Usage
from streamglot.messages import OutputFormat, Request
from streamglot.patterns.detectors import detectors
from streamglot.policies import Callbacks, Pattern, PatternSet, Piece, Policy, load_policies
from streamglot.policies.needs import Needs, pattern, sentence
from streamglot.policies.policy import JudgeContext
from streamglot.policies.verdicts import FORWARD, Refuse, Rewrite, Verdict

SCHEMA: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}
REQUEST: Final = Request(model="m", output=OutputFormat("json_schema", schema=SCHEMA))
TABLES: Final[dict[str, dict[str, object]]] = {
    "allow_tools": {"tools": ["read_*"]},
    "deny_tools": {"tools": ["rm*", "shell"]},
    "tool_arguments": {"rules": [{"path": "$.path", "allow_paths": ["/srv/*"]}, {"path": "$..command", "deny": "rm +-rf"}]},
    "redact": {"detectors": list(detectors()), "patterns": {"ticket": "TCK-[0-9]{6}"}, "words": ["swordfish", "open sesame"]},
    "redact, with hashes": {"use": "redact", "detectors": ["email"], "mode": "hash", "salt": "0123456789"},
    "redact, restoring": {"use": "redact", "detectors": ["email"], "mode": "restore"},
    "block_patterns": {"detectors": ["api_keys", "cards"], "words": ["swordfish"]},
    "block_patterns, ending": {"use": "block_patterns", "detectors": ["email"], "action": "end"},
    "max_output": {"chars": 150, "tool_calls": 2},
    "loop_guard": {"chars": 200, "repeats": 3, "calls": 2},
    "json_schema": {},
    "json_schema, refusing": {"use": "json_schema", "schema": SCHEMA, "on_violation": "refuse"},
    "system_note": {"text": "Be brief."},
    "dry_run": {"policy": {"use": "redact", "detectors": ["email"]}},
    "parallel": {"policies": [{"use": "block_patterns", "detectors": ["email"]}, {"use": "tool_arguments", "schema": SCHEMA}]},
    "in_order": {"policies": [{"use": "redact", "detectors": ["email", "api_keys"]}, {"use": "deny_tools", "tools": ["rm*"]}]},
    "llm_judge": {"model": "judge", "instructions": "no", "apply_to": ["text", "tool_arguments"], "unit": "sentence"},
    "external_judge": {"url": "http://localhost:1/", "apply_to": ["text", "tool_arguments", "tool_results"]},
    "human_approval": {"tools": ["rm*"]},
}


def every_policy() -> dict[str, Policy]:
    """A policy for each row of the table, and some of the kinds that people write."""
    built_in = {name: load_policies([{"use": name, **options}])[0] for name, options in TABLES.items()}
    return {
        **built_in,
        "sentences": NoShouting(),
        "matches that are judged": Doubled(),
        "callbacks": Callbacks(on_block_complete=upper),
    }


def upper(piece: Piece) -> str | None:
    return piece.text.upper() if piece.kind == "text" else None


class NoShouting(Policy, frozen=True):
    def needs(self) -> Needs:
        return sentence("text", "reasoning")

    def judge(self, piece: Piece, context: JudgeContext) -> Verdict:
        if "secret" in piece.text:
            return Refuse(message="[…]")
        return Rewrite(text=piece.text.lower()) if piece.text.isupper() else FORWARD


class Doubled(Policy, frozen=True):
    """Judges matches one by one, with another verdict for each pattern."""

    def needs(self) -> Needs:
        patterns = PatternSet([Pattern("number", "[0-9]+"), Pattern("tag", "<[a-z]+>"), Pattern("end", r"\bfin\b")])
        return pattern(patterns, "text", "reasoning", "tool_call", "tool_result")

    def judge(self, piece: Piece, context: JudgeContext) -> Verdict:
        if piece.pattern == "number":
            return Rewrite(text=piece.text * 2)
        return FORWARD if piece.pattern == "tag" else Rewrite(text="")


WORDS: Final = (
    *(
        "the",
        "quick",
        "brown",
        "fox",
        "Hello.",
        "SHOUTING LOUDLY!",
        "a secret",
        "swordfish",
        "open sesame",
        "TCK-123456",
        "TCK-12",
        "<b>",
    ),
    *(
        "fin",
        "12",
        "345",
        "jane@example.org",
        "jane@",
        "@example.org",
        "4111 1111 1111 1111",
        "4111-1111",
        "sk-",
        "sk-EXAMPLEexampleEXAMPLE",
    ),
    *(
        "https://u:pw@host/",
        "\n",
        ".",
        ",",
        "é",
        "日本",
        "😀",
        "rm -rf",
        "[email_1]",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGci.eyJhbGci.x",
    ),
    *("-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----", "+49 30 901820", "192.0.2.1", "1::2", "2001:db8::1:2:3"),
)
JSON_TEXTS: Final = (
    '{"name": "x", "age": 3}',
    '{"name": "x", "agee": 3}',
    '{"age": "old"}',
    '{"name": "\\u00e9\\n", "tags": ["a", 1]}',
    "[1]",
)


def random_words(source: random.Random, most: int) -> str:
    """Words and secrets, whole and broken, with and without spaces between them."""
    return "".join(source.choice(WORDS) + source.choice((" ", " ", " ", "", '"', "\\n")) for _ in range(source.randrange(most)))


def random_stream(source: random.Random) -> list[Event]:
    """A stream that has content for each policy."""

    def words(most: int = 12) -> str:
        return random_words(source, most)

    blocks: list[list[Event]] = []
    for number in range(source.randrange(1, 6)):
        match source.randrange(8):
            case 0 | 1:
                blocks.append(text(words()))
            case 2:
                blocks.append(text(source.choice(JSON_TEXTS)))
            case 3:
                blocks.append(reasoning(words(), echo=Echo("p", {"signature": "s"})))
            case 4:
                blocks.append(text(words(4) + source.choice(("ab ", "x", "hello there ")) * source.randrange(200)))
            case 5:
                blocks.append([ToolResult(f"call_{number}", words()), Usage(1, 2)])
            case 6:
                blocks.append(
                    [
                        *text(words())[:-1],
                        Citation("http://a", cited_text=words(3)),
                        Extra("d", {"k": words(3)}),
                        KeepAlive(),
                        *text()[1:],
                    ]
                )
            case _:
                arguments = encoded(source, words(6))
                name = source.choice(("rm_file", "read_file", "shell", "write"))
                blocks.append(call(name, arguments, id=f"call_{number}", complete=source.random() > 0.1))
    reason = source.choice(("end", "tool_calls", "length"))
    return stream(*blocks, reason=reason)


def encoded(source: random.Random, words: str) -> str:
    value = {
        "path": source.choice(("/srv/a", "/srv/../etc/passwd", "/etc")),
        "command": words,
        "n": source.choice((1, 4111111111111111, "é\n")),
    }
    return json.dumps(value, ensure_ascii=source.random() < 0.5) if source.random() > 0.1 else words
