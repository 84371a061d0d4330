"""The smallest launch over two hosts."""

from __future__ import annotations

import pytest

from .conftest import Site


@pytest.mark.nightly("verl_npu_workbench/launch", "verl_npu/features/fleet")
@pytest.mark.e2e
@pytest.mark.virtual
def test_the_jobs_status_is_the_status_everywhere(site: Site) -> None:
    site.ends(site.launch(job=("--status", "7")), [7, 7], 300, "the job ends with 7")
