"""Determines how a rehearsal ended. For a failure, it determines where and when the failure happened and what is
responsible."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_npu import errors
from verl_npu.language import gettext as _
from verl_npu.language import ngettext

from ..logs.lines import Process, lines_of, process_of_file, uncoloured
from .training import Run


class Kind(str, enum.Enum):
    """The result of a rehearsal."""

    TRAINED = "trained"
    REFUSED = "refused"
    FAILED = "failed"


class Owner(str, enum.Enum):
    """The part that is likely responsible for a failure, based on where the error was raised."""

    SCRIPT = _("the script")
    UPSTREAM = "upstream"
    ENVIRONMENT = _("the environment")
    VIRTUAL = _("the virtual Ascend")
    OURS = "verl-npu"
    MACHINE = _("this machine")
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Failure:
    """The first error of a run."""

    error: str
    """The last line of the traceback: the exception and its text."""
    process: str
    phase: str
    owner: Owner
    raised_in: str
    """The file and line that raised it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a rehearsal, its steps, and its failure if there is one."""

    kind: Kind
    steps: int
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class _Trace:
    process: str
    frames: tuple[tuple[str, str, str], ...]
    """File, line, and function of each frame."""
    error: str
    logged: bool = False
    """Whether the traceback is part of a log message. The exception was then caught."""


_START = re.compile(r"(?P<logged>.*?)Traceback \(most recent call last\):$")
_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_ERROR = re.compile(
    r"^(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Failure|Warning)|Stop(?:Async)?Iteration"
    r"|[a-z_]\w*(?:\.\w+)*\.[A-Z]\w+)(?:: ?(?P<text>.*))?$"
)
"""A pattern for an error's name. The name has an ending that is usual in Python, or contains a module, such as
queue.Empty."""
_ECHOES = ("ray.exceptions", "RayTaskError", "ChildFailedError", "torch.distributed.elastic")
"""Errors that only repeat another process's error."""
_PHASES = (
    (_("saving a checkpoint"), r"save_checkpoint|_save_checkpoint"),
    (
        _("weight sync"),
        r"update_weights|sync_rollout_weights|rollout_mode|_generate_weights|checkpoint_engine|__enter__.*sharding",
    ),
    (_("updating the critic"), r"update_critic"),
    (_("updating the actor"), r"update_actor|update_policy|train_mini_batch|train_batch|training_step"),
    (_("reference log-probabilities"), r"compute_ref_log_prob|_compute_ref_log_prob"),
    ("log-probabilities", r"compute_log_prob|_compute_old_log_prob|infer_batch"),
    ("values", r"compute_values"),
    ("generation", r"generate_sequences|generate\b|_run_agent_loop|agent_loop"),
    ("reward", r"compute_reward|run_single|reward_fn|compute_score"),
    ("validation", r"_validate"),
    (_("loading data"), r"_create_dataloader|create_rl_dataset|_read_files_and_tokenize|_build_dataloader"),
    (
        _("building the models"),
        r"init_model|init_workers|_build_model_optimizer|_build_rollout|_build_engine|_init_engine",
    ),
    ("configuration", r"_run_hydra|compose|validate_config|instantiate"),
)
"""The phases, each with the functions in a traceback that identify it, the most specific phases first."""
_NAMES = frozenset(name for name in vars(errors) if name.endswith("Error"))


def judge(run: Run, asked: int, tree: Path) -> Outcome:
    """Return the outcome of a run that was requested with `asked` steps."""
    done = _done(run)
    if run.ended.status == 0 and not run.ended.limit and done >= asked:
        return Outcome(Kind.TRAINED, done, None)
    failure = _first_failure(run, tree)
    refused = failure.error.split(":")[0].rpartition(".")[2] in _NAMES and failure.owner is Owner.OURS
    return Outcome(Kind.REFUSED if refused else Kind.FAILED, done, failure)


def _first_failure(run: Run, tree: Path) -> Failure:
    traces = [trace for log in run.logs for trace in _traces(log)]
    traces = [trace for trace in traces if not trace.logged] or traces
    real = [trace for trace in traces if not any(echo in trace.error for echo in _ECHOES)] or traces
    if run.ended.limit:
        last = max(run.steps, default=0)
        return Failure(
            _("the job was stopped at step {last}: {limit}").format(limit=run.ended.limit, last=last),
            _("the job"),
            _phase_of(real),
            Owner.UNKNOWN,
            "",
        )
    if not real:
        said = run.logs[0].read_text(errors="replace").strip().splitlines()
        hydra = _hydra_line(said)
        owner = Owner.SCRIPT if hydra else Owner.UNKNOWN
        return Failure(hydra or _last_words(run, said), _("the driver"), "start", owner, "")
    first = real[0]
    file, line, _unused = first.frames[-1] if first.frames else ("", "", "")
    return Failure(
        first.error[:600], first.process, _phase_of([first]), _owner(first, tree), f"{file}:{line}" if file else ""
    )


def _last_words(run: Run, lines: Sequence[str]) -> str:
    line = next((line for line in reversed(lines) if line.strip()), "none")
    last = uncoloured(line)[:400]
    done = _done(run)
    ended = ngettext(
        "the job ended with status {status} after {done} step",
        "the job ended with status {status} after {done} steps",
        done,
    ).format(status=run.ended.status, done=done)
    return _("no error was found; {ended}; the last line: {last}").format(ended=ended, last=last)


def _done(run: Run) -> int:
    return sum(1 for step in run.steps if step >= 1)


def _hydra_line(lines: Sequence[str]) -> str:
    for line in lines:
        if line.startswith(("Could not override", "Error parsing override", "Key '", "In '", "Primary config")):
            return line[:400]
    return ""


def _phase_of(traces: Sequence[_Trace]) -> str:
    for trace in traces:
        functions = [function for _unused, _unused, function in trace.frames]
        for phase, pattern in _PHASES:
            if any(re.match(pattern, function) for function in functions):
                return phase
    return "start"


def _owner(trace: _Trace, tree: Path) -> Owner:
    name = trace.error.partition(":")[0].strip()
    if name in ("ModuleNotFoundError", "ImportError", "PackageNotFoundError") or "No module named" in trace.error:
        return Owner.ENVIRONMENT
    if "OutOfMemory" in name or "MemoryError" in name or "No space left" in trace.error:
        return Owner.MACHINE
    if name.startswith(("hydra.", "omegaconf.")):
        return Owner.SCRIPT
    # virtual-ascend has some errors with the same names as verl-npu's.
    if name.startswith("virtual_ascend.errors."):
        return Owner.VIRTUAL
    if name.rpartition(".")[2] in _NAMES:
        return Owner.OURS
    for file, _unused, _unused in reversed(trace.frames):
        if "/virtual_ascend/" in file or "/torch_npu/" in file:
            return Owner.VIRTUAL
        if "/verl_npu/" in file:
            return Owner.OURS
        if file.startswith(str(tree)) or "/verl/" in file or "/recipe/" in file:
            return Owner.UPSTREAM
        if "/megatron/" in file or "/mindspeed/" in file or "/mbridge/" in file or "/transformers/" in file:
            return Owner.UPSTREAM
    return Owner.UNKNOWN


def _traces(log: Path) -> Iterable[_Trace]:
    """Yield the tracebacks of a log in which the lines of several processes may be mixed."""
    open_traces: dict[str, list[tuple[str, str, str]]] = {}
    logged: dict[str, bool] = {}
    passed_on: dict[str, str] = {}
    with log.open(errors="replace") as source:
        for each in lines_of(source, process_of_file(log)):
            process, line = _named(each.process), each.text
            start = _START.match(line.strip())
            if start:
                open_traces[process] = []
                logged[process] = start["logged"].rstrip().endswith(":")
                continue
            if process not in open_traces:
                continue
            frame = _FRAME.match(line)
            if frame:
                open_traces[process].append((frame["file"], frame["line"], frame["function"]))
                continue
            error = _ERROR.match(line.strip() if not line.startswith(" ") else "")
            if error and "ray::" in line:
                # Ray repeats an error of another process, whose frames and text follow.
                passed_on[process] = line.strip()
                continue
            if error:
                yield _Trace(process, tuple(open_traces.pop(process)), line.strip(), logged[process])
                passed_on.pop(process, None)
    for process, line in passed_on.items():
        yield _Trace(process, tuple(open_traces.get(process, ())), line)


def _named(process: Process) -> str:
    """Return a process's name in Ray's notation."""
    known = f"pid={process.pid}" if process.pid else "", f"ip={process.ip}" if process.ip else ""
    return " ".join(filter(None, (process.name, _(", ").join(filter(None, known)))))
