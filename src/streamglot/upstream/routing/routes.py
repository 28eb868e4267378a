"""Which upstreams serve a model, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from msgspec import Struct, field

from ...dialects import dialect
from ...errors import ConfigError, RequestError, excerpt
from ..settings import Upstream

MODELS: Final = 1024
"""Models whose route is cached: finding it compares the name with every pattern."""
MODEL_CHARS: Final = 2048
"""The longest model name in characters: that of a cloud resource. Names are cached, so their length must be limited."""

CATCH_ALL: Final = 1_000
"""The rank of an upstream whose pattern is only ``*``. A narrower pattern ranks lower by its length."""
MODEL_NOT_FOUND: Final = "model_not_found"


class Target(Struct, forbid_unknown_fields=True):
    """One target of a route: an upstream, its name for the model, and its share of the requests."""

    upstream: str
    model: str = ""
    weight: float = 1.0


class Route(Struct, forbid_unknown_fields=True):
    """``models`` are patterns. The targets in ``to`` are chosen by weight; ``fallbacks`` follow in order. With ``cache_seconds``
    an answer is cached for identical requests. ``tools`` are globs of the gateway's tools that its requests are offered."""

    models: list[str]
    to: list[Target]
    fallbacks: list[Target] = field(default_factory=list)
    cache_seconds: float = 0.0
    tools: list[str] = field(default_factory=list)


LISTED: Final = "models/"
"""Begins the names in the lists of Gemini's API. Its clients send them back with it."""


class Candidate(Struct):
    """An upstream for a request, its name for the model, and how long its answer may be cached."""

    upstream: Upstream
    model: str
    cache_seconds: float = 0.0


class Routes:
    """``default_model`` is for requests that name no model, ``fallback_model`` for names that no upstream serves; without one
    they are refused."""

    def __init__(self, upstreams: list[Upstream], routes: list[Route], default_model: str = "", fallback_model: str = "") -> None:
        self.upstreams = {upstream.name: upstream for upstream in upstreams}
        self._routes = routes
        self._default = default_model
        self._fallback = ""
        for route in routes:
            if (
                not route.to
                or not all(target.weight >= 0 for target in route.to)
                or not any(target.weight for target in route.to)
            ):
                raise ConfigError(
                    f"a route for {route.models} needs a target in `to` with a weight above 0, and no negative weights"
                )
            for target in (*route.to, *route.fallbacks):
                if target.upstream not in self.upstreams:
                    known = ", ".join(self.upstreams) or "none"
                    raise ConfigError(
                        f"a route for {route.models} names the unknown upstream {target.upstream!r}; upstreams: {known}"
                    )
        self._candidates = lru_cache(MODELS)(self._find_candidates)
        self._names = lru_cache(MODELS)(self._name)
        if fallback_model:
            self._fallback = self._known_fallback(fallback_model)

    def find(self, model: str, chance: Callable[[], float]) -> list[Candidate]:
        """The candidates for this model, best first. ``chance`` returns a random number from 0 to 1 for weighted targets."""
        weighted, rest = self._candidates(self.named(model))
        return [*_by_weight(weighted, chance), *rest] if weighted else rest.copy()

    def _find_candidates(self, model: str) -> tuple[list[tuple[float, Candidate]], list[Candidate]]:
        """The candidates that are chosen by weight, and those that follow in order."""
        name, slash, rest = model.partition("/")
        if slash and name in self.upstreams:
            upstream = self.upstreams[name]
            return [], [Candidate(upstream, upstream.model_for(rest) or rest)]
        for route in self._routes:
            if any(fnmatchcase(model, pattern) for pattern in route.models):
                weighted = [(target.weight, self._candidate(target, model, route.cache_seconds)) for target in route.to]
                return weighted, [self._candidate(target, model, route.cache_seconds) for target in route.fallbacks]
        found = [Candidate(upstream, theirs) for upstream in self.upstreams.values() if (theirs := upstream.model_for(model))]
        if not found:
            raise RequestError(
                f"no upstream serves the model {model!r}; upstreams: {', '.join(self.upstreams) or 'none'}. "
                "Name one as upstream/model, add a pattern to the models of an upstream, or set server.fallback_model",
                code=MODEL_NOT_FOUND,
                status=404,
            )
        named = [candidate for candidate in found if _pattern_rank(candidate.upstream, model) < CATCH_ALL]
        if not named:  # a catch-all serves what no other upstream names, and no prompt goes to a second one unasked
            return [], found[:1]
        return [], sorted(named, key=lambda candidate: _pattern_rank(candidate.upstream, model))

    def server_of(self, model: str) -> Upstream | None:
        """The upstream that serves a model of this name first. Nothing is cached: lists have thousands of names."""
        try:
            weighted, rest = self._find_candidates(model)
        except RequestError:
            return None
        return (weighted[0][1] if weighted else rest[0]).upstream

    def check(self, model: str) -> None:
        """Raises RequestError if no upstream serves the model."""
        self._candidates(self.named(model))

    def cache_seconds(self, model: str) -> float:
        """How long an answer of this model may be cached, in seconds; 0 means never."""
        weighted, rest = self._candidates(self.named(model))
        return (weighted[0][1] if weighted else rest[0]).cache_seconds

    def tools(self, model: str) -> list[str]:
        """The globs of the tools that this model's route offers."""
        if not self._routes:
            return []
        model = self.named(model)
        route = next((route for route in self._routes if any(fnmatchcase(model, pattern) for pattern in route.models)), None)
        return route.tools if route is not None else []

    def named(self, model: str) -> str:
        """The model that a request means: the default if it names none, and the upstream's name for it. The patterns of a key
        are matched against this name, and this name is sent."""
        if len(model) > MODEL_CHARS or not model.isprintable():
            raise RequestError(
                f"the name of the model is {excerpt(model)}: it must have at most {MODEL_CHARS} characters, all of them printable",
                code="invalid_model",
            )
        return self._names(self._unlisted(model) if model.startswith(LISTED) else model or self._default)

    def _unlisted(self, model: str) -> str:
        """The name without the prefix under which a list shows it, unless that is the name of a model itself."""
        patterns = [pattern for route in self._routes for pattern in route.models]
        patterns += [pattern for upstream in self.upstreams.values() for pattern in upstream.models]
        own = any(pattern.startswith(LISTED) and fnmatchcase(model, pattern) for pattern in patterns)
        return model if own or LISTED.rstrip("/") in self.upstreams else model.removeprefix(LISTED)

    def _name(self, model: str) -> str:
        try:
            weighted, rest = self._candidates(model)
        except RequestError:
            return self._fallback or model
        first, slash, _ = model.partition("/")
        prefix = f"{first}/" if slash and first in self.upstreams else ""
        own = model.removeprefix(prefix)
        for candidate in (*(candidate for _, candidate in weighted), *rest):
            theirs = dialect(candidate.upstream.dialect).model_name(own)
            if theirs != own:
                return prefix + theirs
        return model

    def _known_fallback(self, model: str) -> str:
        try:
            self._candidates(model)
        except RequestError as error:
            raise ConfigError(f"server.fallback_model is {model!r}: {error.message}") from None
        return self._name(model)

    def only_model(self, ignored: Collection[str]) -> str:
        """The one model that can be asked for; nothing where there are several, or where a pattern serves names that are not
        listed. Upstreams whose names are ``ignored`` do not count."""
        counted = [upstream for upstream in self.upstreams.values() if upstream.name not in ignored]
        served = {(upstream.name, upstream.model_for(model)) for upstream in counted for model in upstream.listed}
        if len(served) != 1 or any(len(upstream.listed) < len(upstream.models) for upstream in counted):
            return ""
        return next(upstream.listed[0] for upstream in counted if upstream.listed)

    def models(self) -> list[tuple[str, str]]:
        """The models that have a name rather than a pattern, each with its upstream."""
        named = [(model, upstream.name) for upstream in self.upstreams.values() for model in upstream.listed]
        routed = [(model, route.to[0].upstream) for route in self._routes for model in route.models if "*" not in model]
        return list(dict.fromkeys([*routed, *named]))

    def _candidate(self, target: Target, model: str, cache_seconds: float) -> Candidate:
        upstream = self.upstreams[target.upstream]
        return Candidate(upstream, target.model or upstream.model_for(model) or model, cache_seconds)


def _by_weight(weighted: list[tuple[float, Candidate]], chance: Callable[[], float]) -> list[Candidate]:
    """One candidate is chosen by weight, the others follow in order."""
    candidates = [candidate for _, candidate in weighted]
    if len(candidates) < 2:
        return candidates
    point = chance() * sum(weight for weight, _ in weighted)
    for place, (weight, candidate) in enumerate(weighted):
        point -= weight
        if point < 0:
            return [candidate, *candidates[:place], *candidates[place + 1 :]]
    return candidates


def _pattern_rank(upstream: Upstream, model: str) -> int:
    """Ranks how an upstream lists a model: 0 for its exact name, more for broader patterns, ``CATCH_ALL`` for ``*``."""
    if model in upstream.models:
        return 0
    matching = [pattern for pattern in upstream.models if fnmatchcase(model, pattern)]
    return max(1, CATCH_ALL - max((len(pattern.strip("*")) for pattern in matching), default=0))
