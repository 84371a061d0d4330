"""What the pin's documents need of one part, in this environment."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..ascend.matrix import Claim, Component
from .site import Site

__all__ = ["Need"]


@dataclass(frozen=True, slots=True)
class Need:
    """The claims that count here."""

    component: Component
    pin: str
    """Empty if no pin is known; then nothing is needed."""
    claims: tuple[Claim, ...]

    @classmethod
    def of(cls, site: Site, component: Component) -> Need:
        """Return what the site's pin needs, with its rollout engines and its kind of NPU."""
        if site.pin is None:
            return cls(component, "", ())
        cell = site.pin.cells.get(component)
        return cls(component, site.pin.name, cell.about(site.engines, site.kind) if cell else ())

    @property
    def supported(self) -> tuple[Claim, ...]:
        """What the documents ask for."""
        return tuple(claim for claim in self.claims if not claim.unsupported)

    def met_by(self, version: Version) -> bool:
        """Whether a document allows this version, or none speaks of it: where they contradict each other, one does."""
        return not self.supported or any(claim.accepts(version) for claim in self.supported)

    def at_least_met_by(self, version: Version) -> bool:
        """Whether the version is that of a document or a later one."""
        named = [Version(each.version) for claim in self.supported for each in SpecifierSet(claim.needs)]
        return self.met_by(version) or not named or version >= min(named)

    def at(self, prefix: str = "") -> str:
        """Return the version to install as the end of a sentence, ` of CANN 8.3.RC1`; empty if none is named."""
        exact = self.exact
        return f" of {prefix}{exact}" if exact else ""

    @property
    def exact(self) -> str:
        """The one version to install; empty if the documents name none."""
        for claim in self.supported:
            if claim.needs.startswith("==") and "*" not in claim.needs and "," not in claim.needs:
                return claim.needs.removeprefix("==")
        return ""

    def __str__(self) -> str:
        """What the documents say, each thing once; empty if they say nothing."""
        named = dict.fromkeys(str(claim).removeprefix("==") for claim in self.claims)
        return f"{' or '.join(named)} ({self.pin})" if named else ""
