"""Upstream's own Megatron workers, as far as v0.7: each gives MindSpeed its own overrides before any process group."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ....errors import OverrideError
from ....registry.source.probe import Defines, Mentions, Never
from ..feature import megatron
from ..overrides.request import OVERRIDE, SECTION_KEYS, Request
from ..settlement import plain, settle, speaking_for

if TYPE_CHECKING:
    from ..interfaces import Role, Roles, Section

__all__ = ["REQUEST", "request_of", "settle_again"]

REQUEST = "_verl_npu_request"
"""The attribute of a worker or an engine that holds its request."""
_MODULE = "verl.workers.megatron_workers"
_CRITIC = (
    "Upstream calls repatch for the actor only: the critic's override_transformer_config has no effect on MindSpeed, "
    "without an error."
)
_REWARD_MODEL = (
    "Upstream calls repatch for the actor only: the reward model's override_transformer_config has no effect on "
    "MindSpeed, without an error."
)
_OWN = "MindSpeed gets the worker's own overrides before its process groups are made."
_LINK = "none: compare the calls of repatch in verl/workers/megatron_workers.py"


def request_of(worker: str, section: Section) -> Request:
    """Return what a worker asks of MindSpeed; `section` is the `megatron` section of its configuration."""
    overrides = plain(section.get("override_transformer_config", {}))
    return Request(worker, overrides, {key: section.get(key, None) for key in SECTION_KEYS})


def settle_again(owner: object) -> None:
    """Put the request of a worker or an engine in force again; does nothing if it made none."""
    request = getattr(owner, REQUEST, None)
    if request is not None:
        settle(request)


@megatron.wrap(
    f"{_MODULE}:ActorRolloutRefWorker.__init__",
    why="Upstream gives MindSpeed the actor's overrides for a reference worker too, so the reference model is "
    "computed with settings that are not its own, without an error.",
    how="A reference worker gives its own overrides and an actor its own; upstream's call of repatch then gives the "
    "same.",
    link=_LINK,
    retired_by=Never("these workers were removed in v0.8 without it"),
    requires=Mentions(f"{_MODULE}:ActorRolloutRefWorker.__init__", "repatch"),
)
def give_mindspeed_the_actors_or_refs_overrides(
    original: Callable[..., None], worker: object, config: Roles, role: str, *args: object, **kwargs: object
) -> None:
    """Make the worker with the overrides of its role in force."""
    request = request_of(role, config.ref.megatron if role == "ref" else config.actor.megatron)
    if role == "actor_rollout_ref":
        _refuse_other_reference(request, config)
    _make(original, worker, request, config, role, *args, **kwargs)


@megatron.wrap(
    f"{_MODULE}:CriticWorker.__init__",
    why=_CRITIC,
    how=_OWN,
    link=_LINK,
    retired_by=Mentions(f"{_MODULE}:CriticWorker.__init__", "repatch"),
    requires=Defines(f"{_MODULE}:CriticWorker.__init__"),
)
def give_mindspeed_the_critics_overrides(original: Callable[..., None], worker: object, config: Role) -> None:
    """Make the critic with its own overrides in force."""
    _make(original, worker, request_of("critic", config.megatron), config)


@megatron.wrap(
    f"{_MODULE}:RewardModelWorker.__init__",
    why=_REWARD_MODEL,
    how=_OWN,
    link=_LINK,
    retired_by=Mentions(f"{_MODULE}:RewardModelWorker.__init__", "repatch"),
    requires=Defines(f"{_MODULE}:RewardModelWorker.__init__"),
)
def give_mindspeed_the_reward_models_overrides(original: Callable[..., None], worker: object, config: Role) -> None:
    """Make the reward model's worker with its own overrides in force."""
    _make(original, worker, request_of("reward_model", config.megatron), config)


@megatron.wrap(
    f"{_MODULE}:MegatronWorker._init_hf_config_and_tf_config",
    why="MindSpeed merges the overrides of the last worker in the process into each later configuration of a model, "
    "so a model may be built with another model's settings, without an error.",
    how="The worker's own overrides are put in force again while its model's configuration is made.",
    link=_LINK,
    retired_by=Never("these workers were removed in v0.8 without it"),
    requires=Defines(f"{_MODULE}:MegatronWorker._init_hf_config_and_tf_config"),
)
def configure_each_worker_with_its_own_overrides(
    original: Callable[..., object], worker: object, *args: object, **kwargs: object
) -> object:
    """Make the model's configuration with the worker's own overrides in force."""
    settle_again(worker)
    return original(worker, *args, **kwargs)


def _make(original: Callable[..., None], worker: object, request: Request, *args: object, **kwargs: object) -> None:
    settle(request)
    setattr(worker, REQUEST, request)
    with speaking_for(request):
        original(worker, *args, **kwargs)


def _refuse_other_reference(request: Request, config: Roles) -> None:
    """Raise OverrideError if the reference's overrides are not the actor's, from which the worker builds both."""
    section = config.get("ref", {}).get("megatron", None)
    theirs = request_of("ref", section).overrides if section is not None else request.overrides
    if theirs == request.overrides:
        return
    differ = sorted(k for k in {*theirs, *request.overrides} if theirs.get(k) != request.overrides.get(k))
    raise OverrideError(
        subject="actor_rollout_ref: ref.megatron.override_transformer_config",
        expected="the actor's, because one worker makes both models from them",
        found=", ".join(f"{key}={theirs.get(key)}, the actor's {request.overrides.get(key)}" for key in differ),
        fix="leave the reference's out, or run the reference as a worker of its own",
        override=OVERRIDE,
    )
