"""Patterns that are replaced in every compiled graph. The wheel's own patterns are not among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._inductor.pattern_matcher import Match, PatternMatcherPass, fwd_only
from torch._inductor.pattern_matcher import register_replacement as register

__all__ = ["register_replacement"]

_replaced = PatternMatcherPass(pass_name="npugraph_ex_generic_pattern_pass")


def _always(_match: Match) -> bool:
    return True


def register_replacement(
    search_fn: Callable[..., Any],
    replace_fn: Callable[..., Any],
    example_inputs: Iterable[Any],
    trace_fn: Callable[..., Any] = fwd_only,
    extra_check: Callable[[Match], bool] = _always,
    search_fn_pattern: Any = None,
    scalar_workaround: dict[str, float | int] | None = None,
    skip_duplicates: bool = False,
) -> None:
    """Replace the pattern of `search_fn` with `replace_fn` in every graph that is compiled from now on."""
    register(
        search_fn,
        replace_fn,
        example_inputs,
        trace_fn,
        _replaced,
        extra_check=extra_check,
        scalar_workaround=scalar_workaround,
        search_fn_pattern=search_fn_pattern,
        skip_duplicates=skip_duplicates,
    )


def replace(module: torch.fx.GraphModule) -> int:
    """Replace the registered patterns, and return the number of replacements."""
    return int(_replaced.apply(module))
