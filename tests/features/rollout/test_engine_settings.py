"""Settings with which an engine would not start end the job before its first process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from verl_npu.errors import EngineSettingError
from verl_npu.features.rollout import rules
from verl_npu.features.rollout.patches import check_and_complete_engine_settings


def refuse_engine_settings(config: Any) -> None:
    rules.check(
        config,
        (
            "rollout.ranks",
            "rollout.heads",
            "rollout.additional_config",
        ),
    )


def job(model: Path | None = None, npus: int = 8, nodes: int = 1, **engine: Any) -> Any:
    omegaconf = pytest.importorskip("omegaconf")
    hybrid = engine.pop("hybrid_engine", True)
    top = engine.pop("top", {})
    return omegaconf.OmegaConf.create(
        {
            "actor_rollout_ref": {
                "hybrid_engine": hybrid,
                "model": {"path": str(model or "Qwen/Qwen3-8B")},
                "rollout": {"name": "vllm", "tensor_model_parallel_size": 1, **engine},
            },
            "trainer": {"nnodes": nodes, "n_gpus_per_node": npus},
            **top,
        }
    )


# Ranks.


def test_engines_that_do_not_divide_the_npus_are_refused() -> None:
    with pytest.raises(EngineSettingError, match=r"divide the job's 8 NPUs, found engines of 3 "):
        refuse_engine_settings(job(tensor_model_parallel_size=3))


def test_pipelines_count() -> None:
    refuse_engine_settings(job(npus=4, nodes=2, tensor_model_parallel_size=4, pipeline_model_parallel_size=2))
    with pytest.raises(EngineSettingError, match="found engines of 8 "):
        refuse_engine_settings(job(npus=12, tensor_model_parallel_size=4, pipeline_model_parallel_size=2))


@pytest.mark.parametrize(
    "changes",
    [
        {"top": {"rollout": {"nnodes": 1, "n_gpus_per_node": 3}}},
        {"n_gpus_per_node": 3, "nnodes": 1},
        {"hybrid_engine": False},
        {"name": "hf"},
    ],
    ids=["a recipe's own NPUs", "NPUs of its own", "no hybrid engine", "another engine"],
)
def test_a_rollout_that_is_not_divided_out_of_the_trainers_npus_is_left(changes: dict[str, Any]) -> None:
    refuse_engine_settings(job(tensor_model_parallel_size=3, **changes))


# Heads.


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 14}))
    return tmp_path


def test_heads_that_cannot_be_divided_are_refused(model: Path) -> None:
    with pytest.raises(EngineSettingError, match=r"=4: expected a divisor of the model's 14 .* one of 1, 2, 7, 14"):
        refuse_engine_settings(job(model, tensor_model_parallel_size=4))


def test_the_heads_of_a_model_with_images_are_in_its_text_part(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"num_attention_heads": 6}}))
    with pytest.raises(EngineSettingError, match="6 attention heads"):
        refuse_engine_settings(job(tmp_path, tensor_model_parallel_size=4))


@pytest.mark.parametrize("text", ["not json", "{}", '{"num_attention_heads": null}'])
def test_a_model_that_does_not_say_is_left(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    refuse_engine_settings(job(tmp_path, tensor_model_parallel_size=4))


# Keys of additional_config.


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vllm-ascend that reads one key, and another one elsewhere."""
    package = tmp_path / "site" / "vllm_ascend"
    (package / "worker").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "ascend_config.py").write_text('refresh = additional_config.get("refresh", False)\n')
    (package / "worker" / "worker.py").write_text("if 'weight_nz_mode' in vllm_config.additional_config: pass\n")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "vllm_ascend", raising=False)
    return package


def with_keys(*keys: str) -> Any:
    return job(engine_kwargs={"vllm": {"additional_config": dict.fromkeys(keys, True)}})


@pytest.mark.usefixtures("installed")
def test_keys_that_it_reads_somewhere_pass() -> None:
    refuse_engine_settings(with_keys("refresh", "weight_nz_mode"))


@pytest.mark.usefixtures("installed")
def test_a_key_that_it_never_reads_is_refused_with_the_one_that_may_be_meant() -> None:
    with pytest.raises(EngineSettingError, match=r"found refersh, which .* did you mean refresh\?"):
        refuse_engine_settings(with_keys("refersh"))


@pytest.mark.usefixtures("installed")
def test_a_text_of_json_is_read_too() -> None:
    asked = {"vllm": {"additional_config": json.dumps({"rl_config": {}})}}
    with pytest.raises(EngineSettingError, match="found rl_config"):
        refuse_engine_settings(job(engine_kwargs=asked))


def test_without_vllm_ascend_no_key_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refuse_engine_settings(with_keys("anything"))


def test_upstreams_validation_comes_after_it() -> None:
    asked: list[object] = []
    with pytest.raises(EngineSettingError):
        check_and_complete_engine_settings(asked.append, job(tensor_model_parallel_size=3))
    assert asked == []
