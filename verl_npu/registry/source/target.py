"""A target: the one place in an upstream that a patch changes, written `module:qualname`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import DeclarationError

_SYNTAX = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<qualname>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """`module:qualname`, for example `verl.trainer.main_ppo:run_ppo` or `pkg.mod:Class.method`."""

    module: str
    qualname: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read `module:qualname`. Raises DeclarationError for anything else."""
        match = _SYNTAX.fullmatch(text)
        if match is None:
            raise DeclarationError(
                subject=f"target {text!r}",
                expected="module:qualname, for example package.module:Class.method",
                found="something else",
                fix="write the module, a colon, and the name within the module",
            )
        return cls(match["module"], match["qualname"])

    @property
    def package(self) -> str:
        """The top-level package."""
        return self.module.partition(".")[0]

    @property
    def owner(self) -> str:
        """The qualified name of the class that holds the target; empty for a module's own name."""
        return self.qualname.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The last part of the qualified name."""
        return self.qualname.rpartition(".")[2]

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}"
