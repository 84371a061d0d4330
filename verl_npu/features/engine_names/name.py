"""One name of vLLM or vllm-ascend: where it is, who relies on it, and what happens without it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["NEVER", "Form", "Name"]

NEVER = "never"
"""As `since`: no release has the name, and verl-npu relies on that."""


class Form(Enum):
    """How a source has a name."""

    MODULE = "is a module"
    DEFINED = "is defined"
    SET = "is set on the instances of a class, or in the class"
    READ = "is read by a module"


@dataclass(frozen=True, slots=True)
class Name:
    """A name, with the releases that must have it."""

    title: str
    places: tuple[str, ...]
    """Where it may be; one place suffices. A module, or `module:qualname`; for `Form.READ` what follows the colon is
    the text that the module reads."""
    uses: tuple[str, ...]
    """Which of our modules rely on it, and by which word: `features.rollout.release:__version__`."""
    absent: str
    """What happens if it is not there."""
    form: Form = Form.DEFINED
    arguments: int | None = None
    """The number of positional arguments that it is called with, without `self`; None if it is not called."""
    since: str = "0.7.3"
    """The first recorded release that has it, or `NEVER`."""
    before: str = ""
    """The first recorded release that no longer has it; empty if the newest has it."""

    @property
    def package(self) -> str:
        """`vllm` or `vllm_ascend`."""
        return self.places[0].partition(":")[0].partition(".")[0]

    def expected_in(self, release: str) -> bool:
        """Return whether a release must have it. Raises packaging's InvalidVersion if `release` is not a version."""
        from packaging.version import Version

        version = Version(release)
        if self.since == NEVER:
            return False
        return version >= Version(self.since) and not (self.before and version >= Version(self.before))
