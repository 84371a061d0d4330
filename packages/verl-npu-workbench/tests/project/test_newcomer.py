"""Walks of a newcomer: from a wish or a symptom, by a README alone, to the command that answers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner
from testing.pages import fences, outside_of_fences
from verl_npu_workbench.diagnosis.judgement import judge

from verl_npu.cli import main as command

from ..diagnosis.quoted import raised, worker

PROJECT = Path(__file__).resolve().parents[4]
DIED_PAGE = PROJECT / "docs" / "my-job-died.md"
STARTS = [PROJECT / "README.md", PROJECT / "README.zh-CN.md"]

DIED = worker(
    raised(
        "RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 3; 60.96 GiB total capacity; "
        "49.47 GiB already allocated; 1.32 GiB free)"
    )
)
RUNS = "\n".join(
    f"step:{step} - critic/rewards/mean:0.{step} - perf/throughput:9.5 - timing_s/step:3.0" for step in (1, 2, 3, 4, 5)
)


@dataclass(frozen=True)
class Walk:
    """The page to which a link has to lead, the command to be typed there, and its answer."""

    page: str
    typed: str
    answer: str
    files: Mapping[str, str] = field(default_factory=dict)
    ends: tuple[str, ...] = ()
    """Words behind the typed command that end a command which would otherwise go on for ever."""


WALKS = {
    "my job died": Walk(
        "my-job-died.md", "verl-npu doctor --log train.log", "npu-memory", {"train.log": f"step:1 - x:1\n{DIED}\n"}
    ),
    "my job hangs": Walk(
        "my-job-died.md", "verl-npu watch train.log", '"step": 5', {"train.log": RUNS}, ("--once", "--json")
    ),
    "is it as good as on GPUs": Walk(
        "watch-and-compare.md", "verl-npu compare npu.log gpu.log", "within", {"npu.log": RUNS, "gpu.log": RUNS}
    ),
    "install an environment": Walk("install.md", "verl-npu setup --pin v0.7.1 --npu a3 --arch arm", "pip install"),
    "what is wrong with my environment": Walk("before-a-run.md", "verl-npu doctor", "torch_npu"),
    "does my job fit": Walk("before-a-run.md", "verl-npu plan run.sh", "run.sh: expected a launch script"),
    "does my script run": Walk("before-a-run.md", "verl-npu rehearse run.sh", "run.sh: expected a launch script"),
}


def leads(start: Path, page: str) -> list[Path]:
    """Return the pages of that name to which the tables of a start page link, in its language."""
    name = page if ".zh-CN" not in start.name else page.replace(".md", ".zh-CN.md")
    rows = "\n".join(line for line in outside_of_fences(start.read_text()) if line.startswith("|"))
    found = re.findall(r"\]\(([\w./-]+\.md)", rows)
    return [start.parent / path for path in found if Path(path).name == name]


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.relative_to(PROJECT).as_posix())
@pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS.keys())
def test_one_click_leads_to_a_page_that_says_what_to_type(walk: Walk, start: Path) -> None:
    found = leads(start, walk.page)
    assert found
    assert all(walk.typed in page.read_text().splitlines() for page in found)


@pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS.keys())
def test_what_is_typed_there_answers(walk: Walk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in walk.files.items():
        (tmp_path / name).write_text(text)
    ended = CliRunner().invoke(command, [*shlex.split(walk.typed)[1:], *walk.ends])
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    assert walk.answer in ended.output


# docs/my-job-died.md.


def died() -> list[tuple[str, str]]:
    """Return the text and the rule of each row of the table by log texts."""
    table = DIED_PAGE.read_text().partition("| in the log | rule |")[2].partition("\n\n")[0]
    rows = [re.findall(r"`([^`]+)`", line)[:2] for line in table.splitlines() if line.startswith("| `")]
    return [(text, rule) for text, rule in rows]


@pytest.mark.parametrize(("text", "rule"), died(), ids=[rule for _, rule in died()])
def test_what_the_page_says_of_a_line_in_the_log_is_what_the_command_says(text: str, rule: str) -> None:
    found = judge(raised(text if re.match(r"\w+Error:", text) else f"RuntimeError: {text}").splitlines()).root
    assert found is not None
    assert found.name == rule


def test_the_answer_that_the_page_shows_is_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.log").write_text(f"step:1 - x:1\n{DIED}\n")
    (shown,) = [fence.text for fence in fences(DIED_PAGE.read_text()) if fence.language == "text"]
    answered = CliRunner().invoke(command, ["doctor", "--log", "train.log"]).output.splitlines()
    assert [line for line in shown.splitlines() if line not in answered] == []
