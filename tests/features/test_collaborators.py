"""Every pin has the upstream names that patches use beside their targets."""

from __future__ import annotations

import pytest

from verl_npu.features import UPSTREAMS, load, locks_folder
from verl_npu.registry.judge.lock import read_locks
from verl_npu.registry.source.named import Collaborator

LOCKS = {package: read_locks(locks_folder(), upstream.name) for upstream in UPSTREAMS for package in upstream.packages}
USES = {use.text: use for feature in load() for patch in feature for use in patch.uses}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_each_collaborator_stands_at_a_pin(use: Collaborator) -> None:
    assert any(lock.uses[use.text] for lock in LOCKS[use.package])
