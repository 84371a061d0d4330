from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from ..diagnosis.quoted import raised, worker
from .conftest import Run

OOM = "RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 3; 60.96 GiB total capacity)"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text("Training Progress:   0%|\n" + worker(raised(OOM)) + "\n")
    return path


def test_the_cause_the_fix_and_the_process_are_printed(run: Run, log: Path) -> None:
    status, printed = run("doctor", "--log", str(log), columns=200)
    assert status == 1
    assert "cause: the cause is known" in printed
    assert "The error began in WorkerDict (pid 4711, host 10.0.0.2)" in printed
    assert f"{log}, line 2" in printed
    said = " ".join(printed.split())
    assert "an NPU has too little free memory for the request (NPU 3, 5.03 GiB of 60.96 GiB)" in said
    assert "To do: lower" in printed
    assert OOM in printed


def test_the_result_is_json_if_asked_for(run: Run, log: Path) -> None:
    status, printed = run("doctor", "--log", str(log), "--json")
    content = json.loads(printed)
    assert status == 1
    assert (content["verdict"], content["root"]["rule"]) == ("cause", "npu-memory")
    assert content["root"]["process"] == {
        "name": "WorkerDict",
        "pid": "4711",
        "host": "10.0.0.2",
        "rank": "",
        "npu": "",
    }
    assert content["root"]["seen"]


STEPS = "step:1 - actor/entropy:0.3\nstep:2 - actor/entropy:0.3\n"


def test_a_log_whose_training_came_to_its_end_has_status_0(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(f"Total training steps: 2\n{STEPS}")
    status, printed = run("doctor", "--log", str(path))
    assert status == 0
    assert "The log has 3 lines: the training finished; it has 2 steps." in printed


def test_of_an_asynchronous_training_it_is_said_which_side_waits(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    step = "timing_s/step:10.0 - timing_s/gen:4.0 - training/off_policy/trajectory_spans/max:np.int64(2)"
    steps = "".join(f"(TaskRunnerV1 pid=12) step:{number} - {step}\n" for number in range(1, 31))
    path.write_text(f"Total training steps: 30\n(TaskRunnerV1 pid=12) 'trainer_mode': 'separate_async'}},\n{steps}")
    status, printed = run("doctor", "--log", str(path), columns=200)
    assert status == 0
    assert "note: the trainer waits for answers for 40% of a step" in printed
    assert json.loads(run("doctor", "--json", "--log", str(path))[1])["waiting"]["trainer"] == 0.4
    path.write_text(path.read_text().replace("separate_async", "colocate_async"))
    assert "waits" not in run("doctor", "--log", str(path))[1]


def test_a_log_that_a_job_still_writes_to_has_status_0(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    with path.open("w") as stream:
        stream.write(STEPS)
        stream.flush()
        status, printed = run("doctor", "--log", str(path))
    assert status == 0
    assert "the job still writes to it" in printed


def test_a_log_that_just_ends_has_status_1_and_says_where_it_stops(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(f"Total training steps: 40\n{STEPS}")
    status, printed = run("doctor", "--log", str(path))
    assert status == 1
    assert "The log stops after step 2 of 40" in printed
    assert "step:2 - actor/entropy:0.3" in printed
    assert "memory" in printed


def test_a_packed_log_that_is_cut_is_one_line_and_status_2(run: Run, log: Path) -> None:
    packed = log.with_name("train.log.gz")
    packed.write_bytes(gzip.compress(log.read_bytes())[:-12])
    status, printed = run("doctor", "--log", str(packed))
    assert (status, len(printed.splitlines())) == (2, 1)


def test_an_empty_log_says_that_it_is_empty(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.log").touch()
    status, printed = run("doctor", "--log", str(tmp_path / "train.log"))
    assert status == 1
    assert "The log is empty" in printed


def test_a_binary_file_says_that_it_is_no_text(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "core.1234"
    path.write_bytes(bytes(range(256)) * 400)
    status, printed = run("doctor", "--log", str(path), columns=200)
    assert status == 1
    assert "is mostly binary" in " ".join(printed.split())


def test_what_ends_no_job_is_a_note_beside_an_error_alone(run: Run, log: Path) -> None:
    said = "verl-npu: 0.1.0: verl v0.6.1; device disabled, attention pending\n"
    healthy = log.with_name("healthy.log")
    healthy.write_text(said + "Total training steps: 2\nstep:1 - a:1\nstep:2 - a:1\n")
    assert "disabled" not in run("doctor", "--log", str(healthy))[1]
    log.write_text(said + log.read_text())
    assert "note: a feature of verl-npu was switched off" in run("doctor", "--log", str(log))[1]


def test_an_unknown_error_is_shown_with_its_traceback(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(raised("KeyError: 'nothing_like_it'", "/home/me/reward.py"))
    status, printed = run("doctor", "--log", str(path))
    assert status == 1
    assert "unknown: no rule matches this error" in printed
    assert 'File "/home/me/reward.py", line 12, in init_model' in printed
    assert "KeyError: 'nothing_like_it'" in printed


def test_a_folder_of_rays_logs_is_read_whole(run: Run, tmp_path: Path) -> None:
    (tmp_path / "worker-1a2b-01000000-4711.err").write_text(raised(OOM))
    (tmp_path / "worker-1a2c-01000000-4712.err").write_text(
        "EI0006: [PID: 4712] 2025-04-08-18:07:20.444.436 Getting socket times out.\n"
    )
    status, printed = run("doctor", "--log", str(tmp_path), "--json")
    content = json.loads(printed)
    assert status == 1
    assert (content["root"]["rule"], content["root"]["process"]["pid"]) == ("npu-memory", "4711")
    assert [each["rule"] for each in content["followed"]] == ["hccl-connect-timeout"]


@pytest.mark.parametrize("name", ["missing.log", "folder"])
def test_what_cannot_be_read_is_one_line_and_status_2(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    status, printed = run("doctor", "--log", str(tmp_path / name))
    assert status == 2
    assert printed.startswith(f"verl-npu: {tmp_path / name}: expected the log of a job")
    assert len(printed.splitlines()) == 1


def test_escape_sequences_of_a_log_do_not_reach_the_terminal(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(raised("KeyError: '\x1b]0;title\x07'"))
    _, printed = run("doctor", "--log", str(path))
    assert "\x1b]" not in printed


def test_an_error_with_many_causes_is_shown_with_its_candidates(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(raised("RuntimeError: call aclnnIndexPutImpl failed, error code is 161002"))
    printed = " ".join(run("doctor", "--log", str(path))[1].split())
    assert "code: this error code has many causes" in printed
    assert "Likely causes, the likeliest first: engine-defect (a defect in this version of the rollout" in printed
    root = json.loads(run("doctor", "--log", str(path), "--json")[1])["root"]
    assert (root["rule"], root["likely"][0]) == ("operator-refused", "engine-defect")


def test_an_error_in_the_users_own_code_is_said_to_be_there(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(raised("AttributeError: 'Reward' object has no attribute 'nothing'", "/home/me/job/reward.py"))
    assert "    in your code: " in run("doctor", "--log", str(path))[1]


def test_an_error_that_no_rule_knows_is_unknown_with_its_kind_and_its_candidates(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(raised("AttributeError: 'Engine' object has no attribute 'nothing'", "/opt/vllm/vllm/v1/core.py"))
    status, printed = run("doctor", "--log", str(path))
    said = " ".join(printed.split())
    assert (status, said.partition(":")[0]) == (1, "unknown")
    assert "It looks like engine-mistake: an error in the engine's own code" in said
    assert "in the engine's code: " in said
    assert "Likely causes, the likeliest first: engine-defect (a defect in this version of the rollout" in said
    root = json.loads(run("doctor", "--log", str(path), "--json")[1])["root"]
    assert (root["rule"], root["kind"], root["likely"][:2]) == (None, "engine-mistake", ["engine-defect", "vllm-pair"])


# Inputs that are no ordinary log.


def test_the_log_may_be_piped(run: Run, log: Path) -> None:
    with log.open() as piped:
        before = os.dup(0)
        os.dup2(piped.fileno(), 0)
        try:
            status, printed = run("doctor", "--log", "-", "--json")
        finally:
            os.dup2(before, 0)
            os.close(before)
    assert (status, json.loads(printed)["root"]["rule"]) == (1, "npu-memory")


def test_a_line_of_a_binary_file_is_cut(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "core.log"
    path.write_bytes(b"RuntimeError: " + b"\0\x1b\x07" * 5000 + b"\n" + b"text\n" * 5)
    status, printed = run("doctor", "--log", str(path))
    assert status == 1
    assert max(map(len, printed.splitlines())) < 400
    assert "\0" not in printed


def test_very_many_errors_that_are_alike_are_counted(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("\n".join(worker(raised(f"ValueError: answer {number} is odd")) for number in range(1000)))
    status, printed = run("doctor", "--log", str(path))
    assert status == 1
    assert "990 more errors were not examined" in " ".join(printed.split())
