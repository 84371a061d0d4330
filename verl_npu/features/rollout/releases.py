"""A release number that is compared numerically where upstream compares strings."""

from __future__ import annotations

from packaging.version import Version


class Release(str):
    """A release such as `0.11.0`, without a local part and without a post-release part. Releases are compared as
    numbers, not as strings."""

    __slots__ = ()

    def __new__(cls, text: str) -> Release:
        """Return the release of a version. Raises packaging's InvalidVersion if `text` is not a version."""
        version = Version(text)
        return super().__new__(cls, text if version.is_prerelease else version.base_version)

    def _compare(self, other: str) -> int:
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
