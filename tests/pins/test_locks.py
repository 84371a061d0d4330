"""The locks and diffs that are checked in are what the sources of the pins give, and every patch fits its pins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from verl_npu.cli import main
from verl_npu.features import UPSTREAMS, load, locks_folder
from verl_npu.registry.judge.lock import read_locks

LOCKS = [(upstream.name, lock.pin) for upstream in UPSTREAMS for lock in read_locks(locks_folder(), upstream.name)]
VERL_PINS = [pin for upstream, pin in LOCKS if upstream == "verl"]


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    return result.exit_code, result.output


def contents(folder: Path) -> dict[str, str]:
    # MindSpeed's recorded contract lies beside its locks and has a test of its own.
    return {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.name != "arguments.json"}


def test_all_five_pins_are_locked_and_the_recipes_of_the_release_that_ships_without_them() -> None:
    assert set(VERL_PINS) == {"796871d7", "v0.6.1", "v0.6.1-recipe", "ccd7d934", "v0.7.1", "v0.9.1"}


@pytest.mark.parametrize(("upstream", "pin"), LOCKS)
def test_lock_and_diffs_are_what_the_source_gives(upstream: str, pin: str, source, tmp_path: Path) -> None:
    # A patch that is declared needed at a pin whose source retires it fails here: its standing is made anew.
    checked_in = locks_folder() / upstream / pin
    revision = json.loads((checked_in / "lock.json").read_text())["revision"]
    status, output = run(
        *("lock", "--upstream", upstream, "--source", str(source(upstream, pin)), "--pin", pin),
        *("--revision", revision, "--output", str(tmp_path)),
    )
    assert status == 0, output
    assert contents(tmp_path / upstream / pin) == contents(checked_in)


@pytest.mark.parametrize("pin", VERL_PINS)
def test_check_is_green_and_exact_at_every_pin(pin: str, source) -> None:
    status, output = run("check", "--source", str(source("verl", pin)), "--json")
    content = json.loads(output)
    assert content["revision"] == {"nearest_pin": pin, "exact": True, "differs": []}
    assert status == 0
    assert {feature["name"] for feature in content["features"]} == {feature.name for feature in load()}


def test_every_patch_is_needed_somewhere() -> None:
    standings = [lock.patches for upstream in UPSTREAMS for lock in read_locks(locks_folder(), upstream.name)]
    for patch in (patch for feature in load() for patch in feature):
        assert any(s.get(patch.id) == "needed" for s in standings), f"{patch.id} can go: no pin needs it"
