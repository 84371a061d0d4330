"""Fixtures for the tests of the commands."""

from __future__ import annotations

from testing.commands import Run as Run
from testing.commands import drifted as drifted
from testing.commands import maintain as maintain
from testing.commands import no_ascend_software as no_ascend_software
from testing.commands import nothing_installed as nothing_installed
from testing.commands import parsed_once as parsed_once
from testing.commands import pristine as pristine
from testing.commands import run as run
from testing.commands import tree as tree
