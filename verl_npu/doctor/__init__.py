"""What `verl-npu doctor` looks at: an environment, judged against what the installed verl needs on NPUs."""

from __future__ import annotations

from .examination import NAMES, examine
from .finding import Finding, Verdict, exit_status
from .site import Judged, Level, Site

__all__ = ["NAMES", "Finding", "Judged", "Level", "Site", "Verdict", "examine", "exit_status"]
