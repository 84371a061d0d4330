"""Upstream's workers are imported in processes that see no NPU, with the real transformers and verl."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ...interpreter import Interpreter, import_path

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


def path_with(site: Path, transformers: Path, verl: Path) -> str:
    """The PYTHONPATH of a process with an older transformers, unpacked into `site`, and an older verl."""
    with zipfile.ZipFile(transformers) as wheel:
        wheel.extractall(site)
    for name, older in OLDER.items():
        metadata = site / f"{name}-{older}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {older}\n")
    return import_path(site, verl)


@pytest.mark.parametrize("version", ["4.52.4", "4.53.3", "4.54.1"])
def test_the_actor_is_imported_where_ray_hides_all_npus(
    interpreter: Interpreter, source: Callable[[str, str], Path], importable: Callable[[str], Path], version: str
) -> None:
    pytest.importorskip("verl")
    path = path_with(interpreter.site, source("transformers", version), importable("796871d7"))
    result = interpreter.run(PROGRAM, PYTHONPATH=path, VIRTUAL_ASCEND="2", ASCEND_RT_VISIBLE_DEVICES="")
    assert result.out.splitlines() == [f"{version} 0 applied", "[[0, 1, 2], [3, 4, 5]]"], result.err
