from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from verl_npu_workbench.jobs import job
from verl_npu_workbench.jobs.job import compose, entry_of, uses_verl
from verl_npu_workbench.jobs.trainer import Trainer
from verl_npu_workbench.sandbox import Limits

from verl_npu.errors import JobSettingError

from .conftest import TRAINER

pytest.importorskip("hydra")
pytestmark = pytest.mark.usefixtures("sandboxed")


def trainer(
    tree: Path, *overrides: str, module: str = "verl.trainer.main_small", options: tuple[str, ...] = ()
) -> Trainer:
    return Trainer(module, overrides, options, 0, tree, {})


def test_values_are_flat_and_typed(tree: Path) -> None:
    values = compose(trainer(tree), tree).settings.values
    assert values["data.train_batch_size"] == 1024
    assert values["actor.lr"] == 1e-6
    assert values["trainer.logger"] == ["console", "wandb"]
    assert values["trainer.total_steps"] is None
    assert values["actor"] == {}


def test_interpolations_are_followed_and_kept_as_they_are_written(tree: Path) -> None:
    found = compose(trainer(tree, "data.train_batch_size=8"), tree)
    assert found.settings.values["copy"] == 8
    assert found.interpolations == {"copy": "${data.train_batch_size}"}
    assert found.dangling == {}
    assert found.config["copy"] == "${data.train_batch_size}"
    assert found.config["actor"] == {"lr": 1e-6, "path": "~/models/Qwen2.5-7B"}


def test_what_refers_to_nothing_is_told_from_what_only_a_running_trainer_knows(tree: Path) -> None:
    found = compose(trainer(tree, "~data.train_batch_size", "+later=${oc.env:VERL_NPU_NOT_THERE}"), tree)
    assert found.dangling == {"copy": "${data.train_batch_size}"}


def test_what_only_a_running_trainer_knows_is_left_as_it_is_written(tree: Path) -> None:
    found = compose(trainer(tree, "+later=${oc.env:VERL_NPU_NOT_THERE}", "+needed=???"), tree)
    assert found.settings.values["later"] == "${oc.env:VERL_NPU_NOT_THERE}"
    assert found.settings.values["needed"] == "???"


REFUSED = {
    "an unknown key": ("trainer.unknown=1", "unknown"),
    "a list without an end": ("trainer.logger=[a", r"trainer\.logger"),
    "a group that is not there": ("actor=none", "none"),
}


@pytest.mark.parametrize(("override", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_what_hydra_refuses_is_one_line_that_names_it(tree: Path, override: str, named: str) -> None:
    with pytest.raises(JobSettingError, match=named) as error:
        compose(trainer(tree, override), tree)
    assert error.value.subject == "the overrides of verl.trainer.main_small"
    assert "\n" not in str(error.value)


def test_a_configuration_in_a_package_that_is_not_here_is_not_judged(tree: Path) -> None:
    """The package may be installed where the job runs."""
    with pytest.raises(JobSettingError, match=r"no package elsewhere\.config, which hydra.*actor/none") as error:
        compose(trainer(tree, "actor=none", "hydra.searchpath=[pkg://elsewhere.config]"), tree)
    assert error.value.subject == "the configuration of verl.trainer.main_small"


@pytest.mark.parametrize("option", [("--config-path=other",), ("--config-path", "other"), ("-cp", "other")])
def test_a_folder_of_the_command_line_is_relative_to_the_trainer(tree: Path, option: tuple[str, ...]) -> None:
    (tree / "verl" / "trainer" / "other").mkdir()
    (tree / "verl" / "trainer" / "other" / "main.yaml").write_text("here: 1")
    found = compose(trainer(tree, options=option), tree)
    assert found.settings.values == {"here": 1}
    assert found.entry.moved == ""


@pytest.mark.parametrize("name", ["second", "second.yaml"])
def test_a_name_of_the_command_line_is_taken(tree: Path, name: str) -> None:
    (tree / "verl" / "trainer" / "config" / "second.yaml").write_text("here: 2")
    assert compose(trainer(tree, options=(f"--config-name={name}",)), tree).settings.values == {"here": 2}


def test_a_folder_that_is_not_here_gives_way_to_the_trees_own(tree: Path) -> None:
    found = entry_of(trainer(tree, options=("--config-path=/root/verl/config",)), tree)
    assert (found.folder, found.moved) == (tree / "verl" / "trainer" / "config", "/root/verl/config")


def test_a_folder_that_is_nowhere_is_one_line(tree: Path) -> None:
    options = ("--config-path=/root/verl/config", "--config-name=unknown")
    with pytest.raises(JobSettingError, match="the folder /root/verl/config does not exist"):
        entry_of(trainer(tree, options=options), tree)


def a_recipe(folder: Path) -> Path:
    """Write a recipe whose search path, as verl's recipes have it, is relative to the folder of the job."""
    (folder / "config").mkdir(parents=True)
    (folder / "main_recipe.py").write_text(TRAINER.replace('"main"', '"recipe"'))
    (folder / "config" / "recipe.yaml").write_text(
        "hydra:\n  searchpath:\n    - file://verl/trainer/config\ndefaults:\n  - main\n  - _self_\nown: 1\n"
    )
    return folder


def test_a_recipe_finds_the_configuration_that_it_builds_on(tree: Path) -> None:
    a_recipe(tree / "recipe" / "small")
    for module in ("recipe.small.main_recipe", "recipe/small/main_recipe.py"):
        values = compose(trainer(tree, module=module), tree).settings.values
        assert (values["own"], values["data.train_batch_size"]) == (1, 1024)


@pytest.mark.parametrize("options", [(), ("--config-path={tree}/recipe/small/config",)])
def test_a_recipe_in_a_clone_of_its_own_composes_in_the_tree(
    tree: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    recipe = a_recipe(tmp_path / "verl-recipe" / "small")
    given = tuple(option.format(tree=tree) for option in options)
    started = replace(trainer(tree, module="recipe.small.main_recipe", options=given), recipes=recipe.parent)
    values = compose(started, tree).settings.values
    assert (values["own"], values["data.train_batch_size"]) == (1, 1024)


@pytest.mark.parametrize(
    ("text", "uses"), [("from verl.trainer import x", True), ("import verlette", False), ("import torch", False)]
)
def test_a_trainer_of_another_framework_is_told_from_one_that_imports_verl(tree: Path, text: str, uses: bool) -> None:
    (tree / "train.py").write_text(f"{text}\n{TRAINER}")
    (tree / "config").mkdir()
    (tree / "config" / "main.yaml").write_text("a: 1")
    assert uses_verl(compose(trainer(tree, module="train.py"), tree)) is uses


def test_what_a_tree_prints_as_it_is_composed_is_not_taken_for_the_answer(tree: Path) -> None:
    (tree / "hydra_plugins").mkdir()
    (tree / "hydra_plugins" / "loud.py").write_text("print('loud')")
    assert compose(trainer(tree), tree).settings.values["trainer.nnodes"] == 1


def test_a_package_with_a_main_is_a_trainer(tree: Path) -> None:
    package = tree / "verl" / "trainer" / "package"
    package.mkdir()
    (package / "__main__.py").write_text(TRAINER.replace('"config"', '"../config"'))
    assert entry_of(trainer(tree, module="verl.trainer.package"), tree).source == package / "__main__.py"


def test_an_installed_trainer_is_found_if_the_tree_has_none(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tree.parent / "installed"
    (other / "a_recipe" / "config").mkdir(parents=True)
    (other / "a_recipe" / "__init__.py").touch()
    (other / "a_recipe" / "main.py").write_text(TRAINER)
    monkeypatch.syspath_prepend(str(other))
    assert entry_of(trainer(tree, module="a_recipe.main"), tree).folder == other / "a_recipe" / "config"


@pytest.mark.parametrize("module", ["verl.trainer.none", "no_such_package.main", "none.py", ".x", ".", "verl/trainer"])
def test_a_trainer_that_is_nowhere_is_one_line(tree: Path, module: str) -> None:
    with pytest.raises(JobSettingError, match=r"the trainer is neither in .* nor installed"):
        entry_of(trainer(tree, module=module), tree)


@pytest.mark.parametrize("content", [b"if true; then", b"\x00", b"\xff\xfe", b"x = " + b"(" * 500])
def test_a_trainer_that_python_cannot_parse_is_one_line(tree: Path, content: bytes) -> None:
    (tree / "verl" / "trainer" / "broken.py").write_bytes(content)
    with pytest.raises(JobSettingError, match=r"broken\.py: expected a Python file"):
        entry_of(trainer(tree, module="verl.trainer.broken"), tree)


def test_a_trainer_without_hydra_is_one_line(tree: Path) -> None:
    (tree / "verl" / "trainer" / "other.py").write_text("def main(): pass")
    with pytest.raises(JobSettingError, match=r"the file has no function with @hydra\.main"):
        entry_of(trainer(tree, module="verl.trainer.other"), tree)


def test_a_configuration_that_takes_forever_is_given_up(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_LIMITS", Limits(0.01))
    with pytest.raises(JobSettingError, match="still running after"):
        compose(trainer(tree), tree)


def test_a_configuration_in_verl_is_found_without_what_verl_imports(tree: Path) -> None:
    (tree / "verl" / "__init__.py").write_text("import not_installed_here\n")
    (tree / "verl" / "trainer" / "config" / "__init__.py").touch()
    own = tree / "recipe" / "config"
    own.mkdir(parents=True)
    (own / "own.yaml").write_text("hydra:\n  searchpath: ['pkg://verl.trainer.config']\ndefaults: [main]\n")
    found = compose(trainer(tree, options=(f"--config-path={own}", "--config-name=own")), tree)
    assert found.settings.values["data.train_batch_size"] == 1024
