"""`verl-npu doctor`: checks an environment against the requirements of the installed verl on NPUs."""

from __future__ import annotations

from .earlier_plugin import Trace, find_traces
from .examination import NAMES, examine
from .site import Judged, Level, Site

__all__ = ["NAMES", "Judged", "Level", "Site", "Trace", "examine", "find_traces"]
