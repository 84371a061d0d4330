"""The arguments that functions give to the kernels that they launch."""

from __future__ import annotations

import ast

import pytest
from verl_npu_workbench.kernels.inside.launchers import CONDITION, Known, Launch, Typed, launches

PARAMETERS = ["x", "y", "n", "WIDTH", "FLAG"]


def launch(body: str, **globals_: object) -> Launch:
    """Return the one launch of a function with this body."""
    source = "def launch(a, b=None, size=64):\n" + "\n".join(f"    {line}" for line in body.splitlines())
    (found,) = launches(ast.parse(source), {"kernel": PARAMETERS}, globals_)["kernel"]
    return found


@pytest.mark.parametrize(
    ("body", "name", "known"),
    [
        ("kernel[g](a, WIDTH=4)", "WIDTH", Known(4)),
        ("WIDTH = size * 2\nkernel[g](a, WIDTH=WIDTH)", "WIDTH", Known(128, False)),
        ("kernel[g](a, WIDTH=SIDE)", "WIDTH", Known(8)),
        ("w, _ = 4, 5\nkernel[g](a, WIDTH=w)", "WIDTH", Known(4)),
        ("kernel[g](a, WIDTH=triton.next_power_of_2(100))", "WIDTH", Known(128)),
        ("kernel[g](a, WIDTH=min(triton.next_power_of_2(a.shape[0]), 8192))", "WIDTH", Known(8192, False)),
        ("w = 512 if a.dim > 3 else 256\nt = 1 if w == 512 else 48\nkernel[g](a, WIDTH=t)", "WIDTH", Known(1, False)),
        ("if a > 3:\n    w = 8\nelse:\n    w = 16\nkernel[g](a, WIDTH=w)", "WIDTH", Known(8, False)),
        ("w = 4\nif a:\n    w = 8\n    return\nkernel[g](a, WIDTH=w)", "WIDTH", Known(4)),
        ("if b is None:\n    return\nkernel[g](a, WIDTH=4)", "WIDTH", Known(4)),
        ("w = 4\nfor w in a:\n    w = 8\nkernel[g](a, WIDTH=w)", "WIDTH", Known(8, False)),
        ("kernel[g](a, FLAG=b is not None)", "FLAG", Known(False, False)),
        ("kernel[g](a, FLAG=a in ['x'])", "FLAG", Known(Typed(CONDITION), False)),
        ("a = a.to(torch.float32)\nkernel[g](a.contiguous())", "x", Known(Typed("fp32"))),
        ("a = a.float()\no = torch.empty_like(a)\nkernel[g](a, o)", "y", Known(Typed("fp32"))),
        ("o = torch.zeros(4, dtype=torch.int64)\nkernel[g](a, o)", "y", Known(Typed("i64"))),
        ("if a.big:\n    a = a.float()\nkernel[g](a)", "x", Known(Typed("fp32"), False)),
        ("kernel[g](a, a, 0.5)", "n", Known(0.5)),
    ],
)
def test_what_constants_and_casts_tell_is_known(body: str, name: str, known: Known) -> None:
    assert launch(body, SIDE=8).given[name] == known


@pytest.mark.parametrize(
    "body", ["kernel[g](*a, 4)", "w, _ = a.shape\nkernel[g](a, WIDTH=w)", "kernel[g](a, WIDTH=a % 0)"]
)
def test_what_they_do_not_tell_is_not(body: str) -> None:
    assert launch(body).given == {}


def test_what_is_no_parameter_is_an_option() -> None:
    found = launch("kernel[g](a, WIDTH=4, multibuffer=False, num_warps=8, other=a)")
    assert found.options == {"multibuffer": False, "num_warps": 8}


def test_all_launches_are_found_wherever_they_are() -> None:
    source = """
class Function:
    @staticmethod
    def forward(ctx, x):
        def inner():
            kernel[(1,)](x, WIDTH=1)
        if HAS:
            return kernel[(1,)](x, WIDTH=2)
        with stream:
            module.kernel[(1,)](x, WIDTH=3)

if True:
    def other(x):
        kernel[(1,)](x, WIDTH=4)
"""
    found = launches(ast.parse(source), {"kernel": PARAMETERS}, {"HAS": False})["kernel"]
    assert sorted(str(each.given["WIDTH"].value) for each in found) == ["1", "2", "3", "4"]
