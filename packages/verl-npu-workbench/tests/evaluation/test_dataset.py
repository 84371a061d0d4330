"""A data set in verl's layout is read; another one is one error that says what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from verl_npu_workbench.evaluation.dataset import read

from verl_npu.errors import EvaluationError

from .conftest import row

Write = Callable[..., Path]


def test_a_row_becomes_a_prompt_with_all_that_the_reward_is_given(write: Write) -> None:
    (prompt,) = read(write(row(1))).prompts
    assert (prompt.row, prompt.data_source, prompt.ground_truth) == (0, "sums", "3")
    assert list(prompt.messages) == [{"role": "user", "content": "1 + 2"}]
    assert prompt.extra_info == {"index": 1, "split": "test"}


def test_fields_that_parquet_fills_up_are_left_out_of_a_message(write: Write) -> None:
    named = row(1, prompt=[{"role": "user", "content": "1", "name": "a"}, {"role": "user", "content": "2"}])
    assert list(read(write(named)).prompts[0].messages)[1] == {"role": "user", "content": "2"}


def test_a_limit_takes_the_first_rows(data: Path) -> None:
    assert [each.row for each in read(data, 2).prompts] == [0, 1]


def test_the_digest_is_that_of_the_file(write: Write) -> None:
    one, again = (read(write(row(1))).digest for _ in range(2))
    assert one == again != read(write(row(2))).digest


@pytest.mark.parametrize("name", ["prompt", "data_source", "reward_model"])
def test_a_missing_column_is_named(write: Write, name: str) -> None:
    rows = row(1)
    del rows[name]
    with pytest.raises(EvaluationError, match=f"found no {name} among"):
        read(write(rows))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"prompt": "1 + 2"}, "in row 0 a prompt that is no list of messages"),
        ({"reward_model": {"style": "rule"}}, r"in row 0 no reward_model\.ground_truth"),
        ({"images": [b"x"]}, "in row 0 images or videos"),
    ],
)
def test_a_row_that_cannot_be_asked_is_named(write: Write, more: dict[str, object], said: str) -> None:
    with pytest.raises(EvaluationError, match=said):
        read(write(row(1, **more)))


@pytest.mark.parametrize("content", [None, b"", b"not parquet"])
def test_a_file_that_is_not_parquet_is_one_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "data.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EvaluationError, match=r"data\.parquet: expected verl's parquet layout"):
        read(path)
