"""What our own source says of vLLM and vllm-ascend: names that it imports, reads, looks up by a text, or types."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[3] / "verl_npu"
TABLE = PACKAGE / "features" / "engine_names"
READERS = PACKAGE / "features" / "weight_sync"
"""Where objects of the two are read; elsewhere, `getattr` is about other packages' objects."""

MODULE = re.compile(r"(vllm|vllm_ascend)(\.\w+)+|vllm_ascend")
VARIABLE = re.compile(r"VLLM_[A-Z0-9_]+")
MENTION = re.compile(r"\bvLLM\b|\bvllm-ascend\b|\bLLM\b")
ATTRIBUTE = re.compile(r"[A-Za-z_]\w*")

OF_TORCH = {
    "named_parameters",
    "named_modules",
    "modules",
    "register_forward_pre_hook",
    "remove",
    "weight",
    "full_tensor",
}
"""Members of torch's own classes, which vLLM's models and layers are."""

Use = tuple[str, str]
"""One of our modules, and the word that it uses."""


def modules() -> dict[str, ast.Module]:
    """Our modules by name, without the one of the names."""
    paths = (path for path in PACKAGE.rglob("*.py") if TABLE not in path.parents)
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
            path.read_text()
        )
        for path in paths
    }


def uses() -> set[Use]:
    """All uses."""
    return {(module, word) for module, tree in modules().items() for word in used(module, tree)}


def used(module: str, tree: ast.Module) -> Iterator[str]:
    """The words that one module uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in ("vllm", "vllm_ascend"))
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module is not None:
            if node.module.partition(".")[0] in ("vllm", "vllm_ascend"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in ("vllm", "vllm_ascend"):
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if MODULE.fullmatch(node.value) or VARIABLE.fullmatch(node.value):
                yield node.value
        elif isinstance(node, ast.ClassDef):
            yield from members(node, ast.get_docstring(tree) or "")
    if module.startswith("verl_npu.features.weight_sync."):
        yield from looked_up(module, tree)


def members(node: ast.ClassDef, about: str) -> Iterator[str]:
    """The members of a protocol that is about an object of the two."""
    is_protocol = any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)
    if not is_protocol or not MENTION.search(f"{about} {ast.get_docstring(node) or ''}"):
        return
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            name = item.name
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            name = item.target.id
        else:
            continue
        if name not in OF_TORCH:
            yield name


def looked_up(module: str, tree: ast.Module) -> Iterator[str]:
    """Attributes that are looked up by a text, and in the modules of the engines the texts of constants."""
    nodes: list[ast.AST] = [
        node.args[1]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
    ]
    if module.startswith("verl_npu.features.weight_sync.engines."):
        nodes += [
            inner
            for node in tree.body
            if isinstance(node, ast.Assign)
            and not (isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__")
            for inner in ast.walk(node.value)
        ]
    for node in nodes:
        word = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if ATTRIBUTE.fullmatch(word) and not word.startswith("_verl_npu") and word not in OF_TORCH:
            yield word
