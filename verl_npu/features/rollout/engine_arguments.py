"""The arguments that upstream does not pass to the vLLM engine at 796871d7, and a context that passes them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from ..configuration import Section
from .data_parallel import join

_SPMD = "verl.workers.rollout.vllm_rollout.vllm_rollout_spmd"
OTHER_SIZES = "cuda_graph_sizes"
"""An argument of vLLM itself, which vLLM uses to compute the graph sizes."""
_CAPTURE_SIZES = (8, 16, 32, 64, 128, 192, 256, 384)
"""The graph sizes that the plugin in the published image uses."""
_MAX_NUM_SEQS = 1024
"""The default in upstream's configuration at 796871d7. At that revision, the setting reaches no engine."""


@contextmanager
def passing_arguments(config: Section) -> Iterator[Section]:
    """Context manager that passes the user's arguments to each new engine. Yields the configuration for building the
    engine."""
    join(config)
    own = copy.deepcopy(config)
    if user_kwargs(config):
        own.engine_kwargs.vllm = {}
    with _passing_also(_with_few_graphs(config)):
        yield own


@contextmanager
def _passing_also(asked: Mapping[str, object]) -> Iterator[None]:
    """Context manager that also passes the arguments in `asked` to each engine that upstream's module creates."""
    module = vars(sys.modules[_SPMD])
    engine = module["LLM"]
    module["LLM"] = lambda **given: engine(**_merged(given, asked))
    try:
        yield
    finally:
        module["LLM"] = engine


def _merged(given: Mapping[str, object], asked: Mapping[str, object]) -> dict[str, object]:
    """Merge two mappings of arguments. `asked` wins. Nested mappings are merged in the same way."""
    merged = dict(given)
    for key, value in asked.items():
        before = merged.get(key)
        merged[key] = _merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return merged


def arguments(engine: Section) -> dict[str, object]:
    """Return the engine arguments that the user has set: engine_kwargs, and the settings that only later revisions of
    verl pass to the engine."""
    asked: dict[str, object] = {}
    if engine.get("max_num_seqs") not in (None, _MAX_NUM_SEQS):
        asked["max_num_seqs"] = engine.get("max_num_seqs")
    if engine.get("enable_expert_parallel"):
        asked["enable_expert_parallel"] = True
    sizes = engine.get("cudagraph_capture_sizes")
    if sizes and not engine.get("enforce_eager"):
        # The engine refuses what is not a list.
        asked["compilation_config"] = {"cudagraph_capture_sizes": [*sizes] if isinstance(sizes, Sequence) else sizes}
    return _merged(asked, user_kwargs(engine))


def _with_few_graphs(engine: Section) -> dict[str, object]:
    """Return the user's arguments. If the engine captures graphs and nobody set the graph sizes, add sizes."""
    asked = arguments(engine)
    if engine.get("enforce_eager") or OTHER_SIZES in asked:
        return asked
    return _merged({"compilation_config": {"cudagraph_capture_sizes": list(_CAPTURE_SIZES)}}, asked)


def user_kwargs(engine: Section) -> dict[str, object]:
    """Return the user's engine_kwargs for vLLM as plain data. Arguments that are None are omitted."""
    kwargs = (engine.get("engine_kwargs") or {}).get("vllm") or {}
    return {str(key): plain(value) for key, value in kwargs.items() if value is not None}


def plain(value: object) -> object:
    """Return a value as plain data. vLLM accepts neither OmegaConf's lists nor its mappings."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
