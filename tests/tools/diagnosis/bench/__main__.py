"""Prints for each part how many causes the diagnosis names, and the confusion table, in Markdown.

python -m tests.tools.diagnosis.bench [known|unread]
"""

from __future__ import annotations

import sys

from . import Part, read
from .measure import ask, markdown

if __name__ == "__main__":
    chosen = [Part(name) for name in sys.argv[1:]] or list(Part)
    print("\n\n".join(markdown(part.value, ask(read(part))) for part in chosen))
