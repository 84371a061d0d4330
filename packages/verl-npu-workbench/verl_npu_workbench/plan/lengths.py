"""Lengths of sequences, read from a file or sampled at random, and the choice of the lengths that a plan uses."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from verl_npu.errors import PlanError
from verl_npu.language import gettext as _

_LARGEST = 1 << 30
"""The largest size of a file in characters."""
_DIGITS = 9
Length = tuple[int, int]
"""The number of tokens of a prompt, and of its answer."""
_NAMES = ("prompt", "response")
_TEXTS = ("input", "output")
"""The keys for the texts in verl's own dump: verl/trainer/ppo/ray_trainer.py, `_dump_generations`."""
_EXPECTED = _(
    'JSON lines such as {"prompt": 512, "response": 2048}, a CSV file with the columns prompt '
    "and response, or the files that verl wrote to trainer.rollout_data_dir"
)


def measured_lengths(path: Path, tokenizer: Path) -> tuple[Length, ...]:
    """Read the lengths from a file, or from all files that verl wrote to a folder, in order.

    Args:
        path: the file or folder.
        tokenizer: the folder of the model whose tokenizer counts the tokens in a dump that verl wrote. A dump contains
            texts without special tokens, so the token count of a prompt is slightly too low.

    Raises:
        PlanError: a file has an unsupported format, or there is no tokenizer to count the tokens of its texts.
    """
    files = sorted(path.glob("*.jsonl"), key=_step) if path.is_dir() else [path]
    rows = [row for file in files for row in _rows(file)]
    if not rows:
        raise _wrong(path, _("a file without sequences"))
    places = [_("{path}, sequence {number}").format(path=path, number=number) for number in range(1, len(rows) + 1)]
    if all(_TEXTS[0] in row and _TEXTS[1] in row for row in rows):
        return _counted(path, rows, tokenizer)
    return tuple(_length(row, place) for row, place in zip(rows, places, strict=True))


def drawn_lengths(prompt: int, response: int, spread: float, sequences: int) -> tuple[Length, ...]:
    """Sample the lengths of responses from a log-normal distribution with a fixed seed. All prompts have the same
    length.

    Args:
        prompt: the length of each prompt.
        response: the mean length of a response.
        spread: the standard deviation divided by the mean.
        sequences: the number of lengths to sample.
    """
    sigma = math.sqrt(math.log1p(spread**2))
    mu = math.log(response) - sigma**2 / 2
    draw = random.Random(0).lognormvariate
    return tuple((prompt, max(round(draw(mu, sigma)), 1)) for _unused in range(sequences))


def heaviest(lengths: Sequence[Length], sequences: int, budgets: Sequence[int] = ()) -> tuple[Length, ...]:
    """Of all groups of `sequences` consecutive lengths, return the group with the heaviest load: the most tokens in
    total or, with token budgets, the most tokens in one micro batch. A group can continue from the last length to the
    first.

    verl divides the tokens evenly among as few micro batches as a budget allows. A group with more total tokens may
    therefore be split into one more micro batch, and each of its micro batches then has fewer tokens.
    """
    around = list(itertools.islice(itertools.cycle(lengths), len(lengths) + sequences - 1))
    sums = [0, *itertools.accumulate(sum(length) for length in around)]

    def tokens(first: int) -> tuple[float, int]:
        total = sums[first + sequences] - sums[first]
        return max((total / -(-total // budget) for budget in budgets), default=total), total

    start = max(range(len(lengths)), key=tokens)
    return tuple(around[start : start + sequences])


def _rows(file: Path) -> Sequence[Mapping[str, object]]:
    try:
        with file.open(encoding="utf-8") as stream:
            text = stream.read(_LARGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(file, str(error)) from error
    if len(text) > _LARGEST:
        raise _wrong(file, _("more than {largest} million characters").format(largest=_LARGEST >> 20))
    if not text.lstrip().startswith("{"):
        return list(csv.DictReader(io.StringIO(text), skipinitialspace=True))
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _wrong(_("{file}, line {number}").format(file=file, number=number), str(error)) from error
        if not isinstance(row, dict):
            raise _wrong(_("{file}, line {number}").format(file=file, number=number), line[:80])
        rows.append(row)
    return rows


def _length(row: Mapping[str, object], place: str) -> Length:
    found = [str(row.get(name, "")).strip() for name in _NAMES]
    if not all(each.isdecimal() and len(each) <= _DIGITS and int(each) > 0 for each in found):
        raise _wrong(place, json.dumps(row, default=str)[:120])
    prompt, response = map(int, found)
    return prompt, response


def _counted(path: Path, rows: Iterable[Mapping[str, object]], folder: Path) -> tuple[Length, ...]:
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise PlanError(
            subject=str(path),
            found=_(
                "the tokens of the prompts and responses cannot be counted, because {folder} has no tokenizer.json"
            ).format(folder=folder),
            fix=_("specify a model folder that contains tokenizer.json: --model-config FOLDER"),
        )
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))

    def count(name: str) -> list[int]:
        texts = [str(row[name]) for row in rows]
        return [max(len(each.ids), 1) for each in tokenizer.encode_batch(texts, add_special_tokens=False)]

    prompts, responses = (count(name) for name in _TEXTS)
    return tuple(zip(prompts, responses, strict=True))


def _step(file: Path) -> tuple[int, str]:
    """Return a key that sorts verl's files, which are named by step."""
    return (int(file.stem) if file.stem.isdigit() else 0, file.name)


def _wrong(place: Path | str, found: str) -> PlanError:
    return PlanError(subject=f"--lengths {place}", expected=_EXPECTED, found=found, fix=_("give another file"))
