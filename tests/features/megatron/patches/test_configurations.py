"""DeepSeek-V3's configuration beside a Megatron that has its experimental flag and no function that sets it."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from verl_npu.features.megatron.patches.configurations import set_the_experimental_flag_of_an_older_megatron


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of Megatron 0.12.1."""
    made = ModuleType("megatron.core.config")
    vars(made)["ENABLE_EXPERIMENTAL"] = False
    monkeypatch.setitem(sys.modules, made.__name__, made)
    for name in ("megatron", "megatron.core"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    return made


def upstreams(fails: bool) -> str:
    from megatron.core.config import set_experimental_flag

    set_experimental_flag(True)
    if fails:
        raise ValueError("a bad configuration")
    return "a configuration"


def test_without_it_the_configuration_ends_in_an_import_error(flags: ModuleType) -> None:
    with pytest.raises(ImportError, match="set_experimental_flag"):
        upstreams(False)


def test_the_flag_is_set_and_megatron_keeps_no_name_of_ours(flags: ModuleType) -> None:
    assert set_the_experimental_flag_of_an_older_megatron(upstreams, False) == "a configuration"
    assert (flags.ENABLE_EXPERIMENTAL, hasattr(flags, "set_experimental_flag")) == (True, False)


def test_megatron_keeps_no_name_of_ours_after_an_error(flags: ModuleType) -> None:
    with pytest.raises(ValueError, match="bad"):
        set_the_experimental_flag_of_an_older_megatron(upstreams, True)
    assert not hasattr(flags, "set_experimental_flag")


def test_megatrons_own_function_is_used_where_it_has_one(flags: ModuleType) -> None:
    given: list[bool] = []
    vars(flags)["set_experimental_flag"] = given.append
    set_the_experimental_flag_of_an_older_megatron(upstreams, False)
    assert given == [True]
    assert flags.set_experimental_flag == given.append
