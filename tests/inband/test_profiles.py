"""Which model uses which format."""

from __future__ import annotations

import pytest

from inband.readings import put_together
from streamglot.errors import ConfigError
from streamglot.inband import FORMATS, PROFILES, find_format, format_for_model, inband, parse_text


def test_the_newer_apriel_begins_in_its_thinking() -> None:
    assert find_format("auto", "ServiceNow-AI/Apriel-1.6-15b-Thinker").think.starts
    assert not find_format("auto", "Apriel-1.5-15b-Thinker").think.starts


def test_every_profile_names_a_row_and_can_be_reached() -> None:
    assert {profile.format for profile in PROFILES} <= set(FORMATS)
    assert len({profile.pattern for profile in PROFILES}) == len(PROFILES)


@pytest.mark.parametrize(
    ("model", "format"),
    [
        ("deepseek-r1-distill-qwen-32b", "deepseek_r1_tools"),
        ("deepseek-ai/DeepSeek-R1", "deepseek_r1_tools"),
        ("Qwen/QwQ-32B", "hermes"),
        ("qwen2.5-7b-instruct", "hermes"),
        ("Qwen3-Coder-480B", "qwen3_coder"),
        ("ministral-3-14b-reasoning", "mistral"),
        ("openai/gpt-oss-120b", "harmony"),
        ("some-thinking-model", "think_generic"),
        ("my-reasoning-7b", "think_generic"),
        ("zai-org/GLM-4.6", "glm4x"),
    ],
)
def test_models_find_their_format(model: str, format: str) -> None:
    row = format_for_model(model)
    assert row is not None
    assert row.name == format
    assert inband("auto", model=model).format.name == format


def test_a_coder_without_thinking_starts_in_its_text() -> None:
    assert put_together(parse_text("Hello", "auto", model="qwen3-coder"))["text"] == "Hello"
    assert format_for_model("gpt-4o") is None
    assert inband("auto", model="gpt-4o").format.name == "none"
    with pytest.raises(ConfigError, match="no in-band format"):
        inband("nonsense")
