"""Every trainer of every pin compares the processes before its first step.

Two tests show it: the trainer's source makes upstream's logger first, and its own `fit`, called on a stub, gets no
further than that.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from testing.interpreter import python

from verl_npu import environment
from verl_npu.features import fleet, locks_folder
from verl_npu.features.fleet import comparison
from verl_npu.registry.judge.lock import read_locks

FOLDERS = ("verl/trainer", "verl/experimental", "recipe", "examples")
# These do not train: FullyAsyncTrainer, which uses the generated answers, compares.
GENERATES = {"FullyAsyncRollouter"}
# Some trainers have patches of their own, on a function that their `fit` calls or on their `fit` itself.
OWN = {
    "FullyAsyncTrainer": fleet.compare_processes_before_fully_async_training,
    "RaySPINTrainer": fleet.compare_processes_before_training,
}
# The smallest number of trainers that can be imported here at each pin: from a checkout, and from a wheel, which has
# no recipes. The newer pins need packages that are missing here.
FEWEST = {"796871d7": (8, 1), "v0.6.1": (8, 3), "ccd7d934": (8, 1), "v0.7.0": (8, 1), "v0.7.1": (4, 1)}
NIGHTLY = pytest.mark.nightly("verl_npu/features/fleet", "verl_npu/registry/apply", "pin.json")


def pins() -> list[str]:
    found = [lock.pin for lock in read_locks(locks_folder(), "verl")]
    folder = environment.UPSTREAMS.read()
    if folder:
        found += [path.name.removeprefix("verl-") for path in sorted(Path(folder).glob("verl-*"))]
    return list(dict.fromkeys(found))


@pytest.fixture
def tree(request: pytest.FixtureRequest, importable: Callable[[str], Path]) -> Path:
    folder = environment.UPSTREAMS.read()
    checkout = Path(folder) / f"verl-{request.param}"
    if folder and checkout.is_dir():
        return checkout
    if request.param not in [lock.pin for lock in read_locks(locks_folder(), "verl")]:
        pytest.skip(f"no checkout of {request.param}")
    return importable(request.param)


def fits(tree: Path) -> Iterator[tuple[str, str, str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the path, class, name and definition of each function that trains."""
    for folder in FOLDERS:
        for path in sorted((tree / folder).rglob("*.py")):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escape sequences in upstream's source
                module = ast.parse(path.read_text())
            for outer in (module, *(node for node in module.body if isinstance(node, ast.ClassDef))):
                for node in outer.body:
                    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in ("fit", "fit_dpo"):
                        yield str(path.relative_to(tree)), getattr(outer, "name", ""), node.name, node


def makes_logger(statement: ast.stmt) -> bool:
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Tracking"
        for node in ast.walk(statement)
    )


def first_that_matters(body: list[ast.stmt]) -> ast.stmt | None:
    """Return the statement that makes the logger, or the first loop or `try`, whichever comes first."""
    for statement in body:
        if isinstance(statement, ast.For | ast.While | ast.Try | ast.AsyncFor) or makes_logger(statement):
            return statement
    return None


@pytest.mark.parametrize("tree", pins(), indirect=True)
def test_each_trainer_makes_its_logger_first_or_has_a_patch_of_its_own(tree: Path) -> None:
    found = list(fits(tree))
    assert len(found) >= 3
    uncovered = []
    for path, owner, _, fit in found:
        if owner in GENERATES or owner in OWN:
            continue
        first = first_that_matters(fit.body)
        if first is None or not makes_logger(first) or isinstance(first, ast.For | ast.While | ast.Try):
            uncovered.append(f"{path}:{owner}")
    assert uncovered == []


PROGRAM = """
import asyncio, importlib, json, sys
from unittest.mock import MagicMock
from omegaconf import OmegaConf
import verl_npu.features.fleet.comparison as trainers

class Compared(Exception):
    pass

def compare():
    raise Compared

trainers.compare = compare
CONFIG = OmegaConf.create({
    "trainer": {"project_name": "p", "experiment_name": "e", "logger": "console"},
    "global_profiler": {"steps": None},
})

def call(name, owner, fit):
    module = importlib.import_module(name)
    trainer = getattr(module, owner) if owner else None
    trainer = getattr(getattr(trainer, "__ray_metadata__", None), "modified_class", trainer)
    stub = MagicMock()
    stub.config = CONFIG
    stub.device_mesh.get_rank.return_value = stub.engine.get_data_parallel_rank.return_value = 0
    for step in ("fit_step", "_fit_start_profile"):
        if hasattr(trainer, step):
            setattr(stub, step, getattr(trainer, step).__get__(stub))
    try:
        result = getattr(trainer or module, fit)(stub, *([None] if "v1" in name else []))
        if asyncio.iscoroutine(result):
            asyncio.run(result)
    except Compared:
        return "compared"
    return "trained"

for name, owner, fit in json.loads(sys.argv[1]):
    try:
        outcome = call(name, owner, fit)
    except ImportError as error:
        outcome = f"cannot be imported: {error}"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    print("OUTCOME", json.dumps([f"{name}:{owner}", outcome]), flush=True)
"""


@pytest.mark.upstream
@pytest.mark.parametrize(
    "tree", [pytest.param(pin, marks=() if pin == "v0.6.1" else NIGHTLY) for pin in FEWEST], indirect=True
)
def test_the_fit_of_each_trainer_compares_before_it_does_anything_else(
    tree: Path, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("verl")
    pytest.importorskip("ray")
    asked = [
        (path.removesuffix(".py").replace("/", "."), owner, fit)
        for path, owner, fit, _ in fits(tree)
        if owner not in GENERATES and not path.startswith("examples")
    ]
    done = python("-c", PROGRAM, json.dumps(asked), paths=[tree], clean=("VERL_NPU", "RAY_"), VERL_NPU="on")
    lines = [line.removeprefix("OUTCOME ") for line in done.stdout.splitlines() if line.startswith("OUTCOME ")]
    outcomes = dict(json.loads(line) for line in lines)
    assert len(outcomes) == len(asked), done.stderr
    assert {
        name: how for name, how in outcomes.items() if not how.startswith(("compared", "cannot be imported"))
    } == {}
    compared = [name for name, how in outcomes.items() if how == "compared"]
    from_checkout, from_wheel = FEWEST[request.node.callspec.params["tree"]]
    assert len(compared) >= (from_checkout if (tree / "pyproject.toml").is_file() else from_wheel), outcomes


def test_a_trainer_that_steps_again_is_not_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[None] = []
    monkeypatch.setattr(comparison, "compare", lambda: compared.append(None))

    class Trainer:
        pass

    trainer = Trainer()
    for _ in range(3):
        fleet.compare_processes_before_fully_async_training(lambda trainer, **_: None, trainer, should_profiler=None)
    assert len(compared) == 1
