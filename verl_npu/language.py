"""The language in which the commands speak to a person.

Write a text for a person as `_("{count} steps in {path}").format(count=count, path=path)`, where `_` is this module's
`gettext`. Such a text *is* its English words: logs, JSON, files, and comparisons see nothing else. So a job's log
stays English: people can search for it, and `verl-npu doctor --log` can read it. `translate` looks a translation up
only when a command prints the text. Because the catalogue is read that late, a text can be a module's constant.
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
        """The standard library's gettext translations."""

        def gettext(self, message: str, /) -> str: ...
        def ngettext(self, msgid1: str, msgid2: str, n: int, /) -> str: ...


FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "locale")
"""The folder of the catalogues, with one folder for each language, as gettext expects."""
DOMAIN = "verl_npu"
ENGLISH = "en"
CHINESE = "zh_CN"

_LANGUAGES = {"en": ENGLISH, "zh": CHINESE, "zh_CN": CHINESE, "zh_SG": CHINESE, "zh_Hans": CHINESE}
"""Languages by the names of locales without encodings. Readers of traditional characters get English."""
_LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")
"""The variables of the locale; the first one that is set decides."""

_catalogues = [(DOMAIN, FOLDER)]
"""The catalogues of each distribution: the name of the files, and their folder."""
_spoken: Catalogue | None = None
"""The catalogue in use; None for English."""
_language = ENGLISH
"""The language in use."""


class Message(str):
    """A text for a person: its English words, and the parts needed to translate it."""

    __slots__ = ("_many", "_number", "_values", "_words")
    _words: str
    _many: str
    _number: int
    _values: dict[str, object]

    @classmethod
    def of(
        cls, text: str, words: str, many: str = "", number: int = 0, values: dict[str, object] | None = None
    ) -> Message:
        """Return a Message that reads `text` in English. `words` and the plural `many` are its keys in a catalogue."""
        made = cls(text)
        made._words, made._many, made._number, made._values = words, many, number, values or {}
        return made

    def said_in(self, catalogue: Catalogue) -> str:
        """Return the text in the language of a catalogue."""
        if not self._words:  # gettext returns a catalogue's header for an empty text
            return ""
        if self._many:
            words = catalogue.ngettext(self._words, self._many, self._number)
        else:
            words = catalogue.gettext(self._words)
        return (
            words.format(**{name: translate(value) for name, value in self._values.items()}) if self._values else words
        )

    def format(self, *args: object, **values: object) -> Message:
        """Fill in values by name."""
        return Message.of(super().format(*args, **values), self._words, self._many, self._number, values)

    def join(self, iterable: Iterable[str], /) -> Message:
        """Join texts; each keeps its own translation."""
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
    """Several texts joined into one."""

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
    """Return a text for a person; fill in values with `.format(name=value)`. Import it as `_`."""
    return Message.of(words, words)


def ngettext(one: str, many: str, number: int) -> str:
    """Return a text that depends on a number; fill in all values, the number too, with `.format(name=value)`."""
    return Message.of(one if number == 1 else many, one, many, number)


def capitalised(text: str) -> str:
    """Return the text with a capital first letter in English; a translation stays as it is."""
    return _Capitalised.by("", (text,)) if isinstance(text, Message) else text[:1].upper() + text[1:]


class _Capitalised(_Joined):
    """A text that begins a sentence."""

    __slots__ = ()

    @classmethod
    def by(cls, between: str, parts: tuple[str, ...]) -> Message:
        whole = str.join(between, parts)
        made = cls(whole[:1].upper() + whole[1:])
        made._between, made._parts = between, parts
        return made


def translate(text: Value) -> Value:
    """Return the text in the current language; English texts and values that are no Message are returned unchanged."""
    if _spoken is None or not isinstance(text, Message):
        return text
    return text.said_in(_spoken)  # type: ignore[return-value]  # a Message is a str, and so is the result


def is_english() -> bool:
    """Tell whether the current language is English."""
    return _spoken is None


def chosen(asked: str, environ: Mapping[str, str]) -> str:
    """Return the language that the user asked for, or else the locale's; English if we have no other.

    `asked` is the name of a locale; its encoding is ignored.
    """
    name = asked or next((environ[each] for each in _LOCALE if environ.get(each)), "")
    return _LANGUAGES.get(name.partition(".")[0].partition("@")[0].replace("-", "_"), ENGLISH)


def add_catalogue(domain: str, folder: str) -> None:
    """Also look texts up in the catalogues of another distribution, at once if another language is in use."""
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
    """Use a language within the context; `language` is one that `chosen` returns."""
    return speaking_by(None if language == ENGLISH else _catalogue(language), language)


def speaking_to_the_user(asked: str) -> AbstractContextManager[None]:
    """Use the language that the user asked for, or else the locale's, if standard output can encode it."""
    import sys

    language = chosen(asked, os.environ)
    try:
        "中文".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        language = ENGLISH
    return speaking(language)


def speaking_by(catalogue: Catalogue | None, language: str = ENGLISH) -> AbstractContextManager[None]:
    """Use the language of a catalogue within the context; without a catalogue, English."""
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
