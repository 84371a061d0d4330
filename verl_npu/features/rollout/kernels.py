"""Kernels that a job asks for and that NPUs may not run. The driver sees no NPU, so each is a line and no error."""

from __future__ import annotations

from importlib import metadata

from ...reporting import warn
from ..configuration import Section

__all__ = ["warn_of_kernels"]

_MODEL = "actor_rollout_ref.model"


def warn_of_kernels(config: Section) -> None:
    """Say which of the job's settings and packages upstream lets through, and NPUs may not."""
    role = config.get("actor_rollout_ref") or {}
    model = role.get("model") or {}
    megatron = (role.get("actor") or {}).get("strategy") == "megatron"
    # Megatron's trainer has no other fused kernels than Triton's.
    backend = "triton" if megatron else (model.get("fused_kernel_options") or {}).get("impl_backend")
    if model.get("use_fused_kernels") and backend == "triton":
        warn(
            f"{_MODEL}.use_fused_kernels=True: verl's fused cross entropy is a Triton kernel whose blocks are too "
            "large for an Ascend 910B (`ub overflow`, https://github.com/verl-project/verl/issues/7950); if training "
            f"ends so, set it to False, or with FSDP {_MODEL}.fused_kernel_options.impl_backend=torch"
        )
    if model.get("use_liger"):
        warn(
            f"{_MODEL}.use_liger=True: upstream's documents for Ascend call liger-kernel not supported; "
            "if training ends in a Triton error, set it to False"
        )
    if _installed("triton") and _installed("triton-ascend"):
        warn(
            "the packages triton and triton-ascend are both installed and overwrite each other's files, so that "
            "kernels may be compiled for CUDA: pip uninstall triton triton-ascend, then install triton-ascend alone"
        )


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
