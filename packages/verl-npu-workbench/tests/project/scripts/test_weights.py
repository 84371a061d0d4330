from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from harness.errors import RunFailed  # noqa: E402
from harness.weights import Movement, compare  # noqa: E402

BASE = {"model.q.weight": torch.ones(2, 2), "model.norm.weight": torch.ones(2)}


def saved(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    safetensors.save_file(tensors, folder / "model.safetensors")
    return folder


def with_adapter(second: torch.Tensor, base: float = 1.0) -> dict[str, torch.Tensor]:
    """Return a model with an adapter at q, with peft's names for its tensors."""
    return {
        "base_model.model.model.q.base_layer.weight": torch.full((2, 2), base),
        "base_model.model.model.q.lora_A.default.weight": torch.ones(1, 2),
        "base_model.model.model.q.lora_B.default.weight": second,
        "base_model.model.model.norm.weight": torch.ones(2),
    }


def test_each_tensor_that_moved_is_counted(tmp_path: Path) -> None:
    new = {"model.q.weight": torch.full((2, 2), 1.5), "model.norm.weight": torch.ones(2)}
    assert compare(saved(tmp_path / "a", BASE), saved(tmp_path / "b", new)) == Movement(2, 1, 0.5)


def test_tensors_that_training_does_not_change_are_not_counted(tmp_path: Path) -> None:
    new = {**BASE, "model.q.weight": torch.full((2, 2), 1.5)}
    assert compare(saved(tmp_path / "a", BASE), saved(tmp_path / "b", new), r"\.norm\.") == Movement(1, 1, 0.5)


def test_of_a_model_with_an_adapter_the_adapter_has_to_move(tmp_path: Path) -> None:
    new = with_adapter(torch.tensor([[0.25], [0.0]]))
    movement = compare(saved(tmp_path / "a", BASE), saved(tmp_path / "b", new))
    assert (movement, movement.all_moved) == (Movement(1, 1, 0.25), True)


def test_an_adapter_that_is_still_zero_has_not_moved(tmp_path: Path) -> None:
    movement = compare(saved(tmp_path / "a", BASE), saved(tmp_path / "b", with_adapter(torch.zeros(2, 1))))
    assert not movement.all_moved


def test_a_base_that_moved_beside_an_adapter_is_a_failure(tmp_path: Path) -> None:
    new = with_adapter(torch.ones(2, 1), base=2.0)
    with pytest.raises(RunFailed, match="LoRA trains only the adapter"):
        compare(saved(tmp_path / "a", BASE), saved(tmp_path / "b", new))


def test_other_tensors_are_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="different tensors"):
        compare(saved(tmp_path / "a", BASE), saved(tmp_path / "b", {"other": torch.ones(1)}))
