from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verl_npu_workbench.jobs.settings import Settings, override

hydra = pytest.importorskip("hydra")


def read(text: str) -> tuple[str, object]:
    """Return the key and the value of an override, as Hydra reads them."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_override(text)
    assert parsed.is_force_add()
    return parsed.key_or_group, plain(parsed.value())


def plain(value: object) -> object:
    from hydra.core.override_parser.types import QuotedString

    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, list):
        return [plain(each) for each in value]
    return {key: plain(each) for key, each in value.items()} if isinstance(value, dict) else value


TEXTS = (
    "",
    " a ",
    "a,b",
    "[a]",
    "{a:b}",
    "k=v",
    "a\nb",
    "it's",
    'a"b',
    "a\\",
    "a\\'b",
    "null",
    "true",
    "1",
    "1e-3",
    "$x",
)


@pytest.mark.parametrize("value", [None, True, False, 0, -3, 1.5e-07, 1e30, *TEXTS])
def test_a_value_comes_back_as_it_is(value: object) -> None:
    assert read(override("a.b", value)) == ("a.b", value)


@pytest.mark.parametrize(
    "value", [[], ["a", "b,c"], [1, [2.5, None, ["it's"]], True], {}, {"a": 1, "b": [1, {"c": None}]}, [{"a": "x=y"}]]
)
def test_a_nested_value_comes_back_as_it_is(value: object) -> None:
    assert read(override("a.b", value)) == ("a.b", value)


@given(st.text(st.characters(blacklist_categories=["Cs", "Cc"])))
def test_any_text_comes_back_as_it_is(value: str) -> None:
    assert read(override("key", [value])) == ("key", [value])


def test_the_kind_of_a_value_is_kept() -> None:
    assert [type(read(override("a", value))[1]) for value in (True, 1, 1.0, "1")] == [bool, int, float, str]


def test_values_are_read_as_numbers_texts_and_truths() -> None:
    settings = Settings({"int": 3, "text": "2.5", "word": "x", "none": None, "yes": "True", "true": True, "part": {}})
    assert [settings.number(key) for key in ("int", "text", "word", "none", "true", "missing")] == [3, 2.5, 0, 0, 0, 0]
    assert settings.whole("text", 7) == 2
    assert settings.whole("word", 7) == 7
    assert [settings.truth(key) for key in ("yes", "true", "int", "none", "missing")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert [settings.text(key) for key in ("int", "none", "part", "missing")] == ["3", "", "", ""]


def test_keys_are_found_by_their_last_part_and_by_a_pattern() -> None:
    settings = Settings({"a.n": 1, "b.n": 2, "a.nn": 3})
    assert list(settings.ending("n")) == ["a.n", "b.n"]
    assert list(settings.matching(r"a\..*")) == ["a.n", "a.nn"]


def test_a_section_that_is_replaced_loses_its_keys() -> None:
    before = Settings({"a": {}, "a.b": 1, "ab": 2})
    after = before.changed({"a": None})
    assert dict(after.values) == {"a": None, "ab": 2}
    assert before.get("a.b") == 1


def test_a_section_is_nested_and_has_no_null() -> None:
    settings = Settings({"a.b": 1, "a.c.d.e": 2, "a.c.f": 3, "a.g": None, "ab.c": 4})
    assert settings.below("a") == {"b": 1, "c": {"d": {"e": 2}, "f": 3}}
    known = Settings({"a.b": {}, "a.b.c": 1, "a.d": 3, "a.d.e": 1})
    assert known.below("a") == {"b": {"c": 1}, "d": {"e": 1}}
    assert known.get("a.b") == {}
