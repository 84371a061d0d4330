"""Each command with a job of its own: how long it says nothing, and how it ends by Ctrl-C and SIGTERM.

python -m tests.cli.real_jobs silence [COMMAND …]      the longest time without a word, beside busy loops
python -m tests.cli.real_jobs interrupt [COMMAND …]    each signal in the middle of the job, and what is left

COMMAND=SECONDS says how long a job takes, which is seen by a run of its own otherwise.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from testing.interpreter import import_path

WORKBENCH = Path(__file__).resolve().parents[2]
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


def _grpo(folder: Path) -> str:
    return str(shutil.copy(Path(__file__).parents[1] / "e2e" / "grpo.sh", folder))


def _checkpoint(folder: Path) -> str:
    """Two shards of a model of a few hundred MiB."""
    import torch

    from tests.checkpoint.conftest import CONFIG, model, rank_of, shard_of

    config = {**CONFIG, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8, "vocab_size": 50000}
    saved = folder / "checkpoints" / "global_step_3" / "actor"
    (saved / "huggingface").mkdir(parents=True)
    (saved / "huggingface" / "config.json").write_text(json.dumps(config))
    _tokenizer(saved / "huggingface")
    (saved / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 2}))
    for rank in range(2):
        with rank_of(rank, 2):
            torch.save(shard_of(model(config), (2,), ("fsdp",), rank), saved / f"model_world_size_2_rank_{rank}.pt")
    return "checkpoints"


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"<unk>": 0, "four": 1}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)


def _served(folder: Path) -> str:
    """A model, and in the place of vLLM's server a stand-in that needs 40 seconds and says nothing meanwhile."""
    from tests.serving.conftest import PROGRAM

    inner = folder / "vllm" / "entrypoints" / "openai"
    inner.mkdir(parents=True)
    for package in (inner, *inner.parents[:2]):
        (package / "__init__.py").touch()
    (inner / "api_server.py").write_text(PROGRAM.replace("HTTPServer((given", "time.sleep(40)\nHTTPServer((given"))
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"num_attention_heads": 4}')
    return "model"


@contextlib.contextmanager
def _endpoint() -> Iterator[str]:
    """An endpoint that needs 15 seconds for each answer."""
    from tests.evaluation.endpoint import serving

    def answer(request: object) -> str:
        time.sleep(15)
        return "4"

    with serving() as served:
        served.answer = answer
        yield served.url


def _asked(folder: Path, open_: contextlib.ExitStack) -> list[str]:
    import pyarrow
    import pyarrow.parquet

    from tests.evaluation.conftest import REWARD, row

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row(index) for index in range(8)]), folder / "sums.parquet")
    (folder / "reward.py").write_text(REWARD)
    url = open_.enter_context(_endpoint())
    return ["evaluate", "sums.parquet", "--url", url, "--reward", "reward.py", "--concurrency", "4"]


def _waiting(open_: contextlib.ExitStack) -> str:
    """A process that waits for ever: its id."""
    process = open_.enter_context(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100000)"]))
    open_.callback(process.kill)
    return str(process.pid)


def _own_address() -> str:
    """Return the address by which others would find this host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried:
        tried.connect(("198.51.100.1", 9))
        return str(tried.getsockname()[0])


Words = Callable[[Path, contextlib.ExitStack], list[str]]
JOBS: dict[str, Words] = {
    "check": lambda folder, _: ["check"],
    "lint": lambda folder, _: ["lint", _script(folder)],
    "compare": lambda folder, _: ["compare", _log(folder, "npu.log"), _log(folder, "gpu.log")],
    "setup": lambda folder, _: ["setup", "--pin", "v0.9.1", "--server", "a3", "--format", "docker-run"],
    "doctor": lambda folder, _: ["doctor"],
    "doctor --level device": lambda folder, _: ["doctor", "--level", "device"],
    "doctor --level import": lambda folder, _: ["doctor", "--level", "import"],
    "doctor --log": lambda folder, _: ["doctor", "--log", _log(folder)],
    "doctor --hang": lambda folder, open_: ["doctor", "--hang", _waiting(open_)],
    "env": lambda folder, _: ["env"],
    "evaluate": _asked,
    "explain": lambda folder, _: ["explain", "npu-memory"],
    "kernels": lambda folder, _: ["kernels", "--fresh", "verl.utils.kernel.kernels"],
    "launch": lambda folder, _: ["launch", "--nodes", "2", "--head", _own_address(), "--", "true"],
    "merge": lambda folder, _: ["merge", _checkpoint(folder)],
    "plan": lambda folder, _: ["plan", _grpo(folder), "--no-tries", "--output", "planned"],
    "prove": lambda folder, _: ["prove", "--minutes", "3"],
    "rehearse": lambda folder, _: ["rehearse", _grpo(folder), "--output", "rehearsed"],
    "report": lambda folder, _: ["doctor", "--report", "--log", _log(folder)],
    "serve": lambda folder, _: ["serve", _served(folder), "--port", str(_free_port())],
    "status": lambda folder, _: ["status", _manifests(folder)],
    "watch": lambda folder, _: ["watch", _log(folder)],
    "watch --once": lambda folder, _: ["watch", "--once", _log(folder)],
}
"""A call for each command."""
ON_VIRTUAL_NPUS = {"doctor --level device", "launch", "prove"}
UNTIL_ENDED = {"launch": 90.0, "watch": 60.0}
"""They go on until somebody ends them: after how many seconds that is done here."""
READY = {"serve": b"Ctrl-C ends it"}
"""What is said when there is nothing more to wait for: these are ended then."""


def _free_port() -> int:
    from verl_npu_workbench.processes import free_ports

    return free_ports(1)[0]


def _verl() -> str:
    import importlib.util

    spec = importlib.util.find_spec("verl")
    if spec is None or spec.origin is None:
        raise SystemExit("expected an installed verl, found none")
    return str(Path(spec.origin).parents[1])


@dataclass(frozen=True)
class Ended:
    """How a command ended, the longest time in which it said nothing, and how many of its processes it left."""

    status: int
    seconds: float
    silent: float
    after: str
    """What was said last before that time."""
    left: int
    output: str


def run(name: str, number: signal.Signals = signal.SIGINT, told_after: float | None = None) -> Ended:
    """Run a command with its job to its end, or until a signal."""
    with contextlib.ExitStack() as open_:
        folder = Path(open_.enter_context(tempfile.TemporaryDirectory()))
        words = JOBS[name](folder, open_)
        environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
        environ["PYTHONPATH"] = os.pathsep.join([import_path(WORKBENCH), *([str(folder)] if name == "serve" else [])])
        environ |= {"VIRTUAL_ASCEND": "2"} if name in ON_VIRTUAL_NPUS else {}
        earlier = _children()
        process = open_.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "verl_npu", *words],
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
        return _followed(process, number, told_after, READY.get(name), earlier)


def _followed(
    process: subprocess.Popen[bytes],
    number: signal.Signals,
    told_after: float | None,
    ready_when: bytes | None,
    earlier: set[int],
) -> Ended:
    assert process.stdout is not None
    began = last = time.monotonic()
    silent, told, after, output = 0.0, told_after is None and ready_when is None, "", b""
    with selectors.DefaultSelector() as watched:
        watched.register(process.stdout, selectors.EVENT_READ)
        while True:
            ready = watched.select(0.05)
            now = time.monotonic()
            over = told_after is not None and now - began > told_after
            if not told and (over or (ready_when is not None and ready_when in output)):
                told = True
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)
            if not ready:
                if process.poll() is None:
                    continue
                break  # what it has left holds its output open
            read = os.read(process.stdout.fileno(), 65536)
            if now - last > silent:
                silent, after = now - last, output.decode(errors="replace").strip().rpartition("\n")[2][:100]
            last = now
            if not read:
                break
            output += read
    status = process.wait()
    seconds = time.monotonic() - began
    time.sleep(1)
    left = len(_children() - earlier)
    return Ended(status, seconds, silent, after, left, output.decode(errors="replace"))


def _children() -> set[int]:
    """Return the processes that descend from this one, to which the kernel gives what a command leaves."""
    from verl_npu_workbench.processes import descendants

    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    running = set()
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                running.add(pid)
    return running


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Keep every core busy twice meanwhile, by loops where there is no other work."""
    lacking = max(0, 2 * (os.cpu_count() or 1) - round(os.getloadavg()[0]))
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(lacking)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def silence(names: Sequence[str]) -> Iterator[dict[str, object]]:
    for name in names:
        with busy():
            ended = run(name, told_after=UNTIL_ENDED.get(name))
        yield {
            "command": name,
            "status": ended.status,
            "seconds": round(ended.seconds, 1),
            "silent": round(ended.silent, 1),
            "after": ended.after,
            "load": round(os.getloadavg()[0], 1),
        }


def interrupt(names: Sequence[str]) -> Iterator[dict[str, object]]:
    """End each command by each signal at some moment of its job; what ended before is no trial."""
    for each in names:
        name, _, known = each.partition("=")
        whole = float(known) if known else UNTIL_ENDED.get(name) or run(name).seconds
        found: dict[str, object] = {"command": name, "seconds": round(whole, 1)}
        for number in (signal.SIGINT, signal.SIGTERM):
            moment = random.uniform(0.3, 0.8) * whole
            ended = run(name, number, moment)
            said = "ended before" if ended.seconds < moment else how(ended, number)
            found[number.name] = f"{said} (sent after {moment:.0f} s, ended {ended.seconds - moment:.1f} s later)"
        yield found


def how(ended: Ended, number: signal.Signals) -> str:
    """The status, if it is right and nothing was said of us but that it was ended, and nothing was left."""
    if ended.left:
        return f"{ended.status}, and {ended.left} processes left"
    if "Traceback" in ended.output:
        return f"{ended.status}, and a traceback"
    last = ended.output.splitlines()[-1:] or [""]
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    if ended.status == 128 + number and f"ended by {name}" in last[0]:
        return str(ended.status)
    return f"{ended.status}: {last[0][:80]}"


if __name__ == "__main__":
    what, *chosen = sys.argv[1:]
    for found in {"silence": silence, "interrupt": interrupt}[what](chosen or [*JOBS]):
        print(json.dumps(found, ensure_ascii=False), flush=True)
