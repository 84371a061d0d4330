"""TRL's SFTTrainer trains a tiny model from nothing; the program knows nothing of NPUs, and downloads nothing.

VIRTUAL_ASCEND=2 accelerate launch --num_processes 2 train_with_trl.py
"""

import tempfile

from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

SENTENCES = ["the cat sat on the mat", "the dog lay on the rug", "a bird sang in the tree", "a fish swam in the sea"]


def main() -> None:
    """Train for twenty steps, and say on which device, and the losses."""
    words = ["<pad>", "<end>", *sorted({word for sentence in SENTENCES for word in sentence.split()})]
    vocabulary = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<pad>"))
    vocabulary.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, pad_token="<pad>", eos_token="<end>")
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            model=LlamaForCausalLM(config),
            processing_class=tokenizer,
            train_dataset=Dataset.from_dict({"text": SENTENCES * 20}),
            args=SFTConfig(
                output_dir=folder,
                max_steps=20,
                per_device_train_batch_size=2,
                learning_rate=1e-2,
                logging_steps=5,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
        )
        trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    print(f"rank {trainer.args.process_index} on {trainer.args.device}: losses {losses}", flush=True)


if __name__ == "__main__":
    main()
