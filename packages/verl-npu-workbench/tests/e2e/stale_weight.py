"""A fault for verl's `external_lib`: from the 20th weight sync on, the virtual engine keeps one old weight."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from verl_npu_workbench.simulation.rollout.weights import Weights

NAME, SINCE = "model.layers.1.mlp.down_proj.weight", 20
take = Weights.take


@functools.wraps(take)
def take_but_one(self: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    self.syncs = getattr(self, "syncs", 0) + 1

    def changed() -> Iterator[tuple[str, torch.Tensor]]:
        for name, value in weights:
            if name == NAME and self.syncs < SINCE:
                self.kept = value.detach().clone()
            yield name, self.kept if name == NAME else value

    take(self, changed())


Weights.take = take_but_one  # type: ignore[method-assign]
