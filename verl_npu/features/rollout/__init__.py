"""Rollout engines on NPUs: the settings from upstream and the user are checked and completed.

This module declares the patches: of engine settings, of answer lengths, of the handling of release numbers, and of the
trainer's code around the rollout.
"""

from __future__ import annotations

import copy
import functools
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin

from ...registry.patch import Feature
from ...registry.source.named import Key
from ...registry.source.probe import AllOf, Calls, Defines, Imports, IsRemote, Never, Not, Passes

if TYPE_CHECKING:
    from ..configuration import Section

rollout = Feature(
    "rollout",
    "Rollout engines start only with settings that work, and answer each prompt the configured number of times.",
)

_ROLLOUT, _MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_CONFIG = "verl/trainer/config/ppo_trainer.yaml"
SECTION = f"{_CONFIG}: {_ROLLOUT}"
"""The section of the configuration that the rules check."""
SETTINGS = (
    *(
        f"{SECTION}.{key}"
        for key in (
            "name",
            "mode",
            "enforce_eager",
            "free_cache_engine",
            "engine_kwargs",
            "max_num_seqs",
            "cudagraph_capture_sizes",
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "data_parallel_size",
            "expert_parallel_size",
            "agent.custom_async_server.path",
            "n_gpus_per_node",
            "nnodes",
        )
    ),
    *(f"{_CONFIG}: {_MODEL}.{key}" for key in ("path", "use_fused_kernels", "fused_kernel_options.impl_backend")),
    *(f"{_CONFIG}: {_MODEL}.use_liger", f"{_CONFIG}: actor_rollout_ref.hybrid_engine"),
    *(f"{_CONFIG}: trainer.nnodes", f"{_CONFIG}: trainer.n_gpus_per_node"),
    *(f"{_CONFIG}: actor_rollout_ref.actor.strategy", f"{_CONFIG}: ray_kwargs.ray_init"),
    "verl.workers.config:RolloutConfig",
    "verl.workers.rollout.base:_ROLLOUT_REGISTRY",
)
"""The names that the rules read. If a job lacks one of the names, a rule that needs it is skipped."""

_SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"
Result = TypeVar("Result")
_VALIDATE = "verl.utils.config:validate_config"
_VALIDATE_IN_TRAINER = "verl.trainer.ppo.ray_trainer:RayPPOTrainer._validate_config"
_CHECK_WHY = (
    "Some settings keep a rollout engine from starting, or make the job slow or its weights wrong. The job ends "
    "minutes after its start, or never notices. For example, vllm-ascend's sleep mode does not work with expandable "
    "segments: `Expandable segments are not compatible with memory pool`."
)
_CHECK_HOW = (
    "We refuse the job before its workers are made, with an error that names the setting to change. If the installed "
    "vllm-ascend reads rl_config, we set rl_config.enabled in the engine's additional_config."
)


@rollout.wrap(
    _VALIDATE,
    uses=(SECTION,),
    may_use=SETTINGS,
    why=_CHECK_WHY,
    how=_CHECK_HOW,
    link="https://github.com/volcengine/verl/issues/3902",
    retired_by=Never("the checks concern the user's environment"),
    requires=Defines(_VALIDATE),
)
def check_and_complete_engine_settings(
    original: Callable[..., Result], config: Section, *args: object, **kwargs: object
) -> Result:
    """Apply the rollout's rules to the configuration, then validate it."""
    _check_and_complete(config)
    return original(config, *args, **kwargs)


@rollout.wrap(
    _VALIDATE_IN_TRAINER,
    uses=(SECTION, "verl.trainer.ppo.ray_trainer:RayPPOTrainer.config"),
    may_use=SETTINGS,
    why=_CHECK_WHY,
    how=_CHECK_HOW,
    link="https://github.com/volcengine/verl/issues/3902",
    retired_by=Defines(_VALIDATE),
    requires=Defines(_VALIDATE_IN_TRAINER),
)
def check_and_complete_engine_settings_in_trainer(
    original: Callable[..., Result], trainer: Any, *args: object, **kwargs: object
) -> Result:
    """Apply the rollout's rules to the trainer's configuration, and then run upstream's validation."""
    _check_and_complete(trainer.config)
    return original(trainer, *args, **kwargs)


def _check_and_complete(config: Section) -> None:
    # Imported here, because only the driver asks the rules.
    from . import rules
    from .rl_mode import enable_rl_mode

    rules.check(config)
    enable_rl_mode(config)


_ENDPOINTS = "VLLM_SERVER_DEV_MODE"
_RUN = f"{_SERVER}:vLLMHttpServer.run_server"


@rollout.wrap(
    _RUN,
    uses=(f"{_SERVER}:build_app",),
    why="vllm-ascend's rl_config, which verl-npu enables where vllm-ascend has it, sets VLLM_SERVER_DEV_MODE=1. "
    "Anyone who reaches the port of verl's server could then run any method of its workers.",
    how="Before the server makes its application, we reset the variable to its value from before the engine was made.",
    link="https://github.com/vllm-project/vllm-ascend/pull/13748",
    retired_by=Never("vllm-ascend, not upstream, changes the environment"),
    requires=Defines(_RUN),
)
async def keep_development_endpoints_closed(
    original: Callable[..., Awaitable[Result]], server: object, *args: object, **kwargs: object
) -> Result:
    """Start the engine and its server. vLLM's development endpoints stay disabled unless the user enabled them."""
    before = os.environ.get(_ENDPOINTS)
    module = vars(sys.modules[_SERVER])
    build = module["build_app"]

    @functools.wraps(build)
    def build_app(*given: object, **options: object) -> object:
        os.environ.pop(_ENDPOINTS, None)
        if before is not None:
            os.environ[_ENDPOINTS] = before
        return build(*given, **options)

    module["build_app"] = build_app
    try:
        return await original(server, *args, **kwargs)
    finally:
        module["build_app"] = build


_EARLY = f"{_SERVER}:vLLMHttpServerBase.generate"


# One server generates many answers at the same time.
_limit: ContextVar[int | None] = ContextVar("_limit", default=None)


@rollout.wrap(
    _EARLY,
    uses=(
        f"{_SERVER}:vLLMHttpServerBase.config",
        f"{_SERVER}:vLLMHttpServerBase.engine",
        "verl.workers.config.rollout:RolloutConfig.response_length",
        f"{SECTION}.response_length",
    ),
    why="An answer may use all the tokens that its prompt leaves of prompt_length plus response_length. The part "
    "beyond response_length is generated and then cut off.",
    how="We tell the engine to end an answer at response_length, unless the caller sets another limit.",
    link="https://github.com/verl-project/verl/commit/b3202420616e169f48cba99ce00e7e9fd22e7493",
    retired_by=Defines(f"{_SERVER}:vLLMHttpServer.generate"),
    requires=Defines(_EARLY),
)
async def end_answers_at_response_length(
    original: Callable[..., Awaitable[object]],
    server: Any,
    prompt_ids: Sequence[int],
    sampling_params: Mapping[str, object],
    *args: object,
    **kwargs: object,
) -> object:
    """Generate one answer of at most response_length tokens, unless the caller sets another limit."""
    _limit_answers(server.engine)
    said = sampling_params.keys() & {"max_tokens", "max_new_tokens"}
    before = _limit.set(None if said else server.config.response_length)
    try:
        return await original(server, prompt_ids, sampling_params, *args, **kwargs)
    finally:
        _limit.reset(before)


def _limit_answers(engine: Any) -> None:
    """Wrap the engine's `generate`, once. The wrapper ends each answer at the limit that is set for the current
    call."""
    if hasattr(engine.generate, "_verl_npu_limits"):
        return
    original = engine.generate

    def generate(prompt: object, sampling_params: Any, *args: object, **kwargs: object) -> object:
        limit = _limit.get()
        if limit is not None and (sampling_params.max_tokens is None or sampling_params.max_tokens > limit):
            sampling_params.max_tokens = limit
        return original(prompt, sampling_params, *args, **kwargs)

    generate._verl_npu_limits = True  # type: ignore[attr-defined]
    engine.generate = generate


_UPDATE = "verl.workers.engine_workers:ActorRolloutRefWorker.update_weights"
_WAKE = "verl.workers.engine_workers:ActorRolloutRefWorker.wake_up"
_OFFLOAD_LINK = "https://github.com/verl-project/verl/pull/5604"
_OFFLOAD_WHY = (
    "With use_legacy_worker_impl=disable and param_offload=False, the first log-probabilities fail with "
    "`AssertionError: Expects tensor to be on the compute device npu:0, was on cpu`. After each weight sync, upstream "
    "moves the trainer's weights to the host, and brings them back only if offloading is on."
)
_OFFLOAD_USES = (
    "verl.workers.engine_workers:ActorRolloutRefWorker.actor",
    "verl.workers.engine.base:BaseEngine.is_param_offload_enabled",
    "verl.workers.engine.base:BaseEngine.to",
)
_OFFLOAD_ENGINE = ("verl.workers.engine_workers:TrainingWorker.engine",)
_OFFLOAD_HOW = "The weights stay on the NPU unless offloading is on."


@rollout.wrap(
    _UPDATE,
    uses=_OFFLOAD_USES,
    may_use=_OFFLOAD_ENGINE,
    why=_OFFLOAD_WHY,
    how=_OFFLOAD_HOW,
    link=_OFFLOAD_LINK,
    retired_by=Calls(_UPDATE, "engine.to", when="is_param_offload_enabled"),
    requires=AllOf(Defines(_UPDATE), Calls(_UPDATE, "aggressive_empty_cache")),
    name="keep_weights_that_are_not_offloaded",
)
@rollout.wrap(
    _WAKE,
    uses=_OFFLOAD_USES,
    may_use=_OFFLOAD_ENGINE,
    why=_OFFLOAD_WHY,
    how=_OFFLOAD_HOW,
    link=_OFFLOAD_LINK,
    retired_by=Calls(_WAKE, "engine.to", when="is_param_offload_enabled"),
    requires=Calls(_WAKE, "aggressive_empty_cache"),
    name="keep_weights_that_are_not_offloaded_on_waking",
)
async def keep_weights_that_are_not_offloaded(
    original: Callable[..., Awaitable[Result]], worker: Any, *args: object, **kwargs: object
) -> Result:
    """Sync the weights, and wake up the rollout if `original` does so. Weights that are not offloaded stay in place on
    the NPU."""
    engine = getattr(worker.actor, "engine", None)
    if engine is None or engine.is_param_offload_enabled:
        return await original(worker, *args, **kwargs)
    move = engine.to

    def unless_to_the_host(device: str, *args: object, **kwargs: object) -> object:
        return None if device == "cpu" else move(device, *args, **kwargs)

    engine.to = unless_to_the_host  # only for this object, until the sync is done
    try:
        return await original(worker, *args, **kwargs)
    finally:
        del engine.to


@rollout.set(
    "verl.third_party.vllm:package_version",
    why="vLLM built for NPUs has the version 0.11.0+empty, which upstream treats as newer than 0.11.0. The server "
    "fails with `No module named 'vllm.utils.argparse_utils'`.",
    how="We reduce vllm.__version__, which upstream's server reads next, to the release, and compare it as numbers.",
    link="https://github.com/volcengine/verl/pull/4411",
    retired_by=Not(Imports(_SERVER, "vllm.utils")),
    requires=AllOf(Imports(_SERVER, "vllm.utils.argparse_utils"), Imports(_SERVER, "vllm.utils")),
)
def reduce_vllm_version_to_release(version: Result) -> Result:
    """Replace `vllm.__version__` with a `Release`, so that upstream compares release numbers instead of strings.
    Return `version`, the value of upstream's `package_version`, unchanged."""
    from .releases import Release

    vllm = sys.modules.get("vllm")
    name = getattr(vllm, "__version__", None)
    # A build without a release calls itself `dev`. We cannot tell which release it resembles.
    if isinstance(name, str) and name[:1].isdigit() and not isinstance(name, Release):
        vllm.__version__ = Release(name)  # type: ignore[union-attr]
    return version


_VLLM = "verl.third_party.vllm:get_version"


@rollout.guard(
    _VLLM,
    why="From 0.9 on, vLLM registers operators with `list[int]`, which torch up to 2.6 does not support. With torch "
    "2.5.1, which verl's documents name for vLLM 0.9.1, the import of a mixture-of-experts model fails with "
    "`infer_schema(func): Parameter block_size has unsupported type list[int]`, unless vllm-ascend has replaced that "
    "function in the process.",
    how="Before vLLM is imported, we add the built-in list types to torch's table of operator parameter types, next "
    "to the types from `typing` that it has. A newer torch has both.",
    link="https://github.com/volcengine/verl/issues/2564",
    retired_by=Never("the problem is between vLLM and torch, and verl's source does not show their versions"),
    requires=Defines(_VLLM),
)
def name_lists_of_operators_as_python_does() -> None:
    """Add Python's built-in list types to the types that `torch.library.infer_schema` supports."""
    from torch._library import infer_schema

    for table in ("SUPPORTED_PARAM_TYPES", "SUPPORTED_RETURN_TYPES"):
        known = getattr(infer_schema, table, {})
        for annotation, written in list(known.items()):
            known.setdefault(_with_builtin_list(annotation), written)


def _with_builtin_list(annotation: Any) -> Any:
    """Replace `typing.List[T]` with `list[T]`, also inside Optional. Return any other annotation unchanged."""
    arguments = get_args(annotation)
    if get_origin(annotation) is list:
        return list[arguments]  # type: ignore[valid-type]  # made at run time
    if get_origin(annotation) is Union and any(get_origin(each) is list for each in arguments):
        return Union[tuple(map(_with_builtin_list, arguments))]  # noqa: UP007  # any number of types
    return annotation


_SPMD = "verl.workers.rollout.vllm_rollout.vllm_rollout_spmd"
_ENGINE = f"{_SPMD}:vLLMRollout.__init__"


@rollout.wrap(
    _ENGINE,
    uses=(f"{_SPMD}:LLM",),
    may_use=tuple(
        f"verl/trainer/config/ppo_trainer.yaml: actor_rollout_ref.rollout.{key}"
        for key in (
            "engine_kwargs",
            "max_num_seqs",
            "enforce_eager",
            "tensor_model_parallel_size",
            "data_parallel_size",
            "cudagraph_capture_sizes",
        )
    ),
    why="An argument in engine_kwargs.vllm that upstream also passes, such as enable_prefix_caching, ends the job "
    "with `TypeError: LLM() got multiple values for keyword argument`. The rollout's max_num_seqs, "
    "cudagraph_capture_sizes, and enable_expert_parallel do not reach the engine. Neither does data_parallel_size (or "
    "dp_model_parallel_size), so a mixture-of-experts model that several engines should share does not fit.",
    how="We pass all of them to the engine. The user's engine_kwargs win, as at later revisions, and mappings such as "
    "compilation_config are merged. vLLM's variables VLLM_DP_* tell each data-parallel engine its rank and the "
    "rendezvous address. If nobody sets graph sizes, an engine captures 8 graphs instead of vLLM's default of 67, "
    "because each graph costs NPU memory and time before the first step.",
    link="https://github.com/volcengine/verl/commit/ff6978c14",
    retired_by=Defines("verl.workers.config.rollout:RolloutConfig"),
    requires=Defines(_ENGINE),
)
def give_engine_the_users_arguments(
    original: Callable[..., None], engine: object, model_path: str, config: Section, *args: object, **kwargs: object
) -> None:
    """Build the engine with the user's arguments."""
    from .engine_arguments import passing_arguments

    with passing_arguments(config) as own:
        original(engine, model_path, own, *args, **kwargs)


_HF_ROLLOUT = "verl.workers.rollout.hf_rollout"
_REPEATS = "num_return_sequences"


@rollout.wrap(
    f"{_HF_ROLLOUT}:HFRollout.__init__",
    uses=(f"{SECTION}.n",),
    why="The trainer repeats every prompt n times, and the HF rollout repeats it n times again. With n above 1, "
    "training fails with `Two tensor dict must have identical batch size`.",
    how="We build the engine from a copy of its configuration with n=1. The trainer's n stays.",
    link="none: upstream removed the second repetition after 796871d7 without an issue",
    # We check the whole module, because one method may read the number and another one use it.
    retired_by=AllOf(Passes(_HF_ROLLOUT, _REPEATS, 1), Not(Passes(_HF_ROLLOUT, _REPEATS, Key("n")))),
)
def prevent_double_repetition_in_hf_rollout(
    original: Callable[..., None], self: object, module: object, config: Any, *args: object, **kwargs: object
) -> None:
    """Build the engine so that it does not repeat the prompts. The trainer has already repeated them."""
    once = copy.deepcopy(config)
    once.n = 1
    original(self, module, once, *args, **kwargs)


_RUNNER = "verl.trainer.main_ppo:TaskRunner"
_POOLS = f"{_RUNNER}.init_resource_pool_mgr"
_POOL = "global_pool"


@rollout.wrap(
    _POOLS,
    uses=(f"{_RUNNER}.mapping", f"{_RUNNER}.role_worker_mapping"),
    why="The recipe r1_ascend, for DeepSeek-V3 on NPUs, fails with `KeyError: <Role.ActorRollout: 2>` before any "
    "model is built. Upstream's trainer now sets its pools role by role, and the recipe's own method sets none.",
    how="We put each role that has a worker but no pool into upstream's single pool, like the other roles.",
    link="none: nobody seems to have reported it",
    retired_by=Never("upstream removed the recipe without fixing it"),
    # The recipe's own runner is derived from this class.
    requires=AllOf(Defines(_POOLS), Not(IsRemote(_RUNNER))),
)
def give_the_recipes_actor_a_pool(original: Callable[..., Result], runner: Any, config: object) -> Result:
    """Assign every role to a resource pool, then make the pools."""
    for role in runner.role_worker_mapping:
        runner.mapping.setdefault(role, _POOL)
    return original(runner, config)
