"""Run in a process of its own by torchrun: two steps of one of TRL's trainers, with a small random model."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

WORDS = ["<pad>", "<eos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz", *map(str, range(10))]


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with a word for each letter and digit."""
    plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )


def model() -> Qwen2ForCausalLM:
    """A model of two layers."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(WORDS),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
    )


def main(kind: str, folder: Path) -> None:
    """Train, and say on which device."""
    from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

    common = {
        "output_dir": str(folder / "out"),
        "max_steps": 2,
        "per_device_train_batch_size": 2,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "bf16": False,
        "gradient_checkpointing": False,
    }
    if kind == "grpo":
        trainer = GRPOTrainer(
            model=model(),
            args=GRPOConfig(**common, num_generations=2, max_completion_length=8),
            reward_funcs=lambda completions, **_: [float(len(set(text))) for text in completions],
            train_dataset=Dataset.from_dict({"prompt": ["a b c", "d e f", "g h i", "j k l"] * 2}),
            processing_class=tokenizer(),
        )
    else:
        adapter = {}
        if kind == "lora":
            from peft import LoraConfig

            adapter = {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")}
        trainer = SFTTrainer(
            model=model(),
            args=SFTConfig(**common, max_length=16),
            train_dataset=Dataset.from_dict({"text": ["a b c d e f", "1 2 3 4 5 6", "a 1 b 2 c 3", "x y z"] * 2}),
            processing_class=tokenizer(),
            **adapter,
        )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    if len(losses) != 2 or not all(torch.isfinite(torch.tensor(losses))):
        raise RuntimeError(f"expected two finite losses, found {losses}")
    print(f"trained on {trainer.accelerator.device.type}", flush=True)
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
