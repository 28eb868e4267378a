"""Writes the generated documents: ``make docs``. A test compares them with what the code says now."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from conformance.page import conformance_page, pitfalls_page
from msgspec import Struct

from docs.reference.commands import commands_page
from docs.reference.configuration import configuration_page
from docs.reference.errors import errors_page
from docs.reference.http_api import http_api_page
from docs.reference.limits import limits_page
from docs.reference.python_api import python_api_page
from docs.reference.words import NOTE, cell, prose
from streamglot import DIALECTS, Dialect, grammar
from streamglot.config.reference import schema_text
from streamglot.dialects.common.fields import PARAMETERS
from streamglot.events import EVENT_TYPES
from streamglot.inband import FORMATS
from streamglot.inband.grammars import GRAMMARS
from streamglot.inband.profiles import PROFILES
from streamglot.patterns.detectors import detectors
from streamglot.policies import Policy, find_policy
from streamglot.policies.builtin import BUILT_IN
from streamglot.policies.load import options_of
from streamglot.upstream.providers import PROVIDERS

COMMON_OPTIONS = options_of(Policy)


def grammar_page() -> str:
    rows = [f"| `{state}` | {', '.join(sorted(kind.__name__ for kind in row)) or '–'} |" for state, row in grammar.TABLE.items()]
    return "\n".join(
        [
            "# The grammar of events",
            "",
            NOTE,
            "A stream is `StreamStart (block | loose)* (StreamEnd | StreamError)`, with one block open at a time. Events of a",
            "choice above 0 come wrapped in `Choice`; each choice has a state of its own and they share one `StreamStart`.",
            "",
            "```mermaid",
            grammar.diagram().rstrip(),
            "```",
            "",
            "| state | events that may come |",
            "|---|---|",
            *rows,
            "",
            "## Events",
            "",
            "Each is a frozen struct with a tag, by which `encode` and `decode` of `streamglot.events` know it as a line of JSON. Fields with their",
            "default are left out.",
            "",
            "| event | tag | fields | meaning |",
            "|---|---|---|---|",
            *(_event_row(kind) for kind in EVENT_TYPES),
            "",
        ]
    )


def _event_row(kind: type[Struct]) -> str:
    fields = ", ".join(f"`{name}`" for name in kind.__struct_fields__) or "–"
    return f"| `{kind.__name__}` | `{kind.__struct_config__.tag}` | {fields} | {cell(prose(kind)) or '–'} |"


def dialects_page() -> str:
    lines = ["# Dialects", "", NOTE, "| dialect | | read | written | requests | responses |", "|---|---|---|---|---|---|"]
    for entry in DIALECTS.values():
        able = [entry.has_reader, entry.has_writer, True, entry.has_response]  # each one parses requests, builds them, or both
        lines.append(f"| `{entry.name}` | {entry.title} | {' | '.join('yes' if there else '–' for there in able)} |")
    writers = [entry for entry in DIALECTS.values() if entry.has_writer]
    lines += [
        "",
        "## Events by dialect",
        "",
        "`kept`: the dialect can express the event. `folded`: it is written in another form (below). `dropped`: it is not written;",
        "the writer counts it in `lost`.",
        "",
        f"| event | {' | '.join(entry.name for entry in writers)} |",
        f"|---|{'---|' * len(writers)}",
    ]
    boxes = {entry.name: entry.writer() for entry in writers}
    for kind in EVENT_TYPES:
        cells = []
        for entry in writers:
            box = boxes[entry.name]
            folded = kind.__name__ in box.folded
            cells.append("folded" if folded else "kept" if kind in box.rules() else "dropped")
        lines.append(f"| {kind.__name__} | {' | '.join(cells)} |")
    for entry in writers:
        if boxes[entry.name].folded:
            lines += ["", f"### {entry.name}", ""]
            lines += [f"- {name}: {how}" for name, how in boxes[entry.name].folded.items()]
    return "\n".join([*lines, ""])


def parameters_page() -> str:
    tables: dict[str, dict[str, str]] = {}
    for entry in DIALECTS.values():
        module = import_module(f"streamglot.dialects.{entry.name}.request")
        tables[entry.name] = getattr(module, "PARAMETERS", {})
    lines = [
        "# Request parameters",
        "",
        NOTE,
        "The fields of a `Request` and their names in each dialect. If a dialect has no name for a field, the field is *reported* as",
        "dropped, or *refused* with an error that names it if the answer would differ without it.",
        "",
        f"| field | meaning | {' | '.join(tables)} | where it has no name |",
        f"|---|---|{'---|' * len(tables)}---|",
    ]
    for field, parameter in PARAMETERS.items():
        cells = []
        for names in tables.values():
            own = [f"`{name}`" for name, target in names.items() if target == field]
            cells.append(", ".join(own) or "–")
        lines.append(f"| `{field}` | {parameter.meaning} | {' | '.join(cells)} | {parameter.absent} |")
    return "\n".join([*lines, ""])


def formats_page() -> str:
    lines = [
        "# In-band formats",
        "",
        NOTE,
        "Notations in which models write tool calls and reasoning into their text. `inband(name)`, `inband = 'name'` on an",
        "upstream, or `streamglot translate --inband name` reads one; `auto` chooses it by the name of the model.",
        "",
        "`any` reads the notations that are common to many models together: `<tool_call>{…}</tool_call>`, `<function=f>{…}</function>`,",
        "`[TOOL_CALLS]`, and JSON that is the whole answer or a whole fenced block; thinking between `<think>`, `<reasoning>` or",
        "`<thought>` tags in any case. A text is a call only if its name is one of the request's tools. An upstream with",
        '`inband = "auto"` uses it for a model that no pattern below knows, if the request has tools, unless the upstream is a',
        "provider that parses the text itself. Without tools, JSON in an answer is text.",
        "",
        "`markers` of an upstream adds your own, as pairs of what stands before and after; between those of a call is its JSON:",
        "",
        "```toml",
        "[upstreams.box]",
        'base_url = "http://127.0.0.1:8000/v1"',
        'markers = { thinking = [["<plan>", "</plan>"]], calls = [["<run>", "</run>"]] }',
        "```",
        "",
        "| format | thinking between | starts in it | example |",
        "|---|---|---|---|",
    ]
    for name, row in FORMATS.items():
        tags = (
            f"{_cell(row.think.openers[0])} … {_cell(row.think.closers[0])}" if row.think.openers and row.think.closers else "–"
        )
        starts = "yes" if row.think.starts else "–"
        lines.append(f"| `{name}` | {tags} | {starts} | {_cell(row.example)} |")
    lines += [
        "",
        "If tools were declared, only a call of a declared tool is a call; any other is text. The exceptions are "
        f"{' and '.join(f'`{name}`' for name, row in FORMATS.items() if row.any_name)}, whose",
        "tokens always mean a call: the code that runs the tools can report that there is no such tool.",
        "",
        "## Calls that cannot be parsed",
        "",
        "`bad_call` on an upstream, of `inband()`, or `--bad-call` of `streamglot translate` says how to treat them. An",
        "incomplete call never ends as a success:",
        "",
        "| `bad_call` | a call that breaks after its start | markup that never becomes a call |",
        "|---|---|---|",
        "| `incomplete` (default) | is marked as incomplete; what was not delivered as part of it is text; the stream ends with "
        "the error `tool_call_parse_error` | is text; if the text ends after the name of a declared tool or inside JSON, the stream "
        "ends with the error |",
        "| `text` | cannot happen: a call starts when it is complete, and an incomplete one is unchanged text | is text |",
        "| `error` | is marked as incomplete; the stream ends with the error at once | ends the stream with the error at once |",
        "",
        "Half a call in a notation without a strong marker (bare JSON, bare Python calls, tags named after tools, a code fence,",
        "`functools`, `Action:`) is text, because it cannot be told from prose.",
        "",
        "A call between tags is complete only with its end tags. At the end of an answer at most one of them may be missing, and",
        "none if the upstream stopped the model or the stream broke: its last value may be cut.",
        "",
        "White space stays with the text that it belongs to. Only line ends between the thinking and the first word, and white",
        "space after the last call, are dropped.",
        "",
        "In the gateway the markup of a call that ends with the error is no content. A blocking answer with it has the status 502,",
        "and beside the error the text that stood before the call.",
        "",
        "## Where the thinking begins",
        "",
        "A format that starts in the thinking may be named for a server that separates the thinking itself, or for a model that does",
        "not think. The gateway remembers for each upstream and model whether the last answer closed a thought. As long as it does",
        "not know, a streamed text waits for the first tag or the end. If the last answer had no closing tag, the text flows as the",
        "answer; a closing tag that comes after all is removed and counted as dropped. If it had one, the text flows as thinking; an",
        "answer that ends without a tag is repeated as text, so that no answer is thinking alone. The library does as the table says.",
        "",
        "## Text that mentions markup",
        "",
        "Text is never changed. Markup inside quotes, backticks or a code fence is text. Outside of them it counts only where the",
        "template of the model could have written it:",
        "",
        "- A call is quoted if a quotation mark or backticks stand directly before it, and the same directly behind its end, unless",
        "  it is the whole answer. It is held until then, up to 524,288 characters. Without the closing mark it is a call: an",
        "  apostrophe before it changes nothing.",
        "- A quoted call that is not whole is text, if its opening mark stands after a space or a bracket. At the end of the answer",
        "  half a call in an open code span is text; after another mark it is half a call.",
        "- A closing tag is dropped directly after a call or the thinking, before a call, and at the end of the answer. If its",
        "  opening tag is text, it is text too.",
        "- A tag or token that wraps the answer is dropped at the beginning, after the thinking or a call, and at the end.",
        "- A closing tag of the thinking is also dropped between two sentences without a space, and on a line of its own.",
        "- Tokens that end an answer (`<|im_end|>`, `<|eot_id|>`, `<|eom|>`, `<|endoftext|>`, `</s>`, `<end_of_turn>`) are removed at",
        "  its very end, for every model.",
        "- `<think>` and `</think>` inside the reasoning that a server separates itself are removed, unless a sentence mentions them.",
        "- Special tokens such as `<eos>` are also dropped after a word, if the answer began with one.",
        "- Sentences that are markers (Granite, Apriel) count at the beginning of the answer only.",
        "- An opening tag of the thinking with spaces around it, in the middle of a line, is text.",
        "- A marker in the thinking ends it only if a call or a header follows; otherwise it stays in the thinking.",
        "",
        "## Formats by model",
        "",
        "The first pattern that matches the name of the model is used.",
        "",
        "| pattern | format |",
        "|---|---|",
    ]
    lines += [f"| `{profile.pattern}` | `{profile.format}` |" for profile in PROFILES]
    return "\n".join([*lines, "", *_grammars()])


def _grammars() -> list[str]:
    """The grammar of each notation, once for all formats that share it."""
    lines = [
        "## Grammars",
        "",
        "`'…'` is text as it stands, `( a | b )` one of both, `[ a ]` may be left out, and `~'…'` belongs to the notation but",
        "models often omit it, so it is optional. `{ a / b }` repeats `a` for each call, or inside `call` for each parameter,",
        "with `b` between two of them. `ws` is white space or nothing; `name`, `id` and `number` are those of the call, `key`,",
        "`type` and `string` (true or false) those of a parameter. A value is written as `text` (a string as it is, everything",
        "else as JSON), `python`, `brace` (an object with bare keys and tokens for quotes) or `tags`; all arguments as `object`",
        "(JSON), or as `encoded` (JSON inside a JSON string). The tests write calls by these rules and read them.",
        "",
    ]
    for source in dict.fromkeys(GRAMMARS.values()):
        names = ", ".join(f"`{name}`" for name, other in GRAMMARS.items() if other == source)
        lines += [f"{names}:", "", "```", source.strip(), "```", ""]
    return lines


ABILITIES = {
    "custom_tools": "Tools that take free text. Otherwise functions emulate them, and their calls are returned as custom calls.",
    "namespaces": "Tools in namespaces, and a client's search for tools. Otherwise they are functions with flat names.",
    "developer_role": "Messages of the role `developer`. Otherwise they become system messages.",
    "inner_system": "System messages anywhere. Otherwise there is one at the beginning, and later ones become user messages.",
    "cache_control": "Marks up to where a prompt is cached. Otherwise they are left out.",
    "user_chars": "The longest `user`, in characters. A longer one is replaced by a digest; with 0 none is sent.",
    "call_id_chars": "The longest id of a call, in characters. A longer one is replaced by a digest.",
    "call_id_fixed": "Ids of calls have exactly `call_id_chars` letters and digits.",
    "reasoning_object": "The object `reasoning` of routers, with an effort or a number of tokens. Otherwise the effort is a field of its own.",
    "refused": "[Parameters](parameters.md) that the server refuses although its dialect has them.",
}


def abilities_page() -> str:
    lines = [
        "# Abilities",
        "",
        NOTE,
        "An ability is a part of a dialect that an upstream accepts. A request is adapted before it is sent; everything that is",
        "left out or expressed in another way is named in the header `x-streamglot-dropped`. An upstream at the address of a known",
        "provider has that provider's abilities. The configuration changes single ones:",
        "",
        "```toml",
        "[upstreams.mine.abilities]",
        "custom_tools = true",
        'refused = ["store", "seed"]',
        "```",
        "",
        "| ability | meaning |",
        "|---|---|",
        *(f"| `{name}` | {meaning} |" for name, meaning in ABILITIES.items()),
        "",
        "## By dialect",
        "",
        f"| dialect | {' | '.join(f'`{name}`' for name in ABILITIES)} |",
        f"|---|{'---|' * len(ABILITIES)}",
    ]
    for entry in DIALECTS.values():
        if entry.has_reader:
            by_family = type(entry).build_request is not Dialect.build_request
            cells = ["as its family" if by_family else _shown(getattr(entry.abilities, name)) for name in ABILITIES]
            lines.append(f"| `{entry.name}` | {' | '.join(cells)} |")
    lines += ["", "## By provider, where they are others", "", "| provider | abilities |", "|---|---|"]
    for provider in PROVIDERS:
        values = [(name, getattr(provider.abilities, name)) for name in ABILITIES]
        listed = [f"`{name}`: {_shown(value)}" for name, value in values if value is not None]
        if listed:
            lines.append(f"| {provider.title} | {'; '.join(listed)} |")
    return "\n".join([*lines, ""])


def providers_page() -> str:
    lines = [
        "# Providers",
        "",
        NOTE,
        "streamglot knows these providers. Set the variable of one, and its models can be asked: `streamglot models` lists them. A",
        "server on this machine needs no variable: it is found at its address. Any other server that speaks one of the",
        "[dialects](dialects.md) is an upstream of the configuration.",
        "",
        "The models in the table go to this provider by their own name. Any model can be asked as `NAME/model`.",
        "",
        "| provider | name | variable | API format | address | models |",
        "|---|---|---|---|---|---|",
    ]
    for provider in PROVIDERS:
        variable = f"`{provider.key_env}`" if provider.key_env else "none: found at its address"
        models = ", ".join(f"`{pattern}`" for pattern in provider.models if pattern != "*") or "those that it lists"
        lines.append(
            f"| {provider.title} | `{provider.name}` | {variable} | `{provider.dialect}` | `{provider.base_url}` | {models} |"
        )
    return "\n".join([*lines, ""])


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"`{name}`" for name in value) or "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else str(value)


def _cell(text: str) -> str:
    """Text as code in one cell of a table."""
    shown = text.replace("\n", "⏎").replace("|", "\\|")
    return f"`` {shown} ``" if shown else "–"


def policies_page() -> str:
    lines = [
        "# Policies: reference",
        "",
        NOTE,
        "Each policy with its options. [policies.md](policies.md) is the guide.",
        "",
        "## Options of every policy",
        "",
        *_options(COMMON_OPTIONS),
    ]
    for name in BUILT_IN:
        kind = find_policy(name)
        own = [row for row in options_of(kind) if row not in COMMON_OPTIONS]
        lines += [
            "",
            f"## {name}",
            "",
            kind.title,
            "",
            inspect.cleandoc(kind.__doc__ or "").replace("``", "`"),
            "",
            *_options(own),
        ]
    lines += ["", "## Detectors", "", "| name | finds | patterns |", "|---|---|---|"]
    lines += [f"| `{name}` | {each.title} | {', '.join(each.patterns)} |" for name, each in detectors().items()]
    return "\n".join([*lines, ""])


def _options(rows: list[tuple[str, str, str]]) -> list[str]:
    return [
        "| option | type | default |",
        "|---|---|---|",
        *(
            f"| `{name}` | {kind.replace('|', 'or')} | {f'`{default}`' if default else 'required'} |"
            for name, kind, default in rows
        ),
    ]


DOCUMENTS: dict[str, Callable[[], str]] = {
    "grammar.md": grammar_page,
    "dialects.md": dialects_page,
    "parameters.md": parameters_page,
    "abilities.md": abilities_page,
    "providers.md": providers_page,
    "conformance.md": conformance_page,
    "formats.md": formats_page,
    "policy-reference.md": policies_page,
    "configuration.md": configuration_page,
    "commands.md": commands_page,
    "http-api.md": http_api_page,
    "python-api.md": python_api_page,
    "errors.md": errors_page,
    "limits.md": limits_page,
    "pitfalls.md": pitfalls_page,
    "streamglot.schema.json": schema_text,
}


def main() -> None:
    for name, page in DOCUMENTS.items():
        (Path(__file__).parent / name).write_text(page())


if __name__ == "__main__":
    main()
