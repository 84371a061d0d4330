"""A way to divide the rollout that verl passes over ends the job before its first process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_npu.errors import EngineSettingError
from verl_npu.features.rollout import rules
from verl_npu.registry.source.tree import SourceTree

omegaconf = pytest.importorskip("omegaconf")


def refuse_unread_parallelism(config: Any) -> None:
    rules.check(config, ("rollout.unread_parallelism",))


def job(**engine: Any) -> Any:
    return omegaconf.OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "vllm", **engine}}})


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A verl without a schema of its rollout's settings."""
    (tmp_path / "verl/workers/rollout").mkdir(parents=True)
    (tmp_path / "verl/workers/rollout/engine.py").write_text("size = config.tensor_model_parallel_size")
    monkeypatch.setattr(SourceTree, "installed", lambda packages: SourceTree.at(tmp_path, ("verl",)))
    return tmp_path


ASKED = {
    "data_parallel_size": (
        {"data_parallel_size": 2},
        r"found 2, which nothing .*; leave it out, or use verl v0\.6\.1",
    ),
    "dp_model_parallel_size": ({"dp_model_parallel_size": 32}, "found 32, which nothing"),
    "expert_parallel_size": (
        {"expert_parallel_size": 4},
        r"set .*\.enable_expert_parallel=True with rollout\.mode=sync",
    ),
    "enable_expert_parallel": ({"enable_expert_parallel": True, "mode": "async"}, "found True, which nothing"),
    "hybrid_tp": ({"hybrid_tp": {"enabled": True}}, "vllm-ascend 0.7.3 divides no layer by itself"),
}


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("setting", ASKED)
def test_a_setting_that_nothing_reads_is_refused(setting: str) -> None:
    asked, words = ASKED[setting]
    with pytest.raises(EngineSettingError, match=rf"^actor_rollout_ref\.rollout\.{setting}: .*{words}"):
        refuse_unread_parallelism(job(**asked))


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    "asked",
    [
        {"data_parallel_size": 1},
        {"hybrid_tp": {"enabled": False}},
        {"enable_expert_parallel": True, "mode": "sync"},
        {"data_parallel_size": 2, "name": "sglang"},
    ],
)
def test_what_asks_for_nothing_passes(asked: dict[str, Any]) -> None:
    refuse_unread_parallelism(job(**asked))


def test_a_setting_that_verl_reads_passes(site: Path) -> None:
    (site / "verl/workers/rollout/engine.py").write_text("size = config.data_parallel_size")
    refuse_unread_parallelism(job(data_parallel_size=2))


def test_a_verl_with_a_schema_judges_by_itself(site: Path) -> None:
    (site / "verl/workers/config").mkdir()
    (site / "verl/workers/config/rollout.py").write_text("class RolloutConfig: ...")
    refuse_unread_parallelism(job(hybrid_tp={"enabled": True}))


@pytest.mark.upstream
@pytest.mark.parametrize(("pin", "refused"), [("796871d7", True), ("v0.6.1", False), ("1dda039b", False)])
def test_which_revisions_pass_over_them(
    pin: str, refused: bool, source: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = SourceTree.at(source("verl", pin), ("verl",))
    monkeypatch.setattr(SourceTree, "installed", lambda packages: tree)
    for asked, _ in ASKED.values():
        if refused:
            with pytest.raises(EngineSettingError):
                refuse_unread_parallelism(job(**asked))
        else:
            refuse_unread_parallelism(job(**asked))
