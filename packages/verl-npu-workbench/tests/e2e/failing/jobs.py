"""The failing jobs: each one's fault, and its expected cause and process, written down before any was run."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Kind(enum.Enum):
    """The subject of the fault."""

    MEMORY = "memory"
    RANKS = "ranks"
    HOSTS = "hosts"
    VERSIONS = "versions"
    SETTINGS = "settings"
    KERNELS = "kernels"


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
    kind: Kind
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


_FAULTS = "VIRTUAL_ASCEND_FAULTS"


def _grpo(name: str, kind: Kind, where: Where, cause: str, *settings: str, **more: object) -> Job:
    causes = tuple(cause.split())
    return Job(name=name, kind=kind, program=Program.GRPO, causes=causes, where=where, settings=settings, **more)  # type: ignore[arg-type]


def _sft(name: str, kind: Kind, where: Where, cause: str, *settings: str, **more: object) -> Job:
    causes = tuple(cause.split())
    return Job(name=name, kind=kind, program=Program.SFT, causes=causes, where=where, settings=settings, **more)  # type: ignore[arg-type]


def _torch(name: str, kind: Kind, where: Where, cause: str, fault: str, **more: object) -> Job:
    causes = tuple(cause.split())
    return Job(name=name, kind=kind, program=Program.TORCH, causes=causes, where=where, settings=(fault,), **more)  # type: ignore[arg-type]


def _ray(name: str, kind: Kind, where: Where, cause: str, fault: str, **more: object) -> Job:
    causes = tuple(cause.split())
    return Job(name=name, kind=kind, program=Program.RAY, causes=causes, where=where, settings=(fault,), **more)  # type: ignore[arg-type]


JOBS = (
    # Memory
    _grpo(
        "npu-memory-of-a-rank",
        Kind.MEMORY,
        Where.ONE,
        "npu-memory",
        environment={_FAULTS: "oom:allocation=400:rank=1"},
    ),
    _grpo("npu-too-small", Kind.MEMORY, Where.ANY, "npu-memory", environment={"VIRTUAL_ASCEND_MEMORY": "0.001"}),
    _grpo("rank-killed", Kind.MEMORY, Where.ONE, "worker-died killed host-memory", kill=True),
    _grpo(
        "ray-out-of-memory",
        Kind.MEMORY,
        Where.TASK_RUNNER,
        "host-memory",
        environment={"RAY_memory_usage_threshold": "0.01"},
    ),
    _grpo("disk-full", Kind.MEMORY, Where.ANY, "disk-full", small="checkpoints"),
    _sft("sft-npu-memory", Kind.MEMORY, Where.ONE, "npu-memory", environment={_FAULTS: "oom:allocation=300:rank=1"}),
    _torch(
        "npu-filled", Kind.MEMORY, Where.ONE, "npu-memory", "fills_npu", environment={"VIRTUAL_ASCEND_MEMORY": "0.2"}
    ),
    _torch("host-filled", Kind.MEMORY, Where.ONE, "host-memory", "fills_host"),
    _torch("shared-memory-filled", Kind.MEMORY, Where.ONE, "shared-memory", "fills_shared_memory", small="/dev/shm"),
    # Ranks
    _grpo("rank-died", Kind.RANKS, Where.ONE, "asked-for-fault", environment={_FAULTS: "die:collective=30:rank=1"}),
    _grpo(
        "reward-raises",
        Kind.RANKS,
        Where.TASK_RUNNER,
        "",
        "custom_reward_function.path={reward}",
        error="KeyError: 'solution'",
    ),
    _sft(
        "sft-rank-died", Kind.RANKS, Where.ZERO, "asked-for-fault", environment={_FAULTS: "die:collective=10:rank=0"}
    ),
    _torch("rank-ended", Kind.RANKS, Where.ONE, "launcher", "exits"),
    _torch("rank-killed-under-torchrun", Kind.RANKS, Where.ONE, "killed", "is_killed"),
    _torch("rank-crashed", Kind.RANKS, Where.ONE, "native-crash", "crashes"),
    _torch("rank-raised", Kind.RANKS, Where.ONE, "", "raises", error="KeyError: 'solution'"),
    _torch(
        "rank-stayed-away",
        Kind.RANKS,
        Where.ZERO,
        "rendezvous-timeout collective-timeout",
        "stays_away",
        environment={"SECONDS_TO_WAIT": "10"},
    ),
    _torch(
        "ranks-disagree",
        Kind.RANKS,
        Where.ANY,
        "collective-order",
        "has_other_shapes",
    ),
    _ray("ray-worker-ended", Kind.RANKS, Where.ONE, "worker-died", "exits"),
    _ray(
        "ray-worker-raised",
        Kind.RANKS,
        Where.ONE,
        "",
        "raises",
        error="ValueError: the grader has no answer for row 17",
    ),
    # Hosts
    _grpo("too-few-npus", Kind.HOSTS, Where.TASK_RUNNER, "too-few-devices", "trainer.n_gpus_per_node=4"),
    _grpo("too-few-hosts", Kind.HOSTS, Where.TASK_RUNNER, "too-few-devices", "trainer.nnodes=2"),
    _torch("port-taken", Kind.HOSTS, Where.DRIVER, "port-taken", "nothing", environment={"MASTER_PORT": "taken"}),
    _torch(
        "head-not-there",
        Kind.HOSTS,
        Where.DRIVER,
        "rendezvous-timeout",
        "nothing",
        environment={"HEAD": "127.0.0.1", "SECONDS_TO_MEET": "8"},
    ),
    _torch(
        "npu-not-there",
        Kind.HOSTS,
        Where.ONE,
        "no-such-device",
        "nothing",
        environment={"ASCEND_RT_VISIBLE_DEVICES": "0"},
    ),
    _ray("node-lost", Kind.HOSTS, Where.NODE, "node-lost", "loses_its_node"),
    _ray(
        "no-cluster",
        Kind.HOSTS,
        Where.DRIVER,
        "ray-not-running",
        "nothing",
        environment={"RAY_ADDRESS": "127.0.0.1:6399"},
        seconds=100.0,
    ),
    _ray("npus-taken", Kind.HOSTS, Where.DRIVER, "npus-not-free", "asks_for_too_many", seconds=120.0),
    # Versions
    _grpo(
        "without-the-patches",
        Kind.VERSIONS,
        Where.TASK_RUNNER,
        "gpus-on-npus",
        environment={"VERL_NPU_DISABLE": "device"},
    ),
    _sft("no-liger", Kind.VERSIONS, Where.ANY, "missing-package", "model.use_liger=True"),
    _torch("no-torch-npu", Kind.VERSIONS, Where.ANY, "no-torch-npu", "nothing", environment={"VIRTUAL_ASCEND": "0"}),
    # Settings
    _grpo(
        "batches", Kind.SETTINGS, Where.TASK_RUNNER, "batch-sizes", "actor_rollout_ref.actor.ppo_mini_batch_size=64"
    ),
    _grpo(
        "no-reward-for-the-data", Kind.SETTINGS, Where.TASK_RUNNER, "data-source", "custom_reward_function.path=null"
    ),
    _sft("unknown-key", Kind.SETTINGS, Where.ANY, "unknown-setting", "data.no_such_key=1"),
    _sft("no-model", Kind.SETTINGS, Where.ANY, "hub-offline", "model.partial_pretrain=/models/Qwen2.5-0.5B-Instruct"),
    # Kernels
    _grpo(
        "operator-failed",
        Kind.KERNELS,
        Where.ZERO,
        "asked-for-fault",
        environment={_FAULTS: "fail:operator=npu_rms_norm:call=5:rank=0"},
    ),
    _torch("device-mix", Kind.KERNELS, Where.ONE, "device-mix", "mixes_devices"),
    _torch("cuda-asked-for", Kind.KERNELS, Where.ONE, "asks-for-cuda", "asks_for_cuda"),
    _torch("nccl", Kind.KERNELS, Where.ANY, "nccl-backend", "nothing", environment={"BACKEND": "nccl"}),
    _torch("forked", Kind.KERNELS, Where.ONE, "forked", "forks"),
)
