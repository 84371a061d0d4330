"""Finds the settings that verl's own code rejects, by interpreting the source of the script's verl.

The interpreter follows six parts of verl: its validation, the classes of its sections, its look-ups by name, the way
it continues from a checkpoint, the way its workers are built, and the way they divide mini-batches.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from verl_npu.registry.source.tree import SourceTree, Target

from .asserted import WORLD, field_types, made, refused, returned
from .keys import (
    ACTOR,
    CRITIC,
    ENGINE,
    ESTIMATOR,
    MODEL,
    REFERENCE,
    ROLES,
    ROLLOUT,
    TRAIN_FILES,
    VALIDATION_FILES,
    has_critic,
    has_reference,
    is_megatron,
)
from .settings import Settings
from .values import UNKNOWN, attribute, instance, section

_ALGORITHMS = "verl.trainer.ppo.core_algos"
_KL = Target(_ALGORITHMS, "kl_penalty")
_VALIDATION = (Target("verl.utils.config", "validate_config"), Target("verl.trainer.ppo.ray_trainer", "RayPPOTrainer"))
_V1_TRAINER = Target("verl.trainer.ppo.v1.trainer_base", "PPOTrainer")
_CRITIC = Target("verl.trainer.ppo.utils", "need_critic")
_ROLLOUTS = Target("verl.workers.rollout.base", "get_rollout_class")
_DTYPE = Target("verl.utils.torch_dtypes", "PrecisionType.to_dtype")
_REWARDS = "reward_manager.registry"
_TRACKING = Target("verl.utils.tracking", "Tracking")
_ENGINES = Target("verl.checkpoint_engine.base", "CheckpointEngineRegistry.new")
_PARSERS = Target("verl.experimental.agent_loop.tool_parser", "ToolParser.get_tool_parser")
_CONTROLLER = Target(_ALGORITHMS, "get_kl_controller")
_MAIN = Target("verl.trainer.main_ppo", "main")
_WORKERS = Target("verl.trainer.main_ppo", "TaskRunner")
_DIVIDING = Target("verl.workers.engine.utils", "prepare_micro_batches")
_ENGINE_WORKER = Target("verl.workers.engine_workers", "ActorRolloutRefWorker")
_BACKENDS = Target("verl.workers.engine.base", "EngineRegistry.get_engine_cls")
BACKEND = f"{ROLLOUT}.checkpoint_engine.backend"
_CORRECTION = "algorithm.rollout_correction"
_LEGACY = "trainer.use_legacy_worker_impl"
_NUMBERS = ("int", "float", "Optional[int]", "Optional[float]", "int | None", "float | None")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error message that upstream's code raises when it rejects a setting or a section."""

    key: str
    message: str


def validation_refusals(settings: Settings, tree: SourceTree) -> Iterator[Refusal]:
    """Yield the errors that `validate_config` raises. In older revisions, `validate_config` is a method of the
    trainer."""
    function, trainer = _VALIDATION
    critic = returned(_CRITIC, [section(settings)], tree)
    roles = {
        "use_reference_policy": has_reference(settings),
        "use_critic": critic if isinstance(critic, bool) else has_critic(settings),
    }
    if tree.nodes(function):
        said = refused(function, [section(settings), *roles.values()], tree)
    else:
        found = instance(trainer, {"config": section(settings), **roles})
        said = refused(Target(trainer.module, f"{trainer.qualname}._validate_config"), [found], tree)
    yield from (Refusal(ROLES, each) for each in said)


def _trainer(settings: Settings, tree: SourceTree) -> Target:
    later = tree.nodes(_V1_TRAINER) and settings.truth("trainer.use_v1")
    return _V1_TRAINER if later else _VALIDATION[1]


def section_refusals(settings: Settings, roles: Sequence[str], tree: SourceTree) -> Iterator[Refusal]:
    """Yield the errors that upstream raises when it instantiates the classes of the roles' configuration sections."""
    for key in (*roles, ROLLOUT, MODEL, "distillation"):
        said: list[str] = []
        made(settings, key, tree, said)
        yield from (Refusal(key, each) for each in dict.fromkeys(said))


def name_refusals(settings: Settings, roles: Sequence[str], tree: SourceTree) -> Iterator[Refusal]:
    """Yield an error for each value that upstream looks up by name and cannot find."""
    for key, target, arguments in _look_ups(settings, roles):
        value = section(settings).get(key)
        if isinstance(value, str | list) and value:
            for message in refused(target, arguments, tree):
                yield Refusal(key, message)


def _look_ups(settings: Settings, roles: Sequence[str]) -> Iterator[tuple[str, Target, Sequence[object]]]:
    """Yield the key of each value, and the function or class of upstream's that looks it up, with its arguments."""

    def by_name(key: str, target: Target, *before: object) -> tuple[str, Target, Sequence[object]]:
        return key, target, [*before, section(settings).get(key)]

    yield by_name(ESTIMATOR, Target(_ALGORITHMS, "get_adv_estimator_fn"))
    yield by_name(f"{ACTOR}.policy_loss.loss_mode", Target(_ALGORITHMS, "get_policy_loss_fn"))
    if settings.truth(f"{ACTOR}.use_kl_loss"):
        yield by_name(f"{ACTOR}.kl_loss_type", _KL, UNKNOWN, UNKNOWN)
    if settings.truth("algorithm.use_kl_in_reward"):
        yield by_name("algorithm.kl_penalty", _KL, UNKNOWN, UNKNOWN)
        yield "algorithm.kl_ctrl.type", _CONTROLLER, [section(settings, "algorithm.kl_ctrl")]
    if settings.text("reward.reward_manager.source") == "register":
        find = Target(f"verl.experimental.reward_loop.{_REWARDS}", "get_reward_manager_cls")
        yield by_name("reward.reward_manager.name", find)
    elif "reward.reward_manager.name" not in settings and not settings.truth("reward_model.use_reward_loop"):
        yield by_name("reward_model.reward_manager", Target(f"verl.workers.{_REWARDS}", "get_reward_manager_cls"))
    for role in (*roles, *([REFERENCE] if has_reference(settings) else [])):
        # The reference uses the actor's worker class.
        if settings.text(f"{ACTOR if role == REFERENCE else role}.strategy") in ("fsdp", "fsdp2"):
            for part in (f"{role}.fsdp_config", f"{role}.model.fsdp_config"):
                yield by_name(f"{part}.model_dtype", _DTYPE)
    for role in roles:
        add = "add_critic_worker" if role == CRITIC else "add_actor_rollout_worker"
        method = Target(_WORKERS.module, f"{_WORKERS.qualname}.{add}")
        yield f"{role}.strategy", method, [instance(_WORKERS, {}), section(settings)]
    yield by_name("trainer.logger", _TRACKING, UNKNOWN, UNKNOWN)
    yield by_name(BACKEND, _ENGINES)
    if settings.text(f"{ROLLOUT}.agent.default_agent_loop") == "tool_agent":
        yield f"{ROLLOUT}.multi_turn.format", _PARSERS, [settings.get(f"{ROLLOUT}.multi_turn.format"), UNKNOWN]
    yield ENGINE, _ROLLOUTS, [settings.get(ENGINE), settings.get(f"{ROLLOUT}.mode") or "async"]


def worker_refusals(settings: Settings, npus: int, tree: SourceTree) -> Iterator[Refusal]:
    """Yield the errors that a worker raises when it builds the actor and the worker's part of the rollout."""
    worker, method = _ENGINE_WORKER, "init_model"
    if _is_legacy(settings, tree):
        module = "megatron_workers" if is_megatron(settings) else "fsdp_workers"
        worker, method = Target(f"verl.workers.{module}", worker.qualname), "_build_rollout"
    known = {"config": section(settings, ROLES), "role": "actor_rollout", "world_size": npus}
    for said in refused(Target(worker.module, f"{worker.qualname}.{method}"), [instance(worker, known)], tree):
        yield Refusal(ROLES, said)


def part_refusals(settings: Settings, roles: Sequence[str], npus: int, tree: SourceTree) -> Iterator[Refusal]:
    """Yield the errors that a job's data, trainer, models, agent loops, and losses raise for the job's settings."""
    known = _world(npus) if npus else {}
    if settings.text("trainer.resume_mode") == "auto":
        # The first of a job's runs, which does not continue from a checkpoint.
        known["find_latest_ckpt_path(checkpoint_folder)"] = None
    for key, target, args, given in _parts(settings, roles, tree):
        for said in refused(target, args, tree, known, given):
            yield Refusal(key, said)


def _world(npus: int) -> dict[str, object]:
    """Return the values of the calls that upstream uses to get the number of ranks."""
    return dict.fromkeys((WORLD, "self.device_mesh.size()"), npus)


_Part = tuple[str, Target, Sequence[object], Mapping[str, object]]


def _parts(settings: Settings, trained: Sequence[str], tree: SourceTree) -> Iterator[_Part]:
    """Yield the parts of a job: the section with their settings, upstream's function, and its arguments."""
    whole = section(settings)
    # The program moves old keys to their new places.
    returned(_MAIN, [whole], tree)
    settings = Settings(whole.values)
    data = section(settings, "data")
    # The trainer and the constructors of workers change these in the configuration of their parts.
    changed = settings.matching(r".*(batch_size|token_len|total_training_steps)\w*")
    given_settings, settings = settings, settings.changed(dict.fromkeys(changed, UNKNOWN))

    def method(key: str, of: str, name: str, known: Mapping[str, object], **given: object) -> _Part:
        module, _unused, owner = of.partition(":")
        return key, Target(module, f"{owner}.{name}"), [instance(Target(module, owner), known)], given

    # The trainer raises the same errors for the data, but here the key is known. A dataset of the user's has its own
    # code.
    if not settings.text("data.custom_cls.path"):
        prompts = {"config": data, "truncation": settings.get("data.truncation")}
        yield method("data", "verl.utils.dataset.rl_dataset:RLHFDataset", "__getitem__", prompts)
        for key in (TRAIN_FILES, VALIDATION_FILES):
            files = {"config": data, "data_files": whole.get(key)}
            yield method(key, "verl.utils.dataset.rl_dataset:RLHFDataset", "__init__", {}, **files)
    of_trainer, trainer = _trainer(settings, tree), None
    # Before v0.8.0, the trainer's program always gives it reward functions.
    given = {"config": whole, "reward_fn": True, "val_reward_fn": True}
    for name in ("__init__", "init_workers", "_setup", "_load_checkpoint", "step", "fit"):
        # Code that is not followed does not change the configuration.
        trainer = instance(of_trainer, {"config": section(given_settings), "val_reward_fn": True}, trainer)
        yield "trainer", Target(of_trainer.module, f"{of_trainer.qualname}.{name}"), [trainer], given
        given = {}
    yield method("trainer", f"{_WORKERS.module}:{_WORKERS.qualname}", "init_resource_pool_mgr", {}, config=whole)
    if settings.truth(f"{ROLLOUT}.calculate_log_probs"):
        corrected = Target("verl.trainer.ppo.rollout_corr_helper", "compute_rollout_correction_and_add_to_batch")
        yield _CORRECTION, corrected, [UNKNOWN, section(settings, _CORRECTION)], {}
    for name in ("load_reward_manager", "get_custom_reward_fn"):
        yield "reward", Target("verl.trainer.ppo.reward", name), [whole], {}
    for module in ("verl.trainer.main_ppo", "verl.trainer.ppo.utils", "verl.utils.dataset.rl_dataset"):
        yield "data.sampler", Target(module, "create_rl_sampler"), [data], {}
    loops = "verl.experimental.agent_loop.agent_loop"
    loop = settings.get(f"{ROLLOUT}.agent.default_agent_loop")
    if loop is not None and not settings.text(f"{ROLLOUT}.agent.agent_loop_config_path"):
        for owner in ("AgentLoopWorkerBase", "AgentLoopWorker"):
            yield method(f"{ROLLOUT}.agent", f"{loops}:{owner}", "_run_agent_loop", {"config": whole}, agent_name=loop)
    actor, critic, model = (made(settings, each, tree) for each in (ACTOR, CRITIC, MODEL))
    legacy, by_fsdp = _is_legacy(settings, tree), settings.text(f"{ACTOR}.strategy") in ("fsdp", "fsdp2")
    for role, config in {ACTOR: actor, **({} if legacy else {CRITIC: critic})}.items():
        fsdp = settings.text(f"{role}.strategy") in ("fsdp", "fsdp2")
        if role not in trained or not (fsdp or is_megatron(settings, role)):
            continue
        module, kind, part = ("fsdp", "FSDP", "fsdp_config") if fsdp else ("megatron", "Megatron", "megatron")
        engine = {
            "model_config": model if role == ACTOR else attribute(config, "model"),
            "engine_config": attribute(config, "engine") if role == CRITIC else made(settings, f"{role}.{part}", tree),
            "optimizer_config": made(settings, f"{role}.optim", tree),
        }
        impl = f"verl.workers.engine.{module}.transformer_impl"
        if not legacy:
            yield role, Target(impl, f"{kind}Engine"), [], engine
        for step in (
            "init_device_mesh",
            f"build_{module}_module",
            "build_module",
            "build_optimizer",
            "build_lr_scheduler",
        ):
            yield method(role, f"{impl}:{kind}Engine", f"_{step}", {"config": section(settings, ROLES), **engine})
    if by_fsdp:
        roles = {"role": "actor_rollout", "_is_actor": True, "_is_rollout": True, "_is_lora": False}
        worker = {"config": section(settings, ROLES), **roles}
        yield method(ACTOR, "verl.workers.fsdp_workers:ActorRolloutRefWorker", "init_model", worker)
        yield method(ACTOR, "verl.workers.actor.dp_actor:DataParallelPPOActor", "update_policy", {"config": actor})
    if CRITIC in trained and legacy:
        module = "megatron_workers" if is_megatron(settings, CRITIC) else "fsdp_workers"
        yield CRITIC, Target(f"verl.workers.{module}", "CriticWorker"), [made(given_settings, CRITIC, tree)], {}
        yield method(CRITIC, f"verl.workers.{module}:CriticWorker", "init_model", {"config": critic})
    yield ACTOR, Target("verl.workers.utils.losses", "ppo_loss"), [actor], {}
    for role, kind in {ACTOR: "language_model", CRITIC: "value_model"}.items():
        if role in trained and not legacy:
            backend = attribute(made(settings, role, tree), "engine", "strategy")
            yield f"{role}.strategy", _BACKENDS, [], {"model_type": kind, "backend": backend}
    server = "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer"
    if settings.text(ENGINE) == "vllm":
        rollout = {"config": made(settings, ROLLOUT, tree), "model_config": model}
        for name in ("_validate_configs", "launch_server"):
            yield method(ROLLOUT, server, name, rollout)


def _is_legacy(settings: Settings, tree: SourceTree) -> bool:
    """Return whether the trainer starts the workers that verl had before its engines."""
    return settings.text(_LEGACY) in ("auto", "enable") or not tree.nodes(_ENGINE_WORKER)


def batch_refusals(
    settings: Settings, npus: int, replica: int, tree: SourceTree, role: str = ACTOR
) -> Iterator[Refusal]:
    """Yield the errors that workers raise when they divide a mini-batch among ranks, and a rank's share into
    micro-batches."""
    ranks, mini = npus // max(replica, 1), f"{role}.ppo_mini_batch_size"
    sizes = [settings.get(key) for key in (mini, f"{ROLLOUT}.n")]
    batch = settings.whole(mini) * settings.whole(f"{ROLLOUT}.n")
    if not ranks or batch < 0 or not all(isinstance(each, int) for each in sizes):
        return
    if _is_legacy(settings, tree):
        if role != ACTOR or settings.text(f"{ACTOR}.strategy") not in ("fsdp", "fsdp2"):
            return
        known = _world(npus)
        worker = Target("verl.workers.fsdp_workers", "ActorRolloutRefWorker")
        said = refused(worker, [section(settings, ROLES), "actor_rollout"], tree, known)
        yield from (Refusal(mini, each) for each in said)
        return
    worker = Target("verl.workers.engine_workers", "TrainingWorker")
    taken = {
        "tu.pop(data, key='mini_batch_size', default=None)": batch,
        "self.engine.get_data_parallel_size()": ranks,
    }
    method = Target(worker.module, f"{worker.qualname}.train_mini_batch")
    unshared = list(refused(method, [instance(worker, {}), UNKNOWN], tree, taken))
    yield from (Refusal(mini, each) for each in unshared)
    micro = settings.get(f"{role}.ppo_micro_batch_size_per_gpu")
    is_fixed = settings.get(f"{role}.use_dynamic_bsz") is False and not settings.truth(f"{ACTOR}.use_prefix_grouper")
    # Only the job knows the value of an interpolation. The engine of a critic has dynamic batches.
    if role == ACTOR and not unshared and isinstance(micro, int) and is_fixed:
        read = "tu.get_non_tensor_data(data=data, key='{}', default={})"
        divided = {
            "len(data)": batch // ranks,
            read.format("use_dynamic_bsz", True): False,
            **{read.format(name, 1): 1 for name in ("force_group_size", "sp_size")},
        }
        for message in refused(_DIVIDING, [{"micro_batch_size_per_gpu": micro}], tree, divided):
            yield Refusal(f"{role}.ppo_micro_batch_size_per_gpu", message)


def non_numbers(settings: Settings, tree: SourceTree) -> Iterator[str]:
    """Yield the keys whose value is text although the class of their section declares a numeric type."""
    for target in settings.matching(r"(actor_rollout_ref|critic|algorithm)\..*_target_"):
        key = target.removesuffix("._target_")
        if key.startswith(CRITIC) and not has_critic(settings):
            continue
        texts = [name for name in settings.directly_in(key) if isinstance(settings.get(name), str)]
        types = field_types(settings, key, tree) if texts else {}
        for name in texts:
            if types.get(name.rpartition(".")[2]) in _NUMBERS and math.isnan(settings.number(name, math.nan)):
                yield name


def other_readers(section: str, program: str, tree: SourceTree) -> list[str]:
    """Return the programs of verl that read a section of the configuration, if only programs other than `program` do.
    Otherwise, or if a program may call the code that reads it, return an empty list."""
    found: set[str] = set()
    reads = re.compile(rf"(config|cfg)(\.|\.get\(['\"]|\[['\"]|, ['\"]){re.escape(section)}\b")
    for module in tree.modules_with(("verl",), (section,)):
        parsed = tree.parse(module) if reads.search((tree.read(module) or b"").decode(errors="replace")) else None
        for node in parsed.body if parsed is not None else ():
            for each in _users(module, node, tree) if reads.search(ast.unparse(node)) else ():
                if each == program or not _is_program(each, tree):
                    return []
                found.add(each)
    return sorted(found)


def _users(module: str, node: ast.stmt, tree: SourceTree) -> Iterator[str]:
    """Yield the modules that run a statement of `module`. A function is run by the modules that name it."""
    if not isinstance(node, ast.FunctionDef) or _is_program(module, tree):
        yield module
        return
    for each in tree.modules_with(("verl",), (node.name,)):
        # A package only passes it on, and the function's own module defines it.
        named = re.findall(rf"\b{node.name}\b".encode(), tree.read(each) or b"")
        if not tree.is_package(each) and named[each == module :]:
            yield each


def _is_program(module: str, tree: SourceTree) -> bool:
    return b"@hydra.main" in (tree.read(module) or b"")
