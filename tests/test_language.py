"""A text for a person is English until a command prints it, and then in the requested language."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from verl_npu.errors import SourceError
from verl_npu.language import CHINESE, ENGLISH, capitalised, chosen, ngettext, speaking_by, translate
from verl_npu.language import gettext as _

PROJECT = Path(__file__).resolve().parents[1]


class Marking:
    """A catalogue whose translations are the texts in brackets."""

    def gettext(self, message: str) -> str:
        return f"[{message}]"

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        return f"[{msgid1 if n == 1 else msgid2}]"


def marked(text: str) -> str:
    with speaking_by(Marking()):
        return translate(text)


def test_a_text_is_its_english_words() -> None:
    text = _("{count} steps in {path}").format(count=3, path="a.log")
    assert text == "3 steps in a.log"
    assert json.dumps({"found": text}) == '{"found": "3 steps in a.log"}'
    assert {text: 1}["3 steps in a.log"] == 1
    assert translate(text) == text


def test_a_text_is_translated_with_the_texts_in_it() -> None:
    assert marked(_("found {found}").format(found=_("none"))) == "[found [none]]"


def test_values_that_are_no_texts_stay_as_they_are() -> None:
    assert marked(_("{size:.1f} GiB of {name!r}").format(size=2, name="a{b}")) == "[2.0 GiB of 'a{b}']"


@pytest.mark.parametrize(
    ("words", "value", "filled"),
    [
        ("应为 {x}，实际", "一个目录", "应为一个目录，实际"),
        ("应为 {x}，实际", "a.log", "应为 a.log，实际"),
        ("在{x}中", "WorkerDict", "在 WorkerDict 中"),
        ("有 {x} 个", "（三）", "有（三）个"),
        ("共 {x} 步，{x:03d} 步", 7, "共 7 步，007 步"),
        ("读 {x!r}", "我的 数据", "读 '我的 数据'"),
        ("in {x} of", "a", "in a of"),
    ],
)
def test_a_value_in_a_chinese_text_has_a_space_beside_it_only_if_it_is_latin(
    words: str, value: object, filled: str
) -> None:
    class Chinese(Marking):
        def gettext(self, message: str) -> str:
            return words

    with speaking_by(Chinese()):
        assert translate(_("{x}").format(x=value)) == filled


def test_texts_that_are_put_together_are_each_translated() -> None:
    assert marked(_(", ").join([_("a"), "b"])) == "[a][, ]b"
    assert marked("x " + _("a") + " y") == "x [a] y"
    assert marked(str(_("a"))) == "[a]"


def test_the_number_chooses_the_form() -> None:
    assert ngettext("{n} step", "{n} steps", 1).format(n=1) == "1 step"
    assert ngettext("{n} step", "{n} steps", 2).format(n=2) == "2 steps"
    assert marked(ngettext("{n} step", "{n} steps", 2).format(n=2)) == "[2 steps]"


def test_a_sentence_begins_with_a_capital() -> None:
    assert capitalised(_("it ends")) == "It ends"
    assert capitalised("it ends") == "It ends"
    assert marked(capitalised(_("it ends"))) == "[it ends]"


def test_an_empty_text_is_not_the_head_of_the_catalogue() -> None:
    assert marked(_("")) == ""


@pytest.mark.parametrize("again", [copy.deepcopy, lambda text: pickle.loads(pickle.dumps(text))])
def test_a_text_stays_translatable_in_another_process(again) -> None:
    assert marked(again(_("found {found}").format(found=_("none")))) == "[found [none]]"


def test_an_error_is_english_where_it_is_raised_and_translated_where_it_is_shown() -> None:
    error = SourceError(subject="run.sh", expected=_("a file"), found=_("none"), fix=_("check the path"))
    with speaking_by(Marking()):
        assert f"error: {error}" == "error: run.sh: expected a file; found none; check the path"
        assert translate(str(error)) == "[run.sh: expected [a file]; found [none]; [check the path]]"


@pytest.mark.parametrize(
    ("asked", "locale", "language"),
    [
        ("", {}, ENGLISH),
        ("", {"LANG": "zh_CN.UTF-8"}, CHINESE),
        ("", {"LANG": "zh_CN.GB18030"}, CHINESE),
        ("", {"LANG": "zh_CN"}, CHINESE),
        ("", {"LC_MESSAGES": "zh_CN.UTF-8", "LANG": "en_US.UTF-8"}, CHINESE),
        ("", {"LC_ALL": "C", "LC_MESSAGES": "zh_CN.UTF-8"}, ENGLISH),
        ("", {"LC_ALL": "", "LANG": "zh_CN.UTF-8"}, CHINESE),
        ("", {"LANG": "C"}, ENGLISH),
        ("", {"LANG": "C.UTF-8"}, ENGLISH),
        ("", {"LANG": "POSIX"}, ENGLISH),
        ("", {"LANG": "fr_FR.UTF-8"}, ENGLISH),
        ("", {"LANG": "zh_TW.UTF-8"}, ENGLISH),
        ("zh_CN", {"LANG": "en_US.UTF-8"}, CHINESE),
        ("zh-CN", {"LANG": "C"}, CHINESE),
        ("zh", {}, CHINESE),
        ("en", {"LANG": "zh_CN.UTF-8"}, ENGLISH),
        ("klingon", {"LANG": "zh_CN.UTF-8"}, ENGLISH),
    ],
)
def test_the_variable_decides_and_else_the_locale(asked: str, locale: dict[str, str], language: str) -> None:
    assert chosen(asked, locale) == language


def test_importing_it_imports_no_gettext() -> None:
    program = "import sys, verl_npu.language; print(sorted({'gettext', 'locale', 'contextlib'} & {*sys.modules}))"
    before = "import sys; print(sorted({'gettext', 'locale', 'contextlib'} & {*sys.modules}))"
    had, have = (
        subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True).stdout
        for code in (before, f"import sys; sys.path.insert(0, {str(PROJECT)!r}); {program}")
    )
    assert have == had
