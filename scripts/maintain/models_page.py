"""Writes the table of the code that runs the operators of forty families of models on an NPU.

python scripts/maintain/models_page.py             write the table of the record
python scripts/maintain/models_page.py --record    first ask `verl-npu check` about the record's families
python scripts/maintain/models_page.py --check     status 1 if the table does not match the record

The environment needs a verl, a transformers, and a vLLM with vllm-ascend; the record says which it was. To add a
family, add its name to the record with an empty entry.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from click.testing import CliRunner

from verl_npu.cli import main as command
from verl_npu.cli.model import OPERATORS, Way
from verl_npu.language import CHINESE, ENGLISH, speaking, translate

# The scripts are not an installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from maintain.section import markdown_table, options, replaced, rewrite

PROJECT = Path(__file__).resolve().parents[2]
RECORD = PROJECT / "tests" / "cli" / "families.json"
PAGES = {"en": PROJECT / "docs/reference/models.md", "zh": PROJECT / "docs/reference/models.zh-CN.md"}
BEGIN = "<!-- models: made by scripts/maintain/models_page.py -->"
END = "<!-- end of models -->"
STACK = ("verl", "transformers", "vllm", "vllm-ascend")
_LOGGED = {"en": "{} (logged)", "zh": "{}（有日志）"}
_WORDS = {"en": ("family", "families", "With {}:"), "zh": ("系列", "系列数", "以下结果来自 {}：")}

Record = Mapping[str, Mapping[str, Sequence[str]]]
"""By family and operator: the ways, each followed by `, logged` if it falls back with a line in the log."""


def cells(family: str) -> dict[str, list[str]]:
    """Return the ways of a family's operators in this environment."""
    printed = CliRunner().invoke(command, ["check", family, "--json"])
    found: dict[str, set[str]] = {}
    for part in json.loads(printed.stdout)["parts"]:
        logged = ", logged" * (part["way"] == Way.FALLBACK and not part["silent"])
        found.setdefault(part["operator"], set()).add(part["way"] + logged)
    return {operator: sorted(ways, key=_rank) for operator, ways in found.items()}


def _rank(way: str) -> tuple[int, str]:
    return [*Way].index(Way(way.partition(",")[0])), way


def render(content: Mapping[str, Record | Mapping[str, str]], language: str) -> str:
    """Return the stack, the table of families, and the number of families for each operator and way."""
    record: Record = content["families"]  # type: ignore[assignment]
    family, families, stack = _WORDS[language]
    with speaking(CHINESE if language == "zh" else ENGLISH):
        headings = [translate(operator) for operator in OPERATORS]

    def shown(way: str) -> str:
        word, logged, _rest = way.partition(", logged")
        return _LOGGED[language].format(word) if logged else word

    def row(of: Mapping[str, Sequence[str]]) -> list[str]:
        return [("、" if language == "zh" else ", ").join(map(shown, of.get(each, ()))) or "-" for each in OPERATORS]

    ways = sorted({way for of in record.values() for own in of.values() for way in own}, key=_rank)
    counts = [
        [shown(way), *(str(sum(way in of.get(each, ()) for of in record.values())) for each in OPERATORS)]
        for way in ways
    ]
    versions = ("、" if language == "zh" else ", ").join(
        f"{name} {version}" for name, version in content["stack"].items()
    )
    rows = [[f"`{name}`", *row(of)] for name, of in record.items()]
    tables = markdown_table([family, *headings], rows), markdown_table([families, *headings], counts)
    return "\n\n".join([stack.format(versions), *tables])


def main() -> int:
    """Write the record and the tables, or check the tables."""
    parser = options(__doc__)
    parser.add_argument("--record", action="store_true", help="ask the command in this environment first")
    chosen = parser.parse_args()
    content = json.loads(RECORD.read_text())
    if chosen.record:
        stack = {name: metadata.version(name).partition("+")[0] for name in STACK}
        content = {"stack": stack, "families": {family: cells(family) for family in sorted(content["families"])}}
        RECORD.write_text(json.dumps(content).replace('}, "', '},\n "') + "\n")
    pages = {page: (page.read_text(), render(content, language)) for language, page in PAGES.items()}
    return rewrite({page: replaced(text, BEGIN, END, table) for page, (text, table) in pages.items()}, chosen.check)


if __name__ == "__main__":
    sys.exit(main())
