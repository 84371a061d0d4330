"""The metrics of verl that `compare` and `watch` use, with their names in verl's logs, and helper functions for their
values."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from verl_npu.language import gettext as _

from .training import TrainingLog


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    title: str
    names: tuple[str, ...]
    """The names of the metric in logs. At each step, the first name that the step has is used."""
    valid: str = ""
    """The name of another metric. It is 0 at steps where this metric was not measured."""

    @property
    def name(self) -> str:
        """The names under which logs report the metric, joined for display."""
        return _(" or ").join(self.names)

    def of(self, log: TrainingLog) -> dict[int, float]:
        """Return the metric's values by step."""
        found = log.series(*self.names)
        if self.valid:
            found = {step: value for step, value in found.items() if log.steps[step].get(self.valid) != 0}
        return found


REWARD = Metric("reward", ("critic/rewards/mean",))
LOSS = Metric(_("SFT loss"), ("train/loss",))
ENTROPY = Metric("entropy", ("actor/entropy", "actor/entropy_loss"))
GRAD_NORM = Metric(_("gradient norm"), ("actor/grad_norm", "train/grad_norm"))
THROUGHPUT = Metric(_("throughput, tokens/s/NPU"), ("perf/throughput",))
STEP_SECONDS = Metric(_("step time, s"), ("timing_s/step", "perf/time_per_step", "train/time(s)"))
TOKENS = Metric(_("tokens of a step"), ("perf/total_num_tokens", "train/global_tokens"))


# Newer workers put their role in front of the name.
MEMORY = Metric(_("memory, GiB"), ("actor/perf/max_memory_allocated_gb", "perf/max_memory_allocated_gb"))
DRIFT = Metric(_("rollout drift"), ("training/rollout_probs_diff_mean",), valid="training/rollout_probs_diff_valid")
HOST_MEMORY = Metric(_("host memory, GB"), ("actor/perf/cpu_memory_used_gb", "perf/cpu_memory_used_gb"))
ROLLOUT_SPEED = Metric(_("rollout, ms a token"), ("timing_per_token_ms/gen",))
MISMATCH = Metric(_("KL to the rollout"), ("rollout_corr/k3_kl", "rollout_corr/kl"))
STALENESS = Metric(_("versions behind"), ("training/off_policy/trajectory_staleness/mean",))
VERSIONS = Metric(_("versions in one answer"), ("training/off_policy/trajectory_spans/max",))
DROPPED = Metric(_("prompts dropped as stale"), ("training/off_policy/evicted_samples",))
ASYNCHRONOUS = (
    STALENESS,
    Metric(_("versions behind at worst"), ("training/off_policy/trajectory_staleness_worst/max",)),
    VERSIONS,
    DROPPED,
    Metric(_("prompts failed"), ("training/rollout_failure/evicted_samples",)),
    Metric(_("share of answers resumed"), ("fully_async/partial/partial_ratio",)),
    Metric(_("stale samples used so far"), ("fully_async/count/stale_samples_processed",)),
    Metric(_("samples dropped so far"), ("fully_async/count/dropped_stale_samples",)),
    Metric(_("version of the weights"), ("fully_async/count/current_param_version",)),
)
"""The metrics of asynchronous training. The module `sides` says where verl computes them."""
CUT_ANSWERS = Metric(_("answers cut off"), ("response_length/clip_ratio",))
SHOWN = (
    REWARD,
    LOSS,
    Metric("score", ("critic/score/mean",)),
    ENTROPY,
    Metric(_("KL loss"), ("actor/kl_loss",)),
    Metric(_("KL penalty"), ("actor/reward_kl_penalty",)),
    Metric(_("PPO KL"), ("actor/ppo_kl",)),
    GRAD_NORM,
    Metric(_("policy loss"), ("actor/pg_loss",)),
    Metric(_("critic loss"), ("critic/vf_loss",)),
    Metric(_("response length"), ("response_length/mean",)),
    DRIFT,
    THROUGHPUT,
    STEP_SECONDS,
    MEMORY,
    *ASYNCHRONOUS,
)
"""The metrics that `verl-npu compare` shows side by side."""


_LARGEST_DRAWN = 1e100
"""The largest value that is drawn. Larger ones could overflow the sums and differences that an axis needs."""


def drawable(value: float) -> bool:
    """Return whether a value can be drawn as part of a curve: it is finite and not too large."""
    return abs(value) < _LARGEST_DRAWN


def mean(values: Collection[float]) -> float:
    """Return the mean, which may be NaN or infinite. statistics.fmean would raise an error for some of these
    values."""
    return sum(values) / len(values)


def number(value: float | None, unit: str = "") -> str:
    """Format a number with four significant digits and its unit. Empty for None."""
    return "" if value is None else f"{value:.4g}{' ' if unit else ''}{unit}"


def plain(value: float | None) -> float | str | None:
    """Return a number for JSON. NaN and infinities become the strings nan, inf, and -inf."""
    return value if value is None or math.isfinite(value) else str(value)
