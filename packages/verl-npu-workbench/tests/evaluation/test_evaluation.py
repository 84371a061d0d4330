"""Each prompt is asked as often as there are rounds, once; what was answered is kept, whatever happens then."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from verl_npu_workbench.evaluation import reward
from verl_npu_workbench.evaluation.endpoint import Sampling
from verl_npu_workbench.evaluation.evaluation import Plan, evaluate
from verl_npu_workbench.evaluation.record import ANSWERS, SETTINGS, answers, opened
from verl_npu_workbench.evaluation.report import content, report

from verl_npu.errors import EvaluationError

from .endpoint import Served

MakePlan = Callable[..., Plan]


def run(plan: Plan) -> list[int]:
    """Evaluate, and return what progress was told."""
    said: list[int] = []
    evaluate(plan, lambda done, total, mean: said.append(done))
    return said


def questions(endpoint: Served) -> list[str]:
    return [each["messages"][0]["content"] for each in endpoint.requests]


def test_every_prompt_is_asked_in_every_round_and_graded(plan: MakePlan, endpoint: Served) -> None:
    made = plan()
    assert run(made) == list(range(9))
    assert sorted(questions(endpoint)) == sorted([f"{index} + 2" for index in range(4)] * 2)
    found = answers(made.output)
    assert sorted(found) == [(number, index) for number in range(2) for index in range(4)]
    assert {each.score for each in found.values()} == {1.0}
    assert found[0, 2].answer == "4"


def test_what_is_sent_is_what_was_asked_for(plan: MakePlan, endpoint: Served) -> None:
    sampling = Sampling(0.7, 0.9, 20, 16, seed=5, template={"enable_thinking": False})
    run(plan(sampling=sampling, rounds=1))
    request = next(each for each in endpoint.requests if each["messages"][0]["content"] == "3 + 2")
    assert request["model"] == "small"
    given = {key: request[key] for key in ("temperature", "top_p", "top_k", "max_tokens", "seed")}
    assert given == {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "max_tokens": 16, "seed": 8}
    assert request["chat_template_kwargs"] == {"enable_thinking": False}


def test_vllm_is_kept_from_the_models_own_sampling_settings(plan: MakePlan, endpoint: Served) -> None:
    endpoint.owner = "vllm"
    run(plan(rounds=1))
    request = endpoint.requests[0]
    assert (request["top_k"], request["min_p"], request["repetition_penalty"]) == (-1, 0.0, 1.0)


def test_another_server_is_sent_nothing_that_openai_does_not_have(plan: MakePlan, endpoint: Served) -> None:
    run(plan(rounds=1))
    assert set(endpoint.requests[0]) == {"model", "messages", "stream", "temperature", "top_p"}


def test_answers_of_different_rounds_have_different_seeds(plan: MakePlan, endpoint: Served) -> None:
    run(plan(sampling=Sampling(seed=0)))
    assert len({each["seed"] for each in endpoint.requests}) == 8


def test_an_evaluation_that_ended_half_way_asks_only_what_is_missing(plan: MakePlan, endpoint: Served) -> None:
    endpoint.failures = [200] * 5 + [400] * 10
    with pytest.raises(EvaluationError, match=r"an answer to row \d, found BadRequestError: .*too long"):
        run(plan(concurrency=1))
    assert len(answers(plan().output)) == 5
    endpoint.failures, endpoint.requests = [], []
    assert run(plan())[0] == 5
    assert len(endpoint.requests) == 3
    assert len(answers(plan().output)) == 8


def test_a_line_that_was_half_written_is_asked_again(plan: MakePlan, endpoint: Served) -> None:
    made = plan()
    run(made)
    path = made.output / ANSWERS
    path.write_bytes(path.read_bytes()[:-20])
    endpoint.requests = []
    run(made)
    assert len(endpoint.requests) == 1
    assert len(answers(made.output)) == 8


def test_one_that_is_complete_asks_nothing(plan: MakePlan, endpoint: Served) -> None:
    run(plan())
    endpoint.requests = []
    assert run(plan()) == [8]
    assert endpoint.requests == []


def test_what_fails_in_passing_is_asked_again(plan: MakePlan, endpoint: Served) -> None:
    endpoint.failures = [503, 429]
    run(plan(concurrency=1))
    assert len(endpoint.requests) == 10


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"rounds": 3}, "an evaluation with rounds 3, found one with 2"),
        ({"sampling": Sampling(0.5)}, "an evaluation with sampling"),
    ],
)
def test_a_folder_of_other_settings_is_refused(plan: MakePlan, more: dict[str, object], said: str) -> None:
    run(plan())
    with pytest.raises(EvaluationError, match=said):
        run(plan(**more))


def test_a_folder_of_another_reward_function_is_refused(plan: MakePlan, function: Path) -> None:
    run(plan())
    with pytest.raises(EvaluationError, match="an evaluation with reward"):
        run(plan(reward=reward.load(function, "scaled", {})))


def test_a_folder_of_another_model_is_refused(plan: MakePlan, endpoint: Served) -> None:
    run(plan())
    endpoint.root = "models/other"
    with pytest.raises(EvaluationError, match=r"an evaluation with model .*models/other"):
        run(plan())


def test_a_folder_that_another_one_writes_to_is_refused(plan: MakePlan) -> None:
    made = plan()
    run(made)
    wanted = {
        key: value for key, value in json.loads((made.output / SETTINGS).read_text()).items() if key != "version"
    }
    with opened(made.output, wanted), pytest.raises(EvaluationError, match="no other evaluation writes to"):
        run(made)


def test_a_folder_of_somebody_elses_is_refused(plan: MakePlan) -> None:
    made = plan()
    made.output.mkdir()
    (made.output / ANSWERS).write_text("{}\n")
    with pytest.raises(EvaluationError, match="no such file, and answers beside it"):
        run(made)


def test_an_endpoint_that_is_not_there_is_one_error(plan: MakePlan) -> None:
    with pytest.raises(EvaluationError, match="expected an OpenAI-style endpoint, found APIConnectionError"):
        run(plan(url="http://127.0.0.1:9/v1", retries=0))


@pytest.mark.parametrize(
    ("models", "asked", "said"),
    [(["a", "b"], None, "expected one model, found a, b"), (["a"], "c", "expected the model c, found a")],
)
def test_the_model_has_to_be_told_where_there_are_several(
    plan: MakePlan, endpoint: Served, models: list[str], asked: str | None, said: str
) -> None:
    endpoint.models = models
    with pytest.raises(EvaluationError, match=said):
        run(plan(model=asked))


def test_a_reward_function_that_fails_ends_it_and_keeps_what_was_graded(plan: MakePlan, tmp_path: Path) -> None:
    path = tmp_path / "picky.py"
    path.write_text("def f(ground_truth, **given):\n    if ground_truth == '5': raise ValueError('x')\n    return 1\n")
    made = plan(reward=reward.load(path, "f", {}), concurrency=1)
    with pytest.raises(EvaluationError, match=r"f at row 3 .*ValueError: x"):
        run(made)
    assert len(answers(made.output)) == 3


def test_two_evaluations_side_by_side(plan: MakePlan, endpoint: Served, tmp_path: Path) -> None:
    endpoint.answer = lambda request: "5"
    run(plan())
    endpoint.answer, endpoint.root = (lambda request: "4"), "models/after"
    run(plan(output=tmp_path / "after"))
    found = content(report(tmp_path / "after", 1.0), report(tmp_path / "evaluation", 1.0))
    assert found["difference"]["verdict"] == "not told apart"
    assert found["difference"]["notes"] == []
    assert found["evaluation"]["total"]["mean"] == found["against"]["total"]["mean"] == 0.25
    assert set(found["evaluation"]["sources"]) == {"sums", "other/sums"}


def test_other_data_is_no_comparison_and_other_rounds_are_a_note(
    plan: MakePlan, endpoint: Served, function: Path, tmp_path: Path
) -> None:
    run(plan())
    run(plan(output=tmp_path / "more", rounds=1))
    first = report(tmp_path / "evaluation", 1.0)
    notes = content(first, report(tmp_path / "more", 1.0))["difference"]["notes"]
    assert len(notes) == 1
    assert notes[0].startswith("rounds differ: 2, and 1 of")
    run(plan(output=tmp_path / "other", reward=reward.load(function, "scaled", {})))
    with pytest.raises(EvaluationError, match="of the same reward"):
        content(first, report(tmp_path / "other", 1.0))
