"""The launch scripts of Ascend's support table: each starts one trainer, with settings that its pin accepts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import rehearse
from click.testing import CliRunner
from harness import pins
from harness.recipe import rehearsal_of
from maintain import recipes_page
from maintain.recipes_page import Recipe
from verl_npu_workbench.jobs.capture import capture
from verl_npu_workbench.jobs.trainer import Trainer, trainer_of

from verl_npu.cli import main

RECIPES = recipes_page.recipes()
ROWS, IMAGE_METHOD, FROM_VERLS_TESTS = 24, 2, 1

each_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.path.stem)


def settings(trainer: Trainer) -> dict[str, str]:
    return dict(override.lstrip("+").split("=", 1) for override in trainer.overrides)


def tree_of_pin(recipe: Recipe) -> Path:
    folder = os.environ.get("VERL_NPU_UPSTREAMS")
    if not folder:
        pytest.skip("VERL_NPU_UPSTREAMS is not set: there is no checkout of verl whose configuration could judge it")
    tree = Path(folder) / f"verl-{recipe.pin}"
    if not tree.is_dir():
        pytest.skip(f"VERL_NPU_UPSTREAMS has no verl-{recipe.pin}")
    return tree


# The scripts themselves.


def test_there_is_one_for_each_row_of_the_table_and_for_what_the_published_image_or_verls_tests_have_besides() -> None:
    rows = {(recipe.algorithm, recipe.model, recipe.backend, recipe.engine) for recipe in RECIPES}
    assert len(rows) == len(RECIPES) == ROWS + IMAGE_METHOD + FROM_VERLS_TESTS


@each_recipe
def test_it_stops_at_the_first_error_can_be_executed_and_leaves_the_device_to_us(recipe: Recipe) -> None:
    text = recipe.path.read_text()
    assert "\nset -euo pipefail\n" in text
    assert "trainer.device" not in text
    assert os.access(recipe.path, os.X_OK)


# The trainers that they start.


@each_recipe
@pytest.mark.usefixtures("sandbox")
def test_it_starts_one_trainer_on_the_machines_that_its_page_names(recipe: Recipe, tmp_path: Path) -> None:
    captured = capture(recipe.path, tmp_path)
    assert (captured.ended.status, captured.missing) == (0, ())
    (call,) = captured.calls
    assert call.program in ("python3", "torchrun")
    trainer = trainer_of(captured)
    chosen = settings(trainer)
    assert len(chosen) == len(trainer.overrides), "a setting is given twice"
    own = int(chosen.get("rollout.n_gpus_per_node") or chosen.get("actor_rollout_ref.rollout.n_gpus_per_node", "0"))
    assert (trainer.ranks or int(chosen["trainer.n_gpus_per_node"]) + own) == recipe.npus
    assert chosen.get("trainer.nnodes", "1") == str(recipe.nodes)


@each_recipe
@pytest.mark.usefixtures("sandbox")
def test_the_users_model_data_output_and_settings_take_the_place_of_its_own(recipe: Recipe, tmp_path: Path) -> None:
    variables = {"MODEL": "/m", "DATA": "/d", "OUTPUT": "/o"}
    chosen = settings(trainer_of(capture(recipe.path, tmp_path, ["trainer.logger=[mine]"], variables)))
    assert "/m" in (chosen.get("actor_rollout_ref.model.path"), chosen.get("model.partial_pretrain"))
    assert chosen["data.train_files"].startswith("/d/")
    assert chosen["trainer.default_local_dir"] == "/o"
    assert chosen["trainer.logger"] == "[mine]"


@each_recipe
@pytest.mark.usefixtures("sandbox")
def test_its_pin_composes_it_and_no_guard_refuses_it(recipe: Recipe) -> None:
    tree = tree_of_pin(recipe)
    done = CliRunner().invoke(main, ["lint", "--source", str(tree), str(recipe.path)])
    assert (done.exit_code, re.findall(r"refused {2}\S.*", done.output)) == (0, []), done.output


# The page, and the pin in the header.


def test_the_pages_tables_are_those_of_the_headers() -> None:
    command = [sys.executable, recipes_page.__file__, "--check"]
    assert subprocess.run(command, check=False).returncode == 0


def test_a_recipes_result_is_in_its_row() -> None:
    results = {RECIPES[0].path.stem: {"date": "2026-01-02", "verdict": "trained", "steps": 2, "npus": 2}}
    first, second = recipes_page.table(RECIPES[:2], results, "en").splitlines()[2:]
    assert "| on 2026-01-02: trained, 2 steps, 2 NPUs |" in first
    assert "not yet" in second


def test_of_a_rehearsal_the_page_keeps_pin_engine_rewards_and_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = {
        "script": "scripts/recipes/a.sh",
        "verdict": "trained",
        "steps": 2,
        "npus": 4,
        "pin": "v0.6.1",
        "engine": "hf",
        "curves": {"critic/rewards/mean": [0.125, 0.5]},
        "versions": {"torch": "2.7.1"},
        "failure": None,
    }
    (tmp_path / "result.json").write_text(json.dumps(result))
    monkeypatch.setattr(recipes_page, "RESULTS", tmp_path / "rehearsed.json")
    recipes_page.add([tmp_path / "result.json"])
    kept = recipes_page.results()["a"]
    assert recipes_page.rehearsed(kept, "en") == (
        f"on {kept['date']}: trained, 2 steps, 4 NPUs; at `v0.6.1`; rollout hf; rewards 0.125, 0.5; torch 2.7.1"
    )


def test_a_header_without_a_pin_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "a.sh"
    script.write_text(RECIPES[0].path.read_text().replace("# pin:", "# revision:"))
    with pytest.raises(ValueError, match=r"a\.sh: expected a line # pin"):
        recipes_page.read(script)


@pytest.mark.parametrize(
    ("named", "text", "pin"),
    [("", "# pin: 796871d7", "796871d7"), ("v0.7.0", "# pin: 796871d7", "v0.7.0"), ("", "# nothing", "v0.6.1")],
    ids=["the header's", "the command line's", "neither has one"],
)
def test_a_rehearsal_takes_the_pin_of_the_header_unless_one_is_given(
    named: str, text: str, pin: str, tmp_path: Path
) -> None:
    script = tmp_path / "a.sh"
    script.write_text(f"#!/bin/bash\n{text}\n")
    assert rehearse.pin_for(named, None, [str(script)]).name == pin


def test_a_recipes_name_is_a_job_of_the_smoke_script() -> None:
    words = ["--verl", "/src/verl", "--job", "ppo-qwen3-8b", "--steps", "3"]
    assert rehearsal_of(words) == [
        str(recipes_page.RECIPES / "ppo-qwen3-8b.sh"),
        "--verl",
        "/src/verl",
        "--steps",
        "3",
    ]


@pytest.mark.parametrize("job", ["grpo", "", "../smoke", "settings"])
def test_no_other_job_is_a_recipe(job: str) -> None:
    assert rehearsal_of(["--job", job]) == []


def test_the_smoke_workflow_rehearses_every_recipe_at_its_pin() -> None:
    workflow = (recipes_page.PROJECT / ".github" / "workflows" / "smoke.yml").read_text()
    found = dict(re.findall(r"- \{ recipe: ([\w.-]+), commit: (\w+)", workflow))
    assert found == {recipe.path.stem: pins.PINS[recipe.pin].commit for recipe in RECIPES}
