from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_npu_workbench.diagnosis import judgement
from verl_npu_workbench.diagnosis.judgement import Conclusion, Diagnosis, diagnose, judge
from verl_npu_workbench.logs.clocks import Clocks

from verl_npu.errors import SourceError

from .quoted import QUOTED, Quoted, raised, worker

OOM = "RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 3; 60.96 GiB total capacity)"
WAITED = (
    "RuntimeError: npuSynchronizeDevice: NPU function error: AclrtSynchronizeDeviceWithTimeout, error code is 507048\n"
    "[ERROR] 2025-06-25-10:45:23 (PID:{pid}, Device:0, RankID:{rank}) ERR00100 PTA call acl api failed\n"
    "EI0002: [PID: {pid}] 2025-06-25-10:45:23.586.187 The wait execution of the Notify register times out."
)
PASSED_ON = (
    "Traceback (most recent call last):\n"
    '  File "/opt/verl/trainer/main_ppo.py", line 40, in main\n'
    "    run_ppo(config)\n"
    "ray.exceptions.RayTaskError({kind}): ray::TaskRunner.run() (pid=100, ip=10.0.0.1, actor_id=1, repr=<main>)\n"
    '  File "/opt/verl/trainer/main_ppo.py", line 300, in run\n'
    "ray.exceptions.RayTaskError({kind}): ray::WorkerDict.actor_rollout_update_actor() (pid={pid}, ip=10.0.0.2, "
    "repr=<w>)\n"
    '  File "/opt/verl/workers/fsdp_workers.py", line 600, in update_actor\n'
    "{error}"
)
ENDED = "(TaskRunner pid=100) Training Progress: 100%|##########| 10/10 [00:08<00:00,  4.03s/it]"
STEP = "(TaskRunner pid=100) step:{} - global_seqlen/min:100 - actor/entropy:0.3"
HEALTHY = [
    "2025-07-14 11:15:34,582\tINFO worker.py:1786 -- Started a local Ray instance.",
    "INFO 02-22 16:36:35 [__init__.py:28] Available plugins for group vllm.platform_plugins:",
    'WARNING 03-06 01:16:37 _custom_ops.py:19] Failed to import from vllm._C with ModuleNotFoundError("No module '
    "named "
    "'vllm._C'\")",
    "/opt/torch_npu/utils/collect_env.py:58: UserWarning: Warning: The /usr/local/Ascend/latest owner does not match",
    "(WorkerDict pid=12) NCCL version is not asked for; HCCL_CONNECT_TIMEOUT=1500 HCCL_EXEC_TIMEOUT=3600",
    "Training Progress:   0%|          | 0/10 [00:00<?, ?it/s]",
    "(TaskRunner pid=100) {'trainer': {'device': 'npu', 'n_gpus_per_node': 8}}",
    "(vLLMHttpServer pid=101) WARNING 11-23 00:36:08 [__init__.py:2878] Found ulimit of 1024 and failed to "
    "automatically increase. This can cause fd limit errors like `OSError: [Errno 24] Too many open files`.",
    STEP.format(1),
    "Total training steps: 10",
]


def said(*parts: str, growing: bool = False) -> Diagnosis:
    return judge("\n".join(parts).splitlines(), growing=growing)


def passed_on(error: str, pid: str) -> str:
    return PASSED_ON.format(kind=error.split(":")[0], pid=pid, error=error)


# Logs without an error.


def test_a_healthy_log_has_no_error_and_says_how_far_it_came() -> None:
    diagnosis = said(*HEALTHY, growing=True)
    assert (diagnosis.verdict, diagnosis.root, diagnosis.followed) == (Conclusion.NONE, None, ())
    assert (diagnosis.lines, diagnosis.steps) == (len(HEALTHY), 1)


@given(st.lists(st.sampled_from(HEALTHY), max_size=30))
def test_no_order_of_healthy_lines_makes_an_error(lines: list[str]) -> None:
    assert judge(lines, growing=True).verdict is Conclusion.NONE
    assert judge([*lines, ENDED]).verdict is Conclusion.NONE
    assert judge(lines).root is None


@settings(max_examples=50)
@given(st.lists(st.text(max_size=80), max_size=30))
def test_any_text_is_read_to_its_end(lines: list[str]) -> None:
    assert judge(lines).lines == len(lines)


def test_an_error_after_which_the_job_went_on_is_no_cause() -> None:
    diagnosis = said(
        worker(raised("ValueError: could not parse the answer")), STEP.format(3), STEP.format(4), growing=True
    )
    assert diagnosis.verdict is Conclusion.NONE
    assert [each.event.error for each in diagnosis.survived] == ["ValueError: could not parse the answer"]


def test_an_error_at_the_last_step_that_was_under_way_is_one() -> None:
    assert said(STEP.format(3), worker(raised(OOM)), STEP.format(4)).verdict is Conclusion.CAUSE


def test_what_is_said_as_a_finished_job_ends_is_no_cause() -> None:
    diagnosis = said(STEP.format(10), "Training Progress: 100%|#| 10/10", raised("RuntimeError: exit while freeing"))
    assert diagnosis.verdict is Conclusion.NONE


# The cause.


def test_the_rank_that_failed_is_the_root_and_not_those_that_waited_for_it() -> None:
    waiting = [worker(WAITED.format(pid=pid, rank=rank), pid) for rank, pid in enumerate(("11", "12", "14"))]
    diagnosis = said(waiting[0], waiting[1], worker(raised(OOM), "13"), waiting[2])
    assert diagnosis.root is not None
    assert (diagnosis.root.name, diagnosis.root.event.process.pid) == ("npu-memory", "13")
    assert [each.name for each in diagnosis.followed] == ["hccl-notify-timeout"] * 3


def test_an_unknown_error_is_the_root_where_others_only_waited() -> None:
    diagnosis = said(
        worker(WAITED.format(pid="11", rank=0), "11"), worker(raised("ZeroDivisionError: division by zero"), "13")
    )
    assert diagnosis.verdict is Conclusion.UNKNOWN
    assert diagnosis.root is not None
    assert (diagnosis.root.event.error, diagnosis.root.event.process.pid) == (
        "ZeroDivisionError: division by zero",
        "13",
    )


def test_if_all_only_waited_the_log_has_consequences_alone() -> None:
    diagnosis = said(*(worker(WAITED.format(pid=pid, rank=rank), pid) for rank, pid in enumerate(("11", "12"))))
    assert diagnosis.verdict is Conclusion.CONSEQUENCE
    assert diagnosis.root is not None
    assert (diagnosis.root.event.process.pid, diagnosis.root.event.process.rank) == ("11", "0")


def test_rays_copy_names_the_process_where_it_began() -> None:
    root = said(passed_on(OOM, "13")).root
    assert root is not None
    assert (root.name, root.event.process.name, root.event.process.pid) == ("npu-memory", "WorkerDict", "13")


def test_the_error_itself_is_preferred_to_rays_copy_of_it() -> None:
    root = said(passed_on(OOM, "13"), worker(raised(OOM), "13")).root
    assert root is not None
    assert not root.event.passed_on


def test_the_earliest_is_told_by_the_time_that_torch_npu_writes() -> None:
    def failed(second: int, pid: str) -> str:
        about = f"[ERROR] 2025-06-25-10:45:{second} (PID:{pid}, Device:0, RankID:0) ERR00100 PTA call acl api failed"
        return worker(f"{raised(OOM)}\n{about}", pid)

    root = said(failed(40, "11"), failed(23, "12")).root
    assert root is not None
    assert root.event.process.pid == "12"


def test_hosts_whose_clocks_are_apart_are_compared_by_the_order_of_their_lines() -> None:
    def failed(minute: int, pid: str, ip: str) -> str:
        about = f"[ERROR] 2025-06-25-10:{minute}:30 (PID:{pid}, Device:0, RankID:0) ERR00100 PTA call acl api failed"
        return "\n".join(f"(WorkerDict pid={pid}{ip}) {line}" for line in f"{raised(OOM)}\n{about}".splitlines())

    def at_work(minute: int, second: int) -> str:
        return (
            f"(TaskRunner pid=1) 2025-06-25 10:{minute}:{second},000 at work\n"
            f"(WorkerDict pid=12, ip=10.0.0.2) 2025-06-25 10:{minute - 10}:{second + 1},000 at work"
        )

    # The other host's clock is ten minutes behind, so that its error looks like the first one.
    said_by_all = [at_work(44, second) for second in (10, 20, 30)] + [at_work(45, second) for second in (10, 20)]
    root = said(*said_by_all, failed(45, "11", ""), failed(36, "12", ", ip=10.0.0.2")).root
    assert root is not None
    assert root.event.process.pid == "11"


def test_a_clock_that_is_set_back_does_not_make_the_consequence_the_first_error() -> None:
    def failed(time: str, pid: str) -> str:
        about = f"[ERROR] 2025-06-25-{time} (PID:{pid}, Device:0, RankID:0) ERR00100 PTA call acl api failed"
        return worker(f"{raised(OOM)}\n{about}", pid)

    at_work = [worker(f"2025-06-25 {time},000 at work", "13") for time in ("10:45:20", "09:45:31")]
    root = said(at_work[0], failed("10:45:30", "11"), at_work[1], failed("09:45:40", "12")).root
    assert root is not None
    assert root.event.process.pid == "11"


def test_in_a_chain_of_exceptions_the_first_is_the_error() -> None:
    chain = (
        raised("ZeroDivisionError: division by zero")
        + "\n\nDuring handling of the above exception, another exception occurred:\n\n"
        + raised("RuntimeError: the reward could not be computed")
    )
    diagnosis = said(chain)
    assert diagnosis.root is not None
    assert diagnosis.root.event.error == "ZeroDivisionError: division by zero"
    assert diagnosis.followed == ()


def test_an_error_that_no_rule_knows_says_so_with_the_end_of_its_traceback() -> None:
    diagnosis = said(*HEALTHY, passed_on("KeyError: 'nothing_like_it'", "13"))
    assert diagnosis.verdict is Conclusion.UNKNOWN
    assert diagnosis.root is not None
    assert diagnosis.root.finding is None
    assert diagnosis.root.event.frames[-1].endswith("in update_actor")


def test_what_an_npu_says_later_does_not_explain_an_exception_of_another_kind() -> None:
    diagnosis = said(raised("KeyError: 'nothing_like_it'"), "EZ9999: Inner Error!")
    assert diagnosis.root is not None
    assert diagnosis.root.event.error == "KeyError: 'nothing_like_it'"
    assert diagnosis.verdict is Conclusion.UNKNOWN


def test_an_unknown_error_before_the_cause_is_told() -> None:
    diagnosis = said(worker(raised("KeyError: 'x'"), "11"), worker(raised(OOM), "12"))
    assert diagnosis.before is not None
    assert diagnosis.before.event.error == "KeyError: 'x'"


def test_source_code_in_a_traceback_is_not_what_was_said() -> None:
    quoted = '  File "/opt/x.py", line 3, in f\n    raise RuntimeError("NCCL is not available")'
    diagnosis = said(f"Traceback (most recent call last):\n{quoted}\nKeyError: 'x'")
    assert diagnosis.verdict is Conclusion.UNKNOWN


# Text around the lines and the order of the processes do not change the verdict.

CAUSES = [one for one in QUOTED if one.pid == "4711"]


def of_process(text: str, pid: str, colour: bool, rank: int | None) -> list[str]:
    around = ("\x1b[36m", "\x1b[0m") if colour else ("", "")
    said = f"[rank{rank}]: " if rank is not None else ""
    return [f"{around[0]}(WorkerDict pid={pid}){around[1]} {said}{line}" for line in text.splitlines()]


def plain(one: Quoted) -> str:
    return "\n".join(line.partition("\x1b[0m ")[2] for line in one.text.splitlines())


@settings(max_examples=50)
@given(st.data())
def test_prefixes_colours_and_interleaving_do_not_change_the_verdict(data: st.DataObject) -> None:
    cause = data.draw(st.sampled_from(CAUSES))
    bare = judge(plain(cause).splitlines())
    colour, rank = data.draw(st.booleans()), data.draw(st.none() | st.integers(0, 7))
    streams = [of_process(plain(cause), "4711", colour, rank)]
    for pid in data.draw(st.lists(st.sampled_from(["21", "22", "23"]), unique=True)):
        streams.append(of_process(WAITED.format(pid=pid, rank=1), pid, data.draw(st.booleans()), None))
    streams.append(list(HEALTHY))
    mixed = []
    while any(streams):
        stream = data.draw(st.sampled_from([one for one in streams if one]))
        mixed.append(data.draw(st.sampled_from(["", "2025-09-24T20:59:57.1Z "])) + stream.pop(0))
    diagnosis = judge(mixed)
    assert diagnosis.root is not None
    assert bare.root is not None
    if bare.verdict is Conclusion.CONSEQUENCE:
        # Nothing shows which of the waiting processes was the first.
        assert diagnosis.verdict is Conclusion.CONSEQUENCE
    else:
        assert (diagnosis.root.name, diagnosis.verdict) == (bare.root.name, bare.verdict)
        assert diagnosis.root.event.process.pid == "4711"


@pytest.mark.parametrize("one", CAUSES, ids=lambda one: one.rule)
def test_a_cause_that_ray_passes_on_has_the_same_name(one: Quoted) -> None:
    error = plain(one).splitlines()[4:]
    copy = passed_on("\n".join(error), "4711")
    root = said(copy).root
    assert root is not None
    assert (root.name, root.event.process.pid) == (one.rule, "4711")


def test_a_line_of_any_length_does_not_fill_the_memory(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    with log.open("wb") as stream:
        stream.seek(256 << 20)
        stream.write(f"\nTraceback (most recent call last):\n{OOM}\n".encode())
    tracemalloc.start()
    try:
        found = diagnose([log])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.root is not None
    assert found.root.name == "npu-memory"
    assert most < 16 << 20


def test_a_device_is_no_log() -> None:
    with pytest.raises(SourceError, match="a device, which may be endless"):
        diagnose([Path(os.devnull)])


# Very many errors.


def _alike(count: int) -> str:
    return "\n".join(worker(raised(f"ValueError: answer {number} has no number")) for number in range(count))


def test_rules_are_asked_about_few_of_very_many_errors_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    known = judgement._known
    monkeypatch.setattr(judgement, "_known", lambda event, rules: (asked.append(event), known(event, rules))[1])
    said = judge(_alike(3000).splitlines())
    assert said.verdict is Conclusion.UNKNOWN
    assert len(asked) < 30
    assert (said.left_out, len(said.followed)) == (2990, 9)


def test_the_cause_among_very_many_errors_that_are_alike_is_found() -> None:
    said = judge([*_alike(700).splitlines(), *worker(raised(OOM)).splitlines(), *_alike(700).splitlines()])
    assert said.root is not None
    assert (said.verdict, said.root.name) == (Conclusion.CAUSE, "npu-memory")


def test_the_last_of_very_many_errors_that_are_alike_counts() -> None:
    lines = [*_alike(700).splitlines(), *(STEP.format(step) for step in range(1, 6)), *_alike(1).splitlines()]
    said = judge(lines)
    assert (said.verdict, len(said.followed)) == (Conclusion.UNKNOWN, 0)
    assert said.root is not None
    assert said.root.event.line > lines.index(STEP.format(5))


def test_a_step_ends_an_error_and_is_no_part_of_it() -> None:
    said = judge([*raised("ValueError: odd").splitlines(), "step:1 - a:1.0", "step:2 - a:2.0"])
    assert [each.event.message for each in said.survived] == [["ValueError: odd"]]
    assert said.steps == 2


def test_the_clocks_of_many_hosts_are_looked_at_once_for_each_line() -> None:
    clocks = Clocks()
    for number in range(1000):
        clocks.note(f"10.0.0.{number}", str(number), "2026-01-01 10:00:09,000 loading")
    assert len(clocks._before) == 1000
    clocks.note("", "", "2026-01-01 10:00:01,000 waits")
    # The next line of its own host looks none of them up again.
    assert not clocks._before
    clocks.note("10.0.0.5", "5", "2026-01-01 10:00:10,000 loaded")
    assert clocks.ahead("10.0.0.5") == 8.5


def test_a_file_that_vanishes_from_a_folder_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.log").write_text(worker(raised(OOM)))
    (tmp_path / "b.log").write_text("")
    files = judgement._files

    def vanishing(path: Path) -> list[Path]:
        found = list(files(path))
        (tmp_path / "b.log").unlink()
        return found

    monkeypatch.setattr(judgement, "_files", vanishing)
    assert diagnose([tmp_path]).verdict is Conclusion.CAUSE


def test_a_folder_that_vanishes_meanwhile_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.log").write_text(worker(raised(OOM)))
    (tmp_path / "gone").mkdir()
    scandir = os.scandir

    def vanishing(path: str) -> object:
        if str(path).endswith("gone"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert diagnose([tmp_path]).verdict is Conclusion.CAUSE
