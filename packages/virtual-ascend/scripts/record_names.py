"""Record which names the real torch_npu has, from its wheels, in names.json of virtual_ascend: the public ones of its
modules, its operators, and what its own Python takes from its compiled part, also where they begin with an underscore.

On the virtual Ascend a recorded name that is not implemented raises with its name; a name that is not recorded does
not exist.

    pip download --no-deps torch_npu==2.7.1 ...; python scripts/record_names.py torch_npu-*.whl
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import zipfile
from collections import Counter
from pathlib import Path

from packaging.version import Version
from virtual_ascend import names

LIBRARY = "torch_npu/lib/libtorch_npu.so"
COMPILED = "torch_npu._C"
# A schema's text in the library, and names in it; the linker may keep one as the end of a longer text.
OPERATOR = re.compile(rb"(?<=\0)([a-z_]\w*)(?:\.\w+)?\([\x20-\x7e]*\) -> [\x20-\x7e]+(?=\0)")
WHOLE = re.compile(rb"(?<=\0)(_[A-Za-z]\w*)(?=\0)")
ENDING = re.compile(rb"(?<!\w)(_[A-Za-z]\w*)(?=\0)")
# Beside an operator the library has its variants for symbolic sizes and for results of the caller's.
VARIANT = re.compile(r"(_out)?(_symint)?$")
# Takes a process group: an operator of `torch.ops.npu_custom_dist`, which torch_npu does not offer itself.
COLLECTIVE = b"torch.classes.npu_custom_dist"
# Modules whose `__all__` is their public face.
MODULES = {
    "torch_npu": "torch_npu/__init__.py",
    "torch_npu.distributed": "torch_npu/distributed/__init__.py",
    "torch_npu.npu": "torch_npu/npu/__init__.py",
    "torch_npu.npu._backends": "torch_npu/npu/_backends.py",
    "torch_npu.npu.autocast_utils": "torch_npu/npu/autocast_utils.py",
    "torch_npu.npu.backends": "torch_npu/npu/backends.py",
    "torch_npu.npu.npu_config": "torch_npu/npu/npu_config.py",
    "torch_npu.npu.memory": "torch_npu/npu/memory.py",
    "torch_npu.npu.utils": "torch_npu/npu/utils.py",
    "torch_npu.optim": "torch_npu/optim/__init__.py",
    "torch_npu.utils": "torch_npu/utils/__init__.py",
}


def public(source: str) -> set[str]:
    """What a module's `__all__` lists."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return set(ast.literal_eval(node.value))
    return set()


def compiled(source: str) -> set[str]:
    """The names that a module of the wheel takes from the compiled part."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:  # templates of Python files, and files for a newer Python
        return set()
    imported = (node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == COMPILED)
    read = (node for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == COMPILED)
    return {alias.name for node in imported for alias in node.names} | {node.attr for node in read}


def taken(wheel: Path) -> set[str]:
    """The names that the Python of one wheel takes from its compiled part."""
    with zipfile.ZipFile(wheel) as archive:
        paths = [name for name in archive.namelist() if name.startswith("torch_npu/") and name.endswith(".py")]
        return {name for path in paths for name in compiled(archive.read(path).decode())}


def methods(library: bytes, asked: set[str], asked_here: set[str], operators: set[str]) -> set[str]:
    """The names of the compiled part: those in the library that say so, or that the Python of wheels asks for."""
    whole, ending = ({name.decode() for name in kind.findall(library)} for kind in (WHOLE, ENDING))
    named = {name for name in whole if name.startswith("_npu_")} | (whole & asked) | (ending & asked_here)
    return {name for name in named if VARIANT.sub("", name) not in operators}


def found(wheel: Path, asked: set[str]) -> dict[str, set[str]]:
    """The names of each module in one wheel."""
    with zipfile.ZipFile(wheel) as archive:
        library = archive.read(LIBRARY)
        inside = set(archive.namelist())
        by_module = {m: public(archive.read(path).decode()) for m, path in MODULES.items() if path in inside}
    for starred in ("_backends", "autocast_utils", "backends", "npu_config"):
        by_module["torch_npu.npu"] |= by_module.pop(f"torch_npu.npu.{starred}", set())
    schemas = (match for match in OPERATOR.finditer(library) if COLLECTIVE not in match[0])
    operators = {match[1].decode() for match in schemas}
    by_module["torch_npu"] |= operators
    by_module[COMPILED] = methods(library, asked, taken(wheel), operators)
    return by_module


def main() -> None:
    """Write the file: for each name, the first version that has it, the next that lacks it, and so on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL", help="one wheel of each version")
    wheels = parser.parse_args().wheels
    # One wheel's Python may ask for what is no longer there, and not for what is; two do not agree on it by accident.
    askers = Counter(name for wheel in wheels for name in taken(wheel))
    asked = {name for name, number in askers.items() if number > 1}
    by_version = {Version(wheel.name.split("-")[1]): found(wheel, asked) for wheel in wheels}
    recorded: dict[str, dict[str, list[str]]] = {}
    for version in sorted(by_version):
        for module in {*by_version[version], *recorded}:
            now = by_version[version].get(module, set())
            spans = recorded.setdefault(module, {})
            for name in now | spans.keys():
                changes = spans.setdefault(name, [])
                if (name in now) is not (len(changes) % 2 == 1):
                    changes.append(str(version))
    text = {m: {name: " ".join(spans[name]) for name in sorted(spans)} for m, spans in sorted(recorded.items())}
    names.RECORDED.write_text(json.dumps(text, indent=1) + "\n")
    print(f"{names.RECORDED}: {sum(map(len, text.values()))} names")


if __name__ == "__main__":
    main()
