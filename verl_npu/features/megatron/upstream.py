"""Patches that adapt upstream's Megatron backend to the package versions that are used on Ascend.

These are mbridge from PyPI, Megatron 0.12 with a newer torch (Ascend's guides name Megatron 0.12 up to v0.7), no
flash_attn, and a triton without a driver for NPUs.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from ...registry.source.named import Key
from ...registry.source.probe import AllOf, Calls, Defines, Imported, Imports, Never, Not, Passes
from . import over_megatron

_SAVE_MANAGER = "verl.utils.checkpoint.megatron_checkpoint_manager:MegatronCheckpointManager.save_checkpoint"


@over_megatron.wrap(
    _SAVE_MANAGER,
    uses=(f"{_SAVE_MANAGER.rpartition('.')[0]}.bridge",),
    why="With PyPI's mbridge, saving a model fails with `TypeError: save_weights() got an unexpected keyword argument "
    "'distributed_filesystem'`. The option memory_efficient fails for a model in a single file.",
    how="While a checkpoint is saved, the installed mbridge gets only the options that it supports.",
    link="https://github.com/volcengine/verl/pull/4386",
    retired_by=Calls(_SAVE_MANAGER, "inspect.signature", given=Key("save_weights")),
    requires=Passes(_SAVE_MANAGER, "distributed_filesystem", True, to="save_weights"),
)
def drop_save_options_unknown_to_mbridge(
    original: Callable[..., object], manager: Any, *args: object, **kwargs: object
) -> object:
    """Save a checkpoint, passing only the options that the bridge supports."""
    bridge = manager.bridge
    save = getattr(bridge, "save_weights", None)
    if bridge is None or save is None:
        return original(manager, *args, **kwargs)
    can = set(inspect.signature(save).parameters)
    if not getattr(getattr(bridge, "safetensor_io", None), "index", None):
        can.discard("memory_efficient")

    def known(models: object, weights_path: str, **options: object) -> object:
        return save(models, weights_path, **{name: value for name, value in options.items() if name in can})

    bridge.save_weights = known
    try:
        return original(manager, *args, **kwargs)
    finally:
        del bridge.save_weights


_SAVE_DISTRIBUTED = "verl.utils.megatron.dist_checkpointing:save_dist_checkpointing"
_GET_MODEL = "verl.utils.megatron_utils:get_model"
_CONVERTER = "converter_hf_to_mcore.py"
_FORMAT = "serialization_format"
_ERROR = "`TypeError: _write_item() missing 1 required positional argument: 'serialization_format'`."
_LINK = "none: core_v0.15.3 checks the signature, see filesystem_async.py in Megatron-LM's dist_checkpointing"
_NEVER = Never("the user chooses which Megatron and which torch are installed together")
Result = TypeVar("Result")


@over_megatron.wrap(
    _SAVE_DISTRIBUTED,
    why=f"With megatron-core 0.12 and torch 2.8 or newer, saving a checkpoint fails with {_ERROR}",
    how="While a checkpoint is saved, Megatron's reference to torch's _write_item passes torch's own format.",
    link=_LINK,
    retired_by=_NEVER,
    requires=Defines(_SAVE_DISTRIBUTED),
)
def pass_torch_the_checkpoint_format(original: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """Save a checkpoint in torch's own format. If the save is asynchronous, the returned request also uses that
    format."""
    with written_in_torchs_format():
        request = original(*args, **kwargs)
    write = getattr(request, "async_fn", None)
    if request is None or write is None:
        return request
    return request._replace(async_fn=functools.partial(_write_with_format, write))


@over_megatron.wrap(
    _GET_MODEL,
    why="With megatron-core 0.12 and torch 2.8 or newer, converter_hf_to_mcore.py, which saves checkpoints itself, "
    f"fails with {_ERROR}",
    how="A process that runs this program writes torch's own format from its first model on.",
    link=_LINK,
    retired_by=_NEVER,
    requires=Defines(_GET_MODEL),
)
def let_the_converter_write_in_torchs_format(
    original: Callable[..., Result], *args: object, **kwargs: object
) -> Result:
    """Return the model, and make the converter save it in torch's own format.

    The patch wraps the only verl function that the converter calls before it saves the model. The change affects no
    other code, because the converter exits after it has saved the model.
    """
    if Path(getattr(sys.modules["__main__"], "__file__", None) or "").name == _CONVERTER:
        _give_format()
    return original(*args, **kwargs)


def _write_with_format(write: Callable[..., object], *args: object, **kwargs: object) -> object:
    with written_in_torchs_format():
        return write(*args, **kwargs)


@contextlib.contextmanager
def written_in_torchs_format() -> Iterator[None]:
    """Context manager that makes Megatron save in torch's own format. Does nothing if torch requires no format
    argument, or if Megatron already passes a format."""
    take_back = _give_format()
    try:
        yield
    finally:
        take_back()


def _give_format() -> Callable[[], None]:
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    write = getattr(filesystem_async, "_write_item", None)
    if write is None or not _wants_format(write) or _FORMAT in inspect.getsource(filesystem_async):
        return lambda: None
    from torch.distributed.checkpoint.filesystem import SerializationFormat

    filesystem_async._write_item = functools.partial(write, serialization_format=SerializationFormat.TORCH_SAVE)
    return lambda: setattr(filesystem_async, "_write_item", write)


def _wants_format(write: Callable[..., object]) -> bool:
    parameter = inspect.signature(write).parameters.get(_FORMAT)
    return parameter is not None and parameter.default is inspect.Parameter.empty


_INITIALIZER = "verl.models.mcore.model_initializer"
_HEAD = "verl.models.llama.megatron.layers.parallel_linear"


@over_megatron.guard(
    f"{_INITIALIZER}:BaseModelInitializer",
    uses=(f"{_HEAD}:LinearForLastLayer",),
    why="Building a critic fails with `ModuleNotFoundError: No module named 'flash_attn'`. Its last layer is in a "
    "package whose other modules import flash_attn, which does not exist on Ascend.",
    how="We load only the module of that layer from its file. This module does not import flash_attn.",
    link="none: see initialize in verl/models/mcore/model_initializer.py",
    retired_by=Not(Imports(_INITIALIZER, _HEAD)),
)
def load_the_value_head_without_flash_attn() -> None:
    """Load upstream's value-head module from its file, and register it in sys.modules, so that upstream's import finds
    it."""
    from .source import package_folder

    folder = package_folder("verl", "models")
    if _HEAD in sys.modules or folder is None or importlib.util.find_spec("flash_attn") is not None:
        return
    spec = importlib.util.spec_from_file_location(_HEAD, folder.joinpath(*_HEAD.split(".")[1:]).with_suffix(".py"))
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[_HEAD] = module


_CALLER = "verl.utils.kernel.linear_cross_entropy"
_KERNELS = "verl.utils.kernel.kernels"


@over_megatron.guard(
    f"{_CALLER}:linear_cross_entropy",
    may_use=(f"{_KERNELS}:efficient_entropy_forward",),
    why="Importing the Megatron workers loads triton kernels. If triton has no driver for the NPU, this fails with "
    "`RuntimeError: 0 active drivers ([]). There should only be one.`",
    how="The kernels' module runs at its first use, as in later revisions of verl.",
    link="none: later revisions import the kernels inside the functions that use them",
    retired_by=Not(Defines(f"{_CALLER}:kernels")),
)
def load_triton_kernels_on_first_use() -> None:
    """Replace the module of the Triton kernels with a module that is loaded on first use."""
    spec = None if _KERNELS in sys.modules else importlib.util.find_spec(_KERNELS)
    if spec is None or spec.loader is None:
        return
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[_KERNELS] = module
    spec.loader.exec_module(module)
    sys.modules[_KERNELS.rpartition(".")[0]].__dict__["kernels"] = module


_DEEPSEEK = "verl.models.mcore.config_converter:hf_to_mcore_config_dpskv3"
_SET = "set_experimental_flag"
_FLAGS = "megatron.core.config"
_MODULE = "verl.utils.megatron_utils:make_megatron_module"
_PACKING = "verl.models.mcore.patch_v012:apply_patch"


@over_megatron.wrap(
    _DEEPSEEK,
    why="A Megatron worker with DeepSeek-V3 or Moonlight without mbridge, and the checkpoint converter, fail with "
    "`ImportError: cannot import name 'set_experimental_flag' from 'megatron.core.config'`. Megatron 0.12.1, which "
    "the guide for Ascend and recipe/r1_ascend name, has the flag but no function that sets it.",
    how="If Megatron's module lacks the function, we add one that sets the flag for the duration of the call.",
    link="https://github.com/verl-project/verl/pull/3975",
    retired_by=Never("later pins name a Megatron that has the function, but upstream still calls it"),
    requires=AllOf(Imported("verl", f"{_FLAGS}.{_SET}"), Calls(_DEEPSEEK, _SET)),
)
def set_the_experimental_flag_of_an_older_megatron(
    original: Callable[..., Result], *args: object, **kwargs: object
) -> Result:
    """Return Megatron's configuration for DeepSeek-V3. If Megatron lacks the function that sets the experimental flag,
    provide it during the call."""
    flags = importlib.import_module(_FLAGS)
    if hasattr(flags, _SET):
        return original(*args, **kwargs)

    def set_experimental_flag(flag: bool) -> None:
        vars(flags)["ENABLE_EXPERIMENTAL"] = flag

    vars(flags)[_SET] = set_experimental_flag
    try:
        return original(*args, **kwargs)
    finally:
        del vars(flags)[_SET]


@over_megatron.wrap(
    _MODULE,
    uses=("verl.models.mcore.patch_v012:apply_patch()",),
    why="For DeepSeek-V3 or Moonlight through mbridge on Megatron 0.12.1, the first log-probabilities fail with a "
    "shape error in or near MindSpeed's fused rotary embedding. This Megatron rotates packed sequences as if they "
    "were a batch. Upstream fixes that only for models without mbridge.",
    how="We apply upstream's own fix, verl.models.mcore.patch_v012, before a model with latent attention is made.",
    link="https://github.com/verl-project/verl/pull/4931",
    retired_by=Calls(_MODULE, "apply_patch"),
    requires=AllOf(Defines(_MODULE), Defines(_PACKING)),
)
def pack_latent_attention_through_mbridge_too(
    original: Callable[..., Result], wrap_config: object, tf_config: object, *args: object, **kwargs: object
) -> Result:
    """Return a model's Megatron modules. For a model with latent attention, first apply upstream's packed-sequence
    fix."""
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    if isinstance(tf_config, MLATransformerConfig) and not _packs_queries():
        importlib.import_module("verl.models.mcore.patch_v012").apply_patch()
    return original(wrap_config, tf_config, *args, **kwargs)


def _packs_queries() -> bool:
    """Return whether the queries of packed sequences lose the batch dimension. They do in later versions of Megatron,
    and after upstream's fix."""
    from megatron.core.transformer.multi_latent_attention import MLASelfAttention

    return "squeeze(1)" in inspect.getsource(MLASelfAttention.get_query_key_value_tensors)


_REPLAY = "verl.utils.megatron.router_replay_utils"
_COUNT = f"{_REPLAY}:get_moe_num_layers_to_build"


@over_megatron.wrap(
    _COUNT,
    uses=(
        f"{_REPLAY}:get_transformer_layer_offset",
        f"{_REPLAY}:get_num_layers_to_build(config, vp_stage=, pp_rank=)",
        f"{_REPLAY}:is_moe_layer(tf_config, layer_idx)",
    ),
    why="The first log-probabilities of a Megatron actor, even for a dense model, fail with `TypeError: "
    "get_transformer_layer_offset() got an unexpected keyword argument 'vp_stage'`. Megatron 0.12.1, which the guide "
    "for Ascend names, does not have this argument.",
    how="If Megatron's function lacks an argument, we call it without that argument, as later revisions of verl do.",
    link="https://github.com/verl-project/verl/pull/5580",
    retired_by=Calls(_COUNT, "inspect.signature"),
    requires=Defines(_COUNT),
    may_skip=True,
)
def ask_megatron_only_for_the_offset_that_it_knows(
    original: Callable[..., int], config: Any, vp_stage: int | None = None, pp_rank: int | None = None
) -> int:
    """Return the number of mixture-of-experts layers in one pipeline stage. Pass Megatron's offset function only the
    arguments that it accepts."""
    from verl.utils.megatron import router_replay_utils as replay

    known = inspect.signature(replay.get_transformer_layer_offset).parameters
    if "vp_stage" in known:
        return original(config, vp_stage=vp_stage, pp_rank=pp_rank)
    first: int = replay.get_transformer_layer_offset(config, **({"pp_rank": pp_rank} if "pp_rank" in known else {}))
    layers: int = replay.get_num_layers_to_build(config, vp_stage=vp_stage, pp_rank=pp_rank)
    return sum(1 for index in range(first, first + layers) if replay.is_moe_layer(config, index))
