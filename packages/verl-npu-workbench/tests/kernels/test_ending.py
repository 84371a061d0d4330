"""Ctrl-C ends a judgment at once: it does not wait for running compilations, and starts no more."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from verl_npu_workbench.kernels import judging, targets
from verl_npu_workbench.kernels.toolchain import Soc, Toolchain
from verl_npu_workbench.kernels.verdict import Arguments, Kernel

from .conftest import ADD

LONG = 60.0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Install a compiler that takes a minute, during which Ctrl-C comes; return the questions that it got."""
    questions: list[object] = []

    def ask(*given: object) -> object:
        *_unused, question, tick = given
        questions.append(question)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        ends = time.monotonic() + LONG
        while time.monotonic() < ends:
            cast(Callable[[], None], tick)()
            time.sleep(0.01)
        raise AssertionError("it was waited for")

    monkeypatch.setattr(judging, "ask", ask)
    return questions


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.parametrize("at_once", [1, 2])
def test_ctrl_c_does_not_wait_for_the_compiler(asked: list[object], tmp_path: Path, at_once: int) -> None:
    file = tmp_path / "some.py"
    file.write_text(ADD)
    chain = SimpleNamespace(
        pair=SimpleNamespace(back="1.2.0"), environment=dict, command=lambda: ["compile"], id="here"
    )
    request = judging.Request(
        toolchain=cast(Toolchain, chain), soc=Soc.A2, at_once=at_once, unconfined=True, fresh=True
    )
    case = Arguments(signature={"x_ptr": "*fp32"}, constants={"BLOCK": 64}, label="BLOCK=64")
    kernels = [
        Kernel(name=f"add{number}", module="some", file=str(file), line=1, cases=(case,), source=ADD)
        for number in range(20)
    ]
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        judging.judge(targets.find(str(file), tmp_path), kernels, request)
    assert time.monotonic() - began < LONG / 2
    assert len(asked) <= at_once
