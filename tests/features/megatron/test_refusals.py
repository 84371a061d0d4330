"""Settings that the rules refuse fail with the real MindSpeed, Megatron and verl; settings that they accept work.

One revision stands for all that give a model's configuration to MindSpeed's `validate_args`. Needs verl 0.6.1, and
VERL_NPU_UPSTREAMS, a folder with

    mindspeed-f2b0977e/   a checkout of github.com/Ascend/MindSpeed
    megatron-0.12.1/      pip install --no-deps --target megatron-0.12.1 megatron-core==0.12.1 einops scipy

An installed megatron-core 0.12.1 does as well as the second. Conflicts between features that need megatron.training
cannot be shown: with megatron-core such a feature fails on its own.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
from virtual_ascend.testing import environment

from verl_npu.features.megatron.contract import contracts
from verl_npu.features.megatron.request import Request
from verl_npu.features.megatron.rules import problems

REVISION, MEGATRON, VERL = "f2b0977e", "0.12.1", "0.6.1"
PROGRAM = Path(__file__).with_name("unjudged.py")

Answers = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Case:
    """Overrides of a worker, the model that they are for, and whether the optimizer makes a step."""

    overrides: dict[str, object]
    section: dict[str, object] = field(default_factory=dict)
    model: str = "dense"
    step: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """A refused setting, and the error that it causes without the refusal."""

    subject: str
    stage: str
    error: str


PARALLEL = {"sequence_parallel": True, "tensor_model_parallel_size": 2}
NOT_PARALLEL = {"sequence_parallel": False, "tensor_model_parallel_size": 2}
LATENT_SIZES = {"qk_rope_head_dim": 16, "qk_nope_head_dim": 32}
REFUSED: dict[str, tuple[Case, Failure]] = {
    "no flash attention": (
        Case({"use_flash_attn": False}),
        Failure("use_flash_attn=False", "forward", "Please set micro_batch_size or set use_flash_attn=True"),
    ),
    "a sparse mode that flash attention has not": (
        Case({"sparse_mode": 4}),
        Failure("sparse_mode=4", "configuration", "only supports sparse modes 0 and 2"),
    ),
    "two sizes of context parallelism": (
        Case({"context_parallel_size": 2}, {"context_parallel_size": 1}),
        Failure("context_parallel_size=2", "forward", "Context parallel ranks for ring intra window not initialized"),
    ),
    "fused rotary embeddings of no type": (
        Case({"use_fused_rotary_pos_emb": True}),
        Failure("use_fused_rotary_pos_emb=True", "configuration", "has no attribute 'position_embedding_type'"),
    ),
    "fused rotary embeddings of another type": (
        Case({"use_fused_rotary_pos_emb": True, "position_embedding_type": "learned_absolute"}),
        Failure("use_fused_rotary_pos_emb=True", "configuration", "must enable with--position-embedding-type=rope"),
    ),
    "a swapped optimizer that is not distributed": (
        Case({"swap_optimizer": True}, {"use_distributed_optimizer": False}, step=True),
        Failure("swap_optimizer=True", "step", "'AdamW' object has no attribute 'param_to_group_map'"),
    ),
    "mc2 in no tensor-parallel group": (
        Case({"use_ascend_mc2": True}),
        Failure("use_ascend_mc2=True", "repatch", "has no attribute 'tensor_model_parallel_size'"),
    ),
    "mc2 without sequence parallelism": (
        Case({"use_ascend_mc2": True}, NOT_PARALLEL),
        Failure("use_ascend_mc2=True", "model", "got an unexpected keyword argument 'in_features'"),
    ),
    "the allgather dispatcher": (
        Case({"moe_token_dispatcher_type": "allgather"}, model="experts"),
        Failure("moe_token_dispatcher_type=allgather", "configuration", "does not support variable sequence length"),
    ),
    "fused permutation with a capacity and no padding": (
        Case({"moe_permute_fusion": True, "moe_expert_capacity_factor": 1.0}, model="experts"),
        Failure("moe_permute_fusion=True", "configuration", "'--moe-pad-expert-input-to-capacity' are enabled"),
    ),
    "latent attention without its sizes": (
        Case({"multi_head_latent_attention": True}, model="latent"),
        Failure("multi_head_latent_attention=True", "configuration", "qk-rope-head-dim should be set"),
    ),
    "latent attention without a length": (
        Case({"multi_head_latent_attention": True, **LATENT_SIZES}, model="latent"),
        Failure("multi_head_latent_attention=True", "forward", "has no attribute 'seq_length'"),
    ),
    "an unknown attention backend": (
        Case({"attention_backend": "flsh"}),
        Failure("attention_backend=flsh", "repatch", "KeyError: 'flsh'"),
    ),
    "full recomputation without its method": (
        Case({"recompute_granularity": "full"}),
        Failure("recompute_granularity=full", "configuration", 'recompute_method must be "block" or "uniform"'),
    ),
    "full recomputation of no number of layers": (
        Case({"recompute_granularity": "full", "recompute_method": "uniform"}),
        Failure("recompute_granularity=full", "configuration", "recompute_num_layers must be between 1 and"),
    ),
    "two features that MindSpeed says are incompatible": (
        Case({"moe_alltoall_overlap_comm": True, "use_ascend_mc2": True}, PARALLEL, model="experts"),
        Failure("moe_alltoall_overlap_comm=True", "configuration", "and use_ascend_mc2 are incompatible"),
    ),
}
IN_ORDER: dict[str, Case] = {
    "nothing": Case({}),
    "a sparse mode that flash attention has": Case({"sparse_mode": 2}),
    "recomputation with its method and number of layers": Case(
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    ),
    "a capacity without fused permutation": Case({"moe_expert_capacity_factor": 1.0}, model="experts"),
    "Megatron's own latent attention": Case({"multi_latent_attention": True}, model="latent"),
}
CASES = {name: case for name, (case, _) in REFUSED.items()} | IN_ORDER


def refusals(case: Case) -> list[str]:
    """Return the subjects that the rules refuse in a case."""
    contract = next(contract for contract in contracts() if contract.revision == REVISION)
    found = problems(Request("actor", case.overrides, case.section), contract)
    return [problem.subject for problem in found if problem.refused]


def version(package: str) -> str:
    """Return the installed version of a package, or an empty text if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


@pytest.fixture(scope="module")
def answers() -> Answers:
    """Return how each case ended without a refusal; all cases run once."""
    if version("verl") != VERL:
        pytest.skip(f"install verl {VERL}: found {version('verl') or 'none'}")
    folder = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none"))
    wanted = [folder / f"mindspeed-{REVISION}"]
    wanted += [] if version("megatron-core") == MEGATRON else [folder / f"megatron-{MEGATRON}"]
    if not all(path.is_dir() for path in wanted):
        pytest.skip(f"set VERL_NPU_UPSTREAMS to a folder with {', '.join(path.name + '/' for path in wanted)}")
    paths = [*map(str, wanted), os.environ.get("PYTHONPATH", "")]
    result = subprocess.run(
        [sys.executable, str(PROGRAM)],
        input="".join(json.dumps(asdict(case)) + "\n" for case in CASES.values()),
        env=environment(VIRTUAL_ASCEND="1", PYTHONPATH=os.pathsep.join(filter(None, paths))),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    lines = [line.removeprefix("ANSWER ") for line in result.stdout.splitlines() if line.startswith("ANSWER ")]
    assert len(lines) == 1 + len(CASES), result.stdout[-3000:] + result.stderr[-3000:]
    return dict(zip(["import", *CASES], map(json.loads, lines), strict=True))


@pytest.mark.parametrize("name", REFUSED)
def test_the_rules_refuse_it(name: str) -> None:
    case, failure = REFUSED[name]
    assert refusals(case) == [failure.subject]


@pytest.mark.parametrize("name", IN_ORDER)
def test_the_rules_accept_it(name: str) -> None:
    assert refusals(IN_ORDER[name]) == []


@pytest.mark.e2e
@pytest.mark.virtual
@pytest.mark.upstream
def test_it_is_the_revision_that_the_cases_are_for(answers: Answers) -> None:
    assert answers["import"] == {"revision": REVISION}


@pytest.mark.e2e
@pytest.mark.virtual
@pytest.mark.upstream
@pytest.mark.parametrize("name", REFUSED)
def test_refused_settings_would_fail(answers: Answers, name: str) -> None:
    _, failure = REFUSED[name]
    answer = answers[name]
    assert (answer["stage"], failure.error in answer["error"]) == (failure.stage, True), answer


@pytest.mark.e2e
@pytest.mark.virtual
@pytest.mark.upstream
@pytest.mark.parametrize("name", IN_ORDER)
def test_accepted_settings_work(answers: Answers, name: str) -> None:
    assert answers[name] == {"stage": "", "error": ""}
