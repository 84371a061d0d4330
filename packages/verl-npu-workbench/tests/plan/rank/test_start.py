from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from verl_npu_workbench.plan.job import Part, Started, StartJob  # torch may not be there
from verl_npu_workbench.plan.rank import start as module

from ..conftest import job_of

JOB = StartJob(rank=job_of(tree="/nowhere"), module="verl.trainer.main", arguments=(), overrides={}, rows=1)
RUN = """
class Refused(Exception):
    pass

def run():
    int("1k")

def look_up(name):
    assert name in ("vllm",), f"no {name}"

def read():
    open("/nowhere/data")

def allocate():
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes")

def reserve():
    raise RuntimeError("cannot reserve 64 bytes of addresses for a phantom on the host: Cannot allocate memory")

def make_another_model():
    try:
        allocate()
    except BaseException as error:
        raise RuntimeError("no value head, please install trl") from error

def ask_for_a_package():
    raise ImportError("please install modelscope")

def import_the_engine():
    raise ValueError("vllm version None not supported and SGLang also not Found.")

def import_by_name(name):
    try:
        __import__(name)
    except ImportError as error:
        raise ImportError(f"cannot import {name}") from error

def import_what_is_missing():
    import a_package_that_nobody_has

def launch_without_triton():
    from verl_npu.errors import UnavailableError
    error = UnavailableError(subject="the kernels", found="Triton is not installed", fix="install it")
    error.name = "triton"
    raise error

def import_what_the_revision_lacks():
    import verl.no_such_module

def import_a_name_that_the_revision_lacks():
    from verl import no_such_name

def make(instantiate):
    instantiate()

def load_a_reward_function():
    try:
        import_what_is_missing()
    except Exception as error:
        raise RuntimeError(f"Error loading module: {error}") from error
"""


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a module of a verl that is not installed."""
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl/__init__.py").touch()
    (tmp_path / "verl/made_up.py").write_text(RUN)
    kept = {name: each for name, each in sys.modules.items() if name.partition(".")[0] == "verl"}
    for name in kept:
        del sys.modules[name]
    monkeypatch.syspath_prepend(str(tmp_path))
    yield __import__("verl.made_up").made_up
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        del sys.modules[name]
    sys.modules.update(kept)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Started]:
    """Return a function that starts a job whose parts are these functions."""

    def run(*parts: Callable[[], object]) -> Started:
        monkeypatch.setattr(module._Start, "parts", lambda start: zip(Part, parts, strict=False))
        return module.start(JOB, recording=None, folder="")  # type: ignore[arg-type]

    return run


def test_what_upstream_raises_is_the_verdict_with_its_line(started: Callable[..., Started], upstream: Any) -> None:
    told = started(module._nothing, lambda: upstream.look_up("vlm"))
    assert (told.part, told.error) == (Part.DATA.value, "AssertionError: no vlm")
    assert list(told.passed) == [Part.PROGRAM.value]
    assert told.where.endswith("verl/made_up.py:9")
    assert told.code.startswith("assert name in")
    assert told.host > 0


def test_the_line_is_upstreams_where_something_else_raises(started: Callable[..., Started], upstream: Any) -> None:
    assert started(upstream.run).where.endswith("verl/made_up.py:6")


class _OfHydra(Exception):
    __module__ = "hydra.errors"


def test_the_line_is_upstreams_where_hydra_makes_an_object(started: Callable[..., Started], upstream: Any) -> None:
    def instantiate() -> None:
        try:
            raise TypeError("an unexpected keyword argument")
        except TypeError as error:
            raise _OfHydra from error

    told = started(lambda: upstream.make(instantiate))
    assert (told.error, told.code) == ("TypeError: an unexpected keyword argument", "instantiate()")
    assert told.where.endswith("verl/made_up.py:54")


def test_where_it_is_stopped_a_part_has_passed(started: Callable[..., Started]) -> None:
    assert list(started(module._reached).passed) == [Part.PROGRAM.value]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("read", "FileNotFoundError"),
        ("allocate", "can't allocate memory"),
        ("reserve", "cannot reserve"),
        ("make_another_model", "no value head"),
        ("ask_for_a_package", "please install modelscope"),
        ("import_the_engine", "vllm version None"),
        ("import_what_is_missing", "a_package_that_nobody_has"),
        ("load_a_reward_function", "a_package_that_nobody_has"),
        ("launch_without_triton", "Triton is not installed"),
    ],
)
def test_what_is_not_here_says_nothing_of_the_script(
    name: str, said: str, started: Callable[..., Started], upstream: Any
) -> None:
    told = started(getattr(upstream, name), module._nothing)
    assert (told.error, list(told.passed)) == ("", [Part.DATA.value])
    assert said in told.missing[0]


@pytest.mark.parametrize(
    ("package", "said"),
    [
        ("verl.checkpoint_engine", "Checkpoint engine {} not registered, registered backends: ['naive']"),
        ("verl.workers.engine", "Unknown backend: {}"),
    ],
)
@pytest.mark.parametrize(("backend", "refused"), [("nccl", False), ("naive", True), ("hccl", True)])
def test_a_name_whose_module_cannot_be_imported_here_is_not_judged(
    package: str, said: str, backend: str, refused: bool, started: Callable[..., Started], upstream: Any
) -> None:
    folder = Path(upstream.__file__).parent.parent.joinpath(*package.split("."))
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").write_text("from . import naive\n")
    (folder / "naive.py").write_text('register = lambda name: name\nregister("naive")\n')
    (folder / "hccl_engine.py").write_text('@Registry.register(kind="any", backend=["nccl"])\nclass Engine: ...\n')

    def look_up() -> None:
        raise ValueError(said.format(backend))

    assert bool(started(look_up).error) is refused


@pytest.mark.parametrize(
    ("name", "is_here", "parts", "notes"),
    [
        ("vllm", True, [Part.ENGINE, Part.BATCH], 0),
        ("vllm", False, [Part.BATCH], 0),
        ("sglang", True, [Part.BATCH], 1),
    ],
)
def test_an_engine_whose_arguments_cannot_be_tried_has_not_passed(
    name: str, is_here: bool, parts: list[Part], notes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {module.ROLES: SimpleNamespace(rollout=SimpleNamespace(name=name))}
    monkeypatch.setattr(module, "configuration", lambda rank: config)
    monkeypatch.setattr(module, "is_installed", lambda package: is_here)
    monkeypatch.setattr(module._Start, "_load", lambda start: setattr(start, "_workers", object()))
    missing: list[str] = []
    start = module._Start(JOB, None, "", missing)  # type: ignore[arg-type]
    tried = []
    for part, run in start.parts():
        tried.append(part)
        if part is Part.WORKERS:
            run()
    assert (tried[2:], len(missing)) == (parts, notes)


class _Dataset:
    """A dataset of verl's, whose rows have a prompt."""

    __module__ = "verl.utils.dataset"

    def __init__(self, rows: int, readable: bool) -> None:
        self.prompt_key, self._rows, self._readable = "question", rows, readable

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, place: int) -> str:
        if place >= self._rows or not self._readable:
            raise IndexError(f"no row {place}")
        return {"prompt": "Why?"}[self.prompt_key]


class _Trainer:
    """A trainer that may refuse its checkpoint."""

    def __init__(self, rows: int = 2, readable: bool = True, resumes: bool = True) -> None:
        self.resumes = resumes
        self.batches: list[list[str]] = []
        self.train_dataloader = SimpleNamespace(dataset=_Dataset(rows, readable), collate_fn=self.batches.append)

    def _load_checkpoint(self) -> None:
        self.actor_rollout_wg.load_checkpoint("folder")  # type: ignore[attr-defined]
        self.critic_wg.load_checkpoint.remote("folder")  # type: ignore[attr-defined]
        assert self.resumes, "resume ckpt must specify the global_steps"


def test_a_trainer_that_was_made_reads_its_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = _Trainer.__new__(_Trainer)
    monkeypatch.setattr(module._Start, "_program", lambda start: start._keeping(_Trainer.__init__)(trainer))
    start = module._Start(JOB, None, "", [])  # type: ignore[arg-type]
    for part, run in start.parts():
        run()
        if part is Part.DATA:
            break
    assert trainer.batches == [["Why?", "Why?"]]


def test_a_program_writes_its_events_to_the_folder_of_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "main.py"
    program.write_text('import os, pathlib; pathlib.Path(os.environ["TENSORBOARD_DIR"], "events").touch()')
    monkeypatch.setattr(module, "_answer_for_ray", module._nothing)
    monkeypatch.setattr(module, "_imported", module._nothing)
    monkeypatch.setattr("verl_npu_workbench.rehearse.preparation.write_questions", lambda *_, **__: ("train", "test"))
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("HYDRA_FULL_ERROR", "TENSORBOARD_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    (tmp_path / "folder").mkdir()
    start = module._Start(dataclasses.replace(JOB, module=str(program)), None, str(tmp_path / "folder"), [])  # type: ignore[arg-type]
    start._program()
    assert (tmp_path / "folder/events").exists()


def test_a_trainer_that_makes_itself_is_kept_with_its_workers() -> None:
    class Trainer:
        def init_workers(self) -> None: ...

    class Own(Trainer):
        def __init__(self) -> None: ...

    start = module._Start(JOB, None, "", [])  # type: ignore[arg-type]
    start._keep(Trainer)
    trainer = Own()
    trainer.init_workers()
    assert start._trainer is trainer


@pytest.mark.parametrize(("trainer", "has_critic"), [(SimpleNamespace(use_critic=False), False), (None, True)])
def test_a_trainer_says_whether_it_has_a_critic(
    trainer: object, has_critic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(module, "configuration", lambda rank: None)
    monkeypatch.setattr(module, "workers_of", lambda config, rank, **_: made.append(rank) or module._Anything())
    job = dataclasses.replace(JOB, rank=job_of(critic=True))
    start = module._Start(job, None, "", [])  # type: ignore[arg-type]
    start._trainer = trainer
    start._load()
    assert made[0].critic is has_critic


def test_a_dataset_of_one_row_is_read() -> None:
    start = module._Start(JOB, None, "", [])  # type: ignore[arg-type]
    start._trainer = trainer = _Trainer(rows=1)
    start._read()
    assert trainer.batches == [["Why?"]]


@pytest.mark.parametrize(
    ("trainer", "said"),
    [(_Trainer(readable=False), "no row 0"), (_Trainer(resumes=False), "must specify the global_steps")],
    ids=["data", "checkpoint"],
)
def test_what_a_trainer_refuses_before_its_first_step_is_raised(trainer: _Trainer, said: str) -> None:
    start = module._Start(JOB, None, "", [])  # type: ignore[arg-type]
    start._trainer = trainer
    with pytest.raises((AssertionError, IndexError), match=said):
        start._read()


def test_rows_that_are_made_up_say_nothing_of_a_dataset_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Dataset, "__module__", "mine")
    start = module._Start(JOB, None, "", [])  # type: ignore[arg-type]
    start._trainer = _Trainer(readable=False)
    start._read()


class _Manager:
    """A manager of agent loops, whose workers get equal parts of a batch."""

    def generate_sequences(self, prompts: Any) -> None:
        workers = self.agent_loop_workers  # type: ignore[attr-defined]
        assert len(prompts) % len(workers) == 0, f"{len(prompts)} prompts for {len(workers)} workers"
        workers[0].generate_sequences.remote(prompts)


class _LaterManager(_Manager):
    async def generate_sequences(self, prompts: Any) -> None:  # type: ignore[override]
        super().generate_sequences(prompts)


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that divides a batch of six prompts."""
    proto = SimpleNamespace(from_single_dict=lambda data: data["prompts"])
    modules: dict[str, dict[str, object]] = {
        "verl": {"DataProto": proto},
        "verl.experimental": {},
        "verl.experimental.agent_loop": {"AgentLoopManager": _LaterManager},
        "verl.trainer": {},
        "verl.trainer.ppo": {},
        "verl.trainer.ppo.v1": {"AgentLoopManagerTQ": _Manager},
    }
    monkeypatch.setattr(module, "_make_rewards", lambda config: None)
    for name, parts in modules.items():
        made = ModuleType(name)
        vars(made).update(parts)
        monkeypatch.setitem(sys.modules, name, made)

    def divide(owner: str, workers: int, samples: int = 1, mode: str = "async", estimator: str = "grpo") -> None:
        from omegaconf import OmegaConf

        rollout = {"mode": mode, "n": samples, "agent": {"num_workers": workers}}
        config = {"actor_rollout_ref": {"rollout": rollout}, "algorithm": {"adv_estimator": estimator}}
        trainer = _Trainer()
        trainer.config = OmegaConf.create(config)  # type: ignore[attr-defined]
        trainer.train_dataloader.batch_size = 6
        monkeypatch.setattr(_Trainer, "__module__", owner)
        start = module._Start(JOB, None, "", [])  # type: ignore[arg-type]
        start._trainer = trainer
        with contextlib.suppress(module.Reached):
            start._read()

    return divide


@pytest.mark.parametrize(
    ("owner", "workers", "samples", "said"),
    [
        ("verl.trainer.ppo.ray_trainer", 4, 1, "6 prompts for 4 workers"),
        ("verl.trainer.ppo.ray_trainer", 4, 2, None),
        ("verl.trainer.ppo.v1.trainer_sync", 4, 2, "6 prompts for 4 workers"),
        ("recipe.dapo.dapo_ray_trainer", 4, 1, None),
    ],
)
def test_a_batch_is_divided_among_the_agent_loops(
    owner: str, workers: int, samples: int, said: str | None, divided: Callable[..., None]
) -> None:
    with pytest.raises(AssertionError, match=said) if said else contextlib.nullcontext():
        divided(owner, workers, samples)


@pytest.mark.parametrize(("section", "made"), [({"reward": {"reward_manager": {"name": "dapoo"}}}, True), ({}, False)])
def test_a_worker_for_rewards_is_made_where_upstream_has_one(
    section: dict[str, object], made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omegaconf import OmegaConf

    config, given = OmegaConf.create(section), []
    monkeypatch.setattr(module, "_imported", lambda name: SimpleNamespace(RewardLoopWorker=given.append))
    module._make_rewards(config)
    assert given == [config] * made


def test_no_agent_loops_are_refused(divided: Callable[..., None]) -> None:
    with pytest.raises(ZeroDivisionError):
        divided("verl.trainer.ppo.v1.trainer_sync", 0)


@pytest.mark.parametrize("other", [{"mode": "sync"}, {"estimator": "remax"}])
def test_a_batch_that_others_divide_says_nothing(other: dict[str, str], divided: Callable[..., None]) -> None:
    divided("verl.trainer.ppo.ray_trainer", 4, **other)


def test_a_program_that_only_generates_builds_no_workers() -> None:
    job = dataclasses.replace(JOB, trains=False)
    start = module._Start(job, None, "", [])  # type: ignore[arg-type]
    assert [part for part, _ in start.parts()] == [Part.PROGRAM]


def test_a_module_that_the_revision_lacks_is_a_verdict(started: Callable[..., Started], upstream: Any) -> None:
    assert "verl.no_such_module" in started(upstream.import_what_the_revision_lacks).error
    assert "no_such_name" in started(upstream.import_a_name_that_the_revision_lacks).error


def test_a_module_that_an_installed_package_lacks_is_a_verdict(started: Callable[..., Started], upstream: Any) -> None:
    assert "torch.optimm" in started(lambda: upstream.import_by_name("torch.optimm")).error
    assert started(lambda: upstream.import_by_name("a_package_that_nobody_has")).error == ""


def test_an_error_of_what_stands_in_for_ray_says_nothing(started: Callable[..., Started]) -> None:
    told = started(lambda: module._Actor("a worker").no_such_method)
    assert (told.error, len(told.missing)) == ("", 1)


def test_an_argument_that_an_engine_refuses_is_a_verdict(started: Callable[..., Started]) -> None:
    def parse() -> None:
        module._refuse_argument(None, "argument --dtype: invalid choice: 'bf'")  # type: ignore[arg-type]

    assert started(parse).error == "ArgumentError: argument --dtype: invalid choice: 'bf'"


def test_this_process_stands_for_rays_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, base = ModuleType("ray"), ModuleType("verl.single_controller.ray.base")
    base.RayResourcePool = type("RayResourcePool", (), {})  # type: ignore[attr-defined]
    for each in (ray, base):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    monkeypatch.setattr(module, "is_installed", lambda name: False)
    module._answer_for_ray()
    answering: Any = ray

    @answering.remote(num_cpus=1)
    class Runner:
        def run(self, config: str) -> str:
            return f"ran {config}"

        async def ask(self) -> list[str]:
            return answering.get([self.answer(), self.answer()])

        async def answer(self) -> str:
            return "yes"

    @answering.remote
    def double(number: int) -> int:
        return 2 * number

    runner = Runner.options(name="one").remote()
    assert answering.get(runner.run.remote("it")) == "ran it"
    assert answering.get(double.remote(2)) == 4
    assert answering.get(runner.ask.remote()) == ["yes", "yes"]
    with pytest.raises(module.Reached):
        base.RayResourcePool([8])


def test_the_queue_of_a_cluster_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ray", "verl.single_controller.ray.base", "transfer_queue"):
        made: Any = ModuleType(name)
        made.RayResourcePool = type("RayResourcePool", (), {})
        monkeypatch.setitem(sys.modules, name, made)
    monkeypatch.setattr(module, "is_installed", lambda name: True)
    module._answer_for_ray()
    assert sys.modules["transfer_queue"].kv_list() == {}


def test_gradients_are_where_a_step_is_stopped() -> None:
    import torch

    weight = torch.ones(1, requires_grad=True)
    after = []
    with module._stopped_at_gradients():
        (2 * weight).sum().backward()
        after.append("not reached")
    assert (after, weight.grad) == ([], None)
    (2 * weight).sum().backward()
    assert weight.grad is not None


def test_modules_are_where_other_phases_are_stopped() -> None:
    import torch

    after = []
    with module._stopped_at_modules():
        torch.nn.Linear(1, 1)(torch.ones(1))
        after.append("not reached")
    assert after == []
    assert torch.nn.Linear(1, 1)(torch.ones(1)).shape == (1,)


def test_what_cleaning_up_after_the_stop_raises_is_no_verdict() -> None:
    with module._stopped():
        try:
            module._reached()
        finally:
            raise AttributeError("no _local_shard")
    with pytest.raises(ValueError, match="a mistake"), module._stopped():
        raise ValueError("a mistake")


def test_a_job_comes_back_from_json() -> None:
    told = dataclasses.asdict(JOB)
    assert StartJob.of_json(told) == JOB
