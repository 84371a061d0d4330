"""vLLM inside the worker's process, like `rollout.mode=sync` until December 2025."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from tensordict import TensorDict
from verl import DataProto
from verl.utils.torch_functional import get_response_mask, pad_2d_list_to_length
from verl.workers.rollout.base import BaseRollout


class VLLMInProcess(BaseRollout):
    """A vLLM `LLM` instance on each rank. The recipe's own weight sync updates the instance's weights."""

    def __init__(self, config: object, model_config: object, device_mesh: object) -> None:
        super().__init__(config, model_config, device_mesh)
        # The recipe accesses the model, so the model must be in this process.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import LLM

        self.inference_engine = LLM(
            model=self.model_config.local_path,
            distributed_executor_backend="external_launcher",
            dtype=self.config.dtype,
            load_format="dummy" if self.config.load_format.startswith("dummy") else self.config.load_format,
            enforce_eager=self.config.enforce_eager,
            max_model_len=self.config.max_model_len,
            max_num_batched_tokens=self.config.max_num_batched_tokens,
            seed=torch.distributed.get_rank(),
        )

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Generate one response for each prompt. The prompt ids (batch, prompt) are padded on the left, and the
        responses on the right."""
        from vllm import SamplingParams

        ids, mask, positions = (prompts.batch[key] for key in ("input_ids", "attention_mask", "position_ids"))
        words = [{"prompt_token_ids": list(row)} for row in prompts.non_tensor_batch.pop("raw_prompt_ids")]
        length = self.config.response_length
        sampling = SamplingParams(
            max_tokens=length, temperature=self.config.temperature, top_p=self.config.top_p, detokenize=False
        )
        answered = self.inference_engine.generate(words, sampling, use_tqdm=False)
        tokens = [answer.outputs[0].token_ids for answer in answered]
        responses = pad_2d_list_to_length(tokens, prompts.meta_info["pad_token_id"], length).to(ids.device)
        answered_mask = get_response_mask(responses, prompts.meta_info["eos_token_id"], mask.dtype)
        after = positions[:, -1:] + torch.arange(1, length + 1, device=ids.device)
        batch = {
            "prompts": ids,
            "responses": responses,
            "input_ids": torch.cat([ids, responses], dim=-1),
            "attention_mask": torch.cat([mask, answered_mask], dim=-1),
            "position_ids": torch.cat([positions, after], dim=-1),
        }
        return DataProto(TensorDict(batch, batch_size=len(ids)), prompts.non_tensor_batch)

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], **more: object) -> None:
        """Raise NotImplementedError, because the recipe itself writes the weights into the model."""
        raise NotImplementedError

    async def resume(self, tags: list[str]) -> None:
        """Do nothing: this engine never sleeps."""

    async def release(self) -> None:
        """Do nothing: this engine never sleeps."""
