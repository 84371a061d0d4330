"""PyTorch's own samples for its modules: some call operators that no sample of an operator does.

Some of the modules, and all of them every night.
"""

from __future__ import annotations

import copy
import warnings
from types import ModuleType
from typing import Any

import pytest


def tensors(value: Any) -> list[Any]:
    import torch

    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def on_npu(value: Any) -> Any:
    import torch

    def moved(leaf: Any) -> Any:
        there = isinstance(leaf, torch.Tensor)
        return leaf.detach().clone().npu().requires_grad_(leaf.requires_grad) if there else leaf

    return torch.utils._pytree.tree_map(moved, value)


def results(module: Any, arguments: tuple[Any, dict[str, Any]]) -> list[Any]:
    """Return a module's results, and the gradients of its parameters."""
    import torch

    found = tensors(module(*arguments[0], **arguments[1]))
    differentiable = [tensor.sum() for tensor in found if tensor.requires_grad]
    if differentiable:
        torch.autograd.backward(differentiable)
    return [tensor.detach() for tensor in found] + [p.grad for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    "step", [4, pytest.param(1, marks=pytest.mark.nightly("packages/virtual-ascend/virtual_ascend/device"))]
)
def test_modules_and_their_gradients_are_the_cpus(npu: ModuleType, step: int) -> None:
    from torch.testing._internal.common_modules import module_db

    compared, differing = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many of the samples are deprecated
        for info in module_db[::step]:
            if issubclass(info.module_cls, npu.nn.modules.lazy.LazyModuleMixin):
                continue  # its parameters are drawn in the first call, by each device's own generator
            for training in (True, False):
                samples = info.module_inputs_func(
                    info, device="cpu", dtype=npu.float32, requires_grad=True, training=training
                )
                for sample in samples[:3]:
                    if sample.forward_input is None:
                        continue
                    made = sample.constructor_input
                    host = info.module_cls(*made.args, **made.kwargs).train(training)
                    device = copy.deepcopy(host).to("npu")
                    given = (sample.forward_input.args, sample.forward_input.kwargs)
                    there = on_npu(given)
                    try:
                        expected = results(host, given)
                    except (RuntimeError, NotImplementedError):
                        continue  # the CPU does not run it
                    try:
                        npu.testing.assert_close(
                            [tensor.cpu() for tensor in results(device, there)], expected, rtol=1e-4, atol=1e-4
                        )
                        compared += 1
                    except (AssertionError, RuntimeError, NotImplementedError) as error:
                        differing.append(f"{info.name}: {error}")
    assert differing == []
    assert compared > 100
