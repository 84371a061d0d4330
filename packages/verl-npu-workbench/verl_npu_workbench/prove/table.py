"""The stages of a proof, in order of cost, and the part of the time that each is given."""

from __future__ import annotations

from dataclasses import dataclass

from verl_npu.language import gettext as _


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One part of a proof, which is a process of its own."""

    name: str
    title: str
    meaning: str
    """What it means for a training if it does not come to its end."""
    share: float
    """Its part of all the time; what earlier stages have left over comes to it."""


STAGES = (
    Stage(
        name="environment",
        title=_("the environment, as `verl-npu doctor --level import` sees it"),
        meaning=_("a job of this environment may not start"),
        share=0.14,
    ),
    Stage(
        name="device",
        title=_("memory, streams, events and copies of each NPU"),
        meaning=_("nothing that is computed on these NPUs can be relied on"),
        share=0.05,
    ),
    Stage(
        name="operators",
        title=_("the operators that verl-npu and its models call, forward and backward, against float64 on the host"),
        meaning=_("the model's numbers, and its gradients, would be wrong"),
        share=0.12,
    ),
    Stage(
        name="attention",
        title=_("attention at packed, padded, grouped and Ulysses' shapes"),
        meaning=_("tokens would attend to what they should not, or their gradients would be wrong"),
        share=0.08,
    ),
    Stage(
        name="models",
        title=_("models of the patched families: logits, gradients and a step, patched and unpatched"),
        meaning=_("a training would follow other gradients than on other hardware"),
        share=0.13,
    ),
    Stage(
        name="collectives",
        title=_("HCCL's collectives between two and all NPUs; ranks that are late, and killed"),
        meaning=_("gradients of several NPUs would not be summed, or a job would hang for ever"),
        share=0.10,
    ),
    Stage(
        name="weight_sync",
        title=_("the weight sync, bit for bit, and its share of the raw broadcast"),
        meaning=_("the rollout would answer with other weights than those that are trained"),
        share=0.08,
    ),
    Stage(
        name="training",
        title=_("GRPO of a small model by verl's own trainer, beside a plan that is written down before it runs"),
        meaning=_("a job that starts may not train"),
        share=0.30,
    ),
)
BY_NAME = {stage.name: stage for stage in STAGES}
