"""Overrides for MindSpeed, by the revision that the documents of the script's verl name."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ...features.megatron.overrides.command_line import requests
from ...features.megatron.overrides.documented import DOCUMENTED, revision_for
from ...features.megatron.overrides.installation import recorded_as
from ...features.megatron.overrides.judgement import problems
from .base import Finding, Script

__all__ = ["overrides"]


def overrides(script: Script) -> Iterator[Finding]:
    """Judge each worker's overrides; only what is certain is refused."""
    if script.pin not in DOCUMENTED:
        return
    words = shlex.join([script.trainer.module, *script.trainer.overrides])
    if not any(section in words for section in (".megatron.", ".mindspeed.")):
        return
    contract = recorded_as(revision_for(script.pin, words))
    for request in requests(words):
        for problem in problems(request, contract):
            yield Finding(
                "MindSpeed",
                problem.certain,
                f"{request.worker}: {problem.subject}",
                problem.found,
                f"MindSpeed {contract.revision}, which {script.pin}'s documents name, expects {problem.expected}",
                problem.fix,
            )
