"""A fault of the process that keeps the model alive does not end its keeping."""

from __future__ import annotations

import pytest
from streamglot.upstream.keeper import Keeper

from streamglot.upstream import keeper as keepers
from streamglot.upstream.llama import Order


def test_keeping_survives_its_own_faults(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(keepers, "FIRST_PAUSE", 0.0)
    keeper = Keeper(Order("weights", "key", 1, 1))
    keeper._process = object()  # type: ignore[assignment]  # stands for a process
    looked = 0

    def replace(_: object) -> None:
        nonlocal looked
        looked += 1
        if looked == 1:
            raise RuntimeError("can't start new thread")
        keeper._process = None

    monkeypatch.setattr(keeper, "_replace", replace)
    keeper.keep()
    assert looked == 2
    assert '"event":"task_failed","task":"local model"' in capsys.readouterr().err
