"""What waking up does to experts in releases of vllm-ascend, by its own `wake_up`: vllm-ascend#11548 and #12226."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

EXPERTS, HIDDEN, WIDE = 2, 4, 6


def wake_up_of(folder: Path) -> Callable[..., None]:
    """The method of a release's worker, with what it calls of the device left out."""
    worker = folder / "vllm_ascend" / "worker"
    path = next(path for path in (worker / "worker_v1.py", worker / "worker.py") if path.is_file())
    functions = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))
    found = next(node for node in functions if node.name == "wake_up")
    found.returns, found.args.args[1].annotation = None, None
    allocator = SimpleNamespace(get_instance=lambda: SimpleNamespace(wake_up=lambda tags: None))
    names: dict[str, Any] = {
        "CaMemAllocator": allocator,
        "envs_ascend": SimpleNamespace(VLLM_ASCEND_ENABLE_NZ=0),
        "get_ascend_config": lambda: SimpleNamespace(weight_nz_mode=0),
        "is_enable_nz": lambda: False,
        "sleep_mode_enabled": lambda: True,
        "torch": torch,
    }
    exec(compile(ast.Module([found], []), str(path), "exec"), names)
    return names["wake_up"]  # type: ignore[no-any-return]


@pytest.mark.upstream
@pytest.mark.parametrize(
    ("release", "transposed"),
    [("v0.9.1", False), ("v0.11.0", False), ("v0.13.0", True), ("v0.18.0", True), ("v0.23.0", True)],
)
def test_experts_that_were_ready_are_transposed_once_more_from_0_13_on(
    release: str, transposed: bool, source: Callable[[str, str], Path]
) -> None:
    layer = torch.nn.Module()
    # As each release has them after loading: ready for the grouped product.
    layer.w13_weight = torch.nn.Parameter(torch.zeros(EXPERTS, HIDDEN, 2 * WIDE), requires_grad=False)
    layer.w2_weight = torch.nn.Parameter(torch.zeros(EXPERTS, WIDE, HIDDEN), requires_grad=False)
    model = torch.nn.Module()
    model.experts = layer
    settings = SimpleNamespace(hf_text_config=SimpleNamespace(hidden_size=HIDDEN))
    worker = SimpleNamespace(
        model_runner=SimpleNamespace(model=model),
        vllm_config=SimpleNamespace(model_config=settings, quant_config=None),
        _sleep_saved_buffers={},
    )
    wake_up_of(source("vllm-ascend", release))(worker, None)
    shapes = tuple(layer.w13_weight.shape), tuple(layer.w2_weight.shape)
    ready = (EXPERTS, HIDDEN, 2 * WIDE), (EXPERTS, WIDE, HIDDEN)
    assert shapes == (tuple((e, b, a) for e, a, b in ready) if transposed else ready)
