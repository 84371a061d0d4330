"""Upstream's module with our patches, from the installed verl and from the other revisions by path."""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from verl_npu.features import micro_batches
from verl_npu.registry.source.tree import SourceTree

FOLDER = Path(os.environ.get("VERL_NPU_UPSTREAMS", "nowhere"))
PATH = "verl/utils/seqlen_balancing.py"
_HERE = sorted(path.name for path in FOLDER.glob("verl-*") if (path / PATH).is_file())


def _is_bounded(revision: str) -> bool:
    tree = SourceTree.at(FOLDER / revision, ("verl",))
    return micro_batches.BOUNDED_UPSTREAM.answer(lambda atom: atom.holds(tree)) is True


BOUNDED = [revision for revision in _HERE if _is_bounded(revision)]
"""The revisions at which upstream keeps the budget by itself, so that our patches are not applied."""
REVISIONS = ["installed", *(revision for revision in _HERE if revision not in BOUNDED)]


def load(revision: str) -> ModuleType:
    """Return upstream's unpatched module at a revision; its imports come from the installed verl."""
    if revision == "installed":
        from verl.utils import seqlen_balancing

        path = str(seqlen_balancing.__file__)
    else:
        path = str(FOLDER / revision / PATH)
    specification = importlib.util.spec_from_file_location(f"seqlen_balancing_of_{revision}", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def patched(revision: str) -> ModuleType:
    """Return upstream's module at a revision with our patches."""
    module: Any = load(revision)
    for name, patch in {
        "rearrange_micro_batches": micro_batches.keep_token_budget,
        "roundup_divisible": micro_batches.agree_on_a_number,
        "get_seqlen_balanced_partitions": micro_batches.split_within_budget,
    }.items():
        setattr(module, name, functools.partial(patch, getattr(module, name)))
    return module


def padded(lengths: list[int], width: int = 0) -> Any:
    """Return a batch of padded sequences; each position of `input_ids` holds the number of its sequence."""
    import torch
    from tensordict import TensorDict

    width = width or max(lengths)
    mask = (torch.arange(width)[None] < torch.tensor(lengths)[:, None]).long()
    return TensorDict(
        {"input_ids": torch.arange(len(lengths))[:, None].expand(-1, width).clone(), "attention_mask": mask},
        batch_size=[len(lengths)],
    )


def nested(lengths: list[int]) -> Any:
    """Return the same batch without padding, as upstream's model engines have it."""
    import torch
    from tensordict import TensorDict

    sequences = [torch.full((length,), index) for index, length in enumerate(lengths)]
    return TensorDict(
        {"input_ids": torch.nested.as_nested_tensor(sequences, layout=torch.jagged)}, batch_size=[len(lengths)]
    )


def tokens(micro_batch: Any) -> int:
    """Return the number of tokens in a micro-batch."""
    ids = micro_batch["input_ids"]
    return int(ids.values().numel() if ids.is_nested else micro_batch["attention_mask"].sum())
