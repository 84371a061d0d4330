"""The failing jobs: each one's fault, and its expected cause and process, written down before any was run."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any


class Program(enum.Enum):
    """The program that is run."""

    GRPO = "GRPO of verl, under Ray"
    SFT = "verl's supervised fine-tuning, under torchrun"
    TORCH = "a small training without verl, under torchrun"
    RAY = "workers without verl, under Ray"


class Where(enum.Enum):
    """The process in which the fault began."""

    ONE = "rank 1"
    ZERO = "rank 0"
    ANY = "any rank"
    TASK_RUNNER = "TaskRunner"
    DRIVER = "the driver"
    NODE = "a node of Ray"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job with one fault."""

    name: str
    program: Program
    causes: tuple[str, ...]
    """The rules of which one has to be named; empty if the error is the user's own, which no rule can know."""
    where: Where
    settings: tuple[str, ...] = ()
    """The arguments of the program."""
    environment: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    """The text of the error, where no rule can know it."""
    kill: bool = False
    """Rank 1 is killed from outside when it has started, as the kernel does where the host's memory is full."""
    small: str = ""
    """A folder that has room for a MiB and no more."""
    seconds: float = 900.0
    """The time after which the job is ended from outside if it has not failed."""


def _job(program: Program, name: str, where: Where, cause: str, *settings: str, **more: Any) -> Job:
    return Job(name=name, program=program, causes=tuple(cause.split()), where=where, settings=settings, **more)


_grpo, _sft, _torch, _ray = (partial(_job, program) for program in Program)


def _faulty(fault: str) -> dict[str, str]:
    return {"VIRTUAL_ASCEND_FAULTS": fault}


JOBS = (
    # Memory
    _grpo("npu-memory-of-a-rank", Where.ONE, "npu-memory", environment=_faulty("oom:allocation=400:rank=1")),
    _grpo("npu-too-small", Where.ANY, "npu-memory", environment={"VIRTUAL_ASCEND_MEMORY": "0.001"}),
    _grpo("rank-killed", Where.ONE, "worker-died killed host-memory", kill=True),
    _grpo("ray-out-of-memory", Where.TASK_RUNNER, "host-memory", environment={"RAY_memory_usage_threshold": "0.01"}),
    _grpo("disk-full", Where.ANY, "disk-full", small="checkpoints"),
    _sft("sft-npu-memory", Where.ONE, "npu-memory", environment=_faulty("oom:allocation=300:rank=1")),
    _torch("npu-filled", Where.ONE, "npu-memory", "fills_npu", environment={"VIRTUAL_ASCEND_MEMORY": "0.2"}),
    _torch("host-filled", Where.ONE, "host-memory", "fills_host"),
    _torch("shared-memory-filled", Where.ONE, "shared-memory", "fills_shared_memory", small="/dev/shm"),
    # Ranks
    _grpo("rank-died", Where.ONE, "asked-for-fault", environment=_faulty("die:collective=30:rank=1")),
    _grpo(
        "reward-raises", Where.TASK_RUNNER, "", "custom_reward_function.path={reward}", error="KeyError: 'solution'"
    ),
    _sft("sft-rank-died", Where.ZERO, "asked-for-fault", environment=_faulty("die:collective=10:rank=0")),
    _torch("rank-ended", Where.ONE, "launcher", "exits"),
    _torch("rank-killed-under-torchrun", Where.ONE, "killed", "is_killed"),
    _torch("rank-crashed", Where.ONE, "native-crash", "crashes"),
    _torch("rank-raised", Where.ONE, "", "raises", error="KeyError: 'solution'"),
    _torch(
        "rank-stayed-away",
        Where.ZERO,
        "rendezvous-timeout collective-timeout",
        "stays_away",
        environment={"SECONDS_TO_WAIT": "10"},
    ),
    _torch("ranks-disagree", Where.ANY, "collective-order", "has_other_shapes"),
    _ray("ray-worker-ended", Where.ONE, "worker-died", "exits"),
    _ray("ray-worker-raised", Where.ONE, "", "raises", error="ValueError: the grader has no answer for row 17"),
    # Hosts
    _grpo("too-few-npus", Where.TASK_RUNNER, "too-few-devices", "trainer.n_gpus_per_node=4"),
    _grpo("too-few-hosts", Where.TASK_RUNNER, "too-few-devices", "trainer.nnodes=2"),
    _torch("port-taken", Where.DRIVER, "port-taken", "nothing", environment={"MASTER_PORT": "taken"}),
    _torch(
        "head-not-there",
        Where.DRIVER,
        "rendezvous-timeout",
        "nothing",
        environment={"HEAD": "127.0.0.1", "SECONDS_TO_MEET": "8"},
    ),
    _torch("npu-not-there", Where.ONE, "no-such-device", "nothing", environment={"ASCEND_RT_VISIBLE_DEVICES": "0"}),
    _ray("node-lost", Where.NODE, "node-lost", "loses_its_node"),
    _ray(
        "no-cluster",
        Where.DRIVER,
        "ray-not-running",
        "nothing",
        environment={"RAY_ADDRESS": "127.0.0.1:6399"},
        seconds=100.0,
    ),
    _ray("npus-taken", Where.DRIVER, "npus-not-free", "asks_for_too_many", seconds=120.0),
    # Versions
    _grpo("without-the-patches", Where.TASK_RUNNER, "gpus-on-npus", environment={"VERL_NPU_DISABLE": "device"}),
    _sft("no-liger", Where.ANY, "missing-package", "model.use_liger=True"),
    _torch("no-torch-npu", Where.ANY, "no-torch-npu", "nothing", environment={"VIRTUAL_ASCEND": "0"}),
    # Settings
    _grpo("batches", Where.TASK_RUNNER, "batch-sizes", "actor_rollout_ref.actor.ppo_mini_batch_size=64"),
    _grpo("no-reward-for-the-data", Where.TASK_RUNNER, "data-source", "custom_reward_function.path=null"),
    _sft("unknown-key", Where.ANY, "unknown-setting", "data.no_such_key=1"),
    _sft("no-model", Where.ANY, "hub-offline", "model.partial_pretrain=/models/Qwen2.5-0.5B-Instruct"),
    # Kernels
    _grpo(
        "operator-failed",
        Where.ZERO,
        "asked-for-fault",
        environment=_faulty("fail:operator=npu_rms_norm:call=5:rank=0"),
    ),
    _torch("device-mix", Where.ONE, "device-mix", "mixes_devices"),
    _torch("cuda-asked-for", Where.ONE, "asks-for-cuda", "asks_for_cuda"),
    _torch("nccl", Where.ANY, "nccl-backend", "nothing", environment={"BACKEND": "nccl"}),
    _torch("forked", Where.ONE, "forked", "forks"),
)
