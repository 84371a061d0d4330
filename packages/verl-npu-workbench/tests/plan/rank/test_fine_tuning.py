from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from verl_npu_workbench.plan.job import Phase  # noqa: E402  # torch may not be there
from verl_npu_workbench.plan.rank.fine_tuning import Rows, fine_tune  # noqa: E402

from ..conftest import job_of  # noqa: E402

MODULE = "a_trainer_of_fine_tuning"
_job = partial(job_of, sequences=4, prompt=0, response=6, scored=4, trainer=MODULE)


def test_rows_are_padded_on_the_right_to_the_greatest_length() -> None:
    row = Rows(_job(lengths=((1, 3),)), padded=True, phase=Phase.TRAINING)[0]
    assert row["attention_mask"].tolist() == [1, 1, 1, 1, 0, 0]
    assert row["position_ids"].tolist() == [0, 1, 2, 3, 3, 3]
    assert (row["input_ids"] > 0).tolist() == (row["loss_mask"] > 0).tolist() == [True] * 4 + [False] * 2


def test_padded_rows_have_a_token_of_padding_for_which_attention_copies_its_inputs() -> None:
    assert Rows(_job(), padded=True, phase=Phase.TRAINING)[0]["attention_mask"].tolist() == [1, 1, 1, 1, 1, 0]
    assert len(Rows(_job(), padded=False, phase=Phase.TRAINING)[0]["input_ids"]) == 6


def test_rows_without_padding_have_their_own_lengths() -> None:
    rows = Rows(_job(lengths=((1, 3), (0, 2))), padded=False, phase=Phase.TRAINING)
    assert [len(rows[place]["input_ids"]) for place in range(3)] == [4, 2, 4]
    assert "attention_mask" not in rows[0]


class _Recording:
    """A stand-in for the device's ledger: the phases in their order, and the actions in each."""

    def __init__(self) -> None:
        self.done: list[tuple[Phase, list[object]]] = []
        self.open = 0

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        assert self.open == 0, "a phase begins after the one before has ended"
        self.open += 1
        self.done.append((phase, []))
        yield
        self.open -= 1

    def do(self, what: object) -> None:
        self.done[-1][1].append(what)


@pytest.fixture
def recording() -> _Recording:
    return _Recording()


@pytest.fixture
def trainer(recording: _Recording, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Install a module with the names of verl's trainers, whose loop takes all batches, validates and saves."""
    found: Any = ModuleType(MODULE)

    class CheckpointHandler:
        def save_checkpoint(self, step: int) -> None:
            recording.do(f"saved step {step}")

    def run_sft(config: Any) -> None:
        recording.do("made the model")
        train, validation = (found.create_sft_dataset(name, config.data) for name in ("train", "validation"))
        loaders = [found.StatefulDataLoader(dataset=data, batch_size=2, num_workers=8) for data in (train, validation)]
        steps = 0
        for steps, batch in enumerate(loaders[0], start=1):
            recording.do(tuple(batch["input_ids"].shape))
            if steps == len(loaders[0]):
                for each in loaders[1]:
                    recording.do(tuple(each["input_ids"].shape))
                found.CheckpointHandler().save_checkpoint(step=steps)

    found.CheckpointHandler, found.run_sft = CheckpointHandler, run_sft
    monkeypatch.setitem(sys.modules, MODULE, found)
    return found


def test_phases_begin_where_the_trainer_asks_for_a_batch_and_saves(trainer: ModuleType, recording: _Recording) -> None:
    fine_tune(SimpleNamespace(data={"pad_mode": "right"}), _job(), recording)  # type: ignore[arg-type]
    assert recording.done == [
        (Phase.LOAD, ["made the model"]),
        (Phase.TRAINING, [(2, 6)]),
        (Phase.TRAINING, [(2, 6)]),
        (Phase.VALIDATION, [(2, 6)]),
        (Phase.VALIDATION, [(2, 6)]),
        (Phase.CHECKPOINT, ["saved step 2"]),
    ]
    assert recording.open == 0


def test_the_phase_that_an_error_came_from_is_ended(
    trainer: Any, recording: _Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_sft(config: object) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(trainer, "run_sft", run_sft)
    with pytest.raises(ValueError, match="no such thing"):
        fine_tune(SimpleNamespace(data={"pad_mode": "right"}), _job(), recording)  # type: ignore[arg-type]
    assert [phase for phase, _ in recording.done] == [Phase.LOAD]
