"""FOLDER DO [FIX]: how the real vllm-ascend on a virtual NPU answers with experts after it slept and woke up.

It answers by the weights that it kept (DO is `keep`), or by others that it loads (`load`); prints a line of JSON. FIX
is a file with methods of another revision that replace its own: `wake_up` of its worker,
`process_weights_after_loading` of its experts.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from vllm_ascend_tokens import Answers, engine, expected, make

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
KIND = "qwen3_moe"


class Extension:
    """The methods that vLLM adds to its worker."""

    model_runner: Any

    def load(self, folder: str) -> None:
        """Load the weights of a checkpoint, and process them, as verl does."""
        from safetensors.torch import load_file
        from vllm.model_executor.model_loader.utils import process_weights_after_loading

        runner = self.model_runner
        runner.model.load_weights(iter(load_file(Path(folder) / "model.safetensors").items()))
        process_weights_after_loading(runner.model, runner.model_config, runner.device)


def install_fix(file: Path) -> None:
    """Put methods of another revision into vllm-ascend; their names are looked up there."""
    from vllm.model_executor.utils import replace_parameter
    from vllm_ascend.ops.fused_moe import fused_moe
    from vllm_ascend.worker import worker
    from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

    names = {**vars(fused_moe), **vars(worker), "replace_parameter": replace_parameter}
    before = set(names)
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), names)
    owners = {"wake_up": worker.NPUWorker, "process_weights_after_loading": fused_moe.AscendUnquantizedFusedMoEMethod}
    for name in owners.keys() & (set(names) - before):
        setattr(owners[name], name, names[name])
    if not hasattr(NPUModelRunner, "post_kv_cache_wake_up"):  # Only a later vLLM has it.
        NPUModelRunner.post_kv_cache_wake_up = lambda runner: None


def main() -> None:
    """Let it answer, sleep, wake up and answer."""
    folder, do = Path(sys.argv[1]), sys.argv[2]
    other = folder.with_name("other")
    for seed, path in enumerate((folder, other)):
        make(KIND, path, seed)
    if len(sys.argv) > 3:
        install_fix(Path(sys.argv[3]))
    served = engine(folder, enable_sleep_mode=True, worker_extension_cls="vllm_ascend_awake.Extension")
    answers = Answers(served)
    said = {name: expected(path) for name, path in (("kept", folder), ("loaded", other))}
    said["awake"] = answers.tokens()
    served.sleep(level=1)
    served.wake_up()
    served.reset_prefix_cache()
    try:
        if do == "load":
            served.collective_rpc("load", args=(str(other),))
        said["after sleep"] = answers.tokens()
    except Exception as error:  # The error is the answer.
        said["after sleep"] = f"{type(error).__name__}: {error}"
    print("ANSWER " + json.dumps(said), flush=True)
    os._exit(0)  # An engine that failed may wait for itself.


if __name__ == "__main__":
    main()
