"""A merged model counts only if each of its tensors is the shards' one."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from verl_npu_workbench.checkpoint.reading_back import Compared, compare

from verl_npu.errors import CheckpointError

from .conftest import CONFIG, Tensors, torch

safetensors = pytest.importorskip("safetensors.torch")
HEAD, EMBEDDING, NORM = "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"
Compare = Callable[..., Compared]


@pytest.fixture
def compared(tmp_path: Path, tensors: Tensors) -> Compare:
    """Save a model, and compare it with what the shards hold."""

    def call(merged: Tensors, shards: Tensors = tensors, **config: Any) -> Compared:
        safetensors.save_file({name: each.contiguous() for name, each in merged.items()}, tmp_path / "m.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | config))
        return compare(tmp_path, {name: partial(lambda each: each, each) for name, each in shards.items()})

    return call


def rounded(tensors: Tensors) -> Tensors:
    return {name: each.bfloat16() for name, each in tensors.items()}


def test_a_model_rounded_to_bfloat16_is_the_shards(compared: Compare, tensors: Tensors) -> None:
    found = compared(rounded(tensors))
    assert (found.tensors, found.values) == (len(tensors), sum(each.numel() for each in tensors.values()))
    assert (found.shard_dtypes, found.dtypes) == (("float32",), ("bfloat16",))


def test_one_value_that_differs_is_an_error_that_names_its_tensor(compared: Compare, tensors: Tensors) -> None:
    merged = rounded(tensors)
    merged[NORM][3] += 0.5
    with pytest.raises(CheckpointError, match=r"expected model\.norm\.weight with the shards' values, found 1 of 8"):
        compared(merged)


def test_zero_and_minus_zero_are_two_values(compared: Compare, tensors: Tensors) -> None:
    tensors[NORM] = torch.zeros(8)
    with pytest.raises(CheckpointError, match=NORM):
        compared({**rounded(tensors), NORM: -torch.zeros(8, dtype=torch.bfloat16)})


def test_not_a_number_is_kept_as_it_is(compared: Compare, tensors: Tensors) -> None:
    tensors[NORM] = torch.full((8,), float("nan"))
    assert compared(rounded(tensors)).tensors == len(tensors)


def test_another_shape_is_an_error(compared: Compare, tensors: Tensors) -> None:
    with pytest.raises(CheckpointError, match=r"with the shape \(8,\), found \(16,\)"):
        compared({**rounded(tensors), NORM: torch.cat([rounded(tensors)[NORM]] * 2)})


def test_another_dtype_than_bfloat16_or_the_shards_is_an_error(compared: Compare, tensors: Tensors) -> None:
    with pytest.raises(CheckpointError, match=r"in float32 or bfloat16, found float16"):
        compared({**rounded(tensors), NORM: tensors[NORM].half()})


def test_a_tensor_left_out_is_an_error(compared: Compare, tensors: Tensors) -> None:
    merged = rounded(tensors)
    del merged[NORM]
    with pytest.raises(CheckpointError, match=r"found model\.norm\.weight left out"):
        compared(merged)


def test_a_tensor_that_no_shard_has_is_an_error(compared: Compare, tensors: Tensors) -> None:
    with pytest.raises(CheckpointError, match=r"odd\.weight that no shard has"):
        compared({**rounded(tensors), "odd.weight": torch.ones(2)})


def test_an_output_layer_that_is_the_input_layer_may_be_left_out(compared: Compare, tensors: Tensors) -> None:
    tensors[HEAD] = tensors[EMBEDDING]
    merged = rounded(tensors)
    del merged[HEAD]
    assert compared(merged, tie_word_embeddings=True).tied == (HEAD,)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight left out"):
        compared(merged)


def test_an_output_layer_of_its_own_may_not_be_left_out(compared: Compare, tensors: Tensors) -> None:
    merged = rounded(tensors)
    del merged[HEAD]
    with pytest.raises(CheckpointError, match=r"lm_head\.weight left out"):
        compared(merged, tie_word_embeddings=True)


def test_a_prefix_that_transformers_moves_is_followed_by_the_values(compared: Compare, tensors: Tensors) -> None:
    moved = {name.replace("model.", "model.language_model.", 1): each for name, each in rounded(tensors).items()}
    found = compared(moved)
    assert (NORM, "model.language_model.norm.weight") in found.renamed
    assert found.tensors == len(tensors)


def test_a_prefix_that_moved_with_other_values_is_an_error(compared: Compare, tensors: Tensors) -> None:
    merged = rounded(tensors)
    merged["model.language_model.norm.weight"] = merged.pop(NORM) + 1
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight left out"):
        compared(merged)


def test_a_file_that_was_cut_short_is_an_error(compared: Compare, tensors: Tensors, tmp_path: Path) -> None:
    compared(rounded(tensors))
    path = tmp_path / "m.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=r"expected m\.safetensors that can be read"):
        compare(tmp_path, {})
