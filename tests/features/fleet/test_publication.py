"""What goes wrong when processes tell each other their manifests ends no import and no job."""

from __future__ import annotations

import pytest

from verl_npu import reporting
from verl_npu.features.fleet import process_group, publication, ray_job
from verl_npu.features.fleet.reading import Reading

OWN = {"host": "h", "pid": 1, "token": "t", "role": "driver"}


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "_said", set())
    monkeypatch.setattr(publication, "manifest", lambda: OWN)


def failing(error: Exception):
    def fail(*args: object) -> object:
        raise error

    return fail


@pytest.mark.parametrize("error", [RuntimeError("GCS is gone"), AttributeError("no such name"), ValueError("job")])
def test_what_ray_raises_when_a_worker_tells_its_manifest_is_a_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(publication.process, "is_ray_worker", lambda: True)
    monkeypatch.setattr(ray_job, "put", failing(error))
    publication.publish()
    assert f"could not be told to the others: {type(error).__name__}: {error}" in capsys.readouterr().err


@pytest.mark.parametrize("where", [ray_job, process_group])
def test_manifests_that_cannot_be_read_leave_that_of_this_process(where, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_job, "running", lambda: where is ray_job)
    monkeypatch.setattr(process_group, "running", lambda: where is process_group)
    monkeypatch.setattr(where, "read", failing(RuntimeError("GCS is gone")))
    reading = publication.published()
    assert list(reading.manifests) == [OWN]
    assert reading.unreadable == "RuntimeError: GCS is gone"


def test_a_process_that_told_its_manifest_earlier_counts_once() -> None:
    earlier, other = {**OWN, "role": "earlier"}, {**OWN, "token": "u"}
    assert list(Reading(manifests=[earlier, other]).including(OWN).manifests) == [other, OWN]
