"""Upstream's Megatron backend with an older mbridge and an older Megatron.

The test that writes a checkpoint needs VERL_NPU_UPSTREAMS, a folder with `megatron-0.12.1/`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from testing.interpreter import python

from verl_npu.features.megatron.upstream import (
    ask_megatron_only_for_the_offset_that_it_knows,
    drop_save_options_unknown_to_mbridge,
    pack_latent_attention_through_mbridge_too,
    set_the_experimental_flag_of_an_older_megatron,
)


class ReleasedBridge:
    """A bridge with the `save_weights` of mbridge 0.15.1."""

    def __init__(self, index: dict[str, str]) -> None:
        self.saved: list[tuple[Any, ...]] = []
        self.safetensor_io = SimpleNamespace(index=index)

    def save_weights(self, models: list[Any], weights_path: str, memory_efficient: bool = False) -> None:
        self.saved.append((models, weights_path, memory_efficient))


class NewerBridge(ReleasedBridge):
    def save_weights(self, models, weights_path, memory_efficient=False, distributed_filesystem=False):  # type: ignore[no-untyped-def,override]
        self.saved.append((models, weights_path, memory_efficient, distributed_filesystem))


def save_checkpoint(manager: Any, path: str) -> None:
    """Save a checkpoint as upstream does at ccd7d934."""
    manager.bridge.save_weights(["model"], path, distributed_filesystem=True, memory_efficient=True)


FILES = {"weight": "model-00001-of-00002.safetensors"}


@pytest.mark.parametrize(
    ("bridge", "passed"),
    [
        (ReleasedBridge(FILES), (True,)),
        (NewerBridge(FILES), (True, True)),
        # mbridge looks up in the index which file each tensor goes to.
        (ReleasedBridge({}), (False,)),
        (NewerBridge({}), (False, True)),
    ],
)
def test_a_bridge_is_given_the_options_that_it_can_follow(bridge: ReleasedBridge, passed: tuple[bool, ...]) -> None:
    drop_save_options_unknown_to_mbridge(save_checkpoint, SimpleNamespace(bridge=bridge), "folder")
    assert bridge.saved == [(["model"], "folder", *passed)]
    assert "save_weights" not in vars(bridge)


def test_a_failed_save_leaves_the_bridge_as_it_was() -> None:
    bridge = ReleasedBridge(FILES)

    def fail(manager: Any) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        drop_save_options_unknown_to_mbridge(fail, SimpleNamespace(bridge=bridge))
    assert "save_weights" not in vars(bridge)


def test_without_a_bridge_upstream_saves_by_itself() -> None:
    assert drop_save_options_unknown_to_mbridge(lambda manager: "saved", SimpleNamespace(bridge=None)) == "saved"


pytestmark = pytest.mark.upstream
PROGRAM = """
import json, queue, sys
import torch
from megatron.core.dist_checkpointing.strategies import filesystem_async as megatron
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from torch.distributed.checkpoint.filesystem import _StorageWriterTransforms
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from verl_npu.features.megatron.upstream import (
    let_the_converter_write_in_torchs_format, pass_torch_the_checkpoint_format, written_in_torchs_format
)

def write(path):
    item = WriteItem(index=MetadataIndex("weight"), type=WriteItemType.TENSOR)
    results, count = queue.Queue(), queue.Queue()
    count.put(0)
    bucket = (path, "file", ([], [(item, torch.arange(4.0))]))
    megatron.FileSystemWriterAsync.write_preloaded_data(
        [_StorageWriterTransforms()], 0, bucket, results, count, False
    )
    answer = results.get()[1]
    return str(answer) if isinstance(answer, Exception) else torch.load(path).tolist()

function = megatron._write_item
later = pass_torch_the_checkpoint_format(lambda: AsyncRequest(write, (sys.argv[1],), []))
with written_in_torchs_format():
    within = write(sys.argv[1])
answers = {"within": within, "later": later.async_fn(*later.async_fn_args), "outside": write(sys.argv[1])}
answers["put back"] = megatron._write_item is function
let_the_converter_write_in_torchs_format(lambda: None)
answers["another program"] = write(sys.argv[1])
sys.modules["__main__"].__file__ = "scripts/converter_hf_to_mcore.py"
let_the_converter_write_in_torchs_format(lambda: None)
answers["converter"] = write(sys.argv[1])
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Return the outcome of an item in each of the program's cases."""
    megatron = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none")) / "megatron-0.12.1"
    if not megatron.is_dir():
        pytest.skip(f"set VERL_NPU_UPSTREAMS to a folder with {megatron.name}/")
    item = tmp_path_factory.mktemp("item") / "item"
    answer = python("-W", "ignore", "-c", PROGRAM, str(item), paths=[megatron], seconds=300)
    assert answer.returncode == 0, answer.stderr[-3000:]
    return json.loads(answer.stdout.splitlines()[-1])


def test_an_item_is_written_within_and_megatron_is_as_before_after(answers: dict[str, object]) -> None:
    assert answers["within"] == answers["later"] == [0.0, 1.0, 2.0, 3.0]
    # If this fails, Megatron or torch has changed and the patch can be removed.
    assert "serialization_format" in str(answers["outside"])
    assert answers["put back"]


def test_upstreams_converter_alone_writes_in_that_format_from_its_first_model_on(answers: dict[str, object]) -> None:
    assert "serialization_format" in str(answers["another program"])
    assert answers["converter"] == [0.0, 1.0, 2.0, 3.0]


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Install a stand-in for Megatron 0.12.1's module of flags."""
    made = ModuleType("megatron.core.config")
    vars(made)["ENABLE_EXPERIMENTAL"] = False
    monkeypatch.setitem(sys.modules, made.__name__, made)
    for name in ("megatron", "megatron.core"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    return made


def upstreams(fails: bool) -> str:
    from megatron.core.config import set_experimental_flag

    set_experimental_flag(True)
    if fails:
        raise ValueError("a bad configuration")
    return "a configuration"


def test_without_it_the_configuration_ends_in_an_import_error(flags: ModuleType) -> None:
    with pytest.raises(ImportError, match="set_experimental_flag"):
        upstreams(False)


def test_the_flag_is_set_and_megatron_keeps_no_name_of_ours(flags: ModuleType) -> None:
    assert set_the_experimental_flag_of_an_older_megatron(upstreams, False) == "a configuration"
    assert (flags.ENABLE_EXPERIMENTAL, hasattr(flags, "set_experimental_flag")) == (True, False)


def test_megatron_keeps_no_name_of_ours_after_an_error(flags: ModuleType) -> None:
    with pytest.raises(ValueError, match="bad"):
        set_the_experimental_flag_of_an_older_megatron(upstreams, True)
    assert not hasattr(flags, "set_experimental_flag")


def test_megatrons_own_function_is_used_where_it_has_one(flags: ModuleType) -> None:
    given: list[bool] = []
    vars(flags)["set_experimental_flag"] = given.append
    set_the_experimental_flag_of_an_older_megatron(upstreams, False)
    assert given == [True]
    assert flags.set_experimental_flag == given.append


class Packing:
    def get_query_key_value_tensors(self, query):  # type: ignore[no-untyped-def]
        return query.squeeze(1)


class NotPacking:
    def get_query_key_value_tensors(self, query):  # type: ignore[no-untyped-def]
        return query


class LatentConfig:
    pass


@pytest.fixture
def is_fixed_before(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, object], bool]:
    """Return a function that makes a model on a Megatron, and tells whether upstream's fix had been applied before."""

    def make(attention: type, config: object) -> bool:
        done: list[str] = []
        modules = {
            "megatron": {},
            "megatron.core": {},
            "megatron.core.transformer": {},
            "megatron.core.transformer.multi_latent_attention": {"MLASelfAttention": attention},
            "megatron.core.transformer.transformer_config": {"MLATransformerConfig": LatentConfig},
            "verl.models.mcore.patch_v012": {"apply_patch": lambda: done.append("fix")},
        }
        for name, names in modules.items():
            made = ModuleType(name)
            vars(made).update(names)
            monkeypatch.setitem(sys.modules, name, made)
            parent, _, child = name.rpartition(".")
            if parent in modules:
                setattr(sys.modules[parent], child, made)
        result = pack_latent_attention_through_mbridge_too(lambda *given: done.append("model") or given, 1, config, 3)
        assert result == (1, config, 3)
        return done == ["fix", "model"]

    return make


def test_latent_attention_that_does_not_pack_is_fixed_before_the_model_is_made(is_fixed_before) -> None:
    assert is_fixed_before(NotPacking, LatentConfig())


def test_a_later_megatron_is_left_alone(is_fixed_before) -> None:
    assert not is_fixed_before(Packing, LatentConfig())


def test_a_model_of_another_attention_is_left_alone(is_fixed_before) -> None:
    assert not is_fixed_before(NotPacking, object())


EVERY_SECOND_EXPERT = SimpleNamespace(layers=6)
"""Six layers on this stage; every second one is an expert layer."""


def megatron_0_12_0(config: object) -> int:
    return 3


def megatron_0_12_1(config: object, pp_rank: int | None = None) -> int:
    return 3 if pp_rank is None else 3 + pp_rank


def megatron_0_16(config: object, vp_stage: int | None = None, pp_rank: int | None = None) -> int:
    raise AssertionError("upstream's own function calls it")


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., int]], None]:
    """Return a function that installs a stand-in for upstream's module, with some Megatron's offset function."""

    def put(offset: Callable[..., int]) -> None:
        replay = ModuleType("verl.utils.megatron.router_replay_utils")
        vars(replay).update(
            get_transformer_layer_offset=offset,
            get_num_layers_to_build=lambda config, vp_stage, pp_rank: config.layers,
            is_moe_layer=lambda config, index: index % 2 == 0,
        )
        for name in ("verl", "verl.utils", "verl.utils.megatron"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, replay.__name__, replay)
        vars(sys.modules["verl.utils.megatron"])["router_replay_utils"] = replay

    return put


def count_upstream(config: SimpleNamespace, vp_stage: int | None = None, pp_rank: int | None = None) -> int:
    return 100


@pytest.mark.parametrize("offset", [megatron_0_12_0, megatron_0_12_1])
def test_an_older_megatron_is_asked_without_the_stage(offset: Callable[..., int], beside) -> None:
    beside(offset)
    assert ask_megatron_only_for_the_offset_that_it_knows(count_upstream, EVERY_SECOND_EXPERT) == len([4, 6, 8])


def test_a_rank_is_passed_on_where_it_is_known(beside) -> None:
    beside(megatron_0_12_1)
    one = SimpleNamespace(layers=1)
    assert [ask_megatron_only_for_the_offset_that_it_knows(count_upstream, one, pp_rank=rank) for rank in (0, 1)] == [
        0,
        1,
    ]


def test_a_newer_megatron_is_left_to_upstream(beside) -> None:
    beside(megatron_0_16)
    assert ask_megatron_only_for_the_offset_that_it_knows(count_upstream, EVERY_SECOND_EXPERT, vp_stage=1) == 100
