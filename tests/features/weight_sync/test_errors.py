"""The errors of a weight sync survive pickling, by which Ray sends them from a worker to the driver."""

from __future__ import annotations

import pickle

import pytest

from verl_npu.errors import GroupError, TransferError, WeightSyncError


@pytest.mark.parametrize("kind", [WeightSyncError, GroupError, TransferError])
def test_an_error_keeps_its_kind_and_fields_through_pickle(kind: type[WeightSyncError]) -> None:
    fields = {"subject": "a", "expected": "b", "found": "c", "fix": "d", "override": "e"}
    error = pickle.loads(pickle.dumps(kind(**fields)))
    assert type(error) is kind
    assert isinstance(error, WeightSyncError)
    assert {name: getattr(error, name) for name in fields} == fields
    assert str(error) == "a: expected b; found c; d (override: e)"
