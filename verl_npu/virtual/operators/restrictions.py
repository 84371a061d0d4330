"""What operators of earlier versions of torch_npu refuse, although their schemas are the same.

Seen on the wheels: schemas.json knows names and types only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from packaging.version import Version

__all__ = ["RESTRICTIONS", "Restriction", "of_operator"]

Given = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Restriction:
    """What an operator refuses in versions before the one that takes it."""

    operator: str
    before: str
    applies: Callable[[Given], bool]
    """Whether these arguments are refused."""
    message: str


RESTRICTIONS = (
    Restriction(
        "npu_grouped_matmul",
        "2.6",
        lambda given: given["group_type"] == 2,
        "Invalid value of group_type [2], which should only be one of -1/0.",
    ),
)


def of_operator(operator: str, version: str) -> tuple[Restriction, ...]:
    """Return what `operator` refuses in this version of torch_npu."""
    installed = Version(version)
    return tuple(each for each in RESTRICTIONS if each.operator == operator and installed < Version(each.before))
