"""How pytest-xdist distributes the tests: conftest.py names the groups, and each stays together."""

from __future__ import annotations

import pytest


def test_the_tests_of_a_file_share_one_process(request: pytest.FixtureRequest) -> None:
    if not hasattr(request.config, "workerinput") or not request.config.getvalue("loadgroup"):
        pytest.skip("the tests are not shared out among processes by group")
    group = request.node.nodeid.rpartition("@")[2]
    assert group == str(request.path), "pytest-xdist did not see the group: this pytest is newer than it knows"
