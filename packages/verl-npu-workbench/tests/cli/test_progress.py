"""No command is silent: while a step takes its time, stderr names it, and stdout stays free of it."""

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
from verl_npu_workbench.launch.network import here
from verl_npu_workbench.plan import planning
from verl_npu_workbench.plan.hardware import HARDWARE
from virtual_ascend.testing import free_port

from tests.jobs.conftest import COMMAND, Write, tree, write
from tests.plan.conftest import job_of, torchrun
from verl_npu import progress
from verl_npu.cli import main
from verl_npu.errors import VerlNpuError

__all__ = ["torchrun", "tree", "write"]  # fixtures

PATIENCE = 30.0

Slow = Callable[..., None]


class SeenError(VerlNpuError):
    """The step was seen; the command need not go on."""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the progress lines, which are written without delay."""
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
    """Return a function that makes another one wait until some words were printed, and then end the command."""

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
    """Call a command, and check that it names a step on stderr alone."""
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
    # So long that the lines a buffer takes are a small part of it.
    log.touch()
    os.truncate(log, 1 << 30)
    slow("verl_npu_workbench.diagnosis.judgement:is_being_written", "reading ")
    see(f"verl-npu: reading {log}, 0%, ", "doctor", "--json", "--log", str(log))


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("verl_npu_workbench.jobs.capture:run", "running {script} with stand-ins"),
        ("verl_npu_workbench.jobs.job:_answer", "composing the settings of verl.trainer.main_small"),
    ],
    ids=["run", "composed"],
)
def test_what_is_done_with_a_script_is_said(slow: Slow, write: Write, place: str, words: str) -> None:
    script = write(COMMAND)
    words = words.format(script=script)
    slow(place, words)
    see(words, "lint", "--json", str(script), "--unconfined")


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
        planning._run(job_of(tree=str(tmp_path)), torchrun, request, tmp_path, Event())


def test_a_comparison_with_shards_says_how_many_tensors_are_done(slow: Slow, tmp_path: Path) -> None:
    checkpoints = pytest.importorskip("tests.comparison.checkpoints")
    tensors = checkpoints.model()
    merged = checkpoints.save_model(tmp_path / "model", tensors)
    slow("verl_npu_workbench.comparison.merged:_difference", "0 of 27 tensors")
    see("0 of 27 tensors", "compare", "--merged", str(merged), str(checkpoints.save_fsdp(tmp_path / "actor", tensors)))


@pytest.mark.parametrize(("written", "words"), [("", "the first step"), ("step:3 - x:1\n", "the step after 3")])
def test_watch_says_for_what_it_waits(
    slow: Slow, tmp_path: Path, written: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "train.log"
    log.write_text(written)
    own_time = SimpleNamespace(monotonic=time.monotonic, sleep=time.sleep, time=time.time)
    monkeypatch.setattr(importlib.import_module("verl_npu_workbench.cli.watch"), "time", own_time)
    slow("verl_npu_workbench.cli.watch:time.sleep", f"waiting for {words}")
    see(f"waiting for {words}, ", "watch", str(log))


@pytest.mark.parametrize(
    ("head", "place", "words"),
    [
        ("", "verl_npu_workbench.cli.launch:look", "checking this machine's network and NPUs"),
        ("", "verl_npu_workbench.launch.launching:_address", "waiting for nodes"),
        ("198.51.100.7", "verl_npu_workbench.launch.launching:join", "waiting for the head, "),
    ],
)
def test_a_launch_says_for_whom_it_waits(
    slow: Slow, head: str, place: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = next((address for address in here().values() if not address.startswith("127.")), "")
    if not own:
        pytest.skip("this host has no network")
    monkeypatch.setenv("VIRTUAL_ASCEND", "2")
    slow(place, words)
    hosts = ",".join((head, own) if head else (own, "198.51.100.7"))
    see(words, "launch", "--hosts", hosts, "--no-doctor", f"--port={free_port() - 1}", "--", "true")
