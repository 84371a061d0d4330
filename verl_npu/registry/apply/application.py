"""Patches on their way into modules: prepared without changing anything, then written feature by feature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType

from ...errors import ApplyError
from ..patch import Patch
from ..source.tree import SourceTree
from .binding import Binding
from .copies import all_modules, find_copies, modules_since
from .live import check_live
from .replacement import build
from .slot import Slot, find_slot

__all__ = ["Application"]

Trusted = Callable[[Patch, object], bool]
"""Whether an object is taken as it is, although it may not be the one that the source defines."""


class Application:
    """What is about to be applied to some modules."""

    @dataclass(slots=True)
    class Prepared:
        """What one feature is about to write, or what keeps it from that."""

        bindings: list[Binding] = field(default_factory=list)
        copies: Mapping[str, Sequence[Slot]] = field(default_factory=dict)
        failed: Patch | None = None
        failure: BaseException | None = None

        def write(self, binding: Binding) -> None:
            """Write one patch and its copies. Raises ApplyError if the target does not hold it afterwards."""
            if binding.writes and binding.in_force():
                return
            binding.write([binding.slot])
            earlier = binding.earlier
            if earlier is not None:
                _take_over(earlier, binding)
            binding.write(self.copies.get(binding.patch.id, ()))
            if not binding.in_force():
                raise ApplyError(
                    subject=f"patch {binding.patch.id}",
                    expected=f"{binding.patch.target} to be ours after writing it",
                    found=f"{binding.slot.read()!r}"[:200],
                    fix="another package guards this attribute: load only one of the two",
                )

    def __init__(
        self,
        tree: SourceTree,
        bindings: Mapping[str, Binding],
        modules: Mapping[str, ModuleType],
        executed: Mapping[str, ModuleType],
    ) -> None:
        """`bindings` are in force, `modules` are to be patched, and `executed` are those that have just been executed:
        copies of what is in them can be in few other modules."""
        self._tree = tree
        self._bindings = bindings
        self._modules = modules
        self._executed = executed

    def prepare(self, wanted: Mapping[str, Sequence[Patch]], trusted: Trusted) -> dict[str, Prepared]:
        """Make what will be written, by feature. Nothing is changed; what goes wrong is kept in the result."""
        prepared = {name: self._prepared(patches, trusted) for name, patches in wanted.items()}
        fresh = [b for p in prepared.values() if p.failure is None for b in p.bindings if not b.writes]
        copies = find_copies(fresh, self._holders(), self._tree) if fresh else {}
        for one in prepared.values():
            one.copies = copies
        return prepared

    def _prepared(self, patches: Sequence[Patch], trusted: Trusted) -> Prepared:
        prepared = self.Prepared()
        for patch in patches:
            try:
                prepared.bindings.append(self._binding(patch, trusted))
            except BaseException as error:
                prepared.failed, prepared.failure = patch, error
                break
        return prepared

    def _binding(self, patch: Patch, trusted: Trusted) -> Binding:
        module = self._modules[patch.target.module]
        slot = find_slot(module, patch.target)
        made = self._bindings.get(patch.id)
        if made is not None and made.slot == slot and made.in_force():
            # A reload executes the module in its old namespace, so a name that we added is still there.
            return made
        before = slot.read()
        if not trusted(patch, before):
            check_live(patch, slot, self._tree, module)
        return Binding(patch, slot, before, build(patch, before, slot), earlier=made)

    def _holders(self) -> list[ModuleType]:
        """The modules that may hold copies of what is about to be replaced."""
        if len(self._executed) != len(self._modules) or not self._executed:
            return list(all_modules())
        found: dict[int, ModuleType] = {}
        for module in self._executed.values():
            initializing = getattr(getattr(module, "__spec__", None), "_initializing", False)
            for other in modules_since(module) if initializing else all_modules():
                found[id(other)] = other
        return list(found.values())


def _take_over(earlier: Binding, binding: Binding) -> None:
    """After a reload, point the copies of the outdated object at the new one, so that a rollback finds them."""
    outdated = [write.slot for write in earlier.writes if write.slot.read() is earlier.after]
    same_target = earlier.slot == binding.slot
    binding.take_over([slot for slot in outdated if slot != earlier.slot])
    if same_target:
        # The module was executed again in its old namespace: what the outdated binding had replaced is gone.
        binding.earlier = earlier.earlier
