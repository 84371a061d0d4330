"""Names that torch_npu has and the virtual Ascend does not: they exist, and say so when they are used."""

from __future__ import annotations

from collections.abc import Container
from typing import NoReturn

from packaging.version import Version
from virtual_ascend import names, variables
from virtual_ascend.settings import Settings

# Public names that no `__all__` of the wheels has, by the first version that has them.
_UNLISTED = {
    "torch_npu": {"Format": "2.5.1.post1"},
    "torch_npu.npu": {"ipc_collect": "2.7.1"},
    "torch_npu.npu.utils": {"ipc_collect": "2.7.1"},
    "torch_npu.profiler": {"HostSystem": "2.5.1.post1"},
}


class Unimplemented:
    """Stands for one name; calling it raises."""

    __slots__ = ("__name__",)

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_args: object, **_options: object) -> NoReturn:
        name = variables.NPUS.name
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


class Absent:
    """Takes the place of a member that a class inherits here, and does not have in the pretended version."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self._name!r}")


def is_older_than(version: str) -> bool:
    """Tell whether the pretended torch_npu comes before `version`."""
    return names.release(Settings.read().torch_npu_version) < Version(version)


def leave_out(module: str, content: dict[str, object], public: list[str]) -> list[str]:
    """Take the names that only other versions have out of a module; return those of `public` that stay."""
    newer = [name for name, since in _UNLISTED.get(module, {}).items() if is_older_than(since)]
    for name in (*names.outside(module, Settings.read().torch_npu_version), *newer):
        content.pop(name, None)
    return [name for name in public if name in content]


def missing(module: str, written: Container[str]) -> dict[str, Unimplemented]:
    """The public names that a module of the pretended torch_npu has, and that are not in `written`."""
    offered = names.of_module(module, Settings.read().torch_npu_version)
    return {name: not_implemented(f"{module}.{name}") for name in offered if name not in written}
