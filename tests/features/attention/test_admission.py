"""Places where transformers asks for a package that does not exist on NPUs."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from verl_npu.errors import UnavailableError
from verl_npu.features.attention import flash


@pytest.fixture
def on_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "_on_npu", lambda: True)


@pytest.fixture
def off_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "_on_npu", lambda: False)


def utilities(monkeypatch: pytest.MonkeyPatch, lazy_imports: Any) -> None:
    module = ModuleType(flash.UTILS)
    module._lazy_imports = lazy_imports  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, flash.UTILS, module)


def refuses(*_: Any) -> Any:
    raise RuntimeError("upstream's check")


def test_a_dummy_is_not_looked_at(on_npu) -> None:
    config = SimpleNamespace(_attn_implementation=None)
    assert (
        flash.admit_flash_attention_in_model_check(refuses, SimpleNamespace(_supports_flash_attn_2=True), config)
        is config
    )
    assert config._attn_implementation == "flash_attention_2"


def test_a_check_alone_changes_nothing(on_npu) -> None:
    config = SimpleNamespace(_attn_implementation=None)
    flash.admit_flash_attention_in_model_check(
        refuses, SimpleNamespace(_supports_flash_attn_2=True), config, hard_check_only=True
    )
    assert config._attn_implementation is None


def test_a_model_without_flash_attention_gets_upstreams_error(on_npu) -> None:
    with pytest.raises(RuntimeError, match="upstream's check"):
        flash.admit_flash_attention_in_model_check(refuses, SimpleNamespace(_supports_flash_attn_2=False), None)
    with pytest.raises(RuntimeError, match="upstream's check"):
        flash.admit_flash_attention_in_dispatch_check(refuses, SimpleNamespace(_supports_flash_attn=False))


def test_without_an_npu_upstream_decides(off_npu) -> None:
    with pytest.raises(RuntimeError, match="upstream's check"):
        flash.admit_flash_attention_in_model_check(refuses, SimpleNamespace(_supports_flash_attn_2=True), None)
    with pytest.raises(RuntimeError, match="upstream's check"):
        flash.admit_flash_attention_in_dispatch_check(refuses, SimpleNamespace(_supports_flash_attn=True))
    assert flash.import_npu_flash_attention(lambda name: name, "flash_attention_2") == "flash_attention_2"
    with pytest.raises(RuntimeError, match="upstream's check"):
        flash.prevent_cuda_kernel_download(refuses, None, "flash_attention_2")


def test_a_version_with_a_way_to_the_npu_is_admitted(on_npu, monkeypatch) -> None:
    def lazy_imports() -> None:
        from transformers.integrations.npu_flash_attention import npu_flash_attn_func  # noqa: F401

    utilities(monkeypatch, lazy_imports)
    assert flash.admit_flash_attention_in_dispatch_check(refuses, SimpleNamespace(_supports_flash_attn=True)) is True
    assert flash.import_npu_flash_attention(lambda name: name, "flash_attention_2") is None
    assert flash.import_npu_flash_attention(lambda name: name, "flash_attention_3") == "flash_attention_3"


def test_a_version_without_one_is_an_error_that_says_what_to_install(on_npu, monkeypatch) -> None:
    utilities(monkeypatch, lambda: None)
    with pytest.raises(UnavailableError, match=r"4\.53\.3 or 4\.55\.4.*sdpa"):
        flash.admit_flash_attention_in_dispatch_check(refuses, SimpleNamespace(_supports_flash_attn=True))


def test_callers_that_expect_transformers_import_error_get_one(on_npu, monkeypatch) -> None:
    utilities(monkeypatch, lambda: None)
    with pytest.raises(ImportError, match="NPU's flash attention"):
        flash.admit_flash_attention_in_dispatch_check(refuses, SimpleNamespace(_supports_flash_attn=True))


def test_another_implementation_is_upstreams_to_decide(on_npu) -> None:
    assert flash.prevent_cuda_kernel_download(lambda model, name, early: name, None, "sdpa") == "sdpa"
