"""What the workflows take for granted of the scripts that they run."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
from harness import environment, pins

WORKFLOWS = environment.PROJECT / ".github" / "workflows"
SMOKE = (WORKFLOWS / "smoke.yml").read_text()


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
    """Without bubblewrap tests of the sandbox are skipped, and sudo drops variables that it is not told to keep."""
    text = (WORKFLOWS / name).read_text()
    assert text.index("sudo apt-get install --yes bubblewrap") < text.index("run: ./scripts/test.sh")
    as_root = re.findall(r"sudo .*\./scripts/test\.sh", text)
    assert all(each.startswith("sudo --preserve-env=VERL_NPU_UPSTREAMS ") for each in as_root)
    assert as_root or "VERL_NPU_UPSTREAMS" not in text
