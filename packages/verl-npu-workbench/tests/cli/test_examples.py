"""The calls that help texts and pages show: all are understood, and those that read nothing of the user's do what they
say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from testing.pages import fences

from verl_npu.cli import main

from .conftest import Run

PROJECT = Path(__file__).parents[4]
DOCS = [PROJECT / "docs", PROJECT / "packages" / "verl-npu-workbench" / "docs"]
PAGES = [PROJECT / "README.md", *sorted(page for folder in DOCS for page in folder.glob("*.md"))]
SELF_CONTAINED = {"explain", "env", "setup"}
"""The commands that ask for nothing but what they are given."""


def _calls() -> Iterator[tuple[str, ...]]:
    """All calls of the pages, those of the help texts among them, which are in docs/commands.md. No pipes."""
    for page in PAGES:
        for fence in fences(page.read_text()):
            for line in fence.text.replace("\\\n", " ").splitlines():
                call = re.fullmatch(r"\s*(?:[A-Z_]+=\S+ )*verl-npu ([^|$]+)", line)
                if call:
                    yield tuple(shlex.split(call[1].partition(" > ")[0], comments=True))


CALLS = sorted(set(_calls()))


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_a_call_of_a_page_is_understood(call: tuple[str, ...]) -> None:
    name, command, rest = main.resolve_command(main.make_context("verl-npu", list(call)), list(call))
    assert command is not None
    # Parses the whole call, and runs nothing of it.
    command.make_context(name, rest)


@pytest.mark.parametrize(
    "call", [call for call in CALLS if call[0] in SELF_CONTAINED and "run.sh" not in call], ids=" ".join
)
def test_a_call_of_a_page_does_what_it_says(run: Run, call: tuple[str, ...], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    status, output = run(*call)
    assert status == 0, output


def test_there_are_calls() -> None:
    assert len(CALLS) > 50
