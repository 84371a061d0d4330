"""The names of vLLM that verl-npu relies on."""

from __future__ import annotations

from .name import Form, Name

__all__ = ["VLLM"]

_LAYERS = "vllm.model_executor.layers"
_EXPERTS = f"{_LAYERS}.fused_moe"
_QWEN = "vllm.model_executor.models.qwen2:Qwen2ForCausalLM"
_ENGINE = "features.weight_sync.engines.vllm"
_PROCESSING = "features.weight_sync.engines.processing"
_LAYOUT = "features.weight_sync.engines.layout"
_ARGUMENTS = "features.rollout.engine_arguments"
_RL = "features.weight_sync.engines.rl_mode"
_MODE = "features.rollout.rl_mode"
_NO_SYNC = "the first weight sync into this engine ends with an AttributeError that names it"
_NOT_FOUND = "the layers that need care after a sync are not recognised, and may compute with stale weights"
_GRAPHS = "nothing on real NPUs; an engine with graphs on virtual ones ends by itself, minutes after it was started"
_NO_TRITON = "nothing on real NPUs; on virtual ones an engine ends at the first kernel of Triton's that it launches"
_IGNORED = "the variable is handed to every worker, and nothing reads it"

VLLM = (
    Name(
        "VLLM_CPU_KVCACHE_SPACE",
        ("vllm.envs:VLLM_CPU_KVCACHE_SPACE",),
        ("rehearse.training:VLLM_CPU_KVCACHE_SPACE",),
        "nothing on NPUs; in a rehearsal vLLM's build for CPUs takes 4 GiB for its cache",
        Form.READ,
    ),
    Name(
        "vllm.__version__",
        ("vllm:__version__",),
        ("features.rollout.release:vllm.__version__",),
        "upstream's server takes a build for NPUs for a newer release, and may import a module that is not there",
    ),
    Name(
        "StatelessProcessGroup",
        ("vllm.distributed.utils:StatelessProcessGroup",),
        ("virtual.rollout.transfer:StatelessProcessGroup", "virtual.rollout.transfer:vllm.distributed.utils"),
        "nothing on real NPUs; without vLLM, a virtual one stands in its place for upstream's checkpoint engine",
    ),
    Name(
        "load_general_plugins",
        ("vllm.plugins:load_general_plugins",),
        ("activation:load_general_plugins",),
        "verl-npu is not activated by vLLM, only by the other ways in",
    ),
    Name(
        "load_plugins_by_group",
        ("vllm.plugins:load_plugins_by_group",),
        ("activation:load_plugins_by_group",),
        "the way in is reported as another one",
    ),
    Name(
        "the entry point vllm.general_plugins",
        ("vllm.plugins:vllm.general_plugins",),
        ("activation:the entry point vllm.general_plugins",),
        "verl-npu is not activated by vLLM, only by the other ways in",
        Form.READ,
    ),
    Name(
        "LLM.llm_engine",
        ("vllm.entrypoints.llm:LLM.llm_engine",),
        (f"{_ENGINE}:llm_engine",),
        _NO_SYNC,
        Form.SET,
    ),
    Name(
        "LLMEngine.model_executor",
        ("vllm.v1.engine.llm_engine:LLMEngine.model_executor", "vllm.engine.llm_engine:LLMEngine.model_executor"),
        (f"{_ENGINE}:model_executor",),
        _NO_SYNC,
        Form.SET,
    ),
    Name(
        "UniProcExecutor.driver_worker",
        (
            "vllm.v1.executor.uniproc_executor:UniProcExecutor.driver_worker",
            "vllm.executor.uniproc_executor:UniProcExecutor.driver_worker",
        ),
        (f"{_ENGINE}:driver_worker",),
        _NO_SYNC,
        Form.SET,
    ),
    Name(
        "WorkerWrapperBase.worker",
        (
            "vllm.v1.worker.worker_base:WorkerWrapperBase.worker",
            "vllm.worker.worker_base:WorkerWrapperBase.worker",
        ),
        (f"{_ENGINE}:worker",),
        _NO_SYNC,
        Form.SET,
    ),
    Name(
        "load_weights of a model",
        (f"{_QWEN}.load_weights",),
        (f"{_ENGINE}:load_weights", f"{_PROCESSING}:load_weights"),
        _NO_SYNC,
        arguments=1,
    ),
    Name(
        "packed_modules_mapping of a model",
        (f"{_QWEN}.packed_modules_mapping",),
        (f"{_LAYOUT}:packed_modules_mapping",),
        "VERL_NPU_WEIGHT_SYNC_CHECK=engine finds nothing that belongs to a fused parameter",
        Form.SET,
    ),
    Name(
        "Attention.impl",
        (f"{_LAYERS}.attention.attention:Attention.impl", "vllm.attention.layer:Attention.impl"),
        (f"{_PROCESSING}:impl", f"{_LAYOUT}:impl"),
        _NOT_FOUND,
        Form.SET,
    ),
    Name(
        "MLAAttention.impl",
        (f"{_LAYERS}.attention.mla_attention:MLAAttention.impl", "vllm.attention.layer:MLAAttention.impl"),
        (f"{_PROCESSING}:impl", f"{_LAYOUT}:impl"),
        _NOT_FOUND,
        Form.SET,
        since="0.13.0",
    ),
    Name(
        "quant_method of a layer of experts",
        (f"{_EXPERTS}.routed_experts:RoutedExperts.quant_method", f"{_EXPERTS}.layer:FusedMoE.quant_method"),
        (f"{_PROCESSING}:quant_method", f"{_LAYOUT}:quant_method"),
        _NOT_FOUND,
        Form.SET,
    ),
    *(
        Name(
            f"{weight} of a layer of experts",
            (f"{_EXPERTS}.unquantized_fused_moe_method:{weight}", f"{_EXPERTS}.layer:{weight}"),
            (f"{_PROCESSING}:{weight}", f"{_LAYOUT}:{weight}"),
            _NOT_FOUND,
            Form.READ,
        )
        for weight in ("w13_weight", "w2_weight")
    ),
    Name(
        "AsyncLLM.generate",
        ("vllm.v1.engine.async_llm:AsyncLLM.generate",),
        ("features.rollout.length:generate",),
        "up to v0.7.0 an answer of verl's server may be longer than response_length, and is cut off",
        arguments=3,
    ),
    Name(
        "SamplingParams.max_tokens",
        ("vllm.sampling_params:SamplingParams.max_tokens",),
        ("features.rollout.length:max_tokens",),
        "verl's server at v0.6.1, ccd7d934 and v0.7.0 ends with an AttributeError that names it",
        Form.SET,
    ),
    *(
        Name(
            module,
            (module,),
            (f"{_ARGUMENTS}:{module}",),
            "an argument of engine_kwargs that vLLM does not know is not refused before the job starts",
            Form.MODULE,
        )
        for module in (
            "vllm.engine.arg_utils",
            "vllm.entrypoints.openai.cli_args",
            "vllm.entrypoints.cli.serve",
            "vllm.entrypoints.llm",
        )
    ),
    *(
        Name(
            f"EngineArgs.{member}",
            (f"vllm.engine.arg_utils:EngineArgs.{member}",),
            (f"{_ARGUMENTS}:{member}",),
            "at 796871d7 a job that sets it is refused before it starts",
            Form.SET,
            since=since,
        )
        for member, since in (
            ("max_num_seqs", "0.7.3"),
            ("compilation_config", "0.7.3"),
            ("enable_expert_parallel", "0.9.1"),
        )
    ),
    Name(
        "GPUModelRunner.vllm_config",
        ("vllm.v1.worker.gpu_model_runner:GPUModelRunner.vllm_config",),
        (f"{_RL}:vllm_config",),
        "an engine that lost its rl_config, which no released vllm-ascend has, is not noticed",
        Form.SET,
    ),
    Name(
        "VLLM_SERVER_DEV_MODE",
        ("vllm.envs:VLLM_SERVER_DEV_MODE",),
        (f"{_MODE}:VLLM_SERVER_DEV_MODE",),
        "there are no endpoints for developers to keep closed",
        Form.READ,
    ),
    Name(
        "vllm.entrypoints.openai.api_server",
        ("vllm.entrypoints.openai.api_server",),
        ("serving.launch:vllm.entrypoints.openai.api_server",),
        "`verl-npu serve` ends, and says that the server did",
        Form.MODULE,
    ),
    Name(
        "VLLM_PLUGINS",
        ("vllm.envs:VLLM_PLUGINS",),
        ("serving.launch:VLLM_PLUGINS",),
        "vllm-ascend claims a machine without NPUs, and `verl-npu serve` ends, and says that the server did",
        Form.READ,
    ),
    Name(
        "build_app",
        ("vllm.entrypoints.openai.api_server:build_app",),
        (f"{_MODE}:build_app",),
        "upstream's own server cannot be imported",
    ),
    Name(
        "LLM",
        ("vllm.entrypoints.llm:LLM",),
        (f"{_ARGUMENTS}:LLM",),
        "upstream's own rollout at 796871d7 cannot be imported",
    ),
    Name(
        "EngineArgs.enable_sleep_mode",
        ("vllm.engine.arg_utils:EngineArgs.enable_sleep_mode",),
        ("features.rollout.sleep:enable_sleep_mode",),
        "a job with expandable segments is refused, although its engine cannot sleep",
        Form.SET,
    ),
    Name(
        "Executor.get_class",
        ("vllm.v1.executor.abstract:Executor.get_class",),
        ("virtual:vllm.v1.executor.abstract", "virtual.graphs:get_class"),
        _GRAPHS,
        arguments=1,
    ),
    *(
        Name(
            f"{kind}.{member}",
            (f"vllm.config.{module}:{kind}.{member}", f"vllm.config:{kind}.{member}"),
            (f"virtual.graphs:{member}", *([f"{_RL}:{member}"] if member == "additional_config" else [])),
            _GRAPHS,
            Form.SET,
            since=since,
        )
        for module, kind, member, since in (
            ("vllm", "VllmConfig", "device_config", "0.7.3"),
            ("vllm", "VllmConfig", "compilation_config", "0.7.3"),
            ("vllm", "VllmConfig", "additional_config", "0.7.3"),
            ("device", "DeviceConfig", "device_type", "0.7.3"),
            ("compilation", "CompilationConfig", "cudagraph_mode", "0.11.0"),
        )
    ),
    Name(
        "VLLM_USE_V1",
        ("vllm.envs:VLLM_USE_V1",),
        ("ascend.variables:VLLM_USE_V1", "doctor.variables:VLLM_USE_V1"),
        _IGNORED,
        Form.READ,
        before="0.13.0",
    ),
    Name(
        "VLLM_DP_SIZE",
        ("vllm.envs:VLLM_DP_SIZE",),
        ("ascend.variables:VLLM_DP_SIZE",),
        _IGNORED,
        Form.READ,
        since="0.9.1",
    ),
    Name(
        "HAS_TRITON",
        ("vllm.triton_utils.importing:HAS_TRITON",),
        ("virtual:vllm.triton_utils.importing", "virtual.triton_references:HAS_TRITON"),
        _NO_TRITON,
    ),
    Name(
        "TritonPlaceholder._dummy_decorator",
        ("vllm.triton_utils.importing:TritonPlaceholder._dummy_decorator",),
        ("virtual.triton_references:TritonPlaceholder", "virtual.triton_references:_dummy_decorator"),
        _NO_TRITON,
        arguments=1,
        since="0.9.1",
    ),
    Name(
        "_compute_slot_mapping_kernel",
        ("vllm.v1.worker.block_table:_compute_slot_mapping_kernel",),
        ("virtual.triton_references:vllm.v1.worker.block_table._compute_slot_mapping_kernel",),
        _NO_TRITON,
        since="0.23.0",
    ),
)
"""Releases are vLLM's."""
