"""The rows of ``FORMATS``: every notation as a row of data, with its markers, its engine, its reasoning tags, and an example."""

from __future__ import annotations

from typing import Literal

from .engines.brace_calls import BraceCalls
from .engines.channels import Channels, RenderedChannels, SkipTo, TokenElements, Verbatim
from .engines.json_calls import FencedJson, JsonCalls, LineNamed, PrefixedJson, SectionCalls, TaggedJson, WholeJson
from .engines.python_calls import DottedCalls, PythonCalls
from .engines.tag_calls import NestedTags, ToolTags
from .engines.xml_calls import XmlCalls
from .format import COMMON, HYBRID, NO_THINKING, PREFILLED, Format, Think

# --- calls in tags, channels or object notations, and reasoning only


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


def _pairs(
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
_GLM = _pairs("tool_call")
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


_TAGGED_ROWS = (
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
        (_pairs("tool_call", section="tool_calls"), _pairs("tool_call", section="tool_calls", suffix=":opensource")),
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


# --- calls as JSON or as Python literals

_TOOL_CALL = JsonCalls("<tool_call>", end=("</tool_call>",))
_TOOL_CALLS = JsonCalls("<tool_calls>", end=("</tool_calls>",), array=True)
_FUNCTOOLS = JsonCalls("functools[", bare=True)
_BARE = JsonCalls("{", bare=True)
_BARE_ARRAY = JsonCalls("[", bare=True)
_FENCED = JsonCalls("```json\n", "```\n", weak=True)
_FUNCTION_TAG = TaggedJson("<function=", ">", "</function>")
_PREFIXED = PrefixedJson("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", special=True)


def _deepseek(fenced: bool, spellings: tuple[str, ...] = ()) -> SectionCalls:
    """``spellings``: what a model writes instead of the first token when it also omits the second."""
    return SectionCalls(
        ("<｜tool▁calls▁begin｜>", *spellings),
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        ("<｜tool▁calls▁end｜>",),
        kind="function",
        fenced=fenced,
        forgets_begin=bool(spellings),
    )


_DISTILLED = _deepseek(
    True, ("<｜tool_calls_begin｜>", "<｜tool calls begin｜>", "<｜tool\\_calls\\_begin｜>", "<｜tool▁calls｜>")
)
_KIMI = SectionCalls(
    ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    ("<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
    id_is_name=True,
    in_reasoning="marker",
)
_COHERE = JsonCalls("<|START_ACTION|>", end=("<|END_ACTION|>",), array=True, keys=("tool_name", "parameters", "tool_call_id"))
_COHERE_DROP = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>", "<co>")
_COHERE_THINK = Think(("<|START_THINKING|>",), ("<|END_THINKING|>",), prefilled=True)
_CITATION = SkipTo("</co", ">", r"[:\s\d\[\],]*", span="<co>")
_GRANITE_THINK = Think(
    (
        *("Here is my thought process:", "Here's my thought process:"),
        *("Here is my thought process\n", "Here's my thought process\n", "<think>"),
    ),
    ("Here is my response:", "Here's my response:", "Here is my response\n", "Here's my response\n", "</think>"),
)
_CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
_LITERAL_ROWS = (
    # JSON between markers
    Format("hermes", f"<tool_call>\n{_CALL}\n</tool_call>", (_TOOL_CALL,), HYBRID),
    Format("hermes_loose", f"```json\n{_CALL}\n```", (_TOOL_CALL, _BARE, _FENCED), HYBRID),
    Format("granite4", f"<tool_call>\n{_CALL}\n</tool_call>", (_TOOL_CALL,)),
    Format("reka_edge", f"<tool_call>\n{_CALL}</tool_call>", (_TOOL_CALL,), HYBRID),
    Format(
        "ernie45",
        f"Thinking\n</think>\n\n<tool_call>\n{_CALL}\n</tool_call>\n",
        (_TOOL_CALL,),
        PREFILLED,
        drop=("<response>", "</response>", "<0x0A>"),
    ),
    Format(
        "longcat",
        f"<longcat_tool_call>{_CALL}</longcat_tool_call>",
        (_pairs("longcat_tool_call", "longcat_", reasoning="no"),),
        Think(("<longcat_think>", "<think>"), ("</longcat_think>", "</think>")),
    ),
    Format(
        "granite",
        f"<|tool_call|>[{_CALL}]",
        (JsonCalls("<|tool_call|>", "<tool_call>", end=("</tool_call>",), array=True),),
        _GRANITE_THINK,
    ),
    Format("granite_20b_fc", f"<function_call> {_CALL}", (JsonCalls("<function_call>", between=(",",)),)),
    Format("jamba", f"<tool_calls>[\n    {_CALL}\n]</tool_calls>", (_TOOL_CALLS,)),
    Format("hunyuan_a13b", f"<tool_calls>[{_CALL}]</tool_calls>", (_TOOL_CALLS,), drop=("<answer>", "</answer>")),
    Format(
        "apriel",
        f"<tool_calls>[{_CALL}]</tool_calls>",
        (_TOOL_CALLS,),
        Think(
            ("<thinking>", "Here are my reasoning steps:"),
            ("[BEGIN FINAL RESPONSE]", "</thinking>"),
            prefilled=True,
        ),
        drop=("[END FINAL RESPONSE]", "<|end|>"),
    ),
    Format(
        "nemotron_nano_v2",
        f"<TOOLCALL>[{_CALL}]</TOOLCALL>",
        (JsonCalls("<TOOLCALL>", end=("</TOOLCALL>",), array=True),),
        HYBRID,
    ),
    Format("phi4_mini", f"functools[{_CALL}]", (_FUNCTOOLS,), drop=("<|tool_call|>", "<|/tool_call|>")),
    Format("firefunction_v2", f" functools[{_CALL}]", (_FUNCTOOLS,)),
    Format(
        "internlm2",
        '<|action_start|><|plugin|>{"name": "get_weather", "parameters": {"city": "Paris"}}<|action_end|>',
        (
            JsonCalls(
                "<|action_start|>", end=("<|action_end|>",), after=("<|plugin|>", "<|interpreter|>"), keys=("name", "parameters")
            ),
        ),
    ),
    Format(
        "gigachat3",
        f"<|message_sep|>\n\nfunction call<|role_sep|>\n{_CALL}",
        (JsonCalls("<|message_sep|>\n\nfunction call<|role_sep|>\n", "<|function_call|>"),),
        drop=("</s>", "<|message_sep|>"),
    ),
    Format(
        "cohere_command_r_plus",
        'Action:\n```json\n[{"tool_name": "get_weather", "parameters": {"city": "Paris"}}]\n```',
        (JsonCalls("Action:", weak=True, array=True, keys=("tool_name", "parameters")), _FENCED),
    ),
    Format(
        "cohere_command3",
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}]<|END_ACTION|>',
        (_COHERE, _CITATION),
        _COHERE_THINK,
        _COHERE_DROP,
    ),
    Format(
        "cohere_command4",
        "I look.<|END_THINKING|>"
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}]<|END_ACTION|>',
        (_COHERE, _CITATION),
        Think(("<|START_THINKING|>",), ("<|END_THINKING|>",), starts=True, prefilled=True),
        _COHERE_DROP,
    ),
    Format(
        "apertus",
        '<|tools_prefix|>[{"get_weather": {"city": "Paris"}}]<|tools_suffix|>',
        (JsonCalls("<|tools_prefix|>", end=("<|tools_suffix|>",), name_is_key=True, array=True, in_reasoning="call"),),
        Think(("<|inner_prefix|>",), ("<|inner_suffix|>",)),
        ("<|assistant_end|>",),
    ),
    Format(
        "inkling",
        '<|message_model|><|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "Paris"}}<|end_message|>',
        (
            JsonCalls("<|content_invoke_tool_json|>", end=("<|end_message|>",), in_reasoning="call", keys=("name", "args")),
            SkipTo(
                "<|message_model|>",
                "<|content_",
                r"[\w.:-]*",
                keep=True,
                call="<|content_invoke_tool_json|>",
                closers=("<|end_message|>",),
            ),
        ),
        Think(("<|content_thinking|>",), ("<|end_message|>",)),
        ("<|content_text|>", "<|content_tool_error|>", "<|content_invoke_tool_text|>", "<|content_model_end_sampling|>"),
    ),
    Format(
        "llama3_json",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        (
            DottedCalls("<|python_tag|>", JsonCalls(hold=True)),
            JsonCalls("{", bare=True, keys=("name", "parameters")),
            _FUNCTION_TAG,
        ),
    ),
    Format("xlam", f"[{_CALL}]", (_BARE_ARRAY, _FENCED, JsonCalls("[TOOL_CALLS]"), _TOOL_CALL)),
    Format("json_array", f"[{_CALL}]", (_BARE_ARRAY, _BARE)),
    Format("generic_json", _CALL, (_BARE, _BARE_ARRAY, _FENCED)),
    Format(
        "any",
        f"<tool_call>{_CALL}</tool_call>",
        (_TOOL_CALL, _FUNCTION_TAG, _PREFIXED, WholeJson(), FencedJson()),
        COMMON,
        only_declared=True,
    ),
    # a header with the name, followed by JSON
    Format(
        "mistral",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}',
        (_PREFIXED,),
        Think(("[THINK]", "<think>"), ("[/THINK]", "</think>")),
        ("</s>",),
    ),
    Format(
        "llama_function",
        '<function=get_weather>{"city": "Paris"}</function>',
        (TaggedJson("<function=", ">", "</function>", wrapper=("<tool_call>", "</tool_call>")),),
    ),
    Format(
        "functionary_v31",
        '<function=get_weather>{"city": "Paris"}</function>',
        (_FUNCTION_TAG, DottedCalls("<|python_tag|>", JsonCalls(hold=True))),
    ),
    Format("functionary_v32", 'all\nOne moment.>>>get_weather\n{"city": "Paris"}', (LineNamed(">>>", ("all",)),)),
    Format(
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        '```json\n{"city": "Paris"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        (_deepseek(True),),
        HYBRID,
    ),
    Format(
        "deepseek_r1_tools",
        "I look.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        '```json\n{"city": "Paris"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        (_DISTILLED,),
        PREFILLED,
    ),
    Format(
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        (_deepseek(False),),
        HYBRID,
    ),
    Format(
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>',
        (_KIMI,),
        HYBRID,
    ),
    # Python syntax
    Format(
        "pythonic",
        '[get_weather(city="Paris")]',
        (PythonCalls("<|tool_call_start|>", end=("<|tool_call_end|>",)), PythonCalls("[", bare=True)),
        drop=("<|python_start|>", "<|python_end|>"),
    ),
    Format(
        "llama4_pythonic",
        '<|python_start|>[get_weather(city="Paris")]<|python_end|>',
        (PythonCalls("<|python_start|>", end=("<|python_end|>",)), PythonCalls("[", bare=True)),
    ),
    Format(
        "lfm2",
        '<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>',
        (PythonCalls("<|tool_call_start|>", end=("<|tool_call_end|>",), json=True),),
    ),
    Format(
        "olmo3",
        '<function_calls>\nget_weather(city="Paris")\n</function_calls>',
        (PythonCalls("<function_calls>", end=("</function_calls>",), brackets=False, in_reasoning="call"),),
        HYBRID,
    ),
)

ROWS: dict[str, Format] = {row.name: row for row in (*_LITERAL_ROWS, *_TAGGED_ROWS)}
