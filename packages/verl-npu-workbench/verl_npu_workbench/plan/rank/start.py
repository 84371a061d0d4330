"""Runs the start of a job in one process: the program, its workers, its engine's configuration, and one micro-batch.

Upstream's code runs unchanged. It is stopped before it needs more than this process: before Ray places NPUs, before an
engine starts, and before the first gradients are computed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import os
import re
import resource
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import verl_npu_workbench

from ...extras import is_installed
from ...jobs.keys import ROLES
from ...jobs.settings import override
from ..job import SAYS, Part, Started, StartJob
from .recording import Recording
from .workers import LegacyWorkers, SleepingRollout, Workers, configuration, no_engine, workers_of

if TYPE_CHECKING:
    from omegaconf import DictConfig

_SERVER, _SERVERS = "verl.workers.rollout.vllm_rollout.vllm_async_server", ("vLLMHttpServerBase", "vLLMHttpServer")
"""The module of vLLM's server in verl, and the names that the server's class has had."""
_PACKAGES = ("vllm", "sglang", "tensorrt_llm")
_SHOWN_PACKAGES = ("vllm", "vllm_ascend", "sglang", "megatron", "mindspeed", "mbridge", "verl_npu")
"""Packages, besides verl, whose source lines may be shown to the user."""
_SCRIPT_PACKAGES = ("verl", "recipe")
"""Packages that come with the script's own revision. If one of their modules is missing on this machine, the module is
missing in the job, too."""
_ROLLOUT_BUILDERS = ("fsdp_workers", "megatron_workers", "engine_workers")
_TRAINERS = (("verl.trainer.ppo.ray_trainer", "RayPPOTrainer"), ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer"))
_UNREGISTERED = re.compile(r"Checkpoint engine (?P<checkpoint>\S+) not registered|Unknown backend: (?P<engine>\S+)")
_REGISTRIES = {"checkpoint": "verl.checkpoint_engine", "engine": "verl.workers.engine"}
"""The packages whose modules register names that these messages are about."""
_SIMULATIONS = ("virtual_ascend", "torch_npu")


class Reached(BaseException):
    """Raised to stop upstream's code at a certain point. This exception is a BaseException, so that no `except
    Exception` in upstream's code catches it."""


def _reached(*_: object, **__: object) -> None:
    raise Reached


def start(job: StartJob, recording: Recording, folder: str) -> Started:
    """Run a job's startup steps in order. Return the steps that succeeded, and the first error that upstream raised,
    if any."""
    passed: list[str] = []
    missing: list[str] = []
    for part, run in _Start(job, recording, folder, missing).parts():
        print(f"{SAYS}{part.value}", file=sys.stderr, flush=True)
        try:
            run()
        except Reached:
            pass
        except (Exception, SystemExit) as raised:
            traceback.print_exc()
            if why := _not_judged(raised):
                missing.append(why)
                continue
            error, where, code = described(raised, job.rank.tree)
            return Started(passed, missing, part.value, error, where, code, host=_peak())
        passed.append(part.value)
    return Started(passed=passed, missing=missing, host=_peak())


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


class _Start:
    """The startup steps of a job. Errors that the script does not cause are added to `missing`."""

    def __init__(self, job: StartJob, recording: Recording, folder: str, missing: list[str]) -> None:
        self._job, self._recording, self._folder, self._missing = job, recording, folder, missing
        self._workers: Workers | None = None
        self._trainer: Any = None

    def parts(self) -> Iterator[tuple[Part, Callable[[], None]]]:
        """Yield each startup step, together with the function that runs the step."""
        if self._job.rank.trainer:
            yield Part.BATCH, self._tuning_batch
            return
        yield Part.PROGRAM, self._program
        if not self._job.trains:
            return
        if self._trainer is not None:
            yield Part.DATA, self._read
        yield Part.WORKERS, self._load
        if self._workers is not None:
            if self._tries_engine():
                yield Part.ENGINE, self._engine
            yield Part.BATCH, self._batch

    def _tries_engine(self) -> bool:
        """Return whether the engine's arguments can be tried. If they cannot, add the reason to `missing`."""
        name = configuration(self._job.rank)[ROLES].rollout.name
        if name != "vllm":
            self._missing.append(f"the arguments of {name}, because only vLLM's are tried")
        # Without vLLM, the look-up of the rollout's class has said so.
        return name == "vllm" and is_installed(name)

    def _program(self) -> None:
        """Run the trainer's program up to the point where Ray would place its NPUs."""
        from ...rehearse.preparation import write_questions

        _answer_for_ray()
        for name, owner in _TRAINERS:
            if module := _imported(name):
                self._keep(getattr(module, owner))
        train, test = write_questions(Path(self._folder), "openai/gsm8k", images=False, rows=self._job.rows)
        made = {"data.train_files": str(train), "data.val_files": str(test), "hydra.run.dir": self._folder}
        overrides = {**self._job.overrides, **made}
        sys.argv = [
            self._job.module,
            *self._job.arguments,
            "hydra.output_subdir=null",
            *(override(key, value) for key, value in overrides.items()),
        ]
        # The source tree, in which the program would write its events, is read-only.
        os.environ |= {"HYDRA_FULL_ERROR": "1", "TENSORBOARD_DIR": self._folder}
        if self._job.module.endswith(".py"):
            sys.path.insert(0, str(Path(self._job.module).parent))
            runpy.run_path(self._job.module, run_name="__main__")
        else:
            runpy.run_module(self._job.module, run_name="__main__", alter_sys=True)

    def _keep(self, kind: type) -> None:
        """Remember the trainer that the program makes. Some recipes' trainers have an `__init__` that does not call
        this class's own."""
        for name in ("__init__", "init_workers"):
            if method := getattr(kind, name, None):
                setattr(kind, name, self._keeping(method))

    def _keeping(self, method: Callable[..., None]) -> Callable[..., None]:
        def kept(trainer: Any, *given: object, **named: object) -> None:
            self._trainer = trainer
            method(trainer, *given, **named)

        return kept

    def _read(self) -> None:
        """Let the trainer look for a checkpoint to continue from, and read its first rows of data."""
        for name in ("actor_rollout_wg", "critic_wg"):
            setattr(self._trainer, name, _Anything())
        self._trainer._load_checkpoint()
        loader = getattr(self._trainer, "train_dataloader", None)
        # The rows are made up, so only upstream's own dataset is certain to accept them.
        if loader is not None and type(loader.dataset).__module__.startswith("verl."):
            loader.dataset.prompt_key = "prompt"
            loader.collate_fn([loader.dataset[place] for place in range(min(2, len(loader.dataset)))])
        if loader is not None and type(self._trainer).__module__.startswith("verl.trainer."):
            _make_rewards(self._trainer.config)
            _divide(self._trainer)

    def _load(self) -> None:
        """Build the workers and their models. The rollout's worker is built without its engine."""
        # A recipe's trainer may have no critic, whatever the settings say.
        rank = replace(self._job.rank, critic=getattr(self._trainer, "use_critic", self._job.rank.critic))
        workers = workers_of(configuration(rank), rank, builds_rollout=True)
        for name in _ROLLOUT_BUILDERS:
            module: Any = sys.modules.get(f"verl.workers.{name}")
            if hasattr(module, "get_rollout_class"):
                module.get_rollout_class = partial(self._rollout_class, module.get_rollout_class)
        if isinstance(workers, LegacyWorkers):
            workers.wrap_rollout(self._rollout)
        workers.load()
        self._workers = workers

    def _rollout_class(self, find: Callable[..., Any], name: str, mode: str = "async") -> Any:
        try:
            found = find(name, mode)
        except (ImportError, ValueError) as error:
            if name not in _PACKAGES or is_installed(name):
                raise
            self._missing.append(_text(error))
            return lambda **_: SleepingRollout(0)
        if (name, mode) != ("vllm", "sync"):
            return lambda **_: SleepingRollout(0)
        # This worker starts the engine itself.
        _stop_engines()
        return found

    def _rollout(self, build: Callable[..., Any], *given: object, **named: object) -> object:
        try:
            return build(*given, **named)
        except ModuleNotFoundError as error:
            self._missing.append(_text(error))
        except Reached:
            pass
        return no_engine()

    def _engine(self) -> None:
        """Let vLLM's server parse the engine's arguments and build the engine's configuration."""
        config = configuration(self._job.rank)
        rollout = config[ROLES].rollout
        if rollout.get("mode", "async") != "async":
            return
        module = importlib.import_module(_SERVER)
        server = next(filter(None, (getattr(module, each, None) for each in _SERVERS)))
        _stop_engines()
        # Each replica of the rollout has one server on each of its nodes.
        size = rollout.tensor_model_parallel_size * rollout.get("data_parallel_size", 1)
        local = min(size, self._job.rank.local)
        known = {
            "config": rollout,
            "model_config": config[ROLES].model,
            "rollout_mode": importlib.import_module("verl.workers.rollout.replica").RolloutMode.HYBRID,
            "workers": [_Anything()] * local,
            "replica_rank": 0,
            "node_rank": 0,
            "gpus_per_node": local,
            "nnodes": max(size // local, 1),
            "cuda_visible_devices": ",".join(map(str, range(local))),
        }
        taken = inspect.signature(server.__init__).parameters
        made = server(**{key: value for key, value in known.items() if key in taken})
        asyncio.run(made.launch_server())

    def _batch(self) -> None:
        """Look up the estimators, and run each phase up to and including the loss of its first micro-batch."""
        if self._workers is None:
            return
        if self._job.module.startswith("verl."):
            _look_up(configuration(self._job.rank))
        for phase, run in self._workers.step().items():
            with _stopped_at_gradients() if phase.trains else _stopped_at_modules():
                run()

    def _tuning_batch(self) -> None:
        from .fine_tuning import fine_tune

        config = configuration(self._job.rank)
        config.trainer.default_local_dir = self._folder
        with _stopped_at_gradients():
            fine_tune(config, self._job.rank, self._recording)


def _look_up(config: DictConfig) -> None:
    """Look up names in upstream's registries, as the trainer does between the phases."""
    import torch

    algorithms: Any = importlib.import_module("verl.trainer.ppo.core_algos")
    if hasattr(algorithms, "get_adv_estimator_fn"):
        algorithms.get_adv_estimator_fn(config.algorithm.adv_estimator)
    if config.algorithm.use_kl_in_reward:
        each = torch.zeros(1, 1)
        algorithms.kl_penalty(each, each, kl_penalty=config.algorithm.kl_penalty)


def _make_rewards(config: DictConfig) -> None:
    """Create the worker that computes rewards. From v0.7.1 on, upstream starts it in another process; before v0.7.1,
    the trainer's program creates the reward functions itself."""
    loop = _imported("verl.experimental.reward_loop.reward_loop")
    if loop is not None and (config.get("reward") or {}).get("reward_manager") is not None:
        loop.RewardLoopWorker(config)


def _divide(trainer: Any) -> None:
    """Let the manager of the agent loops divide a batch among its workers, and stop where the first worker starts.

    Source: `fit` of verl/trainer/ppo/ray_trainer.py, and verl/trainer/ppo/v1/trainer_base.py.
    """
    import torch
    from tensordict import TensorDict

    config, prompts = trainer.config, trainer.train_dataloader.batch_size
    rollout = config[ROLES].rollout
    is_async = rollout.get("mode", "async") == "async"
    # In some revisions, a REMAX batch also contains the baselines. A manager of the user's divides as it likes.
    if not is_async or config.algorithm.adv_estimator == "remax" or rollout.agent.get("agent_loop_manager_class"):
        return
    if type(trainer).__module__.startswith("verl.trainer.ppo.v1."):
        manager = importlib.import_module("verl.trainer.ppo.v1").AgentLoopManagerTQ
        batch = TensorDict({"prompts": torch.zeros(prompts, 1)}, prompts)
    else:
        manager = importlib.import_module("verl.experimental.agent_loop").AgentLoopManager
        data = {"prompts": torch.zeros(prompts * rollout.n, 1)}
        batch = importlib.import_module("verl").DataProto.from_single_dict(data)
    made, worker = object.__new__(manager), SimpleNamespace(generate_sequences=SimpleNamespace(remote=_reached))
    made.config, made.wake_up, made.reward_model_manager = config, _nothing, None
    made.agent_loop_workers = [worker] * rollout.agent.num_workers
    divided = inspect.unwrap(manager.generate_sequences)(made, batch)
    if inspect.iscoroutine(divided):
        asyncio.run(divided)


@contextmanager
def _stopped() -> Iterator[None]:
    """End quietly when upstream's code is stopped, and ignore errors of its clean-up afterwards, which FSDP raises
    because it has not gathered its weights."""
    try:
        yield
    except Reached:
        pass
    except Exception as error:
        before = error.__context__
        while before is not None and not isinstance(before, Reached):
            before = before.__context__
        if before is None:
            raise


@contextmanager
def _stopped_at_modules() -> Iterator[None]:
    from torch.nn.modules.module import register_module_forward_pre_hook

    handle = register_module_forward_pre_hook(_reached)
    try:
        with _stopped():
            yield
    finally:
        handle.remove()


@contextmanager
def _stopped_at_gradients() -> Iterator[None]:
    import torch

    schedules: Any = sys.modules.get("megatron.core.pipeline_parallel.schedules")
    places = [(torch.Tensor, "backward"), *([(schedules, "backward_step")] if schedules else [])]
    before = [(place, name, getattr(place, name)) for place, name in places]
    for place, name in places:
        setattr(place, name, _reached)
    try:
        with _stopped():
            yield
    finally:
        for place, name, original in before:
            setattr(place, name, original)


def _stop_engines() -> None:
    """Make vLLM stop once it has built its configuration."""
    importlib.import_module("vllm.v1.engine.async_llm").AsyncLLM.from_vllm_config = _find_loader
    importlib.import_module("vllm.v1.engine.llm_engine").LLMEngine.from_engine_args = _configure
    argparse.ArgumentParser.error = _refuse_argument  # type: ignore[method-assign, assignment]


def _configure(engine_args: Any, **_: object) -> None:
    _find_loader(engine_args.create_engine_config())


def _find_loader(vllm_config: Any, **_: object) -> None:
    """Let vLLM look up its weight loader, which is the first thing that the engine's process does, and then stop."""
    importlib.import_module("vllm.model_executor.model_loader").get_model_loader(vllm_config.load_config)
    raise Reached


def _refuse_argument(parser: argparse.ArgumentParser, message: str) -> None:
    del parser  # it would print its usage and end the process
    raise argparse.ArgumentError(None, message)


class _Anything:
    """A stand-in for workers, or for a worker's handle. Each of its methods returns an empty text."""

    def __getattr__(self, name: str) -> Any:
        def answer(*_: object, **__: object) -> str:
            return ""

        answer.remote = answer  # type: ignore[attr-defined]
        return answer


class _Here:
    """A stand-in for a class, a function, or a method that Ray would run in another process. It runs in this
    process."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def options(self, **_: object) -> _Here:
        return self

    def remote(self, *given: object, **named: object) -> Any:
        found = self._made(*given, **named)
        return _Actor(found) if isinstance(self._made, type) else found


class _Actor:
    """A stand-in for Ray's handle of an object in another process."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> _Here:
        return _Here(getattr(self._of, name))


def _answer_for_ray() -> None:
    """Replace Ray's functions, so that this process handles calls to Ray instead of a cluster, and stop the program
    where the cluster would place NPUs."""
    ray: Any = importlib.import_module("ray")

    def remote(*given: Any, **named: object) -> Any:
        return _Here(given[0]) if given and not named else _Here

    def same(value: Any, **_: object) -> Any:
        return value

    ray.init, ray.remote, ray.get, ray.put = _nothing, remote, _result, same
    ray.get_runtime_context = lambda: SimpleNamespace(get_job_id=lambda: "1", get_node_id=lambda: "1")
    importlib.import_module("verl.single_controller.ray.base").RayResourcePool.__init__ = _reached
    if is_installed("transfer_queue"):
        queue: Any = importlib.import_module("transfer_queue")
        queue.init = queue.close = _nothing
        # A thread of the trainer's ends the process if the queue does not answer.
        queue.kv_list = dict


def _result(value: Any, **_: object) -> Any:
    """Return the result of a call, or the results of a list of calls. Like Ray, run methods that are coroutines."""
    if isinstance(value, list):
        return [_result(each) for each in value]
    if not inspect.iscoroutine(value):
        return value
    # The caller may be a coroutine itself, and a thread can run only one event loop.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, value).result()


def _imported(name: str) -> Any:
    """Return one of upstream's modules, or None if the module cannot be imported. If the program needs the module, the
    program's own error names the missing module."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def _nothing(*_: object, **__: object) -> None:
    """Stand in for a call that needs a cluster."""


def _not_judged(raised: BaseException) -> str:
    """Return the text of an error that the script does not cause, or an empty string if the script causes the
    error."""
    error = _root(raised)
    if isinstance(error, argparse.ArgumentError):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    last = Path(frames[-1].filename) if frames else Path()
    ours = last.is_relative_to(Path(verl_npu_workbench.__file__).parent) or bool({*last.parts} & {*_SIMULATIONS})
    is_elsewhere = _lacks_package(error) or isinstance(error, OSError) or any(map(_is_of_memory, _chain(error)))
    stands_in = any(f"'{kind.__name__}' object" in str(error) for kind in (_Here, _Actor, _Anything, SleepingRollout))
    return _text(error) if ours or is_elsewhere or stands_in or _lacks_module(str(error)) else ""


def _lacks_package(error: BaseException) -> bool:
    """Return whether an import failed because of a package that is not installed here, and that does not come with the
    script's revision."""
    if not isinstance(error, ImportError):
        # verl's own words, from verl/third_party/vllm. verl wraps the errors of files that a script names.
        wrapped = error.__cause__ is not None and _lacks_package(error.__cause__)
        return wrapped or "vllm version None not supported" in str(error)
    if error.name:
        return error.name.partition(".")[0] not in _SCRIPT_PACKAGES
    # Upstream raised it by hand, perhaps while it handled Python's own error, which names the module.
    named = [each.name for each in _chain(error) if isinstance(each, ImportError) and each.name]
    return not any(is_installed(name.partition(".")[0]) for name in named)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and the errors during whose handling it was raised."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "allocate memory" in str(error)


def _lacks_module(said: str) -> bool:
    """Return whether upstream does not find a name because the module that registers the name could not be imported
    here, for example without vLLM."""
    match = _UNREGISTERED.match(said)
    if match is None:
        return False
    package = importlib.import_module(_REGISTRIES[match.lastgroup or ""])
    folder, name = Path(str(package.__file__)).parent, re.escape(match[match.lastgroup or ""])
    for path in folder.rglob("*.py"):
        module = ".".join([package.__name__, *path.relative_to(folder).with_suffix("").parts])
        if re.search(rf'register\([^)]*"{name}"', path.read_text(errors="replace")) and module not in sys.modules:
            return True
    return False


def _root(raised: BaseException) -> BaseException:
    """Return the original error if Hydra wrapped it in an error of its own."""
    while type(raised).__module__.startswith("hydra.") and raised.__cause__ is not None:
        raised = raised.__cause__
    return raised


def described(raised: BaseException, tree: str) -> tuple[str, str, str]:
    """Return an error's type and message, and the location and the text of the innermost traceback line that is in
    upstream's code."""
    error = _root(raised)
    # Hydra's own error has the line of upstream that asked it to make an object.
    frames = [frame for each in (raised, error) for frame in traceback.extract_tb(each.__traceback__)]
    shown = [frame for frame in frames if _is_shown(frame.filename, tree)] or frames[-1:]
    where = f"{shown[-1].filename}:{shown[-1].lineno}" if shown else ""
    return _text(error), where, (shown[-1].line or "") if shown else ""


def _is_shown(file: str, tree: str) -> bool:
    packages = Path(file).parts
    return "verl_npu_workbench" not in packages and (
        bool({*_SCRIPT_PACKAGES, *_SHOWN_PACKAGES} & {*packages}) or Path(file).is_relative_to(tree)
    )


def _text(raised: BaseException) -> str:
    """Return the type and the message of an error."""
    error = _root(raised)
    return f"{type(error).__name__}: {error}".removesuffix(": ")
