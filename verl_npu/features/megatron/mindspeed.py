"""Patches of MindSpeed itself: of its import, of `repatch`, of modules that it leaves behind, and of a module's
state."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from ...errors import UnavailableError
from ...registry.apply.replacement import clone
from ...registry.source.probe import AllOf, Calls, Defines, Never, Not, Reads, Takes
from ...reporting import warn
from . import over_megatron
from .repatch import Repatch, checked_repatch, own_functions_restored, remove_placeholder_modules, without_lazy_aliases
from .request import OVERRIDE

if TYPE_CHECKING:
    from argparse import Namespace

    from torch import nn


_MANAGER = "mindspeed.patch_utils:MindSpeedPatchesManager"
_PATCH = "mindspeed.patch_utils:Patch"
_SAVED = (
    f"{_MANAGER}.patches_info",
    *(
        f"{_PATCH}.{name}"
        for name in ("orig_func", "orig_func_name", "orig_module", "orig_module_name", "final_patch_func")
    ),
)
_FEATURES_OF = "mindspeed.features_manager"
_FEATURES = Defines("mindspeed.features_manager:create_features_list")
_FLASH_ATTN = "flash_attn"
# MindSpeed-LLM's images have a module megatron_adaptor, too, but no package of this name.
_ADAPTOR = "megatron_adaptor.features_manager"
_BASICS = "mindspeed.features_manager.megatron_basic.requirements_basic"


@over_megatron.guard(
    "mindspeed.megatron_adaptor:patch_features",
    why="MindSpeed changes torch before it imports Megatron. If Megatron-Core is missing, verl ignores the "
    "ImportError (`No module named 'megatron'`), and the job continues with a half-changed torch.",
    how="We look for the packages that MindSpeed imports before MindSpeed runs. If one is missing, the import fails "
    "and names the package, and torch stays unchanged.",
    link="none: see the order of imports in MindSpeed's mindspeed/megatron_adaptor.py",
    retired_by=Never(
        "every revision imports torch_npu.contrib.transfer_to_npu or patches torch before it imports Megatron"
    ),
)
def refuse_mindspeed_without_its_dependencies() -> None:
    """Raise UnavailableError before MindSpeed is imported, if a missing package would make the import fail halfway."""
    from .source import advice, missing_packages, needs_adaptor, package_folder

    mindspeed = package_folder("mindspeed", "features_manager")
    missing = missing_packages(mindspeed)
    if missing:
        error = UnavailableError(
            subject="mindspeed.megatron_adaptor",
            found=f"verl-npu does not import MindSpeed, because {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not installed, and MindSpeed would fail after it had changed "
            "torch",
            fix=advice(missing),
            override=OVERRIDE,
        )
        error.name = missing[0]
        raise error
    if mindspeed is not None and _ADAPTOR in sys.modules and not needs_adaptor(mindspeed):
        warn(
            "MindSpeed: expected core_r0.17.0 or newer in a process with MegatronAdaptor; found an older MindSpeed, "
            "which replaces the same functions of torch and Megatron a second time; use the MindSpeed of the branch "
            "that your MegatronAdaptor has, or do not import megatron_adaptor"
        )


@over_megatron.wrap(
    "mindspeed.megatron_adaptor:repatch",
    uses=(
        *_SAVED,
        "mindspeed.args_utils:get_full_args()",
        f"{_FEATURES_OF}.features_manager:MindSpeedFeaturesManager.FEATURES_LIST",
        f"{_FEATURES_OF}.feature:MindSpeedFeature.is_need_apply(args)",
        f"{_FEATURES_OF}.feature:MindSpeedFeature.pre_register_patches(patch_manager, args)",
        f"{_FEATURES_OF}.feature:MindSpeedFeature.register_patches(patch_manager, args)",
    ),
    why="repatch ignores unknown keys, keeps the overrides of one worker for the next, and leaves half of its patches "
    "in place if one of its features raises an error.",
    how="We first check keys, types, and combinations. A second worker in the process must agree with the patches, "
    "and if MindSpeed raises an error, we restore everything.",
    link="none: see repatch in MindSpeed's mindspeed/megatron_adaptor.py",
    retired_by=Never("no revision checks the overrides"),
    requires=_FEATURES,
)
def check_overrides_given_to_mindspeed(original: Repatch, args: Mapping[str, object]) -> None:
    """Check the overrides of the worker that calls `repatch`, and apply them. Raises JobSettingError if an override is
    rejected, and ApplyError if MindSpeed cannot be patched."""
    checked_repatch(original, args)


@over_megatron.wrap(
    "mindspeed.args_utils:get_full_args",
    uses=("mindspeed.args_utils:get_mindspeed_args()",),
    why="If megatron.training can be imported, repatch fails with `AssertionError: args is not initialized.`, because "
    "verl never initializes megatron.training.",
    how="On this AssertionError we return MindSpeed's own arguments, as later revisions of MindSpeed do.",
    link="none: fixed in MindSpeed's mindspeed/args_utils.py in October 2025",
    retired_by=Reads("mindspeed.args_utils:get_full_args", "AssertionError"),
)
def fall_back_to_mindspeeds_arguments(original: Callable[[], Namespace]) -> Namespace:
    """Return Megatron's training arguments. If there are none, return MindSpeed's arguments."""
    try:
        return original()
    except AssertionError as error:
        if "args is not initialized." not in str(error):
            raise
        from mindspeed.args_utils import get_mindspeed_args

        arguments: Namespace = get_mindspeed_args()
        return arguments


@over_megatron.wrap(
    "mindspeed.features_manager.features_manager:MindSpeedFeaturesManager.apply_features_patches",
    why="MindSpeed puts an empty module flash_attn into sys.modules. transformers and vLLM mistake it for the real "
    "package, and a model may fail to load with `PackageNotFoundError: flash_attn`.",
    how="We remove the empty module as soon as MindSpeed has patched Megatron. Nothing imports it after that.",
    link="none: see requirements_basic.py in MindSpeed's features_manager",
    retired_by=Not(Calls(_BASICS, "register_patch", given="flash_attn.flash_attn_interface.flash_attn_unpadded_func")),
)
def remove_mindspeeds_empty_flash_attn(
    original: Callable[..., object], manager: type, *args: object, **kwargs: object
) -> object:
    """Apply MindSpeed's patches, then remove the empty module flash_attn that MindSpeed made."""
    try:
        return original(manager, *args, **kwargs)
    finally:
        remove_placeholder_modules(_FLASH_ATTN)


@over_megatron.wrap(
    "mindspeed.features_manager.features_manager:MindSpeedFeaturesManager.apply_features_pre_patches",
    uses=(f"{_MANAGER}.patches_info",),
    why="A repatch silently loses 8 or 9 of MindSpeed's patches, for example of the gradient reduction. It overwrites "
    "MindSpeed's own functions with Megatron's, and then registers those.",
    how="We restore the functions that MindSpeed's modules define before they are registered as patches again.",
    link="none: Patch.remove_patch leaves patched methods, and apply_patch mistakes MindSpeed's function for a copy",
    retired_by=Calls("mindspeed.patch_utils:Patch.remove_patch", "isclass"),
)
def keep_mindspeeds_patches_through_repatch(
    original: Callable[..., object], manager: type, *args: object, **kwargs: object
) -> object:
    """Apply MindSpeed's pre-patches, and then restore MindSpeed's own functions, which a repatch overwrites."""
    from mindspeed.patch_utils import MindSpeedPatchesManager

    with own_functions_restored(MindSpeedPatchesManager):
        return original(manager, *args, **kwargs)


def _declare_aliases(method: str, name: str) -> None:
    """Declare the patch `name`. It keeps MindSpeed from importing transformers' alias modules when it looks for its
    targets."""

    def leave_aliases_asleep(original: Callable[[], None]) -> None:
        with without_lazy_aliases():
            original()

    over_megatron.wrap(
        f"mindspeed.patch_utils:MindSpeedPatchesManager.{method}",
        why="MindSpeed looks up its target names in every loaded module. transformers 5 has alias modules that import "
        "another module at any lookup, including a hundred image processors. Without torchvision, the job ends with "
        "`ModuleNotFoundError: No module named 'torchvision'`. With torchvision, each worker imports all of them.",
        how="While MindSpeed looks for its targets, the alias modules answer that they do not have the name.",
        link="none: see Patch.apply_patch in MindSpeed's mindspeed/patch_utils.py",
        retired_by=Never("every revision looks in all modules"),
    )(clone(cast(FunctionType, leave_aliases_asleep), name=name))


_declare_aliases("apply_patches", "leave_aliases_asleep_while_patching")
_declare_aliases("remove_patches", "leave_aliases_asleep_while_unpatching")


_CAPABILITY = "mindspeed.core.fusions.grouped_matmul:get_device_capability"


@over_megatron.wrap(
    _CAPABILITY,
    why="torch.distributed.broadcast fails with `TypeError: get_device_capability() takes 0 positional arguments but "
    "1 was given`, because MindSpeed's replacement of torch.cuda.get_device_capability takes no device.",
    how="The function accepts a device and ignores it, because MindSpeed's answer is the same for all NPUs.",
    link="none: torch.distributed.broadcast of newer torches asks about the device of a tensor",
    retired_by=Takes(_CAPABILITY, "device"),
    requires=Defines(_CAPABILITY),
)
def accept_a_device_in_get_device_capability(original: Callable[[], object], device: object = None) -> object:
    """Return the compute capability that MindSpeed pretends to have. It is the same for every device."""
    return original()


_COMPILE = "verl.utils.torch_functional:use_original_torch_compile"


@over_megatron.wrap(
    _COMPILE,
    uses=(f"{_MANAGER}.patches_info", f"{_PATCH}.is_applied", f"{_PATCH}.orig_func"),
    why="The function calls MindSpeed's Patch.is_applied, which is a bool, and hides the error (`TypeError: 'bool' "
    "object is not callable`). So MindSpeed's torch.compile stays in place.",
    how="In the context, torch.compile is the function that MindSpeed replaced. After it, MindSpeed's is back.",
    link="none: is_applied is an attribute of Patch in MindSpeed's mindspeed/patch_utils.py",
    retired_by=AllOf(Defines(_COMPILE), Not(Calls(_COMPILE, "is_applied"))),
    requires=Defines(_COMPILE),
    may_skip=True,
)
def give_verl_the_original_torch_compile(
    original: Callable[[], contextlib.AbstractContextManager[None]],
) -> contextlib.AbstractContextManager[None]:
    """Return a context manager that restores torch's original torch.compile."""
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


_STATE = (
    "mindspeed.te.pytorch.module.layernorm_column_parallel_linear:MindSpeedTELayerNormColumnParallelLinear.state_dict"
)


@over_megatron.wrap(
    _STATE,
    why="A weight sync fails in mbridge's export_weights with `KeyError: 'decoder.layers.0.input_layernorm.weight'`, "
    "and a checkpoint silently lacks the weights of norms. MindSpeed's module removes every name with _layernorm or "
    "_linear from the state collected so far for the whole model.",
    how="The module removes such names only from its own state.",
    link="none: see state_dict in MindSpeed's layernorm_column_parallel_linear.py",
    retired_by=Reads(_STATE, "prefix"),
    requires=Defines(_STATE),
)
def collect_a_modules_own_state_only(
    original: Callable[..., dict[str, Any]],
    module: nn.Module,
    *args: object,
    destination: dict[str, Any] | None = None,
    prefix: str = "",
    keep_vars: bool = False,
) -> dict[str, Any]:
    """Return the state of `module`. If `destination` is given, collect the state of the module separately, and then
    add it to `destination`."""
    if args or destination is None:
        # torch passes keywords when it collects a model. Positional arguments come from the user.
        return original(module, *args, destination=destination, prefix=prefix, keep_vars=keep_vars)
    own = original(module, keep_vars=keep_vars)
    destination.update({prefix + name: value for name, value in own.items()})
    versions = getattr(destination, "_metadata", None)
    if versions is not None:
        versions.update({(prefix + name).rstrip("."): value for name, value in own._metadata.items()})  # type: ignore[attr-defined]  # torch's own attribute
    return destination
