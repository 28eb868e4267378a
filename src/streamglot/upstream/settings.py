"""The settings of one upstream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from msgspec import Struct, field

from ..dialects.common.abilities import UNSPECIFIED, Abilities
from ..errors import BadCall
from ..inband import OwnMarkers
from ..json_types import JsonObject
from .secrets import has_form_of_key, is_unmistakable, looks_random, secrets_in_url, shown_url


class Timeouts(Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds. ``first_byte`` is long because models think; ``idle`` is the longest gap between two reads after that."""

    connect: float = 10.0
    first_byte: float = 600.0
    idle: float = 180.0
    total: float = 3600.0


class BreakerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """When the circuit breaker opens: after this many failures in a row (fewer may be chance), for this many seconds (enough for
    a restart, and short enough not to be noticed after one)."""

    failures: int = 5
    seconds: float = 20.0


class Upstream(Struct, kw_only=True, forbid_unknown_fields=True):
    """The settings of one upstream: ``Upstream(base_url="http://127.0.0.1:8080/v1", models=["m"])``.

    - ``name``: what it is called in messages and in the names of models (``name/model``).
    - ``base_url``: its address, as the vendor's own clients have it. ``headers`` are sent with each request, ``proxy`` is the URL of a
      proxy, ``timeouts`` says how long to wait.
    - ``inband``: the notation of calls and reasoning inside its text; "auto" finds it by the model.
    - ``dialect``: the dialect of its API.
    - ``key``: its API key, which is never shown. ``key_env`` names the environment variable with the key. ``pass_key``: send the
      client's own key instead.
    - ``models``: patterns of model names, or a table from our names to the upstream's. A name in the table may be a pattern too;
      exact names come first.
    - ``stream``: request a stream if the client did, always, or never.
    - ``inband``: the notation of calls and reasoning in the model's text: a name of docs/formats.md, ``none``, ``any`` (the common
      notations together) or ``auto``: by the model's name, and ``any`` for an unknown name if the request has
      tools (not at a provider of the table).
    - ``markers``: your own markers in addition: ``thinking`` and ``calls`` are lists of pairs, of what stands before and after
      (``markers = {thinking = [["<plan>", "</plan>"]], calls = [["<call>", "</call>"]]}``). Between those of a call is its JSON.
    - ``bad_call``: what to do with a tool call in text that cannot be parsed. Without it a call that broke off is marked as
      ``incomplete``; for an upstream of the dialect ``qwen_web`` it is ``text``.
    - ``tools``: send tools natively, or describe them in the prompt for a model without tool support. A dialect without a field
      for tools (``qwen_web``) always describes them, in its own notation unless ``inband`` names another.
    - ``concurrent``: the maximum number of simultaneous streams; 0 means no limit.
    - ``attempts`` and ``pause``: how many times a request is tried, and the seconds before the second attempt.
    - ``retry_seconds``: the longest time that one request waits between its attempts, all waits together. An upstream that asks to
      wait longer gets no second attempt; where a route has another upstream, no more than 8 s are waited.
    - ``merge``: kinds of small requests that are sent upstream as one if they arrive within ``merge_seconds`` of each other.
    - ``breaker``: when the circuit breaker opens.
    - ``ca_file``: a file with certificate authorities to trust in addition to the system's.
    - ``options``: values for the dialect's request builder and endpoint (the name of the token limit, an API version).
    - ``abilities``: what this upstream accepts in addition to its dialect, or does not accept.
    - ``state``: who keeps opaque state (signatures, encrypted reasoning) here. Upstreams with the same dialect and the same
      ``state`` share it. Without it, they share it if they are the same known provider, else if their host and port are the same.
    - ``batches``: run the items of batches as calls, or send them to the provider's own batch API.
    """

    name: str = ""
    dialect: str = "openai_chat"
    base_url: str = ""
    key: str = ""
    key_env: str = ""
    models: list[str] | dict[str, str] = field(default_factory=lambda: ["*"])
    inband: str = "auto"
    markers: OwnMarkers = OwnMarkers()
    bad_call: BadCall | None = None
    tools: Literal["native", "prompt"] = "native"
    headers: dict[str, str] = field(default_factory=dict)
    proxy: str | None = None
    ca_file: str = ""
    timeouts: Timeouts = Timeouts()
    breaker: BreakerSettings = BreakerSettings()
    concurrent: int = 0
    attempts: int = 3
    pause: float = 0.25
    retry_seconds: float = 30.0
    pass_key: bool = False
    merge: list[Literal["embeddings", "completions"]] = field(default_factory=lambda: ["embeddings"])
    merge_seconds: float = 0.003
    stream: Literal["same", "always", "never"] = "same"
    state: str = ""
    batches: Literal["own", "provider"] = "own"
    options: JsonObject = field(default_factory=dict)
    abilities: Abilities = UNSPECIFIED

    def model_for(self, model: str) -> str | None:
        """This upstream's name for a model; None if it does not serve it."""
        if isinstance(self.models, dict):
            if model in self.models:
                return self.models[model]
            return next((theirs for pattern, theirs in self.models.items() if fnmatchcase(model, pattern)), None)
        return model if any(fnmatchcase(model, pattern) for pattern in self.models) else None

    @property
    def listed(self) -> list[str]:
        """The models with a name rather than a pattern."""
        return [model for model in self.models if not any(mark in model for mark in "*?[")]

    @property
    def place(self) -> str:
        """The URL without its secrets."""
        return shown_url(self.base_url) or "in this process"

    def secrets(self) -> Iterator[str]:
        """The values that must not be shown: the key, headers that are not public, options that contain a secret, and the secrets
        of the URLs."""
        # A message may contain "production" for another reason.
        return self.matching_secrets(is_unmistakable, looks_random)

    def matching_secrets(self, is_secret_value: Callable[[str], bool], is_secret_part: Callable[[str], bool]) -> Iterator[str]:
        """``is_secret_value``: the rule for headers whose names do not say it; ``is_secret_part``: that for parts of a path."""
        yield self.key
        for name, value in self.headers.items():
            parts = (value, value.rpartition(" ")[2])
            if is_secret(name):
                yield from parts
            elif not is_public(name):
                yield from filter(is_secret_value, parts)
        for name, option in self.options.items():
            if is_secret(name) and isinstance(option, str):
                yield option
                yield option.rpartition(" ")[2]
        yield from secrets_in_url(self.base_url, is_secret_part=is_secret_part)
        if self.proxy:
            yield from secrets_in_url(self.proxy)

    def live_secrets(self) -> tuple[str, ...]:
        """The secrets that are masked in answers: those that no ordinary text contains."""
        options = (
            tuple((name, option) for name, option in self.options.items() if isinstance(option, str)) if self.options else ()
        )
        return _live_secrets(self.key, tuple(self.headers.items()), options, self.base_url, self.proxy or "")


_Pairs: TypeAlias = tuple[tuple[str, str], ...]


@lru_cache(maxsize=256)
def _live_secrets(key: str, headers: _Pairs, options: _Pairs, base_url: str, proxy: str) -> tuple[str, ...]:
    """The cache is for the upstreams of a configuration: each request asks."""
    upstream = Upstream(key=key, headers=dict(headers), options=dict(options), base_url=base_url, proxy=proxy or None)
    found = upstream.matching_secrets(looks_random, has_form_of_key)
    return tuple(dict.fromkeys(filter(is_unmistakable, found)))


SECRET_WORDS = frozenset(("key", "apikey", "token", "secret", "auth", "authorization", "password", "cookie", "hash"))


def is_secret(name: str) -> bool:
    """Whether a setting or header with this name has a value that must not be shown. ``key_env`` and ``env_key`` name a
    variable."""
    words = name.lower().replace("-", "_").split("_")
    return "env" not in (words[0], words[-1]) and not SECRET_WORDS.isdisjoint(words)


PUBLIC_NAMES: Final = frozenset(
    (
        *(
            "accept",
            "accept_charset",
            "accept_encoding",
            "accept_language",
            "cache_control",
            "connection",
            "content_type",
            "host",
        ),
        *("http_referer", "origin", "referer", "user_agent", "x_client_name", "x_client_version", "x_title"),
        *("anthropic_beta", "anthropic_version", "openai_beta", "openai_organization", "openai_project"),
        *(
            "debug",
            "home",
            "lang",
            "language",
            "lc_all",
            "lc_ctype",
            "log_level",
            "logname",
            "no_color",
            "node_env",
            "path",
            "pwd",
        ),
        *("pythonpath", "pythonunbuffered", "rust_log", "shell", "temp", "term", "tmp", "tmpdir", "tz", "user", "virtual_env"),
        *("xdg_cache_home", "xdg_config_home", "xdg_data_home", "xdg_runtime_dir", "xdg_state_home"),
    )
)
"""Headers and environment variables whose values are shown. Any other may be secret. An organisation or a project is named in
the provider's own errors, and gives no access."""


def is_public(name: str) -> bool:
    """Whether a configured header or environment variable with this name has a value that may be shown."""
    return name.lower().replace("-", "_") in PUBLIC_NAMES
