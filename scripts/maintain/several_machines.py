"""Records upstream's own launch scripts for NPUs on several machines: their machines, and the command to start them.

python scripts/maintain/several_machines.py v0.9.0=TREE verl-recipe@COMMIT=TREE…

A script is for NPUs if its name or folder says so. Its numbers are read from its settings. The record is
scripts/recipes/several_machines.json, and recipes_page.py makes a table of it.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

# The scripts are not an installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness.recipe import RECIPES
from maintain.section import options, rewrite

RECORD = RECIPES / "several_machines.json"
_SETTING = r"(?m)^[^#\n]*\b{}=[\"']?([^\s\"'\\#]+)"
_FOR_NPUS = re.compile(r"npu|ascend", re.IGNORECASE)
_STARTS_RAY = re.compile(r"(?m)^\s*ray start\b")


@dataclass(frozen=True)
class Script:
    """A launch script and the machines that it needs."""

    path: str
    nodes: int
    npus: int
    """The number of NPUs on each node."""
    submits: bool
    """True if it submits its job with `ray job submit`."""
    takes: str
    """The way to set the number of nodes: a variable, `overrides` if it passes its arguments on, or "" for none."""


def read(path: str, text: str) -> Script | None:
    """Read a script; return None if it trains on one machine, or starts Ray and not a trainer."""
    if _STARTS_RAY.search(text):
        return None
    trained, rollout = (_setting(text, rf"{each}\.nnodes") for each in ("trainer", "rollout"))
    if trained is None:
        return None
    # If trainer and rollout have different settings, they have different machines.
    counts = [trained] if rollout in (None, trained) else [trained, rollout]
    nodes = sum(_number(text, count) for count in counts)
    npus = _number(text, _setting(text, "NGPUS_PER_NODE|NPUS_PER_NODE") or "")
    npus = npus or _number(text, _setting(text, r"trainer\.n_gpus_per_node") or "")
    if nodes < 2 or not npus:
        return None
    submits = re.search(r"(?m)^ray job submit\b", text) is not None
    return Script(path, nodes, npus, submits, _takes(text, counts))


def _setting(text: str, name: str) -> str | None:
    found = re.search(_SETTING.format(f"(?:{name})"), text)
    return found[1] if found else None


def _number(text: str, value: str) -> int:
    """Return the number that a value such as 2, ${NNODES}, or ${NNODES:-2} stands for; 0 if there is none."""
    variable = re.fullmatch(r"\$\{?(\w+)(?::-(\w+))?\}?", value)
    if variable:
        default = variable[2] or _setting(text, variable[1])
        return _number(text, default) if default and default != value else 0
    return int(value) if value.isdigit() else 0


def _takes(text: str, counts: Iterable[str]) -> str:
    names = [name for count in counts for name in re.findall(r"\$\{?(\w+)", count)]
    if names and all(re.search(rf"(?m)^{name}=\$\{{{name}:-", text) for name in names):
        return " ".join(dict.fromkeys(names))
    return "overrides" if re.search(r"(?m)\$@", text) else ""


def scan(tree: Path) -> list[Script]:
    """Return all scripts of a checkout that train on several machines with NPUs."""
    found = []
    for path in sorted(tree.rglob("*.sh")):
        relative = path.relative_to(tree).as_posix()
        if _FOR_NPUS.search(relative) and not relative.startswith("tests/"):
            found.append(read(relative, path.read_text(errors="replace")))
    return [script for script in found if script is not None]


def recorded() -> dict[str, list[Script]]:
    """Return the recorded scripts of each revision, in the order of the record."""
    content = json.loads(RECORD.read_text())
    return {revision: [Script(**script) for script in scripts] for revision, scripts in content.items()}


def rows(record: Mapping[str, Iterable[Script]]) -> list[tuple[Script, list[str]]]:
    """Return each script once, with all revisions at which it is the same."""
    found: dict[Script, list[str]] = {}
    for revision, scripts in record.items():
        for script in scripts:
            found.setdefault(script, []).append(revision)
    return sorted(found.items(), key=lambda row: (row[0].path, row[1]))


def command(script: Script, checkout: str = "PATH_OF_VERL_NPU") -> str:
    """Return the command that starts a script. It is the same on every machine."""
    words = f"{checkout}/scripts/without-submit.sh" if script.submits else "bash"
    return f"verl-npu launch --nodes {script.nodes} --head HOST -- {words} {script.path}"


def main() -> int:
    """Record the scripts of the trees on the command line, or check their record."""
    parser = options(__doc__)
    parser.add_argument("trees", nargs="+", metavar="REVISION=TREE", help="a revision, and a checkout of it")
    asked = parser.parse_args()
    content = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    for word in asked.trees:
        revision, _, tree = word.partition("=")
        if not Path(tree).is_dir():
            parser.error(f"expected REVISION=TREE with a folder; found {word}")
        content[revision] = [dataclasses.asdict(script) for script in scan(Path(tree))]
        print(f"{revision}: {len(content[revision])} scripts")
    return rewrite({RECORD: json.dumps(content, indent=1) + "\n"}, asked.check)


if __name__ == "__main__":
    sys.exit(main())
