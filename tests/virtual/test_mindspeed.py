"""MindSpeed's own operators on virtual NPUs."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from verl_npu.virtual.mindspeed import offer_operators, rotary_position_embedding  # noqa: E402  # after torch

SHAPE = (3, 2, 4, 8)
"""Positions, batch, heads, width."""


def angles(interleaved: bool) -> torch.Tensor:
    """One angle for each position and pair of features [positions, 1, 1, width]."""
    pairs = torch.linspace(0, 3, SHAPE[0] * SHAPE[3] // 2).reshape(SHAPE[0], 1, 1, -1)
    return pairs.repeat_interleave(2, dim=-1) if interleaved else torch.cat((pairs, pairs), dim=-1)


@pytest.mark.parametrize("interleaved", [False, True])
def test_pairs_of_features_are_turned_by_their_angle(interleaved: bool) -> None:
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0), dtype=torch.float64).float()
    angle = angles(interleaved)
    turned = rotary_position_embedding(x, angle.cos(), angle.sin(), int(interleaved))
    first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, 4), slice(4, 8))
    before = torch.complex(x[..., first], x[..., second])
    after = torch.complex(turned[..., first], turned[..., second])
    torch.testing.assert_close(after, before * torch.polar(torch.ones(()), angle[..., first]))


def test_gradients_reach_all_three() -> None:
    given = [torch.randn(SHAPE, dtype=torch.float64).float().requires_grad_() for _ in range(3)]
    rotary_position_embedding(*given).sum().backward()
    assert all(tensor.grad is not None for tensor in given)


WRONG = {
    "three dimensions": ((torch.ones(2, 1, 8), torch.ones(2, 1, 1, 8), torch.ones(2, 1, 1, 8)), "4 dimensions"),
    "an odd width": ((torch.ones(2, 1, 1, 7),) * 3, "must be even"),
    "integers": ((torch.ones(2, 1, 1, 8, dtype=torch.int64),) * 3, "float32, float16 or bfloat16"),
    "other sines": ((torch.ones(2, 1, 1, 8), torch.ones(2, 1, 1, 8), torch.ones(1, 1, 1, 8)), "must be alike"),
    "another mode": ((torch.ones(2, 1, 1, 8),) * 3 + (2,), "mode"),
}


@pytest.mark.parametrize(("given", "said"), WRONG.values(), ids=WRONG.keys())
def test_what_the_compiled_one_refuses_is_refused(given: tuple[object, ...], said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        rotary_position_embedding(*given)  # type: ignore[arg-type]


def test_mindspeed_takes_it_for_compiled_and_keeps_what_is() -> None:
    builder = ModuleType("mindspeed.op_builder.builder")
    builder.MindSpeedOpBuilder = SimpleNamespace(_loaded_ops={"other": 1})  # type: ignore[attr-defined]
    offer_operators(builder)
    loaded = builder.MindSpeedOpBuilder._loaded_ops
    assert loaded["npu_rotary_position_embedding"].npu_rotary_position_embedding is rotary_position_embedding
    assert loaded["other"] == 1
