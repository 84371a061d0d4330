"""The memory of a job over the commits of a tiny package: what is planned again, and what moved."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from verl_npu_workbench.plan.hardware import GIB
from verl_npu_workbench.plan.history import Step, history
from verl_npu_workbench.plan.planning import Planned

from verl_npu.errors import PlanError

READ = "verl/worker.py"


@pytest.fixture
def clone(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that makes a clone. Each argument is a commit: the files that it writes, or their removal."""

    def git(*words: str) -> None:
        name = ("-c", "user.name=t", "-c", "user.email=t@t")
        subprocess.run(["git", *name, *words], cwd=tmp_path, check=True, capture_output=True)

    def make(*commits: dict[str, str | None]) -> Path:
        git("init", "-q", "-b", "main")
        for number, files in enumerate(commits):
            for path, text in files.items():
                (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / path).write_text(text) if text is not None else (tmp_path / path).unlink()
            git("add", "-A")
            git("commit", "-q", "-m", f"commit {number}")
            git("tag", f"c{number}")
        return tmp_path

    return make


@pytest.fixture
def steps(planned) -> Callable[..., list[Step]]:
    """Return a function that plans a range. The update takes as many GiB as the worker's file says, of which the
    optimizer's state is always one."""

    def plan(tree: Path, shell: tuple[str, ...], imports: bool = True) -> Planned:
        text = (tree / READ).read_text()
        if not text.isdigit():
            raise PlanError(subject=READ, expected="a number", found=text, fix="")
        made = planned({"update actor": float(text)}, state=1.0)
        outcome = dataclasses.replace(made.outcomes[0], read=[READ] if imports else [])
        trainer = dataclasses.replace(made.trainer, shell_files=tuple(tree / name for name in shell))
        return dataclasses.replace(made, trainer=trainer, outcomes=(outcome,))

    def found(clone: Path, commits: str, shell: tuple[str, ...] = (), imports: bool = True) -> list[Step]:
        return list(history(clone, commits, lambda tree: plan(tree, shell, imports)))

    return found


def test_a_commit_that_moved_memory_is_named_with_what_grew(clone, steps) -> None:
    found = steps(clone({READ: "3"}, {READ: "5"}), "c0..c1")
    assert [each.subject for each in found] == ["commit 0", "commit 1"]
    assert not found[0].moves
    update = next(move for move in found[1].moves if move.phase == "update actor")
    assert (update.before, update.after) == (3 * GIB, 5 * GIB)
    assert (update.holder, update.by) == ("activations and temporary buffers", 2 * GIB)
    reported = found[1].moves[0]
    assert (reported.phase, reported.holder, reported.by) == ("perf/max_memory_allocated_gb", "trainer", 2 * GIB)


def test_a_commit_that_changes_no_file_of_the_job_is_not_planned(clone, steps) -> None:
    found = steps(clone({READ: "3"}, {"docs/a.md": "x"}, {"verl/config/a.yaml": "x"}, {"run.sh": "x"}), "c0..c3")
    assert [each.planned for each in found] == [True, False, True, False]
    assert not any(each.moves for each in found)


def test_the_shell_files_of_the_script_count_as_read(clone, steps) -> None:
    made = clone({READ: "3"}, {"env/common.sh": "x"}, {"env/other.sh": "x"})
    found = steps(made, "c0..c2", shell=("../elsewhere.sh", "env/common.sh"))
    assert [each.planned for each in found] == [True, True, False]


def test_after_a_commit_without_a_plan_the_next_one_is_planned_and_compared_with_the_last_plan(clone, steps) -> None:
    found = steps(clone({READ: "3"}, {READ: "broken"}, {"docs/a.md": "x"}, {READ: "4"}), "c0..c3")
    assert [bool(each.error) for each in found] == [False, True, True, False]
    assert [(move.before, move.after) for move in found[3].moves if move.phase == "update actor"] == [
        (3 * GIB, 4 * GIB)
    ]


def test_a_job_that_imports_nothing_of_the_tree_is_planned_at_each_commit(clone, steps) -> None:
    found = steps(clone({READ: "3"}, {"docs/a.md": "x"}), "c0..c1", imports=False)
    assert [each.planned for each in found] == [True, True]


@pytest.mark.parametrize("commits", ["c0", "..c0", "c0..", "c0..none"])
def test_a_range_that_git_does_not_know_is_refused(clone, steps, commits: str) -> None:
    with pytest.raises(PlanError, match=r"expected two revisions .* as GOOD\.\.BAD"):
        steps(clone({READ: "3"}), commits)
