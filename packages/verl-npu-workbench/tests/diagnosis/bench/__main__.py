"""Prints for each part how many causes the diagnosis names, and the confusion table, in Markdown.

python -m tests.diagnosis.bench [known|unread|further] [--without-own]
python -m tests.diagnosis.bench --write

With --without-own each thread is judged without the rules that were written from it alone. This estimates, without the
unread part, how good the rules are on threads that they were not made from.
"""

from __future__ import annotations

import argparse
import sys

from . import Part, read
from .measure import ask, ask_without_own, markdown
from .page import PAGES, rendered

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", type=Part, default=list(Part))
    parser.add_argument("--without-own", action="store_true")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/reference/bench.md")
    given = parser.parse_args()
    if given.write:
        for language, page in PAGES.items():
            page.write_text(rendered(language), encoding="utf-8")
        sys.exit()
    asked = ask_without_own if given.without_own else ask
    print("\n\n".join(markdown(part.value, asked(read(part))) for part in given.parts))
