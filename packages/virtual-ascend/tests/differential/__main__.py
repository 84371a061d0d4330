"""Our own torch_npu against a wheel's: `python -m tests.differential WHEEL_FOLDER [--python PROGRAM] [--table]`.

WHEEL_FOLDER is the folder of a torch_npu from `pip install --no-deps --target`, PROGRAM a Python with the torch that
belongs to it. Fails if ours accepts anything that the wheel refuses. With --table it adds the counts to counts.json,
and rewrites the tables of the documentation.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import running, table
from .comparing import Kind, compared


def main() -> None:
    """Observe both, compare, and print the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, metavar="WHEEL_FOLDER")
    parser.add_argument("--python", default=sys.executable, metavar="PROGRAM")
    parser.add_argument("--table", action="store_true", help="rewrite the tables in docs/")
    parser.add_argument("--all", action="store_true", help="print what is no false yes as well")
    asked = parser.parse_args()
    version = running.version_of(asked.wheel)
    ours = running.observe(running.ours(version), asked.python)
    wheel = running.observe(running.wheel(asked.wheel), asked.python)
    found = compared(ours, wheel, running.used())
    for one in found:
        if one.kind is Kind.FALSE_YES or (asked.all and (one.kind is not Kind.EQUAL)):
            print(f"{one.kind.value}: {one.area}: {one.what}: {one.reason}")
    if asked.table:
        table.write(version, found)
    print(table.counts_table({version: table.summary(found)}))
    sys.exit(any(one.kind is Kind.FALSE_YES for one in found))


if __name__ == "__main__":
    main()
