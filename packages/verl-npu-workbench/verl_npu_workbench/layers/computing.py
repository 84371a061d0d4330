"""Runs a step of the comparison of the trainer with the engine on this machine: `prepare FOLDER` or `compare FOLDER`.

`prepare` writes the digests of the trainer's weights for the engine, and the number of NPUs. `compare` judges the
recordings.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import torch

from verl_npu.ascend.software import import_torch_npu
from verl_npu.features.weight_sync.transport.tensors import digest_of
from verl_npu.language import gettext as _

from ..simulation.rollout.model import own_modules
from . import ANSWERS, ASK, EXCHANGED, RESULT, training
from .causes import Reason, Sampling
from .comparing import compare, content
from .recording import LOGPROBS, Batch, Recorder, Recording, chosen, record, recorded, weights_of
from .vllm import read


def main(words: list[str]) -> None:
    """Run the computation that the command line asks for."""
    step, folder = words[0], Path(words[1])
    asked = json.loads((folder / ASK).read_text())
    dtype = getattr(torch, asked["engine"]["dtype"])
    if step == "prepare":
        import_torch_npu()
        weights = _load(asked, dtype, "sdpa").state_dict()
        asked["weights"] = {name: (digest_of(weight), list(weight.shape)) for name, weight in weights.items()}
        asked["npus"] = max(1, torch.npu.device_count())
        (folder / ASK).write_text(json.dumps(asked))
        return
    # Its import brings verl-npu's patches into transformers, as in the trainer.
    with contextlib.suppress(ImportError):
        importlib.import_module("verl")
    trained = getattr(torch, asked["trainer"]["dtype"])
    # Neither side may have more digits than the reference.
    model = _load(asked, torch.promote_types(dtype, trained), "sdpa")
    sampling = Sampling(**asked["settings"])
    if (folder / ANSWERS).exists():
        engine = read(folder, dtype, model)
    else:
        served = model if dtype == trained else _load(asked, dtype, "sdpa")
        engine = generated(served, asked["prompts"], asked["sampling"]["max_tokens"], sampling.temperature)
    trainer, said, notes = _trained(folder, asked, engine.batch, model)
    again = {
        Reason(name): read(folder / str(number), dtype, model)
        for number, name in enumerate(EXCHANGED)
        if (folder / str(number) / ANSWERS).exists()
    }
    made = compare(model, trainer, engine, sampling, again, again.pop(Reason.GRAPHS, None))
    result = {"trainer": said, **content(made, notes)}
    (folder / RESULT).write_bytes(pickle.dumps(result))


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
    strategy = asked["trainer"]["strategy"]
    if training.supported(strategy):
        ranks = asked["trainer"]["ranks"]
        said = _("verl's {strategy} engine on {ranks} ranks").format(strategy=strategy, ranks=ranks)
        try:
            return training.trained(folder, asked, batch, model), said, notes
        except RuntimeError as error:
            note = _("{engine} failed, so transformers computes the trainer's side: {error}")
            notes.append(note.format(engine=said, error=str(error)[-200:]))
    else:
        note = _(
            "this verl version has no training engine for {strategy}, so transformers computes the trainer's side"
        )
        notes.append(note.format(strategy=strategy))
    temperature, said = asked["settings"]["temperature"], _("transformers on {device}").format(device=device)
    dtype = getattr(torch, asked["trainer"]["dtype"])
    try:
        return record(_load(asked, dtype, attention).to(device), batch, temperature), said, notes
    except (ImportError, ValueError, RuntimeError, NotImplementedError) as error:
        note = _("the trainer's attention {attention} failed, so sdpa is used instead: {error}")
        notes.append(note.format(attention=attention, error=str(error).splitlines()[0][:120]))
    return record(_load(asked, dtype, "sdpa").to(device), batch, temperature), said, notes


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
            for _token in range(new):
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
