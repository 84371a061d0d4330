"""Processes tell each other their manifests; what goes wrong ends no import and no job."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interpreter import python
from verl_npu import reporting
from verl_npu.features.fleet import manifests

OWN = {"host": "h", "pid": 1, "token": "t", "role": "driver"}


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "_said", set())
    monkeypatch.setattr(manifests, "manifest", lambda: OWN)


def failing(*args: object) -> object:
    raise RuntimeError("GCS is gone")


def test_what_is_raised_when_a_worker_tells_its_manifest_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(manifests.process, "is_ray_worker", lambda: True)
    monkeypatch.setattr(manifests, "_put_into_ray", failing)
    manifests.publish()
    assert "could not be told to the others: RuntimeError: GCS is gone" in capsys.readouterr().err


@pytest.fixture(params=["ray", "group"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the manifests are."""
    monkeypatch.setattr(manifests, "_is_in_ray", lambda: request.param == "ray")
    monkeypatch.setattr(manifests, "_is_rank", lambda: request.param == "group")
    return str(request.param)


def test_manifests_that_cannot_be_read_leave_that_of_this_process(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, f"_read_from_{where}", failing)
    assert manifests.published() == manifests.Reading([OWN], (), "RuntimeError: GCS is gone")


def test_a_process_that_told_its_manifest_earlier_counts_once(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier, other = {**OWN, "role": "earlier"}, {**OWN, "token": "u"}
    monkeypatch.setattr(manifests, f"_read_from_{where}", lambda: ([earlier, other], ["rank 2"]))
    assert manifests.published() == manifests.Reading([other, OWN], ["rank 2"])


PROGRAM = """
import os, sys
rank = int(os.environ["RANK"])
if rank == 1:
    os.environ.update(dict(pair.split("=") for pair in sys.argv[1:]))
import torch.distributed
from torch.distributed import init_process_group
# Upstream asks for the NPU's backend, and these ranks have none.
torch.distributed.init_process_group = lambda backend, **kwargs: init_process_group("gloo", **kwargs)
import verl.utils.distributed as distributed
from verl.utils.tracking import Tracking
import verl_npu.features.fleet.manifests as manifests

manifests._SECONDS = 5.0
distributed.initialize_global_process_group()
torch.distributed.barrier()
if rank == 0:
    Tracking("project", "experiment")
torch.distributed.barrier()
print("TRAINED", flush=True)
"""


@pytest.mark.upstream
@pytest.mark.parametrize(
    ("strict", "of_rank_1", "said"),
    [("1", [], "2 processes agree on what is patched"), ("0", ["VERL_NPU=off"], "probably not active: rank 1")],
    ids=["alike", "one is not active"],
)
def test_ranks_that_torchrun_started_are_compared(
    strict: str, of_rank_1: list[str], said: str, tmp_path: Path
) -> None:
    pytest.importorskip("verl")
    (tmp_path / "program.py").write_text(PROGRAM)
    own = {"VERL_NPU": "on", "VERL_NPU_STRICT": strict, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    ranks = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    done = python(*ranks, str(tmp_path / "program.py"), *of_rank_1, clean="VERL_NPU", **own)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("TRAINED") == 2
    assert said in done.stderr
