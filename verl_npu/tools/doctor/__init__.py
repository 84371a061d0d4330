"""What `verl-npu doctor` looks at: an environment, judged against what the installed verl needs on NPUs."""

from __future__ import annotations

from .examination import NAMES, examine
from .site import Judged, Level, Site

__all__ = ["NAMES", "Judged", "Level", "Site", "examine"]
