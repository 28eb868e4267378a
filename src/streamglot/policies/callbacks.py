"""Builds a policy from functions that are called with the pieces of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..errors import ConfigError
from ..events import StreamEnd, StreamError
from .needs import IN_ANSWERS, Needs, block, delta, request
from .pieces import Kind, Piece
from .policy import JudgeContext, Policy
from .verdicts import FORWARD, SEVERITY, Rewrite, Verdict

Callback: TypeAlias = Callable[[Piece], "Verdict | str | None"]


class Callbacks(Policy, frozen=True, kw_only=True):
    """Each callback is called with a ``Piece``. Where one object has several, each sees what the one before it released, in this
    order:

    - ``on_text_delta``: each piece of text as it comes.
    - ``on_tool_call_delta``: each piece of a call's arguments as it comes; the piece has the name and the id of the call.
    - ``on_tool_call_complete``: each call as soon as it is whole.
    - ``on_block_complete``: whole blocks of ``kinds``, calls included. Left out, these are all kinds; text with ``on_text_delta``
      only with ``observe``, because whole blocks are held. ``tool_result`` among ``kinds`` also shows the results that a client
      sends, with ``direction == "request"``.
    - ``on_finish``: called with the finish reason, once for each choice that ended properly.
    - ``on_stream_end``: called last, with the ``StreamError`` that ended the stream, or None.

    A callback for a piece returns a verdict, a text in place of the piece, or None to release it as it is. A piece that a callback
    may change is held until the callback has returned; with ``observe`` nothing is held, and return values are ignored."""

    on_text_delta: Callback | None = None
    on_tool_call_delta: Callback | None = None
    on_tool_call_complete: Callback | None = None
    on_block_complete: Callback | None = None
    on_finish: Callable[[str], object] | None = None
    on_stream_end: Callable[[StreamError | None], object] | None = None
    kinds: Sequence[Kind] = ()
    observe: bool = False

    @property
    def shadow(self) -> bool:
        return self.observe

    @property
    def recorded(self) -> bool:
        return not self.observe

    def members(self) -> Sequence[Policy]:
        """One policy for each callback: each needs its own unit, so that text flows where only calls are held."""
        found: list[Policy] = []
        for callback, unit in (
            (self.on_text_delta, delta("text")),
            (self.on_tool_call_delta, delta("tool_call")),
            (self.on_tool_call_complete, block("tool_call")),
            (self.on_block_complete, self._block_needs()),
        ):
            if callback is not None:
                found.append(
                    _PieceCallback(callback=callback, unit=unit, on_error=self.on_error, store_original=self.store_original)
                )
        if self.on_finish or self.on_stream_end:
            found.append(_EndCallback(on_finish=self.on_finish, on_stream_end=self.on_stream_end))
        if not found:
            names = ", ".join(name for name in self.__struct_fields__ if name.startswith("on_") and name != "on_error")
            raise ConfigError(f"Callbacks: give at least one of {names}")
        return found

    def _block_needs(self) -> Needs:
        held = self.on_text_delta is not None and not self.observe
        kinds = self.kinds or [kind for kind in IN_ANSWERS if kind != "text" or not held]
        needs = block(*kinds)
        return needs | request("tool_result") if "tool_result" in self.kinds else needs


class _Callback(Policy, frozen=True, kw_only=True):
    @property
    def name(self) -> str:
        return f"{Callbacks.__module__}:{Callbacks.__qualname__}"


class _PieceCallback(_Callback, frozen=True, kw_only=True):
    """One function that is called with pieces. ``unit`` says with which."""

    callback: Callback
    unit: Needs

    def needs(self) -> Needs:
        return self.unit

    def judge(self, piece: Piece, context: JudgeContext) -> Verdict:
        if piece.unit == "delta" and not piece.text:  # a call has begun
            return FORWARD
        returned = self.callback(piece)
        if returned is None:
            return FORWARD
        if isinstance(returned, str):
            return FORWARD if returned == piece.text else Rewrite(text=returned)
        if type(returned) in SEVERITY:
            return returned
        raise TypeError(f"a callback returned {returned!r}: it must return a verdict, a text or None")


class _EndCallback(_Callback, frozen=True, kw_only=True):
    """The functions that are called at the end."""

    on_finish: Callable[[str], object] | None = None
    on_stream_end: Callable[[StreamError | None], object] | None = None

    def needs(self) -> Needs:
        return Needs()

    def ended(self, end: StreamEnd | StreamError, context: JudgeContext) -> None:
        if self.on_finish is not None and isinstance(end, StreamEnd):
            self.on_finish(end.reason)
        if self.on_stream_end is not None and context.choice == 0:
            self.on_stream_end(end if isinstance(end, StreamError) else None)
