"""Runs one stage in this process: STAGE RECORD SCRATCH NPUS SECONDS, and further arguments for the stage.

The training stage takes a script and its arguments.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

from ..clock import Clock
from ..record import NotPossible, Recorder
from .setup import Setup

_PART = 0.85
"""The fraction of a stage's time after which no check begins. A check that is already running can use the rest."""


def main() -> None:
    """Run the stage."""
    name, record, scratch, npus, seconds = sys.argv[1:6]
    ends = float(seconds)
    recipe = tuple(sys.argv[6:]) if name == "training" else ()
    with Clock() as clock, closing(Recorder(Path(record), _PART * ends, clock.now)) as recorder:
        setup = Setup(record=recorder, scratch=Path(scratch), asked=int(npus), ends=ends, now=clock.now, recipe=recipe)
        try:
            importlib.import_module(f"{__package__}.{name}").run(setup)
        except NotPossible as error:
            recorder.check("what it needs", partial(_refuse, error))


def _refuse(why: NotPossible) -> str:
    raise why


if __name__ == "__main__":
    main()
