"""Short quotes of what failed jobs wrote, each with where it was seen, and the rule that has to name it.

Paths, addresses and process numbers are made up; the texts are those of the issues, documents and sources named.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["QUOTED", "Quoted", "raised", "worker"]


@dataclass(frozen=True)
class Quoted:
    """A piece of a log."""

    rule: str
    source: str
    text: str
    pid: str = ""
    """The process in which it began, where the text says so."""


def raised(error: str, file: str = "/opt/verl/verl/workers/fsdp_workers.py") -> str:
    """A traceback that ends with an error."""
    return (
        f'Traceback (most recent call last):\n  File "{file}", line 12, in init_model\n    self.build()\n'
        f"    ^^^^^^^^^^^^\n{error}"
    )


def worker(text: str, pid: str = "4711") -> str:
    """A text as Ray shows it of a worker, in its colours."""
    return "\n".join(f"\x1b[36m(WorkerDict pid={pid}, ip=10.0.0.2)\x1b[0m {line}" for line in text.splitlines())


def _of_worker(rule: str, source: str, error: str) -> Quoted:
    return Quoted(rule, source, worker(raised(error)), "4711")


def _acl(call: str, code: int, said: str, pid: str = "144556") -> str:
    return (
        f"RuntimeError: {call}:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:102 NPU function error: {call}, "
        f"error "
        f"code is {code}\n[ERROR] 2025-10-29-02:17:03 (PID:{pid}, Device:0, RankID:3) ERR00100 PTA call acl api "
        f"failed\n"
        f"{said}"
    )


OWN = (
    Quoted(
        "own-error",
        "verl_npu/errors.py",
        raised(
            "verl_npu.errors.PlacementError: the job cannot be placed: expected 8 NPU on one node, found 2 NPU in the "
            "cluster; lower trainer.n_gpus_per_node or trainer.nnodes, or make more NPUs visible"
        ),
    ),
    Quoted(
        "own-group",
        "docs/weight-sync.md",
        worker(
            raised(
                "verl_npu.errors.GroupError: weight sync group 'actor_rollout': expected 3 ranks, found rank 2 "
                "missing; "
                "see the log of that rank"
            )
        ),
        "4711",
    ),
    Quoted(
        "own-off",
        "docs/design.md",
        "verl-npu: VERL_NPU_STRICT='yes': expected 0 or 1, found 'yes'; set it to 1; verl-npu stays off in this "
        "process",
    ),
    _of_worker(
        "not-on-virtual-npus",
        "docs/virtual-ascend.md",
        "NotImplementedError: torch_npu.npu_nothing is not implemented by the virtual Ascend",
    ),
    Quoted(
        "asked-for-fault",
        "docs/virtual-ascend.md",
        worker(raised("RuntimeError: npu_rms_norm: call 5 failed, as VERL_NPU_VIRTUAL_FAULTS asks (virtual Ascend)")),
        "4711",
    ),
)

PLACEMENT = (
    Quoted(
        "gpus-on-npus",
        "ray-project/ray#55137",
        "(autoscaler +12s) Error: No available node types can fulfill resource request {'GPU': 8.0}. Add suitable "
        "node types",
    ),
    Quoted(
        "npus-not-free",
        "ray-project/ray#53044",
        "(raylet) Warning: The following resource request cannot be scheduled right now: {'NPU': 2.0}. This is "
        "likely due to",
    ),
    Quoted(
        "too-few-devices",
        "verl-project/verl#2515",
        "(TaskRunner pid=99) ValueError: Total available GPUs 8.0 is less than total desired GPUs 16",
    ),
    Quoted(
        "no-npu-visible",
        "verl 1dda039b: docs/ascend_tutorial/faq/faq.rst",
        raised("RuntimeError: torch_npu detected, but NPU device is not available or visible"),
    ),
    _of_worker("asks-for-cuda", "verl-project/verl#2920", "AssertionError: Torch not compiled with CUDA enabled"),
)

COMMUNICATION = (
    Quoted(
        "nccl-on-npus",
        "verl-project/verl#4651",
        "ray.exceptions.RayTaskError(RuntimeError): ray::OneStepTaskRunner.run() (pid=2471917, ip=192.168.0.212, "
        "actor_id=77f8, repr=<main_ppo.OneStepTaskRunner object at 0xffcf>)\n"
        '  File "/data/verl/recipe/one_step_off_policy/main_ppo.py", line 214, in run\n    trainer.init_workers()\n'
        "ray.exceptions.RayTaskError(RuntimeError): ray::WorkerDict.rollout_create_weight_sync_group() (pid=2481000, "
        "ip=192.168.0.212, actor_id=88)\n"
        '  File "/opt/ray/util/collective/collective.py", line 90, in _check_backend_availability\n'
        '    raise RuntimeError("NCCL is not available.")\nRuntimeError: NCCL is not available.',
        "2481000",
    ),
    Quoted(
        "hccl-port-taken",
        "vllm-project/vllm-ascend#405",
        "[rank0]: RuntimeError: createHCCLComm:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:1479 HCCL function "
        "error: "
        "HcclGetRootInfo(&hcclID), error code is 11\n"
        "[rank0]: [ERROR] 2025-03-26-17:01:03 (PID:159, Device:0, RankID:-1) ERR02200 DIST call hccl api failed.\n"
        "[rank0]: EJ0003: [PID: 159] 2025-03-26-17:01:02.816.428 Failed to bind the IP port. Reason: The IP address "
        "and port "
        "have been bound already.",
        "159",
    ),
    Quoted(
        "hccp-running",
        "hiyouga/LlamaFactory#3839",
        "RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64\n"
        "[ERROR] 2024-05-21-11:57:54 (PID:927000, Device:3, RankID:3) ERR02200 DIST call hccl api failed.\n"
        "EJ0001: 2024-05-21-11:57:54.167.645 Failed to initialize the HCCP process. Reason: Maybe the last training "
        "process "
        "is running.",
        "927000",
    ),
    Quoted(
        "hccl-variable",
        "hiascend.com: CANN 9.0.0, HCCL user guide, EI0001",
        "EI0001: [PID: 12] 2025-10-29-02:17:03.000.001 Environment variable [HCCL_IF_IP] is invalid",
    ),
    Quoted(
        "network-retransmission",
        "hiascend.com: CANN 9.0.0, HCCL user guide, cluster heartbeat",
        "[ERROR] HCCL(858209,python3):2025-12-10-19:52:32.589.097 [heartbeat.cc:900] [858274] Error cqe Occurred",
        "858209",
    ),
    Quoted(
        "communicator-device",
        "modelscope/ms-swift#7036",
        worker(
            raised(
                "AssertionError: this hccl communicator is created to work on npu:0, but the input tensor is on cpu"
            )
        ),
        "4711",
    ),
    Quoted(
        "hccl-connect-timeout",
        "vllm-project/vllm-ascend#486",
        "[rank1]: RuntimeError: InnerRunOpApi:torch_npu/csrc/framework/OpParamMaker.cpp:281 OPS function error: "
        "HcclAllreduce, error code is 6\n"
        "[rank1]: [ERROR] 2025-04-08-18:07:20 (PID:1292363, Device:1, RankID:1) ERR01100 OPS call acl api failed.\n"
        "[rank1]: EI0006: [PID: 1292363] 2025-04-08-18:07:20.444.436 Getting socket times out. Reason: Remote Rank "
        "did not "
        "send the data in time.",
        "1292363",
    ),
    Quoted(
        "hccl-notify-timeout",
        "vllm-project/vllm-ascend#1443",
        "(train pid=8464) RuntimeError: npuSynchronizeDevice:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:479 "
        "NPU "
        "function error: AclrtSynchronizeDeviceWithTimeout, error code is 507048\n"
        "(train pid=8464) [ERROR] 2025-06-25-10:45:23 (PID:13075, Device:0, RankID:8) ERR00100 PTA call acl api "
        "failed\n"
        "(train pid=8464) EI0002: [PID: 13075] 2025-06-25-10:45:23.586.187 The wait execution of the Notify "
        "register times "
        "out. Reason: The Notify register has not received the Notify record from remote rank: [unknown].",
        "13075",
    ),
    Quoted(
        "hccl-transport",
        "vllm-project/vllm-ascend#3162",
        "[rank1]: EI0009: [PID: 2225827] 2025-09-24-20:59:48.119.066 Transport init error. Reason: "
        "[Create][DestLink]Create "
        "Dest error!",
    ),
    Quoted(
        "hccl-heartbeat",
        "hiascend.com: CANN 8.5.0, HCCL user guide, cluster heartbeat",
        "[ERROR] HCCL(686,python):2025-10-23-07:52:59.191.363 [heartbeat.cc:951] [8970] Heartbeat Lost Occurred",
        "686",
    ),
    Quoted(
        "stream-timeout",
        "Ascend/pytorch#62",
        "[rank7]: "
        + raised(
            "RuntimeError: npuSynchronizeDevice:torch_npu/csrc/core/npu/NPUStream.cpp:435 NPU function error: "
            "aclrtSynchronizeDevice, error code is 507046"
        ).replace("\n", "\n[rank7]: "),
    ),
    Quoted(
        "rendezvous-timeout",
        "verl-project/verl#849",
        "(WorkerDict pid=904548) [E331 20:50:12.688 socket.cpp:1011] [c10d] The client socket has timed out after "
        "1800000ms "
        "while trying to connect to (10.0.0.1, 38321).\n"
        + worker(
            raised("torch.distributed.DistNetworkError: The client socket has timed out after 1800000ms"), "904548"
        ),
        "904548",
    ),
    Quoted(
        "peer-gone",
        "torch 2.13: gloo",
        worker(raised("RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.3]:1234")),
        "4711",
    ),
)

MEMORY = (
    _of_worker(
        "npu-memory-garbage",
        "flashserve/flash-linear-attention-npu#149",
        "RuntimeError: NPU out of memory. Tried to allocate more than 1EB memory",
    ),
    _of_worker(
        "npu-memory",
        "xingchensong/TouchNet#100",
        "RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 3; 60.96 GiB total capacity; 49.47 GiB "
        "already "
        "allocated; 1.32 GiB free)",
    ),
    Quoted(
        "npu-memory-driver",
        "vllm-project/vllm-ascend#1993",
        "(EngineCore_DP0 pid=553) "
        + _acl(
            "AclrtSynchronizeDeviceWithTimeout",
            507013,
            "EL0004: [PID: 553] 2025-09-17-04:55:13.065.712 Failed to allocate memory.\n"
            "        alloc device memory failed, runtime result = 207001[FUNC:ReportCallError]",
            pid="553",
        ).replace("\n", "\n(EngineCore_DP0 pid=553) "),
        "553",
    ),
    Quoted(
        "cache-memory",
        "vllm-project/vllm-ascend#5707",
        "(EngineCore_DP0 pid=1102) ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine.",
        "1102",
    ),
    Quoted(
        "host-memory",
        "hiyouga/EasyR1#185",
        "(raylet) [2025-04-02 15:02:00,117 E 135782 135782] (raylet) node_manager.cc:3069: 1 Workers (tasks / "
        "actors) killed "
        "due to memory pressure (OOM), 0 Workers crashed due to other reasons",
    ),
    Quoted(
        "shared-memory",
        "pytorch/pytorch#14768",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
    ),
    Quoted(
        "disk-full",
        "Python: errno ENOSPC",
        worker(raised("OSError: [Errno 28] No space left on device: '/data/checkpoints/global_step_10'")),
        "4711",
    ),
    Quoted(
        "open-files",
        "Python: errno EMFILE",
        worker(raised("OSError: [Errno 24] Too many open files")),
        "4711",
    ),
    Quoted(
        "worker-died",
        "verl-project/verl#472",
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot "
        "the "
        "problem, check the logs for the dead worker.",
    ),
)

INSTALLATION = (
    Quoted(
        "driver-library",
        "flagos-ai/FlagCX#451",
        raised("ImportError: libascend_hal.so: cannot open shared object file: No such file or directory"),
    ),
    Quoted(
        "nnal-library",
        "vllm-project/vllm-ascend#152",
        raised("ImportError: libatb.so: cannot open shared object file: No such file or directory"),
    ),
    Quoted(
        "cann-library",
        "torch_npu 2.7.1: __init__.py",
        raised("ImportError: libhccl.so: cannot open shared object file: No such file or directory")
        + "\n\nThe above exception was the direct cause of the following exception:\n\n"
        + raised(
            "RuntimeError: Failed to load the backend extension: torch_npu. You can disable extension auto-loading "
            "with "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0."
        ),
    ),
    Quoted(
        "library-too-old",
        "saturncloud/images#483",
        raised(
            "ImportError: /lib/libstdc++.so.6: version `CXXABI_1.3.15' not found (required by /opt/scipy/_core.so)"
        ),
    ),
    Quoted(
        "torch-pair",
        "sgl-project/sglang#28628",
        raised(
            "ImportError: /opt/torch_npu/lib/libtorch_npu.so: undefined symbol: "
            "_ZNK3c1010TensorImpl20is_contiguous_customENS_12MemoryFormatE"
        ),
    ),
    Quoted(
        "nnal-abi",
        "Ascend/pytorch#99",
        raised(
            "OSError: /usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1/lib/libtbe_adapter.so: undefined symbol: "
            "_ZN3Mki2DlC1ERKNSt7"
        ),
    ),
    Quoted(
        "static-tls",
        "Ascend/pytorch#7",
        raised("ImportError: /opt/lib/libgomp.so.1: cannot allocate memory in static TLS block"),
    ),
    Quoted("not-a-package", "Ascend/pytorch#24", raised("ModuleNotFoundError: No module named 'torch_npu._C'")),
    Quoted(
        "two-accelerators",
        "torch_npu 2.7.1: __init__.py",
        raised("RuntimeError: Two accelerators cannot be used at the same time in PyTorch: npu and cuda."),
    ),
    Quoted(
        "torch-replaced",
        "vllm-project/vllm-ascend#4081",
        "  torch-npu 2.7.1.dev20250724 requires torch==2.7.1, but you have torch 2.8.0+cpu which is incompatible.",
    ),
    Quoted(
        "pip-conflict",
        "vllm-project/vllm-ascend#12404",
        "The conflict is caused by:\n   vllm 0.13.0 depends on torch==2.9.0\n   vllm-ascend 0.13.0 depends on "
        "torch==2.8.0\n"
        "ERROR: ResolutionImpossible: for help visit the documents of pip",
    ),
    Quoted(
        "numpy-2",
        "vllm-project/vllm-ascend#1875",
        raised("AttributeError: `np.float_` was removed in the NumPy 2.0 release. Use `np.float64` instead."),
    ),
    Quoted(
        "torchvision",
        "vllm-project/vllm-ascend#477",
        raised("RuntimeError: operator torchvision::nms does not exist"),
    ),
    Quoted(
        "triton-clash",
        "modelscope/ms-swift#3279",
        raised("RuntimeError: 0 active drivers ([]). There should only be one."),
    ),
    Quoted(
        "transformers-too-new",
        "verl-project/verl#3561",
        "(TaskRunner pid=600442) "
        + raised(
            "ImportError: cannot import name 'index_first_axis' from 'transformers.integrations.npu_flash_attention' "
            "(/opt/transformers/integrations/npu_flash_attention.py)"
        ).replace("\n", "\n(TaskRunner pid=600442) "),
        "600442",
    ),
    Quoted(
        "transformers-too-old",
        "verl 796871d7: verl/__init__.py",
        raised("ValueError: transformers version >= 4.52.4 is required on ASCEND NPU, current version is 4.51.0."),
    ),
    _of_worker("no-einops", "verl v0.6.1: verl/utils/npu_utils.py", "ModuleNotFoundError: No module named 'einops'"),
    Quoted(
        "compiler-packages",
        "Ascend/pytorch#29",
        "[ERROR] TUNE(2440326,python):2024-04-08-15:18:43.444.270 [pywrapper.cpp:94][CANNKB][Tid:2440326]"
        "\"ModuleNotFoundError: No module named 'tbe.common'",
        "2440326",
    ),
)

ATTENTION = (
    _of_worker(
        "flash-attn-placeholder",
        "vllm-project/vllm-ascend#6555",
        "ModuleNotFoundError: No module named 'flash_attn.ops'; 'flash_attn' is not a package",
    ),
    _of_worker(
        "flash-attn-asked-for",
        "huggingface/transformers#36696",
        "importlib.metadata.PackageNotFoundError: No package metadata was found for flash_attn",
    ),
    Quoted(
        "mask-shape",
        "vllm-project/vllm-ascend#6573",
        "[rank0]:[E205 11:47:24.695215771 compiler_depend.ts:444] operator():build/CMakeFiles/torch_npu.dir/"
        "compiler_depend.ts:1130 NPU function error: call aclnnFlashAttentionScore failed, error code is 561103\n"
        "[ERROR] 2026-02-05-11:47:24 (PID:413, Device:0, RankID:-1) ERR00100 PTA call acl api failed.\n"
        "EZ9999: Inner Error!\nEZ9999[PID: 413] 2026-02-05-11:47:24.075.926 (EZ9999):  get unsupported atten_mask "
        "shape, the "
        "shape is [16, 1, 1, 1500]. B=[16], N=[20], Sq=[1500], Skv=[1500]",
        "413",
    ),
    Quoted(
        "ub-overflow",
        "verl-project/verl#7950",
        'loc("/opt/verl/verl/utils/kernel/kernels.py":188:0): error: ub overflow, requires 8577280 bits while 1572864 '
        "bits available!",
    ),
    _of_worker(
        "operator-not-in-cann",
        "vllm-project/vllm#8054",
        "RuntimeError: aclnnPromptFlashAttentionV3 or aclnnPromptFlashAttentionV3GetWorkspaceSize not in "
        "libopapi.so, or "
        "libopapi.sonot found.",
    ),
    _of_worker(
        "operator-not-in-torch-npu",
        "Ascend/op-plugin: op_plugin/config/op_plugin_functions.yaml",
        "AttributeError: module 'torch_npu' has no attribute 'npu_moe_token_permute'",
    ),
    _of_worker(
        "operator-argument",
        "Ascend/op-plugin: docs of npu_fusion_attention",
        "RuntimeError: npu_fusion_attention() got an unexpected keyword argument 'softmax_layout'",
    ),
    Quoted(
        "index-out-of-range",
        "vllm-project/vllm-ascend#1115",
        "[ASSERT] [CANN_VERSION : 8.1.RC1][TimeStamp : 0] gather_v3_base.h:137: Assertion `(0 <= val && val < "
        "this->gxSize_)' "
        "Index 211 out of range[0 211)!\n"
        "[rank0]:[W612 02:39:34.054 compiler_depend.ts:188] Warning: EZ9999: Inner Error!",
    ),
    Quoted(
        "operator-binary",
        "vllm-project/vllm-ascend#6676",
        raised(
            "RuntimeError: the socversion Ascend910B1 of bin package does not match the current device socverison "
            "Ascend310P3."
        ),
    ),
    _of_worker(
        "compile-backend",
        "verl-project/verl#3618",
        "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:",
    ),
    _of_worker(
        "attention-failed",
        "vllm-project/vllm-ascend#8523",
        "RuntimeError: NPU function error: call aclnnFusedInferAttentionScoreV3 failed, error code is 561002",
    ),
    _of_worker(
        "kernel-compilation",
        "vllm-project/vllm-ascend#7421",
        "triton.compiler.errors.MLIRCompilationError: \n///------------------[ERROR][Triton][BEG]------------------",
    ),
)

ENGINES = (
    _of_worker(
        "vllm-empty-version",
        "verl ccd7d934: verl/workers/rollout/vllm_rollout/vllm_async_server.py",
        "ModuleNotFoundError: No module named 'vllm.utils.argparse_utils'",
    ),
    _of_worker(
        "vllm-version",
        "vllm-ascend 0.11.0: vllm_ascend/utils.py",
        "ValueError: Invalid vllm version dev found. A dev version of vllm is installed probably.",
    ),
    Quoted(
        "no-device-type",
        "vllm-project/vllm-ascend#540",
        raised("RuntimeError: Failed to infer device type")
        + "\n[ERROR] 2025-04-16-13:55:33 (PID:2867459, Device:-1, RankID:-1) ERR99999 UNKNOWN applicaiton exception",
        "2867459",
    ),
    _of_worker(
        "wheel-for-other-npu",
        "vllm-project/vllm-ascend#11160",
        "AssertionError: Current device type: AscendDeviceType.A3 does not match the installed version's device type: "
        "AscendDeviceType.A2, please check your installation package.",
    ),
    _of_worker("sleep-allocator", "vllm-project/vllm-ascend#556", "AssertionError: camem allocator is not available"),
    _of_worker(
        "sleep-segments",
        "vllm-project/vllm-ascend#9242",
        "AssertionError: Expandable segments are not compatible with memory pool.",
    ),
    _of_worker("sleep-grew", "verl-project/verl#3902", "AssertionError: Memory usage increased after sleeping."),
    Quoted(
        "sdma-after-sleep",
        "Ascend/pytorch#166",
        _acl("AclrtSetOpWaitTimeout(kOpWaitTimeout)", 507049, "EE9999[PID: 43311] there is a fftsplus sdma error"),
        "144556",
    ),
    _of_worker(
        "weight-bucket",
        "verl 1dda039b: docs/ascend_tutorial/faq/faq.rst",
        "AssertionError: Weight model.embed_tokens.weight(torch.Size([151936, 4096]), torch.float32) is too large "
        "to fit in "
        "the bucket.",
    ),
    Quoted(
        "engine-dead",
        "vllm-project/vllm-ascend#2349",
        "ERROR 08-28 02:33:28 [async_llm.py:416] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered "
        "an issue. "
        "See stack trace (above) for the root cause.",
    ),
)

MEGATRON = (
    _of_worker(
        "mindspeed-too-old",
        "verl 1dda039b: docs/ascend_tutorial/faq/faq.rst",
        "KeyError: 'decoder.layers.0.self_attention.q_layernorm.weight'",
    ),
    _of_worker(
        "no-megatron-bridge", "verl-project/verl#6931", "ModuleNotFoundError: No module named 'megatron.bridge'"
    ),
    _of_worker(
        "mbridge-too-new",
        "ISEEKYAN/mbridge#50",
        "ImportError: cannot import name 'get_tensor_model_parallel_group_if_none' from 'megatron.core.utils' "
        "(/opt/utils.py)",
    ),
    _of_worker(
        "no-megatron",
        "verl v0.6.1: docs/ascend_tutorial/ascend_quick_start.rst",
        "ModuleNotFoundError: No module named 'mindspeed'",
    ),
    _of_worker(
        "checkpoint-not-shared",
        "verl 1dda039b: docs/ascend_tutorial/faq/faq.rst",
        "FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/global_step_10/common.pt'",
    ),
)

SETTINGS = (
    Quoted(
        "unknown-setting",
        "Hydra 1.3: hydra/_internal/config_loader_impl.py",
        "Could not override 'actor_rollout_ref.actor.nosuchkey'.\nTo append to your config use "
        "+actor_rollout_ref.actor",
    ),
    Quoted(
        "batch-not-divisible",
        "verl v0.6.1: verl/utils/config.py",
        raised(
            "AssertionError: real_train_batch_size (28) must be divisible by minimal possible batch size (8)",
            "/opt/verl/verl/utils/config.py",
        ),
    ),
    Quoted(
        "rollout-mode",
        "verl v0.7.0: verl/workers/config/rollout.py",
        raised("ValueError: Rollout mode 'sync' has been removed. Please set `actor_rollout_ref.rollout.mode=async`"),
    ),
    _of_worker(
        "port-taken",
        "verl-project/verl#3521",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: "
        "20014, useIpv6: false, code: -98",
    ),
)

DEVICES = (
    Quoted(
        "forked",
        "hiyouga/LlamaFactory#7447",
        "(VllmWorkerProcess pid=1743) ERROR 03-25 12:50:16 multiproc_worker_utils.py:242] RuntimeError: Cannot "
        "re-initialize "
        "NPU in forked subprocess. To use NPU with multiprocessing, you must use the 'spawn' start method",
        "1743",
    ),
    Quoted(
        "no-context",
        "vllm-project/vllm-ascend#800",
        _acl("aclrtGetCurrentContext(&used_devices[local_device])", 107002, "[Error]: The context is empty."),
        "144556",
    ),
    Quoted(
        "other-context",
        "CANN 8.5.0: acl/error_codes/rt_error_codes.h",
        _acl("aclrtRecordEvent", 107003, "[Error]: stream not in current context"),
        "144556",
    ),
    Quoted(
        "no-such-device",
        "CANN 8.5.0: acl/error_codes/rt_error_codes.h",
        _acl("c10_npu::SetDevice(device)", 107001, "[Error]: Invalid device ID."),
        "144556",
    ),
    Quoted(
        "device-hidden",
        "Ascend/pytorch#67",
        _acl(
            "c10_npu::SetDevice(device_id_)",
            507033,
            "[Error]: Failed to start the device. \nEL0003: [PID: 528886] 2025-06-24-11:20:41.662.506 The argument "
            "is invalid.",
            pid="528886",
        ),
        "528886",
    ),
    Quoted(
        "operators-not-verified",
        "vllm-project/vllm-ascend#4284",
        _acl(
            "c10_npu::SetDevice(device_id_)",
            507033,
            "[Error]: Failed to start the device. \nE30006: 2025-11-19-11:14:58.516.606 Failed to verify the OPP",
        ),
        "144556",
    ),
    Quoted("dcmi", "vllm-project/vllm-ascend#2698", "dcmi module initialize failed. ret is -8005"),
    Quoted(
        "device-not-started",
        "vllm-project/vllm-ascend#4284",
        _acl("c10_npu::SetDevice(device_id_)", 507033, "[Error]: Failed to start the device. "),
        "144556",
    ),
    Quoted(
        "core-exception",
        "vllm-project/vllm-ascend#2349",
        "ERROR 08-28 02:33:28 [core.py:634] "
        + raised("RuntimeError: ACL stream synchronize failed, error code:507035").replace(
            "\n", "\nERROR 08-28 02:33:28 [core.py:634] "
        ),
    ),
)

VAGUE = (
    Quoted(
        "hccl-group",
        "verl-project/verl#3947",
        "(TaskRunner pid=30188) RuntimeError: create_config:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:102 "
        "HCCL "
        "function error: hcclCommInitRootInfoConfig(numRanks, &rootInfo, rank, config, &(comm->hcclComm_)), error "
        "code is 4\n"
        "(TaskRunner pid=30188) [ERROR] 2025-10-29-02:17:03 (PID:144556, Device:0, RankID:0) ERR02200 DIST call "
        "hccl api "
        "failed.",
        "144556",
    ),
    Quoted(
        "hccl-failed",
        "Ascend/pytorch#54",
        raised("RuntimeError: ACL stream synchronize failed.") + "\nEI9999: Inner Error!",
    ),
    Quoted(
        "inner-error",
        "vllm-project/vllm-ascend#1972",
        "[rank7]:[W723 10:35:57.462407611 compiler_depend.ts:57] Warning: EZ9999: Inner Error!\n"
        "EZ9999: [PID: 14897] 2025-07-23-10:35:42.381.401 an unspecified failure",
    ),
    Quoted(
        "operator-refused",
        "hiascend.com: CANN 9.1.0, aclnn return codes",
        worker(raised("RuntimeError: call aclnnIndexPutImpl failed, error code is 161002")),
        "4711",
    ),
    Quoted(
        "acl-failed",
        "hiascend.com: CANN 9.1.0, aclError",
        _acl("aclrtMemcpy", 507899, "[Error]: The driver reports an error."),
        "144556",
    ),
    Quoted(
        "backend-extension",
        "vllm-project/vllm-ascend#855",
        "RuntimeError: Failed to load the backend extension: torch_npu.",
    ),
    Quoted(
        "launcher",
        "torch 2.13: torch/distributed/elastic/multiprocessing/errors",
        raised("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "),
    ),
)

QUOTED = (
    *OWN,
    *PLACEMENT,
    *COMMUNICATION,
    *MEMORY,
    *INSTALLATION,
    *ATTENTION,
    *ENGINES,
    *MEGATRON,
    *SETTINGS,
    *DEVICES,
    *VAGUE,
)
