from __future__ import annotations

import importlib
import itertools
import py_compile
import sys

import pytest

from verl_npu.errors import DeclarationError, DriftError, SettingError
from verl_npu.registry.source.probe import Defines, Never, Reads
from verl_npu.registry.state import State

OPS = """
    def double(x):
        return 2 * x

    def triple(x):
        return 3 * x

    class Model:
        scale = 1

        def forward(self, x):
            return self.scale * x

        @staticmethod
        def build(x):
            return ("built", x)

        @classmethod
        def named(cls, x):
            return (cls.__name__, x)

        @property
        def size(self):
            return 1

    class Sub(Model):
        pass
"""
CHANGED = OPS.replace("2 * x", "2 + x")
NEVER = Never("a test")


@pytest.fixture
def ops(package):
    package.write("up.ops", OPS)
    return package


@pytest.fixture
def math(plugin, ops, why):
    """Return a feature that replaces `double` and wraps `Model.forward`."""
    feature = plugin.feature("math")

    @feature.replace("up.ops:double", retired_by=NEVER, **why)
    def double(x):
        return ("ours", x)

    @feature.wrap("up.ops:Model.forward", retired_by=NEVER, **why)
    def forward(original, self, x):
        return ("wrapped", original(self, x))

    return feature


def test_patches_are_pending_until_their_module_is_imported(plugin, package, math) -> None:
    registry = plugin.start()
    package.load("up")
    assert registry.states() == {"math": State.PENDING}
    assert "up.ops" not in sys.modules


def test_a_patched_function_is_found_under_its_own_name(plugin, package, math) -> None:
    plugin.start()
    ops = package.load("up.ops")
    for value, name in ((ops.double, "double"), (ops.Model.forward, "Model.forward")):
        assert (value.__module__, value.__qualname__) == ("up.ops", name)


def test_marks_that_upstream_left_on_a_function_stay_on_its_replacement(plugin, package, math) -> None:
    package.write("up.ops", OPS + "\n    double.mark = 'kept'\n")
    plugin.start()
    assert package.load("up.ops").double.mark == "kept"


def test_deactivate_restores_every_namespace_key_for_key(plugin, package, math) -> None:
    ops = package.load("up.ops")
    objects = (ops, ops.Model, ops.Sub)
    before = [dict(vars(o)) for o in objects]
    registry = plugin.start()
    assert dict(vars(ops)) != before[0]
    registry.deactivate()
    after = [dict(vars(o)) for o in objects]
    assert [list(d) for d in after] == [list(d) for d in before]
    assert all(a[k] is b[k] for a, b in zip(after, before, strict=True) for k in a)
    assert {s.state for s in registry.status().values()} == {State.OFF}


def test_activate_after_deactivate_applies_again(plugin, package, math) -> None:
    ops = package.load("up.ops")
    registry = plugin.start()
    registry.deactivate()
    registry.activate()
    assert registry.states() == {"math": State.APPLIED}
    assert ops.double(1) == ("ours", 1)


def test_activating_twice_wraps_once(plugin, package, math) -> None:
    registry = plugin.start()
    registry.activate()
    assert package.load("up.ops").Model().forward(5) == ("wrapped", 5)


def test_copies_follow_a_reload_and_are_restored_after_it(plugin, package, math) -> None:
    package.write("up.again", "from up.ops import double\n")
    again = package.load("up.again")
    registry = plugin.start()
    ops = importlib.reload(sys.modules["up.ops"])
    assert again.double is ops.double
    registry.deactivate()
    assert again.double is ops.double
    assert again.double(1) == 2


def test_one_drifted_target_refuses_the_whole_feature_with_one_line(plugin, package, math) -> None:
    registry = plugin.start_on("up.ops", CHANGED)
    ops = package.load("up.ops")
    assert (ops.Model().forward(5), ops.double(1)) == (5, 3)
    status = registry.status()
    assert status["math.double"].state is State.DRIFTED
    assert status["math.forward"].state is State.OFF
    assert status["math.forward"].reason.startswith("not applied, because math.double drifted")
    assert registry.states() == {"math": State.DRIFTED}
    (line,) = plugin.reported
    assert "\n" not in line
    for part in ("math", "up.ops:double", "expected", "at v1", "found", "check --diff", "PLUGIN_FORCE=math"):
        assert part in line


def test_a_changed_comment_is_no_drift(plugin, package, math) -> None:
    registry = plugin.start_on("up.ops", OPS.replace("2 * x", "2 * x  # twice"))
    package.load("up.ops")
    assert registry.states() == {"math": State.APPLIED}
    revision = registry.revisions["up"]
    assert (str(revision), revision.exact) == ("nearest v1, no difference in what is used", False)


def test_a_wrapper_survives_a_changed_body_but_not_a_changed_signature(plugin, package, math) -> None:
    registry = plugin.start_on("up.ops", OPS.replace("self.scale * x", "x * self.scale"))
    assert registry.states() == {"math": State.PENDING}
    registry.deactivate()
    package.write("up.ops", OPS.replace("def forward(self, x)", "def forward(self, x, y)"))
    registry.activate()
    assert registry.status()["math.forward"].state is State.DRIFTED


@pytest.mark.parametrize(
    ("change", "patch"),
    [
        (("def double(x)", "def twice(x)"), "math.double"),
        (("def double(x)", "def double(x, y)"), "math.double"),
        (("def double(x)", "async def double(x)"), "math.double"),
        (("def double(x)", "@cache\n    def double(x)"), "math.double"),
        (("class Model:", "class Renamed:"), "math.forward"),
        (("def forward(self, x)", "def call(self, x)"), "math.forward"),
        (("        def forward(self, x)", "        @staticmethod\n        def forward(self, x)"), "math.forward"),
        (("        def forward(self, x)", "        @property\n        def forward(self, x)"), "math.forward"),
    ],
    ids=["renamed", "parameter", "async", "decorated", "class", "method", "static", "property"],
)
def test_each_kind_of_change_is_drift(plugin, package, math, change: tuple[str, str], patch: str) -> None:
    registry = plugin.start_on("up.ops", OPS.replace("(Model)", "").replace(*change))
    assert registry.status()[patch].state is State.DRIFTED


def test_a_module_that_is_gone_is_drift(plugin, package, math) -> None:
    plugin.lock()
    (package.root / "up" / "ops.py").unlink()
    registry = plugin.start(lock=False)
    package.load("up")
    assert registry.states() == {"math": State.DRIFTED}


def test_strict_raises_in_every_import_that_meets_the_drift(plugin, package, math) -> None:
    plugin.lock()
    package.write("up.ops", CHANGED)
    plugin.start(lock=False, strict=True)
    for _ in range(2):
        with pytest.raises(DriftError, match=r"up\.ops:double"):
            package.load("up")


def test_force_applies_a_drifted_feature_and_taints(plugin, package, math) -> None:
    registry = plugin.start_on("up.ops", CHANGED, force=frozenset({"math"}))
    assert package.load("up.ops").double(1) == ("ours", 1)
    assert registry.tainted == ("math",)
    assert registry.activity()["tainted"] == ["math"]


def test_a_disabled_feature_changes_nothing(plugin, package, math) -> None:
    registry = plugin.start(disable=frozenset({"math"}))
    assert package.load("up.ops").double(1) == 2
    assert registry.states() == {"math": State.OFF}


def test_a_switch_that_names_no_feature_is_told_and_has_no_effect(plugin, package, math) -> None:
    registry = plugin.start(disable=frozenset({"maths"}))
    assert package.load("up.ops").double(1) == ("ours", 1)
    (line,) = plugin.reported
    assert line.startswith("PLUGIN_DISABLE=maths: expected some of the names math, separated by commas; found maths")
    assert line.endswith("did you mean math?")
    assert registry.states() == {"math": State.APPLIED}


def test_a_switch_that_names_no_feature_ends_the_import_if_strict(plugin, package, math) -> None:
    plugin.start(disable=frozenset({"maths"}), strict=True)
    with pytest.raises(SettingError):
        package.load("up")


@pytest.mark.parametrize(
    ("probes", "state"),
    [
        ({"retired_by": Reads("up.ops:triple", "x")}, State.NATIVE),
        ({"retired_by": NEVER, "requires": Defines("up.ops:nothing")}, State.ABSENT),
    ],
    ids=["upstream does it", "its requirement does not hold"],
)
def test_a_patch_that_is_not_needed_changes_nothing(plugin, package, ops, why, probes, state: State) -> None:
    plugin.feature("math").wrap("up.ops:double", **probes, **why)(lambda original, x: ("ours", x))
    registry = plugin.start()
    assert package.load("up.ops").double(1) == 2
    assert registry.states() == {"math": state}


def test_an_added_name_is_there_and_goes_with_the_rollback(plugin, package, ops, why) -> None:
    feature = plugin.feature("math")

    @feature.add("up.ops:quadruple", **why)
    def quadruple(x):
        return 4 * x

    @feature.add("up.ops:Sub.forward", **why)
    def forward(self, x):
        return ("sub", x)

    registry = plugin.start()
    ops = package.load("up.ops")
    assert (ops.quadruple(1), ops.Sub().forward(1)) == (4, ("sub", 1))
    registry.deactivate()
    assert not hasattr(ops, "quadruple")
    # An inherited name must not be left behind as a copy in the subclass.
    assert "forward" not in vars(ops.Sub)
    assert ops.Sub().forward(1) == 1


@pytest.mark.parametrize(
    ("target", "call", "expected"),
    [
        ("Model.build", lambda ops: ops.Model.build(1), ("ours", ("built", 1))),
        ("Model.named", lambda ops: ops.Sub.named(1), ("ours", ("Sub", 1))),
        ("Model.size", lambda ops: ops.Model().size, ("ours", 1)),
    ],
)
def test_descriptors_are_wrapped_as_what_they_are(plugin, package, ops, why, target, call, expected) -> None:
    feature = plugin.feature("math")

    @feature.wrap(f"up.ops:{target}", retired_by=NEVER, **why)
    def patched(original, *args):
        return ("ours", original(*args))

    plugin.start()
    ops = package.load("up.ops")
    kind = type(vars(ops.Model)[target.partition(".")[2]])
    assert call(ops) == expected
    plugin.registries[0].deactivate()
    assert type(vars(ops.Model)[target.partition(".")[2]]) is kind


def test_a_coroutine_function_stays_one(plugin, package, why) -> None:
    import asyncio
    import inspect

    package.write("up.ops", "async def fetch(x):\n    return x\n")
    feature = plugin.feature("math")

    @feature.wrap("up.ops:fetch", retired_by=NEVER, **why)
    async def fetch(original, x):
        return ("ours", await original(x))

    plugin.start()
    ops = package.load("up.ops")
    assert inspect.iscoroutinefunction(ops.fetch)
    assert asyncio.run(ops.fetch(1)) == ("ours", 1)


def test_copies_taken_before_are_rebound_and_restored(plugin, package, math) -> None:
    package.write("user_old", "from up.ops import double as twice\n")
    package.write("up.again", "from up.ops import double\n")
    again = package.load("up.again")
    original = again.double
    registry = plugin.start()
    assert again.double(1) == ("ours", 1)
    registry.deactivate()
    assert again.double is original


def test_a_copy_taken_in_a_circular_import_is_rebound(plugin, package, math) -> None:
    package.write("up.circle", "import up.ops\nfrom up.ops import double as twice\n")
    package.write("up.ops", OPS + "\n    import up.circle\n    alias = double\n")
    plugin.start()
    ops = package.load("up.ops")
    assert sys.modules["up.circle"].twice(1) == ("ours", 1)
    assert ops.alias(1) == ("ours", 1)


def test_a_later_overwrite_is_overwritten_and_survives_the_rollback(plugin, package, math) -> None:
    registry = plugin.start()
    ops = package.load("up.ops")
    theirs = ops.double = lambda x: "theirs"
    assert registry.status()["math.double"].state is State.OVERWRITTEN
    assert registry.states() == {"math": State.OVERWRITTEN}
    registry.deactivate()
    assert ops.double is theirs


def added(original, x):
    return original(x) + 1000


@pytest.fixture
def overwritten(plugin, package, ops, why):
    """Return a plugin whose feature comes after `up.own`, an upstream module that patches."""
    package.write("up.user", "from up.ops import double\n")
    package.write("up.own", "import up.ops\n\ndef theirs(x):\n    return 'theirs'\n\nup.ops.double = theirs\n")
    plugin.feature("math", after="up.own").wrap("up.ops:double", retired_by=NEVER, **why)(added)
    return plugin


def test_what_a_named_module_overwrites_is_put_in_force_again_and_left_by_a_rollback(overwritten, package) -> None:
    user = package.load("up.user")
    registry = overwritten.start()
    package.load("up.own")
    assert package.load("up.ops").double(5) == 1010
    status = registry.status()["math.added"]
    assert (status.state, status.reason.endswith("over the assignment by up.own")) == (State.APPLIED, True)
    registry.deactivate()
    assert package.load("up.ops").double is package.load("up.own").theirs
    assert user.double(5) == 10


def test_what_others_overwrite_is_overwritten_beside_a_named_module(overwritten, package) -> None:
    package.write("up.own", "")
    registry = overwritten.start()
    package.load("up.ops").double = lambda x: "somebody's"
    package.load("up.own")
    assert registry.status()["math.added"].state is State.OVERWRITTEN


def test_a_failure_takes_the_whole_feature_back(plugin, package, why) -> None:
    package.write("up.ops", OPS)
    package.write("up.more", "def last():\n    return 1\n")
    feature = plugin.feature("math")

    @feature.replace("up.ops:double", retired_by=NEVER, **why)
    def double(x):
        return ("ours", x)

    @feature.replace("up.more:last", retired_by=NEVER, **why)
    def last():
        return no_such_name  # noqa: F821  # what the test is about

    registry = plugin.start()
    ops = package.load("up.ops")
    assert ops.double(1) == ("ours", 1)
    more = package.load("up.more")
    assert ops.double(1) == 2
    assert more.last() == 1
    status = registry.status()
    assert status["math.last"].state is State.FAILED
    assert "no_such_name" in status["math.last"].reason
    assert status["math.double"].state is State.OFF
    assert "no_such_name" in plugin.reported[0]


def test_features_stand_alone(plugin, package, math, why) -> None:
    other = plugin.feature("other")

    @other.replace("up.ops:triple", retired_by=NEVER, **why)
    def triple(x):
        return ("ours", x)

    registry = plugin.start_on("up.ops", CHANGED)
    assert package.load("up.ops").triple(1) == ("ours", 1)
    assert registry.states() == {"math": State.DRIFTED, "other": State.APPLIED}


def test_two_features_on_one_target_are_an_error_that_names_both(plugin, package, math, why) -> None:
    other = plugin.feature("other")

    @other.replace("up.ops:double", retired_by=NEVER, **why)
    def twice(x):
        return x

    registry = plugin.start(lock=False)
    package.load("up")
    assert "math.double" in plugin.reported[0]
    assert "other.twice" in plugin.reported[0]
    assert set(registry.states().values()) == {State.FAILED}
    assert package.load("up.ops").double(1) == 2


def test_two_patches_of_one_feature_on_one_target_are_an_error(plugin, math, why) -> None:
    with pytest.raises(DeclarationError, match=r"math\.double"):

        @math.replace("up.ops:double", retired_by=NEVER, **why)
        def another(x):
            return x


def test_a_damaged_lock_is_reported_and_nothing_is_patched(plugin, package, math) -> None:
    plugin.lock()
    (plugin.locks / "up" / "v1" / "lock.json").write_text("{")
    plugin.start(lock=False)
    assert package.load("up.ops").double(1) == 2
    assert "lock.json" in plugin.reported[0]
    plugin.registries[0].deactivate()
    del sys.modules["up"]
    plugin.start(lock=False, strict=True)
    with pytest.raises(DeclarationError):
        package.load("up")


def test_without_any_locks_it_is_said_that_they_are_missing_and_not_that_upstream_drifted(
    plugin, package, math
) -> None:
    registry = plugin.start(lock=False)
    assert package.load("up.ops").double(1) == 2
    (line,) = plugin.reported
    assert f"{plugin.locks}: the folder with the package's locks" in line
    assert "drifted" not in line
    assert State.DRIFTED not in registry.states().values()


def test_a_tree_that_is_no_pin_has_a_nearest_one_and_a_list_of_what_differs(plugin, package, math) -> None:
    registry = plugin.start_on("up.ops", OPS.replace("self.scale * x", "x"))
    revision = registry.revisions["up"]
    assert (revision.nearest_pin, revision.exact) == ("v1", False)
    assert revision.differs == ("up.ops:Model.forward",)


def test_a_tree_is_found_among_several_pins(plugin, package, math) -> None:
    plugin.lock("v1")
    package.write("up.ops", OPS.replace("2 * x", "x + x"))
    plugin.lock("v2")
    registry = plugin.start(lock=False)
    assert package.load("up.ops").double(1) == ("ours", 1)
    assert str(registry.revisions["up"]) == "v2"


def test_a_patch_without_a_reason_is_refused(plugin) -> None:
    feature = plugin.feature("math")
    with pytest.raises(DeclarationError, match="why"):

        @feature.wrap("up.ops:double", why=" ", how="a", link="b", retired_by=NEVER)
        def double(original, x):
            return x


@pytest.mark.parametrize("text", ["up.ops", "up.ops:", ":f", "up..ops:f", "up.ops:f()", "up.ops:C..f", "up ops:f"])
def test_a_target_that_is_none_is_refused(plugin, why, text: str) -> None:
    feature = plugin.feature("math")
    with pytest.raises(DeclarationError, match="module:qualname"):
        feature.wrap(text, retired_by=NEVER, **why)(lambda original: None)


EVENTS = ("import", "activate", "deactivate", "reload")
ORDERS = [order for length in range(1, 5) for order in itertools.permutations(EVENTS, length)]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_patched_if_and_only_if_active_in_the_end(package, plugin, why, order: tuple[str, ...]) -> None:
    package.write("up.ops", OPS)
    feature = plugin.feature("f")

    @feature.replace("up.ops:triple", retired_by=NEVER, **why)
    def triple(x):
        return ("ours", x)

    @feature.wrap("up.ops:Model.forward", retired_by=NEVER, **why)
    def forward(original, self, x):
        return ("ours", original(self, x))

    @feature.add("up.ops:added", **why)
    def added(x):
        return ("ours", x)

    registry = plugin.start()
    registry.deactivate()
    for event in order:
        if event == "import" or (event == "reload" and "up.ops" not in sys.modules):
            package.load("up.ops")
        elif event == "reload":
            importlib.reload(sys.modules["up.ops"])
        else:
            getattr(registry, event)()

    active = "activate" in order and order[order.index("activate") :].count("deactivate") == 0
    ops = package.load("up.ops")
    expected = (("ours", 1), ("ours", 1), True) if active else (3, 1, False)
    assert (ops.triple(1), ops.Model().forward(1), hasattr(ops, "added")) == expected
    assert registry.active is active
    if active:
        assert registry.states() == {"f": State.APPLIED}


# Guards run each time before their module is executed, and can stop it; then nothing of the module has run.

SIDE_EFFECT = """
    import up.world
    up.world.touched.append("executed")

    def work():
        return 1

    def play():
        return 2
"""


@pytest.fixture
def world(package):
    package.write("up.world", "touched = []\n")
    package.write("up.side", SIDE_EFFECT)
    return package


@pytest.fixture
def guarded(plugin, world, why):
    """Return a plugin that guards `up.side` and wraps `work`; the guard calls `guarded.does`."""
    feature = plugin.feature("guarded")
    plugin.does = lambda: None

    @feature.guard("up.side:work", retired_by=NEVER, **why)
    def stop():
        import up.world

        up.world.touched.append("guard")
        plugin.does()

    return plugin


def test_a_guard_runs_before_its_module(guarded, world) -> None:
    registry = guarded.start()
    world.load("up")
    assert registry.status()["guarded.stop"].state is State.PENDING
    world.load("up.side")
    assert sys.modules["up.world"].touched == ["guard", "executed"]
    assert registry.status()["guarded.stop"].state is State.APPLIED


def test_what_a_guard_raises_stops_the_import_every_time(guarded, world) -> None:
    def refuse():
        raise ImportError("not here")

    guarded.start()
    guarded.does = refuse
    world.load("up")
    for _ in range(2):
        with pytest.raises(ImportError, match="not here"):
            world.load("up.side")
    assert sys.modules["up.world"].touched == ["guard", "guard"]
    assert "up.side" not in sys.modules


def test_a_guard_goes_with_its_registry(guarded, world) -> None:
    registry = guarded.start()
    world.load("up")
    registry.deactivate()
    world.load("up.side")
    assert sys.modules["up.world"].touched == ["executed"]
    assert registry.status()["guarded.stop"].state is State.OFF


def test_a_guard_of_a_drifted_target_is_not_run(guarded, world) -> None:
    guarded.lock()
    world.write("up.side", SIDE_EFFECT.replace("def work():", "async def work():"))
    registry = guarded.start(lock=False)
    world.load("up")
    world.load("up.side")
    assert sys.modules["up.world"].touched == ["executed"]
    assert registry.status()["guarded.stop"].state is State.DRIFTED


def test_a_guard_that_its_probe_retires_is_not_run(plugin, world, why) -> None:
    feature = plugin.feature("guarded")

    @feature.guard("up.side:work", retired_by=Defines("up.side:work"), **why)
    def stop():
        raise ImportError("not here")

    registry = plugin.start()
    world.load("up")
    world.load("up.side")
    assert registry.status()["guarded.stop"].state is State.NATIVE


def test_a_guard_goes_where_its_feature_fails(guarded, world, why) -> None:
    @guarded.features[0].wrap("up.side:play", retired_by=NEVER, **why)
    def broken(original):
        return name_that_does_not_resolve  # noqa: F821

    registry = guarded.start()
    world.load("up")
    world.load("up.side")
    assert registry.status()["guarded.broken"].state is State.FAILED
    del sys.modules["up.side"]
    world.load("up.side")
    assert sys.modules["up.world"].touched == ["guard", "executed", "executed"]


def test_an_upstream_that_is_compiled_alone_is_named_and_no_definition_is_missed(plugin, package, math) -> None:
    plugin.lock()
    for path in (package.root / "up").glob("*.py"):
        py_compile.compile(str(path), cfile=f"{path}c", doraise=True)
        path.unlink()
    registry = plugin.start(lock=False)
    assert package.load("up.ops").double(1) == 2
    assert registry.states() == {"math": State.FAILED}
    (line,) = plugin.reported
    assert line.startswith(
        "up: expected the package's Python source, which verl-npu needs to check its patches; found only compiled"
    )
