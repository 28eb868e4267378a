"""InvokeModel requests: the body has the format of the model's family, which is derived from the model's id.

Families with their own dialect are built and parsed by it; the others take one prompt as text, in the notation that their models
were trained on. The model and the streaming mode are part of the URL, not of the body.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ...errors import RequestError, Unsupported
from ...json_types import JsonObject
from ...messages import Built, Message, Request, TextPart
from .. import dialect
from ..common.abilities import UNSPECIFIED, Abilities
from ..common.fields import Fields, give, give_extra, named_part, take
from ..common.state import in_format
from .wire import DIALECT

ANTHROPIC_VERSION: Final = "bedrock-2023-05-31"
NOVA_SCHEMA: Final = "messages-v1"
_IN_THE_ADDRESS: Final = ("model", "modelId", "stream", "stream_options")


class Prompt(Struct, frozen=True):
    """How one family writes a conversation as one text, and the names of its fields."""

    field: str
    parameters: dict[str, str]
    system: str
    user: str
    assistant: str
    begin: str = ""
    finish: str = ""
    config: str = ""
    """The object that contains the parameters, if they are not beside the prompt."""


PROMPTS: Final[dict[str, Prompt]] = {
    "titan": Prompt(
        "inputText",
        {"maxTokenCount": "max_tokens", "temperature": "temperature", "topP": "top_p", "stopSequences": "stop"},
        "{text}\n\n",
        "User: {text}\n",
        "Bot: {text}\n",
        finish="Bot:",
        config="textGenerationConfig",
    ),
    "llama": Prompt(
        "prompt",
        {"max_gen_len": "max_tokens", "temperature": "temperature", "top_p": "top_p"},
        "<|start_header_id|>system<|end_header_id|>\n\n{text}<|eot_id|>",
        "<|start_header_id|>user<|end_header_id|>\n\n{text}<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n{text}<|eot_id|>",
        begin="<|begin_of_text|>",
        finish="<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "mistral": Prompt(
        "prompt",
        {"max_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "stop": "stop"},
        "[INST] {text} [/INST]",
        "[INST] {text} [/INST]",
        " {text}</s>",
        begin="<s>",
    ),
    "completion": Prompt(
        "prompt",
        {
            "max_tokens_to_sample": "max_tokens",
            "temperature": "temperature",
            "top_p": "top_p",
            "top_k": "top_k",
            "stop_sequences": "stop",
        },
        "{text}",
        "\n\nHuman: {text}",
        "\n\nAssistant: {text}",
        finish="\n\nAssistant:",
    ),
    "text": Prompt(
        "prompt",
        {"max_tokens": "max_tokens", "temperature": "temperature", "p": "top_p", "k": "top_k", "stop_sequences": "stop"},
        "{text}\n\n",
        "User: {text}\n",
        "Assistant: {text}\n",
        finish="Assistant:",
    ),
}
"""``text`` is for families that are not listed: a prompt in plain words."""

FAMILIES: Final = (
    ("anthropic.claude-v2", "completion"),
    ("anthropic.claude-instant", "completion"),
    ("anthropic", "anthropic"),
    ("claude", "anthropic"),
    ("nova", "nova"),
    ("titan", "titan"),
    ("llama", "llama"),
    ("mistral-7b", "mistral"),
    ("mixtral", "mistral"),
    ("mistral-small-2402", "mistral"),
    ("cohere.command-text", "text"),
    ("cohere.command-light", "text"),
    *((name, "openai") for name in ("openai", "mistral", "jamba", "qwen", "deepseek", "gemma", "kimi", "minimax", "glm")),
)
"""Parts of model ids with their families; the first match wins."""


def family_for(model: str) -> str:
    return next((family for piece, family in FAMILIES if piece in model), "text")


def parse(body: JsonObject) -> Request:
    """The fields show the family: a body has no model id."""
    fields = Fields(body)
    model = fields.take("modelId", str, "")
    if "anthropic_version" in fields.rest or "anthropic_beta" in fields.rest:
        fields.any("anthropic_version")
        request = dialect("anthropic").parse_request({"model": model, **fields.rest})
    elif "schemaVersion" in fields.rest or "inferenceConfig" in fields.rest:
        fields.any("schemaVersion")
        request = dialect("bedrock_converse").parse_request(fields.rest)
    elif "messages" in fields.rest:
        request = dialect("openai_chat").parse_request({"model": model, **fields.rest})
    else:
        request = _parse_prompt(fields)
    request.model = model
    return request


def build(request: Request, *, provider: str = DIALECT, family: str = "", abilities: Abilities = UNSPECIFIED) -> Built:
    """``provider`` is the maker that gets its opaque state back, in the format of the family. ``family`` is needed if the model's id does not show it (the ARN of a profile or an import)."""
    family = family or family_for(request.model)
    match family:
        case "anthropic":
            built = dialect("anthropic").build_request(request, abilities=abilities, provider=in_format(provider, "anthropic"))
            built.body["anthropic_version"] = ANTHROPIC_VERSION
        case "nova":
            built = dialect("bedrock_converse").build_request(
                request, abilities=abilities, provider=in_format(provider, "bedrock_converse")
            )
            built.body["schemaVersion"] = NOVA_SCHEMA
        case "openai":
            built = dialect("openai_chat").build_request(
                request, abilities=abilities, provider=in_format(provider, "openai_chat")
            )
        case _ if family in PROMPTS:
            built = _build_prompt(request, PROMPTS[family])
        case _:
            known = ("anthropic", "nova", "openai", *PROMPTS)
            raise RequestError(f"there is no model family {family!r}; families: {', '.join(known)}")
    for name in _IN_THE_ADDRESS:
        built.body.pop(name, None)
    return built


def _parse_prompt(fields: Fields) -> Request:
    request = Request(dialect=DIALECT)
    for prompt in PROMPTS.values():
        text = fields.take(prompt.field, str)
        if text is None:
            continue
        request.messages = [Message("user", [TextPart(text)])]
        config = fields.inner(prompt.config) if prompt.config else None
        names = prompt.parameters if prompt.config else _ALL_NAMES
        take(config or fields, names, request)
        request.extra = fields.rest
        return request
    raise RequestError("the body has neither messages nor a prompt", detail={"param": "messages"})


_ALL_NAMES: Final = {name: field for prompt in PROMPTS.values() if not prompt.config for name, field in prompt.parameters.items()}


def _build_prompt(request: Request, prompt: Prompt) -> Built:
    if request.tools:
        raise Unsupported("a model that takes one prompt has no tools; choose another model")
    pieces = [prompt.begin]
    for message in request.messages:
        form = {"assistant": prompt.assistant, "system": prompt.system, "developer": prompt.system}.get(message.role, prompt.user)
        for part in message.parts:
            if not isinstance(part, TextPart):
                raise Unsupported(f"a model that takes one prompt accepts text only, not {named_part(part)}")
        pieces.append(form.replace("{text}", message.text))
    built = Built({prompt.field: "".join((*pieces, prompt.finish))})
    given = Built({}, built.dropped)
    give(request, prompt.parameters, given)
    if prompt.config and given.body:
        built.body[prompt.config] = given.body
    else:
        built.body.update(given.body)
    if request.output is not None and request.output.kind != "text":
        raise Unsupported("a model that takes one prompt cannot guarantee an output format", detail={"param": "output"})
    if request.reasoning is not None:
        built.dropped.append("reasoning")
    give_extra(request, DIALECT, built)
    return built
