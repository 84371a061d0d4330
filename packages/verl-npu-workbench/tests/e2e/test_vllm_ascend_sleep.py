"""Sleep, wake, update, abort and generate in any order, by the real vllm-ascend on virtual NPUs.

The tokens are right, or an error says what is wrong; and the NPU's memory is freed and comes back. It runs where
VERL_NPU_VLLM_ASCEND is set, as tests/e2e/test_vllm_ascend.py does. One engine takes all orders.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .serving import Served, served

pytestmark = pytest.mark.e2e

ORDERS = 36
TAGS = ("weights", "kv_cache")
SLACK = 1 << 20
"""The bytes that may be in use besides: memory of a failed forward pass stays until the next one."""
NOT_MAPPED = "RuntimeError: NPU function error: the memory at "
TWICE = "RuntimeError: the memory at "


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from served("qwen2", tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from served("qwen3_moe", tmp_path_factory.mktemp("experts"))


class Model:
    """A model of vLLM's promises; each step does the same to the engine and compares."""

    def __init__(self, engine: Served) -> None:
        self.engine = engine
        self.weights: str | None = None  # None: unknown, or discarded
        self.asleep: set[str] = set()
        self.begun = False
        self.recover()

    def tell(self, do: str, error: str | None = None, **options: object) -> dict[str, Any]:
        """Send the engine a request; it must end with this error, or with none, and hold the memory that is awake."""
        found = self.engine.tell(do, **options)
        said = found["error"]
        assert said == error if error is None or said is None else said.startswith(error), (do, options, self.__dict__)
        start = self.engine.start
        held = start["used"] - sum(start["pools"][tag] for tag in self.asleep)
        assert abs(found["used"] - held) < SLACK, (do, options, found["used"], held)
        return found

    def sleep(self, level: int) -> None:
        # An engine that sleeps in part is left as it is.
        if not self.asleep:
            self.asleep = set(TAGS)
            self.weights = None if level == 2 else self.weights
        self.tell("sleep", level=level)

    def wake(self, tags: list[str] | None) -> None:
        if not self.asleep or (tags is not None and not set(tags) <= self.asleep):
            self.tell("wake", tags=tags)  # nothing to wake: the engine says so in its log
        elif tags is None and self.asleep != set(TAGS):
            # vLLM wakes everything, although a part is awake. The engine stays as it is.
            self.tell("wake", TWICE, tags=None)
        else:
            self.asleep -= set(tags or TAGS)
            self.tell("wake", tags=tags)

    def update(self, to: str) -> None:
        error = NOT_MAPPED if "weights" in self.asleep else None
        self.tell("update", error, to=to)
        self.weights = self.weights if error else to

    def begin(self, steps: int) -> None:
        self.begun = True
        self.tell("begin", steps=0 if self.asleep else steps)

    def abort(self) -> None:
        self.begun = False
        self.tell("abort")

    def generate(self) -> None:
        if self.begun:
            self.abort()
        found = self.tell("generate", NOT_MAPPED if self.asleep else None)
        if self.asleep:
            return
        assert found["numbers"] is (self.weights is not None)  # discarded weights give no numbers
        if self.weights is not None:
            assert found["tokens"] == self.engine.start["expected"][self.weights]

    def recover(self) -> None:
        """Bring the engine from any state to one that is awake with known weights."""
        self.engine.tell("abort")
        for tag in TAGS:
            self.engine.tell("wake", tags=[tag])
        self.asleep = set()
        self.update("a")


STEPS = st.one_of(
    st.tuples(st.just("sleep"), st.sampled_from([1, 2])),
    st.tuples(st.just("wake"), st.sampled_from([None, ["weights"], ["kv_cache"], ["kv_cache", "weights"]])),
    st.tuples(st.just("update"), st.sampled_from(["a", "b"])),
    st.tuples(st.just("begin"), st.integers(0, 2)),
    st.tuples(st.just("abort")),
    st.tuples(st.just("generate")),
)


# Each falls asleep at least once, most of them not at the end.
SLEEPS = st.sampled_from([1, 2]).map(lambda level: [("sleep", level)])
ORDER = st.tuples(st.lists(STEPS, max_size=2), SLEEPS, st.lists(STEPS, min_size=2, max_size=6)).map(
    lambda parts: [step for part in parts for step in part]
)


def end(model: Model) -> None:
    """Bring the engine to a state in which it must answer, as its caller would, and let it answer."""
    for tag in sorted(model.asleep, reverse=True):
        model.wake([tag])
    if model.weights is None:
        model.update("b")
    model.generate()


@settings(
    max_examples=ORDERS,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(steps=ORDER)
def check_order(engine: Served, steps: list[tuple[Any, ...]]) -> None:
    model = Model(engine)
    for name, *arguments in steps:
        getattr(model, name)(*arguments)
    end(model)


def test_every_order_ends_with_right_tokens_or_an_error_that_says_what_is_wrong(dense: Served) -> None:
    check_order(dense)


def test_memory_is_free_for_others_while_it_sleeps(dense: Served) -> None:
    assert all(size > SLACK for size in dense.start["pools"].values())
    Model(dense)
    before = dense.tell("generate")
    asleep = dense.tell("sleep", level=1)
    dense.tell("wake", tags=["weights"])
    after = dense.tell("wake", tags=["kv_cache"])
    pools = sum(dense.start["pools"].values())
    assert (before["free"] - asleep["free"], before["free"] - after["free"]) == (-pools, 0)
    assert dense.tell("generate")["tokens"] == dense.start["expected"]["a"]


def test_prefixes_of_requests_in_flight_are_not_forgotten_by_sleep(dense: Served) -> None:
    """The reason why verl aborts first: vLLM keeps its cache while a request is not finished."""
    Model(dense)
    dense.tell("generate")
    dense.tell("begin", steps=2)
    dense.tell("sleep", level=1)
    dense.tell("wake", tags=["kv_cache", "weights"])
    dense.tell("abort")
    assert dense.tell("generate")["tokens"] == dense.start["expected"]["a"]


def test_experts_sleep_and_wake_as_they_were(experts: Served) -> None:
    """From 0.13.0 on this fails, because waking up transposes them once more: vllm-ascend#11548 and #12226."""
    for tags in (["weights", "kv_cache"], ["weights"], ["kv_cache"]):
        if tags != ["kv_cache"]:
            assert experts.tell("sleep", level=1)["error"] is None
        assert experts.tell("wake", tags=tags)["error"] is None
    found = experts.tell("generate")
    assert found["tokens"] == experts.start["expected"]["a"]


def test_new_experts_have_no_loader_unless_verl_brings_one(experts: Served) -> None:
    """Fixed in vllm-ascend#13012: transposing the experts makes new parameters, without their loader."""
    said = experts.tell("update", to="b")["error"]
    assert said == "AttributeError: 'Parameter' object has no attribute 'weight_loader'"
