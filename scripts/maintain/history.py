"""Judge upstream's own history: which of its commits changed a verdict, and for which patch.

    python scripts/maintain/history.py --repository FOLDER [--first COMMIT] [--last COMMIT] [--sample N] [--json FILE]

The repository may be a bare one, and must have the pins. Every commit of the main line that touches a file which a
patch is about is judged as `verl-npu check` would judge its tree, and a sample of the others. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import sources
from past import report
from past.objects import GitError, Objects
from past.walk import Judge, Said, commits, walk

from verl_npu.features import UPSTREAMS, load, locks_folder
from verl_npu.pins import PINS
from verl_npu.registry.judge.lock import read_locks
from verl_npu.registry.judge.verdict import judge
from verl_npu.registry.source.tree import SourceTree

VERL = UPSTREAMS[0]
_ENDS = [pin.commit for pin in PINS.values() if pin.commit]


def main() -> int:
    """Walk, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, required=True, help="a clone of verl, bare or not")
    parser.add_argument("--first", default=_ENDS[0], help="the commit to begin with")
    parser.add_argument("--last", default=_ENDS[-1], help="the commit to end with")
    parser.add_argument("--sample", type=int, default=100, help="how many of the other commits (default 100)")
    parser.add_argument("--transformers", default="4.57.6", help="the transformers beside it (default 4.57.6)")
    parser.add_argument("--json", type=Path, help="where to write the whole result")
    asked = parser.parse_args()

    start = time.monotonic()
    try:
        beside = SourceTree.at(sources.find("transformers", asked.transformers), ("transformers",))
        line = commits(asked.repository, asked.first, asked.last)
        with Objects(asked.repository) as objects:
            found = walk(line, asked.first, _judge(objects, beside), _watched(), asked.sample)
    except (GitError, sources.NotHere, sources.DownloadFailed) as error:
        print(f"history.py: {error}", file=sys.stderr)
        return 2
    if asked.json is not None:
        asked.json.write_text(json.dumps(report.as_json(found), indent=1) + "\n")
    print(report.as_markdown(found))
    print(f"history.py: {time.monotonic() - start:.0f} s", file=sys.stderr)
    return 0


def _judge(objects: Objects, beside: SourceTree) -> Judge:
    features = load()
    locks = {upstream.name: read_locks(locks_folder(), upstream.name) for upstream in UPSTREAMS}

    def judged(commit: str) -> Mapping[str, Said]:
        tree = objects.tree(commit, VERL.packages).with_packages(beside)
        _, verdicts = judge(features, UPSTREAMS, tree, locks)
        return {id: (str(verdict.state), verdict.reason) for id, verdict in verdicts.items()}

    return judged


def _watched() -> frozenset[str]:
    """Return the files that a patch is about."""
    locks = read_locks(locks_folder(), VERL.name)
    return frozenset(name for lock in locks for module in lock.files for name in _files(module))


def _files(module: str) -> tuple[str, str]:
    stem = module.replace(".", "/")
    return f"{stem}.py", f"{stem}/__init__.py"


if __name__ == "__main__":
    sys.exit(main())
