"""TENSOR_PARALLEL FOLDER: what the real vllm-ascend on virtual NPUs says to graphs, and to none: one line of JSON."""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path

from vllm_ascend_tokens import engine, make


def start(folder: Path, parallel: int, **settings: object) -> str:
    """Start an engine, have it answer, and return how it went."""
    from vllm import SamplingParams

    try:
        served = engine(
            folder, enforce_eager=False, tensor_parallel_size=parallel, num_gpu_blocks_override=32, **settings
        )
        served.generate({"prompt_token_ids": [5, 6, 7]}, SamplingParams(max_tokens=2), use_tqdm=False)
    except Exception as error:  # that is the answer
        return f"{type(error).__name__}: {error}"
    return "served"


def main() -> None:
    """Print what came of both."""
    parallel, folder = int(sys.argv[1]), Path(sys.argv[2])
    make("qwen2", folder)
    said: dict[str, object] = {"with graphs": start(folder, parallel)}
    said["processes"] = len(multiprocessing.active_children())
    said["cudagraph_mode NONE"] = start(folder, parallel, compilation_config={"cudagraph_mode": "NONE"})
    print("ANSWER " + json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
