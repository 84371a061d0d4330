"""Parallel sizes against each other and the NPUs, as Megatron and verl assert them."""

from __future__ import annotations

from collections.abc import Iterator

from .base import Finding, Script

__all__ = ["parallel_sizes"]

_ROLLOUT = "actor_rollout_ref.rollout"


def parallel_sizes(script: Script) -> Iterator[Finding]:
    """Refuse sizes that do not divide the NPUs."""
    npus = script.npus
    if npus <= 0:
        return
    if script.megatron:
        yield from _megatron(script, npus)
    yield from _sequence(script, npus)
    yield from _rollout(script, npus)


def _megatron(script: Script, npus: int) -> Iterator[Finding]:
    for role in ("actor_rollout_ref.actor", "actor_rollout_ref.ref"):
        names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
        keys = [f"{role}.megatron.{name}" for name in names]
        sizes = [max(script.settings.whole(key, 1), 1) for key in keys]
        product = sizes[0] * sizes[1] * sizes[2]
        if npus % product:
            yield _refused(
                f"{role}.megatron",
                f"TP {sizes[0]} x PP {sizes[1]} x CP {sizes[2]} = {product} on {npus} NPUs",
                "megatron.core.parallel_state.initialize_model_parallel raises: the world size is not divisible",
                "choose sizes whose product divides the NPUs",
            )


def _sequence(script: Script, npus: int) -> Iterator[Finding]:
    keys = list(script.settings.ending("ulysses_sequence_parallel_size"))
    for key in keys:
        if key.startswith(("critic.", "reward")) and script.settings.text("algorithm.adv_estimator") != "gae":
            continue
        size = script.settings.whole(key, 1)
        if size > 1 and npus % size and not script.megatron:
            yield _refused(
                key,
                f"{size} on {npus} NPUs",
                "the device mesh (dp, sp) of verl's FSDP workers needs their product to be the number of NPUs",
                "choose a size that divides the NPUs",
            )


def _rollout(script: Script, npus: int) -> Iterator[Finding]:
    settings = script.settings
    if settings.whole("rollout.n_gpus_per_node"):
        npus = settings.whole("rollout.n_gpus_per_node") * max(settings.whole("rollout.nnodes", 1), 1)
    tensor = settings.whole(f"{_ROLLOUT}.tensor_model_parallel_size", 1)
    if tensor > 1 and npus and npus % tensor:
        yield _refused(
            f"{_ROLLOUT}.tensor_model_parallel_size",
            f"{tensor} on {npus} NPUs",
            "verl asserts that the NPUs are divisible by the size of a rollout replica",
            "choose a size that divides the NPUs",
        )


def _refused(subject: str, found: str, why: str, fix: str) -> Finding:
    return Finding("parallel sizes", True, subject, found, why, fix)
