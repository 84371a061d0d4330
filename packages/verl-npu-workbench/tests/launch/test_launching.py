from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from verl_npu_workbench.launch import launching
from verl_npu_workbench.launch.meeting import Member, join
from verl_npu_workbench.processes import ProcessTree
from virtual_ascend.testing import free_port

from verl_npu.errors import LaunchError

OTHER = Member("n2", "10.0.0.2", 2, "train on 2", ready=True)


@dataclass
class Hosts:
    """A meeting that loses a host as soon as the job runs, if there is one."""

    lost: list[Member] = field(default_factory=list)
    members: tuple[Member, ...] = (OTHER, OTHER)
    started: int = 0

    def start(self) -> None:
        self.started = 1

    def look(self) -> list[Member]:
        found, self.lost = (self.lost, []) if self.started else ([], self.lost)
        return found


def run(meeting: Hosts, job: str, ray: str = "true") -> tuple[int, str]:
    processes = ProcessTree()
    request = SimpleNamespace(command=("sh", "-c", job))
    host: Any = SimpleNamespace(request=request, environ={"PATH": "/usr/bin:/bin"}, nodes=2, ray=lambda: [ray])
    try:
        return launching._run(host, meeting, processes, lambda line: None)  # type: ignore[arg-type]
    finally:
        assert processes.end(1) == []
        for started in processes._members.values():
            if started.output:
                started.output.close()


@pytest.mark.parametrize(("job", "status"), [("exit 7", 7), ("kill -TERM $$", 143), ("nowhere 2> /dev/null", 127)])
def test_the_status_is_the_jobs(job: str, status: int) -> None:
    assert run(Hosts(), job) == (status, f"the job ended with status {status}")


def test_a_job_that_hangs_after_a_loss_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "GRACE", 0.3)
    assert run(Hosts([OTHER]), "sleep 100") == (1, "the job was stopped; lost n2 (10.0.0.2, 2 NPUs)")


def test_a_ray_that_does_not_start_is_no_job() -> None:
    with pytest.raises(LaunchError, match="Ray on the head: expected a successful start"):
        run(Hosts(), "exit 0", "false")


def test_a_head_that_cannot_take_part_ends_the_others() -> None:
    port = free_port()
    request = SimpleNamespace(port=port - 1, wait=60.0)
    host: Any = SimpleNamespace(request=request, nodes=2, refusals=())
    own = Member("n1", "127.0.0.1", 0, "train on 2", trouble="cann: none")
    with ThreadPoolExecutor() as thread:
        head = thread.submit(launching._lead, host, own, lambda line: None)
        connection = join("127.0.0.1", port, replace(OTHER, ready=False), 10)
        assert connection is not None
        with pytest.raises(LaunchError, match="the head: expected a host that can take part; found cann: none"):
            head.result(10)
        message = connection.hear()
        connection.close()
    assert message == {"status": 2, "reason": "the head n1 (127.0.0.1, 0 NPUs) cannot take part: cann: none"}


@pytest.mark.parametrize(("content", "left"), [("10.0.0.1:6766", False), ("10.0.0.1:7000", True)])
@pytest.mark.parametrize("asked", [False, True], ids=["the usual folder", "--temp-dir"])
def test_no_later_job_looks_for_the_ray_that_has_ended(tmp_path: Path, content: str, left: bool, asked: bool) -> None:
    noted = tmp_path / "ray" / "ray_current_cluster"
    noted.parent.mkdir()
    noted.write_text(content)
    request = SimpleNamespace(port=6766, ray=(f"--temp-dir={noted.parent}",) if asked else ())
    environ = {"RAY_TMPDIR": str(tmp_path / "other" if asked else tmp_path)}
    host: Any = SimpleNamespace(request=request, head="10.0.0.1", environ=environ)
    launching._end(host, ProcessTree())
    assert noted.exists() == left
