"""Upstream's own rollout of 796871d7, with what it makes of the user's arguments; vLLM's modules are empty here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ...interpreter import import_path

VLLM = {
    "vllm/__init__.py": "__version__ = '0.9.1'\nclass LLM:\n    def __init__(self, **given):\n        print('GIVEN', "
    "__import__('json').dumps(given, default=str))\n        raise SystemExit\nclass SamplingParams: ...",
    "vllm/distributed/__init__.py": "",
    "vllm/distributed/parallel_state.py": "",
    "vllm/lora/request.py": "class LoRARequest: ...",
    "vllm/model_executor/sampling_metadata.py": "class SamplingMetadata: ...",
    "vllm/worker/worker_base.py": "class WorkerWrapperBase: ...",
    "vllm-0.9.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.9.1\n",
}
PROGRAM = """
import json, sys
import torch.distributed
from types import SimpleNamespace
from omegaconf import OmegaConf
torch.distributed.get_world_size = lambda: 1
from verl.workers.rollout.vllm_rollout.vllm_rollout_spmd import vLLMRollout
rollout = OmegaConf.load(sys.argv[1])
config = OmegaConf.merge(rollout, json.loads(sys.argv[2]), {"name": "vllm", "tensor_model_parallel_size": 1})
config.prompt_length = config.response_length = 8
config.load_format = "dummy"
config.enable_chunked_prefill = True
model = SimpleNamespace(rope_scaling=None, max_position_embeddings=64)
vLLMRollout("model", config, SimpleNamespace(pad_token_id=0), model)
"""


@pytest.fixture
def given(importable: Callable[[str], Path], tmp_path: Path) -> Callable[..., tuple[dict[str, object], str]]:
    """What the engine of a job is made with, and stderr."""
    for name, text in VLLM.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    verl = importable("796871d7")

    def run(asked: dict[str, object], switch: str = "on") -> tuple[dict[str, object], str]:
        pytest.importorskip("ray")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("VERL_NPU")}
        path = os.pathsep.join([str(tmp_path), import_path(verl)])
        yaml = verl / "verl/trainer/config/rollout/rollout.yaml"
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(yaml), json.dumps(asked)],
            env={**inherited, "VERL_NPU": switch, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        words = done.stdout.partition("GIVEN ")[2].partition("\n")[0]
        return (json.loads(words) if words else {}), done.stderr

    return run


ASKED = {
    "max_num_seqs": 32,
    "cudagraph_capture_sizes": [1, 2],
    "enforce_eager": False,
    "engine_kwargs": {"vllm": {"enable_prefix_caching": False, "additional_config": {"refresh": True}}},
}


@pytest.mark.e2e
@pytest.mark.upstream
def test_all_of_them_reach_the_engine_beside_upstreams_own(
    given: Callable[..., tuple[dict[str, object], str]],
) -> None:
    arguments, said = given(ASKED)
    assert arguments.get("dtype") == "bfloat16", said
    assert arguments["enable_prefix_caching"] is False
    assert arguments["additional_config"] == {"refresh": True}
    assert arguments["compilation_config"] == {"cudagraph_capture_sizes": [1, 2]}
    assert arguments["max_num_seqs"] == 32


@pytest.mark.e2e
@pytest.mark.upstream
def test_upstream_alone_ends_with_a_type_error(given: Callable[..., tuple[dict[str, object], str]]) -> None:
    arguments, said = given(ASKED, switch="off")
    assert arguments == {}
    assert "got multiple values for keyword argument 'enable_prefix_caching'" in said
