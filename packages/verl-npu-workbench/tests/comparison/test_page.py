from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from verl_npu_workbench.comparison.comparison import Comparison, compare
from verl_npu_workbench.comparison.page import draw, page, svg
from verl_npu_workbench.comparison.standards import BASELINES

from .logs import log_of

STEPS = {
    step: {"critic/rewards/mean": step / 50, "actor/entropy": 2.0, "timing_s/step": 3.0, "critic/score/mean": math.nan}
    for step in (1, 2, 3, 5, 6, 9)
}
_VOID = {"meta"}


class Reader(HTMLParser):
    """Checks that each element is closed, and collects the page's ids and everything that it would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "action") and not (value or "").startswith("#"):
                self.fetched.append(value or "")
            if name == "id":
                self.ids.append(value or "")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def made() -> Comparison:
    return compare(log_of(STEPS, simulated=True), log_of(STEPS), ["parity"])


@pytest.fixture(scope="module")
def text(made: Comparison) -> str:
    return page(made)


def test_a_page_needs_nothing_else(text: str) -> None:
    reader = read(text)
    assert reader.fetched == []
    assert not reader.tags & {"script", "link", "img", "iframe", "object"}
    assert re.findall(r"url\((?!#)|@import", text) == []
    assert len(reader.ids) == len(set(reader.ids))


def test_a_page_has_a_chart_for_each_metric_that_both_logs_have(made: Comparison, text: str) -> None:
    titles = [pair.metric.title for pair in made.pairs]
    assert titles == ["reward", "score", "entropy", "step time, s"]
    assert text.count("<svg") == 4
    assert all(title in read(text).text for title in titles)


def test_a_page_takes_all_its_colours_from_its_own_day_and_night(text: str) -> None:
    assert "prefers-color-scheme: dark" in text
    for drawn in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        assert "var(--npu)" in drawn
        assert re.findall(r"#[0-9a-f]{6}\b", drawn) == []
    names = set(re.findall(r"var\(--(\w+)\)", text))
    light, dark = text.split("@media (prefers-color-scheme: dark)")
    assert names == set(re.findall(r"--(\w+):", light)) == set(re.findall(r"--(\w+):", dark.split("\n* {")[0]))


def test_a_page_of_published_figures_has_no_charts_and_says_what_is_simulated(text: str) -> None:
    baseline = BASELINES["a3-gspo-qwen3-30b-megatron"]
    reader = read(page(compare(log_of(STEPS), baseline, ["regression"])))
    assert "svg" not in reader.tags
    assert baseline.script in reader.text
    assert ("SIMULATED" in read(text).text, "SIMULATED" in reader.text) == (True, False)


def test_a_path_is_no_markup() -> None:
    log = log_of(STEPS)
    hostile = type(log)(source="<script>alert(1)</script>&.log", steps=log.steps, last=log.last)
    reader = read(page(compare(hostile, BASELINES["a3-gspo-qwen3-30b-megatron"], ["regression"])))
    assert "script" not in reader.tags
    assert "<script>alert(1)</script>&.log" in reader.text


def test_a_chart_is_well_formed_and_breaks_where_steps_are_missing(made: Comparison) -> None:
    root = ElementTree.fromstring(svg(made.pairs[0]))
    assert root.get("aria-label", "").startswith("reward by step: mean 0.08667 on the NPU")
    paths = [path.get("d", "") for path in root.iter("{http://www.w3.org/2000/svg}path")]
    # Steps 1 to 3, 5 to 6, and 9 make three pieces.
    assert max(path.count("M") for path in paths) == 3


def test_a_picture_is_a_png(made: Comparison, tmp_path: Path) -> None:
    draw(made, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
