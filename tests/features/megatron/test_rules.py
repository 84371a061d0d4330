"""Keys, types and combinations: each bad one is refused with its reason, each documented one is accepted."""

from __future__ import annotations

import pytest

from verl_npu.errors import JobSettingError
from verl_npu.features.megatron.contract import Contract, catalogue, recorded_as
from verl_npu.features.megatron.request import Request, effective, requests
from verl_npu.features.megatron.rules import check, problems

# Overrides from upstream's own configuration files.
UPSTREAMS_OWN = {
    "recompute_granularity": None,
    "recompute_modules": ["core_attn"],
    "recompute_method": None,
    "recompute_num_layers": None,
    "attention_backend": "flash",
}
SECTION = {
    "tensor_model_parallel_size": 2,
    "context_parallel_size": 1,
    "sequence_parallel": True,
    "use_distributed_optimizer": True,
    "use_mbridge": False,
    "virtual_pipeline_model_parallel_size": None,
}


def test_upstreams_own_defaults_are_in_order(refusals) -> None:
    assert refusals(SECTION, **UPSTREAMS_OWN) == []


@pytest.mark.parametrize(
    "entry", [e for e in catalogue() if e.name != "checkpoint acceleration"], ids=lambda e: e.name
)
def test_every_documented_override_is_accepted(entry, contract: Contract) -> None:
    words = " ".join(entry.overrides).replace("=N", "=2")
    if entry.name == "matmul fused with communication":
        words += " actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2"
    for request in requests(words):
        check(request, contract)


def test_an_unknown_key_is_refused_with_the_nearest_one(refusals) -> None:
    (problem,) = refusals(use_flash_atn=True)
    assert problem.startswith("use_flash_atn=True: a key that MindSpeed ")


def test_the_error_names_worker_key_suggestion_and_way_out(contract: Contract) -> None:
    with pytest.raises(JobSettingError) as error:
        check(Request("critic", {"use_flash_atn": True}, {}), contract)
    text = str(error.value)
    assert text.startswith("critic: override_transformer_config.use_flash_atn=True: expected a key that MindSpeed")
    assert "write use_flash_attn" in text
    assert text.endswith("(override: VERL_NPU_DISABLE=megatron)")


def test_a_key_with_dashes_is_suggested_with_underscores(contract: Contract) -> None:
    with pytest.raises(JobSettingError, match="write swap_optimizer, or remove"):
        check(Request("actor", {"swap-optimizer": True}, {}), contract)


def test_all_that_is_wrong_is_named_at_once(contract: Contract) -> None:
    with pytest.raises(JobSettingError, match=r"bogus=1.*; and recompute_granularity=full"):
        check(Request("actor", {"bogus": 1, "recompute_granularity": "full"}, {}), contract)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("num_layers", "2", "int"),
        ("moe_grouped_gemm", "no", "bool"),
        ("use_ascend_coc", "'False'", "bool"),
        ("recompute_num_layers", 1.5, "Optional[int]"),
    ],
)
def test_a_value_that_fails_or_means_its_opposite_is_refused(refusals, key: str, value: object, expected: str) -> None:
    (problem,) = [line for line in refusals(**{key: value}) if line.startswith(f"{key}=")]
    assert expected in problem


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("use_ascend_coc", "True", "bool"),
        ("swap_optimizer_times", "16", "int"),
        ("swap_optimizer_times", True, "int"),
        ("swap_optimizer_times", None, "int"),
        ("context_parallel_algo", "ring", "one of megatron_cp_algo"),
        ("moe_grouped_gemm", "yes", "bool"),
        ("use_flash_attn", "maybe", "bool"),
        ("recompute_modules", 3, "[str]"),
    ],
)
def test_another_type_that_works_or_is_not_looked_at_is_said(refusals, doubts, key, value, expected: str) -> None:
    (problem,) = [line for line in doubts(**{key: value}) if line.startswith(f"{key}=")]
    assert expected in problem
    assert not [line for line in refusals(**{key: value}) if line.startswith(f"{key}=")]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fp8", False),
        ("fp8", None),
        ("moe_grouped_gemm", 1),
        ("pipeline_num_transformer_layers", [[6], [8]]),
        ("recompute_num_layers", False),
        ("rope_scaling_type", "yarn"),
        ("yarn_scaling_factor", 40),
    ],
)
def test_a_value_that_mindspeed_or_megatron_takes_is_in_order(judged, key: str, value: object) -> None:
    assert judged(**{key: value}) == []


def test_a_word_in_place_of_a_switch_is_said_with_both_of_them(judged) -> None:
    (problem,) = judged(use_flash_attn="maybe")
    assert problem.fix == "write use_flash_attn=True or use_flash_attn=False, or remove use_flash_attn"


def test_an_unknown_key_may_be_one_of_megatron_bridges(refusals, doubts) -> None:
    section = {"use_mbridge": True, "vanilla_mbridge": False}
    assert refusals(section, make_vocab_size_bigger=1) == []
    assert len(doubts(section, make_vocab_size_bigger=1)) == 1


def test_flash_attention_cannot_be_switched_off(refusals) -> None:
    (problem,) = refusals(use_flash_attn=False)
    assert "without flash attention MindSpeed finds no attention mask" in problem


def test_flash_attention_is_filled_in() -> None:
    assert effective(Request("actor", {}, {})) == {"use_flash_attn": True}


def test_the_batch_invariant_attention_replaces_the_other() -> None:
    overrides = {"use_flash_attn_npu_batch_invariant": True}
    assert effective(Request("actor", overrides, {})) == {**overrides, "use_flash_attn": False}


def test_flash_attention_may_be_off_beside_a_mask_of_a_known_size(refusals) -> None:
    assert refusals(use_flash_attn=False, micro_batch_size=1, seq_length=2048) == []


@pytest.mark.parametrize("mode", [1, 3, 4])
def test_flash_attention_has_two_sparse_modes(judged, contract: Contract, mode: int) -> None:
    (problem,) = judged(sparse_mode=mode)
    assert (problem.expected, problem.refused) == ("0 or 2 with use_flash_attn", contract.validates)


def test_the_size_of_context_parallelism_is_filled_in_from_the_section() -> None:
    assert effective(Request("actor", {}, {"context_parallel_size": 2}))["context_parallel_size"] == 2


def test_both_sizes_of_context_parallelism_are_alike(refusals) -> None:
    (problem,) = refusals({"context_parallel_size": 2}, context_parallel_size=4)
    assert "megatron.context_parallel_size=2" in problem


@pytest.mark.parametrize(
    "overrides",
    [
        # Upstream's converter_hf_to_mcore.py passes this combination for DeepSeek-V3.
        {"multi_head_latent_attention": True, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128},
        {"use_flash_attn": False},
    ],
)
def test_what_fails_in_a_forward_pass_is_only_said_to_a_caller_that_may_do_none(overrides, contract: Contract) -> None:
    def certain(forward: bool) -> list[bool]:
        return [found.refused for found in problems(Request("a worker", overrides, {}, forward=forward), contract)]

    assert (certain(True), certain(False)) == ([True], [False])


@pytest.mark.parametrize(
    ("section", "overrides", "reason"),
    [
        ({"use_distributed_optimizer": False}, {"swap_optimizer": True}, "the distributed optimizer"),
        ({}, {"use_ascend_mc2": True}, "sequence parallelism over a tensor-parallel group"),
        (SECTION, {"use_ascend_mc2": True, "use_ascend_coc": True}, "use_ascend_coc off"),
        ({}, {"moe_token_dispatcher_type": "allgather"}, "variable sequence lengths"),
        ({}, {"multi_head_latent_attention": True}, "MindSpeed does not read"),
        (
            {},
            {"multi_head_latent_attention": True, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128},
            "seq_length, because",
        ),
        ({}, {"attention_backend": "flsh"}, "one of flash, fused, unfused, local, auto"),
        ({}, {"recompute_granularity": "full"}, "recompute_method and recompute_num_layers"),
    ],
)
def test_a_combination_that_fails_is_refused_with_its_reason(refusals, section, overrides, reason: str) -> None:
    assert any(reason in line for line in refusals(section, **overrides)), refusals(section, **overrides)


@pytest.mark.parametrize(
    ("section", "overrides", "reason"),
    [
        (
            {},
            {"use_fused_rotary_pos_emb": True, "position_embedding_type": "learned_absolute"},
            "position_embedding_type=rope",
        ),
        (
            {"sequence_parallel": True, "tensor_model_parallel_size": 1},
            {"use_ascend_mc2": True},
            "sequence parallelism over a tensor-parallel group",
        ),
        ({}, {"moe_permute_fusion": True, "moe_expert_capacity_factor": 1.0}, "moe_pad_expert_input_to_capacity=True"),
        (SECTION, {"swap_optimizer": True, "reuse_fp32_param": True}, "reuse_fp32_param off"),
        ({}, {"moe_fb_overlap": True, "moe_grouped_gemm": False}, "moe_grouped_gemm on"),
    ],
)
def test_what_a_feature_validates_is_refused_if_anything_calls_its_validation(
    judged, contract: Contract, section, overrides, reason: str
) -> None:
    found = {problem.refused for problem in judged(section, **overrides) if reason in problem.expected}
    assert found == {contract.validates}


def test_fused_rope_needs_the_name_of_the_embedding_if_anything_validates_it(judged, contract: Contract) -> None:
    found = [problem.refused for problem in judged(use_fused_rotary_pos_emb=True)]
    assert found == ([True] if contract.validates else [])


@pytest.mark.parametrize(
    ("section", "overrides", "reason"),
    [
        ({}, {"use_fused_rmsnorm": True, "normalization": "LayerNorm"}, "normalization=RMSNorm"),
        ({}, {"use_fused_swiglu": True, "swiglu": False}, "swiglu=True, because"),
        ({"use_mbridge": True, "virtual_pipeline_model_parallel_size": 2}, {}, "no virtual pipeline with mbridge"),
        ({}, {"recompute_method": "uniform"}, "recompute_granularity=full, because"),
    ],
)
def test_what_is_not_shown_to_fail_is_said_and_not_refused(refusals, doubts, section, overrides, reason: str) -> None:
    assert any(reason in line for line in doubts(section, **overrides))
    assert refusals(section, **overrides) == []


def test_a_doubt_is_a_line_for_the_user_and_the_job_goes_on(contract: Contract, capsys) -> None:
    settings = check(Request(f"actor {contract.revision}", {"recompute_method": "uniform"}, {}), contract)
    assert settings["recompute_method"] == "uniform"
    assert (
        "override_transformer_config.recompute_method=uniform: expected recompute_granularity"
        in capsys.readouterr().err
    )


def test_the_swapped_optimizer_is_in_order_with_upstreams_own_configuration(judged) -> None:
    assert judged(swap_optimizer=True) == []


DEEPSEEK = (
    "+{m}.multi_head_latent_attention=True +{m}.use_flash_attn=True +{m}.moe_token_dispatcher_type='alltoall' "
    "+{m}.pipeline_num_transformer_layers=[[6],[8],[8],[8],[8],[8],[8],[7]] +{m}.moe_grouped_gemm=True "
    "+{m}.use_fused_rotary_pos_emb=True +{m}.rope_scaling_type='yarn' +{m}.yarn_scaling_factor=40 "
    "+{m}.rope_scaling_mscale=1.0 +{m}.rope_scaling_mscale_all_dim=1.0 +{m}.use_fused_swiglu=True "
    "+{m}.seq_length=2048 +{m}.swap_optimizer=True"
).format(m="actor_rollout_ref.actor.megatron.override_transformer_config")


def test_what_a_deepseek_job_asks_for_is_in_order_where_nothing_validates_it(contract: Contract) -> None:
    (request,) = requests(DEEPSEEK)
    refused = [problem.subject for problem in problems(request, contract) if problem.refused]
    wrong = ["use_fused_rotary_pos_emb=True", "multi_head_latent_attention=True"]
    assert refused == (wrong if contract.validates else [])


@pytest.mark.parametrize(
    ("section", "overrides"),
    [
        ({}, {"use_fused_rotary_pos_emb": True, "position_embedding_type": "rope"}),
        (SECTION, {"swap_optimizer": True}),
        (SECTION, {"use_ascend_mc2": True}),
        ({"use_mbridge": True, "virtual_pipeline_model_parallel_size": None}, {}),
        ({"context_parallel_size": 2}, {"context_parallel_size": 2}),
        ({}, {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}),
        ({}, {"use_fused_moe_token_permute_and_unpermute": True, "moe_token_dispatcher_type": "alltoall"}),
    ],
)
def test_what_each_combination_needs_makes_it_good(refusals, section, overrides) -> None:
    assert refusals(section, **overrides) == []


def test_mc2_and_the_swapped_optimizer_find_what_they_look_for() -> None:
    settings = effective(Request("actor", {"use_ascend_mc2": True, "swap_optimizer": True}, SECTION))
    assert settings["sequence_parallel"] is True
    assert settings["tensor_model_parallel_size"] == 2
    assert settings["use_distributed_optimizer"] is True


@pytest.mark.parametrize(
    ("worker", "size", "certain"),
    [
        ("actor", "None", [True]),
        ("critic", "two", [True]),
        ("ref", "None", []),
        ("actor_rollout_ref.ref", "two", [False]),
    ],
)
def test_a_size_of_text_is_refused_only_if_megatron_gets_it(
    contract: Contract, worker: str, size: str, certain: list[bool]
) -> None:
    request = Request(worker, {}, {"expert_tensor_parallel_size": size, "tensor_model_parallel_size": 2})
    assert [problem.refused for problem in problems(request, contract)] == certain


def test_a_mindspeed_that_was_never_run_refuses_nothing() -> None:
    request = Request("actor", {"use_flash_atn": True, "recompute_granularity": "full"}, {})
    found = [list(problems(request, recorded_as(revision))) for revision in ("core_r0.16.0", "core_r0.18.0")]
    assert [[each.refused for each in those] for those in found] == [[True, True], [False, False]]
