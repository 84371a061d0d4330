"""One step of GRPO by upstream's FSDP and Megatron backends: the same answers, and within bf16 the same gradients.

The first step of AdamW with an epsilon far above every gradient is gradient descent, and with a learning rate far
above every weight its result, even in bf16, is the gradient: the weights that upstream saves after one step show it,
and nothing of upstream is looked into. What bf16 costs is not guessed but measured: FSDP in fp32 is the reference, and
Megatron may be no farther from it than FSDP in bf16 is, up to a factor for its other order of operations.

Needs VERL_NPU_UPSTREAMS with `mindspeed-f2b0977e/`, `megatron-0.12.1/` and `mbridge-0.15.1/`; `-s` shows the tables.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

from harness import jobs, machine, model, pins, training  # noqa: E402  # beside this package
from harness.request import Request  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.upstream]

BESIDE = ("mindspeed-f2b0977e", "megatron-0.12.1", "mbridge-0.15.1")
NPUS = 2
EPSILON, RATE = 1e4, 1e10
NO_CLIPPING = 1e9
PROMPTS = 64
ACTOR = "actor_rollout_ref.actor"


@dataclass(frozen=True)
class Step:
    """What one step did."""

    metrics: dict[str, float]
    answers: list[tuple[str, str, float]]
    """Question, answer and reward, sorted."""
    gradients: dict[str, torch.Tensor]
    """fp32, by the name of the weight in Hugging Face's format."""


Train = Callable[..., Step]


@pytest.fixture
def train(pin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Take one step of a job from a model."""
    folder = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none"))
    if not all((folder / name).is_dir() for name in BESIDE):
        pytest.skip(f"set VERL_NPU_UPSTREAMS to a folder with {', '.join(name + '/' for name in BESIDE)}")
    paths = [PROJECT, *(folder / name for name in BESIDE[1:])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("VERL_NPU_MINDSPEED", str(folder / BESIDE[0]))
    monkeypatch.delenv("VERL_NPU_VIRTUAL", raising=False)

    def step(job: str, start: Path, settings: Sequence[str]) -> Step:
        request = Request(
            pin=pins.find(pin),
            checkout=None,
            job=job,
            model=None,
            data=None,
            steps=1,
            npus=NPUS,
            seed=0,
            transformers="",
            output=tmp_path,
            plain=True,
            timeout=600.0,
            make_environment=False,
            overrides=(f"actor_rollout_ref.model.path={start}", *SAME, *settings),
        )
        outcome = training.train(request, machine.look(NPUS), lambda step, metrics: None)
        assert outcome.trained, f"{outcome.failure}\n{training.tail(outcome.log)}"
        before, after = load(start), load(jobs.JOBS[job].trained_model(outcome.plan))
        assert before.keys() == after.keys()
        rows = [json.loads(line) for line in (outcome.plan.run_dir / "rollouts" / "1.jsonl").read_text().splitlines()]
        return Step(
            metrics=outcome.steps[1],
            answers=sorted((row["input"], row["output"], row["score"]) for row in rows),
            gradients={name: (before[name] - after[name]) * (EPSILON / RATE) for name in before},
        )

    return step


def load(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        found |= {name: tensor.double() for name, tensor in load_file(path).items()}
    return found


# One answer a prompt and the likeliest tokens, so that there is nothing random; a mean over sequences, which is the
# same however they are spread over workers; entropy, so that the loss has a part which no advantage multiplies.
SAME = (
    f"data.train_batch_size={PROMPTS}",
    "data.shuffle=False",
    "actor_rollout_ref.rollout.n=1",
    "actor_rollout_ref.rollout.do_sample=False",
    f"{ACTOR}.ppo_mini_batch_size={PROMPTS}",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu={PROMPTS // NPUS}",
    f"{ACTOR}.loss_agg_mode=seq-mean-token-mean",
    f"{ACTOR}.entropy_coeff=0.1",
    f"{ACTOR}.use_kl_loss=False",
    f"{ACTOR}.optim.lr={RATE}",
    f"{ACTOR}.optim.weight_decay=0",
    f"custom_reward_function.path={Path(__file__).with_name('scattered.py')}",
)
FSDP = (f"++{ACTOR}.optim.override_optimizer_config={{eps:{EPSILON}}}", f"{ACTOR}.grad_clip={NO_CLIPPING}")
FSDP_FP32 = (*FSDP, f"{ACTOR}.fsdp_config.dtype=float32")
MEGATRON = (
    f"++{ACTOR}.optim.override_optimizer_config={{adam_eps:{EPSILON}}}",
    f"{ACTOR}.optim.clip_grad={NO_CLIPPING}",
)


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm())


def table(reference: Step, steps: dict[str, Step]) -> list[str]:
    lines = [f"{'metric':>24}  fp32 {' '.join(steps)}"]
    for name in ("actor/pg_loss", "actor/entropy", "actor/grad_norm", "critic/score/mean"):
        numbers = [s.metrics[name] for s in (reference, *steps.values())]
        lines.append(f"{name:>24}  {'  '.join(f'{n:.6g}' for n in numbers)}")
    for name, gradient in reference.gradients.items():
        size = float(gradient.norm())
        off = [distance(s.gradients[name], gradient) / size for s in steps.values()]
        lines.append(f"{name:>48}  {size:.3e}  {'  '.join(f'{o:.4f}' for o in off)}")
    return lines


@pytest.mark.parametrize(("job", "experts"), [("megatron", 0), ("megatron_moe", 4)])
def test_megatron_and_fsdp_take_the_same_step(train: Train, tmp_path: Path, job: str, experts: int) -> None:
    start = model.generate(tmp_path / "start", seed=1, key_value_heads=2, experts=experts)
    reference = train("grpo", start, FSDP_FP32)
    steps = {"fsdp": train("grpo", start, FSDP), "megatron": train(job, start, MEGATRON)}
    print("\n" + "\n".join(table(reference, steps)))
    for step in steps.values():
        assert step.answers == reference.answers
