"""A fault in the supervisor itself does not end the supervision."""

from __future__ import annotations

import pytest

from streamglot.upstream.local import LaunchParameters
from streamglot.upstream.local import supervisor as keepers
from streamglot.upstream.local.supervisor import Supervisor


def test_the_supervisor_survives_its_own_faults(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(keepers, "FIRST_PAUSE", 0.0)
    supervisor = Supervisor(LaunchParameters("weights", "key", 1, 1))
    supervisor._process = object()  # type: ignore[assignment]  # stands for a process
    looked = 0

    def replace(_: object) -> None:
        nonlocal looked
        looked += 1
        if looked == 1:
            raise RuntimeError("can't start new thread")
        supervisor._process = None

    monkeypatch.setattr(supervisor, "_replace", replace)
    supervisor.keep()
    assert looked == 2
    assert '"event":"task_failed","task":"local model"' in capsys.readouterr().err
