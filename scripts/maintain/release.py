"""Gives the three distributions the version of a release. verl_npu/version.py states it; the other files follow.

python scripts/maintain/release.py 0.2.0                 set the version, and date the changelogs
python scripts/maintain/release.py --check               status 1 if a file has another version
python scripts/maintain/release.py --check --tag v0.2.0  status 1 also if the tag or a changelog does not match
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from pathlib import Path

# The scripts are not an installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from maintain.section import rewrite

PROJECT = Path(__file__).resolve().parents[2]
STATED = Path("verl_npu/version.py")
VERSIONS = (
    STATED,
    Path("packages/verl-npu-workbench/verl_npu_workbench/version.py"),
    Path("packages/virtual-ascend/virtual_ascend/version.py"),
)
REQUIREMENTS = (Path("pyproject.toml"), Path("packages/verl-npu-workbench/pyproject.toml"))
"""The files in which one distribution requires the same version of another."""
CHANGELOGS = (
    Path("CHANGELOG.md"),
    Path("packages/verl-npu-workbench/CHANGELOG.md"),
    Path("packages/virtual-ascend/CHANGELOG.md"),
)
_VERSION = re.compile(r'(?m)^(__version__ = ")(.*)(")$')
_REQUIRED = re.compile(r'(?m)("(?:verl-npu|verl-npu-workbench|virtual-ascend)==)(.*?)(")')
_HEADING = re.compile(r"(?m)^## \[.*$")


def stated(project: Path = PROJECT) -> str:
    """Return the version in verl_npu/version.py."""
    found = _VERSION.search((project / STATED).read_text())
    if found is None:
        raise ValueError(f'{STATED}: expected a line __version__ = "…"')
    return found[2]


def versioned(version: str, project: Path = PROJECT) -> dict[Path, str]:
    """Return the files that contain the version, with their texts for `version`."""
    found = {project / path: _VERSION.sub(rf"\g<1>{version}\g<3>", (project / path).read_text()) for path in VERSIONS}
    for path in REQUIREMENTS:
        found[project / path] = _REQUIRED.sub(rf"\g<1>{version}\g<3>", (project / path).read_text())
    return found


def dated(version: str, day: str, project: Path = PROJECT) -> dict[Path, str]:
    """Return the changelogs with `version` and `day` as the heading of their first section."""
    heading = f"## [{version}] - {day}"
    return {project / path: _HEADING.sub(heading, (project / path).read_text(), count=1) for path in CHANGELOGS}


def undated(version: str, project: Path = PROJECT) -> list[str]:
    """Return the changelogs whose first section is not that of `version`, or has no date."""
    expected = re.compile(rf"## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d")
    headings = {path: _HEADING.search((project / path).read_text()) for path in CHANGELOGS}
    return [str(path) for path, found in headings.items() if found is None or not expected.fullmatch(found[0])]


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", nargs="?", help="the version of the release, without v")
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 if a file does not match")
    parser.add_argument("--tag", help="with --check: the tag of the release, v and the version")
    asked = parser.parse_args()
    if asked.check == bool(asked.version) or (asked.tag and not asked.check):
        parser.error("expected VERSION, or --check and perhaps --tag. Give one of them")
    version = asked.version or stated()
    if asked.version:
        today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        return rewrite(versioned(version) | dated(version, today), check=False)
    status = rewrite(versioned(version), check=True)
    if asked.tag:
        if asked.tag != f"v{version}":
            print(f"expected the tag v{version}; found {asked.tag}", file=sys.stderr)
            status = 1
        for path in undated(version):
            print(f"{path}: expected the first section to be [{version}] with a date", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
