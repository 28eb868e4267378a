"""Records of turns: rows are only added, they say how a turn ended, and a restart removes none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agents.turns import Turn
from agents.wires import streamed as wire
from gateway.dialect_clients import body_of, path_of
from gateway.raw import raw
from gateway.scenarios import DONE, WEATHER, calls, chunk, text_chunk
from gateway.stored_turns import keeping, kept, turns
from gateway.upstream import Hang, HostileUpstream, head, sse, streamed, unfinished, whole

SCRIPTS: dict[str, Any] = {
    "rows-end": streamed(sse(text_chunk("Hello"), chunk({}, "stop"), DONE)),
    "rows-length": streamed(sse(text_chunk("Hello"), chunk({}, "length"), DONE)),
    "rows-calls": streamed(sse(calls(WEATHER), chunk({}, "stop"), DONE)),
    "rows-filtered": streamed(sse(text_chunk("Hello"), chunk({}, "content_filter"), DONE)),
    "rows-cut": unfinished(sse(text_chunk("Hello"))),
    "rows-refused": whole({"error": {"message": "no"}}, 503),
    "rows-gone": [head(), sse(text_chunk("Hello")), Hang()],
}
ENDINGS = {
    "rows-end": "end",
    "rows-length": "length",
    "rows-calls": "tool_calls",
    "rows-filtered": "content_filter",
    "rows-cut": "truncated",
    "rows-refused": "error",
    "rows-gone": "client_gone",
}


def _rows(url: str) -> dict[str, tuple[str, str | None, str]]:
    return {turn.id: (turn.model, turn.ending, turn.session_id) for turn in turns(url)}


def test_every_turn_has_a_row_with_its_ending_and_a_restart_keeps_it(upstream: HostileUpstream, tmp_path: Path) -> None:
    """Elsewhere a cascade deleted rows at start-up, streamed rows always said ``stop``, and disconnects left no row."""
    upstream.scripts.update(SCRIPTS)
    url = f"sqlite:///{tmp_path}/rows.db"
    with keeping(upstream, url) as gateway:
        for model in SCRIPTS:
            path, body = path_of("openai_chat", f"work/{model}"), body_of("openai_chat", f"work/{model}", True)
            with raw(gateway.port) as one:
                one.post(path, body, {"connection": "close"})
                if model == "rows-gone":
                    one.read_until(b"Hello")
                    one.hang_up()
                else:
                    one.read_all()
        kept(url, lambda found: len(found) == len(SCRIPTS) and all(turn.ending for turn in found))
    before = _rows(url)
    assert {model.rpartition("/")[2]: ending for model, ending, _ in before.values()} == ENDINGS
    for _ in range(2):
        with keeping(upstream, url) as gateway:
            gateway.ask("/v1/chat/completions", body_of("openai_chat", "work/rows-end", False))
            kept(url, lambda found: all(turn.ending for turn in found))
        after = _rows(url)
        assert before.items() <= after.items()
        assert len(after) > len(before)
        before = after


def test_equal_openings_are_two_sessions_and_an_explicit_id_is_one(upstream: HostileUpstream, tmp_path: Path) -> None:
    """Sessions that are found by a hash of their content alone: equal openings collide, and an edit misses."""
    upstream.scripts["equal-openings"] = streamed(b"".join(wire("openai_chat", Turn(text="Hello"), "m")))
    url = f"sqlite:///{tmp_path}/sessions.db"
    hi = {"role": "user", "content": "hi"}
    edited = {"role": "user", "content": "hi, or rather: good morning"}
    requests = [
        ("one", [hi]),
        ("two", [hi]),
        ("one", [edited, {"role": "assistant", "content": "Something else."}, {"role": "user", "content": "go on"}]),
        ("", [hi]),
        ("", [hi]),
    ]
    with keeping(upstream, url) as gateway:
        for session, messages in requests:
            body = {"model": "work/equal-openings", "messages": messages}
            headers = {"x-streamglot-session": session} if session else {}
            assert gateway.ask("/v1/chat/completions", body, headers).status == 200
        found = kept(url, lambda rows: len(rows) == len(requests) and all(row.ending for row in rows))
    one, two, again, fourth, fifth = (turn.session_id for turn in found)
    assert one == again
    assert len({one, two, fourth, fifth}) == 4
