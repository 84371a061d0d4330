"""A bundle holds the results and no names, and a stranger's bundle can do no harm."""

from __future__ import annotations

import importlib.resources
import json
import os
import socket
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from verl_npu_workbench.cli.prove import _STATUS
from verl_npu_workbench.prove import bundle
from verl_npu_workbench.prove.bundle import CORPUS, PROOF, Proof
from verl_npu_workbench.prove.folder import Folder
from verl_npu_workbench.prove.result import Check, Verdict
from verl_npu_workbench.secrecy.redaction import Redaction

from verl_npu.errors import CommandError

from .conftest import operator, stage

SCHEMA = json.loads((importlib.resources.files("verl_npu_workbench.prove") / "bundle.schema.json").read_text())


@pytest.fixture
def path(proof: Proof, tmp_path: Path) -> Path:
    return bundle.write(Folder(tmp_path), bundle.redacted(proof, Redaction()))


def repacked(path: Path, members: Mapping[str, bytes]) -> Path:
    """Return a copy of a bundle with changed members."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()} | members
    changed = path.with_name("changed.zip")
    with zipfile.ZipFile(changed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return changed


def test_a_bundle_is_read_as_it_was_written(path: Path, proof: Proof) -> None:
    assert path.name == "proof-2026-01-31.zip"
    assert bundle.read(path) == proof


@pytest.mark.parametrize("name", [PROOF, CORPUS])
def test_a_bundle_is_by_its_schema(name: str, path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        content = json.loads(archive.read(name))
    jsonschema.validate(content, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content | {"more": 1}, SCHEMA)


def test_names_and_paths_are_taken_out(proof: Proof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "gandalf")
    monkeypatch.setattr("getpass.getuser", lambda: "frodo")
    said = "gandalf: /home/frodo/model/a/b/c: connection to 10.1.2.3 refused"
    check = Check(name="one", verdict=Verdict.FAILED, found=said, expected=said)
    shown = replace(proof, stages=(stage(check),), notes={"device": said}, corpus=(operator(said=said, results=()),))
    with zipfile.ZipFile(bundle.write(Folder(tmp_path), bundle.redacted(shown, Redaction.here()))) as archive:
        text = "".join(archive.read(name).decode() for name in archive.namelist())
    assert [word for word in ("gandalf", "frodo", "10.1.2.3") if word in text] == []
    assert "refused" in text


@pytest.mark.parametrize(
    "members",
    [
        {PROOF: b"[]"},
        {PROOF: b"no JSON"},
        {PROOF: b"{}"},
        {PROOF: b'{"schema": 2}'},
        {PROOF: b"[" * 100_000},
        {PROOF: b'{"a":' * 100 + b"1" + b"}" * 100},
        {CORPUS: b'{"schema": 1, "observations": [{"key": {"kind": "pickle", "name": "", "case": ""}}]}'},
        {CORPUS: b'{"schema": 1, "observations": [' + b"1" * 5000 + b"]}"},
    ],
)
def test_what_is_no_bundle_is_one_error_that_names_it(members: dict[str, bytes], path: Path) -> None:
    with pytest.raises(CommandError, match=r"changed\.zip"):
        bundle.read(repacked(path, members))


def test_a_bundle_that_unpacks_to_much_is_not_unpacked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_MOST_BYTES", 1 << 20)
    with pytest.raises(CommandError, match="more than 1 MiB"):
        bundle.read(repacked(path, {PROOF: b" " * (2 << 20)}))


def test_members_of_other_names_are_never_touched(path: Path, proof: Proof, tmp_path: Path) -> None:
    changed = repacked(path, {"../../outside": b"x", "/etc/outside": b"x", "data.pkl": b"cos\nsystem\n"})
    before = set(tmp_path.iterdir())
    assert bundle.read(changed) == proof
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("data", [b"", b"PK", b"no archive at all"])
def test_a_file_that_is_no_archive_is_one_error(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "proof.zip").write_bytes(data)
    with pytest.raises(CommandError, match="a bundle, proof-DATE"):
        bundle.read(tmp_path / "proof.zip")


def test_two_proofs_differ_by_packages_and_checks(proof: Proof) -> None:
    assert bundle.differences(proof, proof) == []
    changed = replace(
        proof,
        asked=replace(proof.asked, versions={"torch": "2.14.0"}),
        stages=(stage(Check(name="memory", verdict=Verdict.FAILED)),),
    )
    assert bundle.differences(proof, changed) == [
        "torch: 2.13.0 -> 2.14.0",
        "device, memory: passed -> failed",
    ]


def _encrypted(path: Path) -> bytes:
    """Return the bundle with both members marked as encrypted."""
    data = bytearray(path.read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = data.find(mark)
        while place >= 0:
            data[place + flags] |= 1
            place = data.find(mark, place + 1)
    return bytes(data)


def _damaged(path: Path) -> bytes:
    data = bytearray(path.read_bytes())
    data[60:90] = bytes(30)
    return bytes(data)


@pytest.mark.parametrize("spoilt", [_encrypted, _damaged])
def test_a_bundle_that_cannot_be_unpacked_is_refused(path: Path, spoilt: Callable[[Path], bytes]) -> None:
    path.write_bytes(spoilt(path))
    with pytest.raises(CommandError, match=r"expected a bundle, proof-DATE\.zip"):
        bundle.read(path)


def test_a_named_pipe_is_no_bundle(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.zip")
    with pytest.raises(CommandError, match="found not a regular file"):
        bundle.read(tmp_path / "pipe.zip")


def test_each_verdict_has_its_status() -> None:
    assert [_STATUS[verdict] for verdict in (Verdict.PASSED, Verdict.FAILED, Verdict.NOT_POSSIBLE)] == [0, 1, 2]
