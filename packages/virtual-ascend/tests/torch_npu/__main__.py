"""torch_npu's own tests on virtual NPUs: `python -m tests.torch_npu CHECKOUT FILE [FILE ...] [--npus N]`.

CHECKOUT is one of github.com/Ascend/pytorch, FILE a test or a folder below its test/, such as npu/test_npu.py or
distributed/_tensor. With --wheel they run under the torch_npu of a wheel, which `pip install --no-deps --target` put
into a folder. Runs from a copy. Prints the tests that passed and failed in each file, and why tests failed, the
commonest reason first: expected.json has the known results, reasons.py the reasons.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from virtual_ascend.operators import schemas

from . import expected

PROJECT = Path(__file__).resolve().parents[2]
PATIENCE = 600  # seconds for one test, unless they are given
_TEMPLATE = Path("torchnpugen/templates/npu_testing_utils.py")
# It checks the mode bits of files of expected values, and makes folders, without the device.
_PATHS = """
import os
class PathManager:
    @staticmethod
    def check_directory_path_readable(path): pass
    @staticmethod
    def make_dir_safety(path): os.makedirs(path, exist_ok=True)
"""


def prepared(checkout: Path, folder: Path) -> Path:
    """Copy the tests and the files that they import, and make the module that torch_npu's build generates."""
    shutil.copytree(checkout / "test", folder / "test")
    testing = folder / "torch_npu" / "testing"
    shutil.copytree(checkout / "torch_npu" / "testing", testing)
    (testing / "_npu_testing_utils.py").write_text((checkout / _TEMPLATE).read_text().replace("${skip_detail}", ""))
    (testing / "_internal" / "__init__.py").touch()
    (folder / "torch_npu" / "utils").mkdir()
    (folder / "torch_npu" / "utils" / "_path_manager.py").write_text(_PATHS)
    return folder / "test"


def outcomes(
    test: Path, file: Path, npus: int, seconds: float, wheel: Path | None = None, patience: int = PATIENCE
) -> list[dict[str, str]]:
    """Return the outcome of each test of one file, as `recording` writes it."""
    paths = [str(Path(__file__).with_name("site")), *([str(wheel.resolve())] if wheel else []), str(PROJECT)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VERL_NPU_") or k == "VIRTUAL_ASCEND_CACHE"}
    environment |= {"VIRTUAL_ASCEND": str(npus), "TORCH_NPU_TESTING": str(test.parent), "OMP_NUM_THREADS": "1"}
    results = test.parent / "results.jsonl"
    results.unlink(missing_ok=True)
    environment |= {"TORCH_NPU_RESULTS": str(results), "TORCH_NPU_SECONDS": str(patience)}
    environment["VIRTUAL_ASCEND_TORCH_NPU_VERSION"] = schemas.versions()[-1]  # the checkout may be newer still
    environment["VIRTUAL_ASCEND_TORCH_NPU"] = "real" if wheel else "ours"
    environment["VIRTUAL_ASCEND_MEMORY"] = "16"  # the tests fill it, and the host must have it
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "--tb=short"]
    # In a session of its own, so that processes that a test leaves behind end with it.
    process = subprocess.Popen(
        [*command, "-p", "tests.torch_npu.recording", str(file)],
        cwd=file.parent,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    over = ""
    try:
        process.wait(seconds)
        if process.returncode < 0:
            over = f"the process ended by signal {-process.returncode}"
    except subprocess.TimeoutExpired:
        over = f"not over after {seconds:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    found = [json.loads(line) for line in results.read_text().splitlines()] if results.is_file() else []
    if over or not found:
        found.append({"test": "(file)", "outcome": "failed", "reason": over or "no test ran", "text": ""})
    return found


def files(test: Path, asked: list[str]) -> Iterator[Path]:
    """Yield the requested files; raise SystemExit for one that is not there."""
    for name in asked:
        place = test / name
        if not place.exists():
            raise SystemExit(f"expected a file or folder below {test.name}/; found none called {name}")
        yield from sorted(place.rglob("test_*.py")) if place.is_dir() else [place]


def main() -> None:
    """Run the files one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--npus", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600, help="for one file (default 3600)")
    parser.add_argument("--patience", type=int, default=PATIENCE, help=f"seconds for one test (default {PATIENCE})")
    parser.add_argument("--expected", action="store_true", help="fail where it differs from expected.json")
    parser.add_argument("--save", type=Path, help="a folder for how each test ended")
    parser.add_argument("--wheel", type=Path, metavar="FOLDER", help="the torch_npu of a wheel in the place of ours")
    asked = parser.parse_args()
    if not (asked.checkout / "torch_npu" / "testing").is_dir() or not (asked.checkout / _TEMPLATE).is_file():
        parser.error(f"expected a checkout of github.com/Ascend/pytorch; found {asked.checkout}")
    known = expected.read()
    differ: list[str] = []
    total: Counter[str] = Counter()
    why: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="torch-npu-tests-") as folder:
        test = prepared(asked.checkout, Path(folder))
        for file in files(test, asked.files):
            found = outcomes(test, file, asked.npus, asked.seconds, asked.wheel, asked.patience)
            counts = Counter(one["outcome"] for one in found)
            total += counts
            why.update(one["reason"] for one in found if one["outcome"] == "failed")
            print(f"{file.relative_to(test)!s:60} {dict(sorted(counts.items()))}", flush=True)
            if asked.save is not None:
                asked.save.mkdir(parents=True, exist_ok=True)
                name = str(file.relative_to(test)).replace("/", "__") + ".json"
                (asked.save / name).write_text(json.dumps({"file": str(file.relative_to(test)), "tests": found}))
            if asked.expected:
                name = str(file.relative_to(test))
                ours = known.get(name, expected.File()) if asked.wheel else None
                differ += expected.differences(
                    name, ours.wheel if ours else known.get(name), expected.summarised(name, found, ours=ours)
                )
    print(f"SIMULATED, {asked.npus} virtual NPUs: {dict(sorted(total.items()))}")
    if asked.expected:
        sys.exit("\n".join(differ) if differ else None)
    for reason, count in why.most_common():
        print(f"{count:5} {reason[:160]}")


if __name__ == "__main__":
    main()
