from __future__ import annotations

import dataclasses

import pytest
from verl_npu_workbench.plan.job import Phase
from verl_npu_workbench.plan.planning import Planned
from verl_npu_workbench.plan.share import Share
from verl_npu_workbench.plan.timing import EAGER, GRAPHS, Span, assumptions, spans, total

from .conftest import SEPARATE


def _update(plan: Planned) -> Span:
    return next(span for span in spans(plan) if span.phase == Phase.UPDATE_ACTOR.value)


def _with(plan: Planned, **changes: object) -> Planned:
    outcome = plan.outcomes[0]
    costs = [dataclasses.replace(cost, **changes) for cost in outcome.phases]
    return dataclasses.replace(plan, outcomes=(dataclasses.replace(outcome, phases=costs),))


def test_a_range_has_its_ends_in_order(planned) -> None:
    plan = planned({"update actor": 10.0, "log-probabilities": 5.0})
    assert all(0 < span.least < span.most for span in spans(plan))


def test_a_step_takes_as_long_as_its_phases(planned) -> None:
    found = spans(planned({"update actor": 10.0}))
    assert total(found).least == pytest.approx(sum(span.least for span in found))


def test_a_step_beside_servers_takes_as_long_as_the_slower_side(planned) -> None:
    found = (Span("rollout", 4.0, 9.0), Span("update actor", 3.0, 5.0), Span("weight sync", 2.0, 3.0))
    step = total(found, planned({"update actor": 1.0}, **SEPARATE).servers)
    assert (step.least, step.most) == (5.0, 9.0)
    assert total(found, planned({"update actor": 1.0}).servers).least == 9.0


def test_work_grows_with_the_sequences_of_a_step(planned) -> None:
    # A plan trains on 8 of the 32 sequences, and scores 16; the NPU reaches at most 60 % of its figures.
    assert _update(planned({"update actor": 10.0})).least == pytest.approx(4 * 1.0 / 0.6)
    scored = spans(planned({"log-probabilities": 10.0}))
    assert next(span for span in scored if span.phase == "log-probabilities").least == pytest.approx(2 * 1.0 / 0.6)


def test_the_heaviest_sequences_of_a_run_do_not_make_all_of_its_steps_long(planned) -> None:
    plan = planned({"update actor": 10.0})
    share = plan.share
    heavy = dataclasses.replace(share, lengths=((share.prompt, 2 * share.response + share.prompt),) * share.sequences)
    uneven = dataclasses.replace(plan, share=heavy)
    assert _update(uneven).least == pytest.approx(_update(plan).least / 2)


def test_micro_batches_that_are_fuller_than_most_hide_neither_calls_nor_messages(planned) -> None:
    dynamic = {
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 16384,
    }
    plan = planned({"update actor": 1.0}, **dynamic)
    raised = {"actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 2 * 16384}
    wide = dataclasses.replace(plan, share=dataclasses.replace(plan.share, budgets=raised))
    for changes in ({"calls": 10**6}, {"calls": 0, "messages": [("all_gather", 8, 1, 1e12)]}):
        before, after = (_update(_with(each, seconds=0.0, **changes)).least for each in (plan, wide))
        assert after == pytest.approx(2 * before)


def test_messages_between_nodes_take_the_network(planned) -> None:
    inside = _with(planned({"update actor": 1.0}), seconds=0.0, calls=0, messages=[("all_gather", 8, 1, 1e12)])
    outside = _with(planned({"update actor": 1.0}), seconds=0.0, calls=0, messages=[("all_gather", 16, 1, 1e12)])
    assert _update(outside).least > 5 * _update(inside).least


def test_a_reduction_is_sent_twice_and_a_scattered_one_by_its_input(planned) -> None:
    def seconds(name: str) -> float:
        return _update(
            _with(planned({"update actor": 1.0}), seconds=0.0, calls=0, messages=[(name, 8, 1, 1e12)])
        ).least

    assert seconds("all_reduce") == pytest.approx(2 * seconds("all_gather"))
    assert seconds("reduce_scatter_tensor") == pytest.approx(8 * seconds("all_gather"))


def test_copies_to_the_host_happen_once(planned) -> None:
    plan = _with(planned({"update actor": 1.0}), seconds=0.0, calls=0, copied=26e9)
    assert _update(plan).least == pytest.approx(1 / 0.9)


def test_longer_answers_take_longer(planned) -> None:
    short = planned({"update actor": 1.0}, **{"data.max_response_length": 1000})
    assert spans(short)[0].most < spans(planned({"update actor": 1.0}))[0].most


def test_at_worst_all_wait_for_an_answer_of_the_greatest_length(planned) -> None:
    found = spans(dataclasses.replace(planned({"update actor": 1.0}), share=_shorter(planned)))[0]
    assert found.most >= 3072 * 36 * GRAPHS
    assert found.least < spans(planned({"update actor": 1.0}))[0].least


def test_an_engine_without_graphs_takes_longer(planned) -> None:
    eager = spans(planned({"update actor": 1.0}, **{"actor_rollout_ref.rollout.enforce_eager": True}))[0]
    with_graphs = spans(planned({"update actor": 1.0}))[0]
    assert eager.most >= 3072 * 36 * EAGER > with_graphs.most


def _shorter(planned) -> Share:
    return dataclasses.replace(planned({"update actor": 1.0}).share, response=300)


def test_a_step_of_fine_tuning_is_its_training(tuned) -> None:
    # A plan trains on 8 of the 16 sequences; the NPU reaches at most 60 % of its figures. Validation is no part of it.
    plan = tuned({"training step": 10.0, "validation": 5.0, "checkpoint": 5.0})
    [span] = spans(plan)
    assert (span.phase, span.least) == ("training step", pytest.approx(2 * 1.0 / 0.6))
    assert total([span]).least == span.least


def test_nothing_is_assumed_of_an_engine_that_is_not_there(planned, tuned) -> None:
    of_tuning = assumptions(tuned({"training step": 10.0}))
    of_both = assumptions(planned({"update actor": 10.0}))
    assert set(of_tuning) < set(of_both)
    assert not any("engine" in each for each in of_tuning)
