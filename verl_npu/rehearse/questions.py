"""Generated training data in the layout that verl's own preparation scripts write."""

from __future__ import annotations

import io
import random
from pathlib import Path

__all__ = ["generate"]

SEED = 1
_TRAIN, _TEST = 64, 8
_SIDES = (32, 64, 96)
_QUESTIONS = ("What is {first} + {second}?", "{first} + {second} is?", "What is the sum of {first} and {second}?")
"""Of several lengths: batches of equal parts hide what lengths do."""


def generate(folder: Path, source: str, images: bool) -> tuple[Path, Path]:
    """Write sums as train.parquet and test.parquet; with `images` each question has a picture.

    The columns are those of verl's examples/data_preprocess: for reinforcement learning, for supervised fine-tuning
    of one turn (extra_info, question and answer) and of several (messages).
    """
    import datasets

    # Bars for a few rows would stand among what the command prints.
    datasets.disable_progress_bars()
    folder.mkdir(parents=True, exist_ok=True)
    numbers = random.Random(SEED)
    paths = []
    for split, count in (("train", _TRAIN), ("test", _TEST)):
        rows = [_row(numbers, source, split, index, images) for index in range(count)]
        table = datasets.Dataset.from_list(rows)
        if images:
            # As a picture and not as bytes: verl's data sets read this feature.
            table = table.cast_column("images", datasets.Sequence(datasets.Image()))
        path = folder / f"{split}.parquet"
        table.to_parquet(path)
        paths.append(path)
    return paths[0], paths[1]


def _row(numbers: random.Random, source: str, split: str, index: int, images: bool) -> dict[str, object]:
    first, second = numbers.randint(0, 9), numbers.randint(0, 9)
    truth = f"{first + second:02d}"
    asked = numbers.choice(_QUESTIONS).format(first=first, second=second)
    question = f"{'<image>' if images else ''}{asked}"
    answer = f"#### {truth}"
    row: dict[str, object] = {
        "data_source": source,
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": split, "index": index, "answer": answer, "question": question},
        "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
        "question": question,
        "answer": answer,
    }
    if images:
        row["images"] = [{"bytes": _picture(numbers), "path": None}]
    return row


def _picture(numbers: random.Random) -> bytes:
    from PIL import Image

    size = (numbers.choice(_SIDES), numbers.choice(_SIDES))
    picture = Image.new("RGB", size, tuple(numbers.randint(0, 255) for _ in range(3)))
    stream = io.BytesIO()
    picture.save(stream, format="PNG")
    return stream.getvalue()
