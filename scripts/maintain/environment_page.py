"""Writes the tables of docs/environment.md and its Chinese twin from verl_npu/environment.py.

python scripts/maintain/environment_page.py            rewrite the tables
python scripts/maintain/environment_page.py --check    status 1 if a table is not up to date
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from verl_npu import environment, language
from verl_npu.language import CHINESE, ENGLISH, translate
from verl_npu.variable import CONTRIBUTOR, USER, Variable

# The scripts are not an installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from maintain.section import options, replaced, rewrite

__all__ = ["BEGIN", "END", "PAGES", "render"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
BEGIN = "<!-- {audience}: made by scripts/maintain/environment_page.py -->"
END = "<!-- end of {audience} -->"

_HEADINGS = {
    "en": ("variable", "what it does", "value", "default", "workers get it"),
    "zh": ("变量", "作用", "取值", "默认值", "传给 worker"),
}
_WORDS = {"en": ("yes", "no", "not set"), "zh": ("是", "否", "不设置")}
PAGES = {"en": DOCS / "environment.md", "zh": DOCS / "environment.zh-CN.md"}


_LANGUAGES = {"en": ENGLISH, "zh": CHINESE}


def render(text: str, page: str, variables: Mapping[str, Variable] = environment.VARIABLES) -> str:
    """Return the text of a page with new tables; raise ValueError if a marker is missing."""
    for audience in (USER, CONTRIBUTOR):
        begin, end = BEGIN.format(audience=audience), END.format(audience=audience)
        chosen = [variable for variable in variables.values() if variable.audience == audience]
        text = replaced(text, begin, end, _table(chosen, page))
    return text


def _table(variables: list[Variable], page: str) -> str:
    rows = [_HEADINGS[page], ("---",) * 5]
    yes, no, unset = _WORDS[page]
    with language.speaking(_LANGUAGES[page]):
        for variable in variables:
            summary, expected = translate(variable.summary), translate(variable.expected)
            default = f"`{variable.default}`" if variable.default else unset
            rows.append((f"`{variable.name}`", summary, expected, default, yes if variable.forwarded else no))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    sys.exit(
        rewrite(
            {file: render(file.read_text(), page) for page, file in PAGES.items()},
            options(__doc__).parse_args().check,
        )
    )
