"""vLLM's release, as upstream compares it."""

from __future__ import annotations

import sys
import types

import pytest
from packaging import version

from verl_npu.features.rollout.patches import Release, reduce_vllm_version_to_release


@pytest.mark.parametrize("text", ["0.11.0", "0.11.0+empty", "0.11.0.post2", "0.11.0+cpu"])
def test_a_build_of_a_release_is_not_newer_than_the_release(text: str) -> None:
    release = Release(text)
    assert not release > "0.11.0"
    assert release >= "0.11.0"
    assert release < "0.12.0"
    assert release == "0.11.0"
    assert not version.parse(release) > version.parse("0.11.0")


def test_releases_compare_as_numbers() -> None:
    # As text, 0.9.1 is above both.
    assert Release("0.9.1") < "0.11.0"
    assert Release("0.9.1") <= "0.10.0"
    assert Release("0.12.0") > "0.11.0"
    assert Release("0.11.0rc1") < "0.11.0"


@pytest.mark.parametrize(("found", "made"), [("0.11.0+empty", "0.11.0"), ("dev", "dev")])
def test_vllms_own_name_for_itself_becomes_the_release(found: str, made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = types.ModuleType("vllm")
    vllm.__version__ = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    assert reduce_vllm_version_to_release("0.11.0+empty") == "0.11.0+empty"
    assert vllm.__version__ == made  # type: ignore[attr-defined]
