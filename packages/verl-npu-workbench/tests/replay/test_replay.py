"""A bundle is replayed on the virtual Ascend, and the differences there are found."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from verl_npu_workbench.prove.bundle import Proof
from verl_npu_workbench.prove.corpus import Kind, Other, compared, in_both

from .__main__ import HARMLESS
from .running import OURS, made, wheel

pytestmark = [
    pytest.mark.virtual,
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch"),
    pytest.mark.nightly(
        "verl_npu_workbench/prove",
        "packages/virtual-ascend/virtual_ascend",
        "tests/replay",
    ),
]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Proof:
    return made(tmp_path_factory.mktemp("ours"), OURS)


@pytest.fixture(scope="module")
def wheels(torch_npu: Path, tmp_path_factory: pytest.TempPathFactory) -> Proof:
    return made(tmp_path_factory.mktemp("recorded"), wheel(torch_npu))


def test_a_bundle_of_our_own_device_is_what_our_own_device_does(ours: Proof, tmp_path: Path) -> None:
    again = made(tmp_path, OURS)
    assert in_both(ours.corpus, again.corpus) > 200
    assert list(compared(ours.corpus, again.corpus)) == []


def test_a_device_that_is_patched_otherwise_is_found(ours: Proof, tmp_path: Path) -> None:
    changed = made(tmp_path, {**OURS, "VIRTUAL_ASCEND_FAULTS": "fail:operator=npu_swiglu"}, ("operators",))
    found = [each for each in compared(ours.corpus, changed.corpus) if each.how not in HARMLESS]
    assert {(each.name, each.how) for each in found} == {("npu_swiglu", Other.REFUSES)}


def test_our_own_device_and_the_wheel_differ_only_as_is_known(ours: Proof, wheels: Proof) -> None:
    operators = [each for each in wheels.corpus if each.key.kind is Kind.OPERATOR]
    found = [each for each in compared(operators, ours.corpus) if each.how not in HARMLESS]
    assert {(each.name, each.case, each.how) for each in found} == KNOWN


KNOWN: set[tuple[str, str, Other]] = {
    ("layer_norm", "float16", Other.ANSWERS),
    ("layer_norm", "bfloat16", Other.ANSWERS),
    ("bincount", "int64", Other.ANSWERS),
}
"""The operators and cases that our own device answers and the wheel over the stub CANN refuses. An NPU computes these:
the stub has no layer_norm with statistics of another type, and passes bincount an invalid largest number."""


def test_the_wheels_allocator_takes_more_memory_as_is_known(ours: Proof, wheels: Proof) -> None:
    memory = [each for each in wheels.corpus if each.key.kind is Kind.MEMORY and each.key.name == "empty"]
    figures = {each.key.case: each.figures for each in memory}
    assert figures, "the device's stage has written no memory down"
    # It adds 32 bytes to each request, and takes memory from CANN in blocks of 2 and of 20 MiB.
    assert figures["512 B"] == {"allocated": 1024, "reserved": 2 << 20}
    assert figures["1048576 B"] == {"allocated": (1 << 20) + 512, "reserved": 20 << 20}
    found = [each for each in compared(memory, ours.corpus) if each.how is Other.MEMORY]
    assert len(found) == 9
