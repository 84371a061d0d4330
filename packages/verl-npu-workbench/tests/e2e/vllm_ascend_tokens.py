"""MODEL TENSOR_PARALLEL FOLDER [MODE]: greedy tokens of the real vllm-ascend on virtual NPUs against transformers',
before and after its engine has slept; prints one line of JSON.

If MODEL ends with _ep, each rank has whole experts, and not a part of each. MODE is how it captures graphs, by vLLM's
names; without it, it captures none. With it, the engine also sleeps more deeply, receives the weights of another
model, and then those of the first again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.version import Version

# Square experts are refused before a sync: vllm-ascend would load them without transposing them.
KINDS = {
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "qwen3_moe": {"head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96},
    # The widths are those that the kernels accept, and vllm-ascend reads tables that only this kind of scaling makes.
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 64,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
        "first_k_dense_replace": 1,
        # transformers no longer has this setting, but released checkpoints do.
        "moe_layer_freq": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "n_group": 1,
        "topk_group": 1,
        "rope_scaling": {
            "rope_type": "yarn",
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    },
}
LENGTHS, NEW = (7, 20, 150), 12
TRANSPOSES_SINCE = Version("0.13.0")
"""From this release on experts wake up in the layout of a checkpoint, and processing lays them out."""
SIZES = (1, 2, 4)
"""The batch sizes for which graphs are captured."""


def make(kind: str, folder: Path, seed: int = 0, **changes: object) -> None:
    """Write a small random model of float32, whose tokens differ from each other."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        kind,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=512,
        max_position_embeddings=512,
        **{"tie_word_embeddings": False, "num_key_value_heads": 2, **KINDS[kind], **changes},
    )
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).float()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.08)
    model.save_pretrained(folder)


def engine(folder: Path, mode: str | None = None, **more: object) -> Any:
    """Serve a small model; `more` are further settings of vLLM."""
    from vllm import LLM

    if mode is not None:
        graphs = {"cudagraph_mode": mode, "cudagraph_capture_sizes": list(SIZES)}
        more = {"enforce_eager": False, "compilation_config": graphs, **more}
    small: dict[str, Any] = {
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "max_model_len": 256,
        "max_num_seqs": 8,
        "gpu_memory_utilization": 0.5,
        "dtype": "float32",
    }
    return LLM(model=str(folder), **small | more)


def expected(folder: Path) -> list[list[int]]:
    """Return transformers' own tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    tokens = []
    for length in LENGTHS:
        prompt = torch.arange(5, 5 + length)[None]
        made = model.generate(prompt, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0)
        tokens.append(made[0, length:].tolist())
    return tokens


def waits_for_weights(kind: str) -> bool:
    """Return whether the engine wakes up with its experts in the layout of a checkpoint, and cannot compute before it
    receives new weights: from 0.13 on."""
    return Version(version("vllm-ascend")) >= TRANSPOSES_SINCE and "moe_intermediate_size" in KINDS[kind]


def give_loaders(model: Any) -> None:
    """Give experts their loader again, as verl does: vllm-ascend makes new parameters when it processes them."""
    for module in model.modules():
        for leaf in ("w13_weight", "w2_weight"):
            if hasattr(module, leaf):
                getattr(module, leaf).weight_loader = module.weight_loader


def hand_over(runner: Any, folder: Path, way: Callable[..., object] | None = None) -> str:
    """Hand over the weights of a checkpoint to the engine of this process as verl-npu does, or in another way, and
    prove it; the next batch by graphs is then compared with eager mode."""
    from safetensors.torch import load_file

    from verl_npu.features.weight_sync.engines.processing import lay_out_experts_for_loading, refresh_copies_on_load
    from verl_npu.features.weight_sync.engines.vllm import VLLMEngine

    processed = Version(version("vllm-ascend")) >= TRANSPOSES_SINCE
    if processed:
        lay_out_experts_for_loading(runner.model)
    give_loaders(runner.model)
    refresh_copies_on_load(runner.model)
    weights = [(name, tensor.npu()) for name, tensor in load_file(folder / "model.safetensors").items()]
    taker = VLLMEngine(runner)
    taker.expect(weights)
    if way is None:
        taker.load(weights)
    else:
        way(weights, taker.load)
    del weights
    if processed:
        # As verl does; it does not let such experts compute before.
        from vllm.model_executor.model_loader.utils import process_weights_after_loading

        process_weights_after_loading(runner.model, runner.model_config, runner.device)
    taker.open()
    return taker.prove()


class Extension:
    """The methods that vLLM adds to its worker."""

    model_runner: Any

    def hand_over(self, folder: str) -> str:
        """Take the weights of a checkpoint, and return the proof's verdict."""
        return hand_over(self.model_runner, Path(folder))


class Answers:
    """The requests to an engine."""

    def __init__(self, served: Any) -> None:
        from vllm import SamplingParams

        self._served = served
        self._settings = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)

    def tokens(self) -> list[list[int]]:
        """Return its greedy tokens."""
        prompts = [{"prompt_token_ids": list(range(5, 5 + length))} for length in LENGTHS]
        answers = self._served.generate(prompts, self._settings, use_tqdm=False)
        return [list(answer.outputs[0].token_ids) for answer in answers]

    def after_sleep(self, level: int, folder: Path) -> dict[str, object]:
        """Let it sleep, hand it the weights of a checkpoint, and return its tokens beside transformers'."""
        self._served.sleep(level=level)
        self._served.wake_up(["weights"])
        proofs = self._served.collective_rpc("hand_over", args=(str(folder),))
        self._served.wake_up(["kv_cache"])
        self._served.reset_prefix_cache()
        return {"proofs": proofs, "tokens": self.tokens(), "expected": expected(folder)}


def main() -> None:
    """Serve the model and print the answers."""
    kind, parallel, folder = sys.argv[1].removesuffix("_ep"), int(sys.argv[2]), Path(sys.argv[3])
    mode = sys.argv[4] if len(sys.argv) > 4 else None
    make(kind, folder)
    more: dict[str, Any] = {"enable_sleep_mode": True, "tensor_parallel_size": parallel}
    more["enable_expert_parallel"] = sys.argv[1].endswith("_ep")
    served = engine(folder, mode, worker_extension_cls="vllm_ascend_tokens.Extension", **more)
    answers = Answers(served)
    said: dict[str, object] = {"expected": expected(folder), "awake": answers.tokens()}
    served.sleep(level=1)
    served.wake_up()
    said["after sleep"] = None if waits_for_weights(kind) else answers.tokens()
    if mode is not None:
        other = folder.with_name("other")
        make(kind, other, seed=1)
        said["handed over"] = [answers.after_sleep(2, other), answers.after_sleep(1, folder)]
    print("ANSWER " + json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
