"""The state of a model with MindSpeed's modules in it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from verl_npu.features.megatron.patches.states import collect_a_modules_own_state_only  # noqa: E402  # after torch


class MindSpeeds(torch.nn.Module):
    """A norm and a linear layer in one module, with names for their weights as Transformer Engine has them."""

    def __init__(self) -> None:
        super().__init__()
        self._layernorm = torch.nn.LayerNorm(2)
        self.layer_norm_weight = self._layernorm.weight

    def state_dict(self, *args, **kwargs):  # type: ignore[no-untyped-def,override]
        state = super().state_dict(*args, **kwargs)
        for name in [name for name in state if "_layernorm" in name or "_linear" in name]:
            state.pop(name)
        return state


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = torch.nn.LayerNorm(2)
        self.inner = MindSpeeds()


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    original = MindSpeeds.state_dict

    def state_dict(module, *args, **kwargs):  # type: ignore[no-untyped-def]
        return collect_a_modules_own_state_only(original, module, *args, **kwargs)

    monkeypatch.setattr(MindSpeeds, "state_dict", state_dict)


NORM = {"input_layernorm.weight", "input_layernorm.bias"}


def test_without_it_other_modules_norms_are_lost() -> None:
    assert set(Layer().state_dict()) == {"inner.layer_norm_weight"}


@pytest.mark.parametrize("prefix", ["", "decoder."])
def test_with_it_they_are_kept_and_its_own_stay_out(patched: None, prefix: str) -> None:
    state = Layer().state_dict(prefix=prefix)
    assert set(state) == {prefix + name for name in NORM | {"inner.layer_norm_weight"}}
    assert f"{prefix}inner" in state._metadata  # type: ignore[attr-defined]


def test_a_module_by_itself_is_collected_as_before(patched: None) -> None:
    module = MindSpeeds()
    state = module.state_dict(keep_vars=True)
    assert list(state) == ["layer_norm_weight"]
    assert state["layer_norm_weight"] is module.layer_norm_weight
