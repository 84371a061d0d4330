"""In an FX graph an operator is one node, which calls the same kernel."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest

from ..differential.calls import Call, calls
from ..differential.observing import tensor

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402
from virtual_ascend.operators import schemas  # noqa: E402

# They write into their arguments.
PLAIN = ("npu_format_cast_", "npu_grouped_matmul_add_", "npu_scatter_pa_kv_cache")
VALID = [call for call in calls() if call.valid and call.operator not in (*schemas._BY_STEPS, *PLAIN)]


@pytest.fixture(scope="module")
def ascend(npu: ModuleType) -> ModuleType:
    return importlib.import_module("torch_npu")


def nodes(graph: Any) -> list[Any]:
    found = [node for node in graph.graph.nodes if node.op != "placeholder" and "getitem" not in str(node.target)]
    return [str(node.target) for node in found if node.op != "output"]


@pytest.mark.filterwarnings("ignore:.* computes float32 on virtual NPUs only")
@pytest.mark.parametrize("tracing", ["real", "fake"])
@pytest.mark.parametrize("call", VALID, ids=lambda call: call.label)
def test_a_call_is_one_node_of_the_same_results(ascend: ModuleType, call: Call, tracing: str) -> None:
    if not hasattr(ascend, call.operator):
        pytest.skip("the pretended version does not have it")
    given = pytree.tree_map(tensor, (list(call.args), dict(call.options)), is_leaf=lambda value: value is None)
    leaves, form = pytree.tree_flatten(given)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def run(*changing: Any) -> Any:
        left = iter(changing)
        args, options = pytree.tree_unflatten(
            [next(left) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], form
        )
        return getattr(ascend, call.operator)(*args, **options)

    graph = make_fx(run, tracing_mode=tracing)(*tensors)
    (target,) = nodes(graph)
    assert target.startswith(f"npu_traced.{call.operator}.")
    (output,) = [node for node in graph.graph.nodes if node.op == "output"]
    known = [node.meta["val"] for node in pytree.tree_leaves(output.args)]
    made = (pytree.tree_leaves(graph(*tensors)), pytree.tree_leaves(run(*tensors)))
    for said, traced, direct in zip(known, *made, strict=True):
        kinds = [(each.shape, each.dtype, each.stride(), each.device) for each in (said, direct)]
        assert kinds[0] == kinds[1]
        assert torch.allclose(traced.float(), direct.float(), equal_nan=True)


def test_a_gradient_is_traced_by_its_steps(ascend: ModuleType) -> None:
    x = torch.randn(2, 8, device="npu", requires_grad=True)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        (found,) = torch.autograd.grad(ascend.npu_swiglu(x).sum(), x)
        return found

    graph = make_fx(gradient)(x)
    assert not any(target.startswith("npu_traced") for target in nodes(graph))
    assert torch.allclose(graph(x), gradient(x))


def test_a_compiled_function_computes_what_it_did(ascend: ModuleType) -> None:
    x, weight = torch.randn(2, 8, device="npu"), torch.rand(8, device="npu")

    def norm(x: torch.Tensor) -> Any:
        return ascend.npu_add_rms_norm(x, x + 1, weight, 1e-5)

    with torch.no_grad():
        for made, direct in zip(torch.compile(norm, backend="aot_eager")(x), norm(x), strict=True):
            assert torch.equal(made, direct)
