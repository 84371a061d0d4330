"""Targets that are no plain functions keep what they can do when they are wrapped."""

from __future__ import annotations

import functools
import inspect
import pickle

import pytest

from verl_npu.registry.source.probe import Never
from verl_npu.registry.state import State

SOURCE = """
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
    @staticmethod
    def still(x=1): return x
    @classmethod
    def of(cls, x=1): return x
    @property
    def name(self): return 1
"""


@pytest.fixture
def wrapped(package, plugin, why):
    """Wrap a target so that its numbers are ten times as large, and give the module."""

    def wrap(target: str):
        package.write("up.ops", SOURCE)

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


def test_a_generator_function_stays_one(wrapped) -> None:
    module = wrapped("generated")
    assert inspect.isgeneratorfunction(module.generated)
    assert list(module.generated(2)) == [20]


def test_a_generator_method_stays_one(wrapped) -> None:
    module = wrapped("K.walk")
    assert inspect.isgeneratorfunction(module.K.walk)
    assert list(module.K().walk(2)) == [20]
    assert list(module.K.walk(module.K(), 2)) == [20]


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


@pytest.mark.parametrize(("target", "call"), [("K.still", "K.still(2)"), ("K.of", "K.of(2)"), ("K.name", "K().name")])
def test_descriptors_stay_what_they_are(wrapped, target: str, call: str) -> None:
    module = wrapped(target)
    assert eval(call, vars(module)) in (10, 20)


def test_a_class_cannot_be_wrapped_and_the_error_says_so(package, plugin, why) -> None:
    package.write("up.ops", SOURCE)
    plugin.feature("f").wrap("up.ops:K", retired_by=Never("a test"), **why)(lambda original: original)
    registry = plugin.start()
    module = package.load("up.ops")
    (verdict,) = registry.status().values()
    assert verdict.state is State.FAILED
    assert "the class K: replace it instead" in verdict.reason
    assert isinstance(module.K, type)


def test_the_default_of_a_dataclass_is_refused_since_new_objects_would_not_have_it(package, plugin, why) -> None:
    package.write("up.ops", "from dataclasses import dataclass\n\n@dataclass\nclass Config:\n    size: int = 1\n")
    plugin.feature("f").set("up.ops:Config.size", retired_by=Never("a test"), **why)(lambda value: 2)
    registry = plugin.start()
    module = package.load("up.ops")
    (verdict,) = registry.status().values()
    assert verdict.state is State.FAILED
    assert "the default of a dataclass's field" in verdict.reason
    assert (module.Config.size, module.Config().size) == (1, 1)
