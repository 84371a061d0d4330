"""Writes the pages that are made from the code alone, in both languages: commands, patches, versions; and llms.txt.

python scripts/maintain/site_pages.py            rewrite the pages
python scripts/maintain/site_pages.py --check    status 1 if a page is not up to date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from verl_npu.ascend.matrix import PINS, Component
from verl_npu.cli import main as command
from verl_npu.features import load

# The scripts are no package that is installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from maintain.section import rewrite

__all__ = ["DOCS", "commands", "llms", "pages", "patches", "versions"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
REPOSITORY = "https://github.com/verl-npu/verl-npu/blob/main"
_MADE = "<!-- made by scripts/maintain/site_pages.py -->"


def commands(language: str) -> str:
    """The help of each command, as it is printed at 100 columns."""
    head = {
        "en": "# Commands\n\nWhat each command prints for `--help`. [中文](commands.zh-CN.md)\n",
        "zh": "# 命令\n\n每个命令的 `--help` 输出。[English](commands.md)\n",
    }[language]
    parts = [head, _MADE]
    if not isinstance(command, click.Group):
        raise TypeError("expected the command verl-npu to be a group")
    for name, one in sorted(command.commands.items()):
        context = click.Context(one, info_name=f"verl-npu {name}", max_content_width=100, terminal_width=100)
        parts.append(f"\n## verl-npu {name}\n\n```text\n{one.get_help(context).rstrip()}\n```")
    return "\n".join(parts) + "\n"


def patches(language: str) -> str:
    """Each patch: what it changes, and what asked for it."""
    head = {
        "en": "# Patches\n\nWhat each patch changes; `verl-npu explain PATCH` says why it exists, how it works, "
        "and what will make it unnecessary. [中文](patches.zh-CN.md)\n",
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


def versions(language: str) -> str:
    """What verl's documents name for each pin, with the document of each cell."""
    head = {
        "en": "# Versions\n\nWhat verl's own documents name for NPUs, for each pin and with vLLM; where they "
        "contradict each other, the first is shown. `verl-npu env --pin PIN` says how it is installed, and "
        "`verl-npu doctor` compares it with what is there. [中文](versions.zh-CN.md)\n",
        "zh": "# 版本\n\nverl 自己的文档为每个版本在 NPU 上（使用 vLLM 时）指定的内容；互相矛盾时列出第一个。"
        "`verl-npu env --pin PIN` 说明如何安装，`verl-npu doctor` 与现有环境比较。[English](versions.md)\n",
    }[language]
    words = {
        "en": ("part", "version", "where it is written", "any version", "not supported"),
        "zh": ("部件", "版本", "出处", "任意版本", "不支持"),
    }[language]
    parts = [head, _MADE]
    for pin in PINS.values():
        rows: list[tuple[str, ...]] = [words[:3], ("---",) * 3]
        for component in Component:
            cell = pin.cells.get(component)
            claims = cell.about() if cell else ()
            if not claims:
                continue
            claim = claims[0]
            needs = " ".join(filter(None, [claim.needs, claim.revision])).replace("|", "\\|")
            said = words[4] if claim.unsupported else f"`{needs}`" if needs else words[3]
            rows.append((component.value, said, f"{claim.source.project} `{claim.source.document}`"))
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        parts.append(f"\n## {pin.name}\n\n{table}")
    return "\n".join(parts) + "\n"


def llms() -> str:
    """The index of the documents for programs that read them, after llmstxt.org."""
    rows = re.findall(r"(?m)^\| (.+?) \| \[([^\]]+)\]\(([^)]+)\) \|$", (DOCS / "README.md").read_text())
    lines = [
        "# verl-npu",
        "",
        "> pip install verl-npu, and unmodified upstream verl (reinforcement learning for large language models)",
        "> trains on Huawei Ascend NPUs; with VERL_NPU_VIRTUAL=2 on virtual NPUs, on a machine without any.",
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
        address = f"{REPOSITORY}/{path.removeprefix('../')}" if path.startswith("../") else f"{REPOSITORY}/docs/{path}"
        lines.append(f"- [{name}]({address}): {question}")
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """All pages with their texts."""
    made = {"commands": commands, "patches": patches, "versions": versions}
    suffixes = {"en": "", "zh": ".zh-CN"}
    found = {DOCS / "llms.txt": llms()}
    for language, suffix in suffixes.items():
        found |= {DOCS / f"{name}{suffix}.md": make(language) for name, make in made.items()}
    return found


if __name__ == "__main__":
    sys.exit(rewrite(pages(), __doc__ or ""))
