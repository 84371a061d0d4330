"""Rules for the rollout of a job. They are applied before the first process of the job starts.

No rule imports torch or an engine. So commands can apply the rules to a launch script, as the job applies them to its
configuration.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path

from ...ascend.variables import ALLOCATOR, EXPANDABLE_SEGMENTS, NZ, NZ_KEY
from ...errors import FleetError, JobSettingError
from ...findings import Finding, Rule, Stage
from ...registry.source.tree import SourceTree, Target
from ...reporting import warn
from ..configuration import Section
from . import data_parallel
from .argument_rules import sizes_in_one_word as sizes_in_one_word
from .argument_rules import unknown_arguments, unread_arguments
from .engine_versions import unfit_releases
from .findings import refusal, remark
from .rl_mode import additional_config, wrong_rl_config

_ROLLOUT = "actor_rollout_ref.rollout"
_MODEL = "actor_rollout_ref.model"
_TENSOR = f"{_ROLLOUT}.tensor_model_parallel_size"
_ADDITIONAL = f"{_ROLLOUT}.engine_kwargs.vllm.additional_config"
_KEEP_CACHE = f"{_ROLLOUT}.free_cache_engine=False"

_READERS = "verl.workers.rollout"
# From this class on, upstream itself refuses unknown settings.
_SCHEMA = Target("verl.workers.config.rollout", "RolloutConfig")
_SHARE_FIX = (
    "remove it, or set rollout.mode=sync in an environment like the published image's, whose vLLM 0.10 has engines "
    "that step together"
)
_EXPERT_PARALLEL_FIX = (
    f"remove it, or set +{_ROLLOUT}.enable_expert_parallel=True with rollout.mode=sync: vLLM 0.9.1 then divides the "
    "experts over the ranks of each engine"
)
_HYBRID_TP_FIX = (
    "remove it: vllm-ascend 0.7.3 and the published image's, at 1de16ead8e, cannot divide a single layer, and 0.9.1 "
    "can only divide DeepSeek's output head, between data-parallel engines of one rank each"
)
_SIZE_FIXES = {
    **dict.fromkeys(data_parallel.SETTINGS, _SHARE_FIX),
    "expert_parallel_size": _EXPERT_PARALLEL_FIX,
}


def check(config: Section, only: Collection[str] | None = None) -> None:
    """Apply all rules, or only the rules whose codes are in `only`. Raises the error of the first rule that fails."""
    for rule in RULES:
        if only is None or rule.code in only:
            refuse(rule.ask(config))


def refuse(findings: Iterable[Finding]) -> None:
    """Print the warnings among a rule's findings. Raises FleetError or JobSettingError for the first finding that is
    an error."""
    for finding in findings:
        if finding.refused:
            # The allocator's setting is a variable that all processes of the job must share.
            kind = FleetError if finding.code == "rollout.expandable_segments" else JobSettingError
            raise kind(
                subject=finding.subject,
                expected=finding.expected,
                found=finding.found,
                fix=finding.fix,
                override=finding.override,
            )
        warn(finding.found)


def expandable_segments(
    config: Section,
    environ: Mapping[str, str] = os.environ,
    overrides_without_sleep: Callable[[Section], str] | None = None,
) -> Iterator[Finding]:
    """Refuse a vLLM engine with sleep mode if the allocator of the job uses expandable segments."""
    engine = config.actor_rollout_ref.rollout
    init = config.get("ray_init") or config.get("ray_kwargs", {}).get("ray_init") or {}
    of_workers = (init.get("runtime_env") or {}).get("env_vars") or {}
    setting = of_workers.get(ALLOCATOR, environ.get(ALLOCATOR, ""))
    if engine.get("name") != "vllm" or EXPANDABLE_SEGMENTS not in setting:
        return
    overrides = (overrides_without_sleep or sleep_mode_overrides)(engine)
    if overrides:
        yield refusal(
            "rollout.expandable_segments",
            subject=f"{ALLOCATOR}={setting}",
            found=f"vllm-ascend's sleep mode does not work with {EXPANDABLE_SEGMENTS}, and this job builds its vLLM "
            "engine with enable_sleep_mode=True",
            fix=f"remove {EXPANDABLE_SEGMENTS} from the variable, or build the engine without sleep mode: {overrides}",
        )


def sleep_mode_overrides(engine: Section) -> str:
    """Return the result of `sleep_mode_overrides_of` for an engine of the installed verl.

    This function imports verl's classes. The engine is assumed to be upstream's own, unless a recipe has registered
    another one in this process.
    """
    return sleep_mode_overrides_of(engine, _fields(), lambda mode: _is_upstreams("vllm", mode))


def sleep_mode_overrides_of(
    engine: Section, fields: frozenset[str] | None, is_upstreams: Callable[[str], bool]
) -> str:
    """Return the overrides that disable the vLLM engine's sleep mode.

    Return an empty string if the engine has no sleep mode anyway, or if it is not upstream's own, because nothing is
    known about other engines. `fields` are the fields of upstream's RolloutConfig, or None if the class does not
    exist. `is_upstreams` returns whether the engine of a mode is upstream's own. Upstream sets enable_sleep_mode as
    follows:

        revision               mode    the engine's enable_sleep_mode
        796871d7               async   free_cache_engine; engine_kwargs are not read
        796871d7               sync    free_cache_engine; setting it in engine_kwargs, too, is an error
        v0.6.1                 sync    free_cache_engine; setting it in engine_kwargs, too, is an error
        v0.6.1                 async   True, unless engine_kwargs set it
        ccd7d934 and later     async   enable_sleep_mode, which is True by default; engine_kwargs take precedence
        ccd7d934, v0.7.0       sync    a recipe's own engine decides; r1_ascend's engine uses False

    The row is selected by the classes that upstream defines, not by upstream's version: `RolloutConfig` does not exist
    at 796871d7, and has a field `enable_sleep_mode` from ccd7d934 on.
    """
    name, mode = "enable_sleep_mode", engine.get("mode", "sync")
    if fields is None or (mode == "sync" and is_upstreams(mode)):
        return _KEEP_CACHE if engine.get("free_cache_engine", False) else ""
    if mode == "sync":
        return ""
    asked = ((engine.get("engine_kwargs") or {}).get("vllm") or {}).get(name)
    if name in fields:
        asked = engine.get(name, True) if asked is None else asked
        return f"{_KEEP_CACHE} +{_ROLLOUT}.{name}=False" if asked else ""
    return f"{_KEEP_CACHE} +{_ROLLOUT}.engine_kwargs.vllm.{name}=False" if asked is None or asked else ""


def _fields() -> frozenset[str] | None:
    """Return the field names of upstream's RolloutConfig, or None if the class does not exist."""
    try:
        config = importlib.import_module("verl.workers.config")
    except ImportError:
        return None
    rollout = getattr(config, "RolloutConfig", None)
    return None if rollout is None else frozenset(field.name for field in dataclasses.fields(rollout))


def _is_upstreams(name: str, mode: str) -> bool:
    """Return whether the engine of this name and mode is upstream's own. A recipe may have registered a different
    one."""
    base = importlib.import_module("verl.workers.rollout.base")
    return str(base._ROLLOUT_REGISTRY.get((name, mode), "")).startswith("verl.")


def _ranks(config: Section) -> Iterator[Finding]:
    # At every pin, upstream's workers assert that the ranks of a hybrid engine can be divided into engines.
    engine, trainer = config.actor_rollout_ref.rollout, config.get("trainer") or {}
    nodes, each = trainer.get("nnodes"), trainer.get("n_gpus_per_node")
    # A rollout with its own NPUs does not use the trainer's.
    separate = config.get("rollout") or engine.get("n_gpus_per_node") or engine.get("nnodes")
    hybrid = config.actor_rollout_ref.get("hybrid_engine", True)
    size = _number(engine.get("tensor_model_parallel_size")) * _number(engine.get("pipeline_model_parallel_size"))
    shared = data_parallel.data_parallel_size(engine)
    if engine.get("name") not in ("vllm", "sglang") or separate or not hybrid:
        return
    if isinstance(nodes, int) and isinstance(each, int) and nodes * each % (size * shared):
        yield refusal(
            "rollout.ranks",
            subject=_TENSOR,
            expected=f"engine groups whose number of ranks divides the job's {nodes * each} NPUs",
            found=f"engines of {size} ranks (tensor_model_parallel_size x pipeline_model_parallel_size)"
            + (f", in groups of {shared} engines that share a model" if shared > 1 else ""),
            fix="change a parallel size, trainer.nnodes, or trainer.n_gpus_per_node",
        )


def _heads(config: Section) -> Iterator[Finding]:
    # vLLM's ModelConfig.verify_with_parallel_config, in 0.7.3 to 0.25.1, needs the same number of heads on each rank.
    engine = config.actor_rollout_ref.rollout
    if engine.get("name") != "vllm":
        return
    path = Path(str((config.actor_rollout_ref.get("model") or {}).get("path") or ""), "config.json").expanduser()
    size = _number(engine.get("tensor_model_parallel_size"))
    try:
        model = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError):
        # transformers will report a model that cannot be read.
        return
    heads = (model.get("text_config") or model).get("num_attention_heads")
    if isinstance(heads, int) and heads % size:
        divisors = [str(each) for each in range(1, heads + 1) if heads % each == 0]
        yield refusal(
            "rollout.heads",
            subject=f"{_TENSOR}={size}",
            expected=f"a divisor of the model's {heads} attention heads",
            found=f"{size}, a size that vLLM rejects",
            fix=f"set the size to one of {', '.join(divisors)}",
        )


def _number(size: object) -> int:
    return size if isinstance(size, int) and size > 0 else 1


def _additional_config(config: Section) -> Iterator[Finding]:
    asked = additional_config(config) if config.actor_rollout_ref.rollout.get("name") == "vllm" else None
    # OmegaConf's sections are mappings but are not registered as such.
    keys = list(map(str, asked)) if asked is not None and hasattr(asked, "keys") else []
    sources = _sources() if keys else None
    if sources is None:
        return
    unread = [key for key in keys if not any(f'"{key}"' in text or f"'{key}'" in text for text in sources)]
    if unread:
        near = [match for key in unread for match in get_close_matches(key, _words(sources), n=1)]
        yield refusal(
            "rollout.additional_config",
            subject=_ADDITIONAL,
            expected="keys that the installed vllm-ascend reads",
            found=f"{', '.join(unread)}, which vllm-ascend's source does not contain",
            fix="remove the unknown keys" + (f"; did you mean {', '.join(near)}?" if near else ""),
        )


def _sources() -> list[str] | None:
    """Return the source of vllm-ascend's modules without importing them, or None if vllm-ascend is not installed
    here."""
    try:
        found = importlib.util.find_spec("vllm_ascend")
    except (ImportError, ValueError):
        return None
    folders = list(found.submodule_search_locations or []) if found is not None else []
    if not folders:
        return None
    return [path.read_text(encoding="utf-8", errors="replace") for path in Path(folders[0]).rglob("*.py")]


def _words(sources: Iterable[str]) -> list[str]:
    """Return the keys that vllm-ascend's source reads with `additional_config.get(`."""
    return [word for text in sources for word in re.findall(r"additional_config\.get\(\s*[\"'](.+?)[\"']", text)]


def unread_parallelism(config: Section, tree: SourceTree | None = None) -> Iterator[Finding]:
    """Yield an error for each parallelism setting of the rollout that verl does not read. By default, check the
    installed verl."""
    # Such an engine starts without the parallelism: a model that needs it does not fit, and other models are slow.
    # Sources: the code of verl 796871d7; vllm_ascend/platform.py and distributed/utils.py of 0.9.1 for the output
    # head.
    engine = config.actor_rollout_ref.rollout
    asked = dict(_asked_divisions(engine))
    if engine.get("name") != "vllm" or not asked:
        return
    tree = tree or SourceTree.installed(("verl",))
    if "verl" not in tree or tree.nodes(_SCHEMA):
        return
    words = frozenset().union(*map(tree.used_names, tree.modules_below(_READERS)))
    for setting, (found, fix) in asked.items():
        expected, reason = (
            "a setting that the installed verl's rollout reads",
            f", which nothing in {_READERS} reads",
        )
        if setting in data_parallel.SETTINGS:
            # verl-npu reads it: `give_engine_the_users_arguments`.
            alone = data_parallel.sharing_obstacle(engine, SourceTree.installed(("vllm",)))
            expected, reason = "engines that can share a model", f" with {alone}" if alone else ""
        if setting not in words and reason:
            yield refusal(
                "rollout.unread_parallelism",
                subject=f"{_ROLLOUT}.{setting}",
                expected=expected,
                found=f"{found}{reason}",
                fix=fix,
            )


def _asked_divisions(engine: Section) -> Iterator[tuple[str, tuple[str, str]]]:
    for setting, fix in _SIZE_FIXES.items():
        size = engine.get(setting)
        if isinstance(size, int) and size > 1:
            yield setting, (str(size), fix)
    if engine.get("enable_expert_parallel") and engine.get("mode") == "async":
        yield "enable_expert_parallel", ("True", _EXPERT_PARALLEL_FIX)
    hybrid = engine.get("hybrid_tp")
    if hybrid is not None and hasattr(hybrid, "get") and hybrid.get("enabled"):
        yield "hybrid_tp", ("enabled=True", _HYBRID_TP_FIX)


def _weight_format(config: Section) -> Iterator[Finding]:
    # The version of vllm-ascend is known only in the worker. From 0.23 on, the engine fails when it wakes up; earlier
    # releases do not read the key.
    asked = additional_config(config)
    mode = asked.get(NZ_KEY) if hasattr(asked, "get") else None
    if config.actor_rollout_ref.rollout.get("name") == "vllm" and mode:
        yield remark(
            "rollout.weight_format",
            f"{_ADDITIONAL}.{NZ_KEY}={mode}: from vllm-ascend 0.23 on, this key overrides {NZ.name}={NZ.value}, and "
            f"the engine refuses to wake up; remove the key, because {NZ.reason}",
        )


def _kernels(config: Section) -> Iterator[Finding]:
    # The driver sees no NPU, so these are only warnings.
    role = config.get("actor_rollout_ref") or {}
    model = role.get("model") or {}
    megatron = (role.get("actor") or {}).get("strategy") == "megatron"
    # Megatron's trainer only has Triton's fused kernels.
    backend = "triton" if megatron else (model.get("fused_kernel_options") or {}).get("impl_backend")
    if model.get("use_fused_kernels") and backend == "triton":
        yield remark(
            "rollout.kernels",
            f"{_MODEL}.use_fused_kernels=True: verl's fused cross entropy is a Triton kernel whose blocks are too "
            "large for an Ascend 910B (`ub overflow`, https://github.com/verl-project/verl/issues/7950); if the "
            "compiler rejects these blocks, verl-npu's feature fused_kernels launches the kernel with smaller blocks; "
            "if training still fails with this error, set use_fused_kernels to False, or with FSDP set "
            f"{_MODEL}.fused_kernel_options.impl_backend=torch",
        )
    if model.get("use_liger"):
        yield remark(
            "rollout.kernels",
            f"{_MODEL}.use_liger=True: upstream's documentation for Ascend up to v0.7.1 says that liger-kernel is not "
            "supported; if training ends with a Triton error, set use_liger to False",
        )


def _two_tritons(config: Section) -> Iterator[Finding]:
    if _installed("triton") and _installed("triton-ascend"):
        yield remark(
            "rollout.two_tritons",
            "the packages triton and triton-ascend are both installed and overwrite each other's files, so kernels "
            "may be compiled for CUDA; run `pip uninstall triton triton-ascend`, then install only triton-ascend",
        )


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


_EITHER = (Stage.SCRIPT, Stage.JOB)
_JOB = (Stage.JOB,)
RULES: tuple[Rule[Section], ...] = (
    Rule(
        "rollout.expandable_segments",
        expandable_segments,
        _JOB,
        about="A vLLM engine with sleep mode in a job whose allocator uses expandable segments: the two do not work "
        "together in vllm-ascend.",
    ),
    Rule(
        "rollout.engine_versions",
        unfit_releases,
        _JOB,
        about="Installed releases of vLLM and vllm-ascend that lack what the installed verl imports.",
    ),
    Rule(
        "rollout.ranks",
        _ranks,
        _EITHER,
        about="The job's NPUs, which must divide into rollout engines of the configured size: upstream's workers "
        "assert this.",
    ),
    Rule(
        "rollout.heads",
        _heads,
        _EITHER,
        about="The rollout's tensor-parallel size, which must divide the number of the model's attention heads: "
        "otherwise vLLM does not start.",
    ),
    Rule(
        "rollout.additional_config",
        _additional_config,
        _JOB,
        about="Keys in vllm-ascend's additional_config that the installed release does not read, so they have no "
        "effect.",
    ),
    Rule(
        "rollout.unread_parallelism",
        unread_parallelism,
        _JOB,
        about="A parallelism setting of the rollout that the installed verl does not read: the engine would start "
        "without it.",
    ),
    Rule(
        "rollout.engine_arguments",
        unknown_arguments,
        _EITHER,
        about="Arguments in engine_kwargs that the installed vLLM does not support: the engine would fail.",
    ),
    Rule(
        "rollout.unread_arguments",
        unread_arguments,
        _JOB,
        about="Arguments in engine_kwargs that the installed verl does not pass to the engine.",
    ),
    Rule(
        "rollout.sizes_in_one_word",
        sizes_in_one_word,
        _JOB,
        about="A list of graph sizes that the installed verl's server passes to vLLM as a single argument, which "
        "makes vLLM exit.",
    ),
    Rule(
        "rollout.rl_config",
        wrong_rl_config,
        _JOB,
        about="The keys of vllm-ascend's rl_config: the installed release must support them, and each must be True "
        "or False.",
    ),
    Rule(
        "rollout.weight_format",
        _weight_format,
        _EITHER,
        about="A weight format in additional_config that overrides the variable that verl-npu sets to keep weights "
        "in the plain format.",
    ),
    Rule(
        "rollout.kernels",
        _kernels,
        _EITHER,
        about="Fused kernels and liger-kernel, whose Triton kernels reportedly fail on an Ascend 910B.",
    ),
    Rule(
        "rollout.two_tritons",
        _two_tritons,
        _JOB,
        about="The packages triton and triton-ascend installed together: both provide the module `triton`.",
    ),
)
"""All rules, in the order that a job applies them."""
