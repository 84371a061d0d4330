"""Rules for arguments that the installed vLLM does not support, or that never reach the engine."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from difflib import get_close_matches

from ...findings import Finding
from ...registry.source.tree import SourceTree
from ..configuration import Section
from .engine_arguments import OTHER_SIZES, arguments, plain, user_kwargs
from .findings import refusal, remark

_SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"
_KWARGS = "actor_rollout_ref.rollout.engine_kwargs.vllm"
_MODULES = (
    "vllm.engine.arg_utils",
    "vllm.entrypoints.openai.cli_args",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.llm",
)
"""The modules of vLLM that define the arguments of its engine and its server."""
_DEFAULTS = {"swap_space", "disable_mm_preprocessor_cache"}
"""Arguments that upstream's own configuration sets."""
_SIZES = "cudagraph_capture_sizes"


def unknown_arguments(config: Section) -> Iterator[Finding]:
    """Yield an error if engine_kwargs contain arguments that the installed vLLM does not support.

    Without this check, vLLM would fail in a worker with `got an unexpected keyword argument` or `unrecognized
    arguments`.
    """
    asked = _vllm_arguments(config)
    known = _known(SourceTree.installed(("vllm",))) if asked else frozenset()
    unknown = [key for key in asked if known and not _is_known(key, known)]
    if unknown:
        near = [match for key in unknown for match in get_close_matches(key, known, n=1)]
        yield refusal(
            "rollout.engine_arguments",
            subject=_KWARGS,
            expected="arguments that the installed vLLM supports",
            found=f"{', '.join(unknown)}, which vLLM's source does not contain",
            fix="remove the unknown arguments" + (f"; did you mean {', '.join(near)}?" if near else ""),
        )


def unread_arguments(config: Section) -> Iterator[Finding]:
    """Warn about arguments in engine_kwargs if the server of the installed verl does not read engine_kwargs."""
    engine = config.actor_rollout_ref.rollout
    chosen = sorted(_vllm_arguments(config).keys() - _DEFAULTS)
    server = SourceTree.installed(("verl",)).used_names(_SERVER) if chosen else frozenset()
    if engine.get("mode") == "async" and chosen and server and "engine_kwargs" not in server:
        yield remark(
            "rollout.unread_arguments",
            f"{_KWARGS}: with rollout.mode=async, the installed verl's server does not read these arguments, so "
            f"{', '.join(chosen)} {'has' if len(chosen) == 1 else 'have'} no effect; use rollout.mode=sync",
        )


def sizes_in_one_word(config: Section, tree: SourceTree | None = None) -> Iterator[Finding]:
    """Yield an error if verl's server would pass a list of graph sizes to vLLM as a single argument. By default, check
    the installed verl.

    vLLM's parser expects one argument for each size. It would fail in a Ray actor, minutes after the start of the job,
    with `argument --cuda_graph_sizes: invalid int value: '[8, 64]'`.
    """
    engine = config.actor_rollout_ref.rollout
    if engine.get("name") != "vllm" or engine.get("mode") != "async":
        return
    if ((engine.get("agent") or {}).get("custom_async_server") or {}).get("path"):
        return
    given = {f"{_KWARGS}.{key}": value for key, value in user_kwargs(engine).items() if key in (_SIZES, OTHER_SIZES)}
    given[f"actor_rollout_ref.rollout.{_SIZES}"] = plain(engine.get(_SIZES))
    lists = {key: value for key, value in given.items() if isinstance(value, list) and value}
    if lists and _stringifies_lists(tree or SourceTree.installed(("verl",))):
        key, value = next(iter(lists.items()))
        sizes = ",".join(map(str, value))
        instead = f'"++{_KWARGS}.compilation_config=\'{{\\"{_SIZES}\\": [{sizes}]}}\'"'
        yield refusal(
            "rollout.sizes_in_one_word",
            subject=key,
            found=f"the installed verl's server passes the list [{sizes}] to vLLM as a single argument, and vLLM "
            "exits with `invalid int value`",
            fix=f"remove {key}, and pass the sizes as JSON: {instead}",
        )


def _stringifies_lists(tree: SourceTree) -> bool:
    """Return whether verl's server turns each argument into `--name` and `str(value)`, with no special case for
    lists."""
    server = tree.parse(_SERVER)
    if server is None:
        return False
    loops = (ast.unparse(node) for node in ast.walk(server) if isinstance(node, ast.For))
    return any(
        "f'--{" in loop and "str(" in loop and not re.search(r"\bList(Config)?\b|\blist\b", loop) for loop in loops
    )


def _vllm_arguments(config: Section) -> dict[str, object]:
    engine = config.actor_rollout_ref.rollout
    if engine.get("name") != "vllm":
        return {}
    return {key: value for key, value in arguments(engine).items() if value is not False}


def _known(tree: SourceTree) -> frozenset[str]:
    """Return all names in vLLM's modules that define arguments, or an empty set if one of the first two modules is
    missing."""
    if any(tree.read(module) is None for module in _MODULES[:2]):
        return frozenset()
    words = frozenset().union(*map(tree.used_names, _MODULES))
    return frozenset(word.removeprefix("--").replace("-", "_") for word in words)


def _is_known(key: str, known: frozenset[str]) -> bool:
    """Return whether vLLM's parser accepts an argument. It also accepts dashes instead of underscores, `--no-…`, and
    abbreviations."""
    name = key.partition(".")[0].replace("-", "_")
    return any(word.startswith(name) for word in known) or name.removeprefix("no_") in known
