"""What the proof of a sync came to, and the page that says all of it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .... import environment
from ....errors import EngineError
from ....reporting import warn
from .difference import Difference

__all__ = ["Verdict"]

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a proof has shown of one engine worker."""

    compared: int
    """How many tensors of the engine were compared."""
    differences: tuple[Difference, ...]
    unknown: Mapping[str, str]
    """The engine's tensors that could not be compared, and why."""

    def __str__(self) -> str:
        held = "the engine holds them bit for bit"
        return f"{held}, but for {len(self.unknown)} that were not compared" if self.unknown else held

    def require(self) -> None:
        """Raise EngineError if the engine does not hold what was sent; warn of what could not be compared.

        The error names the first differences, and the page with all of them, which is written to the folder of the
        manifests if the job has one.
        """
        if self.unknown:
            name, why = next(iter(self.unknown.items()))
            warn(
                f"the proof of the rollout engine's weights leaves out {len(self.unknown)} tensors, and compares "
                f"{self.compared}. The first that it leaves out is {name}: {why}"
            )
        if not self.differences:
            return
        more = len(self.differences) - SHOWN
        shown = "; ".join(str(each) for each in self.differences[:SHOWN]) + (f" and {more} more" if more > 0 else "")
        raise EngineError(
            subject="rollout engine",
            expected="the weights that were sent",
            found=f"differences ({len(self.differences)}): {shown}",
            fix=f"do not train with this rollout; {self._write()}",
        )

    def page(self) -> str:
        """Return all differences, and all that could not be compared, as text."""
        lines = [f"{self.compared} tensors of the rollout engine were compared with what was sent.", ""]
        for each in self.differences:
            lines += [f"- {each.source or 'nothing'} -> {each.parameter or 'no parameter'}", f"  {each.found}"]
        if self.unknown:
            lines += ["", "These could not be compared:"]
            lines += [f"- {name}: {why}" for name, why in self.unknown.items()]
        return "\n".join([*lines, ""])

    def _write(self) -> str:
        folder = environment.MANIFEST_DIR.read()
        if not folder:
            return f"with {environment.MANIFEST_DIR.name}=FOLDER a page with all differences is written there"
        path = Path(folder) / f"weights-{socket.gethostname()}-{os.getpid()}.txt"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.page(), encoding="utf-8")
        except OSError as error:
            return f"the page with all differences could not be written: {error}"
        return f"all differences are in {path}"
