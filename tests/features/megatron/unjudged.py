"""Try overrides that verl-npu does not judge, in a process of its own with a real MindSpeed.

Cases come from stdin as JSON lines, and an answer for each goes to stdout: the stage that failed, and its error; both
are empty if all stages passed. A case is {"model", "overrides", "section", "step"}, and is tried in a fork, so that no
case affects another. The stages are those of a verl worker: repatch, groups, configuration, model, forward, backward
and, if "step" is true, the optimizer and its step.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from identity import forked, give_triton_a_driver

# Values that verl's own configuration file puts beside the overrides.
UPSTREAMS_OWN = {
    "recompute_granularity": None,
    "recompute_modules": ["core_attn"],
    "recompute_method": None,
    "recompute_num_layers": None,
    "attention_backend": "flash",
}
SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}
EXPERTS = {"moe_intermediate_size": 64, "num_experts_per_tok": 2}
LATENT = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32}


def configurations() -> dict[str, Any]:
    """Return the configurations of small models, as transformers reads them from a config.json."""
    import transformers

    grouped = {**SIZES, "num_key_value_heads": 2}
    experts = {**grouped, **EXPERTS, "num_experts": 4, "head_dim": 16}
    latent = {**SIZES, **EXPERTS, **LATENT, "n_routed_experts": 4, "num_key_value_heads": 4}
    latent |= {"n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
    rest = {"num_nextn_predict_layers": 0, "rope_scaling": None, "architectures": ["DeepseekV3ForCausalLM"]}
    return {
        "dense": transformers.Qwen2Config(**grouped, architectures=["Qwen2ForCausalLM"]),
        "experts": transformers.Qwen3MoeConfig(**experts, architectures=["Qwen3MoeForCausalLM"]),
        "latent": transformers.DeepseekV3Config(**latent, **rest),
    }


class Worker:
    """A worker that goes stage by stage from its overrides to the end of a step."""

    def __init__(self, case: dict[str, Any], models: dict[str, Any]) -> None:
        self.overrides, self.section = case["overrides"], case["section"]
        self.hf = models[case["model"]]
        self.stages = [self.repatch, self.groups, self.configuration, self.model, self.forward, self.backward]
        self.stages += [self.optimizer, self.step] if case["step"] else []

    def repatch(self) -> None:
        from mindspeed.megatron_adaptor import repatch

        from verl_npu.features.megatron.repatch import on_behalf_of
        from verl_npu.features.megatron.request import Request

        with on_behalf_of(Request("actor", self.overrides, self.section)):
            repatch({})

    def groups(self) -> None:
        from megatron.core import parallel_state, tensor_parallel

        torch.npu.set_device(0)
        torch.distributed.init_process_group("hccl", store=torch.distributed.HashStore(), rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
        tensor_parallel.model_parallel_cuda_manual_seed(1)

    def configuration(self) -> None:
        from verl.models.mcore import hf_to_mcore_config

        self.config = hf_to_mcore_config(self.hf, torch.bfloat16, **{**UPSTREAMS_OWN, **self.overrides})

    def model(self) -> None:
        from verl.models.mcore import init_mcore_model

        ends = {"pre_process": True, "post_process": True, "share_embeddings_and_output_weights": False}
        self.network = init_mcore_model(self.config, self.hf, value=False, **ends).bfloat16().npu()

    def forward(self) -> None:
        from verl.models.mcore import get_mcore_forward_fn

        ids = torch.randint(1, 100, (2, 16)).npu()
        attended = torch.ones_like(ids).bool()
        attended[0, :4] = False
        self.output = get_mcore_forward_fn(self.hf)(
            model=self.network,
            input_ids=ids,
            attention_mask=attended,
            position_ids=torch.arange(16).expand(2, 16).npu(),
            multi_modal_inputs={},
        )

    def backward(self) -> None:
        self.output.float().pow(2).mean().backward()

    def optimizer(self) -> None:
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        distributed = {"use_distributed_optimizer": self.section.get("use_distributed_optimizer", True)}
        self.network.zero_grad()
        parallel = DistributedDataParallelConfig(grad_reduce_in_fp32=True, **distributed)
        self.network = DistributedDataParallel(self.config, parallel, self.network)
        precision = {"bf16": True, "params_dtype": torch.bfloat16}
        asked = OptimizerConfig(optimizer="adam", lr=1e-3, **precision, **distributed)
        self.updates = get_megatron_optimizer(asked, [self.network])
        self.forward()
        self.backward()
        self.network.finish_grad_sync()

    def step(self) -> None:
        self.updates.step()


def attempt(case: dict[str, Any], models: dict[str, Any]) -> dict[str, str]:
    """Run the stages; return the stage that failed and its error."""
    worker = Worker(case, models)
    stage: Callable[[], None]
    for stage in worker.stages:
        try:
            stage()
        except Exception as error:
            return {"stage": stage.__name__, "error": f"{type(error).__name__}: {error}"}
    return {"stage": "", "error": ""}


def main() -> None:
    warnings.filterwarnings("ignore")
    give_triton_a_driver()
    # In this order, because the guards of MindSpeed wait for verl.
    importlib.import_module("verl.utils.device")
    importlib.import_module("mindspeed.megatron_adaptor")
    importlib.import_module("verl.models.mcore")
    logging.disable(logging.CRITICAL)
    from verl_npu.features.megatron import rules
    from verl_npu.features.megatron.request import effective
    from verl_npu.features.megatron.source import installation

    print("ANSWER " + json.dumps({"revision": installation().contract.revision}), flush=True)
    models = configurations()
    rules.check = lambda request, contract: effective(request)
    for line in sys.stdin:
        print("ANSWER " + json.dumps(forked(lambda line=line: attempt(json.loads(line), models))), flush=True)


if __name__ == "__main__":
    main()
