"""Upstream's own rollout of 796871d7, and the engine arguments that it makes; vLLM's modules are empty here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from testing.interpreter import python

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


ASKED = {
    "max_num_seqs": 32,
    "cudagraph_capture_sizes": [1, 2],
    "enforce_eager": False,
    "engine_kwargs": {"vllm": {"enable_prefix_caching": False, "additional_config": {"refresh": True}}},
}


@pytest.mark.e2e
@pytest.mark.upstream
def test_all_of_them_reach_the_engine_beside_upstreams_own(importable: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    for name, text in VLLM.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    verl = importable("796871d7")
    words = (PROGRAM, str(verl / "verl/trainer/config/rollout/rollout.yaml"), json.dumps(ASKED))
    done = python("-c", *words, paths=[tmp_path, verl], clean="VERL_NPU", seconds=300, VERL_NPU="on")
    words = done.stdout.partition("GIVEN ")[2].partition("\n")[0]
    assert words, done.stderr
    arguments = json.loads(words)
    assert arguments["dtype"] == "bfloat16"
    assert arguments["enable_prefix_caching"] is False
    assert arguments["additional_config"] == {"refresh": True}
    assert arguments["compilation_config"] == {"cudagraph_capture_sizes": [1, 2]}
    assert arguments["max_num_seqs"] == 32
