"""Two names that vllm-ascend at 1de16ead8e imports from `vllm.v1.outputs` and vLLM 0.10.1.1 does not have.

That vllm-ascend is written for vLLM 3821787aa7, which is in no registry. Both names belong to speculative decoding,
which no training uses. `environment.make` copies this file into the installed vLLM. Here only tests import it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class DraftTokenIds:
    """The tokens that a draft model proposes for each request."""

    req_ids: list[str]
    draft_token_ids: list[list[int]]


def without_proposals(upstreams: Callable[..., None]) -> Callable[..., None]:
    """Return the `__init__` of a runner's output with `spec_token_ids` as an optional argument."""

    @functools.wraps(upstreams)
    def made(self: object, *arguments: object, **named: object) -> None:
        if not arguments:  # positional arguments include it
            named.setdefault("spec_token_ids", None)
        upstreams(self, *arguments, **named)

    return made
