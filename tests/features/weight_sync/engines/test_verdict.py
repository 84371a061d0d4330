"""What a user reads of a proof."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_npu import reporting
from verl_npu.errors import EngineError
from verl_npu.features.weight_sync.engines.proof import Difference, Verdict

STALE = Difference("qkv_proj.weight", "q_proj.weight", "the engine holds what it held before this sync")


def many(count: int) -> Verdict:
    return Verdict(9, tuple(Difference(f"{number}.weight", f"{number}.weight", "gone") for number in range(count)), {})


def test_an_engine_without_differences_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = Verdict(3, (), {})
    verdict.require()
    assert str(verdict) == "the engine holds them bit for bit"
    assert capsys.readouterr().err == ""


def test_what_was_left_out_is_told_and_no_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "_said", set())
    verdict = Verdict(3, (), {"sinks": "no idea"})
    verdict.require()
    assert str(verdict) == "the engine holds them bit for bit, but for 1 that were not compared"
    assert (
        "leaves out 1 tensors, and compares 3. The first that it leaves out is sinks: no idea"
        in capsys.readouterr().err
    )


def test_the_error_names_the_first_differences_and_counts_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERL_NPU_MANIFEST_DIR", raising=False)
    with pytest.raises(EngineError, match=r"differences \(7\): 0\.weight: gone; .*4\.weight: gone and 2 more"):
        many(7).require()


def test_all_of_them_are_on_a_page_beside_the_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "manifests"
    monkeypatch.setenv("VERL_NPU_MANIFEST_DIR", str(folder))
    verdict = Verdict(9, (STALE, *many(7).differences), {"sinks": "no idea"})
    with pytest.raises(EngineError) as raised:
        verdict.require()
    (page,) = folder.glob("weights-*.txt")
    assert str(page) in str(raised.value)
    text = page.read_text()
    assert "- q_proj.weight -> qkv_proj.weight\n  the engine holds what it held before this sync" in text
    assert all(f"- {number}.weight -> {number}.weight" in text for number in range(7))
    assert "- sinks: no idea" in text


def test_a_folder_that_cannot_be_written_does_not_hide_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VERL_NPU_MANIFEST_DIR", str(tmp_path / "file"))
    with pytest.raises(EngineError, match=r"q_proj\.weight: the engine holds what it held .*could not be written"):
        Verdict(9, (STALE,), {}).require()
