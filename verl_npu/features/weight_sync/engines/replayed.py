"""The first batch that a vLLM engine answers by captured graphs after a weight sync, beside the same without them, and
the first that is filled up to the size of a graph.

The proof of weights reads what the engine holds. What a graph reads is seen in no parameter on a real NPU: it is seen
in what the graph answers. The batch is computed twice: what it writes into the cache of keys and values is the same.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeAlias

from ....errors import EngineError
from ....reporting import report, warn

if TYPE_CHECKING:
    import torch

__all__ = ["FAR", "NEAR", "Runner", "compare_next_replay", "difference", "restore"]

# vLLM's own, which carry no types.
Runner: TypeAlias = Any
"""What runs a model in a worker of vLLM."""
Scheduled: TypeAlias = Any
"""What its scheduler has it compute next."""

FAR = 0.1
"""From this on the answers are another model's: weights that are not each other's give outputs that are off by about
their own size."""
NEAR = 0.02
"""Up to this, they are taken for the same: bfloat16 has three digits."""
_RUN = "execute_model"
_FIRST = "0.11.0"
_KNOWN = (_FIRST, "0.13.0", "0.23.0")
"""The releases of vllm-ascend after whose source this is written."""
_GRAPHS = "vllm_ascend.compilation.acl_graph"
_DISTRIBUTION = "vllm-ascend"
_numbers = itertools.count(1)
"""Of this process's comparisons: a line that was said before is not said again, and each is to be seen."""


def compare_next_replay(runner: Runner) -> None:
    """Have this runner's next batch that is answered by a graph computed without graphs, too, once; and if it fills no
    graph up, so the next that does.

    It then raises EngineError, before anybody has the answer, if the two differ as those of two models do, or if they
    are no numbers. Where that cannot be compared, a line says so.
    """
    why = _cannot(runner)
    if why:
        report(f"what the engine's graphs answer after this weight sync is not compared with eager mode: {why}")
        return
    held = runner.__dict__
    before = held.get(_RUN)
    if isinstance(before, _Comparing):  # The last sync's batches have not all come yet.
        before.again()
    else:
        held[_RUN] = _Comparing(runner)


def restore(runner: Runner, before: object) -> None:
    """Have a runner run batches by what stood in it before; None if that was the method of its class."""
    held = runner.__dict__
    held[_RUN] = before
    if before is None:
        del held[_RUN]


def difference(eager: torch.Tensor, replayed: torch.Tensor) -> float:
    """Return by how much of its size a token's output differs: the median over all tokens, since one that another
    expert computes may differ by a rounding. Infinite, if graphs alone give what is no number."""
    eager, replayed = eager.float().flatten(1), replayed.float().flatten(1)
    if not bool(replayed.isfinite().all()):
        return float("inf") if bool(eager.isfinite().all()) else 0.0
    apart = (eager - replayed).norm(dim=1) / eager.norm(dim=1).clamp(min=1e-30)
    return float(apart.median())


class _Comparing:
    """Stands for the runner's `execute_model` until batches were answered by graphs, the last one filled up to a
    graph's size."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._before = runner.__dict__.get(_RUN)
        self._run: Callable[..., object] = getattr(runner, _RUN)
        self._compared = False

    def again(self) -> None:
        """Begin again, with the next batch."""
        self._compared = False

    def __call__(self, scheduled: Scheduled, *args: object, **options: object) -> object:
        model, tokens = self._runner.model, scheduled.total_num_scheduled_tokens
        both = _Both(model, more_than=tokens if self._compared else 0)
        self._runner.model = both
        try:
            done = self._run(scheduled, *args, **options)
        finally:
            self._runner.model = model
        if both.replayed is not None:
            why = _incomparable(both, tokens)
            if why or both.rows > tokens:
                self._end()
            if why:
                report(f"what the engine's graphs answer is not compared with eager mode: {why}")
            else:
                _judge(both, tokens, again=self._compared)
            self._compared = True
        return done

    def _end(self) -> None:
        if vars(self._runner).get(_RUN) is self:
            restore(self._runner, self._before)


class _Both:
    """A model that answers a batch of more than so many rows without graphs before it answers it by one."""

    def __init__(self, model: Callable[..., object], more_than: int) -> None:
        self._model = model
        self._more_than = more_than
        self.rows = 0
        self.eager: object = None
        self.replayed: object = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

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
        finally:  # Layers count in it how often they were called.
            vars(context).clear()
            vars(context).update(kept)
        self.replayed = self._model(*args, **options)
        return self.replayed


def _rows(args: tuple[object, ...], options: Mapping[str, object]) -> int:
    """Return of how many tokens a model is given a batch, by their numbers or embeddings; positions may be 3 rows."""
    given = _tensors([*args, *options.values()])
    return next((len(each) for each in given if each.dim() == 1 or each.is_floating_point()), 1)


def _incomparable(both: _Both, tokens: int) -> str:
    """Return why its two answers cannot be compared token by token; empty if they can."""
    answered = _tensors(both.replayed)
    if not answered:
        return "it is a stage of a pipeline"
    # Then nothing here tells which rows are of tokens, and which only fill the batch up.
    if both.rows < tokens or any(len(each) != both.rows for each in answered):
        return "its NPUs divide the tokens of a batch among them (sequence or context parallelism)"
    return ""


def _judge(both: _Both, tokens: int, again: bool) -> None:
    # What follows are rows that fill the batch up to the size of a graph.
    eager, replayed = ([each[:tokens] for each in _tensors(answer)] for answer in (both.eager, both.replayed))
    filled = f", in a batch that is filled up to {both.rows}" if both.rows > tokens else ""
    found = max(difference(one, other) for one, other in zip(eager, replayed, strict=True))
    if found > FAR:
        apart = f"that the outputs of {tokens} tokens differ by {found:.3g} of their size (the median)"
        if math.isinf(found):
            apart = f"NaN or infinity in the outputs of {tokens} tokens, which are numbers without them{filled}"
        raise EngineError(
            subject="rollout engine",
            expected="its captured graphs to answer, after a weight sync, as the model does without them",
            found=apart,
            fix="do not train with this rollout: its graphs compute with something else than the weights that it "
            "holds. Set actor_rollout_ref.rollout.enforce_eager=True",
        )
    none = max(map(_without_numbers, replayed))
    if none:
        fix = "do not train with this rollout: see whether the trainer's loss and gradients are numbers"
        if filled:
            fix = (
                "do not train with this rollout: what fills a batch up spoils its answers, unless the trainer's loss "
                "is no number either. Set actor_rollout_ref.rollout.enforce_eager=True"
            )
        raise EngineError(
            subject="rollout engine",
            expected="numbers, and neither NaN nor infinity, in what it answers after a weight sync",
            found=f"none in the outputs of {none} of {tokens} tokens, by its captured graphs and without them{filled}",
            fix=fix,
        )
    if any(map(_without_numbers, eager)):
        # Eager mode fills batches up nowhere else, so that this may be the comparison's own doing.
        warn(
            f"after a weight sync the rollout engine's captured graphs answer numbers, and the model without them NaN "
            f"or infinity{filled}: they are not compared. See whether the trainer's loss is a number"
        )
        return
    if found > NEAR:
        warn(
            f"after a weight sync the rollout engine's captured graphs answer otherwise than the model without them, "
            f"by {found:.3g} of the outputs' size. Compare with actor_rollout_ref.rollout.enforce_eager=True"
        )
    which = f"that is filled up to {both.rows}, after" if again else "by graphs after"
    report(
        f"the first batch {which} a weight sync ({tokens} tokens) differs from eager mode by {found:.2g} "
        f"(comparison {next(_numbers)} in pid {os.getpid()})"
    )


def _without_numbers(output: torch.Tensor) -> int:
    """Return of how many tokens the output is not finite."""
    return int((~output.flatten(1).isfinite()).any(dim=1).sum())


def _tensors(output: object) -> list[torch.Tensor]:
    """What a model gives: hidden states, or several of them."""
    import torch

    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, (list, tuple)):
        return [tensor for each in output for tensor in _tensors(each)]
    return []


def _cannot(runner: Runner) -> str:
    """Return why the comparison would not be sound for this engine; empty if it is."""
    if _GRAPHS not in sys.modules:
        return "it is not vllm-ascend, or not one with graphs"
    release = metadata.version(_DISTRIBUTION)
    if release not in _KNOWN:
        known = f"{', '.join(_KNOWN[:-1])} and {_KNOWN[-1]}"
        return f"the comparison is written for vllm-ascend {known} alone, and this is {release}"
    settings = runner.vllm_config
    if settings.model_config.is_hybrid or settings.model_config.is_attention_free:
        return "the model keeps a state that a batch computed twice would change twice"
    if settings.parallel_config.data_parallel_size > 1:
        return "its ranks of data parallelism would wait for each other"
    if settings.speculative_config is not None or settings.kv_transfer_config is not None:
        return "it speculates, or sends its cache elsewhere"
    full = "FULL" in settings.compilation_config.cudagraph_mode.name
    if release != _FIRST and full and settings.model_config.use_mla:
        # Its _forward_decode, in attention/mla_v1.py, passes on the lengths of a batch that is filled up, with the
        # rows of one that is not.
        return "without graphs, its latent attention takes no batch that is filled up to the size of a full graph"
    return ""
