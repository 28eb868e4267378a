"""The content of each notation: its own markup, and the few strings that no reader can distinguish from it."""

from __future__ import annotations

import json
import re

from streamglot.inband import FORMATS
from streamglot.inband.engines import WrittenCall

PROSE = {
    "harmony": ("<|channel|>commentary<|message|>{}<|end|>", "<|start|>assistant<|channel|>final<|message|>{}<|return|>"),
    "muse_glimmer": ("<|start|>assistant to=user<|message|>{}<|eom|>", "<|start|>assistant to=user<|message|>{}<|eot|>"),
    "functionary_v32": ("all\n{}", ">>>all\n{}"),
}
"""How text before and after the calls is written if the notation has a header for it."""

CALLS = {"muse_glimmer": "<|start|>assistant to=tools<|message|>{}<|eom|>"}
"""The text around the calls, if their engine writes only a part of it."""

TAGS = """
qwen3_coder nemotron_v3 step3p5 qwen3_think seed_oss minimax_m2 dots step3 deepseek_v32 deepseek_v4 muse_glimmer
""".split()
"""Notations with raw values between tags."""

PAIRS = ("glm4x", "ling3", "poolside_v1", "hy_v3", "longcat")
"""Notations with a key tag and a value tag."""

TRIMMED = ("qwen3_coder", "nemotron_v3", "step3p5", "qwen3_think")
"""Notations with values on lines of their own."""

_VALUE = "§"
_TAG = re.compile(r"<[^<>]+>")
_M3 = re.escape("]<]minimax[>[")


def markup(format: str) -> list[str]:
    """The markers of the format: inside a string they are only text."""
    row = FORMATS[format]
    words = [word for engine in row.engines for word in (*engine.openers, *engine.closers)]
    return sorted({*words, *row.think.openers, *row.think.closers, *row.drop, "<eos>"})


def markup_in(format: str, tool: str, key: str) -> list[str]:
    """The same, with everything that surrounds the value of this parameter."""
    before, behind = _around(format, tool, key)
    return [*markup(format), *_TAG.findall(before + behind), before, behind, f"</{key}>", "<![CDATA[", "]]>"]


def _around(format: str, tool: str, key: str) -> tuple[str, str]:
    before, _, behind = (
        FORMATS[format].write([WrittenCall(tool, json.dumps({key: _VALUE}, ensure_ascii=False))]).partition(_VALUE)
    )
    return before, behind


def ambiguous(format: str, tool: str, key: str) -> str:
    """A pattern of the strings that a value cannot contain; "" if it can contain everything, because the notation has escapes
    (JSON, Python) or CDATA sections (minicpm5)."""
    if format in TAGS or format in PAIRS:
        return _between_tags(format, tool, key)
    return {
        # the end tag of the parameter, with another tag behind it; or the end of the call, with what may follow a call
        "minimax_m3": rf"{_M3}</[a-z0-9_]+>\s*(?:{_M3}<|$)",
        # the end tag of the parameter, with another tag behind it; the end tag of the tool ends a parameter that has none
        "tool_tags": rf"</{key}>\s*(?:<|$)|</{tool}>",
        # the end of an argument or of a call, with what may follow it
        "kimi_k3": r"<\|close\|>argument<\|sep\|>\s*<\|(?:open\|>|close\|>call|close\|>tools)"
        r"|<\|close\|>call<\|sep\|>\s*<\|(?:open\|>call|close\|>tools)",
        # the quote, with something behind it that may follow a string, or with the next key
        "gemma4": r'<\|"\|>\s*(?:[,}\]]|<tool_call\|>|\w+\s*:)',
        "functiongemma": r"<escape>\s*(?:[,}\]]|<end_function_call>|\w+\s*:)",
    }.get(format, "")


def _between_tags(format: str, tool: str, key: str) -> str:
    before, behind = _around(format, tool, key)
    named = rf'"?(?:{tool}|{key})"?(?: string="true")?>$'
    *outer, parameter = [re.escape(re.sub(named, "", tag)) for tag in _TAG.findall(before)][: -2 if format in PAIRS else None]
    outer = [tag for tag in outer if tag != "<tool_sep>"]
    end, *ends = map(re.escape, _TAG.findall(behind))
    own = rf"(?!{key}</)" if format in PAIRS else rf'(?!"?{key}"?[ >])'
    if format == "step3p5":
        outer, parameter = [*outer, "<function name="], f"{parameter}|<parameter name="
    return "|".join(
        [
            # the end of a value, with what may follow it
            rf"{end}\s*(?:{'|'.join([*ends, *outer, parameter])})",
            # another parameter on a line of its own: models forget the end of a value
            rf"\n(?:{parameter}){own}",
            # the end of the call or of all calls, with what may follow it: they forget that of the last value too
            rf"(?:{'|'.join(ends)})\s*(?:{'|'.join([*ends[1:], *outer])})",
            # models write line ends as escapes between the tags
            *([rf"{end}\s*\\n"] if format in PAIRS else ()),
            # one line end on each side belongs to the tags, be it the one of another system
            *([rf"^(?:{parameter}){own}", r"\r$"] if format in TRIMMED else ()),
        ]
    )
