"""What tests of several features use."""

from __future__ import annotations

from ..virtual_npus import python as python
