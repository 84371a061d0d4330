"""DeepSeek-V3 beside a Megatron that has no function for its experimental flag and does not pack latent attention."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from verl_npu.features.megatron.patches.latent import (
    pack_latent_attention_through_mbridge_too,
    set_the_experimental_flag_of_an_older_megatron,
)


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


class Packing:
    def get_query_key_value_tensors(self, query):  # type: ignore[no-untyped-def]
        return query.squeeze(1)


class NotPacking:
    def get_query_key_value_tensors(self, query):  # type: ignore[no-untyped-def]
        return query


class LatentConfig:
    pass


@pytest.fixture
def mended(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, object], bool]:
    """Make a model beside a Megatron with this attention; returns whether upstream's mend was applied before."""

    def make(attention: type, config: object) -> bool:
        done: list[str] = []
        modules = {
            "megatron": {},
            "megatron.core": {},
            "megatron.core.transformer": {},
            "megatron.core.transformer.multi_latent_attention": {"MLASelfAttention": attention},
            "megatron.core.transformer.transformer_config": {"MLATransformerConfig": LatentConfig},
            "verl.models.mcore.patch_v012": {"apply_patch": lambda: done.append("mend")},
        }
        for name, names in modules.items():
            made = ModuleType(name)
            vars(made).update(names)
            monkeypatch.setitem(sys.modules, name, made)
            parent, _, child = name.rpartition(".")
            if parent in modules:
                setattr(sys.modules[parent], child, made)
        result = pack_latent_attention_through_mbridge_too(lambda *given: done.append("model") or given, 1, config, 3)
        assert result == (1, config, 3)
        return done == ["mend", "model"]

    return make


def test_latent_attention_that_does_not_pack_is_mended_before_the_model_is_made(mended) -> None:
    assert mended(NotPacking, LatentConfig())


def test_a_later_megatron_is_left_alone(mended) -> None:
    assert not mended(Packing, LatentConfig())


def test_a_model_of_another_attention_is_left_alone(mended) -> None:
    assert not mended(NotPacking, object())
