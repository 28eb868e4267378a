r"""The grammar of every notation, for the documentation and for the tests, which write calls with it.

A grammar is a list of rules ``name = expression ;``. In an expression

- ``'...'`` is literal text, with ``\n`` for a line break;
- ``a b`` is a sequence, ``( a | b )`` an alternative;
- ``[ a ]`` is optional in the notation;
- ``~'...'`` belongs to the notation, but models omit it: readers must understand the text without it;
- ``{ a }`` is repeated for each call of the answer, or for each parameter of a call inside the rule ``call``; in ``{ a / b }``,
  ``b`` separates two of them;
- a word is a rule, or one of the terminals:

``ws`` is optional white space, ``name`` the name of the tool, ``id`` the id of the call and ``number`` its position, ``key`` the
name of a parameter, ``type`` the JSON type of its value and ``string`` whether that is a string. Values are written as ``text``
(a string as it is, everything else as JSON), ``json``, ``python`` (a literal, whose strings may have one or three quotes on each
side, or be several adjacent ones), ``brace`` (bare keys, tokens for quotes) or ``tags`` (an object of tags). ``object`` is all
arguments as a JSON object, ``encoded`` the same inside a JSON string.

The first rule is the start symbol: all calls of an answer, without the text around them.
"""

from __future__ import annotations

_JSON_CALL = """
call = '{' ws called ws ',' ws given ws '}' | '{' ws given ws ',' ws called ws '}' ;
called = '"name"' ws ':' ws '"' name '"' ;
given = ( '"arguments"' | '"parameters"' ) ws ':' ws ( object | encoded ) ;
"""
_PYTHON_CALL = """
call = name '(' ws { argument / ws ',' ws } ws ')' ;
argument = key ws '=' ws python ;
"""
_TAGGED = """
calls = ~'<{section}>' ws {{ call / ws }} ws ~'</{section}>' ;
call = '<{call}' {name} '>' ws {{ parameter / ws }} ws ~'</{call_end}>' ;
parameter = '<{parameter}' {key} '>' {value} ~'</{parameter_end}>' ;
"""
_PAIRED = """
calls = {{ call / ws }} ;
call = '<{prefix}tool_call>' name ws {{ parameter / ws }} ws '</{prefix}tool_call>' ;
parameter = '<{prefix}arg_key>' key '</{prefix}arg_key>' ws '<{prefix}arg_value>' text '</{prefix}arg_value>' ;
"""


def _marked(opener: str, end: str, *, array: bool = False) -> str:
    """JSON calls between two markers: one in each pair, or an array of all."""
    if array:
        return f"calls = {opener} ws '[' ws {{ call / ws ',' ws }} ws ']' ws {end} ;" + _JSON_CALL
    # The marker at the end shows that the last brace is missing.
    call = _JSON_CALL.replace("ws '}'", "ws ~'}'") if end else _JSON_CALL
    return f"calls = {{ block / ws }} ;\nblock = {opener} ws call ws {end} ;" + call


def _tagged(section: str, call: str, parameter: str, value: str = "text") -> str:
    """Tags for calls and parameters. ``call`` and ``parameter`` end with ``=``: the name follows, bare or in quotes."""
    quoted = call.endswith("name=")
    return _TAGGED.format(
        section=section,
        call=call,
        call_end=call.removesuffix("=").removesuffix(" name"),
        parameter=parameter,
        parameter_end=parameter.removesuffix("=").removesuffix(" name"),
        name="""( '"' name '"' | "'" name "'" | name )""" if quoted else "name",
        key="""( '"' key '"' | "'" key "'" | key )""" if quoted else "key",
        value=value,
    )


def _dsml(section: str) -> str:
    tag = "｜DSML｜"
    return f"""
calls = ~'<{tag}{section}>' ws {{ call / ws }} ws ~'</{tag}{section}>' ;
call = '<{tag}invoke name="' name '">' ws {{ parameter / ws }} ws ~'</{tag}invoke>' ;
parameter = '<{tag}parameter name="' key '" string="' string '">' text ~'</{tag}parameter>' ;
"""


_TOOL_CALL = _marked("'<tool_call>'", "~'</tool_call>'")
_TOOL_CALLS = _marked("'<tool_calls>'", "~'</tool_calls>'", array=True)
_FUNCTOOLS = "calls = 'functools[' ws { call / ws ',' ws } ws ']' ;" + _JSON_CALL
_CODER = _tagged("tool_call", "function=", "parameter=", r"'\n' text '\n'")
_FUNCTION = "calls = { call / ws } ;\ncall = '<function=' name '>' ws object ws ~'</function>' ;"
_DEEPSEEK_V3 = """
calls = '<｜tool▁calls▁begin｜>' { call / ws } ~'<｜tool▁calls▁end｜>' ;
call = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' name '\\n```json\\n' object '\\n```' ~'<｜tool▁call▁end｜>' ;
"""
_COHERE = """
calls = '<|START_ACTION|>' ws '[' ws { call / ws ',' ws } ws ']' ws ~'<|END_ACTION|>' ;
call = '{' ws ['"tool_call_id"' ws ':' ws '"' number '"' ws ',' ws] '"tool_name"' ws ':' ws '"' name '"' ws ',' ws
       '"parameters"' ws ':' ws object ws '}' ;
"""
_GLM = _PAIRED.format(prefix="")
_M3 = "]<]minimax[>["

GRAMMARS: dict[str, str] = {
    # JSON between markers
    "hermes": _TOOL_CALL,
    "hermes_loose": "calls = { call / ( ws | ws ';' ws ) } ;" + _JSON_CALL,
    "granite4": _TOOL_CALL,
    "any": _TOOL_CALL,
    "reka_edge": _TOOL_CALL,
    "ernie45": _TOOL_CALL,
    "longcat": _marked("'<longcat_tool_call>'", "~'</longcat_tool_call>'"),
    "granite": _marked("( '<|tool_call|>' | '<tool_call>' )", "['</tool_call>']", array=True),
    "granite_20b_fc": _marked("'<function_call>'", ""),
    "jamba": _TOOL_CALLS,
    "hunyuan_a13b": _TOOL_CALLS,
    "apriel": _TOOL_CALLS,
    "nemotron_nano_v2": _marked("'<TOOLCALL>'", "~'</TOOLCALL>'", array=True),
    "phi4_mini": _FUNCTOOLS,
    "firefunction_v2": _FUNCTOOLS,
    "internlm2": _marked("'<|action_start|>' ws '<|plugin|>'", "~'<|action_end|>'"),
    "gigachat3": _marked("( '<|message_sep|>\\n\\nfunction call<|role_sep|>\\n' | '<|function_call|>' )", ""),
    "cohere_command_r_plus": """
calls = 'Action:' ws '```json\\n' '[' ws { call / ws ',' ws } ws ']' ws '```' ;
call = '{' ws '"tool_name"' ws ':' ws '"' name '"' ws ',' ws '"parameters"' ws ':' ws object ws '}' ;
""",
    "cohere_command3": _COHERE,
    "cohere_command4": _COHERE,
    "apertus": """
calls = '<|tools_prefix|>' ws '[' ws { call / ws ',' ws } ws ']' ws ~'<|tools_suffix|>' ;
call = '{' ws '"' name '"' ws ':' ws object ws '}' ;
""",
    "inkling": """
calls = { call } ;
call = '<|message_model|>' [name] '<|content_invoke_tool_json|>{' ws '"name"' ws ':' ws '"' name '"' ws ',' ws
       '"args"' ws ':' ws object ws '}' ~'<|end_message|>' ;
""",
    "llama3_json": "calls = ['<|python_tag|>'] ws { call / ws ';' ws } ;" + _JSON_CALL,
    "xlam": "calls = '[' ws { call / ws ',' ws } ws ']' ;" + _JSON_CALL,
    "json_array": "calls = '[' ws { call / ws ',' ws } ws ']' ;" + _JSON_CALL,
    "generic_json": "calls = { call / ws ';' ws } ;" + _JSON_CALL,
    # a header with the name, followed by JSON
    "mistral": """
calls = { call } ;
call = '[TOOL_CALLS]' ws name ['[CALL_ID]' id] ~'[ARGS]' object ;
""",
    "llama_function": "calls = { block / ws } ;\nblock = ['<tool_call>' ws] call [ws '</tool_call>'] ;\n"
    + _FUNCTION.partition("\n")[2],
    "functionary_v31": _FUNCTION,
    "functionary_v32": "calls = { call } ;\ncall = '>>>' name '\\n' object ;",
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_r1_tools": _DEEPSEEK_V3,
    "deepseek_v31": """
calls = '<｜tool▁calls▁begin｜>' { call / ws } ~'<｜tool▁calls▁end｜>' ;
call = '<｜tool▁call▁begin｜>' name '<｜tool▁sep｜>' ws object ws ~'<｜tool▁call▁end｜>' ;
""",
    "kimi_k2": """
calls = ~( '<|tool_calls_section_begin|>' | '<|tool_call_section_begin|>' ) ws { call / ws } ws ~'<|tool_calls_section_end|>' ;
call = '<|tool_call_begin|>' ws ['functions.'] name ':' number ws '<|tool_call_argument_begin|>' ws object ws
       ~'<|tool_call_end|>' ;
""",
    # Python syntax
    "pythonic": "calls = '[' ws { call / ws ',' ws } ws ']' ;" + _PYTHON_CALL,
    "llama4_pythonic": "calls = ['<|python_start|>'] '[' ws { call / ws ',' ws } ws ']' ;" + _PYTHON_CALL,
    "lfm2": "calls = '<|tool_call_start|>' ws '[' ws { call / ws ',' ws } ws ~']' ws '<|tool_call_end|>' ;" + _PYTHON_CALL,
    "olmo3": "calls = '<function_calls>' ws { call / '\\n' } ws '</function_calls>' ;" + _PYTHON_CALL,
    # tags with values
    "qwen3_coder": _CODER,
    "nemotron_v3": _CODER,
    "step3p5": _CODER,
    "qwen3_think": _CODER,
    "seed_oss": _tagged("seed:tool_call", "function=", "parameter="),
    "minimax_m2": _tagged("minimax:tool_call", "invoke name=", "parameter name="),
    "dots": _tagged("dots_function_call", "invoke name=", "parameter name=").replace("~'<dots", "'<dots"),
    "minicpm5": """
calls = { call / ws } ;
call = '<function name="' name '">' ws { parameter / ws } ws '</function>' ;
parameter = '<param name="' key '">' ( text | '<![CDATA[' text ']]>' ) '</param>' ;
""",
    "step3": """
calls = '<｜tool_calls_begin｜>' ws { block / ws } ws ~'<｜tool_calls_end｜>' ;
block = ~'<｜tool_call_begin｜>' ~'function<｜tool_sep｜>' call ~'<｜tool_call_end｜>' ;
call = '<steptml:invoke name="' name '">' ws { parameter / ws } ws '</steptml:invoke>' ;
parameter = '<steptml:parameter name="' key '">' text ~'</steptml:parameter>' ;
""",
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "muse_glimmer": """
calls = '<|start|>assistant to=tools<|message|>' block '<|eom|>' ;
block = '<atem:function_calls>' ws { call / ws } ws ~'</atem:function_calls>' ;
call = '<atem:invoke name="' name '">' ws { parameter / ws } ws ~'</atem:invoke>' ;
parameter = '<atem:parameter name="' key '">' text ~'</atem:parameter>' ;
""",
    # a tag for the key and a tag for the value
    "glm4x": _GLM,
    "ling3": _GLM,
    "poolside_v1": _GLM,
    "hy_v3": """
calls = ~'<tool_calls>' ws { call / ws } ws ~'</tool_calls>' ;
call = '<tool_call>' name '<tool_sep>' ws { parameter / ws } ws ~'</tool_call>' ;
parameter = '<arg_key>' key '</arg_key>' ws '<arg_value>' text ~'</arg_value>' ;
""",
    # tags that are names
    "tool_tags": """
calls = { call / ws } ;
call = '<' name '>' ws { parameter / ws } ws '</' name '>' ;
parameter = '<' key '>' text '</' key '>' ;
""",
    "minimax_m3": f"""
calls = '{_M3}<tool_call>' ws {{ call / ws }} ws ~'{_M3}</tool_call>' ;
call = '{_M3}<invoke name="' name '">' ws {{ parameter / ws }} ws '{_M3}</invoke>' ;
parameter = '{_M3}<' key '>' tags '{_M3}</' key '>' ;
""",
    # channels
    "harmony": """
calls = { call } ;
call = ['<|start|>assistant'] ( before | behind ) ws '<|constrain|>json' ~'<|message|>' object ~'<|call|>' ;
before = ' to=functions.' name '<|channel|>' ( 'commentary' | 'analysis' ) ;
behind = '<|channel|>' ( 'commentary' | 'analysis' ) ' to=functions.' name ;
""",
    "kimi_k3": """
calls = '<|open|>tools<|sep|>' { call } ~'<|close|>tools<|sep|>' ;
call = '<|open|>call tool="' name '" index="' number '"<|sep|>' { parameter } '<|close|>call<|sep|>' ;
parameter = '<|open|>argument key="' key '" type="' type '"<|sep|>' text '<|close|>argument<|sep|>' ;
""",
    # an object notation of its own
    "gemma4": """
calls = { call / ws } ;
call = '<|tool_call>' ws 'call:' name '{' { parameter / ',' } '}' ~'<tool_call|>' ;
parameter = key ':' brace ;
""",
    "functiongemma": """
calls = { call / ws } ;
call = '<start_function_call>' ws 'call:' name '{' { parameter / ',' } '}' ~'<end_function_call>' ;
parameter = key ':' brace ;
""",
}
"""The rules of each format that has calls."""
