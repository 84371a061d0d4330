"""The language in which commands print text for the user.

Write a text for the user as `_("{count} steps in {path}").format(count=count, path=path)`, where `_` is this module's
`gettext`. The result is a str with the English text, and all other code sees only that: logs, JSON, files, and
comparisons. So a job's log stays English, users can search the web for its lines, and `verl-npu doctor --log` can read
them. Only when a command prints the text does `translate` look up a translation. For that reason, a text can also be a
constant of a module.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from typing import Protocol, SupportsIndex, TypeVar

    Value = TypeVar("Value")

    class Catalogue(Protocol):
        """A set of translations, in the form of the standard library's gettext."""

        def gettext(self, message: str, /) -> str: ...
        def ngettext(self, msgid1: str, msgid2: str, n: int, /) -> str: ...


FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "locale")
"""The folder with the translations. It has a folder for each language, as gettext expects."""
DOMAIN = "verl_npu"
ENGLISH = "en"
CHINESE = "zh_CN"

_LANGUAGES = {"en": ENGLISH, "zh": CHINESE, "zh_CN": CHINESE, "zh_SG": CHINESE, "zh_Hans": CHINESE}
"""The language for each locale, by the locale's name without encoding. Readers of traditional Chinese get English."""
_LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")
"""The environment variables of the locale. The first one that is set is used."""

_catalogues = [(DOMAIN, FOLDER)]
"""The translations of each distribution: the name of the files, and their folder."""
_spoken: Catalogue | None = None
"""The translations in use. None for English."""
_language = ENGLISH
"""The language in use."""


class Message(str):
    """A message for the user. Its string value is the English text. It also holds the parts that are needed to
    translate the message."""

    __slots__ = ("_many", "_number", "_values", "_words")
    _words: str
    _many: str
    _number: int
    _values: dict[str, object]

    @classmethod
    def of(
        cls, text: str, words: str, many: str = "", number: int = 0, values: dict[str, object] | None = None
    ) -> Message:
        """Create a message whose complete English text is `text`. Translations are looked up under the English
        templates: `words` for the singular, and `many` for the plural."""
        made = cls(text)
        made._words, made._many, made._number, made._values = words, many, number, values or {}
        return made

    def said_in(self, catalogue: Catalogue) -> str:
        """Return the text in the language of `catalogue`."""
        if not self._words:  # gettext returns a catalogue's header for an empty string
            return ""
        if self._many:
            words = catalogue.ngettext(self._words, self._many, self._number)
        else:
            words = catalogue.gettext(self._words)
        if not self._values:
            return words
        return _filled(words, {name: translate(value) for name, value in self._values.items()})

    def format(self, *args: object, **values: object) -> Message:
        """Return the text with each placeholder replaced by the argument of the same name."""
        return Message.of(super().format(*args, **values), self._words, self._many, self._number, values)

    def join(self, iterable: Iterable[str], /) -> Message:
        """Join texts with this text as the separator. Each text keeps its own translation."""
        return _Joined.by(self, tuple(iterable))

    def __add__(self, other: str, /) -> Message:
        return _Joined.by("", (self, other))

    def __radd__(self, other: str, /) -> Message:
        return _Joined.by("", (other, self))

    # str() and an f-string of this text alone keep it a Message.
    def __str__(self) -> str:
        return self

    def __format__(self, spec: str, /) -> str:
        return super().__format__(spec) if spec else self

    if TYPE_CHECKING:  # a slice of it is a plain str

        def __getitem__(self, key: SupportsIndex | slice, /) -> str: ...


class _Joined(Message):
    """Several texts that were joined into one."""

    __slots__ = ("_between", "_parts")
    _between: str
    _parts: tuple[str, ...]

    @classmethod
    def by(cls, between: str, parts: tuple[str, ...]) -> Message:
        made = cls(str.join(between, parts))
        made._between, made._parts = between, parts
        return made

    def said_in(self, catalogue: Catalogue) -> str:
        return str.join(translate(self._between), [translate(part) for part in self._parts])

    def format(self, *args: object, **values: object) -> Message:
        raise TypeError("format the parts before they are joined")


def gettext(words: str) -> str:
    """Create a text for the user. Fill in values with `.format(name=value)`. Import this function as `_`."""
    return Message.of(words, words)


def ngettext(one: str, many: str, number: int) -> str:
    """Create a text for the user with a singular and a plural form. The caller fills in all values, including the
    number, with `.format(name=value)`."""
    return Message.of(one if number == 1 else many, one, many, number)


def capitalised(text: str) -> str:
    """Return the text with a capital first letter. This applies only to English; translations stay as they are."""
    return _Capitalised.by("", (text,)) if isinstance(text, Message) else text[:1].upper() + text[1:]


class _Capitalised(_Joined):
    """A text with a capital first letter in English."""

    __slots__ = ()

    @classmethod
    def by(cls, between: str, parts: tuple[str, ...]) -> Message:
        whole = str.join(between, parts)
        made = cls(whole[:1].upper() + whole[1:])
        made._between, made._parts = between, parts
        return made


def _filled(words: str, values: Mapping[str, object]) -> str:
    """Return `words` with its placeholders filled in. The language of a value is known only here, so a space beside a
    placeholder is removed between two Chinese characters, and added between a Chinese and a Latin one."""
    import string

    made = ""
    for before, name, spec, conversion in string.Formatter().parse(words):
        made = _beside(made, before)
        if name is not None:
            field = f"{{{name}{f'!{conversion}' if conversion else ''}{f':{spec}' if spec else ''}}}"
            made = _beside(made, field.format(**values))
    return made


def _beside(left: str, right: str) -> str:
    import re

    chinese, between = r"[\u3001-\u9fff\uff01-\uff5e]", f"{left[-2:]}\0{right[:2]}"
    if re.search(f"{chinese}(?: \0|\0 ){chinese}", between):
        return left.removesuffix(" ") + right.removeprefix(" ")
    spaced = re.search(r"[\u4e00-\u9fff]\0[A-Za-z0-9]|[A-Za-z0-9]\0[\u4e00-\u9fff]", between)
    return f"{left} {right}" if spaced else left + right


def translate(text: Value) -> Value:
    """Return the text in the current language. In English, or if the value is not a Message, return it unchanged."""
    if _spoken is None or not isinstance(text, Message):
        return text
    return text.said_in(_spoken)  # type: ignore[return-value]  # a Message is a str, and so is the result


def is_english() -> bool:
    """Return whether the current language is English."""
    return _spoken is None


def chosen(asked: str, environ: Mapping[str, str]) -> str:
    """Return the language that the user requested or, if the user requested none, the language of the locale. If there
    are no translations into this language, return English.

    `asked` is the name of a locale. Its encoding is ignored.
    """
    name = asked or next((environ[each] for each in _LOCALE if environ.get(each)), "")
    return _LANGUAGES.get(name.partition(".")[0].partition("@")[0].replace("-", "_"), ENGLISH)


def add_catalogue(domain: str, folder: str) -> None:
    """Add the translations of another distribution. If a language other than English is in use, the new translations
    are used at once."""
    global _spoken
    if (domain, folder) in _catalogues:
        return
    _catalogues.append((domain, folder))
    if _language != ENGLISH and _spoken is not None:
        _spoken = _catalogue(_language)


def _catalogue(language: str) -> Catalogue:
    # Imported here, because every process that imports torch loads this module, and those speak English.
    import gettext as standard
    import sys

    read: list[standard.NullTranslations] = []
    for domain, folder in _catalogues:
        try:
            read.append(standard.translation(domain, folder, [language]))
        except Exception as error:
            # A damaged file can make gettext raise anything. Fall back to English.
            why = f"{type(error).__name__}: {error}; install it again"
            if sys.stderr is not None:
                sys.stderr.write(f"verl-npu: the translation of {domain} cannot be read: {why}\n")
    first, *others = read or [standard.NullTranslations()]
    for other in others:
        first.add_fallback(other)
    return first


def speaking(language: str) -> AbstractContextManager[None]:
    """Return a context manager that makes `language` the current language. `language` must be a result of `chosen`."""
    return speaking_by(None if language == ENGLISH else _catalogue(language), language)


def speaking_to_the_user(asked: str) -> AbstractContextManager[None]:
    """Return a context manager that sets the current language to the language that the user requested, or otherwise to
    the language of the locale. If standard output cannot encode that language, English is used."""
    import sys

    language = chosen(asked, os.environ)
    try:
        "中文".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        language = ENGLISH
    return speaking(language)


def speaking_by(catalogue: Catalogue | None, language: str = ENGLISH) -> AbstractContextManager[None]:
    """Return a context manager that makes the language of `catalogue` the current language. Without a catalogue, the
    language is English."""
    from contextlib import contextmanager

    @contextmanager
    def spoken() -> Iterator[None]:
        global _spoken, _language
        before, (_spoken, _language) = (_spoken, _language), (catalogue, language)
        try:
            yield
        finally:
            _spoken, _language = before

    return spoken()
