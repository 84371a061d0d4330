"""Assumptions of the workflows about the scripts that they run."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
from harness import environment, pins

WORKFLOWS = environment.PROJECT / ".github" / "workflows"
SMOKE = (WORKFLOWS / "smoke.yml").read_text()
TESTS = (WORKFLOWS / "tests.yml").read_text()


@pytest.mark.parametrize("workflow", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.stem)
def test_checkouts_of_others_lie_where_they_are_neither_linted_nor_packed(workflow: Path) -> None:
    with_folders = r"uses: actions/checkout@\S+\n(?: +if: .*\n)? +with:\n((?: {10}.*\n)+)"
    places = [re.search(r"path: (\S+)", given) for given in re.findall(with_folders, workflow.read_text())]
    assert all(place is not None and place[1].startswith("upstreams/") for place in places)
    assert "/upstreams/" in (environment.PROJECT / ".gitignore").read_text().splitlines()


def test_the_step_after_a_real_rollout_finds_the_environment_that_the_script_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("VERL_NPU_VENVS", raising=False)
    (pattern,) = re.findall(r'"\$PWD"/(\.venv-\S+)/bin/python', SMOKE)
    rollouts = re.findall(r"\{ pin: (\S+), job: .*(commit: \w+, )?rollout: (\S+) \}", SMOKE)
    assert rollouts
    for name, commit, rollout in rollouts:
        pin = pins.find(name)
        checkout = pins.Checkout(Path(name), pin.version, pin.commit) if commit else None
        recipe = environment.Recipe(pin, checkout, pin.transformers, virtual=True, rollout=rollout)
        assert fnmatch(recipe.folder.name, pattern)


@pytest.mark.parametrize("name", ["tests.yml", "nightly.yml"])
def test_all_tests_have_a_sandbox_and_what_root_runs_has_the_checkouts(name: str) -> None:
    """Without bubblewrap, tests of the sandbox are skipped, and sudo drops variables that it is not told to keep."""
    text = (WORKFLOWS / name).read_text()
    assert text.index("sudo apt-get install --yes bubblewrap") < text.index("run: ./scripts/test.sh")
    as_root = re.findall(r"sudo .*\s*\./scripts/test\.sh", text)
    kept = 'sudo --preserve-env=VERL_NPU_UPSTREAMS env "PATH=$PATH"'
    assert all(" ".join(each.split()) == f"{kept} ./scripts/test.sh" for each in as_root)
    assert as_root or "VERL_NPU_UPSTREAMS" not in text


def test_pull_requests_run_every_folder_of_tests_in_twenty_minutes() -> None:
    parts = dict(re.findall(r"\{ part: (\S+), tests: (.*) \}", TESTS))
    folders = [parts.pop(part) for part in ("virtual-ascend", "plugin")]
    split = {words.replace("'", "") for words in parts.values()}
    assert [folders[0].removeprefix("packages/virtual-ascend/"), folders[1]] == ["tests", "tests"]
    assert split == {f"-m {marked}e2e packages/verl-npu-workbench/tests" for marked in ("", "not ")}
    assert set(re.findall(r"timeout-minutes: (\d+)", TESTS)) == {"20"}


def test_pull_requests_train_the_default_pin_and_the_newest_release() -> None:
    named = re.findall(r"\{ pin: (\S+), job: (\S+) \}", TESTS)
    assert named == [(pins.DEFAULT, "grpo"), ([pin.name for pin in pins.PINS.values() if pin.on_pypi][-1], "grpo")]


def test_the_release_checks_what_it_publishes() -> None:
    text = (WORKFLOWS / "release.yml").read_text()
    steps = (
        "release.py --check --tag",
        "python -m build && for package in packages/*;",
        "twine check --strict",
        "cyclonedx-py environment",
        "fresh/bin/pip install dist/",
        "actions/attest-build-provenance@",
        "sbom-path: sbom/",
        "pypa/gh-action-pypi-publish@",
    )
    places = [text.find(step) for step in steps]
    assert -1 not in places
    assert places == sorted(places)
