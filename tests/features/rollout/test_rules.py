"""Settings with which a rollout would not start, or not as requested, end the job before its first process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from verl_npu.errors import FleetError, JobSettingError
from verl_npu.features.rollout import (
    check_and_complete_engine_settings,
    check_and_complete_engine_settings_in_trainer,
    rules,
)
from verl_npu.registry.source.tree import SourceTree

from .job import job


def ask(rule: str, config: Any) -> None:
    rules.check(config, (f"rollout.{rule}",))


@pytest.mark.parametrize("check", [check_and_complete_engine_settings, check_and_complete_engine_settings_in_trainer])
def test_upstreams_validation_comes_after_them(check: Callable[..., object]) -> None:
    validated: list[object] = []
    for tensor in (3, 2):
        config = job(tensor_model_parallel_size=tensor, top={"trainer": {"nnodes": 1, "n_gpus_per_node": 8}})
        config.config = config  # the second rule takes a trainer, which has its configuration there
        with pytest.raises(JobSettingError) if tensor == 3 else nullcontext():
            check(validated.append, config)
    assert len(validated) == 1


# Expandable segments with an engine that shall sleep.

SEGMENTS = "max_split_size_mb:250,expandable_segments:True"


def sleeper(told: str | None = None, **changes: Any) -> Any:
    asked = {} if told is None else {"PYTORCH_NPU_ALLOC_CONF": told}
    top = {"ray_kwargs": {"ray_init": {"num_cpus": None, "runtime_env": {"env_vars": asked}}}}
    return job(top=top, **{"free_cache_engine": True, **changes})


@pytest.fixture
def segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NPU_ALLOC_CONF", SEGMENTS)


@pytest.mark.usefixtures("segments")
def test_an_engine_that_sleeps_is_refused_with_expandable_segments() -> None:
    with pytest.raises(FleetError, match=r"=max_split_size_mb:250,expand.*free_cache_engine=False"):
        ask("expandable_segments", sleeper())


@pytest.mark.usefixtures("segments")
@pytest.mark.parametrize(
    "changes", [{"name": "sglang"}, {"name": "???"}, {"free_cache_engine": False}, {"told": "max_split_size_mb:250"}]
)
def test_other_jobs_keep_expandable_segments(changes: dict[str, Any]) -> None:
    ask("expandable_segments", sleeper(**changes))


@pytest.mark.upstream
@pytest.mark.usefixtures("segments")
def test_an_engine_that_the_user_keeps_awake_keeps_expandable_segments() -> None:
    pytest.importorskip("verl")
    with pytest.raises(FleetError, match="engine with enable_sleep_mode=True"):
        ask("expandable_segments", sleeper(mode="async"))
    ask("expandable_segments", sleeper(mode="async", vllm={"enable_sleep_mode": False}))


def test_what_the_job_tells_its_workers_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_NPU_ALLOC_CONF", raising=False)
    ask("expandable_segments", sleeper())
    with pytest.raises(FleetError, match="expandable_segments"):
        ask("expandable_segments", sleeper(told=SEGMENTS))


# Ranks.


def divided(npus: int = 8, nodes: int = 1, tensor: int = 3, pipeline: int = 1, **changes: Any) -> Any:
    sizes = {"tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": pipeline}
    top = {"trainer": {"nnodes": nodes, "n_gpus_per_node": npus}, **changes.pop("top", {})}
    return job(top=top, **{**sizes, **changes})


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, "divides the job's 8 NPUs; found engines of 3 ranks "),
        ({"npus": 12, "tensor": 4, "pipeline": 2}, "engines of 8 "),
    ],
)
def test_engines_that_do_not_divide_the_npus_are_refused(changes: dict[str, int], found: str) -> None:
    with pytest.raises(JobSettingError, match=found):
        ask("ranks", divided(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"npus": 4, "nodes": 2, "tensor": 4, "pipeline": 2},
        {"top": {"rollout": {"nnodes": 1, "n_gpus_per_node": 3}}},
        {"n_gpus_per_node": 3, "nnodes": 1, "top": {}},
        {"role": {"hybrid_engine": False}},
        {"name": "hf"},
    ],
    ids=["divided", "a recipe's own NPUs", "NPUs of its own", "no hybrid engine", "another engine"],
)
def test_engines_that_divide_the_npus_or_are_not_divided_out_of_them_pass(changes: dict[str, Any]) -> None:
    own = {key: changes.pop(key) for key in ("n_gpus_per_node", "nnodes") if key in changes}
    config = divided(**changes)
    config.actor_rollout_ref.rollout.update(own)
    ask("ranks", config)


# Heads.


def config_with_model(folder: Path, text: str) -> Any:
    (folder / "config.json").write_text(text)
    return job(role={"model": {"path": str(folder)}}, tensor_model_parallel_size=4)


@pytest.mark.parametrize("model", [{"num_attention_heads": 14}, {"text_config": {"num_attention_heads": 14}}])
def test_heads_that_cannot_be_divided_are_refused(model: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(JobSettingError, match=r"=4: expected a divisor of the model's 14 .* one of 1, 2, 7, 14"):
        ask("heads", config_with_model(tmp_path, json.dumps(model)))


@pytest.mark.parametrize("text", ["not json", "{}", '{"num_attention_heads": null}', '{"num_attention_heads": 8}'])
def test_a_model_whose_heads_can_be_divided_or_are_not_known_passes(tmp_path: Path, text: str) -> None:
    ask("heads", config_with_model(tmp_path, text))


# Keys of additional_config.


@pytest.fixture
def ascend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a vllm-ascend that reads one key in its configuration module and another one elsewhere."""
    package = tmp_path / "site" / "vllm_ascend"
    (package / "worker").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "ascend_config.py").write_text('refresh = additional_config.get("refresh", False)\n')
    (package / "worker" / "worker.py").write_text("if 'weight_nz_mode' in vllm_config.additional_config: pass\n")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "vllm_ascend", raising=False)


@pytest.mark.usefixtures("ascend")
def test_keys_that_it_reads_somewhere_pass() -> None:
    ask("additional_config", job(vllm={"additional_config": {"refresh": True, "weight_nz_mode": True}}))


@pytest.mark.usefixtures("ascend")
@pytest.mark.parametrize(
    ("given", "found"),
    [({"refersh": True}, r"refersh, which .* did you mean refresh\?"), ('{"rl_config": {}}', "rl_config")],
    ids=["with the one that may be meant", "in a text of JSON"],
)
def test_a_key_that_it_never_reads_is_refused(given: object, found: str) -> None:
    with pytest.raises(JobSettingError, match=f"found {found}"):
        ask("additional_config", job(vllm={"additional_config": given}))


def test_without_vllm_ascend_no_key_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ask("additional_config", job(vllm={"additional_config": {"anything": True}}))


@pytest.mark.parametrize("given", [{"weight_nz_mode": 1}, '{"weight_nz_mode": 1}'])
def test_weights_in_fractal_nz_are_said(given: object, said: list[str]) -> None:
    ask("weight_format", job(vllm={"additional_config": given}))
    (line,) = said
    assert "additional_config.weight_nz_mode=1: from vllm-ascend 0.23 on" in line


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (None, "vllm"),
        ({}, "vllm"),
        ("no json", "vllm"),
        ({"weight_nz_mode": 0}, "vllm"),
        ({"weight_nz_mode": 1}, "hf"),
    ],
)
def test_of_other_formats_nothing_is_said(given: object, name: str, said: list[str]) -> None:
    ask("weight_format", job(name, {"additional_config": given}))
    assert said == []


# Ways to divide the rollout that verl ignores.


@pytest.fixture
def readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a verl without a schema of its rollout's settings."""
    (tmp_path / "verl/workers/rollout").mkdir(parents=True)
    (tmp_path / "verl/workers/rollout/engine.py").write_text("size = config.tensor_model_parallel_size")
    monkeypatch.setattr(SourceTree, "installed", lambda packages: SourceTree.at(tmp_path, ("verl",)))
    return tmp_path / "verl/workers"


ASKED: dict[str, tuple[dict[str, Any], str]] = {
    "data_parallel_size": (
        {"data_parallel_size": 2, "mode": "async"},
        r"found 2 with rollout\.mode=async, .*; remove it, or set rollout\.mode=sync",
    ),
    "dp_model_parallel_size": (
        {"dp_model_parallel_size": 32, "mode": "async"},
        r"found 32 with rollout\.mode=async",
    ),
    "expert_parallel_size": (
        {"expert_parallel_size": 4},
        r"set .*\.enable_expert_parallel=True with rollout\.mode=sync",
    ),
    "enable_expert_parallel": ({"enable_expert_parallel": True, "mode": "async"}, "found True, which nothing"),
    "hybrid_tp": ({"hybrid_tp": {"enabled": True}}, "vllm-ascend 0.7.3 and the published image's, .* cannot divide"),
}


@pytest.mark.usefixtures("readers")
@pytest.mark.parametrize("setting", ASKED)
def test_a_setting_that_nothing_reads_is_refused(setting: str) -> None:
    asked, words = ASKED[setting]
    with pytest.raises(JobSettingError, match=rf"^actor_rollout_ref\.rollout\.{setting}: .*{words}"):
        ask("unread_parallelism", job(**asked))


@pytest.mark.usefixtures("readers")
@pytest.mark.parametrize(
    "asked",
    [
        {"data_parallel_size": 1, "mode": "async"},
        {"data_parallel_size": 2, "mode": "sync"},
        {"dp_model_parallel_size": 32},
        {"hybrid_tp": {"enabled": False}},
        {"enable_expert_parallel": True, "mode": "sync"},
        {"data_parallel_size": 2, "name": "sglang"},
    ],
)
def test_what_asks_for_nothing_passes(asked: dict[str, Any]) -> None:
    ask("unread_parallelism", job(**asked))


@pytest.mark.parametrize(
    ("file", "text"),
    [("rollout/engine.py", "size = config.data_parallel_size"), ("config/rollout.py", "class RolloutConfig: ...")],
    ids=["verl reads it", "verl has a schema, and judges by itself"],
)
def test_a_setting_that_verl_judges_itself_passes(file: str, text: str, readers: Path) -> None:
    (readers / file).parent.mkdir(exist_ok=True)
    (readers / file).write_text(text)
    ask("unread_parallelism", job(data_parallel_size=2))


@pytest.mark.upstream
@pytest.mark.parametrize(("pin", "refused"), [("796871d7", True), ("v0.6.1", False), ("1dda039b", False)])
def test_only_the_oldest_revision_ignores_the_settings(
    pin: str, refused: bool, source: Callable[[str, str], Path]
) -> None:
    tree = SourceTree.at(source("verl", pin), ("verl",))
    found = [next(rules.unread_parallelism(job(**asked), tree), None) for asked, _ in ASKED.values()]
    assert [finding is not None for finding in found] == [refused] * len(ASKED)


# Kernels that upstream accepts.

TRITON = {"use_fused_kernels": True, "fused_kernel_options": {"impl_backend": "triton"}}
TORCH = {"use_fused_kernels": True, "fused_kernel_options": {"impl_backend": "torch"}}


@pytest.mark.parametrize(
    ("strategy", "model", "words"),
    [
        ("fsdp", TRITON, "ub overflow"),
        ("megatron", TORCH, "issues/7950"),
        ("fsdp", {"use_liger": True}, "liger-kernel is not supported"),
    ],
)
def test_kernels_that_npus_may_not_run_are_said(
    strategy: str, model: dict[str, object], words: str, said: list[str]
) -> None:
    ask("kernels", job(role={"model": model, "actor": {"strategy": strategy}}))
    (line,) = said
    assert words in line


@pytest.mark.parametrize("model", [{}, TORCH, {**TRITON, "use_fused_kernels": False}])
def test_of_other_kernels_nothing_is_said(model: dict[str, object], said: list[str]) -> None:
    ask("kernels", job(role={"model": model, "actor": {"strategy": "fsdp"}}))
    assert said == []


@pytest.mark.parametrize("installed", [True, False])
def test_two_tritons_are_said_to_overwrite_each_other(
    installed: bool, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "_installed", lambda package: installed)
    ask("two_tritons", job())
    assert ["triton and triton-ascend are both installed" in line for line in said] == [True] * installed
