"""HCCL, and the ways in which processes wait for each other.

A rank that waits too long for another one reports a time-out, and is seldom where the cause is.
"""

from __future__ import annotations

from ..rule import Precision, rule

__all__ = ["COMMUNICATION"]

_GUIDE = "hiascend.com: CANN 9.0.0, HCCL user guide"
_LOOK = "look at the ranks that report no time-out, in their own logs and in CANN's plog (~/ascend/log): the one that "

COMMUNICATION = (
    rule(
        "nccl-on-npus",
        Precision.EXACT,
        r"NCCL is not available|NCCL seems unavailable",
        means="Ray's collective library was asked for NCCL on NPUs; it has no HCCL. verl's one_step_off_policy at "
        "ccd7d934 does this when it syncs weights",
        fix="activate verl-npu, whose feature weight_sync replaces that transfer, or use verl v0.7.0 or newer",
        seen=("verl-project/verl#4651", "ray-project/ray#55477"),
    ),
    rule(
        "hccl-port-taken",
        Precision.EXACT,
        r"EJ0003|Failed to bind the IP port|and specific port\[(?P<port>\d+)\] fail",
        means="a port that HCCL listens on is taken, by another job on this host or by a process that is still there",
        fix="end the other job (`npu-smi info` lists its processes), or set HCCL_IF_BASE_PORT, or "
        "HCCL_HOST_SOCKET_PORT_RANGE=auto and HCCL_NPU_SOCKET_PORT_RANGE=auto, alike on all hosts",
        seen=("vllm-project/vllm-ascend#405", "vllm-project/vllm-ascend#4725", "vllm-project/vllm-ascend#1955"),
    ),
    rule(
        "hccp-running",
        Precision.EXACT,
        r"EJ0001|Failed to initialize the HCCP process",
        means="the NPU still holds a process of an earlier job, or two jobs share an NPU",
        fix="end what `npu-smi info` lists on these NPUs, wait ten seconds, and start again",
        seen=("hiyouga/LlamaFactory#3839",),
    ),
    rule(
        "hccl-variable",
        Precision.EXACT,
        r"\bEI0001\b[^\n]*",
        means="an environment variable of HCCL has a value that HCCL does not take; the message names it",
        fix="correct or unset that variable, alike on all hosts",
        seen=(f"{_GUIDE}, fault locating for EI0001",),
    ),
    rule(
        "network-retransmission",
        Precision.EXACT,
        r"error cqe\b|Error cqe\b",
        means="the network between NPUs lost packets for too long (RoCE retransmission above its limit)",
        fix="check links and TLS of both NPUs with `hccn_tool -i <npu> -link -g` and `-tls -g`, cables and switches; "
        "HCCL_RDMA_TIMEOUT and HCCL_RDMA_RETRY_CNT make it wait longer",
        seen=(f"{_GUIDE}, cluster heartbeat",),
        anywhere=True,
    ),
    rule(
        "communicator-device",
        Precision.EXACT,
        r"this hccl communicator is created to work on (?P<wants>\S+), but the input tensor is on (?P<has>\S+)",
        means="weights that are to be sent over HCCL are on {has}, and the communicator is for {wants}",
        fix="update the library that makes the tensor; verl-npu's weight_sync puts its buffers on the NPU",
        seen=("modelscope/ms-swift#7036",),
    ),
    rule(
        "hccl-connect-timeout",
        Precision.SYMPTOM,
        r"\bEI0006\b|Getting socket times out|wait socket establish timeout|LinkEstablish\]wait socket",
        means="this rank waited in vain for another one to connect: that one failed, is late, or cannot be reached",
        fix=f"{_LOOK}failed first is the cause. If none failed: raise HCCL_CONNECT_TIMEOUT (120 s by default) above "
        f"the "
        "time between the first and the last rank; set HCCL_SOCKET_IFNAME to the interface that reaches the others; "
        "compare `hccn_tool -i <npu> -tls -g` of all NPUs",
        seen=(
            "vllm-project/vllm-ascend#486",
            "vllm-project/vllm-ascend#5461",
            "vllm-project/afd-plugin#229",
            "hiyouga/LlamaFactory#5071",
        ),
    ),
    rule(
        "hccl-notify-timeout",
        Precision.SYMPTOM,
        r"\bEI0002\b|Notify register times out|hccl fftsplus task timeout|\bstuck notify\b",
        means="this rank waited in vain for another one within a collective: that one failed, hangs, or runs another "
        "sequence of collectives",
        fix=f"{_LOOK}failed or stopped first is the cause. If all are alive: one works much longer than the others "
        "(longer sequences, a checkpoint, data on a slow disk); raise HCCL_EXEC_TIMEOUT only then",
        seen=("vllm-project/vllm-ascend#1443", "Ascend/pytorch#43", "InternLM/lmdeploy#3354"),
    ),
    rule(
        "hccl-transport",
        Precision.SYMPTOM,
        r"\bEI0009\b|Transport init error",
        means="the link to another rank could not be made: that rank failed, or its NPU is not the one expected",
        fix=f"{_LOOK}failed first is the cause. If none did: two processes may be on one NPU, or a rank is outside "
        f"of the "
        "group that was asked for",
        seen=("vllm-project/vllm-ascend#3162",),
    ),
    rule(
        "hccl-heartbeat",
        Precision.SYMPTOM,
        r"Stuck Occurred|Heartbeat Lost Occurred|HeartbeatAbnormal",
        means="HCCL noticed that another rank is stuck or gone; the line names it as crimer rank",
        fix="read the log of the rank that the line names",
        seen=(f"{_GUIDE}, cluster heartbeat",),
        anywhere=True,
    ),
    rule(
        "stream-timeout",
        Precision.SYMPTOM,
        r"error code is (?:107020|507046|507048)\b|\bEE1002\b|Stream synchronize timeout",
        means="an NPU waited too long for its own stream to finish, most often for a collective in which another rank "
        "is missing",
        fix=f"{_LOOK}failed or stopped first is the cause. If one rank alone prepares data, let the others wait "
        f"longer: "
        "HCCL_EXEC_TIMEOUT and the time-out of the process group",
        seen=("Ascend/pytorch#62", "Ascend/pytorch#48", "hiyouga/LlamaFactory#5551", "hiyouga/LlamaFactory#5347"),
    ),
    rule(
        "rendezvous-timeout",
        Precision.SYMPTOM,
        r"client socket has timed out after|Timed out after \d+ seconds waiting for clients|DistStoreError"
        r"|Socket Timeout|wait timeout after \d+ms",
        means="a process waited in vain for the others to meet: one failed before, or the address cannot be reached",
        fix="read the logs of the others for an earlier error; set GLOO_SOCKET_IFNAME and HCCL_SOCKET_IFNAME to the "
        "interface that the hosts share, and check the firewall",
        seen=("verl-project/verl#849",),
    ),
    rule(
        "peer-gone",
        Precision.SYMPTOM,
        r"Connection (?:closed|reset) by peer|recvValue failed|Broken pipe|rank \d+ of \d+: \w+ failed",
        means="a process that this one was talking to is gone",
        fix="read the log of that process: it ended first",
        seen=("docs/virtual-ascend.md (SIMULATED)", "torch 2.13: TCPStore and gloo"),
    ),
)
