"""``logs``, ``sessions`` and ``keys``: what is found, shown, exported and removed."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from rich.cells import cell_len

import streamglot
from cli.shell import Shell
from cli.shell_store import database, in_store
from response_server import serve_response
from split_checks import every_cut
from store.turns import answer, ask, assistant, call, result, take, thought, user
from streamglot.cli.output.table import fit
from streamglot.cli.output.units import parse_time, seconds, shown_size, size
from streamglot.errors import ConfigError
from streamglot.events import StreamError, encode
from streamglot.messages import Message, Response, TextPart
from streamglot.store import SessionHints, Started, Store

CORPUS = Path(__file__).parents[1] / "corpus"
CONTROLS = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
HOSTILE = "see\x1b]0;owned\x07\x1b[2J\x9b2J this \u202e[red]page[/red]\nand\rthat"
FIELDS = {"id", "session_id", "model", "upstream", "dialects", "ending", "error", "usage", "started", "duration"}


def fill(shell: Shell) -> list[str]:
    """Three turns of two sessions, the last one hostile and cut off. Their ids."""

    async def work(store: Store) -> list[str]:
        asked = ask(user("Where are the zebras?"), model="small")
        first = await take(store, asked, answer(thought("hm"), "At the ", call("c1"), ident="resp-1"), name="zoo", cost=0.25)
        more = ask(*asked.messages, assistant("At the ", call("c1")), result("c1", "lake"), model="large")
        second = await take(store, more, answer("By the lake.", ident="resp-2"), name="zoo")
        cut: Response = answer(HOSTILE, error=StreamError("upstream_truncated", "no end\x1b[2J", "upstream", True, 502))
        third = await take(store, ask(user(HOSTILE), model="evil\x1b[2J"), cut, caller="a key", ending="truncated")
        return [first.id, second.id, third.id]

    return in_store(shell, work)


def listed(shell: Shell, *arguments: str) -> list[dict[str, object]]:
    done = shell.run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert not CONTROLS.search(done.stdout)
    assert "\x9b" not in done.stdout.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_turns_of_a_dead_process_are_not_shown_as_running(shell: Shell) -> None:
    """A reader notices the dead process itself, because no other process has started since."""

    async def die(store: Store) -> None:
        session = await store.find_session(SessionHints(), ask())
        store.start(session, Started(request=ask(user("an okapi"))))
        await store.writer.flush()
        await store.database.execute("UPDATE processes SET pid = :pid, born = '0'", pid=2**22 + 1)
        store.process.end = nothing  # type: ignore[method-assign]  # the process never ends

    async def nothing() -> None: ...

    in_store(shell, die)
    assert [line["ending"] for line in listed(shell, "logs", "list")] == ["interrupted"]
    assert len(listed(shell, "logs", "search", "okapi")) == 1


def test_lists_and_searches(shell: Shell) -> None:
    assert shell.run("logs", "list").stderr == b"no turn is stored yet\n"
    first, second, third = fill(shell)
    lines = listed(shell, "logs", "list")
    assert [line["id"] for line in lines] == [third, second, first]
    assert all(set(line) >= FIELDS for line in lines)
    assert lines[1]["dialects"] == {"client": "openai_chat", "upstream": "anthropic"}
    for options, wanted in (
        (["--model", "small"], [first]),
        (["--ending", "truncated"], [third]),
        (["--ending", "running"], []),
        (["--caller", "a key"], [third]),
        (["--session", str(lines[2]["session_id"])[:20]], [second, first]),
        (["--since", "1h", "--limit", "2"], [third, second]),
        (["--until", "2001-01-01"], []),
    ):
        assert [line["id"] for line in listed(shell, "logs", "list", *options)] == wanted, options
    assert [line["id"] for line in listed(shell, "logs", "search", "ZEBRAS")] == [second, first]
    assert [line["id"] for line in listed(shell, "logs", "search", "the", "lake", "--model", "large")] == [second]
    for wrong in (["--ending", "happy"], ["--since", "soon"], ["--since", "2001-99-01"]):
        assert shell.run("logs", "list", *wrong).returncode == 2
    assert shell.run("logs", "list", "--session", "none").returncode == 1
    for nothing in ("", "*", "-zebras"):
        done = shell.run("logs", "search", "--", nothing)
        assert (done.returncode, b'must be present: two words "an exact phrase" -not' in done.stderr) == (1, True)


def test_tables_are_for_people_and_safe(shell: Shell) -> None:
    ids = fill(shell)
    out = shell.run("logs", "list").stdout
    assert not CONTROLS.search(out)
    assert len(out.splitlines()) == 4
    assert "see␛]0;owned␇".encode() in out
    assert b"[red]page[/red]" in out
    assert all(identity[5:19].encode() in out for identity in ids)
    with shell.terminal("logs", "list") as terminal:
        assert terminal.end() == 0
    for sequence in (b"\x1b]", b"\x07", b"\x1b[2J", b"\xc2\x9b", "\u202e".encode()):
        assert sequence not in terminal.seen
    assert all(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) <= 80 for line in terminal.seen.decode().split("\r\n"))
    with shell.terminal("logs", "list", NO_COLOR="1") as terminal:
        assert terminal.end() == 0
    assert not re.search(rb"\x1b\[3\d", terminal.seen)
    sessions = listed(shell, "sessions", "list")
    assert [(session["turns"], session["caller"]) for session in sessions] == [(1, "a key"), (2, "")]
    out = shell.run("sessions", "list").stdout
    assert not CONTROLS.search(out)
    assert shell.run("sessions", "list", "--here").stderr == b"no session is stored yet\n"


def test_a_turn_is_shown_whole(shell: Shell) -> None:
    first, second, third = fill(shell)
    out = shell.run("logs", "show", second[:19]).stdout.decode()
    for words in (
        f"turn      {second}",
        "model     large → one m",
        "dialects  openai_chat → anthropic",
        "ending    end",
        "usage     25 tokens in, 15 out; cost: unknown",
        "user\nWhere are the zebras?",
        '→ read({"path": "a"})',
        "tool\n← lake",
        "assistant\nBy the lake.",
    ):
        assert words in out, words
    assert "cost: $0.25" in shell.run("logs", "show", first[5:19]).stdout.decode()
    assert f"turn      {second}" in shell.run("logs", "show", "resp-2").stdout.decode()
    for arguments in (["show", third], ["show"]):
        out = shell.run("logs", *arguments).stdout.decode()
        assert "error     upstream_truncated: no end␛[2J" in out
        assert not CONTROLS.search(out.encode())
    with shell.terminal("logs", "show", first) as terminal:
        assert terminal.end() == 0
    assert b"\x1b[2mhm\x1b[0m" in terminal.seen
    detail = json.loads(shell.run("logs", "show", "--json", second).stdout)
    assert detail["request"]["messages"][0]["parts"][0]["text"] == "Where are the zebras?"
    assert {"response", "timings", "verdicts"} <= set(detail)
    for wrong, why in (("turn_ffff", b"there is no turn 'turn_ffff'"), ("turn_0", b"several turns")):
        done = shell.run("logs", "show", wrong)
        assert (done.returncode, done.stdout, why in done.stderr) == (1, b"", True)
    session = json.loads(shell.run("sessions", "show", "--json", detail["session_id"]).stdout)
    assert (session["turns"][0]["id"], session["turns"][1]["id"], session["title"]) == (first, second, "Where are the zebras?")
    out = shell.run("sessions", "show", detail["session_id"][4:18]).stdout.decode()
    assert "← lake" in out
    assert "By the lake." in out
    assert shell.run("sessions", "show", "none").returncode == 1


def test_a_session_is_shown_with_all_messages(shell: Shell) -> None:
    """Each message is shown once, although every request repeats the earlier ones. Another conversation with the same name is
    shown too."""
    rule = Message("system", [TextPart("Be brief.")])

    async def work(store: Store) -> str:
        first = await take(store, ask(rule, user("apple?"), model="m"), answer(thought("hm"), "pear"), name="mine")
        lines = [rule, user("apple?"), assistant(" pear\n"), user("yes")]  # as a client repeats it
        await take(store, ask(*lines), answer("plum"), name="mine")
        await take(store, ask(*lines, assistant("plum"), user("yes")), answer("cherry"), name="mine")
        await take(store, ask(user("an egg?")), answer("ham"), name="mine")
        await take(store, ask(user("yes")), answer("salt"), name="mine")
        await take(store, ask(user("yes")), answer("pepper"), name="mine")
        await take(store, ask(user("why?")), answer(error=StreamError("refused", "no", "upstream", False, 400)), name="mine")
        return first.session.id

    out = shell.run("sessions", "show", in_store(shell, work)).stdout.decode()
    lines = [line for line in out.partition("\n\n")[2].splitlines() if line]
    assert lines == [
        "system",
        "Be brief.",
        "user",
        "apple?",
        "assistant",
        "hm",
        "pear",
        "user",
        "yes",
        "assistant",
        "plum",
        "user",
        "yes",
        "assistant",
        "cherry",
        "user",
        "an egg?",
        "assistant",
        "ham",
        "user",
        "yes",
        "assistant",
        "salt",
        "user",
        "yes",
        "assistant",
        "pepper",
        "user",
        "why?",
    ]


def test_the_complete_response_of_a_turn(shell: Shell) -> None:
    first, second, _ = fill(shell)
    own = json.loads(shell.run("logs", "show", "--response", first).stdout)
    assert (own["object"], own["choices"][0]["finish_reason"]) == ("chat.completion", "tool_calls")
    other = json.loads(shell.run("logs", "show", "--as", "anthropic", second).stdout)
    assert (other["type"], other["content"]) == ("message", [{"type": "text", "text": "By the lake."}])
    assert shell.run("logs", "show", "--as", "klingon", second).returncode == 2


def test_turns_are_exported(shell: Shell) -> None:
    first, second, third = fill(shell)
    lines = [json.loads(line) for line in shell.run("logs", "export").stdout.splitlines()]
    assert [line["id"] for line in lines] == [third, second, first]
    assert lines[0]["request"]["messages"][0]["parts"][0]["text"] == HOSTILE
    done = shell.run("logs", "export", "--model", "large", "-o", "out.jsonl")
    assert done.stderr == b"out.jsonl: 1 turn\n"
    path = shell.home / "out.jsonl"
    assert (json.loads(path.read_bytes())["id"], path.stat().st_mode & 0o077) == (second, 0)
    page = shell.run("logs", "export", "-f", "markdown", third).stdout
    assert not CONTROLS.search(page)
    assert b"## user" in page
    assert b"By the lake." in shell.run("logs", "export", "-f", "markdown").stdout
    assert shell.run("logs", "export", "-o", "/dev/null/x").returncode == 2
    assert shell.run("logs", "export", first, "folder").returncode == 2
    assert shell.run("logs", "export", "--as-test").returncode == 2
    kept = path.read_bytes()
    for wrong in (("turn_none",), ("--ending", "nope"), ("--since", "someday")):
        assert shell.run("logs", "export", *wrong, "-o", "out.jsonl").returncode in (1, 2)
    assert path.read_bytes() == kept
    link = shell.home / "link.jsonl"
    link.symlink_to(path)
    assert shell.run("logs", "export", first, "-o", "link.jsonl").returncode == 0
    assert (link.is_symlink(), json.loads(path.read_bytes())["id"]) == (True, first)
    assert json.loads(shell.run("logs", "export", first, "-o", "/dev/stdout").stdout)["id"] == first
    assert not list(shell.home.glob(".*out.jsonl*"))
    assert shell.run_into_closed_pipe("logs", "export").returncode == 128 + signal.SIGPIPE


# --- a stream that came, as a test


def suffix(path: Path) -> str:
    return path.name.partition(".")[2]


def reads_as_it_says(folder: Path, dialect: str) -> None:
    """Reads a folder of recordings as ``tests/recordings.py`` does."""
    from recordings import GOLDEN, framed

    (golden,) = (folder / dialect).glob(f"*{GOLDEN}")
    (path,) = (path for path in (folder / dialect).iterdir() if path != golden)
    body = framed(path.read_text()) if path.suffix == ".frames" else path.read_bytes()
    assert golden.name == path.stem + GOLDEN
    events = every_cut(lambda: streamglot.reader(dialect), body)
    assert b"".join(encode(event) + b"\n" for event in events) == golden.read_bytes()


def test_a_turn_becomes_a_test(shell: Shell) -> None:
    recording = (CORPUS / "anthropic" / "parallel_calls.sse").read_bytes()
    with serve_response(recording, "text/event-stream") as url:
        (shell.home / "streamglot.toml").write_text(
            f'[server]\ndiscover = false\n[upstreams.one]\ndialect = "anthropic"\nbase_url = "{url}"\n'
        )
        shell.run("query", "-m", "one/c", "x")
        done = shell.run("logs", "export", "--as-test", "turn_")
        assert (done.returncode, b"raw = true" in done.stderr) == (1, True)
        shell.run("query", "-m", "one/c", "x", environment={"STREAMGLOT_STORE__RAW": "true"})
    newest = listed(shell, "logs", "list")[0]["id"]
    done = shell.run("logs", "export", str(newest), "--as-test", "corpus")
    assert done.stdout.decode().split() == [f"corpus/anthropic/{newest}.sse", f"corpus/anthropic/{newest}.events.jsonl"]
    assert (shell.home / "corpus" / "anthropic" / f"{newest}.sse").read_bytes() == recording
    golden = (CORPUS / "anthropic" / "parallel_calls.events.jsonl").read_bytes()
    assert (shell.home / "corpus" / "anthropic" / f"{newest}.events.jsonl").read_bytes() == golden
    reads_as_it_says(shell.home / "corpus", "anthropic")


@pytest.mark.parametrize(
    ("dialect", "name", "ending"),
    [
        ("gemini", "array.json", ".json"),
        ("ollama", "text.ndjson", ".ndjson"),
        ("bedrock_converse", "interleaved_calls.frames", ".frames"),
        ("bedrock_converse", "error.frames", ".frames"),
        ("bedrock_invoke", "messages_thinking_call.frames", ".frames"),
    ],
)
def test_a_test_of_every_framing(shell: Shell, dialect: str, name: str, ending: str) -> None:
    from recordings import framed

    path = CORPUS / dialect / name
    body = framed(path.read_text()) if path.suffix == ".frames" else path.read_bytes()

    async def work(store: Store) -> str:
        from store.turns import begin
        from streamglot.store import Finished

        turn = await begin(store, ask(user("x")))
        for place in range(0, len(body), 50):
            turn.frame("up", place / 1000, body[place : place + 50])
        turn.frame("down", 1.0, b"what the client got")
        turn.finish(Finished(ending="end", upstream="one", upstream_dialect=dialect))
        return turn.id

    turn = in_store(shell, work, raw=True)
    assert shell.run("logs", "export", turn, "--as-test").returncode == 0
    assert (shell.home / dialect / f"{turn}{ending}").exists()
    golden = (path.parent / f"{path.stem}.events.jsonl").read_bytes()
    assert (shell.home / dialect / f"{turn}.events.jsonl").read_bytes() == golden
    reads_as_it_says(shell.home, dialect)


# --- removing


def test_prune(shell: Shell) -> None:
    fill(shell)
    assert shell.run("logs", "prune", "--yes").returncode == 2
    assert shell.run("logs", "prune", "--older-than", "a while", "--yes").returncode == 2
    done = shell.run("logs", "prune", "--older-than", "0s")
    assert (done.returncode, b"--yes" in done.stderr) == (2, True)
    assert len(listed(shell, "logs", "list")) == 3
    done = shell.run("logs", "prune", "--older-than", "30d", "--yes")
    assert done.stdout.startswith(b"0 turns removed; 3 are left;")
    with shell.terminal("logs", "prune", "--older-than", "0s") as terminal:
        terminal.until(b"Go on? [y/N]:")
        terminal.type("n\r")
        assert terminal.end() == 1
    assert len(listed(shell, "logs", "list")) == 3
    assert shell.run("logs", "prune", "--older-than", "0s", "--archive", "/dev/null/x", "--yes").returncode == 2
    assert len(listed(shell, "logs", "list")) == 3
    assert shell.run("keys", "add", "a key", "--budget-tokens", "1").returncode == 0
    done = shell.run("logs", "prune", "--older-than", "0s", "--yes")
    assert (done.returncode, b"'a key'" in done.stderr, b"--forget-spending" in done.stderr) == (1, True, True)
    assert len(listed(shell, "logs", "list")) == 3
    done = shell.run("logs", "prune", "--larger-than", "10GB", "--yes")
    assert done.stdout.startswith(b"0 turns removed")
    with shell.terminal("logs", "prune", "--older-than", "0s", "--archive", "old.jsonl", "--forget-spending") as terminal:
        assert b"3 turns are stored" in terminal.until(b"Go on? [y/N]:")
        terminal.type("y\r")
        assert terminal.end() == 0
    assert b"3 turns removed, 3 of them archived in old.jsonl; 0 are left" in terminal.seen
    assert len((shell.home / "old.jsonl").read_bytes().splitlines()) == 3
    assert listed(shell, "logs", "list") == []


# --- keys


def test_keys(shell: Shell) -> None:
    assert b"streamglot keys add" in shell.run("keys", "list").stderr
    limits = ("-m", "small*", "--requests-per-minute", "60", "--budget-cost", "5", "--budget-per", "30d")
    done = shell.run("keys", "add", "ann", *limits)
    secret = done.stdout.decode().strip()
    assert secret.startswith("sg-")
    assert b"the key is shown only this once" in done.stderr
    assert secret.encode() not in database(shell).read_bytes()

    async def work(store: Store) -> tuple[object, ...]:
        key = await store.keys.find(secret)
        assert key is not None
        return key.name, key.models, key.requests_per_minute, key.budget_cost, key.budget_seconds

    assert in_store(shell, work) == ("ann", ["small*"], 60, 5.0, 30 * 86_400)
    assert shell.run("keys", "add", "ann").returncode == 1
    done = shell.run("keys", "add", "bob\x1b[2J")
    assert (done.returncode, b"cannot have the name 'bob\\x1b[2J'" in done.stderr) == (1, True)
    assert shell.run("keys", "add", "bob").returncode == 0
    out = shell.run("keys", "list").stdout
    assert b"models small*, 60 requests/min, $5 in 30 days" in out
    assert not CONTROLS.search(out)
    assert secret.encode() not in out
    (ann, _) = listed(shell, "keys", "list")
    assert (ann["name"], ann["spent"], "hash" in ann) == ("ann", {"turns": 0, "tokens": 0, "cost": 0.0}, False)
    assert shell.run("keys", "revoke", "ann").returncode == 0
    done = shell.run("keys", "revoke", "ann")
    assert (done.returncode, b"no valid key 'ann'" in done.stderr) == (1, True)
    assert len(listed(shell, "keys", "list")) == 1
    assert len(listed(shell, "keys", "list", "--revoked")) == 2


@pytest.mark.parametrize(
    ("limits", "status"),
    [
        (("--budget-tokens", "5000000000"), 2),
        (("--tokens-per-minute", "3000000000"), 2),
        (("--requests-per-minute", "99999999999999999999"), 2),
        (("--budget-cost", "inf"), 1),
        (("--budget-cost", "5", "--budget-per", "0d"), 1),
        (("--budget-per", "30d"), 1),
        (("--budget-cost", "5", "--budget-per", f"{'9' * 400}d"), 2),
    ],
)
def test_limits_that_mean_nothing_are_refused(shell: Shell, limits: tuple[str, ...], status: int) -> None:
    done = shell.run("keys", "add", "ann", *limits)
    assert (done.returncode, done.stdout, b"Traceback" in done.stderr) == (status, b"", False)
    assert done.stderr


# --- the rest


def test_a_table_fits_the_terminal_and_is_whole_in_a_pipe(shell: Shell) -> None:
    title = "\u6c34" * 60 + " end"
    shell.run("query", "-m", "replay", title)
    with shell.terminal("logs", "list", NO_COLOR="1") as terminal:
        assert terminal.end() == 0
    header, row, *_ = terminal.seen.decode().split("\r\n")
    assert cell_len(row) == 80
    assert row.endswith("\u2026")
    assert (header.index("model"), header.index("title")) == (row.index("replay"), row.index("\u6c34"))
    piped = shell.run("logs", "list").stdout.decode().splitlines()
    assert piped[1].endswith(title)
    with shell.terminal("logs", "list") as terminal:
        assert terminal.end() == 0
    assert terminal.seen.startswith(b"\x1b[1mstarted")


@pytest.mark.parametrize(
    ("widths", "room", "fitted"),
    [([5, 9, 40], 80, [5, 9, 40]), ([5, 9, 40], 30, [5, 9, 12]), ([5, 30, 40], 40, [5, 23, 8]), ([9, 9, 9], 4, [8, 8, 8])],
)
def test_the_last_column_is_narrowed_first(widths: list[int], room: int, fitted: list[int]) -> None:
    fit(widths, room)
    assert widths == fitted


def test_completion_offers_stored_ids(shell: Shell) -> None:
    first, _, _ = fill(shell)
    assert first in shell.completions("streamglot", "logs", "show", "turn_")
    assert set(shell.completions("streamglot", "logs", "")) == {"list", "search", "show", "export", "prune"}
    assert shell.completions("streamglot", "logs", "list", "--ending", "tr") == ["truncated"]


def test_amounts_as_people_write_them() -> None:
    assert [seconds(text) for text in ("90s", "1.5h", "30d", "2 W")] == [90, 5400, 2_592_000, 1_209_600]
    assert [size(text) for text in ("10", "500MB", "1gb", "2GiB", "1k")] == [10, 500_000_000, 10**9, 2 * 2**30, 1000]
    assert parse_time("2d", 1_000_000.0) == 1_000_000.0 - 172_800
    assert parse_time("2025-11-30T18:00+00:00", 0.0) == 1_764_525_600
    assert [shown_size(count) for count in (999, 8_400, 12_345_678, 3 * 10**12)] == ["999 bytes", "8 kB", "12 MB", "3000 GB"]
    for text in ("", "d", "5", "5 parsecs", "-1d"):
        with pytest.raises(ConfigError):
            seconds(text)
    for text in ("", "GB", "5 parsecs", "9" * 400, f"{'9' * 308}GB"):
        with pytest.raises(ConfigError):
            size(text)
