"""What `verl-npu doctor` looks at: an environment, judged against what the installed verl needs on NPUs."""

from __future__ import annotations

from .earlier_plugin import Trace, find_traces
from .examination import NAMES, examine
from .site import Judged, Level, Site

__all__ = ["NAMES", "Judged", "Level", "Site", "Trace", "examine", "find_traces"]
