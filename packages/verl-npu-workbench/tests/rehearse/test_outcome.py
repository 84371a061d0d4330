from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from verl_npu_workbench.rehearse.outcome import Failure, Kind, Outcome, Owner, judge
from verl_npu_workbench.rehearse.training import Run
from verl_npu_workbench.sandbox import Ended

TREE = Path("/src/tree")
Judged = Callable[..., Outcome]


def trace(error: str, *frames: str, prefix: str = "") -> list[str]:
    """Return the lines of a traceback: a frame is a file and a function."""
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        file, function = frame.split(" ")
        lines += [f'  File "{file}", line 7, in {function}', "    some(code)"]
    return [prefix + line for line in [*lines, error]]


@pytest.fixture
def judged(tmp_path: Path) -> Judged:
    """Return a function that judges a run of two steps that wrote these logs."""

    def of(
        *logs: Sequence[str], status: int = 1, limit: str = "", steps: int = 0, names: Sequence[str] = ()
    ) -> Outcome:
        paths = []
        for index, lines in enumerate(logs):
            name = names[index] if index < len(names) else "train.log" if index == 0 else f"worker-{index}.out"
            paths.append(tmp_path / name)
            paths[-1].write_text("\n".join([*lines, ""]))
        done = {step: {"score": 0.5} for step in range(1, steps + 1)}
        return judge(Run(Ended(status, b"", 1.0, limit), done, tuple(paths), ()), 2, TREE)

    return of


def failure(outcome: Outcome) -> Failure:
    assert outcome.kind is not Kind.TRAINED
    assert outcome.failure is not None
    return outcome.failure


def test_all_steps_and_status_0_are_a_training(judged: Judged) -> None:
    assert judged(["step:2 - score:0.5"], status=0, steps=2) == Outcome(Kind.TRAINED, 2, None)


@pytest.mark.parametrize(("status", "steps"), [(0, 1), (1, 2)])
def test_a_step_less_or_another_status_is_a_failure(judged: Judged, status: int, steps: int) -> None:
    found = judged(["\x1b[36m(WorkerDict pid=7)\x1b[0m the last line", ""], status=status, steps=steps)
    assert (found.kind, found.steps) == (Kind.FAILED, steps)
    ended = f"no error was found; the job ended with status {status} after {steps} step{'s' if steps > 1 else ''}"
    assert failure(found).error == f"{ended}; the last line: (WorkerDict pid=7) the last line"


def test_errors_that_a_script_survives_do_not_count(judged: Judged) -> None:
    assert judged(trace("ValueError: caught", "/src/tree/verl/x.py f"), status=0, steps=2).kind is Kind.TRAINED


def test_the_first_error_is_the_one_that_counts(judged: Judged) -> None:
    lines = [
        *trace("ValueError: first", "/src/tree/verl/a.py f"),
        *trace("KeyError: 'second'", "/src/tree/verl/b.py g"),
    ]
    assert failure(judged(lines)).error == "ValueError: first"
    assert failure(judged(lines)).raised_in == "/src/tree/verl/a.py:7"


@pytest.mark.parametrize(
    "error", ["omegaconf.errors.MissingMandatoryValue: Missing mandatory value: a.b", "queue.Empty", "StopIteration"]
)
def test_an_error_need_not_be_called_one(judged: Judged, error: str) -> None:
    lines = [*trace(error, "/src/tree/verl/a.py f"), "    full_key: a.b", "    object_type=dict"]
    assert failure(judged(lines)).error == error


@pytest.mark.parametrize("line", ["done: 5", "Epoch 1: loss", "step:2 - score:0.5", "file.py:3: a warning"])
def test_other_lines_between_are_no_errors(judged: Judged, line: str) -> None:
    lines = trace("ValueError: first", "/src/tree/verl/a.py f")
    assert failure(judged([*lines[:-1], line, lines[-1]])).error == "ValueError: first"


ECHOES = {
    "Ray's own": "ray.exceptions.RayTaskError(ValueError): ray::TaskRunner.run() (pid=3)",
    "torchrun's": "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "a dead actor": "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
}


@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES.keys())
def test_what_only_passes_an_error_on_is_not_the_first(judged: Judged, echo: str) -> None:
    driver = trace(echo, "/src/tree/verl/trainer/main_ppo.py main")
    worker = trace("ValueError: the cause", "/src/tree/verl/workers/w.py update_actor", prefix="(WorkerDict pid=5) ")
    found = failure(judged([*driver, *worker]))
    assert (found.error, found.process) == ("ValueError: the cause", "WorkerDict pid=5")


def test_the_cause_that_ray_writes_below_its_own_error_counts(judged: Judged) -> None:
    lines = trace("ray.exceptions.ActorDiedError: The actor died: ray::WorkerDict.__init__() (pid=5)", "/x.py f")
    lines += ['  File "/src/tree/verl/workers/w.py", line 7, in init_model', "ValueError: the cause"]
    assert failure(judged(lines)).error == "ValueError: the cause"


def test_an_echo_is_better_than_nothing(judged: Judged) -> None:
    assert "ActorDiedError" in failure(judged(trace(ECHOES["a dead actor"], "/x.py f"))).error


def test_tracebacks_of_processes_that_are_mixed_are_told_apart(judged: Judged) -> None:
    first = trace("ValueError: one", "/src/tree/verl/a.py f", prefix="(A pid=1) ")
    second = trace("KeyError: 'two'", "/src/tree/verl/b.py g", prefix="(B pid=2) ")
    mixed = [line for pair in zip(second, first, strict=True) for line in pair]
    found = failure(judged(mixed))
    assert (found.error, found.process, found.raised_in) == ("KeyError: 'two'", "B pid=2", "/src/tree/verl/b.py:7")


@pytest.mark.parametrize(
    ("prefix", "process"),
    [
        ("(WorkerDict pid=5) ", "WorkerDict pid=5"),
        ("\x1b[36m(WorkerDict pid=5)\x1b[0m ", "WorkerDict pid=5"),
        ("(WorkerDict pid=5, ip=10.0.0.1) ", "WorkerDict pid=5, ip=10.0.0.1"),
        ("", "the driver"),
    ],
)
def test_the_process_is_who_printed_it(judged: Judged, prefix: str, process: str) -> None:
    assert failure(judged(trace("ValueError: x", "/x.py f", prefix=prefix))).process == process


def test_a_workers_own_log_names_the_worker(judged: Judged) -> None:
    found = failure(judged([], trace("ValueError: x", "/x.py f"), names=["train.log", "worker-ab12-cd34-99.err"]))
    assert found.process == "worker pid=99"


PHASES = {
    "update_actor": "updating the actor",
    "update_critic": "updating the critic",
    "compute_ref_log_prob": "reference log-probabilities",
    "compute_log_prob": "log-probabilities",
    "generate_sequences": "generation",
    "save_checkpoint": "saving a checkpoint",
    "init_model": "building the models",
    "rollout_mode": "weight sync",
    "_create_dataloader": "loading data",
    "something": "start",
}


@pytest.mark.parametrize(("function", "phase"), PHASES.items())
def test_the_phase_is_told_by_the_functions_on_the_way(judged: Judged, function: str, phase: str) -> None:
    lines = trace("ValueError: x", "/src/tree/verl/m.py main", f"/src/tree/verl/w.py {function}", "/lib/torch/t.py f")
    assert failure(judged(lines)).phase == phase


OWNERS = {
    "the tree": ("ValueError: x", "/src/tree/verl/w.py f", Owner.UPSTREAM),
    "an installed verl": ("ValueError: x", "/lib/site-packages/verl/w.py f", Owner.UPSTREAM),
    "a recipe": ("ValueError: x", "/src/recipe/dapo/main.py f", Owner.UPSTREAM),
    "megatron": ("ValueError: x", "/lib/megatron/core/x.py f", Owner.UPSTREAM),
    "us": ("KeyError: 'x'", "/src/verl_npu/features/x.py f", Owner.OURS),
    "our refusal": ("verl_npu.errors.JobSettingError: x: expected y", "/src/verl_npu/features/x.py f", Owner.OURS),
    "the virtual Ascend": ("KeyError: 'x'", "/src/packages/virtual-ascend/virtual_ascend/x.py f", Owner.VIRTUAL),
    "its own error": ("virtual_ascend.errors.SettingError: x", "/src/tree/verl/x.py f", Owner.VIRTUAL),
    "a package that is missing": (
        "ModuleNotFoundError: No module named 'x'",
        "/src/tree/verl/x.py f",
        Owner.ENVIRONMENT,
    ),
    "a name that is missing": ("ImportError: cannot import name 'x'", "/src/tree/verl/x.py f", Owner.ENVIRONMENT),
    "memory": ("MemoryError: ", "/src/tree/verl/x.py f", Owner.MACHINE),
    "the disk": ("OSError: [Errno 28] No space left on device", "/src/tree/verl/x.py f", Owner.MACHINE),
    "Hydra": (
        "omegaconf.errors.ConfigAttributeError: Key 'x' is not in struct",
        "/lib/omegaconf/x.py f",
        Owner.SCRIPT,
    ),
    "nobody that is known": ("ValueError: x", "/lib/other/x.py f", Owner.UNKNOWN),
}


@pytest.mark.parametrize(("error", "frame", "owner"), OWNERS.values(), ids=OWNERS.keys())
def test_the_owner_follows_the_frame(judged: Judged, error: str, frame: str, owner: Owner) -> None:
    assert failure(judged(trace(error, frame))).owner is owner


def test_the_innermost_frame_that_is_known_owns_an_error(judged: Judged) -> None:
    lines = trace("ValueError: x", "/src/tree/verl/m.py main", "/src/verl_npu/features/f.py g", "/lib/torch/t.py h")
    assert failure(judged(lines)).owner is Owner.OURS


def test_a_refusal_of_ours_is_no_failure(judged: Judged) -> None:
    lines = trace("verl_npu.errors.JobSettingError: swap_optimizer: expected bool", "/src/verl_npu/features/x.py f")
    assert judged(lines).kind is Kind.REFUSED


def test_a_bug_of_ours_is_a_failure(judged: Judged) -> None:
    assert judged(trace("KeyError: 'x'", "/src/verl_npu/features/x.py f")).kind is Kind.FAILED


def test_what_hydra_says_without_a_traceback_is_the_scripts(judged: Judged) -> None:
    found = failure(
        judged(["Could not override 'trainer.nodes'.", "Key 'nodes' is not in struct", "", "Set the environment…"])
    )
    assert (found.error, found.owner) == ("Could not override 'trainer.nodes'.", Owner.SCRIPT)


def test_a_run_that_does_not_end_tells_how_far_it_came(judged: Judged) -> None:
    found = failure(judged([], status=-9, limit="a program that was still running after 900 s", steps=1))
    assert found.error == "the job was stopped at step 1: a program that was still running after 900 s"


def test_what_a_message_of_a_log_quotes_is_not_the_first_error(judged: Judged) -> None:
    quoted = trace("AttributeError: no such name", "/src/tree/import_utils.py safe_import")
    quoted[0] = f"Import of apex failed with: {quoted[0]}"
    found = judged([*quoted, *trace("RuntimeError: the first that ends it", "/src/tree/a.py f")])
    assert failure(found).error == "RuntimeError: the first that ends it"


def test_a_quoted_error_is_named_if_there_is_no_other(judged: Judged) -> None:
    quoted = trace("AttributeError: no such name", "/src/tree/import_utils.py safe_import")
    assert failure(judged([f"failed with: {quoted[0]}", *quoted[1:]])).error == "AttributeError: no such name"


def test_lines_of_a_rank_are_read(judged: Judged) -> None:
    assert failure(judged(trace("ValueError: x", "/src/tree/a.py f", prefix="[rank0]: "))).error == "ValueError: x"


def test_a_run_that_says_nothing_has_its_status(judged: Judged) -> None:
    assert "the job ended with status 139 after 0 steps; the last line: none" in failure(judged([], status=139)).error


def test_a_log_that_is_no_text_is_read_all_the_same(tmp_path: Path) -> None:
    log = tmp_path / "binary.log"
    log.write_bytes(b"\xff\xfe\n" + "\n".join(trace("ValueError: x", "/x.py f")).encode() + b"\n")
    found = judge(Run(Ended(1, b"", 1.0), {}, (log,), ()), 2, TREE)
    assert failure(found).error == "ValueError: x"
