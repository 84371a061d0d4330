"""MODEL FOLDER [DTYPE] [MODE] [FIX]: the real vllm-ascend on virtual NPUs, which reads requests as lines of JSON.

Each gets a line of JSON: the outcome, the NPU memory in use then, and how many graphs were replayed. MODE is how it
captures graphs, by vLLM's names; without it, it captures none. FIX is a file with the method that replaces
`AscendMLAImpl.process_weights_after_loading`.

There are two checkpoints of one model, `a` and `b`, of which it starts with `a`. The engine is in this process: its
error is an error here, and the process goes on.
"""

from __future__ import annotations

import gc
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm_ascend_tokens import LENGTHS, NEW, engine, expected, give_loaders, hand_over, make

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


class Engine:
    """The engine and its requests: each method is one `do`."""

    def __init__(self, folder: Path, dtype: str, mode: str | None) -> None:
        from vllm import SamplingParams

        self.folder = folder
        self.llm = engine(folder / "a", mode, enable_sleep_mode=True, num_gpu_blocks_override=32, dtype=dtype)
        self.settings = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=1)
        self.begun: list[str] = []

    def sleep(self, level: int) -> None:
        self.llm.sleep(level)

    def wake(self, tags: list[str] | None) -> None:
        self.llm.wake_up(tags)

    def update(self, to: str) -> None:
        """Hand over the weights of one checkpoint, as a trainer does, and reset the prefix cache."""
        from safetensors.torch import load_file

        self.runner.model.load_weights(iter(load_file(self.folder / to / "model.safetensors").items()))
        self.llm.reset_prefix_cache()

    def reload(self, to: str) -> None:
        """Hand over as verl does from v0.7.1 on, without verl-npu: experts get their loader again, and the engine
        processes the loaded weights."""
        from vllm.model_executor.model_loader.utils import process_weights_after_loading

        give_loaders(self.runner.model)
        self.update(to)
        process_weights_after_loading(self.runner.model, self.runner.model_config, self.runner.device)

    @property
    def runner(self) -> Any:
        """The model runner."""
        return self.llm.llm_engine.model_executor.driver_worker.worker.model_runner

    def replace(self, name: str) -> None:
        """Replace a weight by a new tensor with the same values."""
        parameter = self.runner.model.get_parameter(name)
        parameter.data = parameter.data.clone()

    def prove(self, to: str) -> dict[str, object]:
        """Hand over as verl-npu does, and prove it."""
        proof = hand_over(self.runner, self.folder / to)
        self.llm.reset_prefix_cache()
        return {"proof": proof}

    def compare(self, to: str | None = None) -> None:
        """Hand over, and compare the next batch by graphs with eager mode, as on a real NPU, without a proof."""
        from verl_npu.features.weight_sync.engines.replayed import compare_next_replay

        if to is not None:
            self.update(to)
        compare_next_replay(self.runner)

    def begin(self, steps: int) -> None:
        """Start two requests and leave them unfinished."""
        for length in LENGTHS[:2]:
            self.begun.append(f"begun-{length}-{len(self.begun)}")
            prompt = {"prompt_token_ids": list(range(5, 5 + length))}
            self.llm.llm_engine.add_request(self.begun[-1], prompt, self.settings)
        for _ in range(steps):
            self.llm.llm_engine.step()

    def abort(self) -> None:
        """Abort the requests that were begun, and forget them."""
        self.llm.llm_engine.abort_request(list(self.llm.llm_engine.output_processor.request_states))
        self.begun.clear()
        self.llm.reset_prefix_cache()

    def generate(self) -> dict[str, object]:
        """Answer the prompts; return the tokens, and whether the logits were numbers."""
        prompts = [{"prompt_token_ids": list(range(5, 5 + length))} for length in LENGTHS]
        try:
            answers = [answer.outputs[0] for answer in self.llm.generate(prompts, self.settings, use_tqdm=False)]
        except Exception:
            self.abort()
            raise
        chances = [next(iter(each.values())).logprob for answer in answers for each in answer.logprobs]
        return {
            "tokens": [list(answer.token_ids) for answer in answers],
            "numbers": all(math.isfinite(chance) for chance in chances),
        }


def install_fix(file: Path) -> None:
    """Put a method of another revision into vllm-ascend: its names are looked up there, and functions that this
    release lacks do nothing."""
    from vllm_ascend.attention import mla_v1

    names = {**vars(mla_v1), "maybe_trans_nz": lambda tensor: tensor}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), names)
    impl = mla_v1.AscendMLAImpl
    impl.process_weights_after_loading = names["process_weights_after_loading"]
    impl.fa_quant_layer, impl.layer_sharding_kwargs = False, None


def pools() -> dict[str, int]:
    """Return the bytes that vllm-ascend's allocator has given out, by tag."""
    from vllm_ascend.device_allocator.camem import CaMemAllocator

    found: dict[str, int] = {}
    for data in CaMemAllocator.get_instance().pointer_to_data.values():
        found[data.tag] = found.get(data.tag, 0) + data.handle[1]
    return found


def count_replays() -> list[object]:
    """Return a list to which each replay of a graph adds itself."""
    import torch

    done: list[object] = []
    replay = torch.npu.NPUGraph.replay

    def counted(graph: Any) -> None:
        done.append(graph)
        replay(graph)

    torch.npu.NPUGraph.replay = counted
    return done


def orders() -> Iterator[dict[str, Any]]:
    yield from (json.loads(line) for line in sys.stdin)


def main() -> None:
    """Serve until the input ends."""
    import torch

    kind, folder = sys.argv[1], Path(sys.argv[2])
    dtype, mode = sys.argv[3] if len(sys.argv) > 3 else "float32", sys.argv[4] if len(sys.argv) > 4 else None
    replays = count_replays()
    for seed, name in enumerate("ab"):
        if not (folder / name).is_dir():
            make(kind, folder / name, seed)
    if len(sys.argv) > 5:
        install_fix(Path(sys.argv[5]))
    served = Engine(folder, dtype, mode)

    def say(**what: object) -> None:
        gc.collect()  # an error holds the frames that it has passed
        used, free = torch.npu.memory_allocated(), torch.npu.mem_get_info()[0]
        print("ANSWER " + json.dumps({**what, "used": used, "free": free, "replays": len(replays)}), flush=True)
        replays.clear()

    served.generate()  # allocations of the first request do not count as a leak
    served.llm.reset_prefix_cache()
    say(expected={name: expected(folder / name) for name in "ab"}, pools=pools())
    for order in orders():
        try:
            what = getattr(served, order.pop("do"))(**order)
        except Exception as error:  # every error is an answer
            say(error=f"{type(error).__name__}: {error}")
        else:
            say(error=None, **(what or {}))


if __name__ == "__main__":
    main()
