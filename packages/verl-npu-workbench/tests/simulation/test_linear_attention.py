"""flash-linear-attention's NPU kernels in Triton's interpreter, against transformers' code: SIMULATED."""

from __future__ import annotations

import importlib.util
import json
from importlib import metadata

import pytest
from packaging.version import Version
from virtual_ascend.testing.fixtures import Run

pytestmark = [pytest.mark.virtual, pytest.mark.nightly("verl_npu/features/linear_attention.py")]
LARGEST = {"float32": 5e-6, "bfloat16": 0.03}
"""The largest difference, as a part of the largest number of a tensor."""

KERNELS = """
import json, torch, torch_npu
from torch.nn.functional import conv1d, silu
from transformers.models.qwen3_next import modeling_qwen3_next as torchs
from fla.modules.convolution import causal_conv1d
from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule

torch.manual_seed(0)
N, ENDS = 100, [0, 30, 100]

def results(function, inputs, device, differentiable=True):
    given = [each.to(device).requires_grad_(differentiable) for each in inputs]
    result = function(*given)
    found = [result.detach()]
    if differentiable:
        weights = torch.linspace(-1, 1, result.numel()).view(result.shape).to(result)
        found += torch.autograd.grad((result * weights).sum(), given)
    return [each.cpu().float() for each in found]

def compare(name, wanted, found, inputs, differentiable=True):
    pairs = zip(*(results(*each, differentiable) for each in ((wanted, inputs, "cpu"), (found, inputs, "npu"))))
    said[name] = [((one - two).abs().max() / one.abs().max()).item() for one, two in pairs]

def rule(function, **more):
    named = {"use_qk_l2norm_in_kernel": True, "initial_state": None, "output_final_state": False, **more}
    return lambda q, k, v, g, beta: function(q, k, v, g=g.float(), beta=beta, **named)[0]

def parts(function, axis):
    cuts = list(zip(ENDS, ENDS[1:]))
    return lambda *given: torch.cat([function(*(cut(each, axis, *one) for each in given)) for one in cuts], axis)

def cut(tensor, axis, first, last):
    return tensor.narrow(axis, first, last - first) if N in tensor.shape[axis:] else tensor

def convolved(x, weight):
    return silu(conv1d(x, weight[:, None], padding=3, groups=48)[..., : x.shape[-1]])

def kernels(x, weight, ends=None):
    return causal_conv1d(x.transpose(1, 2), weight, None, activation="silu", cu_seqlens=ends)[0].transpose(1, 2)

said = {}
packed = torch.tensor(ENDS).npu()
for dtype in (torch.float32, torch.bfloat16):
    shapes = [(1, N, 2, 32)] * 3 + [(1, N, 2)]
    q, k, v, beta = (torch.rand(shape).sub(0.5 * (len(shape) > 3)).to(dtype) for shape in shapes)
    given, name = [q, k, v, -torch.rand(1, N, 2).to(dtype), beta], str(dtype)[6:]
    chunk = rule(torchs.torch_chunk_gated_delta_rule)
    compare(f"rule {name}", chunk, rule(chunk_gated_delta_rule), given)
    compare(f"packed rule {name}", parts(chunk, 1), rule(chunk_gated_delta_rule, cu_seqlens=packed), given)
    recurrent = rule(torchs.torch_recurrent_gated_delta_rule), rule(fused_recurrent_gated_delta_rule)
    compare(f"recurrent form {name}", *recurrent, given, False)
    x, weight = torch.rand(1, 48, N).sub(0.5).to(dtype), torch.rand(48, 4).sub(0.5).to(dtype)
    compare(f"convolution {name}", convolved, kernels, [x, weight])
    compare(f"packed convolution {name}", parts(convolved, 2), lambda x, w: kernels(x, w, packed), [x, weight])
print("SAID " + json.dumps(said))
"""

MODEL = """
import json, torch, verl, verl_npu
from transformers.models.qwen3_5 import configuration_qwen3_5, modeling_qwen3_5 as modeling

sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 100}
sizes |= {f"linear_num_{name}_heads": 2 for name in ("key", "value")}
sizes |= {f"linear_{name}_head_dim": 32 for name in ("key", "value")}
layers = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "intermediate_size": 64}
config = configuration_qwen3_5.Qwen3_5TextConfig(**sizes, **layers)

def results(device):
    torch.manual_seed(0)
    model = modeling.Qwen3_5ForCausalLM(config)
    layer = model.model.layers[0].linear_attn
    assert layer.chunk_gated_delta_rule.__module__ == "fla.ops.gated_delta_rule.chunk"
    if device == "cpu":
        layer.chunk_gated_delta_rule = modeling.torch_chunk_gated_delta_rule
    ids = torch.arange(90)[None] % 100
    logits = model.to(device)(ids.to(device)).logits
    logits.square().mean().backward()
    return [logits.detach().cpu(), *(each.grad.cpu() for each in model.parameters())]

pairs = zip(results("cpu"), results("npu"), strict=True)
found = [((one - two).abs().max() / one.abs().max()).item() for one, two in pairs]
print("SAID " + json.dumps({"model float32": found}))
"""


def differences(python: Run, program: str) -> dict[str, list[float]]:
    # find_spec: importing flash-linear-attention needs a device.
    if None in (importlib.util.find_spec("triton"), importlib.util.find_spec("fla")):
        pytest.skip("needs triton and flash-linear-attention")
    done = python(program, timeout=600)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(next(line for line in done.stdout.splitlines() if line.startswith("SAID "))[5:]))


def test_kernels_give_the_numbers_and_gradients_of_torch(python: Run) -> None:
    found = differences(python, KERNELS)
    assert {name: len(each) for name, each in found.items() if name.endswith(" float32")} == {
        "rule float32": 6,
        "packed rule float32": 6,
        "recurrent form float32": 1,
        "convolution float32": 3,
        "packed convolution float32": 3,
    }
    assert {name: most for name, each in found.items() if not (most := max(each)) <= LARGEST[name.split()[-1]]} == {}


@pytest.mark.upstream
def test_a_qwen3_5_trains_with_the_kernels(python: Run) -> None:
    release = Version(metadata.version("transformers"))
    if not Version("5.2") <= release < Version("5.15"):
        pytest.skip("needs a transformers from 5.2 to 5.14, which leaves the choice to the patch")
    found = differences(python, MODEL)
    assert max(found["model float32"]) <= 5e-4
