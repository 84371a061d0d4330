"""MODEL FOLDER: greedy tokens of the real vllm-ascend on virtual NPUs in bfloat16, and where transformers gives
others; prints one line of JSON.

Both have the same weights of bfloat16. For the first token in which they differ it prints how far apart the two are
for transformers in float32, and the resolution of bfloat16 there: its step at such logits, and the error of
transformers' own logits in bfloat16, each for both tokens.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from vllm_ascend_tokens import NEW, engine, make

LENGTHS = (3, 7, 12, 20, 33, 64, 100, 150)
MANTISSA = 8
"""The bits of bfloat16's mantissa, with the implicit one."""


def prompts() -> list[list[int]]:
    return [[5 + (7 * n + number) % 500 for n in range(length)] for number, length in enumerate(LENGTHS)]


def served(folder: Path) -> list[list[int]]:
    """Return vllm-ascend's tokens."""
    from vllm import SamplingParams

    settings = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts()]
    answers = engine(folder, num_gpu_blocks_override=32, dtype="bfloat16").generate(asked, settings, use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in answers]


def main() -> None:
    """Compare, and print."""
    import torch
    from transformers import AutoModelForCausalLM

    kind, folder = sys.argv[1], Path(sys.argv[2])
    make(kind, folder)
    AutoModelForCausalLM.from_pretrained(folder).bfloat16().save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    exact = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    compared, others = 0, []
    for prompt, tokens in zip(prompts(), served(folder), strict=True):
        given = torch.tensor([prompt])
        made = model.generate(given, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0)
        wanted = made[0, len(prompt) :].tolist()
        at = next((n for n, (a, b) in enumerate(zip(tokens, wanted, strict=True)) if a != b), None)
        compared += NEW if at is None else at
        if at is None:
            continue
        with torch.no_grad():
            before = torch.tensor([prompt + wanted[:at]])
            logits, rounded = (each(before).logits[0, -1].float() for each in (exact, model))
        two = logits[[tokens[at], wanted[at]]]
        step = 2.0 ** (torch.frexp(two.abs().max()).exponent.item() - MANTISSA)
        off = 2 * (rounded - logits).abs().max().item()
        others.append({"at": at, "apart": (two[0] - two[1]).abs().item(), "step": step, "off": off})
    print("ANSWER " + json.dumps({"prompts": len(LENGTHS), "compared": compared, "others": others}), flush=True)


if __name__ == "__main__":
    main()
