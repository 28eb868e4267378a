"""The formats by name, and which model uses which: patterns of model names; the first match wins.

A name is compared in lower case without the provider before the last slash. ``starts`` says whether the chat template of these
models writes the opening tag of the reasoning, if that differs from the format's default.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from msgspec import Struct, structs

from ..errors import ConfigError, did_you_mean, excerpt
from ..names import FormatName
from ..plugins import Plugins
from .engines.json_calls import JsonCalls
from .format import COMMON, Format, Think


def _rows() -> dict[str, Format]:
    from .formats import ROWS  # 7 ms, for programs that read no calls out of text

    return ROWS


FORMATS: Final = Plugins("format", Format, _rows)
"""The formats by name: ours, and those of installed packages."""


class Profile(Struct, frozen=True):
    """``tags``: these models also write the other common tags of reasoning."""

    pattern: str
    format: str
    starts: bool | None = None
    tags: bool = False


class OwnMarkers(Struct, frozen=True, forbid_unknown_fields=True):
    """Markers of your own model, as pairs of what stands before and after. They count in addition to those of its notation.

    - ``thinking``: what stands around its reasoning.
    - ``calls``: what stands around the JSON of a tool call.
    """

    thinking: tuple[tuple[str, str], ...] = ()
    calls: tuple[tuple[str, str], ...] = ()


PROFILES = tuple(
    Profile(*row)
    for row in (
        ("*deepseek*v4*", "deepseek_v4"),
        ("*deepseek*v3.2*", "deepseek_v32"),
        ("*deepseek*v3.1*", "deepseek_v31"),
        ("*deepseek-r1*", "deepseek_r1_tools", True, True),
        ("*deepseek*v3*", "deepseek_v3"),
        ("*deepseek*", "deepseek_v31", False),
        ("*qwq*", "hermes", True, True),
        ("*qwen2.5-coder*", "hermes_loose"),
        ("*qwen3*coder*", "qwen3_coder", False),
        ("*qwen3.5*", "qwen3_coder"),
        ("*qwen3.6*", "qwen3_coder"),
        ("*qwen3*thinking*", "hermes", True),
        ("*qwen3*", "hermes", False),
        ("*qwen*", "hermes", False),
        ("*mimo-vl*", "hermes"),
        ("*mimo*", "qwen3_coder"),
        ("*hermes*", "hermes"),
        ("*nemotron*nano*v2*", "nemotron_nano_v2"),
        ("*nemotron*3*", "nemotron_v3"),
        ("ministral-*-reasoning*", "mistral"),
        ("*magistral*", "mistral"),
        ("*ministral*", "mistral"),
        ("*mistral*", "mistral"),
        ("*mixtral*", "mistral"),
        ("*devstral*", "mistral"),
        ("*codestral*", "mistral"),
        ("*llama-4*", "llama4_pythonic"),
        ("*llama4*", "llama4_pythonic"),
        ("*functionary*v3.2*", "functionary_v32"),
        ("*functionary*", "functionary_v31"),
        ("*firefunction*", "firefunction_v2"),
        ("*toolace*", "pythonic"),
        ("*llama-3*", "llama3_json"),
        ("*llama3*", "llama3_json"),
        ("*kimi-vl*", "kimi_vl_think"),
        ("*kimi-k3*", "kimi_k3", True),
        ("*kimi*thinking*", "kimi_k2", True),
        ("*kimi*k2.[5-9]*", "kimi_k2", True),
        ("*kimi*", "kimi_k2"),
        ("*glm-4*", "glm4x"),
        ("*glm*", "glm4x"),
        ("*minimax*m3*", "minimax_m3"),
        ("*minimax*", "minimax_m2"),
        ("*functiongemma*", "functiongemma"),
        ("*gemma-4*", "gemma4"),
        ("*gemma4*", "gemma4"),
        ("*gemma*", "generic_json"),
        ("*granite-4*", "granite4"),
        ("*granite*20b*function*", "granite_20b_fc"),
        ("*granite*", "granite"),
        ("*seed-oss*", "seed_oss"),
        ("*step-3.5*", "step3p5"),
        ("*step3p5*", "step3p5"),
        ("*step3*", "step3"),
        ("*step-3*", "step3"),
        ("*lfm2*", "lfm2"),
        ("*command-r-plus*", "cohere_command_r_plus"),
        ("*command-a*", "cohere_command3"),
        ("*command-r7b*", "cohere_command3"),
        ("*cohere*", "cohere_command4"),
        ("*gpt-oss*", "harmony"),
        ("*olmo*3*think*", "olmo3", True),
        ("*olmo-3*", "olmo3"),
        ("*olmo3*", "olmo3"),
        ("*apertus*", "apertus"),
        ("*xlam*", "xlam"),
        ("*jamba*", "jamba"),
        ("*ernie*", "ernie45"),
        ("*phi-4-mini*", "phi4_mini"),
        ("*hunyuan*a13b*", "hunyuan_a13b"),
        ("*hy3*", "hy_v3"),
        ("*hunyuan*", "hy_v3"),
        ("*gigachat*", "gigachat3"),
        ("*longcat*", "longcat"),
        ("*inkling*", "inkling"),
        ("*muse*", "muse_glimmer"),
        ("*internlm*", "internlm2"),
        ("*intern-s1*", "internlm2"),
        ("*minicpm5*", "minicpm5"),
        ("*dots*llm*", "dots"),
        ("*apriel*1.6*", "apriel", True),
        ("*apriel*", "apriel"),
        ("*reka*", "reka_edge"),
        ("*ling-3*", "ling3"),
        ("*ling3*", "ling3"),
        ("*laguna*", "poolside_v1"),
        ("*poolside*", "poolside_v1"),
        ("*reasoning*", "think_generic"),
        ("*thinking*", "think_generic"),
    )
)


def format_for_model(model: str) -> Format | None:
    """The row for a model name; None if no pattern matches."""
    name = model.lower().rsplit("/", 1)[-1].split("@", 1)[0]
    for profile in PROFILES:
        if fnmatchcase(name, profile.pattern):
            return _row(profile)
    return None


@lru_cache(len(PROFILES))
def _row(profile: Profile) -> Format:
    row = FORMATS[profile.format]
    think = row.think if not profile.tags else structs.replace(COMMON, prefilled=row.think.prefilled)
    if profile.starts is not None:
        think = structs.replace(think, starts=profile.starts)
    return row if think == row.think else structs.replace(row, think=think)


def with_markers(row: Format | None, own: OwnMarkers) -> Format | None:
    """The row with these markers. None stands for a model without a notation."""
    if own == OwnMarkers():
        return row
    base = row or Format("own", "", (), Think((), ()))
    before, behind = tuple(pair[0] for pair in own.thinking), tuple(pair[1] for pair in own.thinking)
    think = structs.replace(base.think, openers=(*base.think.openers, *before), closers=(*base.think.closers, *behind))
    return structs.replace(
        base, engines=(*base.engines, *(JsonCalls(opener, end=(closer,)) for opener, closer in own.calls)), think=think
    )


def find_format(format: FormatName | str | Format, model: str = "") -> Format:
    """The row of this name. ``auto`` uses the model's name, and means ``none`` if no pattern matches. A named row starts as the
    model's profile says, because one notation serves models with and without reasoning."""
    if isinstance(format, Format):
        return format
    if format == "auto":
        return format_for_model(model) or FORMATS["none"]
    row = FORMATS.get(format)
    if row is None:
        raise ConfigError(
            f"there is no in-band format {excerpt(format)}{did_you_mean(format, FORMATS)}; formats: {', '.join(sorted(FORMATS))}"
        )
    known = format_for_model(model) if model else None
    return known if known is not None and known.name == row.name else row
