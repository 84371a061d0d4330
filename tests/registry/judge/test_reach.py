"""An unchanged target that no code reaches makes a patch useless; the verdict says so and names the place."""

from __future__ import annotations

import pytest

from verl_npu.registry.source.probe import Never
from verl_npu.registry.state import State

OPS = "def step(batch): ...\n\nclass Pool:\n    def groups(self): ...\n"
MAIN = """
from up.ops import Pool, step

def run(batch, fast):
    answer = step(batch)
    return answer

def serve():
    return Pool().groups()
"""
SILENT = {
    "the same": MAIN,
    "another name for a variable": MAIN.replace("answer", "result"),
    "another name for the target": MAIN.replace("Pool, step", "Pool, step as go").replace("= step(", "= go("),
    "by its module": MAIN.replace("from up.ops", "from up import ops\nfrom up.ops").replace("= step(", "= ops.step("),
    "by keyword": MAIN.replace("step(batch)", "step(batch=batch)"),
    "a line more": MAIN.replace("    return answer", "    print(fast)\n    return answer"),
    "in a function that the site calls": MAIN.replace("= step(batch)", "= inner(batch)")
    + "\ndef inner(batch):\n    return step(batch)\n",
    "a subclass that calls it": MAIN
    + "\nclass Large(Pool):\n    def groups(self):\n        return super().groups()\n",
}
SAID = {
    "a copy is passed": (
        MAIN.replace("step(batch)", "step(dict(batch))"),
        "up.main:run: the call differs from the call at v1",
    ),
    "under a condition": (
        MAIN.replace("    answer = step(batch)", "    if fast:\n        answer = step(batch)"),
        "up.main:run: the call differs from the call at v1",
    ),
    "after a return under a condition": (
        MAIN.replace("    answer = step", "    if fast:\n        return 0\n    answer = step"),
        "up.main:run: the call differs from the call at v1",
    ),
    "what it returned is assigned anew": (
        MAIN.replace("    return answer", "    answer = None\n    return answer"),
        "up.main:run: the call differs from the call at v1",
    ),
    "a decorator of the site": (
        MAIN.replace("def run", "@skipped\ndef run"),
        "up.main:run: the call differs from the call at v1",
    ),
}
UNREACHED = {
    "a function of another module": MAIN.replace("Pool, step", "Pool").replace(
        "def run", "from x import step\ndef run"
    ),
    "an import in the function": MAIN.replace("    answer", "    from x import step\n    answer"),
    "under no condition that holds": MAIN.replace(
        "    answer = step(batch)", "    if False:\n        answer = step(batch)"
    ),
    "after a return": MAIN.replace("    answer = step(batch)", "    return 0\n    answer = step(batch)"),
    "by another": MAIN.replace("= step(", "= other("),
}


@pytest.fixture
def judged(plugin, package, why: dict[str, str]):
    package.write("up.ops", OPS)
    package.write("up.main", MAIN)
    feature = plugin.feature("f")

    @feature.wrap("up.ops:step", retired_by=Never("a test"), **why)
    def step(original: object, batch: object) -> None: ...

    @feature.wrap("up.ops:Pool.groups", retired_by=Never("a test"), **why)
    def groups(original: object, pool: object) -> None: ...

    plugin.lock()

    def start(**sources: str):
        for name, source in sources.items():
            package.write(f"up.{name}" if name != "up" else "up", source)
        registry = plugin.start(lock=False)
        package.load("up")
        return {id.partition(".")[2]: verdict for id, verdict in registry.status().items()}

    return start


@pytest.mark.parametrize("source", SILENT.values(), ids=SILENT)
def test_a_site_that_reaches_it_as_before_is_no_news(judged, source: str) -> None:
    found = judged(main=source)
    assert {verdict.state for verdict in found.values()} == {State.PENDING}
    assert not any("bypassed" in verdict.reason for verdict in found.values())


@pytest.mark.parametrize(("source", "said"), SAID.values(), ids=SAID)
def test_a_site_that_uses_it_otherwise_is_named(judged, source: str, said: str) -> None:
    step = judged(main=source)["step"]
    assert step.state is State.PENDING
    assert f"may be bypassed at {said}" in step.reason


@pytest.mark.parametrize("source", UNREACHED.values(), ids=UNREACHED)
def test_a_target_that_nothing_reaches_is_said_to_be_bypassed(judged, source: str) -> None:
    step = judged(main=source)["step"]
    assert step.state is State.PENDING
    assert (
        "bypassed at up.main:run: that code calls the target at v1, but not here, and nothing else calls the target"
        in step.reason
    )


def test_a_feature_of_which_nothing_is_reached_has_drifted(judged) -> None:
    source = UNREACHED["by another"].replace("Pool().groups()", "[]")
    assert {verdict.state for verdict in judged(main=source).values()} == {State.DRIFTED}


def test_one_of_two_sites_that_is_lost_is_named(judged, plugin, package) -> None:
    package.write("up.more", "from up.ops import step\n\ndef more(batch):\n    return step(batch)\n")
    plugin.lock()
    step = judged(main=MAIN.replace("= step(", "= other("))["step"]
    assert step.state is State.PENDING
    assert "bypassed at up.main:run: that code calls the target at v1, but not here" in step.reason


def test_a_site_that_went_with_its_module_while_others_reach_it_is_no_news(judged, package) -> None:
    package.write("up.moved", MAIN)
    step = judged(main="def run(): ...\ndef serve(): ...\n")["step"]
    assert step.state is State.PENDING


DERIVED = "\nclass Large({}):\n    def groups(self):\n        return []\n"


@pytest.mark.parametrize(
    ("head", "base"),
    [
        ("from up.ops import Pool", "Pool"),
        ("from up.ops import Pool as Base", "Base"),
        ("from up import ops", "ops.Pool"),
    ],
)
def test_a_class_that_puts_its_own_method_there_is_named(judged, head: str, base: str) -> None:
    groups = judged(main=f"{MAIN}\n{head}\n{DERIVED.format(base)}")["groups"]
    assert "bypassed by up.main:Large.groups, which override the target" in groups.reason


def test_a_package_that_assigns_it_when_it_is_imported_makes_it_drift(judged) -> None:
    groups = judged(up="from up.ops import Pool\n\ndef mine(self): ...\n\nPool.groups = mine\n")["groups"]
    assert groups.state is State.DRIFTED
    assert groups.reason == "bypassed: up assigns up.ops:Pool.groups"


def test_classes_of_one_name_that_derive_from_each_others_names_end_the_search(judged) -> None:
    other = "import up.ops, up.third\n\nclass Pool(up.third.Pool): ...\n"
    third = "import up.other\n\nclass Pool(up.other.Pool): ...\n"
    groups = judged(other=other, third=third, main=MAIN + "\nimport up.other\n")["groups"]
    assert groups.state is State.PENDING
