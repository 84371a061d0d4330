"""Megatron on Ascend, through MindSpeed. Each worker's overrides are checked, and reach MindSpeed in time.

`request` holds a worker's overrides. `contract` holds the keys that a revision of MindSpeed understands. `rules` finds
settings that would fail. None of these modules imports MindSpeed or Megatron. `repatch` gives the overrides to
MindSpeed, and undoes MindSpeed's changes if that fails. `workers`, `mindspeed`, and `upstream` declare the patches for
this, and `batches` declares the patches that keep batches on the host.
"""

from __future__ import annotations

from ...registry.patch import Feature

megatron = Feature(
    "megatron",
    "Each worker's overrides are checked, reach MindSpeed in time, and apply as a whole or not at all. Workers of "
    "early verl versions keep their batches on the host.",
)
over_megatron = megatron.more()
"""The feature that contains the patches of all modules in this folder."""


# All targets of these patches import Megatron or MindSpeed, or are called by code that does.
@megatron.part(
    "megatron",
    "mindspeed",
    patches="""
    accept_a_device_in_get_device_capability ask_megatron_only_for_the_offset_that_it_knows
    broadcast_through_the_npu check_overrides_given_to_mindspeed check_the_language_model_engines_overrides
    check_the_value_model_engines_overrides collect_a_modules_own_state_only
    configure_each_engine_with_its_own_overrides configure_each_worker_with_its_own_overrides
    drop_save_options_unknown_to_mbridge fall_back_to_mindspeeds_arguments
    give_mindspeed_the_actors_or_refs_overrides give_mindspeed_the_critics_overrides
    give_mindspeed_the_engines_overrides give_mindspeed_the_reward_models_overrides
    give_verl_the_original_torch_compile hold_the_batch_of_compute_log_prob
    hold_the_batch_of_compute_ref_log_prob hold_the_batch_of_update_actor
    keep_mindspeeds_patches_through_repatch keep_mini_batches_on_the_host leave_aliases_asleep_while_patching
    leave_aliases_asleep_while_unpatching let_the_converter_write_in_torchs_format
    load_the_value_head_without_flash_attn load_triton_kernels_on_first_use move_micro_batches
    pack_latent_attention_through_mbridge_too pass_torch_the_checkpoint_format
    refuse_mindspeed_without_its_dependencies remove_mindspeeds_empty_flash_attn
    set_the_experimental_flag_of_an_older_megatron take_the_held_batch
    """,
)
def _over_megatron() -> Feature:
    from . import batches, mindspeed, upstream, workers  # noqa: F401  # they declare the patches

    return over_megatron
