"""Settings with which a rollout engine cannot start, seen before a process of the job is."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from ...errors import EngineSettingError
from ..configuration import Section

__all__ = ["refuse_engine_settings"]

_ROLLOUT = "actor_rollout_ref.rollout"
_TENSOR = f"{_ROLLOUT}.tensor_model_parallel_size"
_ADDITIONAL = f"{_ROLLOUT}.engine_kwargs.vllm.additional_config"
_OVERRIDE = "VERL_NPU_DISABLE=rollout"


def refuse_engine_settings(config: Section) -> None:
    """Raise EngineSettingError for sizes that do not divide, and for keys that the installed vllm-ascend never reads.

    Sources: upstream's workers assert that the ranks of a hybrid engine can be divided into engines, at every pin;
    vLLM's ModelConfig.verify_with_parallel_config, that each rank of an engine gets as many heads, in 0.7.3 to 0.25.1.
    """
    engine = config.actor_rollout_ref.rollout
    if engine.get("name") not in ("vllm", "sglang"):
        return
    _refuse_ranks(config, engine)
    if engine.get("name") == "vllm":
        _refuse_heads(config, engine)
        _refuse_keys(engine)


def _refuse_ranks(config: Section, engine: Section) -> None:
    trainer = config.get("trainer") or {}
    nodes, each = trainer.get("nnodes"), trainer.get("n_gpus_per_node")
    # A rollout with NPUs of its own is not divided out of the trainer's.
    apart = config.get("rollout") or engine.get("n_gpus_per_node") or engine.get("nnodes")
    hybrid = config.actor_rollout_ref.get("hybrid_engine", True)
    size = _number(engine.get("tensor_model_parallel_size")) * _number(engine.get("pipeline_model_parallel_size"))
    if apart or not hybrid or not isinstance(nodes, int) or not isinstance(each, int):
        return
    if nodes * each % size:
        raise EngineSettingError(
            subject=_TENSOR,
            expected=f"engines of as many ranks as divide the job's {nodes * each} NPUs",
            found=f"engines of {size} (tensor_model_parallel_size x pipeline_model_parallel_size)",
            fix="change one of them, trainer.nnodes or trainer.n_gpus_per_node",
            override=_OVERRIDE,
        )


def _refuse_heads(config: Section, engine: Section) -> None:
    path = Path(str((config.actor_rollout_ref.get("model") or {}).get("path") or ""), "config.json").expanduser()
    size = _number(engine.get("tensor_model_parallel_size"))
    try:
        model = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError):
        # A model that cannot be read is for transformers to complain of.
        return
    text = model.get("text_config") or model
    heads = text.get("num_attention_heads")
    if isinstance(heads, int) and heads % size:
        raise EngineSettingError(
            subject=f"{_TENSOR}={size}",
            expected=f"a divisor of the model's {heads} attention heads",
            found=f"{size}, with which vLLM does not start",
            fix=f"set it to one of {', '.join(str(each) for each in _divisors(heads))}",
            override=_OVERRIDE,
        )


def _refuse_keys(engine: Section) -> None:
    asked = ((engine.get("engine_kwargs") or {}).get("vllm") or {}).get("additional_config")
    if isinstance(asked, str):
        try:
            asked = json.loads(asked)
        except ValueError:
            return
    # OmegaConf's sections are mappings without being registered as such.
    keys = [str(key) for key in asked] if asked is not None and hasattr(asked, "keys") else []
    sources = _sources() if keys else None
    if sources is None:
        return
    unread = [key for key in keys if not any(f'"{key}"' in text or f"'{key}'" in text for text in sources)]
    if unread:
        near = [match for key in unread for match in get_close_matches(key, _words(sources), n=1)]
        raise EngineSettingError(
            subject=_ADDITIONAL,
            expected="keys that the installed vllm-ascend reads",
            found=f"{', '.join(unread)}, which its source does not mention",
            fix="leave out what this release does not know" + (f"; did you mean {', '.join(near)}?" if near else ""),
            override=_OVERRIDE,
        )


def _sources() -> list[str] | None:
    """Return the texts of vllm-ascend's modules, without importing it; None if it is not installed here."""
    try:
        found = importlib.util.find_spec("vllm_ascend")
    except (ImportError, ValueError):
        return None
    folders = list(found.submodule_search_locations or []) if found is not None else []
    if not folders:
        return None
    return [path.read_text(encoding="utf-8", errors="replace") for path in Path(folders[0]).rglob("*.py")]


def _words(sources: Iterable[str]) -> list[str]:
    """Return what follows `additional_config.get(` in vllm-ascend's own words."""
    words = []
    for text in sources:
        for part in text.split("additional_config.get(")[1:]:
            words.append(part.lstrip().split(part.lstrip()[:1], 2)[1] if part.lstrip()[:1] in ("'", '"') else "")
    return [word for word in words if word]


def _divisors(heads: int) -> list[int]:
    return [size for size in range(1, heads + 1) if heads % size == 0]


def _number(size: object) -> int:
    return size if isinstance(size, int) and size > 0 else 1
