"""Searches find the same on both databases, in every script."""

from __future__ import annotations

import pytest

from store.turns import answer, ask, asynchronous, take, user
from streamglot.errors import RequestError
from streamglot.store import Filter, Store, StoreSettings
from streamglot.store.rows import TEXT_CHARS, words
from streamglot.store.search import MAX_TERMS, MAX_WORD_CHARS, terms, wording

TEXTS = {
    "both": "cats or dogs are fun",
    "cats": "only cats here",
    "dogs": "only dogs here",
    "accent": "Café au lait, a naïve résumé",
    "plain": "cafe plain",
    "sharp": "straße",
    "turkish": "İstanbul",
    "wide": "ｆｕｌｌ ｗｉｄｔｈ",
    "composed": "étude one",
    "decomposed": "e\u0301tude two",
    "pieces": "hello-world foo_bar key=value <b>bold</b> em—dash “quoted”",
    "place": "see https://example.com/path?q=1 or joe@example.org or /usr/local/bin/python",
    "numbers": "version 3.14.15 and 1,234 at 1e5 or 0x1f",
    "wrong_numbers": "version 14 3 and 234 1",
    "hash": "commit 4e5b",
    "apostrophe": "it's what I don't",
    "party": "emoji 🎉 party 1\ufe0f\u20e3",
    "long": "x" * 3000 + " longword",
    "hidden": "exam\u00adple",
    "chinese": "我喜欢猫和狗，日本",
    "japanese": "日本語のテスト、ﾃﾞﾓ",
    "mixed": "用Python写",
    "rice": "กินข้าวแล้ว",
    "white": "สีขาวสวย",
    "khmer": "ភាសាខ្មែរ",
    "hindi": "हिन्दी भाषा दिन",
    "donation": "दान",
    "russian": "Привет, друзья! Ёлка",
    "hebrew": "שָׁלוֹם עולם",
    "arabic": "مَرْحَبًا بالعالم",
    "korean": "한국어 문장",
    "greek": "ΟΔΟΣ",
}
SEARCHES = {
    "cats or dogs": "both",
    "cats OR dogs": "both",
    "cats AND dogs": "",
    "cats dogs": "both",
    "cats -dogs": "cats",
    'only -"cats here" -\'': "dogs",
    "cats -example.com -猫": "both cats",
    "NOT cats": "",
    "(cats)": "both cats",
    "cat": "",
    "cat*": "",
    "body:cats": "",
    'cats"here': "cats",
    "cafe": "accent plain",
    "CAFÉ": "accent plain",
    "resume naive": "accent",
    "STRASSE": "sharp",
    "istanbul": "turkish",
    "fullwidth": "",
    '"full width"': "wide",
    "etude": "composed decomposed",
    "é\u0301tude": "composed decomposed",
    "hello": "pieces",
    '"hello world"': "pieces",
    "hello_world": "pieces",
    "world-hello": "",
    "foo": "pieces",
    "key=value": "pieces",
    "bold": "pieces",
    "em—dash": "pieces",
    "“quoted”": "pieces",
    "example.com": "place",
    "com.example": "",
    "path": "place",
    "joe@example.org": "place",
    "bin/python": "place",
    "3.14": "numbers",
    "14": "numbers wrong_numbers",
    "1,234": "numbers",
    "1e5": "numbers",
    "0x1f": "numbers",
    "4e5b": "hash",
    "commit b": "",
    "commit -b": "hash",
    "don't": "apostrophe",
    "don’t": "apostrophe",
    "t don": "apostrophe",
    '"t don"': "",
    "party 🎉": "party",
    "x" * 3000: "long",
    "x" * 2999: "",
    "longword": "long",
    "example": "place hidden",
    "猫": "chinese",
    "猫和狗": "chinese",
    "狗猫": "",
    "狗 猫": "chinese",
    "日本": "chinese japanese",
    "日本 -日本語": "chinese",
    "テスト": "japanese",
    "テ ト": "japanese",
    "テト": "",
    "デモ": "japanese",
    "テモ": "",
    "python": "place mixed",
    "Python写": "mixed",
    "ข้าว": "rice",
    "ขาว": "white",
    "ខ្មែរ": "khmer",
    "हिन्दी": "hindi",
    "दिन": "hindi",
    "दान": "donation",
    "हिन": "",
    "привет елка": "russian",
    "друзья!": "russian",
    "שלום": "hebrew",
    "مرحبا": "arabic",
    "한국어": "korean",
    "한국": "",
    "οδος": "greek",
}


async def filled(url: str, *texts: str) -> Store:
    store = await Store.open(StoreSettings(url=url))
    for text in texts:
        await take(store, ask(user(text)), answer(""), name=text[:20])
    await store.writer.flush()
    return store


@asynchronous
async def test_the_same_on_every_database(url: str) -> None:
    store = await filled(url, *TEXTS.values())
    names = {wording(text): name for name, text in TEXTS.items()}
    rows = await store.database.fetch("SELECT * FROM texts")
    known = {row.turn_id: names[row.body] for row in rows}
    for search, wanted in SEARCHES.items():
        found = await store.queries.turns(Filter(search=search))
        assert {known[turn.id] for turn in found} == set(wanted.split()), search[:50]
    await store.close()


@asynchronous
async def test_a_phrase_at_the_end_of_a_long_text_is_found(url: str) -> None:
    """The text search of PostgreSQL stores the positions of 16,383 words, and 256 of each."""
    chinese = "的一是不了人我在有他这中大来上个国到说们" * 1500
    store = await filled(url, "a b " * 5000 + "c d e", chinese[:30_000] + "斑马")
    for search, count in (('"c d"', 1), ('"d c"', 0), ('"b c"', 1), ('"a c"', 0), ("斑马", 1), ("马斑", 0), ("们斑马", 1)):
        assert len(await store.queries.turns(Filter(search=search))) == count, search
    for search, count in (('c -"d e"', 0), ('c -"e d"', 1), ("的 -斑马", 0), ("的 -马斑", 1)):
        assert len(await store.queries.turns(Filter(search=search))) == count, search
    assert len(await store.queries.turns(Filter(search=f'"{"a b " * 5000}"'))) == 1
    await store.close()


@asynchronous
async def test_a_word_after_a_long_phrase_is_found(url: str) -> None:
    phrase = " ".join(f"w{number}" for number in range(2 * MAX_TERMS))
    store = await filled(url, phrase, f"zebra {phrase}")
    for search, count in ((f'"{phrase}"', 2), (f'"{phrase}" zebra', 1), (f'"{phrase}" -zebra', 1), (f'"{phrase} w1"', 0)):
        assert len(await store.queries.turns(Filter(search=search))) == count
    await store.close()


@asynchronous
async def test_every_character_can_be_written_and_asked_for(url: str) -> None:
    every = "".join(map(chr, (*range(1, 0xD800), *range(0xE000, 0x110000))))
    pieces = [every[start : start + TEXT_CHARS // 2] for start in range(0, len(every), TEXT_CHARS // 2)]
    store = await filled(url, *pieces)
    assert len(await store.queries.turns()) == len(pieces)
    assert len(await store.queries.turns(Filter(search="猫"))) == 1
    await store.close()


@pytest.mark.parametrize("words", ["-only", '-a -"b c"', " ", '"', "*", "-", "🎉", "\0", "' -- (", '""'])
@asynchronous
async def test_a_search_without_a_word_is_refused(url: str, words: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    with pytest.raises(RequestError, match='must be present: two words "an exact phrase" -not') as refused:
        await store.queries.turns(Filter(search=words))
    assert refused.value.status == 400
    await store.close()


@asynchronous
async def test_a_search_of_many_terms(url: str) -> None:
    store = await filled(url, "many terms")
    assert len(await store.queries.turns(Filter(search="many " * 40 + "-x " * (MAX_TERMS - 40)))) == 1
    with pytest.raises(RequestError, match=f"at most {MAX_TERMS} terms, not {MAX_TERMS + 1}"):
        await store.queries.turns(Filter(search="many " * MAX_TERMS + "-x"))
    await store.close()


def test_terms() -> None:
    assert terms('two "a phrase" -not OR -"not this" 3.14') == (["two", "a phrase", "or", "3 14"], ["not", "not this"])


def test_long_words_are_split() -> None:
    assert wording("x" * (2 * MAX_WORD_CHARS + 1)) == f"{'x' * MAX_WORD_CHARS} {'x' * MAX_WORD_CHARS} x"
    assert wording("x" * MAX_WORD_CHARS + " y") == f"{'x' * MAX_WORD_CHARS} y"
    assert len(words("ﷺ" * TEXT_CHARS)) == 2 * TEXT_CHARS


def test_tokenizing_twice_changes_nothing() -> None:
    for text in TEXTS.values():
        assert wording(wording(text)) == wording(text) == wording(text.lower())
