"""A replacement keeps the abilities of its target, and a target that is no longer upstream's own is refused."""

from __future__ import annotations

import asyncio
import functools
import inspect
import pickle
import sys
from types import ModuleType

import pytest
import wrapt

from verl_npu.errors import ApplyError
from verl_npu.registry.apply.hooks import remove_hook
from verl_npu.registry.source.probe import Never
from verl_npu.registry.state import State

KINDS = """
import functools

def plain(x=1): return x
async def awaited(x=1): return x
def generated(x=1): yield x
async def streamed(x=1): yield x
@functools.lru_cache
def cached(x=1): return x
@functools.singledispatch
def dispatched(x=1): return x

class K:
    @functools.cached_property
    def once(self): return 1
    @functools.singledispatchmethod
    def chosen(self, x): return x
    def _add(self, x, y): return x + y
    add_one = functools.partialmethod(_add, 1)
    def walk(self, x=1): yield x
"""


@pytest.fixture
def wrapped(package, plugin, why):
    """Return a function that wraps a target so that its numbers are ten times as large, and returns the module."""

    def wrap(target: str):
        package.write("up.ops", KINDS)

        def tenfold(original, *args, **kwargs):
            made = original(*args, **kwargs)
            return [10 * item for item in made] if inspect.isgenerator(made) else 10 * made

        plugin.feature("f").wrap(f"up.ops:{target}", retired_by=Never("a test"), **why)(tenfold)
        registry = plugin.start()
        module = package.load("up.ops")
        assert registry.status()["f.tenfold"].state is State.APPLIED
        return module

    return wrap


def test_a_plain_function_stays_one_and_can_be_pickled(wrapped) -> None:
    module = wrapped("plain")
    assert inspect.isfunction(module.plain)
    assert pickle.loads(pickle.dumps(module.plain)) is module.plain
    assert module.plain(2) == 20


@pytest.mark.parametrize("action", ["wrap", "replace"])
def test_what_takes_the_place_of_an_imported_function_can_be_pickled(package, plugin, why, action: str) -> None:
    package.write("up.source", "def begin(x=1): return x\n")
    package.write("up.ops", "from up.source import begin as start\n")
    # A module that was imported before the target's module holds no copy of it.
    package.load("up.source")
    feature = plugin.feature("f")
    if action == "wrap":
        feature.wrap("up.ops:start", retired_by=Never("a test"), **why)(lambda original, x=1: 10 * original(x))
    else:
        feature.replace("up.ops:start", retired_by=Never("a test"), **why)(lambda x=1: 10 * x)
    plugin.start()
    module = package.load("up.ops")
    assert pickle.loads(pickle.dumps(module.start)) is module.start
    assert module.start(2) == 20


@pytest.mark.parametrize(("target", "call"), [("generated", "generated(2)"), ("K.walk", "K().walk(2)")])
def test_a_generator_stays_one(wrapped, target: str, call: str) -> None:
    module = wrapped(target)
    assert inspect.isgeneratorfunction(eval(target, vars(module)))
    assert list(eval(call, vars(module))) == [20]


def test_a_cache_keeps_its_controls(wrapped) -> None:
    module = wrapped("cached")
    assert module.cached(2) == 20
    assert module.cached.cache_info().misses == 1
    module.cached.cache_clear()
    assert module.cached.cache_info().misses == 0


def test_a_dispatching_function_still_takes_registrations(wrapped) -> None:
    module = wrapped("dispatched")
    module.dispatched.register(str)(lambda x: 5)
    assert (module.dispatched(2), module.dispatched("x")) == (20, 50)


def test_a_cached_property_computes_once_and_keeps_it_under_its_name(wrapped) -> None:
    module = wrapped("K.once")
    one = module.K()
    assert one.once == 10
    assert vars(one) == {"once": 10}
    assert isinstance(vars(module.K)["once"], functools.cached_property)


def test_a_dispatching_method_still_takes_registrations(wrapped) -> None:
    module = wrapped("K.chosen")
    vars(module.K)["chosen"].register(str)(lambda self, x: 5)
    assert (module.K().chosen(2), module.K().chosen("x")) == (20, 50)


def test_a_partial_method_keeps_what_it_was_given(wrapped) -> None:
    assert wrapped("K.add_one").K().add_one(2) == 30


@pytest.fixture
def narrow(package, plugin, why):
    """Return a function that wraps a function, which has more parameters by now, with one that knows only `x`."""

    def wrap(source: str, ours):
        package.write("up.ops", "def run(x):\n    return x\n")
        ours.__name__ = "ours"
        plugin.feature("f").wrap("up.ops:run", retired_by=Never("a test"), **why)(ours)
        registry = plugin.start_on("up.ops", source)
        module = package.load("up.ops")
        assert registry.status()["f.ours"].state is State.APPLIED
        return module

    return wrap


MORE = "def run(x, more=0, *, most=0):\n    return x, more, most\n"


def test_what_a_wrapper_has_no_parameter_for_is_passed_on(narrow) -> None:
    module = narrow(MORE, lambda original, x: original(x=10 * x))
    assert module.run(1) == (10, 0, 0)
    assert module.run(1, 2) == (10, 2, 0)
    assert module.run(1, more=3, most=4) == (10, 3, 4)


def test_what_has_another_name_in_a_wrapper_may_be_given_by_upstreams(narrow) -> None:
    module = narrow(MORE, lambda original, value: original(10 * value))
    assert (module.run(x=1), module.run(x=1, most=4)) == ((10, 0, 0), (10, 0, 4))


def test_it_is_passed_on_by_a_coroutine_too(narrow) -> None:
    async def ours(original, x):
        return await original(10 * x)

    # The wrapped function returns an awaitable, which the wrapper passes on.
    module = narrow(
        "async def made(x, more):\n    return x, more\ndef run(x, more=0):\n    return made(x, more)\n", ours
    )
    assert asyncio.run(module.run(1, 2)) == (10, 2)


def test_a_wrapper_that_does_without_the_original_refuses_what_would_be_lost(narrow) -> None:
    module = narrow(MORE, lambda original, x: 10 * x)
    assert module.run(1) == 10
    with pytest.raises(ApplyError, match=r"more.*PLUGIN_DISABLE=f"):
        module.run(1, more=3)


def test_a_class_cannot_be_wrapped_and_the_error_says_so(package, plugin, why) -> None:
    package.write("up.ops", KINDS)
    plugin.feature("f").wrap("up.ops:K", retired_by=Never("a test"), **why)(lambda original: original)
    registry = plugin.start()
    module = package.load("up.ops")
    (verdict,) = registry.status().values()
    assert verdict.state is State.FAILED
    assert "the class K, which can only be replaced" in verdict.reason
    assert isinstance(module.K, type)


def test_the_default_of_a_dataclass_is_refused_since_new_objects_would_not_have_it(package, plugin, why) -> None:
    package.write("up.ops", "from dataclasses import dataclass\n\n@dataclass\nclass Config:\n    size: int = 1\n")
    plugin.feature("f").set("up.ops:Config.size", retired_by=Never("a test"), **why)(lambda value: 2)
    registry = plugin.start()
    module = package.load("up.ops")
    (verdict,) = registry.status().values()
    assert verdict.state is State.FAILED
    assert "the default of a dataclass field" in verdict.reason
    assert (module.Config.size, module.Config().size) == (1, 1)


class Callable:
    def __call__(self) -> int:
        return 1


def closure():
    def run():
        return 2

    return run


@pytest.fixture
def patched(package, plugin, why):
    package.write(
        "up.ops", "def run():\n    return 1\ndef outer():\n    def run():\n        return 2\n    return run\n"
    )

    def ours(original):
        return 10 * original()

    plugin.feature("f").wrap("up.ops:run", retired_by=Never("a test"), **why)(ours)
    return plugin


@pytest.mark.parametrize(
    "value",
    [Callable, Callable(), functools.partial(int), len, closure(), 5, staticmethod(closure())],
    # Not repr: processes that share the tests out must find them under the same names.
    ids=["class", "instance", "partial", "builtin", "closure", "number", "staticmethod"],
)
def test_something_else_in_the_place_of_a_function_is_refused(package, patched, value) -> None:
    package.load("up.ops").run = value
    registry = patched.start()
    (verdict,) = registry.status().values()
    assert verdict.state is State.FAILED
    assert "expected the function defined in" in verdict.reason
    assert sys.modules["up.ops"].run is value


DECORATED = """
import functools

class jit:
    def __init__(self, function):
        functools.update_wrapper(self, function)

    def __call__(self, *args):
        return self.__wrapped__(*args)

@jit
def run():
    return 1
"""


@pytest.mark.parametrize(("value", "state"), [(None, State.FAILED), (5, State.FAILED), ("own", State.APPLIED)])
def test_what_cannot_be_called_is_refused_whatever_the_decorator_makes(package, patched, value, state: State) -> None:
    package.write("up.ops", DECORATED)
    module = package.load("up.ops")
    module.run = module.run if value == "own" else value
    (verdict,) = patched.start().status().values()
    assert verdict.state is state, verdict.reason
    assert (f"found {value!r}" in verdict.reason) is (state is State.FAILED)


def test_a_static_method_around_nothing_is_refused(package, plugin, why) -> None:
    package.write("up.ops", "class A:\n    @staticmethod\n    def run():\n        return 1\n")
    module = package.load("up.ops")
    module.A.run = staticmethod(None)
    plugin.feature("f").wrap("up.ops:A.run", retired_by=Never("a test"), **why)(lambda original: original())
    (verdict,) = plugin.start().status().values()
    assert verdict.state is State.FAILED
    assert "found <staticmethod(None)>" in verdict.reason


AROUND = """
import contextlib, functools

def passes(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs)
    return inner

def takes_another(function):
    @functools.wraps(function)
    def inner(rows, sort=True):
        return function()
    return inner

def yields(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        yield function(*args, **kwargs)
    return inner

def awaits(function):
    @functools.wraps(function)
    async def inner(*args, **kwargs):
        return function(*args, **kwargs)
    return inner

def loses_marks(function):
    def inner(*args, **kwargs):
        return function(*args, **kwargs)
    return inner

def dispatches(function):
    inner = passes(function)
    inner.registered_as = {"dispatch_mode": 1}
    return inner

def remote(function):
    import ray
    return ray.remote(function)

manages = contextlib.contextmanager
caches = functools.cached_property
chooses = functools.singledispatch
"""


def test_a_wrapper_that_passes_everything_on_is_wrapped_in_turn(package, patched) -> None:
    module = package.load("up.ops")
    module.run = around().passes(module.run)
    (verdict,) = patched.start().status().values()
    assert verdict.state is State.APPLIED
    assert module.run() == 10


@pytest.mark.parametrize(
    "name", ["takes_another", "yields", "awaits", "dispatches", "remote", "manages", "caches", "chooses"]
)
def test_a_wrapper_of_another_kind_or_signature_is_refused(package, patched, name: str) -> None:
    if name == "remote":
        pytest.importorskip("ray")
    module = package.load("up.ops")
    put = module.run = getattr(around(), name)(module.run)
    (verdict,) = patched.start().status().values()
    assert verdict.state is State.FAILED
    assert "expected the function defined in" in verdict.reason
    assert module.run is put


REGISTERED = """
import functools

def register(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs)
    inner.registered_as = {"dispatch_mode": 0}
    return inner

@register
def run():
    return 1
"""


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("passes", State.APPLIED),
        ("dispatches", State.FAILED),
        ("chooses", State.FAILED),
        ("loses_marks", State.FAILED),
    ],
)
def test_what_upstream_registered_is_refused_if_it_is_registered_no_longer_or_again(
    package, patched, name: str, state: State
) -> None:
    package.write("up.ops", REGISTERED)
    module = package.load("up.ops")
    module.run = getattr(around(), name)(module.run)
    (verdict,) = patched.start().status().values()
    assert verdict.state is state


MANAGES = """
import contextlib

@contextlib.contextmanager
def run():
    yield 1
"""


def test_a_proxy_around_a_context_manager_is_wrapped_in_turn(package, patched) -> None:
    package.write("up.ops", MANAGES)
    module = package.load("up.ops")
    module.run = wrapt.FunctionWrapper(module.run, lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs))
    (verdict,) = patched.start().status().values()
    assert verdict.state is State.APPLIED


@pytest.mark.parametrize("value", [None, 5, len])
def test_something_else_in_the_place_of_an_imported_function_is_refused(package, patched, value) -> None:
    package.write("up.source", "def run():\n    return 1\n")
    package.write("up.ops", "from up.source import run\n")
    module = package.load("up.ops")
    module.run = value
    (verdict,) = patched.start().status().values()
    assert verdict.state is State.FAILED
    assert "expected the object that " in verdict.reason
    assert module.run is value


def around() -> ModuleType:
    module = ModuleType("user_around")
    exec(AROUND, vars(module))
    return module


def test_a_closure_of_the_same_name_in_the_same_file_is_refused(package, patched) -> None:
    module = package.load("up.ops")
    module.run = module.outer()
    (verdict,) = patched.start().status().values()
    assert verdict.state is State.FAILED


def test_a_module_that_was_loaded_by_hand_has_failed(package, patched) -> None:
    registry = patched.start()
    package.load("up")
    made = ModuleType("up.ops")
    made.__file__ = str(package.root / "up" / "ops.py")
    exec(compile(package.tree().read("up.ops"), made.__file__, "exec"), vars(made))
    sys.modules["up.ops"] = made
    (verdict,) = registry.status().values()
    assert verdict.state is State.FAILED
    assert registry.states() == {"f": State.FAILED}


def test_what_stands_in_a_modules_place_without_a_source_is_left_alone(package, plugin, patched, why) -> None:
    package.write("up.more", "def go():\n    return 1\n")
    plugin.features[0].wrap("up.more:go", retired_by=Never("a test"), **why)(lambda original: 5)
    registry = patched.start()
    package.load("up")
    sys.modules["up.ops"] = ModuleType("up.ops")
    assert package.load("up.more").go() == 5
    assert registry.status()["f.ours"].state is State.PENDING


def test_a_patch_that_its_hook_lost_is_applied_with_the_next_one(package, plugin, patched, why) -> None:
    package.write("up.more", "def go():\n    return 1\n")

    def also(original):
        return 5

    plugin.features[0].wrap("up.more:go", retired_by=Never("a test"), **why)(also)
    registry = patched.start()
    package.load("up")
    remove_hook("up.ops", registry._hooks["up.ops", "after"])
    module = package.load("up.ops")
    assert registry.status()["f.ours"].state is State.FAILED
    package.load("up.more")
    assert registry.status()["f.ours"].state is State.APPLIED
    assert module.run() == 10


def test_a_guard_whose_module_came_first_has_failed(package, plugin, why) -> None:
    package.write("up.ops", "def run():\n    return 1\n")
    package.load("up.ops")
    plugin.feature("f").guard("up.ops:run", retired_by=Never("a test"), **why)(lambda: None)
    (verdict,) = plugin.start().status().values()
    assert verdict.state is State.FAILED


def test_overwritten_is_said_only_as_long_as_it_is_so(package, patched, monkeypatch) -> None:
    registry = patched.start()
    module = package.load("up.ops")
    with monkeypatch.context() as mock:
        mock.setattr(module, "run", len)
        assert registry.states() == {"f": State.OVERWRITTEN}
    assert registry.states() == {"f": State.APPLIED}


def over_by_wrapt(module: ModuleType, name: str = "run") -> None:
    wrapt.wrap_function_wrapper(module, name, lambda wrapped, instance, args, kwargs: ("theirs", wrapped(*args)))


def over_by_functools(module: ModuleType) -> None:
    module.run = around().passes(module.run)


@pytest.mark.parametrize(
    ("over", "named", "called"),
    [
        (over_by_wrapt, f"{__name__}.<lambda>", ("theirs", 10)),
        (over_by_functools, "user_around.inner", 10),
    ],
)
def test_within_somebodys_wrapper_it_is_applied_and_taken_back_it_passes_on(
    package, plugin, patched, over, named: str, called
) -> None:
    registry = patched.start()
    module = package.load("up.ops")
    over(module)
    theirs = module.run
    (verdict,) = registry.status().values()
    assert (verdict.state, verdict.reason.endswith(f"within {named}")) == (State.APPLIED, True), verdict.reason
    assert module.run() == called
    registry.deactivate()
    assert module.run is theirs
    assert module.run() == (("theirs", 1) if isinstance(called, tuple) else 1)
    (line,) = plugin.reported
    assert line.endswith(f"but a wrapper that now calls upstream stays in up.ops.run within {named}")
    (verdict,) = registry.status().values()
    assert verdict.state is State.OFF
    registry.activate()
    assert registry.states() == {"f": State.APPLIED}
    registry.deactivate()
    assert module.run is theirs


@pytest.mark.parametrize(
    ("target", "call"),
    [
        ("plain", "plain(2)"),
        ("awaited", "asyncio.run(awaited(2))"),
        ("cached", "cached(2)"),
        ("generated", "list(generated(2))[0]"),
        ("K.once", "K().once"),
        ("K.walk", "list(K().walk(2))[0]"),
    ],
)
@pytest.mark.parametrize("action", ["wrap", "replace"])
def test_whoever_took_a_patched_function_calls_upstreams_after_it_was_taken_back(
    package, plugin, why, target: str, call: str, action: str
) -> None:
    package.write("up.ops", f"import asyncio\n{KINDS}")

    def ours(*args, default=-1):
        return default

    getattr(plugin.feature("f"), action)(f"up.ops:{target}", retired_by=Never("a test"), **why)(ours)
    registry = plugin.start()
    module = package.load("up.ops")
    assert registry.states() == {"f": State.APPLIED}
    taken = {name: getattr(module, name) for name in vars(module)}
    member = vars(module.K).get(target.partition(".")[2])
    registry.deactivate()
    if member is not None:
        module.K = type("K", (module.K,), {target.partition(".")[2]: member})
        taken["K"] = module.K
    assert eval(call, taken) == (1 if target == "K.once" else 2)


def test_what_is_patched_can_be_sent_to_another_process_before_and_after(package, patched) -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    registry = patched.start()
    module = package.load("up.ops")
    taken = module.run
    cloudpickle.register_pickle_by_value(module)
    try:
        assert pickle.loads(cloudpickle.dumps(taken))() == 10
        registry.deactivate()
        assert pickle.loads(cloudpickle.dumps(taken))() == 1
    finally:
        cloudpickle.unregister_pickle_by_value(module)


HOLDERS = {
    "a dict": ("TABLE = {'run': run}", "up.user.TABLE['run']"),
    "a list": ("TABLE = [run]", "up.user.TABLE[0]"),
    "a class body": ("class K:\n    go = run", "up.user.K.go"),
    "a staticmethod": ("class K:\n    go = staticmethod(run)", "up.user.K.go"),
    "a partial": ("import functools\ngo = functools.partial(run)", "up.user.go (partial)"),
    "a default": ("def go(f=run): ...", "up.user.go (default)"),
    "a closure": (
        "def make(f):\n    def inner(): return f()\n    return inner\ngo = make(run)",
        "up.user.go (closure)",
    ),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_copy_that_cannot_be_rebound_is_named(package, patched, holder: str) -> None:
    source, where = HOLDERS[holder]
    package.write("up.user", f"from up.ops import run\n{source}\n")
    package.load("up.user")
    registry = patched.start()
    (verdict,) = registry.status().values()
    assert verdict.state is State.APPLIED
    assert verdict.reason.endswith(f"these copies stay upstream's: {where}")
    assert sys.modules["up.user"].run is sys.modules["up.ops"].run


def test_a_value_is_followed_into_the_init_of_a_package(package, plugin, why) -> None:
    package.write("up.part.ops", "import sys\nFAST = bool(sys)\n")
    package.write("up.part.__init__", "from .ops import FAST\n")
    package.load("up.part")
    plugin.feature("f").set("up.part.ops:FAST", retired_by=Never("a test"), **why)(lambda value: "ours")
    plugin.start()
    assert sys.modules["up.part"].FAST == "ours"


# The target becomes another object while its own lines stay as they are. The check reads the source to the module's
# end. Assignments by another module are seen when the patch is applied, by the object that is there. Changes that
# neither sees are in here, too.

MODEL = """
class Base:
    pass

class Model(Base):
    def step(self, batch):
        return batch
"""
DECORATORS = """
import functools

def kept(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner

def bare(function):
    def inner(*args):
        return function(*args)
    return inner
"""
CHANGED = {
    "another base class": MODEL.replace("Model(Base)", "Model(dict)"),
    "a decorator that keeps the name": DECORATORS + MODEL.replace("    def step", "    @kept\n    def step"),
    "a decorator that does not": DECORATORS + MODEL.replace("    def step", "    @bare\n    def step"),
    "setattr at the end": MODEL + "\nsetattr(Model, 'step', lambda self, batch: None)\n",
    "assigned at the end": MODEL + "\ndef other(self, batch):\n    return None\nModel.step = other\n",
    "defined again under an if": MODEL + "\n    if True:\n        def step(self, batch):\n            return None\n",
    "other parameters under an if": MODEL
    + "\n    if True:\n        def step(self, *rows):\n            return None\n",
    "deleted at the end": MODEL + "\ndel Model.step\n",
    "assigned by another module": MODEL + "\nimport up.meddler\n",
}
CHECK, APPLICATION, NEITHER = State.DRIFTED, State.FAILED, State.APPLIED
SEEN = {
    # The method itself is the same, and is called the same way.
    ("another base class", "replace"): NEITHER,
    ("another base class", "wrap"): NEITHER,
    ("a decorator that keeps the name", "replace"): CHECK,
    ("a decorator that keeps the name", "wrap"): CHECK,
    ("a decorator that does not", "replace"): CHECK,
    ("a decorator that does not", "wrap"): CHECK,
    ("setattr at the end", "replace"): CHECK,
    ("setattr at the end", "wrap"): CHECK,
    ("assigned at the end", "replace"): CHECK,
    ("assigned at the end", "wrap"): CHECK,
    ("defined again under an if", "replace"): CHECK,
    # The wrapper calls whichever of the two it finds: they are called the same way.
    ("defined again under an if", "wrap"): NEITHER,
    ("other parameters under an if", "replace"): CHECK,
    ("other parameters under an if", "wrap"): CHECK,
    ("deleted at the end", "replace"): CHECK,
    ("deleted at the end", "wrap"): CHECK,
    ("assigned by another module", "replace"): APPLICATION,
    ("assigned by another module", "wrap"): APPLICATION,
}


@pytest.mark.parametrize(("change", "action"), SEEN, ids=[" - ".join(case) for case in SEEN])
def test_a_disguise_is_seen_where_it_is_said_to_be(change: str, action: str, package, plugin, why) -> None:
    package.write("up.ops", MODEL)
    package.write("up.meddler", "import sys\nsys.modules['up.ops'].Model.step = lambda self, batch: None\n")

    def step(*args: object) -> str:
        return "ours"

    getattr(plugin.feature("f"), action)("up.ops:Model.step", retired_by=Never("a test"), **why)(step)
    registry = plugin.start_on("up.ops", CHANGED[change])
    before = registry.status()["f.step"].state
    package.load("up.ops")
    after = registry.status()["f.step"].state
    seen = SEEN[change, action]
    assert (before is State.DRIFTED) is (seen is CHECK)
    assert after is seen
