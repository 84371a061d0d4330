"""A sum over all NPUs by HCCL, one process for each: `python -m verl_npu.doctor.collective`."""

from __future__ import annotations

import os
import socket
import sys

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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_rank, (count, port), nprocs=count)
    print(f"all-reduce right on {count} NPUs")
    return 0


def _rank(rank: int, count: int, port: int) -> None:
    import torch

    from ..ascend import software

    software.import_torch_npu()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.npu.set_device(rank)
    torch.distributed.init_process_group("hccl", rank=rank, world_size=count)
    mine = torch.full((1024,), float(rank + 1), device=f"npu:{rank}")
    torch.distributed.all_reduce(mine)
    expected = count * (count + 1) / 2
    if not bool((mine.cpu() == expected).all()):
        raise RuntimeError(f"rank {rank}: expected {expected:g}, found {mine[0].item():g}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
