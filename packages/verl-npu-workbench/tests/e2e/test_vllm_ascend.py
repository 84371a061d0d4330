"""The real vllm-ascend on virtual NPUs.

It runs where VERL_NPU_VLLM_ASCEND names the Pythons of environments with vllm-ascend, separated by colons;
`scripts/quickstart.sh --pin v0.9.1 --rollout vllm-ascend` makes one.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from harness.pins import Engine
from packaging.version import Version
from virtual_ascend.testing import environment

from . import serving

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def engine(python: str) -> Engine:
    """Return the environment's release, as the pin's documents name it."""
    return serving.engine_of(python)


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "qwen3_moe", "deepseek_v3"])
def test_its_tokens_are_those_of_transformers_before_and_after_it_slept(
    python: str, engine: Engine, kind: str, parallel: int, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    said = serving.answer(HERE / "vllm_ascend_tokens.py", kind, str(parallel), str(folder), folder=tmp_path, by=python)
    assert said["awake"] == said["expected"]
    # From 0.13 on experts wake up in the layout of a checkpoint, and wait for new weights.
    waits = Version(engine.vllm_ascend) >= Version("0.13.0") and kind in ("qwen3_moe", "deepseek_v3")
    assert said["after sleep"] == (None if waits else said["expected"])


def test_the_reference_of_a_kernel_computes_what_the_kernel_does(python: str, tmp_path: Path) -> None:
    variables = {"TRITON_INTERPRET": "1", "VERL_NPU": "off", "VIRTUAL_ASCEND": None}
    done = subprocess.run(
        [python, str(HERE / "triton_slots.py"), str(tmp_path)],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    (said,) = serving.said(done)
    compared = [each for each in said.values() if each["kernel"]]
    if not compared:
        pytest.skip("this release has no such kernel")
    for each in compared:
        assert each["tokens"] > 1000
        assert each["different"] == []


def test_its_library_has_the_operators_that_are_written(python: str, engine: Engine) -> None:
    torch = pytest.importorskip("torch")
    from virtual_ascend.operators import of_vllm_ascend

    find = "import importlib.util as u; print(u.find_spec('vllm_ascend').submodule_search_locations[0])"
    folder = subprocess.run(
        [python, "-c", find], capture_output=True, text=True, check=True, env=environment(VIRTUAL_ASCEND=None)
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


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_in_bfloat16_its_tokens_are_those_of_transformers_but_for_ties(kind: str, tmp_path: Path) -> None:
    """A token may differ where transformers' logits of both, in float32, are closer than bfloat16 can tell apart. The
    tokens after it are not compared."""
    said = serving.answer(HERE / "vllm_ascend_ties.py", kind, str(tmp_path / "model"), folder=tmp_path)
    assert said["compared"] > said["prompts"]
    assert len(said["others"]) <= said["prompts"] / 2
    assert [other for other in said["others"] if other["apart"] >= max(other["step"], other["off"])] == []


def test_its_tokens_for_pictures_are_those_of_transformers(tmp_path: Path) -> None:
    packages = os.environ.get("VERL_NPU_VLLM_ASCEND_TESTS")
    if not packages:
        pytest.skip("set VERL_NPU_VLLM_ASCEND_TESTS to a folder with torchvision")
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), packages]))
    said = serving.answer(HERE / "vllm_ascend_vision.py", str(tmp_path / "model"), folder=tmp_path, PYTHONPATH=path)
    assert said["tokens"] == said["expected"]
    assert said["tokens"][0] != said["tokens"][1]
