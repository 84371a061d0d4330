from __future__ import annotations

import pytest
from verl_npu_workbench.diagnosis.judgement import Conclusion, Diagnosis, judge

from .quoted import raised, worker

TOTAL = "(TaskRunner pid=100) Total training steps: 40"
ELEVEN = [f"(TaskRunner pid=100) step:{step} - actor/entropy:0.3" for step in range(1, 12)]
LAST = "(TaskRunner pid=100) step:40 - actor/entropy:0.3"
LAST_LINES = {
    "a shell: killed": "run.sh: line 12: 30011 Killed                  python3 -m verl.trainer.main_ppo",
    "a Chinese shell: killed": "run.sh：行 12: 30011 已杀死               python3 -m verl.trainer.main_ppo",
    "a shell: segmentation fault": "run.sh: line 12: 30011 Segmentation fault      (core dumped) python3",
    "a Chinese shell: segmentation fault": "run.sh：行 12: 30011 段错误               （核心已转储）python3",
    "slurm: time": "slurmstepd: error: *** JOB 7 ON node7 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
    "slurm: memory": "slurmstepd: error: Detected 1 oom_kill event in StepId=1234.batch.",
    "the kernel": "[812.1] Out of memory: Killed process 30011 (python3) total-vm:8kB, anon-rss:5kB",
    "Python: fatal": "(WorkerDict pid=4926) Fatal Python error: Bus error",
    "Python without its traceback": "AssertionError: the batch is not what it should be",
    "Python, quoted": "1. `AssertionError: Last message must have prompt_ids",
    "pytest": "E           ValueError: substring not found",
    "an error behind a word": "the worker says RuntimeError: it does not go on",
    "glog": "[rank0]:[E1204 10:31:13.369908650 compiler_depend.ts:444] SelfAttentionOperation setup failed!",
    "glog: fatal": "F20260511 npu_causal_conv1d.cpp:43] Check failed: workspace_status == 0",
    "HCCL": "EI0006",
    "torch_npu": "ERR00006 PTA memory error",
    "Ray": "(TaskRunner pid=77) ray.exceptions.RaySystemError: System error: connection lost",
    "Hydra": "Error executing job with overrides: ['trainer.nnodes=1']",
    "vLLM": "(EngineCore_DP0 pid=9) ERROR 12-04 10:31:13 [core.py:708] EngineCore encountered a fatal error.",
    "colours": "\x1b[31mRuntimeError\x1b[0m: it does not go on",
    "Chinese": "训练异常退出，错误码 137",
}


def said(*lines: str, growing: bool = False) -> Diagnosis:
    return judge("\n".join((TOTAL, *ELEVEN, *lines)).splitlines(), growing=growing)


@pytest.mark.parametrize("line", LAST_LINES.values(), ids=LAST_LINES)
def test_a_line_that_looks_like_an_error_is_told_with_its_place(line: str) -> None:
    diagnosis = said(line)
    assert diagnosis.verdict is not Conclusion.NONE
    assert diagnosis.root is not None
    assert diagnosis.root.event.line == 13
    assert diagnosis.progress.place(13) == "after step 11 of 40"


@pytest.mark.parametrize("line", LAST_LINES.values(), ids=LAST_LINES)
def test_it_is_found_in_a_log_of_that_line_alone(line: str) -> None:
    assert judge([line]).root is not None


@pytest.mark.parametrize(
    "line",
    [
        "ray init kwargs: {'runtime_env': {'env_vars': {'VLLM_ASCEND_ENABLE_NZ': '0', 'OUT': '/data/killed'}}}",
        "(TaskRunner pid=100)                      'tokenizer_path': '/data/run/killed/model',",
        "(TaskRunner pid=100) {'actor_rollout_ref': {'actor': {'nccl_timeout': 600, 'fatal': False}}}",
    ],
)
def test_settings_that_verl_prints_are_no_errors(line: str) -> None:
    assert said(line, LAST_LINES["a shell: killed"]).root.name == "killed"  # type: ignore[union-attr]
    assert said(line).root is None


def test_what_ends_no_job_is_a_note() -> None:
    diagnosis = said("2026-01-01 06:08:43,987\tERROR services.py:1360 -- Failed to start the dashboard")
    assert (diagnosis.verdict, diagnosis.root) == (Conclusion.UNKNOWN, None)
    assert [each.name for each in diagnosis.hints] == ["ray-dashboard"]


def test_a_traceback_that_ray_prints_of_its_dashboard_is_a_note_too() -> None:
    diagnosis = said(
        "2026-01-01 06:08:43,987\tERROR dashboard.py:308 -- The dashboard on node vm failed with the following error:",
        "Traceback (most recent call last):",
        '  File "/venv/ray/dashboard/head.py", line 405, in run',
        "    handle.wait_for_module_ready()",
        "RuntimeError: Module MetricsHead failed to start. Timeout after 30.0 seconds.",
    )
    assert diagnosis.root is None
    assert {each.name for each in diagnosis.hints} == {"ray-dashboard"}


def test_a_log_that_just_ends_is_no_all_clear() -> None:
    diagnosis = said()
    assert (diagnosis.verdict, diagnosis.root) == (Conclusion.UNKNOWN, None)
    assert diagnosis.progress.place() == "after step 11 of 40"
    assert diagnosis.progress.last_lines[-1].text == "step:11 - actor/entropy:0.3"


def test_an_empty_log_is_no_all_clear() -> None:
    assert judge([]).verdict is Conclusion.UNKNOWN


@pytest.mark.parametrize(
    "end",
    [
        LAST,
        "(TaskRunner pid=100) Training Progress: 100%|##########| 40/40 [00:08<00:00,  4.03s/it]",
        "(TaskRunner pid=100) 'Final validation metrics: None'",
        "Epoch 1/1: 100%|##########| 8/8 [00:22<00:00,  2.81s/it]",
        "ok: grpo at v0.6.1: 40 steps, reward 0.100 in the first 10 steps, 0.120 in the last 10",
        "40 of 40 steps in 312 s, start included",
    ],
)
def test_a_training_that_came_to_its_end_is_none(end: str) -> None:
    diagnosis = said(end)
    assert (diagnosis.verdict, diagnosis.root) == (Conclusion.NONE, None)


def test_a_smoke_job_that_made_all_steps_and_said_no_more_has_not_come_to_its_end() -> None:
    diagnosis = judge(["step   1/2  reward 0.100  30.11 s", "step   2/2  reward 0.120  10.51 s"])
    assert (diagnosis.verdict, diagnosis.steps, diagnosis.progress.total) == (Conclusion.UNKNOWN, 2, 2)
    assert said("1 of 40 steps in 31 s, start included").verdict is Conclusion.UNKNOWN


def test_a_job_that_was_started_again_has_not_ended_because_the_first_did() -> None:
    again = "(TaskRunner pid=200) step:1 - actor/entropy:0.3"
    assert said(LAST, again).verdict is Conclusion.UNKNOWN
    bar = "(TaskRunner pid=200) Training Progress:   2%|          | 1/40 [00:01<00:40,  1.00s/it]"
    assert said(LAST, bar).verdict is Conclusion.UNKNOWN


NO_ENDINGS = [
    "(TaskRunner pid=100)           'truncation': 'error',",
    "(WorkerDict pid=12) clip_grad_norm_(error_if_nonfinite=False)",
    "/opt/ray/worker.py:2051: FutureWarning: Tip: In future versions of Ray, errors will be raised",
    "(WorkerDict pid=12) WARNING:2026-11-24 10:20:18,798:Kwargs lead to a ValueError in newer versions",
    "(Reward pid=9) request failed with ConnectionError, retry 1 of 3",
    "(vLLMHttpServer pid=101) WARNING 11-23 00:36:08 [__init__.py:2878] errors like `OSError: [Errno 24]`",
    "INFO 11-23 00:36:08 [loggers.py:1] exceptions: 0, errors: 0",
]


@pytest.mark.parametrize("line", NO_ENDINGS)
def test_what_only_sounds_like_an_error_is_none(line: str) -> None:
    assert said(line).root is None
    assert said(line, growing=True).verdict is Conclusion.NONE
    assert said(line, LAST).verdict is Conclusion.NONE


@pytest.mark.parametrize("line", LAST_LINES.values(), ids=LAST_LINES)
def test_a_line_alone_after_which_the_job_went_on_is_none(line: str) -> None:
    went_on = [f"(TaskRunner pid=100) step:{step} - actor/entropy:0.3" for step in range(12, 41)]
    assert said(line, *went_on).verdict is Conclusion.NONE


def test_a_consequence_tells_more_than_a_line_that_only_looks_like_an_error() -> None:
    diagnosis = said(
        "[rank0]:[E1204 10:31:13.3 x.ts:444] setup failed!", "EI0006: [PID: 12] Getting socket times out."
    )
    assert diagnosis.verdict is Conclusion.CONSEQUENCE


def test_an_error_says_what_verl_was_doing() -> None:
    frame = '  File "/opt/verl/workers/fsdp_workers.py", line 600, in update_actor\n    self.step()'
    diagnosis = said(worker(f"Traceback (most recent call last):\n{frame}\nKeyError: 'x'"))
    assert diagnosis.root is not None
    assert diagnosis.root.event.doing == "updating the policy"
    built = judge(raised("KeyError: 'x'").splitlines()).root
    assert built is not None
    assert built.event.doing == "building the models"


def test_lines_that_look_like_errors_are_kept_once_however_many_there_are() -> None:
    diagnosis = said(*(f"(Reward pid=9) ERROR could not judge answer {number}" for number in range(100_000)))
    assert diagnosis.verdict is Conclusion.UNKNOWN
    assert diagnosis.followed == ()
