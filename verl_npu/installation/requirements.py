"""The files for pip: what is installed beside the engine, and what nothing may replace."""

from __future__ import annotations

from ..ascend.matrix import Component
from .target import Arch, Target

__all__ = ["constraints", "requirements"]

_OTHERS = (
    "accelerate",
    "codetiming",
    "datasets",
    "dill",
    "hydra-core",
    "mathruler",
    "pandas",
    "pybind11",
    "pylatexenc",
    "qwen_vl_utils",
    "torchdata",
    "wandb",
)
"""What requirements-npu.txt of all pins names without a version."""
_OURS = (
    Component.TRANSFORMERS,
    Component.TENSORDICT,
    Component.NUMPY,
    Component.EINOPS,
    Component.PEFT,
    Component.PYARROW,
)
_CONSTRAINED = (
    Component.TORCH,
    Component.TORCH_NPU,
    Component.TORCHVISION,
    *_OURS,
    Component.RAY,
    Component.TRITON_ASCEND,
)


def requirements(target: Target) -> str:
    """Return what verl needs beside torch, torch_npu and the engine, as a requirements file."""
    lines = [f"# What verl {target.pin.name} needs on NPUs, from its requirements-npu.txt and documents."]
    lines += sorted(
        [
            *(f"{each.value}{target.specifier(each)}" for each in _OURS),
            f"ray[default]{target.specifier(Component.RAY)}",
            *_OTHERS,
        ]
    )
    queue = target.claim(Component.TRANSFER_QUEUE)
    if queue is not None and queue.needs:
        lines.append(f"TransferQueue{queue.needs}")
    elif queue is not None:
        lines.append(f"TransferQueue @ git+https://github.com/Ascend/TransferQueue.git@{queue.revision}")
    return "\n".join(lines) + "\n"


def constraints(target: Target) -> str:
    """Return the versions that no later installation may replace, as a constraints file.

    torch first of all: requirements of vLLM and of others ask for builds with CUDA.
    """
    lines = [f"# Versions of verl {target.pin.name} on NPUs. PIP_CONSTRAINT makes pip keep them."]
    if target.arch is Arch.X86:
        lines.append("# +cpu: on x86 the plain name of torch is a build for CUDA.")
    for component in _CONSTRAINED:
        needs = target.specifier(component)
        claim = target.claim(component)
        if needs and claim is not None:
            lines.append(f"{component.value}{needs}  # {claim.source}")
    return "\n".join(lines) + "\n"
