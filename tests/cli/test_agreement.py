"""`check` predicts what a job in the same environment does: the same features, the same errors.

A job imports verl and its trainer. For other releases, `check` says what becomes of verl-npu's features; it leaves
conflicts between packages to the packages themselves and to `verl-npu doctor`.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from testing.interpreter import import_path

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
class Answer:
    """The answer of either `check` or a job."""

    status: int
    features: Mapping[str, str]
    errors: str


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Answer]:
    def run(environ: Mapping[str, str], python: str = sys.executable) -> Answer:
        done = _run([python, "-c", JOB], environ, tmp_path)
        said = [line for line in done.stdout.splitlines() if line.startswith("JOB ")]
        return Answer(done.returncode, json.loads(said[0][4:]) if said else {}, " ".join(done.stderr.split()))

    return run


@pytest.fixture
def checked(tmp_path: Path) -> Callable[[Mapping[str, str]], tuple[Answer, list[str]]]:
    def run(environ: Mapping[str, str]) -> tuple[Answer, list[str]]:
        done = _run([sys.executable, "-m", "verl_npu", "check", "--json"], environ, tmp_path)
        said = json.loads(done.stdout)
        features = {feature["name"]: feature["state"] for feature in said["features"]}
        return Answer(done.returncode, features, done.stderr), said["wrong_variables"]

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


def _importing_first(folder: Path) -> dict[str, str]:
    """Return the variables for processes that import from `folder` first."""
    return _environment("", {}, folder, folder)


def _assert_same_features(said: Answer, done: Answer) -> None:
    for name, state in said.features.items():
        assert done.features[name] in ({"applied", "pending"} if state == "pending" else {state}), name


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
    concerned = [error for error in wrong if "PLACEMENT" not in error]  # an import does not read PLACEMENT
    off = variables["VERL_NPU"] in ("off", "maybe")
    # A job reports the errors that it meets in the words of `check`.
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
        assert done.features[name] in (in_force if forced or state == "pending" else {state}), name


@pytest.mark.nightly("verl_npu/features/", "verl_npu/registry/")
@pytest.mark.parametrize("pin", ["796871d7", "ccd7d934", "v0.7.0", "v0.7.1", "v0.8.0", "v0.9.0"])
def test_a_job_does_what_check_says_of_another_verl(pin, importable, checked, job) -> None:
    environ = _importing_first(importable(pin))
    said, _ = checked(environ)
    assert said.status == 0
    _assert_same_job(said, job(environ))


RELEASES = {
    "transformers 4.51": ("transformers==4.51.0", "tokenizers==0.21.4"),
    "transformers 4.52": ("transformers==4.52.4", "tokenizers==0.21.4"),
    "transformers 5": ("transformers==5.0.0",),
    "tensordict 0.9": ("tensordict==0.9.1",),
    "hydra 1.3.2": ("hydra-core==1.3.2",),
}


@pytest.mark.nightly("verl_npu/features/", "verl_npu/registry/")
@pytest.mark.parametrize("packages", RELEASES.values(), ids=RELEASES.keys())
def test_a_job_does_what_check_says_of_other_releases(packages, checked, job, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path)]
    subprocess.run([*command, *packages], check=True)
    environ = _importing_first(tmp_path)
    _assert_same_job(checked(environ)[0], job(environ))


def _assert_same_job(said: Answer, done: Answer) -> None:
    if done.status == 0:
        _assert_same_features(said, done)
    else:  # these packages do not fit each other, and say so themselves
        assert done.features == {}
        assert "Error: " in done.errors
        assert "verl_npu.errors" not in done.errors


@pytest.mark.nightly("verl_npu/registry/")
@pytest.mark.parametrize("distribution", ["transformers-4.40.0", "verl-0.9.9", "hydra_core-1.0.0", "vllm-0.11.0"])
def test_a_job_does_what_check_says_beside_what_is_left_of_another_release(
    distribution, checked, job, tmp_path: Path
) -> None:
    name, _, version = distribution.partition("-")
    (tmp_path / f"{distribution}.dist-info").mkdir()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (tmp_path / f"{distribution}.dist-info" / "METADATA").write_text(text)
    environ = _importing_first(tmp_path)
    said, _ = checked(environ)
    assert said.status == 0
    _assert_same_job(said, job(environ))


MISSING = {
    "hydra": "hydra-core",
    "omegaconf": "omegaconf",
    "ray": "ray",
    "tensordict": "tensordict",
    "transformers": "transformers",
    "yaml": "PyYAML",
}


def _without(module: str, folder: Path) -> str:
    """Return the Python of a copy of this environment that lacks `module`."""
    venv.create(folder, symlinks=True)
    site = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.name != module and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    return str(folder / "bin" / "python")


@pytest.mark.parametrize(
    ("module", "package"),
    [
        pytest.param(module, package, marks=[] if module == "ray" else [pytest.mark.nightly], id=package)
        for module, package in MISSING.items()
    ],
)
def test_a_job_misses_what_check_says_is_missing(module, package, job, tmp_path: Path) -> None:
    python = _without(module, tmp_path / "environment")
    environ = _importing_first(tmp_path)
    said = _run([python, "-m", "verl_npu", "check", "--json"], environ, tmp_path)
    assert (said.returncode, json.loads(said.stdout)["lacking"]) == (0, [package])
    done = job(environ, python)
    assert done.status != 0
    assert f"ModuleNotFoundError: No module named '{module}'" in done.errors
