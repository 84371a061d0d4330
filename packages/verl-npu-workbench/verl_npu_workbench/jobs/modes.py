"""The modes of verl's v1 trainer. Their names and assertions are read from verl's source."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from verl_npu.findings import Finding, error
from verl_npu.language import gettext as _
from verl_npu.registry.source.tree import SourceTree, Target

from .asserted import refused
from .keys import MODE
from .settings import Settings
from .values import section

_TRAINERS, _DECORATOR = "verl.trainer.ppo.v1", "register_trainer"
_CODE = "trainer-mode"


def mode_findings(module: str, settings: Settings, tree: SourceTree) -> Iterator[Finding]:
    """Yield the errors that verl's v1 trainer would raise in the mode that the script selects. `module` is the module
    that the script starts."""
    if module != "verl.trainer.main_ppo" or not settings.truth("trainer.use_v1"):
        return
    mode, known = settings.text(MODE), trainers(tree)
    if not known or not mode:
        return
    if mode not in known:
        why, names = _("verl has no trainer of that name"), _(", ").join(sorted(known))
        yield error(_CODE, mode, subject=MODE, why=why, fix=_("choose one of {names}").format(names=names))
        return
    for message in refused(known[mode], [section(settings)], tree):
        why = _("the trainer of this mode refuses the settings: {message}").format(message=" ".join(message.split()))
        yield error(_CODE, mode, subject=MODE, why=why, fix=_("change the settings that the error names"))


def trainers(tree: SourceTree) -> dict[str, Target]:
    """Return the trainer classes of verl's v1 trainer, by mode name."""
    found: dict[str, Target] = {}
    for module in tree.modules_below(_TRAINERS) if "verl" in tree else ():
        parsed = tree.parse(module)
        for node in parsed.body if parsed is not None else ():
            for each in node.decorator_list if isinstance(node, ast.ClassDef) else ():
                match each:
                    case ast.Call(
                        func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(text)), *_rest]
                    ) if name == _DECORATOR and isinstance(node, ast.ClassDef):
                        found[text] = Target(module, node.name)
    return found
