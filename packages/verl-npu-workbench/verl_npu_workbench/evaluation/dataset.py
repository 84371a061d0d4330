"""A data set in verl's parquet layout."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_npu.errors import EvaluationError
from verl_npu.language import gettext as _

from ..extras import need

COLUMNS = ("prompt", "data_source", "reward_model")
_OF_MEDIA = ("images", "videos")
_LAYOUT = _("verl's parquet layout: prompt (chat messages), data_source, reward_model.ground_truth, extra_info")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row."""

    row: int
    messages: Sequence[Mapping[str, object]]
    data_source: str
    ground_truth: object
    extra_info: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Dataset:
    """All rows that are asked, and what tells the file from another one."""

    path: Path
    digest: str
    prompts: tuple[Prompt, ...]


def read(path: Path, limit: int | None = None) -> Dataset:
    """Read the first `limit` rows of a data set, or all.

    Raises:
        EvaluationError: it is not in verl's layout, or its prompts are not of text alone.
    """
    need("pyarrow", _("reading a data set"), "evaluate", EvaluationError)
    import pyarrow.parquet

    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        table = pyarrow.parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise _refusal(path, str(error)) from error
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        raise _refusal(
            path,
            _("no {missing} among {column_names}").format(
                missing=_(", ").join(missing), column_names=_(", ").join(table.column_names)
            ),
        )
    rows = table.slice(0, limit).to_pylist()
    prompts = tuple(_prompt(path, index, row) for index, row in enumerate(rows))
    if not prompts:
        raise _refusal(path, _("no rows"))
    return Dataset(path, digest, prompts)


def _prompt(path: Path, index: int, row: Mapping[str, object]) -> Prompt:
    messages, model = row["prompt"], row["reward_model"]
    where = _("in row {index}").format(index=index)
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise _refusal(path, _("{where} a prompt that is no list of messages").format(where=where))
    if any(row.get(name) for name in _OF_MEDIA):
        raise _refusal(path, _("{where} images or videos, which are not sent").format(where=where))
    if not isinstance(model, dict) or "ground_truth" not in model:
        raise _refusal(path, _("{where} no reward_model.ground_truth").format(where=where))
    extra = row.get("extra_info")
    # Columns of messages that have a field more than others are filled up by parquet.
    kept = [{key: value for key, value in each.items() if value is not None} for each in messages]
    return Prompt(
        index, kept, str(row["data_source"]), model["ground_truth"], dict(extra) if isinstance(extra, dict) else {}
    )


def _refusal(path: Path, found: str) -> EvaluationError:
    return EvaluationError(
        subject=str(path), expected=_LAYOUT, found=found, fix=_("convert it with verl's examples/data_preprocess")
    )
