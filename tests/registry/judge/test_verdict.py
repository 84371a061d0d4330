"""Each change of a source triggers its own guard, and a missing target is told from a missing package."""

from __future__ import annotations

import ast
import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from verl_npu.maintain.locks import record_lock
from verl_npu.registry.judge.absence import Baseline, look
from verl_npu.registry.judge.verdict import judge
from verl_npu.registry.patch import Feature, Upstream
from verl_npu.registry.source.probe import Calls, Defines, Never, Not, Probe
from verl_npu.registry.source.tree import SourceTree
from verl_npu.registry.state import State

SOURCE = textwrap.dedent(
    '''
    import math
    from functools import wraps

    SCALE = 2

    def register(function):
        @wraps(function)
        def inner(*args, **kwargs):
            return function(*args, **kwargs)
        return inner

    class Model:
        @register
        def step(self, batch, lr=0.1, *, clip=1.0, **options):
            """Take a step."""
            loss = 0
            for index, row in enumerate(batch):
                if row > 0 and not options.get("skip"):
                    loss += row * lr
                elif row == -1:
                    continue
                else:
                    loss = max(loss, -row, clip)
            try:
                with open("log") as stream:
                    stream.write(f"{loss:.2f} of {len(batch)}")
            except OSError as error:
                raise RuntimeError("no log") from error
            total = [x ** 2 for x in batch if x != 3]
            self.losses["last"] = loss if total else None
            return lambda scale=SCALE: (loss / scale, total[1:-1], math.sqrt(loss))
    '''
)
TARGET = "up.ops:Model.step"
HARMLESS = {
    "formatting": ast.unparse(ast.parse(SOURCE)),
    "comment": SOURCE.replace("loss = 0\n", "loss = 0  # from here on\n"),
    "docstring": SOURCE.replace("Take a step.", "Take another step."),
    "elsewhere": SOURCE.replace("SCALE = 2", "SCALE = 3"),
    "other class": SOURCE + "\nclass Other:\n    def step(self):\n        return 1\n",
}


@pytest.fixture
def judged(plugin, package, why) -> Callable[[str, str], State]:
    """Return a function that locks SOURCE for a replacement or a wrapper and returns the state with another source."""

    def judge(action: str, source: str) -> State:
        package.write("up.ops", SOURCE)
        feature = plugin.feature("f")

        def step(*args: object, **kwargs: object) -> None:
            return None

        getattr(feature, action)(TARGET, retired_by=Never("a test"), **why)(step)
        return plugin.start_on("up.ops", source).status()["f.step"].state

    return judge


def test_another_body_is_drift_for_a_replacement(judged) -> None:
    assert judged("replace", SOURCE.replace("row * lr", "row + lr")) is State.DRIFTED


@pytest.mark.parametrize("source", HARMLESS.values(), ids=HARMLESS)
@pytest.mark.parametrize("action", ["replace", "wrap"])
def test_what_does_not_concern_the_target_is_no_drift(judged, action: str, source: str) -> None:
    assert judged(action, source) is State.PENDING


SIGNATURES = {
    "a parameter more in front": "(self, batch, extra=None, lr=0.1, *, clip=1.0, **options)",
    "a parameter more that is required": "(self, batch, lr=0.1, *, extra, clip=1.0, **options)",
    "a parameter less": "(self, batch, *, clip=1.0, **options)",
    "another order": "(self, lr=0.1, batch=None, *, clip=1.0, **options)",
    "another name": "(self, rows, lr=0.1, *, clip=1.0, **options)",
    "no default": "(self, batch, lr, *, clip=1.0, **options)",
    "keyword made positional": "(self, batch, lr=0.1, clip=1.0, **options)",
    "positional only": "(self, batch, /, lr=0.1, *, clip=1.0, **options)",
    "no more options": "(self, batch, lr=0.1, *, clip=1.0)",
    "more arguments": "(self, batch, lr=0.1, *rest, clip=1.0, **options)",
}


@pytest.mark.parametrize("changed", SIGNATURES.values(), ids=SIGNATURES)
def test_every_change_of_the_signature_is_drift_for_a_wrapper(judged, changed: str) -> None:
    old = "(self, batch, lr=0.1, *, clip=1.0, **options)"
    assert judged("wrap", SOURCE.replace(old, changed)) is State.DRIFTED


ONLY_WORDS = {
    "a parameter more": SOURCE.replace("lr=0.1, *", "lr=0.1, extra=None, *"),
    "a keyword more": SOURCE.replace("clip=1.0, **", "clip=1.0, extra=None, **"),
    "another default": SOURCE.replace("lr=0.1", "lr=0.2"),
    "a default that has a name": SOURCE.replace("SCALE = 2", "SCALE = 2\nRATE = 0.1").replace("lr=0.1", "lr=RATE"),
    "annotations": SOURCE.replace("batch, lr=0.1", "batch: list, lr: float = 0.1").replace(
        "options):", "options) -> int:"
    ),
    "another name for a variable": SOURCE.replace("total", "squares"),
    "a log line": SOURCE.replace("        loss = 0\n", "        logger.info('begins')\n        loss = 0\n"),
}


@pytest.mark.parametrize("source", ONLY_WORDS.values(), ids=ONLY_WORDS)
def test_words_are_no_drift_for_a_wrapper(judged, source: str) -> None:
    assert judged("wrap", source) is State.PENDING


@pytest.mark.parametrize("source", ONLY_WORDS.values(), ids=ONLY_WORDS)
def test_words_are_drift_for_a_replacement_which_says_that_they_are_only_words(judged, plugin, source: str) -> None:
    assert judged("replace", source) is State.DRIFTED
    (verdict,) = plugin.registries[0].status().values()
    assert verdict.only_wording
    assert "only in wording" in verdict.reason
    assert "set PLUGIN_FORCE=f, which is safe" in plugin.reported[0]


def test_a_default_that_a_wrapper_gives_as_well_is_no_mere_word(package, plugin, why) -> None:
    package.write("up.ops", SOURCE)

    def step(original, model, batch, lr=0.1, **options):
        return original(model, batch, lr, **options)

    plugin.feature("f").wrap(TARGET, retired_by=Never("a test"), **why)(step)
    registry = plugin.start_on("up.ops", ONLY_WORDS["a default that has a name"])
    assert registry.status()["f.step"].state is State.PENDING
    registry.deactivate()
    package.write("up.ops", ONLY_WORDS["another default"])
    registry.activate()
    assert registry.status()["f.step"].state is State.DRIFTED


def test_another_body_is_no_drift_for_a_wrapper(judged) -> None:
    assert judged("wrap", SOURCE.replace("row * lr", "row + lr")) is State.PENDING


# A target that is gone with its whole package.

PACKAGES = ("up", "extra")
GONE = "extra.sync.workers:Worker.start"
BODY = "        self.a = 1\n        self.b = 2\n        self.c = 3\n        return self\n"
WORKERS = f"class Worker:\n    def start(self):\n{BODY}"


def write(site: Path, module: str, source: str) -> None:
    path = site.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    for folder in path.parents[: module.count(".")]:
        (folder / "__init__.py").touch()


@pytest.mark.parametrize(
    ("module", "source", "exact", "gone", "reason"),
    [
        ("up.main", "", False, False, "extra is not installed here"),
        ("up.elsewhere", WORKERS, False, True, "the same code is at up.elsewhere:Worker.start"),
        (
            "up.sync.workers",
            "class Worker:\n    def start(self):\n        return 7\n",
            False,
            True,
            "up.sync.workers:Worker.start has the same name",
        ),
        (
            "up.sync.workers",
            "class Worker(Base): ...\n",
            False,
            True,
            "extra.sync.workers is now up.sync.workers, which lacks that name",
        ),
        ("up.sync.workers", WORKERS, True, False, "extra is not installed here"),
    ],
    ids=["left out", "moved", "changed and moved", "its module moved without it", "at the pin nothing is looked for"],
)
def test_a_target_in_a_missing_package_is_gone_or_not_installed(
    module: str, source: str, exact: bool, gone: bool, reason: str, tmp_path: Path, why: dict[str, str]
) -> None:
    feature = Feature("feature", "a feature")
    feature.wrap(GONE, retired_by=Calls(GONE, "npu"), **why)(write)
    write(tmp_path, "up.main", "")
    write(tmp_path, "extra.sync.workers", WORKERS)
    lock = record_lock(Upstream("up", PACKAGES), "v1", "v1", SourceTree.at(tmp_path, PACKAGES), list(feature))
    shutil.rmtree(tmp_path / "extra")
    write(tmp_path, module, source)
    absence = look(GONE, Baseline(lock, exact, [lock], PACKAGES), SourceTree.at(tmp_path, PACKAGES))
    assert absence is not None
    assert (absence.gone, absence.reason.partition("gone; ")[2] or absence.reason) == (gone, reason)


# Two folders of one name: Python's import takes one of them, or both.


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: dict[str, str]):
    """Return a function that locks an upstream of two packages and judges GONE with other folders first."""
    feature = Feature("feature", "a feature")
    feature.wrap(GONE, retired_by=Calls(GONE, "npu"), **why)(write)
    site = tmp_path / "site"
    write(site, "up.main", "")
    write(site, "extra.sync.workers", WORKERS)
    (site / "extra" / "__init__.py").unlink()
    lock = record_lock(Upstream("up", PACKAGES), "v1", "v1", SourceTree.at(site, PACKAGES), list(feature))

    def find(*folders: Path):
        for folder in reversed(folders):
            monkeypatch.syspath_prepend(str(folder))
        tree = SourceTree.installed(PACKAGES)
        revisions, verdicts = judge([feature], [Upstream("up", PACKAGES)], tree, {"up": [lock]})
        return revisions["up"], verdicts["feature.write"]

    yield find
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]


def own(folder: Path, module: str = "extra.tools", source: str = "") -> Path:
    """Write a user's own module, without any `__init__`."""
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True)
    path.write_text(source)
    return folder


def test_a_users_own_folder_hides_nothing_of_upstreams(installed, tmp_path: Path) -> None:
    revision, verdict = installed(own(tmp_path / "mine"), tmp_path / "site")
    assert (revision.exact, verdict.state) == (True, State.PENDING)


def test_a_module_in_a_users_own_folder_is_taken_where_pythons_import_takes_it(installed, tmp_path: Path) -> None:
    mine = own(tmp_path / "mine", "extra.sync.workers", WORKERS.replace("start(self)", "start(self, more)"))
    # One of the two parts is a whole package, which Python takes wherever it stands.
    assert installed(mine, tmp_path / "site")[1].state is State.PENDING
    (mine / "extra" / "sync" / "__init__.py").touch()
    assert installed(mine, tmp_path / "site")[1].state is State.DRIFTED


@pytest.mark.parametrize("regular", [False, True], ids=["several folders", "a package of its own"])
def test_a_users_own_folder_is_not_upstreams_and_lacks_nothing(installed, tmp_path: Path, regular: bool) -> None:
    mine = own(tmp_path / "mine")
    if regular:
        (mine / "extra" / "__init__.py").touch()
    else:
        shutil.rmtree(tmp_path / "site" / "extra")
    revision, verdict = installed(mine, tmp_path / "site")
    assert (revision.differs, verdict.state) == ((), State.ABSENT)
    assert f"another package named extra, at {mine / 'extra'}, hides" in verdict.reason


def test_what_the_folder_beside_upstream_lacks_is_gone(installed, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "site" / "extra" / "sync")
    assert installed(own(tmp_path / "mine"), tmp_path / "site")[1].state is State.DRIFTED


# Evidence that a patch is not needed.

USER = "from up.ops import other\n\ndef main():\n    return other()\n"
WITH = "def other(link):\n    link.destroy()\n    return 1\n\ndef step(link):\n    link.destroy()\n    return link\n"
WITHOUT = WITH.replace("def step(link):\n    link.destroy()\n", "def step(link):\n")
UNKNOWN = WITHOUT.replace("    return link\n", "    drop(link)\n    return link\n")
STEP = "up.ops:step"


@pytest.fixture
def shown(plugin, package, why) -> Callable[..., State]:
    """Return a function that locks two pins, of which only the first needs the patch, and judges another source."""

    def judge(source: str, **probes: Probe) -> State:
        package.write("up.main", USER)
        plugin.feature("f").wrap(STEP, **{"retired_by": Never("a test"), **probes}, **why)(lambda original, link: None)
        for pin, locked in (("v1", WITH), ("v2", WITHOUT)):
            package.write("up.ops", locked)
            plugin.lock(pin)
        package.write("up.ops", f"{source}\nMORE = 1\n")
        registry = plugin.start(lock=False)
        package.load("up")
        (status,) = registry.status().values()
        return status.state

    return judge


@pytest.mark.parametrize(
    ("source", "state"),
    [
        (WITH, State.PENDING),
        (WITHOUT, State.NATIVE),
        (UNKNOWN, State.DRIFTED),
        (WITH.replace("(link):\n    link.destroy()\n    return link", "(link):\n    pass"), State.DRIFTED),
    ],
    ids=["done", "as at the pin", "elsewhere", "gutted"],
)
def test_a_missing_call_is_believed_only_where_the_body_is_as_at_a_pin(source: str, state: State, shown) -> None:
    assert shown(source, retired_by=Not(Calls(STEP, "destroy"))) is state


@pytest.mark.parametrize(
    ("source", "state"),
    [(WITH, State.PENDING), (WITHOUT, State.ABSENT), (UNKNOWN, State.DRIFTED)],
    ids=["done", "as at the pin", "elsewhere"],
)
def test_a_missing_requirement_is_believed_only_where_the_body_is_as_at_a_pin(
    source: str, state: State, shown
) -> None:
    assert shown(source, requires=Calls(STEP, "destroy")) is state


@pytest.mark.parametrize(
    ("body", "state"),
    [
        ("    return link.close()", State.NATIVE),
        ("    raise NotImplementedError", State.DRIFTED),
        ("    pass", State.DRIFTED),
    ],
    ids=["does something", "raises", "passes"],
)
def test_what_is_defined_and_does_nothing_shows_nothing(body: str, state: State, shown) -> None:
    assert shown(f"{WITH}\ndef by_itself(link):\n    {body}\n", retired_by=Defines("up.ops:by_itself")) is state


def test_upstream_does_it_and_its_own_target_does_nothing(shown) -> None:
    gutted = WITH.replace("(link):\n    link.destroy()\n    return link", "(link):\n    raise NotImplementedError")
    assert shown(gutted, retired_by=Calls("up.ops:other", "destroy")) is State.DRIFTED


@pytest.mark.parametrize("probes", [{"retired_by": Not(Calls(STEP, "destroy"))}, {"requires": Calls(STEP, "destroy")}])
def test_what_stands_only_under_type_checking_is_gone(probes: dict[str, Probe], shown) -> None:
    # Its body is as at the pin that does not need the patch, but no process has it.
    hidden = "if TYPE_CHECKING:\n" + textwrap.indent(WITHOUT[WITHOUT.index("def step") :], "    ")
    assert shown(WITHOUT[: WITHOUT.index("def step")] + hidden, **probes) is State.DRIFTED


@pytest.mark.parametrize(
    ("user", "gone"),
    [
        ("from up.ops import step\n", True),
        ("from .ops import step as run\n", True),
        ("import typing\nif typing.TYPE_CHECKING:\n    from up.ops import step\n", False),
        ("import up.ops\n", False),
    ],
    ids=["imported", "imported under another name", "imported for type checkers", "not imported"],
)
def test_what_is_still_imported_is_gone_and_not_absent(
    user: str, gone: bool, tmp_path: Path, why: dict[str, str]
) -> None:
    feature = Feature("feature", "a feature")
    feature.wrap(STEP, retired_by=Never("a test"), **why)(write)
    locks = []
    for source in (WITH, "MORE = 1\n"):
        write(tmp_path, "up.ops", source)
        locks.append(record_lock(Upstream("up", ("up",)), "v1", "v1", SourceTree.at(tmp_path, ("up",)), list(feature)))
    write(tmp_path, "up.main", user)
    absence = look(STEP, Baseline(locks[0], False, locks, ("up",)), SourceTree.at(tmp_path, ("up",)))
    assert absence is not None
    assert absence.gone is gone
    assert ("up.main still uses it" in absence.reason) is gone
