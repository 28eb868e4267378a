"""Why a connection is refused or closed before a request has been read."""

from __future__ import annotations

from .parser import ProtocolError


class NotRead(ProtocolError):
    """Too many requests come before this one, or the previous one was the last on this connection. It is not read."""

    def __init__(self) -> None:
        super().__init__(503, "not_read", "the connection closes before this request; send it again over another connection")


def too_many_connections() -> ProtocolError:
    message = "all connections are in use; try again in a moment, and close unused ones"
    return ProtocolError(503, "too_many_connections", message)


def cut_off() -> ProtocolError:
    return ProtocolError(400, "cut_off", "the request ends before its headers do; send it whole")


def headers_too_slow(seconds: float) -> ProtocolError:
    return ProtocolError(408, "headers_too_slow", f"the headers did not come within {seconds:g} s; send them faster")


def shutting_down() -> ProtocolError:
    return ProtocolError(503, "shutting_down", "the gateway is shutting down; send the request again")


def internal_error() -> ProtocolError:
    return ProtocolError(500, "internal_error", "internal error of the gateway; its log has the details")
