from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("datasets")
pandas = pytest.importorskip("pandas")

from verl_npu.rehearse import questions  # noqa: E402  # after what it needs

READ = {"data_source", "prompt", "ability", "reward_model", "extra_info", "messages", "question", "answer"}


def test_the_columns_are_those_of_every_kind_of_training(tmp_path: Path) -> None:
    train, test = questions.generate(tmp_path, "openai/gsm8k", images=False)
    rows = pandas.read_parquet(train)
    assert set(rows.columns) == READ
    assert (len(rows), len(pandas.read_parquet(test))) == (64, 8)
    row = rows.iloc[0]
    assert row["data_source"] == "openai/gsm8k"
    assert row["prompt"][0]["role"] == "user"
    assert row["prompt"][0]["content"] == row["extra_info"]["question"] == row["question"]
    assert row["answer"] == f"#### {row['reward_model']['ground_truth']}"
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"]


def test_pictures_are_a_feature_and_are_named_in_the_question(tmp_path: Path) -> None:
    import datasets

    train, _ = questions.generate(tmp_path, "hiyouga/geometry3k", images=True)
    rows = datasets.load_dataset("parquet", data_files=str(train), split="train", cache_dir=str(tmp_path / "cache"))
    assert {len(row["images"]) for row in rows} == {1}
    assert len({row["images"][0].size for row in rows}) > 1
    assert rows[0]["prompt"][0]["content"].startswith("<image>")


def test_they_are_the_same_each_time(tmp_path: Path) -> None:
    first, second = (questions.generate(tmp_path / name, "x", images=False)[0] for name in "ab")
    assert pandas.read_parquet(first)["question"].tolist() == pandas.read_parquet(second)["question"].tolist()
