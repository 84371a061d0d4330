"""The rules that a rehearsal uses to scale settings. A rule has a name, a reason, and the settings that it changes.

The rules are applied in the order of this file, so a later rule sees the changes that earlier rules made.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_npu.features.rollout.data_parallel import SETTINGS as DATA_PARALLEL
from verl_npu.language import gettext as _

from ..jobs import keys
from ..jobs.keys import BATCH, MAX_LENGTH, MAX_PROMPT, MAX_RESPONSE, ROLLOUT, ROLLOUT_TENSOR, SAMPLES
from ..jobs.settings import Settings, override
from .layout import Layout

PROMPTS = 8
_MOST_SAMPLES, _MOST_MICRO, _MOST_GENERATED, _MOST_SYNC_STEP, _MOST_WARM_UP = 4, 2, 3, 4, 2
_BUCKET_MEGABYTES = 64
_SECTION, _OVERRIDES = ".megatron", ".megatron.override_transformer_config"
_MODELS = (
    r"(actor_rollout_ref|critic)\.model\.(path|hf_config_path|tokenizer_path)"
    r"|model\.(path|partial_pretrain|hf_config_path|tokenizer_path)"
    r"|(reward_model|reward\.reward_model)\.(model\.(path|input_tokenizer)|model_path)"
    r"|data\.tokenizer"
    r"|distillation\.teacher_models\..*\.model_path"
    r"|actor_rollout_ref\.(actor|ref)\.mindspeed\.llm_kwargs\.\w*(path|model)"
)
_SHAPES = {
    "num_query_groups": "num_key_value_heads",
    "num_attention_heads": "num_attention_heads",
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_experts": "num_experts",
    "num_moe_experts": "num_experts",
    "moe_router_topk": "num_experts_per_tok",
    "qk_head_dim": "qk_nope_head_dim",
    "qk_nope_head_dim": "qk_nope_head_dim",
    "qk_rope_head_dim": "qk_rope_head_dim",
    "qk_pos_emb_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "moe_router_num_groups": "n_group",
    "moe_router_group_topk": "topk_group",
    "kv_channels": "head_dim",
}
"""From Megatron's names for a model's sizes to transformers' names for the same sizes."""


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that a rehearsal changes."""

    key: str
    before: object
    after: object
    rule: str

    def override(self) -> str:
        """Return the change as a Hydra override. It comes after the script's own overrides and takes precedence over
        them."""
        return override(self.key, self.after)


@dataclass(frozen=True, slots=True)
class Setup:
    """The files, the parallel layout, and the number of steps of a rehearsal."""

    folder: Path
    """The folder that the run writes to."""
    model: Path
    train: Path
    test: Path
    checkpoint: Path | None
    """The small model's converted checkpoint. None if the job needs none."""
    reward: Path
    """A file with a reward function `grade` that gives even a random model some reward."""
    layout: Layout
    steps: int
    prompt: int
    """The number of tokens of the longest prompt."""
    response: int
    """The number of tokens of a response."""
    engine: str
    """The rollout engine that runs instead of the script's engine. Empty if the script's own engine runs."""
    no_sleep: bool = False
    """Whether the engine is vLLM's CPU build, which has no sleep mode and cannot be split over verl's ranks."""


Changed = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule that scales settings."""

    name: str
    reason: str
    """The reason for the change, and which problems the change hides."""
    change: Callable[[Settings, Settings, Setup], Changed]
    """A function that returns new values. Its arguments are the script's settings, the settings after the earlier
    rules, and the setup."""


RULES: list[Rule] = []


def scale(settings: Settings, setup: Setup, without: tuple[str, ...] = ()) -> tuple[list[Change], Settings]:
    """Apply all rules except those in `without`. Return the changes in order, and the changed settings."""
    changes: list[Change] = []
    written = settings
    for rule in RULES:
        if rule.name in without:
            continue
        after = {
            key: value for key, value in rule.change(settings, written, setup).items() if written.get(key) != value
        }
        changes += [Change(key, written.get(key), value, rule.name) for key, value in after.items()]
        written = written.changed(after)
    return changes, written


def _rule(name: str, reason: str) -> Callable[[Callable[[Settings, Settings, Setup], Changed]], None]:
    return lambda change: RULES.append(Rule(name, reason, change))


@_rule(
    "model",
    _("A random model of the same architecture with about two layers. Full-size memory and numbers are not shown."),
)
def _model(script: Settings, now: Settings, setup: Setup) -> Changed:
    models = {key: str(setup.model) for key in script.matching(_MODELS) if script.get(key) not in (None, {}, "")}
    # Request nothing from the hub.
    adapters = {key: None for key in script.ending("lora_adapter_path", "adapter_path") if script.get(key)}
    return {**models, **adapters}


@_rule("shapes", _("The script repeats sizes of the full model. The small model has other sizes."))
def _shapes(script: Settings, now: Settings, setup: Setup) -> Changed:
    config = json.loads((setup.model / "config.json").read_text())
    text = config.get("text_config", config)
    text.setdefault("num_experts", text.get("n_routed_experts"))
    changed: dict[str, object] = {}
    for key in script.matching(rf".*(override_transformer_config|mcore_kwargs)\.({'|'.join(_SHAPES)})"):
        value = text.get(_SHAPES[key.rpartition(".")[2]])
        if script.get(key) is not None and value is not None:
            changed[key] = value
    return changed


@_rule(
    "distributed checkpoint",
    _(
        "The tree's own converter converts the small model. If the converter fails, mbridge loads "
        "the safetensors, and loading a distributed checkpoint is not shown."
    ),
)
def _dist_checkpoint(script: Settings, now: Settings, setup: Setup) -> Changed:
    changed: dict[str, object] = {}
    for key in script.ending("use_dist_checkpointing"):
        if not script.truth(key):
            continue
        if setup.checkpoint is None:
            changed[key] = False
            # Upstream's own loader does not support experts.
            bridge = key.replace("use_dist_checkpointing", "use_mbridge")
            changed |= {bridge: True} if bridge in script else {}
        else:
            changed[key.replace("use_dist_checkpointing", "dist_checkpointing_path")] = str(setup.checkpoint)
    return changed


@_rule("data", _("Generated questions, in the columns that the script reads."))
def _data(script: Settings, now: Settings, setup: Setup) -> Changed:
    changed: dict[str, object] = {keys.TRAIN_FILES: str(setup.train)}
    if script.get(keys.VALIDATION_FILES) is not None:
        changed[keys.VALIDATION_FILES] = str(setup.test)
    samples = ("data.train_max_samples", "data.val_max_samples")
    return changed | {key: -1 for key in samples if script.whole(key) > 0}


@_rule(
    "reward",
    _(
        "A random model never answers correctly, and equal rewards train nothing. A graded reward replaces the "
        "script's, which is not shown."
    ),
)
def _reward(script: Settings, now: Settings, setup: Setup) -> Changed:
    # If both exist, verl reads the second; up to v0.8.0, it fills the second from the first if that is set.
    sections = ("custom_reward_function", "reward.custom_reward_function") if keys.ESTIMATOR in script else ()
    given = [section for section in sections if f"{section}.path" in script]
    return {
        f"{each}.{name}": value for each in given for name, value in (("path", str(setup.reward)), ("name", "grade"))
    }


@_rule("lengths", _("Long sequences take hours on a CPU. Memory and speed at full length are not shown."))
def _lengths(script: Settings, now: Settings, setup: Setup) -> Changed:
    new = {MAX_PROMPT: setup.prompt, MAX_RESPONSE: setup.response, MAX_LENGTH: setup.prompt + setup.response}
    changed: dict[str, object] = {
        key: min(value, script.whole(key)) for key, value in new.items() if script.whole(key)
    }
    # If the configuration does not interpolate data.*, the script has set these one by one.
    for key, follows in (("prompt_length", MAX_PROMPT), ("response_length", MAX_RESPONSE)):
        path = f"{ROLLOUT}.{key}"
        if path in script and follows in changed and script.get(path) != script.get(follows):
            changed[path] = changed[follows]
    return changed


def _longest(settings: Settings) -> int:
    """Return the number of tokens of the longest sequence."""
    return (settings.whole(MAX_PROMPT) + settings.whole(MAX_RESPONSE)) or settings.whole(MAX_LENGTH)


@_rule(
    "token budgets",
    _(
        "Token budgets keep their ratio to the longest sequence, so that dynamic batches split as "
        "often as in the script."
    ),
)
def _budgets(script: Settings, now: Settings, setup: Setup) -> Changed:
    before, after = _longest(script), _longest(now)
    if not before or not after:
        return {}
    # A micro batch holds at least one whole sequence, which is split over the ranks of the sequence dimension.
    fewest = math.ceil(after / setup.layout.sequence)
    changed: dict[str, object] = {}
    for key in script.matching(r".*(max_token_len_per_gpu|max_token_len)"):
        if script.whole(key):
            changed[key] = max(math.ceil(script.whole(key) * after / before), fewest)
    for key in script.ending("max_model_len", "max_num_batched_tokens"):
        if script.whole(key):
            changed[key] = max(math.ceil(script.whole(key) * after / before), after)
    # vLLM requires at least one token of each sequence in a batch.
    for key in script.ending("max_num_seqs"):
        tokens = changed.get(key.replace("max_num_seqs", "max_num_batched_tokens"))
        if isinstance(tokens, int) and script.whole(key) > tokens:
            changed[key] = tokens
    for key in script.matching(
        r".*override_transformer_config\.(seq_length|max_position_embeddings)|.*mcore_kwargs\.seq_length"
    ):
        # With MindSpeed's latent attention, this is the size of the mask, and flash attention accepts only one size.
        if script.whole(key) and not script.truth(f"{key.rpartition('.')[0]}.multi_head_latent_attention"):
            changed[key] = after
    return changed


@_rule("overlong buffer", _("The length must be below the response's, and keeps its ratio to the response's length."))
def _overlong(script: Settings, now: Settings, setup: Setup) -> Changed:
    before, after = script.whole(MAX_RESPONSE), now.whole(MAX_RESPONSE)
    return {
        key: max(1, min(script.whole(key) * after // before, after - 1))
        for key in script.matching(r".*overlong_buffer(_cfg)?\.len")
        if script.whole(key) and before and after
    }


def _sync_step(script: Settings) -> int:
    """Return the number of mini batches between two weight syncs of the v1 trainer, or 0 for other trainers. The v1
    trainer asserts that these mini batches make up one batch."""
    return min(keys.size(script, keys.SYNC_STEP), _MOST_SYNC_STEP) if keys.is_separate(script) else 0


def _scaled(number: int, before: int, after: int) -> int:
    return max(1, number * after // before if before else min(number, after))


@_rule(
    "batches", _("A step with {prompts} prompts takes seconds; generation keeps its ratio.").format(prompts=PROMPTS)
)
def _batches(script: Settings, now: Settings, setup: Setup) -> Changed:
    changed: dict[str, object] = {}
    before, generated = script.whole(BATCH), script.whole(keys.GENERATION_BATCH)
    if before > 0:
        after, parts = min(PROMPTS, before), _sync_step(script) or 1
        # verl asserts that the responses of one training batch can be divided evenly among all NPUs.
        while after % parts or after // parts * min(keys.size(script, SAMPLES), _MOST_SAMPLES) % setup.layout.npus:
            after += 1
        changed |= {keys.SYNC_STEP: parts} if keys.is_separate(script) else {}
        changed[BATCH] = after
        if generated > before:
            changed[keys.GENERATION_BATCH] = min(_scaled(generated, before, after), _MOST_GENERATED * after)
        elif generated > 1:
            changed[keys.GENERATION_BATCH] = min(generated, after)
    if script.whole(keys.VALIDATION_BATCH):
        changed[keys.VALIDATION_BATCH] = min(script.whole(keys.VALIDATION_BATCH), PROMPTS)
    return changed


@_rule(
    "samples",
    _("{most_samples} answers for each prompt show grouping and advantages as well as 16 answers.").format(
        most_samples=_MOST_SAMPLES
    ),
)
def _samples(script: Settings, now: Settings, setup: Setup) -> Changed:
    counts = (SAMPLES, "rollout.n", f"{ROLLOUT}.val_kwargs.n")
    return {key: _MOST_SAMPLES for key in counts if script.whole(key) > _MOST_SAMPLES}


@_rule(
    "mini batches",
    _(
        "Mini-batches keep their ratio to the batch, so that a step has as many optimizer steps as "
        "in the script, as far as whole prompts allow."
    ),
)
def _mini_batches(script: Settings, now: Settings, setup: Setup) -> Changed:
    changed: dict[str, object] = {}
    for key in script.ending("ppo_mini_batch_size"):
        if script.whole(key):
            size = _scaled(script.whole(key), max(script.whole(BATCH), 0), now.whole(BATCH) or PROMPTS)
            size = now.whole(BATCH) // _sync_step(script) if _sync_step(script) else size
            # Each replica of the model gets the same number.
            while size * keys.size(now, SAMPLES) % setup.layout.data:
                size += 1
            changed[key] = size
    return changed


@_rule(
    "micro batches",
    _(
        "A micro-batch has at most {most_micro} sequences, so that gradients still accumulate over "
        "several micro-batches."
    ).format(most_micro=_MOST_MICRO),
)
def _micro_batches(script: Settings, now: Settings, setup: Setup) -> Changed:
    names = ("ppo_micro", "log_prob_micro", "forward_micro", "micro")
    endings = [f"{name}_batch_size{rest}" for name in names for rest in ("_per_gpu", "")]
    changed: dict[str, object] = {}
    for key in script.ending(*endings, "infer_micro_batch_size_per_gpu"):
        size, own = script.whole(key), _per_replica(key, now, setup)
        # A size that counts all NPUs together is at least one for each of them.
        parts = 1 if key.endswith("_per_gpu") else setup.layout.data
        most = _MOST_MICRO * parts
        if own and own % min(max(size // parts, 1), _MOST_MICRO):
            most = parts
        if size > most:
            changed[key] = most
    return changed


def _per_replica(key: str, now: Settings, setup: Setup) -> int:
    """Return the number of sequences in a mini batch, or in a fine-tuning batch, that a replica divides into micro
    batches, or 0 if `key` has no such batch."""
    section, _unused, name = key.rpartition(".")
    if name.startswith("ppo_micro"):
        total = now.whole(f"{section}.ppo_mini_batch_size") * keys.size(now, SAMPLES)
    else:
        total = now.whole(BATCH) if section == "data" else 0
    return max(total, 0) // setup.layout.data


@_rule("NPUs", _("The virtual NPUs of one machine. Communication between machines is not shown."))
def _npus(script: Settings, now: Settings, setup: Setup) -> Changed:
    changed: dict[str, object] = {}
    if keys.NPUS in script:
        changed |= {keys.NPUS: setup.layout.npus, keys.NODES: 1}
    if setup.layout.rollout_npus:
        changed |= dict(zip(keys.own_rollout(script), (setup.layout.rollout_npus, 1), strict=True))
        own = {f"{ROLLOUT}.n_gpus_per_node": setup.layout.rollout_npus, f"{ROLLOUT}.nnodes": 1}
        changed |= {key: count for key, count in own.items() if script.whole(key)}
    for section in ("reward_model", "reward.reward_model", "distillation"):
        if script.truth(f"{section}.enable_resource_pool") or script.truth(f"{section}.enable"):
            pool = (f"{section}.n_gpus_per_node", f"{section}.nnodes")
            changed |= {key: 1 for key in pool if script.whole(key)}
    return changed


@_rule(
    "parallel sizes",
    _("Each kind of parallelism has size 2 if there are enough NPUs, so that all its communication happens."),
)
def _parallel(script: Settings, now: Settings, setup: Setup) -> Changed:
    layout = setup.layout
    sizes = {
        "tensor_model_parallel_size": layout.tensor,
        "pipeline_model_parallel_size": layout.pipeline,
        "context_parallel_size": layout.context,
        "expert_model_parallel_size": layout.expert,
        "expert_parallel_size": layout.expert,
        "expert_tensor_parallel_size": layout.expert_tensor,
        "ulysses_sequence_parallel_size": layout.sequence,
        "ulysses_parallel_size": layout.sequence,
    }
    rollout = {
        "tensor_model_parallel_size": layout.rollout_tensor,
        **dict.fromkeys(DATA_PARALLEL, layout.rollout_data),
        "expert_parallel_size": layout.rollout_expert,
        "pipeline_model_parallel_size": 1,
    }
    contexts = list(script.matching(rf".*{re.escape(_SECTION)}\.context_parallel_size"))
    changed: dict[str, object] = {}
    for key in script.ending(*sizes, *rollout, "fsdp_size"):
        name = key.rpartition(".")[2]
        size = script.whole(key, -1)
        if key.startswith(f"{ROLLOUT}."):
            if size > rollout.get(name, size):
                changed[key] = rollout[name]
        elif ".rollout." in key:
            if size > 1:
                changed[key] = 1
        elif name == "fsdp_size":
            if size > layout.npus:
                changed[key] = -1
        elif name in sizes and size > sizes[name]:
            changed[key] = sizes[name]
            if sizes[name] == 1 and key.endswith(f"{_OVERRIDES}.context_parallel_size"):
                # MindSpeed patches for an override of 1, but not for a missing one, and all roles must agree.
                changed |= {context.replace(_SECTION, _OVERRIDES): 1 for context in contexts}
    # Megatron uses the tensor dimension for a null value, which the layout has given up.
    if layout.expert > 1 and layout.expert_tensor < layout.tensor:
        for key in script.ending("expert_tensor_parallel_size"):
            if script.get(key) is None and key.replace("expert_tensor_", "expert_model_") in script:
                changed[key] = layout.expert_tensor
    return changed


@_rule("pipeline stages", _("These settings count layers of the full model. The small model is split evenly."))
def _stages(script: Settings, now: Settings, setup: Setup) -> Changed:
    names = (
        "virtual_pipeline_model_parallel_size",
        "num_layers_per_virtual_pipeline_stage",
        "num_layers_in_first_pipeline_stage",
        "num_layers_in_last_pipeline_stage",
        "pipeline_num_transformer_layers",
        "pipeline_model_parallel_layout",
    )
    stages = {key: None for key in script.ending(*names) if script.get(key) is not None}
    return stages | {key: 1 for key in script.ending("recompute_num_layers") if script.whole(key) > 1}


@_rule(
    "Ray",
    _(
        "Placement groups would wait for more CPUs than a small machine has, and the dashboard would "
        "take as much memory as a worker."
    ),
)
def _ray(script: Settings, now: Settings, setup: Setup) -> Changed:
    processors = max(64, 16 * setup.layout.all_npus)
    sections = [name for name in ("ray_kwargs.ray_init", "ray_init") if f"{name}.num_cpus" in script]
    changed: dict[str, object] = {f"{name}.num_cpus": processors for name in sections}
    # The older section passes on only this key.
    return changed | {f"{name}.include_dashboard": False for name in sections if name != "ray_init"}


@_rule("helper processes", _("One worker of each kind, because the workers share two cores."))
def _workers(script: Settings, now: Settings, setup: Setup) -> Changed:
    one = (
        f"{ROLLOUT}.agent.num_workers",
        "reward.num_workers",
        "reward_model.num_workers",
        "data.filter_overlong_prompts_workers",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units",
    )
    # With 0 workers, the loader runs in the trainer's own process; each worker would be a process with torch.
    none = ("data.dataloader_num_workers", "data.num_workers")
    return {key: 1 for key in one if script.whole(key) > 1} | {key: 0 for key in none if script.whole(key)}


@_rule("steps", _("A few steps show that the job trains. Failures after hours are not shown."))
def _duration(script: Settings, now: Settings, setup: Setup) -> Changed:
    changed: dict[str, object] = {
        "trainer.total_training_steps": setup.steps,
        "trainer.total_epochs": max(script.whole("trainer.total_epochs", 1), 1),
    }
    warm_ups = script.ending("num_warmup_batches")
    changed |= {key: _MOST_WARM_UP for key in warm_ups if script.number(key) > _MOST_WARM_UP}
    if "rollout.total_rollout_steps" in script:
        # The fully asynchronous trainer counts prompts.
        batches, interval = "async_training.require_batches", "async_training.trigger_parameter_sync_step"
        sync, required = (min(script.whole(interval, 1), 2), min(keys.size(script, batches), 2))
        changed[interval] = sync
        if script.whole(batches, 1) * script.whole(interval, 1):
            changed[batches] = required
        changed["rollout.total_rollout_steps"] = now.whole(keys.MINI_BATCH, 1) * required * sync * setup.steps
    return changed


@_rule("warm-up", _("The warm-up ends before the last step, so that the learning rate is above zero at least once."))
def _warm_up(script: Settings, now: Settings, setup: Setup) -> Changed:
    return {
        key: setup.steps if key.endswith("lr_decay_steps") else max(setup.steps - 1, 0)
        for key in script.ending("lr_warmup_steps", "lr_decay_steps", "critic_warmup")
        if script.whole(key) >= setup.steps
    }


@_rule("validation", _("The job validates once, at the last step, if the script validates at all."))
def _validation(script: Settings, now: Settings, setup: Setup) -> Changed:
    return {"trainer.test_freq": setup.steps} if script.whole("trainer.test_freq") > 0 else {}


@_rule(
    "checkpoints",
    _(
        "The job saves one checkpoint, at the last step, if the script saves any. It is in the run's "
        "own folder, and no earlier run is resumed."
    ),
)
def _checkpoints(script: Settings, now: Settings, setup: Setup) -> Changed:
    changed: dict[str, object] = {"trainer.default_local_dir": str(setup.folder / "checkpoints")}
    if script.whole("trainer.save_freq") > 0:
        changed["trainer.save_freq"] = setup.steps
    changed |= {key: None for key in ("trainer.default_hdfs_dir", "trainer.resume_from_path") if script.get(key)}
    if script.text("trainer.resume_mode") == "resume_path":
        changed["trainer.resume_mode"] = "disable"
    changed |= {key: str(setup.folder / "dumps") for key in script.matching(r"skip\.\w+\.dump_dir") if script.get(key)}
    for name in ("rollout_data_dir", "validation_data_dir"):
        if script.get(f"trainer.{name}"):
            changed[f"trainer.{name}"] = str(setup.folder / name)
    return changed


@_rule("logger", _("The job logs only to the console, because other loggers need an account or a server."))
def _logger(script: Settings, now: Settings, setup: Setup) -> Changed:
    return {"trainer.logger": ["console"]} if "trainer.logger" in script else {}


@_rule("profiler", _("The profiler records the first step and writes to the run's own folder."))
def _profiler(script: Settings, now: Settings, setup: Setup) -> Changed:
    paths = script.matching(r"(global_profiler|.*\.profiler)\.save_path")
    changed: dict[str, object] = {key: str(setup.folder / "profile") for key in paths if script.get(key)}
    return changed | {key: [1] for key in ("global_profiler.steps", "trainer.profile_steps") if script.get(key)}


@_rule(
    "rollout engine",
    _(
        "The script's engine needs an NPU or is not installed here; transformers' generate replaces it. The engine "
        "itself is not shown."
    ),
)
def _engine(script: Settings, now: Settings, setup: Setup) -> Changed:
    names = (keys.ENGINE, "reward.reward_model.rollout.name", "reward_model.rollout.name")
    return {key: setup.engine for key in names if setup.engine and script.text(key) not in ("", "???")}


@_rule("sleep mode", _("The installed vLLM is the build for CPUs, which has no sleep mode."))
def _sleep(script: Settings, now: Settings, setup: Setup) -> Changed:
    return {f"{ROLLOUT}.engine_kwargs.vllm.enable_sleep_mode": False} if setup.no_sleep else {}


@_rule(
    "rollout ranks",
    _(
        "The installed vLLM is the build for CPUs, which starts an engine's ranks outside of verl's "
        "workers, so the workers would have no engine to send weights to."
    ),
)
def _rollout_ranks(script: Settings, now: Settings, setup: Setup) -> Changed:
    return {ROLLOUT_TENSOR: 1} if setup.no_sleep and now.whole(ROLLOUT_TENSOR) > 1 else {}


@_rule("quantization and drafts", _("The engine that replaces the script's engine does not have these settings."))
def _tensors(script: Settings, now: Settings, setup: Setup) -> Changed:
    given = script.matching(r"actor_rollout_ref\.rollout\.(quantization|mtp\.enable|mtp\.enable_rollout)")
    return {key: (False if "mtp" in key else None) for key in given if setup.engine and script.get(key)}


@_rule(
    "weight buckets",
    _("Each rank of a weight sync keeps two buckets in memory, and the small model is smaller than one bucket."),
)
def _buckets(script: Settings, now: Settings, setup: Setup) -> Changed:
    sizes = script.ending("update_weights_bucket_megabytes")
    return {key: _BUCKET_MEGABYTES for key in sizes if script.whole(key) > _BUCKET_MEGABYTES}
