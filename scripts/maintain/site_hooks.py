"""What mkdocs has to know of our pages: they are written for a repository, where a page names its twin in the other
language and files outside of docs/. mkdocs calls these functions by their names."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

__all__ = ["on_page_markdown", "on_post_build"]

PROJECT = Path(__file__).resolve().parents[2]
_TWIN = re.compile(r" ?\[(?:中文|English)\]\((?!http)[^)]+\)")
_HOME = re.compile(r"\]\(\.\./(README(?:\.zh-CN)?\.md)")
_OUTSIDE = re.compile(r"\[([^\]]*)\]\((\.\./[^)\s]+)\)")
_CHINESE = re.compile(r"\]\(([\w./-]+)\.zh-CN\.md(#[^)\s]*)?\)")
_PAGE = re.compile(r"\]\(([\w-]+)\.md\)")
_BROKEN_LINE = re.compile(r"(?<=[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef])\n *(?=[\u4e00-\u9fff\uff08])")
"""A line break between two Chinese characters, which a browser would show as a blank."""
_INCLUDED = re.compile(r"<!-- on the site: \.\./(README[\w.-]*\.md) -->")
_BEGIN, _END = "<!-- the site's home has this too -->", "<!-- and no more -->"
_IN_DOCS = re.compile(r"\]\(docs/")
_BESIDE_DOCS = re.compile(r"\]\((?!https?:|#|\.\./)(?=[\w./-]*/|[A-Z]+\.md)")


def on_page_markdown(markdown: str, config: Mapping[str, object], **_others: object) -> str:
    """Return a page for the site: the home has the README's sections; links out of docs/ lead to the repository, or
    are plain words where its address is not known; the switch of languages is the site's.
    """
    text = _INCLUDED.sub(lambda found: _sections(PROJECT / found[1]), _TWIN.sub("", markdown))
    text = _outside(_HOME.sub(r"](\1", text), config)
    return _CHINESE.sub(lambda found: f"]({found[1]}.md{found[2] or ''})", _BROKEN_LINE.sub("", text))


def on_post_build(config: Mapping[str, object], **_others: object) -> None:
    """Lead the index for programs to the site's own pages."""
    index = Path(str(config["site_dir"])) / "llms.txt"
    text = index.read_text().replace("](../README.md)", "](./)")
    index.write_text(_PAGE.sub(r"](\1/)", _outside(text, config)))


def _sections(readme: Path) -> str:
    """What the home has of a README, with its links as a page of docs/ would write them."""
    kept = readme.read_text().partition(_BEGIN)[2].partition(_END)[0]
    return _IN_DOCS.sub("](", _BESIDE_DOCS.sub(r"](../", kept).replace("](../docs/", "](docs/")).strip()


def _outside(text: str, config: Mapping[str, object]) -> str:
    repository = str(config["repo_url"] or "").rstrip("/")

    def lead(found: re.Match[str]) -> str:
        path = posixpath.normpath(found[2]).removeprefix("../")
        return f"[{found[1]}]({repository}/blob/main/{path})" if repository else found[1]

    return _OUTSIDE.sub(lead, text)
