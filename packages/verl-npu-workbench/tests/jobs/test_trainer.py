from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from verl_npu_workbench.jobs.trainer import Trainer, _runtime_env, runtime_environment, trainer_of, trainer_of_command

from verl_npu.errors import SourceError

from .conftest import COMMAND, Captured

KEYS = ("data.train_batch_size=8", "trainer.nnodes=1", "actor.lr=1e-5")
REST = f"-m verl.trainer.main_small {' '.join(KEYS)}"
Trained = Callable[..., Trainer]
Each = Callable[[Mapping[str, str]], dict[str, Trainer]]

STARTS = {
    "python3": f"python3 {REST}",
    "python with an option": f"python -u {REST}",
    "another python": f"python3.11 {REST}",
    "with a variable before it": f"HYDRA_FULL_ERROR=1 python3 {REST}",
    "uv": f"uv run --active python3 {REST}",
    "uv with an extra": f"uv run --extra vllm -- python3 {REST}",
    "ray job": f"ray job submit --address=http://127.0.0.1:8265 --no-wait -- python3 {REST}",
    "ray job with its options apart": f"ray job submit --address http://127.0.0.1:8265 -- python3 {REST}",
    "ray job without dashes": f"ray job submit --address=http://127.0.0.1:8265 python3 {REST}",
    "bash": f"ray job submit -- bash -c 'python3 {REST}'",
    "bash after others": f"ray job submit -- bash -c 'cd /root && export A=1; python3 {REST} # note'",
    "nohup": f"nohup python3 {REST}",
    "a pipe": f"python3 {REST} 2>&1 | tee /tmp/log",
}


@pytest.fixture
def each_trained(captured: Captured) -> Each:
    """Return a function that finds the trainer of each of these lines; one script has them all."""

    def run(lines: Mapping[str, str]) -> dict[str, Trainer]:
        found = captured(*lines.values())
        alone = [dataclasses.replace(found, calls=(call,)) for call in found.calls]
        return dict(zip(lines, map(trainer_of, alone), strict=True))

    return run


def test_a_trainer_is_found_however_it_is_started(each_trained: Each) -> None:
    found = each_trained(STARTS)
    said = {name: (each.module, each.overrides, each.options, each.ranks) for name, each in found.items()}
    assert said == dict.fromkeys(STARTS, ("verl.trainer.main_small", KEYS, (), 0))


TORCHRUN = {
    f"--nnodes=1 --nproc_per_node=8 --standalone {REST}": (8, 1, True),
    f"--nnodes 1 --nproc-per-node 8 --master_addr x {REST}": (8, 1, True),
    f"--nproc_per_node=8 --nnodes=2 {REST}": (8, 2, True),
    f"--nproc_per_node=8 --nnodes 2:4 {REST}": (8, 4, True),
    f"--nproc_per_node=8 {REST}": (8, 1, True),
    # A script may let torchrun count.
    f"--nproc_per_node=8 --nnodes=$N {REST}": (8, 1, False),
    f"--nproc_per_node=gpu {REST}": (1, 1, False),
    f"--nnodes=2 {REST}": (1, 2, True),
}


@pytest.mark.parametrize("program", ["torchrun", "python3 -m torch.distributed.run"])
def test_torchrun_says_how_many_processes_and_nodes_there_are(each_trained: Each, program: str) -> None:
    found = each_trained({words: f"{program} {words}" for words in TORCHRUN})
    assert {words: (each.ranks, each.nodes, each.counted) for words, each in found.items()} == TORCHRUN
    assert {(each.module, each.overrides) for each in found.values()} == {("verl.trainer.main_small", KEYS)}


def test_a_file_is_a_trainer_too(trained: Trained, tree: Path) -> None:
    found = trained("cd verl", "python3 trainer/main_small.py a=1 b=2 c=3")
    assert (found.module, found.folder) == ("trainer/main_small.py", tree / "verl")


def test_hydras_options_are_told_from_overrides(trained: Trained) -> None:
    found = trained("python3 -m x.y --config-path=config --config-name main a=1 +b.c=2 ~d '++e=[1,2]'")
    assert found.options == ("--config-path=config", "--config-name", "main")
    assert found.overrides == ("a=1", "+b.c=2", "~d", "++e=[1,2]")
    assert [found.option(name) for name in ("--config-path", "--config-name", "-cn")] == ["config", "main", ""]


def test_what_the_script_exports_is_the_trainers(trained: Trained) -> None:
    assert trained("export A=1", f"B=2 {COMMAND}").exports == {"A": "1", "B": "2"}


@pytest.mark.parametrize("option", ["--runtime-env={}", "--runtime-env {}"])
def test_a_submitted_job_has_the_variables_of_its_runtime_environment(
    captured: Captured, tree: Path, option: str
) -> None:
    (tree / "env.yaml").write_text('working_dir: .\nenv_vars:\n  A: "1"\n  B: 2\n')
    found = captured(f"ray job submit {option.format('env.yaml')} -- {COMMAND}")
    assert trainer_of(found).exports == {"A": "1", "B": "2"}
    assert runtime_environment(found) == {"A": "1", "B": "2"}


def test_a_script_that_submits_nothing_has_no_runtime_environment(captured: Captured) -> None:
    assert runtime_environment(captured(COMMAND)) is None


def test_a_runtime_environment_that_is_no_yaml_is_one_line(captured: Captured, tree: Path) -> None:
    (tree / "env.yaml").write_text("a: [1")
    with pytest.raises(SourceError, match=r"env\.yaml: expected YAML"):
        trainer_of(captured(f"ray job submit --runtime-env=env.yaml -- {COMMAND}"))


@pytest.mark.parametrize(
    ("text", "found"), [("[" * 2_000, "maximum recursion depth"), ("a: b\n" * 60_000, "more than 256 KiB")]
)
def test_a_runtime_environment_that_is_too_deep_or_too_long_is_one_line(text: str, found: str) -> None:
    with pytest.raises(SourceError, match=found):
        _runtime_env("env.yaml", text)


def test_a_trainer_that_is_started_twice_in_the_same_way_is_one(trained: Trained) -> None:
    assert trained(COMMAND, COMMAND).overrides == KEYS


def test_other_programs_with_a_setting_or_two_are_no_trainers(trained: Trained) -> None:
    found = trained("python3 scripts/convert.py --src a=1", "pip install x==1 y=2 z=3", COMMAND)
    assert found.module == "verl.trainer.main_small"


@pytest.mark.parametrize("words", ["a=1", "--config-name main +a=1 b=2", "~a", "--config-name main"])
def test_a_trainer_with_a_setting_or_two_is_one(trained: Trained, words: str) -> None:
    found = trained("python3 scripts/convert.py --src a=1", "python3 get.py org/model", f"python3 -m x.main {words}")
    assert found.module == "x.main"


def test_two_trainers_are_too_many(captured: Captured) -> None:
    with pytest.raises(SourceError, match="expected one trainer; found 2"):
        trainer_of(captured(COMMAND, f"{COMMAND} a=2"))


def test_a_script_without_a_trainer_says_what_it_calls(captured: Captured) -> None:
    with pytest.raises(SourceError, match=r"found a script that runs only ray start --head; python3 convert\.py"):
        trainer_of(captured("ray start --head", "python3 convert.py"))


def test_a_script_that_stops_before_its_trainer_says_why(captured: Captured) -> None:
    with pytest.raises(SourceError, match="exits with status 3; the last line of its output is: give a model"):
        trainer_of(captured("echo give a model >&2", "exit 3", COMMAND))


def test_an_empty_script_has_no_trainer(captured: Captured) -> None:
    with pytest.raises(SourceError, match="found a script that runs no program; add the script's arguments"):
        trainer_of(captured())


def test_quotes_without_an_end_start_nothing(captured: Captured) -> None:
    with pytest.raises(SourceError, match="expected a script that starts a trainer"):
        trainer_of(captured("""ray job submit -- bash -c "python3 it's" """))


def test_a_command_is_a_trainer_as_it_stands(tree: Path) -> None:
    found = trainer_of_command(["A=1", "python3", "-m", "verl.trainer.main_small", "a=1"], tree, {"B": "2"})
    assert found == Trainer("verl.trainer.main_small", ("a=1",), (), 0, tree, {"A": "1", "B": "2"})


@pytest.mark.parametrize("words", [[], ["ls"], ["python3"], ["python3", "-c", "1"], ["a=1"], ["bash", "-c", ""]])
def test_what_starts_nothing_is_no_command(tree: Path, words: list[str]) -> None:
    with pytest.raises(SourceError, match="expected a command such as python3 -m"):
        trainer_of_command(words, tree, {})


@pytest.mark.parametrize("has", [True, False])
def test_a_clone_of_the_recipes_stands_in_for_the_folder_that_a_tree_lacks(
    captured: Captured, tree: Path, tmp_path: Path, has: bool
) -> None:
    clone = tmp_path / "verl-recipe"
    for root in (clone, tree / "recipe") if has else (clone,):
        (root / "small").mkdir(parents=True)
        (root / "small" / "main_recipe.py").touch()
    (clone / ".git").mkdir()
    command = COMMAND.replace("verl.trainer.main_small", "recipe.small.main_recipe")
    found = trainer_of(captured(command, folder=clone, name="small/run.sh"))
    assert found.recipes == (None if has else clone)


def test_a_runtime_environment_that_the_script_writes_is_read(captured: Captured) -> None:
    written = "echo 'env_vars: {A: 1, B: true}' > made.yaml"
    assert runtime_environment(captured(written, f"ray job submit --runtime-env=made.yaml -- {COMMAND}")) == {
        "A": "1",
        "B": "True",
    }


BOMBS = {
    "aliases": "a0: &a0 [x, x]\n{lines}env_vars: {{A: *a40, B: 2}}\n",
    "merges": "a0: &a0 {{C: 3}}\n{lines}env_vars: {{<<: *a40, B: 2}}\n",
}


@pytest.mark.parametrize(("kind", "found"), [("aliases", {"B": "2"}), ("merges", {"B": "2", "C": "3"})])
def test_anchors_of_a_runtime_environment_do_not_grow(
    captured: Captured, tree: Path, kind: str, found: dict[str, str]
) -> None:
    each = "a{0}: &a{0} [*a{1}, *a{1}]\n" if kind == "aliases" else "a{0}: &a{0} {{<<: [*a{1}, *a{1}]}}\n"
    lines = "".join(each.format(number, number - 1) for number in range(1, 41))
    (tree / "env.yaml").write_text(BOMBS[kind].format(lines=lines))
    assert runtime_environment(captured(f"ray job submit --runtime-env=env.yaml -- {COMMAND}")) == found
