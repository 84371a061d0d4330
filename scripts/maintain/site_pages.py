"""Writes the reference pages that come from the code and from records, in both languages, and llms.txt.

python scripts/maintain/site_pages.py            rewrite the pages
python scripts/maintain/site_pages.py --check    status 1 if a page is not up to date
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
from click.testing import CliRunner
from verl_npu_workbench.diagnosis.rules import BY_CODE, LogRule, Precision

from verl_npu import environment
from verl_npu.cli import main as command
from verl_npu.features import load
from verl_npu.language import CHINESE, ENGLISH, speaking, translate
from verl_npu.variable import CONTRIBUTOR, USER, Variable

# The scripts are not an installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from maintain import records
from maintain.section import markdown_table, options, rewrite

DOCS = Path(__file__).resolve().parents[2] / "docs"
REFERENCE = DOCS / "reference"
_SUFFIXES = {"en": "", "zh": ".zh-CN"}
_LANGUAGES = {"en": ENGLISH, "zh": CHINESE}
_MADE = "<!-- made by scripts/maintain/site_pages.py -->"


def commands(language: str) -> str:
    """Return the `--help` of each command at 100 columns."""
    if not isinstance(command, click.Group):
        raise TypeError("expected the command verl-npu to be a group")
    names = command.list_commands(click.Context(command))
    return "".join([_head("commands", language), _help([], language), *(_help([name], language) for name in names)])


def _help(words: Sequence[str], language: str) -> str:
    variables = {environment.LANGUAGE.name: _LANGUAGES[language]}
    size = {"terminal_width": 100, "max_content_width": 100}
    printed = CliRunner(env=variables).invoke(command, [*words, "--help"], prog_name="verl-npu", **size)
    return f"\n## {' '.join(['verl-npu', *words])}\n\n```text\n{printed.stdout.rstrip()}\n```\n"


def patches(language: str) -> str:
    """Return each patch with its target and the upstream issue behind it."""
    headings = {"en": ("patch", "changes", "why"), "zh": ("补丁", "改变", "缘由")}[language]
    parts = [_head("patches", language)]
    for feature in load():
        rows = [
            # A patch without an issue gives the reason in place of the address.
            (f"`{each.id}`", f"`{each.target}`", f"[link]({each.link})" if each.link.startswith("http") else "-")
            for each in feature
        ]
        parts.append(f"\n## {feature.name}\n\n{markdown_table(headings, rows)}\n")
    return "".join(parts)


def variables(language: str, known: Mapping[str, Variable] = environment.VARIABLES) -> str:
    """Return the environment variables of users and of contributors."""
    headings, (yes, no, unset), titles = {
        "en": (
            ("variable", "what it does", "value", "default", "workers get it"),
            ("yes", "no", "not set"),
            {USER: "For users", CONTRIBUTOR: "For contributors"},
        ),
        "zh": (
            ("变量", "作用", "取值", "默认值", "传给 worker"),
            ("是", "否", "不设置"),
            {USER: "用户使用", CONTRIBUTOR: "开发者使用"},
        ),
    }[language]
    parts = [_head("environment", language)]
    for audience, title in titles.items():
        rows = []
        with speaking(_LANGUAGES[language]):
            for one in known.values():
                if one.audience == audience:
                    default = f"`{one.default}`" if one.default else unset
                    summary, expected = translate(one.summary), translate(one.expected)
                    rows.append((f"`{one.name}`", summary, expected, default, yes if one.forwarded else no))
        parts.append(f"\n## {title}\n\n{markdown_table(headings, rows)}\n")
    return "".join(parts)


_LIKELY = "likely"
_KINDS: Mapping[str, Mapping[Precision | str, str]] = {
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
        Precision.ECHO: "另一进程结束的结果",
        Precision.CODE: "有多种原因的错误码",
        _LIKELY: "可能的原因",
        Precision.HINT: "提示，不是错误",
        Precision.GUESS: "没有规则认识的错误类型",
    },
}
_ISSUE = re.compile(r"([\w.-]+/[\w.-]+)#(\d+)")


def rules(language: str, known: Sequence[LogRule] = tuple(BY_CODE.values())) -> str:
    """Return the rules of `verl-npu doctor --log`, each with the threads or documents that it was seen in."""
    headings = {
        "en": ("rule", "kind", "versions", "found before the run by", "seen in"),
        "zh": ("规则", "性质", "适用版本", "运行前由谁提示", "出处"),
    }[language]
    rows = []
    for rule in known:
        seen = ", ".join(_ISSUE.sub(r"[\1#\2](https://github.com/\1/issues/\2)", one) for one in rule.seen)
        kind = _LIKELY if rule.code in rule.candidates else rule.precision
        before = f"`{rule.before}`" if rule.before else ""
        rows.append((f"`{rule.code}`", _KINDS[language][kind], rule.versions, before, seen))
    return f"{_head('rules', language)}\n{markdown_table(headings, rows)}\n"


def record_tables(language: str) -> str:
    """Return all records of runs as tables."""
    return _head("records", language) + records.tables(language)


_HEADS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "commands": {
        "en": ("Commands", "The help of each command, as `--help` prints it."),
        "zh": ("命令", "每个命令的 `--help` 输出。"),
    },
    "patches": {
        "en": (
            "Patches",
            "Each patch and its target. `verl-npu explain PATCH` explains why a patch exists and how it works.",
        ),
        "zh": ("补丁", "每个补丁及其目标。`verl-npu explain PATCH` 说明它为什么存在、怎样工作。"),
    },
    "environment": {
        "en": (
            "Environment variables",
            "The variables that verl-npu reads. Set them in the shell that starts the job. Variables that workers get "
            "reach every Ray worker of the job, on other hosts too.",
        ),
        "zh": (
            "环境变量",
            "verl-npu 读取的变量。请在启动作业的 shell 中设置；标明传给 worker 的变量会到达作业的每个 Ray worker，"
            "包括其他主机上的。",
        ),
    },
    "rules": {
        "en": (
            "Rules of the diagnosis",
            "The rules of `verl-npu doctor --log`. `verl-npu explain RULE` prints what a rule means and what to do.",
        ),
        "zh": ("诊断规则", "`verl-npu doctor --log` 的规则。`verl-npu explain RULE` 说明一条规则的含义和处理办法。"),
    },
    "records": {
        "en": (
            "Records of runs",
            "What was run, and the results, from `docs/records/*.json`. No real NPU was available.",
        ),
        "zh": ("运行记录", "运行过什么、结果如何，取自 `docs/records/*.json`（条目为英文）。没有用到真实的 NPU。"),
    },
}
"""The title and the first line of each page."""


def _head(page: str, language: str) -> str:
    title, line = _HEADS[page][language]
    twin = {"en": f" [中文]({page}.zh-CN.md)", "zh": f"[English]({page}.md)"}[language]
    return f"# {title}\n\n{line}{twin}\n\n{_MADE}\n"


def llms() -> str:
    """Return the index of the pages for programs that read them, after llmstxt.org."""
    readme = (DOCS.parent / "README.md").read_text()
    rows = re.findall(r"(?m)^\| (.+?) \| \[([^\]]+)\]\(([^)]+\.md)\) \|$", readme)
    lines = [
        "# verl-npu",
        "",
        "> With verl-npu, you can run unmodified upstream verl (reinforcement learning for large language models)",
        "> on Huawei Ascend NPUs or, with VIRTUAL_ASCEND=2, on virtual NPUs, on a machine without NPUs.",
        "",
        "## Documents",
        "",
    ]
    for question, name, path in rows:
        place = path.removeprefix("docs/") if path.startswith("docs/") else f"../{path}"
        lines.append(f"- [{name}]({place}): {question}")
    return "\n".join(lines) + "\n"


_PAGES: Mapping[str, Callable[[str], str]] = {
    "commands": commands,
    "patches": patches,
    "environment": variables,
    "rules": rules,
    "records": record_tables,
}


def pages() -> dict[Path, str]:
    """Return all pages with their texts."""
    found = {DOCS / "llms.txt": llms()}
    for language, suffix in _SUFFIXES.items():
        found |= {REFERENCE / f"{name}{suffix}.md": make(language) for name, make in _PAGES.items()}
    return found


if __name__ == "__main__":
    sys.exit(rewrite(pages(), options(__doc__).parse_args().check))
