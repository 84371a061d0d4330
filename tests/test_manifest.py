"""Manifests of several processes in one folder."""

from __future__ import annotations

from pathlib import Path

from verl_npu.manifest import Manifest, write_manifest


def manifest(token: str) -> Manifest:
    return {
        "host": "h",
        "pid": 7,
        "token": token,
        "version": "1",
        "active": True,
        "origin": "a test",
        "simulated": False,
        "role": "driver",
        "upstreams": {},
        "features": {},
        "natives": {},
        "tainted": [],
        "seconds": 0.0,
    }


def test_processes_of_two_containers_with_one_name_and_number_have_a_manifest_each(tmp_path: Path) -> None:
    paths = [write_manifest(tmp_path, manifest(token)) for token in ("a", "b")]
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert len(set(paths)) == 2


def test_a_process_that_writes_again_replaces_its_own(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, manifest("a"))
    assert write_manifest(tmp_path, manifest("a")) == path
    assert list(tmp_path.iterdir()) == [path]
