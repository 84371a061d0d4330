"""The table of features that a run ends with is readable in a terminal of 80 columns."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from harness import manifests

pytest.importorskip("rich")
pytest.importorskip("pandas")  # for the generated data

from harness import summary
from rich.console import Console
from verl_npu_workbench import translations  # noqa: F401 - importing it registers the catalogue

from verl_npu.language import CHINESE, speaking
from verl_npu.manifest import Manifest

from .conftest import write_states

FEATURES = ("device", "attention", "fused_ops", "rollout", "weight_sync", "megatron", "fleet")
ROLES = ("driver", "TaskRunner", "WorkerDict", "WorkerDict", "AgentLoopWorker", "RewardLoopWorker")


def job(folder: Path, **odd: str) -> list[Manifest]:
    """Return the manifests of a job of six processes; `odd` gives the state of a feature in the last WorkerDict."""
    for pid, role in enumerate(ROLES):
        state = "applied" if role == "WorkerDict" else "pending"
        write_states(folder, role, pid, **(dict.fromkeys(FEATURES, state) | (odd if pid == 3 else {})))
    return manifests.read(folder)


def printed(found: list[Manifest]) -> str:
    stream = io.StringIO()
    summary.print_features(found, Console(file=stream, width=80, markup=False, highlight=False))
    return stream.getvalue()


def test_it_is_in_the_language_of_the_user(tmp_path: Path) -> None:
    found = job(tmp_path)
    with speaking(CHINESE):
        text = printed(found)
    assert "各进程中的 verl-npu" in text
    assert "applied: verl-npu 的补丁已检查并应用" in text


def test_every_feature_state_and_role_is_whole_at_80_columns(tmp_path: Path) -> None:
    text = printed(job(tmp_path))
    assert all(len(line) <= 80 for line in text.splitlines())
    for word in (*FEATURES, *ROLES, "applied", "pending", "2 WorkerDict"):
        assert word in text


def test_a_process_that_differs_from_others_of_its_role_is_named(tmp_path: Path) -> None:
    text = printed(job(tmp_path, device="drifted"))
    assert "WorkerDict here:3" in text
    assert "device.one: so" in text


def test_escapes_in_a_manifest_do_not_reach_the_terminal(tmp_path: Path) -> None:
    found = job(tmp_path)
    for manifest in found:
        manifest["role"] = "\x1b[31m[bold]worker"
    text = printed(found)
    assert "\x1b" not in text
    assert "[bold]" in text


def test_without_manifests_the_table_says_so() -> None:
    assert "no process wrote a manifest" in printed([])
