"""A patch drifts if its own code uses upstream names that are gone, and for no other missing name."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_npu.registry.source.probe import Never
from verl_npu.registry.state import State

OPS = "def step(batch): ...\n"
HELP = "def scale(batch, by): ...\ndef spare(): ...\n"
CONFIG = "trainer:\n  device: cuda\n"
USES = ("up.help:scale(batch, by)", "up/config/main.yaml: trainer.device = cuda")
CHANGES = {
    "the same": (HELP, CONFIG, State.PENDING),
    "an optional parameter more": (HELP.replace("by)", "by, how=None)"), CONFIG, State.PENDING),
    "another body": (HELP.replace("...", "return batch"), CONFIG, State.PENDING),
    "what may be missing is gone": (HELP.replace("spare", "other"), CONFIG, State.PENDING),
    "another key": (HELP, CONFIG + "  nodes: 1\n", State.PENDING),
    "a function is gone": (HELP.replace("scale", "other"), CONFIG, State.DRIFTED),
    "a required parameter more": (HELP.replace("by)", "by, how)"), CONFIG, State.DRIFTED),
    "a parameter renamed": (HELP.replace("by)", "factor)"), CONFIG, State.DRIFTED),
    "a coroutine": (HELP.replace("def scale", "async def scale"), CONFIG, State.DRIFTED),
    "what may be missing takes other arguments": (HELP.replace("spare()", "spare(a)"), CONFIG, State.DRIFTED),
    "another value": (HELP, CONFIG.replace("cuda", "gpu"), State.DRIFTED),
    "the key renamed": (HELP, CONFIG.replace("device", "kind"), State.DRIFTED),
}


def write(package, name: str, text: str) -> None:
    path: Path = package.root / "up" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(("helper", "config", "state"), CHANGES.values(), ids=CHANGES)
def test_a_patch_drifts_with_what_its_own_code_uses(
    helper: str, config: str, state: State, plugin, package, why: dict[str, str]
) -> None:
    write(package, "help.py", HELP)
    write(package, "config/main.yaml", CONFIG)
    package.write("up.ops", OPS)
    feature = plugin.feature("f")

    @feature.wrap("up.ops:step", uses=USES, may_use=("up.help:spare()",), retired_by=Never("a test"), **why)
    def ours(original: object, batch: object) -> None: ...

    plugin.lock()
    write(package, "help.py", helper)
    write(package, "config/main.yaml", config)
    registry = plugin.start(lock=False)
    package.load("up")
    assert registry.status()["f.ours"].state is state


def test_what_the_nearest_pin_does_not_have_either_does_not_count(plugin, package, why: dict[str, str]) -> None:
    package.write("up.ops", OPS)
    feature = plugin.feature("f")

    @feature.wrap("up.ops:step", uses=("up.later:scale()",), retired_by=Never("a test"), **why)
    def ours(original: object, batch: object) -> None: ...

    registry = plugin.start_on("up.ops", OPS + "x = 1\n")
    assert registry.status()["f.ours"].state is State.PENDING
