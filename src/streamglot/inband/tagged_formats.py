"""The rows of FORMATS with calls in tags, channels or object notations, and those with reasoning only."""

from __future__ import annotations

from typing import Literal

from .engines.brace_calls import BraceCalls
from .engines.channels import Channels, RenderedChannels, TokenElements, Verbatim
from .engines.tag_calls import NestedTags, ToolTags
from .engines.xml_calls import XmlCalls
from .format import Format
from .think import HYBRID, NO_THINKING, PREFILLED, Think


def _tagged(
    section: str, call: str, parameter: str, trim: bool = False, json: bool = False, loose: bool = True, named: bool = False
) -> XmlCalls:
    """``<section><call=f><parameter=a>v</parameter></call></section>``. ``named``: ``<call name="f">`` is the same."""
    return XmlCalls(
        (f"<{section}>",),
        (f"</{section}>",),
        (f"<{call}", f"<{call[:-1]} name=") if named else (f"<{call}",),
        (f"</{call.rstrip('=').removesuffix(' name')}>",),
        (f"<{parameter}", f"<{parameter[:-1]} name=") if named else (f"<{parameter}",),
        f"</{parameter.rstrip('=').removesuffix(' name')}>",
        in_reasoning="call",
        trim=trim,
        json_calls=json,
        loose=loose,
    )


def pairs(
    call: str, prefix: str = "", section: str = "", suffix: str = "", reasoning: Literal["no", "call", "marker"] = "marker"
) -> XmlCalls:
    """``<call>f<arg_key>a</arg_key><arg_value>v</arg_value></call>``. ``suffix``: the end of every tag."""
    return XmlCalls(
        (f"<{section}{suffix}>",) if section else (),
        (f"</{section}{suffix}>",) if section else (),
        (f"<{call}{suffix}>",),
        (f"</{call}{suffix}>",),
        (f"<{prefix}arg_key{suffix}>",),
        f"</{prefix}arg_value{suffix}>",
        pairs=(f"</{prefix}arg_key{suffix}>", f"<{prefix}arg_value{suffix}>"),
        name_end=("\n", f"<tool_sep{suffix}>"),
        untyped="json",
        json_calls=True,
        in_reasoning=reasoning,
    )


_CODER = _tagged("tool_call", "function=", "parameter=", trim=True, json=True)
_GLM = pairs("tool_call")
_DSML = "｜DSML｜"
_ATEM = XmlCalls(
    ("<atem:function_calls>",),
    ("</atem:function_calls>",),
    ("<atem:invoke name=",),
    ("</atem:invoke>",),
    ("<atem:parameter name=",),
    "</atem:parameter>",
    untyped="json",
)
_STEP3 = XmlCalls(
    ("<｜tool_calls_begin｜>",),
    ("<｜tool_calls_end｜>",),
    ("<steptml:invoke name=",),
    ("</steptml:invoke>",),
    ("<steptml:parameter name=",),
    "</steptml:parameter>",
    before=("<｜tool_call_begin｜>", "function<｜tool_sep｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>"),
)
_MINICPM = XmlCalls(
    (),
    (),
    ("<function name=", "<functionname=", "<functionĠname="),
    ("</function>",),
    ("<param name=", "<paramname=", "<paramĠname="),
    "</param>",
    only_declared=True,
    cdata=True,
)
_HARMONY = Channels(
    ("<|start|>", "<|channel|>"),
    "<|message|>",
    ("<|end|>", "<|return|>", "<|call|>"),
    reasoning=("analysis",),
    answer=("user", "assistant"),
)
_RENDERED = RenderedChannels(_HARMONY, "assistant", ("analysis",), ("commentary", "final"))
_MUSE = Channels(
    ("<|start|>",),
    "<|message|>",
    ("<|eom|>", "<|eot|>"),
    reasoning=("self",),
    answer=("user",),
    json=False,
)
_XML = "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>"
_INVOKE = '<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>'
_KEYED = "get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value>"
_DSML_CALL = (
    f'<{_DSML}invoke name="get_weather">\n<{_DSML}parameter name="city" string="true">Paris</{_DSML}parameter>\n</{_DSML}invoke>'
)
_M3 = "]<]minimax[>["


def _dsml(section: str) -> XmlCalls:
    return XmlCalls(
        (f"<{_DSML}{section}>",),
        (f"</{_DSML}{section}>",),
        (f"<{_DSML}invoke name=",),
        (f"</{_DSML}invoke>",),
        (f"<{_DSML}parameter name=",),
        f"</{_DSML}parameter>",
        string_attribute=True,
        in_reasoning="call",
    )


TAGGED_ROWS = (
    # XML with typed parameters
    Format("qwen3_coder", f"<tool_call>\n{_XML}\n</tool_call>", (_CODER,), PREFILLED),
    Format("nemotron_v3", f"<tool_call>\n{_XML}\n</tool_call>", (_CODER,), PREFILLED),
    Format(
        "step3p5",
        f"<tool_call>\n{_XML}\n</tool_call>",
        (_tagged("tool_call", "function=", "parameter=", trim=True, json=True, named=True),),
        PREFILLED,
    ),
    Format(
        "seed_oss",
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>",
        (_tagged("seed:tool_call", "function=", "parameter="),),
        Think(("<seed:think>",), ("</seed:think>",), starts=True, prefilled=True),
        ("<seed:cot_budget_reflect>", "</seed:cot_budget_reflect>"),
    ),
    Format(
        "minimax_m2",
        f"<minimax:tool_call>\n{_INVOKE}\n</minimax:tool_call>",
        (_tagged("minimax:tool_call", "invoke name=", "parameter name="),),
        PREFILLED,
        ("[e~[",),
    ),
    Format(
        "dots",
        f"<dots_function_call>{_INVOKE}</dots_function_call>",
        (_tagged("dots_function_call", "invoke name=", "parameter name=", json=True, loose=False),),
    ),
    Format("minicpm5", '<function name="get_weather"><param name="city">Paris</param></function>', (_MINICPM,), HYBRID),
    Format(
        "step3",
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
        '<steptml:invoke name="get_weather"><steptml:parameter name="city">Paris</steptml:parameter></steptml:invoke>'
        "<｜tool_call_end｜><｜tool_calls_end｜>",
        (_STEP3,),
        HYBRID,
        ("<｜tool_call_end｜>",),
    ),
    Format(
        "deepseek_v32",
        f"<{_DSML}function_calls>\n{_DSML_CALL}\n</{_DSML}function_calls>",
        (_dsml("function_calls"), Verbatim(f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>")),
        HYBRID,
    ),
    Format(
        "deepseek_v4",
        f"<{_DSML}tool_calls>\n{_DSML_CALL}\n</{_DSML}tool_calls>",
        (_dsml("tool_calls"), Verbatim(f"<{_DSML}function_calls>", f"</{_DSML}function_calls>")),
        HYBRID,
    ),
    # a key tag and a value tag
    Format("glm4x", f"<tool_call>{_KEYED}</tool_call>", (_GLM,), PREFILLED, ("<|user|>", "<|observation|>")),
    Format("ling3", f"<tool_call>{_KEYED}</tool_call>", (_GLM,), HYBRID),
    Format("poolside_v1", f"<tool_call>{_KEYED}</tool_call>", (_GLM,), HYBRID),
    Format(
        "hy_v3",
        "<tool_calls><tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call></tool_calls>",
        (pairs("tool_call", section="tool_calls"), pairs("tool_call", section="tool_calls", suffix=":opensource")),
        Think(("<think>", "<think:opensource>"), ("</think>", "</think:opensource>"), prefilled=True),
    ),
    # tags that are names
    Format("tool_tags", "<get_weather>\n<city>Paris</city>\n</get_weather>", (ToolTags(),), HYBRID),
    Format(
        "minimax_m3",
        f'{_M3}<tool_call>{_M3}<invoke name="get_weather">{_M3}<city>Paris{_M3}</city>{_M3}</invoke>{_M3}</tool_call>',
        (NestedTags(_M3),),
        Think(("<mm:think>",), ("</mm:think>",), prefilled=True, stray="start"),
    ),
    # channels
    Format(
        "harmony",
        '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>',
        (_HARMONY, _RENDERED),
        NO_THINKING,
        ("<|constrain|>",),
    ),
    Format(
        "muse_glimmer",
        "<|start|>assistant to=get_weather<|message|><atem:function_calls>\n"
        '<atem:invoke name="get_weather">\n<atem:parameter name="city">Paris</atem:parameter>\n</atem:invoke>\n'
        "</atem:function_calls><|eot|>",
        (_MUSE, _ATEM),
        NO_THINKING,
    ),
    Format(
        "kimi_k3",
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>",
        (TokenElements("<|open|>", "<|close|>", "<|sep|>"),),
        Think((), (), prefilled=True),
        any_name=True,
    ),
    # a special object notation
    Format(
        "gemma4",
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>',
        (BraceCalls("<|tool_call>", "<tool_call|>", '<|"|>'),),
        Think(("<|channel>",), ("<channel|>",), label=("thought",)),
        ("<turn|>", "<|tool_response>"),
        any_name=True,
    ),
    Format(
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>",
        (BraceCalls("<start_function_call>", "<end_function_call>", "<escape>"),),
        drop=("<start_function_response>",),
    ),
    # reasoning only
    Format("deepseek_r1", "I think.</think>It is sunny.", (), PREFILLED),
    Format("qwen3_think", "<think>I think.</think>It is sunny.", (_CODER,), PREFILLED),
    Format(
        "think_generic",
        "<think>I think.</think>It is sunny.",
        (),
        Think(
            ("<think>", "<thinking>", "<reasoning>", "<thought>", "<reason>"),
            ("</think>", "</thinking>", "</reasoning>", "</thought>", "</reason>"),
            prefilled=True,
            any_case=True,
        ),
    ),
    Format("kimi_vl_think", "◁think▷I think.◁/think▷It is sunny.", (), Think(("◁think▷",), ("◁/think▷",))),
    Format("minimax_m2_append_think", "I think.</think>It is sunny.", (), Think((), (), prepend="<think>"), untouched=True),
    Format("none", "It is sunny.", (), NO_THINKING, untouched=True),
)
