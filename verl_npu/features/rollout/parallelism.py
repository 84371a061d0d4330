"""Ways to divide a rollout that the installed verl does not have, and that it passes over without a word."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import EngineSettingError
from ...registry.source.target import Target
from ...registry.source.tree import SourceTree
from ..configuration import Section

__all__ = ["refuse_unread_parallelism"]

_ROLLOUT = "actor_rollout_ref.rollout"
_READERS = "verl.workers.rollout"
# From this class on upstream itself refuses what it does not know.
_SCHEMA = Target("verl.workers.config.rollout", "RolloutConfig")
_DATA = "leave it out, or use verl v0.6.1 or later, whose server has it together with expert parallelism"
_EXPERTS = (
    f"leave it out, or set +{_ROLLOUT}.enable_expert_parallel=True with rollout.mode=sync: vLLM 0.9.1 then divides "
    "the experts over the ranks of each engine"
)
_FINE = (
    "leave it out: vllm-ascend 0.7.3 divides no layer by itself, and 0.9.1 only DeepSeek's output head, between data "
    "parallel engines, which this verl does not have"
)
_SIZES = {"data_parallel_size": _DATA, "dp_model_parallel_size": _DATA, "expert_parallel_size": _EXPERTS}


def refuse_unread_parallelism(config: Section) -> None:
    """Raise EngineSettingError for a way to divide the rollout that nothing in the installed verl reads.

    Such an engine starts undivided: a model that needs it does not fit, and the others are slow. Sources: the code of
    verl 796871d7; vllm_ascend/platform.py and distributed/utils.py of 0.9.1, for the output head.
    """
    engine = config.actor_rollout_ref.rollout
    asked = dict(_asked(engine))
    tree = SourceTree.installed(("verl",)) if engine.get("name") == "vllm" and asked else None
    if tree is None or "verl" not in tree or tree.nodes(_SCHEMA):
        return
    words = frozenset().union(*map(tree.used_names, tree.modules_below(_READERS)))
    for setting, (found, fix) in asked.items():
        if setting not in words:
            raise EngineSettingError(
                subject=f"{_ROLLOUT}.{setting}",
                expected="a setting that the rollout of the installed verl reads",
                found=f"{found}, which nothing in {_READERS} reads",
                fix=fix,
                override="VERL_NPU_DISABLE=rollout",
            )


def _asked(engine: Section) -> Iterator[tuple[str, tuple[str, str]]]:
    for setting, fix in _SIZES.items():
        size = engine.get(setting)
        if isinstance(size, int) and size > 1:
            yield setting, (str(size), fix)
    if engine.get("enable_expert_parallel") and engine.get("mode") == "async":
        yield "enable_expert_parallel", ("True", _EXPERTS)
    hybrid = engine.get("hybrid_tp")
    if hybrid is not None and hasattr(hybrid, "get") and hybrid.get("enabled"):
        yield "hybrid_tp", ("enabled=True", _FINE)
