"""npugraph_ex, torch_npu's compiler of FX graphs, as vllm-ascend uses it: it fuses, and runs operators one by one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from virtual_ascend.testing.fixtures import Run

pytest.importorskip("torch")

PROGRAM = """
import json, torch, torch_npu
import npugraph_ex as compiler
from npugraph_ex.configs.compiler_config import _process_kwargs_options
from npugraph_ex.npu_fx_compiler import _NpuFxCompiler

@torch.library.custom_op("mine::into", mutates_args=("out",))
def into(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * 2)

@into.register_fake
def _(x, out): return None

@torch.library.custom_op("mine::fused", mutates_args=())
def fused(x: torch.Tensor) -> torch.Tensor:
    fusions.append(x.shape[0])
    return x.relu() + 1

@fused.register_fake
def _(x): return torch.empty_like(x)

def model(x, w, seen):
    y = (x @ w).view(-1)
    out = torch.empty_like(y)
    torch.ops.mine.into(y, out)
    seen.add_(1)
    return out.relu() + 1

def error(call):
    try: call()
    except Exception as found: return f"{type(found).__name__}: {found}"

def compiled(**options):
    config = compiler.CompilerConfig()
    _process_kwargs_options(config, {"options": options})
    torch._dynamo.reset()
    return torch.compile(model, backend=compiler.get_npu_backend(compiler_config=config), fullgraph=True)

fusions, made, said = [], [], {}
original = _NpuFxCompiler._get_compiled_gm

def watched(self, graph, inputs):
    made.append(original(self, graph, inputs))
    return made[-1]

_NpuFxCompiler._get_compiled_gm = watched
compiler.register_replacement(lambda x: x.relu() + 1, torch.ops.mine.fused, [torch.randn(4, device="npu")])
x, w = torch.randn(3, 4, device="npu"), torch.randn(4, 5, device="npu")
seen = [torch.zeros(1, device="npu"), torch.zeros(1, device="npu")]
with torch.inference_mode():
    expected = model(x, w, seen[0])
    run = compiled(force_eager=True, inplace_pass=False, clone_input=False, clone_output=False)
    said["equal"] = [torch.equal(run(x, w, seen[1]), expected) for _ in range(2)]
    said["fused"] = list(fusions)
    said["seen"] = [int(each.item()) for each in seen]
    said["code"] = [each.get_code() for each in made]
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        captured = run(x, w, seen[1])
    x.fill_(1)
    graph.replay()
    said["replayed"] = torch.equal(captured, model(x, w, seen[0]))
    plain = compiled(force_eager=True, pattern_fusion_pass=False)
    fusions.clear()
    said["without"] = [torch.equal(plain(x, w, seen[1]), captured), list(fusions)]
    said["own graphs"] = error(lambda: compiled()(x, w, seen[1]))
    said["static"] = error(lambda: compiled(force_eager=True, static_kernel_compile=True)(x, w, seen[1]))
said["option"] = error(lambda: compiled(fast=True))
said["attribute"] = error(lambda: setattr(compiler.CompilerConfig(), "fast", True))
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(python: Run) -> dict[str, Any]:
    done = python(PROGRAM, VIRTUAL_ASCEND_TORCH_NPU_VERSION="2.10.0")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_compiled_model_computes_what_it_did_and_changes_what_it_changed(said) -> None:
    assert said["equal"] == [True, True]
    assert said["seen"] == [1, 2]


def test_what_was_registered_takes_the_place_of_its_pattern(said) -> None:
    assert said["fused"] == [15, 15]
    assert said["without"] == [True, []]


def test_vllm_ascend_finds_the_method_that_it_wraps_and_no_code_to_keep(said) -> None:
    assert said["code"] == [None]


def test_a_graph_captures_what_was_compiled(said) -> None:
    assert said["replayed"] is True


def test_what_would_run_something_else_raises_with_its_name(said) -> None:
    assert "npugraph_ex without force_eager" in said["own graphs"]
    assert "is not implemented by the virtual Ascend" in said["own graphs"]
    assert "static_kernel_compile of npugraph_ex" in said["static"]


def test_an_unknown_option_is_refused_as_the_wheel_does(said) -> None:
    assert said["option"].startswith("ValueError: Invalid option 'fast'. The 'CompilerConfig' object")
    assert said["attribute"].startswith("ValueError: CompilerConfig has no option fast")


def test_it_is_not_there_before_torch_npu_2_10(python: Run) -> None:
    done = python("import torch_npu, npugraph_ex", VIRTUAL_ASCEND_TORCH_NPU_VERSION="2.9.0")
    assert "ModuleNotFoundError: No module named 'npugraph_ex'" in done.stderr
