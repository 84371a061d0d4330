"""The configurations that upstream makes of a model's for Megatron."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TypeVar

from ....registry.source.probe import Mentions, Never
from ..feature import megatron

__all__: list[str] = []

_DEEPSEEK = "verl.models.mcore.config_converter:hf_to_mcore_config_dpskv3"
_SET = "set_experimental_flag"

Result = TypeVar("Result")


@megatron.wrap(
    _DEEPSEEK,
    why="A Megatron worker of DeepSeek-V3 or Moonlight without mbridge, and the converter of checkpoints, end with "
    "ImportError: cannot import name 'set_experimental_flag' from 'megatron.core.config': Megatron 0.12.1, which the "
    "guide for Ascend and recipe/r1_ascend name, has the flag and no function that sets it.",
    how="Megatron's module gets the function for the call, if it lacks one: it sets the flag.",
    link="https://github.com/verl-project/verl/pull/3975",
    retired_by=Never("later pins name a Megatron that has the function, and upstream still calls it"),
    requires=Mentions(_DEEPSEEK, _SET),
)
def set_the_experimental_flag_of_an_older_megatron(
    original: Callable[..., Result], *args: object, **kwargs: object
) -> Result:
    """Return Megatron's configuration of DeepSeek-V3."""
    flags = importlib.import_module("megatron.core.config")
    if hasattr(flags, _SET):
        return original(*args, **kwargs)

    def set_experimental_flag(flag: bool) -> None:
        vars(flags)["ENABLE_EXPERIMENTAL"] = flag

    vars(flags)[_SET] = set_experimental_flag
    try:
        return original(*args, **kwargs)
    finally:
        del vars(flags)[_SET]
