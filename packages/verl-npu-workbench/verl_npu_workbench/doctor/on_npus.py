"""What the doctor runs on the NPUs, each in a process of its own: `python -m verl_npu_workbench.doctor.on_npus NAME`.

`operator` is a product of matrices on each NPU, compared with the CPU's; `collective` is a sum over all NPUs by HCCL,
one process for each.
"""

from __future__ import annotations

import sys
import tempfile

__all__ = ["compute", "reduce"]

_WIDTH = 64


def compute() -> int:
    """Return 0 if every NPU computed what the CPU did; prints one line."""
    import torch

    from verl_npu.ascend import software

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


def reduce() -> int:
    """Return 0 if every rank has the sum; prints one line."""
    import torch

    from verl_npu.ascend import software

    software.import_torch_npu()
    count = int(torch.npu.device_count())
    if count < 2:
        print(f"nothing to sum over: {count} NPU{'' if count == 1 else 's'}")
        return 0 if count else 1
    # They meet in a file: a port would be open to everybody, and torch believes whoever connects to it.
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (count, f"file://{folder}/meeting"), nprocs=count)
    print(f"all-reduce right on {count} NPUs")
    return 0


def _rank(rank: int, count: int, meeting: str) -> None:
    import torch

    from verl_npu.ascend import software

    software.import_torch_npu()
    torch.npu.set_device(rank)
    torch.distributed.init_process_group("hccl", init_method=meeting, rank=rank, world_size=count)
    mine = torch.full((1024,), float(rank + 1), device=f"npu:{rank}")
    torch.distributed.all_reduce(mine)
    expected = count * (count + 1) / 2
    if not bool((mine.cpu() == expected).all()):
        raise RuntimeError(f"rank {rank}: expected {expected:g}, found {mine[0].item():g}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit({"operator": compute, "collective": reduce}[sys.argv[1]]())
