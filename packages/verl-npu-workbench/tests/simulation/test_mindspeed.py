"""MindSpeed's own operators on virtual NPUs."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from verl_npu_workbench.simulation.mindspeed import (  # noqa: E402  # after torch
    adamw_step,
    add_grouped_product,
    add_product,
    chunk_sort_map,
    grouped_product,
    grouped_product_backward,
    l2norm,
    load_without_atb,
    offer_norm,
    offer_operators,
    offer_recurrence,
    offer_sorting,
    rotary_position_embedding,
    sorted_rows,
)

SHAPE = (3, 2, 4, 8)
"""Positions, batch, heads, width."""


def angles(interleaved: bool) -> torch.Tensor:
    """Return one angle for each position and pair of features [positions, 1, 1, width]."""
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
    "other sines": ((torch.ones(2, 1, 1, 8), torch.ones(2, 1, 1, 8), torch.ones(1, 1, 1, 8)), "the same shape"),
    "another mode": ((torch.ones(2, 1, 1, 8),) * 3 + (2,), "mode"),
}


@pytest.mark.parametrize(("given", "said"), WRONG.values(), ids=WRONG.keys())
def test_what_the_compiled_one_refuses_is_refused(given: tuple[object, ...], said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        rotary_position_embedding(*given)  # type: ignore[arg-type]


ENDS, COUNTS = [2, 2, 5], [2, 0, 3]
"""Groups of five rows; the second expert gets none."""


@pytest.fixture
def experts() -> tuple[torch.Tensor, torch.Tensor]:
    """Return five rows, and the weights of three experts."""
    made = torch.Generator().manual_seed(0)
    return torch.randn(5, 4, generator=made), torch.randn(3, 4, 6, generator=made)


def of_each(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.cat([part @ matrix for part, matrix in zip(x.split(COUNTS), weight, strict=True)])


@pytest.mark.parametrize(
    ("groups", "kind"), [(ENDS, 0), (torch.tensor(ENDS), 0), (torch.tensor(COUNTS), 1)], ids=["list", "ends", "counts"]
)
def test_rows_meet_the_weights_of_their_expert_and_so_do_gradients(groups: object, kind: int, experts) -> None:
    x, weight = (given.requires_grad_() for given in experts)
    expected = of_each(x, weight)
    grad = torch.arange(30.0).reshape(5, 6)
    expected.backward(grad)
    with torch.no_grad():
        (found,) = grouped_product([x], [weight], [], groups, 0, kind)  # type: ignore[arg-type]
        (to_x,), (to_weight,), none = grouped_product_backward([grad], [x], [weight], groups, kind)  # type: ignore[arg-type]
    torch.testing.assert_close([found, to_x, to_weight], [expected, x.grad, weight.grad])
    assert none == []


def test_gradients_of_experts_add_up_in_place(experts) -> None:
    x, weight = experts
    grad, total = torch.ones(5, 6), torch.ones(3, 4, 6)
    add_grouped_product(x, grad, torch.tensor(ENDS), total)
    _, (to_weight,), _ = grouped_product_backward([grad], [x], [weight], ENDS, 0)
    torch.testing.assert_close(total, 1 + to_weight)


def test_the_gradient_of_a_weight_adds_up_in_place(experts) -> None:
    x, _ = experts
    grad, total = torch.arange(30.0).reshape(5, 6), torch.ones(6, 4)
    add_product(grad, x, total)
    torch.testing.assert_close(total, 1 + grad.t() @ x)


@pytest.mark.parametrize(("amsgrad", "maximize"), [(False, False), (True, False), (False, True)])
def test_a_step_of_the_swapped_optimizer_is_pytorchs(amsgrad: bool, maximize: bool) -> None:
    settings = {"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.2, "eps": 1e-3}
    theirs = torch.nn.Parameter(torch.linspace(-1, 1, 7))
    optimizer = torch.optim.AdamW([theirs], amsgrad=amsgrad, maximize=maximize, **settings)
    ours, states = theirs.detach().clone(), [torch.zeros(7) for _ in range(3)]
    for step in (1, 2, 3):
        grad = torch.linspace(2, -1, 7) / step
        theirs.grad = grad.clone()
        optimizer.step()
        adamw_step(ours, grad, *states, torch.tensor(step), 0.1, 0.8, 0.9, 0.2, 1e-3, amsgrad, maximize)
    torch.testing.assert_close(ours, theirs.detach())


def test_an_operator_of_atb_loads_where_nnal_is_not_installed() -> None:
    class Builder:
        def load(self) -> str:
            return "registered"

    class AtbOpBuilder(Builder):
        def load(self) -> str:
            raise RuntimeError("please install cann-nnal package first")

    module = ModuleType("mindspeed.op_builder.atb_builder")
    module.AtbOpBuilder = AtbOpBuilder  # type: ignore[attr-defined]
    load_without_atb(module)
    assert AtbOpBuilder().load() == "registered"


def test_mindspeed_takes_it_for_compiled_and_keeps_what_is() -> None:
    builder = ModuleType("mindspeed.op_builder.builder")
    builder.MindSpeedOpBuilder = SimpleNamespace(_loaded_ops={"grouped_matmul": 1})  # type: ignore[attr-defined]
    offer_operators(builder)
    loaded = builder.MindSpeedOpBuilder._loaded_ops
    assert loaded["npu_rotary_position_embedding"].npu_rotary_position_embedding is rotary_position_embedding
    assert loaded["grouped_matmul"] == 1


def test_chunks_of_rows_are_put_into_their_order_and_back() -> None:
    sizes, order = torch.tensor([2, 0, 3, 1]), torch.tensor([2, 0, 3, 1])
    x, probs = torch.arange(12.0).reshape(6, 2), torch.arange(6.0)
    chunks = [x.split(sizes.tolist())[index] for index in order]
    places = chunk_sort_map(sizes, order, 6, 4)
    moved, moved_probs = sorted_rows(x, places, probs, 6, 2, True)
    assert torch.equal(moved, torch.cat(chunks))
    assert torch.equal(moved_probs, moved[:, 0] / 2)
    assert torch.equal(sorted_rows(moved, places, None, 6, 2, False)[0], x)


def test_mindspeeds_own_function_sorts_through_them() -> None:
    kernels = ModuleType("mindspeed.ops.triton.sort_chunks_by_idx")
    offer_sorting(kernels)
    assert (kernels.make_chunk_sort_map, kernels.sort_chunks_by_map) == (chunk_sort_map, sorted_rows)


def test_mindspeeds_norm_makes_rows_of_length_one() -> None:
    kernels = ModuleType("mindspeed.ops.triton.l2norm")
    offer_norm(kernels)
    assert kernels.l2norm is kernels.l2_norm is l2norm
    x = torch.linspace(-2, 3, 12, dtype=torch.bfloat16).reshape(3, 4)
    torch.testing.assert_close(l2norm(x, output_dtype=torch.float32).norm(dim=-1), torch.ones(3))
    assert l2norm(x).dtype == torch.bfloat16
    assert l2norm(torch.zeros(1, 2)).tolist() == [[0, 0]]


def test_mindspeeds_recurrence_is_computed_by_its_own_function_in_plain_torch() -> None:
    rule, given = ModuleType("mindspeed.core.ssm.chunk_gated_delta_rule"), []
    rule.torch_chunk_gated_delta_rule = lambda *args, **options: given.append((args, options)) or "computed"  # type: ignore[attr-defined]
    offer_recurrence(rule)
    q, k, v = (torch.full((1, 3, 2, 4), value, dtype=torch.bfloat16) for value in (1.0, 2.0, 3.0))
    decay = torch.zeros(1, 3, 2)
    assert rule.chunk_gated_delta_rule(q, k, v, g=decay, beta=decay, use_qk_l2norm_in_kernel=True) == "computed"
    (normed, _, values), options = given[0]
    assert torch.equal(normed, l2norm(q))
    assert (values is v, options["g"] is decay, options["chunk_size"]) == (True, True, 64)
    with pytest.raises(NotImplementedError, match="supports only the default scale"):
        rule.chunk_gated_delta_rule(q, k, v, decay, decay, scale=1.0)
    with pytest.raises(ValueError, match="does not support float32"):
        rule.chunk_gated_delta_rule(q.float(), k, v, decay, decay)
