"""torch_npu's own tests on virtual NPUs: `python -m tests.torch_npu CHECKOUT FILE [FILE ...] [--npus N]`.

CHECKOUT is one of github.com/Ascend/pytorch, FILE a test or a folder below its test/, such as npu/test_npu.py or
distributed/_tensor. Runs from a copy. Prints what passed and failed in each file, and why tests failed, the commonest
reason first. What fails is not implemented here, or wrong here, or about the chip itself: a person has to look.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ..junit import cases

PROJECT = Path(__file__).resolve().parents[2]
_TEMPLATE = Path("torchnpugen/templates/npu_testing_utils.py")
# It checks the mode bits of files of expected values: nothing of the device.
_PATHS = "class PathManager:\n    @staticmethod\n    def check_directory_path_readable(path): pass\n"


def prepared(checkout: Path, folder: Path) -> Path:
    """Copy the tests and what they import; a module that torch_npu's build generates is made, with nothing skipped."""
    shutil.copytree(checkout / "test", folder / "test")
    testing = folder / "torch_npu" / "testing"
    shutil.copytree(checkout / "torch_npu" / "testing", testing)
    (testing / "_npu_testing_utils.py").write_text((checkout / _TEMPLATE).read_text().replace("${skip_detail}", ""))
    (testing / "_internal" / "__init__.py").touch()
    (folder / "torch_npu" / "utils").mkdir()
    (folder / "torch_npu" / "utils" / "_path_manager.py").write_text(_PATHS)
    return folder / "test"


def outcomes(test: Path, file: Path, npus: int, seconds: float) -> tuple[Counter[str], list[str]]:
    """How the tests of one file ended, and the reasons of those that failed."""
    paths = [str(Path(__file__).with_name("site")), str(PROJECT)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VERL_NPU_") or k == "VERL_NPU_CACHE"}
    environment |= {"VERL_NPU_VIRTUAL": str(npus), "TORCH_NPU_TESTING": str(test.parent), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    report = test.parent / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "--tb=short"]
    try:
        subprocess.run(
            [*command, f"--junitxml={report}", str(file)],
            cwd=file.parent,
            env=environment,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Counter({"timed out": 1}), []
    if not report.is_file():
        return Counter({"no report": 1}), []
    counts: Counter[str] = Counter()
    reasons = []
    for _, outcome, bad in cases(report):
        counts[outcome] += 1
        if bad is not None and outcome != "skipped":
            said = [line[1:].strip() for line in (bad.text or "").splitlines() if line.startswith("E ")]
            said = [line for line in said if line] or [bad.get("message") or outcome]
            # What a process of a group raised stands at the end of the traceback that it sent.
            raised = [line for line in said if re.match(r"[\w.]+(Error|Exception)\b", line)]
            reasons.append((raised[-1] if said[0].endswith("exception:") and raised else said[0])[:160])
    return counts, reasons


def files(test: Path, asked: list[str]) -> Iterator[Path]:
    """The files that were asked for; raises SystemExit for one that is not there."""
    for name in asked:
        place = test / name
        if not place.exists():
            raise SystemExit(f"expected a file or folder below {test.name}/, found none called {name}")
        yield from sorted(place.rglob("test_*.py")) if place.is_dir() else [place]


def main() -> None:
    """Run them, one file after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--npus", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600, help="for one file (default 600)")
    asked = parser.parse_args()
    if not (asked.checkout / "torch_npu" / "testing").is_dir() or not (asked.checkout / _TEMPLATE).is_file():
        parser.error(f"expected a checkout of github.com/Ascend/pytorch, found {asked.checkout}")
    total: Counter[str] = Counter()
    why: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="torch-npu-tests-") as folder:
        test = prepared(asked.checkout, Path(folder))
        for file in files(test, asked.files):
            counts, reasons = outcomes(test, file, asked.npus, asked.seconds)
            total += counts
            why.update(reasons)
            print(f"{file.relative_to(test)!s:60} {dict(sorted(counts.items()))}", flush=True)
    print(f"SIMULATED, {asked.npus} virtual NPUs: {dict(sorted(total.items()))}")
    for reason, count in why.most_common():
        print(f"{count:5} {reason}")


if __name__ == "__main__":
    main()
