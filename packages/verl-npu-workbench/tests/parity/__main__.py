"""The comparison with another transformers: `python -m tests.parity 4.52.4 [VERSION ...]`, one table for each.

Installs that transformers into a folder below ~/.cache/verl-npu, once. With 5.x no pin of verl
that needs our operators can be imported; an empty package stands in for verl there.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from verl_npu_workbench.prove.parity.compare import distances, failures

from .processes import side

_OLDER = ("tokenizers>=0.21,<0.22", "einops")
_NEWER = ("huggingface_hub>=1.5,<2", "typer", "shellingham", "hf-xet", "httpx", "httpcore", "h11", "anyio")


def installed(version: str) -> Path:
    """The folder of a transformers of `version`."""
    base = Path.home() / ".cache" / "verl-npu"
    folder = base / "transformers" / version
    if not (folder / "transformers" / "__init__.py").is_file():
        rest = _NEWER if version.startswith("5.") else _OLDER if version < "4.56" else ()
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*command, f"transformers=={version}", *rest], check=True)
    return folder


def compare(version: str) -> int:
    """Print a line for each case of one version; how many failed."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        folders, forced = [installed(version)], {}
        side("cpu", work / "cpu", folders)
        if version.startswith("5."):
            (work / "stub" / "verl").mkdir(parents=True)
            (work / "stub" / "verl" / "__init__.py").touch()
            folders, forced = [work / "stub", *folders], {"VERL_NPU_FORCE": "attention"}
        side("npu", work / "npu", folders, **forced)
        expected, found = (torch.load(work / side)["results"] for side in ("cpu", "npu"))
    failed = 0
    print(f"transformers {version}: largest relative distance of logits, gradients, weights after a step")
    for case, values in expected.items():
        wrong = failures(found[case], values, case.rpartition("-")[2])
        failed += bool(wrong)
        away = {"logits": 0.0, "grad": 0.0, "step": 0.0}
        for key, distance in distances(found[case]["values"], values["values"]):
            kind = key.partition(" ")[0]
            away[kind] = max(away[kind], distance)
        print(f"  {case:34} {away['logits']:.1e} {away['grad']:.1e} {away['step']:.1e}  {'FAILED' if wrong else 'ok'}")
        for line in wrong:
            print(f"      {line}")
    return failed


if __name__ == "__main__":
    sys.exit(1 if sum([compare(version) for version in sys.argv[1:]]) else 0)
