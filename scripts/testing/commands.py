"""Fixtures for tests of commands: a function that calls a command, and editable copies of an installed verl."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from virtual_ascend.exposure import CANN_SITE, SITE

from verl_npu.cli import main
from verl_npu.maintain.__main__ import main as maintain_main
from verl_npu.registry.source import tree as tree_module
from verl_npu.registry.source.tree import Memory

Run = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def no_ascend_software(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide virtual NPUs from commands, because an earlier test may have brought them up in this process."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if Path(entry) not in (SITE, CANN_SITE)])
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch_npu"]:
        monkeypatch.delitem(sys.modules, name)


_PARSED = Memory()


@pytest.fixture(autouse=True)
def parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share one cache of syntax trees between the commands of all tests, because most read the same upstreams."""
    monkeypatch.setattr(tree_module, "Memory", lambda: _PARSED)


@pytest.fixture
def run() -> Run:
    """Return a function that calls the command and returns its exit status and output. Exceptions fail the test."""

    def call(*arguments: str, columns: int = 80) -> tuple[int, str]:
        result = CliRunner().invoke(main, arguments, catch_exceptions=False, env={"COLUMNS": str(columns)})
        return result.exit_code, result.output

    return call


@pytest.fixture
def maintain() -> Run:
    """Return a function that calls `python -m verl_npu.maintain`, like `run`."""

    def call(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(maintain_main, arguments, catch_exceptions=False, env={"COLUMNS": "80"})
        return result.exit_code, result.output

    return call


@pytest.fixture(scope="session")
def pristine() -> Path:
    spec = importlib.util.find_spec("verl")
    if spec is None or spec.origin is None:
        pytest.skip("verl is not installed")
    return Path(spec.origin).parent


@pytest.fixture
def tree(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path / "verl", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def edit(tree: Path, file: str, old: str, new: str) -> None:
    """Replace a text in a file of a tree; fail if it is not there."""
    text = (tree / file).read_text()
    assert old in text, f"{old!r} is not in {file}"
    (tree / file).write_text(text.replace(old, new))


@pytest.fixture
def drifted(tree: Path) -> Path:
    """Return a copy of verl in which one target has an additional parameter."""
    old = "def run_ppo(config, task_runner_class=None"
    edit(tree, "verl/trainer/main_ppo.py", f"{old})", f"{old}, *, x)")
    return tree


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl_npu.registry.source.tree.installed_folder", lambda package: None)


def manifest(pid: int, role: str, state: str = "applied", **changes: object) -> dict[str, object]:
    """Return the manifest of one process, like one that a job writes."""
    patch = {"target": "verl.trainer.main_ppo:run_ppo", "state": state, "reason": "as at v0.6.1"}
    return {
        "host": "node0",
        "pid": pid,
        "token": f"{pid:08x}",
        "role": role,
        "version": "0.1.0",
        "active": True,
        "origin": "the entry point torch.backends",
        "simulated": True,
        "upstreams": {"verl": {"nearest_pin": "v0.6.1", "exact": True, "differs": []}},
        "features": {"device": {"owner": "", "state": state, "patches": {"device.set_npu_in_run_ppo_config": patch}}},
        "natives": {},
        "tainted": [],
        "seconds": 0.05,
        **changes,
    }
