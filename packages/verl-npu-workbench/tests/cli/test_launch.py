"""`verl-npu launch`: what it plans, and what it refuses before anything is started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from verl_npu_workbench.launch.network import here

from .conftest import Run

PLAN = ("launch", "--dry-run")


@pytest.fixture(autouse=True)
def virtual_npus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ASCEND", "2")
    for name in ("HCCL_EXEC_TIMEOUT", "GLOO_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME", "HCCL_IF_IP", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def own() -> str:
    """An address at which others would find this host."""
    outside = [interface.address for interface in here() if not interface.is_loopback]
    if not outside:
        pytest.skip("this host has no network")
    return outside[0]


def plan(run: Run, *arguments: str) -> str:
    status, output = run(*PLAN, *arguments, columns=250)
    assert status == 0, output
    return output


def test_the_head_starts_ray_and_runs_the_job(run: Run, own: str) -> None:
    said = plan(run, "--nodes", "4", "--head", own, "--", "bash", "run it.sh")
    assert f"{socket.gethostname()}: the head; 4 nodes, 0 spare" in said
    assert '--resources={"NPU": 2}\'' in said
    assert "--head --port=6766" in said
    assert "exec env -u ASCEND_RT_VISIBLE_DEVICES bash 'run it.sh'" in said
    assert "HCCL_EXEC_TIMEOUT=3600" in said
    assert f"HCCL_IF_IP={own}" in said


def test_another_node_joins_the_head(run: Run, own: str) -> None:
    said = plan(run, "--nodes", "2", "--head", "198.51.100.7", "--port", "7000", "--", "true")
    assert "a node of the head 198.51.100.7" in said
    assert "--address=198.51.100.7:7000" in said
    assert "--head" not in said.replace("the head", "")


def test_what_the_user_set_is_not_set_again(run: Run, own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_EXEC_TIMEOUT", "60")
    assert "HCCL_EXEC_TIMEOUT" not in plan(run, "--nodes", "2", "--head", own, "--", "true")


def test_the_lines_for_ssh_are_shown(run: Run, own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_BUFFSIZE", "300")
    said = plan(run, "--hosts", f"{own},198.51.100.7", "--ssh", "--", "bash", "it's.sh")
    assert "ssh -o BatchMode=yes 198.51.100.7" in said
    assert "HCCL_BUFFSIZE=300" in said
    assert f"--head={own}" in said
    assert "--attached" in said


def test_a_hostfile_names_the_machines(run: Run, own: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(f"{own} slots=8\n198.51.100.7 slots=8\n")
    assert "198.51.100.7" in plan(run, "--hostfile", str(tmp_path / "hosts"), "--", "true")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Missing argument 'COMMAND...'"),
        (("--nodes", "2", "--", "true"), "--head HOST"),
        (("--ssh", "--", "true"), "--ssh needs --hosts or --hostfile"),
        (("--hosts", "a,b", "--hostfile", "f", "--", "true"), "either --hosts or --hostfile"),
        (("--interface", "eth77", "--", "true"), "--interface eth77: expected an interface of this host"),
        (("--npus", "8", "--", "true"), "expected 8, found 2 virtual"),
        (("--restarts", "1", "--", "x", "trainer.resume_mode=disable"), "trainer.resume_mode=disable"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(run: Run, arguments: tuple[str, ...], said: str) -> None:
    status, output = run("launch", *arguments, columns=250)
    assert status == 2
    assert said in output
    assert "Traceback" not in output


def test_a_port_that_is_taken_is_refused_before_anything_is_started(run: Run, own: str) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = str(other.getsockname()[1])
        status, output = run("launch", "--port", port, "--", "true", columns=250)
    assert status == 2
    assert output.startswith(f"verl-npu: port {port} of this host: expected a free port for Ray")
    assert output.count("\n") == 1


def test_a_launch_is_planned_on_a_login_node(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIRTUAL_ASCEND")
    monkeypatch.setenv("PATH", "")
    output = plan(run, "--nodes", "4", "--head", "no-such-host.invalid", "--", "bash", "run.sh")
    assert "a node of the head no-such-host.invalid" in output
    assert "could not be started on this machine: no-such-host.invalid: expected the name" in output
    assert "could not be started on this machine: NPUs of this host: expected at least one" in output


def test_a_job_itself_is_refused_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIRTUAL_ASCEND")
    monkeypatch.setenv("PATH", "")
    status, output = run("launch", "--no-doctor", "--", "bash", "run.sh")
    assert status == 2
    assert "NPUs of this host: expected at least one" in " ".join(output.split())
