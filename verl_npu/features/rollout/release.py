"""The release of vLLM, compared as one: upstream compares its text, or a version with its local part."""

from __future__ import annotations

import sys
from typing import Any

from ...registry.source.probe import AllOf, Mentions, Not
from .feature import rollout

__all__ = ["Release"]

_SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"


class Release(str):
    """A release such as `0.11.0` that compares with others as numbers; a local part or a post-release is left out."""

    __slots__ = ()

    def __new__(cls, text: str) -> Release:
        """Take the release out of a version; raises packaging's InvalidVersion for what is none."""
        from packaging.version import Version

        version = Version(text)
        return super().__new__(cls, text if version.is_prerelease else version.base_version)

    def _compare(self, other: str) -> int:
        from packaging.version import Version

        mine, others = Version(self), Version(other)
        return (mine > others) - (mine < others)

    def __lt__(self, other: str) -> bool:
        return self._compare(other) < 0

    def __le__(self, other: str) -> bool:
        return self._compare(other) <= 0

    def __gt__(self, other: str) -> bool:
        return self._compare(other) > 0

    def __ge__(self, other: str) -> bool:
        return self._compare(other) >= 0


@rollout.set(
    "verl.third_party.vllm:package_version",
    why="0.11.0+empty, what an install for NPUs without CUDA kernels calls itself, is taken for newer than 0.11.0: "
    "the server imports modules that are not there",
    how="vllm.__version__, which upstream's server reads next, becomes the release alone and compares as a version",
    link="https://github.com/volcengine/verl/pull/4411",
    retired_by=Not(Mentions(_SERVER, "vllm.utils")),
    requires=AllOf(Mentions(_SERVER, "vllm.utils.argparse_utils"), Mentions(_SERVER, "vllm.utils")),
)
def vllm_release(version: Any) -> Any:
    """Return the version as it was; vLLM's own name for itself is what changes."""
    vllm = sys.modules.get("vllm")
    found = getattr(vllm, "__version__", None)
    # A build of no release calls itself `dev`: what it is like, nobody knows.
    if isinstance(found, str) and found[:1].isdigit() and not isinstance(found, Release):
        vllm.__version__ = Release(found)  # type: ignore[union-attr]
    return version
