"""``streamglot approvals``: lists the calls that wait for approval in a running gateway, and sends decisions."""

from __future__ import annotations

import getpass
import sys
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import click
import msgspec

from ...config import load
from ...errors import ConfigError, RequestError, excerpt
from ...json_types import JSON_ERRORS, JsonObject
from ..address import local_address
from ..options import group, text, together
from ..output import table
from ..output.printers import seen

SECONDS: Final = 30.0
"""Seconds that the gateway has to answer. It waits a few seconds for another worker, so a slower gateway hangs."""
MAX_ANSWER_BYTES: Final = 64 * 2**20
"""Bytes of the largest list of open approvals that is read. Each approval has the arguments of one call."""

approvals = group("List the calls that wait for approval in a running gateway, and decide them.")
WHERE = together(
    click.option("--url", type=text, default="", help="The gateway's address; by default the configured host and port."),
    click.option(
        "--key",
        type=text,
        default="",
        envvar="STREAMGLOT_KEY",
        show_envvar=True,
        help="A key of the gateway, if it requires one.",
    ),
)


@approvals.command("list", examples=("streamglot approvals list", "streamglot approvals list --json"))
@WHERE
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def approvals_list(url: str, key: str, as_json: bool) -> int:
    """List the calls that wait for a decision, the oldest first."""
    found = _Gateway(url, key).open()
    if as_json:
        for one in found:
            sys.stdout.buffer.write(seen(msgspec.json.encode(one) + b"\n"))
    elif found:
        names = ("id", "tool", "arguments", "model", "key", "policy")
        table.show(names, [[str(one.get("text" if name == "arguments" else name, "")) for name in names] for one in found])
    else:
        print("nothing waits for a decision", file=sys.stderr)
    return 0


@approvals.command("approve", examples=("streamglot approvals approve 06605008",))
@click.argument("id", type=text)
@WHERE
def approvals_approve(id: str, url: str, key: str) -> int:
    """Approve a call unchanged. ID is the id of an approval, or the beginning of it."""
    gateway = _Gateway(url, key)
    return gateway.decide(gateway.find(id), {"approved": True})


@approvals.command(
    "edit",
    examples=(
        "streamglot approvals edit 06605008  # in your editor",
        """streamglot approvals edit 06605008 '{"path": "/tmp"}'""",
    ),
)
@click.argument("id", type=text)
@click.argument("arguments", type=text, required=False)
@WHERE
def approvals_edit(id: str, arguments: str | None, url: str, key: str) -> int:
    """Approve the call with this ID with changed ARGUMENTS: JSON, or text if the tool takes text. Without ARGUMENTS, your editor
    opens."""
    gateway = _Gateway(url, key)
    call = gateway.find(id)
    before = str(call.get("text", ""))
    is_json = call.get("kind") == "tool_call" and _is_object(before)
    if arguments is None:
        arguments = click.edit(before, extension=".json" if is_json else ".txt")
        if arguments is None:
            raise RequestError(
                "the arguments were not saved, so nothing was decided; save them in the editor, or give them on the command line"
            )
        if not before.endswith("\n"):
            arguments = arguments.removesuffix("\n")  # editors end the last line
    if is_json:  # a call of a custom tool takes any text
        try:
            msgspec.json.decode(arguments)
        except JSON_ERRORS as error:
            raise ConfigError(f"the arguments are not valid JSON: {error}; nothing was decided") from None
    return gateway.decide(call, {"approved": True, "text": arguments})


@approvals.command("deny", examples=("streamglot approvals deny 06605008 'not on a Friday'",))
@click.argument("id", type=text)
@click.argument("message", type=text, required=False)
@WHERE
def approvals_deny(id: str, message: str | None, url: str, key: str) -> int:
    """Refuse the call with this ID. The client gets MESSAGE instead of the call."""
    gateway = _Gateway(url, key)
    return gateway.decide(gateway.find(id), {"approved": False, **({"message": message} if message else {})})


class _Gateway:
    """The approvals API of a running gateway."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url.rstrip("/") or local_address(load().config.server)
        if not self._url.startswith(("http://", "https://")):
            raise ConfigError(f"--url is {excerpt(self._url)}; it must begin with http:// or https://")
        self._key = key

    def open(self) -> list[JsonObject]:
        """The open approvals."""
        found = self._ask("/approvals")["approvals"]
        return [one for one in found if isinstance(one, dict)]

    def find(self, id: str) -> JsonObject:
        """The open approval with this id, or the only one whose id begins with it."""
        if not id:
            raise ConfigError("the id is empty; `streamglot approvals list` shows the ids of the open approvals")
        waiting = self.open()
        found = [one for one in waiting if one.get("id") == id] or [one for one in waiting if str(one.get("id")).startswith(id)]
        if not found:
            raise RequestError(f"there is no open approval {excerpt(id)}; `streamglot approvals list` shows the open ones")
        if len(found) > 1:
            raise RequestError(f"the ids of {len(found)} open approvals begin with {excerpt(id)}; give more of the id")
        return found[0]

    def decide(self, call: JsonObject, decision: JsonObject) -> int:
        answer = self._ask(f"/approvals/{call['id']}", {**decision, "by": _user()})
        if answer.get("taken") is False:
            print("the process that holds the call has not taken the decision yet; it may be busy", file=sys.stderr)
        print(f"{call['id']}: {'approved' if decision['approved'] else 'denied'}", file=sys.stderr)
        return 0

    def _ask(self, path: str, body: JsonObject | None = None) -> JsonObject:
        headers = {"content-type": "application/json", **({"authorization": f"Bearer {self._key}"} if self._key else {})}
        data = None if body is None else msgspec.json.encode(body)
        on_this_machine = urlsplit(self._url).hostname in ("127.0.0.1", "::1", "localhost")
        opener = build_opener(*([ProxyHandler({})] if on_this_machine else []))  # a proxy would connect to its own loopback
        try:
            with opener.open(Request(self._url + path, data, headers), timeout=SECONDS) as answer:
                return _object(answer.read(MAX_ANSWER_BYTES), self._url)
        except HTTPError as error:
            raise RequestError(f"the gateway at {self._url} refused: {_message(error.read(MAX_ANSWER_BYTES))}") from None
        except (URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise RequestError(
                f"no gateway answers at {self._url}: {reason}; start one with `streamglot serve`, or name it with --url"
            ) from None


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except JSON_ERRORS:
        return False


def _object(body: bytes, url: str) -> JsonObject:
    try:
        found = msgspec.json.decode(body)
    except JSON_ERRORS:
        found = None
    if not isinstance(found, dict):
        raise RequestError(
            f"the server at {url} is not a streamglot gateway: it answered {excerpt(body)}; name the gateway with --url"
        )
    return found


def _message(body: bytes) -> str:
    """The message of the gateway's error."""
    try:
        error = msgspec.json.decode(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (*JSON_ERRORS, KeyError, TypeError):
        return excerpt(body)


def _user() -> str:
    """The name of the user who decides, for the record."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return ""
