"""vLLM with vllm-ascend, and the hand-over of weights to it."""

from __future__ import annotations

from ..rule import Precision, rule

__all__ = ["ENGINES"]

ENGINES = (
    rule(
        "vllm-empty-version",
        Precision.EXACT,
        r"No module named 'vllm\.utils\.argparse_utils'",
        means="vLLM built for NPUs calls itself 0.11.0+empty, which verl at ccd7d934 and v0.7.0 takes for newer "
        "than 0.11.0",
        fix="activate verl-npu, whose feature rollout compares the release alone",
        seen=("volcengine/verl#4411", "verl ccd7d934: verl/workers/rollout/vllm_rollout/vllm_async_server.py"),
    ),
    rule(
        "vllm-version",
        Precision.EXACT,
        r"Invalid vllm version (?P<version>\S+) found",
        means="vllm-ascend cannot tell from {version} which vLLM it runs with",
        fix="`export VLLM_VERSION=` with the release that your vLLM was built from, such as 0.11.0",
        seen=("vllm-ascend 0.11.0: vllm_ascend/utils.py",),
    ),
    rule(
        "no-device-type",
        Precision.EXACT,
        r"Failed to infer device type|Device string must not be empty",
        means="vLLM found no platform: vllm-ascend is not installed, or its plugin failed to load (an earlier line "
        "says so)",
        fix="read the traceback after `Failed to load plugin ascend`; install vllm-ascend of your vLLM's version, and "
        "`source` set_env.sh of the CANN toolkit and of nnal",
        seen=("vllm-project/vllm-ascend#130", "vllm-project/vllm-ascend#540"),
    ),
    rule(
        "wheel-for-other-npu",
        Precision.EXACT,
        r"Current device type: (?P<has>\S+) does not match the installed version's device type: (?P<wheel>\S+?),",
        means="this is {has}, and the wheel of vllm-ascend was built for {wheel}: the package index has wheels for "
        "A2 only",
        fix="use the image of vllm-ascend for A3 (its tag ends with -a3), or build it from source on the machine",
        seen=("vllm-project/vllm-ascend#11160", "vllm-project/vllm-ascend#6206", "vllm-project/vllm-ascend#9799"),
    ),
    rule(
        "sleep-allocator",
        Precision.EXACT,
        r"camem allocator is not available",
        means="vllm-ascend was built without its own kernels, so that it cannot sleep",
        fix="build vllm-ascend with COMPILE_CUSTOM_KERNELS=1, or set "
        "actor_rollout_ref.rollout.free_cache_engine=False",
        seen=("vllm-project/vllm-ascend#556",),
    ),
    rule(
        "sleep-segments",
        Precision.EXACT,
        r"Expandable segments are not compatible with memory pool|assert \"expandable_segments:True\" not in conf",
        means="PYTORCH_NPU_ALLOC_CONF has expandable_segments:True, with which vLLM's sleep mode cannot work",
        fix="unset PYTORCH_NPU_ALLOC_CONF or take expandable_segments:True out of it; verl-npu's feature rollout "
        "does so "
        "in the processes of engines",
        seen=("vllm-project/vllm-ascend#9242", "OpenRLHF/OpenRLHF#1011", "modelscope/ms-swift#6636"),
    ),
    rule(
        "sleep-grew",
        Precision.EXACT,
        r"Memory usage increased after sleeping",
        means="while the engine went to sleep another process on the same NPU took memory, or expandable segments "
        "kept "
        "vLLM from giving any back",
        fix="unset expandable_segments in PYTORCH_NPU_ALLOC_CONF; let nothing else run on these NPUs; update "
        "vllm-ascend",
        seen=("verl-project/verl#3902", "vllm-project/vllm-ascend#977"),
    ),
    rule(
        "sdma-after-sleep",
        Precision.CODE,
        r"error code is 507049\b|fftsplus sdma error",
        means="a copy on the NPU failed; it was seen when a group of HCCL was made while an engine on the same NPU "
        "slept",
        fix="make the groups before the engine sleeps, or wake it up first",
        seen=("Ascend/pytorch#166",),
    ),
    rule(
        "weight-bucket",
        Precision.EXACT,
        r"Weight (?P<name>[\w.]+)\(.*?is too large to fit in the bucket",
        means="{name} is larger than the bucket in which verl sends weights",
        fix="raise actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes above its size "
        "(v0.7.0 and "
        "older: rollout.update_weights_bucket_megabytes)",
        seen=("verl 1dda039b: docs/ascend_tutorial/faq/faq.rst",),
    ),
    rule(
        "engine-dead",
        Precision.SYMPTOM,
        r"EngineDeadError|Engine core initialization failed|Engine process failed to start|Call to \w+ method failed"
        r"|EngineCore encountered an issue|Worker failed with error",
        means="the rollout engine's own process failed; its error stands before",
        fix="read the first traceback of EngineCore or of its workers",
        seen=("vllm-project/vllm-ascend#2349", "vllm-project/vllm-ascend#2416"),
    ),
)
