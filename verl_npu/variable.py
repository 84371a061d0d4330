"""The kinds of environment variables: what each may hold, and the error for what it may not.

This module is part of every process that imports torch, so it imports neither dataclasses nor typing, which would cost
more than the module itself: the classes are plain ones for that reason.
"""

from __future__ import annotations

import os

from .language import gettext as _

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


VARIABLES: dict[str, Variable] = {}
"""All variables by name, in the order in which they are declared and the documents list them."""

USER, CONTRIBUTOR, INTERNAL = "user", "contributor", "internal"
"""For whom a variable is: users of verl-npu, those who work on it, or its own processes among themselves."""


_ANY = 1e6


class Variable:
    """One environment variable. Its subclasses know what it may hold, and their `read` gives it parsed."""

    __slots__ = ("audience", "default", "expected", "forwarded", "name", "summary")

    def __init__(
        self,
        name: str,
        summary: str,
        *,
        expected: str,
        default: str = "",
        forwarded: bool = True,
        audience: str = USER,
    ) -> None:
        self.name = name
        self.summary = summary
        """What it does, in one line."""
        self.expected = expected
        """What it may hold, as the error for a wrong value says it."""
        self.default = default
        self.forwarded = forwarded
        """Whether workers must be given it: on other hosts they inherit nothing from the shell of the user."""
        self.audience = audience
        VARIABLES[name] = self

    def text(self, environment: Mapping[str, str] | None = None) -> str:
        """Return its text without the blanks around it, and the default where nothing else is left."""
        return (os.environ if environment is None else environment).get(self.name, "").strip() or self.default

    def is_set(self, environment: Mapping[str, str] | None = None) -> bool:
        """Whether the user gave it a text other than blanks."""
        return bool((os.environ if environment is None else environment).get(self.name, "").strip())

    def for_workers(self, text: str) -> str:
        """Return what workers are given for this text of the user."""
        return text

    def refuse(self, text: str, fix: str = _("correct it or leave it out")) -> Exception:
        """Return the SettingError for a text that is not understood."""
        from .errors import SettingError

        return SettingError(subject=f"{self.name}={text!r}", expected=self.expected, found=repr(text), fix=fix)


class Text(Variable):
    """Any text."""

    __slots__ = ()

    def read(self, environment: Mapping[str, str] | None = None) -> str:
        """Return its text."""
        return self.text(environment)


class Folder(Text):
    """A folder. Workers are given its absolute path, since they run in folders of their own."""

    __slots__ = ()

    def for_workers(self, text: str) -> str:
        """Return the absolute path."""
        return os.path.abspath(text.strip()) if text.strip() else text


class Choice(Variable):
    """One of a few words, in upper or lower case."""

    __slots__ = ("words",)

    def __init__(self, name: str, summary: str, words: tuple[str, ...], *, default: str) -> None:
        expected = _("{words} or {last}").format(words=", ".join(words[:-1]), last=words[-1])
        super().__init__(name, summary, expected=expected, default=default)
        self.words = words

    def read(self, environment: Mapping[str, str] | None = None) -> str:
        """Return the word in lower case. Raises SettingError for any other."""
        text = self.text(environment)
        if text.lower() not in self.words:
            raise self.refuse(text)
        return text.lower()


class Flag(Choice):
    """0 or 1."""

    __slots__ = ()

    def __init__(self, name: str, summary: str) -> None:
        super().__init__(name, summary, ("0", "1"), default="0")

    def read(self, environment: Mapping[str, str] | None = None) -> bool:  # type: ignore[override]  # a flag is a bool
        """Return whether it is 1. Raises SettingError for a text that is neither 0 nor 1."""
        return super().read(environment) == "1"


class Number(Variable):
    """A number within limits; a whole one if `whole` is set."""

    __slots__ = ("least", "most", "unit", "whole")

    def __init__(
        self,
        name: str,
        summary: str,
        *,
        unit: str,
        default: str,
        least: float,
        most: float,
        whole: bool = False,
    ) -> None:
        kind = _("a whole number") if whole else _("a number")
        # A limit that only keeps out what cannot be meant is not worth a reader's time.
        limits = (
            _("from {least:g} to {most:g}").format(least=least, most=most)
            if most < _ANY
            else _("above {least:g}").format(least=0 if least < 1e-2 else least)
        )
        expected = _("{kind} of {unit} {limits}") if unit else _("{kind} {limits}")
        expected = expected.format(kind=kind, unit=unit, limits=limits)
        super().__init__(name, summary, expected=expected, default=default)
        self.unit = unit
        self.least = least
        self.most = most
        self.whole = whole

    def read(self, environment: Mapping[str, str] | None = None) -> float:
        """Return the number. Raises SettingError for a text that is none, or one outside the limits."""
        text = self.text(environment)
        try:
            value = float(int(text)) if self.whole else float(text)
        except ValueError:
            raise self.refuse(text) from None
        # Written so that a NaN, which compares with nothing, is refused as well.
        if not self.least <= value <= self.most:
            raise self.refuse(text)
        return value


class Names(Variable):
    """Names separated by commas."""

    __slots__ = ()

    def read(self, environment: Mapping[str, str] | None = None) -> frozenset[str]:
        """Return the names; blanks around them do not count."""
        return frozenset(filter(None, (name.strip() for name in self.text(environment).split(","))))
