"""MindSpeed is imported only if everything that it imports is there; its modules collect only their own state."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from pathlib import Path

import pytest

from verl_npu.errors import UnavailableError
from verl_npu.features.megatron import mindspeed, source
from verl_npu.features.megatron.mindspeed import collect_a_modules_own_state_only
from verl_npu.features.megatron.repatch import repatch
from verl_npu.features.megatron.request import Request


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Return the folders of the installed packages; a test may change them."""
    folders: dict[str, Path] = {"mindspeed": tmp_path, "megatron": tmp_path}
    monkeypatch.setattr(source, "package_folder", lambda package, part: folders.get(package))
    return folders


def test_a_missing_megatron_is_an_import_error_that_says_what_to_install(folders: dict[str, Path]) -> None:
    del folders["megatron"]
    with pytest.raises(ImportError) as caught:
        mindspeed.refuse_mindspeed_without_its_dependencies()
    error = caught.value
    assert isinstance(error, UnavailableError)
    assert (error.name, error.subject) == ("megatron.core", "mindspeed.megatron_adaptor")
    assert str(error).startswith(
        "mindspeed.megatron_adaptor: verl-npu does not import MindSpeed, because megatron.core is not installed"
    )
    assert "pip install megatron-core" in error.fix
    assert error.override == "VERL_NPU_DISABLE=megatron"


def test_a_package_that_this_revision_imports_is_missed(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folders["mindspeed"] / "megatron_adaptor.py").touch()
    monkeypatch.setattr(source.importlib.util, "find_spec", lambda name: None)
    assert source.missing_packages(folders["mindspeed"]) == ["einops"]


def test_a_worker_does_not_go_without_a_mindspeed_that_failed_to_be_imported(folders: dict[str, Path]) -> None:
    (folders["mindspeed"] / "__init__.py").write_text("import megatron_adaptor\n")
    with pytest.raises(UnavailableError, match=r"actor: .* because megatron_adaptor is not installed") as caught:
        repatch(Request("actor", {}, {}))
    assert caught.value.fix == (
        "install MegatronAdaptor and TransformerEngineNPU, in the versions that this version of MindSpeed requires"
    )


def test_a_mindspeed_that_failed_for_another_reason_is_not_gone_without_either(folders: dict[str, Path]) -> None:
    with pytest.raises(UnavailableError, match=r"python -c 'import mindspeed\.megatron_adaptor'"):
        repatch(Request("actor", {}, {}))


@pytest.mark.parametrize("imported", [False, True], ids=["not installed", "imported"])
def test_a_worker_goes_on_otherwise(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, imported: bool) -> None:
    given: list[object] = []
    if imported:
        adaptor = types.SimpleNamespace(repatch=given.append)
        monkeypatch.setitem(sys.modules, "mindspeed.megatron_adaptor", adaptor)  # type: ignore[arg-type]
    else:
        del folders["mindspeed"]
    repatch(Request("actor", {"use_flash_attn": True}, {}))
    assert given == ([{"use_flash_attn": True}] if imported else [])


@pytest.mark.parametrize("newer", [False, True])
def test_an_older_mindspeed_beside_megatron_adaptor_is_warned_of(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], newer: bool
) -> None:
    if newer:
        (folders["mindspeed"] / "__init__.py").write_text("import megatron_adaptor\n")
    for name in ("megatron_adaptor", "megatron_adaptor.features_manager"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    mindspeed.refuse_mindspeed_without_its_dependencies()
    assert ("found an older MindSpeed" in " ".join(capfd.readouterr().err.split())) is not newer


def test_nothing_is_refused_if_all_is_there(folders: dict[str, Path]) -> None:
    mindspeed.refuse_mindspeed_without_its_dependencies()


torch = pytest.importorskip("torch")


class MindSpeeds(torch.nn.Module):
    """A norm and a linear layer in one module, whose weights have Transformer Engine's names."""

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
