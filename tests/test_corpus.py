"""Our own recordings: whatever the cuts, each gives the events that stand beside it."""

from __future__ import annotations

import pytest

import streamglot
from boxes import every_cut
from recordings import Recording, recordings
from streamglot.events import encode

ALL = recordings()


@pytest.mark.parametrize("recording", ALL, ids=lambda recording: f"{recording.dialect}-{recording.name}")
def test_every_cut_gives_the_events_beside_it(recording: Recording) -> None:
    events = every_cut(lambda: streamglot.reader(recording.dialect), recording.body)
    assert [encode(event) for event in events] == [encode(event) for event in recording.expected()]


def test_every_reader_has_recordings_that_end_well_break_off_and_fail() -> None:
    for dialect in (name for name, entry in streamglot.DIALECTS.items() if entry.reader_class):
        own = [recording for recording in ALL if recording.dialect == dialect]
        last = [recording.expected()[-1] for recording in own]
        codes = {event.code for event in last if isinstance(event, streamglot.StreamError)}
        assert len(own) >= 5, dialect
        assert any(isinstance(event, streamglot.StreamEnd) for event in last), dialect
        assert "upstream_truncated" in codes, dialect
        assert len(codes) > 1, dialect
