"""Checks that a pattern has words of its own: a text that any program may write identifies no cause."""

from __future__ import annotations

import builtins
import errno
import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from verl_npu_workbench.diagnosis.owner import _OWNERS, _owners_of_classes
from verl_npu_workbench.diagnosis.rules import LogRule

_PARSER = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
_ANY, _ANY_IN_A_NAME = "\0", "\1"
"""The marks for a part of a pattern that may be any text, and for one that may continue a name."""
_MAX_TEXTS = 200
_PACKAGES = {name for _owner, names in _OWNERS for name in names} | {
    "hydra",
    "numpy",
    "swanlab",
    *sys.stdlib_module_names,
}
_ANYBODYS_TEXT = re.compile(
    "|".join(
        (
            r"(?:has|object has) no attribute[ \0\1]*'?[\w\1\0.]*'?",
            r"got (?:an unexpected keyword|multiple values for) argument[ \0\1]*'?[\w\1\0]*'?",
            r"cannot import name[ ']*[\w\0\1]*'?",
            r"missing \d* ?required positional arguments?[: '\w]*",
            r"KeyError: ?'?[a-z][\w\1\0.]*'?",
            r"No module named|undefined symbol|cannot open shared object(?: file)?|is not defined|has no len\(\)",
            r"object is not (?:an iterator|iterable|callable|subscriptable)",
            r"std::bad_alloc|invalid device (?:id|ordinal)",
            r"list index out of range|unknown location|No such file|core dumped|(?:must|should) be divisible(?: by)?",
            *(re.escape(os.strerror(number)[1:]) for number in errno.errorcode),
            *errno.errorcode.values(),
            *(rf"\b{name}\b" for name, kind in vars(builtins).items() if isinstance(kind, type) and name[0].isupper()),
        )
    )
)
_NAME = re.compile(r"(?<![\w\1])[A-Za-z_][\w.:/\-]*\w(?![\w\1])|(?<!\d)\d{6}(?!\d)")
_OWNED_NAME = re.compile(
    r"\w[_.:/\-]\w|[A-Z][a-z0-9]+[A-Z][a-z0-9]+[A-Z]|^[A-Z]{2,}\d{3,}|^[EI][A-Z]?\d{4,}$|^\d{6}$|^_\w+"
)
_WORD = re.compile(r"[A-Za-z]{2,}")
_WORDS, _LETTERS = 3, 14


def bare(rule: LogRule) -> list[str]:
    """Return the alternatives of a rule that any error may match: they have no frame, owner or words of their own."""
    if rule.raised_in or rule.owners:
        return []
    return [part for part in rule.alternatives if not all(_names_an_owner(text) for text in _literals(part))]


def _names_an_owner(text: str) -> bool:
    own = _ANYBODYS_TEXT.sub(_ANY, text)
    names = (found[0] for found in _NAME.finditer(own))
    if any(name in _PACKAGES or name in _owners_of_classes() or _OWNED_NAME.search(name) for name in names):
        return True
    words = _WORD.findall(own.replace(_ANY_IN_A_NAME, _ANY))
    return len(words) >= _WORDS and sum(map(len, words)) >= _LETTERS


def _literals(pattern: str) -> list[str]:
    """Return the texts that a pattern can match, as far as it fixes them."""
    return list(_texts(_PARSER.parse(pattern)))[:_MAX_TEXTS]


def _texts(parsed: Iterable[Any]) -> Iterator[str]:
    found = [""]
    for kind, value in parsed:
        found = [before + after for before in found for after in _texts_of_part(str(kind), value)][:_MAX_TEXTS]
    yield from found


def _texts_of_part(kind: str, value: Any) -> Iterator[str]:
    match kind:
        case "LITERAL":
            yield chr(value)
        case "SUBPATTERN":
            yield from _texts(value[-1])
        case "BRANCH":
            for way in value[1]:
                yield from _texts(way)
        case "MAX_REPEAT" | "MIN_REPEAT":
            least, most, inner = value
            if least == 1 == most:
                yield from _texts(inner)
            elif least == 0 and most == 1:
                yield from ("", *_texts(inner))
            else:
                yield _ANY_IN_A_NAME if any(_may_be_a_name(each) for each in inner) else _ANY
        case "IN" | "ANY" | "NOT_LITERAL" | "CATEGORY":
            yield _ANY_IN_A_NAME if _may_be_a_name((kind, value)) else _ANY
        case _:
            # A place, or the pattern's look at the text before or behind it.
            yield ""


def _may_be_a_name(part: tuple[Any, Any]) -> bool:
    kind, value = str(part[0]), part[1]
    if kind == "IN":
        return any(str(each[1]) == "CATEGORY_WORD" or str(each[0]) == "RANGE" for each in value)
    return kind == "SUBPATTERN" and any(_may_be_a_name(each) for each in value[-1])
