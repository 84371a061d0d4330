"""Comparison of captured graphs with eager mode, for the first batches of a vLLM engine after a weight sync.

Two batches are compared: the first one that is computed with graphs, and the first one that is also padded to the size
of a graph. The proof of weights reads the engine's parameters. On a real NPU, only a graph's output shows what the
graph reads. A compared batch is computed twice, and writes the same values into the KV cache both times.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeAlias

from ....errors import WeightSyncError
from ....reporting import report, warn

if TYPE_CHECKING:
    import torch

# vLLM's objects, which have no types.
Runner: TypeAlias = Any
"""The model runner in a vLLM worker."""
Scheduled: TypeAlias = Any
"""The output of the scheduler: the next batch."""

FAR = 0.1
"""The relative difference at which outputs are considered to come from different weights. Different weights cause
differences as large as the outputs."""
NEAR = 0.02
"""The largest relative difference between outputs that are considered equal. bfloat16 has about three digits."""
_RUN = "execute_model"
_FIRST = "0.11.0"
_KNOWN = (_FIRST, "0.13.0", "0.23.0")
"""The releases of vllm-ascend whose source this module follows."""
_GRAPHS = "vllm_ascend.compilation.acl_graph"
_DISTRIBUTION = "vllm-ascend"
_numbers = itertools.count(1)
"""Numbers for the comparisons in this process. They make each line different, because reporting drops repeated
lines."""


def compare_next_replay(runner: Runner) -> None:
    """When the next batch that uses graphs arrives, make the runner compute this batch twice, once without graphs and
    once with graphs, and compare the outputs.

    If that batch is not padded, also compare the next padded batch. If the outputs differ as much as the outputs of
    two different models, or if they are not finite, the runner raises WeightSyncError before it returns an answer. If
    no comparison is possible, a message tells the user why.
    """
    why = _unsupported(runner)
    if why:
        report(f"the output of the engine's graphs after this weight sync is not compared with eager mode: {why}")
        return
    held = runner.__dict__
    before = held.get(_RUN)
    if isinstance(before, _Comparing):  # Some batches of the last sync are still to come.
        before.again()
    else:
        held[_RUN] = _Comparing(runner)


def restore(runner: Runner, before: object) -> None:
    """Restore the runner's earlier `execute_model`. `before` is None if the earlier method was the method of the
    runner's class."""
    held = runner.__dict__
    held[_RUN] = before
    if before is None:
        del held[_RUN]


def difference(eager: torch.Tensor, replayed: torch.Tensor) -> float:
    """Return the relative difference of the outputs: the median over all tokens.

    We use the median because rounding may send a single token to another expert. If some values are not finite with
    graphs but finite without them, the result is infinite.
    """
    eager, replayed = eager.float().flatten(1), replayed.float().flatten(1)
    if not bool(replayed.isfinite().all()):
        return float("inf") if bool(eager.isfinite().all()) else 0.0
    apart = (eager - replayed).norm(dim=1) / eager.norm(dim=1).clamp(min=1e-30)
    return float(apart.median())


class _Comparing:
    """A replacement for the runner's `execute_model`. It stays until a padded batch has been computed with graphs."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._before = runner.__dict__.get(_RUN)
        self._run: Callable[..., object] = getattr(runner, _RUN)
        self._compared = False

    def again(self) -> None:
        """Restart the comparison with the next batch that uses graphs."""
        self._compared = False

    def __call__(self, scheduled: Scheduled, *args: object, **options: object) -> object:
        model, tokens = self._runner.model, scheduled.total_num_scheduled_tokens
        both = _EagerAndGraph(model, more_than=tokens if self._compared else 0)
        with in_place_of(self._runner, both):
            done = self._run(scheduled, *args, **options)
        if both.replayed is not None:
            why = _incomparable(both, tokens)
            if why or both.rows > tokens:
                self._end()
            if why:
                report(f"the output of the engine's graphs is not compared with eager mode: {why}")
            else:
                _judge(both, tokens, again=self._compared)
            self._compared = True
        return done

    def _end(self) -> None:
        if vars(self._runner).get(_RUN) is self:
            restore(self._runner, self._before)


class Substitute:
    """A substitute for the model of a runner. It has the same attributes as that model."""

    def __init__(self, model: Callable[..., object]) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


@contextmanager
def in_place_of(runner: Runner, substitute: Substitute) -> Iterator[None]:
    """Context manager that makes a runner compute with a substitute for its model."""
    before = runner.model
    runner.model = substitute
    try:
        yield
    finally:
        runner.model = before


class _EagerAndGraph(Substitute):
    """A model that computes a batch of more than `more_than` rows twice, first without graphs and then with graphs."""

    def __init__(self, model: Callable[..., object], more_than: int) -> None:
        super().__init__(model)
        self._more_than = more_than
        self.rows = 0
        self.eager: object = None
        self.replayed: object = None

    def __call__(self, *args: object, **options: object) -> object:
        context = sys.modules[_GRAPHS].get_forward_context()
        mode = context.cudagraph_runtime_mode
        rows = _rows(args, options)
        if mode.name == "NONE" or rows <= self._more_than:
            return self._model(*args, **options)
        self.rows = rows
        kept = dict(vars(context))
        context.cudagraph_runtime_mode = type(mode).NONE
        try:
            self.eager = self._model(*args, **options)
        finally:  # Layers count their calls in the context.
            vars(context).clear()
            vars(context).update(kept)
        self.replayed = self._model(*args, **options)
        return self.replayed


def _rows(args: tuple[object, ...], options: Mapping[str, object]) -> int:
    """Return the number of rows in a model's input. The rows of the token ids or embeddings count; positions may have
    3 rows."""
    given = _tensors([*args, *options.values()])
    return next((len(each) for each in given if each.dim() == 1 or each.is_floating_point()), 1)


def _incomparable(both: _EagerAndGraph, tokens: int) -> str:
    """Return the reason why the two outputs cannot be compared token by token, or an empty string if they can."""
    answered = _tensors(both.replayed)
    if not answered:
        return "the engine is one stage of a pipeline"
    # In this case we cannot tell tokens from padding.
    if both.rows < tokens or any(len(each) != both.rows for each in answered):
        return "its NPUs divide the tokens of a batch among themselves (sequence or context parallelism)"
    return ""


def _judge(both: _EagerAndGraph, tokens: int, again: bool) -> None:
    # The other rows are padding up to the size of a graph.
    eager, replayed = ([each[:tokens] for each in _tensors(answer)] for answer in (both.eager, both.replayed))
    padded = f", in a batch that is padded to {both.rows} tokens" if both.rows > tokens else ""
    found = max(difference(one, other) for one, other in zip(eager, replayed, strict=True))
    if found > FAR:
        apart = f"differ from eager mode by {found:.3g} of their size (the median of {tokens} tokens)"
        if math.isinf(found):
            apart = f"have NaN or infinity in {tokens} tokens that are finite in eager mode{padded}"
        raise WeightSyncError(
            subject="rollout engine",
            found=f"after a weight sync, the outputs of the engine's captured graphs {apart}. So the graphs do not "
            "use the weights that the engine holds",
            fix="set actor_rollout_ref.rollout.enforce_eager=True before you train with this rollout",
        )
    none = max(map(_count_not_finite, replayed))
    if none:
        fix = "do not use this rollout for training; check whether the trainer's loss and gradients are finite"
        if padded:
            fix += (
                ": if they are, the padding of a batch corrupts the answers, and "
                "actor_rollout_ref.rollout.enforce_eager=True avoids the padding"
            )
        raise WeightSyncError(
            subject="rollout engine",
            found=f"after a weight sync, the outputs of {none} of {tokens} tokens are NaN or infinity, with and "
            f"without captured graphs{padded}",
            fix=fix,
        )
    if any(map(_count_not_finite, eager)):
        # Eager mode pads batches only in this comparison, so the comparison itself may be the cause.
        warn(
            f"after a weight sync, the outputs of the rollout engine's captured graphs are finite, but eager mode "
            f"gives NaN or infinity{padded}, so verl-npu does not compare the two. Check whether the trainer's loss "
            "is finite"
        )
        return
    if found > NEAR:
        warn(
            f"after a weight sync, the outputs of the rollout engine's captured graphs differ from eager mode by "
            f"{found:.3g} of their size. Compare with actor_rollout_ref.rollout.enforce_eager=True"
        )
    which = f"that is padded to {both.rows} tokens, after" if again else "by graphs after"
    report(
        f"the first batch {which} a weight sync ({tokens} tokens) differs from eager mode by {found:.2g} "
        f"(comparison {next(_numbers)} in pid {os.getpid()})"
    )


def _count_not_finite(output: torch.Tensor) -> int:
    """Return the number of tokens whose output is not finite."""
    return int((~output.flatten(1).isfinite()).any(dim=1).sum())


def _tensors(output: object) -> list[torch.Tensor]:
    """Return the tensors in a model's output: one tensor of hidden states, or several."""
    import torch

    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, (list, tuple)):
        return [tensor for each in output for tensor in _tensors(each)]
    return []


def _unsupported(runner: Runner) -> str:
    """Return the reason why a comparison would be invalid for this engine, or an empty string if it would be valid."""
    if _GRAPHS not in sys.modules:
        return "the engine is not vllm-ascend, or a vllm-ascend without graphs"
    release = metadata.version(_DISTRIBUTION)
    if release not in _KNOWN:
        known = f"{', '.join(_KNOWN[:-1])} and {_KNOWN[-1]}"
        return f"the comparison supports only vllm-ascend {known}, and this is {release}"
    settings = runner.vllm_config
    if settings.model_config.is_hybrid or settings.model_config.is_attention_free:
        return "the model keeps a state, which a batch would change twice if it is computed twice"
    if settings.parallel_config.data_parallel_size > 1:
        return "its data-parallel ranks would wait for each other"
    if settings.speculative_config is not None or settings.kv_transfer_config is not None:
        return "the engine uses speculative decoding or transfers its KV cache"
    full = "FULL" in settings.compilation_config.cudagraph_mode.name
    if release != _FIRST and full and settings.model_config.use_mla:
        # _forward_decode in attention/mla_v1.py combines the lengths of a padded batch with the rows of an unpadded
        # one.
        return (
            "without graphs, its latent attention does not support a batch that is padded to the size of a full graph"
        )
    return ""
