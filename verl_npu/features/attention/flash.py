"""transformers' flash attention on NPUs: models may use it, and sequence lengths go to the host once, not in each
layer.

On NPUs, transformers looks for a package that does not exist, and silently ignores some settings of a model. The
patches skip the search for the package, and turn each ignored setting into an error. Where upstream hard-codes flash
attention, we call a copy of upstream's function with the user's setting instead: see `rewriting`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from ...errors import JobSettingError, UnavailableError
from ...registry.source.named import Key
from ...registry.source.probe import AllOf, AnyOf, Calls, Defines, Imports, Never, Not, Passes, Reads
from . import FLASH_ATTENTION, NPU_MODULE, ON_NPU, UTILS, attention

if TYPE_CHECKING:
    from torch import Tensor

    from ..configuration import Section

Result = TypeVar("Result")
_MODEL = "transformers.modeling_utils:PreTrainedModel"
_CAN_DISPATCH = f"{_MODEL}._flash_attn_2_can_dispatch"


# From the first correct transformers on, the check returns early on an NPU.
_ADMITS = Calls(_CAN_DISPATCH, "is_torch_npu_available")


class AttentionConfig(Protocol):
    """A model's configuration in transformers."""

    _attn_implementation: str | None


class Model(Protocol):
    """A transformers model, or its class. In older versions of transformers, it has the first attribute; in newer
    versions, the second."""

    _supports_flash_attn_2: bool
    _supports_flash_attn: bool

    def get_correct_attn_implementation(self, implementation: str, is_init_check: bool) -> str: ...


Config = TypeVar("Config", bound=AttentionConfig)


@attention.wrap(
    f"{_MODEL}._check_and_enable_flash_attn_2",
    uses=(
        ON_NPU,
        f"{_MODEL}._supports_flash_attn_2",
        "transformers.configuration_utils:PretrainedConfig._attn_implementation",
    ),
    why="MindSpeed puts a dummy flash_attn without a version into sys.modules. transformers' check then fails with "
    "`No package metadata was found for flash_attn`.",
    how="On NPUs the check does not look for flash_attn: every model that supports flash attention may use it.",
    link="https://github.com/volcengine/verl/issues/6224",
    retired_by=Never("transformers 4.54 removed the method"),
    requires=Defines(f"{_MODEL}._check_and_enable_flash_attn_2"),
    may_skip=True,
)
def admit_flash_attention_in_model_check(
    original: Callable[..., Config],
    model: Model,
    config: Config,
    torch_dtype: object = None,
    device_map: object = None,
    check_device_map: bool = True,
    hard_check_only: bool = False,
) -> Config:
    """Check that a model class can use flash attention. Unless `hard_check_only` is true, also enable flash attention
    in `config`."""
    if not model._supports_flash_attn_2 or not _on_npu():
        return original(model, config, torch_dtype, device_map, check_device_map, hard_check_only)
    if not hard_check_only:
        config._attn_implementation = FLASH_ATTENTION
    return config


@attention.wrap(
    _CAN_DISPATCH,
    uses=(ON_NPU, f"{_MODEL}._supports_flash_attn", f"{UTILS}:_lazy_imports"),
    may_use=(f"{_MODEL}._supports_flash_attn_2",),
    why="transformers 4.54 to 4.55.2 look up the version of flash_attn on NPUs too, and fail with "
    "`No package metadata was found for flash_attn`.",
    how="On NPUs every model that supports flash attention may use it, as in transformers from 4.55.3 on.",
    link="https://github.com/huggingface/transformers/pull/40151",
    retired_by=_ADMITS,
    requires=Defines(_CAN_DISPATCH),
    may_skip=True,
)
def admit_flash_attention_in_dispatch_check(
    original: Callable[[Model, bool], bool], model: Model, is_init_check: bool = False
) -> bool:
    """Return True if a model can use flash attention. Otherwise, upstream's function raises an error.

    Raises UnavailableError if this version of transformers cannot use the NPU's flash attention.
    """
    if not (model._supports_flash_attn or getattr(model, "_supports_flash_attn_2", False)) or not _on_npu():
        return original(model, is_init_check)
    imports = inspect.unwrap(sys.modules[UTILS]._lazy_imports)
    if "npu_flash_attn_func" not in imports.__code__.co_names:
        raise UnavailableError(
            subject=f"attn_implementation={FLASH_ATTENTION}",
            expected="a release of transformers that can use the NPU's flash attention",
            found="transformers 4.54",
            fix="install transformers 4.53.3 or 4.55.4, or set attn_implementation to sdpa",
        )
    return True


@attention.wrap(
    f"{UTILS}:_lazy_imports",
    uses=(ON_NPU,),
    why="transformers 4.55.0 to 4.55.2 import flash_attn for flash_attention_2 on NPUs too, and fail with "
    "`No module named 'flash_attn'`.",
    how="On NPUs we call the function without a name. It then imports the NPU's flash attention.",
    link="https://github.com/huggingface/transformers/pull/40151",
    retired_by=_ADMITS,
    requires=AllOf(Imports(f"{UTILS}:_lazy_imports", f"{NPU_MODULE}.npu_flash_attn_func"), Defines(_CAN_DISPATCH)),
)
def import_npu_flash_attention(
    original: Callable[..., Result], implementation: str | None, *args: object, **kwargs: object
) -> Result:
    """Import the functions of an attention implementation. For flash attention on NPUs, these are the NPU's
    functions."""
    name = None if implementation == FLASH_ATTENTION and _on_npu() else implementation
    return original(name, *args, **kwargs)


@attention.wrap(
    f"{_MODEL}._check_and_adjust_attn_implementation",
    uses=(
        ON_NPU,
        f"{_MODEL}.get_correct_attn_implementation(requested_attention, is_init_check)",
        f"{UTILS}:lazy_import_flash_attention(implementation)",
    ),
    why="If the package kernels is installed, transformers 4.56 and 4.57 download the CUDA kernel "
    "`kernels-community/flash-attn` and use it in place of the NPU's flash attention.",
    how="On NPUs transformers does not replace flash_attention_2 with a kernel from the hub.",
    link="https://github.com/huggingface/transformers/pull/40151",
    retired_by=Calls(f"{_MODEL}._check_and_adjust_attn_implementation", "is_torch_npu_available", directly=True),
    requires=Reads(f"{_MODEL}._check_and_adjust_attn_implementation", "kernels-community/flash-attn"),
    may_skip=True,
)
def prevent_cuda_kernel_download(
    original: Callable[[Model, str | None, bool], str],
    model: Model,
    attn_implementation: str | None,
    is_init_check: bool = False,
) -> str:
    """Check the requested attention implementation, and return the one to use. On NPUs, flash attention is not
    replaced."""
    if attn_implementation != FLASH_ATTENTION or not _on_npu():
        return original(model, attn_implementation, is_init_check)
    from transformers.modeling_flash_attention_utils import lazy_import_flash_attention

    chosen = model.get_correct_attn_implementation(attn_implementation, is_init_check)
    lazy_import_flash_attention(chosen)
    return chosen


def _on_npu() -> bool:
    """Return whether transformers uses the NPU's flash attention in this process."""
    from transformers.utils import is_torch_npu_available

    return bool(is_torch_npu_available())


_LINK = "none: torch_npu's operator takes the lengths as Python numbers"
_ALL_VERSIONS = "every transformers that has a lock works like this"


@attention.wrap(
    f"{UTILS}:_get_unpad_data",
    why="Every layer fetches the lengths and indices of a padded batch from the NPU, and each time the host waits for "
    "the NPU.",
    how="One transfer for each mask fetches them. The lengths stay on the host, where they are used.",
    link=_LINK,
    retired_by=Never(_ALL_VERSIONS),
    may_skip=True,
)
def compute_unpadding_once_per_mask(
    original: Callable[[Tensor], Result], attention_mask: Tensor
) -> Result | tuple[Tensor, Tensor, int]:
    """Return the indices and lengths of the tokens in a padded batch. They are computed once for each mask.

    attention_mask [batch, seqlen] -> (indices [total], cu_seqlens int32 [batch + 1] on the host, longest length).
    """
    if attention_mask.device.type != "npu":
        return original(attention_mask)
    from .lengths import unpadding

    return unpadding(attention_mask)


@attention.wrap(
    f"{NPU_MODULE}:npu_flash_attn_varlen_func",
    why="Every layer fetches cu_seqlens from the NPU twice, and each time the host waits for the NPU.",
    how="The function gets a copy on the host. Each cu_seqlens is copied once.",
    link=_LINK,
    retired_by=Never(_ALL_VERSIONS),
)
def pass_sequence_lengths_from_host(
    original: Callable[..., Result],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *args: object,
    **kwargs: object,
) -> Result:
    """Compute the attention of packed sequences, with the lengths on the host.

    q [tokens, heads, width], cu_seqlens [sequences + 1] -> q's shape.
    """
    from .lengths import host_copy

    return original(q, k, v, host_copy(cu_seqlens_q), host_copy(cu_seqlens_k), *args, **kwargs)


@attention.wrap(
    f"{UTILS}:_flash_attention_forward",
    may_use=(f"{UTILS}:_is_packed_sequence",),
    why="Every layer fetches the position ids from the NPU to see whether sequences are packed. On NPUs, transformers "
    "ignores a sliding window and a soft cap without an error.",
    how="The position ids are fetched once, and the lengths are passed on. A setting that NPUs ignore is an error, "
    "except for a sliding window that no sequence exceeds.",
    link=_LINK,
    retired_by=Never(_ALL_VERSIONS),
)
def compute_packing_once_and_check_settings(
    original: Callable[..., Result],
    query_states: Tensor,
    key_states: Tensor,
    value_states: Tensor,
    attention_mask: Tensor | None,
    query_length: int,
    is_causal: bool,
    dropout: float = 0.0,
    position_ids: Tensor | None = None,
    softmax_scale: float | None = None,
    sliding_window: int | None = None,
    use_top_left_mask: bool = False,
    softcap: float | None = None,
    **kwargs: object,
) -> Result:
    """Compute flash attention for padded, packed, or dense query_states [batch, seqlen, heads, width].

    The states are padded if there is a mask, and packed if the position ids show several sequences. Raises
    JobSettingError if the NPU would ignore a setting of the model.
    """
    if query_states.device.type == "npu":
        from .lengths import given_lengths

        position_ids, longest = given_lengths(attention_mask, position_ids, key_states, kwargs)
        refuse_ignored_settings(sliding_window, softcap, longest, kwargs)
        sliding_window = softcap = None
    return original(
        query_states,
        key_states,
        value_states,
        attention_mask,
        query_length,
        is_causal,
        dropout=dropout,
        position_ids=position_ids,
        softmax_scale=softmax_scale,
        sliding_window=sliding_window,
        use_top_left_mask=use_top_left_mask,
        softcap=softcap,
        **kwargs,
    )


def refuse_ignored_settings(
    sliding_window: int | None, softcap: float | None, longest: Callable[[], int], rest: dict[str, object]
) -> None:
    """Raise JobSettingError for a setting of the model that the NPU's flash attention would ignore."""
    if softcap:
        raise _ignored(f"attn_logit_softcapping={softcap}", "remove the soft cap")
    if rest.get("s_aux") is not None:
        raise _ignored("attention sinks (s_aux)", "use a model without sinks")
    if sliding_window is not None and longest() > sliding_window:
        raise _ignored(
            f"sliding_window={sliding_window}",
            "set use_sliding_window=False if you want full attention, or keep sequences within the window",
            f", and a sequence has {longest()} tokens",
        )


def _ignored(setting: str, fix: str, detail: str = "") -> JobSettingError:
    return JobSettingError(
        subject=f"the model's {setting}",
        found=f"flash attention on NPUs ignores this setting{detail}",
        fix=f"{fix}; or set attn_implementation to eager",
        override="VERL_NPU_DISABLE=attention",
    )


Attention: TypeAlias = "Callable[..., object]"
_QWEN2_VL = "verl.models.transformers.qwen2_vl"


@attention.set(
    f"{_QWEN2_VL}:flash_attn_varlen_func",
    uses=(f"{NPU_MODULE}:npu_flash_attn_varlen_func",),
    why="Upstream imports the function from a module that has not had it since transformers 4.53, and continues with "
    "None: packed sequences end the job with `TypeError: 'NoneType' object is not callable`.",
    how="transformers' own function for NPUs replaces None. It is the function that upstream got before 4.53.",
    link="https://github.com/volcengine/verl/pull/3532",
    retired_by=Imports(_QWEN2_VL, f"{NPU_MODULE}.npu_flash_attn_varlen_func"),
    requires=Imports(_QWEN2_VL, f"{UTILS}.flash_attn_varlen_func"),
)
def use_npu_attention_in_packed_qwen2_vl(function: Attention | None) -> Attention:
    """Return upstream's attention function for packed sequences. If upstream did not find one, return
    transformers'."""
    if function is not None:
        return function
    found: Attention = importlib.import_module(NPU_MODULE).npu_flash_attn_varlen_func
    return found


# The attention implementation of a model, where upstream hard-codes one.

_OPTION = "attn_implementation"
Implementation = TypeVar("Implementation", bound=Callable[..., object])


def declare_choice(
    target: str,
    source: str = "model.override_config.attn_implementation",
    name: str = "",
    *,
    uses: Sequence[str] = (),
    may_use: Sequence[str] = (),
) -> Callable[[Implementation], Implementation]:
    """Return a decorator that declares a patch of `target`. In the patch, `source` is the setting that chooses the
    attention."""
    return attention.wrap(
        target,
        uses=uses,
        may_use=may_use,
        why="flash_attention_2 is hard-coded here and the user's setting has no effect, so a model that needs sdpa or "
        "eager attention cannot be trained.",
        how=f"We call a copy of the function in which {source} replaces the constant.",
        link="https://github.com/volcengine/verl/pull/3417",
        retired_by=AnyOf(
            Passes(target, _OPTION, Key(_OPTION), always=True),
            AllOf(Defines(target), Not(Passes(target, _OPTION, FLASH_ATTENTION, to="from_pretrained"))),
        ),
        name=name,
    )


@declare_choice("verl.workers.fsdp_workers:ActorRolloutRefWorker._build_model_optimizer")
def use_configured_attention_for_actor(
    original: Callable[..., Result],
    worker: object,
    model_path: object,
    fsdp_config: object,
    optim_config: object,
    override_model_config: Section | None,
    *args: object,
    **kwargs: object,
) -> Result:
    """Build the actor or the reference model, with the attention that the user chose."""
    function = _with_constant(original, _chosen(override_model_config))
    return function(worker, model_path, fsdp_config, optim_config, override_model_config, *args, **kwargs)


def use_configured_attention(original: Callable[..., Result], worker: object, config: Section) -> Result:
    """Build the model of a worker or an engine, with the attention that the user chose."""
    return _with_chosen(original, config)(worker, config)


for _name, _target, _section in (
    ("critic", "verl.workers.fsdp_workers:CriticWorker._build_critic_model_optimizer", "critic"),
    ("reward_model", "verl.workers.fsdp_workers:RewardModelWorker._build_model", "reward_model"),
    ("fsdp_engine", "verl.workers.engine.fsdp.engine_impl:FSDPEngine._build_model_optimizer", "critic"),
):
    declare_choice(
        _target,
        name=f"use_configured_attention_for_{_name}",
        uses=(f"verl/trainer/config/ppo_trainer.yaml: {_section}.model",),
    )(use_configured_attention)


@declare_choice(
    "verl.trainer.fsdp_sft_trainer:FSDPSFTTrainer._build_model_optimizer",
    uses=(
        "verl.trainer.fsdp_sft_trainer:FSDPSFTTrainer.config",
        "verl/trainer/config/sft_trainer.yaml: model",
    ),
)
def use_configured_attention_for_sft(original: Callable[..., Result], trainer: Section) -> Result:
    """Build the model for supervised fine-tuning, with the attention that the user chose."""
    return _with_chosen(original, trainer.config)(trainer)


@declare_choice(
    "verl.utils.model:load_valuehead_model",
    "the model configuration's own attn_implementation",
    may_use=("transformers.configuration_utils:PretrainedConfig._attn_implementation",),
)
def use_configured_attention_for_value_head(
    original: Callable[..., Result],
    local_path: object,
    torch_dtype: object,
    model_config: object,
    trust_remote_code: object,
) -> Result:
    """Load a model with a value head, with the attention that the model's configuration names."""
    chosen = getattr(model_config, "_attn_implementation", None) or FLASH_ATTENTION
    function = _with_constant(original, str(chosen))
    return function(local_path, torch_dtype, model_config, trust_remote_code)


def _with_chosen(original: Callable[..., Result], config: Section) -> Callable[..., Result]:
    return _with_constant(original, _chosen(config.model.get("override_config")))


def _with_constant(original: Callable[..., Result], chosen: str) -> Callable[..., Result]:
    from .rewriting import with_constant

    return with_constant(original, FLASH_ATTENTION, chosen)


def _chosen(override: Section | None) -> str:
    """Return the attention that the user chose in a model's `override_config`. The default is flash attention."""
    return str((override.get(_OPTION) if override else None) or FLASH_ATTENTION)
