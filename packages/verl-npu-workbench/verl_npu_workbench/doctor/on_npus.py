"""The doctor's tests on the NPUs, each in a separate process: `python -m verl_npu_workbench.doctor.on_npus NAME`.

The `operator` test multiplies matrices on each NPU and compares the results with the CPU's. The `collective` test runs
one process for each NPU and computes a sum over all of them with HCCL.
"""

from __future__ import annotations

import sys
import tempfile

_WIDTH = 64


def compute() -> int:
    """Run the `operator` test, and print one line. Return 0 if every NPU computes the same result as the CPU."""
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
    """Run the `collective` test, and print one line. Return 0 if every rank gets the right sum."""
    import torch

    from verl_npu.ascend import software

    software.import_torch_npu()
    count = int(torch.npu.device_count())
    if count < 2:
        print(f"nothing to sum over: {count} NPU{'' if count == 1 else 's'}")
        return 0 if count else 1
    # The ranks meet through a file: a port would be open to everybody, and torch trusts whoever connects to it.
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
        raise RuntimeError(f"rank {rank}: expected {expected:g}; found {mine[0].item():g}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit({"operator": compute, "collective": reduce}[sys.argv[1]]())
