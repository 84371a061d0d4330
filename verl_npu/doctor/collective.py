"""A sum over all NPUs by HCCL, one process for each: `python -m verl_npu.doctor.collective`."""

from __future__ import annotations

import sys
import tempfile

__all__ = ["main"]


def main() -> int:
    """Return 0 if every rank has the sum; prints one line."""
    import torch

    from ..ascend import software

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

    from ..ascend import software

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
    sys.exit(main())
