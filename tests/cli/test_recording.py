"""Recordings whose dialect is left out, and input without an end."""

from __future__ import annotations

import pytest

from cli.shell import Shell, text_answer
from recordings import Recording, recordings
from split_checks import every_cut
from streamglot.errors import ConfigError, LimitExceeded
from streamglot.events import encode
from streamglot.inspect.detection import LOOKED_AT_BYTES, EventLineReader, RecognisingReader
from streamglot.limits import DEFAULT_LIMITS


@pytest.mark.parametrize("recording", recordings(), ids=lambda recording: f"{recording.dialect}-{recording.name}")
def test_every_recording_is_recognised_however_it_is_cut(recording: Recording) -> None:
    assert every_cut(RecognisingReader, recording.body) == recording.events()


def test_our_own_events_are_recognised() -> None:
    events = recordings()[0].events()
    assert every_cut(RecognisingReader, b"".join(encode(event) + b"\n" for event in events)) == events


def test_a_stream_that_cannot_be_recognised_is_refused() -> None:
    for data in (b"hello\n", b"\0\0\0\0", b"x" * LOOKED_AT_BYTES, b"\n" * LOOKED_AT_BYTES + b'"candidates":'):
        with pytest.raises(ConfigError, match="--from"):
            every_cut(RecognisingReader, data, cuts=1)


def test_lines_that_are_no_events_are_refused() -> None:
    for data in (b"{}\n", b"[" * 100_000 + b"\n"):
        with pytest.raises(ConfigError, match="not a recording of events"):
            EventLineReader().feed(data)
    with pytest.raises(LimitExceeded):
        EventLineReader().feed(b"x" * (DEFAULT_LIMITS.line_bytes + 1))


def test_translate_recognises_the_dialect(shell: Shell) -> None:
    recording = next(recording for recording in recordings() if (recording.dialect, recording.name) == ("anthropic", "thinking"))
    named = shell.run("translate", "--from", "anthropic", "--to", "openai_chat", stdin=recording.body)
    recognised = shell.run("translate", "--to", "openai_chat", stdin=recording.body)
    assert recognised.stdout == named.stdout
    assert recognised.returncode == 0
    again = shell.run("translate", "--to", "events", stdin=shell.run("translate", stdin=recording.body).stdout)
    assert [line for line in again.stdout.splitlines() if line] == [encode(event) for event in recording.events()]
    unknown = shell.run("translate", stdin=b"hello\n")
    assert (unknown.returncode, unknown.stdout, unknown.stderr.count(b"\n")) == (2, b"", 1)


@pytest.mark.parametrize("command", [["translate"], ["replay", "--speed", "0"]])
def test_a_device_without_an_end_is_not_read_to_its_end(shell: Shell, command: list[str]) -> None:
    for source in ("openai_chat", "events"):
        done = shell.run(*command, "--from", source, "/dev/zero")
        assert done.returncode == 1
        assert b"limit" in done.stdout + done.stderr
        assert b"Traceback" not in done.stderr
    assert shell.run(*command, "/dev/zero").returncode == 2


@pytest.mark.parametrize("command", ["translate", "replay"])
def test_a_file_that_cannot_be_read_is_named(shell: Shell, command: str) -> None:
    for name in ("none.sse", "."):
        done = shell.run(command, name)
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
        assert b"cannot be read" in done.stderr


def test_times_that_mean_nothing_are_refused(shell: Shell) -> None:
    recording = shell.recordings / shell.add_recording("song", text_answer("la"))
    for times in ("soon 5\n", "0.0\n", "inf 5\n", "nan 5\n", "1e30 5\n", "0 -1\n", f"0 {10**18}\n"):
        (shell.recordings / "song.times").write_text(times)
        done = shell.run("replay", str(recording))
        assert (done.returncode, done.stderr.count(b"\n")) == (2, 1), times
