"""Writes the workbench's diagnosis/classes.json: the class names by which the diagnosis finds the owner of an error.

python scripts/maintain/class_names.py OWNER=FOLDER …

OWNER is engine, verl, training, swift, or torch_npu. Any other OWNER only excludes the names in its folder from the
others. A name that several owners have is left out.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import verl_npu_workbench

# The scripts are not an installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from maintain.section import options, rewrite

FILE = Path(verl_npu_workbench.__file__).with_name("diagnosis") / "classes.json"
OWNERS = ("engine", "verl", "training", "swift", "torch_npu")
_ENGINE = "vllm"
_NO_WORD = re.compile(r"(?=.{8})(?!_).*[a-z][A-Z]|(?=.{8})[A-Z]{2,}[a-z]")
"""Matches names that are not English words: `KVCacheSpec`, not `Message`."""


def classes(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the classes that a folder defines, and those that it imports from vllm, with the owner `engine`."""
    for file in folder.rglob("*.py"):
        if {"test", "tests"} & set(file.parts):
            continue
        try:
            tree = ast.parse(file.read_text(encoding="utf-8-sig", errors="replace"))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield node.name, ""
            elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == _ENGINE:
                yield from ((alias.name, "engine") for alias in node.names if alias.name[:1].isupper())


def owned(folders: dict[str, list[Path]]) -> dict[str, list[str]]:
    """Return for each owner the names that no other owner has."""
    found: dict[str, set[str]] = {owner: set() for owner in (*OWNERS, *folders)}
    for owner, places in folders.items():
        for place in places:
            for name, other in classes(place):
                found[other or owner].add(name)
    counts = Counter(name for names in found.values() for name in names)
    return {
        owner: sorted(name for name in found[owner] if counts[name] == 1 and _NO_WORD.match(name)) for owner in OWNERS
    }


def main() -> int:
    """Write the names of the folders on the command line, or check them."""
    parser = options(__doc__)
    parser.add_argument("folders", nargs="+", metavar="OWNER=FOLDER", help="an owner, and a folder of its source")
    asked = parser.parse_args()
    given: dict[str, list[Path]] = {}
    for word in asked.folders:
        owner, _, folder = word.partition("=")
        if not Path(folder).is_dir():
            parser.error(f"expected OWNER=FOLDER with a folder; found {word}")
        given.setdefault(owner, []).append(Path(folder))
    return rewrite({FILE: json.dumps(owned(given), indent=0) + "\n"}, asked.check)


if __name__ == "__main__":
    sys.exit(main())
