"""Draws the contracts of pyproject.toml in docs/design.md and its Chinese twin, with a line for each module.

python scripts/maintain/design_page.py            rewrite the pictures and tables
python scripts/maintain/design_page.py --check    status 1 if one is not up to date
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# The scripts are no package that is installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from maintain.section import options, replaced, rewrite

__all__ = ["PAGES", "render"]

PROJECT = Path(__file__).resolve().parents[2]
PAGES = {"en": PROJECT / "docs" / "design.md", "zh": PROJECT / "docs" / "design.zh-CN.md"}
BEGIN = "<!-- contracts: made by scripts/maintain/design_page.py -->"
END = "<!-- end of contracts -->"
_HEADINGS = {"en": "| module | what is in it |", "zh": "| 模块 | 内容（英文） |"}
_PLUGIN, _TOOLS = "storeys", "tools"


def render(text: str, language: str) -> str:
    """Return the text of a page with its picture and table made anew. Raises ValueError if a marker is missing."""
    with (PROJECT / "pyproject.toml").open("rb") as file:
        contracts = {each["id"]: each for each in tomllib.load(file)["tool"]["importlinter"]["contracts"]}
    storeys = [_names(layer) for layer in contracts[_PLUGIN]["layers"] if layer != "__main__"]
    tools = [_names(layer) for layer in contracts[_TOOLS]["layers"]]
    picture = _picture(storeys, tools, contracts["simulated"])
    rows = [
        _HEADINGS[language],
        "|---|---|",
        *(_row(f"verl_npu.tools.{name}") for layer in tools for name in layer),
        *(_row(f"verl_npu.{name}") for layer in storeys for name in layer if name != _TOOLS),
        _row("virtual_ascend"),
    ]
    return replaced(text, BEGIN, END, "\n".join([picture, "", *rows]))


def _names(layer: str) -> list[str]:
    return [name.strip() for name in layer.split("|")]


def _picture(storeys: list[list[str]], tools: list[list[str]], simulated: dict[str, Any]) -> str:
    """A box for each layer: it may import the boxes that its arrow leads to, and all that follow."""
    lines = ["```mermaid", "flowchart TD", "    subgraph tools"]
    lines += _boxes(tools, "tool", "        ")
    lines += ["    end", *_boxes([layer for layer in storeys if layer != [_TOOLS]], "layer", "    ")]
    lines.append("    tools --> layer0")
    importers = [name for name in simulated["allowed_importers"] if not name.startswith("virtual_ascend")]
    lines.append(f'    virtual["virtual_ascend<br/>imported by {" and ".join(importers)} alone"]')
    return "\n".join([*lines, "```"])


def _boxes(layers: list[list[str]], prefix: str, indent: str) -> list[str]:
    boxes = [f'{indent}{prefix}{at}["{"<br/>".join(layer)}"]' for at, layer in enumerate(layers)]
    return boxes + [f"{indent}{prefix}{at} --> {prefix}{at + 1}" for at in range(len(layers) - 1)]


def _row(module: str) -> str:
    base = PROJECT / "packages/virtual-ascend" if module.startswith("virtual_ascend") else PROJECT
    path = base.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(source.read_text())) or ""
    first = " ".join(docstring.partition("\n\n")[0].split())
    shown = f"{path.relative_to(PROJECT)}/" if path.is_dir() else str(source.relative_to(PROJECT))
    return f"| `{shown}` | {first.replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    sys.exit(
        rewrite(
            {page: render(page.read_text(), language) for language, page in PAGES.items()},
            options(__doc__).parse_args().check,
        )
    )
