"""Classes for environment variables. They parse values, and reject invalid values.

Every process that imports torch loads this module. Importing dataclasses or typing would take longer than the whole
module, so it uses plain classes.
"""

from __future__ import annotations

import os

from .language import gettext as _

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


VARIABLES: dict[str, Variable] = {}
"""All variables by name, in the order of their declarations and of the documentation."""

USER, CONTRIBUTOR, INTERNAL = "user", "contributor", "internal"
"""The audiences of variables: users of verl-npu, contributors to it, and its own processes."""


_ANY = 1e6


class Variable:
    """An environment variable. Each subclass stands for one kind of value, and has a method `read` that returns the
    parsed value."""

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
        """What the variable is for, in one line."""
        self.expected = expected
        """A description of the valid values for the error about an invalid value."""
        self.default = default
        self.forwarded = forwarded
        """Whether the variable must be passed to workers. On other hosts, workers inherit nothing from the user's
        shell."""
        self.audience = audience
        VARIABLES[name] = self

    def text(self, environment: Mapping[str, str] | None = None) -> str:
        """Return the value without surrounding spaces. If it is empty, return the default."""
        return (os.environ if environment is None else environment).get(self.name, "").strip() or self.default

    def is_set(self, environment: Mapping[str, str] | None = None) -> bool:
        """Return whether the user set the variable to a value that is not blank."""
        return bool((os.environ if environment is None else environment).get(self.name, "").strip())

    def for_workers(self, text: str) -> str:
        """Return the value that workers get if the user's value is `text`."""
        return text

    def refuse(self, text: str, fix: str = _("correct the value, or unset the variable")) -> Exception:
        """Create the SettingError for an invalid value."""
        from .errors import SettingError

        return SettingError(subject=f"{self.name}={text!r}", expected=self.expected, found=repr(text), fix=fix)


class Text(Variable):
    """A variable whose value is any text."""

    __slots__ = ()

    def read(self, environment: Mapping[str, str] | None = None) -> str:
        """Return the value of the variable as text."""
        return self.text(environment)


class Folder(Text):
    """A variable whose value is a folder. Workers get the absolute path, because their working directories differ."""

    __slots__ = ()

    def for_workers(self, text: str) -> str:
        """Return the absolute path of the folder that `text` names, or `text` itself if it is blank."""
        return os.path.abspath(text.strip()) if text.strip() else text


class Choice(Variable):
    """A variable with a few valid values, in upper or lower case."""

    __slots__ = ("words",)

    def __init__(self, name: str, summary: str, words: tuple[str, ...], *, default: str) -> None:
        expected = _("{words} or {last}").format(words=", ".join(words[:-1]), last=words[-1])
        super().__init__(name, summary, expected=expected, default=default)
        self.words = words

    def read(self, environment: Mapping[str, str] | None = None) -> str:
        """Return the value in lower case. Raises SettingError if the value is not valid."""
        text = self.text(environment)
        if text.lower() not in self.words:
            raise self.refuse(text)
        return text.lower()


class Flag(Choice):
    """A variable whose value is 0 or 1."""

    __slots__ = ()

    def __init__(self, name: str, summary: str) -> None:
        super().__init__(name, summary, ("0", "1"), default="0")

    def read(self, environment: Mapping[str, str] | None = None) -> bool:  # type: ignore[override]  # a flag is a bool
        """Return whether the value is 1. Raises SettingError for a value other than 0 and 1."""
        return super().read(environment) == "1"


class Number(Variable):
    """A variable whose value is a number within limits. If `whole` is set, it must be a whole number."""

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
        # Do not bother the reader with a limit that only excludes absurd values.
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
        """Return the value as a number. Raises SettingError if the value is not a number, or is outside the limits."""
        text = self.text(environment)
        try:
            value = float(int(text)) if self.whole else float(text)
        except ValueError:
            raise self.refuse(text) from None
        # In this form, the condition also refuses NaN.
        if not self.least <= value <= self.most:
            raise self.refuse(text)
        return value


class Names(Variable):
    """A variable whose value is a list of names, separated by commas."""

    __slots__ = ()

    def read(self, environment: Mapping[str, str] | None = None) -> frozenset[str]:
        """Return the names in the variable, without surrounding spaces."""
        return frozenset(filter(None, (name.strip() for name in self.text(environment).split(","))))
