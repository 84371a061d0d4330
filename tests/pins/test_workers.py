"""The overrides that each Megatron worker gets at every pin, and when, with and without verl-npu.

Needs VERL_NPU_UPSTREAMS, a folder with `verl-<pin>/` for the pins that are in no registry, `mindspeed-<revision>/`
(checkouts of github.com/Ascend/MindSpeed) and `megatron-<version>/` (`pip install --no-deps --target` of megatron-core
in that version, einops and scipy).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from virtual_ascend.testing import environment

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]

PROGRAM = Path(__file__).with_name("reaching.py")
RECORD = Path(__file__).resolve().parents[2] / "docs/records/megatron-workers.json"
LEGACY = ("actor", "ref", "critic", "reward_model")
# The revisions that upstream's documents name for the pin; at v0.9.1 they name core_r0.16.0, which needs
# triton-ascend.
PINS = {
    "796871d7": ("1cdd0abd75", "0.12.1", LEGACY),
    "v0.6.1": ("f2b0977e", "0.12.1", (*LEGACY, "engine")),
    "ccd7d934": ("f2b0977e", "0.12.1", (*LEGACY, "engine")),
    "v0.7.1": ("2.3.0_core_r0.12.1", "0.12.1", ("actor", "ref", "critic", "engine")),
    "v0.9.1": ("core_r0.15.3", "0.15.3", ("engine", "value_engine")),
}
ASKED = {"actor": 0.1, "ref": 0.2, "critic": 0.3, "reward_model": 0.4, "engine": 0.5, "value_engine": 0.6}
NOTHING = (None, None)


def without(pin: str, worker: str) -> tuple[Any, Any]:
    """Return flash attention and hidden_dropout as upstream gives them to MindSpeed before the groups are made."""
    if pin == "v0.9.1":
        return True, ASKED[worker]
    return (None, ASKED["actor"]) if worker in ("actor", "ref") else NOTHING


@pytest.fixture(scope="module")
def unpacked(source, tmp_path_factory: pytest.TempPathFactory):
    """Return a function that finds the folder of verl at a pin. Wheels are unpacked, since upstream reads files."""

    def find(pin: str) -> Path:
        path: Path = source("verl", pin)
        if path.is_dir():
            return path
        folder = tmp_path_factory.mktemp(f"verl-{pin}")
        zipfile.ZipFile(path).extractall(folder)
        return folder

    return find


@pytest.fixture(scope="module", params=PINS)
def pin(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def table(pin: str, unpacked) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the overrides that each worker got, by `with` and `without`."""
    revision, core, workers = PINS[pin]
    folder = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none"))
    wanted = [folder / f"mindspeed-{revision}", folder / f"megatron-{core}"]
    if not all(path.is_dir() for path in wanted):
        pytest.skip(f"set VERL_NPU_UPSTREAMS to a folder with {' and '.join(path.name + '/' for path in wanted)}")
    paths = [str(unpacked(pin)), *map(str, wanted), os.environ.get("PYTHONPATH", "")]
    found = {}
    for label, disabled in (("with", None), ("without", "megatron")):
        result = subprocess.run(
            [sys.executable, str(PROGRAM), *workers],
            env=environment(PYTHONPATH=os.pathsep.join(filter(None, paths)), VERL_NPU_DISABLE=disabled),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        rows = [json.loads(line[6:]) for line in result.stdout.splitlines() if line.startswith("TABLE ")]
        assert [row["worker"] for row in rows] == list(workers), result.stderr[-3000:]
        found[label] = {row["worker"]: row for row in rows}
    return found


def shown(pin: str, table: dict[str, dict[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the runs of the record."""

    def cell(row: dict[str, Any]) -> str:
        when = row["events"].index("repatch") if "repatch" in row["events"] else None
        if when is None:
            return "never"
        by_then = row["by then"]["hidden_dropout"], row["by then"]["use_flash_attn"]
        if when > row["events"].index("model parallel groups"):
            end = row["at the end"]["hidden_dropout"]
            return f"after the groups: {'its own' if end is not None else 'flash attention alone'}"
        whose = "its own" if by_then[0] == ASKED[row["worker"]] else "the actor's"
        return f"before the groups: {whose}{', with flash attention' if by_then[1] else ''}"

    return [
        {
            "pin": pin,
            "job": worker,
            "results": {
                "upstream alone": cell(table["without"][worker]),
                "with verl-npu": cell(table["with"][worker]),
            },
        }
        for worker in table["with"]
    ]


def test_every_worker_gets_its_own_overrides_before_the_groups(pin: str, table) -> None:
    for worker, row in table["with"].items():
        assert row["by then"] == {"use_flash_attn": True, "hidden_dropout": ASKED[worker]}, row
        assert row["events"].index("repatch") < row["events"].index("model parallel groups")
        assert row["at the end"] == row["by then"], "what upstream asks for later changes nothing"


def test_without_verl_npu_workers_do_not_get_them(pin: str, table) -> None:
    # If this fails, upstream has fixed something, and a patch can go.
    for worker, row in table["without"].items():
        got = row["by then"]["use_flash_attn"], row["by then"]["hidden_dropout"]
        assert got == without(pin, worker), row


def test_the_record_has_these_runs(pin: str, table) -> None:
    runs = json.loads(RECORD.read_text())["runs"]
    assert [run for run in runs if run["pin"] == pin] == shown(pin, table)
