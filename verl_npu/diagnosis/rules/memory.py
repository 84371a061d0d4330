"""Memory of NPUs and of hosts, shared memory, files."""

from __future__ import annotations

from ..rule import Precision, rule

__all__ = ["MEMORY"]

_LESS = (
    "lower actor_rollout_ref.rollout.gpu_memory_utilization, the ppo_micro_batch_size_per_gpu and "
    "log_prob_micro_batch_size_per_gpu, or ppo_max_token_len_per_gpu with use_dynamic_bsz; set "
    "fsdp_config.param_offload and optimizer_offload, or use more NPUs"
)

MEMORY = (
    rule(
        "npu-memory-garbage",
        Precision.EXACT,
        r"Tried to allocate more than 1EB memory",
        means="the size that was asked for is garbage: a shape was computed from memory that an operator overwrote, "
        "or "
        "from a copy that had not arrived",
        fix="look for the operator before, with ASCEND_LAUNCH_BLOCKING=1; at 796871d7 verl-npu's host_copies waits "
        "for "
        "copies that tensordict does not wait for",
        seen=("flashserve/flash-linear-attention-npu#149",),
    ),
    rule(
        "npu-memory",
        Precision.EXACT,
        r"NPU out of memory\. Tried to allocate (?P<asked>[\d.]+ \w+)(?: \(NPU (?P<npu>\d+); (?P<total>[\d.]+ \w+))?"
        r"|NPU out of memory",
        means="an NPU has too little memory left for what was asked for (NPU {npu}, {asked} of {total})",
        fix=f"{_LESS}. If much is reserved and little allocated, set PYTORCH_NPU_ALLOC_CONF=max_split_size_mb:256; "
        "`npu-smi info` shows whether another process holds memory",
        seen=("xingchensong/TouchNet#100", "vllm-project/vllm-omni#1199", "verl-project/verl-omni#402"),
    ),
    rule(
        "npu-memory-driver",
        Precision.EXACT,
        r"\bEL0004\b|error code is 207001\b|runtime result = 207001|Memory_Allocation_Failure",
        means="CANN could not allocate memory on the NPU, outside of torch's own allocator (207001)",
        fix=f"{_LESS}; HCCL's buffers (HCCL_BUFFSIZE, for each group) and workspaces lie outside of what "
        "gpu_memory_utilization counts",
        seen=(
            "vllm-project/vllm-ascend#1993",
            "vllm-project/vllm-ascend#4026",
            "CANN 8.5.0: acl/error_codes/rt_error_codes.h",
        ),
    ),
    rule(
        "cache-memory",
        Precision.EXACT,
        r"No available memory for the cache blocks"
        r"|larger than the maximum number of tokens that can be stored in KV cache"
        r"|Free memory on device \((?P<free>[^)]+)\) on startup is less than desired",
        means="vLLM finds no room on the NPU for its cache: the weights, or what else is on that NPU, take all of it",
        fix="raise actor_rollout_ref.rollout.gpu_memory_utilization if little runs beside it, or lower it if memory "
        "is "
        "held by the trainer; lower max_model_len and max_num_batched_tokens; raise tensor_model_parallel_size",
        seen=("vllm-project/vllm-ascend#9099", "vllm-project/vllm-ascend#5707", "vllm-project/vllm-ascend#14631"),
    ),
    rule(
        "host-memory",
        Precision.EXACT,
        r"killed due to memory pressure \(OOM\)|node running low on memory|exceeds the memory usage threshold"
        r"|DefaultCPUAllocator: can't allocate memory|Cannot allocate memory|^MemoryError|\nMemoryError",
        means="the host has no memory left, and a process was ended or could not go on",
        fix="give the host or the container more memory, or need less: fewer workers (data loaders, agent loops, "
        "reward), "
        "no offloading to the host, a smaller ray object store; RAY_memory_usage_threshold moves Ray's limit",
        seen=("hiyouga/EasyR1#185", "vllm-project/vllm#2669", "ray-project/ray#30312"),
        anywhere=True,
    ),
    rule(
        "shared-memory",
        Precision.EXACT,
        r"insufficient shared memory \(shm\)|killed by signal: Bus error|unable to open shared memory object"
        r"|No space left on device: '?/dev/shm",
        means="/dev/shm is full: a container has 64 MB of it by default",
        fix="start the container with --shm-size=64g, or --ipc=host",
        seen=("hiyouga/EasyR1#304", "pytorch/pytorch#14768"),
        anywhere=True,
    ),
    rule(
        "disk-full",
        Precision.EXACT,
        r"No space left on device|OutOfDiskError|is over 95% full",
        means="a disk is full: checkpoints, Ray's folder in /tmp, or CANN's logs",
        fix="make room, or move trainer.default_local_dir, Ray (`ray start --temp-dir`) and ASCEND_PROCESS_LOG_PATH",
        seen=("Python: errno ENOSPC", "Ray 2.51: local_object_manager"),
    ),
    rule(
        "open-files",
        Precision.EXACT,
        # vLLM warns of what might come, in these words (vllm/utils, set_ulimit).
        r"(?<!errors like `OSError: \[Errno 24\] )Too many open files",
        means="a process has more files and sockets open than its limit allows",
        fix="`ulimit -n 1048576` on each host before `ray start`",
        seen=("pytorch/pytorch#14768", "Python: errno EMFILE"),
        anywhere=True,
    ),
    rule(
        "worker-died",
        Precision.SYMPTOM,
        r"A worker died or was killed while executing a task|actor is dead because its worker process has died"
        r"|ActorDiedError|ActorUnavailableError|WorkerCrashedError|died unexpectedly before finishing",
        means="a process of the job ended without a word: it was killed from outside, most often because the host ran "
        "out of memory, or it crashed in native code",
        fix="look at `dmesg` for the kernel's OOM killer, at Ray's files of that process id "
        "(/tmp/ray/session_latest/logs/worker-*-<pid>.err), and at CANN's plog of it",
        seen=("verl-project/verl#472", "ray-project/ray#35816"),
        anywhere=True,
    ),
)
