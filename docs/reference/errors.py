"""docs/errors.md: the tree of errors, and every code with its cause and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import streamglot
from streamglot import StreamglotError, errors
from streamglot.limits import Limits

from .words import NOTE, cell

SOURCES = Path(streamglot.__file__).parent
IN_CODE = re.compile(
    r'\bcode(?:: str)? ?= ?"([a-z_]+)"|(?:ProtocolError|error_reply)\(\s*\d{3}, "([a-z_]+)"|_refused\([^)]*, "([a-z_]+)"'
)

KINDS = {
    "StreamglotError": "The root: catch it to catch all errors of streamglot.",
    "ConfigError": "A setting is wrong. The message names the setting.",
    "RequestError": "The client's request is wrong. Correct it; the same request fails again.",
    "Unsupported": "The chosen upstream does not support a part of the request. Remove that part, or choose another upstream.",
    "LimitExceeded": "A named limit was exceeded. Raise it if you expect an answer of that size.",
    "PolicyRefused": "A policy refused the request or the answer.",
    "GrammarError": "Events are out of order. In your own code, feed the start of a block before its deltas. Otherwise it is a bug of streamglot.",
    "UpstreamError": "An upstream failed. `retryable` is true if the same request may succeed later.",
    "UpstreamRefused": "The upstream answered with an error status, or with an error object inside a 200. `retry_after` has the seconds to wait.",
    "UpstreamProtocolError": "The upstream violated its dialect. Record the stream with `streamglot probe` and report it.",
    "ToolCallParseError": "The model wrote a tool call that cannot be parsed. Send the request again, or set `bad_call`.",
    "UpstreamTruncated": "The stream was truncated. The partial answer is kept. Send the request again.",
    "UpstreamTimeout": "The upstream took longer than its `timeouts` allow.",
}
CODES = {
    "bad_framing": (
        "The body of the request has contradictory or broken lengths.",
        "Correct the client, or the proxy in front of the gateway.",
    ),
    "bad_host": ("A request has no `Host`, or several.", "Send exactly one `Host` header."),
    "bad_target": ("The target of the request line is invalid.", "Correct it."),
    "bad_version": ("The request is not HTTP/1.0 or HTTP/1.1.", "Use one of them."),
    "cut_off": ("The connection ended inside a request.", "Send it again."),
    "missing_api_key": ("Keys are required, and the request has none.", "Send `Authorization: Bearer KEY`."),
    "no_proxy": ("The request is for a proxy to another host.", "Send a path of the gateway."),
    "not_http": ("The bytes are not an HTTP request.", "Use `http://`; TLS needs a proxy in front of the gateway."),
    "unsupported_encoding": (
        "The body has a `content-encoding` that cannot be read here.",
        "Send it plain, or with one that the message lists.",
    ),
    "upgrade_not_supported": ("This address does not accept WebSockets.", "Use HTTP."),
    "already_decided": ("The call was already decided.", "Nothing: the first decision counts."),
    "bad_candidate_index": ("An answer of the upstream has an invalid index.", "Report it to the upstream."),
    "bad_checksum": ("The checksum of a binary frame is wrong.", "Send the request again; look for a proxy that changes bodies."),
    "bad_encoding": ("The body is not what its `content-encoding` says.", "Send it plain, or compress it again."),
    "bad_frame": ("A binary frame is not well-formed.", "Report it to the upstream."),
    "bad_json_path": ("A piece of arguments has an invalid path.", "Report it to the upstream."),
    "batch_ended": ("The batch has ended and cannot be changed.", "Create a new batch."),
    "batch_failed": ("A batch could not be sent.", "The message has the reason; send it again."),
    "batch_id_reused": ("The `batch_id` belongs to other requests.", "Choose a new one."),
    "batch_runs": ("The batch is still running.", "Wait until it ends, or cancel it."),
    "batch_stopped": ("The batch was stopped before its end.", "Send it again with the same `batch_id`."),
    "batch_too_large": ("The batch has more requests than `server.batch_items`.", "Send several batches."),
    "batches_disabled": ("There is no store, or `batches.enabled` is off.", "Set `store.url`."),
    "body_too_large": ("The body is larger than `server.max_body_bytes`.", "Raise it, or send less."),
    "body_too_slow": ("The body did not arrive within `server.body_seconds`.", "Send it faster."),
    "budget_exceeded": ("The key has used up its budget.", "Wait until its period ends, or raise the budget."),
    "budget_reserved": ("Running requests have reserved the rest of the budget.", "Try again when they have ended."),
    "cancelled_by_operator": (
        "The operator stopped the request; its answer is not complete.",
        "Ask the operator, or send the request again.",
    ),
    "cancelled": ("The exchange was stopped.", "Nothing: it was stopped on request."),
    "captured": ("A recording ended the request on purpose.", "Nothing."),
    "circuit_open": (
        "Requests for this model of the upstream, or connections to it, failed several times in a row: its circuit breaker is open.",
        "Wait as long as `retry-after` says, or give the route a fallback. The message repeats the last failure.",
    ),
    "client_gone": ("The client disconnected before the end of its stream.", "Send the request again, or use `keep`."),
    "config_error": ("A setting is wrong.", "The message names it; `streamglot config show` shows its source."),
    "content_not_kept": ("The content of the turn is not in the store.", "Set `store.content`."),
    "conversation_locked": ("The conversation is being answered.", "Wait for that answer."),
    "file_missing": ("The contents of a file are not in the file storage.", "Upload the file again."),
    "file_quota_exceeded": (
        "The uploaded files of this key would have more bytes together than `batches.max_key_bytes`.",
        "Delete files with DELETE /v1/files/ID, or ask the operator for more.",
    ),
    "file_storage_busy": ("Too many large files are being uploaded to one process.", "Upload the file again in a minute."),
    "file_storage_failed": (
        "The storage of uploaded files cannot be used: a full disk, a bucket that does not answer, wrong credentials.",
        "The log has `file_storage_failing`; check `batches.directory`.",
    ),
    "framing_too_large": ("Chunk extensions or trailers of the body are too large.", "Send a plain body."),
    "grammar_error": ("Events are out of order.", "See `GrammarError` above."),
    "headers_too_large": (
        "The headers of the request are too large.",
        "Send fewer or shorter headers; browsers may add cookies of other programs on the same host.",
    ),
    "headers_too_slow": ("The headers did not arrive in time.", "Send them at once."),
    "host_not_allowed": (
        "The `Host` is not a name of this machine, and the gateway has no keys.",
        "List it in `server.allowed_hosts`.",
    ),
    "incomplete_output": (
        "The answer ended before its JSON was complete.",
        "Allow more tokens, or send the request again; read the stream to its end.",
    ),
    "internal_error": ("A fault of the gateway.", "Search its log for the request id, and report the fault."),
    "invalid_api_key": ("The key is unknown.", "`streamglot keys list` shows the valid keys."),
    "invalid_arguments": (
        "Arguments of a tool do not match its schema.",
        "The message names the fault; models usually correct it themselves.",
    ),
    "invalid_form": ("An upload is not a form with `file` and `purpose`.", "Send `multipart/form-data`."),
    "invalid_header": ("A header has a character that cannot be passed on.", "Correct it."),
    "invalid_model": ("The name of the model is too long or not printable.", "Correct it."),
    "invalid_name": ("A name cannot be part of an upstream's address.", "Use the name of a model."),
    "invalid_output": (
        "The answer does not match the requested type or schema.",
        "Send the request again, or use a model that supports JSON schemas.",
    ),
    "invalid_request": ("The request is wrong.", "The message names the field."),
    "invalid_row": ("A row of a file cannot be used.", "The message has the reason; correct the row."),
    "item_not_found": ("There is no such item of the response.", "List its items first."),
    "limit_exceeded": ("A limit was exceeded.", "The message names it."),
    "limit_open_approvals": ("Too many calls wait for an approval.", "Decide some of them: `streamglot approvals list`."),
    "limit_policy_held_chars": (
        "A policy had to hold more than its limit.",
        "Raise the limit, or use a policy that needs smaller units.",
    ),
    "local_failed": ("The local model could not be started.", "`streamglot doctor` shows the reason."),
    "model_not_allowed": ("The key may not use this model.", "Use another, or give the key a pattern for it."),
    "model_not_found": ("No upstream serves this model.", "`streamglot models` lists the available models."),
    "no_content": ("The content of this turn is not stored.", "Set `store.content`."),
    "no_raw": ("No raw bytes of this turn are stored.", "Set `store.raw` for future turns."),
    "no_result": ("The answer to a batch has no result for this request.", "Send it again."),
    "no_such_event": ("The stream has fewer events than the number to resume after.", "Resume after an earlier one."),
    "no_valid_key": ("Keys are required, and there is none.", "`streamglot keys add NAME`."),
    "not_found": ("There is no object with this id.", "It was decided, removed, or belongs to another key."),
    "not_json": ("A body or a frame is not JSON.", "Correct it; if an upstream sent it, inspect it with `streamglot probe`."),
    "origin_not_allowed": ("The request comes from a web page of another site.", "List its origin in `server.origins`."),
    "piece_after_end": ("The upstream sent more of a block that had ended.", "Report it to the upstream."),
    "policy_refused": ("A policy refused the request or the answer.", "The policy wrote the message."),
    "previous_response_not_complete": ("The answer to continue has not ended.", "Wait for its end."),
    "previous_response_not_found": ("The answer to continue is not stored.", "Send the whole conversation."),
    "rate_limit_exceeded": (
        "The key has started too many requests, or used too many tokens, in a minute.",
        "Wait for the seconds in `Retry-After`.",
    ),
    "request_too_large": ("A request of a batch is larger than `server.max_body_bytes`.", "Make it smaller."),
    "response_not_found": ("There is no such response.", "It was deleted, not stored, or belongs to another key."),
    "second_message": ("A second answer began inside the first.", "Look for a proxy that mixes streams."),
    "session_busy": ("The session is being answered.", "Wait for that answer, or stop it."),
    "shutting_down": ("The gateway is stopping.", "Try again: another worker, or the gateway after its restart, answers."),
    "store_off": ("The gateway has no store.", "Set `store.url`."),
    "store_unavailable": ("The database does not answer.", "`/ready` and `streamglot doctor` show the reason."),
    "stream_incomplete": ("A part of the stream is no longer stored.", "Send the request again."),
    "stream_lost": ("The process that wrote the stream ended before the stream.", "Send the request again."),
    "stream_not_found": ("There is no such stream.", "It is too old, or belongs to another key."),
    "too_many_connections": (
        "All connections are taken.",
        "Try again; close unused connections; raise `server.max_connections`.",
    ),
    "too_many_streams": (
        "The `concurrent` limit of the gateway, of the upstream or of the key is reached.",
        "Try again; raise `concurrent`.",
    ),
    "too_many_watchers": ("Too many pages watch the gateway.", "Close some of them."),
    "tool_call_parse_error": ("The model wrote a tool call that cannot be parsed.", "Send the request again, or set `bad_call`."),
    "tool_call_without_name": (
        "A tool call has no name.",
        "Report it to the upstream; with a local server, check its chat template.",
    ),
    "tool_error": ("A tool failed.", "The tool wrote the message."),
    "tool_not_allowed": ("The key may not use this tool.", "Add a glob for it to the `tools` of the key."),
    "tool_not_found": ("There is no such tool, or it is not enabled.", "`streamglot tools list --all`."),
    "tool_timeout": ("A tool took longer than `tools.limits.seconds`.", "Raise it, or make the tool faster."),
    "unknown_dialect": ("There is no dialect of this name.", "The message lists them."),
    "unknown_message": ("A message of a WebSocket has an unknown type.", "Send `response.create`."),
    "unknown_url": ("There is nothing at this address.", "`/` lists the addresses."),
    "unsupported": ("The upstream does not support this.", "Remove the field, or choose another upstream."),
    "upstream_empty": ("The upstream answered with a 200 and no content.", "Send the request again; check the server's log."),
    "upstream_error": ("The upstream failed.", "The message repeats the upstream's message."),
    "upstream_protocol_error": ("The upstream violated its dialect.", "`streamglot probe URL -m MODEL` shows the violation."),
    "upstream_refused": (
        "The upstream refused the request.",
        "The message repeats the upstream's message: a key, a quota, a parameter.",
    ),
    "upstream_timeout": ("The upstream was too slow.", "Raise its `timeouts`, or check its load."),
    "upstream_truncated": ("The stream was truncated.", "Send the request again. The partial answer is kept."),
    "upstream_unreachable": ("No connection to the upstream.", "Check that it runs and that `base_url` is correct."),
}
"""The cause of each code, and the next step. Only those that the code knows are written."""


def errors_page() -> str:
    lines = [
        "# Errors",
        "",
        NOTE,
        "All errors form one tree. Before the answer begins, a program gets an exception, and an HTTP client gets a status with a body in its own dialect.",
        "Inside a stream the error is the last event, a `StreamError`, and everything before it is kept. An error has a `code`, a `message` that names",
        "the rule, the offending piece and the next step, the `status`, and `retryable`.",
        "",
        "```python",
        "import streamglot",
        "",
        "try:",
        '    streamglot.reader("morse")',
        "except streamglot.ConfigError as error:",
        "    print(error.code, error.message)",
        "",
        'reader = streamglot.reader("openai_chat")',
        'events = reader.feed(b\'data: {"choices": [{"delta": {"content": "Hel"}}]}\\n\\n\') + reader.close()',
        'assert isinstance(events[-1], streamglot.StreamError) and events[-1].code == "upstream_truncated"',
        "```",
        "",
        "## The tree",
        "",
        "| class | status | code | retryable | meaning |",
        "|---|---:|---|---|---|",
    ]
    for kind, depth in _tree(StreamglotError, 0):
        lines.append(
            f"| {'&nbsp;' * 4 * depth}`{kind.__name__}` | {kind.status} | `{kind.code}` | {'yes' if kind.retryable else 'no'} "
            f"| {cell(KINDS.get(kind.__name__, ''))} |"
        )
    lines += ["", "## Codes", "", "| code | cause | what to do |", "|---|---|---|"]
    lines += [f"| `{code}` | {CODES[code][0]} | {CODES[code][1]} |" for code in sorted(known_codes() & set(CODES))]
    lines += [
        "",
        "## Limits of a stream",
        "",
        "Each limit of a stream has a code of its own; [limits](limits.md) has the reasons:",
        "",
        ", ".join(f"`limit_{name}`" for name in Limits.__struct_fields__) + ".",
    ]
    return "\n".join([*lines, ""])


def _tree(kind: type[StreamglotError], depth: int) -> Iterator[tuple[type[StreamglotError], int]]:
    yield kind, depth
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _tree(below, depth + 1)


def known_codes() -> set[str]:
    """The codes in the source."""
    found = (IN_CODE.findall(path.read_text()) for path in SOURCES.rglob("*.py"))
    return {code for codes in found for groups in codes for code in groups if code} | {"batch_id_reused", "client_gone"}


def undescribed() -> list[str]:
    """Codes without a cause, and classes without a meaning."""
    kinds = {kind.__name__ for kind, _ in _tree(StreamglotError, 0)}
    return sorted((known_codes() - set(CODES)) | (kinds - set(KINDS)))
