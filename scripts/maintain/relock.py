"""Writes every lock and diff in patches/ again, after a patch was added or changed.

    [VERL_NPU_UPSTREAMS=FOLDER] python scripts/maintain/relock.py [--upstream NAME] [--pin NAME]

Wheels are downloaded from PyPI. A pin that is in no registry, or that has recipes beside its package, is read from its
checkout in FOLDER; scripts/testing/fixtures.py says how the checkouts are named. If a checkout is missing, its lock
does not change, a line says so, and the status is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import sources

from verl_npu.features import UPSTREAMS, locks_folder
from verl_npu.maintain.__main__ import main as maintain


@dataclass(frozen=True)
class Heading:
    """The parts of a lock that are needed to write it again, in any schema."""

    upstream: str
    pin: str
    revision: str


def heading(path: Path) -> Heading:
    """Read the heading of a lock file."""
    content = json.loads(path.read_text())
    return Heading(content["upstream"], content["pin"], content["revision"])


def main() -> int:
    """Lock each pin that has a lock again, with the same name and revision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upstream", choices=[upstream.name for upstream in UPSTREAMS])
    parser.add_argument("--pin")
    asked = parser.parse_args()
    folder = locks_folder()
    locks = [heading(path) for upstream in UPSTREAMS for path in sorted((folder / upstream.name).glob("*/lock.json"))]
    wanted = [lock for lock in locks if asked.upstream in (None, lock.upstream) and asked.pin in (None, lock.pin)]
    if not wanted:
        print(f"relock.py: expected a pin that has a lock; found none called {asked.pin}", file=sys.stderr)
        return 2
    left = 0
    for lock in wanted:
        try:
            source = sources.find(lock.upstream, lock.pin)
        except (sources.SourceMissing, sources.DownloadFailed) as error:
            print(f"relock.py: not changed: {error}", file=sys.stderr)
            left += 1
            continue
        arguments = ["--upstream", lock.upstream, "--pin", lock.pin, "--revision", lock.revision, "--replace"]
        maintain(["lock", *arguments, "--source", str(source)], standalone_mode=False)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
