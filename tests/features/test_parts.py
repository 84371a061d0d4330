"""The feature parts that stay unloaded hold as many patches as declared, and no process can reach their targets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from verl_npu.features import load, load_installed
from verl_npu.features.rollout.unmet import unmet_imports
from verl_npu.pins import pins
from verl_npu.registry.patch import Feature, Patch
from verl_npu.registry.source.tree import SourceTree

MEGATRON = ("megatron", "mindspeed")
# Megatron's workers alone call the first. The second imports nothing of Megatron's; only these workers need it to be
# importable without a Triton driver.
CALLED = ("verl.utils.torch_functional", "verl.utils.kernel.linear_cross_entropy")


def none_installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Feature]:
    monkeypatch.setattr("verl_npu.features.installed_folder", lambda package: None)
    return {feature.name: feature for feature in load_installed()}


def test_what_is_left_out_is_named_right(monkeypatch: pytest.MonkeyPatch) -> None:
    here = none_installed(monkeypatch)
    left = {
        feature.name: {patch.id for patch in feature} - {patch.id for patch in here[feature.name]}
        for feature in load()
    }
    assert left == {name: feature.left_out for name, feature in here.items()}
    assert {name for name, ids in left.items() if ids} == {"weight_sync", "megatron"}


def left_out(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Patch]:
    here = {patch.id for patch in none_installed(monkeypatch)[name]}
    return [patch for feature in load() for patch in feature if feature.name == name and patch.id not in here]


def test_what_is_left_out_without_recipes_and_a_queue_is_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {patch.target.module for patch in left_out(monkeypatch, "weight_sync")}
    assert {module for module in modules if not module.startswith("recipe.")} == {"verl.trainer.ppo.v1.replay_buffer"}


@pytest.mark.upstream
@pytest.mark.parametrize("pin", pins())
def test_what_is_left_out_without_megatron_cannot_be_imported_then(
    pin: str, sources: Callable[[str, str], list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = SourceTree.at(sources("verl", pin)[0], ("verl",)).with_packages(SourceTree(dict.fromkeys(MEGATRON)))
    modules = {patch.target.module for patch in left_out(monkeypatch, "megatron") if patch.target.package == "verl"}
    present = [module for module in sorted(modules.difference(CALLED)) if tree.read(module) is not None]
    assert present

    def fails(module: str) -> bool:
        # Python imports a package before its submodules.
        parts = module.split(".")
        starts = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
        return any(next(unmet_imports(starts, "verl", package, tree), None) for package in MEGATRON)

    assert [module for module in present if not fails(module)] == []
