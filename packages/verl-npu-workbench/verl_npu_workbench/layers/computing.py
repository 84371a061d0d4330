"""Runs a step of the comparison of the trainer with the engine on this machine: `prepare FOLDER` or `compare FOLDER`.

`prepare` writes the digests of the trainer's weights for the engine, and `compare` judges the recordings.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

from verl_npu.features.weight_sync.transport.tensors import digest_of

from ..simulation.rollout.model import own_modules
from . import ANSWERS, ASK, RESULT, training
from .causes import Reason, Sampling
from .comparing import compare, content
from .recording import LOGPROBS, Batch, Recorder, Recording, chosen, prefix_of, record, recorded, weights_of
from .vllm import read


def main(words: list[str]) -> None:
    """Run the computation that the command line asks for."""
    step, folder = words[0], Path(words[1])
    asked = json.loads((folder / ASK).read_text())
    # Its import brings verl-npu's patches into transformers, as in the trainer.
    with contextlib.suppress(ImportError):
        if step == "compare":
            importlib.import_module("verl")
    dtype, trained = (getattr(torch, asked[side]["dtype"]) for side in ("engine", "trainer"))
    # Neither side may have more digits than the reference.
    model = _load(asked, dtype if step == "prepare" else torch.promote_types(dtype, trained), "sdpa")
    if step == "prepare":
        asked["weights"] = {
            name: (digest_of(weight), list(weight.shape)) for name, weight in model.state_dict().items()
        }
        (folder / ASK).write_text(json.dumps(asked))
        return
    sampling, temperature = Sampling(**asked["settings"]), asked["settings"]["temperature"]
    if (folder / ANSWERS).exists():
        engine = read_beside(folder, dtype, model)
    else:
        served = model if dtype == trained else _load(asked, dtype, "sdpa")
        engine = generated(served, asked["prompts"], asked["sampling"]["max_tokens"], temperature)
    trainer, said, notes = _trained(folder, asked, engine.batch, model)
    again = {
        each: read_beside(folder / each.value, dtype, model)
        for each in Reason
        if (folder / each.value / ANSWERS).exists()
    }
    made = compare(model, trainer, engine, sampling, again, temperature, again.pop(Reason.GRAPHS, None))
    result = {"trainer": said, **content(made, notes)}
    (folder / RESULT).write_text(json.dumps(result, indent=2))


def _load(asked: dict[str, Any], dtype: torch.dtype, attention: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    path, pictures = asked["engine"]["model"], AutoModelForImageTextToText
    kind = type(AutoConfig.from_pretrained(path))
    auto = pictures if kind in pictures._model_mapping else AutoModelForCausalLM
    return auto.from_pretrained(path, torch_dtype=dtype, attn_implementation=attention).eval()


def _trained(folder: Path, asked: dict[str, Any], batch: Batch, model: Any) -> tuple[Recording, str, list[str]]:
    """Record the trainer, and say which one it is, with notes.

    It is the script's own if this verl has it, or else transformers with the attention that is asked for, or sdpa.
    """
    notes, attention = list[str](), asked["attention"]
    device = "npu" if hasattr(torch, "npu") and torch.npu.is_available() else "cpu"
    if training.supported(asked):
        said = f"verl's engine {asked['trainer']['strategy']} on {asked['trainer']['ranks']} ranks"
        try:
            return training.trained(folder, asked, batch, model), said, notes
        except RuntimeError as error:
            notes.append(f"{said}: transformers takes its place ({str(error)[-200:]})")
    else:
        notes.append(
            f"this verl has no training engine for {asked['trainer']['strategy']}, so transformers takes its place"
        )
    temperature, said = asked["settings"]["temperature"], f"transformers on {device}"
    dtype = getattr(torch, asked["trainer"]["dtype"])
    try:
        return record(_load(asked, dtype, attention).to(device), batch, temperature), said, notes
    except (ImportError, ValueError, RuntimeError, NotImplementedError) as error:
        notes.append(f"the trainer's attention {attention}: sdpa takes its place ({str(error).splitlines()[0][:120]})")
    return record(_load(asked, dtype, "sdpa").to(device), batch, temperature), said, notes


def read_beside(folder: Path, dtype: torch.dtype, model: Any) -> Recording:
    """Read an engine's recording, with the weights under the names that a transformers model uses."""
    made = read(folder, dtype, model.config.get_text_config().num_key_value_heads)
    prefix = prefix_of(model)

    def held(name: str) -> torch.Tensor | None:
        found = made.held(prefix + name)
        return made.held(name) if found is None else found

    return Recording(made.batch, made.dtype, made.values, held)


def generated(model: Any, prompts: list[list[int]], new: int, temperature: float) -> Recording:
    """Generate responses with a transformers model, token by token with a key-value cache, and record the computation.

    The classes of the model's submodules are replaced with private copies, which verl's patches do not change.
    """
    own_modules(model)
    recorder, tokens = Recorder(), [list(prompt) for prompt in prompts]
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), recorded(model, recorder):
        for row, answer in enumerate(tokens):
            cache, begin = None, 0
            for _ in range(new):
                recorder.begin([(row, at) for at in range(begin, len(answer))])
                ids = torch.tensor([answer[begin:]], device=device)
                # In transformers 4, Qwen2.5-VL does not count the tokens in the cache.
                places = torch.arange(begin, len(answer), device=device)[None]
                made = model(input_ids=ids, position_ids=places, past_key_values=cache, use_cache=True)
                cache, begin = made.past_key_values, len(answer)
                logits = made.logits[0].cpu()
                chances = (logits[-1].float() / temperature).softmax(-1) if temperature else None
                token = logits[-1].argmax() if chances is None else chances.multinomial(1, generator=generator)[0]
                answer.append(int(token))
                recorder.add(LOGPROBS, chosen(logits, torch.tensor(answer[1:][-len(logits) :]), temperature or 1.0))
    batch = Batch(tuple(map(tuple, tokens)), tuple(map(len, prompts)))
    return recorder.recording(batch, model.dtype, weights_of(model))


if __name__ == "__main__":
    main(sys.argv[1:])
