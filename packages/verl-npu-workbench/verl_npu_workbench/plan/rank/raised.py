"""The errors that upstream raises, with the lines of upstream that raise them."""

from __future__ import annotations

import traceback
from pathlib import Path

_SHOWN_PACKAGES = ("vllm", "vllm_ascend", "sglang", "megatron", "mindspeed", "mbridge", "verl_npu")
"""Packages, besides verl, whose source lines may be shown to the user."""
SCRIPT_PACKAGES = ("verl", "recipe")
"""Packages that come with the script's own revision. If one of their modules is missing here, it is missing in the
job, too."""


def root(raised: BaseException) -> BaseException:
    """Return the original error if Hydra wrapped it in an error of its own."""
    while type(raised).__module__.startswith("hydra.") and raised.__cause__ is not None:
        raised = raised.__cause__
    return raised


def told(raised: BaseException, tree: str) -> tuple[str, str, str]:
    """Return the error, and the place and the text of the innermost line of upstream's code in its traceback."""
    error = root(raised)
    # Hydra's own error has the line of upstream that asked it to make an object.
    frames = [frame for each in (raised, error) for frame in traceback.extract_tb(each.__traceback__)]
    shown = [frame for frame in frames if _is_shown(frame.filename, tree)] or frames[-1:]
    where = f"{shown[-1].filename}:{shown[-1].lineno}" if shown else ""
    return text_of(error), where, (shown[-1].line or "") if shown else ""


def _is_shown(file: str, tree: str) -> bool:
    packages = Path(file).parts
    return "verl_npu_workbench" not in packages and (
        bool({*SCRIPT_PACKAGES, *_SHOWN_PACKAGES} & {*packages}) or Path(file).is_relative_to(tree)
    )


def text_of(raised: BaseException) -> str:
    """Return the type and the message of an error."""
    error = root(raised)
    return f"{type(error).__name__}: {error}".removesuffix(": ")
