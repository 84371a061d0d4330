"""The NPU itself: contexts, devices that do not start, and errors of its cores."""

from __future__ import annotations

from ..rule import Precision, rule

__all__ = ["DEVICES"]

_CODES = "CANN 8.5.0: acl/error_codes/rt_error_codes.h"

DEVICES = (
    rule(
        "forked",
        Precision.EXACT,
        r"Cannot re-initialize NPU in forked subprocess",
        means="a process that had already used an NPU was forked, and torch_npu does not work in the child",
        fix="export VLLM_WORKER_MULTIPROC_METHOD=spawn; for your own processes use multiprocessing's spawn",
        seen=("hiyouga/LlamaFactory#7447", "vllm-project/vllm-ascend#3133"),
    ),
    rule(
        "no-context",
        Precision.EXACT,
        r"error code is 107002\b|The context is empty",
        means="a thread used an NPU without having chosen one (107002): in each thread an NPU has to be set first",
        fix="call torch.npu.set_device in the thread that failed, before anything else; executors and streaming "
        "callbacks "
        "start threads",
        seen=("hiyouga/LlamaFactory#2385", "vllm-project/vllm-ascend#800", "zai-org/ChatGLM3#605", _CODES),
    ),
    rule(
        "other-context",
        Precision.EXACT,
        r"error code is 107003\b|stream not in current context",
        means="a stream of one NPU was used in a thread that has chosen another (107003)",
        fix="call torch.npu.set_device in that thread with the NPU of the stream. verl v0.9.0's HCCL checkpoint "
        "engine "
        "broadcasts in another thread, which was reported to fail and was taken back later",
        seen=(_CODES, "verl-project/verl#7416", "verl-project/verl#7488"),
    ),
    rule(
        "no-such-device",
        Precision.EXACT,
        r"error code is 107001\b|invalid device (?:id|ordinal)",
        means="the process asked for an NPU that it does not see (107001)",
        fix="compare the rank's device with ASCEND_RT_VISIBLE_DEVICES: within a process NPUs are counted from 0",
        seen=(_CODES,),
    ),
    rule(
        "device-hidden",
        Precision.EXACT,
        r"error code is 507033\b[\s\S]*\bEL0003\b",
        means="the NPU could not be opened (507033): ASCEND_RT_VISIBLE_DEVICES was changed after the process had "
        "begun, or "
        "names an NPU that is not there",
        fix="set ASCEND_RT_VISIBLE_DEVICES before torch is imported, to NPUs that `npu-smi info` lists",
        seen=("Ascend/pytorch#67",),
    ),
    rule(
        "operators-not-verified",
        Precision.EXACT,
        r"\bE30006\b|Failed to verify the OPP",
        means="the driver does not accept CANN's operators: driver and CANN do not belong together, or the kernels "
        "are of "
        "another version",
        fix="install toolkit and kernels of one version, and a driver that this CANN allows; `verl-npu doctor` "
        "compares",
        seen=("vllm-project/vllm-ascend#4284",),
    ),
    rule(
        "dcmi",
        Precision.EXACT,
        r"dcmi (?:module|model) initiali\w+ failed[^\n]*ret is (?P<code>-\d+)",
        means="npu-smi cannot reach the NPUs ({code}): another container holds them, or the container lacks the "
        "driver's "
        "devices",
        fix="give each NPU to one container; pass --device /dev/davinci*, /dev/davinci_manager, /dev/devmm_svm and "
        "/dev/hisi_hdc, and mount /usr/local/dcmi and /usr/local/Ascend/driver",
        seen=("vllm-project/vllm-ascend#2698", "Ascend/cann-container-image#46"),
        anywhere=True,
    ),
    rule(
        "device-not-started",
        Precision.CODE,
        r"error code is 507033\b|Failed to start the device",
        means="the NPU could not be started (507033)",
        fix="look at `npu-smi info` for its health and for processes on it; try one NPU alone; reset it if its "
        "health is "
        "not OK",
        seen=("vllm-project/vllm-ascend#4284", "Ascend/pytorch#67"),
    ),
    rule(
        "core-exception",
        Precision.CODE,
        r"error code(?: is|:) ?(?:507011|507014|507015|507018|507034|507035|507057)\b|(?:vector core|aicore"
        r"|aicpu) exception"
        r"|\baivec error|fftsplus aivector error",
        means="an operator failed on the NPU: wrong indices, an address out of range, a time-out in it, or a defect "
        "of it. "
        "Python's traceback is not where it was called, because operators run later",
        fix="start again with ASCEND_LAUNCH_BLOCKING=1 to see the operator; errorStr in CANN's lines says what it "
        "did; "
        "newer CANN and vllm-ascend mended several",
        seen=(
            "vllm-project/vllm-ascend#2763",
            "vllm-project/vllm-ascend#1038",
            "vllm-project/vllm-ascend#5661",
            _CODES,
        ),
    ),
)
