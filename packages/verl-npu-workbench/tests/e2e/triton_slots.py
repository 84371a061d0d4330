"""Slots of random batches, by vLLM's and vllm-ascend's kernels in Triton's interpreter and by our references.

It runs on the host, without virtual NPUs, and prints one line of JSON.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import random
import sys
from pathlib import Path

VLLM_KERNEL = "vllm.v1.worker.block_table._compute_slot_mapping_kernel"
ASCEND_KERNEL = "vllm_ascend.ops.triton.compute_slot_mapping._compute_slot_mapping_kernel"
BATCHES = 60


def kernel(name: str, folder: Path) -> object:
    """Return a kernel as Triton's own, because vLLM decorates it by a placeholder where there is no NPU's Triton; None
    if this release does not have it with the parameters of our reference."""
    from verl_npu_workbench.simulation.triton_references import REFERENCES

    module, _, function = name.rpartition(".")
    package = importlib.util.find_spec(module.partition(".")[0])
    if package is None or package.origin is None:
        raise SystemExit("expected vLLM and vllm-ascend in this environment")
    file = Path(package.origin).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    source = file.read_text() if file.is_file() else ""
    found = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == function]
    _, *expected = inspect.signature(REFERENCES[name]).parameters
    if not found or [each.arg for each in found[0].args.args] != expected:
        return None
    lines = source.splitlines()[found[0].decorator_list[0].lineno - 1 : found[0].end_lineno]
    alone = f"kernel_of_{package.name}"
    (folder / f"{alone}.py").write_text("\n".join(["import triton", "import triton.language as tl", *lines, ""]))
    sys.path.insert(0, str(folder))
    return getattr(importlib.import_module(alone), function)


def compared(name: str, folder: Path) -> dict[str, object]:
    """Compare a kernel with its reference."""
    import torch
    from verl_npu_workbench.simulation.triton_references import REFERENCES

    real = kernel(name, folder)
    random.seed(0)
    different, tokens = [], 0
    for number in range(BATCHES if real is not None else 0):
        ranks, piece, block, columns = (random.choice(c) for c in ((1, 1, 2, 4), (1, 2, 4), (4, 16, 128), (1, 5)))
        ranks = 1 if name == ASCEND_KERNEL else ranks
        lengths = [random.choice((0, 1, 3, 30, 1500 if number % 10 == 0 else 7)) for _ in range(random.randint(1, 4))]
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        count = starts[-1] + random.choice((0, 3))
        given = [
            count,
            count + random.choice((0, 9, 1100)),
            torch.tensor(starts, dtype=torch.int32),
            torch.randint(block * ranks * columns, (count,)),
            torch.randint(1, 99, (len(lengths), columns), dtype=torch.int32),
            columns,
            block,
        ]
        settings = dict(zip(("TOTAL_CP_WORLD_SIZE", "TOTAL_CP_RANK"), (ranks, random.randrange(ranks)), strict=True))
        settings |= {"CP_KV_CACHE_INTERLEAVE_SIZE": piece, "PAD_ID": -1}
        if name == ASCEND_KERNEL:
            window = 1 << (1024 // block).bit_length()
            settings |= {"KV_CACHE_BLOCK_SIZE": block, "BLOCKS_PER_KV_BLOCK": 1, "TILE_BLOCK_SIZE": 1024}
            settings["BLOCK_TABLE_WINDOW_SIZE"] = window
        else:
            settings["BLOCK_SIZE"] = 1024
        both = [torch.full((given[1] + 2,), -7, dtype=random.choice((torch.int32, torch.int64)))] * 2
        both = [each.clone() for each in both]
        grid = (len(lengths) + 1,)
        real[grid](*given, both[0], **settings)  # type: ignore[index]  # Triton's kernels are launched so
        REFERENCES[name](grid, *given, both[1], **settings)
        tokens += starts[-1]
        if not torch.equal(*both):
            different.append(number)
    return {"kernel": real is not None, "tokens": tokens, "different": different}


def main() -> None:
    """Compare both kernels, and print the answer."""
    print("ANSWER " + json.dumps({name: compared(name, Path(sys.argv[1])) for name in (VLLM_KERNEL, ASCEND_KERNEL)}))


if __name__ == "__main__":
    main()
