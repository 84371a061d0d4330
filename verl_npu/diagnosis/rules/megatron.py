"""Megatron and MindSpeed."""

from __future__ import annotations

from ..rule import Precision, rule

__all__ = ["MEGATRON"]

MEGATRON = (
    rule(
        "mindspeed-too-old",
        Precision.EXACT,
        r"KeyError: '?\S*q_layernorm\S*",
        means="MindSpeed is too old for this model's attention",
        fix="install MindSpeed's branch 2.3.0_core_r0.12.1",
        seen=("verl 1dda039b: docs/ascend_tutorial/faq/faq.rst",),
    ),
    rule(
        "no-megatron-bridge",
        Precision.EXACT,
        r"No module named 'megatron\.bridge'",
        means="verl wants Megatron-Bridge, which is not installed, or Megatron-LM's folder comes before it on the "
        "path",
        fix="install Megatron-Bridge of your pin, or set actor_rollout_ref.actor.megatron.vanilla_mbridge=True with "
        "mbridge "
        "installed",
        seen=("verl-project/verl#6931",),
    ),
    rule(
        "mbridge-too-new",
        Precision.EXACT,
        r"cannot import name 'get_tensor_model_parallel_group_if_none' from 'megatron\.core\.utils'",
        means="this mbridge needs a newer megatron-core than 0.12, which MindSpeed of this pin is for",
        fix="install the mbridge of your pin; `verl-npu doctor` names it",
        seen=("ISEEKYAN/mbridge#50",),
    ),
    rule(
        "no-megatron",
        Precision.EXACT,
        r"No module named '(?P<name>megatron(?:\.core\S*)?|mindspeed\S*|mbridge)'",
        means="{name} is not installed, or not on the path of this process",
        fix="install Megatron-LM and MindSpeed of your pin from git, and export PYTHONPATH on each host before `ray "
        "start`",
        seen=("verl v0.6.1: docs/ascend_tutorial/ascend_quick_start.rst",),
    ),
    rule(
        "checkpoint-not-shared",
        Precision.EXACT,
        r"(?:FileNotFoundError|No such file)[^\n]*(?:common\.pt|\.metadata|metadata\.json)",
        means="a checkpoint of Megatron's is loaded on a host that does not have its common.pt and metadata: they are "
        "written by one rank only",
        fix="save checkpoints to storage that all hosts share, or copy common.pt, .metadata and metadata.json to "
        "each host",
        seen=("verl 1dda039b: docs/ascend_tutorial/faq/faq.rst",),
    ),
)
