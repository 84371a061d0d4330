"""Writes the tables of docs/doctor.md and its Chinese twin from verl_npu/ascend/matrix.

python scripts/maintain/matrix_page.py            rewrite the tables
python scripts/maintain/matrix_page.py --check    status 1 if a table is not up to date
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from verl_npu.ascend.matrix import PINS, Cell, Claim, Component, Pin, Source

# The scripts are no package that is installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from maintain.section import replaced

__all__ = ["BEGIN", "CHINESE", "END", "PAGES", "render"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {"en": DOCS / "doctor.md", "zh": DOCS / "doctor.zh-CN.md"}
BEGIN = "<!-- {table}: made by scripts/maintain/matrix_page.py -->"
END = "<!-- end of {table} -->"
TABLES = ("versions", "documents", "contradictions")

_HEADINGS = {
    "en": ("part", ("number", "document"), ("part", "pin", "what it says", "document", "note")),
    "zh": ("组件", ("编号", "文档"), ("组件", "版本", "说法", "文档", "说明")),
}
_WORDS = {
    "en": {"": "", "vllm": "", "sglang": "SGLang: ", "a5": "A5: ", "any version": "any", "not supported": "none"},
    "zh": {"": "", "vllm": "", "sglang": "SGLang：", "a5": "A5：", "any version": "任意", "not supported": "不支持"},
}

CHINESE = {
    "vllm-ascend pins the release after it": "vllm-ascend 固定其后的正式版",
    "for servers with ARM processors": "用于 ARM 服务器",
    "setup.py: >=2.41.0": "setup.py：>=2.41.0",
    "setup.py: >=19.0.0": "setup.py：>=19.0.0",
    "requirements-npu.txt: >=15.0.0": "requirements-npu.txt：>=15.0.0",
    "requirements-npu.txt: any version": "requirements-npu.txt：任意版本",
    "the tag of CI's image is mindspeed0121": "CI 的镜像标签为 mindspeed0121",
    "vllm-ascend pins a later build": "vllm-ascend 固定后续的构建",
    "from git; no revision is named": "来自 git；没有写明版本",
    "'latest release', which was 4.57 when this was written": "“latest release”，写作时为 4.57",
    "'latest version'": "“latest version”",
    "'triton need not be installed', and is uninstalled first": "“不需要单独安装 triton”，并且先将其卸载",
    "torchvision 0.23.0 is the one that is built against torch 2.8.0": "针对 torch 2.8.0 构建的是 torchvision 0.23.0",
    "it is built against torch 2.7.1": "它针对 torch 2.7.1 构建",
    "the head of a branch": "分支的最新提交",
    "3.11 is recommended": "推荐 3.11",
    "3.12 is recommended": "推荐 3.12",
    "the image has the build before that of install_guidance.rst": "镜像中是 install_guidance.rst 所写构建之前的一个",
    "the image is older than install_guidance.rst": "镜像比 install_guidance.rst 旧",
    "the image is newer than install_guidance.rst": "镜像比 install_guidance.rst 新",
    "verl's requirements replace it": "verl 的依赖列表会替换它",
    "install_vllm_mcore_npu.sh uninstalls it first": "install_vllm_mcore_npu.sh 先将其卸载",
    "verl's installation script replaces it by 5.10.4": "verl 的安装脚本会将其替换为 5.10.4",
    "below what setup.py allows": "低于 setup.py 允许的范围",
    "contradicts requirements-npu.txt": "与 requirements-npu.txt 矛盾",
    "older than the Dockerfiles that it lists": "比它列出的 Dockerfile 旧",
    "from git, the head of its main branch": "来自 git，main 分支的最新提交",
    "vllm-ascend's requirements: >=4.57.4,<5": "vllm-ascend 的依赖列表：>=4.57.4,<5",
    "vllm-ascend's requirements: >=4.57.4": "vllm-ascend 的依赖列表：>=4.57.4",
}
"""The notes of the claims."""


def render(text: str, language: str, pins: Mapping[str, Pin] = PINS) -> str:
    """Return the text of a page with its tables made anew. Raises ValueError if a marker is missing."""
    numbers = _numbers(pins)
    tables = {
        "versions": _versions(pins, numbers, language),
        "documents": _documents(numbers, language),
        "contradictions": _contradictions(pins, numbers, language),
    }
    for table in TABLES:
        text = replaced(text, BEGIN.format(table=table), END.format(table=table), tables[table])
    return text


def _name(source: Source) -> str:
    return f"{source.project}/{source.document}"


def _numbers(pins: Mapping[str, Pin]) -> dict[str, int]:
    claims = (claim for pin in pins.values() for cell in pin.cells.values() for claim in cell.claims)
    return {name: number for number, name in enumerate(dict.fromkeys(_name(claim.source) for claim in claims), 1)}


def _versions(pins: Mapping[str, Pin], numbers: Mapping[str, int], language: str) -> str:
    parts = [part for part in Component if any(part in pin.cells for pin in pins.values())]
    rows = [
        (f"`{part.value}`", *(_cell(pin.cells.get(part), numbers, language) for pin in pins.values()))
        for part in parts
    ]
    return _table((_HEADINGS[language][0], *(f"`{name}`" for name in pins)), rows)


def _cell(cell: Cell | None, numbers: Mapping[str, int], language: str) -> str:
    said: dict[str, list[int]] = {}
    for claim in cell.claims if cell else ():
        said.setdefault(_said(claim, language), []).append(numbers[_name(claim.source)])
    return "; ".join(f"{text} [{', '.join(map(str, sorted({*where})))}]" for text, where in said.items()) or "-"


def _said(claim: Claim, language: str) -> str:
    words = _WORDS[language]
    text = words.get(str(claim), str(claim).removeprefix("=="))
    git = f" (git {claim.revision[:18]})" if claim.revision and claim.revision not in (text, f"v{text}") else ""
    return f"{words[claim.npu] or words[claim.engine]}{text}{git}"


def _documents(numbers: Mapping[str, int], language: str) -> str:
    return _table(_HEADINGS[language][1], [(str(number), name) for name, number in numbers.items()])


def _contradictions(pins: Mapping[str, Pin], numbers: Mapping[str, int], language: str) -> str:
    rows = [
        (
            f"`{part.value}`",
            f"`{pin.name}`",
            _said(claim, language),
            f"{_name(claim.source)} ({claim.source.revision})",
            claim.note if language == "en" else CHINESE[claim.note],
        )
        for pin in pins.values()
        for part, cell in pin.cells.items()
        for claim in cell.claims
        if claim.note
    ]
    return _table(_HEADINGS[language][2], rows)


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, ("---",) * len(headings), *rows))


def main() -> int:
    """Rewrite the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 if a table is not up to date")
    check = parser.parse_args().check
    old = 0
    for language, page in PAGES.items():
        text = page.read_text()
        made = render(text, language)
        if made == text:
            continue
        old += 1
        if check:
            print(f"{page}: not up to date; run python scripts/maintain/matrix_page.py", file=sys.stderr)
        else:
            page.write_text(made)
            print(f"{page}: rewritten")
    return int(check and old > 0)


if __name__ == "__main__":
    sys.exit(main())
