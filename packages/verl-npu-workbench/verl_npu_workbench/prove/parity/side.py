"""Computes one side of a comparison, in a separate process: SIDE FILE [CASE ...].

The side `cpu` is unpatched and runs on the host; start it with VERL_NPU=off. The side `plain` is unpatched and runs on
an NPU. The side `npu` is patched and runs on an NPU.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .cases import Case

# AdamW divides by the gradient's size, so tiny gradients move weights as far as large ones do. With this epsilon, the
# comparison does not measure rounding noise.
STEP, EPSILON = 1e-3, 1e-1
_OPERATORS = (
    "npu_fusion_attention",
    "npu_rms_norm",
    "npu_swiglu",
    "npu_rotary_mul",
    "npu_grouped_matmul",
    "npu_moe_token_permute",
    "npu_moe_token_unpermute",
)


def compute(case: Case, side: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return logits, gradients, and weights after one step of AdamW, computed in `dtype` and converted to float32.

    Weights and inputs are always rounded to the case's dtype first.
    """
    from . import cases

    on_npu, device = side == "npu", "cpu" if side == "cpu" else "npu"
    model = cases.model(case, "flash_attention_2" if on_npu else "eager")
    given = getattr(torch, case.dtype)
    model.to(given).to(dtype).to(device)
    inputs, kept = cases.batch(case, packed_by_mask=not on_npu)
    known = inspect.signature(type(model).forward).parameters
    inputs = {name: value for name, value in inputs.items() if name in known}
    inputs = {name: (v.to(given).to(dtype) if v.is_floating_point() else v).to(device) for name, v in inputs.items()}
    logits = model(**inputs, use_cache=False).logits
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(17))
    weights = (weights * kept.unsqueeze(-1)).to(given).float()
    (logits.float() * weights.to(device)).sum().backward()
    result: dict[str, torch.Tensor] = {"logits": (logits.detach().float().cpu() * kept.unsqueeze(-1))}
    for name, parameter in model.named_parameters():
        # If no token chose an expert, one version of transformers leaves out its gradient and another gives zeros.
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        result[f"grad {name}"] = gradient.detach().float().cpu()
        parameter.grad = gradient
    torch.optim.AdamW(model.parameters(), lr=STEP, eps=EPSILON).step()
    for name, parameter in model.named_parameters():
        result[f"step {name}"] = parameter.detach().float().cpu()
    return result


def count_calls(calls: Counter[str]) -> None:
    """Count the calls of torch_npu's operators from now on, by name."""
    import torch_npu

    def count(name: str) -> None:
        original = getattr(torch_npu, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return original(*args, **kwargs)

        setattr(torch_npu, name, counting)

    for name in _OPERATORS:
        count(name)


def import_verl() -> None:
    """Import verl, because verl-npu applies patches only after this import. Then apply upstream's own patches for
    NPUs, as a worker does."""
    import verl  # noqa: F401

    # v0.9.1's FSDP engine calls this function; earlier versions apply the patches on import. A stand-in has neither.
    if importlib.util.find_spec("verl.models") is not None:
        patches = importlib.import_module("verl.models.transformers.npu_patch")
        getattr(patches, "apply_npu_patches", lambda: None)()


def main() -> None:
    """Compute every case, and save the results."""
    side, path, *names = sys.argv[1:]
    calls: Counter[str] = Counter()
    states: dict[str, str] = {}
    if side == "cpu":
        # transformers imports torch_npu if it is installed, and its wheel cannot be imported without CANN.
        sys.modules["torch_npu"] = None  # type: ignore[assignment]
    if side == "plain":
        import torch_npu  # noqa: F401
    if side == "npu":
        count_calls(calls)  # before transformers copies the functions
        import_verl()
        import verl_npu

    from . import cases

    torch.set_num_threads(1)
    results = {}
    for case in cases.cases():
        if not names or case.name in names:
            calls.clear()
            given = getattr(torch, case.dtype)
            dtypes = {"values": torch.float32 if side == "cpu" else given, "unfused": given}
            if side != "cpu" or given is torch.float32:
                del dtypes["unfused"]
            made: dict[str, object] = {key: compute(case, side, dtype) for key, dtype in dtypes.items()}
            results[case.name] = made | {"calls": dict(calls)}
    if side == "npu":
        states = {name: feature["state"] for name, feature in verl_npu.status()["features"].items()}
    torch.save({"results": results, "states": states}, path)


if __name__ == "__main__":
    main()
