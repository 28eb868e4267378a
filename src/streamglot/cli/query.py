"""``streamglot query``: one question, one answer."""

from __future__ import annotations

from ..client import Client
from ..errors import ConfigError
from .answer import Look, answer
from .guard import stoppable
from .notebook import Notebook
from .question import Question, spoken


@stoppable()
def run(words: list[str], question: Question, look: Look, keeps: bool) -> int:
    text = spoken(words)
    if not text and not question.attachments:
        raise ConfigError("nothing was asked: give words, standard input or an attachment")
    request = question.request([question.message(text)])
    client = Client()
    with Notebook(client.desk.loaded, keeps=keeps) as book, client:
        return answer(client, request, look, book).status
