from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.chat_model import ChatModel


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def model() -> Iterator[ChatModel]:
    model = ChatModel()
    yield model
    model.close()
