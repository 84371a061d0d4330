"""MindSpeed itself: imported only where it can work, asked only for what it knows, and left in one piece."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...registry.source.probe import AllOf, Defines, Mentions, Never, Not
from .feature import megatron
from .installation import package_folder
from .settlement import put_in_force
from .snapshot import drop_dummies, own_functions_kept

__all__ = ["absent"]

_FEATURES = Defines("mindspeed.features_manager:create_features_list")
_FLASH_ATTN = "flash_attn"
_INSTALLED_BY = {"megatron.core": "megatron-core", "triton": "triton-ascend"}
# What some revisions import on import: the package, the file that leads to it, and a mark in that file.
_IMPORTS = (
    ("einops", "megatron_adaptor.py", ""),
    ("triton", "features_manager/megatron_basic/requirements_basic.py", "mindspeed.ops.triton"),
    ("scipy", "features_manager/transformer/experimental_attention_variant/dsa.py", "dsa_matrix_naive"),
)
_BASICS = "mindspeed.features_manager.megatron_basic.requirements_basic"


@megatron.guard(
    "mindspeed.megatron_adaptor:patch_features",
    why="MindSpeed changes torch first and imports Megatron after, and upstream hides the ImportError and runs on",
    how="what it imports later is looked for before it is executed, so that an ImportError leaves torch as it was",
    link="none: see the order of imports in MindSpeed's mindspeed/megatron_adaptor.py",
    retired_by=Never("every revision imports torch_npu.contrib.transfer_to_npu or patches torch before Megatron"),
)
def all_is_there() -> None:
    """Raise ImportError where MindSpeed would fail half way."""
    missing = absent(package_folder("mindspeed", "features_manager"))
    if missing:
        raise ImportError(
            f"mindspeed.megatron_adaptor is not executed: expected {' and '.join(missing)} beside MindSpeed, found "
            "none, and MindSpeed would have changed torch before noticing; "
            f"pip install {' '.join(_INSTALLED_BY.get(name, name) for name in missing)}, in the versions that this "
            "MindSpeed is for (override: VERL_NPU_DISABLE=megatron)",
            name=missing[0],
        )


def absent(mindspeed: Path | None) -> list[str]:
    """The packages that the MindSpeed in this folder imports whenever it is imported, and that are not here."""
    missing = [] if package_folder("megatron", "core") is not None else ["megatron.core"]
    for package, file, mark in _IMPORTS:
        path = mindspeed / file if mindspeed is not None else None
        wanted = path is not None and path.is_file() and mark in path.read_text()
        if wanted and importlib.util.find_spec(package) is None:
            missing.append(package)
    return missing


@megatron.wrap(
    "mindspeed.megatron_adaptor:repatch",
    why="repatch swallows unknown keys, keeps every key for ever, and when a feature raises leaves half of it applied",
    how="keys, types and combinations are checked first; a second worker adds nothing silently; a failure is undone",
    link="none: see repatch in MindSpeed's mindspeed/megatron_adaptor.py",
    retired_by=Never("no revision checks what it is given"),
    requires=_FEATURES,
)
def checked_repatch(original: Callable[..., Any], args: Any) -> None:
    """Put the overrides of the asking worker in force. Raises OverrideError, SettledError or RepatchError."""
    put_in_force(original, args)


@megatron.wrap(
    "mindspeed.args_utils:get_full_args",
    why="where megatron.training can be imported and was not initialised, repatch dies of Megatron's own assertion",
    how="that assertion means that there are no training arguments, and MindSpeed's own are taken",
    link="none: fixed in MindSpeed's mindspeed/args_utils.py in October 2025",
    retired_by=Mentions("mindspeed.args_utils:get_full_args", "AssertionError"),
)
def uninitialised_training(original: Callable[..., Any]) -> Any:
    """Megatron's training arguments, or MindSpeed's where there are none."""
    try:
        return original()
    except AssertionError as error:
        if "args is not initialized." not in str(error):
            raise
        from mindspeed.args_utils import get_mindspeed_args

        return get_mindspeed_args()


@megatron.wrap(
    "mindspeed.features_manager.features_manager:MindSpeedFeaturesManager.apply_features_patches",
    why="MindSpeed puts an empty flash_attn into sys.modules, and transformers and vLLM then believe it is installed",
    how="it is taken out again as soon as Megatron's patches are made; nothing imports it after that",
    link="none: see requirements_basic.py in MindSpeed's features_manager",
    retired_by=Not(Mentions(_BASICS, "flash_attn.flash_attn_interface.flash_attn_unpadded_func")),
)
def no_empty_flash_attn(original: Callable[..., Any], manager: Any, *args: Any, **kwargs: Any) -> Any:
    """Make Megatron's patches, then take the empty module out."""
    try:
        return original(manager, *args, **kwargs)
    finally:
        drop_dummies(_FLASH_ATTN)


@megatron.wrap(
    "mindspeed.features_manager.features_manager:MindSpeedFeaturesManager.apply_features_pre_patches",
    why="a repatch overwrites MindSpeed's own functions with Megatron's, so 8 or 9 of its patches are silently lost",
    how="functions that a module of MindSpeed defines are put back before they are registered as patches again",
    link="none: Patch.remove_patch leaves patched methods, and apply_patch takes MindSpeed's function for a copy",
    retired_by=Mentions("mindspeed.patch_utils:Patch.remove_patch", "isclass"),
)
def own_patches_survive(original: Callable[..., Any], manager: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply the first half of the patches; MindSpeed's own functions are afterwards what they were."""
    from mindspeed.patch_utils import MindSpeedPatchesManager

    with own_functions_kept(MindSpeedPatchesManager):
        return original(manager, *args, **kwargs)


_CAPABILITY = "mindspeed.core.fusions.grouped_matmul:get_device_capability"


@megatron.wrap(
    _CAPABILITY,
    why="MindSpeed puts a function without parameters in the place of torch.cuda.get_device_capability(device)",
    how="the device that torch asks about is taken and not looked at: all NPUs get the same answer",
    link="none: torch.distributed.broadcast of newer torches asks about the device of a tensor",
    retired_by=Mentions(_CAPABILITY, "device"),
    requires=Defines(_CAPABILITY),
)
def capability_of_a_device(original: Callable[..., Any], device: Any = None) -> Any:
    """The compute capability that MindSpeed pretends, whichever the device."""
    return original()


_COMPILE = "verl.utils.torch_functional:use_original_torch_compile"


@megatron.wrap(
    _COMPILE,
    why="it calls MindSpeed's Patch.is_applied, which is a bool, swallows the TypeError, and so restores nothing",
    how="within it torch.compile is the one that MindSpeed replaced, and MindSpeed's again after it",
    link="none: is_applied is an attribute of Patch in MindSpeed's mindspeed/patch_utils.py",
    retired_by=AllOf(Defines(_COMPILE), Not(Mentions(_COMPILE, "is_applied"))),
    requires=Defines(_COMPILE),
)
def original_torch_compile(original: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """A context in which torch.compile is torch's own."""
    return _torch_compile_of_torch()


@contextlib.contextmanager
def _torch_compile_of_torch() -> Iterator[None]:
    import torch

    utils = sys.modules.get("mindspeed.patch_utils")
    patch = utils.MindSpeedPatchesManager.patches_info.get("torch.compile") if utils is not None else None
    if patch is None or not patch.is_applied:
        yield
        return
    replaced = torch.compile
    torch.compile = patch.orig_func
    try:
        yield
    finally:
        torch.compile = replaced
