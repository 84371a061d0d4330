"""Edits, made by a person, of the callers of a target: past our patch, or with no effect on it.

A patched target stays as it is, word by word. Edits of `BYPASSING` lead past the patch: the caller calls something
else, its result is overwritten, or one of several patches that need each other is left alone. Edits of `HARMLESS`
change callers as every release does, and the patch is in force as before.

The holder of a target's second name decides between the two. A name in a module is rebound when its target is patched;
a container, a partial, a default or a class body of the target's own module keeps upstream's function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from verl_npu.registry.judge.verdict import Verdict
from verl_npu.registry.state import State

from .by_hand import Edit
from .mutants import Kind, Mutant, Upstream

Change = tuple[str, str, str]
"""A file, a text in it, and the replacement, in which `{}` stands for the text."""

BYPASSED = (State.DRIFTED,)
"""One of the patches is drifted, or its reason says that it is bypassed."""
FITS = (State.PENDING, State.PENDING)
"""Every patch has its state, and no reason speaks of a bypass."""
WORD = "bypassed"


class Outcome(str, Enum):
    """The verdict on the patches of an edit."""

    DRIFTED = "drifted"
    SAID = "said"
    SILENT = "silent"
    FITS = "fits"
    FALSE = "false"


@dataclass(frozen=True)
class CallerEdit(Edit):
    """An edit of one file or several, which leaves the target of its first patch as it was.

    Each text to be replaced is there once. A file of `files` whose text to be replaced is empty is a new one.
    """

    files: tuple[Change, ...] = ()
    """Further changes, in the same file or in others."""

    def of(self, upstream: Upstream) -> Mutant:
        """Return the tree with the edit; raise ValueError if the source lacks the text to be replaced, or has it
        twice."""
        changed: dict[str, str] = {}
        for path, old, new in ((self.path, self.old, self.new), *self.files):
            if not old:
                if path in upstream.files:
                    raise ValueError(f"{path} is at {self.pin} already")
                changed[path] = new
                continue
            text = changed.get(path) or upstream.text(path)
            if text.count(old) != 1:
                raise ValueError(f"{path} at {self.pin} has {old!r} {text.count(old)} times")
            changed[path] = text.replace(old, new.replace("{}", old))
        return Mutant(Kind.BY_HAND, str(self), {path: text.encode() for path, text in changed.items()})


def outcome(edit: CallerEdit, verdicts: Mapping[str, Verdict]) -> Outcome:
    """Return the outcome for the patches of an edit, from the verdicts on its tree."""
    concerned = [verdicts[patch] for patch in edit.patches]
    said = any(WORD in verdict.reason for verdict in concerned)
    if edit.states is FITS:
        return Outcome.FALSE if said or any(verdict.state not in FITS for verdict in concerned) else Outcome.FITS
    if any(verdict.state in BYPASSED for verdict in concerned):
        return Outcome.DRIFTED
    return Outcome.SAID if said else Outcome.SILENT


def _edit(name: str, patches: str | Sequence[str], states: Sequence[State], changes: Sequence[Change]) -> CallerEdit:
    (path, old, new), *others = changes
    pin, _, what = name.partition(": ")
    concerned = (patches,) if isinstance(patches, str) else patches
    return CallerEdit(what, pin, path, old, new, concerned, states, files=tuple(others))


def _past(name: str, patches: str | Sequence[str], *changes: Change) -> CallerEdit:
    return _edit(name, patches, BYPASSED, changes)


def _fine(name: str, patches: str | Sequence[str], *changes: Change) -> CallerEdit:
    return _edit(name, patches, FITS, changes)


# Files.
_RAY = "verl/single_controller/ray/base.py"
_RAY_INIT = "verl/single_controller/ray/__init__.py"
_WORKER = "verl/single_controller/base/worker.py"
_DEVICE = "verl/utils/device.py"
_PPO = "verl/trainer/main_ppo.py"
_TRAINER = "verl/trainer/ppo/ray_trainer.py"
_V1 = "verl/trainer/ppo/v1/trainer_base.py"
_SFT = "verl/trainer/sft_trainer.py"
_BALANCE = "verl/utils/seqlen_balancing.py"
_ENGINE = "verl/workers/engine/utils.py"
_FSDP = "verl/workers/fsdp_workers.py"
_FSDP_UTILS = "verl/workers/engine/fsdp/utils.py"
_REGISTRY = "verl/models/mcore/registry.py"
_MONKEY = "verl/models/transformers/monkey_patch.py"
_LOSS = "verl/utils/kernel/linear_cross_entropy.py"
_FUSED = "verl/models/mcore/model_forward_fused.py"
_HCCL = "verl/checkpoint_engine/hccl_checkpoint_engine.py"
_CHECKPOINT = "verl/checkpoint_engine/base.py"
_SERVER = "verl/workers/rollout/vllm_rollout/vllm_async_server.py"
_EXTENSION = "verl/workers/rollout/vllm_rollout/utils.py"
_LOOP = "verl/experimental/agent_loop/agent_loop.py"

# Patches.
_GROUP = "device.refuse_job_that_cannot_be_placed"
_NPUS = "device.request_npus_not_gpus"
_SELECT = "device.select_npu_assigned_by_ray"
_IS_NPU = "device.detect_npu_by_installed_software"
_IS_CUDA = "device.deny_cuda_beside_torch_npu"
_RUN_PPO = "device.set_npu_in_run_ppo_config"
_CPU = "device.keep_cpu_in_auto_set_device"
_VALIDATE = "rollout.check_and_complete_engine_settings"
_LENGTH = "rollout.end_answers_at_response_length"
_STAYS = "rollout.keep_weights_that_are_not_offloaded"
_AGREE = "micro_batches.agree_on_a_number"
_SPLIT = "micro_batches.split_within_budget"
_BUDGET = "micro_batches.keep_token_budget"
_FORWARD = "fleet.forward_variables_to_workers"
_TRACKING = "fleet.compare_processes_before_training"
_PUBLISH = "fleet.publish_manifest_to_other_ranks"
_EXPERT = "fused_ops.keep_transformers_expert_block_in_qwen3_vl_moe"
_RANGES = "fused_kernels.leave_out_missing_ranges"
_FLAG = "megatron.set_the_experimental_flag_of_an_older_megatron"
_DROP = "weight_sync.drop_communicator_without_destroy"
_NOTE = "weight_sync.note_given_weights_for_proof"

# Source texts that several edits replace.
_MAKES = "            placement_group(bundles=bundles,"
_LIFETIME = '        lifetime = "detached" if self.detached else None\n'
_POOL = "class RayResourcePool(ResourcePool):"
_PLACEMENT = "from ray.util.placement_group import PlacementGroup, placement_group\n"
_SETS_UP = "        self._setup_env_cuda_visible_devices()\n"
_SET_UP = "    def _setup_env_cuda_visible_devices(self):\n"
_OTHER_SET_UP = "        get_torch_device().set_device(int(os.environ['RANK']) % get_torch_device().device_count())\n"
_CHECKS = "        validate_config(\n            config=config,\n"
_MAIN_CHECKS = "    validate_config(\n        config=config,\n"
_IMPORTS_CHECK = "from verl.utils.config import validate_config\n"
_CONFIG_ENV = "        default_runtime_env = get_ppo_ray_runtime_env(config)\n"
_MERGED = "        runtime_env = OmegaConf.merge(default_runtime_env, runtime_env_kwargs)\n"
_LOGGER = "        logger = Tracking(\n"
_SELF_LOGGER = "        self.logger = Tracking(\n"
_ROUNDS = "        num_micro_batches = roundup_divisible(num_micro_batches, num_batches_divided_by)\n"
_ARRANGES = "        micro_batches, batch_idx_list = rearrange_micro_batches(\n"
_PREPARES = "    batch, batch_idx_list = rearrange_micro_batches(\n"
_IMPORTS_ARRANGE = "from verl.utils.seqlen_balancing import rearrange_micro_batches, restore_dynamic_batch\n"
_TRL = "    if is_trl_available():\n"
_CONVERTS = "    SupportedModel.DEEPSEEK_V3: hf_to_mcore_config_dpskv3,\n"

BYPASSING = [
    # Where a job is placed.
    _past(
        "v0.6.1: the group is made by ray.util's own name",
        _GROUP,
        (_RAY, _MAKES, "            ray.util.placement_group(bundles=bundles,"),
    ),
    _past(
        "1dda039b: the group is imported in the function",
        _GROUP,
        (_RAY, _LIFETIME, "        from ray.util.placement_group import placement_group\n\n{}"),
    ),
    _past(
        "v0.8.0: the group is made by a function of another module",
        _GROUP,
        (_RAY, _MAKES, "            make_group(bundles=bundles,"),
        (_RAY, _PLACEMENT, "{}from verl.single_controller.ray.placement import make_group\n"),
        (
            "verl/single_controller/ray/placement.py",
            "",
            "from ray.util.placement_group import placement_group\n\n\ndef make_group(**kwargs):\n"
            "    return placement_group(**kwargs)\n",
        ),
    ),
    _past(
        "v0.9.1: the group is made by a partial of the module",
        _GROUP,
        (_RAY, _MAKES, "            _MAKE_GROUP(bundles=bundles,"),
        (_RAY, _POOL, "_MAKE_GROUP = functools.partial(placement_group)\n\n\n{}"),
        (_RAY, "import os\n", "import functools\n{}"),
    ),
    _past(
        "v0.7.1: the group is made by an attribute of the class",
        _GROUP,
        (_RAY, _MAKES, "            self._make(bundles=bundles,"),
        (_RAY, _POOL + "\n", "{}    _make = staticmethod(placement_group)\n\n"),
    ),
    _past(
        "v0.6.1: the trainer makes a pool that overrides the groups",
        (_NPUS, _GROUP),
        (_TRAINER, "            resource_pool = RayResourcePool(\n", "            resource_pool = _RackPool(\n"),
        (
            _TRAINER,
            "@dataclass\nclass ResourcePoolManager:\n",
            "class _RackPool(RayResourcePool):\n"
            '    def get_placement_groups(self, strategy="PACK", name=None, device_name="cuda"):\n'
            "        if self.pgs is None:\n"
            '            self.pgs = [ray.util.placement_group([{"GPU": 1}] * n) for n in self._store]\n'
            "        return self.pgs\n\n\n{}",
        ),
    ),
    _past(
        "v0.6.1: the package exports a pool of the same name that overrides the groups",
        (_NPUS, _GROUP),
        (_RAY_INIT, "    RayResourcePool,\n", "    RayResourcePool as _RayResourcePool,\n"),
        (
            _RAY_INIT,
            "__all__ = [\n",
            "\nclass RayResourcePool(_RayResourcePool):\n"
            '    def get_placement_groups(self, strategy="PACK", name=None, device_name="cuda"):\n'
            "        return self.pgs or self.make_groups(strategy)\n\n\n{}",
        ),
    ),
    _past(
        "v0.6.1: the package assigns the method of the pool",
        _NPUS,
        (
            _RAY_INIT,
            "__all__ = [\n",
            'def _groups(self, strategy="PACK", name=None, device_name="cuda"):\n    return self.pgs\n\n\n'
            "RayResourcePool.get_placement_groups = _groups\n\n{}",
        ),
    ),
    # Which device a worker takes.
    _past(
        "v0.7.1: the worker calls a new method",
        _SELECT,
        (_WORKER, _SETS_UP, "        self._setup_device()\n"),
        (_WORKER, _SET_UP, f"    def _setup_device(self):\n{_OTHER_SET_UP}\n{{}}"),
    ),
    _past("v0.6.1: the device is set again afterwards", _SELECT, (_WORKER, _SETS_UP, f"{{}}{_OTHER_SET_UP}")),
    _past("v0.8.0: the set up is switched off", _SELECT, (_WORKER, _SETS_UP, "        if False:\n    {}")),
    _past(
        "v0.6.1: the actor's worker overrides the set up",
        _SELECT,
        (
            _FSDP,
            "class ActorRolloutRefWorker(Worker, DistProfilerExtension):\n",
            "{}    def _setup_env_cuda_visible_devices(self):\n"
            '        get_torch_device().set_device(int(os.environ["RANK"]))\n\n',
        ),
    ),
    # What a process knows of its device.
    _past(
        "v0.7.1: the device's name asks torch for CUDA and not the constant",
        _IS_CUDA,
        (
            _DEVICE,
            '    if is_cuda_available:\n        device = "cuda"\n',
            '    if torch.cuda.is_available():\n        device = "cuda"\n',
        ),
    ),
    _past(
        "v0.7.0: the device's name is decided on import",
        (_IS_NPU, _IS_CUDA),
        (
            _DEVICE,
            "is_npu_available = is_torch_npu_available()\n",
            '{}_DEVICE_NAME = "cuda" if is_cuda_available else "npu" if is_npu_available else "cpu"\n',
        ),
        (
            _DEVICE,
            '    if is_cuda_available:\n        device = "cuda"\n    elif is_npu_available:\n'
            '        device = "npu"\n    else:\n        device = "cpu"\n    return device\n',
            "    return _DEVICE_NAME\n",
        ),
    ),
    # Where the device is set in a configuration.
    _past(
        "1dda039b: main calls from a table of the module",
        _RUN_PPO,
        (
            _PPO,
            "        run_ppo(config, task_runner_class=TaskRunnerV1)\n",
            '        _RUN["ppo"](config, task_runner_class=TaskRunnerV1)\n',
        ),
        (_PPO, "@ray.remote\nclass TaskRunnerV1:", '_RUN = {"ppo": run_ppo}\n\n\n{}'),
    ),
    _past(
        "v0.7.1: a decorator of the caller leaves the call out",
        _CPU,
        (_PPO, "    auto_set_device(config)\n", "    _set_device(config)\n"),
        (
            _PPO,
            '@hydra.main(config_path="config"',
            "def _unless_set(function):\n    return lambda config: None\n\n\n@_unless_set\n"
            "def _set_device(config):\n    auto_set_device(config)\n\n\n{}",
        ),
    ),
    # Where settings are checked and completed.
    _past(
        "v0.6.1: a deep copy is checked",
        _VALIDATE,
        (_PPO, _CHECKS, "        validate_config(\n            config=deepcopy(config),\n"),
        (_PPO, "import socket\n", "{}from copy import deepcopy\n"),
    ),
    _past(
        "v0.7.1: a copy by another name is checked",
        _VALIDATE,
        (
            _PPO,
            _CHECKS,
            "        checked = OmegaConf.create(OmegaConf.to_container(config, resolve=True))\n"
            "        validate_config(\n            config=checked,\n",
        ),
    ),
    _past(
        "v0.7.1: a local function takes the place of the import",
        _VALIDATE,
        (_PPO, _IMPORTS_CHECK, "from verl.utils.config import validate_config as _validate_config\n"),
        (
            _PPO,
            "# Define a function to run the PPO-like training process\n",
            "def validate_config(config, use_reference_policy, use_critic):\n"
            "    assert config.trainer.n_gpus_per_node > 0\n\n\n{}",
        ),
    ),
    _past(
        "v0.9.1: main returns before the check",
        _VALIDATE,
        (
            _PPO,
            "    # validate config\n",
            "    if config.trainer.use_v1:\n        return run_ppo(config, task_runner_class=TaskRunnerV1)\n\n{}",
        ),
    ),
    _past(
        "v0.8.0: the settings are loaded again after the check",
        _VALIDATE,
        (
            _PPO,
            "        resource_pool_manager = self.init_resource_pool_mgr(config)\n",
            "        config = OmegaConf.load(config.trainer.resolved_config)\n{}",
        ),
    ),
    _past(
        "v0.9.0: the check runs in a process of its own",
        _VALIDATE,
        (_PPO, _MAIN_CHECKS, "    ray.remote(validate_config).remote(\n        config=config,\n"),
    ),
    # The engine's server and worker.
    _past(
        "v0.6.1: the agent loop calls another method of the server",
        _LENGTH,
        (
            _LOOP,
            "        output = await server.generate.remote(\n",
            "        output = await server.generate_tokens.remote(\n",
        ),
        (
            _SERVER,
            "    async def wake_up(self):\n",
            "    async def generate_tokens(self, prompt_ids, sampling_params, request_id, image_data=None):\n"
            "        params = SamplingParams(**sampling_params)\n"
            "        return await self.engine.generate(prompt_ids, params, request_id)\n\n{}",
        ),
    ),
    _past(
        "v0.7.1: the runner's worker overrides the update",
        _STAYS,
        (
            _PPO,
            "            actor_rollout_cls = ActorRolloutRefWorker\n",
            "            actor_rollout_cls = _worker_of(ActorRolloutRefWorker)\n",
        ),
        (
            _PPO,
            "class TaskRunner:\n",
            "def _worker_of(base):\n    class Actor(base):\n"
            "        async def update_weights(self, global_steps=None):\n"
            "            await self.rollout.update_weights(self.actor.engine.get_per_tensor_param()[0])\n\n"
            "    return Actor\n\n\n{}",
        ),
    ),
    # How a batch is split.
    _past(
        "v0.6.1: the number is rounded in place",
        (_AGREE, _SPLIT, _BUDGET),
        (
            _BALANCE,
            _ROUNDS,
            "        num_micro_batches = ceildiv(num_micro_batches, num_batches_divided_by) * "
            "num_batches_divided_by\n",
        ),
    ),
    _past(
        "1dda039b: the engine splits by a table of the other module",
        (_BUDGET, _AGREE, _SPLIT),
        (_ENGINE, _ARRANGES, '        micro_batches, batch_idx_list = SPLITTERS["tokens"](\n'),
        (_ENGINE, _IMPORTS_ARRANGE, "from verl.utils.seqlen_balancing import SPLITTERS, restore_dynamic_batch\n"),
        (_BALANCE, "def get_reverse_idx(idx_map):\n", 'SPLITTERS = {"tokens": rearrange_micro_batches}\n\n\n{}'),
    ),
    # The user's variables and the comparison of processes.
    _past(
        "v0.6.1: the merged environment is overwritten",
        _FORWARD,
        (_PPO, _MERGED, '{}        runtime_env["env_vars"] = {"TOKENIZERS_PARALLELISM": "true"}\n'),
    ),
    _past(
        "v0.9.1: the environment is replaced in the next line",
        _FORWARD,
        (_PPO, _CONFIG_ENV, '{}        default_runtime_env = dict(env_vars={"NCCL_DEBUG": "WARN"})\n'),
    ),
    _past(
        "v0.6.1: the logger is made without its constructor",
        _TRACKING,
        (_TRAINER, _LOGGER, "        logger = Tracking.__new__(Tracking)\n        logger.logger = dict(\n"),
    ),
    _past(
        "v0.9.1: the logger is another class",
        _TRACKING,
        (_V1, _SELF_LOGGER, "        self.logger = MetricsWriter(\n"),
        (
            _V1,
            "class PPOTrainer(",
            "class MetricsWriter:\n    def __init__(self, **kwargs):\n        self.logger = dict(kwargs)\n\n\n{}",
        ),
    ),
    _past(
        "v0.7.1: another function under the name of the import",
        _PUBLISH,
        (
            _SFT,
            "    from verl.utils.distributed import initialize_global_process_group\n",
            "    from verl.utils.distributed import initialize_global_process_group_ray as "
            "initialize_global_process_group\n",
        ),
    ),
    # Attention.
    _past(
        "v0.7.1: Ulysses calls the kernel beneath",
        "attention.compute_packing_once_and_check_settings",
        (
            _MONKEY,
            "    attn_output = _flash_attention_forward(\n"
            "        query_states, key_states, value_states, attention_mask, query_length, *args, "
            "position_ids=position_ids, **kwargs\n    )\n",
            "    from flash_attn import flash_attn_func\n\n"
            "    attn_output = flash_attn_func(query_states, key_states, value_states, causal=True)\n",
        ),
    ),
    # Fused operations.
    _past(
        "1dda039b: upstream's patches are applied as their module is imported",
        _EXPERT,
        (_FSDP_UTILS, "        apply_npu_patches()\n", "        NPU_PATCHER.apply()\n"),
        (_FSDP_UTILS, "import apply_npu_patches\n", "import NPU_PATCHER\n"),
        (
            "verl/models/transformers/npu_patch.py",
            "def apply_npu_patches():",
            "class _Patcher:\n    def apply(self):\n        for patch in NPU_PATCHES.values():\n"
            "            patch()\n\n\nNPU_PATCHER = _Patcher()\n\n\n{}",
        ),
    ),
    _past(
        "v0.7.1: upstream assigns the rotary embedding in another module",
        "fused_ops.fuse_rotary_in_qwen3",
        (
            _MONKEY,
            _TRL,
            '    if model.config.model_type == "qwen3":\n'
            "        from transformers.models.qwen3 import modeling_qwen3\n\n"
            "        modeling_qwen3.apply_rotary_pos_emb = _rotary\n\n{}",
        ),
        (
            _MONKEY,
            "def apply_monkey_patch(\n",
            "def _rotary(q, k, cos, sin, position_ids=None, unsqueeze_dim=1):\n"
            "    return q * cos + q.flip(-1) * sin, k * cos + k.flip(-1) * sin\n\n\n{}",
        ),
    ),
    # The fused loss.
    _past(
        "v0.7.1: the loss is a subclass of the function",
        _RANGES,
        (
            _LOSS,
            "linear_cross_entropy = LinearCrossEntropy.apply\n",
            "class _Loss(LinearCrossEntropy):\n    @staticmethod\n"
            '    def forward(ctx, hidden, weight, labels, *args):\n        with torch.cuda.nvtx.range("loss"):\n'
            "            return torch.nn.functional.linear(hidden, weight), None\n\n\n"
            "linear_cross_entropy = _Loss.apply\n",
        ),
    ),
    _past(
        "1dda039b: the caller computes the loss by a function of its own",
        _RANGES,
        (_FUSED, "from verl.utils.kernel.linear_cross_entropy import linear_cross_entropy\n", ""),
        (
            _FUSED,
            "from .util import postprocess_packed_seqs_for_dict_output, postprocess_thd_engine\n",
            "{}\n\ndef linear_cross_entropy(hidden, weight, labels, temperature, reduction, group):\n"
            "    logits = torch.nn.functional.linear(hidden, weight) / temperature\n"
            "    return logits.log_softmax(-1), None\n",
        ),
    ),
    # Megatron.
    _past(
        "v0.7.1: the registry has another converter",
        _FLAG,
        (_REGISTRY, _CONVERTS, "    SupportedModel.DEEPSEEK_V3: _deepseek,\n"),
        (
            _REGISTRY,
            "# Registry for model configuration converters\n",
            "def _deepseek(hf_config, dtype, **kwargs):\n"
            "    return hf_to_mcore_config_dense(hf_config, dtype, **kwargs)\n\n\n{}",
        ),
    ),
    # New weights.
    _past(
        "1dda039b: the manager ends workers by another method",
        _DROP,
        (
            _CHECKPOINT,
            '            actor_wg.execute_checkpoint_engine(["finalize"] * actor_wg.world_size)\n'
            '            + rollout.execute_checkpoint_engine(["finalize"] * rollout.world_size)\n',
            '            actor_wg.execute_checkpoint_engine(["close"] * actor_wg.world_size)\n'
            '            + rollout.execute_checkpoint_engine(["close"] * rollout.world_size)\n',
        ),
        (
            _HCCL,
            "    def finalize(self):\n",
            "    def close(self):\n        self.pyhccl.destroyComm(self.pyhccl.comm)\n\n{}",
        ),
    ),
    _past(
        "v0.7.1: the engine's extension is a subclass that loads by itself",
        _NOTE,
        (
            _SERVER,
            '            "worker_extension_cls": '
            '"verl.workers.rollout.vllm_rollout.utils.vLLMColocateWorkerExtension",\n',
            '            "worker_extension_cls": "verl.workers.rollout.vllm_rollout.utils.WorkerExtension",\n',
        ),
        (
            _EXTENSION,
            "class SuppressSignalInThread:\n",
            "class WorkerExtension(vLLMColocateWorkerExtension):\n"
            "    def _update_weights(self, weights, peft_config, base_sync_done):\n"
            "        self.model_runner.model.load_weights(weights)\n\n\n{}",
        ),
    ),
]

HARMLESS = [
    # Callers in other words.
    _fine(
        "v0.6.1: a local variable of the groups has another name",
        (_GROUP, _NPUS),
        (_RAY, "        pg_scheme = [[", "        schemes = [["),
        (_RAY, "enumerate(pg_scheme)", "enumerate(schemes)"),
    ),
    _fine(
        "v0.7.1: a log line before the check",
        (_VALIDATE, _FORWARD, _RUN_PPO),
        (_PPO, _CHECKS, '        print("checking the settings")\n{}'),
    ),
    _fine(
        "1dda039b: the settings are checked by position",
        _VALIDATE,
        (_PPO, _MAIN_CHECKS, "    validate_config(\n        config,\n"),
    ),
    _fine(
        "1dda039b: one more variable in the environment",
        _FORWARD,
        (_PPO, _CONFIG_ENV, '{}        default_runtime_env["env_vars"]["VERL_RUN"] = "1"\n'),
    ),
    _fine(
        "v0.9.1: another entry of the registry for the same converter",
        _FLAG,
        (_REGISTRY, _CONVERTS, '{}    "DeepseekV31ForCausalLM": hf_to_mcore_config_dpskv3,\n'),
    ),
    # Calls that move, and reach the target as before.
    _fine(
        "v0.7.1: the set up is called in a method of the worker",
        _SELECT,
        (_WORKER, _SETS_UP, "        self._prepare()\n"),
        (_WORKER, _SET_UP, f"    def _prepare(self):\n{_SETS_UP}\n{{}}"),
    ),
    _fine(
        "1dda039b: the check is called in a function of the module",
        _VALIDATE,
        (_PPO, _MAIN_CHECKS, "    _check(\n        config=config,\n"),
        (
            _PPO,
            '@hydra.main(config_path="config"',
            "def _check(config, use_reference_policy, use_critic):\n"
            "    validate_config(config, use_reference_policy, use_critic)\n\n\n{}",
        ),
    ),
    _fine(
        "v0.6.1: the check is imported in the method",
        _VALIDATE,
        (_PPO, _CHECKS, "        from verl.utils.config import validate_config\n\n{}"),
        (
            _PPO,
            f"{_IMPORTS_CHECK}from verl.utils.device import is_cuda_available\n",
            "from verl.utils.device import is_cuda_available\n",
        ),
    ),
    _fine(
        "v0.9.1: the check is called by its module's name",
        _VALIDATE,
        (_PPO, _MAIN_CHECKS, "    config_utils.validate_config(\n        config=config,\n"),
        (_PPO, _IMPORTS_CHECK, "import verl.utils.config as config_utils\n"),
    ),
    _fine(
        "v0.8.0: the check has another name here",
        _VALIDATE,
        (_PPO, _CHECKS, "        check(\n            config=config,\n"),
        (_PPO, _IMPORTS_CHECK, "from verl.utils.config import validate_config as check\n"),
    ),
    _fine(
        "v0.6.1: the logger is imported at the head of the module",
        _TRACKING,
        (_TRAINER, "        from verl.utils.tracking import Tracking\n", ""),
        (_TRAINER, "from verl.utils.seqlen_balancing import", "from verl.utils.tracking import Tracking\n{}"),
    ),
    _fine(
        "v0.6.1: another name of the module for the splitting is called, which is rebound",
        (_BUDGET, _AGREE, _SPLIT),
        (_BALANCE, _PREPARES, "    batch, batch_idx_list = _rearrange(\n"),
        (_BALANCE, "def prepare_dynamic_batch(\n", "_rearrange = rearrange_micro_batches\n\n\n{}"),
    ),
    _fine(
        "1dda039b: the engine splits by a table of its own, which is made of what is patched",
        (_BUDGET, _AGREE, _SPLIT),
        (_ENGINE, _ARRANGES, '        micro_batches, batch_idx_list = _SPLITTERS["tokens"](\n'),
        (_ENGINE, "def prepare_micro_batches(\n", '_SPLITTERS = {"tokens": rearrange_micro_batches}\n\n\n{}'),
    ),
    # One more caller of a kind.
    _fine(
        "1dda039b: one more function asks for the environment",
        _FORWARD,
        (
            _PPO,
            "@ray.remote\nclass TaskRunnerV1:",
            "def start(config):\n    ray.init(runtime_env=get_ppo_ray_runtime_env(config))\n\n\n{}",
        ),
    ),
    _fine(
        "v0.6.1: a pool adds to the groups of the pool beneath",
        (_NPUS, _GROUP),
        (_TRAINER, "            resource_pool = RayResourcePool(\n", "            resource_pool = _LoggedPool(\n"),
        (
            _TRAINER,
            "@dataclass\nclass ResourcePoolManager:\n",
            "class _LoggedPool(RayResourcePool):\n"
            '    def get_placement_groups(self, strategy="STRICT_PACK", name=None, device_name="cuda"):\n'
            "        groups = super().get_placement_groups(strategy, name, device_name)\n"
            "        print(len(groups))\n        return groups\n\n\n{}",
        ),
    ),
    _fine(
        "v0.6.1: a worker overrides another method",
        _SELECT,
        (
            _FSDP,
            "class ActorRolloutRefWorker(Worker, DistProfilerExtension):\n",
            "{}    def get_fused_worker_by_name(self, worker_name):\n        return None\n\n",
        ),
    ),
    _fine(
        "v0.9.1: a new module imports targets and calls them",
        (_VALIDATE, _GROUP),
        (
            "verl/trainer/preview.py",
            "",
            "from verl.single_controller.ray.base import RayResourcePool\n"
            "from verl.utils.config import validate_config\n\n\ndef preview(config):\n"
            "    validate_config(config, False, False)\n    return RayResourcePool([1]).get_placement_groups()\n",
        ),
    ),
    _fine(
        "v0.7.1: the package exports one more name",
        (_NPUS, _GROUP),
        (_RAY_INIT, "    RayResourcePool,\n", "{}    extract_pg_from_exist,\n"),
    ),
]
