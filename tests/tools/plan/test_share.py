"""How a step is divided among ranks, and what a plan gives one of them."""

from __future__ import annotations

import pytest

from verl_npu.errors import PlanError
from verl_npu.tools.jobs.settings import Settings
from verl_npu.tools.plan.share import share_of

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
    assert "answers of 1024 tokens are planned" in share.notes[0]


def test_a_budget_without_room_for_an_answer_is_one_line(settings) -> None:
    with pytest.raises(PlanError, match="room for a prompt of 1024 tokens and an answer, found 1024 tokens"):
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
    with pytest.raises(PlanError, match=r"the parallel sizes: expected a product that divides 8 NPUs .*, found 3"):
        share_of(settings(**{f"{ACTOR}ulysses_sequence_parallel_size": 3}))


@pytest.mark.parametrize("key", ["trainer.nnodes", "data.max_prompt_length", "data.train_batch_size"])
def test_what_is_missing_is_named(settings, key: str) -> None:
    with pytest.raises(PlanError, match=f"{key}: expected a number above 0, found none"):
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
    assert "10 of them are longer than the script allows" in share.notes[1]


def test_the_greatest_lengths_are_those_that_fill_a_budget(settings) -> None:
    # A mini batch of 16 sequences fits into one budget if they are a little shorter than 4096 tokens.
    budget = 16 * 3900
    dynamic = settings(**{f"{ACTOR}use_dynamic_bsz": True, f"{ACTOR}ppo_max_token_len_per_gpu": budget})
    share = share_of(dynamic)
    assert share.lengths == ((1024, 3900 - 1024),) * 16
    assert share.scored_lengths == ()
    assert "fills a token budget" in share.notes[0]
    assert share_of(dynamic, 3072).lengths == (), "the user has named a length"
    padded = {"actor_rollout_ref.model.use_remove_padding": False}
    assert share_of(Settings({**dynamic.values, **padded})).lengths == (), "padding takes as much"


def test_a_budget_that_many_sequences_overdraw_is_raised_for_few_and_that_is_said(settings) -> None:
    # 16 sequences of 3840 tokens make 15 micro batches of 4096, one of which gets two.
    key = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    share = share_of(settings(**{f"{ACTOR}use_dynamic_bsz": True, key: 4096}))
    assert share.budgets == {key: 2 * 3840}
    assert share.lengths == ((1024, 3840 - 1024),) * 4
    assert share.notes[1].startswith("verl divides 16 sequences evenly")
    assert f"7680 tokens in place of 4096: a plan shows it with few sequences and {key}=7680" in share.notes[1]


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
