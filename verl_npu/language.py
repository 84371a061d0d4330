"""The language in which the commands speak to a person.

A text for a person is written `_("{count} steps in {path}").format(count=count, path=path)`, where `_` is this
module's `gettext`. Such a text *is* its English words: in a log, in JSON, in a file and in a comparison it is those
and nothing else, so what a job writes stays English, is found by who searches for it, and is read by
`verl-npu doctor --log`. Only where a command prints it, `translate` gives its translation, if the command speaks
another language. A catalogue is therefore looked up late, and texts can be constants of a module.
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
        """What the standard library's gettext makes of a catalogue."""

        def gettext(self, message: str, /) -> str: ...
        def ngettext(self, msgid1: str, msgid2: str, n: int, /) -> str: ...


FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "locale")
"""The catalogues: one folder for each language, as gettext wants them."""
DOMAIN = "verl_npu"
ENGLISH = "en"
CHINESE = "zh_CN"

_LANGUAGES = {"en": ENGLISH, "zh": CHINESE, "zh_CN": CHINESE, "zh_SG": CHINESE, "zh_Hans": CHINESE}
"""By the names of locales, without their encodings. Those who write traditional characters get English."""
_LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")
"""The variables of the locale; the first that is set decides."""

_catalogues = [(DOMAIN, FOLDER)]
"""Where the catalogues of each distribution are: the name of their files, and their folder."""
_spoken: Catalogue | None = None
"""None is English."""
_language = ENGLISH
"""What `speaking` speaks."""


class Message(str):
    """A text for a person: its English words, with what is needed to say it in another language."""

    __slots__ = ("_many", "_number", "_values", "_words")
    _words: str
    _many: str
    _number: int
    _values: dict[str, object]

    @classmethod
    def of(
        cls, text: str, words: str, many: str = "", number: int = 0, values: dict[str, object] | None = None
    ) -> Message:
        """Return what reads `text` in English, and is translated by its `words`, or by `many` of them."""
        made = cls(text)
        made._words, made._many, made._number, made._values = words, many, number, values or {}
        return made

    def said_in(self, catalogue: Catalogue) -> str:
        """Return it in the language of a catalogue."""
        if not self._words:  # the catalogue's own head is what gettext has for an empty text
            return ""
        if self._many:
            words = catalogue.ngettext(self._words, self._many, self._number)
        else:
            words = catalogue.gettext(self._words)
        return (
            words.format(**{name: translate(value) for name, value in self._values.items()}) if self._values else words
        )

    def format(self, *args: object, **values: object) -> Message:
        """Put values into it, by their names."""
        return Message.of(super().format(*args, **values), self._words, self._many, self._number, values)

    def join(self, iterable: Iterable[str], /) -> Message:
        """Join texts by it; each is translated by itself."""
        return _Joined.by(self, tuple(iterable))

    def __add__(self, other: str, /) -> Message:
        return _Joined.by("", (self, other))

    def __radd__(self, other: str, /) -> Message:
        return _Joined.by("", (other, self))

    # str() and an f-string that holds nothing else keep it what it is.
    def __str__(self) -> str:
        return self

    def __format__(self, spec: str, /) -> str:
        return super().__format__(spec) if spec else self

    if TYPE_CHECKING:  # what is cut out of it is a plain text

        def __getitem__(self, key: SupportsIndex | slice, /) -> str: ...


class _Joined(Message):
    """Several texts in one."""

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
    """Return a text for a person; values are put in by `.format(name=value)`. To be imported as `_`."""
    return Message.of(words, words)


def ngettext(one: str, many: str, number: int) -> str:
    """Return a text that depends on a number; values, the number among them, are put in by `.format(name=value)`."""
    return Message.of(one if number == 1 else many, one, many, number)


def capitalised(text: str) -> str:
    """Return a text that begins with a capital in English; a translation is as it stands."""
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
    """Return a text in the language that is spoken; what is no Message, and every text in English, is itself."""
    if _spoken is None or not isinstance(text, Message):
        return text
    return text.said_in(_spoken)  # type: ignore[return-value]  # a Message is a str, and so is what is returned


def is_english() -> bool:
    """Whether English is spoken."""
    return _spoken is None


def chosen(asked: str, environ: Mapping[str, str]) -> str:
    """Return the language for what the user asked for, or without that for the locale; English if there is no other.

    A name is that of a locale: its encoding does not count.
    """
    name = asked or next((environ[each] for each in _LOCALE if environ.get(each)), "")
    return _LANGUAGES.get(name.partition(".")[0].partition("@")[0].replace("-", "_"), ENGLISH)


def add_catalogue(domain: str, folder: str) -> None:
    """Have texts looked up in the catalogues of another distribution, too: at once, if a language is being spoken."""
    global _spoken
    if (domain, folder) in _catalogues:
        return
    _catalogues.append((domain, folder))
    if _language != ENGLISH and _spoken is not None:
        _spoken = _catalogue(_language)


def _catalogue(language: str) -> Catalogue:
    # Imported here: this module is part of every process that imports torch, and those speak English.
    import gettext as standard
    import sys

    read: list[standard.NullTranslations] = []
    for domain, folder in _catalogues:
        try:
            read.append(standard.translation(domain, folder, [language]))
        except Exception as error:
            # gettext raises what comes its way of a damaged file. English says the same.
            why = f"{type(error).__name__}: {error}; install it again"
            if sys.stderr is not None:
                sys.stderr.write(f"verl-npu: the translation of {domain} cannot be read: {why}\n")
    first, *others = read or [standard.NullTranslations()]
    for other in others:
        first.add_fallback(other)
    return first


def speaking(language: str) -> AbstractContextManager[None]:
    """Speak a language meanwhile, one of those that `chosen` returns."""
    return speaking_by(None if language == ENGLISH else _catalogue(language), language)


def speaking_to_the_user(asked: str) -> AbstractContextManager[None]:
    """Speak the language that is asked for, or else the locale's, meanwhile, if standard output can show it."""
    import sys

    language = chosen(asked, os.environ)
    try:
        "中文".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        language = ENGLISH
    return speaking(language)


def speaking_by(catalogue: Catalogue | None, language: str = ENGLISH) -> AbstractContextManager[None]:
    """Speak the language of a catalogue meanwhile; without one, English."""
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
