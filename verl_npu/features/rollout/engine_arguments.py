"""Arguments of a vLLM engine: those that it does not know, and at 796871d7 those that did not reach it."""

from __future__ import annotations

import ast
import copy
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches

from ...findings import Finding
from ...registry.source.probe import Defines
from ...registry.source.tree import SourceTree
from ..configuration import Section
from .data_parallel import join
from .feature import refusal, remark, rollout

__all__ = ["give_engine_the_users_arguments", "sizes_in_one_word", "unknown_arguments", "unread_arguments"]

_SPMD = "verl.workers.rollout.vllm_rollout.vllm_rollout_spmd"
_SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"
_ENGINE = f"{_SPMD}:vLLMRollout.__init__"
_KWARGS = "actor_rollout_ref.rollout.engine_kwargs.vllm"
_MODULES = (
    "vllm.engine.arg_utils",
    "vllm.entrypoints.openai.cli_args",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.llm",
)
"""Where vLLM's source writes down the arguments of its engine and of its server."""
_DEFAULTS = {"swap_space", "disable_mm_preprocessor_cache"}
"""What upstream's own configuration has there."""
_CAPTURE_SIZES = (8, 16, 32, 64, 128, 192, 256, 384)
"""Those that the published image's own plugin gives."""
_OTHER_SIZES = "cuda_graph_sizes"
"""vLLM's own argument for the same, from which it reckons them."""
_SIZES = "cudagraph_capture_sizes"
_MAX_NUM_SEQS = 1024
"""Upstream's own default at 796871d7, where it reached no engine."""


def unknown_arguments(config: Section) -> Iterator[Finding]:
    """Refuse an argument of engine_kwargs that the installed vLLM does not know.

    vLLM ends with `got an unexpected keyword argument` or `unrecognized arguments`, in a worker.
    """
    asked = _asked_of_vllm(config)
    known = _known(SourceTree.installed(("vllm",))) if asked else frozenset()
    unknown = [key for key in asked if known and not _is_known(key, known)]
    if unknown:
        near = [match for key in unknown for match in get_close_matches(key, known, n=1)]
        yield refusal(
            "rollout.engine_arguments",
            subject=_KWARGS,
            expected="arguments that the installed vLLM knows",
            found=f"{', '.join(unknown)}, which its source does not mention",
            fix="leave out what this release does not know" + (f"; did you mean {', '.join(near)}?" if near else ""),
        )


def unread_arguments(config: Section) -> Iterator[Finding]:
    """Say which arguments have no effect, because the server of the installed verl does not read engine_kwargs."""
    engine = config.actor_rollout_ref.rollout
    chosen = sorted(_asked_of_vllm(config).keys() - _DEFAULTS)
    server = SourceTree.installed(("verl",)).used_names(_SERVER) if chosen else frozenset()
    if engine.get("mode") == "async" and chosen and server and "engine_kwargs" not in server:
        yield remark(
            "rollout.unread_arguments",
            f"{_KWARGS}: the server of this verl does not read it in rollout.mode=async, so that {', '.join(chosen)} "
            "will have no effect; use rollout.mode=sync",
        )


def sizes_in_one_word(config: Section, tree: SourceTree | None = None) -> Iterator[Finding]:
    """Refuse a list of graph sizes where the server of verl, `tree`'s or the installed one, makes one word of it.

    vLLM's parser wants a word for each: `argument --cuda_graph_sizes: invalid int value: '[8, 64]'`, in an actor of
    Ray, minutes after the job was started.
    """
    engine = config.actor_rollout_ref.rollout
    if engine.get("name") != "vllm" or engine.get("mode") != "async":
        return
    if ((engine.get("agent") or {}).get("custom_async_server") or {}).get("path"):
        return
    given = {f"{_KWARGS}.{key}": value for key, value in _asked(engine).items() if key in (_SIZES, _OTHER_SIZES)}
    given[f"actor_rollout_ref.rollout.{_SIZES}"] = _plain(engine.get(_SIZES))
    lists = {key: value for key, value in given.items() if isinstance(value, list) and value}
    if lists and _makes_one_word_of_a_list(tree or SourceTree.installed(("verl",))):
        key, value = next(iter(lists.items()))
        sizes = ",".join(map(str, value))
        instead = f'"++{_KWARGS}.compilation_config=\'{{\\"{_SIZES}\\": [{sizes}]}}\'"'
        yield refusal(
            "rollout.sizes_in_one_word",
            subject=key,
            expected="no list of sizes, because the server of this verl hands a list to vLLM as one word",
            found=f"[{sizes}], at which vLLM's parser ends the server: invalid int value",
            fix=f"leave {key} out, and name them in JSON: {instead}",
        )


def _makes_one_word_of_a_list(tree: SourceTree) -> bool:
    """Whether its server turns each argument into `--name` and `str(value)`, and looks at no list."""
    server = tree.parse(_SERVER)
    if server is None:
        return False
    loops = (ast.unparse(node) for node in ast.walk(server) if isinstance(node, ast.For))
    return any(
        "f'--{" in loop and "str(" in loop and not re.search(r"\bList(Config)?\b|\blist\b", loop) for loop in loops
    )


def _asked_of_vllm(config: Section) -> dict[str, object]:
    engine = config.actor_rollout_ref.rollout
    if engine.get("name") != "vllm":
        return {}
    return {key: value for key, value in _arguments(engine).items() if value is not False}


def _known(tree: SourceTree) -> frozenset[str]:
    """Return all words of the modules that have the arguments; none if one of the first two is not there."""
    if any(tree.read(module) is None for module in _MODULES[:2]):
        return frozenset()
    words = frozenset().union(*map(tree.used_names, _MODULES))
    return frozenset(word.removeprefix("--").replace("-", "_") for word in words)


def _is_known(key: str, known: frozenset[str]) -> bool:
    """Whether vLLM's parser takes it: dashes, `--no-…` and beginnings of an argument are as good."""
    name = key.partition(".")[0].replace("-", "_")
    return any(word.startswith(name) for word in known) or name.removeprefix("no_") in known


@rollout.wrap(
    _ENGINE,
    uses=(f"{_SPMD}:LLM",),
    may_use=tuple(
        f"verl/trainer/config/ppo_trainer.yaml: actor_rollout_ref.rollout.{key}"
        for key in (
            "engine_kwargs",
            "max_num_seqs",
            "enforce_eager",
            "tensor_model_parallel_size",
            "data_parallel_size",
            "cudagraph_capture_sizes",
        )
    ),
    why="An argument of engine_kwargs.vllm that upstream gives as well, such as enable_prefix_caching, ends the job: "
    "TypeError: LLM() got multiple values for keyword argument. max_num_seqs, cudagraph_capture_sizes and "
    "enable_expert_parallel of the rollout reach no engine, and neither does data_parallel_size (or "
    "dp_model_parallel_size): a model of experts that several engines should share does not fit.",
    how="The engine gets all of them: the user's engine_kwargs come last, as at later revisions, and what is a "
    "mapping on both sides, such as compilation_config, is merged. Data parallel engines are told by vLLM's variables "
    "VLLM_DP_* which of them each is, and where they meet. An engine with graphs of which nobody has named the sizes "
    "captures eight, and not the 67 of vLLM's own default: each is memory of the NPU, and time before the first step.",
    link="https://github.com/volcengine/verl/commit/ff6978c14",
    retired_by=Defines("verl.workers.config.rollout:RolloutConfig"),
    requires=Defines(_ENGINE),
)
def give_engine_the_users_arguments(
    original: Callable[..., None], engine: object, model_path: str, config: Section, *args: object, **kwargs: object
) -> None:
    """Build the engine."""
    join(config)
    own = copy.deepcopy(config)
    if _asked(config):
        own.engine_kwargs.vllm = {}
    with _adding(_with_few_graphs(config)):
        original(engine, model_path, own, *args, **kwargs)


@contextmanager
def _adding(asked: Mapping[str, object]) -> Iterator[None]:
    """Have the engines that upstream's module makes get these arguments too."""
    module = vars(sys.modules[_SPMD])
    engine = module["LLM"]
    module["LLM"] = lambda **given: engine(**_merged(given, asked))
    try:
        yield
    finally:
        module["LLM"] = engine


def _merged(given: Mapping[str, object], asked: Mapping[str, object]) -> dict[str, object]:
    """Return both; what is asked wins, and mappings are merged by the same rule."""
    merged = dict(given)
    for key, value in asked.items():
        before = merged.get(key)
        merged[key] = _merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return merged


def _arguments(engine: Section) -> dict[str, object]:
    """Return what the user asks of the engine: its engine_kwargs, and what else upstream hands over at later pins."""
    asked: dict[str, object] = {}
    if engine.get("max_num_seqs") not in (None, _MAX_NUM_SEQS):
        asked["max_num_seqs"] = engine.get("max_num_seqs")
    if engine.get("enable_expert_parallel"):
        asked["enable_expert_parallel"] = True
    sizes = engine.get("cudagraph_capture_sizes")
    if sizes and not engine.get("enforce_eager"):
        asked["compilation_config"] = {"cudagraph_capture_sizes": list(sizes)}
    return _merged(asked, _asked(engine))


def _with_few_graphs(engine: Section) -> dict[str, object]:
    """Return the same, with sizes of graphs for an engine that captures some and of which nobody has named any."""
    asked = _arguments(engine)
    if engine.get("enforce_eager") or _OTHER_SIZES in asked:
        return asked
    return _merged({"compilation_config": {"cudagraph_capture_sizes": list(_CAPTURE_SIZES)}}, asked)


def _asked(engine: Section) -> dict[str, object]:
    """Return the user's engine_kwargs for vLLM as plain data, without those that are None."""
    kwargs = (engine.get("engine_kwargs") or {}).get("vllm") or {}
    return {str(key): _plain(value) for key, value in kwargs.items() if value is not None}


def _plain(value: object) -> object:
    """OmegaConf's containers are neither lists nor mappings to vLLM."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
