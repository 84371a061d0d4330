"""An item of a checkpoint, written by a real Megatron that is older than torch.

Needs VERL_NPU_UPSTREAMS, a folder with `megatron-0.12.1/`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.upstream

PROGRAM = """
import json, queue, sys
import torch
from megatron.core.dist_checkpointing.strategies import filesystem_async as megatron
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from torch.distributed.checkpoint.filesystem import _StorageWriterTransforms
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from verl_npu.features.megatron.patches.checkpoints import (
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
    """What became of an item in each of the program's cases."""
    megatron = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none")) / "megatron-0.12.1"
    if not megatron.is_dir():
        pytest.skip(f"set VERL_NPU_UPSTREAMS to a folder with {megatron.name}/")
    paths = [str(megatron), os.environ.get("PYTHONPATH", "")]
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path_factory.mktemp("item") / "item")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
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
