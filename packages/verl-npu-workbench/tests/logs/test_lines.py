from __future__ import annotations

from pathlib import Path

import pytest
from verl_npu_workbench.logs.lines import DRIVER, Process, clean, process_of_file

TEXT = "RuntimeError: something"


@pytest.mark.parametrize(
    ("raw", "process"),
    [
        (TEXT, DRIVER),
        (f"(WorkerDict pid=12) {TEXT}", Process("WorkerDict", "12")),
        (f"\x1b[36m(WorkerDict pid=12, ip=10.0.0.2)\x1b[0m {TEXT}", Process("WorkerDict", "12", "10.0.0.2")),
        (f"\x1b[33m(raylet, ip=10.0.0.2)\x1b[0m {TEXT}", Process("raylet", ip="10.0.0.2")),
        (f"(autoscaler +1m12s) {TEXT}", Process("autoscaler")),
        (f"(pid=12) {TEXT}", Process(pid="12")),
        (f"(TaskRunner pid=1) (WorkerDict pid=12) {TEXT}", Process("WorkerDict", "12")),
        (f"(EngineCore_DP0 pid=12) ERROR 09-24 20:59:57 [core.py:790] {TEXT}", Process("EngineCore_DP0", "12")),
        (f"ERROR 04-16 13:55:44 __init__.py:46] {TEXT}", DRIVER),
        (f"[rank3]: {TEXT}", Process(rank="3")),
        (f"(WorkerDict pid=12) [rank3]: {TEXT}", Process("WorkerDict", "12", rank="3")),
        (f"[default1]:[rank1]: {TEXT}", Process(rank="1")),
        (f"worker-1: {TEXT}", Process("worker-1")),
        (f"2025-09-24T20:59:57.123456789Z {TEXT}", DRIVER),
        (f"[2025-09-24 20:59:57,123][verl.trainer][ERROR] - {TEXT}", DRIVER),
        (
            f"(WorkerDict pid=12) {TEXT} [repeated 7x across cluster] (Ray deduplicates logs)",
            Process("WorkerDict", "12"),
        ),
        (f"{TEXT}\r\n", DRIVER),
    ],
)
def test_prefixes_are_taken_off_and_name_the_process(raw: str, process: Process) -> None:
    line = clean(raw)
    assert (line.text, line.process, line.ordinary) == (TEXT, process, False)


@pytest.mark.parametrize(
    "raw",
    [
        "INFO 02-22 16:36:35 [__init__.py:28] plugin ascend loaded",
        "WARNING 03-06 01:16:37 _custom_ops.py:19] Failed to import from vllm._C with ModuleNotFoundError()",
        "(TaskRunner pid=3) [2025-09-24 20:59:57,123][verl][WARNING] - slow",
        "2025-07-14 11:15:32,128\tINFO usage_lib.py:472 -- Usage stats collection is enabled",
        "[INFO] HCCL(686,python):2025-10-23-07:52:59.191.363 [heartbeat.cc:951] [8970] fine",
    ],
)
def test_what_a_logger_says_below_an_error_is_ordinary(raw: str) -> None:
    assert clean(raw).ordinary


def test_cann_names_the_process_in_its_own_log() -> None:
    line = clean("[ERROR] HCCL(2717288,python3):2025-07-23-03:47:57.070.463 [hccl_socket.cc:100] failed")
    assert (line.process.pid, line.ordinary) == ("2717288", False)


@pytest.mark.parametrize(
    ("name", "process"),
    [
        ("worker-3f2a-01000000-4711.err", Process("worker", "4711")),
        ("plog-4711_20250723034757070.log", Process(pid="4711")),
        ("train.log", DRIVER),
    ],
)
def test_a_file_of_one_process_is_named_after_it(name: str, process: Process) -> None:
    assert process_of_file(Path("/logs") / name) == process


@pytest.mark.parametrize(
    ("process", "said"),
    [
        (Process("WorkerDict", "12", "10.0.0.2", "3", "0"), "WorkerDict (pid 12, rank 3, NPU 0, host 10.0.0.2)"),
        (Process(pid="12"), "pid 12"),
        (Process("the driver"), "the driver"),
        (Process(), "the process that wrote the log"),
    ],
)
def test_a_process_is_said_in_words(process: Process, said: str) -> None:
    assert str(process) == said
