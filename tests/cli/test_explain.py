"""`explain` describes a patch, a target, or a feature, and refuses any other name."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata

import pytest

from verl_npu import codes
from verl_npu.features import load

from .conftest import Run


def codes_of_another() -> Iterable[codes.Meaning]:
    return ()


@pytest.mark.upstream
@pytest.mark.parametrize("name", ["device.set_npu_in_run_ppo_config", "verl.trainer.main_ppo:run_ppo"])
def test_a_patch_is_explained_by_its_id_and_by_its_target(run: Run, name: str) -> None:
    status, output = run("explain", name)
    assert status == 0
    for part in ("why", "how", "retired by", "v0.6.1 needed", "+def set_npu_in_run_ppo_config("):
        assert part in output


def test_a_feature_lists_its_patches(run: Run) -> None:
    fleet = next(feature for feature in load() if feature.name == "fleet")
    status, output = run("explain", "fleet")
    assert status == 0
    assert [patch.id for patch in fleet if patch.id not in output.split()] == []


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("device.set_npu_in_run_ppo_confg", "device.set_npu_in_run_ppo_config"),
        ("set_npu_in_run_ppo", "device.set_npu_in_run_ppo_config"),
        ("run_ppo", "device.set_npu_in_run_ppo_config"),
        ("verl.trainer.main_pp:run_ppo", "verl.trainer.main_ppo:run_ppo"),
        ("devise", "device"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_ones(run: Run, name: str, near: str) -> None:
    status, output = run("explain", name)
    assert status == 2
    (line,) = output.splitlines()
    suggested = line.partition("did you mean ")[2].removesuffix("?").split(" or ")
    assert near in suggested
    assert len(suggested) <= 3


@pytest.mark.parametrize("name", ["zzzzzzzz", "", "x" * 100_000])
def test_a_name_that_is_near_to_none_is_sent_to_the_list(run: Run, name: str) -> None:
    status, output = run("explain", name)
    assert status == 2
    (line,) = output.splitlines()
    assert "run `verl-npu check -v`, which lists all" in line
    assert len(line) < 1000


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("set", "its result becomes the value"),
        ("guard", "called before the target's module is executed"),
        ("add", "upstream has nothing of this name"),
        ("wrap", "which it gets as its first argument"),
    ],
)
def test_the_change_says_when_our_code_is_called(run: Run, action: str, said: str) -> None:
    patch = next(patch for feature in load() for patch in feature if patch.action == action)
    _, output = run("explain", patch.id)
    (header,) = (line for line in output.splitlines() if line.startswith("@@"))
    assert said in header


@pytest.mark.usefixtures("nothing_installed")
def test_a_replacement_without_an_upstream_says_that_only_ours_is_shown(run: Run) -> None:
    patch = next(patch for feature in load() for patch in feature if patch.action == "replace")
    status, output = run("explain", patch.id)
    assert status == 0
    assert "only verl-npu's code is shown" in output


@pytest.mark.parametrize("name", ["npu-memory", "devise"])
@pytest.mark.parametrize("there", [True, False])
def test_without_the_workbench_it_says_that_a_code_may_be_the_workbenchs(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, there: bool
) -> None:
    points = [metadata.EntryPoint("other", f"{__name__}:codes_of_another", codes.GROUP)] if there else []
    monkeypatch.setattr(codes.metadata, "entry_points", lambda group: points)
    status, output = run("explain", name)
    assert status == 2
    (line,) = output.splitlines()
    install = (
        "if a command of the workbench printed this name, install the workbench: pip install 'verl-npu[workbench]'"
    )
    assert (install in line) == (not there)
    assert ("did you mean device" in line) == (name == "devise")
