"""Upstream's workers are imported in processes that see no NPU, with the real transformers and verl."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ...interpreter import Interpreter

pytestmark = [pytest.mark.upstream, pytest.mark.virtual]

# What transformers 4.53.3 checks when it is imported, and what is installed here is newer.
OLDER = {"tokenizers": "0.21.4", "huggingface_hub": "0.34.0"}
PROGRAM = """
import verl
from verl.workers.actor import dp_actor
import torch, transformers, verl_npu
print(transformers.__version__, torch.npu.device_count(), verl_npu.status()["features"]["attention"]["state"])
print(dp_actor.rearrange(torch.arange(6).view(1, 2, 3), "b s ... -> (b s) ...").tolist())
"""


@pytest.mark.parametrize("version", ["4.52.4", "4.53.3", "4.54.1"])
def test_the_actor_is_imported_where_ray_hides_all_npus(
    interpreter: Interpreter, source: Callable[[str, str], Path], importable: Callable[[str], Path], version: str
) -> None:
    pytest.importorskip("verl")
    with zipfile.ZipFile(source("transformers", version)) as wheel:
        wheel.extractall(interpreter.site)
    for name, older in OLDER.items():
        metadata = interpreter.site / f"{name}-{older}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {older}\n")
    path = os.pathsep.join(map(str, (interpreter.site, importable("796871d7"), os.environ.get("PYTHONPATH", ""))))
    result = interpreter.run(PROGRAM, PYTHONPATH=path, VERL_NPU_VIRTUAL="2", ASCEND_RT_VISIBLE_DEVICES="")
    assert result.out.splitlines() == [f"{version} 0 applied", "[[0, 1, 2], [3, 4, 5]]"], result.err
