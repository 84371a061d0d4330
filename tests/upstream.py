"""Upstream's own CPU tests with verl-npu active and with it off: `python -m tests.upstream CHECKOUT [--virtual N]`.

Exits with 0 only if every test has the same outcome both times. Run it from a copy: it never writes to the checkout.
Tests that need a network, or a package that is missing here, fail both times, which is no difference.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from virtual_ascend.testing.junit import cases

SECONDS = 3000


def outcomes(checkout: Path, report: Path, changes: dict[str, str]) -> dict[str, str]:
    """Return each test's outcome by its name; raise RuntimeError where pytest did not get through."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_NPU", "RAY_"))}
    environment |= {k: v for k, v in os.environ.items() if k == "VIRTUAL_ASCEND_CACHE"}
    environment |= {"PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0", **changes}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--asyncio-mode=auto", "--tb=no"]
    command += ["--continue-on-collection-errors", "-o", "python_files=*_on_cpu.py", f"--junitxml={report}", "tests"]
    done = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if not report.is_file():
        raise RuntimeError(f"pytest ended with status {done.returncode} and no report: {done.stdout[-2000:]}")
    return {name: outcome for name, outcome, _ in cases(report)}


def main() -> int:
    """Run the tests both ways, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="a checkout of verl, or an unpacked wheel that has its tests")
    parser.add_argument("--virtual", type=int, default=0, help="virtual NPUs for both (default none)")
    asked = parser.parse_args()
    if not (asked.checkout / "tests").is_dir():
        parser.error(f"expected a folder with verl's tests/; found {asked.checkout}")
    npus = {"VIRTUAL_ASCEND": str(asked.virtual)} if asked.virtual else {}
    with tempfile.TemporaryDirectory(prefix="verl-tests-") as folder:
        results = {}
        for switch in ("off", "on"):
            copy = Path(folder) / switch / "verl"
            shutil.copytree(asked.checkout, copy, ignore=shutil.ignore_patterns(".git"))
            results[switch] = outcomes(copy, copy.parent / "report.xml", {"VERL_NPU": switch, **npus})
            print(f"VERL_NPU={switch}: {dict(sorted(Counter(results[switch].values()).items()))}", flush=True)
    off, on = results["off"], results["on"]
    differing = [name for name in sorted(off.keys() | on.keys()) if off.get(name) != on.get(name)]
    for name in differing:
        print(f"{name}: {off.get(name, 'not there')} without, {on.get(name, 'not there')} with")
    print(f"{len(off)} tests, {len(differing)} differ")
    return 1 if differing or not off else 0


if __name__ == "__main__":
    sys.exit(main())
