"""The value head of upstream's Megatron critic: its one module, without the package around it."""

from __future__ import annotations

import importlib.util
import sys

from ....registry.source.probe import Mentions, Not
from ..feature import megatron

__all__: list[str] = []

_INITIALIZER = "verl.models.mcore.model_initializer"
_HEAD = "verl.models.llama.megatron.layers.parallel_linear"


@megatron.guard(
    f"{_INITIALIZER}:BaseModelInitializer",
    why="Building a critic ends with ModuleNotFoundError: No module named 'flash_attn', because its last layer is in "
    "a package whose other modules import flash_attn, which does not exist on Ascend.",
    how="The one module that is needed is loaded from its file; it does not import flash_attn.",
    link="none: see initialize in verl/models/mcore/model_initializer.py",
    retired_by=Not(Mentions(_INITIALIZER, _HEAD)),
)
def load_the_value_head_without_flash_attn() -> None:
    """Put the value head's module into sys.modules, where upstream imports it from."""
    from ..overrides.installation import package_folder

    folder = package_folder("verl", "models")
    if _HEAD in sys.modules or folder is None or importlib.util.find_spec("flash_attn") is not None:
        return
    spec = importlib.util.spec_from_file_location(_HEAD, folder.joinpath(*_HEAD.split(".")[1:]).with_suffix(".py"))
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[_HEAD] = module
