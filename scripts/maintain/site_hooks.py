"""What mkdocs has to know of our pages: they are written for a repository, where a page names its twin in the other
language and files outside of docs/. mkdocs calls these functions by their names."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

__all__ = ["on_page_markdown", "on_post_build"]

_TWIN = re.compile(r" ?\[(?:中文|English)\]\((?!http)[^)]+\)")
_OUTSIDE = re.compile(r"\[([^\]]*)\]\((\.\./[^)\s]+)\)")
_CHINESE = re.compile(r"\]\(([\w./-]+)\.zh-CN\.md(#[^)\s]*)?\)")
_PAGE = re.compile(r"\]\(([\w-]+)\.md\)")


def on_page_markdown(markdown: str, config: Mapping[str, object], **_others: object) -> str:
    """Return a page for the site: links out of docs/ lead to the repository, or are plain words where its address is
    not known; the switch of languages is the site's."""
    text = _outside(_TWIN.sub("", markdown), config)
    return _CHINESE.sub(lambda found: f"]({found[1]}.md{found[2] or ''})", text)


def on_post_build(config: Mapping[str, object], **_others: object) -> None:
    """Lead the index for programs to the site's own pages."""
    index = Path(str(config["site_dir"])) / "llms.txt"
    index.write_text(_PAGE.sub(r"](\1/)", _outside(index.read_text(), config)))


def _outside(text: str, config: Mapping[str, object]) -> str:
    repository = str(config["repo_url"] or "").rstrip("/")

    def lead(found: re.Match[str]) -> str:
        path = posixpath.normpath(found[2]).removeprefix("../")
        return f"[{found[1]}]({repository}/blob/main/{path})" if repository else found[1]

    return _OUTSIDE.sub(lead, text)
