"""What the user has decided about features: off, by force, or strict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import DeclarationError

__all__ = ["Policy"]


@dataclass(frozen=True, slots=True)
class Policy:
    """The switches of a registry, as its user set them."""

    prefix: str
    """What the names of the environment variables begin with: `<prefix>_STRICT`, `_FORCE`, `_DISABLE`."""
    command: str = ""
    """The command that shows drift in detail, for the error that names it."""
    strict: bool = False
    """Drift and failure raise, in the import that meets them."""
    force: frozenset[str] = frozenset()
    """Features that are applied although they drifted; the summary is tainted."""
    disable: frozenset[str] = frozenset()
    """Features that are left out."""

    def check(self, known: Iterable[str]) -> None:
        """Raise DeclarationError where a switch names no feature."""
        names = sorted(known)
        for switch, chosen in (("FORCE", self.force), ("DISABLE", self.disable)):
            unknown = sorted(chosen - set(names))
            if unknown:
                raise DeclarationError(
                    subject=f"{self.prefix}_{switch}",
                    expected=f"names among {', '.join(names)}, separated by commas",
                    found=", ".join(unknown),
                    fix="correct it or leave it out",
                )

    def override(self, feature: str) -> str:
        """What the user sets to have `feature` applied regardless."""
        return f"{self.prefix}_FORCE={feature}"
