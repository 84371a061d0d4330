"""transfer_to_npu: a program that says `cuda` everywhere runs on NPUs. It cannot be undone in a process."""

# ruff: noqa: E501 - the lines of programs in strings

from __future__ import annotations

import json
from typing import Any

import pytest
from virtual_ascend.testing.fixtures import Run

PROGRAM = """
import json, os, tempfile, warnings
warnings.simplefilter("ignore")
import torch, torch_npu
from torch_npu.contrib import transfer_to_npu
out = {}
out["available"] = [torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.current_device()]
x = torch.ones(2, 2).cuda()
out["tensors"] = [str(t.device) for t in (x, torch.ones(2, device="cuda:1"), torch.ones(2).to("cuda"), torch.ones(2).to(1),
                                          torch.zeros_like(x, device=torch.device("cuda", 1)), x.new_ones(1, device="cuda:1"))]
out["is_cuda"] = [x.is_cuda, torch.ones(1).is_cuda]
out["types"] = [isinstance(x, torch.cuda.FloatTensor), isinstance(x.bfloat16(), torch.cuda.BFloat16Tensor), isinstance(x, torch.cuda.HalfTensor)]
out["modules"] = [str(m.weight.device) for m in (torch.nn.Linear(2, 2).cuda(), torch.nn.Linear(2, 2).to("cuda:1"))]
with torch.device("cuda"): out["default"] = str(torch.ones(1).device)
with torch.autocast("cuda", dtype=torch.bfloat16): out["autocast"] = [str((x @ x).dtype)]
with torch.cuda.amp.autocast(dtype=torch.bfloat16): out["autocast"].append(str((x @ x).dtype))
out["generator"] = str(torch.Generator("cuda").device)
before = torch.cuda.get_rng_state("cuda"); torch.cuda.manual_seed(3); after = torch.cuda.get_rng_state("cuda")
torch.cuda.set_rng_state(before, "cuda")
out["rng"] = [torch.equal(before, after), torch.equal(before, torch.cuda.random.get_rng_state("cuda"))]
stream = torch.cuda.Stream()
with torch.cuda.stream(stream): out["stream"] = torch.cuda.current_stream() == stream
with tempfile.TemporaryDirectory() as folder:
    torch.save(x, folder + "/x")
    out["loaded"] = [str(torch.load(folder + "/x", map_location=where).device) for where in ("cuda:1", {"cuda:0": "cpu"})]
    torch.distributed.init_process_group("nccl", init_method=f"file://{folder}/meet", rank=0, world_size=1)
    out["backend"] = torch.distributed.get_backend()
    out["mesh"] = torch.distributed.init_device_mesh("cuda", (1,)).device_type
    torch.distributed.all_reduce(x)
    torch.distributed.destroy_process_group()
out["script"] = torch.jit.script(len) is len
out["triton"] = torch.utils._triton.has_triton()
out["profiler"] = torch.profiler.profile is torch_npu.profiler.profile
out["graph"] = torch.cuda.CUDAGraph is torch.npu.NPUGraph
try:
    from transformers.utils.import_utils import is_torch_cuda_available
    out["transformers"] = [is_torch_cuda_available(), torch.cuda.is_available()]
except ModuleNotFoundError:
    out["transformers"] = [False, True]
print(json.dumps(out))
"""

EXPECTED: dict[str, Any] = {
    "available": [True, 2, 0],
    "tensors": ["npu:0", "npu:1", "npu:0", "npu:1", "npu:1", "npu:1"],
    "is_cuda": [True, False],
    "types": [True, True, False],
    "modules": ["npu:0", "npu:1"],
    "default": "npu:0",
    "autocast": ["torch.bfloat16", "torch.bfloat16"],
    "generator": "npu:0",
    "rng": [False, True],
    "stream": True,
    "loaded": ["npu:1", "cpu"],
    "backend": "hccl",
    "mesh": "npu",
    "script": True,
    "triton": False,
    "profiler": True,
    "graph": True,
    "transformers": [False, True],
}


@pytest.fixture(scope="module")
def transferred(python: Run) -> dict[str, Any]:
    done = python(PROGRAM)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", EXPECTED)
def test_what_says_cuda_is_on_an_npu(transferred: dict[str, Any], name: str) -> None:
    assert transferred[name] == EXPECTED[name]
