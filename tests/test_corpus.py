"""Every recording gives the events beside it, however it is split."""

from __future__ import annotations

import pytest

import streamglot
from recordings import Recording, recordings
from split_checks import every_cut
from streamglot.events import encode
from streamglot.grammar import check

ALL = recordings()


@pytest.mark.parametrize("recording", ALL, ids=lambda recording: f"{recording.dialect}-{recording.name}")
def test_every_cut_gives_the_events_beside_it(recording: Recording) -> None:
    events = every_cut(lambda: streamglot.reader(recording.dialect), recording.body)
    assert [encode(event) for event in events] == [encode(event) for event in recording.expected()]


def test_every_reader_has_recordings_that_end_well_break_off_and_fail() -> None:
    for dialect in (name for name, entry in streamglot.DIALECTS.items() if entry.has_reader):
        own = [recording for recording in ALL if recording.dialect == dialect]
        last = [recording.expected()[-1] for recording in own]
        codes = {event.code for event in last if isinstance(event, streamglot.StreamError)}
        assert len(own) >= 5, dialect
        assert any(isinstance(event, streamglot.StreamEnd) for event in last), dialect
        assert "upstream_truncated" in codes, dialect
        assert len(codes) > 1, dialect


@pytest.mark.parametrize("recording", ALL, ids=lambda recording: f"{recording.dialect}-{recording.name}")
def test_a_reader_that_is_stopped_anywhere_ends_properly(recording: Recording) -> None:
    """The reader is stopped: the events so far stay, open blocks are closed, and the end says that the stream was cancelled."""
    whole = recording.events()
    size = len(recording.body)
    for cut in sorted({0, size, *range(0, size, max(1, size // 25))}):
        box = streamglot.reader(recording.dialect)
        came = box.feed(recording.body[:cut])
        ended = bool(came) and isinstance(came[-1], (streamglot.StreamEnd, streamglot.StreamError))
        events = came + box.stop()
        assert box.stop() == box.close() == box.feed(b"more") == []
        check(events)
        if ended:
            assert events == came == whole[: len(came)]
        else:
            assert events[-1] == streamglot.StreamEnd("cancelled")
