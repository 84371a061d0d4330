"""The memory of a step of fine-tuning, by hand: the formula of an update (tests/plan/by_hand.py) with its loss.

Bytes for each logit at the loss's peak:

- 14, fsdp_sft_trainer with padding: the logits (2), their copy without each last token (2), its log-probabilities in
  float32 (4), their gradient (4), and that in bfloat16 (2).
- 12, the same trainer where NPUs share a sequence: no token is left out, and nothing copied.
- 8, engines with packed sequences: as an update of reinforcement learning.
- 6, engines with padded sequences: the logits, those without padding, and a gradient.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from .by_hand import GIB, QWEN3_06B, QWEN3_8B, QWEN25_7B, SEQUENCES, Model, Setting, training, with_reserve

__all__ = ["FITTING", "GIB", "NOT_FITTING", "Tuning", "needed", "step"]


@dataclass(frozen=True, slots=True)
class Tuning:
    """One job, in which the answers of its setting are whole sequences."""

    setting: Setting
    engines: bool = False
    packed: bool = False

    @property
    def name(self) -> str:
        return self.setting.name

    @property
    def npu(self) -> str:
        return self.setting.npu

    @property
    def loss(self) -> int:
        """The bytes for each logit at the loss's peak."""
        if self.engines:
            return 8 if self.packed else 6
        return 12 if self.setting.ulysses > 1 else 14

    def command(self) -> list[str]:
        """Return the job's command line."""
        setting = self.setting
        nodes = -(-setting.npus // 8)
        shared = {
            "data.max_length": setting.response,
            "data.train_batch_size": SEQUENCES,
            "data.micro_batch_size_per_gpu": setting.micro,
            "model.enable_gradient_checkpointing": setting.recompute,
            "model.lora_rank": setting.lora,
            "model.target_modules": "all-linear",
        }
        own: dict[str, object] = {
            "model.partial_pretrain": "/models/of-a-job",
            "model.strategy": setting.strategy,
            "ulysses_sequence_parallel_size": setting.ulysses,
            "use_remove_padding": self.packed,
        }
        if self.engines:
            own = {
                "model.path": "/models/of-a-job",
                "model.use_remove_padding": self.packed,
                "engine.strategy": setting.strategy,
                "engine.ulysses_sequence_parallel_size": setting.ulysses,
                "data.use_dynamic_bsz": setting.budget > 0,
                "data.max_token_len_per_gpu": setting.budget or 8192,
            }
        module = "verl.trainer.sft_trainer" if self.engines else "verl.trainer.fsdp_sft_trainer"
        start = ["torchrun", f"--nnodes={nodes}", f"--nproc_per_node={setting.npus // nodes}", "-m", module]
        return [*start, *(f"{key}={value}" for key, value in {**shared, **own}.items())]


def step(job: Tuning) -> float:
    """Return the bytes of tensors in a training step."""
    return training(dataclasses.replace(job.setting, loss=job.loss))


def needed(job: Tuning) -> float:
    """Return the bytes that the job needs, with the reserve."""
    return with_reserve(job.setting, step(job))


def _job(name: str, model: Model, npus: int, length: int, micro: int = 1, **others: object) -> Tuning:
    kinds = {key: bool(others.pop(key, False)) for key in ("engines", "packed")}
    return Tuning(Setting(name, model, npus, 0, length, micro=micro, **others), **kinds)  # type: ignore[arg-type]


FITTING = (
    _job("0.6B", QWEN3_06B, 8, 2048, 4),
    _job("0.6B without recomputation", QWEN3_06B, 8, 2048, 2, recompute=False),
    _job("8B, LoRA, FSDP1, Ulysses 2", QWEN3_8B, 8, 1024, 32, ulysses=2, packed=True, lora=32, strategy="fsdp"),
    _job("7B, FSDP1, Ulysses 4", QWEN25_7B, 8, 16384, 4, ulysses=4, packed=True, strategy="fsdp"),
    _job("0.6B, engines, padded", QWEN3_06B, 8, 4096, budget=16384, engines=True),
    _job("8B, engines, packed", QWEN3_8B, 16, 4096, budget=16384, engines=True, packed=True),
)
NOT_FITTING = (
    _job("0.6B", QWEN3_06B, 8, 2048, 16),
    _job("8B, LoRA, FSDP1, Ulysses 2", QWEN3_8B, 8, 1024, 64, ulysses=2, packed=True, lora=32, strategy="fsdp"),
    _job("7B, FSDP1, Ulysses 4", QWEN25_7B, 8, 16384, 8, ulysses=4, packed=True, strategy="fsdp"),
    _job("8B, engines, packed", QWEN3_8B, 16, 4096, budget=65536, engines=True, packed=True),
    _job("8B on 2 NPUs", QWEN3_8B, 2, 1024),
)
