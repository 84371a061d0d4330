"""Runs upstream's teacher with the pin's vLLM version, whose `generate` no longer accepts the keyword
`prompt_token_ids`."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import vllm


class LLM(vllm.LLM):
    """vLLM's `LLM`, whose `generate` accepts the keyword that upstream's worker uses."""

    def generate(
        self, prompt_token_ids: Sequence[list[int]], sampling_params: vllm.SamplingParams
    ) -> list[vllm.RequestOutput]:
        """Generate a response for each row of token ids."""
        return super().generate([{"prompt_token_ids": row} for row in prompt_token_ids], sampling_params)


if __name__ == "__main__":
    worker = Path(sys.argv[1])
    vllm.LLM = LLM
    sys.path.insert(0, str(worker.parent))
    sys.argv[:] = [str(worker), *sys.argv[2:]]
    runpy.run_path(str(worker), run_name="__main__")
