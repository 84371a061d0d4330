"""Every text that a command prints for a person is translated, with the same values in it, as gettext reads it."""

from __future__ import annotations

import gettext
import io
import re
import string
from itertools import product

import pytest
from babel.messages.catalog import Catalog, Message
from babel.messages.pofile import read_po
from maintain import catalogue
from maintain.catalogue import Catalogues

from verl_npu.language import CHINESE, speaking, translate
from verl_npu.language import gettext as _

EACH = tuple(product(catalogue.CATALOGUES, catalogue.LANGUAGES))
WORDS = re.compile(r"[A-Za-z]{2,} [a-z]{2,} [a-z]{2,}")
CHARACTER = re.compile(r"[\u4e00-\u9fff]")


@pytest.fixture(scope="module", params=EACH, ids=lambda each: each[0].domain)
def which(request: pytest.FixtureRequest) -> tuple[Catalogues, str]:
    return request.param


@pytest.fixture(scope="module")
def made(which: tuple[Catalogues, str]) -> Catalog:
    return catalogue.made(*which)


def forms(message: Message) -> list[tuple[str, str]]:
    """Return the texts of a message, each with its translation."""
    words = message.id if isinstance(message.id, tuple) else (message.id,)
    said = message.string if isinstance(message.string, tuple) else (message.string,)
    return [(text, translation) for text in words for translation in said if translation]


def values(text: str) -> list[tuple[str, str | None, str | None]]:
    """Return the placeholders in a text; a text without any may have braces of its own."""
    try:
        parsed = list(string.Formatter().parse(text))
    except ValueError:
        return []
    return sorted((name, spec, conversion) for _before, name, spec, conversion in parsed if name is not None)


UNTRANSLATED = ("packages/verl-npu-workbench/verl_npu_workbench/diagnosis/known/",)
"""The beginnings of files, and of calls for help, whose texts are still shown in English."""


def test_every_text_has_a_translation_but_those_that_are_named_here(made: Catalog) -> None:
    untranslated = catalogue.untranslated(made)
    files = {message.id: [file for file, _line in message.locations] for message in made if message.id}
    assert [text for text in untranslated if not all(file.startswith(UNTRANSLATED) for file in files[text])] == []


def test_a_translation_has_the_values_of_its_text(made: Catalog) -> None:
    assert [
        pair for message in made if message.id for pair in forms(message) if values(pair[0]) != values(pair[1])
    ] == []


def test_no_sentence_is_left_in_english(made: Catalog) -> None:
    english = [text for message in made if message.id for text, said in forms(message) if WORDS.search(text)]
    left = [text for message in made if message.id for text, said in forms(message) if not CHARACTER.search(said)]
    # Commands, and the title of a published page, are not translated.
    kept = ("vllm-ascend v", "docker ", "pip install ")
    assert [text for text in left if text in english and not text.startswith(kept)] == []


def test_what_gettext_reads_is_compiled_from_what_is_edited(which: tuple[Catalogues, str]) -> None:
    path, language = catalogue.po(*which), which[1]
    edited = read_po(io.StringIO(path.read_text("utf-8")), locale=language)
    assert not [message.id for message in edited if message.id and message.fuzzy]
    assert path.with_suffix(".mo").read_bytes() == catalogue.compiled(edited), "run scripts/maintain/catalogue.py"


def test_gettext_finds_the_translations(which: tuple[Catalogues, str], made: Catalog) -> None:
    catalogues, language = which
    read = gettext.translation(catalogues.domain, catalogues.folder, [language])
    single = [message for message in made if message.id and isinstance(message.id, str) and message.string]
    assert {message.id: read.gettext(message.id) for message in single} == {each.id: each.string for each in single}


def test_a_text_that_is_new_is_found_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*catalogue.texts(catalogue.PLUGIN), ("a text that nobody has translated", "verl_npu/new.py")]
    monkeypatch.setattr(catalogue, "texts", lambda catalogues: iter(texts))
    assert "a text that nobody has translated" in catalogue.untranslated(catalogue.made(catalogue.PLUGIN, CHINESE))


def test_the_variable_brings_the_catalogue() -> None:
    with speaking(CHINESE):
        assert translate(_("the cause is known")) == "原因已知"
    assert translate(_("the cause is known")) == "the cause is known"
