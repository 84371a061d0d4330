"""What tests of several features use."""

from __future__ import annotations

from ..virtual.conftest import python as python
