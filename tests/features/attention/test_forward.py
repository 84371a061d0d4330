"""The arguments of transformers' flash attention: lengths from the host, and no setting that would be ignored."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from verl_npu.errors import JobSettingError  # noqa: E402
from verl_npu.features.attention import flash  # noqa: E402

NPU = SimpleNamespace(type="npu")


@pytest.fixture(params=[True, False], ids=["from 4.55 on", "before"])
def by_row(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether this transformers has its own function that detects packed rows."""
    module = ModuleType(flash.UTILS)
    if request.param:
        module._is_packed_sequence = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, flash.UTILS, module)
    return bool(request.param)


def call(positions: Any = None, mask: Any = None, rows: int = 1, length: int = 6, **settings: Any) -> dict[str, Any]:
    states = SimpleNamespace(device=NPU, shape=(rows, length, 2, 8))

    def original(*_: Any, **kwargs: Any) -> dict[str, Any]:
        return kwargs

    return flash.compute_packing_once_and_check_settings(
        original, states, states, states, mask, length, True, position_ids=positions, **settings
    )


def test_packed_positions_become_lengths(by_row: bool) -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
    found = call(positions)
    assert (found["cu_seq_lens_q"].tolist(), found["max_length_k"]) == ([0, 3, 6], 3)
    assert found["position_ids"] is positions


def test_one_sequence_is_not_asked_about_again(by_row: bool) -> None:
    found = call(torch.arange(6).unsqueeze(0))
    assert found["position_ids"] is None
    assert "cu_seq_lens_q" not in found


def test_repeated_positions_are_packed_as_this_transformers_sees_it(by_row: bool) -> None:
    found = call(torch.tensor([[0, 0, 0, 1, 2, 3]]))
    assert ("cu_seq_lens_q" in found) is by_row


def test_a_mask_decides_alone(by_row: bool) -> None:
    found = call(torch.tensor([[0, 1, 2, 0, 1, 2]]), torch.ones(1, 6))
    assert found["position_ids"] is None
    assert "cu_seq_lens_q" not in found


def test_lengths_that_are_given_stay(by_row: bool) -> None:
    given = {"cu_seq_lens_q": torch.tensor([0, 6]), "cu_seq_lens_k": torch.tensor([0, 6])}
    found = call(torch.tensor([[0, 1, 2, 0, 1, 2]]), max_length_q=6, max_length_k=6, **given)
    assert found["cu_seq_lens_q"] is given["cu_seq_lens_q"]


def test_positions_of_another_shape_are_upstreams(by_row: bool) -> None:
    for positions in (torch.zeros(3, 1, 6), torch.tensor([[5]])):
        assert call(positions)["position_ids"] is positions


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"softcap": 30.0}, "attn_logit_softcapping"),
        ({"s_aux": "sinks"}, "s_aux"),
        ({"sliding_window": 5}, "sliding_window"),
    ],
)
def test_what_would_be_ignored_is_an_error_that_names_it(by_row: bool, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(JobSettingError, match=named):
        call(**settings)


def test_a_window_counts_the_longest_sequence_and_not_the_row(by_row: bool) -> None:
    packed = torch.tensor([[0, 1, 2, 0, 1, 2]])
    assert call(packed, sliding_window=3)["sliding_window"] is None
    with pytest.raises(JobSettingError, match="a sequence has 3 tokens"):
        call(packed, sliding_window=2)
    mask = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]])
    assert call(mask=mask, rows=2, sliding_window=3)["sliding_window"] is None
    with pytest.raises(JobSettingError, match="a sequence has 3 tokens"):
        call(mask=mask, rows=2, sliding_window=2)


def test_other_devices_are_left_alone(by_row: bool) -> None:
    states = torch.zeros(1, 6, 2, 8)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
    found = flash.compute_packing_once_and_check_settings(
        lambda *_, **kwargs: kwargs, states, states, states, None, 6, True, position_ids=positions, softcap=30.0
    )
    assert (found["position_ids"] is positions, found["softcap"]) == (True, 30.0)
    mask = torch.ones(1, 2)
    assert flash.compute_unpadding_once_per_mask(lambda given: given, mask) is mask


def test_lengths_reach_the_operator_from_the_host() -> None:
    lengths = torch.tensor([0, 3])
    found = flash.pass_sequence_lengths_from_host(
        lambda *args, **kwargs: (args, kwargs), 1, 2, 3, lengths, lengths, causal=True
    )
    assert found[0][3] is found[0][4]
    assert (found[0][3].tolist(), found[1]) == ([0, 3], {"causal": True})
