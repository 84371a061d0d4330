"""Environment variables of Ascend's software that verl's jobs depend on, and HCCL's timeouts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

VISIBLE_DEVICES = "ASCEND_RT_VISIBLE_DEVICES"
"""The ids of the NPUs that a process may use, separated by commas."""
HOME = "ASCEND_HOME_PATH"
"""The folder of CANN, which torch_npu needs."""
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""A variable of torch: if it is 0, `import torch` loads neither torch_npu nor verl-npu."""
OPERATORS = "ASCEND_OPP_PATH"
"""The folder of CANN's operators."""
HCCL_LIBRARY = "HCCL_SO_PATH"
"""The path of the libhccl.so that vllm-ascend loads."""
HCCL_INTERFACE = "HCCL_SOCKET_IFNAME"
"""The network interfaces that HCCL's ranks use to find each other."""
ALLOCATOR = "PYTORCH_NPU_ALLOC_CONF"
"""The settings of torch_npu's caching allocator."""
EXPANDABLE_SEGMENTS = "expandable_segments:True"
"""The allocator setting that breaks vllm-ascend's sleep mode."""
VIRTUAL_NPUS = "VIRTUAL_ASCEND"
"""A variable of the virtual Ascend: the number of virtual NPUs that replace the real ones."""
VIRTUAL_MEMORY = "VIRTUAL_ASCEND_MEMORY"
"""A variable of the virtual Ascend: the memory of each virtual NPU in GiB."""
VIRTUAL_PHANTOM = "VIRTUAL_ASCEND_PHANTOM"
"""A variable of the virtual Ascend: a tensor of at least this size, in MiB, is a phantom, which has a shape but no
values."""
VIRTUAL_TORCH_NPU = "VIRTUAL_ASCEND_TORCH_NPU"
"""A variable of the virtual Ascend: the torch_npu that the virtual NPUs use."""
VIRTUAL_CACHE = "VIRTUAL_ASCEND_CACHE"
"""A variable of virtual-ascend: the folder that contains its compiled device."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A variable that must have the same value in every process of a job."""

    name: str
    value: str
    reason: str


NZ = Requirement(
    "VLLM_ASCEND_ENABLE_NZ",
    "0",
    "otherwise vllm-ascend stores weights in the format FRACTAL_NZ, and copying new weights into them garbles them "
    "without an error",
)
NZ_KEY = "weight_nz_mode"
"""A key in vLLM's additional_config. From 0.23 on, vllm-ascend reads this key instead of the variable in `NZ`."""
REQUIRED = (NZ,)
"""The variables that every job with a rollout engine needs."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A variable that a user sets for a whole job. Workers on other hosts do not inherit it."""

    name: str
    pin: str
    """A revision of verl whose documentation or scripts for NPUs set this variable."""
    path: str
    """The path of that document or script."""


_EXAMPLES = "docs/ascend_tutorial/model_support/examples"
_HOSTS = f"{_EXAMPLES}/multi-machine_task_startup_practice.rst"
_GSPO = f"{_EXAMPLES}/gspo_optimization_practice.md"
_DAPO = f"{_EXAMPLES}/dapo_multi_model_optimization_practice.md"
_RETOOL = f"{_EXAMPLES}/ascend_retool_best_practice.rst"
_PRECISION = "docs/ascend_tutorial/dev_guide/precision_analysis/precision_alignment_zh.md"
_TUNING = "docs/ascend_tutorial/dev_guide/performance/perf_tuning_on_ascend.rst"
_FAQ = "docs/ascend_tutorial/faq/faq.rst"
_ENGINES = "verl/checkpoint_engine/README.md"
_LARGE = "examples/grpo_trainer/run_qwen3_5_397b_megatron.sh"
_LONG = "examples/ascend_extras/grpo_trainer/run_qwen3_5_122b_a10b_32k_megatron.sh"
_PLATFORM = "verl/plugin/platform/platform_npu.py"
_R1 = "recipe/r1_ascend/ray_start_grpo_npu.sh"


# Variables that differ between hosts must not be here: a host's NPUs (ASCEND_RT_VISIBLE_DEVICES), its network
# interfaces (HCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME, HCCL_IF_IP), paths, and preloaded libraries.
SHARED = (
    # HCCL: its timeouts, its ports, and its algorithms.
    Shared("HCCL_CONNECT_TIMEOUT", "v0.9.0", _HOSTS),
    Shared("HCCL_EXEC_TIMEOUT", "v0.9.0", _HOSTS),
    Shared("HCCL_ASYNC_ERROR_HANDLING", "v0.9.0", _HOSTS),
    Shared("HCCL_HOST_SOCKET_PORT_RANGE", "v0.9.0", _HOSTS),
    Shared("HCCL_NPU_SOCKET_PORT_RANGE", "v0.9.0", _HOSTS),
    Shared("HCCL_IF_BASE_PORT", "v0.7.0", _R1),
    Shared("HCCL_BUFFSIZE", "v0.9.0", _LARGE),
    Shared("HCCL_OP_EXPANSION_MODE", "v0.9.0", _GSPO),
    Shared("HCCL_INTRA_ROCE_ENABLE", "v0.9.0", _ENGINES),
    Shared("HCCL_DETERMINISTIC", "v0.9.0", _PRECISION),
    Shared("HCCL_DEBUG", "v0.9.0", _FAQ),
    Shared("LCCL_DETERMINISTIC", "v0.9.0", _PRECISION),
    # torch_npu and CANN.
    Shared("TASK_QUEUE_ENABLE", "v0.9.0", _HOSTS),
    Shared("VLLM_ASCEND_TASK_QUEUE_ENABLE", "v0.9.0", _PLATFORM),
    Shared("CPU_AFFINITY_CONF", "v0.9.0", _GSPO),
    Shared("MULTI_STREAM_MEMORY_REUSE", "v0.9.0", _GSPO),
    Shared("COMBINED_ENABLE", "v0.9.0", _LARGE),
    Shared(ALLOCATOR, "v0.9.0", _LARGE),
    Shared("CLOSE_MATMUL_K_SHIFT", "v0.9.0", _PRECISION),
    Shared("ATB_MATMUL_SHUFFLE_K_ENABLE", "v0.9.0", _PRECISION),
    Shared("ATB_LLM_LCOC_ENABLE", "v0.9.0", _PRECISION),
    Shared("ASCEND_LAUNCH_BLOCKING", "v0.7.0", _R1),
    Shared("ASCEND_GLOBAL_LOG_LEVEL", "v0.9.0", _FAQ),
    Shared("ASCEND_SLOG_PRINT_TO_STDOUT", "v0.9.0", _FAQ),
    # Ray.
    Shared("RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES", "v0.9.0", _HOSTS),
    # vLLM and vllm-ascend.
    Shared("VLLM_USE_V1", "v0.9.0", _GSPO),
    Shared("USE_OPTIMIZED_MODEL", "v0.9.0", _DAPO),
    Shared("VLLM_ENABLE_GRAPH_MODE", "v0.9.0", _RETOOL),
    Shared("VLLM_ENABLE_MC2", "v0.7.0", _R1),
    Shared("VLLM_DP_SIZE", "v0.7.0", _R1),
    Shared("VLLM_ASCEND_ENABLE_DENSE_OPTIMIZE", "v0.9.0", _GSPO),
    Shared("VLLM_ASCEND_ENABLE_FLASHCOMM", "v0.9.0", _GSPO),
    Shared("VLLM_ASCEND_ENABLE_FLASHCOMM1", "v0.9.0", _LONG),
    Shared("VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE", "v0.9.0", _TUNING),
    Shared("VLLM_ASCEND_ENABLE_MLP_OPTIMIZE", "v0.9.0", _RETOOL),
    Shared("VLLM_ASCEND_ENABLE_PREFETCH_MLP", "v0.9.0", _GSPO),
    Shared("VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE", "v0.9.0", _LONG),
)
"""Variables that verl's documentation and scripts set for a whole job. If the user sets such a variable, verl-npu
passes it to every worker."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A variable, and the value that a document recommends for it on every host of a job. A value set by the user
    takes precedence."""

    name: str
    value: str
    pin: str
    path: str
    """The path of that document."""


ON_EVERY_HOST = (
    Advice("HCCL_CONNECT_TIMEOUT", "3600", "1dda039b", _HOSTS),
    Advice("HCCL_EXEC_TIMEOUT", "3600", "1dda039b", _HOSTS),
    Advice("TASK_QUEUE_ENABLE", "1", "1dda039b", _HOSTS),
    Advice("RAY_DEDUP_LOGS", "0", "1dda039b", _HOSTS),
    Advice("HYDRA_FULL_ERROR", "1", "1dda039b", _HOSTS),
    Advice(NZ.name, NZ.value, "1dda039b", _DAPO),
)
"""The variables that verl's page about several machines sets on every host. Variables for ports, NPUs, and network
interfaces are not included."""


def virtual_npus(environ: Mapping[str, str] | None = None) -> str:
    """Return the value of VIRTUAL_ASCEND, or an empty string if the user did not request virtual NPUs."""
    text = (os.environ if environ is None else environ).get(VIRTUAL_NPUS, "").strip()
    return text if text.strip("0") else ""


CONNECT = "HCCL_CONNECT_TIMEOUT"
"""The variable for the time, in seconds, that the ranks of a communicator have to connect."""
EXECUTION = "HCCL_EXEC_TIMEOUT"
"""The variable for the time limit, in seconds, of a collective on the NPU. 0 means no limit."""
_DEFAULTS = {CONNECT: 120.0, EXECUTION: 1836.0}  # from HCCL's documentation


@dataclass(frozen=True, slots=True)
class Timeouts:
    """HCCL's timeouts in seconds."""

    connect: float
    execution: float
    """Infinity if HCCL waits without a limit."""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Timeouts:
        """Read the timeouts. For a value that is not a number, return the default, because HCCL itself reports
        that value as an error."""
        return cls(_seconds(CONNECT, environment), _seconds(EXECUTION, environment) or float("inf"))


def _seconds(name: str, environment: Mapping[str, str]) -> float:
    try:
        value = float(environment.get(name, ""))
    except ValueError:
        return _DEFAULTS[name]
    return value if 0 <= value < float("inf") else _DEFAULTS[name]
