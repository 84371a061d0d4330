"""NPUs that Ray does not have, does not give, or is not asked for."""

from __future__ import annotations

from ..rule import Precision, rule

__all__ = ["PLACEMENT"]

_WAITING = r"cannot be scheduled right now|No available node types can fulfill resource request|Pending Demands"

PLACEMENT = (
    rule(
        "gpus-on-npus",
        Precision.EXACT,
        rf"(?:{_WAITING})[^\n]*'?\bGPU'?: ",
        means="the job asks Ray for GPUs, and the cluster has none: trainer.device was left at cuda, or set to it",
        fix="set trainer.device=npu; with verl-npu active it may stay at its default (`verl-npu status` shows whether "
        "the feature device is applied)",
        seen=("verl-project/verl#3583", "ray-project/ray#55137", "vllm-project/aibrix#927"),
        anywhere=True,
    ),
    rule(
        "npus-not-free",
        Precision.EXACT,
        rf"(?:{_WAITING})[^\n]*'?\bNPU'?: (?P<number>[\d.]+)",
        means="Ray waits for {number} NPUs that are not free, or that no node has",
        fix="compare `ray status` with trainer.n_gpus_per_node and trainer.nnodes; end other jobs; check that "
        "ASCEND_RT_VISIBLE_DEVICES does not hide NPUs and that `ray start` was given them",
        seen=("ray-project/ray#53044", "ray-project/ray#55137"),
        anywhere=True,
    ),
    rule(
        "too-few-devices",
        Precision.EXACT,
        r"Total available GPUs (?P<has>[\d.]+) is less than total desired GPUs (?P<wants>[\d.]+)",
        means="Ray has {has} devices (verl counts NPUs as GPUs here), and the job wants {wants}",
        fix="lower trainer.n_gpus_per_node or trainer.nnodes, or start Ray where it sees all NPUs: `ray status` must "
        "list them as NPU; ASCEND_RT_VISIBLE_DEVICES and a container without /dev/davinci* hide them",
        seen=("verl-project/verl#2515", "verl-project/verl#5954", "verl/trainer/ppo/ray_trainer.py of v0.6.1"),
    ),
    rule(
        "no-npu-visible",
        Precision.EXACT,
        r"torch_npu detected, but NPU device is not available or visible"
        r"|number of visible devices \(0\)",
        means="the process sees no NPU",
        fix="check `npu-smi info` in the same container, ASCEND_RT_VISIBLE_DEVICES, and that /dev/davinci* and the "
        "driver are mounted; actors of Ray that ask for no NPU see none, which is right",
        seen=("verl 1dda039b: docs/ascend_tutorial/faq/faq.rst", "vllm-project/vllm-ascend#14631"),
    ),
    rule(
        "asks-for-cuda",
        Precision.EXACT,
        r"Torch not compiled with CUDA enabled|Found no NVIDIA driver",
        means="the program uses CUDA, and this torch has none, as it should be on an NPU: trainer.device is cuda, "
        "or a "
        "library names cuda itself",
        fix="set trainer.device=npu, or leave it at its default with verl-npu active; if the traceback is in another "
        "library, that library needs a release for NPUs. Never install a CUDA build of torch",
        seen=("verl-project/verl#2920", "vllm-project/vllm-ascend#516", "modelscope/ms-swift#3594"),
    ),
    rule(
        "huawei-not-available",
        Precision.HINT,
        r"Platform 'huawei' \([^)]*\) is registered but not available"
        r"|Platform 'huawei' is registered but not available",
        means="an actor that asked Ray for no NPU sees none: this is no error and not the cause",
        fix="nothing",
        seen=("verl-project/verl#6741", "verl 1dda039b: verl/plugin/platform/platform_manager.py"),
        anywhere=True,
    ),
)
