"""Secrets that are split at every position never leak: in text, reasoning, tool arguments, tool results and requests."""

from __future__ import annotations

import json

import pytest

from policies.policy_streams import call, calls_of, normal, reasoning, results_of, run, stream, text, text_of
from streamglot.errors import ConfigError
from streamglot.events import Citation, Event, ReasoningDelta, TextDelta, TextEnd, TextStart, ToolResult
from streamglot.messages import Message, Request, TextPart, ToolResultPart
from streamglot.patterns.detectors import detectors, iban, ipv6, luhn, patterns_of, phone
from streamglot.patterns.scanner import PatternSet
from streamglot.policies import apply_to_request
from streamglot.policies.builtin.redact import Redact

RULES = {f"{name}.{label}": (name, rule) for name, detector in detectors().items() for label, rule in detector.patterns.items()}
REDACT = Redact(detectors=tuple(detectors()))
BEFORE, BEHIND = "It is: ", " (keep it)"


@pytest.mark.parametrize("rule", RULES)
def test_a_detector_finds_its_example_and_nothing_around_it(rule: str) -> None:
    name, data = RULES[rule]
    segments = PatternSet(patterns_of([name])).segments(BEFORE + data.example + BEHIND)
    assert [segment if isinstance(segment, str) else (segment.text, segment.label) for segment in segments] == [  # type: ignore[union-attr]  # no overflow
        BEFORE,
        (data.example, rule.partition(".")[2]),
        BEHIND,
    ]


@pytest.mark.parametrize("rule", RULES)
def test_a_secret_split_anywhere_does_not_leak(rule: str) -> None:
    name, data = RULES[rule]
    secret, expected = data.example, f"{BEFORE}[{name}]{BEHIND}"
    for place in range(len(secret) + 1):
        pieces = (BEFORE + secret[:place], secret[place:] + BEHIND)
        assert text_of(run(stream(text(*pieces)), REDACT)) == expected, place
        assert text_of(run(stream(reasoning(*pieces)), REDACT), ReasoningDelta) == expected, place
        for ascii_only in (True, False):
            written = json.dumps({"a": BEFORE + secret + BEHIND, secret: 1}, ensure_ascii=ascii_only)
            cut = place * len(written) // (len(secret) + 1)
            (given,) = calls_of(run(stream(call("f", written[:cut], written[cut:])), REDACT))
            assert json.loads(given[1]) == {"a": expected, f"[{name}]": 1}, place


@pytest.mark.parametrize("rule", RULES)
def test_a_secret_in_single_characters_does_not_leak(rule: str) -> None:
    name, data = RULES[rule]
    whole = BEFORE + data.example + BEHIND
    written = json.dumps([whole])
    after = run(stream(reasoning(*whole), text(*whole), call("f", *written)), REDACT)
    expected = f"{BEFORE}[{name}]{BEHIND}"
    assert normal(after) == normal(run(stream(reasoning(expected), text(expected), call("f", json.dumps([expected])))))


@pytest.mark.parametrize("rule", RULES)
def test_a_secret_in_results_citations_and_requests_does_not_leak(rule: str) -> None:
    name, data = RULES[rule]
    whole, expected = BEFORE + data.example + BEHIND, f"{BEFORE}[{name}]{BEHIND}"
    cited = Citation("http://a/?q=" + data.example.replace(" ", "+"), whole, whole, 0, 3)
    block: list[Event] = [TextStart(), TextDelta("as said"), cited, TextEnd()]
    after = run(stream(block, [ToolResult("c", whole)]), REDACT)
    assert results_of(after) == [expected]
    (citation,) = [event for event in after if isinstance(event, Citation)]
    assert (citation.title, citation.cited_text) == (expected, expected)
    request = Request(messages=[Message("user", [TextPart(whole)]), Message("tool", [ToolResultPart("c", [TextPart(whole)])])])
    changed = apply_to_request(request, [REDACT])
    assert changed.messages[0].text == expected
    assert isinstance(changed.messages[1].parts[0], ToolResultPart)
    assert changed.messages[1].parts[0].text == expected
    assert request.messages[0].text == whole


@pytest.mark.parametrize("cut", [60, 200, 400])
def test_a_private_key_that_breaks_off_does_not_leak(cut: int) -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n" + "MIIEexample0123456789+/=\n" * 40
    assert text_of(run(stream(text("a " + key[:cut])), REDACT)) == "a [private_keys]"


@pytest.mark.parametrize(
    "harmless",
    [
        "Meet me at 12:30:45, room 1234-5678, on 2026-11-15; std::vector<int>::iterator a::b",
        "sk-learn and sk-foo are packages; version 1.2.3 and 10.20; call 112",
        "https://example.com:8080/path?x=1 and user@localhost, @handle, a@b",
        "4111 1111 1111 1112 and 1234567890123456 are no cards; DE00 0000 0000 0000 0000 00 is no IBAN",
        "deadbeef" * 40 + " " + "0123456789abcdef" * 8,
        "eyJ" + "a" * 2000,
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
    ],
)
def test_harmless_text_passes(harmless: str) -> None:
    assert text_of(run(stream(text(*harmless)), REDACT)) == harmless


def test_checks() -> None:
    assert luhn("4111-1111-1111-1111")
    assert not luhn("4111-1111-1111-1112")
    assert not luhn("0000")
    assert iban("DE89 3704 0044 0532 0130 00")
    assert not iban("DE88 3704 0044 0532 0130 00")
    assert not iban("DE89")
    assert ipv6("::1")
    assert not ipv6("::2")
    assert not ipv6("1:2:3")
    assert phone("+49 30 901820")
    assert not phone("+1 2")


def test_an_unknown_detector_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no detector 'mail'; choose from email"):
        patterns_of(["mail"])
