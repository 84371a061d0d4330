"""PyTorch's own tests of devices on virtual NPUs: `python -m tests.pytorch CHECKOUT FILE [FILE ...]`.

CHECKOUT is one of github.com/pytorch/pytorch, of which the folder test/ is enough; FILE a test or a folder below it,
such as cpp_extensions/open_registration_extension/torch_openreg/tests (the tests of openreg, PyTorch's example of an
out-of-tree device), distributed/tensor or distributed/_composable/fsdp. Runs from a copy, in which only that example's
name is changed to ours (`openreg`, `torch.openreg`, `torch_openreg` to `npu`, `torch.npu`, `torch_npu`).

Prints the tests that passed and failed in each file, and why. reasons.py says why a test cannot pass here: a failure
without a reason, or a reason of a test that passes, is printed, and the run ends with 1. With `--cpu` each file also
runs on the CPU: a test that fails there as well says nothing of the device. `--table` rewrites the documentation's
table.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from virtual_ascend.testing.junit import cases

from .reasons import REASONS, reason

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT.parents[1] / "docs" / "reference"
BEGIN = "<!-- openreg: made by tests/pytorch -->"
END = "<!-- end of openreg -->"

# The virtual torch_npu is there from `import torch` on; a test may import it first.
PYTEST = "import sys, pytest, torch; sys.exit(pytest.main(sys.argv[1:]))"
FORKING = f"from tests import forking; forking.install(); {PYTEST}"

# The example device's names, and their names here.
NAMES = {
    "pytorch_openreg": "torch_npu",
    "torch_openreg": "torch_npu",
    "OPENREG": "NPU",
    "OpenReg": "NPU",
    "openreg": "npu",
}


def renamed(text: str) -> str:
    """Return a test's source with only the device's name changed."""
    for theirs, ours in NAMES.items():
        text = text.replace(theirs, ours)
    return text


def prepared(checkout: Path, file: Path, folder: Path) -> Path:
    """Copy the folder of a test, from which it may import, and change the device's name in the copy."""
    source = checkout / "test" / file
    copy = folder / file.parent
    if not copy.is_dir():
        shutil.copytree(source.parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for script in copy.rglob("*.py"):
            script.write_text(renamed(script.read_text()))
    return folder / file


def run(script: Path, npus: int, seconds: float) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the outcome, and the reason of each test of a file.

    With no NPUs, the tests that choose their device take the CPU.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VERL_NPU_") or k == "VIRTUAL_ASCEND_CACHE"}
    environment |= {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    environment |= {"VIRTUAL_ASCEND": str(npus)} if npus else {}
    report = script.with_suffix(".xml")
    program = FORKING if "distributed" in script.parts else PYTEST
    command = [sys.executable, "-c", program, "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "--tb=short"]
    try:
        ended = subprocess.run(
            [*command, f"--junitxml={report}", f"--rootdir={script.parent}", str(script)],
            cwd=script.parent,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        yield script.stem, "timed out", f"not done after {seconds:.0f} s"
        return
    if not report.is_file():
        yield script.stem, "no report", (ended.stderr or ended.stdout)[-160:]
        return
    for name, outcome, bad in cases(report):
        lines = [] if bad is None else [line[1:].strip() for line in (bad.text or "").splitlines() if line[:1] == "E"]
        said = "" if bad is None else next((line for line in lines if line), bad.get("message") or outcome)
        yield name.rpartition(".")[2], outcome, said[:200]


def failing(script: Path, seconds: float) -> Iterator[tuple[str, str]]:
    """Yield the tests of a file that fail on the CPU, and how."""
    for name, outcome, said in run(script, 0, seconds):
        if outcome not in ("passed", "skipped"):
            yield name, f"fails on the CPU too: {said}"


def files(test: Path, asked: list[str]) -> Iterator[Path]:
    """Yield the requested files, below `test`; raise SystemExit for one that is not there."""
    for name in asked:
        place = test / name
        if not place.exists():
            raise SystemExit(f"expected a file or folder below {test}; found none called {name}")
        for found in sorted(place.rglob("test_*.py")) if place.is_dir() else [place]:
            yield found.relative_to(test)


def table(rows: list[tuple[str, Counter[str], dict[str, list[str]]]]) -> str:
    """Return the documentation's table: for each file the passed tests, and the others by their reason."""
    lines = ["| file | passed | does not pass | reason |", "|---|---|---|---|"]
    for file, counts, bad in rows:
        lines.append(f"| `{file}` | {counts['passed']} | {sum(counts.values()) - counts['passed'] or ''} | |")
        lines += [f"| | | {', '.join(f'`{name}`' for name in names)} | {why} |" for why, names in bad.items()]
    return "\n".join(lines)


def main() -> int:
    """Run the files one after the other; return 1 where a result contradicts reasons.py."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--npus", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600, help="for one file (default 600)")
    parser.add_argument(
        "--cpu", action="store_true", help="run each file on the CPU too: what fails there is no finding"
    )
    parser.add_argument("--table", action="store_true", help="rewrite the table of the documentation")
    asked = parser.parse_args()
    test = asked.checkout / "test"
    if not test.is_dir():
        parser.error(f"expected a checkout of github.com/pytorch/pytorch; found no folder test in {asked.checkout}")
    rows: list[tuple[str, Counter[str], dict[str, list[str]]]] = []
    surprises = []
    with tempfile.TemporaryDirectory(prefix="pytorch-tests-") as folder:
        for file in files(test, asked.files):
            counts: Counter[str] = Counter()
            bad: dict[str, list[str]] = {}
            script = prepared(asked.checkout, file, Path(folder))
            host = dict(failing(script, asked.seconds)) if asked.cpu else {}
            for name, outcome, said in run(script, asked.npus, asked.seconds):
                counts[outcome] += 1
                full = f"{file.stem}::{name}"
                if outcome == "passed":
                    surprises += [f"{full}: passes, but reasons.py says why it cannot"] if full in REASONS else []
                    continue
                why = reason(full, f"PyTorch skips it: {said}" if outcome == "skipped" else host.get(name, ""))
                bad.setdefault(why, []).append(name.rpartition("::")[2])
                print(f"  {outcome:8} {full}: {why or said}", flush=True)
                surprises += [] if why else [f"{full}: {said}"]
            rows.append((file.name, counts, bad))
            print(f"{file!s:60} {dict(sorted(counts.items()))}", flush=True)
    total = sum((counts for _, counts, _ in rows), Counter())
    print(f"SIMULATED, {asked.npus} virtual NPUs: {dict(sorted(total.items()))}")
    print("\n".join(["not as reasons.py has it:", *surprises]) if surprises else "all as reasons.py has it")
    if asked.table and not surprises:
        for page in sorted(DOCS.glob("virtual-ascend*.md")):
            before, _, rest = page.read_text().partition(BEGIN)
            page.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{rest.partition(END)[2]}")
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
