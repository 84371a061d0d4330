"""Batches that tensordict copies to and from a virtual NPU whose copies arrive late."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from virtual_ascend.testing.fixtures import Run

pytest.importorskip("torch")

pytestmark = [
    pytest.mark.virtual,
    pytest.mark.upstream,
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the wheels of tensordict here are for Python 3.11"),
]

PROGRAM = """
import io, json, torch, verl, tensordict
from tensordict import LazyStackedTensorDict, TensorDict
from verl_npu.activation import status

def batch(device): return TensorDict({"a": torch.arange(4.0, device=device)}, batch_size=[4], device=device)
def right(moved): return moved["a"].tolist() == [0, 1, 2, 3]
def fresh(made): torch.npu.synchronize(); return made
def overwritten(host): moved = host.to("npu"); host["a"].fill_(7); return moved
def saved(made): torch.save(made, file := io.BytesIO()); file.seek(0); return torch.load(file, weights_only=False)

x = batch("npu")
one = fresh(x.consolidate())
out = {
    "to the host": right(x.to("cpu")),
    "to the host by cpu()": right(fresh(x).cpu()),
    "to the host by the constructor": right(TensorDict({"a": fresh(x)["a"]}, batch_size=[4], device="cpu")),
    "to the host and saved": right(saved(fresh(x).to("cpu").consolidate())),
    "to the host, a stack": right(LazyStackedTensorDict(fresh(x), x).to("cpu")[0]),
    "to the NPU, then overwritten": right(overwritten(batch("cpu"))),
    "consolidated, to the host": right(one.to("cpu")),
    "consolidated, to the NPU, then overwritten": right(overwritten(batch("cpu").consolidate())),
    "not to be waited for": right(fresh(x).to("cpu", non_blocking=True)),
    "consolidated, not to be waited for": right(fresh(one).to("cpu", non_blocking=True)),
}
patches = status()["features"]["host_copies"]["patches"]
print(json.dumps([tensordict.__version__, {name: patch["state"] for name, patch in patches.items()}, out]))
"""
UNAWAITED = {"not to be waited for", "consolidated, not to be waited for"}
CONSOLIDATED = {"consolidated, to the host", "consolidated, to the NPU, then overwritten"}


@pytest.fixture(scope="session")
def unpacked(source: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives the folder of an importable tensordict in a version."""

    def find(version: str) -> Path:
        folder = tmp_path_factory.mktemp(f"tensordict-{version}")
        zipfile.ZipFile(source("tensordict", version)).extractall(folder)
        return folder

    return find


Outcome = Callable[..., tuple[dict[str, str], set[str]]]


@pytest.fixture
def outcome(python: Run, importable: Callable[[str], Path], unpacked: Callable[[str], Path]) -> Outcome:
    """Return a function that gives the patches' states and the names of the copies that were wrong."""

    def run(pin: str, version: str, **changes: str) -> tuple[dict[str, str], set[str]]:
        paths = [str(unpacked(version)), str(importable(pin)), os.environ.get("PYTHONPATH", "")]
        result = python(
            PROGRAM, PYTHONPATH=os.pathsep.join(filter(None, paths)), VIRTUAL_ASCEND_COPIES="delayed", **changes
        )
        assert result.returncode == 0, result.stderr
        content: list[Any] = json.loads(result.stdout.splitlines()[-1])
        assert content[0] == version
        return content[1], {name for name, good in content[2].items() if not good}

    return run


@pytest.mark.parametrize("version", ["0.8.3", "0.9.1"])
def test_without_verl_npu_every_kind_of_copy_is_wrong_at_796871d7(outcome: Outcome, version: str) -> None:
    states, wrong = outcome("796871d7", version, VERL_NPU_DISABLE="host_copies")
    assert set(states.values()) == {"off"}
    assert len(wrong) == 10, wrong


@pytest.mark.parametrize("version", ["0.8.3", "0.9.1"])
def test_with_it_every_copy_that_is_to_be_waited_for_is_right(outcome: Outcome, version: str) -> None:
    states, wrong = outcome("796871d7", version)
    assert set(states.values()) == {"applied"}
    assert wrong == UNAWAITED


@pytest.mark.nightly("verl_npu/features/host_copies")
def test_verls_own_function_leaves_consolidated_batches_to_us(outcome: Outcome) -> None:
    states, wrong = outcome("v0.6.1", "0.9.1", VERL_NPU_DISABLE="host_copies")
    assert wrong == UNAWAITED | CONSOLIDATED
    states, wrong = outcome("v0.6.1", "0.9.1")
    assert states == {
        "host_copies.wait_for_batch_copies": "native",
        "host_copies.wait_for_consolidated_batch_copies": "applied",
    }
    assert wrong == UNAWAITED


def test_from_0_10_on_tensordict_waits_itself(outcome: Outcome) -> None:
    states, wrong = outcome("796871d7", "0.10.0")
    assert set(states.values()) == {"native"}
    assert wrong >= UNAWAITED
