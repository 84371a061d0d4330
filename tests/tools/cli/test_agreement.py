"""What `check` says of an environment is what a job in it does: the same features, the same errors."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interpreter import import_path

pytestmark = [pytest.mark.upstream, pytest.mark.virtual]

VALUES: Mapping[str, tuple[str, ...]] = {
    "VERL_NPU": ("", "on", "auto", "off", "maybe"),
    "VERL_NPU_STRICT": ("", "0", "1", "ja"),
    "VERL_NPU_DISABLE": ("", "attention", "atention", "device, fleet", "device,nothing"),
    "VERL_NPU_FORCE": ("", "attention", "fused-ops"),
    "VERL_NPU_PLACEMENT_TIMEOUT": ("", "60", "soon"),
}
TREES = ("as installed", "drifted", "a recipe of the user's")
ALL = [(tree, dict(zip(VALUES, texts, strict=True))) for tree, *texts in itertools.product(TREES, *VALUES.values())]
CHOSEN = random.Random(31).sample(ALL, 200)
DAILY = 1
JOB = """
import json
import verl
import verl.trainer.main_ppo
import verl_npu
said = verl_npu.status()
states = {name: feature["state"] for name, feature in said["features"].items()}
print("JOB " + json.dumps({"active": said["active"], **states}))
"""


@dataclass(frozen=True)
class Told:
    """What one of the two said."""

    status: int
    features: Mapping[str, str]
    errors: str


@pytest.fixture
def job(tmp_path: Path) -> Callable[[Mapping[str, str]], Told]:
    def run(environ: Mapping[str, str]) -> Told:
        done = _run([sys.executable, "-c", JOB], environ, tmp_path)
        said = [line for line in done.stdout.splitlines() if line.startswith("JOB ")]
        return Told(done.returncode, json.loads(said[0][4:]) if said else {}, " ".join(done.stderr.split()))

    return run


@pytest.fixture
def checked(tmp_path: Path) -> Callable[[Mapping[str, str]], tuple[Told, list[str]]]:
    def run(environ: Mapping[str, str]) -> tuple[Told, list[str]]:
        done = _run([sys.executable, "-m", "verl_npu", "check", "--json"], environ, tmp_path)
        said = json.loads(done.stdout)
        features = {feature["name"]: feature["state"] for feature in said["features"]}
        return Told(done.returncode, features, done.stderr), said["wrong_variables"]

    return run


def _run(command: list[str], environ: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=dict(environ), cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )


def _environment(source: str, variables: Mapping[str, str], folder: Path, drifted: Path) -> dict[str, str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("VERL_NPU")}
    front = drifted if source == "drifted" else folder
    if source == "a recipe of the user's":
        (folder / "recipe" / "mine").mkdir(parents=True)
        (folder / "recipe" / "mine" / "main.py").touch()
    given = {name: text for name, text in variables.items() if text}
    return {**clean, **given, "VIRTUAL_ASCEND": "2", "PYTHONPATH": os.pathsep.join((str(front), import_path()))}


@pytest.mark.parametrize(
    ("source", "variables"),
    [
        pytest.param(source, variables, marks=[pytest.mark.nightly] if number >= DAILY else [], id=str(number))
        for number, (source, variables) in enumerate(CHOSEN)
    ],
)
def test_a_job_does_what_check_says(source, variables, checked, job, tmp_path: Path, drifted: Path) -> None:
    environ = _environment(source, variables, tmp_path, drifted)
    said, wrong = checked(environ)
    done = job(environ)
    strict = variables["VERL_NPU_STRICT"] in ("1", "ja")
    concerned = [error for error in wrong if "PLACEMENT" not in error]  # what reads it is not part of an import
    off = variables["VERL_NPU"] in ("off", "maybe")
    # What a job meets, it says in the words of check.
    assert [error for error in concerned if error not in done.errors and not (off and "VERL_NPU=" not in error)] == []
    drifts = "drifted" in said.features.values()
    if strict and (drifts or concerned) and variables["VERL_NPU"] != "off":
        assert done.status != 0
        assert "Error" in done.errors
        return
    assert done.status == 0, done.errors
    assert done.features["active"] is not off
    in_force = {"applied", "pending"}
    for name, state in said.features.items() if not off else ():
        forced = state == "drifted" and name == variables["VERL_NPU_FORCE"]
        assert done.features[name] in (in_force if forced or state == "verified" else {state}), name
