"""The launch scripts of Ascend's support table, as jobs of smoke.sh."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from harness.pins import SCRIPTS

RECIPES = SCRIPTS / "recipes"


def rehearsal_of(words: Sequence[str]) -> list[str]:
    """If --job names a recipe, translate the arguments of smoke.sh to arguments of rehearse.sh. Otherwise, return an
    empty list."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--job", default="")
    asked, others = parser.parse_known_args(list(words))
    script: Path = RECIPES / f"{asked.job}.sh"
    return [str(script), *others] if asked.job == script.stem and script.is_file() else []
