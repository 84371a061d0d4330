"""One step of GRPO by upstream's FSDP and Megatron backends: the same answers, and within bf16 the same gradients.

With an epsilon far above every gradient, the first step of AdamW is gradient descent. With a learning rate far above
every weight its result, even in bf16, is the gradient. The weights that upstream saves after one step show it, so the
test reads nothing inside upstream. The cost of bf16 is measured, not guessed: FSDP in fp32 is the reference, and
Megatron may be no farther from it than FSDP in bf16 is, up to a factor for its other order of operations.

Needs VERL_NPU_UPSTREAMS with `mindspeed-f2b0977e/`, `megatron-0.12.1/` and `mbridge-0.15.1/`; `-s` shows the tables.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from .conftest import PROJECT, Train

torch = pytest.importorskip("torch")
for needed in ("pandas", "safetensors", "tokenizers", "transformers"):
    pytest.importorskip(needed)

from harness import jobs, model  # noqa: E402  # needs them
from safetensors.torch import load_file, save_file  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.upstream]

BESIDE = ("mindspeed-f2b0977e", "megatron-0.12.1", "mbridge-0.15.1")
NPUS = 2
EPSILON, RATE = 1e4, 1e10
NO_CLIPPING = 1e9
PROMPTS = 64
ACTOR = "actor_rollout_ref.actor"
BF16 = 2**-8
"""The relative unit of bf16: the error of rounding the result once."""
METRICS = {"actor/pg_loss": BF16 / 16, "actor/entropy": BF16 / 16, "actor/grad_norm": BF16}
"""The relative error that each metric may have. The first two are means over a thousand tokens, whose errors cancel
out: an entropy that is itself rounded to bf16 is off by more."""
FACTOR = 2.0
"""The limit of Megatron's error over FSDP's, both in bf16: tensor parallelism rounds partial sums once more. Measured
were 0.9 to 2.1 with the rounding below; a reduction that is left out changes a gradient by its own size."""
ROUNDED = BF16 / 2
"""The error of saving a weight in bf16, as Megatron does; FSDP saves fp32."""
MEASURE = 2**-5
"""The limit of FSDP's own error in bf16; with a larger one everything would pass."""


@dataclass(frozen=True)
class Step:
    """The results of one step."""

    metrics: dict[str, float]
    answers: list[tuple[str, str, float]]
    """Question, answer and reward, sorted."""
    gradients: dict[str, torch.Tensor]
    """fp64, by the name of the weight in Hugging Face's format."""


Take = Callable[..., Step]


@pytest.fixture
def take(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Take:
    """Return a function that takes one step of a job from a model."""
    folder = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none"))
    if not all((folder / name).is_dir() for name in BESIDE):
        pytest.skip(f"set VERL_NPU_UPSTREAMS to a folder with {', '.join(name + '/' for name in BESIDE)}")
    paths = [PROJECT, *(folder / name for name in BESIDE[1:])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("VERL_NPU_MINDSPEED", str(folder / BESIDE[0]))

    def step(job: str, start: Path, settings: Sequence[str]) -> Step:
        outcome = train(job, 1, tmp_path, (f"actor_rollout_ref.model.path={start}", *SAME, *settings))
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


def decide_routing(folder: Path) -> None:
    """Give each token two experts that stand far above the others.

    With a random router, one token in fifty is so near a tie that bf16 alone sends it elsewhere, and its gradient
    shows nothing then. The first numbers of an embedding name the experts, and the router reads them there.
    """
    path = folder / "model.safetensors"
    tensors = load_file(path)
    (routers,) = {tensor.shape[0] for name, tensor in tensors.items() if name.endswith("mlp.gate.weight")}
    pairs = list(itertools.combinations(range(routers), 2))
    embeddings = tensors["model.embed_tokens.weight"]
    for token, row in enumerate(embeddings):
        row[:routers] = 0
        row[list(pairs[token % len(pairs)])] = 1
    for name, tensor in tensors.items():
        if name.endswith("mlp.gate.weight"):
            tensor[:, :routers] = torch.eye(routers) / 2
    save_file(tensors, path, metadata={"format": "pt"})


# One answer a prompt and the likeliest tokens, so that nothing is random; a mean over sequences, which does not depend
# on how they are spread over workers; entropy, so that no advantage multiplies a part of the loss.
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
    """Return the table: each metric, then each gradient's norm in fp32 and the relative distances from it."""
    lines = [f"{'':>48}  {'fsdp fp32':>9}  {'  '.join(f'{name:>8}' for name in steps)}"]
    for name in METRICS:
        numbers = [s.metrics[name] for s in steps.values()]
        lines.append(f"{name:>48}  {reference.metrics[name]:9.6g}  {'  '.join(f'{n:8.6g}' for n in numbers)}")
    for name, gradient in reference.gradients.items():
        size = float(gradient.norm())
        off = [distance(s.gradients[name], gradient) / size for s in steps.values()]
        lines.append(f"{name:>48}  {size:9.3e}  {'  '.join(f'{o:8.4f}' for o in off)}")
    return lines


def faults(reference: Step, fsdp: Step, megatron: Step) -> list[str]:
    """Return the differences of a step that bf16 does not explain; raise ValueError if FSDP's own are too large."""
    found = []
    if megatron.answers != reference.answers:
        found.append("other answers: the two backends handed the engine other weights")
    for name, part in METRICS.items():
        mine, wanted = megatron.metrics[name], reference.metrics[name]
        if abs(mine - wanted) > part * abs(wanted):
            found.append(f"{name}: expected {wanted} within {part}; found {mine}")
    for name, wanted in reference.gradients.items():
        size, allowed = float(wanted.norm()), distance(fsdp.gradients[name], wanted)
        if not 0 < allowed < MEASURE * size:
            raise ValueError(f"{name}: FSDP's bf16 is {allowed} from a gradient of {size}, which measures nothing")
        off = distance(megatron.gradients[name], wanted)
        if off > FACTOR * allowed + ROUNDED * size:
            found.append(f"{name}: expected at most {FACTOR} times {allowed} from fp32's {size}; found {off}")
    return found


@pytest.mark.parametrize(("job", "experts"), [("megatron", 0), ("megatron_moe", 4)])
def test_megatron_and_fsdp_take_the_same_step(take: Take, tmp_path: Path, job: str, experts: int) -> None:
    start = model.generate(tmp_path / "start", seed=1, key_value_heads=2, experts=experts)
    if experts:
        decide_routing(start)
    reference = take("grpo", start, FSDP_FP32)
    fsdp = take("grpo", start, FSDP)
    megatron = take(job, start, MEGATRON)
    print("\n" + "\n".join(table(reference, {"fsdp": fsdp, "megatron": megatron})))
    assert faults(reference, fsdp, megatron) == []


def made(off: float, entropy: float = 6.2, answer: str = "a") -> Step:
    gradient = torch.tensor([3.0, 4.0], dtype=torch.float64)
    metrics = dict.fromkeys(METRICS, 1.0) | {"actor/entropy": entropy}
    return Step(metrics, [("q", answer, 0.5)], {"weight": gradient * (1 + off)})


def test_a_wrong_gradient_a_wrong_loss_and_another_answer_are_found() -> None:
    reference, fsdp = made(0), made(0.004)
    assert faults(reference, fsdp, made(-0.009)) == []
    assert [line.partition(":")[0] for line in faults(reference, fsdp, made(0.011))] == ["weight"]
    assert [line.partition(":")[0] for line in faults(reference, fsdp, made(0, entropy=6.205))] == ["actor/entropy"]
    assert [line.partition(":")[0] for line in faults(reference, fsdp, made(0, answer="b"))] == ["other answers"]
    with pytest.raises(ValueError, match="measures nothing"):
        faults(reference, made(0.5), reference)
