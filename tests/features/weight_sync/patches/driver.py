"""Runs a Ray driver with workers of its own on virtual NPUs, and reads the facts that it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from testing.interpreter import import_path

CONNECT = """
passed = {"PYTHONPATH": os.environ["FOLDER"] + os.pathsep + os.environ["PYTHONPATH"]}
ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": passed})
"""
"""The driver's connection, through which its workers find `ranked` as well."""

STAND_IN = """
import sys, types
from types import SimpleNamespace

def stand_in(model):
    # What verl's rollout is where vLLM's LLM is in its process, with a plain model inside.
    driver = SimpleNamespace(worker=SimpleNamespace(model_runner=SimpleNamespace(model=model)))
    executor = SimpleNamespace(driver_worker=driver)
    engine = SimpleNamespace(llm_engine=SimpleNamespace(model_executor=executor))
    for name in ("verl.utils.vllm", "verl.utils.vllm.patch"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["verl.utils.vllm.patch"].patch_vllm_moe_model_weight_loader = lambda model: None
    return SimpleNamespace(inference_engine=engine)
"""
"""A rollout without vLLM for verl's workers."""


_LIMIT = 1800
"""Seconds after which a driver counts as hanging. Driver and workers import torch and verl: 40 s in all on an idle
machine, over 550 s beside six busy processes on two cores, nearly all of it before the first weight is moved."""


def facts_of(driver: str, workers: str, folder: Path, npus: int, *paths: Path, **changes: str) -> Any:
    """Run `driver`, which finds `workers` as the module `ranked` and the paths, and return its facts."""
    (folder / "ranked.py").write_text(workers)
    environment = {
        **os.environ,
        "VIRTUAL_ASCEND": str(npus),
        "FOLDER": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": import_path(*paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "RAY_prestart_worker_first_driver": "0",
        **changes,
    }
    for name in ("RAY_ADDRESS", "ASCEND_RT_VISIBLE_DEVICES"):
        environment.pop(name, None)
    ended = subprocess.run(
        [sys.executable, "-c", driver], env=environment, capture_output=True, text=True, timeout=_LIMIT, check=False
    )
    assert ended.returncode == 0, ended.stderr[-6000:]
    return json.loads(ended.stdout.rpartition("FACTS ")[2])
