"""Whether the micro batches of a job keep to their token budget."""

from __future__ import annotations

import os
from pathlib import Path

from .. import environment
from ..features.micro_batches.feature import BOUNDED_UPSTREAM
from ..registry.source.tree import SourceTree
from ..rehearse.trainer import Trainer

__all__ = ["keeps_budget"]

_VERL = ("verl",)


def keeps_budget(trainer: Trainer, tree: Path) -> bool:
    """Whether the script's verl does so by itself, or `VERL_NPU_TOKEN_BUDGET=1` has it do so.

    Otherwise verl makes as few micro batches as their tokens need, some of which then hold more. A tree without verl
    is started with the one that is installed.
    """
    asked = environment.TOKEN_BUDGET.read({**os.environ, **trainer.exports})
    if asked:
        return True
    # A folder of that name may be a clone, which is no package.
    has_verl = (tree / _VERL[0] / "__init__.py").is_file()
    return BOUNDED_UPSTREAM.holds(SourceTree.at(tree, _VERL) if has_verl else SourceTree.installed(_VERL))
