"""HTML pages, made from the templates in this folder. Each page is self-contained: it needs no other files, no
network, and no scripts."""

from __future__ import annotations

from pathlib import Path


def render(template: str, **facts: object) -> str:
    """Render an HTML page from a template. Values are escaped. Raises an error if the template uses a variable that is
    not in `facts`."""
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
