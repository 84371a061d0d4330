"""Writes the tables of docs/reference/recipes.md and its Chinese twin.

They come from the header comments of the recipes, and from the record of upstream's scripts by several_machines.py.

python scripts/maintain/recipes_page.py                     rewrite the tables
python scripts/maintain/recipes_page.py --check             status 1 if a table is not up to date
python scripts/maintain/recipes_page.py --add RESULT.json…  first record results of `verl-npu rehearse`
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # JSON.

# The scripts are not an installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness.recipe import RECIPES
from maintain import several_machines
from maintain.section import markdown_table, options, replaced, rewrite

PROJECT = Path(__file__).resolve().parents[2]
RESULTS = RECIPES / "rehearsed.json"
DOCS = PROJECT / "docs" / "reference"
PAGES = {"en": DOCS / "recipes.md", "zh": DOCS / "recipes.zh-CN.md"}
BEGIN, END = "<!-- recipes: made by scripts/maintain/recipes_page.py -->", "<!-- end of recipes -->"
BEGIN_SEVERAL = "<!-- several machines: made by scripts/maintain/recipes_page.py -->"
END_SEVERAL = "<!-- end of several machines -->"
_KEPT = ("verdict", "steps", "npus", "pin", "engine", "curves", "versions")
"""The parts of a rehearsal's result that are recorded, in addition to the date."""
_SEVERAL = {
    "en": ("script", "revisions", "machines", "to change the number of machines", "command"),
    "zh": ("脚本", "版本", "机器", "其他机器数量", "命令"),
}
_OTHER = {
    "en": ("set the variable `{}`", "add `trainer.nnodes=…` after the script", "edit the script"),
    "zh": ("用变量 `{}`", "在脚本后面写 `trainer.nnodes=…`", "只能改脚本"),
}
_HEADINGS = {
    "en": ("row", "pin", "script", "NPUs", "rehearsed", "needs a real NPU to test"),
    "zh": ("支持表的行", "版本", "脚本", "需要什么", "预演", "只有 NPU 能展示的"),
}
_WORDS = {
    "en": ("{} NPUs ({} x {})", "not yet", "HCCL between machines", "MindSpeed's operators"),
    "zh": ("{} 块 NPU（{} x {}）", "还没有", "机器之间的 HCCL", "MindSpeed 的算子"),
}
_REHEARSED = {
    "en": ("on {}: ", "{} steps", "{} NPUs", "rollout {}", "at `{}`"),
    "zh": ("{}：", "{} 步", "{} 块 NPU", "rollout 为 {}", "版本 `{}`"),
}
_CURVES = {
    "en": {"critic/rewards/mean": "rewards {}", "train/loss": "losses {}"},
    "zh": {"critic/rewards/mean": "奖励 {}", "train/loss": "损失 {}"},
}


@dataclass(frozen=True)
class Recipe:
    """The header of a recipe."""

    path: Path
    algorithm: str
    model: str
    backend: str
    engine: str
    """The rollout engine; empty if nothing is generated."""
    pin: str
    source: str
    """The file of that revision, or of another project, that contains the numbers."""
    nodes: int
    npus: int
    """The number of NPUs on each node."""


def read(path: Path) -> Recipe:
    """Read one script; raise ValueError with the line that is missing."""
    text = path.read_text()
    row = [word.strip() for word in _line(text, r"# row: (.+)", path).split("|")]
    if len(row) != 4:
        raise ValueError(f"{path.name}: expected # row: algorithm | model | backend | engine; found {row}")
    nodes, npus = (int(_line(text, rf"{name}=\$\{{{name}:-(\d+)\}}", path)) for name in ("NODES", "NPUS_PER_NODE"))
    pin, source = _line(text, r"# pin: (\S+)", path), _line(text, r"# from: (.+)", path)
    algorithm, model, backend, engine = row
    return Recipe(path, algorithm, model, backend, engine.strip("-"), pin, source, nodes, npus)


def _line(text: str, pattern: str, path: Path) -> str:
    found = re.search(rf"(?m)^{pattern}$", text)
    if found is None:
        raise ValueError(f"{path.name}: expected a line {pattern}")
    return found[1]


def recipes() -> list[Recipe]:
    """Return all recipes, sorted by name."""
    return [read(path) for path in sorted(RECIPES.glob("*.sh"))]


Results = Mapping[str, Mapping[str, Any]]
"""The recorded result of each recipe's last rehearsal, by the recipe's name."""


def table(found: Sequence[Recipe], results: Results, language: str) -> str:
    """Return the recipes as a table in Markdown."""
    rows = []
    takes, not_yet, between, mindspeed = _WORDS[language]
    for each in found:
        result = results.get(each.path.stem)
        only = [each.engine] if each.engine else []
        only += [between] if each.nodes > 1 else []
        only += [mindspeed] if each.backend == "Megatron" else []
        rows.append(
            (
                f"{each.algorithm}, {each.model}, {each.backend}{f', {each.engine}' if each.engine else ''}",
                f"`{each.pin}`",
                f"[{each.path.stem}](../../scripts/recipes/{each.path.name})",
                takes.format(each.nodes * each.npus, each.nodes, each.npus),
                rehearsed(result, language) if result else not_yet,
                "; ".join(only) or "-",
            )
        )
    return markdown_table(_HEADINGS[language], rows)


def rehearsed(result: Mapping[str, Any], language: str) -> str:
    """Return the recorded result of a rehearsal as a cell of the table. Older records have fewer parts."""
    day, steps, npus, engine, pin = _REHEARSED[language]
    said = [steps.format(result["steps"]), npus.format(result["npus"])]
    said += [pin.format(result["pin"])] if result.get("pin") else []
    said += [engine.format(result["engine"])] if result.get("engine") else []
    for name, values in result.get("curves", {}).items():
        said.append(_CURVES[language][name].format(", ".join(f"{value:.4g}" for value in values)))
    said += [f"{name} {version}" for name, version in result.get("versions", {}).items()]
    text = f"{day.format(result['date'])}{result['verdict']}, {'; '.join((', '.join(said[:2]), *said[2:]))}"
    return (text + (f": {result['error']}" if result.get("error") else "")).replace("|", "\\|")


def several(language: str) -> str:
    """Return upstream's scripts for several machines as a table in Markdown."""
    rows = []
    by_variable, by_override, not_at_all = _OTHER[language]
    for script, revisions in several_machines.rows(several_machines.recorded()):
        other = {"overrides": by_override, "": not_at_all}.get(
            script.takes, by_variable.format(script.takes.replace(" ", "`, `"))
        )
        rows.append(
            (
                f"`{script.path}`",
                ", ".join(f"`{revision}`" for revision in revisions),
                f"{script.nodes} x {script.npus}",
                other,
                f"`{several_machines.command(script)}`",
            )
        )
    return markdown_table(_SEVERAL[language], rows)


def render(text: str, language: str, results: Results) -> str:
    """Return the text of a page with new tables; raise ValueError if a marker is missing."""
    text = replaced(text, BEGIN, END, table(recipes(), results, language))
    return replaced(text, BEGIN_SEVERAL, END_SEVERAL, several(language))


def results() -> dict[str, dict[str, Any]]:
    """Return the recorded results."""
    return json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}


def add(paths: Sequence[Path]) -> None:
    """Record results of `verl-npu rehearse`, with the date on which they were written."""
    known = results()
    for path in paths:
        result = json.loads(path.read_text())
        day = time.strftime("%Y-%m-%d", time.gmtime(path.stat().st_mtime))
        failure = result.get("failure")
        known[Path(result["script"]).stem] = {
            "date": day,
            **{name: result[name] for name in _KEPT if name in result},
            **({"error": failure["error"][:120]} if failure else {}),
        }
    RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def main() -> int:
    """Rewrite the pages, or check them."""
    parser = options(__doc__)
    parser.add_argument("--add", nargs="+", type=Path, default=[], metavar="RESULT.json", help="results to record")
    asked = parser.parse_args()
    if asked.add:
        add(asked.add)
    made = {page: render(page.read_text(), language, results()) for language, page in PAGES.items()}
    return rewrite(made, asked.check)


if __name__ == "__main__":
    sys.exit(main())
