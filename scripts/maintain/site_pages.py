"""Writes the pages that come from the code alone, in both languages: commands and patches; and llms.txt.

python scripts/maintain/site_pages.py            rewrite the pages
python scripts/maintain/site_pages.py --check    status 1 if a page is not up to date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from verl_npu.cli import main as command
from verl_npu.features import load

# The scripts are not an installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from maintain.section import options, rewrite

__all__ = ["DOCS", "commands", "llms", "pages", "patches"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
_MADE = "<!-- made by scripts/maintain/site_pages.py -->"


def commands(language: str) -> str:
    """Return the page of commands: the --help of each command at 100 columns."""
    head = {
        "en": "# Commands\n\nThis page lists the `--help` of each command. [中文](commands.zh-CN.md)\n",
        "zh": "# 命令\n\n每个命令的 `--help` 输出。[English](commands.md)\n",
    }[language]
    parts = [head, _MADE]
    if not isinstance(command, click.Group):
        raise TypeError("expected the command verl-npu to be a group")
    group = click.Context(command, info_name="verl-npu", max_content_width=100, terminal_width=100)
    parts.append(f"\n## verl-npu\n\n```text\n{command.get_help(group).rstrip()}\n```")
    for name in command.list_commands(group):
        one = command.get_command(group, name)
        if one is None:
            raise LookupError(name)
        context = click.Context(one, info_name=f"verl-npu {name}", max_content_width=100, terminal_width=100)
        parts.append(f"\n## verl-npu {name}\n\n```text\n{one.get_help(context).rstrip()}\n```")
    return "\n".join(parts) + "\n"


def patches(language: str) -> str:
    """Return the page of patches: the target of each patch, and a link to its reason."""
    head = {
        "en": "# Patches\n\nThis page lists the function that each patch changes. `verl-npu explain PATCH` says why "
        "the patch exists, how it works, and what will make it unnecessary. [中文](patches.zh-CN.md)\n",
        "zh": "# 补丁\n\n每个补丁改变什么；`verl-npu explain PATCH` 说明它为什么存在、怎样工作、什么会使它不再需要。"
        "[English](patches.md)\n",
    }[language]
    words = {"en": ("patch", "changes", "why"), "zh": ("补丁", "改变", "缘由")}[language]
    parts = [head, _MADE]
    for feature in load():
        rows = [words, ("---",) * 3]
        for patch in feature:
            link = f"[link]({patch.link})" if patch.link else "-"
            rows.append((f"`{patch.id}`", f"`{patch.target}`", link))
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        parts.append(f"\n## {feature.name}\n\n{table}")
    return "\n".join(parts) + "\n"


def llms() -> str:
    """Return the index of the documents for programs, in the format of llmstxt.org."""
    questions = (DOCS / "README.md").read_text().partition("\n## ")[2]
    rows = re.findall(r"(?m)^\| (.+?) \| \[([^\]]+)\]\(([^)]+)\) \|$", questions)
    lines = [
        "# verl-npu",
        "",
        "> With verl-npu installed, unmodified upstream verl (reinforcement learning for large language models)",
        "> trains on Huawei Ascend NPUs; with VIRTUAL_ASCEND=2 on virtual NPUs, on a machine without any.",
        "",
        "## Documents",
        "",
    ]
    seen: set[str] = set()
    for question, name, link in rows:
        path = link.partition("#")[0]
        if path in seen:
            continue
        seen.add(path)
        lines.append(f"- [{name}]({path}): {question}")
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """Return all pages with their texts."""
    made = {"commands": commands, "patches": patches}
    suffixes = {"en": "", "zh": ".zh-CN"}
    found = {DOCS / "llms.txt": llms()}
    for language, suffix in suffixes.items():
        found |= {DOCS / f"{name}{suffix}.md": make(language) for name, make in made.items()}
    return found


if __name__ == "__main__":
    sys.exit(rewrite(pages(), options(__doc__).parse_args().check))
