"""What vllm-ascend at 1de16ead8e takes from a later `vllm.v1.outputs` than that of vLLM 0.10.1.1.

It is written for vLLM 3821787aa7, which is in no registry. Both things are of speculative decoding, which no training
uses. `environment.make` copies this file into the vLLM that it has installed; here it is never imported but by tests.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class DraftTokenIds:
    """The tokens that a small model proposes, by request."""

    req_ids: list[str]
    draft_token_ids: list[list[int]]


def without_proposals(upstreams: Callable[..., None]) -> Callable[..., None]:
    """Return the `__init__` of a runner's output that can be made without `spec_token_ids`."""

    @functools.wraps(upstreams)
    def made(self: object, *arguments: object, **named: object) -> None:
        if not arguments:  # among positional ones it has its own place
            named.setdefault("spec_token_ids", None)
        upstreams(self, *arguments, **named)

    return made
