"""Upstream's own launch scripts for NPUs: each line of the list is captured and has a trainer, at one revision."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(PROJECT / "scripts" / "maintain"))

import corpus  # noqa: E402  # it is no package that is installed
from verl_npu_workbench.jobs.capture import capture  # noqa: E402
from verl_npu_workbench.jobs.trainer import trainer_of  # noqa: E402

from ..jobs.conftest import sandboxed  # noqa: E402

__all__ = ["sandboxed"]  # a fixture

TREES = Path(os.environ.get("VERL_NPU_UPSTREAMS", "/none"))


def lines() -> Iterator[list[corpus.Case]]:
    """Yield the cases of each line of the list."""
    found: dict[tuple[str, ...], list[corpus.Case]] = {}
    for case in corpus.cases():
        found.setdefault(case.siblings, []).append(case)
    yield from found.values()


LINES = list(lines())


def test_the_list_has_each_case_once() -> None:
    names = [case.name for case in corpus.cases()]
    assert len(names) == len(set(names)) > 100


def test_a_record_says_what_stopped_a_script_or_where_it_trained() -> None:
    one, other = (line[0] for line in LINES[:2])
    failed = {"verdict": "failed", "failure": {"owner": "upstream", "error": "TypeError: no in /home/me/verl/a.py"}}
    made = corpus.rehearsed({one.name: {"verdict": "trained", "seconds": 12.3}, other.name: failed})
    assert {"pin": one.revision, "job": one.path, "results": {"verdict": "trained", "seconds": "12"}} in made
    stopped = {"verdict": "failed", "first error": "upstream: TypeError: no in …/a.py"}
    assert {"pin": other.revision, "job": other.path, "results": stopped} in made


@pytest.mark.skipif(not TREES.is_dir(), reason="set VERL_NPU_UPSTREAMS to a folder with verl-<revision>/")
@pytest.mark.parametrize("line", LINES, ids=[line[0].name for line in LINES])
def test_a_script_of_upstream_has_a_trainer(sandboxed: None, line: list[corpus.Case]) -> None:
    here = [(case, *corpus.script_of(case, TREES)) for case in line]
    case, script, tree = next((each for each in here if each[1].is_file()), here[0])
    if not script.is_file():
        pytest.skip(f"set VERL_NPU_UPSTREAMS to a folder with {tree.name}/ that has {case.path}")
    captured = capture(script, tree, case.arguments, case.variables)
    trainer = trainer_of(captured)
    assert trainer.module
    assert len(trainer.overrides) >= 3
