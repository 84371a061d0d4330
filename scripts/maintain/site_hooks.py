"""What mkdocs has to know of our pages: they are written for GitHub, where a page names its twin in the other language
and files outside of docs/. mkdocs calls these functions by their names."""

from __future__ import annotations

import posixpath
import re

__all__ = ["on_page_markdown"]

_REPOSITORY = "https://github.com/verl-npu/verl-npu/blob/main"
_TWIN = re.compile(r" ?\[(?:中文|English)\]\((?!http)[^)]+\)")
_OUTSIDE = re.compile(r"\]\((\.\./[^)\s]+)\)")
_CHINESE = re.compile(r"\]\(([\w./-]+)\.zh-CN\.md(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, **_others: object) -> str:
    """Return a page for the site: links out of docs/ lead to the repository, the switch of languages is the site's."""
    text = _TWIN.sub("", markdown)
    text = _OUTSIDE.sub(lambda found: f"]({_REPOSITORY}/{posixpath.normpath(found[1]).removeprefix('../')})", text)
    return _CHINESE.sub(lambda found: f"]({found[1]}.md{found[2] or ''})", text)
