"""Each command with a job of its own: how long it says nothing, and how it ends by Ctrl-C.

python -m tests.tools.cli.real_jobs silence [COMMAND …]      the longest time without a word, beside busy loops
python -m tests.tools.cli.real_jobs interrupt [COMMAND …]    Ctrl-C at several moments of the job
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.interpreter import import_path

PROJECT = Path(__file__).resolve().parents[3]
STEPS = 2000
MANIFEST = {
    "host": "node0",
    "token": "0",
    "role": "WorkerDict",
    "version": "0.1.0",
    "active": True,
    "origin": "the entry point torch.backends",
    "simulated": True,
    "upstreams": {"verl": {"nearest_pin": "v0.6.1", "exact": True, "differs": []}},
    "features": {},
    "natives": {},
    "tainted": [],
    "seconds": 0.05,
}
VERDICTS = {"fits", "in order", "refused", "within", "outside", "no error"}


def _log(folder: Path, name: str = "train.log") -> str:
    lines = (
        f"step:{step} - critic/rewards/mean:0.{step} - perf/throughput:9.5 - timing_s/step:3.0"
        for step in range(1, STEPS)
    )
    (folder / name).write_text("\n".join(lines) + "\n")
    return name


def _manifests(folder: Path) -> str:
    from verl_npu.manifest import write_manifest

    for pid in range(500):
        write_manifest(folder / "manifests", {**MANIFEST, "pid": pid})  # type: ignore[typeddict-item]
    return "manifests"


def _script(folder: Path) -> str:
    (folder / "run.sh").write_text("sleep 3\npython3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8\n")
    return "run.sh"


def _port() -> str:
    return "http://127.0.0.1:9"


JOBS: dict[str, Callable[[Path], list[str]]] = {
    "check": lambda folder: ["check"],
    "check --script": lambda folder: ["check", "--script", _script(folder)],
    "compare": lambda folder: ["compare", _log(folder, "npu.log"), _log(folder, "gpu.log")],
    "container": lambda folder: ["container", "--pin", "v0.9.1", "--server", "a3", "--format", "docker-run"],
    "doctor": lambda folder: ["doctor"],
    "doctor --level import": lambda folder: ["doctor", "--level", "import"],
    "doctor --log": lambda folder: ["doctor", "--log", _log(folder)],
    "drift": lambda folder: ["drift", "--source", _verl()],
    "env": lambda folder: ["env", "--pin", "v0.7.1"],
    "explain": lambda folder: ["explain", "npu-memory"],
    "launch": lambda folder: ["launch", "--nodes", "2", "--head", "10.255.255.1", "--", "true"],
    "mindspeed": lambda folder: ["mindspeed", "--check", "use_flash_attn=True"],
    "plan": lambda folder: ["plan", _script(folder), "--output", "planned"],
    "rehearse": lambda folder: ["rehearse", _script(folder), "--output", "rehearsed"],
    "report": lambda folder: ["report", _log(folder)],
    "status": lambda folder: ["status", _manifests(folder)],
    "watch": lambda folder: ["watch", _log(folder)],
    "watch --once": lambda folder: ["watch", "--once", _log(folder)],
}
"""A call for each command that needs no engine, no checkpoint and no endpoint; those three have tests of their own."""
UNTIL_ENDED = {"launch", "watch"}
"""They go on until somebody ends them, and say nothing where nothing happens."""


def _verl() -> str:
    import importlib.util

    spec = importlib.util.find_spec("verl")
    if spec is None or spec.origin is None:
        raise SystemExit("expected an installed verl, found none")
    return str(Path(spec.origin).parents[1])


@dataclass(frozen=True)
class Ended:
    """How a command ended, and the longest time in which it said nothing."""

    status: int
    seconds: float
    silent: float
    output: str


def run(words: Sequence[str], folder: Path, ctrl_c_after: float | None = None) -> Ended:
    """Run a command of ours to its end, or until Ctrl-C."""
    environ = {**os.environ, "PYTHONPATH": import_path(PROJECT), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "verl_npu", *words]
    began = last = time.monotonic()
    silent, told, output = 0.0, ctrl_c_after is None, b""
    with (
        subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process,
        selectors.DefaultSelector() as watched,
    ):
        assert process.stdout is not None
        watched.register(process.stdout, selectors.EVENT_READ)
        while True:
            ready = watched.select(0.05)
            now = time.monotonic()
            if not told and ctrl_c_after is not None and now - began > ctrl_c_after:
                told = True
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGINT)
            if not ready:
                continue
            read = os.read(process.stdout.fileno(), 65536)
            silent, last = max(silent, now - last), now
            if not read:
                break
            output += read
        status = process.wait()
    return Ended(status, time.monotonic() - began, silent, output.decode(errors="replace"))


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Keep every core busy meanwhile, with two loops each."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def silence(names: Sequence[str]) -> Iterator[dict[str, object]]:
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            ended = run(JOBS[name](Path(scratch)), Path(scratch), 30.0 if name in UNTIL_ENDED else None)
        yield {"command": name, "seconds": round(ended.seconds, 1), "silent": round(ended.silent, 1)}


def interrupt(names: Sequence[str], moments: int = 3) -> Iterator[dict[str, object]]:
    """End each command at some moments of its job; what ended before is no trial."""
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            words = JOBS[name](Path(scratch))
            whole = run(words, Path(scratch), 20.0 if name in UNTIL_ENDED else None).seconds
            trials = []
            for _ in range(moments):
                ended = run(words, Path(scratch), random.uniform(0.3, 0.9) * whole)
                trials.append("ended before" if ended.seconds < 0.3 * whole else how(ended))
        yield {"command": name, "seconds": round(whole, 1), "ended": trials}


def how(ended: Ended) -> str:
    """In a word: right, if the status is 130 and nothing else was said than that it was ended."""
    if "Traceback" in ended.output:
        return "traceback"
    last = ended.output.splitlines()[-1:] or [""]
    if ended.status == 130 and last[0].startswith("verl-npu: ended by Ctrl-C"):
        return "130"
    return f"{ended.status}: {last[0][:80]}"


if __name__ == "__main__":
    what, *chosen = sys.argv[1:]
    with busy() if what == "silence" else contextlib.nullcontext():
        for found in {"silence": silence, "interrupt": interrupt}[what](chosen or [*JOBS]):
            print(json.dumps(found), flush=True)
