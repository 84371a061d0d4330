"""The names of vllm-ascend that verl-npu relies on."""

from __future__ import annotations

from .name import NEVER, Form, Name

__all__ = ["VLLM_ASCEND"]

_HCCL = "vllm_ascend.distributed.device_communicators.pyhccl:PyHcclCommunicator"
_EXPERTS = (
    "vllm_ascend.ops.fused_moe.fused_moe:AscendUnquantizedFusedMoEMethod",
    "vllm_ascend.ops.common_fused_moe:AscendUnquantizedFusedMoEMethod",
    "vllm_ascend.ops.fused_moe:AscendUnquantizedFusedMoEMethod",
)
_MLA = "vllm_ascend.attention.mla_v1:AscendMLAImpl"
_SFA = "vllm_ascend.attention.sfa_v1:AscendSFAImpl"
_EARLY_MLA = "vllm_ascend.attention.attention:AscendMLAAttentionBackendImpl"
_CAMEM = "vllm_ascend.device_allocator.camem"
_ENGINE = "features.weight_sync.engines.vllm"
_PROCESSING = "features.weight_sync.engines.processing"
_LAYOUT = "features.weight_sync.engines.layout"
_CHECKPOINT = "features.weight_sync.patches.checkpoint_engine"
_VARIABLES = "ascend.variables"
_VERSIONS = "features.rollout.engine_versions"
_RL = "features.rollout.rl_mode"
_LOST = "features.weight_sync.engines.rl_mode"
_NO_SYNC = "the first weight sync into this engine ends with an AttributeError that names it"
_STALE = "MLA's copies of kv_b_proj are not made anew after a sync, and the model generates with stale weights"
_IGNORED = "the variable is handed to every worker, and nothing reads it"
_NOT_JUDGED = "`verl-npu check` does not say whether this patch of vllm-ascend's reaches its target"


def _variable(name: str, since: str, before: str = "") -> Name:
    places = (f"vllm_ascend.envs:{name}", f"vllm_ascend.utils:{name}")
    return Name(name, places, (f"{_VARIABLES}:{name}",), _IGNORED, Form.READ, since=since, before=before)


def _patch(module: str, since: str, before: str = "") -> Name:
    name = f"vllm_ascend.patch.{module}"
    return Name(name, (name,), (f"features.upstreams:{name}",), _NOT_JUDGED, Form.MODULE, since=since, before=before)


def _copy(implementation: str, attribute: str, since: str, before: str = "") -> Name:
    title = f"{implementation.partition(':')[2]}.{attribute}"
    place = f"{implementation}.{attribute}"
    uses = (f"{_PROCESSING}:{attribute}", f"{_LAYOUT}:{attribute}")
    return Name(title, (place,), uses, _STALE, Form.SET, since=since, before=before)


def _process(implementation: str, since: str, before: str = "") -> Name:
    name = "process_weights_after_loading"
    title = f"{implementation.partition(':')[2]}.{name}"
    place = f"{implementation}.{name}"
    return Name(
        title, (place,), (f"{_PROCESSING}:{name}",), _STALE, Form.DEFINED, arguments=1, since=since, before=before
    )


_COMMUNICATOR = (
    Name(
        "PyHcclCommunicator",
        (_HCCL,),
        ("features.weight_sync.patches.protocols:PyHccl",),
        "upstream's checkpoint engine cannot be imported; the recipes' own syncs do not need it",
        since="0.9.1",
    ),
    Name(
        "PyHcclCommunicator.disabled",
        (f"{_HCCL}.disabled",),
        (f"{_CHECKPOINT}:disabled",),
        "a communicator without libhccl is not noticed, and broadcasts nothing",
        Form.SET,
        since="0.9.1",
    ),
    Name(
        "PyHcclCommunicator.device",
        (f"{_HCCL}.device",),
        ("features.weight_sync.patches.subscription:device", "features.weight_sync.patches.protocols:device"),
        _NO_SYNC,
        Form.SET,
        since="0.9.1",
    ),
    Name(
        "PyHcclCommunicator.all_reduce",
        (f"{_HCCL}.all_reduce",),
        ("features.weight_sync.patches.subscription:all_reduce", "features.weight_sync.patches.protocols:all_reduce"),
        _NO_SYNC,
        arguments=1,
        since="0.9.1",
    ),
    Name(
        "PyHcclCommunicator.destroyComm",
        (f"{_HCCL}.destroyComm",),
        (f"{_CHECKPOINT}:destroyComm",),
        "a communicator is dropped and not destroyed, as vllm-ascend's own weight transfer does it",
        since=NEVER,
    ),
)

_WORKER = (
    Name(
        "vllm_ascend.platform",
        ("vllm_ascend.platform",),
        ("doctor.probes:vllm_ascend.platform", f"{_VERSIONS}:vllm_ascend.platform"),
        "`verl-npu doctor --level import` says that vllm-ascend does not load, and a vLLM that does not fit passes",
        Form.MODULE,
    ),
    Name(
        "vllm_ascend",
        ("vllm_ascend",),
        (
            f"{_ENGINE}:vllm_ascend",
            "features.rollout.engine_settings:vllm_ascend",
            f"{_VERSIONS}:vllm_ascend",
            f"{_RL}:vllm_ascend",
            "serving.launch:vllm_ascend",
        ),
        "the process is taken for one of vLLM alone, and VLLM_ASCEND_ENABLE_NZ is not asked for",
        Form.MODULE,
    ),
    Name(
        "NPUWorker.model_runner",
        ("vllm_ascend.worker.worker:NPUWorker.model_runner", "vllm_ascend.worker.worker_v1:NPUWorker.model_runner"),
        (f"{_ENGINE}:model_runner",),
        _NO_SYNC,
        Form.SET,
    ),
    Name(
        "NPUModelRunner.model",
        (
            "vllm_ascend.worker.model_runner_v1:NPUModelRunner.model",
            "vllm_ascend.worker.model_runner:NPUModelRunnerBase.model",
        ),
        (f"{_ENGINE}:model",),
        _NO_SYNC,
        Form.SET,
    ),
    Name(
        "NPUModelRunner.execute_model",
        (
            "vllm_ascend.worker.model_runner_v1:NPUModelRunner.execute_model",
            "vllm_ascend.worker.model_runner:NPUModelRunner.execute_model",
        ),
        (f"{_ENGINE}:execute_model",),
        "an engine that holds half of a sync generates all the same",
    ),
    Name(
        "the assertion of CaMemAllocator",
        (f"{_CAMEM}:expandable_segments:True",),
        (f"{_VARIABLES}:expandable_segments:True",),
        "a job with expandable segments is refused, although its engine could sleep",
        Form.READ,
    ),
    Name(
        "vllm_ascend.vllm_ascend_C",
        (f"{_CAMEM}:vllm_ascend_C",),
        ("virtual.camem:vllm_ascend.vllm_ascend_C",),
        "an engine on virtual NPUs cannot sleep",
        Form.READ,
    ),
    Name(
        "vllm_ascend.meta_registration",
        ("vllm_ascend.meta_registration",),
        ("virtual.camem:vllm_ascend.meta_registration",),
        "an engine on virtual NPUs takes vllm-ascend's own operators for there, and ends with the first that it calls",
        Form.MODULE,
        since="0.11.0rc1",
    ),
    Name(
        "VLLM_ASCEND_ENABLE_NZ",
        ("vllm_ascend.envs:VLLM_ASCEND_ENABLE_NZ",),
        (f"{_VARIABLES}:VLLM_ASCEND_ENABLE_NZ",),
        "nothing lays weights of bfloat16 out in FRACTAL_NZ in the releases before; a later one needs another switch",
        Form.READ,
        since="0.11.0rc1",
    ),
    Name(
        "vllm_ascend.envs",
        ("vllm_ascend.envs",),
        (f"{_ENGINE}:vllm_ascend.envs",),
        "VLLM_ASCEND_ENABLE_NZ=0 is asked for in releases too that do not know it",
        Form.MODULE,
    ),
    Name(
        "weight_nz_mode of additional_config",
        ("vllm_ascend.ascend_config:weight_nz_mode",),
        (f"{_VARIABLES}:weight_nz_mode",),
        "VLLM_ASCEND_ENABLE_NZ alone decides",
        Form.READ,
        since="0.23.0",
    ),
    Name(
        "get_ascend_config",
        ("vllm_ascend.ascend_config:get_ascend_config",),
        (
            f"{_ENGINE}:vllm_ascend.ascend_config",
            f"{_ENGINE}:get_ascend_config",
            f"{_RL}:vllm_ascend.ascend_config",
            f"{_LOST}:vllm_ascend.ascend_config",
            f"{_LOST}:get_ascend_config",
        ),
        "weight_nz_mode is judged by the job's configuration alone",
        arguments=0,
        since="0.9.1",
    ),
    Name(
        "HCCL_SO_PATH",
        ("vllm_ascend.envs:HCCL_SO_PATH",),
        (f"{_VARIABLES}:HCCL_SO_PATH",),
        "the fix that an error of verl-npu's names for a disabled communicator has no effect",
        Form.READ,
        since="0.9.1",
    ),
)

_LAYERS = (
    Name(
        "AscendUnquantizedFusedMoEMethod",
        _EXPERTS,
        (f"{_PROCESSING}:AscendUnquantizedFusedMoEMethod", f"{_LAYOUT}:AscendUnquantizedFusedMoEMethod"),
        "transposed square experts are not refused, and new weights are loaded into them untransposed",
        since="0.9.1",
    ),
    Name(
        "AscendUnquantizedFusedMoEMethod.transpose",
        tuple(f"{place}.transpose" for place in _EXPERTS),
        (f"{_PROCESSING}:transpose",),
        "the shapes of both weights tell whether they are transposed",
        Form.SET,
        since="0.11.0rc1",
        before="0.13.0",
    ),
    _copy(_MLA, "kv_b_proj", "0.9.1"),
    _copy(_MLA, "W_UV", "0.9.1"),
    _copy(_MLA, "W_UK_T", "0.9.1"),
    _process(_MLA, "0.9.1"),
    _copy(_EARLY_MLA, "kv_b_proj", "0.7.3", "0.11.0rc1"),
    _copy(_EARLY_MLA, "w_kc", "0.7.3", "0.11.0rc1"),
    _copy(_EARLY_MLA, "w_vc", "0.7.3", "0.11.0rc1"),
    _process(_EARLY_MLA, "0.9.1", "0.11.0rc1"),
    _copy(_SFA, "kv_b_proj", "0.11.0rc1"),
    _copy(_SFA, "kv_b_proj_w_v", "0.11.0rc1", "0.13.0"),
    _copy(_SFA, "kv_b_proj_w_k", "0.11.0rc1", "0.13.0"),
    _copy(_SFA, "W_UV", "0.13.0"),
    _copy(_SFA, "W_UK_T", "0.13.0"),
    _process(_SFA, "0.11.0rc1"),
)

_PATCHES = (
    _patch("worker.patch_common.patch_distributed", "0.9.1", "0.11.0rc1"),
    _patch("worker.patch_distributed", "0.11.0rc1"),
    _patch("worker.patch_weight_loader", "0.11.0rc1", "0.13.0"),
    _patch("worker.patch_process_weights_after_loading", "0.23.0"),
    _patch("worker.patch_routed_experts_capturer", "0.18.0", "0.23.0"),
    _patch("worker.patch_routed_experts_capture", "0.23.0"),
    _patch("platform.patch_fused_moe", "0.23.0"),
)

_SHARED = (
    _variable("USE_OPTIMIZED_MODEL", "0.7.3", "0.18.0"),
    _variable("VLLM_ENABLE_GRAPH_MODE", NEVER),
    _variable("VLLM_ENABLE_MC2", NEVER),
    _variable("VLLM_ASCEND_ENABLE_DENSE_OPTIMIZE", "0.11.0rc1", "0.13.0"),
    _variable("VLLM_ASCEND_ENABLE_FLASHCOMM", "0.9.1", "0.23.0"),
    _variable("VLLM_ASCEND_ENABLE_FLASHCOMM1", "0.11.0rc1"),
    _variable("VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE", "0.11.0rc1", "0.25.1rc1"),
    _variable("VLLM_ASCEND_ENABLE_MLP_OPTIMIZE", "0.11.0rc1", "0.13.0"),
    _variable("VLLM_ASCEND_ENABLE_PREFETCH_MLP", "0.11.0rc1", "0.18.0"),
    _variable("VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE", "0.9.1", "0.11.0rc1"),
)

VLLM_ASCEND = (*_COMMUNICATOR, *_WORKER, *_LAYERS, *_PATCHES, *_SHARED)
"""Releases are vllm-ascend's."""
