"""`report`: one text to paste, with everything that an issue asks for and without private data."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from testing.commands import manifest

from verl_npu.manifest import write_manifest

from ..diagnosis.quoted import raised, worker
from .conftest import Run

OOM = "RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 3; 60.96 GiB total capacity)"
STARTED = "verl-npu: 0.1.0: verl v0.6.1; device applied, attention native, fleet pending"


@pytest.fixture(autouse=True)
def unjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the judgement of the installed verl, which takes a second each time."""
    monkeypatch.setattr(importlib.import_module("verl_npu_workbench.cli.doctor"), "_judged", lambda: None)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text(f"{STARTED}\nHF_TOKEN=hf_abcdefGHIJKL1234567890\n{worker(raised(OOM))}\nthe last of all lines\n")
    return path


def sections(text: str) -> dict[str, str]:
    """Return the parts of a report by their titles."""
    parts = re.split(r"(?m)^== (.*)\n", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_it_is_one_block_with_all_that_is_asked_for(run: Run, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_BUFFSIZE", "200")
    status, printed = run("doctor", "--report", "--log", str(log))
    assert status == 0
    lines = printed.splitlines()
    assert (lines[0], lines[-1]) == ("````text", "````")
    found = sections(printed)
    assert [title.partition(" in ")[0] for title in found] == [
        "environment",
        "variables",
        "verl-npu's features, by the log",
        "diagnosis",
        "the log's end",
        "lines around the error",
    ]
    assert "verl-npu" in found["environment"] or "verl" in found["environment"]
    assert "HCCL_BUFFSIZE=200" in found["variables"].splitlines()
    assert "device: applied" in found["verl-npu's features, by the log"].splitlines()
    assert "npu-memory" in found["diagnosis"]
    assert "the last of all lines" in found["the log's end"].splitlines()
    assert OOM in printed


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("VLLM_API_KEY", "open-sesame-1", "sesame"),
        ("RAY_ADDRESS", "10.20.30.40:6379", "10.20.30.40"),
        ("HF_HUB_CACHE", "/home/frodo/models/cache", "frodo"),
        ("MY_OWN", "nobodys-business", "business"),
    ],
)
def test_what_is_secret_or_a_name_is_taken_out(
    run: Run, log: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, secret: str
) -> None:
    monkeypatch.setenv(name, value)
    printed = run("doctor", "--report", "--log", str(log))[1]
    assert secret not in printed
    for word in ("hf_abc", "10.0.0.2"):
        assert word not in printed


def test_manifests_tell_the_states_and_no_host(run: Run, tmp_path: Path) -> None:
    for pid, state in ((1, "applied"), (2, "drifted")):
        write_manifest(tmp_path / "manifests", manifest(pid, "WorkerDict", state, host="gandalf"))
    status, printed = run("doctor", "--report", "--manifests", str(tmp_path / "manifests"))
    found = sections(printed)["verl-npu's features, by 2 manifests"]
    assert status == 0
    assert found.startswith("device: applied in WorkerDict <name>:1; drifted in WorkerDict <name>:2\n")


def test_without_a_log_check_tells_the_states(run: Run, pristine: Path) -> None:
    printed = run("doctor", "--report")[1]
    assert "device: pending" in sections(printed)["verl-npu's features, by verl-npu check in this environment"]


def test_a_report_fits_into_a_github_post(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("\n".join(raised(f"KeyError: {number}\n{'x' * 5000}") for number in range(100)))
    assert len(run("doctor", "--report", "--log", str(log))[1]) < 65_536


def test_a_secret_that_is_cut_is_not_shown(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(raised(f"KeyError: {'x y ' * 147} HF_TOKEN=abcdefghij1234567890-abcdefghij") + "\n")
    printed = run("doctor", "--report", "--log", str(log))[1]
    assert "abcdefg" not in printed
    assert max(map(len, printed.splitlines())) <= 600


def test_it_is_written_to_a_file_if_asked(run: Run, log: Path) -> None:
    file = log.with_name("report.txt")
    status, printed = run("doctor", "--report", "--log", str(log), "--output", str(file))
    assert status == 0
    said = " ".join(printed.split())
    assert said.index("Masked in them: token") < said.index("Read it before you send it")
    assert next(iter(sections(file.read_text()))) == "environment"


@pytest.mark.parametrize(
    "words", [("--log", "missing.log"), ("--manifests", "missing"), ("--output", "missing/report.txt")]
)
def test_what_cannot_be_read_or_written_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    status, printed = run("doctor", "--report", *words)
    assert status == 2
    assert "missing" in printed.splitlines()[-1]
    assert "Traceback" not in printed
