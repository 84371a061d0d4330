"""Draws the contracts of pyproject.toml in docs/reference/modules.md and its Chinese twin, with a line for a module.

python scripts/maintain/design_page.py            rewrite the pictures and tables
python scripts/maintain/design_page.py --check    status 1 if one is not up to date
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# The scripts are not an installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from maintain.section import options, replaced, rewrite

PROJECT = Path(__file__).resolve().parents[2]
PICTURE = PROJECT / "docs" / "pictures" / "layers.svg"
PAGES = {
    "en": PROJECT / "docs" / "reference" / "modules.md",
    "zh": PROJECT / "docs" / "reference" / "modules.zh-CN.md",
}
BEGIN = "<!-- contracts: made by scripts/maintain/design_page.py -->"
END = "<!-- end of contracts -->"
_HEADINGS = {"en": "| module | what is in it |", "zh": "| 模块 | 内容（英文） |"}
_SHOWN = {
    "en": "Boxes from top to bottom, each with the modules of a layer: a box imports those below it",
    "zh": "从上到下的方框，每个是一层的模块：一个方框导入它下面的方框",
}
_PLUGIN, _WORKBENCH = "plugin", "workbench"
_FOLDERS = {"virtual_ascend": "packages/virtual-ascend", "verl_npu_workbench": "packages/verl-npu-workbench"}


def render(text: str, language: str) -> str:
    """Return the text of a page with a new picture and table; raise ValueError if a marker is missing."""
    storeys, tools, _ = _contracts()
    rows = [
        _HEADINGS[language],
        "|---|---|",
        *(_row(f"verl_npu_workbench.{name}") for layer in tools for name in layer),
        *(_row(f"verl_npu.{name}") for layer in storeys for name in layer if name != "__main__"),
        _row("virtual_ascend"),
    ]
    image = f"![{_SHOWN[language]}](../pictures/{PICTURE.name})"
    return replaced(text, BEGIN, END, "\n".join([image, "", *rows]))


def _contracts() -> tuple[list[list[str]], list[list[str]], list[str]]:
    """Return the layers of the plugin and of the workbench, from the top, and the importers of virtual_ascend."""
    with (PROJECT / "pyproject.toml").open("rb") as file:
        contracts = {each["id"]: each for each in tomllib.load(file)["tool"]["importlinter"]["contracts"]}
    storeys = [_names(layer) for layer in contracts[_PLUGIN]["layers"]]
    tools = [_names(layer) for layer in contracts[_WORKBENCH]["layers"]]
    importers = contracts["simulated"]["allowed_importers"]
    return storeys, tools, [name for name in importers if not name.startswith("virtual_ascend")]


def _names(layer: str) -> list[str]:
    return [name.strip() for name in layer.split("|")]


def picture() -> str:
    """Draw a box for each layer, as SVG. A layer may import the box below its arrow, and all boxes further down."""
    storeys, tools, importers = _contracts()
    boxes = [*((layer, _TOOL) for layer in tools), *((layer, _PLAIN) for layer in storeys)]
    drawn: list[str] = []
    top = _GAP
    for names, colour in boxes:
        if drawn:
            drawn.append(f'<path d="M{_MIDDLE} {top - _GAP}v{_GAP - 2}" stroke="#57606a" marker-end="url(#arrow)"/>')
        drawn += _box(names, colour, top)
        top += _ROW + _GAP
    drawn += _box([f"virtual_ascend: imported by {' and '.join(importers)} alone"], _ALONE, top)
    return _SVG.format(width=_WIDTH, height=top + _ROW + _GAP, drawn="\n".join(drawn)) + "\n"


_WIDTH, _ROW, _GAP = 860, 30, 16
_MIDDLE = _WIDTH // 2
_TOOL, _PLAIN, _ALONE = "#ddf4ff", "#f6f8fa", "#fff8c5"
_SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<defs><marker id="arrow" markerWidth="8" markerHeight="8" refX="6" refY="4" orient="auto">
<path d="M0 0L8 4L0 8z" fill="#57606a"/></marker></defs>
<rect width="100%" height="100%" fill="#ffffff"/>
<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14" text-anchor="middle" fill="#1f2328">
{drawn}
</g>
</svg>"""


def _box(names: list[str], colour: str, top: int) -> list[str]:
    return [
        f'<rect x="8" y="{top}" width="{_WIDTH - 16}" height="{_ROW}" rx="5" fill="{colour}" stroke="#8c959f"/>',
        f'<text x="{_MIDDLE}" y="{top + 20}">{" · ".join(names)}</text>',
    ]


def _row(module: str) -> str:
    path = (PROJECT / _FOLDERS.get(module.partition(".")[0], ".")).joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(source.read_text())) or ""
    first = " ".join(docstring.partition("\n\n")[0].split())
    shown = f"{path.relative_to(PROJECT)}/" if path.is_dir() else str(source.relative_to(PROJECT))
    return f"| `{shown}` | {first.replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    sys.exit(
        rewrite(
            {PICTURE: picture(), **{page: render(page.read_text(), language) for language, page in PAGES.items()}},
            options(__doc__).parse_args().check,
        )
    )
