"""The engine behind the synchronous rollout of v0.6.1, tensor-parallel over two ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from testing.interpreter import import_path
from virtual_ascend.testing import results, start_ranks

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]

RANK = """
    import asyncio, json, os, torch
    import numpy as np
    from peft import LoraConfig
    from torch.distributed.device_mesh import init_device_mesh
    from transformers import AutoModelForCausalLM
    from verl import DataProto
    from verl.workers.config import HFModelConfig, RolloutConfig
    from verl.workers.rollout.base import get_rollout_class

    rank, folder = int(os.environ["RANK"]), os.environ["MODEL"]
    torch.npu.set_device(rank)
    torch.distributed.init_process_group("hccl", init_method=os.environ["INIT"], rank=rank, world_size=2)
    mesh = init_device_mesh("npu", (1, 2, 1), mesh_dim_names=("dp", "infer_tp", "infer_pp"))
    config = RolloutConfig(
        name="virtual", response_length=4, dtype="float32", tensor_model_parallel_size=2, calculate_log_probs=True,
        load_format="dummy", ignore_eos=True, gpu_memory_utilization=0.4, max_num_batched_tokens=64,
        enable_chunked_prefill=False, engine_kwargs={"vllm": {"disable_mm_preprocessor_cache": True}})
    rollout = get_rollout_class("virtual", "sync")(config, HFModelConfig(path=folder, lora_rank=2), mesh)
    model = AutoModelForCausalLM.from_pretrained(folder).to("npu")
    ids = torch.tensor([[0, 5, 6], [7, 8, 9]], device="npu")
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]], device="npu")

    def ask():
        batch = {"input_ids": ids, "attention_mask": mask, "position_ids": mask.cumsum(-1) - 1}
        meta = {"eos_token_id": 1, "do_sample": True}
        uid = np.array(["a", "b"], dtype=object)
        answered = rollout.generate_sequences(DataProto.from_dict(batch, {"uid": uid, "raw_prompt_ids": uid}, meta))
        return {key: value.tolist() for key, value in answered.batch.items()} | {
            "others": {key: value.tolist() for key, value in answered.non_tensor_batch.items()}}

    async def main():
        base = LoraConfig(r=2, lora_alpha=4)
        out = []
        await rollout.release()
        await rollout.update_weights(model.state_dict().items(), peft_config=base, base_sync_done=False)
        out.append(ask())
        await rollout.release()
        name = "base_model.model.model.layers.0.self_attn.o_proj"
        width = model.config.hidden_size
        pair = {f"{name}.lora_A.weight": torch.ones(2, width), f"{name}.lora_B.weight": torch.ones(width, 2)}
        await rollout.update_weights(pair.items(), peft_config=base, base_sync_done=True)
        out.append(ask())
        try: await rollout.update_weights([("model.norm.weight", torch.zeros(3))])
        except RuntimeError as error: out.append(str(error))
        print(json.dumps(out))

    asyncio.run(main())
"""


@pytest.fixture(scope="module")
def out(importable: Callable[[str], Path], checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    for package in ("ray", "peft"):
        pytest.importorskip(package)
    path = import_path(importable("v0.6.1"))
    ranks = start_ranks(RANK, tmp_path_factory.mktemp("sync"), PYTHONPATH=path, MODEL=str(checkpoint))
    return results(ranks, timeout=300)


def test_all_ranks_of_a_replica_give_the_same_answers(out: Any) -> None:
    first, second = out
    assert first == second
    assert len(set(map(tuple, first[0]["responses"]))) == 2


def test_what_was_not_read_comes_back(out: Any) -> None:
    assert out[0][0]["others"] == {"uid": ["a", "b"]}


def test_an_adapter_changes_the_answers_of_all_ranks(out: Any) -> None:
    for rank in out:
        base, adapted, _ = rank
        assert base["rollout_log_probs"] != adapted["rollout_log_probs"]


def test_every_rank_checks_its_weights(out: Any) -> None:
    for rank in out:
        assert "the weight model.norm.weight" in rank[2]
