"""Training data: generated sums in GSM8K's Parquet layout, a local Parquet file or folder, or a dataset from the
hub."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from harness.errors import BadInput
from verl_npu.language import gettext as _

COLUMNS = ("data_source", "prompt", "reward_model")
SOURCE = "verl-npu/sums"


def _row(source: str, question: str, answer: str, truth: str, split: str, index: int) -> dict[str, object]:
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": split, "index": index, "answer": answer, "question": question},
        # GSM8K does not have this column. verl's later trainer for supervised fine-tuning reads it.
        "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
    }


def generate(folder: Path, seed: int, train: int = 512, test: int = 64) -> tuple[Path, Path]:
    """Write a dataset of sums of two one-digit numbers to train.parquet and test.parquet. The same seed creates the
    same dataset."""
    numbers = random.Random(seed)
    paths = []
    for split, count in (("train", train), ("test", test)):
        rows = []
        for index in range(count):
            first, second = numbers.randint(0, 9), numbers.randint(0, 9)
            truth = f"{first + second:02d}"
            rows.append(_row(SOURCE, f"What is {first} + {second}?", f"#### {truth}", truth, split, index))
        paths.append(_write(folder / f"{split}.parquet", rows))
    return paths[0], paths[1]


def _write(path: Path, rows: Iterable[dict[str, object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(list(rows)).to_parquet(path)
    return path


def _checked(path: Path) -> Path:
    import pyarrow.parquet

    try:
        names = pyarrow.parquet.read_schema(path).names
    except (OSError, ValueError) as error:
        raise BadInput(
            _("--data: expected a parquet file; found {path}, which cannot be read: {error}").format(
                path=path, error=error
            )
        ) from error
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise BadInput(
            _(
                "--data: expected the columns {columns} in {path}; found {found}. "
                "Convert it with verl's examples/data_preprocess"
            ).format(columns=_(", ").join(COLUMNS), path=path, found=_(", ").join(names))
        )
    return path


def obtain(source: str, folder: Path) -> tuple[Path, Path]:
    """Return the paths of the training and test Parquet files for a local path or a hub name. Raise BadInput if
    `source` is neither."""
    path = Path(source)
    if path.is_file():
        return _checked(path.resolve()), _checked(path.resolve())
    if path.is_dir():
        train, test = path / "train.parquet", path / "test.parquet"
        for part in (train, test):
            if not part.is_file():
                raise BadInput(
                    _("--data: expected train.parquet and test.parquet in {path}; found no {part}").format(
                        path=path, part=part.name
                    )
                )
        return _checked(train.resolve()), _checked(test.resolve())
    return _from_hub(source, folder)


def _from_hub(name: str, folder: Path) -> tuple[Path, Path]:
    import datasets

    try:
        # GSM8K and similar datasets have a configuration called main.
        configurations = datasets.get_dataset_config_names(name)
        loaded = datasets.load_dataset(name, "main" if "main" in configurations else configurations[0])
    except Exception as error:
        # If a dataset cannot be downloaded, the hub's client raises errors of many libraries.
        raise BadInput(
            _("--data: expected a path or a hub name; found {name!r}: {error}").format(name=name, error=error)
        ) from error
    paths = []
    for split in ("train", "test"):
        if split not in loaded:
            raise BadInput(
                _("--data: expected the splits train and test in {name}; found {found}").format(
                    name=name, found=_(", ").join(loaded)
                )
            )
        columns = loaded[split].column_names
        if all(column in columns for column in COLUMNS):
            folder.mkdir(parents=True, exist_ok=True)
            loaded[split].to_parquet(folder / f"{split}.parquet")
            paths.append(folder / f"{split}.parquet")
        elif {"question", "answer"} <= set(columns):
            ask = ' Let\'s think step by step and output the final answer after "####".'
            rows = (
                _row(name, row["question"] + ask, row["answer"], _truth(row["answer"]), split, index)
                for index, row in enumerate(loaded[split])
            )
            paths.append(_write(folder / f"{split}.parquet", rows))
        else:
            raise BadInput(
                _(
                    "--data: expected the columns {columns}, or the columns question and answer, in {name}; found "
                    "{found}"
                ).format(columns=_(", ").join(COLUMNS), name=name, found=_(", ").join(columns))
            )
    return paths[0], paths[1]


def _truth(answer: str) -> str:
    return answer.rsplit("####", 1)[-1].strip().replace(",", "")
