"""The rules that find problems in a launch script before it runs; each rule checks one thing.

A rule refuses a script only if the job is certain to fail: because Hydra, an assertion in upstream's code, or
MindSpeed raises an error, or because verl-npu itself ends the job. In the last case, the rule calls the same verl-npu
function as the job. If a failure is only possible, the rule gives a warning.
"""

from __future__ import annotations

import ast
import contextlib
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from verl_npu import environment
from verl_npu.ascend.variables import (
    ALLOCATOR,
    EXPANDABLE_SEGMENTS,
    NZ_KEY,
    VIRTUAL_NPUS,
    VISIBLE_DEVICES,
    virtual_npus,
)
from verl_npu.errors import SourceError
from verl_npu.features.configuration import Section
from verl_npu.features.device import resolve_device
from verl_npu.features.fleet.forwarding import refuse_other_values
from verl_npu.features.fused_kernels import BLOCKS, MODULE
from verl_npu.features.megatron.contract import recorded_as, revision_for
from verl_npu.features.megatron.request import requests
from verl_npu.features.megatron.rules import problems
from verl_npu.features.micro_batches.packing import pack
from verl_npu.features.rollout import rules as rollout
from verl_npu.features.rollout.unmet import unmet_imports
from verl_npu.features.weight_sync.engines.sglang import refuse_proof
from verl_npu.features.weight_sync.settings import Check
from verl_npu.findings import Finding, Rule, Severity, Stage, error, find, refusals, warning
from verl_npu.language import gettext as _
from verl_npu.language import ngettext
from verl_npu.pins import pins
from verl_npu.registry.source.tree import SourceTree, Target

from ..doctor.site import Site
from ..doctor.variables import unreadable_devices, wrong_variables
from ..pins import PINS, Component
from . import validated
from .keys import (
    ACTOR,
    CRITIC,
    DEVICE,
    ENGINE,
    FREE_CACHE_ENGINE,
    MAX_PROMPT,
    MAX_RESPONSE,
    MODEL,
    NPUS,
    ROLLOUT,
    is_megatron,
    is_separate,
    may_sleep,
)
from .layout import indivisible, parallelism_of
from .script import Script, is_applied, rule, trained_roles
from .successor import successor_findings
from .upstream import RULES as UPSTREAM_RULES

_ROLLOUT_CONFIG = Target("verl.workers.config.rollout", "RolloutConfig")
_WORKER_VARIABLES = r"(?:HCCL|VLLM|ASCEND|PYTORCH_NPU|TASK_QUEUE|CPU_AFFINITY|MULTI_STREAM|COMBINED)\w*"
_ASSIGNED = re.compile(rf"^[ \t]*({_WORKER_VARIABLES})=", re.MULTILINE)
_EXPORTED = re.compile(rf"^[ \t]*(?:export|declare -x)[ \t]+(?:\w+=\S*[ \t]+)*({_WORKER_VARIABLES})\b", re.MULTILINE)
_SIZES = (
    r"trainer\.(n_gpus_per_node|nnodes|total_training_steps)|data\.train_batch_size|(ray_kwargs\.)?ray_init\.num_cpus"
    r"|actor_rollout_ref\.(actor\.ppo_mini_batch_size|rollout\.(n|tensor_model_parallel_size))"
)
_PATHS = (
    r"(.*\.)?(train_files|val_files|partial_pretrain|model\.path|dist_checkpointing_path|custom_reward_function\.path)"
)

_TASK_QUEUE, _OWN_TASK_QUEUE = "TASK_QUEUE_ENABLE", "VLLM_ASCEND_TASK_QUEUE_ENABLE"
_DATA = (".parquet", ".json", ".jsonl")
_REWARD_MODEL = "reward_model.model.path"

_COLOCATED = re.compile(rb"max_colocate_count(?:: int)? ?= ?(\d{1,3})")
_DEFAULT_MODELS = ("~/models/deepseek-llm-7b-chat", "~/models/gemma-1.1-7b-it")
"""The default models in verl's configurations: the first for reinforcement learning, the second for fine-tuning."""
_PLACEHOLDER = re.compile(r"(?<![^\s'\"\[\],:=])(?:[^\s'\"\[\],:=]*/)?(?:path/to|PATH/TO)/[^\s'\"\[\],]*")
_WEIGHT_SYNC_VARIABLES = frozenset(
    each.name
    for each in (
        environment.WEIGHT_SYNC_TIMEOUT,
        environment.WEIGHT_SYNC_CHECK,
        environment.WEIGHT_SYNC_BUCKET_MB,
        environment.WEIGHT_SYNC_PORT,
    )
)


_AND_IN_JOB = (Stage.SCRIPT, Stage.JOB)


# Problems that verl-npu refuses in the job: these rules call the functions that the job calls.


def _feature_rule(feature: str, ask: Callable[[Script], object], code: str, about: str = "") -> Rule[Script]:
    """Return a rule that calls a feature's check. Leave `about` empty if a rollout rule with the same code already has
    an explanation."""

    def asked(script: Script) -> Iterator[Finding]:
        yield from refusals(code, ask, script) if is_applied(script, feature) else ()

    return Rule(code, asked, (Stage.SCRIPT, Stage.JOB), about=about)


def _check_source(script: Script, find: Callable[[Section, SourceTree], Iterable[Finding]]) -> None:
    rollout.refuse(find(script.section, script.sources))


def _rollout_rule(code: str) -> Rule[Script]:
    return _feature_rule("rollout", lambda script: rollout.check(script.section, (code,)), code)


@rule("rollout.expandable_segments", "", _AND_IN_JOB)
def _expandable_segments(script: Script) -> Iterator[Finding]:
    """Refuse expandable segments in verl's own trainers. In recipes, only warn, because a recipe may register a
    different engine."""
    setting, engine = script.environ.get(ALLOCATOR, ""), script.settings.text(ENGINE)
    upstreams = script.trainer.module.startswith(("verl.", "verl/")) and "verl" in script.sources
    if upstreams and is_applied(script, "rollout"):

        def remedy(section: Section) -> str:
            return rollout.sleep_mode_overrides_of(section, _fields(script.sources), lambda mode: True)

        def ask(section: Section) -> None:
            rollout.refuse(rollout.expandable_segments(section, script.environ, remedy))

        yield from refusals("rollout.expandable_segments", ask, script.section)
    elif EXPANDABLE_SEGMENTS in setting and engine == "vllm" and may_sleep(script.settings):
        yield warning(
            "rollout.expandable_segments",
            _("expandable segments beside an engine that may sleep"),
            subject=f"{ALLOCATOR}={setting}",
            why=_(
                "vllm-ascend's sleep mode does not support expandable segments, so the job fails when its engine "
                "goes to sleep"
            ),
            fix=_("remove {expandable_segments}, or set {free_cache_engine}=False").format(
                expandable_segments=EXPANDABLE_SEGMENTS, free_cache_engine=FREE_CACHE_ENGINE
            ),
        )


def _fields(sources: SourceTree) -> frozenset[str] | None:
    """Return the field names of verl's RolloutConfig, or None if this verl has no such class."""
    nodes = [node for node in sources.nodes(_ROLLOUT_CONFIG) if isinstance(node, ast.ClassDef)]
    if not nodes:
        return None
    fields = (field.target for field in nodes[-1].body if isinstance(field, ast.AnnAssign))
    return frozenset(field.id for field in fields if isinstance(field, ast.Name))


# Problems that upstream, Hydra, or MindSpeed refuse, and problems that may make a job fail.


@rule("device-setting", "A trainer.device other than npu.", _AND_IN_JOB)
def _device(script: Script) -> Iterator[Finding]:
    device, in_force = script.settings.text(DEVICE), is_applied(script, "device")
    if in_force:
        yield from refusals(
            "device-setting", lambda _: resolve_device(script.section, script.trainer.overrides), script
        )
    source = script.sources.read(script.trainer.module) if script.trainer.module.startswith("verl.") else None
    # From ccd7d934 on, upstream's trainers set the device to npu themselves; with verl-npu they keep cpu.
    kept = b"auto_set_" not in (source or b"") or (device == "cpu" and in_force)
    # From v0.9.0 on, verl asks Ray for the platform's own resource, whatever the setting is.
    by_name = b"ray_resource_name" not in (script.sources.read("verl.single_controller.ray.base") or b"")
    by_ray = by_name and script.trainer.ranks == 0 and ENGINE in script.settings
    if by_ray and kept and device not in ("", "npu") and not (device == "cuda" and in_force):
        # With verl-npu off, the script may be meant for CUDA. A trainer whose source is missing may set the device
        # too.
        yield (warning if device == "cuda" or source is None else error)(
            "device-setting",
            device,
            subject=DEVICE,
            why=_("on NPUs, Ray has no resource of this name, so verl stops with an error or waits forever"),
            fix=_("remove {device}, or set it to npu").format(device=DEVICE),
        )


@rule("shadowed", "A key with two values. The later value wins.")
def _shadowed(script: Script) -> Iterator[Finding]:
    values: dict[str, str] = {}
    for word in script.trainer.overrides:
        key, equals, value = word.lstrip("+").partition("=")
        if not equals or word.startswith("~"):
            continue
        if values.get(key, value) != value:
            yield warning(
                "shadowed",
                _("two values, {values} and later {value}").format(values=values[key], value=value),
                subject=key,
                why=_("if a key is set more than once, Hydra uses only the last value"),
                fix=_("remove the value that you do not want"),
            )
        values[key] = value


@rule("empty", "A size that is not a number, or is empty, for example because of a shell variable without a value.")
def _empty(script: Script) -> Iterator[Finding]:
    settings = script.settings
    for key in dict.fromkeys((*settings.matching(_SIZES), *validated.non_numbers(settings, script.sources))):
        found = settings.get(key)
        if isinstance(found, str) and found != "???" and "${" not in found:
            yield error(
                "empty",
                _("the text {found!r} instead of a number").format(found=found)
                if found.strip()
                else _("an empty value"),
                subject=key,
                why=_("verl uses this value in calculations, so it must be a number"),
                fix=_(
                    "write a number without quotes, use a shell variable that is set, or read an environment "
                    "variable with ${oc.decode:${oc.env:NAME}}"
                ),
            )


@rule("parallel-sizes", "Parallel sizes of Megatron that do not divide the number of NPUs.")
def _parallel_sizes(script: Script) -> Iterator[Finding]:
    for each in indivisible(script.settings, script.npus):
        yield error(
            "parallel-sizes",
            ngettext("{sizes} on {npus} NPU", "{sizes} on {npus} NPUs", each.npus).format(
                sizes=each.sizes, npus=each.npus
            ),
            subject=each.key,
            why=_(
                "megatron.core.parallel_state.initialize_model_parallel raises an error if the product of the "
                "parallel sizes does not divide the world size"
            ),
            fix=_("choose sizes whose product divides the number of NPUs"),
        )


@rule(
    "successor",
    "A recipe (fully_async_policy, one_step_off_policy) that settings of verl's v1 trainer can replace.",
)
def _successor(script: Script) -> Iterator[Finding]:
    return successor_findings(script.trainer, script.settings, script.sources)


@rule(
    "mindspeed-overrides",
    "MindSpeed overrides that the MindSpeed release in the documentation of the script's verl version rejects.",
    _AND_IN_JOB,
)
def _overrides(script: Script) -> Iterator[Finding]:
    if script.pin not in pins():
        return
    words = shlex.join([script.trainer.module, *script.trainer.overrides])
    if not any(section in words for section in (".megatron.", ".mindspeed.")):
        return
    contract = recorded_as(revision_for(script.pin, words))
    for request in requests(words):
        for problem in problems(request, contract):
            yield (error if problem.refused else warning)(
                problem.code,
                problem.found,
                subject=f"{request.worker}: {problem.subject}",
                expected=problem.expected,
                why=_("MindSpeed {revision}, the version in the documentation of {pin}, expects {expected}").format(
                    revision=contract.revision, pin=script.pin, expected=problem.expected
                ),
                fix=problem.fix,
            )


@rule(
    "variables",
    "Exported variables with a value that is wrong on any machine.",
    (Stage.SCRIPT, Stage.ENVIRONMENT, Stage.JOB),
)
def _variables(script: Script) -> Iterator[Finding]:
    site = Site(None, None, environ=script.environ, path=())
    for finding in wrong_variables(site, Stage.SCRIPT):
        ours = finding.code in environment.VARIABLES
        severity = Severity.WARNING if ours and not _reads(script, finding.code) else finding.severity
        yield replace(finding, code="variables", subject=finding.code, severity=severity)


def _reads(script: Script, variable: str) -> bool:
    """Return whether the job is certain to read one of verl-npu's variables and to end if the value is wrong."""
    settings, told_off = script.settings, environment.SWITCH.text(script.environ).lower() == "off"
    if variable in (environment.SWITCH.name, environment.DISABLE.name, environment.FORCE.name):
        return environment.STRICT.text(script.environ) not in ("", "0") and not told_off
    if told_off:
        return False
    if variable == environment.PLACEMENT_TIMEOUT.name:
        return script.trainer.ranks == 0 and ENGINE in settings and is_applied(script, "device")
    if variable == environment.TOKEN_BUDGET.name:
        return settings.truth(f"{ACTOR}.use_dynamic_bsz") and is_applied(script, "micro_batches")
    if variable in _WEIGHT_SYNC_VARIABLES:
        return _has_separate_engine(script) and is_applied(script, "weight_sync")
    return True


def _has_separate_engine(script: Script) -> bool:
    """Return whether the rollout engine has separate NPUs and receives the trainer's weights by weight sync."""
    by_recipe = re.search(r"one_step_off|fully_async", script.trainer.module) is not None
    return by_recipe or is_separate(script.settings)


def unexported(text: str, exports: Collection[str]) -> Iterator[Finding]:
    """Warn about each worker variable that a script sets but does not export. `exports` are the variables that are
    already exported."""
    exported = {*_EXPORTED.findall(text), *exports}
    for name in dict.fromkeys(_ASSIGNED.findall(text)):
        if name not in exported:
            yield warning(
                "exports",
                _("an assignment without export"),
                subject=name,
                why=_("the processes that the script starts do not see the variable"),
                fix=_("write export {name}=…").format(name=name),
            )


@rule("exports", "Variables that the script sets but Ray's workers do not get.")
def _exports(script: Script) -> Iterator[Finding]:
    yield from unexported(script.text, script.trainer.exports)
    if not script.submitted or script.runtime is None:
        return
    for name in script.trainer.exports:
        if re.fullmatch(_WORKER_VARIABLES, name) and name not in script.runtime:
            yield warning(
                "exports",
                _("an export in a script that submits its job with ray job submit"),
                subject=name,
                why=_(
                    "a job that is submitted to Ray gets only the variables of its runtime environment, not the "
                    "variables of the shell"
                ),
                fix=_("add {name} to env_vars in the file that --runtime-env specifies").format(name=name),
            )


@rule(
    "visible-devices", "A list of visible NPUs that is shorter than the number of NPUs that the job uses on each node."
)
def _visible_devices(script: Script) -> Iterator[Finding]:
    listed, each = script.environ.get(VISIBLE_DEVICES), script.trainer.ranks or script.settings.whole(NPUS)
    virtual = virtual_npus(script.environ)
    there = int(virtual) if virtual.isdecimal() else None
    if script.trainer.ranks and not script.trainer.counted:
        return
    trouble = unreadable_devices(listed) if listed is not None else ""
    count = there
    if listed is not None and not trouble:
        count = sum(there is None or int(number) < there for number in listed.split(","))
    if trouble or (count is not None and count < each):
        by_torchrun = script.trainer.ranks > 0
        variables = {VISIBLE_DEVICES: listed, VIRTUAL_NPUS: virtual or None}
        yield (error if by_torchrun else warning)(
            "visible-devices",
            _("{text!r}: {trouble}").format(text=listed, trouble=trouble)
            if trouble
            else ngettext(
                "{count} visible NPU, but the job requests {each} on each node",
                "{count} visible NPUs, but the job requests {each} on each node",
                count or 0,
            ).format(count=count, each=each),
            subject=", ".join(f"{name}={text}" for name, text in variables.items() if text is not None),
            why=_(
                "torchrun starts a process for each NPU that the job requests. A process whose NPU is not in the list "
                "fails with `invalid device ordinal`"
            )
            if by_torchrun
            else _(
                "Ray counts only the NPUs in this list, unless Ray was started with another list. If Ray counts too "
                "few NPUs, verl stops or waits for the missing NPUs"
            ),
            fix=_("set {virtual_npus} to {each}, or request fewer NPUs").format(virtual_npus=VIRTUAL_NPUS, each=each)
            if listed is None
            else _("list as many NPUs as the job uses on a node, or unset {visible_devices}").format(
                visible_devices=VISIBLE_DEVICES
            ),
        )


@rule("ray-cpus", "Fewer CPUs for Ray than the job's placement groups need.")
def _ray_cpus(script: Script) -> Iterator[Finding]:
    """Refuse a number of CPUs that is too small for Ray's placement groups.

    Source: `get_placement_groups` makes bundles of `max_colocate_count` CPUs.
    """
    settings, each = script.settings, script.settings.whole(NPUS)
    modules = ("verl.trainer.ppo.ray_trainer", "verl.single_controller.ray.base")
    counts = (_COLOCATED.search(script.sources.read(module) or b"") for module in modules)
    beside = next((int(found[1]) for found in counts if found), 1)
    # verl's own trainers read the first key, and older recipes the second.
    upstreams = script.trainer.module.startswith("verl.")
    for key in ("ray_kwargs.ray_init.num_cpus", *(() if upstreams else ("ray_init.num_cpus",))):
        cpus = settings.get(key)
        if script.trainer.ranks == 0 and ENGINE in settings and isinstance(cpus, int) and 0 < cpus < beside * each:
            yield error(
                "ray-cpus",
                _("{cpus} CPUs for {each} NPUs").format(cpus=cpus, each=each),
                subject=key,
                why=_(
                    "verl requests {beside} CPUs for each NPU from Ray, and one more CPU for verl's runner, so "
                    "Ray cannot place the job"
                ).format(beside=beside),
                fix=_("remove {key}, or set it to at least {needed}").format(key=key, needed=beside * each + 1),
            )


@rule(
    "placeholders",
    "Paths that the script's author left for you to fill in. An absolute path may exist on the cluster.",
)
def _placeholders(script: Script) -> Iterator[Finding]:
    for name, value in script.environ.items():
        # The kernel allows no white space in the name of a network interface.
        if name.endswith("_IFNAME") and re.search(r"\S\s+\S|[<>]", value):
            yield warning(
                "placeholders",
                _("{value}, which is no network interface").format(value=value),
                subject=name,
                why=_("this value is a placeholder that you must replace"),
                fix=_(
                    "set it to the network interface that connects the nodes; `ip addr` lists the interfaces of a node"
                ),
            )
    for key in script.settings.matching(r"actor_rollout_ref\.model\.path|model\.(path|partial_pretrain)"):
        path = script.settings.text(key)
        if path in _DEFAULT_MODELS and not Path(path).expanduser().exists():
            yield warning(
                "placeholders",
                _("verl's default model, {path}").format(path=path),
                subject=key,
                why=_("the script names no model, and the default model is not on this machine"),
                fix=_("add {key}=YOUR_MODEL").format(key=key),
            )
    for word in script.trainer.overrides:
        key, _unused, value = word.lstrip("+").partition("=")
        for path in map(str, _PLACEHOLDER.findall(value)):
            if (script.trainer.folder / path).exists():
                continue
            is_read = re.fullmatch(_PATHS, key) and not path.startswith("/") and not script.submitted
            yield (error if is_read else warning)(
                "placeholders",
                _("{path}, which is not on this machine").format(path=path),
                subject=key,
                why=_("the script's author left this path for you to fill in"),
                fix=_("write your own path in its place"),
            )


@rule("imports", "Names that a trainer imports at its start and its verl lacks.")
def _imports(script: Script) -> Iterator[Finding]:
    parts = script.trainer.module.split(".")
    if parts[0] == "verl" or "verl" not in script.sources or not all(map(str.isidentifier, parts)):
        return
    modules = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    with contextlib.suppress(SourceError):
        for unmet in unmet_imports(modules, parts[0], "verl", script.sources):
            yield error(
                "imports",
                _("no {missing} in the verl that the script was checked against").format(missing=unmet.missing),
                subject=unmet.module,
                why=_("line {line} imports {unmet}, and the trainer fails there with an ImportError").format(
                    line=unmet.line, unmet=unmet.name
                ),
                fix=_("use a script from the same revision as the installed verl"),
            )


@rule(
    "ray-collective-hccl",
    "A group of Ray's collectives, which do not support HCCL, in a trainer that is not verl's own.",
)
def _groups(script: Script) -> Iterator[Finding]:
    package = script.trainer.module.rpartition(".")[0]
    top = package.partition(".")[0]
    if not all(map(str.isidentifier, package.split("."))) or _SUPPORTED_TRAINERS.match(script.trainer.module):
        return
    with contextlib.suppress(SourceError):
        sources = script.sources if top in script.sources else SourceTree.at(script.trainer.folder, (top,))
        texts = ((module, sources.read(module) or b"") for module in sources.modules_below(package))
        makers = (each for each, text in texts if b"ray.util.collective" in text and _GROUP_CALL.search(text))
        module = next(makers, None)
        if module is not None:
            yield warning(
                "ray-collective-hccl",
                _("a communication group of ray.util.collective in {module}").format(module=module),
                subject=script.trainer.module,
                why=_(
                    "Ray's collectives do not support HCCL, and verl-npu replaces Ray's collective groups only in "
                    "verl's own recipes"
                ),
                fix=_("start verl's own recipe, or run `verl-npu explain ray-collective-hccl` to see alternatives"),
            )


@rule("rollout.weight_format", "", _AND_IN_JOB)
def _weight_format(script: Script) -> Iterator[Finding]:
    asked = [rule for rule in rollout.RULES if rule.code == "rollout.weight_format"]
    for finding in find(asked, script.section, Stage.SCRIPT) if is_applied(script, "rollout") else ():
        yield warning(
            "rollout.weight_format",
            finding.found,
            subject=f"{ROLLOUT}.engine_kwargs.vllm.additional_config",
            why=_(
                "with this key, the engine of vllm-ascend 0.23 or later refuses to wake up; verl-npu only warns about "
                "the key, so the job starts, and fails when the engine wakes up"
            ),
            fix=_("remove {nz_key} from additional_config").format(nz_key=NZ_KEY),
        )


@rule("token-budget", "A token budget that is smaller than the longest sequence that the settings allow.")
def _token_budget(script: Script) -> Iterator[Finding]:
    settings, parallel = script.settings, parallelism_of(script.settings)
    key = f"{ACTOR}.ppo_max_token_len_per_gpu"
    budget = settings.whole(key, -1) * parallel.sequence * parallel.context
    longest = settings.whole(MAX_PROMPT) + settings.whole(MAX_RESPONSE)
    if budget < 0 or longest <= 0 or not settings.truth(f"{ACTOR}.use_dynamic_bsz"):
        return
    for refusal in refusals("token-budget", lambda _: pack([longest], budget), script):
        yield replace(
            refusal,
            severity=Severity.WARNING if budget else Severity.ERROR,
            subject=key,
            why=_(
                "a rank divides its sequences into {subject}, and the update fails if a single padded sequence "
                "exceeds this limit"
            ).format(subject=refusal.subject),
            fix=_("raise {key}, or lower {max_prompt} or {max_response}").format(
                key=key, max_prompt=MAX_PROMPT, max_response=MAX_RESPONSE
            ),
        )


@rule(
    "weight-proof",
    "A proof of the synced weights, which SGLang cannot give if it does not share the trainer's NPUs.",
    _AND_IN_JOB,
)
def _sync_check(script: Script) -> Iterator[Finding]:
    asked = environment.WEIGHT_SYNC_CHECK.text(script.environ) == Check.ENGINE.value
    if (
        _has_separate_engine(script)
        and asked
        and script.settings.text(ENGINE) == "sglang"
        and is_applied(script, "weight_sync")
    ):
        for refusal in refusals("weight-proof", lambda _: refuse_proof(), script):
            yield replace(refusal, severity=Severity.WARNING)


@rule("task-queue", "A level of torch_npu's task queue at which graphs fail.")
def _task_queue(script: Script) -> Iterator[Finding]:
    """Source: NPUGraph::capture_begin of torch_npu.

    The finding is only a warning, because other settings of the engine may turn graphs off.
    """
    settings, (variable, level) = script.settings, task_queue_of_engine(script)
    captures = settings.text(ENGINE) == "vllm" and settings.get(f"{ROLLOUT}.enforce_eager") is False
    if level == "2" and captures:
        yield warning(
            "task-queue",
            _("level 2 of torch_npu's task queue beside an engine that captures graphs"),
            subject=f"{_TASK_QUEUE}={level}",
            why=_(
                "torch_npu fails during graph capture with `Do not support TASK_QUEUE_ENABLE = 2 during NPU graph "
                "capture`"
            ),
            fix=_("export {own}=1, which changes the setting for the engine only").format(own=variable)
            if variable == _OWN_TASK_QUEUE
            else _("export {variable}=1, or set {key}=True").format(variable=variable, key=f"{ROLLOUT}.enforce_eager"),
        )


def task_queue_of_engine(script: Script) -> tuple[str, str | None]:
    """Return the name of the variable that sets the level of the engine's task queue, together with that level."""
    own = _OWN_TASK_QUEUE.encode() in (script.sources.read("verl.plugin.platform.platform_npu") or b"")
    level = (script.environ.get(_OWN_TASK_QUEUE) if own else None) or script.environ.get(_TASK_QUEUE)
    return _OWN_TASK_QUEUE if own else _TASK_QUEUE, level


@rule("logprobs-mode", "Log-probabilities of the rollout at another temperature than the trainer's.")
def _logprobs_mode(script: Script) -> Iterator[Finding]:
    """Source: the model runner of vllm-ascend 0.11.0 to 0.23.0, which makes its sampler without logprobs_mode."""
    settings, key = script.settings, f"{ROLLOUT}.temperature"
    temperature = settings.number(key, 1.0)
    if settings.text(ENGINE) == "vllm" and temperature != 1 and settings.truth(f"{ROLLOUT}.calculate_log_probs"):
        yield warning(
            "logprobs-mode",
            _("vllm-ascend ignores {mode} and returns log-probabilities without temperature").format(
                mode=f"{ROLLOUT}.logprobs_mode"
            ),
            subject=f"{key}={temperature:g}",
            why=_(
                "the trainer divides the logits by the temperature, so the KL divergence and the importance weights "
                "are incorrect"
            ),
            fix=_("set {key}=1.0, or {log_probs}=False").format(key=key, log_probs=f"{ROLLOUT}.calculate_log_probs"),
        )


@rule(
    "reward-model", "A reward model with NPUs of its own that verl never wakes up, or whose scores verl cannot read."
)
def _reward_model(script: Script) -> Iterator[Finding]:
    """Source: verl's `RewardModelManager` and `RewardLoopWorker`.

    If the reward model has separate NPUs, the agent loops query it. Only `compute_rm_score` wakes up its engine, and
    only a reward function returns the `reward_extra_info` that the agent loops read.
    """
    section, settings = "reward.reward_model", script.settings
    pool, sleeps = f"{section}.enable_resource_pool", f"{section}.rollout.free_cache_engine"
    function = settings.text("reward.custom_reward_function.path")
    manager, worker, loop = (
        script.sources.read(f"verl.experimental.{name}") or b""
        for name in ("reward_loop.reward_model", "reward_loop.reward_loop", "agent_loop.agent_loop")
    )
    if not settings.truth(f"{section}.enable") or not settings.truth(pool):
        return
    if not function and b'return {"reward_score": rm_score}' in worker and b'result["reward_extra_info"]' in loop:
        yield error(
            "reward-model",
            _("a reward model with NPUs of its own and no reward function"),
            subject=f"{pool}=True",
            why=_("verl's agent loop fails with `KeyError: 'reward_extra_info'`, and the first step hangs"),
            fix=_(
                "set {pool}=False, or set reward.custom_reward_function to a function that sends requests to the "
                "reward model; the function receives the address of the reward model in its argument "
                "reward_router_address"
            ).format(pool=pool),
        )
    is_left_asleep = b"free_cache_engine" in manager and b"enable_resource_pool" not in manager
    if is_left_asleep and settings.truth(sleeps) and settings.text(f"{section}.rollout.name") == "vllm":
        yield warning(
            "reward-model",
            _("a reward model with NPUs of its own whose engine sleeps"),
            subject=f"{sleeps}=True",
            why=_(
                "verl's trainers put the engine to sleep at the start and never wake it up, so requests to the "
                "engine never return"
            ),
            fix=_("set {key}=False").format(key=sleeps),
        )


@rule(
    "fused-kernels",
    "Triton kernels of verl's fused loss, which Ascend's compiler refuses with upstream's block sizes.",
)
def _fused_kernels(script: Script) -> Iterator[Finding]:
    """Warn if the fused loss uses its Triton implementation. The other implementation launches no Triton kernels, but
    Megatron's trainer does not have it."""
    key, way = f"{MODEL}.use_fused_kernels", f"{MODEL}.fused_kernel_options.impl_backend"
    if not script.settings.truth(key) or not (is_megatron(script.settings) or script.settings.text(way) == "triton"):
        return
    is_fixed = is_applied(script, "fused_kernels")
    yield warning(
        "fused-kernels",
        _("Triton kernels that Ascend's compiler refuses with upstream's block sizes: {names}").format(
            names=_(", ").join(BLOCKS)
        ),
        subject=f"{key}=True",
        why=_(
            "the kernels' results and speed on an NPU cannot be checked here. If the installed compiler rejects "
            "upstream's block sizes, verl-npu's feature fused_kernels uses smaller blocks"
        )
        if is_fixed
        else _(
            "the job fails with `ub overflow` (verl issue 7950). In verl v0.7.0 and earlier, a vocabulary size that "
            "is not a multiple of 1024 also gives wrong log-probabilities, without an error"
        ),
        fix=_(
            "compile the kernels with `verl-npu kernels {module}`, or compile them with the arguments of the job: "
            "`verl-npu rehearse --kernels`"
        ).format(module=MODULE)
        if is_fixed
        else _("let verl-npu apply fused_kernels, or set {key}=False").format(key=key),
    )


@rule("liger-kernel", "liger-kernel, if the documentation of the script's verl version excludes NPUs.")
def _liger(script: Script) -> Iterator[Finding]:
    cell = PINS[script.pin].cells.get(Component.LIGER_KERNEL) if script.pin in PINS else None
    claims = [claim for claim in cell.claims if claim.unsupported] if cell else []
    for key in (f"{MODEL}.use_liger", "model.use_liger"):
        if claims and script.settings.truth(key) and not is_megatron(script.settings):
            yield warning(
                "liger-kernel",
                _("kernels of liger-kernel in place of the model's layers"),
                subject=f"{key}=True",
                why=_(
                    "{source} says that liger-kernel is not supported; liger-kernel's releases since the end of "
                    "2025 have code for NPUs, but they have not been tested with this version of verl"
                ).format(source=claims[0].source),
                fix=_("set {key}=False; verl-npu then uses the NPU's fused operators in these layers").format(key=key),
            )


@rule("files", "Paths that do not exist on this machine. The cluster may have them.")
def _files(script: Script) -> Iterator[Finding]:
    missing: dict[str, None] = {}
    for key in script.settings.matching(_PATHS):
        if key.startswith(f"{CRITIC}.") and CRITIC not in trained_roles(script):
            continue
        if key == _REWARD_MODEL and not script.settings.truth("reward_model.enable"):
            continue
        value = script.settings.get(key)
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, str) or _PLACEHOLDER.search(each) or each in _DEFAULT_MODELS:
                continue
            # A model path without a leading slash may be a name on the hub; data are always files.
            is_file = each.startswith(("/", "~")) or each.endswith(_DATA)
            if is_file and not (script.trainer.folder / Path(each).expanduser()).exists():
                missing[each] = None
    if missing:
        yield warning(
            "files",
            ngettext(
                "{count} path that is not on this machine", "{count} paths that are not on this machine", len(missing)
            ).format(count=len(missing)),
            subject=_(", ").join(missing),
            why=_("the job reads these paths on every machine on which it runs"),
            fix=_("make sure that these paths exist on every node"),
        )


_SUPPORTED_TRAINERS = re.compile(r"(?:verl|recipe\.(?:fully_async_policy|gkd|one_step_off_policy))\.")
"""A pattern for the trainers whose Ray collective groups verl-npu replaces (see verl_npu.features.weight_sync)."""
_GROUP_CALL = re.compile(rb"\b(?:create|init)_collective_group\(")

_ENGINE_RULES = (
    "rollout.ranks",
    "rollout.heads",
    "rollout.additional_config",
    "rollout.rl_config",
    "rollout.engine_arguments",
)
"""The codes of the rollout rules that run for a script exactly as they run in a job."""
RULES: tuple[Rule[Script], ...] = (
    _device,
    _imports,
    _groups,
    _shadowed,
    _empty,
    _parallel_sizes,
    *UPSTREAM_RULES,
    _successor,
    _overrides,
    *map(_rollout_rule, _ENGINE_RULES),
    *(
        _feature_rule("rollout", partial(_check_source, find=find), code)
        for code, find in (
            ("rollout.unread_parallelism", rollout.unread_parallelism),
            ("rollout.sizes_in_one_word", rollout.sizes_in_one_word),
        )
    ),
    _expandable_segments,
    _feature_rule(
        "fleet",
        lambda script: refuse_other_values(script.environ, script.trainer.name),
        "required-variables",
        "Variables with a value that would make the job compute wrong results; verl-npu gives workers another value.",
    ),
    _variables,
    _fused_kernels,
    _liger,
    _exports,
    _reward_model,
    _task_queue,
    _logprobs_mode,
    _weight_format,
    _sync_check,
    _token_budget,
    _visible_devices,
    _ray_cpus,
    _placeholders,
    _files,
)


def findings(script: Script) -> list[Finding]:
    """Return the findings of all rules that can be checked for a script, errors first."""
    found = list(find(RULES, script, Stage.SCRIPT))
    # If verl's own worker is followed, it says the same.
    if any("infer_world_size" in str(each.why) for each in found):
        found = [each for each in found if each.code != "rollout.ranks"]
    return sorted(found, key=lambda finding: not finding.refused)
