"""Hooks for mkdocs, which calls these functions by their names.

The pages are in three folders, and are written for the repository: they link to their twins in the other language, and
to files that the site does not have.
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

__all__ = ["FOLDERS", "on_config", "on_page_markdown", "on_post_build"]

PROJECT = Path(__file__).resolve().parents[2]
FOLDERS = (
    PROJECT / "docs",
    PROJECT / "packages" / "verl-npu-workbench" / "docs",
    PROJECT / "packages" / "virtual-ascend" / "docs",
)
"""The folders with pages. The site puts all pages into one folder."""
_PICTURES = PROJECT / "docs" / "pictures"
_READMES = (PROJECT / "README.md", PROJECT / "README.zh-CN.md")
_TWIN = re.compile(r" ?\[(?:中文|English)\]\((?!http)[^)]+\)")
_LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")
_BROKEN_LINE = re.compile(r"(?<=[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef])\n *(?=[\u4e00-\u9fff\uff08])")
"""A line break between two Chinese characters, which a browser would show as a space."""
_INCLUDED = re.compile(r"<!-- on the site: \.\./(README[\w.-]*\.md) -->")
_BEGIN, _END = "<!-- the site's home has this too -->", "<!-- and no more -->"


def on_config(config: MutableMapping[str, Any], **_others: object) -> None:
    """Copy the pages of all folders into one folder for mkdocs."""
    staged = Path(tempfile.mkdtemp(prefix="verl-npu-site-"))
    atexit.register(shutil.rmtree, staged, ignore_errors=True)
    for folder in FOLDERS:
        shutil.copytree(folder, staged, dirs_exist_ok=True)
    config["docs_dir"] = str(staged)


def on_page_markdown(markdown: str, config: Mapping[str, Any], page: Any = None, **_others: object) -> str:
    """Return the text of a page for the site: without the link to its twin, and with the README's sections in the
    home.

    Links lead to pages of the site or to the repository. Without the repository's address, the latter become plain
    text.
    """
    folder = _folder(Path(page.file.abs_src_path).name) if page is not None else FOLDERS[0]
    text = _linked(_TWIN.sub("", markdown), folder, config)
    text = _INCLUDED.sub(lambda found: _sections(PROJECT / found[1], config), text)
    return _BROKEN_LINE.sub("", text)


def on_post_build(config: Mapping[str, Any], **_others: object) -> None:
    """Change the links in llms.txt to the pages of the site."""
    index = Path(config["site_dir"]) / "llms.txt"
    text = _linked(index.read_text(), FOLDERS[0], config).replace("](README.md)", "](./)")
    index.write_text(re.sub(r"\]\(([\w-]+)\.md\)", r"](\1/)", text))


def _folder(page: str) -> Path:
    return next(folder for folder in FOLDERS if (folder / page).is_file())


def _sections(readme: Path, config: Mapping[str, Any]) -> str:
    """Return the sections of a README for the home page."""
    return _linked(readme.read_text().partition(_BEGIN)[2].partition(_END)[0], readme.parent, config).strip()


def _linked(text: str, folder: Path, config: Mapping[str, Any]) -> str:
    """Return the text of a file in a folder, with its links changed for the site."""
    repository = str(config["repo_url"] or "").rstrip("/")

    def lead(found: re.Match[str]) -> str:
        words, path, fragment = found[1], found[2], found[3] or ""
        target = Path(os.path.normpath(folder / path))
        if target.parent == _PICTURES:
            return f"[{words}](pictures/{target.name})"
        if target.parent in FOLDERS or target in _READMES:
            return f"[{words}]({target.name.replace('.zh-CN', '')}{fragment})"
        outside = os.path.relpath(target, PROJECT)
        return f"[{words}]({repository}/blob/main/{outside}{fragment})" if repository else words

    return _LINK.sub(lead, text)
