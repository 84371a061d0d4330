"""`verl-npu plan`: options that exclude each other. tests/e2e/test_plan.py covers its results."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Run


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--lengths", "lengths.csv", "--response-length", "5"), "--lengths cannot be combined with --prompt-length,"),
        (("--lengths", "lengths.csv", "--spread", "0.5"), "--lengths cannot be combined with --prompt-length,"),
        (("--spread", "0.5"), "--spread requires the mean response length: specify it with --response-length"),
    ],
)
def test_lengths_are_given_in_one_way(run: Run, options: tuple[str, ...], said: str) -> None:
    status, output = run("plan", *options, "--", "python3", "-m", "verl.trainer.main_ppo")
    assert status == 2
    assert said in " ".join(output.split())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--output", "{file}"), "{file}"),
        (("--png", "{folder}/nowhere/x.png"), "{folder}/nowhere/x.png"),
        (("--png", "{folder}"), "{folder}"),
        (("--html", "{folder}/nowhere/x.html"), "{folder}/nowhere/x.html"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], named: str
) -> None:
    for package in ("matplotlib", "jinja2"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("verl_npu_workbench.cli.plan.asked_trainer", lambda *words: pytest.fail("it began its work"))
    (tmp_path / "file").touch()
    places = {"file": tmp_path / "file", "folder": tmp_path}
    status, output = run("plan", *(each.format(**places) for each in options), "--", "python3", "-m", "a.trainer")
    assert status == 2
    assert f"{named.format(**places)}: expected a writable folder for --output" in " ".join(output.split())
