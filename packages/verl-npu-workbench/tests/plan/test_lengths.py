from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from verl_npu_workbench.plan.lengths import drawn_lengths, heaviest, measured_lengths

from verl_npu.errors import PlanError

ROWS = ((10, 200), (30, 400), (20, 50))


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "".join(json.dumps({"prompt": prompt, "response": response}) + "\n" for prompt, response in ROWS),
        "prompt,response\n10,200\n30,400\n20,50\n",
        "step, response, prompt\n1, 200, 10\n1, 400, 30\n2, 50, 20\n",
    ],
    ids=["json lines", "csv", "csv with other columns"],
)
def test_a_file_has_one_sequence_in_each_row(tmp_path: Path, text: str) -> None:
    assert measured_lengths(_write(tmp_path / "lengths", text), tmp_path) == ROWS


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "found a file without sequences"),
        ("prompt,response\n", "found a file without sequences"),
        ("prompt,response\n10,200\n10,many\n", "sequence 2: expected JSON lines such as"),
        ("prompt,response\n10,-3\n", "sequence 1"),
        ("prompt,answer\n10,20\n", "sequence 1"),
        ('{"prompt": 10, "response": 20}\n{"prompt": \n', "line 2"),
        ('{"prompt": 10, "response": 20}\n[1, 2]\n', "line 2"),
        ('{"prompt": 10.5, "response": 20}\n', "sequence 1"),
    ],
)
def test_another_file_is_one_line(tmp_path: Path, text: str, found: str) -> None:
    with pytest.raises(PlanError, match=found) as raised:
        measured_lengths(_write(tmp_path / "lengths", text), tmp_path)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="No such file"):
        measured_lengths(tmp_path / "missing", tmp_path)


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Return a folder in the format of trainer.rollout_data_dir: a file for each step, with texts."""
    folder = tmp_path / "rollouts"
    folder.mkdir()
    for step, texts in {2: [("a b", "c d e")], 10: [("a", "b")], 1: [("a b c", "d"), ("a", "")]}.items():
        rows = [{"input": question, "output": answer, "score": 1.0, "step": step} for question, answer in texts]
        _write(folder / f"{step}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_tokens_of_verls_own_dump_are_counted_in_the_order_of_its_steps(dump: Path, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    # An answer without a word has at least its end token.
    assert measured_lengths(dump, tmp_path) == ((3, 1), (1, 1), (2, 3), (1, 1))


def test_texts_without_the_models_tokenizer_are_one_line(dump: Path, tmp_path: Path) -> None:
    with pytest.raises(
        PlanError, match=r"cannot be counted, because .* has no tokenizer\.json; .*--model-config FOLDER"
    ):
        measured_lengths(dump, tmp_path)


def test_a_rank_gets_the_sequences_in_a_row_that_have_the_most_tokens() -> None:
    assert heaviest([(1, 9), (1, 1), (5, 5), (2, 7), (1, 1)], 2) == ((5, 5), (2, 7))


def test_a_short_file_is_begun_again() -> None:
    assert heaviest([(1, 1), (2, 2)], 5) == ((2, 2), (1, 1), (2, 2), (1, 1), (2, 2))


def test_sequences_that_just_fill_a_budget_are_heavier_than_more_tokens_in_one_more_micro_batch() -> None:
    # 12 tokens are two micro batches of 6, 10 tokens are one of 10.
    assert heaviest([(1, 5), (1, 5), (1, 3), (1, 5)], 2, [10]) == ((1, 5), (1, 3))
    assert heaviest([(1, 5), (1, 5), (1, 3), (1, 5)], 2, [12]) == ((1, 5), (1, 5))
    # The budget of another phase counts, too.
    assert heaviest([(1, 5), (1, 5), (1, 3), (1, 5)], 2, [10, 12]) == ((1, 5), (1, 5))


@pytest.mark.parametrize("spread", [0.2, 0.5, 1.0])
def test_lengths_that_are_drawn_have_the_mean_and_the_spread_that_were_asked_for(spread: float) -> None:
    drawn = drawn_lengths(100, 1000, spread, 50_000)
    answers = [response for _, response in drawn]
    assert {prompt for prompt, _ in drawn} == {100}
    assert statistics.mean(answers) == pytest.approx(1000, rel=0.02)
    assert statistics.stdev(answers) == pytest.approx(1000 * spread, rel=0.05)


def test_lengths_are_drawn_alike_each_time_and_are_never_empty() -> None:
    assert drawn_lengths(1, 2, 3.0, 100) == drawn_lengths(1, 2, 3.0, 100)
    assert min(response for _, response in drawn_lengths(1, 2, 3.0, 1000)) == 1
