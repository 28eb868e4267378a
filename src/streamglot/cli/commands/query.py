"""``streamglot query``: one question, one answer."""

from __future__ import annotations

from ...errors import ConfigError
from ..answer import DisplayOptions, answer
from ..exit_status import stoppable
from ..own_turns import turn_recorder
from ..question import Question, question_text


@stoppable()
def run(words: list[str], question: Question, display: DisplayOptions, keeps: bool) -> int:
    text = question_text(words)
    if not text and not question.attachments:
        raise ConfigError("nothing was asked: give words, standard input or an attachment")
    request = question.request([question.message(text)])
    client = question.tools.client()
    with turn_recorder(client.pool.loaded, enabled=keeps) as recorder, client:
        return answer(client, request, display, recorder).status
