"""The workers of upstream's own Megatron backend, as far as v0.7: each gets its own overrides, before any group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...registry.source.probe import Defines, Mentions, Never
from .feature import megatron
from .overrides import SECTION_KEYS, OverrideError, Request
from .settlement import asked, plain, settle

__all__ = ["request_of"]

_MODULE = "verl.workers.megatron_workers"
_NEVER_ASKS = "MindSpeed never hears of this worker's overrides: upstream calls repatch for the actor only"
_ITS_OWN = "MindSpeed gets them before the process groups are made"
_LINK = "none: compare the calls of repatch in verl/workers/megatron_workers.py"
_REQUEST = "_verl_npu_request"


def request_of(worker: str, section: Any) -> Request:
    """What a worker asks of MindSpeed, `section` being the `megatron` section of its configuration."""
    overrides = plain(section.get("override_transformer_config", {}))
    return Request(worker, overrides, {key: section.get(key, None) for key in SECTION_KEYS})


@megatron.wrap(
    f"{_MODULE}:ActorRolloutRefWorker.__init__",
    why="upstream gives MindSpeed the actor's overrides for a reference worker as well",
    how="a reference worker gives its own, an actor its own, and upstream's own call of repatch says the same",
    link=_LINK,
    retired_by=Never("these workers were removed in v0.8 without it"),
    requires=Mentions(f"{_MODULE}:ActorRolloutRefWorker.__init__", "repatch"),
)
def actor_or_reference(
    original: Callable[..., Any], worker: Any, config: Any, role: str, *args: Any, **kwargs: Any
) -> None:
    """Make the worker with the overrides of its role in force."""
    request = request_of(role, config.ref.megatron if role == "ref" else config.actor.megatron)
    if role == "actor_rollout_ref":
        _refuse_other_reference(request, config)
    _made(original, worker, request, config, role, *args, **kwargs)


@megatron.wrap(
    f"{_MODULE}:CriticWorker.__init__",
    why=_NEVER_ASKS,
    how=_ITS_OWN,
    link=_LINK,
    retired_by=Mentions(f"{_MODULE}:CriticWorker.__init__", "repatch"),
    requires=Defines(f"{_MODULE}:CriticWorker.__init__"),
)
def critic(original: Callable[..., Any], worker: Any, config: Any) -> None:
    """Make the critic with its own overrides in force."""
    _made(original, worker, request_of("critic", config.megatron), config)


@megatron.wrap(
    f"{_MODULE}:RewardModelWorker.__init__",
    why=_NEVER_ASKS,
    how=_ITS_OWN,
    link=_LINK,
    retired_by=Mentions(f"{_MODULE}:RewardModelWorker.__init__", "repatch"),
    requires=Defines(f"{_MODULE}:RewardModelWorker.__init__"),
)
def reward_model(original: Callable[..., Any], worker: Any, config: Any) -> None:
    """Make the reward model's worker with its own overrides in force."""
    _made(original, worker, request_of("reward_model", config.megatron), config)


@megatron.wrap(
    f"{_MODULE}:MegatronWorker._init_hf_config_and_tf_config",
    why="MindSpeed merges what the last worker of the process left into every later configuration of a model",
    how="the worker's own overrides are in force again while its configuration is made",
    link=_LINK,
    retired_by=Never("these workers were removed in v0.8 without it"),
    requires=Defines(f"{_MODULE}:MegatronWorker._init_hf_config_and_tf_config"),
)
def configured_alone(original: Callable[..., Any], worker: Any, *args: Any, **kwargs: Any) -> Any:
    """Make the model's configuration with the worker's own overrides in force."""
    request = getattr(worker, _REQUEST, None)
    if request is not None:
        settle(request)
    return original(worker, *args, **kwargs)


def _made(original: Callable[..., Any], worker: Any, request: Request, *args: Any, **kwargs: Any) -> None:
    settle(request)
    setattr(worker, _REQUEST, request)
    with asked(request):
        original(worker, *args, **kwargs)


def _refuse_other_reference(request: Request, config: Any) -> None:
    """One worker for actor and reference builds both from the actor's overrides."""
    section: Mapping[str, Any] | None = config.get("ref", {}).get("megatron", None)
    theirs = request_of("ref", section).overrides if section is not None else request.overrides
    if theirs == request.overrides:
        return
    differ = sorted(k for k in {*theirs, *request.overrides} if theirs.get(k) != request.overrides.get(k))
    raise OverrideError(
        subject="actor_rollout_ref: ref.megatron.override_transformer_config",
        expected="the actor's, since one worker makes both models from them",
        found=", ".join(f"{key}={theirs.get(key)}, the actor's {request.overrides.get(key)}" for key in differ),
        fix="leave the reference's out, or run the reference as a worker of its own",
        override="VERL_NPU_DISABLE=megatron",
    )
