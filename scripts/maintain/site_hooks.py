"""Hooks for mkdocs, which calls these functions by their names.

The pages are written for the repository: they link to their twins in the other language, and to files that the site
does not have. The site's home is the README, which is above the folder of pages.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any  # for pages of mkdocs, which is not a dependency of the project

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT / "docs"
_READMES = (PROJECT / "README.md", PROJECT / "README.zh-CN.md")
_TWIN = re.compile(r" ?\[(?:中文|English)\]\((?!http)[^)]+\)")
_LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")
_BROKEN_LINE = re.compile(r"(?<=[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef])\n *(?=\[?[\u4e00-\u9fff\uff08])")
"""A line break between two Chinese characters, which a browser would show as a space."""


def on_config(config: MutableMapping[str, Any], **_others: object) -> None:
    """Copy the pages and the READMEs into one folder for mkdocs."""
    staged = Path(tempfile.mkdtemp(prefix="verl-npu-site-"))
    atexit.register(shutil.rmtree, staged, ignore_errors=True)
    shutil.copytree(DOCS, staged, dirs_exist_ok=True, ignore=shutil.ignore_patterns("records"))
    for readme in _READMES:
        shutil.copy(readme, staged)
    config["docs_dir"] = str(staged)


def on_page_markdown(markdown: str, config: Mapping[str, Any], page: Any = None, **_others: object) -> str:
    """Return the text of a page for the site, without the link to its twin.

    Links lead to pages of the site or to the repository. Without the repository's address, the latter become plain
    text.
    """
    source = Path(page.file.src_path) if page is not None else Path("page.md")
    return _BROKEN_LINE.sub("", _linked(_TWIN.sub("", markdown), source, config))


def on_post_build(config: Mapping[str, Any], **_others: object) -> None:
    """Change the links in llms.txt to the pages of the site."""
    index = Path(config["site_dir"]) / "llms.txt"
    text = _linked(index.read_text(), Path("llms.txt"), config).replace("](README.md)", "](./)")
    index.write_text(re.sub(r"\]\(([\w/-]+)\.md\)", r"](\1/)", text))


def _linked(text: str, source: Path, config: Mapping[str, Any]) -> str:
    """Return the text of a page, named by its path on the site, with its links changed for the site."""
    repository = str(config["repo_url"] or "").rstrip("/")
    folder = PROJECT if source.name in {readme.name for readme in _READMES} else (DOCS / source).parent

    def lead(found: re.Match[str]) -> str:
        words, path, fragment = found[1], found[2], found[3] or ""
        target = Path(os.path.normpath(folder / path))
        place = target.name if target in _READMES else os.path.relpath(target, DOCS)
        if not place.startswith(("..", "records/")):
            return f"[{words}]({os.path.relpath(place, source.parent).replace('.zh-CN', '')}{fragment})"
        outside = os.path.relpath(target, PROJECT)
        return f"[{words}]({repository}/blob/main/{outside}{fragment})" if repository else words

    return _LINK.sub(lead, text)
