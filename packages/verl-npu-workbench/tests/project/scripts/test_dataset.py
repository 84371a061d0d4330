from __future__ import annotations

from pathlib import Path

import pytest

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from harness import dataset  # noqa: E402  # needs pandas
from harness.errors import BadInput  # noqa: E402


def test_sums_are_in_the_layout_of_gsm8k_and_right(tmp_path: Path) -> None:
    train, test = dataset.generate(tmp_path, seed=3, train=20, test=5)
    rows = pd.read_parquet(train)
    assert list(rows.columns) == ["data_source", "prompt", "ability", "reward_model", "extra_info", "messages"]
    assert len(rows) == 20
    assert len(pd.read_parquet(test)) == 5
    for row in rows.itertuples():
        (message,) = row.prompt
        first, second = (int(part) for part in message["content"].removeprefix("What is ").rstrip("?").split(" + "))
        assert message["role"] == "user"
        assert row.reward_model == {"style": "rule", "ground_truth": f"{first + second:02d}"}
        assert row.extra_info["split"] == "train"


def test_same_seed_same_data(tmp_path: Path) -> None:
    once, again, other = (
        pd.read_parquet(dataset.generate(tmp_path / name, seed=seed)[0]).to_json()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert once == again != other


def test_local_folder_and_file_are_used_as_they_lie(tmp_path: Path) -> None:
    train, test = dataset.generate(tmp_path, seed=0, train=4, test=2)
    assert dataset.obtain(str(tmp_path), tmp_path / "unused") == (train.resolve(), test.resolve())
    assert dataset.obtain(str(train), tmp_path / "unused") == (train.resolve(), train.resolve())


def test_bad_data_is_one_line(tmp_path: Path) -> None:
    pd.DataFrame({"text": ["x"]}).to_parquet(tmp_path / "other.parquet")
    (tmp_path / "no.parquet").write_text("text")
    (tmp_path / "empty").mkdir()
    for name, words in (
        ("other.parquet", "data_source"),
        ("no.parquet", "expected a parquet file"),
        ("empty", "train.parquet"),
    ):
        with pytest.raises(BadInput, match=words):
            dataset.obtain(str(tmp_path / name), tmp_path / "unused")
