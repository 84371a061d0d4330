from __future__ import annotations

from pathlib import Path

import pytest
from verl_npu_workbench.jobs.keys import has_critic, has_reference
from verl_npu_workbench.jobs.settings import Settings
from verl_npu_workbench.jobs.trainer import Trainer
from verl_npu_workbench.plan.job import Phase
from verl_npu_workbench.plan.share import MicroBatch, enough, fullest, keeps_budget, micro_batches, share_of

from verl_npu.errors import PlanError
from verl_npu.registry.source.tree import SourceTree

ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."


def test_each_rank_has_its_part_of_a_step(settings) -> None:
    share = share_of(settings())
    assert (share.world, share.data, share.step_sequences, share.mini_sequences) == (8, 8, 32, 16)
    assert share.ranks == (0,)


def test_a_plan_has_two_micro_batches_of_each_phase(settings) -> None:
    # 8 for the log-probabilities, 4 for the update, and a mini batch of 16.
    share = share_of(settings())
    assert (share.sequences, share.scored) == (2 * 4, 2 * 8)


def test_a_plan_trains_on_no_more_than_a_mini_batch_and_scores_no_more_than_a_step(settings) -> None:
    small = settings(**{f"{ACTOR}ppo_mini_batch_size": 4, f"{ROLLOUT}log_prob_micro_batch_size_per_gpu": 64})
    share = share_of(small)
    assert (share.sequences, share.scored) == (2, share.step_sequences)


def test_ranks_that_share_a_sequence_share_its_data(settings) -> None:
    share = share_of(settings(**{f"{ACTOR}ulysses_sequence_parallel_size": 2}))
    assert (share.sequence_parallel, share.data, share.step_sequences) == (2, 4, 64)


def test_sequences_fill_a_token_budget(settings) -> None:
    dynamic = {f"{ACTOR}use_dynamic_bsz": True, f"{ACTOR}ppo_max_token_len_per_gpu": 12288}
    dynamic["actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu"] = 1
    assert share_of(settings(**dynamic), 3072).sequences == 6


def test_an_answer_is_cut_to_a_budget_that_is_smaller_and_that_is_said(settings) -> None:
    share = share_of(settings(**{f"{ACTOR}use_dynamic_bsz": True, f"{ACTOR}ppo_max_token_len_per_gpu": 2048}))
    assert share.response == 1024
    assert "the plan uses answers of 1024 tokens" in share.notes[0]


def test_a_budget_without_room_for_an_answer_is_one_line(settings) -> None:
    with pytest.raises(
        PlanError, match="large enough for a prompt of 1024 tokens and a response; found a total budget of 1024 tokens"
    ):
        share_of(settings(**{f"{ACTOR}use_dynamic_bsz": True, f"{ACTOR}ppo_max_token_len_per_gpu": 1024}))


def test_a_pipeline_has_a_rank_of_each_kind(settings) -> None:
    stages = {
        f"{ACTOR}strategy": "megatron",
        f"{ACTOR}megatron.tensor_model_parallel_size": 2,
        f"{ACTOR}megatron.pipeline_model_parallel_size": 4,
        f"{ACTOR}megatron.context_parallel_size": 1,
        "trainer.nnodes": 2,
    }
    share = share_of(settings(**stages))
    assert (share.world, share.data, share.ranks) == (16, 2, (0, 8, 12))
    assert share.kinds[12] == "the last stage of the pipeline"


def test_sizes_that_do_not_divide_the_npus_are_one_line(settings) -> None:
    with pytest.raises(
        PlanError,
        match=r"the parallel sizes: expected parallel sizes whose product divides the number of NPUs, 8 .*; found 3",
    ):
        share_of(settings(**{f"{ACTOR}ulysses_sequence_parallel_size": 3}))


@pytest.mark.parametrize("key", ["trainer.nnodes", "data.max_prompt_length", "data.train_batch_size"])
def test_what_is_missing_is_named(settings, key: str) -> None:
    with pytest.raises(PlanError, match=f"{key}: expected a positive number; found none"):
        share_of(settings(**{key: None}))


def test_answers_of_a_given_length_are_planned(settings) -> None:
    assert share_of(settings(), 500).response == 500
    assert share_of(settings(), 50000).response == 3072


@pytest.mark.parametrize(("response", "measured"), [(500, ()), (None, ((100, 500), (100, 20)))])
def test_shorter_answers_are_as_long_as_the_others_where_padding_is_computed(
    settings, response: int | None, measured: tuple[tuple[int, int], ...]
) -> None:
    share = share_of(settings(**{"actor_rollout_ref.model.use_remove_padding": False}), response, measured=measured)
    assert (share.response, share.lengths, share.scored_lengths) == (3072, (), ())
    assert "use_remove_padding is off" in share.notes[0]


def test_measured_lengths_are_those_of_a_rank(settings) -> None:
    share = share_of(settings(), None, measured=[(100, 1000), (200, 2000), (50, 9000)] * 10)
    assert (len(share.lengths), len(share.scored_lengths)) == (share.sequences, share.scored) == (8, 16)
    assert set(share.lengths) == {(100, 1000), (200, 2000), (50, 3072)}
    assert (share.prompt, share.response, share.padded) == (117, 2024, (1024, 3072))
    assert "10 sequences are longer than the script allows" in share.notes[1]


def test_the_greatest_lengths_are_those_that_fill_a_budget(settings) -> None:
    # A mini batch of 16 sequences fits into one budget if they are a little shorter than 4096 tokens.
    budget = 16 * 3900
    dynamic = settings(**{f"{ACTOR}use_dynamic_bsz": True, f"{ACTOR}ppo_max_token_len_per_gpu": budget})
    share = share_of(dynamic)
    assert share.lengths == ((1024, 3900 - 1024),) * 16
    assert share.scored_lengths == ()
    assert "3900 tokens instead of the 4096" in share.notes[0]
    assert share_of(dynamic, 3072).lengths == (), "the user has named a length"
    padded = {"actor_rollout_ref.model.use_remove_padding": False}
    assert share_of(Settings({**dynamic.values, **padded})).lengths == (), "padding takes as much"


def test_sequences_of_a_pipeline_are_a_multiple_of_what_its_ranks_share(settings) -> None:
    sizes = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "context_parallel_size": 2}
    chosen = {f"{ACTOR}strategy": "megatron", **{f"{ACTOR}megatron.{name}": size for name, size in sizes.items()}}
    assert share_of(settings(**chosen), 3067).lengths[0] == (1024, 3064), "4088 is 511 times 2 x 2 x 2"
    assert share_of(settings(**chosen), 3072).lengths == ()
    alone = {**chosen, f"{ACTOR}megatron.pipeline_model_parallel_size": 1}
    assert share_of(settings(**alone), 3067).lengths == ()


def test_a_budget_that_many_sequences_overdraw_is_raised_for_few_and_that_is_said(settings) -> None:
    # 16 sequences of 3840 tokens make 15 micro batches of 4096, one of which gets two.
    key = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    share = share_of(settings(**{f"{ACTOR}use_dynamic_bsz": True, key: 4096}))
    assert share.budgets == {key: 2 * 3840}
    assert share.lengths == ((1024, 3840 - 1024),) * 4
    assert share.notes[1].startswith("verl divides 16 sequences evenly")
    assert f"7680 tokens instead of 4096. The plan shows this with few sequences and {key}=7680" in share.notes[1]


def test_a_budget_that_verl_keeps_to_is_not_raised(settings) -> None:
    def dynamic(budget: int) -> Settings:
        return settings(**{f"{ACTOR}use_dynamic_bsz": True, f"{ACTOR}ppo_max_token_len_per_gpu": budget})

    assert share_of(dynamic(4096)).budgets
    longest = share_of(dynamic(4096), None, bounded=True)
    assert (longest.budgets, longest.lengths, longest.sequences) == ({}, (), 2)
    assert share_of(dynamic(6000), None, bounded=True).lengths == ((1024, 3000 - 1024),) * 4


def test_a_budget_with_few_micro_batches_is_the_scripts_own(settings) -> None:
    dynamic = settings(**{f"{ACTOR}use_dynamic_bsz": True, f"{ACTOR}ppo_max_token_len_per_gpu": 12288})
    assert share_of(dynamic, 3072).budgets == {}


# Micro batches: where their size is set, how many sequences show the largest, and which trainers keep the budget.


def _dynamic(size: int, sequence_parallel: int = 1) -> MicroBatch:
    return MicroBatch(Phase.UPDATE_ACTOR, "tokens", True, size, sequence_parallel)


def _fixed(size: int) -> MicroBatch:
    return MicroBatch(Phase.LOG_PROB, "sequences", False, size, 1)


def test_each_phase_has_its_own_setting(settings) -> None:
    found = {batch.phase: (batch.key, batch.size) for batch in micro_batches(settings(), 8)}
    assert found == {
        Phase.UPDATE_ACTOR: (f"{ACTOR}ppo_micro_batch_size_per_gpu", 4),
        Phase.LOG_PROB: ("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu", 8),
    }


def test_critic_and_reference_have_micro_batches_if_they_are_there(settings) -> None:
    with_both = settings(
        **{
            "algorithm.adv_estimator": "gae",
            "algorithm.use_kl_in_reward": True,
            "critic.ppo_micro_batch_size_per_gpu": 2,
            "critic.forward_micro_batch_size_per_gpu": 16,
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 32,
        },
    )
    found = {batch.phase: batch.size for batch in micro_batches(with_both, 8)}
    assert (found[Phase.UPDATE_CRITIC], found[Phase.VALUES], found[Phase.REFERENCE]) == (2, 16, 32)


def test_a_size_of_all_ranks_together_is_divided(settings) -> None:
    together = settings(
        **{
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": None,
            "actor_rollout_ref.actor.ppo_micro_batch_size": 32,
        }
    )
    batch = micro_batches(together, 8)[0]
    assert (batch.key, batch.size, batch.together) == (f"{ACTOR}ppo_micro_batch_size", 4, True)


@pytest.mark.parametrize(
    ("strategy", "key", "sequence_parallel"),
    [("fsdp2", "ulysses_sequence_parallel_size", 4), ("megatron", "megatron.context_parallel_size", 4)],
)
def test_ranks_that_share_a_sequence_add_up_their_budgets(
    settings, strategy: str, key: str, sequence_parallel: int
) -> None:
    prefix = ACTOR
    found = micro_batches(
        settings(
            **{
                f"{prefix}strategy": strategy,
                f"{prefix}{key}": sequence_parallel,
                f"{prefix}use_dynamic_bsz": True,
                f"{prefix}ppo_max_token_len_per_gpu": 8192,
            }
        ),
        2,
    )[0]
    assert (found.sequence_parallel, found.sequences(4096, 64)) == (4, 8)


def test_two_micro_batches_of_each_phase_are_enough() -> None:
    assert enough([_fixed(4), _fixed(6)], 100, most=64, alike=True) == 12


def test_there_are_no_more_than_in_a_mini_batch() -> None:
    assert enough([_fixed(4)], 100, most=6, alike=True) == 6


def test_a_budget_is_overdrawn_as_verl_does() -> None:
    # Ten sequences of 600 tokens are 6000: six micro batches of 1000, four of which get two sequences, 1200 tokens.
    assert _dynamic(1000).sequences(600, 10) == 2
    found = enough([_dynamic(1000)], 600, most=64, alike=True)
    number = _dynamic(1000).number(600, found)
    assert -(-found // number) == 2
    assert found - number >= 2, "two micro batches have as many"


def test_bounded_micro_batches_keep_to_their_budget() -> None:
    bounded = MicroBatch(Phase.UPDATE_ACTOR, "tokens", True, 1000, 1, bounded=True)
    assert (bounded.number(600, 10), bounded.sequences(600, 10)) == (10, 1)
    assert (bounded.number(300, 10), bounded.sequences(300, 10)) == (4, 3)
    assert bounded.widened(600, 128) == bounded


def test_bounded_micro_batches_are_fullest_with_lengths_that_divide_the_budget() -> None:
    bounded = MicroBatch(Phase.UPDATE_ACTOR, "tokens", True, 1000, 1, bounded=True)
    # One sequence of 600 tokens leaves 400 of a budget of 1000; two of 500 leave none.
    assert fullest([bounded], 600, 64) == 500


def test_a_wider_budget_holds_with_few_sequences_what_many_make() -> None:
    # 128 sequences of 990 tokens make 127 micro batches of 1000: one of them gets two.
    narrow = _dynamic(500, sequence_parallel=2)
    wide = narrow.widened(990, 128)
    assert (wide.size, wide.sequences(990, 4)) == (990, 2)
    assert narrow.sequences(990, 4) == 1


def test_a_budget_that_is_not_overdrawn_stays_and_so_do_sequences() -> None:
    assert _dynamic(1000).widened(400, 2) == _dynamic(1000)
    assert _fixed(4).widened(400, 64) == _fixed(4)


def test_sequences_that_are_not_alike_fill_several_micro_batches() -> None:
    assert enough([_dynamic(1000)], 600, most=64, alike=False) == 6


def test_the_greatest_length_is_the_fullest_if_nothing_is_divided() -> None:
    assert fullest([_dynamic(16384)], 3072, 5) == 3072


def test_shorter_sequences_fill_a_budget_that_the_longest_would_divide() -> None:
    # Ten sequences of 3072 tokens make two micro batches of 15360; ten of 2457 make one of 24570.
    assert fullest([_dynamic(24576)], 3072, 10) == 2457


def test_sequences_are_the_longest_where_a_phase_counts_them() -> None:
    assert fullest([_dynamic(24576), _fixed(2)], 3072, 10) == 3072


def test_long_sequences_are_preferred_where_short_ones_have_hardly_more_tokens() -> None:
    assert fullest([_dynamic(18432)], 3000, 512) >= 2500


@pytest.mark.parametrize(
    ("others", "there"),
    [
        ({}, False),
        ({"algorithm.adv_estimator": "gae"}, True),
        ({"critic.enable": True}, True),
        ({"algorithm.adv_estimator": "gae", "critic.enable": False}, False),
    ],
)
def test_a_critic_is_there_for_gae_unless_the_script_says_otherwise(settings, others, there: bool) -> None:
    assert has_critic(settings(**others)) is there


@pytest.mark.parametrize(
    ("others", "there"),
    [
        ({}, False),
        ({"actor_rollout_ref.actor.use_kl_loss": True}, True),
        ({"algorithm.use_kl_in_reward": True}, True),
        ({"algorithm.use_kl_in_reward": True, "actor_rollout_ref.model.lora_rank": 8}, False),
    ],
)
def test_a_reference_is_kept_for_a_divergence_unless_adapters_can_be_left_out(settings, others, there: bool) -> None:
    assert has_reference(settings(**others)) is there


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a verl whose micro batches may exceed the budget."""
    (tmp_path / "verl" / "utils").mkdir(parents=True)
    (tmp_path / "verl" / "__init__.py").touch()
    (tmp_path / "verl" / "utils" / "__init__.py").touch()
    (tmp_path / "verl" / "utils" / "seqlen_balancing.py").write_text("def rearrange_micro_batches(): ...\n")
    return tmp_path


def _trainer(**exports: str) -> Trainer:
    return Trainer("verl.trainer.main_ppo", (), (), 0, Path(), exports)


BOUNDED = """
def rearrange_micro_batches(lengths, max_token_len):
    while any(length > max_token_len for length in lengths):
        lengths = get_seqlen_balanced_partitions(lengths)
    if len(lengths) > max_token_len:
        raise ValueError("too long")
    return lengths
"""
ASKED = {"VERL_NPU_TOKEN_BUDGET": "1"}
KEEPS = {
    "verl by itself": ("", {}, {}, False),
    "verl from the version on that bounds them": (BOUNDED, {}, {}, True),
    "the script asks for it": ("", ASKED, {}, True),
    "the user asks for it": ("", {}, ASKED, True),
}


@pytest.mark.parametrize(("source", "exports", "variables", "keeps"), KEEPS.values(), ids=KEEPS)
def test_a_budget_is_kept_to_by_later_versions_or_if_it_is_asked_for(
    tree: Path, monkeypatch: pytest.MonkeyPatch, source: str, exports, variables, keeps: bool
) -> None:
    if source:
        (tree / "verl" / "utils" / "seqlen_balancing.py").write_text(source)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert keeps_budget(_trainer(**exports), tree) is keeps


def test_a_folder_without_the_package_starts_the_one_that_is_installed(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "verl" / "utils" / "seqlen_balancing.py").write_text(BOUNDED)
    monkeypatch.setattr(SourceTree, "installed", lambda packages: SourceTree.at(tree, packages))
    (tmp_path / "elsewhere" / "verl").mkdir(parents=True)
    assert keeps_budget(_trainer(), tmp_path / "elsewhere")
