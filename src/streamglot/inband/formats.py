"""Our rows of ``FORMATS``: every notation as a row of data: its markers, its engine, its reasoning tags, and an example."""

from __future__ import annotations

from .engines.channels import SkipTo
from .engines.json_calls import FencedJson, JsonCalls, WholeJson
from .engines.named_json import LineNamed, PrefixedJson, SectionCalls, TaggedJson
from .engines.python_calls import DottedCalls, PythonCalls
from .format import Format
from .tagged_formats import TAGGED_ROWS, pairs
from .think import COMMON, HYBRID, PREFILLED, Think

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
_ROWS = (
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
        (pairs("longcat_tool_call", "longcat_", reasoning="no"),),
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

ROWS: dict[str, Format] = {row.name: row for row in (*_ROWS, *TAGGED_ROWS)}
