"""The record of a launch has everything that Triton 3.2 would tell the compiler, and is written to a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import cast

import pytest
from verl_npu_workbench.simulation import triton_launches
from verl_npu_workbench.simulation.triton_launches import Launch

from verl_npu import environment


class Pointer:
    """A tensor as Triton sees it."""

    def __init__(self, dtype: str, address: int = 64) -> None:
        self.dtype, self.address = f"torch.{dtype}", address

    def data_ptr(self) -> int:
        return self.address


def kernel(x, y, n, stride, scale, flag, out, seed: tl.int64, BLOCK: tl.constexpr) -> None:  # type: ignore[no-untyped-def] # noqa: F821
    """Take parameters of all kinds."""


ARGUMENTS: Mapping[str, object] = {
    "x": Pointer("bfloat16"),
    "y": Pointer("float32", 72),
    "n": 32,
    "stride": 1,
    "scale": 0.5,
    "flag": True,
    "out": None,
    "seed": 7,
    "BLOCK": 64,
}


def launch(**changed: object) -> Launch:
    return Launch(function=cast("FunctionType", kernel), arguments=ARGUMENTS, grid=(2, 1, 1), **changed)  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(environment.LAUNCHES.name, str(tmp_path / "launches.jsonl"))
    monkeypatch.setattr(triton_launches, "_seen", set())
    return tmp_path / "launches.jsonl"


def test_types_constants_and_what_is_told_of_integers_and_addresses() -> None:
    found = triton_launches.case(launch(options={"num_warps": 4, "stream": object()}))
    assert found["signature"] == {
        "x": "*bf16", "y": "*fp32", "n": "i32", "stride": "i32", "scale": "fp32", "flag": "i1",
        "out": "*i8", "seed": "i64"
    }  # fmt: skip
    assert found["constants"] == {"stride": 1, "out": None, "BLOCK": 64}
    assert (found["divisible"], found["ones"]) == (["x", "n"], ["stride"])
    assert found["options"] == {"num_warps": 4}


@pytest.mark.parametrize(
    ("value", "kind"),
    [(1 << 31, "i64"), (-(1 << 31), "i32"), (1 << 63, "u64"), (Pointer("int8"), "*i8")],
)
def test_the_type_follows_the_value(value: object, kind: str) -> None:
    assert triton_launches._type(value, const=False) == kind


def test_what_is_not_to_be_told_is_not_told() -> None:
    found = triton_launches.case(launch(unspecialized=("stride", "n"), unaligned=("x",)))
    assert (found["divisible"], found["ones"], found["constants"]) == ([], [], {"out": None, "BLOCK": 64})


def test_a_constant_that_cannot_be_written_down_says_so() -> None:
    changed = Launch(function=launch().function, arguments={"BLOCK": object()}, grid=(1,))
    assert "cannot be written as JSON: object" in str(triton_launches.case(changed)["why"])


def test_each_way_to_launch_a_kernel_is_one_line(file: Path) -> None:
    assert [triton_launches.record(launch()) for _ in range(3)] == [False] * 3
    triton_launches.record(launch(unaligned=("x",)))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [len(each["cases"]) for each in lines] == [1, 1]
    assert (lines[0]["kernel"], lines[0]["file"], lines[0]["grid"]) == ("kernel", __file__, [2, 1, 1])


def test_a_tuned_launch_is_one_line_with_all_its_configurations(file: Path) -> None:
    with triton_launches.collecting() as cases:
        assert triton_launches.record(launch())
        assert triton_launches.record(launch(options={"num_warps": 8}))
    assert not file.exists()
    with triton_launches.tuned(cases):
        assert not triton_launches.record(launch())
    (line,) = file.read_text().splitlines()
    assert [each["options"] for each in json.loads(line)["cases"]] == [{}, {"num_warps": 8}]


def test_nothing_is_written_unless_a_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(environment.LAUNCHES.name, raising=False)
    monkeypatch.chdir(tmp_path)
    assert not triton_launches.record(launch())
    assert not list(tmp_path.iterdir())
