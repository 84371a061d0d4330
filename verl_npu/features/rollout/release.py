"""The release of vLLM, compared as numbers. Upstream compares texts, or a version with its local part."""

from __future__ import annotations

import sys
from typing import TypeVar

from ...registry.source.probe import AllOf, Mentions, Not
from .feature import rollout

__all__ = ["Release", "reduce_vllm_version_to_release"]

_SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"

Version = TypeVar("Version")


class Release(str):
    """A release such as `0.11.0` that is compared as numbers; it has no local part and no post-release."""

    __slots__ = ()

    def __new__(cls, text: str) -> Release:
        """Take the release from a version. Raises packaging's InvalidVersion if `text` is not a version."""
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
    why="vLLM built for NPUs calls itself 0.11.0+empty, which upstream takes for newer than 0.11.0: the server fails "
    "with `No module named 'vllm.utils.argparse_utils'`.",
    how="vllm.__version__, which upstream's server reads next, becomes the release alone, compared as numbers.",
    link="https://github.com/volcengine/verl/pull/4411",
    retired_by=Not(Mentions(_SERVER, "vllm.utils")),
    requires=AllOf(Mentions(_SERVER, "vllm.utils.argparse_utils"), Mentions(_SERVER, "vllm.utils")),
)
def reduce_vllm_version_to_release(version: Version) -> Version:
    """Change `vllm.__version__`, and return upstream's own `package_version` as it was."""
    vllm = sys.modules.get("vllm")
    name = getattr(vllm, "__version__", None)
    # A build that is no release calls itself `dev`: which release it is like is unknown.
    if isinstance(name, str) and name[:1].isdigit() and not isinstance(name, Release):
        vllm.__version__ = Release(name)  # type: ignore[union-attr]
    return version
