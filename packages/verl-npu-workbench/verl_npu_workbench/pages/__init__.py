"""Pages in HTML, from the templates beside this file: each needs nothing else, no file, no network and no script."""

from __future__ import annotations

from pathlib import Path

__all__ = ["render"]


def render(template: str, **facts: object) -> str:
    """Return a page; text is escaped, and a fact that the template does not get is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(facts)
