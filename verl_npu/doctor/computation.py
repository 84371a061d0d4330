"""A product of matrices on each NPU, compared with the CPU's: `python -m verl_npu.doctor.computation`."""

from __future__ import annotations

import sys

__all__ = ["main"]

_WIDTH = 64


def main() -> int:
    """Return 0 if every NPU computed what the CPU did; prints one line."""
    import torch

    from ..ascend import software

    software.import_torch_npu()
    count = int(torch.npu.device_count())
    if count == 0:
        print("torch.npu sees no NPU", file=sys.stderr)
        return 1
    one = torch.arange(_WIDTH * _WIDTH, dtype=torch.float32).reshape(_WIDTH, _WIDTH) % 7
    expected = one @ one.T
    wrong = [
        index
        for index in range(count)
        if not torch.equal((one.to(f"npu:{index}") @ one.T.to(f"npu:{index}")).cpu(), expected)
    ]
    if wrong:
        print(f"wrong numbers on NPU {', '.join(map(str, wrong))}", file=sys.stderr)
        return 1
    print(f"right on {count} {'NPU' if count == 1 else 'NPUs'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
