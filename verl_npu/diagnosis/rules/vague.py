"""Codes under which CANN and torch_npu report many different problems."""

from __future__ import annotations

from ..rule import Precision, rule

__all__ = ["VAGUE"]

VAGUE = (
    rule(
        "hccl-group",
        Precision.CODE,
        r"(?:[Hh]cclCommInitRootInfo|HcclGetRootInfo)\w*\([^\n]*error code is \d+",
        means="a group of HCCL could not be made",
        fix="set HCCL_SOCKET_IFNAME and HCCL_IF_IP to the interface that all hosts share; give each process one NPU "
        "of its "
        "own; CANN's plog of this process has the reason",
        seen=("verl-project/verl#3947", "vllm-project/vllm-ascend#397"),
    ),
    rule(
        "hccl-failed",
        Precision.CODE,
        r"ERR02200 DIST call hccl api failed|\bEI9999\b|HCCL function error",
        means="a call of HCCL failed",
        fix="read CANN's plog of this process and of the other ranks (~/ascend/log/debug/plog): its first [ERROR] "
        "line with "
        "HCCL names the stage and the rank",
        seen=("verl-project/verl#3947", "Ascend/pytorch#54", "hiascend.com: CANN 9.0.0, HCCL user guide"),
    ),
    rule(
        "inner-error",
        Precision.CODE,
        r"\bE[A-Z1-9]9999\b",
        means="CANN reports an internal error; the lines after it say in which part",
        fix="read the lines after it, and CANN's plog; ASCEND_LAUNCH_BLOCKING=1 shows the operator",
        seen=("hiascend.com: CANN 8.1.RC1, error codes E*9999", "vllm-project/vllm-ascend#1972"),
    ),
    rule(
        "operator-refused",
        Precision.CODE,
        r"error code is (?:161001|161002|361001|561\d{3})\b",
        means="an operator refused its arguments: type, shape or a null pointer",
        fix="read the lines after EZ9999 or EZ1001: they name the argument",
        seen=("hiascend.com: CANN 9.1.0, aclnn return codes",),
    ),
    rule(
        "acl-failed",
        Precision.CODE,
        r"ERR0[01]100 \w+ call acl api failed|error code is [125]\d{5}\b",
        means="a call of CANN failed; codes from 100000 on are wrong use, from 200000 on missing resources, from "
        "500000 on "
        "errors of CANN or of the NPU",
        fix="read the lines after it, and CANN's plog (~/ascend/log)",
        seen=("hiascend.com: CANN 9.1.0, aclError", "vllm-project/vllm-ascend#1443"),
    ),
    rule(
        "backend-extension",
        Precision.CODE,
        r"Failed to load the backend extension: torch_npu",
        means="import torch failed, because torch_npu is installed and cannot be loaded; the error before says why",
        fix="`verl-npu doctor` names what is missing; TORCH_DEVICE_BACKEND_AUTOLOAD=0 only hides it",
        seen=("vllm-project/vllm-ascend#855",),
    ),
    rule(
        "launcher",
        Precision.SYMPTOM,
        r"ChildFailedError|torch\.distributed\.elastic",
        means="torchrun reports that one of its processes failed",
        fix="read the traceback of the process that it calls the root cause",
        seen=("torch 2.13: torch/distributed/elastic/multiprocessing/errors",),
    ),
)
