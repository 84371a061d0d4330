"""What the NPUs of a plan have and do at their best, each figure with its source."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HARDWARE", "Figure", "Hardware"]

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, and who says so."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Hardware:
    """One NPU as torch sees it: of an A3, one of the two dies of a chip."""

    name: str
    memory: Figure
    """Bytes that torch_npu can allocate from: what driver and CANN keep is not among them."""
    flops: Figure
    """bfloat16, a second."""
    bandwidth: Figure
    """Bytes of its memory, a second."""
    link: Figure
    """Bytes to the other NPUs of its node, a second."""
    network: Figure
    """Bytes to other nodes, a second."""
    host: Figure
    """Bytes from and to the host, a second."""


_PCIE = Figure(26e9, "PCIe 4.0 x16: 32 GB/s, of which about 26 GB/s arrive")
_ROCE = Figure(25e9, "one RoCE port of 200 Gb/s for each NPU (Atlas 800T A2 and Atlas 800T A3)")
_FLOPS = "verl/utils/flops_counter.py"

HARDWARE = {
    each.name: each
    for each in (
        Hardware(
            "a2",
            Figure(60.96 * GIB, '"60.96 GiB total capacity" in errors of a 910B2, vllm-ascend issue 1127'),
            Figure(354e12, f"910B in {_FLOPS}"),
            Figure(1.6e12, "910B: 1.6 TB/s of HBM2e"),
            Figure(196e9, "HCCS of a 910B: 392 GB/s, both directions together"),
            _ROCE,
            _PCIE,
        ),
        Hardware(
            "a3",
            Figure(61.27 * GIB, '"61.27 GiB total capacity" in errors of an A3, sglang issue 29838'),
            Figure(354e12, f"Ascend910 in {_FLOPS}"),
            Figure(1.6e12, "910C: 3.2 TB/s for its two dies"),
            Figure(196e9, "HCCS of a 910C: 784 GB/s, both directions and both dies together"),
            _ROCE,
            _PCIE,
        ),
    )
}
