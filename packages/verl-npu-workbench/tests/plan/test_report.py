"""A plan as JSON, and as a page."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path

import pytest
from verl_npu_workbench.cli.plan import _print, _print_comparison
from verl_npu_workbench.plan.hardware import GIB
from verl_npu_workbench.plan.job import Point
from verl_npu_workbench.plan.report import content, draw, page
from verl_npu_workbench.plan.search import Largest, Probe, Search
from verl_npu_workbench.plan.snapshot import Comparison
from verl_npu_workbench.plan.verdict import judge

PROBES = (Probe(8, True, "update actor", 50 << 30), Probe(16, False, "update actor", 90 << 30))
LARGEST = Largest("ppo_micro_batch_size_per_gpu", 8, True, PROBES)


def test_a_plan_is_json(planned) -> None:
    plan = planned({"update actor": 58.0})
    found = json.loads(json.dumps(content("a job", plan, judge(plan))))
    assert (found["verdict"], found["simulated"]) == ("does not fit", True)
    assert [phase["phase"] for phase in found["phases"]] == ["rollout", "update actor"]
    assert found["seconds"][-1]["phase"] == "step"
    assert found["allocated"] == {"trainer": 58 << 30, "engine": 0}


def test_a_plan_that_upstream_refuses_shows_only_the_refusal(planned, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned({"load": 1.0})
    _print(plan, judge(plan), Search(), None, {}, True)
    assert "seconds of a step" in capsys.readouterr().out
    refused = dataclasses.replace(plan.outcomes[0], error="ValueError: both (actor.py:1: `raise`)", failed_in="load")
    plan = dataclasses.replace(plan, outcomes=(refused,))
    _print(plan, judge(plan), Search(), None, {}, True)
    shown = capsys.readouterr().out
    assert shown.rstrip().endswith("rank 0 failed in load: ValueError: both (actor.py:1: `raise`)")


@pytest.mark.parametrize(("events", "when"), [(0, "held at the end: no history"), (7, "the peak of 7 events")])
def test_a_snapshot_is_shown_beside_the_plan(events: int, when: str, capsys: pytest.CaptureFixture[str]) -> None:
    planned, held = {"weights": GIB, "gradients": GIB}, {"weights": 2 * GIB, "not planned": GIB}
    _print_comparison(Comparison("update actor", events, planned, held, {"mine/cache.py:keep": GIB}))
    title, *rows, place = capsys.readouterr().out.strip().splitlines()
    assert "in update actor" in title
    assert when in title
    assert [row.rsplit(maxsplit=3) for row in rows] == [
        ["  weights", "1.000", "2.000", "+1.000"],
        ["  gradients", "1.000", "0.000", "-1.000"],
        ["  not planned", "0.000", "1.000", "+1.000"],
    ]
    assert place.split() == ["not", "planned,", "1.000", "GiB:", "mine/cache.py:keep"]


def test_the_largest_micro_batch_is_told_with_what_was_planned(planned) -> None:
    plan = planned({"update actor": 1.0})
    found = json.loads(json.dumps(content("a job", plan, judge(plan), largest=LARGEST)))
    assert found["largest_micro_batch"]["size"] == 8
    assert [each["fits"] for each in found["largest_micro_batch"]["probes"]] == [True, False]


def test_a_page_needs_nothing_else_and_tells_all_of_a_plan(planned) -> None:
    pytest.importorskip("matplotlib")
    plan = planned({"update actor": 58.0}, kept=10.0)
    made = page("<script>x</script>", plan, judge(plan), largest=LARGEST)
    assert "<script>" not in made
    assert "http" not in made.replace("http://www.w3.org", "")
    sources = ("issue 1127", "flops_counter.py", "HCCL_BUFFSIZE", "PCIe")
    largest = ("The largest ppo_micro_batch_size_per_gpu that fits: 8", "<td>90.00</td><td>does not fit</td>")
    size = plan.rollout.taken - plan.rollout.engine_weights - plan.rollout.buffers
    cache = f"key-value cache {size / (1 << 30):.2f}, "
    for text in ("&lt;script&gt;", "does not fit", cache, *largest, *sources):
        assert text in made


def test_a_plan_tells_who_holds_the_memory_of_a_rollout(planned) -> None:
    plan = planned({"update actor": 40.0}, kept=10.0)
    rollout = content("a job", plan, judge(plan))["phases"][0]  # type: ignore[index]
    assert sum(rollout["holders"].values()) == rollout["needed"]


def test_fine_tuning_is_told_without_an_engine(tuned) -> None:
    plan = tuned({"training step": 58.0})
    found = json.loads(json.dumps(content("a job", plan, judge(plan))))
    assert found["rollout"] is None
    assert [span["phase"] for span in found["seconds"]] == ["training step", "step"]
    pytest.importorskip("matplotlib")
    assert "sequences of 4096 tokens" in page("job", plan, judge(plan))


def test_a_picture_shows_the_rollout_where_it_is_in_a_step(planned) -> None:
    plan = planned({"load": 4.0, "update actor": 10.0}, kept=2.0)
    points = [Point(name, {"weights": GIB}) for name in ("load", "load", "update actor", "update actor")]
    outcome = dataclasses.replace(plan.outcomes[0], timeline=points)
    made = page("job", dataclasses.replace(plan, outcomes=(outcome,)), judge(plan))
    picture = made[made.index("<svg") : made.index("</svg>")]
    assert [picture.count(f">{name}<") for name in ("load", "rollout", "update actor")] == [1, 1, 1]
    assert picture.index(">load<") < picture.index(">rollout<") < picture.index(">update actor<")


def test_names_of_short_phases_do_not_lie_on_each_other(planned, tmp_path: Path, monkeypatch) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    made = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, *where, **how: made.append(figure))
    plan = planned({"update actor": 10.0}, kept=2.0)
    phases = ["load", *["update actor"] * 200, "weight sync", "checkpoint", "weight sync"]
    outcome = dataclasses.replace(plan.outcomes[0], timeline=[Point(name, {"weights": GIB}) for name in phases])
    draw(outcome, judge(plan), "job", tmp_path / "plan.png")
    (axes,) = made[0].axes
    made[0].canvas.draw()
    names = [text for text in axes.texts if text.get_rotation()]
    places = [text.get_transform().transform(text.get_position())[0] for text in names]
    for text in names:
        text.set_rotation(0)
    high = max(text.get_window_extent().height for text in names)
    across = math.sin(math.radians(30))
    assert len(names) == 6
    assert all((after - before) * across > high for before, after in itertools.pairwise(places))
