"""Fixtures that tests of several features use."""

from __future__ import annotations

from virtual_ascend.testing.fixtures import python as python
