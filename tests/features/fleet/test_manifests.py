"""Processes publish their manifests to each other; no failure there ends an import or a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from testing.interpreter import python

from verl_npu.errors import FleetError
from verl_npu.features.fleet import comparison, manifests
from verl_npu.manifest import SCHEMA, Manifest, encoded

NIGHTLY = pytest.mark.nightly("verl_npu/features/fleet")
OWN: Manifest = {
    "version": "1",
    "active": True,
    "origin": "import verl_npu",
    "simulated": True,
    "role": "driver",
    "upstreams": {"verl": {"nearest_pin": "v0.6.1", "exact": True, "differs": []}},
    "features": {"device": {"owner": "", "state": "applied", "patches": {}}},
    "natives": {},
    "tainted": [],
    "seconds": 0.1,
    "host": "h",
    "pid": 1,
    "token": "t",
}


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "manifest", lambda: OWN)


def failing(*args: object) -> object:
    raise RuntimeError("GCS is gone")


def test_what_is_raised_when_a_worker_tells_its_manifest_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(manifests.process, "is_ray_worker", lambda: True)
    monkeypatch.setattr(manifests, "_put_into_ray", failing)
    manifests.publish()
    assert "could not publish its manifest to the others: RuntimeError: GCS is gone" in capsys.readouterr().err


@pytest.fixture(params=["ray", "group"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the place of the manifests."""
    monkeypatch.setattr(manifests, "_is_in_ray", lambda: request.param == "ray")
    monkeypatch.setattr(manifests, "_is_rank", lambda: request.param == "group")
    return str(request.param)


def test_manifests_that_cannot_be_read_leave_that_of_this_process(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, f"_read_from_{where}", failing)
    assert manifests.published() == manifests.Reading([OWN], unreadable="RuntimeError: GCS is gone")


def test_a_process_that_told_its_manifest_earlier_counts_once(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier, other = {**OWN, "role": "earlier"}, {**OWN, "token": "u"}
    told = [("rank 0", encoded(earlier)), ("rank 1", encoded(other))]
    monkeypatch.setattr(manifests, f"_read_from_{where}", lambda: (told, ["rank 2"]))
    assert manifests.published() == manifests.Reading([{"schema": SCHEMA, **other}, OWN], ["rank 2"])


HOSTILE = {
    "nothing": b"",
    "bytes": b"\xff\xfe",
    "no object": b"[1, 2]",
    "another schema": json.dumps({**OWN, "schema": 1}).encode(),
    "no features": json.dumps({"schema": SCHEMA, **{k: v for k, v in OWN.items() if k != "features"}}).encode(),
    "a number for a state": json.dumps(
        {"schema": SCHEMA, **OWN, "features": {"device": {"owner": "", "state": 3, "patches": {}}}}
    ).encode(),
    "a list for a host": json.dumps({"schema": SCHEMA, **OWN, "host": ["h"]}).encode(),
    "too deep": b"[" * 100_000,
    "too large": encoded({**OWN, "role": "x" * (3 << 20)}),
}


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return torch's store, in which a stranger may write; this process is rank 0 of two."""
    torch = pytest.importorskip("torch")
    store = torch.distributed.HashStore()
    monkeypatch.setattr(manifests, "_store", lambda: store)
    monkeypatch.setattr(manifests, "_is_in_ray", lambda: False)
    monkeypatch.setattr(manifests, "_is_rank", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    return store


@pytest.mark.parametrize("written", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_a_stranger_writes_to_the_store_is_one_line(
    stranger: Any, written: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger.set("verl_npu/manifest/1", written)
    comparison.compare()
    said = capsys.readouterr().err
    assert "the manifest of rank 1 cannot be read: " in said
    assert said.count("\n") == 1
    assert len(said) < 1000


def test_what_a_stranger_writes_commands_no_terminal(stranger: Any, capsys: pytest.CaptureFixture[str]) -> None:
    said = "\x1b]0;owned\x07\u202e\n[red]verl-npu: all is well"
    features = {f"f{number}{said}": {"owner": "", "state": said, "patches": {}} for number in range(500)}
    stranger.set("verl_npu/manifest/1", encoded({**OWN, "host": said, "version": said * 1000, "features": features}))
    comparison.compare()
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.rstrip("\n").isprintable()
    assert len(said) < 20_000


def test_under_strict_what_a_stranger_writes_is_an_error_of_ours(
    stranger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_NPU_STRICT", "1")
    stranger.set("verl_npu/manifest/1", "{}\x1b[2J")
    with pytest.raises(FleetError, match="the manifest of rank 1 cannot be read") as raised:
        comparison.compare()
    assert str(raised.value).isprintable()


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

manifests._TIMEOUT_SECONDS = 5.0
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
    [
        pytest.param("1", [], "2 processes agree on what is patched", id="alike", marks=NIGHTLY),
        pytest.param("0", ["VERL_NPU=off"], "probably not active: rank 1", id="one is not active", marks=NIGHTLY),
    ],
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
