"""Arrows between modules go one way: read from the source, imports within functions and for types included."""

from __future__ import annotations

import graphlib

import grimp
import pytest

FEATURES = "verl_npu.features"
REGISTRY = "verl_npu.registry"
LEAVES = (
    "errors",
    "environment",
    "family",
    "interruption",
    "ports",
    "process",
    "reporting",
    "variable",
    "version",
)


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """The modules that each module imports."""
    graph = grimp.build_graph("verl_npu", cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def below(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_no_modules_import_each_other_in_a_circle(imports) -> None:
    graphlib.TopologicalSorter(imports).prepare()


def test_a_circle_is_found(imports) -> None:
    circle = {**imports, "verl_npu.errors": {"verl_npu.cli.check"}}
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(circle).prepare()


def test_leaves_import_leaves_alone(imports) -> None:
    leaves = {f"verl_npu.{leaf}" for leaf in LEAVES}
    assert {leaf: imports[leaf] - leaves for leaf in leaves if imports[leaf] - leaves} == {}


def test_the_registry_imports_itself_and_errors_alone(imports) -> None:
    outside = {
        (module, other)
        for module, others in imports.items()
        if below(module, REGISTRY)
        for other in others
        if not below(other, REGISTRY)
    }
    assert {other for _, other in outside} == {"verl_npu.errors"}


def test_features_do_not_know_who_activates_them(imports) -> None:
    above = {"verl_npu.activation", "verl_npu.session", "verl_npu"}
    assert not [
        (module, other)
        for module, others in imports.items()
        if below(module, FEATURES)
        for other in others
        if other in above or below(other, "verl_npu.cli") or below(other, "verl_npu.virtual")
    ]


def test_the_doctor_knows_neither_features_nor_the_registry(imports) -> None:
    assert not [
        (module, other)
        for module, others in imports.items()
        if below(module, "verl_npu.doctor")
        for other in others
        if below(other, FEATURES) or below(other, REGISTRY) or below(other, "verl_npu.cli")
    ]


def test_only_activation_and_the_ranks_of_plans_use_the_virtual_ascend(imports) -> None:
    users = {
        module
        for module, others in imports.items()
        if not below(module, "verl_npu.virtual")
        and not below(module, "verl_npu.plan.rank")
        and any(below(other, "verl_npu.virtual") for other in others)
    }
    assert users == {"verl_npu.activation"}
