"""The real vllm-ascend on virtual NPUs. It runs where VERL_NPU_VLLM_ASCEND names the Pythons of environments that have
it, separated by colons, as `scripts/quickstart.sh --pin v0.9.1 --rollout vllm-ascend` makes one."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from harness.pins import PINS, Engine
from packaging.version import Version

from ..virtual.processes import environment

pytestmark = pytest.mark.e2e

TOKENS = Path(__file__).with_name("vllm_ascend_tokens.py")
SLOTS = Path(__file__).with_name("triton_slots.py")
PYTHONS = [path for path in os.environ.get("VERL_NPU_VLLM_ASCEND", "").split(os.pathsep) if path]
INSTALLED = "import importlib.metadata; print(importlib.metadata.version('vllm-ascend'))"


@pytest.fixture(scope="module", params=PYTHONS or [None])
def python(request: pytest.FixtureRequest) -> str:
    if request.param is None:
        pytest.skip("set VERL_NPU_VLLM_ASCEND to the Python of an environment with vllm-ascend")
    return str(request.param)


@pytest.fixture(scope="module")
def engine(python: str) -> Engine:
    """The release that the environment has, as the pin's documents name it."""
    found = subprocess.run([python, "-c", INSTALLED], capture_output=True, text=True, check=True).stdout.strip()
    return next(pin.engine for pin in PINS.values() if pin.engine and pin.engine.vllm_ascend == found)


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "qwen3_moe", "deepseek_v3"])
def test_its_tokens_are_those_of_transformers_before_and_after_it_slept(
    python: str, engine: Engine, kind: str, parallel: int, tmp_path: Path
) -> None:
    variables = {
        "VERL_NPU_VIRTUAL": "2",
        "VERL_NPU_VIRTUAL_MEMORY": "2",
        "VERL_NPU_VIRTUAL_TORCH_NPU_VERSION": engine.torch_npu,
        "VLLM_VERSION": engine.vllm,
        "VLLM_ASCEND_ENABLE_NZ": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [python, str(TOKENS), kind, str(parallel), str(tmp_path / "model")],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=tmp_path,
    )
    said = answer(done)
    assert said["awake"] == said["expected"]
    # From 0.13 on experts wake up as a checkpoint has them, and wait for new weights.
    waits = Version(engine.vllm_ascend) >= Version("0.13.0") and kind in ("qwen3_moe", "deepseek_v3")
    assert said["after sleep"] == (None if waits else said["expected"])


def test_the_reference_of_a_kernel_computes_what_the_kernel_does(python: str, tmp_path: Path) -> None:
    variables = {"TRITON_INTERPRET": "1", "VERL_NPU": "off", "VERL_NPU_VIRTUAL": None}
    done = subprocess.run(
        [python, str(SLOTS), str(tmp_path)],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    said = answer(done)
    if not said["kernel"]:
        pytest.skip("this vLLM has no such kernel")
    assert said["tokens"] > 1000
    assert said["different"] == []


def test_its_library_has_the_operators_that_are_written(python: str, engine: Engine) -> None:
    torch = pytest.importorskip("torch")
    from verl_npu.virtual.operators import of_vllm_ascend

    find = "import importlib.util as u; print(u.find_spec('vllm_ascend').submodule_search_locations[0])"
    folder = subprocess.run(
        [python, "-c", find], capture_output=True, text=True, check=True, env=environment(VERL_NPU_VIRTUAL=None)
    ).stdout.strip()
    (library,) = Path(folder).glob("vllm_ascend_C*.so")
    content = library.read_bytes()
    for text in of_vllm_ascend.SCHEMAS:
        found = re.search(rb"\0(" + text.partition("(")[0].encode() + rb"\([\x20-\x7e]+)\0", content)
        if Version(engine.vllm_ascend) < of_vllm_ascend.SINCE:
            assert found is None
        else:
            assert found is not None
            assert str(torch._C.parse_schema(found[1].decode())) == str(torch._C.parse_schema(text))


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What a program has printed."""
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    said: dict[str, Any] = json.loads(line.removeprefix("ANSWER "))
    return said
