"""Names that torch_npu has and the virtual Ascend does not: they exist, and say so when they are used."""

from __future__ import annotations

from collections.abc import Container
from typing import NoReturn

from verl_npu import environment
from verl_npu.virtual import names
from verl_npu.virtual.settings import Settings


class Unimplemented:
    """Stands for one name; calling it raises."""

    __slots__ = ("__name__",)

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_args: object, **_options: object) -> NoReturn:
        name = environment.VIRTUAL.name
        raise NotImplementedError(f"{self.__name__} is not implemented by the virtual Ascend ({name} is set)")

    def __or__(self, _other: object) -> Unimplemented:
        """Return itself: in an annotation, `torch.npu.NPUGraph | None` names a type and uses none."""
        return self

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<{self.__name__}: not implemented by the virtual Ascend>"


def not_implemented(name: str) -> Unimplemented:
    """A callable that raises NotImplementedError with `name`."""
    return Unimplemented(name)


def missing(module: str, written: Container[str]) -> dict[str, Unimplemented]:
    """The public names that a module of the pretended torch_npu has, and that are not in `written`."""
    offered = names.of_module(module, Settings.read().torch_npu_version)
    return {name: not_implemented(f"{module}.{name}") for name in offered if name not in written}
