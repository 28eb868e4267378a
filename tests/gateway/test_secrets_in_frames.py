"""A Bedrock upstream that repeats its own key inside a frame: the frame stays valid, and nobody gets the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.conftest import LONG_TIMEOUTS
from gateway.dialect_clients import body_of
from gateway.running import running
from gateway.stored_turns import kept
from gateway.upstream import HostileUpstream, streamed
from recordings import framed
from streamglot.framing import AwsEventStream
from streamglot.upstream.secrets import MEDIA_TYPE, FrameMask, SecretMask, mask_for

KEY = "ABSKzq9f8e7d6c5b4a0123456789"
TEXT = f"my key is {KEY}, yes"
CONVERSE: list[dict[str, Any]] = [
    {"messageStart": {"role": "assistant"}},
    {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": TEXT}}},
    {"contentBlockStop": {"contentBlockIndex": 0}},
    {"messageStop": {"stopReason": "end_turn"}},
]
INVOKE: list[dict[str, Any]] = [
    {"chunk": {"type": "message_start", "message": {"id": "x", "role": "assistant", "content": [], "model": "m", "usage": {}}}},
    {"chunk": {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}},
    {"chunk": {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}}},
    {"chunk": {"type": "content_block_stop", "index": 0}},
    {"chunk": {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}},
    {"chunk": {"type": "message_stop"}},
]
BODIES = {
    name: framed("\n".join(map(json.dumps, events)))
    for name, events in (("bedrock_converse", CONVERSE), ("bedrock_invoke", INVOKE))
}


def masked(pieces: list[bytes]) -> bytes:
    mask = FrameMask([KEY])
    return b"".join(map(mask.feed, pieces)) + mask.close()


@pytest.mark.parametrize("dialect", sorted(BODIES))
def test_a_client_gets_the_answer_without_the_key(upstream: HostileUpstream, tmp_path: Path, dialect: str) -> None:
    model, url = f"anthropic.masked-{dialect}", f"sqlite:///{tmp_path}/kept.db"
    upstream.scripts[model] = streamed(BODIES[dialect][:200], BODIES[dialect][200:], media_type=MEDIA_TYPE)
    place = {"dialect": dialect, "base_url": upstream.url, "attempts": 1, "key": KEY, "timeouts": LONG_TIMEOUTS}
    with running({"upstreams": {"up": place}, "store": {"url": url, "raw": True}}) as gateway:
        answer = gateway.ask("/v1/chat/completions", body_of("openai_chat", f"up/{model}"))
        assert answer.status == 200
        assert f"my key is {'*' * len(KEY)}, yes".encode() in answer.body
        [turn] = kept(url)
        raw = gateway.ask(f"/turns/{turn.id}/raw?format=bytes").body
    assert masked([BODIES[dialect]]) in raw


@pytest.mark.parametrize("dialect", sorted(BODIES))
def test_frames_are_valid_however_the_network_cuts_them(dialect: str) -> None:
    body = BODIES[dialect]
    whole = masked([body])
    assert masked([bytes((one,)) for one in body]) == whole
    framing = AwsEventStream()
    assert len(framing.feed(whole)) == len(AwsEventStream().feed(body))
    assert framing.error is None
    assert len(whole) == len(body)
    assert whole != body


def test_frames_without_a_secret_are_not_changed() -> None:
    body = BODIES["bedrock_invoke"]
    mask = FrameMask(["another-secret-0123456789"])
    assert mask.feed(body) + mask.close() == body
    assert FrameMask([]).feed(body) == body


def test_a_wrong_checksum_stays_wrong() -> None:
    body = BODIES["bedrock_converse"]
    place = body.index(b"my key")
    framing = AwsEventStream()
    framing.feed(masked([body[:place] + b"MY" + body[place + 2 :]]))
    assert framing.error is not None
    assert framing.error.code == "bad_checksum"


@pytest.mark.parametrize("dialect", sorted(BODIES))
def test_a_frame_that_is_cut_shows_no_secret(dialect: str) -> None:
    body = BODIES[dialect]
    place = next(place for place, (one, other) in enumerate(zip(body, masked([body]), strict=True)) if one != other)
    for cut in range(place + 2 * len(KEY), place + 2 * len(KEY) + 4):
        assert masked([body[:cut]])[place:cut] != body[place:cut]


def test_bytes_that_are_no_frames_are_masked_as_text() -> None:
    mask = FrameMask([KEY])
    text = f'{{"text": "{KEY}"}}'.encode()
    assert b"".join(map(mask.feed, (text[:3], text[3:20], text[20:]))) + mask.close() == text.replace(
        KEY.encode(), b"*" * len(KEY)
    )
    assert chr(mask.mark) in KEY


def test_the_media_type_chooses_the_mask() -> None:
    assert type(mask_for([KEY], {"content-type": f"{MEDIA_TYPE}; charset=x"})) is FrameMask
    assert type(mask_for([KEY], {"content-type": "text/event-stream"})) is SecretMask
    assert type(mask_for([KEY], {})) is SecretMask
