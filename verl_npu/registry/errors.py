"""Errors that say what they are about, what was expected, what was found, how to mend it, and how to override it."""

from __future__ import annotations


class RegistryError(RuntimeError):
    """The base of all errors of the registry; its text is one line."""

    def __init__(self, *, subject: str, expected: str, found: str, fix: str, override: str = "") -> None:
        self.subject = subject
        self.expected = expected
        self.found = found
        self.fix = fix
        self.override = override
        super().__init__(str(self))

    def __str__(self) -> str:
        line = f"{self.subject}: expected {self.expected}, found {self.found}; {self.fix}"
        return f"{line} (override: {self.override})" if self.override else line

    # RuntimeError's own reduction would call __init__ with the text alone: a Ray worker could not report us.
    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.subject, self.expected, self.found, self.fix, self.override))


def _rebuild(
    kind: type[RegistryError], subject: str, expected: str, found: str, fix: str, override: str
) -> RegistryError:
    return kind(subject=subject, expected=expected, found=found, fix=fix, override=override)


class DeclarationError(RegistryError):
    """A patch, feature or target is declared wrongly."""


class ConflictError(RegistryError):
    """Two patches want the same target."""


class DriftError(RegistryError):
    """An upstream is not what a patch was written for."""


class ApplyError(RegistryError):
    """A verified patch could not be applied to the live object."""


class LockError(RegistryError):
    """A lock file cannot be read or does not fit."""


class SourceError(RegistryError):
    """A source tree, wheel or module cannot be read."""
