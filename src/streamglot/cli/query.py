"""``streamglot query``: one question, one answer."""

from __future__ import annotations

from ..client import Client
from ..errors import ConfigError
from .answer import Look, answer
from .question import Question, spoken


def run(words: list[str], question: Question, look: Look) -> int:
    text = spoken(words)
    if not text and not question.attachments:
        raise ConfigError("nothing was asked: give words, standard input or an attachment")
    request = question.request([question.message(text)])
    with Client() as client:
        return answer(client, request, look).status
