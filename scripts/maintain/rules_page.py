"""Writes the table of rules in the workbench's docs/diagnosis.md and its Chinese twin, from diagnosis/known.

python scripts/maintain/rules_page.py            rewrite the tables
python scripts/maintain/rules_page.py --check    status 1 if a table is not up to date
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from verl_npu_workbench.diagnosis.rules import BY_CODE, LogRule, Precision

# The scripts are not an installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from maintain.section import options, replaced, rewrite

__all__ = ["BEGIN", "END", "PAGES", "render"]

DOCS = Path(__file__).resolve().parents[2] / "packages" / "verl-npu-workbench" / "docs"
PAGES = {"en": DOCS / "diagnosis.md", "zh": DOCS / "diagnosis.zh-CN.md"}
BEGIN, END = "<!-- rules: made by scripts/maintain/rules_page.py -->", "<!-- end of rules -->"
_HEADINGS = {
    "en": ("rule", "kind", "versions", "found before the run by", "seen in"),
    "zh": ("规则", "性质", "适用版本", "运行前由谁提示", "出处"),
}
_LIKELY = "likely"
_WORDS: Mapping[str, Mapping[Precision | str, str]] = {
    "en": {
        Precision.OWN: "verl-npu's own error",
        Precision.EXACT: "a cause",
        Precision.SYMPTOM: "a consequence",
        Precision.ECHO: "a result of another process's end",
        Precision.CODE: "a code with many causes",
        _LIKELY: "a likely cause",
        Precision.HINT: "a note, not an error",
        Precision.GUESS: "a kind of error without a rule",
    },
    "zh": {
        Precision.OWN: "verl-npu 自己的错误",
        Precision.EXACT: "原因",
        Precision.SYMPTOM: "后果",
        Precision.ECHO: "另一进程结束的回声",
        Precision.CODE: "有多种原因的错误码",
        _LIKELY: "可能的原因",
        Precision.HINT: "提示，不是错误",
        Precision.GUESS: "没有规则认识的错误的种类",
    },
}
_ISSUE = re.compile(r"([\w.-]+/[\w.-]+)#(\d+)")


def table(rules: Sequence[LogRule], language: str) -> str:
    """Return the rules as a table in Markdown."""
    rows = [_HEADINGS[language], ("---",) * 5]
    for rule in rules:
        seen = ", ".join(_ISSUE.sub(r"[\1#\2](https://github.com/\1/issues/\2)", one) for one in rule.seen)
        before = f"`{rule.before}`" if rule.before else ""
        kind = _LIKELY if rule.code in rule.candidates else rule.precision
        rows.append((f"`{rule.code}`", _WORDS[language][kind], rule.versions, before, seen))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def render(text: str, language: str, rules: Sequence[LogRule] = tuple(BY_CODE.values())) -> str:
    """Return the text of a page with a new table; raise ValueError if a marker is missing."""
    return replaced(text, BEGIN, END, table(rules, language))


if __name__ == "__main__":
    sys.exit(
        rewrite(
            {page: render(page.read_text(), language) for language, page in PAGES.items()},
            options(__doc__).parse_args().check,
        )
    )
