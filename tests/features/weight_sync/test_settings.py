"""The settings, read from the environment."""

from __future__ import annotations

import pytest

from verl_npu.errors import SettingError
from verl_npu.features.weight_sync.settings import Check, Settings


def test_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BUCKET_MB": "0.5", "CHECK": "engine", "PORT": "4711", "TIMEOUT": "12.5"}.items():
        monkeypatch.setenv(f"VERL_NPU_WEIGHT_SYNC_{name}", value)
    assert Settings.from_environment() == Settings(1 << 19, Check.ENGINE, 12.5, 4711)


def test_without_settings_the_defaults_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BUCKET_MB", "CHECK", "PORT", "TIMEOUT"):
        monkeypatch.delenv(f"VERL_NPU_WEIGHT_SYNC_{name}", raising=False)
    assert Settings.from_environment() == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [("CHECK", "yes"), ("PORT", "70000"), ("TIMEOUT", "soon"), ("TIMEOUT", "-1"), ("BUCKET_MB", "0")],
)
def test_a_setting_that_is_none_is_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"VERL_NPU_WEIGHT_SYNC_{name}", value)
    with pytest.raises(SettingError, match=f"VERL_NPU_WEIGHT_SYNC_{name}='{value}': expected"):
        Settings.from_environment()
