"""Manifests of several processes in one folder."""

from __future__ import annotations

import base64
import os
import tracemalloc
import zlib
from pathlib import Path

import pytest

from verl_npu.errors import SourceError
from verl_npu.manifest import Manifest, decoded, packed, read_manifests, unpacked, write_manifest


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


def test_an_interruption_leaves_the_manifest_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_manifest(tmp_path, manifest("a"))
    before = path.read_bytes()

    def interrupted(source: str, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_manifest(tmp_path, manifest("a") | {"role": "another"})
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


def test_what_a_killed_process_left_is_not_read(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, manifest("a"))
    path.with_name(f".{path.name}.x1y2").write_text('{"schema')
    found, unread = read_manifests(tmp_path)
    assert ([each["token"] for each in found], unread) == (["a"], [])


def test_what_a_variable_tells_is_what_was_packed() -> None:
    told = packed(manifest("a"))
    assert {**decoded(unpacked(told), "the driver"), "schema": 0} == {**manifest("a"), "schema": 0}


@pytest.mark.parametrize("text", ["", "{}", "é", "AAAA", packed(manifest("a"))[:-8]])
def test_what_nobody_packed_is_no_manifest(text: str) -> None:
    with pytest.raises(SourceError, match="the driver: expected a manifest"):
        decoded(unpacked(text), "the driver")


def test_a_variable_that_would_fill_the_memory_is_no_manifest() -> None:
    text = base64.b64encode(zlib.compress(b" " * (1 << 28))).decode()
    tracemalloc.start()
    with pytest.raises(SourceError, match="more than 2 MiB"):
        decoded(unpacked(text), "the driver")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 24
