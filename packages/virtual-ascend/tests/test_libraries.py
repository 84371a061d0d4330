"""accelerate and transformers find the NPU, train on it, and put models on it, without any setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from virtual_ascend.testing.fixtures import Run

PROGRAM = """
import json, os, sys, torch
import accelerate, transformers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
folder = os.environ["FOLDER"]
out = {}
out["accelerate"] = accelerate.utils.is_npu_available()
out["transformers"] = transformers.utils.is_torch_npu_available(check_device=True)
torch.manual_seed(0)
config = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, vocab_size=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
model = LlamaForCausalLM(config)
texts = [{"input_ids": row, "labels": row} for row in torch.randint(0, 8, (80, 16))]
arguments = TrainingArguments(output_dir=folder, max_steps=20, per_device_train_batch_size=4, learning_rate=5e-3,
                              report_to=[], logging_steps=5, save_strategy="no", disable_tqdm=True)
trainer = Trainer(model=model, args=arguments, train_dataset=texts)
trainer.train()
out["device"] = [str(arguments.device), str(next(model.parameters()).device)]
out["steps"] = trainer.state.global_step
out["losses"] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
trainer.save_model(folder + "/saved")
for where in ("npu:1", "auto"):
    placed = AutoModelForCausalLM.from_pretrained(folder + "/saved", device_map=where)
    ids = torch.arange(3, 7, device=placed.device)[None]
    answer = placed.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False)
    out[where] = [sorted({str(p.device) for p in placed.parameters()}), str(answer.device)]
    model.to("cpu"); placed.to("cpu")
    out[where + " same"] = torch.equal(model(ids.cpu()).logits, placed(ids.cpu()).logits)
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def run(python: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    folder: Path = tmp_path_factory.mktemp("libraries")
    done = python(PROGRAM, timeout=300, FOLDER=str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_both_see_the_npu(run: dict[str, Any]) -> None:
    assert (run["accelerate"], run["transformers"]) == (True, True)


def test_a_trainer_trains_on_the_npu(run: dict[str, Any]) -> None:
    assert run["device"] == ["npu:0", "npu:0"]
    assert run["steps"] == 20
    assert run["losses"][-1] < 0.8 * run["losses"][0]


@pytest.mark.parametrize(("where", "device"), [("npu:1", "npu:1"), ("auto", "npu:0")])
def test_a_device_map_puts_a_model_on_the_npu(run: dict[str, Any], where: str, device: str) -> None:
    assert run[where] == [[device], device]
    assert run[f"{where} same"]
