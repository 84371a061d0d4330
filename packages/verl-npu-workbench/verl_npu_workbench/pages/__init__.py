"""HTML pages from the templates in this folder; each is self-contained, without other files, network, or scripts."""

from __future__ import annotations

from pathlib import Path

__all__ = ["render"]


def render(template: str, **facts: object) -> str:
    """Render a page; text is escaped, and a variable that the template lacks is an error."""
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
