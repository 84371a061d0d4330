"""The real-NPU figures that verl-ascend-recipe publishes for its nightly jobs.

From verl-project/verl-ascend-recipe at 2a3edec0, baseline/a2 and baseline/a3: one text file for each job, with one
figure for each metric. The job's script is in its file's name. They hold for that script on that hardware alone.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BASELINES", "SOURCE", "Baseline"]

SOURCE = "verl-project/verl-ascend-recipe, baseline/, at 2a3edec0"


@dataclass(frozen=True, slots=True)
class Baseline:
    """What one job measured on real NPUs."""

    name: str
    script: str
    hardware: str
    memory: float
    """GiB, `actor/perf/max_memory_allocated_gb` of the last step."""
    step_seconds: float
    throughput: float
    """Tokens a second and NPU."""
    reward: float
    drift: float
    """`training/rollout_probs_diff_mean`."""


BASELINES = {
    each.name: each
    for each in (
        Baseline(
            "a2-ppo-qwen3-8b-fsdp", "run_ppo_qwen3-8b_fsdp_npu", "A2", 22.231838, 74.86, 68.56, 0.3321022, 0.004396155
        ),
        Baseline(
            "a2-gspo-qwen3-8b-fsdp2",
            "run_gspo_qwen3_8b_fsdp2_npu",
            "A2",
            20.825053,
            83.027817,
            247.4022,
            0.3998047,
            0.0045346,
        ),
        Baseline(
            "a2-qwen3-vl-8b-fsdp2",
            "run_qwen3_vl_8b_Instruct_fsdp2_npu",
            "A2",
            45.43,
            87.84,
            164.24,
            0.38475,
            0.005523,
        ),
        Baseline(
            "a2-dapo-moonlight-16b-megatron",
            "run_dapo_moonlight-16b_megatron_npu",
            "A2",
            38.8807,
            413.00361,
            86.976111,
            -0.857914,
            0.0251671,
        ),
        Baseline(
            "a3-grpo-qwen3-30b-megatron-sglang",
            "run_grpo_qwen3_30b_megatron_sglang_npu",
            "A3",
            36.9292,
            481.8032,
            72.00804,
            0.351563,
            0.005316,
        ),
        Baseline(
            "a3-gspo-qwen3-30b-megatron",
            "run_gspo_qwen3_30b_megatron_npu",
            "A3",
            49.135295,
            90.368034,
            32.056511,
            0.9375,
            0.005604,
        ),
    )
}
