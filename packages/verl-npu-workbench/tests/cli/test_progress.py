"""No command is silent: while a step takes its time, stderr says what is being done, and stdout nothing of it."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from verl_npu_workbench.jobs.trainer import Trainer
from verl_npu_workbench.launch import store
from verl_npu_workbench.launch.head import gather
from verl_npu_workbench.launch.network import here
from verl_npu_workbench.plan import planning
from verl_npu_workbench.plan.hardware import HARDWARE

from tests.checkpoint.conftest import Save, save_fsdp, tensors
from tests.evaluation.conftest import endpoint, function, row
from tests.evaluation.endpoint import Served
from tests.jobs.conftest import COMMAND, Write, tree, write
from tests.launch.stored import Clock, Stored, leader, member, node
from tests.plan.conftest import job_of, torchrun
from tests.serving.conftest import model, vllm
from verl_npu import progress
from verl_npu.cli import main
from verl_npu.errors import VerlNpuError

__all__ = ["endpoint", "function", "model", "save_fsdp", "tensors", "torchrun", "tree", "vllm", "write"]  # fixtures

PATIENCE = 30.0

Slow = Callable[..., None]


class SeenError(VerlNpuError):
    """A step was seen, and is not done any further."""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was said of steps, as soon as there is something."""
    lines: list[str] = []
    write_line = progress._Shown._write

    def note(shown: progress._Shown, text: str) -> None:
        write_line(shown, text)
        lines.append(text)

    monkeypatch.setattr(progress, "EVERY", 0.01)
    monkeypatch.setattr(progress._Shown, "_write", note)
    return lines


@pytest.fixture
def slow(said: list[str], monkeypatch: pytest.MonkeyPatch) -> Slow:
    """Have a function take as long as it needs until some words were said, and end the command then."""

    def make(place: str, words: str) -> None:
        def wait(*_: object, **__: object) -> object:
            ends = time.monotonic() + PATIENCE
            while not any(words in line for line in said) and time.monotonic() < ends:
                time.sleep(0.005)
            raise SeenError(subject="a step", expected="to be seen", found="it", fix="nothing")

        module, _, name = place.partition(":")
        holder: object = importlib.import_module(module)
        *classes, name = name.split(".")
        for each in classes:
            holder = getattr(holder, each)
        monkeypatch.setattr(holder, name, wait)

    return make


def see(words: str, *arguments: str) -> None:
    """Call a command, and look for what it said of a step, on stderr alone."""
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 2, result.output
    assert "a step: expected to be seen" in result.stderr
    assert words in result.stderr
    assert words not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (("check", "--json"), "verl_npu.cli.check:judged_patches"),
        (("doctor", "--json"), "verl_npu_workbench.cli.doctor:examine"),
        (("status", "--json", "."), "verl_npu.cli.status:read_manifests"),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_a_command_says_that_it_goes_on(slow: Slow, arguments: tuple[str, ...], place: str) -> None:
    slow(place, f"verl-npu: {arguments[0]}, ")
    see(f"verl-npu: {arguments[0]}, ", *arguments)


def test_a_log_is_read_by_percent(slow: Slow, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    # So long that what a buffer takes is nothing of it.
    log.touch()
    os.truncate(log, 1 << 30)
    slow("verl_npu_workbench.diagnosis.judgement:is_being_written", "reading ")
    see(f"verl-npu: reading {log}, 0%, ", "doctor", "--json", "--log", str(log))


@pytest.mark.parametrize("command", [("lint", "--json"), ("plan", "--json"), ("rehearse", "--json")])
@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("verl_npu_workbench.jobs.capture:run", "running {script} with stand-ins"),
        ("verl_npu_workbench.jobs.job:_answer", "composing the settings of verl.trainer.main_small"),
    ],
    ids=["run", "composed"],
)
def test_what_is_done_with_a_script_is_said(
    slow: Slow, write: Write, command: tuple[str, ...], place: str, words: str, tmp_path: Path
) -> None:
    script = write(COMMAND)
    words = words.format(script=script)
    slow(place, words)
    output = () if command[0] == "lint" else ("--output", str(tmp_path / "out"))
    see(words, *command, str(script), "--unconfined", *output)


def test_a_plan_says_which_phase_a_rank_is_in(
    said: list[str], torchrun: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*given: object) -> None:
        log, tick = given[5], given[7]
        assert isinstance(log, Path)
        assert callable(tick)
        seen("importing torch and verl", tick)
        log.write_text("verl-npu: load\nverl-npu: of verl's\nverl-npu: update actor\nverl-npu: roll")
        seen("update actor (phase 2)", tick)
        raise SeenError(subject="", expected="", found="", fix="")

    def seen(words: str, tick: Callable[[], None]) -> None:
        ends = time.monotonic() + PATIENCE
        while not any(f"rank 0 of 8: {words}, " in line for line in said):
            assert time.monotonic() < ends, said[-3:]
            tick()
            time.sleep(0.005)

    monkeypatch.setattr(planning, "ask", ask)
    request = planning.Request(output=tmp_path, hardware=HARDWARE["a2"], unconfined=True)
    with progress.shown(), pytest.raises(SeenError):
        planning._run(job_of(tree=str(tmp_path)), torchrun, request, tmp_path, lambda text: None, Event())


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("verl_npu_workbench.checkpoint.merging:check", "reading its files"),
        ("verl_npu_workbench.checkpoint.merging:_upstream", "merging 27 tensors"),
    ],
)
def test_merge_says_what_it_is_at(slow: Slow, save_fsdp: Save, place: str, words: str) -> None:
    pytest.importorskip("verl")
    slow(place, words)
    see(words, "merge", "--json", str(save_fsdp().parents[1]))


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    """Four sums, as a data set."""
    import pyarrow.parquet

    path = tmp_path / "sums.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row(index) for index in range(4)]), path)
    return path


def test_an_evaluation_says_whom_it_asks_and_how_many_have_answered(
    slow: Slow, sums: Path, function: Path, endpoint: Served, tmp_path: Path
) -> None:
    slow("verl_npu_workbench.evaluation.endpoint:Endpoint.ask", "0 of 4 answers")
    words = ["evaluate", "--json", str(sums), "--url", endpoint.url, "--reward", str(function)]
    see(f"asking {endpoint.url}, 0 of 4 answers", *words, "--output", str(tmp_path / "out"))


def test_an_endpoint_that_does_not_answer_is_said(slow: Slow, sums: Path, function: Path, tmp_path: Path) -> None:
    slow("verl_npu_workbench.cli.evaluate:run", "asking http://nobody")
    words = ["evaluate", "--json", str(sums), "--url", "http://nobody", "--reward", str(function)]
    see("asking http://nobody, ", *words, "--output", str(tmp_path / "out"))


def test_serve_says_the_last_line_of_the_servers_log(
    slow: Slow, said: list[str], vllm: Path, model: Path, tmp_path: Path
) -> None:
    slow("verl_npu_workbench.serving.server:Running._answers", "waiting for the server")
    see("waiting for the server", "serve", str(model), "--log", str(tmp_path / "serve.log"))


@pytest.mark.parametrize(("written", "words"), [("", "the first step"), ("step:3 - x:1\n", "what follows step 3")])
def test_watch_says_for_what_it_waits(
    slow: Slow, tmp_path: Path, written: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "train.log"
    log.write_text(written)
    own_time = SimpleNamespace(monotonic=time.monotonic, sleep=time.sleep)
    monkeypatch.setattr(importlib.import_module("verl_npu_workbench.cli.watch"), "time", own_time)
    slow("verl_npu_workbench.cli.watch:time.sleep", f"waiting for {words}")
    see(f"waiting for {words}, ", "watch", str(log))


def test_a_node_says_that_it_waits_for_the_head(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    if all(interface.is_loopback for interface in here()):
        pytest.skip("this host has no network")
    monkeypatch.setenv("VIRTUAL_ASCEND", "2")
    slow("verl_npu_workbench.launch.worker:read_announcement", "waiting for the head, ")
    see("waiting for the head, ", "launch", "--nodes", "2", "--head", "198.51.100.7", "--no-doctor", "--", "true")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("verl_npu_workbench.launch.launching:prepare", "looking at this machine's network and NPUs"),
        ("verl_npu_workbench.launch.store:importlib.import_module", "loading Ray's library"),
    ],
)
def test_a_launch_says_what_it_does_before_anybody_is_asked(
    slow: Slow, place: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if all(interface.is_loopback for interface in here()):
        pytest.skip("this host has no network")
    monkeypatch.setenv("VIRTUAL_ASCEND", "2")
    monkeypatch.setattr(store, "importlib", SimpleNamespace(import_module=importlib.import_module))
    slow(place, words)
    see(words, "launch", "--nodes", "2", "--head", "198.51.100.7", "--no-doctor", "--", "true")


def test_the_head_says_for_how_many_nodes_it_waits(
    slow: Slow, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leading = leader(Stored([member("n1")], [node("n1")]), [], 2, 0, tmp_path, Clock())
    monkeypatch.setattr(store, "answers", lambda address, port: True)
    slow("tests.launch.stored:Clock.pause", "waiting for nodes: 1 of 2, for ")
    with progress.shown(), pytest.raises(SeenError):
        gather(leading, (), patient=False)
    assert any("waiting for nodes: 1 of 2, for " in line for line in said)
