"""Copies of a model's classes that nobody else has: verl patches those of transformers in the trainer's process.

A patch of verl's or ours changes a class of transformers for the whole process. The trainer wants that, and an engine
that generates in the same process must not have it: with `use_fused_kernels` a patched forward returns no logits.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

import torch

from ...errors import RolloutError

__all__ = ["own_class", "own_modules"]

PREFIX = "_verl_npu_rollout_"


def own_class(public: type) -> type:
    """The class of the same name from a second import of the file that defines it.

    Raises:
        RolloutError: the class is not in the file of its module.
    """
    if _is_own(public.__module__):
        return public
    found = getattr(_own_module(public.__module__), public.__name__, None)
    if not isinstance(found, type):
        raise RolloutError(
            subject=f"the class {public.__name__} for the virtual rollout engine",
            expected=f"it in the source of {public.__module__}",
            found="none: it was made while the program ran",
            fix="use a model whose class is defined in a module, or a vLLM for the CPU",
        )
    return found


def own_modules(model: torch.nn.Module) -> None:
    """Give each part of the model its class's own copy, if transformers or the model's own files define that class.

    A model takes parts from other models' modules, by import or through AutoModel.
    """
    for part in model.modules():
        module = type(part).__module__
        if _defines_models(module) and not _is_own(module):
            part.__class__ = own_class(type(part))


def _own_module(name: str) -> ModuleType:
    parent, _, last = name.rpartition(".")
    # In the same package, so that its relative imports hold.
    own = f"{parent}.{PREFIX}{last}"
    if own in sys.modules:
        return sys.modules[own]
    public = importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(own, public.__file__)
    if spec is None or spec.loader is None:
        raise ImportError(f"{name} has no source file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[own] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[own]
        raise
    return module


def _is_own(module: str) -> bool:
    return module.rpartition(".")[2].startswith(PREFIX)


def _defines_models(module: str) -> bool:
    last = module.rpartition(".")[2]
    return last.startswith("modeling_") and module.startswith(("transformers.models.", "transformers_modules."))
