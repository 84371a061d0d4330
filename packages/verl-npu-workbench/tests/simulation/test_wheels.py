"""Faults that appeared on the wheels of torch_npu.

The tests use the wheel of their own torch, and each whose environment VERL_NPU_TORCH_NPU names a Python of.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from testing.programs import ACTOR, EXPERTS, path_with
from virtual_ascend.testing import environment

pytestmark = [pytest.mark.virtual, pytest.mark.e2e]

PROJECT = Path(__file__).parents[4]
PYTHONS = [path for path in os.environ.get("VERL_NPU_TORCH_NPU", "").split(os.pathsep) if path]
NIGHTLY = pytest.mark.nightly(
    "verl_npu/activation.py",
    "verl_npu_workbench/simulation",
    "packages/virtual-ascend/virtual_ascend",
)
SET_ENV = "source /usr/local/Ascend/ascend-toolkit/set_env.sh"
CHILDREN = """
import json, os, subprocess, sys
import verl_npu, verl
child = "import torch; print(torch.ones(2).npu().sum().item())"
done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
print(json.dumps([os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD"), done.stdout.strip()]))
"""
# Types that may be in an annotation with `| None`, and types that may not: transformers 5 has `torch.cuda.CUDAGraph |
# None`.
ANNOTATIONS = """
import inspect, json, torch, torch_npu
from torch_npu.contrib import transfer_to_npu
def may(value):
    try: value | None
    except TypeError: return False
    return True
values = {name: getattr(torch.cuda, name) for name in dir(torch.cuda) if not name.startswith("_")}
print(json.dumps({name: may(value) for name, value in values.items() if not inspect.ismodule(value)}))
"""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A Python that imports a wheel of torch_npu from `path`, or has it installed."""

    python: str
    path: str = ""

    def run(self, program: str, folder: Path, **changes: str | None) -> subprocess.CompletedProcess[str]:
        """Run a program, which can also import from a folder."""
        paths = os.pathsep.join(filter(None, [str(PROJECT), str(folder), self.path]))
        variables = {"PYTHONPATH": paths, "VIRTUAL_ASCEND_TORCH_NPU": "real", **changes}
        return subprocess.run(
            [self.python, "-c", program],
            env=environment(**variables),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture(params=[None, *PYTHONS], ids=lambda python: python or "the wheel of this torch")
def wheel(request: pytest.FixtureRequest) -> Wheel:
    if request.param is None:
        return Wheel(sys.executable, str(request.getfixturevalue("torch_npu")))
    return Wheel(str(request.param))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with an empty verl."""
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "__init__.py").touch()
    return tmp_path


@NIGHTLY
def test_experts_have_their_gradients(wheel: Wheel, folder: Path) -> None:
    done = wheel.run(EXPERTS, folder)
    assert done.returncode == 0, done.stderr[-3000:]
    right, _ = json.loads(done.stdout.splitlines()[-1])
    assert right == [True] * 8


@NIGHTLY
def test_our_import_before_torch_disarms_no_child(wheel: Wheel, folder: Path) -> None:
    done = wheel.run(CHILDREN, folder)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [None, "2.0"]


def test_without_cann_it_is_said_what_to_source(wheel: Wheel, folder: Path) -> None:
    done = wheel.run("import verl_npu, verl", folder, VIRTUAL_ASCEND=None, VERL_NPU_STRICT="1")
    assert done.returncode == 1, done.stderr[-3000:]
    assert SET_ENV in done.stderr


@NIGHTLY
def test_without_cann_the_commands_say_what_to_source(wheel: Wheel, folder: Path) -> None:
    program = "import sys; sys.argv = ['verl-npu', 'check']; from verl_npu.cli import main; main()"
    done = wheel.run(program, folder, VIRTUAL_ASCEND=None, COLUMNS="400")
    assert SET_ENV in " ".join((done.stdout + done.stderr).split()), done.stderr[-3000:]


@NIGHTLY
def test_what_the_wheel_takes_in_an_annotation_ours_takes_too(wheel: Wheel, folder: Path) -> None:
    found: dict[str, dict[str, bool]] = {}
    for whose in ("real", "ours"):
        done = wheel.run(ANNOTATIONS, folder, VIRTUAL_ASCEND_TORCH_NPU=whose)
        assert done.returncode == 0, done.stderr[-3000:]
        found[whose] = json.loads(done.stdout.splitlines()[-1])
    assert found["real"]["CUDAGraph"]
    assert [name for name, may in found["ours"].items() if not may and found["real"].get(name)] == []


@pytest.mark.upstream
def test_the_actor_is_imported_where_ray_hides_all_npus(
    torch_npu: Path,
    source: Callable[[str, str], Path],
    importable: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    pytest.importorskip("verl")
    site = tmp_path / "site"
    path = path_with(site, source("transformers", "4.53.3"), importable("796871d7"))
    paths = os.pathsep.join([path, str(torch_npu)])
    done = Wheel(sys.executable).run(ACTOR, tmp_path, PYTHONPATH=paths, ASCEND_RT_VISIBLE_DEVICES="")
    assert done.stdout.splitlines() == ["4.53.3 0 applied", "[[0, 1, 2], [3, 4, 5]]"], done.stderr[-3000:]
