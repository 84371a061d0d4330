"""The screen of `verl-npu watch`: the parts that it omits where there is little room."""

from __future__ import annotations

import io

import pytest

pytest.importorskip("rich")
pytest.importorskip("plotext")

from rich.console import Console
from verl_npu_workbench.cli.screen import render
from verl_npu_workbench.watch import State, state_of

from tests.comparison.logs import log_of

STEPS = {
    step: {
        "critic/rewards/mean": 0.5 + step / 100,
        "actor/entropy": 2.0,
        "timing_s/step": 10.0,
        "timing_s/gen": 6.0,
    }
    for step in range(1, 11)
}


@pytest.fixture
def state() -> State:
    made = state_of(log_of(STEPS, simulated=True))
    assert made is not None
    return made


def shown(state: State, width: int, height: int | None = None, quiet: float = 0.0) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(render(state, console, height, quiet))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("height", range(5, 60, 18))
@pytest.mark.parametrize("width", [20, 130])
def test_curves_take_no_more_lines_than_there_are(state: State, width: int, height: int) -> None:
    without = len(shown(state, width, 0).splitlines())
    assert len(shown(state, width, height).splitlines()) <= max(height, without)


def test_more_room_shows_more_curves(state: State) -> None:
    curves = [shown(state, 80, height).count("┌") for height in (10, 20, 30, 60)]
    assert curves == sorted(curves)
    assert curves[0] == 0
    assert curves[-1] == shown(state, 80).count("┌") == 3


def test_a_terminal_that_is_too_narrow_has_no_curves(state: State) -> None:
    assert "┌" not in shown(state, 30)


def test_a_log_that_is_quiet_is_said_to_be(state: State) -> None:
    assert "nothing new" not in shown(state, 80, quiet=2.0)
    assert "nothing new for 95 s" in shown(state, 80, quiet=95.0)


def test_virtual_npus_are_said_to_be(state: State) -> None:
    assert "SIMULATED" in shown(state, 80)


def test_of_many_odd_things_the_latest_are_shown() -> None:
    steps = {step: {"a/b": float("nan") if step % 2 else 1.0, f"c/{step}": float("inf")} for step in range(1, 20)}
    state = state_of(log_of(steps))
    assert state is not None
    assert len(state.odd) == 20
    text = shown(state, 200)
    assert "14 earlier oddities" in text
    assert "c/19 is NaN or infinite at step 19" in text


def test_a_name_in_a_log_is_no_markup() -> None:
    steps = {
        step: {**row, "timing_s/[bold]gen[green]": 1.0, "timing_s/[red]x\x1b[2J": 2.0} for step, row in STEPS.items()
    }
    made = state_of(log_of(steps))
    assert made is not None
    screen = shown(made, 100)
    assert "[bold]gen[green]" in screen
    assert "[red]x\\x1b[2J" in screen
