from __future__ import annotations

import pytest

from ..conftest import job_of

pytest.importorskip("omegaconf")
pytest.importorskip("torch")


def test_changes_come_before_interpolations_are_followed_and_unknown_keys_are_errors() -> None:
    from omegaconf.errors import ConfigAttributeError
    from verl_npu_workbench.plan.rank.workers import configuration

    config = {"data": {"size": 64, "files": ["a", "b"]}, "half": "${data.size}"}
    found = configuration(job_of(config=config, changes={"data.size": 8, "data.files": ["c"], "new.key": None}))
    assert found == {"data": {"size": 8, "files": ["c"]}, "half": 8, "new": {"key": None}}
    with pytest.raises(ConfigAttributeError):
        found.data.no_such = 1
