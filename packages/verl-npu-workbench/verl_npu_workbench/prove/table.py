"""The stages of a proof, the cheapest first, and each stage's share of the time."""

from __future__ import annotations

from dataclasses import dataclass

from verl_npu.language import gettext as _


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a proof. It runs in a separate process."""

    name: str
    title: str
    meaning: str
    """The consequence for a training run if the stage does not finish."""
    share: float
    """The stage's share of the total time. Time that earlier stages did not use is added to it."""


STAGES = (
    Stage(
        name="environment",
        title=_("the environment, checked by `verl-npu doctor --level import`"),
        meaning=_("a job in this environment may not start"),
        share=0.14,
    ),
    Stage(
        name="device",
        title=_("memory, streams, events, and copies of each NPU"),
        meaning=_("no result of these NPUs can be trusted"),
        share=0.05,
    ),
    Stage(
        name="operators",
        title=_(
            "the operators that verl-npu and its models call, forward and backward, compared with float64 on the host"
        ),
        meaning=_("the model's outputs and gradients would be incorrect"),
        share=0.12,
    ),
    Stage(
        name="attention",
        title=_("attention with packed, padded, grouped, and Ulysses shapes"),
        meaning=_("tokens would attend to the wrong tokens, or their gradients would be incorrect"),
        share=0.08,
    ),
    Stage(
        name="models",
        title=_("models of the patched families: logits, gradients, and a step, patched and unpatched"),
        meaning=_("a training run would follow other gradients than on other hardware"),
        share=0.13,
    ),
    Stage(
        name="collectives",
        title=_("HCCL's collectives between two and all NPUs, with late and killed ranks"),
        meaning=_("gradients of several NPUs would not be summed, or a job would hang forever"),
        share=0.10,
    ),
    Stage(
        name="weight_sync",
        title=_("the weight sync: its bits, and its speed compared with a raw broadcast"),
        meaning=_("the rollout would use different weights than the trained ones"),
        share=0.08,
    ),
    Stage(
        name="training",
        title=_("GRPO of a small model with verl's own trainer, compared with a plan that is recorded before it runs"),
        meaning=_("a job may start but not train"),
        share=0.30,
    ),
)
BY_NAME = {stage.name: stage for stage in STAGES}
